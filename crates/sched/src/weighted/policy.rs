//! What the policy answers: the traits by which a dispatcher drives it.

use super::bypass::Bypass;
use super::calendar::SCALE;
use super::index::{QueueIndex, TenantIndex};
use super::tenant::{State, Tenant};
use super::{TRIES, Weighted};
use crate::{
    Account, Cost, Decision, Grant, LatencyClass, Nanos, Placement, Preemption, QueueId, Share, TenantId,
    TenantScheduler, Work,
};

/// Where several tenants have work, or had lately: out of the way of the [bypass](super::bypass).
impl Weighted {
    #[inline(never)]
    fn ready_among(&mut self, now: Nanos, queue: QueueId, work: Work) {
        if work.units == 0 {
            return;
        }
        if self.bypass.is_some() {
            self.end_bypass(now);
        }
        let number = match self.tree.find(queue) {
            Some(number) => {
                if !self.tree.queues[number].is_present {
                    self.arrive(queue);
                }
                number
            }
            None => {
                self.make_tenant(queue.tenant);
                self.place_queue(now, queue, None);
                QueueIndex::from(queue)
            }
        };
        let tenant = &mut self.tenants[queue.tenant.into()];
        if !self.tree.add(tenant, number, work.units, work.bytes) {
            return;
        }
        let index = queue.tenant.into();
        if tenant.state != State::Idle || !tenant.is_plain() {
            return self.wake(now, index);
        }
        let virtual_now = self.calendar.now();
        let least = virtual_now.saturating_sub(tenant.saves(Self::CARRY.0 * SCALE));
        // As `goes_first`, without what a plain one has not.
        let is_first = tenant.tag < virtual_now
            && self.preempted != Some(index)
            && !Self::continues_turn(&self.calendar, tenant, now, least);
        tenant.tag = tenant.tag.max(least);
        self.calendar.enter(tenant.weight());
        self.enqueue_plain(now, index, is_first);
    }

    #[inline(never)]
    fn decide_among(&mut self, now: Nanos) -> Decision {
        if let Some(index) = self.running {
            self.requeue_uncharged(now, index);
        }
        if !self.wheel.is_empty() {
            self.expire_timers(now);
        }
        for _ in 0..TRIES {
            let Some(index) = self.next() else {
                return self.wheel.next().map_or(Decision::Idle, |at| Decision::IdleUntil(at.max(now)));
            };
            if self.tenants[index].has_timer {
                self.tenants[index].has_timer = false;
                self.wheel.remove(&mut self.tenants, index);
            }
            let tenant = &mut self.tenants[index];
            let Some(chosen) = self.tree.choose(tenant, index, now) else {
                self.cannot_run(now, index);
                continue;
            };
            tenant.state = State::Running;
            self.running = Some(index);
            if self.runnable > 1 {
                self.contended = now + self.tuning.memory;
            }
            let is_urgent = now < self.urgent;
            let patience = self.tuning.patience(now < self.contended, is_urgent);
            // Other tenants that go first may wait behind this one, so its grant is short. A grant in turn can be long,
            // as it is preempted for those.
            let length = if self.runs_first || is_urgent { patience } else { self.tuning.alone };
            let queue = &self.tree.queues[chosen.queue];
            let mut units = Self::fitting(length, queue.unit, chosen.most);
            self.is_long = u64::from(queue.unit) * u64::from(units) > patience.0;
            if tenant.is_limited() {
                let bytes = self.tree.bytes_of_one(chosen.queue);
                units = tenant.limiter.units(now, queue.kind, bytes, units);
            }
            self.tree.take(tenant, chosen.queue, units);
            let queue = chosen.queue.of(index);
            return Decision::Run(Grant { queue, units });
        }
        Decision::IdleUntil(now)
    }

    /// Requeues a tenant with a grant that was never charged.
    #[cold]
    fn requeue_uncharged(&mut self, now: Nanos, index: TenantIndex) {
        self.requeue(now, index);
    }

    /// Requeues a tenant that is throttled, or has full back ends.
    #[cold]
    fn cannot_run(&mut self, now: Nanos, index: TenantIndex) {
        self.runnable -= 1;
        let tenant = &mut self.tenants[index];
        tenant.state = State::Idle;
        tenant.ran(now, false);
        self.enqueue(now, index, false, true);
        if let Some(back_end) = self.tree.left.take() {
            self.release(now, back_end);
        }
    }

    #[inline(never)]
    fn charge_among(&mut self, now: Nanos, grant: Grant, cost: Cost, total: u64) {
        let Some(number) = self.tree.find(grant.queue) else { return };
        let index = TenantIndex::from(grant.queue.tenant);
        let tenant = &mut self.tenants[index];
        tenant.charge(now, total, SCALE, self.calendar.latest(tenant.class()));
        // The remainder is made ready after this charge: it is no new work.
        self.preempted = (cost.units < grant.units && !self.runs_first).then_some(index);
        self.calendar.pass(total, (!self.runs_first).then_some((tenant.tag, tenant.class())));
        if tenant.is_limited() {
            // From when it was decided on, where the clock has gone back since.
            tenant.limiter.took(now.max(self.last), self.tree.queues[number].kind, cost.units, cost.bytes);
        }
        let back_end = self.tree.charge(number, total, cost);
        if self.running == Some(index) {
            self.requeue(now, index);
        }
        if let Some(back_end) = back_end {
            self.release(now, back_end);
        }
        if self.runnable == 0 && self.bypass.is_none() {
            self.start_bypass(now, grant.queue);
        }
    }
}

