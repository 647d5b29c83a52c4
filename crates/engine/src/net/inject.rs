//! Frames that somebody brings, as though they had come in by a port.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use softdpu_sys::wake::Doorbell;
use softdpu_vpc::PortId;

use crate::mailbox::Mailbox;
use crate::message::ToCore;

/// A way in by a port. Whoever has it waits until the core has taken what it brought before it brings more.
pub struct Injector {
    port: PortId,
    core: Mailbox<ToCore>,
    shared: Arc<Shared>,
}

/// Frames on their way to the core.
pub(crate) struct Injection {
    pub port: PortId,
    pub frames: Vec<Vec<u8>>,
    pub shared: Arc<Shared>,
}

/// What the core says.
pub(crate) struct Shared {
    /// The port's name: its number may be another's by now.
    pub name: Arc<str>,
    taken: AtomicU64,
    refused: AtomicBool,
    bell: Doorbell,
}

impl Shared {
    /// So many frames are in. None: the port is not there.
    pub(crate) fn took(&self, frames: Option<usize>) {
        match frames {
            Some(frames) => drop(self.taken.fetch_add(frames as u64, Relaxed)),
            None => self.refused.store(true, Relaxed),
        }
        self.bell.ring();
    }
}

impl Injector {
    pub(crate) fn new(port: PortId, name: Arc<str>, core: Mailbox<ToCore>) -> Result<Injector, Errno> {
        let (taken, refused, bell) = (AtomicU64::new(0), AtomicBool::new(false), Doorbell::new()?);
        Ok(Injector { port, core, shared: Arc::new(Shared { name, taken, refused, bell }) })
    }

    /// Brings whole Ethernet frames, with nothing left to do to them.
    pub fn inject(&self, frames: Vec<Vec<u8>>) {
        let (port, shared) = (self.port, Arc::clone(&self.shared));
        self.core.send(ToCore::Inject(Injection { port, frames, shared }));
    }

    /// How many of them are in, whatever became of them.
    pub fn taken(&self) -> u64 {
        self.shared.taken.load(Relaxed)
    }

    /// Whether the port was not there.
    pub fn is_refused(&self) -> bool {
        self.shared.refused.load(Relaxed)
    }

    /// Waits until the core has taken something, at most so long.
    pub fn wait(&self, timeout: Duration) {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // EINTR is a wake-up like any other.
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.shared.bell.as_fd(), PollFlags::IN)], Some(&timeout));
        self.shared.bell.drain();
    }
}
