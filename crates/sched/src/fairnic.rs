//! FairNIC's static partition (Grant et al., SIGCOMM 2020), as MTDA describes and measures it (MTDA §I, §II-C, §V-B): strict parts of
//! the cores and a rate limit before each accelerator, whatever the tenants need.
//!
//! Where there are enough cores each tenant has its own, which is the [`Balancer`](crate::Balancer)'s business. On a core that several
//! share, each that has queues there has a part of its time that nobody else gets, also while its owner has no work.

use crate::here::Here;
use crate::line::Line;
use crate::{
    Cost, Decision, Fcfs, Grant, LogNic, Nanos, Placement, Profile, QueueId, Share, TenantId, TenantScheduler, Work,
};

/// The time that a tenant's part may be saved up for, nanoseconds of the core's time.
const SAVED: u64 = 200_000;

#[derive(Debug)]
struct Tenant {
    channel: Line,
    /// Its part, in millionths of the core's time.
    part: u64,
    weight: u32,
    /// When all of its part is there again.
    full: u64,
}

/// Parts of a core's time that do not change with what tenants need, see the [module](self).
#[derive(Debug, Default)]
pub struct FairNic {
    tenants: Vec<Tenant>,
    here: Here,
    /// Whom the next decision looks at first.
    at: usize,
    /// Set by [`with_parts`](Self::with_parts): weights do not count.
    is_planned: bool,
    /// Plans are made here.
    is_learning: bool,
    /// What is seen of the tenants before there is a plan.
    study: Option<Study>,
}

/// Tenants are watched, and nobody has a part yet: everyone has turns.
#[derive(Debug, Default)]
struct Study {
    /// When the first work came.
    since: Option<Nanos>,
    seen: Vec<Seen>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    came: u64,
    ran: u64,
    time: u64,
}

/// For how long tenants are watched.
const STUDY: Nanos = Nanos(100 * Nanos::MILLI.0);
/// Requests that a channel holds: what the model takes a queue's capacity to be.
const CAPACITY: u32 = 1_024;

impl Study {
    fn of(&mut self, index: usize) -> &mut Seen {
        if self.seen.len() <= index {
            self.seen.resize(index + 1, Seen::default());
        }
        &mut self.seen[index]
    }
}

impl FairNic {
    /// Parts by the weights of the tenants that have queues on the core.
    pub fn new() -> FairNic {
        FairNic::default()
    }

    /// Parts that somebody else found, in millionths of the core's time, by tenant: what a [`LogNic`](crate::LogNic) plans.
    pub fn with_parts(parts: &[u64]) -> FairNic {
        let tenant = |&part: &u64| Tenant { channel: Line::default(), part: part.max(1), weight: 1, full: 0 };
        FairNic {
            tenants: parts.iter().map(tenant).collect(),
            here: Here::default(),
            at: 0,
            is_planned: true,
            is_learning: false,
            study: None,
        }
    }

    /// Parts that LogNIC's model finds from what it sees of the tenants in the first tenth of a second, and again where
    /// tenants are configured later.
    pub(crate) fn learning() -> FairNic {
        FairNic { is_planned: true, is_learning: true, study: Some(Study::default()), ..FairNic::default() }
    }

    /// The study is over: everybody has the part that was best for what was seen.
    fn plan(&mut self, now: Nanos) {
        let Some(study) = &mut self.study else { return };
        let Some(since) = study.since else { return };
        let passed = now.since(since);
        if passed < STUDY {
            return;
        }
        study.seen.resize(self.tenants.len(), Seen::default());
        let seconds = passed.0 as f64 / 1e9;
        let profile = |seen: &Seen| Profile {
            rate: (seen.came as f64 / seconds).max(1.0),
            service: seen.time as f64 / seen.ran.max(1) as f64,
            capacity: CAPACITY,
        };
        let profiles: Vec<Profile> = study.seen.iter().map(profile).collect();
        for (tenant, part) in self.tenants.iter_mut().zip(LogNic::plan(&profiles).parts) {
            tenant.part = part.max(1);
            tenant.full = now.0;
        }
        self.study = None;
    }

    fn make(&mut self, tenant: TenantId) -> usize {
        let index = usize::from(tenant.0);
        if self.tenants.len() <= index {
            self.tenants.resize_with(index + 1, || Tenant { channel: Line::default(), part: 1, weight: 1, full: 0 });
        }
        index
    }

    /// A queue is on the core.
    fn arrive(&mut self, queue: QueueId) -> usize {
        let index = self.make(queue.tenant);
        if self.here.arrive(queue) {
            self.divide();
        }
        index
    }

    fn divide(&mut self) {
        if self.is_planned {
            return;
        }
        let FairNic { tenants, here, .. } = self;
        let has_queues = |(index, _): &(usize, &mut Tenant)| here.has(*index);
        let all: u64 =
            tenants.iter_mut().enumerate().filter(has_queues).map(|(_, tenant)| u64::from(tenant.weight)).sum();
        for (_, tenant) in tenants.iter_mut().enumerate().filter(has_queues) {
            tenant.part = (1_000_000 * u64::from(tenant.weight) / all.max(1)).max(1);
        }
    }
}

