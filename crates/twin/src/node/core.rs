//! A core: it does what its dispatcher says, in simulated time.
//!
//! ```text
//!   poll ──▶ grants of a turn ──▶ deferred work of a turn ──▶ poll …, or rest until something comes
//! ```
//!
//! These are the stages of an engine's round. A stage that takes time ends in an event, and the core goes on from
//! there.

use std::collections::VecDeque;

use softdpu_sched::{
    Cost, Decision, DeferredTurn, Dispatch, Dispatcher, Grant, Nanos, PreemptReason, PreemptionTick, TenantId,
    TenantScheduler, Work, instalment,
};

use super::{Event, Job, Node, Ran, Unit, Watch, spread_by};

/// A core and its dispatcher.
#[derive(Debug)]
pub(super) struct Core<S> {
    pub dispatcher: Dispatcher<S>,
    /// Queues that something came on, in order; one entry for each unit.
    pub arrived: Vec<usize>,
    /// Units that are ready on its queues.
    pub waiting: u64,
    running: Option<Running>,
    /// What back ends ended since it last polled them.
    ended: Vec<Ended>,
    /// Units of it that stations have.
    outstanding: u32,
    /// Deferred work by queue, in the order in which queues take turns.
    deferred: VecDeque<(usize, VecDeque<Ended>)>,
    /// The turn of deferred work, and what of it runs.
    deferred_turn: Option<DeferredTurn>,
    piece: Option<Piece>,
    /// What the dispatcher said last, if that was that nothing may run.
    idle: Option<Dispatch>,
    /// The tenant of the work it did last.
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
    tick: PreemptionTick,
    /// After how many of them it is preempted, and why.
    preempted: Option<(usize, PreemptReason)>,
}

/// A piece of deferred work that runs.
#[derive(Debug)]
struct Piece {
    queue: usize,
    ended: Ended,
    start: u64,
}

/// What a station ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    grant: Grant,
    cost: Cost,
    unit: Unit,
}

/// A part of a core's round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Take in what came and what stations ended.
    Poll,
    /// Run grants.
    Grants,
    /// Begin a turn of deferred work. `is_contended`: grants have run or were put off in this round.
    BeginDeferred { is_contended: bool },
    /// Run deferred work.
    Deferred,
    /// Begin another round, or rest.
    Rest,
}

/// What comes of a stage.
enum Step {
    Next(Stage),
    /// An event goes on with it.
    UnderWay,
}

/// Stages running that may take no time: a policy asks to be asked again at once.
const FRUITLESS: u32 = 5_000;

impl<S> Core<S> {
    pub(super) fn new(dispatcher: Dispatcher<S>) -> Core<S> {
        Core {
            dispatcher,
            arrived: Vec::new(),
            waiting: 0,
            running: None,
            ended: Vec::new(),
            outstanding: 0,
            deferred: VecDeque::new(),
            deferred_turn: None,
            piece: None,
            idle: None,
            last: None,
            wake: 0,
            grant: 0,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none() && self.piece.is_none()
    }

    pub(super) fn is_waiting_for(&self, number: u64) -> bool {
        self.is_idle() && self.wake == number
    }
}

/// The round.
impl<S: TenantScheduler, W: Watch<S>> Node<S, W> {
    /// A core that runs nothing begins a round.
    pub(super) fn poll(&mut self, index: usize) {
        self.go_on(index, Stage::Poll);
    }

    /// Goes on with a round, until something takes time or the core rests.
    fn go_on(&mut self, index: usize, stage: Stage) {
        self.cores[index].wake += 1;
        let mut stage = stage;
        for _ in 0..FRUITLESS {
            let step = match stage {
                Stage::Poll => self.begin_round(index),
                Stage::Grants => self.dispatch(index),
                Stage::BeginDeferred { is_contended } => self.begin_deferred(index, is_contended),
                Stage::Deferred => self.run_deferred(index),
                Stage::Rest => self.rest(index),
            };
            match step {
                Step::Next(next) => stage = next,
                Step::UnderWay => return,
            }
        }
        self.watch.broke(self.now, format!("core {index} is to ask again at once, {FRUITLESS} times running"));
        self.wake_at(index, self.now + 1_000);
    }

    fn wake_at(&mut self, index: usize, at: u64) {
        let number = self.cores[index].wake;
        self.agenda.enter(at, Event::Wake { core: index, number });
    }

