//! A core, as the engine's: take in, decide, run, charge, and on with grants for a turn; then take what back ends have ended.

use std::collections::VecDeque;

use softdpu_sched::{Cost, Decision, Grant, Nanos, TenantId, TenantScheduler, Work};

use super::{Event, Job, Node, Ran, Unit, Watch, spread_by};

/// A core and its policy.
#[derive(Debug)]
pub(super) struct Core<S> {
    pub policy: S,
    /// Queues that something came on, in order; one entry for each unit.
    pub arrived: Vec<usize>,
    running: Option<Running>,
    /// Until when it goes on with grants before it looks for what is new.
    until: u64,
    /// What back ends ended since it last looked.
    ended: Vec<Ended>,
    /// Units of it that stations have.
    outstanding: u32,
    /// Whose work it did last.
    last: Option<TenantId>,
    /// The wake-up that counts, and the grant that does.
    wake: u64,
    grant: u64,
}

#[derive(Debug)]
struct Running {
    grant: Grant,
    queue: usize,
    units: Vec<Unit>,
    /// When each of them ends.
    ends: Vec<u64>,
    start: u64,
    /// Whether, after how many of them, and why it ends before all have run.
    cut: Option<(usize, Cut)>,
}

/// Why a grant ends before its last unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// A tenant of the first class goes before it ([`Preemption::wakeup_preempt`]).
    Called,
    /// Somebody whom it gives way to ([`Preemption::tick_preempt`]), or a back end, was found at a look.
    Awaited,
}

/// What a station ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    grant: Grant,
    cost: Cost,
    unit: Unit,
}

/// Times running that a policy may ask to be asked again at once.
const FRUITLESS: u32 = 1_000;

