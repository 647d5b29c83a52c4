//! What the data plane may ask of the kernel.
//!
//! It works on what guests and peers write. Were one of them to get hold of it, these walls stand around it:
//!
//! ```text
//!                    ┌ no-new-privileges: no set-user-ID program gives it more than it has
//!  before it starts  │ no core dumps, no reading of its memory by others (not dumpable)
//!  a thread          │ a limit of threads; of capabilities no more than what its cores need
//!                    └ Landlock ([`files`]): the files it may open, no signals and no sockets of others
//!  when its cores    ┌ a user of its own, without capabilities ([`user`])
//!  are made          └ seccomp ([`calls`]): the system calls it may make, on all its threads
//! ```
//!
//! A refused call is an error to the code that made it (`EPERM`, `EACCES`), counted by [`refused`] and said on standard
//! error; the start of a process is refused without a count. It never ends the process: a filter that is too narrow
//! must cost a feature, and not every guest's disk.

#![forbid(unsafe_code)]

mod calls;
mod files;
mod user;

use std::io;
use std::path::PathBuf;

use rustix::process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit};
use rustix::thread::set_no_new_privs;
use thiserror::Error;

pub use user::Identity;

/// What a data plane needs beyond what every one does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// Packet sockets, AF_XDP, netlink: it has an underlay.
    pub underlay: bool,
    /// Folders in which it makes files: recordings of cores.
    pub recordings: Vec<PathBuf>,
    /// The user that it becomes, where root started it.
    pub user: Option<Identity>,
}

/// Why a wall does not stand.
#[derive(Debug, Error)]
pub enum IsolationError {
    /// The kernel refused a setting of the process.
    #[error("{what}: {source}")]
    Process {
        /// Which.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel has no Landlock, or it is switched off, or is too old for a part.
    #[error("Landlock: {0}")]
    Files(String),
    /// The kernel does not take a filter of system calls.
    #[error("seccomp: {0}")]
    Calls(String),
}

/// A setting of the process: what it is for, and what makes it.
type Setting = (&'static str, fn() -> rustix::io::Result<()>);

/// Sets up what concerns the process and its files. Call it while the process has one thread: it is for that thread and
/// those that it starts. Every wall that can stand does; the answer has the others.
pub fn confine_process(needs: &Needs) -> Vec<IsolationError> {
    let settings: [Setting; 4] = [
        ("no new privileges", || set_no_new_privs(true)),
        ("no core dumps", || {
            setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: getrlimit(Resource::Core).maximum })
        }),
        ("not dumpable", || set_dumpable_behavior(DumpableBehavior::NotDumpable)),
        ("a limit of its threads", limit_threads),
    ];
    let refused =
        |(what, set): Setting| set().err().map(|errno| IsolationError::Process { what, source: errno.into() });
    let mut missing: Vec<IsolationError> = settings.into_iter().filter_map(refused).collect();
    missing.extend(files::restrict(needs).err());
    missing.extend(user::before_cores(needs).err());
    missing
}

/// Threads of its user, beyond what opening every volume of a large site at once takes.
const THREADS: u64 = 16 << 10;

/// Keeps code that got hold of it from taking all of the host's threads.
fn limit_threads() -> rustix::io::Result<()> {
    let most = getrlimit(Resource::Nproc).maximum.map_or(THREADS, |maximum| maximum.min(THREADS));
    setrlimit(Resource::Nproc, Rlimit { current: Some(most), maximum: Some(most) })
}

/// Gives up root's rights, for all threads. Call it when the cores are made, before [`confine_calls`].
///
/// # Errors
/// [`IsolationError::Process`]; the process is the user that it was then.
pub fn confine_user(needs: &Needs) -> Result<(), IsolationError> {
    user::after_cores(needs)
}

/// The capabilities that the calling thread has, such as `CAP_NET_RAW`.
pub fn capabilities() -> Vec<String> {
    user::names()
}

/// Puts the filter of system calls in force, for all threads there are and those to come.
///
/// # Errors
/// [`IsolationError::Calls`]; no filter is in force then.
pub fn confine_calls(needs: &Needs) -> Result<(), IsolationError> {
    softdpu_sys::refused::answer();
    calls::filter(needs).map_err(|error| IsolationError::Calls(error.to_string()))
}

/// The system calls that were refused so far, by name, with how often each was.
pub fn refused() -> Vec<(String, u64)> {
    softdpu_sys::refused::counts().into_iter().map(|(number, count)| (calls::name(number), count)).collect()
}
