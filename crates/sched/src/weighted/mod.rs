//! Weighted fairness in measured cost: the default for tenants that share a core.
//!
//! The cost of a grant is measured when it ran; an estimate decides only how long a grant is. A tenant's tag grows by
//! the cost of its grants over its weight, and the tenant with the least tag is next: start-time fair queueing (Goyal,
//! Vin and Cheng 1996), which needs no cost in advance. Tags are compared to the precision of a slot; the classes of
//! weights and the bitmaps are those of QFQ (Checconi, Rizzo and Valente 2013). Devices of a tenant, and queues of a
//! device, take turns by surplus round robin.
//!
//! ```text
//!  ready ─► idle ──┬─ below its share, or owed its guarantee ─► lane ─────┐
//!                  ├─ otherwise ─► calendar, by tag ──────────────────────┼─► grant ─► charge ─┐
//!                  └─ at a limit ─► wheel, by time ─► lane or calendar ───┘                    │
//!                  ▲                                                                           │
//!                  └──────────────── nothing left, or held by a back end ◄─────────────────────┘
//! ```
//!
//! `docs/scheduling-design.md` has the reasons, the bound on a tenant's wait, and what the policy costs.

mod bypass;
mod calendar;
mod deferred;
mod index;
mod limit;
mod list;
mod policy;
mod tenant;
mod tree;
mod tuning;
mod wheel;

use bypass::Bypass;
use calendar::{Calendar, SCALE, SLOT};
use deferred::LastDeferred;
use index::{BackEndIndex, QueueIndex, Table, TenantIndex};
use list::{List, READY};
use tenant::{Lane, State, Tenant};
use tree::Tree;
pub use tuning::Tuning;
use wheel::Wheel;

use crate::{Cost, LatencyClass, Nanos, Placement, QueueId, Share, TenantId};

/// Timers that one decision expires at most; the next decision expires the rest.
const TIMERS: usize = 4;
/// Tenants that one decision finds throttled or at a full back end at most; then the caller asks again.
const TRIES: usize = 16;
/// Waiting devices that one completion makes runnable at most.
const RELEASES: usize = 2;

/// Weighted fairness in measured cost, see the [module](self).
#[derive(Debug)]
pub struct Weighted {
    tuning: Tuning,
    tenants: Table<TenantIndex, Tenant>,
    tree: Tree,
    calendar: Calendar,
    /// Tenants that go first, by class: [`LatencyClass::Latency`] and [`LatencyClass::Normal`].
    lanes: [List<TenantIndex, READY>; Lane::COUNT],
    wheel: Wheel,
    /// The tenant that has work while no other has.
    solo: Option<TenantIndex>,
    /// The tenant whose grant was not charged yet.
    running: Option<TenantIndex>,
    /// The running tenant came from a lane, or would have if another tenant had work.
    runs_first: bool,
    /// The tenant charged last, if its grant was preempted and it ran in its turn: it has a remainder.
    preempted: Option<TenantIndex>,
    /// Runnable tenants, with the running one.
    runnable: u32,
    /// The lone queue, while no other has brought work lately.
    bypass: Option<Bypass>,
    /// The queue of the last grant after which no tenant was runnable.
    latest: Option<QueueId>,
    /// Until when grants are short: several tenants had work.
    contended: Nanos,
    /// Until when they are shorter: a tenant of class latency had work.
    urgent: Nanos,
    /// When each tenant was last charged for deferred work.
    deferred: LastDeferred,
    /// The running grant is longer than a tenant that goes first may wait.
    is_long: bool,
    /// When it last decided.
    last: Nanos,
}

impl Default for Weighted {
    fn default() -> Self {
        Self::new(Tuning::default())
    }
}

impl Weighted {
    /// The most units of a grant, as [`Fcfs`](crate::Fcfs)'s.
    pub const BATCH: u32 = 64;
    /// The largest weight; larger ones count as this.
    pub const LARGEST_WEIGHT: u32 = calendar::LARGEST_WEIGHT;
    /// The most lag of a tenant that had no work, nanoseconds of its cost.
    pub const CARRY: Nanos = Nanos(SLOT);
    /// The most debt of a tenant, nanoseconds of its cost. The cost of a single grant beyond it is not charged.
    pub const DEBT: Nanos = Nanos(calendar::AHEAD * SLOT);

