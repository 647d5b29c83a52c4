//! FairNIC's static partition (Grant et al., SIGCOMM 2020), as MTDA describes and measures it (MTDA §I, §II-C, §V-B):
//! strict parts of the cores and a rate limit before each accelerator, whatever the tenants need.
//!
//! With enough cores each tenant has its own, which the [`Balancer`](crate::Balancer) assigns. On a shared core, each
//! tenant with queues there has a part of the core's time that no other tenant gets, even while its owner has no work.

use crate::attached::AttachedQueues;
use crate::fifo::Fifo;
use crate::{
    Cost, Decision, DeferredWork, Fcfs, Grant, LogNic, Nanos, Placement, Preemption, Profile, QueueId, Share, TenantId,
    TenantScheduler, Work,
};

/// The burst of a tenant's part: what it may save up, nanoseconds of the core's time.
const BURST: u64 = 200_000;

#[derive(Debug)]
struct Tenant {
    channel: Fifo,
    /// Its part, in millionths of the core's time.
    part: u64,
    weight: u32,
    /// When its bucket is full again, nanoseconds.
    full: u64,
}

/// Parts of a core's time that do not change with what tenants need, see the [module](self).
#[derive(Debug, Default)]
pub struct FairNic {
    tenants: Vec<Tenant>,
    attached: AttachedQueues,
    /// The tenant that the next decision begins with.
    cursor: usize,
    /// Parts come from a plan, not from weights.
    is_planned: bool,
    /// It makes the plan itself, from what it observes.
    is_learning: bool,
    /// What was observed of the tenants before there is a plan.
    profiling: Option<Profiling>,
}

/// Tenants are observed and served in turn; none has a part yet.
#[derive(Debug, Default)]
struct Profiling {
    /// When the first work became ready.
    since: Option<Nanos>,
    observed: Vec<Observed>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Observed {
    /// Units that became ready, and units that ran.
    arrived: u64,
    ran: u64,
    /// Core time of those that ran, nanoseconds.
    time: u64,
}

/// For how long tenants are observed.
const PROFILING: Nanos = Nanos(100 * Nanos::MILLI.0);
/// Requests that a channel holds: the capacity N of the M/M/1/N model.
const CAPACITY: u32 = 1_024;

impl Profiling {
    fn of(&mut self, index: usize) -> &mut Observed {
        if self.observed.len() <= index {
            self.observed.resize(index + 1, Observed::default());
        }
        &mut self.observed[index]
    }
}

impl FairNic {
    /// Parts by the weights of the tenants that have queues on the core.
    pub fn new() -> FairNic {
        FairNic::default()
    }

    /// Planned parts, in millionths of the core's time, by tenant: what a [`LogNic`](crate::LogNic) finds.
    pub fn with_parts(parts: &[u64]) -> FairNic {
        let tenant = |&part: &u64| Tenant { channel: Fifo::default(), part: part.max(1), weight: 1, full: 0 };
        FairNic {
            tenants: parts.iter().map(tenant).collect(),
            attached: AttachedQueues::default(),
            cursor: 0,
            is_planned: true,
            is_learning: false,
            profiling: None,
        }
    }

    /// Parts by LogNIC's model, from what is observed of the tenants in the first tenth of a second, and again when a
    /// tenant is configured later.
    pub(crate) fn learning() -> FairNic {
        FairNic { is_planned: true, is_learning: true, profiling: Some(Profiling::default()), ..FairNic::default() }
    }

    /// Ends profiling, if its time is over: each tenant gets the part that is best for what was observed.
    fn plan(&mut self, now: Nanos) {
        let Some(profiling) = &mut self.profiling else { return };
        let Some(since) = profiling.since else { return };
        let passed = now.since(since);
        if passed < PROFILING {
            return;
        }
        profiling.observed.resize(self.tenants.len(), Observed::default());
        let seconds = passed.0 as f64 / 1e9;
        let profile = |observed: &Observed| Profile {
            rate: (observed.arrived as f64 / seconds).max(1.0),
            service: observed.time as f64 / observed.ran.max(1) as f64,
            capacity: CAPACITY,
        };
        let profiles: Vec<Profile> = profiling.observed.iter().map(profile).collect();
        for (tenant, part) in self.tenants.iter_mut().zip(LogNic::plan(&profiles).parts) {
            tenant.part = part.max(1);
            tenant.full = now.0;
        }
        self.profiling = None;
    }