    fn begin_round(&mut self, index: usize) -> Step {
        self.collect(index);
        self.take_in(index, |_, _| true);
        let policy_now = self.policy_now();
        let core = &mut self.cores[index];
        core.idle = None;
        if core.waiting == 0 {
            return Step::Next(Stage::BeginDeferred { is_contended: false });
        }
        let queues = &self.queues;
        let tenants = core.deferred.iter().map(|(queue, _)| queues[*queue].plan.id.tenant);
        if core.dispatcher.deferred_goes_first(tenants) {
            return Step::Next(Stage::BeginDeferred { is_contended: true });
        }
        let turn = core.dispatcher.begin_turn(policy_now, Nanos(0));
        self.watch.polled(self.now, index, turn);
        Step::Next(Stage::Grants)
    }

    /// Does what the dispatcher says in a turn of grants.
    fn dispatch(&mut self, index: usize) -> Step {
        let policy_now = self.policy_now();
        let core = &mut self.cores[index];
        let next = core.dispatcher.next(policy_now, core.waiting > 0);
        match next {
            Dispatch::Run(grant) => {
                let policy = core.dispatcher.policy();
                self.watch.decided(self.now, policy_now, index, policy, Decision::Run(grant), &self.queues);
                if self.start(index, grant) { Step::UnderWay } else { Step::Next(Stage::Grants) }
            }
            Dispatch::PollUrgent => {
                self.take_in(index, |dispatcher, tenant| dispatcher.is_urgent(tenant));
                Step::Next(Stage::Grants)
            }
            Dispatch::EndTurn => Step::Next(Stage::BeginDeferred { is_contended: true }),
            Dispatch::Idle(until) => {
                core.idle = Some(next);
                let decision = until.map_or(Decision::Idle, Decision::IdleUntil);
                let policy = core.dispatcher.policy();
                self.watch.decided(self.now, policy_now, index, policy, decision, &self.queues);
                // It may only want to be asked again.
                let is_contended = until.is_some_and(|at| at <= policy_now);
                Step::Next(Stage::BeginDeferred { is_contended })
            }
        }
    }

    fn rest(&mut self, index: usize) -> Step {
        let policy_now = self.policy_now();
        let core = &self.cores[index];
        let is_new = !core.arrived.is_empty() || !core.ended.is_empty();
        match core.idle {
            _ if is_new || !core.deferred.is_empty() => Step::Next(Stage::Poll),
            _ if core.waiting == 0 => Step::UnderWay,
            Some(Dispatch::Idle(None)) => Step::UnderWay,
            Some(Dispatch::Idle(Some(at))) if at > policy_now => {
                self.wake_at(index, self.now + at.since(policy_now).0);
                Step::UnderWay
            }
            _ => Step::Next(Stage::Poll),
        }
    }

    /// Makes ready what came on queues of some tenants.
    fn take_in(&mut self, index: usize, of: impl Fn(&Dispatcher<S>, TenantId) -> bool) {
        let mut arrived = std::mem::take(&mut self.cores[index].arrived);
        let policy_now = self.policy_now();
        for entries in arrived.chunk_by(|a, b| a == b) {
            let (queue, count) = (&mut self.queues[entries[0]], entries.len());
            let core = &mut self.cores[index];
            if !of(&core.dispatcher, queue.plan.id.tenant) {
                core.arrived.extend(entries);
                continue;
            }
            let mut bytes = 0;
            for unit in queue.arrived.drain(..count) {
                bytes += u64::from(self.sources[unit.source as usize].plan.bytes);
                queue.waiting.push_back(Unit { known: self.now, ..unit });
            }
            core.waiting += count as u64;
            core.dispatcher.ready(policy_now, queue.plan.id, Work { units: count as u32, bytes });
        }
        if self.cores[index].arrived.is_empty() {
            arrived.clear();
            self.cores[index].arrived = arrived;
        }
    }