    /// A scheduler without tenants.
    pub fn new(tuning: Tuning) -> Weighted {
        let tuning = Tuning { grant: tuning.grant.max(Nanos(1)), alone: tuning.alone.max(tuning.grant), ..tuning };
        Weighted {
            tuning,
            tenants: Table::default(),
            tree: Tree::default(),
            calendar: Calendar::new(),
            lanes: [List::default(); Lane::COUNT],
            wheel: Wheel::new(),
            solo: None,
            running: None,
            runs_first: false,
            preempted: None,
            runnable: 0,
            bypass: None,
            latest: None,
            contended: Nanos(0),
            urgent: Nanos(0),
            deferred: LastDeferred::default(),
            is_long: false,
            last: Nanos(0),
        }
    }

    /// What a grant is charged, nanoseconds: its time, its bytes, and at least one for each unit.
    #[inline]
    pub fn price(&self, cost: Cost) -> u64 {
        // 1024 picoseconds pass as a nanosecond: the price is a choice, not a measurement.
        let bytes = cost.bytes.saturating_mul(self.tuning.byte) >> 10;
        cost.time.0.saturating_add(bytes).max(cost.units.into())
    }

    fn make_tenant(&mut self, tenant: TenantId) {
        let tag = self.calendar.now();
        self.tenants.grow_to(tenant.into(), || {
            let mut new = Tenant::new(Share::default());
            new.tag = tag;
            new
        });
    }

    /// Counts a queue that is on this core now.
    #[cold]
    fn arrive(&mut self, queue: QueueId) {
        if self.tree.queues[queue.into()].is_present {
            return;
        }
        if !self.tree.has(queue.tenant) {
            let tenant = &self.tenants[queue.tenant.into()];
            self.calendar.count(true, tenant.weight(), tenant.guaranteed());
        }
        self.tree.arrive(queue.into());
    }

    /// Counts a queue that is no longer on this core, of whichever tenant.
    fn depart(&mut self, queue: QueueIndex) {
        if !self.tree.depart(queue) {
            return;
        }
        let tenant = self.tree.queues[queue].tenant;
        if !self.tree.has(tenant) {
            let tenant = &self.tenants[tenant.into()];
            self.calendar.count(false, tenant.weight(), tenant.guaranteed());
        }
    }

    /// Takes a tenant out of the list that it is in, and makes it idle.
    fn dequeue(&mut self, index: TenantIndex) {
        let tenant = &mut self.tenants[index];
        if std::mem::take(&mut tenant.has_timer) {
            self.wheel.remove(&mut self.tenants, index);
        }
        let tenant = &mut self.tenants[index];
        match std::mem::replace(&mut tenant.state, State::Idle) {
            State::Idle | State::Deferred | State::Throttled => return,
            State::Running => self.running = None,
            State::Solo => self.solo = None,
            State::Lane => {
                let lane = tenant.lane();
                self.lanes[lane as usize].remove(&mut self.tenants, index);
            }
            State::Calendar => self.calendar.remove(&mut self.tenants, index),
        }
        self.runnable -= 1;
        self.calendar.leave(self.tenants[index].weight());
    }

    /// Enqueues a tenant that had nothing to run and has work now.
    #[inline(never)]
    fn wake(&mut self, now: Nanos, index: TenantIndex) {
        match self.tenants[index].state {
            State::Idle | State::Deferred => {}
            State::Throttled => {
                self.dequeue(index);
                self.tenants[index].state = self.deferred.idle(index);
            }
            State::Lane | State::Calendar | State::Running | State::Solo => return,
        }
        let is_first = self.clamp_lag(now, index);
        self.enqueue(now, index, is_first, false);
    }

    /// Bounds the lag of a tenant that had no work. Returns whether it goes first.
    #[inline]
    fn clamp_lag(&mut self, now: Nanos, index: TenantIndex) -> bool {
        let virtual_now = self.calendar.now();
        let tenant = &mut self.tenants[index];
        let saved = match tenant.latency() {
            LatencyClass::Background => 0,
            LatencyClass::Latency => {
                self.urgent = now + self.tuning.memory;
                tenant.saves(Self::CARRY.0 * SCALE)
            }
            LatencyClass::Normal => tenant.saves(Self::CARRY.0 * SCALE),
        };
        let saved = if tenant.state == State::Deferred { self.deferred.saves(now, index, saved) } else { saved };
        let is_first = self.goes_first(now, index);
        let tenant = &mut self.tenants[index];
        tenant.tag = tenant.tag.max(virtual_now.saturating_sub(saved));
        is_first
    }