impl TenantScheduler for FairNic {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        if self.is_learning && self.tenants.len() <= usize::from(tenant.0) {
            self.study = Some(Study::default());
        }
        let index = self.make(tenant);
        self.tenants[index].weight = share.weight.max(1);
        self.divide();
    }

    fn place(&mut self, queue: QueueId, _placement: Placement) {
        self.arrive(queue);
    }

    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        let index = self.arrive(queue);
        self.tenants[index].channel.push(now, queue, work.units);
        if let Some(study) = &mut self.study {
            study.since.get_or_insert(now);
            study.of(index).came += u64::from(work.units);
        }
    }

    fn decide(&mut self, now: Nanos) -> Decision {
        self.plan(now);
        let is_open = self.study.is_some();
        let mut next: Option<Nanos> = None;
        for step in 0..self.tenants.len() {
            let index = (self.at + step) % self.tenants.len();
            let tenant = &mut self.tenants[index];
            if tenant.channel.waiting() == 0 {
                continue;
            }
            if tenant.full > now.0 && !is_open {
                next = Some(next.map_or(Nanos(tenant.full), |next| next.min(Nanos(tenant.full))));
                continue;
            }
            self.at = (index + 1) % self.tenants.len();
            if let Some((grant, _)) = self.tenants[index].channel.pop(Fcfs::BATCH / 4) {
                return Decision::Run(grant);
            }
        }
        next.map_or(Decision::Idle, Decision::IdleUntil)
    }

    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        let index = self.make(grant.queue.tenant);
        if let Some(study) = &mut self.study {
            let seen = study.of(index);
            seen.ran += u64::from(cost.units);
            seen.time += cost.time.0;
            return;
        }
        let tenant = &mut self.tenants[index];
        let takes = (u128::from(cost.time.0) * 1_000_000 / u128::from(tenant.part)) as u64;
        tenant.full = tenant.full.max(now.0.saturating_sub(SAVED)).saturating_add(takes);
    }

    fn complete(&mut self, _now: Nanos, _grant: Grant, _cost: Cost) {}

    fn cancel(&mut self, _now: Nanos, queue: QueueId) {
        let index = self.make(queue.tenant);
        self.tenants[index].channel.cancel(queue);
        if self.here.depart(queue) {
            self.divide();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Arrivals, Client, Driver};

    #[test]
    fn what_was_learnt_stays_when_it_was_wrong() {
        // At first it has nearly nothing to do, later it floods.
        let light = Client::new(0, 0, 1_000, Arrivals::Open { units: 1, every: 100_000 });
        let late = Client { start: 300_000_000, ..Client::flood(0, 2, 1_000) };
        let mut driver = Driver::new(FairNic::learning(), &[light, Client::flood(1, 1, 1_000), late]);
        driver.run(200_000_000);
        assert!(driver.units_of(0, 0) >= 1_990, "{}", driver.units_of(0, 0));
        driver.run(500_000_000);
        let parts = [0, 1].map(|tenant| driver.time_of(tenant, 400_000_000) as f64 / 1e8);
        assert!(parts[0] < 0.45 && parts[1] > 0.5, "{parts:?}");
    }

    #[test]
    fn a_part_is_had_and_never_more() {
        let mut policy = FairNic::new();
        policy.configure(TenantId(0), Share { weight: 3, ..Share::default() });
        policy.configure(TenantId(1), Share { weight: 1, ..Share::default() });
        // One that never has work.
        let idle = Client { start: u64::MAX, ..Client::flood(1, 1, 1_000) };
        let mut alone = Driver::new(policy, &[Client::flood(0, 0, 1_000), idle]);
        alone.run(100_000_000);
        let part = alone.time_of(0, 10_000_000) as f64 / 9e7;
        assert!((part - 0.75).abs() < 0.02, "{part}: the other's part is nobody's");
        assert!(alone.wasted > 20_000_000);
    }

    #[test]
    fn who_has_no_queue_on_the_core_has_no_part_of_it() {
        let mut policy = FairNic::new();
        for tenant in 0..4 {
            policy.configure(TenantId(tenant), Share::default());
        }
        let idle = Client { start: u64::MAX, ..Client::flood(1, 1, 1_000) };
        let mut driver = Driver::new(policy, &[Client::flood(0, 0, 1_000), idle]);
        driver.run(100_000_000);
        let part = driver.time_of(0, 10_000_000) as f64 / 9e7;
        assert!((part - 0.5).abs() < 0.02, "{part}: two of four are here");
        driver.policy.cancel(Nanos(driver.now), QueueId { tenant: TenantId(1), index: 1 });
        driver.run(200_000_000);
        let part = driver.time_of(0, 110_000_000) as f64 / 9e7;
        assert!(part > 0.98, "{part}: the other's queue has moved to another core");
    }
}
