//! How a core reaches the other cores and the control thread.

use crate::ids::CoreIndex;
use crate::mailbox::Mailbox;
use crate::message::{FromCore, ToCore};

/// The mailboxes that a core sends to.
#[derive(Clone)]
pub(crate) struct CoreLinks {
    /// The core itself.
    pub index: CoreIndex,
    /// Of every core, itself included.
    pub peers: Vec<Mailbox<ToCore>>,
    /// The [slow core](crate::engine), where there is one.
    pub slow: Option<CoreIndex>,
    /// Of the control thread.
    pub control: Mailbox<FromCore>,
}

impl CoreLinks {
    /// Whether the core is the slow one.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow == Some(self.index)
    }

    /// Sends to a core.
    pub(crate) fn send(&self, core: CoreIndex, message: ToCore) {
        self.peers[core.0].send(message);
    }

    /// Reports to the control thread.
    pub(crate) fn report(&self, event: FromCore) {
        self.control.send(event);
    }
}