    /// Whether a tenant without work that has some at `now` goes first, apart from its guarantee. A tenant that had its
    /// turn just now keeps its place among those that are always backlogged, until its lag is `CARRY` or virtual time
    /// has passed the slot of its tag: it may be one of them, with no more work at once than a grant takes. The
    /// remainder of a preempted grant keeps its place, too.
    #[inline]
    fn goes_first(&self, now: Nanos, index: TenantIndex) -> bool {
        let tenant = &self.tenants[index];
        let least = self.calendar.now().saturating_sub(tenant.saves(Self::CARRY.0 * SCALE));
        tenant.tag < self.calendar.now()
            && self.preempted != Some(index)
            && tenant.latency() != LatencyClass::Background
            && !Self::continues_turn(&self.calendar, tenant, now, least)
    }

    /// Whether a tenant had its turn just now and keeps its place. `least` is the tag of the largest lag it may have.
    #[inline(always)]
    fn continues_turn(calendar: &Calendar, tenant: &Tenant, now: Nanos, least: u64) -> bool {
        !tenant.was_in_lane
            && tenant.tag > least
            && tenant.had_turn(now)
            && !calendar.has_passed(tenant.tag, tenant.class())
    }

    /// Enqueues an idle tenant: in a lane or the calendar if it is runnable, in the wheel if it is throttled. `counts`:
    /// its weight is among those of the backlogged tenants already.
    #[inline(never)]
    fn enqueue(&mut self, now: Nanos, index: TenantIndex, is_first: bool, counts: bool) {
        if !self.tenants[index].limited.is_empty() {
            self.tree.unlimit(&mut self.tenants, index, now);
        }
        let tenant = &mut self.tenants[index];
        tenant.was_in_lane = is_first;
        if tenant.devices.is_empty() {
            if counts {
                self.calendar.leave(tenant.weight());
            }
            if !tenant.limited.is_empty() {
                tenant.state = State::Throttled;
                self.set_timer(now, index);
            } else {
                tenant.state = self.deferred.idle(index);
            }
            return;
        }
        if !counts {
            self.calendar.enter(tenant.weight());
        }
        self.runnable += 1;
        if self.runnable == 1 && !tenant.has_timed() {
            tenant.state = State::Solo;
            self.solo = Some(index);
            return;
        }
        if let Some(other) = self.solo.take() {
            self.end_solo(now, other);
        }
        self.enqueue_contended(now, index, is_first);
    }

    /// Enqueues the only tenant with work, which is not the only one any more.
    #[inline(never)]
    fn end_solo(&mut self, now: Nanos, index: TenantIndex) {
        let tenant = &self.tenants[index];
        let is_first = tenant.was_in_lane && tenant.tag < self.calendar.now();
        self.enqueue_contended(now, index, is_first);
    }

    /// As [`enqueue`](Self::enqueue) for a runnable [plain](Tenant::is_plain) tenant, whose weight counts already.
    #[inline(always)]
    fn enqueue_plain(&mut self, now: Nanos, index: TenantIndex, is_first: bool) {
        let tenant = &mut self.tenants[index];
        tenant.was_in_lane = is_first;
        self.runnable += 1;
        if self.runnable == 1 {
            tenant.state = State::Solo;
            self.solo = Some(index);
            return;
        }
        if let Some(other) = self.solo.take() {
            self.end_solo(now, other);
        }
        self.insert(index, is_first, Lane::Normal);
    }

    /// Enqueues a runnable tenant beside others.
    #[inline(never)]
    fn enqueue_contended(&mut self, now: Nanos, index: TenantIndex, is_first: bool) {
        let tenant = &self.tenants[index];
        let (has_timed, lane) = (tenant.has_timed(), tenant.lane());
        self.insert(index, is_first || has_timed && tenant.is_owed(now), lane);
        if has_timed {
            self.set_timer(now, index);
        }
    }

    /// Into its lane if it goes first, otherwise into the calendar.
    #[inline(always)]
    fn insert(&mut self, index: TenantIndex, is_first: bool, lane: Lane) {
        let tenant = &mut self.tenants[index];
        if is_first {
            tenant.state = State::Lane;
            self.lanes[lane as usize].push_back(&mut self.tenants, index);
        } else {
            tenant.state = State::Calendar;
            self.calendar.insert(&mut self.tenants, index);
        }
    }

