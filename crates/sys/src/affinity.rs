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
