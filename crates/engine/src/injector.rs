//! The control thread's handle for frames that are injected at a port.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use softdpu_vpc::PortId;

use crate::mailbox::Mailbox;
use crate::message::ToCore;
use crate::net::{Injection, InjectionProgress};

/// Injects frames as though they had come in by a port. The caller waits until the core has taken what it has injected
/// before it injects more.
pub struct Injector {
    port: PortId,
    core: Mailbox<ToCore>,
    progress: Arc<InjectionProgress>,
}

impl Injector {
    pub(crate) fn new(port: PortId, name: Arc<str>, core: Mailbox<ToCore>) -> Result<Injector, Errno> {
        Ok(Injector { port, core, progress: Arc::new(InjectionProgress::new(name)?) })
    }

    /// Injects whole Ethernet frames, with nothing left to do to them.
    pub fn inject(&self, frames: Vec<Vec<u8>>) {
        let (port, progress) = (self.port, Arc::clone(&self.progress));
        self.core.send(ToCore::Inject(Injection { port, frames, progress }));
    }

    /// How many of them the core has taken, whatever became of them.
    pub fn taken(&self) -> u64 {
        self.progress.taken()
    }

    /// Whether the core had no such port.
    pub fn is_refused(&self) -> bool {
        self.progress.is_refused()
    }

    /// Waits until the core has taken something, for `timeout` at the most.
    pub fn wait(&self, timeout: Duration) {
        self.progress.wait(timeout);
    }
}
