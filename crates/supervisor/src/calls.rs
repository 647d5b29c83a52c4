//! Calls of the data plane that are not yet answered, and what each answer is for.

use std::collections::BTreeMap;
use std::sync::mpsc::SyncSender;

use super::clients::Ticket;
use softdpu_api::status::NodeStatus;

/// Which part of the status was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum StatusPart {
    Node,
    Volumes,
    Devices,
    Networks,
    Functions,
    Tenants,
}

/// Where the status goes.
pub(super) enum StatusFor {
    /// A client wants it, or part of it.
    Client(Ticket, StatusPart),
    /// Another thread wants it.
    Thread(SyncSender<NodeStatus>),
}

/// What an answer of the data plane is for.
pub(super) enum Purpose {
    Status(StatusFor),
    /// The change in progress.
    Change,
    /// A client whose connection the data plane takes over.
    Stream(Ticket),
    /// A client wants to know what only the data plane knows.
    Answer(Ticket),
}

/// The calls that are not yet answered.
#[derive(Default)]
pub(super) struct Calls {
    open: BTreeMap<u64, Purpose>,
    last: u64,
}

impl Calls {
    /// A call is made; its id.
    pub(super) fn add(&mut self, purpose: Purpose) -> u64 {
        self.last += 1;
        self.open.insert(self.last, purpose);
        self.last
    }

    /// A call is answered.
    pub(super) fn take(&mut self, id: u64) -> Option<Purpose> {
        self.open.remove(&id)
    }

    /// None of them will be answered any more.
    pub(super) fn take_all(&mut self) -> impl Iterator<Item = Purpose> + use<> {
        std::mem::take(&mut self.open).into_values()
    }
}
