//! Weighted fairness in measured cost: the default for tenants that share a core.
//!
//! What a grant cost is known when it ran, so nothing here depends on an estimate of it but how long a grant is. A
//! tenant's tag grows by what its grants cost, over its weight; who has the least tag is next (start-time fair
//! queueing, Goyal, Vin and Cheng 1996, which needs no cost in advance), to the precision of a slot (the classes and
//! words of bits are those of QFQ, Checconi, Rizzo and Valente 2013). Below it, devices and queues take turns by
//! surplus round robin.
//!
//! ```text
//!  ready ─► idle ──┬─ below its share, or owed its guarantee ─► lane ─────┐
//!                  ├─ otherwise ─► calendar, by tag ──────────────────────┼─► grant ─► charge ─┐
//!                  └─ at a limit ─► wheel, by time ─► lane or calendar ───┘                    │
//!                  ▲                                                                           │
//!                  └──────────────── nothing left, or held by a back end ◄─────────────────────┘
//! ```
//!
//! Why it is this, the bound on a tenant's wait, and what it costs: `docs/scheduling.md`.

mod alone;
mod beside;
mod calendar;
mod limit;
mod tenant;
mod tree;
mod wheel;

use alone::Alone;
use beside::Beside;
use calendar::{Calendar, SCALE, SLOT};
use tenant::{State, Tenant};
use tree::Tree;
use wheel::Wheel;

use crate::list::{LINE, List};
use crate::{
    Account, Cost, Decision, DeferredWork, Grant, LatencyClass, Nanos, Placement, Precedence, Preemption, QueueId,
    Share, TenantId, TenantScheduler, Work,
};

/// How finely [`Weighted`] shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// What a grant is meant to cost while several tenants have work, nanoseconds, of one that goes first; and after
    /// how much of a longer one the core looks for those. Less is a shorter wait, and more decisions.
    pub grant: Nanos,
    /// And while a tenant of [`LatencyClass::Latency`] has work now and then.
    pub urgent: Nanos,
    /// And while only one tenant has work, or whoever is next has had its share.
    pub alone: Nanos,
    /// For how long after several had work a grant is as if several had.
    pub memory: Nanos,
    /// What a byte costs beside the time it takes the core, picoseconds: others have less of the memory's bandwidth.
    pub byte: u64,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { grant: Nanos(8_000), urgent: Nanos(2_000), alone: Nanos(32_000), memory: Nanos(10_000_000), byte: 20 }
    }
}

impl Tuning {
    /// For how long whoever comes first may have to wait for a grant: where several have work, and where one of them is
    /// urgent.
    #[inline]
    fn patience(&self, is_contended: bool, is_urgent: bool) -> Nanos {
        match (is_contended, is_urgent) {
            (false, _) => self.alone,
            (true, true) => self.urgent,
            (true, false) => self.grant,
        }
    }
}

/// Wake-ups by time that one decision carries out at the most; what is left is for the next one.
const WAKES: usize = 4;
/// Tenants of which a decision finds out that they cannot run after all; then the caller is to ask again.
const TRIES: usize = 16;
/// The lane of [`LatencyClass::Normal`].
const LANE: usize = 1;
/// Devices that one completion lets run at the most.
const RELEASES: usize = 2;

/// Weighted fairness in measured cost, see the [module](self).
#[derive(Debug)]
pub struct Weighted {
    tuning: Tuning,
    tenants: Vec<Tenant>,
    tree: Tree,
    calendar: Calendar,
    /// Of those that go first: by class, [`LatencyClass::Latency`] and [`LatencyClass::Normal`].
    lanes: [List<LINE>; 2],
    wheel: Wheel,
    /// The tenant that has work while no other has.
    solo: Option<u32>,
    /// The tenant whose grant was not charged yet.
    running: Option<u32>,
    /// It went first: from a lane, or would have if anybody else had work.
    runs_first: bool,
    /// The last one charged, if its turn was ended before its grant was.
    cut: Option<u32>,
    /// Tenants with work that could run, also the one that does.
    runnable: u32,
    /// The queue beside which no other has brought work lately.
    alone: Option<Alone>,
    /// The last one whose grant left nobody with work.
    latest: Option<QueueId>,
    /// Until when grants are short.
    contended: Nanos,
    /// Until when they are shorter.
    urgent: Nanos,
    /// Whose work went on beside grants, and when last.
    beside: Beside,
    /// The grant that runs is long, and somebody may come who is not to wait for all of it.
    is_long: bool,
    /// When it was last asked to decide.
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
    /// What a tenant that had no work may have saved up, nanoseconds of its cost.
    pub const CARRY: Nanos = Nanos(SLOT);
    /// What a tenant may owe at the most, nanoseconds of its cost: a single grant that cost more than this is forgiven
    /// the rest.
    pub const DEBT: Nanos = Nanos(calendar::AHEAD * SLOT);

