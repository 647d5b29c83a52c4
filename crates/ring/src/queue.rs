//! One interface for both formats.

use std::sync::Arc;

use softdpu_memory::{GuestAddress, View};

use crate::common::{Common, Start};
use crate::nvme::QueuePair;
use crate::packed::PackedQueue;
use crate::split::SplitQueue;
use crate::{Format, InflightRecords, Position, Positions, QueueConfig, QueueError, RingAddresses, Sink, Used};

/// The device side of a virtqueue. One core owns it.
///
/// After an error the queue is inert: every further call returns [`QueueError::Broken`] and nothing of the guest's
/// memory is written.
pub enum Queue {
    /// Split format.
    Split(SplitQueue),
    /// Packed format.
    Packed(PackedQueue),
    /// An NVMe submission queue with its completion queue.
    Pair(QueuePair),
}

macro_rules! each {
    ($self:expr, $queue:ident => $body:expr) => {
        match $self {
            Queue::Split($queue) => $body,
            Queue::Packed($queue) => $body,
            Queue::Pair($queue) => $body,
        }
    };
}

/// As `each`, with another answer for a pair.
macro_rules! virtqueue {
    ($self:expr, $queue:ident => $body:expr, $pair:ident => $answer:expr) => {
        match $self {
            Queue::Split($queue) => $body,
            Queue::Packed($queue) => $body,
            Queue::Pair($pair) => $answer,
        }
    };
}

impl Queue {
    /// A queue that starts at `position`.
    ///
    /// Where `records` were in use and not [retired](Self::retire), they know better than `position` where the queue
    /// stood, and [`resubmit`](Self::resubmit) hands out what was in flight.
    ///
    /// # Errors
    /// What is wrong with the configuration, the addresses or the records; nothing of the guest's was written.
    pub fn new(
        view: &Arc<View>,
        config: QueueConfig,
        addresses: RingAddresses,
        position: Position,
        records: Option<InflightRecords>,
    ) -> Result<Queue, QueueError> {
        let start = Start { view, config, addresses, position };
        match config.format {
            Format::Split => SplitQueue::new(start, records).map(Queue::Split),
            Format::Packed => PackedQueue::new(start, records).map(Queue::Packed),
        }
    }

