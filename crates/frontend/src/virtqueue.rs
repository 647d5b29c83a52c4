//! A virtqueue's driver side, with its eventfds.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags};
use softdpu_ring::driver::{Driver, Layout};
use softdpu_ring::{Format, Position, RingAddresses};
use softdpu_sys::wake::Doorbell;

use crate::handshake::Vring;
use crate::{FrontEndError, GuestMemory};

/// Completions after which [`Virtqueue::keep_quiet`] disables notifications again. With EVENT_IDX "no notification" is
/// an index half the range behind, which the used index catches up with after 2^15 completions.
const QUIET: usize = 1 << 14;

/// A virtqueue's driver side, with the eventfds that it shares with the server.
pub struct Virtqueue {
    /// The ring.
    pub driver: Driver,
    format: Format,
    size: u16,
    addresses: RingAddresses,
    kick: Doorbell,
    call: Doorbell,
    error: Doorbell,
    kicks: u64,
    interrupts: u64,
    /// Completions since notifications were disabled.
    completed: usize,
}

impl Virtqueue {
    /// Guest memory of a ring, bytes.
    pub(crate) fn bytes(format: Format, size: u16) -> u64 {
        Layout::new(format, size).bytes as u64
    }

    /// Lays out a ring of `size` descriptors in `memory`.
    pub(crate) fn new(
        format: Format,
        size: u16,
        event_idx: bool,
        memory: &mut GuestMemory,
    ) -> Result<Virtqueue, FrontEndError> {
        let base = memory.allocate(Self::bytes(format, size), 4096)?;
        let addresses = Layout::new(format, size).addresses(memory.user(base));
        let doorbell = || Doorbell::new().map_err(|error| FrontEndError::Doorbell(error.into()));
        Ok(Virtqueue {
            driver: Driver::new(memory.view(), format, size, event_idx, addresses)?,
            format,
            size,
            addresses,
            kick: doorbell()?,
            call: doorbell()?,
            error: doorbell()?,
            kicks: 0,
            interrupts: 0,
            completed: 0,
        })
    }

    /// Publishes the chains that were added, and kicks where the device asked for it. Tells whether it kicked.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let wanted = self.driver.publish();
        if wanted {
            self.kick();
        }
        wanted
    }

    /// Kicks, whether the device asked for it or not.
    pub fn kick(&mut self) {
        self.kicks += 1;
        self.kick.ring();
    }

    /// Accounts for `completed` chains and keeps notifications disabled, for a driver that polls.
    #[inline]
    pub fn keep_quiet(&mut self, completed: usize) {
        self.completed += completed;
        if self.completed >= QUIET {
            self.completed = 0;
            self.driver.disarm();
        }
    }

    /// Takes a pending notification and counts it.
    pub fn take_notification(&mut self) {
        if self.call.drain() {
            self.interrupts += 1;
        }
    }

    /// Number of kicks sent.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Number of notifications taken.
    pub fn interrupts(&self) -> u64 {
        self.interrupts
    }

    /// Tells whether the server has reported a broken queue (SET_VRING_ERR) since the last call.
    pub fn error_signalled(&self) -> bool {
        self.error.drain()
    }

    /// Front-end addresses of the ring's three parts.
    pub fn addresses(&self) -> RingAddresses {
        self.addresses
    }

    /// The eventfd that kicks the server.
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// The eventfd that the server notifies with.
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// The eventfd that the server reports a broken queue with.
    pub fn error_fd(&self) -> BorrowedFd<'_> {
        self.error.as_fd()
    }

    /// The entry for poll(2) that waits for a notification.
    pub fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.call, PollFlags::IN)
    }

    /// Describes this queue as number `index` of its device, to be started at `position`.
    pub(crate) fn vring(&self, index: u16, position: Position) -> Vring<'_> {
        Vring {
            index,
            size: self.size,
            addresses: self.addresses,
            position,
            kick: self.kick_fd(),
            call: self.call_fd(),
            error: self.error_fd(),
        }
    }

    /// The position of a queue that was never used.
    pub(crate) fn first_position(&self) -> Position {
        Position::start(self.format)
    }
}