    /// A scheduler without tenants.
    pub fn new(tuning: Tuning) -> Weighted {
        let tuning = Tuning { grant: tuning.grant.max(Nanos(1)), alone: tuning.alone.max(tuning.grant), ..tuning };
        Weighted {
            tuning,
            tenants: Vec::new(),
            tree: Tree::default(),
            calendar: Calendar::new(),
            lanes: [List::default(); 2],
            wheel: Wheel::new(),
            solo: None,
            running: None,
            runs_first: false,
            cut: None,
            runnable: 0,
            alone: None,
            latest: None,
            contended: Nanos(0),
            urgent: Nanos(0),
            beside: Beside::default(),
            is_long: false,
            last: Nanos(0),
        }
    }

    /// What a grant counts as, nanoseconds: its time, its bytes, and at least one for each unit.
    #[inline]
    pub fn price(&self, cost: Cost) -> u64 {
        // 1024 picoseconds pass as a nanosecond: the price is a choice, not a measurement.
        let bytes = cost.bytes.saturating_mul(self.tuning.byte) >> 10;
        cost.time.0.saturating_add(bytes).max(cost.units.into())
    }

    fn make_tenant(&mut self, tenant: TenantId) {
        let last = usize::from(tenant.0);
        while self.tenants.len() <= last {
            let mut new = Tenant::new(Share::default());
            new.tag = self.calendar.now();
            self.tenants.push(new);
        }
    }

    /// A queue is on this core, for its tenant.
    #[cold]
    fn arrive(&mut self, queue: QueueId) {
        if self.tree.queues[queue.index as usize].is_here {
            return;
        }
        if !self.tree.has(queue.tenant) {
            let tenant = &self.tenants[usize::from(queue.tenant.0)];
            self.calendar.count(true, tenant.weight(), tenant.guaranteed());
        }
        self.tree.arrive(queue.index);
    }

    /// And now it is not, whosever it was.
    fn depart(&mut self, index: u32) {
        if !self.tree.depart(index) {
            return;
        }
        let tenant = self.tree.queues[index as usize].tenant;
        if !self.tree.has(tenant) {
            let tenant = &self.tenants[usize::from(tenant.0)];
            self.calendar.count(false, tenant.weight(), tenant.guaranteed());
        }
    }

    /// Takes a tenant out of whatever list it is in.
    fn take_out(&mut self, index: u32) {
        let tenant = &mut self.tenants[index as usize];
        if std::mem::take(&mut tenant.has_timer) {
            self.wheel.remove(&mut self.tenants, index);
        }
        let tenant = &mut self.tenants[index as usize];
        match std::mem::replace(&mut tenant.state, State::Idle) {
            State::Idle | State::Beside | State::Throttled => return,
            State::Running => self.running = None,
            State::Solo => self.solo = None,
            State::Lane => {
                let lane = tenant.lane();
                self.lanes[lane].remove(&mut self.tenants, index);
            }
            State::Calendar => self.calendar.remove(&mut self.tenants, index),
        }
        self.runnable -= 1;
        self.calendar.leave(self.tenants[index as usize].weight());
    }

    /// A tenant that had nothing to run has something.
    #[inline(never)]
    fn wake(&mut self, now: Nanos, index: u32) {
        match self.tenants[index as usize].state {
            State::Idle | State::Beside => {}
            State::Throttled => {
                self.take_out(index);
                self.tenants[index as usize].state = self.beside.idle(index);
            }
            State::Lane | State::Calendar | State::Running | State::Solo => return,
        }
        let is_behind = self.lift(now, index);
        self.enqueue(now, index, is_behind, false);
    }

