//! Event counters (eventfd) as doorbells between threads. Those of other processes are [`notify`](crate::notify)'s.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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
