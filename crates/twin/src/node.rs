//! A node in simulated time: sources, queues, cores with a policy each, what work goes on to.
//!
//! ```text
//!  sources ─ link ─► queues (bounded) ─► core ─┬─► done ─ link ─►
//!                                        ▲  │  └─► station ─► complete ─► deferred work ─► done ─ link ─►
//!                                        │  ▼
//!                             dispatcher and policy, in simulated time
//! ```
//!
//! A core does what the engine's does, as it drives the same [`Dispatcher`] and the same policies. Only time and work
//! are models.

mod core;
mod watch;

use std::collections::VecDeque;

use softdpu_sched::{Dispatcher, Nanos, Placement, QueueId, Share, TenantId, TenantScheduler};

use self::core::Core;
use crate::agenda::Agenda;
use crate::arrivals::{Arrivals, Stream};
use crate::random::Random;
use crate::station::{Job, Link, Serving, Station};
pub use watch::{Ran, Tally, TenantTally, Watch, Window};

/// What a unit of work takes a core.
#[derive(Clone, Copy, Debug, Default)]
pub struct Service {
    /// Nanoseconds a unit.
    pub unit: u64,
    /// A byte, 2^-10 ns.
    pub byte: u64,
    /// So many hundredths of it may be more or less, uniformly.
    pub spread: u64,
}

/// A queue: where a tenant's work waits for one core.
#[derive(Clone, Debug)]
pub struct QueuePlan {
    /// Its identity; its number is its place in [`Plan::queues`].
    pub id: QueueId,
    /// The core that serves it.
    pub core: usize,
    /// What the policy knows of it.
    pub placement: Placement,
    /// Units that it holds; what comes when it is full is lost.
    pub capacity: usize,
    /// The station that its work goes on to when a core ran it.
    pub station: Option<usize>,
    /// What a unit takes the core when its station has ended it, outside of grants, as decryption does. None: it is
    /// done then.
    pub deferred: Option<Service>,
}

/// Where work comes from.
#[derive(Clone, Debug)]
pub struct Source {
    /// When.
    pub arrivals: Arrivals,
    /// When it begins, nanoseconds.
    pub start: u64,
    /// Bytes of a unit.
    pub bytes: u32,
    /// What a unit takes.
    pub service: Service,
    /// Into which queues, by turns of a random number: as a hash of flows does. At least one.
    pub queues: Vec<usize>,
}

/// What a node is made of.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Cores.
    pub cores: usize,
    /// Shares that tenants are configured with, by tenant.
    pub shares: Vec<Share>,
    /// Queues.
    pub queues: Vec<QueuePlan>,
    /// Sources.
    pub sources: Vec<Source>,
    /// Stations.
    pub stations: Vec<Station>,
    /// The wire that all work comes over.
    pub ingress: Option<Link>,
    /// The wire that all work goes out over when it is done.
    pub egress: Option<Link>,
    /// What a core loses when it goes on with another tenant's work than it had, nanoseconds.
    pub switch: u64,
    /// What a decision takes a core, nanoseconds.
    pub decision: u64,
}

/// A unit of work.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// When it came, nanoseconds.
    pub born: u64,
    /// When its core's policy learned of it, nanoseconds.
    known: u64,
    source: u32,
}

/// A queue at work.
#[derive(Debug)]
pub struct Queue {
    /// What it is.
    pub plan: QueuePlan,
    /// What the policy knows to be ready.
    pub waiting: VecDeque<Unit>,
    /// What came since the core last polled.
    arrived: VecDeque<Unit>,
    /// Units at its station.
    pub pending: u32,
    /// Core time of deferred work that the policy has not charged, nanoseconds: in the cost of the queue's next grants.
    owes: u64,
}

impl Queue {
    /// Units in it, also those that the core has not seen yet.
    pub fn units(&self) -> usize {
        self.waiting.len() + self.arrived.len()
    }
}