    /// A tenant that had no work has not saved up more than it may. Whether it is behind.
    #[inline]
    fn lift(&mut self, now: Nanos, index: u32) -> bool {
        let virtual_now = self.calendar.now();
        let tenant = &mut self.tenants[index as usize];
        let saved = match tenant.latency() {
            LatencyClass::Background => 0,
            LatencyClass::Latency => {
                self.urgent = now + self.tuning.memory;
                tenant.saves(Self::CARRY.0 * SCALE)
            }
            LatencyClass::Normal => tenant.saves(Self::CARRY.0 * SCALE),
        };
        let saved = if tenant.state == State::Beside { self.beside.saves(now, index, saved) } else { saved };
        let is_behind = self.comes_behind(now, index);
        let tenant = &mut self.tenants[index as usize];
        tenant.tag = tenant.tag.max(virtual_now.saturating_sub(saved));
        is_behind
    }

    /// Whether a tenant without work that has some at `now` goes first, if it is not owed anything. Who had its turn
    /// just now goes on with its turns, until it has saved up `CARRY` or virtual time has passed the slot of its tag:
    /// it is where those are that always have work, and may be one of them, with no more at once than a grant takes.
    /// And so does what is left of an ended grant.
    #[inline]
    fn comes_behind(&self, now: Nanos, index: u32) -> bool {
        let tenant = &self.tenants[index as usize];
        let least = self.calendar.now().saturating_sub(tenant.saves(Self::CARRY.0 * SCALE));
        tenant.tag < self.calendar.now()
            && self.cut != Some(index)
            && tenant.latency() != LatencyClass::Background
            && !Self::goes_on(&self.calendar, tenant, now, least)
    }

    /// Whether it had its turn just now and is where those are that always have work. `least`: the tag at which it has
    /// saved up all it may.
    #[inline(always)]
    fn goes_on(calendar: &Calendar, tenant: &Tenant, now: Nanos, least: u64) -> bool {
        !tenant.was_in_lane
            && tenant.tag > least
            && tenant.had_turn(now)
            && !calendar.has_passed(tenant.tag, tenant.class())
    }

