//! Split queues that complete in order: where they start, and what they take back.

use super::SplitQueue;
use crate::common::Start;
use crate::positions::InOrder;
use crate::{Format, Positions, QueueError};

impl SplitQueue {
    pub(crate) fn in_order(start: Start<'_>, positions: Positions) -> Result<Self, QueueError> {
        let Start { config, position, .. } = start;
        let mut this = SplitQueue::new(start, None)?;
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
        this.common.in_order = Some(in_order);
        Ok(this)
    }

    pub(crate) fn rewind(&mut self) -> Result<(), QueueError> {
        self.common.rewind()?;
        self.last_avail = self.used_idx;
        Ok(())
    }
}
