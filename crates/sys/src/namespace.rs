//! Running something in another network namespace.
//!
//! A socket or TAP belongs for ever to the namespace of the thread that made it, so that the rest of the process need
//! not move: a thread of its own enters the namespace, does the work, and ends.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// Why a namespace was not entered.
#[derive(Debug, thiserror::Error)]
pub enum NamespaceError {
    /// Its file could not be opened.
    #[error("network namespace {}: {source}; `ip netns` lists the named ones, /proc/PID/ns/net is a process's", path.display())]
    Open {
        /// The file that was tried.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel did not let this process in.
    #[error("entering a network namespace: {0}; it needs CAP_SYS_ADMIN")]
    Enter(io::Error),
    /// No thread could be started.
    #[error("starting a thread to enter a network namespace: {0}")]
    Thread(io::Error),
}

/// Opens a network namespace by its name (`ip netns add NAME`) or, if `name` has a slash, its path.
///
/// # Errors
/// [`NamespaceError::Open`].
pub fn open(name: &str) -> Result<File, NamespaceError> {
    let path = if name.contains('/') { PathBuf::from(name) } else { Path::new("/run/netns").join(name) };
    File::open(&path).map_err(|source| NamespaceError::Open { path, source })
}

/// Runs `work` on a thread inside `namespace` and hands over what it returns. A panic of `work` goes on here.
///
/// # Errors
/// [`NamespaceError::Enter`] where the process may not enter it, [`NamespaceError::Thread`] where no thread starts;
/// `work` has not run then.
pub fn within<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> Result<T, NamespaceError> {
    let enter = move || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .map_err(|errno| NamespaceError::Enter(errno.into()))?;
        Ok(work())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".into()).spawn_scoped(scope, enter);
        match thread.map_err(NamespaceError::Thread)?.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_that_is_not_there_says_where_it_was_looked_for() {
        let error = open("no-such-namespace").unwrap_err().to_string();
        assert!(error.starts_with("network namespace /run/netns/no-such-namespace: "), "{error}");
    }
}