    /// Puts an idle tenant where it waits for its turn, if it has any work that could run, or for its time. `counts`:
    /// its weight is among those of all that have work.
    #[inline(never)]
    fn enqueue(&mut self, now: Nanos, index: u32, is_behind: bool, counts: bool) {
        if !self.tenants[index as usize].limited.is_empty() {
            self.tree.unlimit(&mut self.tenants, index, now);
        }
        let tenant = &mut self.tenants[index as usize];
        tenant.was_in_lane = is_behind;
        if tenant.devices.is_empty() {
            if counts {
                self.calendar.leave(tenant.weight());
            }
            if !tenant.limited.is_empty() {
                tenant.state = State::Throttled;
                self.set_timer(now, index);
            } else {
                tenant.state = self.beside.idle(index);
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
            self.unseat(now, other);
        }
        self.stand(now, index, is_behind);
    }

    /// One that was the only one with work is not any more.
    #[inline(never)]
    fn unseat(&mut self, now: Nanos, index: u32) {
        let tenant = &self.tenants[index as usize];
        let is_behind = tenant.was_in_lane && tenant.tag < self.calendar.now();
        self.stand(now, index, is_behind);
    }

    /// The same for a [plain](Tenant::is_plain) tenant that has work, and whose weight counts already.
    #[inline(always)]
    fn enqueue_plain(&mut self, now: Nanos, index: u32, is_behind: bool) {
        let tenant = &mut self.tenants[index as usize];
        tenant.was_in_lane = is_behind;
        self.runnable += 1;
        if self.runnable == 1 {
            tenant.state = State::Solo;
            self.solo = Some(index);
            return;
        }
        if let Some(other) = self.solo.take() {
            self.unseat(now, other);
        }
        self.stand_in(index, is_behind, LANE);
    }

    /// Puts a tenant with work among the others.
    #[inline(never)]
    fn stand(&mut self, now: Nanos, index: u32, is_behind: bool) {
        let tenant = &self.tenants[index as usize];
        let (has_timed, lane) = (tenant.has_timed(), tenant.lane());
        self.stand_in(index, is_behind || has_timed && tenant.is_owed(now), lane);
        if has_timed {
            self.set_timer(now, index);
        }
    }

    /// In its lane, if it goes first, or else in the calendar.
    #[inline(always)]
    fn stand_in(&mut self, index: u32, is_first: bool, lane: usize) {
        let tenant = &mut self.tenants[index as usize];
        if is_first {
            tenant.state = State::Lane;
            self.lanes[lane].push_back(&mut self.tenants, index);
        } else {
            tenant.state = State::Calendar;
            self.calendar.insert(&mut self.tenants, index);
        }
    }

    /// A tenant is looked at again when what it waits for beside its turn can come.
    #[inline(never)]
    fn set_timer(&mut self, now: Nanos, index: u32) {
        let tenant = &mut self.tenants[index as usize];
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

    /// The running tenant goes back to where it belongs.
    #[inline(always)]
    fn settle(&mut self, now: Nanos, index: u32) {
        self.running = None;
        self.runnable -= 1;
        let tenant = &mut self.tenants[index as usize];
        // Whoever came by its turn is no tenant that had waited for work, though its tag may be a little behind.
        let is_behind = tenant.was_in_lane && tenant.tag < self.calendar.now();
        tenant.state = State::Idle;
        tenant.ran(now, !self.runs_first);
        if !tenant.is_plain() {
            self.enqueue(now, index, is_behind, true);
        } else if tenant.devices.is_empty() {
            tenant.was_in_lane = is_behind;
            tenant.state = self.beside.idle(index);
            self.calendar.leave(tenant.weight());
        } else {
            self.enqueue_plain(now, index, is_behind);
        }
    }

    /// Tenants for which it is time.
    fn look_at_wheel(&mut self, now: Nanos) {
        for _ in 0..WAKES {
            let Some(index) = self.wheel.pop(&mut self.tenants, now) else { return };
            self.tenants[index as usize].has_timer = false;
            self.tree.unlimit(&mut self.tenants, index, now);
            let tenant = &self.tenants[index as usize];
            match tenant.state {
                State::Throttled if !tenant.devices.is_empty() => self.wake(now, index),
                State::Calendar if tenant.is_owed(now) => {
                    self.take_out(index);
                    self.enqueue(now, index, false, false);
                }
                _ => self.set_timer(now, index),
            }
        }
    }

    /// Devices that wait for a back end may run, where it has room.
    fn release(&mut self, now: Nanos, pool: u32) {
        for _ in 0..RELEASES {
            let Some(tenant) = self.tree.release(&mut self.tenants, pool) else { return };
            self.wake(now, tenant);
        }
    }

    /// Gives a queue of a known tenant its place. What a back end had of it before makes room there for others.
    fn seat(&mut self, now: Nanos, queue: QueueId, placement: Option<Placement>) {
        let before = self.tree.pool_of(queue.index);
        let weight = self.tenants[usize::from(queue.tenant.0)].weight();
        self.depart(queue.index);
        self.tree.place(queue, weight, placement);
        self.arrive(queue);
        if let Some(pool) = before {
            self.release(now, pool);
        }
    }

    /// For how long whoever comes first may have to wait for a grant that runs, about.
    #[inline]
    fn patience(&self, now: Nanos) -> Nanos {
        self.tuning.patience(now < self.contended, now < self.urgent)
    }

    /// Whether a tenant that has no work would go before others if it had.
    #[inline]
    fn would_be_first(&self, index: u32) -> bool {
        self.tenants.get(index as usize).is_some_and(|tenant| {
            matches!(tenant.state, State::Idle | State::Beside)
                && (self.comes_behind(self.last, index) || tenant.is_owed(self.last))
        })
    }

    /// How many of the units that wait a grant of this length has, by the most that one cost lately.
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

    /// The tenant whose turn it is.
    #[inline]
    fn next(&mut self) -> Option<u32> {
        if let Some(index) = self.solo.take() {
            let tenant = &self.tenants[index as usize];
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

/// What is called where several tenants have work, or had lately: out of the way of one that is [alone].
impl Weighted {
    #[inline(never)]
    fn ready_among(&mut self, now: Nanos, queue: QueueId, work: Work) {
        if work.units == 0 {
            return;
        }
        if self.alone.is_some() {
            self.rejoin(now);
        }
        let number = match self.tree.find(queue) {
            Some(number) => {
                if !self.tree.queues[number as usize].is_here {
                    self.arrive(queue);
                }
                number
            }
            None => {
                self.make_tenant(queue.tenant);
                self.seat(now, queue, None);
                queue.index
            }
        };
        let tenant = &mut self.tenants[usize::from(queue.tenant.0)];
        if !self.tree.add(tenant, number, work.units, work.bytes) {
            return;
        }
        let index = queue.tenant.0.into();
        if tenant.state != State::Idle || !tenant.is_plain() {
            return self.wake(now, index);
        }
        let virtual_now = self.calendar.now();
        let least = virtual_now.saturating_sub(tenant.saves(Self::CARRY.0 * SCALE));
        // As `comes_behind`, without what a plain one has not.
        let is_behind =
            tenant.tag < virtual_now && self.cut != Some(index) && !Self::goes_on(&self.calendar, tenant, now, least);
        tenant.tag = tenant.tag.max(least);
        self.calendar.enter(tenant.weight());
        self.enqueue_plain(now, index, is_behind);
    }

    #[inline(never)]
    fn decide_among(&mut self, now: Nanos) -> Decision {
        if let Some(index) = self.running {
            self.settle_late(now, index);
        }
        if !self.wheel.is_empty() {
            self.look_at_wheel(now);
        }
        for _ in 0..TRIES {
            let Some(index) = self.next() else {
                return self.wheel.next().map_or(Decision::Idle, |at| Decision::IdleUntil(at.max(now)));
            };
            if self.tenants[index as usize].has_timer {
                self.tenants[index as usize].has_timer = false;
                self.wheel.remove(&mut self.tenants, index);
            }
            let tenant = &mut self.tenants[index as usize];
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
            // Whoever goes first may have others behind it that do, so its grant is short. One that only had its turn
            // can be long, as it is ended for those.
            let length = if self.runs_first || is_urgent { patience } else { self.tuning.alone };
            let queue = &self.tree.queues[chosen.queue as usize];
            let mut units = Self::fitting(length, queue.unit, chosen.most);
            self.is_long = u64::from(queue.unit) * u64::from(units) > patience.0;
            if tenant.is_limited() {
                let bytes = self.tree.bytes_of_one(chosen.queue);
                units = tenant.limiter.units(now, queue.kind, bytes, units);
            }
            self.tree.take(tenant, chosen.queue, units);
            let queue = QueueId { tenant: TenantId(index as u16), index: chosen.queue };
            return Decision::Run(Grant { queue, units });
        }
        Decision::IdleUntil(now)
    }

    /// A grant that was never charged is over.
    #[cold]
    fn settle_late(&mut self, now: Nanos, index: u32) {
        self.settle(now, index);
    }

    /// A tenant whose turn it was is at its limits, or its back ends are full.
    #[cold]
    fn cannot_run(&mut self, now: Nanos, index: u32) {
        self.runnable -= 1;
        let tenant = &mut self.tenants[index as usize];
        tenant.state = State::Idle;
        tenant.ran(now, false);
        self.enqueue(now, index, false, true);
        if let Some(pool) = self.tree.left.take() {
            self.release(now, pool);
        }
    }

    #[inline(never)]
    fn charge_among(&mut self, now: Nanos, grant: Grant, cost: Cost, total: u64) {
        let Some(number) = self.tree.find(grant.queue) else { return };
        let index = u32::from(grant.queue.tenant.0);
        let tenant = &mut self.tenants[index as usize];
        tenant.charge(now, total, SCALE, self.calendar.latest(tenant.class()));
        // What is left of it comes back when this was charged: that is no work that comes.
        self.cut = (cost.units < grant.units && !self.runs_first).then_some(index);
        self.calendar.pass(total, (!self.runs_first).then_some((tenant.tag, tenant.class())));
        if tenant.is_limited() {
            // From when it was decided on, where the clock has gone back since.
            tenant.limiter.took(now.max(self.last), self.tree.queues[number as usize].kind, cost.units, cost.bytes);
        }
        let pool = self.tree.charge(number, total, cost);
        if self.running == Some(index) {
            self.settle(now, index);
        }
        if let Some(pool) = pool {
            self.release(now, pool);
        }
        if self.runnable == 0 && self.alone.is_none() {
            self.set_apart(now, grant.queue);
        }
    }
}

impl TenantScheduler for Weighted {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        self.rejoin(self.last);
        self.make_tenant(tenant);
        let index = u32::from(tenant.0);
        let was_in_lane = self.tenants[index as usize].was_in_lane;
        let is_running = self.running == Some(index);
        if !is_running {
            self.take_out(index);
        }
        let is_here = self.tree.has(tenant);
        let record = &mut self.tenants[index as usize];
        if is_running {
            self.calendar.leave(record.weight());
        }
        let before = (record.weight(), record.guaranteed());
        record.set(self.last, share);
        if is_here {
            self.calendar.count(false, before.0, before.1);
            self.calendar.count(true, record.weight(), record.guaranteed());
        }
        if is_running {
            self.calendar.enter(record.weight());
        }
        self.tree.weigh(tenant, record.weight());
        // What it owes, it owes in its new class.
        record.tag = record.tag.min(self.calendar.latest(record.class()));
        self.tree.unlimit(&mut self.tenants, index, self.last);
        if !is_running {
            let is_behind = was_in_lane && self.tenants[index as usize].tag < self.calendar.now();
            self.enqueue(self.last, index, is_behind, false);
        }
    }

    fn place(&mut self, queue: QueueId, placement: Placement) {
        self.rejoin(self.last);
        self.make_tenant(queue.tenant);
        self.cancel(self.last, queue);
        self.seat(self.last, queue, Some(placement));
    }

    #[inline]
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        match &mut self.alone {
            Some(alone) if alone.is(queue) => alone.add(work.units, work.bytes),
            _ => self.ready_among(now, queue, work),
        }
    }

    #[inline]
    fn decide(&mut self, now: Nanos) -> Decision {
        self.last = now;
        match &mut self.alone {
            Some(alone) => alone.grant(self.tuning.alone).map_or(Decision::Idle, Decision::Run),
            None => self.decide_among(now),
        }
    }

    #[inline]
    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        let total = self.price(cost);
        match &mut self.alone {
            Some(alone) if alone.is(grant.queue) => {
                if alone.charge(total, cost.units) {
                    self.settle_alone();
                }
            }
            _ => self.charge_among(now, grant, cost, total),
        }
    }

    #[inline]
    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        let Some(number) = self.tree.find(grant.queue) else { return };
        if let Some(pool) = self.tree.pool_of(number) {
            self.rejoin(now);
            self.tree.complete(number, cost.units);
            self.release(now, pool);
        }
    }

    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        self.rejoin(now);
        let Some(number) = self.tree.find(queue) else { return };
        self.depart(number);
        let index = u32::from(queue.tenant.0);
        self.tree.cancel(&mut self.tenants[index as usize], number);
        let tenant = &self.tenants[index as usize];
        if tenant.devices.is_empty() && tenant.state != State::Running {
            self.take_out(index);
            self.enqueue(now, index, false, false);
        }
        if let Some(pool) = self.tree.pool_of(number) {
            self.release(now, pool);
        }
    }