    /// Takes what stations have ended: it is done, or there is deferred work to do with it.
    fn collect(&mut self, index: usize) {
        let policy_now = self.policy_now();
        for ended in std::mem::take(&mut self.cores[index].ended) {
            let Ended { grant, cost, unit } = ended;
            let number = grant.queue.index as usize;
            let core = &mut self.cores[index];
            // What a back end held up may run now.
            core.idle = None;
            core.dispatcher.complete(policy_now, grant, cost);
            if self.queues[number].plan.deferred.is_some() {
                match core.deferred.iter_mut().find(|(queue, _)| *queue == number) {
                    Some((_, line)) => line.push_back(ended),
                    None => core.deferred.push_back((number, [ended].into())),
                }
            }
            self.watch.completed(self.now, index, grant.queue);
            if self.queues[number].plan.deferred.is_none() {
                self.finish(grant.queue.tenant, unit);
            }
        }
    }
}

/// Grants.
impl<S: TenantScheduler, W: Watch<S>> Node<S, W> {
    /// Begins what was granted. Whether there is any such thing.
    fn start(&mut self, index: usize, grant: Grant) -> bool {
        let number = grant.queue.index as usize;
        let is_attached = |queue: &super::Queue| queue.plan.id == grant.queue && queue.plan.core == index;
        if !self.queues.get(number).is_some_and(is_attached) {
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
        core.waiting -= count as u64;
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
        let tick = core.dispatcher.tick(Nanos(start));
        self.agenda.enter(at.max(start + 1), Event::End { core: index, grant: core.grant });
        core.running = Some(Running { grant, queue: number, units, ends, start, tick, preempted: None });
        self.plan_tick(index);
        true
    }

    /// The next tick is after the first unit that ends at its time or later, if that is not the grant's last.
    fn plan_tick(&mut self, index: usize) {
        let core = &self.cores[index];
        let Some(running) = core.running.as_ref().filter(|running| running.tick.is_on()) else { return };
        if let Some(end) = running.boundary(running.tick.next().0) {
            self.agenda.enter(running.ends[end], Event::Tick { core: index, grant: core.grant });
        }
    }

    /// A long grant is checked for preemption: by work that has arrived, or by a back end that is to be polled.
    pub(super) fn tick(&mut self, index: usize, grant: u64) {
        let core = &mut self.cores[index];
        let Some(running) = core.running.as_mut().filter(|running| core.grant == grant && running.preempted.is_none())
        else {
            return;
        };
        let queues = &self.queues;
        let is_preempted = core.outstanding > 0
            || core.arrived.iter().any(|queue| core.dispatcher.tick_preempts(queues[*queue].plan.id.tenant));
        if is_preempted {
            return self.preempt(index, self.now, PreemptReason::Tick);
        }
        running.tick.restart(Nanos(self.now), Nanos(self.now));
        self.plan_tick(index);
    }

    /// Work came on a queue of a tenant while the core runs something.
    pub(super) fn wake_up(&mut self, index: usize, tenant: TenantId) {
        let core = &self.cores[index];
        if core.dispatcher.is_urgent(tenant)
            && let Some(running) = &core.running
            && running.preempted.is_none_or(|(_, reason)| reason != PreemptReason::Wakeup)
            && core.dispatcher.wakeup_preempts(tenant)
        {
            self.preempt(index, self.now.max(running.start), PreemptReason::Wakeup);
        }
    }

    /// The grant ends with the first unit that ends at a time or later, where that is not its last.
    fn preempt(&mut self, index: usize, at: u64, reason: PreemptReason) {
        let core = &mut self.cores[index];
        let Some(running) = &mut core.running else { return };
        let Some(end) = running.boundary(at) else { return };
        running.preempted = Some((end + 1, reason));
        core.dispatcher.preempt(reason);
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
        let count = running.preempted.map_or(running.units.len(), |(count, _)| count);
        let rest = running.units.split_off(count);
        let Running { grant, queue: number, units, start, .. } = running;
        let policy_now = self.policy_now();
        let bytes = |units: &[Unit]| -> u64 {
            units.iter().map(|unit| u64::from(self.sources[unit.source as usize].plan.bytes)).sum()
        };
        let (ran, left) = (units.len() as u32, Work { units: rest.len() as u32, bytes: bytes(&rest) });
        let queue = &mut self.queues[number];
        let station = queue.plan.station;
        let owed = instalment(Nanos(queue.owes), ran, (queue.waiting.len() + rest.len()) as u64);
        queue.owes -= owed.0;
        let pending = if station.is_some() { ran } else { 0 };
        let cost = Cost { units: ran, time: Nanos(self.now - start + owed.0), bytes: bytes(&units), pending };
        let home = queue.plan.core;
        let core = &mut self.cores[index];
        let is_attached = home == index;
        core.dispatcher.charge(policy_now, cost, |_| if is_attached { left } else { Work::default() });
        let first = units.first().copied();
        let (since, known) = first.map_or((start, start), |unit| (unit.born, unit.known));
        let ran = Ran {
            core: index,
            grant,
            cost,
            start,
            end: self.now,
            policy_end: policy_now,
            since,
            known,
            decision: self.decision,
        };
        self.watch.ran(&ran);
        if is_attached {
            core.waiting += u64::from(left.units);
            prepend(&mut self.queues[number].waiting, rest);
        } else {
            self.send_on(home, number, rest);
        }
        for unit in units {
            match station {
                Some(station) => {
                    self.queues[number].pending += 1;
                    self.cores[index].outstanding += 1;
                    self.submit(station, Job { unit, queue: number, core: index, since: start });
                }
                None => self.finish(grant.queue.tenant, unit),
            }
        }
        self.go_on(index, Stage::Grants);
    }

    /// The remainder of a grant goes to the core that its queue has moved to meanwhile.
    fn send_on(&mut self, core: usize, number: usize, rest: Vec<Unit>) {
        if rest.is_empty() {
            return;
        }
        self.cores[core].arrived.extend(std::iter::repeat_n(number, rest.len()));
        prepend(&mut self.queues[number].arrived, rest);
        if self.cores[core].is_idle() {
            self.poll(core);
        }
    }

    /// A station ended a request: the core that submitted it polls for that when a turn is over.
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
            self.poll(core);
        }
    }
}

