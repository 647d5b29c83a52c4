//! Event counters (eventfd) as doorbells between threads, and how a thread waits for those and others. Counters of
//! other processes are [`notify`](crate::notify)'s.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};

/// A non-blocking event counter this process made.
#[derive(Debug)]
pub struct Doorbell(OwnedFd);

impl Doorbell {
    /// A new counter at zero.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn new() -> Result<Self, Errno> {
        Ok(Doorbell(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?))
    }

    /// Wakes the waiting thread.
    pub fn ring(&self) {
        // Ours and non-blocking: a full counter is as good as any.
        let _ = write(&self.0, &1u64.to_ne_bytes());
    }

    /// Takes what has been rung; whether there was any.
    pub fn drain(&self) -> bool {
        drain(self.0.as_fd())
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Reads an event counter; whether it held anything. The descriptor must be non-blocking or known to be readable.
#[inline]
pub fn drain(fd: BorrowedFd<'_>) -> bool {
    let mut count = [0u8; 8];
    matches!(read(fd, &mut count), Ok(8))
}

/// Events fetched by one [`wait`].
const BATCH: usize = 64;

/// Waits until a descriptor of the epoll set `set` is ready, at most for `nanos` nanoseconds, and tells `ready` the
/// data of each that is. To the nanosecond, but for the thread's [timer slack](exact_timers); in whole milliseconds,
/// rounded up, before Linux 5.11.
///
/// # Errors
/// `EINTR` for a signal. Nothing is told then.
pub fn wait(set: BorrowedFd<'_>, nanos: u64, mut ready: impl FnMut(u64)) -> Result<(), Errno> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    let count = match wait_exactly(set, &mut events, nanos) {
        Err(Errno::NOSYS) => wait_for_millis(set, &mut events, nanos),
        answer => answer,
    }?;
    for event in &events[..count] {
        ready(event.u64);
    }
    Ok(())
}

fn wait_exactly(set: BorrowedFd<'_>, events: &mut [libc::epoll_event], nanos: u64) -> Result<usize, Errno> {
    // As the kernel has it on every architecture.
    let timeout = [(nanos / 1_000_000_000) as i64, (nanos % 1_000_000_000) as i64];
    // SAFETY: the kernel reads two 64-bit numbers from `timeout` (__kernel_timespec) and writes at most as many events
    // as there are in `events`; both outlive the call. A null signal mask changes none.
    let count = unsafe {
        libc::syscall(
            libc::SYS_epoll_pwait2,
            set.as_raw_fd(),
            events.as_mut_ptr(),
            events.len() as libc::c_int,
            timeout.as_ptr(),
            std::ptr::null::<libc::sigset_t>(),
            0_usize,
        )
    };
    counted(count)
}

fn wait_for_millis(set: BorrowedFd<'_>, events: &mut [libc::epoll_event], nanos: u64) -> Result<usize, Errno> {
    let millis = i32::try_from(nanos.div_ceil(1_000_000)).unwrap_or(i32::MAX);
    // SAFETY: the kernel writes at most as many events as there are in `events`, which outlives the call.
    let count = unsafe { libc::epoll_wait(set.as_raw_fd(), events.as_mut_ptr(), events.len() as libc::c_int, millis) };
    counted(count.into())
}

fn counted(count: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(count).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL))
}

/// Lets timers of the calling thread expire when they are due. Otherwise the kernel may let them be up to 50 us late,
/// to expire together with others (PR_SET_TIMERSLACK).
///
/// # Errors
/// Where a filter of system calls refuses it.
pub fn exact_timers() -> Result<(), Errno> {
    rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

    use super::*;

    fn set(bell: &Doorbell) -> OwnedFd {
        let set = epoll::create(CreateFlags::CLOEXEC).expect("an epoll set");
        epoll::add(&set, bell, EventData::new_u64(7), EventFlags::IN).expect("it is watched");
        set
    }

    fn waited(set: &OwnedFd, nanos: u64) -> Vec<u64> {
        let mut ready = Vec::new();
        wait(set.as_fd(), nanos, |data| ready.push(data)).expect("no signal");
        ready
    }

    #[test]
    fn what_is_ready_is_told() {
        let bell = Doorbell::new().expect("a counter");
        let set = set(&bell);
        assert_eq!(waited(&set, 0), [0_u64; 0]);
        bell.ring();
        assert_eq!(waited(&set, u64::MAX), [7]);
    }

    /// Both ways of waiting, as a kernel has one or the other.
    #[test]
    fn no_wait_ends_before_its_time() {
        let bell = Doorbell::new().expect("a counter");
        let set = set(&bell);
        for way in [wait_exactly, wait_for_millis] {
            let began = Instant::now();
            let mut events = [libc::epoll_event { events: 0, u64: 0 }; 1];
            assert_eq!(way(set.as_fd(), &mut events, 1_300_000), Ok(0));
            assert!(began.elapsed() >= Duration::from_nanos(1_300_000), "{:?}", began.elapsed());
        }
    }

    /// A slice of 50 us is not one of a millisecond. The machine may do something else in most of the tries.
    #[test]
    fn short_waits_are_not_rounded_up() {
        exact_timers().expect("nothing filters this test");
        assert_eq!(rustix::thread::current_timer_slack(), Ok(1));
        let bell = Doorbell::new().expect("a counter");
        let set = set(&bell);
        let took = |_| {
            let began = Instant::now();
            waited(&set, 50_000);
            began.elapsed()
        };
        let shortest = (0..1_000).map(took).find(|took| *took < Duration::from_millis(1));
        assert!(shortest.is_some(), "each of 1,000 waits of 50 us took a millisecond");
    }
}
