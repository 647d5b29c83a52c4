//! Packed queues that complete in order: where they start, and what they take back.

use std::sync::atomic::Ordering::Relaxed;

use super::{AVAIL_USED, PackedQueue, is_available, used_flags};
use crate::common::Start;
use crate::positions::InOrder;
use crate::sync::publish;
use crate::{Format, PackedIndex, Position, Positions, QueueError};

impl PackedQueue {
    pub(crate) fn in_order(start: Start<'_>, positions: Positions) -> Result<Self, QueueError> {
        let Start { config, .. } = start;
        let mut this = PackedQueue::new(start, None)?;
        let size = config.size;
        let (in_order, committed) = InOrder::open(positions, Format::Packed, size, config.resumed)?;
        if let Some(committed) = committed {
            let (old, new) = (PackedIndex::from_bits(committed.old), PackedIndex::from_bits(committed.new));
            if old.index >= size || new.index >= size {
                let position = Position::Packed { avail: old, used: new };
                return Err(QueueError::Position { position, format: Format::Packed, size });
            }
            // The flags are the driver's to write: it chooses between two, and it can say nothing else.
            let visible = !is_available(this.parts.ring.flags(old.index), old.wrap);
            this.used = if visible { new } else { old };
            if !visible {
                this.put_back(&in_order, old, new);
            }
        }
        this.avail = this.used;
        in_order.start(Format::Packed, this.used.to_bits());
        this.common.in_order = Some(in_order);
        Ok(this)
    }

    /// Makes the used descriptors of a batch that did not become visible what they were before.
    fn put_back(&self, in_order: &InOrder, old: PackedIndex, new: PackedIndex) {
        let mut at = old;
        while at != new {
            if self.parts.ring.flags(at.index) & AVAIL_USED == used_flags(at.wrap)
                && let Some(replaced) = in_order.replaced().get(usize::from(at.index))
            {
                publish(self.parts.ring.meta(at.index), replaced.load(Relaxed));
                self.log_slots(at.index, 1);
            }
            at = at.advance(1, self.common.config.size);
        }
    }

    pub(crate) fn rewind(&mut self) -> Result<(), QueueError> {
        self.common.rewind()?;
        self.avail = self.used;
        self.slots = 0;
        Ok(())
    }
}
