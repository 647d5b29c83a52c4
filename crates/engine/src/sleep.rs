//! What a core waits on when it has nothing to do.
//!
//! Drivers' notification eventfds are watched edge-triggered and never read: their descriptors belong to the front end,
//! which could make a read block. Every write to an eventfd is an edge, so nothing is missed; one that came while the
//! core was spinning costs a single needless wake-up.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use softdpu_sys::wake;

/// What a descriptor in the set stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waker {
    /// The mailbox's bell.
    Mailbox,
    /// A back end.
    Backend,
    /// The driver of this queue number.
    Queue(u32),
    /// The socket of this port.
    Port(u32),
}

const MAILBOX: u64 = u64::MAX;
const BACKEND: u64 = u64::MAX - 1;
/// Above queue numbers.
const PORT: u64 = 1 << 32;

impl Waker {
    fn data(self) -> EventData {
        EventData::new_u64(match self {
            Waker::Mailbox => MAILBOX,
            Waker::Backend => BACKEND,
            Waker::Queue(number) => u64::from(number),
            Waker::Port(number) => PORT | u64::from(number),
        })
    }

    fn of(data: u64) -> Waker {
        match data {
            MAILBOX => Waker::Mailbox,
            BACKEND => Waker::Backend,
            number if number & PORT != 0 => Waker::Port(number as u32),
            number => Waker::Queue(number as u32),
        }
    }
}

/// An epoll set.
pub(crate) struct Sleep {
    epoll: OwnedFd,
}

impl Sleep {
    /// Wakes for `bell`, and for `backends`, one descriptor that stands for all that the core's back ends wait for.
    pub(crate) fn new(bell: BorrowedFd<'_>, backends: BorrowedFd<'_>) -> Result<Self, Errno> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, bell, Waker::Mailbox.data(), EventFlags::IN)?;
        epoll::add(&epoll, backends, Waker::Backend.data(), EventFlags::IN)?;
        Ok(Sleep { epoll })
    }

    /// Watches a driver's notifications.
    ///
    /// # Errors
    /// `EPERM` for a descriptor that cannot be waited for.
    pub(crate) fn watch(&self, number: u32, kick: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.epoll, kick, Waker::Queue(number).data(), EventFlags::IN | EventFlags::ET)
    }

    /// Watches a port's socket, which wakes for as long as it has frames.
    ///
    /// # Errors
    /// `EPERM` for a descriptor that cannot be waited for.
    pub(crate) fn watch_port(&self, number: u32, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        epoll::add(&self.epoll, socket, Waker::Port(number).data(), EventFlags::IN)
    }

    /// Watches it no more. Before the descriptor is closed: a copy that the front end holds would keep it in the set.
    pub(crate) fn forget(&self, kick: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, kick);
    }

    /// Sleeps until something happens or `nanos` have passed, and tells `woken` what it was.
    pub(crate) fn wait(&self, nanos: u64, mut woken: impl FnMut(Waker)) {
        // EINTR and anything else: the caller looks at everything after waking anyway.
        let _ = wake::wait(self.epoll.as_fd(), nanos, |data| woken(Waker::of(data)));
    }
}

#[cfg(test)]
mod tests {
    use softdpu_sys::wake::Doorbell;

    use super::*;

    #[test]
    fn every_ring_of_a_kick_wakes_though_nobody_reads_it() {
        let [bell, backends, kick] = [(); 3].map(|()| Doorbell::new().unwrap());
        let sleep = Sleep::new(bell.as_fd(), backends.as_fd()).unwrap();
        sleep.watch(7, kick.as_fd()).unwrap();
        for _ in 0..3 {
            kick.ring();
            let mut woken = Vec::new();
            sleep.wait(1_000_000_000, |waker| woken.push(waker));
            assert_eq!(woken, [Waker::Queue(7)]);
            sleep.wait(0, |waker| panic!("woken again by {waker:?}"));
        }
        sleep.forget(kick.as_fd());
        kick.ring();
        sleep.wait(0, |waker| panic!("woken by {waker:?} after it was forgotten"));
    }

    #[test]
    fn a_descriptor_that_cannot_be_waited_for_is_refused() {
        let [bell, backends] = [(); 2].map(|()| Doorbell::new().unwrap());
        let sleep = Sleep::new(bell.as_fd(), backends.as_fd()).unwrap();
        let file = tempfile::tempfile().unwrap();
        assert_eq!(sleep.watch(0, file.as_fd()), Err(Errno::PERM));
    }
}