    /// Sets a tenant's timer to when its guarantee is owed, or its limit opens.
    #[inline(never)]
    fn set_timer(&mut self, now: Nanos, index: TenantIndex) {
        let tenant = &mut self.tenants[index];
        let owed = if tenant.state == State::Calendar { tenant.owed_at() } else { None };
        let opens = (!tenant.limited.is_empty()).then(|| tenant.limiter.opens_next(now));
        let at = match (owed, opens) {
            (Some(owed), Some(opens)) => owed.min(opens),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return,
        };
        tenant.has_timer = true;
        self.wheel.insert(&mut self.tenants, index, now, at);
    }

    /// Enqueues the running tenant again, or makes it idle.
    #[inline(always)]
    fn requeue(&mut self, now: Nanos, index: TenantIndex) {
        self.running = None;
        self.runnable -= 1;
        let tenant = &mut self.tenants[index];
        // A tenant that ran in its turn had not waited for work, though its tag may be a little behind.
        let is_first = tenant.was_in_lane && tenant.tag < self.calendar.now();
        tenant.state = State::Idle;
        tenant.ran(now, !self.runs_first);
        if !tenant.is_plain() {
            self.enqueue(now, index, is_first, true);
        } else if tenant.devices.is_empty() {
            tenant.was_in_lane = is_first;
            tenant.state = self.deferred.idle(index);
            self.calendar.leave(tenant.weight());
        } else {
            self.enqueue_plain(now, index, is_first);
        }
    }

    /// Expires the timers that are due.
    fn expire_timers(&mut self, now: Nanos) {
        for _ in 0..TIMERS {
            let Some(index) = self.wheel.pop(&mut self.tenants, now) else { return };
            self.tenants[index].has_timer = false;
            self.tree.unlimit(&mut self.tenants, index, now);
            let tenant = &self.tenants[index];
            match tenant.state {
                State::Throttled if !tenant.devices.is_empty() => self.wake(now, index),
                State::Calendar if tenant.is_owed(now) => {
                    self.dequeue(index);
                    self.enqueue(now, index, false, false);
                }
                _ => self.set_timer(now, index),
            }
        }
    }

    /// Makes devices runnable that wait for room at a back end.
    fn release(&mut self, now: Nanos, back_end: BackEndIndex) {
        for _ in 0..RELEASES {
            let Some(tenant) = self.tree.release(&mut self.tenants, back_end) else { return };
            self.wake(now, tenant);
        }
    }

    /// Places a queue of a known tenant. Its requests at another back end before make room there.
    fn place_queue(&mut self, now: Nanos, queue: QueueId, placement: Option<Placement>) {
        let before = self.tree.back_end_of(queue.into());
        let weight = self.tenants[queue.tenant.into()].weight();
        self.depart(queue.into());
        self.tree.place(queue, weight, placement);
        self.arrive(queue);
        if let Some(back_end) = before {
            self.release(now, back_end);
        }
    }

    /// How long a tenant that goes first may wait for the running grant, about.
    #[inline]
    fn patience(&self, now: Nanos) -> Nanos {
        self.tuning.patience(now < self.contended, now < self.urgent)
    }

    /// Whether a tenant without work would go before others if it had some.
    #[inline]
    fn goes_first_on_wakeup(&self, index: TenantIndex) -> bool {
        self.tenants.get(index).is_some_and(|tenant| {
            matches!(tenant.state, State::Idle | State::Deferred)
                && (self.goes_first(self.last, index) || tenant.is_owed(self.last))
        })
    }

    /// How many of the waiting units fit a grant of this length, by the most that a unit cost lately.
    #[inline]
    fn fitting(length: Nanos, unit: u32, waiting: u32) -> u32 {
        let units = waiting.min(Self::BATCH);
        if u64::from(unit) * u64::from(units) <= length.0 {
            return units;
        }
        // Division of half as many bits, as it takes less than half the time; more than this is no grant.
        let length = u32::try_from(length.0).unwrap_or(u32::MAX);
        (length / unit.max(1)).clamp(1, units)
    }

    /// Dequeues the next tenant.
    #[inline]
    fn next(&mut self) -> Option<TenantIndex> {
        if let Some(index) = self.solo.take() {
            let tenant = &self.tenants[index];
            self.runs_first = tenant.was_in_lane;
            if !tenant.was_in_lane {
                self.calendar.advance(tenant.tag, tenant.class());
            }
            return Some(index);
        }
        for lane in &mut self.lanes {
            if let Some(index) = lane.pop_front(&mut self.tenants) {
                self.runs_first = true;
                return Some(index);
            }
        }
        self.runs_first = false;
        self.calendar.pop(&mut self.tenants)
    }
}

#[cfg(test)]
mod tests;
