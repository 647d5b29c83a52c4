//! Frames that are injected, as though they had come in by a port.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use softdpu_sys::wake::Doorbell;
use softdpu_vpc::PortId;

/// Frames on their way to the core.
pub(crate) struct Injection {
    pub port: PortId,
    pub frames: Vec<Vec<u8>>,
    pub progress: Arc<InjectionProgress>,
}

/// How far a core has come with the frames of an injector.
pub(crate) struct InjectionProgress {
    /// The port's name: its number may be another's by now.
    pub name: Arc<str>,
    taken: AtomicU64,
    is_refused: AtomicBool,
    bell: Doorbell,
}

impl InjectionProgress {
    pub(crate) fn new(name: Arc<str>) -> Result<InjectionProgress, Errno> {
        let (taken, is_refused, bell) = (AtomicU64::new(0), AtomicBool::new(false), Doorbell::new()?);
        Ok(InjectionProgress { name, taken, is_refused, bell })
    }

    /// The core has taken so many frames. None: it has no such port.
    pub(crate) fn took(&self, frames: Option<usize>) {
        match frames {
            Some(frames) => drop(self.taken.fetch_add(frames as u64, Relaxed)),
            None => self.is_refused.store(true, Relaxed),
        }
        self.bell.ring();
    }

    /// How many frames the core has taken.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Relaxed)
    }

    /// Whether the core had no such port.
    pub(crate) fn is_refused(&self) -> bool {
        self.is_refused.load(Relaxed)
    }

    /// Waits until the core has taken something, for `timeout` at the most.
    pub(crate) fn wait(&self, timeout: Duration) {
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // EINTR is a wake-up like any other.
        let _ = poll(&mut [PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN)], Some(&timeout));
        self.bell.drain();
    }
}