    fn index_of(&mut self, tenant: TenantId) -> usize {
        let index = usize::from(tenant.0);
        if self.tenants.len() <= index {
            self.tenants.resize_with(index + 1, || Tenant { channel: Fifo::default(), part: 1, weight: 1, full: 0 });
        }
        index
    }

    fn attach(&mut self, queue: QueueId) -> usize {
        let index = self.index_of(queue.tenant);
        if self.attached.attach(queue) {
            self.divide();
        }
        index
    }

    /// Divides the core by the weights of the tenants that have queues on it.
    fn divide(&mut self) {
        if self.is_planned {
            return;
        }
        let FairNic { tenants, attached, .. } = self;
        let has_queues = |(index, _): &(usize, &mut Tenant)| attached.has(*index);
        let all: u64 =
            tenants.iter_mut().enumerate().filter(has_queues).map(|(_, tenant)| u64::from(tenant.weight)).sum();
        for (_, tenant) in tenants.iter_mut().enumerate().filter(has_queues) {
            tenant.part = (1_000_000 * u64::from(tenant.weight) / all.max(1)).max(1);
        }
    }
}

impl Preemption for FairNic {}
impl DeferredWork for FairNic {}

impl TenantScheduler for FairNic {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        if self.is_learning && self.tenants.len() <= usize::from(tenant.0) {
            self.profiling = Some(Profiling::default());
        }
        let index = self.index_of(tenant);
        self.tenants[index].weight = share.weight.max(1);
        self.divide();
    }

    fn place(&mut self, queue: QueueId, _placement: Placement) {
        self.attach(queue);
    }

    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        let index = self.attach(queue);
        self.tenants[index].channel.push(now, queue, work.units);
        if let Some(profiling) = &mut self.profiling {
            profiling.since.get_or_insert(now);
            profiling.of(index).arrived += u64::from(work.units);
        }
    }

    fn decide(&mut self, now: Nanos) -> Decision {
        self.plan(now);
        let is_open = self.profiling.is_some();
        let mut next: Option<Nanos> = None;
        for step in 0..self.tenants.len() {
            let index = (self.cursor + step) % self.tenants.len();
            let tenant = &mut self.tenants[index];
            if tenant.channel.waiting() == 0 {
                continue;
            }
            if tenant.full > now.0 && !is_open {
                next = Some(next.map_or(Nanos(tenant.full), |next| next.min(Nanos(tenant.full))));
                continue;
            }
            self.cursor = (index + 1) % self.tenants.len();
            if let Some((grant, _)) = self.tenants[index].channel.pop(Fcfs::BATCH / 4) {
                return Decision::Run(grant);
            }
        }
        next.map_or(Decision::Idle, Decision::IdleUntil)
    }

    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        let index = self.index_of(grant.queue.tenant);
        if let Some(profiling) = &mut self.profiling {
            let observed = profiling.of(index);
            observed.ran += u64::from(cost.units);
            observed.time += cost.time.0;
            return;
        }
        let tenant = &mut self.tenants[index];
        let takes = (u128::from(cost.time.0) * 1_000_000 / u128::from(tenant.part)) as u64;
        tenant.full = tenant.full.max(now.0.saturating_sub(BURST)).saturating_add(takes);
    }

    fn cancel(&mut self, _now: Nanos, queue: QueueId) {
        let index = self.index_of(queue.tenant);
        self.tenants[index].channel.cancel(queue);
        if self.attached.detach(queue) {
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
        assert!((part - 0.75).abs() < 0.02, "{part}: the other's part goes to no tenant");
        assert!(alone.wasted > 20_000_000);
    }

    #[test]
    fn a_tenant_without_queues_on_the_core_has_no_part_of_it() {
        let mut policy = FairNic::new();
        for tenant in 0..4 {
            policy.configure(TenantId(tenant), Share::default());
        }
        let idle = Client { start: u64::MAX, ..Client::flood(1, 1, 1_000) };
        let mut driver = Driver::new(policy, &[Client::flood(0, 0, 1_000), idle]);
        driver.run(100_000_000);
        let part = driver.time_of(0, 10_000_000) as f64 / 9e7;
        assert!((part - 0.5).abs() < 0.02, "{part}: two of four are here");
        driver.dispatcher.cancel(Nanos(driver.now), QueueId { tenant: TenantId(1), index: 1 });
        driver.run(200_000_000);
        let part = driver.time_of(0, 110_000_000) as f64 / 9e7;
        assert!(part > 0.98, "{part}: the other's queue has moved to another core");
    }
}