/// Something that goes wrong, or is changed, at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A station ends nothing for so many nanoseconds.
    Stall {
        /// Which.
        station: usize,
        /// For how long.
        lasts: u64,
    },
    /// Every request of a station fails at once, for so many nanoseconds.
    Errors {
        /// Which.
        station: usize,
        /// For how long.
        lasts: u64,
    },
    /// A source sends so many times as often from now on.
    Flood {
        /// Which.
        source: usize,
        /// How many times.
        factor: u64,
    },
    /// A queue stops, and everything in it is given up; it goes on with what comes.
    Cancel {
        /// Which.
        queue: usize,
    },
    /// A queue goes to another core, with what waits in it.
    Move {
        /// Which.
        queue: usize,
        /// Where to.
        core: usize,
    },
    /// The clock that policies see jumps by so many nanoseconds, back if negative.
    Jump {
        /// By how much.
        by: i64,
    },
    /// A source's units take so many times as long from now on.
    Cost {
        /// Which.
        source: usize,
        /// How many times.
        factor: u64,
    },
}

#[derive(Debug)]
enum Event {
    Arrive {
        source: usize,
        again: bool,
    },
    /// It came over the wire.
    Received {
        queue: usize,
        unit: Unit,
    },
    End {
        core: usize,
        grant: u64,
    },
    /// A running grant is checked for preemption.
    Tick {
        core: usize,
        grant: u64,
    },
    /// A piece of deferred work ran.
    DeferredEnd {
        core: usize,
    },
    Wake {
        core: usize,
        number: u64,
    },
    Served {
        station: usize,
        job: Job<Unit>,
    },
    Fault(Fault),
}

struct SourceState {
    plan: Source,
    stream: Stream,
    random: Random,
    factor: u64,
}

/// The node, see the [module](self).
pub struct Node<S, W> {
    now: u64,
    /// What policies' clocks are ahead of simulated time.
    skew: i64,
    agenda: Agenda<Event>,
    cores: Vec<Core<S>>,
    queues: Vec<Queue>,
    sources: Vec<SourceState>,
    stations: Vec<Serving<Unit>>,
    ingress: Option<Link>,
    egress: Option<Link>,
    switch: u64,
    decision: u64,
    random: Random,
    is_stopped: bool,
    /// Watches what happens.
    pub watch: W,
}

/// Policies' clocks begin here, so that one that jumps back does not become negative.
const EPOCH: i64 = 1 << 40;

impl<S: TenantScheduler, W: Watch<S>> Node<S, W> {
    /// A node that nothing has happened to, with a policy for each core.
    pub fn new(plan: Plan, mut policy: impl FnMut(usize) -> S, watch: W, seed: u64) -> Node<S, W> {
        let mut random = Random::new(seed);
        let mut cores: Vec<Core<S>> = (0..plan.cores).map(|core| Core::new(Dispatcher::new(policy(core)))).collect();
        for core in &mut cores {
            for (tenant, share) in plan.shares.iter().enumerate() {
                core.dispatcher.configure(TenantId(tenant as u16), *share);
            }
        }
        for queue in &plan.queues {
            cores[queue.core].dispatcher.place(queue.id, queue.placement);
        }
        let queue = |plan| Queue { plan, waiting: VecDeque::new(), arrived: VecDeque::new(), pending: 0, owes: 0 };
        let mut agenda = Agenda::default();
        let mut sources = Vec::new();
        for (index, plan) in plan.sources.into_iter().enumerate() {
            let mut stream = Stream::new(plan.arrivals.clone(), plan.start, random.fork());
            match stream.law() {
                Arrivals::Closed { depth, .. } => {
                    for _ in 0..*depth {
                        agenda.enter(plan.start, Event::Arrive { source: index, again: false });
                    }
                }
                _ => {
                    if let Some(at) = stream.next() {
                        agenda.enter(at, Event::Arrive { source: index, again: true });
                    }
                }
            }
            sources.push(SourceState { plan, stream, random: random.fork(), factor: 1 });
        }
        Node {
            now: 0,
            skew: EPOCH,
            agenda,
            cores,
            queues: plan.queues.into_iter().map(queue).collect(),
            sources,
            stations: plan.stations.into_iter().map(Serving::new).collect(),
            ingress: plan.ingress,
            egress: plan.egress,
            switch: plan.switch,
            decision: plan.decision,
            random,
            is_stopped: false,
            watch,
        }
    }

