//! A core: take in, decide, run, charge.

use softdpu_sched::{Cost, Decision, Grant, Nanos, TenantId, TenantScheduler, Work};

use super::{Event, Job, Node, Ran, Unit, Watch, spread_by};

/// A core and its policy.
#[derive(Debug)]
pub(super) struct Core<S> {
    pub policy: S,
    /// Queues that something came on, in order; one entry for each unit.
    pub arrived: Vec<usize>,
    running: Option<Running>,
    /// Whose work it did last.
    last: Option<TenantId>,
    /// The wake-up that counts.
    wake: u64,
}

#[derive(Debug)]
struct Running {
    grant: Grant,
    queue: usize,
    units: Vec<Unit>,
    start: u64,
}

/// Times running that a policy may ask to be asked again at once.
const FRUITLESS: u32 = 1_000;

impl<S> Core<S> {
    pub(super) fn new(policy: S) -> Core<S> {
        Core { policy, arrived: Vec::new(), running: None, last: None, wake: 0 }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    pub(super) fn is_waiting_for(&self, number: u64) -> bool {
        self.running.is_none() && self.wake == number
    }
}

impl<S: TenantScheduler, W: Watch<S>> Node<S, W> {
    /// An idle core looks for something to do.
    pub(super) fn turn(&mut self, index: usize) {
        let mut arrived = std::mem::take(&mut self.cores[index].arrived);
        let told = self.told();
        for entries in arrived.chunk_by(|a, b| a == b) {
            let (queue, count) = (&mut self.queues[entries[0]], entries.len());
            let mut bytes = 0;
            for unit in queue.arrived.drain(..count) {
                bytes += u64::from(self.sources[unit.source as usize].plan.bytes);
                queue.waiting.push_back(unit);
            }
            self.cores[index].policy.ready(told, queue.plan.id, Work { units: count as u32, bytes });
        }
        arrived.clear();
        self.cores[index].arrived = arrived;
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
        let mut takes = 0;
        if core.last != Some(grant.queue.tenant) {
            takes += self.switch;
            core.last = Some(grant.queue.tenant);
        }
        for unit in &units {
            let source = &self.sources[unit.source as usize];
            let service = source.plan.service;
            let one = service.unit + ((service.byte * u64::from(source.plan.bytes)) >> 10);
            takes += spread_by(&mut self.random, one, service.spread) * source.factor;
        }
        let start = self.now + self.decision;
        core.running = Some(Running { grant, queue: number, units, start });
        self.agenda.enter(start + takes.max(1), Event::End { core: index });
        true
    }

    /// A grant ran.
    pub(super) fn end(&mut self, index: usize) {
        let Some(Running { grant, queue, units, start }) = self.cores[index].running.take() else { return };
        let told = self.told();
        let station = self.queues[queue].plan.station;
        let bytes = units.iter().map(|unit| u64::from(self.sources[unit.source as usize].plan.bytes)).sum();
        let pending = if station.is_some() { units.len() as u32 } else { 0 };
        let cost = Cost { units: units.len() as u32, time: Nanos(self.now - start), bytes, pending };
        self.cores[index].policy.charge(told, grant, cost);
        let since = units.first().map_or(start, |unit| unit.born);
        let ran = Ran { core: index, grant, cost, start, end: self.now, told, since, decision: self.decision };
        self.watch.ran(&ran);
        for unit in units {
            match station {
                Some(station) => {
                    self.queues[queue].pending += 1;
                    self.submit(station, Job { unit, queue, core: index, since: start });
                }
                None => self.finish(grant.queue.tenant, unit),
            }
        }
        self.turn(index);
    }

    /// A station ended a request.
    pub(super) fn served(&mut self, station: usize, job: Job<Unit>) {
        let Job { unit, queue, core, since } = job;
        let serving = &mut self.stations[station];
        serving.busy -= 1;
        serving.has -= 1;
        let is_failed = self.now < serving.fails;
        let bytes = if is_failed { 0 } else { self.sources[unit.source as usize].plan.bytes };
        let id = self.queues[queue].plan.id;
        self.queues[queue].pending -= 1;
        let cost = Cost { units: 1, time: Nanos(self.now - since), bytes: bytes.into(), pending: 0 };
        let told = self.told();
        self.cores[core].policy.complete(told, Grant { queue: id, units: 1 }, cost);
        self.watch.completed(self.now, core, id);
        self.finish(id.tenant, unit);
        self.serve(station);
        if self.cores[core].is_idle() {
            self.turn(core);
        }
    }
}
