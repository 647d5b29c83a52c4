//! A queue that nobody stands beside: the short way through the policy.
//!
//! While for [`memory`](super::Tuning::memory) no other queue brought work, there is nothing to choose, and whose turn
//! it is matters to nobody. What becomes ready is counted here then, and not in the [tree](super::tree); what grants
//! cost is gathered and charged as if it had been one grant, at the latest when it is as much as a slot. The first sign
//! of anybody else ends it: what is gathered is charged, what waits goes back to the tree, and all is as if it had
//! never been elsewhere.

use super::tree::learned;
use super::{SLOT, Weighted};
use crate::{Grant, Nanos, QueueId};

/// The one queue, and what is not told to the tree and the calendar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    queue: QueueId,
    waiting: u32,
    /// The most that a unit of it cost lately, as [`Queue::unit`](super::tree::Queue::unit) is otherwise.
    unit: u32,
    bytes: u64,
    /// What its grants cost, nanoseconds.
    gathered: u64,
}

impl Alone {
    #[inline]
    pub(super) fn is(&self, queue: QueueId) -> bool {
        self.queue == queue
    }

    pub(super) fn tenant(&self) -> u32 {
        self.queue.tenant.0.into()
    }

    #[inline]
    pub(super) fn add(&mut self, units: u32, bytes: u64) {
        self.waiting = self.waiting.saturating_add(units);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// What of it may run, where a grant is meant to take so long.
    #[inline]
    pub(super) fn grant(&mut self, length: Nanos) -> Option<Grant> {
        if self.waiting == 0 {
            return None;
        }
        let units = Weighted::fitting(length, self.unit, self.waiting);
        if units == self.waiting {
            self.bytes = 0;
        } else {
            self.bytes -= self.bytes / u64::from(self.waiting) * u64::from(units);
        }
        self.waiting -= units;
        Some(Grant { queue: self.queue, units })
    }

    /// A grant of it cost so much in all. Whether what was gathered is to be charged.
    #[inline]
    pub(super) fn charge(&mut self, total: u64, units: u32) -> bool {
        self.gathered = self.gathered.saturating_add(total);
        self.unit = learned(self.unit, total, units);
        self.gathered >= SLOT
    }
}

impl Weighted {
    /// A grant of `queue` was charged, and now nobody has work: from here on the queue may be alone.
    pub(super) fn set_apart(&mut self, now: Nanos, queue: QueueId) {
        let is_again = self.latest.replace(queue) == Some(queue);
        if !is_again || now < self.contended || !self.wheel.is_empty() {
            return;
        }
        let tenant = &self.tenants[usize::from(queue.tenant.0)];
        // Where a limit, a guarantee or a back end has a say, it has to be told of each grant.
        let is_plain = !tenant.is_limited() && !tenant.has_timed() && self.tree.pool_of(queue.index).is_none();
        if let Some(record) = self.tree.queues.get(queue.index as usize)
            && record.is_here
            && is_plain
        {
            self.alone = Some(Alone { queue, waiting: 0, unit: record.unit, bytes: 0, gathered: 0 });
            // Nobody is there to come before it.
            self.is_long = false;
        }
    }

    /// What was gathered is charged.
    #[cold]
    pub(super) fn settle_alone(&mut self) {
        let Some(alone) = &mut self.alone else { return };
        let (gathered, index) = (std::mem::take(&mut alone.gathered), alone.tenant());
        if gathered == 0 {
            return;
        }
        let is_behind = self.lift(self.last, index);
        let tenant = &mut self.tenants[index as usize];
        tenant.was_in_lane = is_behind;
        let (weight, class) = (tenant.weight(), tenant.class());
        self.calendar.enter(weight);
        if !is_behind {
            self.calendar.advance(tenant.tag, class);
        }
        tenant.charge(self.last, gathered, super::SCALE, self.calendar.latest(class));
        self.calendar.pass(gathered, (!is_behind).then_some((tenant.tag, class)));
        self.calendar.leave(weight);
    }

    /// The lone queue is one among others again.
    #[cold]
    pub(super) fn rejoin(&mut self, now: Nanos) {
        self.settle_alone();
        let Some(Alone { queue, waiting, unit, bytes, .. }) = self.alone.take() else { return };
        if let Some(record) = self.tree.queues.get_mut(queue.index as usize) {
            record.unit = unit;
        }
        let tenant = &mut self.tenants[usize::from(queue.tenant.0)];
        if waiting > 0 && self.tree.add(tenant, queue.index, waiting, bytes) {
            self.wake(now, queue.tenant.0.into());
        }
    }
}
