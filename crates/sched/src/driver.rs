//! A core in a test: it runs what its dispatcher says, in simulated time, and logs what happened. It polls after each
//! grant.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::{
    Cost, Dispatch, Dispatcher, Grant, Nanos, Placement, PreemptReason, QueueId, TenantId, TenantScheduler, Work,
};

/// How a queue's work comes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrivals {
    /// So many requests at once; each is followed by another, so many nanoseconds after it ended.
    Closed { depth: u32, think: u64 },
    /// So many at once, every so many nanoseconds.
    Open { units: u32, every: u64 },
}

/// A queue and its client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub queue: QueueId,
    pub placement: Placement,
    pub arrivals: Arrivals,
    /// When it begins.
    pub start: u64,
    /// What a unit costs the core, nanoseconds.
    pub cost: u64,
    pub bytes: u64,
    /// What it then takes a back end, nanoseconds; none: it is done when it ran.
    pub back_end: Option<u64>,
}

impl Client {
    /// One that always has work.
    pub fn flood(tenant: u16, index: u32, cost: u64) -> Client {
        Client::new(tenant, index, cost, Arrivals::Closed { depth: 128, think: 0 })
    }

    pub fn new(tenant: u16, index: u32, cost: u64, arrivals: Arrivals) -> Client {
        let queue = QueueId { tenant: TenantId(tenant), index };
        let placement = Placement { device: index, ..Placement::default() };
        Client { queue, placement, arrivals, start: 0, cost, bytes: 0, back_end: None }
    }
}

/// A grant that ran.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ran {
    pub grant: Grant,
    pub start: u64,
    pub end: u64,
    pub bytes: u64,
    /// Since when its first unit was ready.
    pub since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Ready { client: usize, units: u32 },
    Ended { client: usize, since: u64 },
}

pub(crate) struct Driver<S> {
    pub dispatcher: Dispatcher<S>,
    pub clients: Vec<Client>,
    pub now: u64,
    pub log: Vec<Ran>,
    /// Time in which the core idled, though work was ready.
    pub wasted: u64,
    /// The most that back ends had at once.
    pub most_pending: usize,
    ready: Vec<VecDeque<u64>>,
    pending: usize,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    number: u64,
}

impl<S: TenantScheduler> Driver<S> {
    pub fn new(policy: S, clients: &[Client]) -> Driver<S> {
        let mut dispatcher = Dispatcher::new(policy);
        for client in clients {
            dispatcher.place(client.queue, client.placement);
        }
        let mut driver = Driver {
            dispatcher,
            clients: clients.to_vec(),
            now: 0,
            log: Vec::new(),
            wasted: 0,
            most_pending: 0,
            ready: clients.iter().map(|_| VecDeque::new()).collect(),
            pending: 0,
            events: BinaryHeap::new(),
            number: 0,
        };
        for (index, client) in clients.iter().enumerate() {
            let units = match client.arrivals {
                Arrivals::Closed { depth, .. } => depth,
                Arrivals::Open { units, .. } => units,
            };
            driver.at(client.start, Event::Ready { client: index, units });
        }
        driver
    }

