//! A queue that nobody stands beside: the short way through the policy.
//!
//! While for [`memory`](super::Tuning::memory) no other queue brought work, there is nothing to choose, and whose turn it is matters to nobody. What
//! becomes ready is counted here then, and not in the [tree](super::tree); what grants cost is gathered and charged
//! as if it had been one grant, at the latest when it is as much as a slot. The first sign of anybody else ends it: what is gathered is charged,
//! what waits goes back to the tree, and all is as if it had never been elsewhere.

use super::{SLOT, Weighted};
use crate::{Cost, Grant, Nanos, QueueId};

/// The one queue, and what is not told to the tree and the calendar.
#[derive(Clone, Copy, Debug)]
pub(super) struct Alone {
    queue: QueueId,
    waiting: u32,
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
}

impl Weighted {
    /// A grant of `queue` was charged, and now nobody has work: from here on the queue may be alone.
    pub(super) fn set_apart(&mut self, now: Nanos, queue: QueueId) {
        let is_again = self.latest.replace(queue) == Some(queue);
        let tenant = &self.tenants[usize::from(queue.tenant.0)];
        // Where a limit, a guarantee or a back end has a say, it has to be told of each grant.
        let is_here = self.tree.queues.get(queue.index as usize).is_some_and(|queue| queue.is_here);
        let is_plain = !tenant.is_limited() && !tenant.has_timed() && self.tree.pool_of(queue.index).is_none();
        if is_again && is_here && is_plain && self.wheel.is_empty() && now >= self.contended {
            self.alone = Some(Alone { queue, waiting: 0, bytes: 0, gathered: 0 });
        }
    }

    /// What of the lone queue may run.
    #[inline]
    pub(super) fn grant_alone(&mut self) -> Option<Grant> {
        let alone = self.alone.as_mut().filter(|alone| alone.waiting > 0)?;
        let unit = self.tree.queues[alone.queue.index as usize].unit;
        let units = Self::fitting(self.tuning.alone, unit, alone.waiting);
        alone.bytes -= if units == alone.waiting {
            alone.bytes
        } else {
            alone.bytes / u64::from(alone.waiting) * u64::from(units)
        };
        alone.waiting -= units;
        Some(Grant { queue: alone.queue, units })
    }

    /// A grant of the lone queue cost so much in all.
    #[inline]
    pub(super) fn charge_alone(&mut self, total: u64, cost: Cost) {
        let Some(alone) = &mut self.alone else { return };
        alone.gathered = alone.gathered.saturating_add(total);
        let gathered = alone.gathered;
        self.tree.queues[alone.queue.index as usize].learn(total, cost);
        if gathered >= SLOT {
            self.settle_alone();
        }
    }

    /// What was gathered is charged.
    fn settle_alone(&mut self) {
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
        let Some(Alone { queue, waiting, bytes, .. }) = self.alone.take() else { return };
        if waiting > 0 && self.tree.add(&mut self.tenants, queue.index, waiting, bytes) {
            self.wake(now, queue.tenant.0.into());
        }
    }
}
