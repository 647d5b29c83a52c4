//! Packed queues that complete in order: where they start, what they keep of a batch, and what they take back.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::View;

use super::{PackedQueue, is_available, used_flags};
use crate::layout::{AVAIL, USED};
use crate::positions::InOrder;
use crate::sync::publish;
use crate::{Format, PackedIndex, Position, Positions, QueueConfig, QueueError, RingAddresses, Used};

impl PackedQueue {
    pub(crate) fn in_order(
        view: &Arc<View>,
        config: QueueConfig,
        addresses: RingAddresses,
        position: Position,
        positions: Positions,
    ) -> Result<Self, QueueError> {
        let mut this = PackedQueue::new(view, config, addresses, position, None)?;
        let size = config.size;
        let (in_order, committed) = InOrder::open(positions, Format::Packed, size, config.resumed)?;
        if let Some(committed) = committed {
            let (old, new) = (PackedIndex::from_bits(committed.old), PackedIndex::from_bits(committed.new));
            if old.index >= size || new.index >= size {
                let position = Position::Packed { avail: old, used: new };
                return Err(QueueError::Position { position, format: Format::Packed, size });
            }
            // The flags are the driver's to write: it chooses between two, and it can say nothing else.
            let visible = !is_available(this.parts.ring.read(old.index).at14, old.wrap);
            this.used = if visible { new } else { old };
            if !visible {
                this.put_back(&in_order, old, new);
            }
        }
        this.avail = this.used;
        in_order.start(Format::Packed, this.used.to_bits());
        this.in_order = Some(in_order);
        Ok(this)
    }

    /// Makes the used descriptors of a batch that did not become visible what they were before.
    fn put_back(&self, in_order: &InOrder, old: PackedIndex, new: PackedIndex) {
        let mut at = old;
        while at != new {
            if self.parts.ring.read(at.index).at14 & (AVAIL | USED) == used_flags(at.wrap) {
                publish(self.parts.ring.meta(at.index), in_order.replaced(at.index));
                self.log_slot(at.index);
            }
            at = at.advance(1, self.config.size);
        }
    }

    pub(crate) fn rewind(&mut self) -> Result<(), QueueError> {
        if self.in_order.is_none() {
            return Err(QueueError::NotInOrder);
        }
        self.flight.fill(0);
        self.avail = self.used;
        (self.slots, self.in_flight) = (0, 0);
        Ok(())
    }

    /// Whether `done` is what was taken first, in that order.
    #[inline]
    pub(super) fn check_order(&self, in_order: &InOrder, done: &[Used]) -> Result<(), QueueError> {
        let mut at = self.used;
        for used in done {
            let expected = in_order.id(at.index);
            if used.id != expected {
                return Err(QueueError::OutOfOrder { id: used.id, expected });
            }
            at = at.advance(used.descriptors.min(self.config.size), self.config.size);
        }
        Ok(())
    }

    /// Commits both positions, having kept what is overwritten before the batch is visible.
    #[inline]
    pub(super) fn commit(&self, in_order: &InOrder, first: &Used, rest: &[Used], old: PackedIndex, new: PackedIndex) {
        let mut at = old.advance(first.descriptors, self.config.size);
        for used in rest {
            in_order.replacing(at.index, self.parts.ring.meta(at.index).load(Relaxed));
            at = at.advance(used.descriptors, self.config.size);
        }
        in_order.completing(old.to_bits(), new.to_bits());
    }
}