    fn account(&self, now: Nanos, tenant: TenantId) -> Account {
        Account { limited: self.tree.limited(now, tenant.0.into()) }
    }
}

impl Preemption for Weighted {
    /// What whoever comes may wait: it is seen after that.
    #[inline]
    fn turn(&self, now: Nanos) -> Nanos {
        self.patience(now)
    }

    /// One of class [`LatencyClass::Latency`] that would go before all others, where no such one runs.
    #[inline]
    fn wakeup_preempt(&self, tenant: TenantId) -> bool {
        let is_urgent = |tenant: &Tenant| tenant.latency() == LatencyClass::Latency;
        let comes = self.tenants.get(usize::from(tenant.0)).is_some_and(|record| {
            is_urgent(record)
                && matches!(record.state, State::Idle | State::Beside)
                && self.comes_behind(self.last, tenant.0.into())
        });
        let running = self.running.or(self.alone.as_ref().map(Alone::tenant));
        let running = running.and_then(|index| self.tenants.get(index as usize));
        comes && !running.is_some_and(|running| is_urgent(running) && running.was_in_lane)
    }

    fn can_preempt(&self) -> bool {
        true
    }

    #[inline]
    fn tick(&self) -> Option<Nanos> {
        self.is_long.then_some(self.tuning.grant)
    }

    /// One that would go before others, where none such runs.
    #[inline]
    fn tick_preempt(&self, tenant: TenantId) -> bool {
        let running = self.running.and_then(|index| self.tenants.get(index as usize));
        self.would_be_first(tenant.0.into()) && !running.is_some_and(|tenant| tenant.was_in_lane)
    }
}

impl DeferredWork for Weighted {
    #[inline]
    fn deferred_rank(&self, tenant: TenantId) -> u64 {
        self.rank_beside(tenant)
    }

    #[inline]
    fn deferred_precedence(&self, tenant: TenantId) -> Precedence {
        self.precedence_beside(tenant)
    }

    fn charge_deferred(&mut self, now: Nanos, tenant: TenantId, time: Nanos) -> bool {
        self.spend_beside(now, tenant, time.0);
        true
    }
}

#[cfg(test)]
mod tests;
