//! Frames that one core hands off to the core that has their egress port.

use softdpu_memory::GuestBuffer;
use softdpu_vpc::{Packet, PortId};

use super::{CreditOwner, FrameTail};
use crate::queue::Loan;

/// Egress frames that may wait for a core.
pub(crate) const BACKLOG: usize = 4096;

/// A frame that was forwarded, on its way to the core that has its egress port.
pub(crate) struct EgressFrame {
    pub to: PortId,
    pub hash: u32,
    /// Bytes of outer headers at the head's start, where the port is the underlay.
    pub overhead: u16,
    /// The account that pays for its place in the other core's backlog.
    pub owner: CreditOwner,
    pub packet: Packet,
    pub tail: EgressTail,
}

/// The bytes of a frame behind its head, in the chain they were sent in.
pub(crate) struct LentTail {
    pub loan: Loan,
    /// Pinned, wherever the queue's memory is by now.
    pub buffer: GuestBuffer,
    /// Where they begin in it.
    pub offset: u64,
}

/// The bytes of an egress frame behind its head.
pub(crate) enum EgressTail {
    /// In the sender's memory.
    Lent(LentTail),
    /// Copied, or there are none.
    Copied(Vec<u8>),
}

impl EgressFrame {
    /// The bytes behind its head.
    pub(crate) fn tail(&self) -> FrameTail<'_> {
        match &self.tail {
            EgressTail::Lent(lent) => FrameTail::Guest(&lent.buffer, lent.offset),
            EgressTail::Copied(bytes) => FrameTail::Bytes(bytes),
        }
    }
}
