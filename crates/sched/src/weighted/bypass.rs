//! The lone queue's bypass of the policy, as a queueing discipline of Linux lets packets bypass an empty queue
//! (`TCQ_F_CAN_BYPASS`).
//!
//! While no other queue brought work for [`memory`](super::Tuning::memory), there is nothing to choose. What becomes
//! ready is counted here then, and not in the [tree](super::tree). The cost of grants is gathered and charged as that
//! of one grant, at the latest when it is as much as a slot. Work of another queue ends the bypass: what is gathered is
//! charged, what waits goes to the tree, and all is as if there had been no bypass.

use super::index::TenantIndex;
use super::tree::learned;
use super::{SLOT, Weighted};
use crate::{Grant, Nanos, QueueId};

/// The lone queue, and what the tree and the calendar do not have of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bypass {
    queue: QueueId,
    waiting: u32,
    /// The most that a unit of it cost lately, as [`Queue::unit`](super::tree::Queue::unit) is otherwise.
    unit: u32,
    bytes: u64,
    /// What its grants cost, nanoseconds.
    gathered: u64,
}

impl Bypass {
    #[inline]
    pub(super) fn is(&self, queue: QueueId) -> bool {
        self.queue == queue
    }

    pub(super) fn tenant(&self) -> TenantIndex {
        self.queue.tenant.into()
    }

    #[inline]
    pub(super) fn add(&mut self, units: u32, bytes: u64) {
        self.waiting = self.waiting.saturating_add(units);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// The next grant, of at most this length.
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

    /// Gathers the cost of a grant. Returns whether the gathered cost is to be charged.
    #[inline]
    pub(super) fn charge(&mut self, total: u64, units: u32) -> bool {
        self.gathered = self.gathered.saturating_add(total);
        self.unit = learned(self.unit, total, units);
        self.gathered >= SLOT
    }
}

impl Weighted {
    /// Begins the bypass, if it may: a grant of `queue` was charged, and no tenant has work.
    pub(super) fn start_bypass(&mut self, now: Nanos, queue: QueueId) {
        let is_again = self.latest.replace(queue) == Some(queue);
        if !is_again || now < self.contended || !self.wheel.is_empty() {
            return;
        }
        let tenant = &self.tenants[queue.tenant.into()];
        // Limits, guarantees and back ends count each grant.
        let is_plain = !tenant.is_limited() && !tenant.has_timed() && self.tree.back_end_of(queue.into()).is_none();
        if let Some(record) = self.tree.queues.get(queue.into())
            && record.is_present
            && is_plain
        {
            self.bypass = Some(Bypass { queue, waiting: 0, unit: record.unit, bytes: 0, gathered: 0 });
            // No tenant can go before it.
            self.is_long = false;
        }
    }

    /// Charges what was gathered.
    #[cold]
    pub(super) fn charge_bypassed(&mut self) {
        let Some(bypass) = &mut self.bypass else { return };
        let (gathered, index) = (std::mem::take(&mut bypass.gathered), bypass.tenant());
        if gathered == 0 {
            return;
        }
        let is_first = self.clamp_lag(self.last, index);
        let tenant = &mut self.tenants[index];
        tenant.was_in_lane = is_first;
        let (weight, class) = (tenant.weight(), tenant.class());
        self.calendar.enter(weight);
        if !is_first {
            self.calendar.advance(tenant.tag, class);
        }
        tenant.charge(self.last, gathered, super::SCALE, self.calendar.latest(class));
        self.calendar.pass(gathered, (!is_first).then_some((tenant.tag, class)));
        self.calendar.leave(weight);
    }

    /// Ends the bypass: the lone queue is one of several.
    #[cold]
    pub(super) fn end_bypass(&mut self, now: Nanos) {
        self.charge_bypassed();
        let Some(Bypass { queue, waiting, unit, bytes, .. }) = self.bypass.take() else { return };
        if let Some(record) = self.tree.queues.get_mut(queue.into()) {
            record.unit = unit;
        }
        let tenant = &mut self.tenants[queue.tenant.into()];
        if waiting > 0 && self.tree.add(tenant, queue.into(), waiting, bytes) {
            self.wake(now, queue.tenant.into());
        }
    }
}