impl TenantScheduler for Weighted {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        self.end_bypass(self.last);
        self.make_tenant(tenant);
        let index = TenantIndex::from(tenant);
        let was_in_lane = self.tenants[index].was_in_lane;
        let is_running = self.running == Some(index);
        if !is_running {
            self.dequeue(index);
        }
        let is_present = self.tree.has(tenant);
        let record = &mut self.tenants[index];
        if is_running {
            self.calendar.leave(record.weight());
        }
        let before = (record.weight(), record.guaranteed());
        record.set(self.last, share);
        if is_present {
            self.calendar.count(false, before.0, before.1);
            self.calendar.count(true, record.weight(), record.guaranteed());
        }
        if is_running {
            self.calendar.enter(record.weight());
        }
        self.tree.weigh(index, record.weight());
        // Its debt is bounded as that of its new class.
        record.tag = record.tag.min(self.calendar.latest(record.class()));
        self.tree.unlimit(&mut self.tenants, index, self.last);
        if !is_running {
            let is_first = was_in_lane && self.tenants[index].tag < self.calendar.now();
            self.enqueue(self.last, index, is_first, false);
        }
    }

    fn place(&mut self, queue: QueueId, placement: Placement) {
        self.end_bypass(self.last);
        self.make_tenant(queue.tenant);
        self.cancel(self.last, queue);
        self.place_queue(self.last, queue, Some(placement));
    }

    #[inline]
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        match &mut self.bypass {
            Some(bypass) if bypass.is(queue) => bypass.add(work.units, work.bytes),
            _ => self.ready_among(now, queue, work),
        }
    }

    #[inline]
    fn decide(&mut self, now: Nanos) -> Decision {
        self.last = now;
        match &mut self.bypass {
            Some(bypass) => bypass.grant(self.tuning.alone).map_or(Decision::Idle, Decision::Run),
            None => self.decide_among(now),
        }
    }

    #[inline]
    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        let total = self.price(cost);
        match &mut self.bypass {
            Some(bypass) if bypass.is(grant.queue) => {
                if bypass.charge(total, cost.units) {
                    self.charge_bypassed();
                }
            }
            _ => self.charge_among(now, grant, cost, total),
        }
    }

    #[inline]
    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        let Some(number) = self.tree.find(grant.queue) else { return };
        if let Some(back_end) = self.tree.back_end_of(number) {
            self.end_bypass(now);
            self.tree.complete(number, cost.units);
            self.release(now, back_end);
        }
    }

    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        self.end_bypass(now);
        let Some(number) = self.tree.find(queue) else { return };
        self.depart(number);
        let index = TenantIndex::from(queue.tenant);
        self.tree.cancel(&mut self.tenants[index], number);
        let tenant = &self.tenants[index];
        if tenant.devices.is_empty() && tenant.state != State::Running {
            self.dequeue(index);
            self.enqueue(now, index, false, false);
        }
        if let Some(back_end) = self.tree.back_end_of(number) {
            self.release(now, back_end);
        }
    }

    fn account(&self, now: Nanos, tenant: TenantId) -> Account {
        Account { limited: self.tree.limited(now, tenant.into()) }
    }
}

impl Preemption for Weighted {
    /// As long as a tenant that goes first may wait: the core looks for it after that.
    #[inline]
    fn turn(&self, now: Nanos) -> Nanos {
        self.patience(now)
    }

    /// For a tenant of class [`LatencyClass::Latency`] that would go before all others, unless such a one runs.
    #[inline]
    fn wakeup_preempt(&self, tenant: TenantId) -> bool {
        let is_urgent = |tenant: &Tenant| tenant.latency() == LatencyClass::Latency;
        let comes = self.tenants.get(tenant.into()).is_some_and(|record| {
            is_urgent(record)
                && matches!(record.state, State::Idle | State::Deferred)
                && self.goes_first(self.last, tenant.into())
        });
        let running = self.running.or(self.bypass.as_ref().map(Bypass::tenant));
        let running = running.and_then(|index| self.tenants.get(index));
        comes && !running.is_some_and(|running| is_urgent(running) && running.was_in_lane)
    }

    fn can_preempt(&self) -> bool {
        true
    }

    #[inline]
    fn tick(&self) -> Option<Nanos> {
        self.is_long.then_some(self.tuning.grant)
    }

    /// For a tenant that would go before others, unless the running one does.
    #[inline]
    fn tick_preempt(&self, tenant: TenantId) -> bool {
        let running = self.running.and_then(|index| self.tenants.get(index));
        self.goes_first_on_wakeup(tenant.into()) && !running.is_some_and(|tenant| tenant.was_in_lane)
    }
}
