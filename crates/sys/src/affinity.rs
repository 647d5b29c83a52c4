//! Which CPUs a thread may run on, and with what priority.

use rustix::io::Errno;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Pins the calling thread to one CPU.
///
/// # Errors
/// `EINVAL` where the CPU does not exist or is not allowed to this process.
pub fn pin_to(cpu: usize) -> Result<(), Errno> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

/// Keeps the calling thread to these CPUs, any of them.
///
/// # Errors
/// `EINVAL` where none of them exists or is allowed to this process.
pub fn keep_to(cpus: &[usize]) -> Result<(), Errno> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    sched_setaffinity(None, &set)
}

/// The CPUs the calling thread may run on, ascending.
pub fn allowed() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect(),
        Err(_) => Vec::new(),
    }
}

/// Gives the calling thread nice −20 where the process may. Data-plane cores run SCHED_OTHER: a spinning SCHED_FIFO
/// thread is throttled for about 50 ms of every second on stock kernels as soon as anything else wants its CPU.
///
/// # Errors
/// `EACCES` or `EPERM` without CAP_SYS_NICE.
pub fn highest_nice() -> Result<(), Errno> {
    // Linux applies setpriority(PRIO_PROCESS, tid) to a single thread.
    rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20)
}

/// Where the kernel keeps the nice value of a session.
const SESSION: &str = "/proc/self/autogroup";

/// Gives the calling process a session of its own, of nice −20: where the kernel shares CPUs between sessions
/// (`sched_autogroup_enabled`), a thread's own nice value counts only among those of its session.
///
/// # Errors
/// `EPERM` where the process leads a session already, or without CAP_SYS_NICE; `ENOENT` where the kernel has no such
/// groups.
pub fn highest_session() -> std::io::Result<()> {
    // The leader of a process group may not begin a session (setsid(2)): back into its parent's group first.
    if rustix::process::getpgrp() == rustix::process::getpid()
        && let Some(parent) = rustix::process::getppid()
    {
        rustix::process::setpgid(None, Some(rustix::process::getpgid(Some(parent))?))?;
    }
    rustix::process::setsid()?;
    std::fs::write(SESSION, "-20")
}

/// The calling process's session has nice −20 until this is dropped, where the process may do that and the kernel has
/// such a thing. Of several at once, the last that is dropped decides what it then has.
#[derive(Debug)]
pub struct SessionFirst {
    before: Option<i32>,
}

impl SessionFirst {
    /// Raises it.
    pub fn new() -> SessionFirst {
        // "/autogroup-98 nice 0"
        let text = std::fs::read_to_string(SESSION).unwrap_or_default();
        let before = text.split_whitespace().last().and_then(|nice| nice.parse().ok());
        let raised = std::fs::write(SESSION, "-20").is_ok();
        SessionFirst { before: before.filter(|_| raised) }
    }
}

impl Default for SessionFirst {
    fn default() -> Self {
        SessionFirst::new()
    }
}

impl Drop for SessionFirst {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = std::fs::write(SESSION, before.to_string());
        }
    }
}
