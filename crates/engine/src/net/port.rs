//! Ports: where frames come from and go to.

use std::sync::Arc;

use softdpu_sched::{Patience, TenantId};
use softdpu_vpc::DropReason;

use super::socket::Socket;
use crate::counters::Counter;
use crate::ids::{CoreIndex, QueueKey};
use crate::queue::RateLimit;

/// What passed through a port on one core. `in`: from the port into the node; `out`: by the port out of it.
#[derive(Debug)]
pub struct PortCounters {
    /// Frames that came in; one that stands for several counts once.
    pub frames_in: Counter,
    /// Their bytes.
    pub bytes_in: Counter,
    /// Frames that went out.
    pub frames_out: Counter,
    /// Their bytes.
    pub bytes_out: Counter,
    /// Frames that the software tier saw.
    pub software: Counter,
    /// Frames that came in and were dropped, by reason.
    pub dropped_in: [Counter; DropReason::ALL.len()],
    /// Frames that were to go out and were dropped, by reason.
    pub dropped_out: [Counter; DropReason::ALL.len()],
    /// Bytes that were copied into a buffer on the way out of this port.
    pub copied: Counter,
    /// Bytes of those frames' heads, the first [`HEAD`](softdpu_vpc::HEAD) of each at the most, that were copied
    /// before: out of the sender's memory, where they could change while they are looked at, and once more for another
    /// core.
    pub copied_heads: Counter,
    /// Bytes behind heads that were copied a second time: to be cut up, summed, or handed to another core.
    pub copied_again: Counter,
    /// Times a sender was held because this port had no room.
    pub held: Counter,
}

impl Default for PortCounters {
    fn default() -> Self {
        PortCounters {
            frames_in: Counter::default(),
            bytes_in: Counter::default(),
            frames_out: Counter::default(),
            bytes_out: Counter::default(),
            software: Counter::default(),
            dropped_in: std::array::from_fn(|_| Counter::default()),
            dropped_out: std::array::from_fn(|_| Counter::default()),
            copied: Counter::default(),
            copied_heads: Counter::default(),
            copied_again: Counter::default(),
            held: Counter::default(),
        }
    }
}

impl PortCounters {
    #[inline]
    pub(crate) fn drop_in(&self, reason: DropReason) {
        self.dropped_in[reason as usize].add(1);
    }

    #[inline]
    pub(crate) fn drop_out(&self, reason: DropReason) {
        self.dropped_out[reason as usize].add(1);
    }
}

/// A port, as it is added.
#[derive(Default)]
pub struct PortSpec {
    /// Its name, for logs.
    pub name: Arc<str>,
    /// The kernel's socket, on the core that owns it. Guests have receive queues instead.
    pub socket: Option<Socket>,
    /// What its socket may bring; more is dropped. A guest's queues have limits of their own.
    pub limit: Option<RateLimit>,
    /// What may leave by it, on all cores together; more is dropped.
    pub receive_limit: Option<RateLimit>,
    /// The tenant that what it brings from outside belongs to. None: the node, or as the frame says.
    pub tenant: Option<TenantId>,
}

/// A receive queue that takes frames for a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Receiver {
    pub core: CoreIndex,
    pub key: QueueKey,
}

/// A port as a core has it.
pub(crate) struct Port {
    pub name: Arc<str>,
    pub counters: Arc<PortCounters>,
    /// Enabled receive queues, on whatever core.
    pub receivers: Arc<[Receiver]>,
    /// The core by which frames leave through a socket: this one, if it has a socket.
    pub owner: Option<CoreIndex>,
    pub socket: Option<Socket>,
    pub limit: Option<RateLimit>,
    pub receive_limit: Option<RateLimit>,
    pub tenant: Option<TenantId>,
    /// For senders on this core.
    pub patience: Patience,
    /// It is in the log that its socket fails.
    pub is_failure_logged: bool,
}

impl Port {
    /// Whether a guest or a socket takes its frames, and `core` is the one that sends unsolicited ones.
    pub fn is_up_at(&self, core: CoreIndex) -> bool {
        self.owner.or_else(|| self.receivers.first().map(|receiver| receiver.core)) == Some(core)
    }
}
