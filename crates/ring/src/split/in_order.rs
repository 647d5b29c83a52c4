//! Split queues that complete in order: where they start, and what they take back.

use std::sync::Arc;

use softdpu_memory::View;

use super::SplitQueue;
use crate::positions::InOrder;
use crate::{Format, Position, Positions, QueueConfig, QueueError, RingAddresses, Used};

impl SplitQueue {
    pub(crate) fn in_order(
        view: &Arc<View>,
        config: QueueConfig,
        addresses: RingAddresses,
        position: Position,
        positions: Positions,
    ) -> Result<Self, QueueError> {
        let mut this = SplitQueue::new(view, config, addresses, position, None)?;
        let size = config.size;
        let (in_order, committed) = InOrder::open(positions, Format::Split, size, config.resumed)?;
        match committed {
            // The ring's index is the driver's to write: it chooses between two, and it can say nothing else.
            Some(committed) if this.used_idx == committed.new => {}
            Some(committed) => this.used_idx = committed.old,
            None if this.last_avail.wrapping_sub(this.used_idx) <= size => {}
            None => return Err(QueueError::Position { position, format: Format::Split, size }),
        }
        this.last_avail = this.used_idx;
        in_order.start(Format::Split, this.used_idx);
        this.in_order = Some(in_order);
        Ok(this)
    }

    pub(crate) fn rewind(&mut self) -> Result<(), QueueError> {
        if self.in_order.is_none() {
            return Err(QueueError::NotInOrder);
        }
        self.flight.fill(0);
        self.last_avail = self.used_idx;
        self.in_flight = 0;
        Ok(())
    }

    /// Whether `done` is what was taken first, in that order.
    #[inline]
    pub(super) fn check_order(&self, in_order: &InOrder, done: &[Used]) -> Result<(), QueueError> {
        let mut at = self.used_idx;
        for used in done {
            let expected = in_order.id(at & (self.config.size - 1));
            if used.id != expected {
                return Err(QueueError::OutOfOrder { id: used.id, expected });
            }
            at = at.wrapping_add(1);
        }
        Ok(())
    }
}