/// Deferred work.
impl<S: TenantScheduler, W: Watch<S>> Node<S, W> {
    fn begin_deferred(&mut self, index: usize, is_contended: bool) -> Step {
        self.collect(index);
        let policy_now = self.policy_now();
        let core = &mut self.cores[index];
        if core.deferred.is_empty() {
            return Step::Next(Stage::Rest);
        }
        let is_contended = is_contended && core.waiting > 0;
        core.deferred_turn = Some(core.dispatcher.begin_deferred(policy_now, is_contended));
        Step::Next(Stage::Deferred)
    }

    /// Begins the next piece of deferred work.
    fn run_deferred(&mut self, index: usize) -> Step {
        let policy_now = self.policy_now();
        let core = &mut self.cores[index];
        let Some(turn) = &mut core.deferred_turn else { return Step::Next(Stage::Rest) };
        let queues = &self.queues;
        let tenants = core.deferred.iter().enumerate();
        let candidates = tenants.map(|(at, (queue, _))| (queues[*queue].plan.id.tenant, at));
        let next = core.dispatcher.next_deferred(turn, policy_now, candidates);
        let Some((queue, mut line)) = next.and_then(|(_, at)| core.deferred.remove(at)) else {
            core.deferred_turn = None;
            return Step::Next(Stage::Rest);
        };
        let ended = line.pop_front();
        if !line.is_empty() {
            // Its next piece has its turn after those of other queues.
            core.deferred.push_back((queue, line));
        }
        let (Some(ended), Some(service)) = (ended, self.queues[queue].plan.deferred) else {
            return Step::Next(Stage::Deferred);
        };
        let bytes = self.sources[ended.unit.source as usize].plan.bytes;
        let one = service.unit + ((service.byte * u64::from(bytes)) >> 10);
        let takes = spread_by(&mut self.random, one, service.spread).max(1);
        core.piece = Some(Piece { queue, ended, start: self.now });
        self.agenda.enter(self.now + takes, Event::DeferredEnd { core: index });
        Step::UnderWay
    }

    /// A piece of deferred work ran: its request is done.
    pub(super) fn deferred_ended(&mut self, index: usize) {
        let policy_now = self.policy_now();
        let core = &mut self.cores[index];
        let Some(Piece { queue, ended: Ended { grant, unit, .. }, start }) = core.piece.take() else { return };
        let time = self.now - start;
        let tenant = grant.queue.tenant;
        let is_charged = core.dispatcher.charge_deferred(policy_now, tenant, Nanos(time));
        if !is_charged {
            self.queues[queue].owes += time;
        }
        self.watch.deferred(self.now, index, tenant, time, is_charged);
        self.finish(tenant, unit);
        self.go_on(index, Stage::Deferred);
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