    /// A queue that completes in the order it takes, which `positions` remembers beyond a kill; it needs no record of
    /// what is in flight, as that is available again to the next process.
    ///
    /// Where [`QueueConfig::resumed`] is set, `positions` knows better than `position` where the queue stood. Otherwise
    /// it starts at `position`, less what another back end took before it and did not complete.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn in_order(
        view: &Arc<View>,
        config: QueueConfig,
        addresses: RingAddresses,
        position: Position,
        positions: Positions,
    ) -> Result<Queue, QueueError> {
        let start = Start { view, config, addresses, position };
        match config.format {
            Format::Split => SplitQueue::in_order(start, positions).map(Queue::Split),
            Format::Packed => PackedQueue::in_order(start, positions).map(Queue::Packed),
        }
    }

    /// A queue that completes in order takes back what was [taken](Self::pop) and not completed: [`pop`](Self::pop)
    /// hands it out anew, found in the memory as it is then. Chains that are still held are void; completing one breaks
    /// the queue.
    ///
    /// # Errors
    /// [`QueueError::NotInOrder`] for any other queue.
    pub fn rewind(&mut self) -> Result<(), QueueError> {
        virtqueue!(self, queue => queue.rewind(), _pair => Err(QueueError::NotInOrder))
    }

    /// Continues with another view of memory, or another dirty log. Chains that were handed out stay pinned to what
    /// they were found in.
    ///
    /// # Errors
    /// [`QueueError::Unmapped`] where a part of the ring is not in the new memory; the queue is then broken.
    pub fn remap(&mut self, view: &Arc<View>) -> Result<(), QueueError> {
        each!(self, queue => queue.remap(view))
    }

    /// After a restart: appends what was in flight, in the order it was first taken; returns how much that is.
    ///
    /// [`pop`](Self::pop) does it by itself where it was not done.
    ///
    /// # Errors
    /// As [`pop`](Self::pop).
    pub fn resubmit(&mut self, out: &mut impl Sink) -> Result<usize, QueueError> {
        each!(self, queue => queue.resubmit(out))
    }

    /// Appends up to `max` chains the driver made available, in its order; returns how many. They are recorded as in
    /// flight when it returns.
    ///
    /// # Errors
    /// What the driver did wrong. Nothing is then appended, and the queue is broken.
    #[inline]
    pub fn pop(&mut self, out: &mut impl Sink, max: usize) -> Result<usize, QueueError> {
        each!(self, queue => queue.pop(out, max))
    }

    /// Gives requests back to the driver, in this order; returns whether the driver wants to be notified.
    ///
    /// # Errors
    /// [`QueueError::NotInFlight`] where one is not in flight, [`QueueError::OutOfOrder`] where it is not its turn; the
    /// queue is then broken.
    #[inline]
    pub fn complete(&mut self, done: &[Used]) -> Result<bool, QueueError> {
        each!(self, queue => queue.complete(done))
    }

    /// Asks the driver for notifications and checks once more: true where a chain came meanwhile that it may not notify
    /// us of.
    ///
    /// # Errors
    /// [`QueueError::Broken`].
    pub fn arm(&mut self) -> Result<bool, QueueError> {
        each!(self, queue => queue.arm())
    }

    /// Tells the driver that the queue is polled and needs no notifications. A hint; some may still come.
    pub fn disarm(&mut self) {
        virtqueue!(self, queue => queue.disarm(), _pair => ());
    }

    /// Whether something is available. One load, cheap enough for every round.
    #[inline]
    pub fn has_work(&self) -> bool {
        each!(self, queue => queue.has_work())
    }

    /// Stops for good and returns the position to restart from, for GET_VRING_BASE. With
    /// nothing in flight the records are given up, as the position says it all; otherwise they stay, and the next start
    /// resubmits what is in them. A queue that completes in order is [rewound](Self::rewind) before.
    ///
    /// The record of an NVMe pair stays in any case: it has the position.
    pub fn retire(&mut self) -> Position {
        if self.in_flight() == 0 {
            virtqueue!(
                self,
                queue => {
                    if let Some(records) = &queue.records {
                        records.region.retire();
                    }
                },
                _pair => ()
            );
        }
        if self.common().is_some_and(|common| common.in_order.is_some()) {
            // Cannot fail: it completes in order.
            let _ = self.rewind();
        }
        self.break_off();
        self.position()
    }

    /// Reports writes to the used ring to the dirty log under this address from now on, or not at all. An NVMe pair
    /// always reports its writes, where they lie.
    pub fn set_log_used(&mut self, log: Option<GuestAddress>) {
        if let Some(common) = self.common_mut() {
            common.config.log_used = log;
        }
    }

    /// Requests handed out and not completed, those not yet resubmitted included.
    pub fn in_flight(&self) -> u16 {
        virtqueue!(self, queue => queue.common.in_flight, pair => pair.in_flight())
    }

    /// How far the queue has come.
    pub fn position(&self) -> Position {
        each!(self, queue => queue.position())
    }

    /// Whether an error (or [`retire`](Self::retire), or [`break_off`](Self::break_off)) made it inert.
    pub fn is_broken(&self) -> bool {
        virtqueue!(self, queue => queue.common.broken, pair => pair.is_broken())
    }

    /// Whether the front end truncated the file of the in-flight records: they no longer outlive this process.
    pub fn records_are_faulted(&self) -> bool {
        virtqueue!(
            self,
            queue => queue.records.as_ref().is_some_and(|records| records.region.is_faulted()),
            pair => pair.is_faulted()
        )
    }

    /// Makes it inert: what the device does when a request shows that its driver cannot be trusted with the queue.
    pub fn break_off(&mut self) {
        virtqueue!(self, queue => queue.common.broken = true, pair => pair.break_off());
    }

    /// The NVMe pair that it is, if it is one.
    pub fn pair(&self) -> Option<&QueuePair> {
        match self {
            Queue::Pair(pair) => Some(pair),
            Queue::Split(_) | Queue::Packed(_) => None,
        }
    }

    /// The NVMe pair that it is, if it is one.
    pub fn pair_mut(&mut self) -> Option<&mut QueuePair> {
        match self {
            Queue::Pair(pair) => Some(pair),
            Queue::Split(_) | Queue::Packed(_) => None,
        }
    }

    fn common(&self) -> Option<&Common> {
        virtqueue!(self, queue => Some(&queue.common), _pair => None)
    }

    fn common_mut(&mut self) -> Option<&mut Common> {
        virtqueue!(self, queue => Some(&mut queue.common), _pair => None)
    }

    /// As it was configured, if it is a virtqueue.
    pub fn config(&self) -> Option<&QueueConfig> {
        self.common().map(|common| &common.config)
    }
}