impl<S> Core<S> {
    pub(super) fn new(policy: S) -> Core<S> {
        Core {
            policy,
            arrived: Vec::new(),
            running: None,
            until: 0,
            ended: Vec::new(),
            outstanding: 0,
            last: None,
            wake: 0,
            grant: 0,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    pub(super) fn is_waiting_for(&self, number: u64) -> bool {
        self.running.is_none() && self.wake == number
    }
}

impl<S: TenantScheduler, W: Watch<S>> Node<S, W> {
    /// A core that runs nothing looks for what is new, and for something to do.
    pub(super) fn turn(&mut self, index: usize) {
        self.collect(index);
        self.take_in(index, |_| true);
        let turn = self.cores[index].policy.turn(self.told());
        self.cores[index].until = self.now.saturating_add(turn.0);
        self.watch.looked(self.now, index, turn);
        self.decide(index);
    }

    /// Tells the policy what came on queues of some tenants.
    fn take_in(&mut self, index: usize, of: impl Fn(TenantId) -> bool) {
        let mut arrived = std::mem::take(&mut self.cores[index].arrived);
        let told = self.told();
        for entries in arrived.chunk_by(|a, b| a == b) {
            let (queue, count) = (&mut self.queues[entries[0]], entries.len());
            if !of(queue.plan.id.tenant) {
                self.cores[index].arrived.extend(entries);
                continue;
            }
            let mut bytes = 0;
            for unit in queue.arrived.drain(..count) {
                bytes += u64::from(self.sources[unit.source as usize].plan.bytes);
                queue.waiting.push_back(Unit { known: self.now, ..unit });
            }
            self.cores[index].policy.ready(told, queue.plan.id, Work { units: count as u32, bytes });
        }
        if self.cores[index].arrived.is_empty() {
            arrived.clear();
            self.cores[index].arrived = arrived;
        }
    }

    /// Takes what stations have ended.
    fn collect(&mut self, index: usize) {
        let told = self.told();
        for Ended { grant, cost, unit } in std::mem::take(&mut self.cores[index].ended) {
            self.cores[index].policy.complete(told, grant, cost);
            self.watch.completed(self.now, index, grant.queue);
            self.finish(grant.queue.tenant, unit);
        }
    }

    /// Asks for a grant, and begins it.
    fn decide(&mut self, index: usize) {
        let told = self.told();
        self.cores[index].wake += 1;
        for _ in 0..FRUITLESS {
            let decision = self.cores[index].policy.decide(told);
            self.watch.decided(self.now, told, index, &self.cores[index].policy, decision, &self.queues);
            match decision {
                Decision::Run(grant) => {
                    if self.start(index, grant) {
                        return;
                    }
                }
                // The turn is over before its time.
                _ if !self.cores[index].arrived.is_empty() || !self.cores[index].ended.is_empty() => {
                    return self.turn(index);
                }
                Decision::IdleUntil(at) if at <= told => {}
                Decision::IdleUntil(at) => {
                    let number = self.cores[index].wake;
                    self.agenda.enter(self.now + at.since(told).0, Event::Wake { core: index, number });
                    return;
                }
                Decision::Idle => return,
            }
        }
        self.watch.broke(self.now, format!("core {index} is told to ask again at once, {FRUITLESS} times running"));
        let number = self.cores[index].wake;
        self.agenda.enter(self.now + 1_000, Event::Wake { core: index, number });
    }

    /// Begins what was granted. Whether there is any such thing.
    fn start(&mut self, index: usize, grant: Grant) -> bool {
        let number = grant.queue.index as usize;
        let is_here = |queue: &super::Queue| queue.plan.id == grant.queue && queue.plan.core == index;
        if !self.queues.get(number).is_some_and(is_here) {
            self.watch.broke(self.now, format!("a grant for queue {}, which core {index} does not have", grant.queue));
            return false;
        }
        let queue = &mut self.queues[number];
        let count = (grant.units as usize).min(queue.waiting.len());
        if count == 0 || count < grant.units as usize {
            let had = queue.waiting.len();
            self.watch
                .broke(self.now, format!("{} units granted of queue {}, which has {had}", grant.units, grant.queue));
            if count == 0 {
                return false;
            }
        }
        let units: Vec<Unit> = queue.waiting.drain(..count).collect();
        let core = &mut self.cores[index];
        let start = self.now + self.decision;
        let mut at = start;
        if core.last != Some(grant.queue.tenant) {
            at += self.switch;
            core.last = Some(grant.queue.tenant);
        }
        let mut ends = Vec::with_capacity(count);
        for unit in &units {
            let source = &self.sources[unit.source as usize];
            let service = source.plan.service;
            let one = service.unit + ((service.byte * u64::from(source.plan.bytes)) >> 10);
            at += spread_by(&mut self.random, one, service.spread) * source.factor;
            ends.push(at.max(start + 1));
        }
        core.grant += 1;
        let number = core.grant;
        let looks = core.policy.tick();
        self.agenda.enter(at.max(start + 1), Event::End { core: index, grant: number });
        core.running = Some(Running { grant, queue: grant.queue.index as usize, units, ends, start, cut: None });
        if let Some(every) = looks {
            self.look_after(index, start.saturating_add(every.0));
        }
        true
    }

    /// The core looks after the first unit that ends at a time or later, if it is not the grant's last.
    fn look_after(&mut self, index: usize, at: u64) {
        let core = &self.cores[index];
        let Some(running) = &core.running else { return };
        if let Some(end) = running.boundary(at) {
            self.agenda.enter(running.ends[end], Event::Look { core: index, grant: core.grant });
        }
    }

    /// A long grant looks whether somebody has come whom it gives way to, or whether a back end is to be looked at.
    pub(super) fn look(&mut self, index: usize, grant: u64) {
        let core = &mut self.cores[index];
        let Some(running) = core.running.as_mut().filter(|running| core.grant == grant && running.cut.is_none()) else {
            return;
        };
        let tenant = running.grant.queue.tenant;
        let is_awaited = core.outstanding > 0
            || core.arrived.iter().any(|queue| {
                let other = self.queues[*queue].plan.id.tenant;
                other != tenant && core.policy.tick_preempt(other)
            });
        if is_awaited {
            return self.cut(index, self.now, Cut::Awaited);
        }
        if let Some(every) = core.policy.tick() {
            self.look_after(index, self.now.saturating_add(every.0));
        }
    }

    /// Something came on a queue of a tenant while a grant runs: it may go before the rest of it.
    pub(super) fn call(&mut self, index: usize, tenant: TenantId) {
        let core = &self.cores[index];
        if let Some(running) = &core.running
            && running.cut.is_none_or(|(_, why)| why != Cut::Called)
            && running.grant.queue.tenant != tenant
            && core.policy.wakeup_preempt(tenant)
        {
            self.cut(index, self.now.max(running.start), Cut::Called);
        }
    }

    /// The grant ends with the first unit that ends at a time or later, where that is not its last.
    fn cut(&mut self, index: usize, at: u64, why: Cut) {
        let core = &mut self.cores[index];
        let Some(running) = &mut core.running else { return };
        let Some(end) = running.boundary(at) else { return };
        running.cut = Some((end + 1, why));
        core.grant += 1;
        let at = running.ends[end];
        self.agenda.enter(at, Event::End { core: index, grant: core.grant });
    }

    /// A grant ran.
    pub(super) fn end(&mut self, index: usize, number: u64) {
        if self.cores[index].grant != number {
            return;
        }
        let Some(mut running) = self.cores[index].running.take() else { return };
        let (count, why) = running.cut.map_or((running.units.len(), None), |(count, why)| (count, Some(why)));
        let rest = running.units.split_off(count);
        let Running { grant, queue, units, start, .. } = running;
        let told = self.told();
        let station = self.queues[queue].plan.station;
        let pending = if station.is_some() { units.len() as u32 } else { 0 };
        let cost =
            Cost { units: units.len() as u32, time: Nanos(self.now - start), bytes: self.bytes(&units), pending };
        self.cores[index].policy.charge(told, grant, cost);
        let first = units.first().copied();
        let (since, known) = first.map_or((start, start), |unit| (unit.born, unit.known));
        let ran = Ran { core: index, grant, cost, start, end: self.now, told, since, known, decision: self.decision };
        self.watch.ran(&ran);
        self.give_back(index, queue, grant, rest);
        for unit in units {
            match station {
                Some(station) => {
                    self.queues[queue].pending += 1;
                    self.cores[index].outstanding += 1;
                    self.submit(station, Job { unit, queue, core: index, since: start });
                }
                None => self.finish(grant.queue.tenant, unit),
            }
        }
        match why {
            Some(Cut::Called) => {
                // Those of the first class alone; the others when the turn is over.
                let urgent = std::mem::take(&mut self.urgent);
                self.take_in(index, |tenant| urgent.get(usize::from(tenant.0)).is_some_and(|is_urgent| *is_urgent));
                self.urgent = urgent;
                self.decide(index);
            }
            None if self.now < self.cores[index].until => self.decide(index),
            Some(Cut::Awaited) | None => self.turn(index),
        }
    }

    fn bytes<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) -> u64 {
        units.into_iter().map(|unit| u64::from(self.sources[unit.source as usize].plan.bytes)).sum()
    }

    /// What a grant that was cut short did not come to is ready again.
    fn give_back(&mut self, index: usize, number: usize, grant: Grant, rest: Vec<Unit>) {
        if rest.is_empty() {
            return;
        }
        let work = Work { units: rest.len() as u32, bytes: self.bytes(&rest) };
        let (told, core) = (self.told(), self.queues[number].plan.core);
        if core == index {
            prepend(&mut self.queues[number].waiting, rest);
            return self.cores[index].policy.ready(told, grant.queue, work);
        }
        // The queue has gone elsewhere meanwhile.
        self.cores[core].arrived.extend(std::iter::repeat_n(number, rest.len()));
        prepend(&mut self.queues[number].arrived, rest);
        if self.cores[core].is_idle() {
            self.turn(core);
        }
    }

    /// A station ended a request: the core that submitted it looks for that when a turn is over.
    pub(super) fn served(&mut self, station: usize, job: Job<Unit>) {
        let Job { unit, queue, core, since } = job;
        let serving = &mut self.stations[station];
        serving.busy -= 1;
        serving.has -= 1;
        let is_failed = self.now < serving.fails;
        let bytes = if is_failed { 0 } else { self.sources[unit.source as usize].plan.bytes };
        self.queues[queue].pending -= 1;
        self.cores[core].outstanding -= 1;
        let cost = Cost { units: 1, time: Nanos(self.now - since), bytes: bytes.into(), pending: 0 };
        let grant = Grant { queue: self.queues[queue].plan.id, units: 1 };
        self.cores[core].ended.push(Ended { grant, cost, unit });
        self.serve(station);
        if self.cores[core].is_idle() {
            self.turn(core);
        }
    }
}

impl Running {
    /// The first unit, but for the last, that ends at a time or later.
    fn boundary(&self, at: u64) -> Option<usize> {
        let end = self.ends.partition_point(|end| *end < at);
        (end + 1 < self.ends.len()).then_some(end)
    }
}

fn prepend(queue: &mut VecDeque<Unit>, units: Vec<Unit>) {
    units.into_iter().rev().for_each(|unit| queue.push_front(unit));
}