    /// From now on nothing comes.
    pub fn stop_sources(&mut self) {
        self.is_stopped = true;
    }

    /// Simulated time, nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// The queues.
    pub fn queues(&self) -> &[Queue] {
        &self.queues
    }

    /// The policy of a core.
    pub fn policy(&self, core: usize) -> &S {
        self.cores[core].dispatcher.policy()
    }

    /// The policies of all cores, and the watch.
    pub fn into_parts(self) -> (Vec<S>, W) {
        (self.cores.into_iter().map(|core| core.dispatcher.into_policy()).collect(), self.watch)
    }

    /// The most requests that a station ever had at once.
    pub fn most_at(&self, station: usize) -> u32 {
        self.stations[station].most
    }

    /// Moves a queue to another core, now.
    pub fn move_queue(&mut self, queue: usize, core: usize) {
        self.relocate(queue, core);
    }

    /// Configures a tenant on every core.
    pub fn configure(&mut self, tenant: TenantId, share: Share) {
        self.cores.iter_mut().for_each(|core| core.dispatcher.configure(tenant, share));
    }

    /// Something is to go wrong at a time.
    pub fn plan_fault(&mut self, at: u64, fault: Fault) {
        self.agenda.enter(at, Event::Fault(fault));
    }

    /// Goes on until a time.
    pub fn run(&mut self, until: u64) {
        while let Some((at, event)) = self.agenda.next(until) {
            self.now = at;
            match event {
                Event::Arrive { source, again } => self.arrive(source, again),
                Event::Received { queue, unit } => self.receive(queue, unit),
                Event::End { core, grant } => self.end(core, grant),
                Event::Tick { core, grant } => self.tick(core, grant),
                Event::DeferredEnd { core } => self.deferred_ended(core),
                Event::Wake { core, number } => {
                    if self.cores[core].is_waiting_for(number) {
                        self.poll(core);
                    }
                }
                Event::Served { station, job } => self.served(station, job),
                Event::Fault(fault) => self.fault(fault),
            }
        }
        self.now = until;
    }

    /// The time by the policies' clock, which a fault may have moved.
    fn policy_now(&self) -> Nanos {
        Nanos(self.now.saturating_add_signed(self.skew))
    }

    fn arrive(&mut self, index: usize, again: bool) {
        if self.is_stopped {
            return;
        }
        let source = &mut self.sources[index];
        if again && let Some(at) = source.stream.next() {
            self.agenda.enter(at, Event::Arrive { source: index, again: true });
        }
        let queues = &source.plan.queues;
        let queue = match queues.len() {
            1 => queues[0],
            several => queues[source.random.below(several as u64) as usize],
        };
        let bytes = source.plan.bytes;
        let tenant = self.queues[queue].plan.id.tenant;
        self.watch.arrived(self.now, tenant, bytes);
        let unit = Unit { born: self.now, known: self.now, source: index as u32 };
        match &mut self.ingress {
            None => self.receive(queue, unit),
            Some(link) => match link.send(self.now, bytes) {
                Some(at) => self.agenda.enter(at, Event::Received { queue, unit: Unit { born: at, ..unit } }),
                None => self.lose(tenant, unit),
            },
        }
    }

    fn receive(&mut self, index: usize, unit: Unit) {
        let queue = &mut self.queues[index];
        if queue.waiting.len() + queue.arrived.len() >= queue.plan.capacity {
            let tenant = queue.plan.id.tenant;
            return self.lose(tenant, unit);
        }
        queue.arrived.push_back(unit);
        let core = queue.plan.core;
        self.cores[core].arrived.push(index);
        let tenant = queue.plan.id.tenant;
        if self.cores[core].is_idle() {
            self.poll(core);
        } else {
            self.wake_up(core, tenant);
        }
    }

    fn lose(&mut self, tenant: TenantId, unit: Unit) {
        self.watch.dropped(self.now, tenant);
        self.follow(unit);
    }