    fn at(&mut self, time: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((time, self.number, event)));
    }

    fn happen(&mut self) {
        while let Some(&Reverse((time, _, event))) = self.events.peek() {
            if time > self.now {
                return;
            }
            self.events.pop();
            match event {
                Event::Ready { client, units } => {
                    let Client { queue, bytes, arrivals, .. } = self.clients[client];
                    self.ready[client].extend(std::iter::repeat_n(time, units as usize));
                    self.dispatcher.ready(Nanos(self.now), queue, Work { units, bytes: bytes * u64::from(units) });
                    if let Arrivals::Open { units, every } = arrivals {
                        self.at(time + every, Event::Ready { client, units });
                    }
                }
                Event::Ended { client, since } => {
                    let Client { queue, bytes, .. } = self.clients[client];
                    let cost = Cost { units: 1, time: Nanos(self.now - since), bytes, pending: 0 };
                    self.pending -= 1;
                    self.dispatcher.complete(Nanos(self.now), Grant { queue, units: 1 }, cost);
                    self.again(client, 1);
                }
            }
        }
    }

    fn again(&mut self, client: usize, units: u32) {
        if let Arrivals::Closed { think, .. } = self.clients[client].arrivals {
            self.at(self.now + think, Event::Ready { client, units });
        }
    }

    /// Runs until a time.
    pub fn run(&mut self, until: u64) {
        let mut fruitless = 0;
        while self.now < until {
            self.happen();
            let is_backlogged = self.ready.iter().any(|ready| !ready.is_empty());
            let now = Nanos(self.now);
            // A turn for each grant. Without work the policy is not asked.
            self.dispatcher.begin_turn(now, Nanos(0));
            let dispatch = if is_backlogged { self.dispatcher.next(now, is_backlogged) } else { Dispatch::Idle(None) };
            let next = self.events.peek().map_or(until, |Reverse((time, ..))| *time);
            let next = match dispatch {
                Dispatch::Run(grant) => {
                    fruitless = 0;
                    self.carry_out(grant);
                    continue;
                }
                Dispatch::Idle(Some(at)) if at <= now => {
                    fruitless += 1;
                    assert!(fruitless < 10_000, "the policy asks to be asked again for ever");
                    continue;
                }
                Dispatch::Idle(Some(at)) => next.min(at.0),
                _ => next,
            };
            let next = next.max(self.now + 1).min(until);
            if is_backlogged {
                self.wasted += next - self.now;
            }
            self.now = next;
        }
    }

    fn carry_out(&mut self, grant: Grant) {
        let at = self.clients.iter().position(|client| client.queue == grant.queue).expect("a queue that exists");
        let client = self.clients[at];
        assert!(grant.units >= 1 && grant.units as usize <= self.ready[at].len(), "{grant:?} of what is ready");
        let since = self.ready[at][0];
        let granted = grant;
        let grant = Grant { units: self.until_preempted(client, granted), ..granted };
        if grant.units < granted.units {
            self.dispatcher.preempt(PreemptReason::Tick);
        }
        self.ready[at].drain(..grant.units as usize);
        let (start, units) = (self.now, u64::from(grant.units));
        self.now += client.cost * units;
        let bytes = client.bytes * units;
        let pending = if client.back_end.is_some() { grant.units } else { 0 };
        let cost = Cost { units: grant.units, time: Nanos(self.now - start), bytes, pending };
        self.log.push(Ran { grant, start, end: self.now, bytes, since });
        // Work that arrived meanwhile is polled when the grant is over.
        match client.back_end {
            Some(takes) => {
                self.pending += grant.units as usize;
                self.most_pending = self.most_pending.max(self.pending);
                for _ in 0..grant.units {
                    self.at(self.now + takes, Event::Ended { client: at, since: start });
                }
            }
            None => self.again(at, grant.units),
        }
        let remainder = |units| Work { units, bytes: client.bytes * u64::from(units) };
        self.dispatcher.charge(Nanos(self.now), cost, remainder);
    }

    /// How many units of a grant run: up to a tick by which work of a tenant has arrived that preempts it.
    fn until_preempted(&self, client: Client, grant: Grant) -> u32 {
        let mut tick = self.dispatcher.tick(Nanos(self.now));
        if !tick.is_on() {
            return grant.units;
        }
        for ran in 1..grant.units {
            let now = Nanos(self.now + client.cost * u64::from(ran));
            if !tick.is_due(now) {
                continue;
            }
            tick.restart(now, now);
            let preempts = |&Reverse((time, _, event)): &Reverse<(u64, u64, Event)>| match event {
                Event::Ready { client: other, .. } if time <= now.0 => {
                    self.dispatcher.tick_preempts(self.clients[other].queue.tenant)
                }
                _ => false,
            };
            if self.events.iter().any(preempts) {
                return ran;
            }
        }
        grant.units
    }

    /// Core time that a tenant had from a time on.
    pub fn time_of(&self, tenant: u16, from: u64) -> u64 {
        self.of(tenant).filter(|ran| ran.start >= from).map(|ran| ran.end - ran.start).sum()
    }

    /// Units that a tenant's grants had from a time on.
    pub fn units_of(&self, tenant: u16, from: u64) -> u64 {
        self.of(tenant).filter(|ran| ran.start >= from).map(|ran| u64::from(ran.grant.units)).sum()
    }

    /// A tenant's grants.
    pub fn of(&self, tenant: u16) -> impl Iterator<Item = &Ran> {
        self.log.iter().filter(move |ran| ran.grant.queue.tenant.0 == tenant)
    }

    /// The longest time for which a tenant's work was ready and did not run, from a time on.
    pub fn longest_wait(&self, tenant: u16, from: u64) -> u64 {
        self.of(tenant).filter(|ran| ran.since >= from).map(|ran| ran.start - ran.since).max().unwrap_or(0)
    }
}
