//! Calls of the data plane that are not yet answered, and what each answer is for.

use std::collections::BTreeMap;
use std::sync::mpsc::{SyncSender, sync_channel};

use serde::{Deserialize, Serialize};

use super::clients::Ticket;
use softdpu_api::status::NodeStatus;

/// Which part of the status was asked for.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
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

/// A [`Purpose`] as the next program of the supervisor is given it.
#[derive(Debug, Serialize, Deserialize)]
enum PurposeState {
    Status(Ticket, StatusPart),
    /// Nothing: what asked has ended with the program before.
    Nothing,
    Stream(Ticket),
    Answer(Ticket),
}

/// [`Calls`] likewise.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CallsState {
    open: BTreeMap<u64, PurposeState>,
    last: u64,
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

    /// Without those of other threads, which end with this program, and of the change in progress, of which there is
    /// none.
    pub(super) fn state(&self) -> CallsState {
        let state = |purpose: &Purpose| match purpose {
            Purpose::Status(StatusFor::Client(ticket, part)) => PurposeState::Status(ticket.clone(), *part),
            Purpose::Status(StatusFor::Thread(_)) | Purpose::Change => PurposeState::Nothing,
            Purpose::Stream(ticket) => PurposeState::Stream(ticket.clone()),
            Purpose::Answer(ticket) => PurposeState::Answer(ticket.clone()),
        };
        CallsState { open: self.open.iter().map(|(id, purpose)| (*id, state(purpose))).collect(), last: self.last }
    }

    pub(super) fn resume(CallsState { open, last }: CallsState) -> Calls {
        let purpose = |state| match state {
            PurposeState::Status(ticket, part) => Purpose::Status(StatusFor::Client(ticket, part)),
            PurposeState::Nothing => Purpose::Status(StatusFor::Thread(sync_channel(1).0)),
            PurposeState::Stream(ticket) => Purpose::Stream(ticket),
            PurposeState::Answer(ticket) => Purpose::Answer(ticket),
        };
        Calls { open: open.into_iter().map(|(id, state)| (id, purpose(state))).collect(), last }
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