    /// A unit ended, one way or another: where its client waits for that, there is another.
    fn follow(&mut self, unit: Unit) {
        let index = unit.source as usize;
        if let Arrivals::Closed { think, .. } = self.sources[index].stream.law() {
            // Without any pause a full queue would be tried for ever.
            self.agenda.enter(self.now + (*think).max(1), Event::Arrive { source: index, again: false });
        }
    }

    fn finish(&mut self, tenant: TenantId, unit: Unit) {
        let bytes = self.sources[unit.source as usize].plan.bytes;
        let sent = match &mut self.egress {
            None => Some(self.now),
            Some(link) => link.send(self.now, bytes),
        };
        match sent {
            Some(at) => self.watch.finished(at, tenant, at - unit.born, bytes),
            None => self.watch.dropped(self.now, tenant),
        }
        self.follow(unit);
    }

    fn submit(&mut self, station: usize, job: Job<Unit>) {
        let serving = &mut self.stations[station];
        serving.has += 1;
        serving.most = serving.most.max(serving.has);
        serving.ring.push_back(job);
        self.serve(station);
    }

    fn serve(&mut self, index: usize) {
        let serving = &mut self.stations[index];
        while serving.busy < serving.station.servers
            && let Some(job) = serving.ring.pop_front()
        {
            serving.busy += 1;
            let Station { service, spread, .. } = serving.station;
            let takes = if self.now < serving.fails { 1_000 } else { spread_by(&mut self.random, service, spread) };
            let ends = (self.now + takes).max(serving.stalled);
            self.agenda.enter(ends, Event::Served { station: index, job });
        }
    }

    fn fault(&mut self, fault: Fault) {
        match fault {
            Fault::Stall { station, lasts } => self.stations[station].stalled = self.now + lasts,
            Fault::Errors { station, lasts } => self.stations[station].fails = self.now + lasts,
            Fault::Flood { source, factor } => self.sources[source].stream.set_factor(factor),
            Fault::Cost { source, factor } => self.sources[source].factor = factor.max(1),
            Fault::Jump { by } => self.skew = self.skew.saturating_add(by).max(0),
            Fault::Cancel { queue } => {
                let (id, core) = (self.queues[queue].plan.id, self.queues[queue].plan.core);
                let policy_now = self.policy_now();
                self.cores[core].dispatcher.cancel(policy_now, id);
                let given_up: Vec<Unit> = self.queues[queue].waiting.drain(..).collect();
                self.cores[core].waiting -= given_up.len() as u64;
                self.watch.cancelled(self.now, id.tenant, given_up.len());
                given_up.into_iter().for_each(|unit| self.follow(unit));
            }
            Fault::Move { queue, core } => self.relocate(queue, core),
        }
    }

    /// Moves a queue to another core, with what waits in it. What is at a station comes back to the core that submitted
    /// it.
    fn relocate(&mut self, index: usize, core: usize) {
        let policy_now = self.policy_now();
        let queue = &mut self.queues[index];
        let from = std::mem::replace(&mut queue.plan.core, core);
        if from == core {
            return;
        }
        self.cores[from].dispatcher.cancel(policy_now, queue.plan.id);
        self.cores[core].dispatcher.place(queue.plan.id, queue.plan.placement);
        let mut waiting = std::mem::take(&mut queue.waiting);
        self.cores[from].waiting -= waiting.len() as u64;
        waiting.append(&mut queue.arrived);
        self.cores[from].arrived.retain(|arrived| *arrived != index);
        self.cores[core].arrived.extend(std::iter::repeat_n(index, waiting.len()));
        queue.arrived = waiting;
        self.watch.moved(self.now, queue.plan.id);
        if self.cores[core].is_idle() {
            self.poll(core);
        }
    }
}

impl<W> Node<softdpu_sched::Scheduler, W> {
    /// How often MTDA's policies allocated credits anew, on all cores.
    pub fn reallocations(&self) -> u64 {
        self.cores.iter().map(|core| core.dispatcher.policy().credit_reallocations()).sum()
    }
}

/// A value, or up to so many hundredths more or less.
fn spread_by(random: &mut Random, value: u64, spread: u64) -> u64 {
    let off = value * spread / 100;
    if off == 0 { value } else { value - off + random.below(2 * off + 1) }
}

#[cfg(test)]
mod tests;
