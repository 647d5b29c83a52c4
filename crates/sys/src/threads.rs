//! Other threads' scheduling: policy, nice value and CPUs, read and set (sched(7)).

use std::io;

use rustix::io::Errno;
use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A scheduling policy that asks for nothing ahead of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OrdinaryPolicy {
    /// SCHED_OTHER.
    Other,
    /// SCHED_BATCH.
    Batch,
    /// SCHED_IDLE: runs where nothing else wants the CPU.
    Idle,
}

/// How a thread is scheduled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheduling {
    /// None for SCHED_FIFO, SCHED_RR, SCHED_DEADLINE and what is not known here.
    pub policy: Option<OrdinaryPolicy>,
    /// Its nice value.
    pub nice: i32,
    /// The CPUs that it may run on, ascending.
    pub cpus: Vec<usize>,
}

fn pid(thread: u32) -> Result<Pid, Errno> {
    i32::try_from(thread).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)
}

/// How `thread` of any process is scheduled.
///
/// # Errors
/// `ESRCH` where there is no such thread.
pub fn scheduling(thread: u32) -> io::Result<Scheduling> {
    let pid = pid(thread)?;
    // SAFETY: the call takes a number alone.
    let policy = match unsafe { libc::sched_getscheduler(pid.as_raw_nonzero().get()) } {
        -1 => return Err(io::Error::last_os_error()),
        policy => match policy & !libc::SCHED_RESET_ON_FORK {
            libc::SCHED_OTHER => Some(OrdinaryPolicy::Other),
            libc::SCHED_BATCH => Some(OrdinaryPolicy::Batch),
            libc::SCHED_IDLE => Some(OrdinaryPolicy::Idle),
            _ => None,
        },
    };
    let set = sched_getaffinity(Some(pid))?;
    let cpus = (0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect();
    Ok(Scheduling { policy, nice: getpriority_process(Some(pid))?, cpus })
}

/// Gives `thread` of any process another policy.
///
/// # Errors
/// `ESRCH` where there is no such thread, `EPERM` where this process may not.
pub fn set_policy(thread: u32, policy: OrdinaryPolicy) -> io::Result<()> {
    let policy = match policy {
        OrdinaryPolicy::Other => libc::SCHED_OTHER,
        OrdinaryPolicy::Batch => libc::SCHED_BATCH,
        OrdinaryPolicy::Idle => libc::SCHED_IDLE,
    };
    let none = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads one `sched_param`, which is there for the call.
    match unsafe { libc::sched_setscheduler(pid(thread)?.as_raw_nonzero().get(), policy, &raw const none) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Gives `thread` of any process another nice value.
///
/// # Errors
/// `ESRCH` where there is no such thread; `EACCES` or `EPERM` where this process may not.
pub fn set_nice(thread: u32, nice: i32) -> io::Result<()> {
    Ok(setpriority_process(Some(pid(thread)?), nice)?)
}

/// Keeps `thread` of any process to these CPUs.
///
/// # Errors
/// `ESRCH` where there is no such thread, `EINVAL` where none of the CPUs exists or is allowed to it, `EPERM` where
/// this process may not.
pub fn keep_to(thread: u32, cpus: &[usize]) -> io::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().filter(|cpu| **cpu < CpuSet::MAX_CPU).for_each(|cpu| set.set(*cpu));
    Ok(sched_setaffinity(Some(pid(thread)?), &set)?)
}

/// Ticks of a second in which `/proc` counts the time of processes.
pub fn ticks_per_second() -> u64 {
    // SAFETY: the call takes a number alone.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_made_idle_and_kept_to_a_cpu() {
        std::thread::spawn(|| {
            let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let before = scheduling(this).unwrap();
            assert_eq!(before.policy, Some(OrdinaryPolicy::Other));
            set_policy(this, OrdinaryPolicy::Idle).unwrap();
            keep_to(this, &before.cpus[..1]).unwrap();
            set_nice(this, before.nice + 1).unwrap();
            let after = scheduling(this).unwrap();
            assert_eq!(after.policy, Some(OrdinaryPolicy::Idle));
            assert_eq!((after.nice, &after.cpus[..]), (before.nice + 1, &before.cpus[..1]));
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_thread_that_is_not_there_is_told() {
        for thread in [0, u32::MAX, 0x7fff_fffe] {
            assert_eq!(scheduling(thread).unwrap_err().raw_os_error(), Some(libc::ESRCH));
            assert_eq!(set_policy(thread, OrdinaryPolicy::Idle).unwrap_err().raw_os_error(), Some(libc::ESRCH));
        }
    }
}
