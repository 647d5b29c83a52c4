//! Limits of this process's files: how many it may have open, how long they may become.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Lets this process, and those that it starts, have as many files open as it may let itself have: the soft limit
/// becomes the hard one (setrlimit(2), RLIMIT_NOFILE). Shells and systemd set the soft one to 1,024 for programs that
/// use select(2), which nothing here does. How many that is; none: without a limit.
pub fn raise_limit() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // It is never refused: the hard limit is there to be used. If it were, the soft one is what there is.
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => maximum,
        Err(_) => current,
    }
}

/// A write beyond the limit of a file's size (RLIMIT_FSIZE) is an error (EFBIG) from now on. By default it is a signal,
/// which ends the process with all that it serves.
pub fn ignore_size_signal() {
    // SAFETY: ignoring a signal runs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_is_raised_to_the_hard_one() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(256), maximum }).unwrap();
        assert_eq!(raise_limit(), maximum);
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: maximum, maximum });
    }
}
