//! iPipe's hybrid scheduler (Liu et al., SIGCOMM 2019), as MTDA describes and measures it (MTDA §I, §V-C, §V-E): first
//! come, first served, and deficit round robin for tenants whose tail latency is beyond a threshold, at the cost of
//! moving them.
//!
//! A tenant here is what an actor is in iPipe. iPipe has cores for each of the two groups; here a core serves both, by
//! turns in proportion to the tenants of each group that have queues on it. No work moves to the host.

use std::collections::VecDeque;

use crate::attached::AttachedQueues;
use crate::fifo::Fifo;
use crate::{
    Cost, Decision, DeferredWork, Fcfs, Grant, Nanos, Placement, Preemption, QueueId, Share, TenantId, TenantScheduler,
    Work,
};

/// iPipe's thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// A tenant with a longer tail latency moves to the round robin.
    pub tail: Nanos,
    /// A tenant in the round robin moves back when its tail is below so many hundredths of that.
    pub back: u64,
    /// For how long a tenant that moves is not served: the cost of moving its state and requests.
    pub migration: Nanos,
    /// The quantum of the round robin: cost per turn.
    pub quantum: Nanos,
}

impl Default for Thresholds {
    fn default() -> Self {
        let micro = |n| Nanos(n * Nanos::MICRO.0);
        Thresholds { tail: micro(100), back: 80, migration: micro(40), quantum: micro(10) }
    }
}

#[derive(Debug, Default)]
struct Tenant {
    /// Its requests, while it is in the round robin.
    channel: Fifo,
    in_round_robin: bool,
    /// It is in the round robin's active list.
    is_active: bool,
    /// The deficit counter, nanoseconds (Shreedhar and Varghese 1995).
    deficit: i64,
    /// Moving averages of latency, from ready to charged, nanoseconds.
    mean: u64,
    deviation: u64,
    samples: u32,
    moving_until: Nanos,
}

impl Tenant {
    /// The tail latency: the mean and three deviations, as iPipe estimates it.
    fn tail(&self) -> u64 {
        self.mean + 3 * self.deviation
    }

    fn observe(&mut self, latency: u64) {
        self.samples = self.samples.saturating_add(1);
        if self.samples == 1 {
            self.mean = latency;
            return;
        }
        let off = self.mean.abs_diff(latency);
        self.mean = self.mean - self.mean / 8 + latency / 8;
        self.deviation = self.deviation - self.deviation / 8 + off / 8;
    }
}

/// iPipe's scheduler, see the [module](self).
#[derive(Debug)]
pub struct Ipipe {
    thresholds: Thresholds,
    tenants: Vec<Tenant>,
    attached: AttachedQueues,
    fifo: Fifo,
    /// The active list of the round robin.
    active: VecDeque<usize>,
    /// Core time of each group (FIFO, round robin) per tenant of it. The group with less is next.
    served: [u64; 2],
    running: Option<(usize, Nanos, bool)>,
    /// Tenants of each group that have queues on the core.
    members: [u64; 2],
    /// Until when any tenant moves.
    moving_until: Nanos,
}

/// Samples of a tenant's latency before it may move.
const SAMPLES: u32 = 32;

impl Ipipe {
    /// A scheduler without tenants.
    pub fn new(thresholds: Thresholds) -> Ipipe {
        Ipipe {
            thresholds,
            tenants: Vec::new(),
            attached: AttachedQueues::default(),
            fifo: Fifo::default(),
            active: VecDeque::new(),
            served: [0; 2],
            running: None,
            members: [0; 2],
            moving_until: Nanos(0),
        }
    }

    /// Whether a tenant is in the round robin.
    pub fn is_in_round_robin(&self, tenant: TenantId) -> bool {
        self.tenants.get(usize::from(tenant.0)).is_some_and(|tenant| tenant.in_round_robin)
    }

    fn index_of(&mut self, tenant: TenantId) -> usize {
        let index = usize::from(tenant.0);
        if self.tenants.len() <= index {
            self.tenants.resize_with(index + 1, Tenant::default);
        }
        index
    }

    fn attach(&mut self, queue: QueueId) -> usize {
        let index = self.index_of(queue.tenant);
        if self.attached.attach(queue) {
            self.members[usize::from(self.tenants[index].in_round_robin)] += 1;
        }
        index
    }

    /// The next grant of the FIFO. A tenant that moves is not served and does not hold up others.
    fn pop_fifo(&mut self, now: Nanos) -> Option<(Grant, Nanos)> {
        if now >= self.moving_until {
            return self.fifo.pop(Fcfs::BATCH);
        }
        let Ipipe { fifo, tenants, .. } = self;
        fifo.pop_of(Fcfs::BATCH, |queue| tenants[usize::from(queue.tenant.0)].moving_until <= now)
    }

    fn activate(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        if !tenant.is_active && tenant.channel.waiting() > 0 {
            tenant.is_active = true;
            self.active.push_back(index);
        }
    }

    /// The next grant of the deficit round robin.
    fn pop_round_robin(&mut self, now: Nanos) -> Option<(Grant, Nanos)> {
        // A debt is paid at a quantum a turn, for four turns at the most. Then the first tenant is served whatever it
        // owes.
        for _ in 0..self.active.len() * 4 {
            let index = *self.active.front()?;
            let tenant = &mut self.tenants[index];
            if tenant.channel.waiting() == 0 {
                tenant.is_active = false;
                tenant.deficit = tenant.deficit.min(0);
                self.active.pop_front();
                continue;
            }
            if tenant.moving_until > now || tenant.deficit <= 0 {
                if tenant.moving_until <= now {
                    tenant.deficit += self.thresholds.quantum.0 as i64;
                }
                self.active.rotate_left(1);
                continue;
            }
            return tenant.channel.pop(Fcfs::BATCH / 8);
        }
        let index = self.active.iter().copied().find(|&index| self.tenants[index].moving_until <= now)?;
        self.tenants[index].channel.pop(Fcfs::BATCH / 8)
    }

    /// Moves a tenant to the other group where its tail latency says so.
    fn migrate_by_tail(&mut self, now: Nanos, index: usize) {
        let Thresholds { tail, back, migration, .. } = self.thresholds;
        let tenant = &mut self.tenants[index];
        if tenant.samples < SAMPLES {
            return;
        }
        let moves = if tenant.in_round_robin { tenant.tail() < tail.0 / 100 * back } else { tenant.tail() > tail.0 };
        if !moves {
            return;
        }
        tenant.in_round_robin = !tenant.in_round_robin;
        tenant.moving_until = now + migration;
        self.moving_until = tenant.moving_until;
        (tenant.samples, tenant.deviation) = (0, 0);
        // What it has in the FIFO stays there and is served there; new work goes to its new group.
        if self.attached.has(index) {
            let to = usize::from(tenant.in_round_robin);
            self.members[to] += 1;
            self.members[1 - to] -= 1;
        }
    }
}

impl Preemption for Ipipe {}
impl DeferredWork for Ipipe {}

impl TenantScheduler for Ipipe {
    /// iPipe has no weights.
    fn configure(&mut self, tenant: TenantId, _share: Share) {
        self.index_of(tenant);
    }

    fn place(&mut self, queue: QueueId, _placement: Placement) {
        self.attach(queue);
    }

    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        let index = self.attach(queue);
        if self.tenants[index].in_round_robin {
            self.tenants[index].channel.push(now, queue, work.units);
            self.activate(index);
        } else {
            self.fifo.push(now, queue, work.units);
        }
    }

    fn decide(&mut self, now: Nanos) -> Decision {
        self.running = None;
        let first = usize::from(self.served[1] < self.served[0]);
        for group in [first, 1 - first] {
            let found = if group == 0 { self.pop_fifo(now) } else { self.pop_round_robin(now) };
            if let Some((grant, since)) = found {
                self.running = Some((usize::from(grant.queue.tenant.0), since, group == 1));
                return Decision::Run(grant);
            }
            // A group without work saves nothing up.
            self.served[group] = self.served[group].max(self.served[1 - group]);
        }
        // All that is left is of tenants that move.
        let moving =
            self.active.iter().map(|&index| &self.tenants[index]).filter(|tenant| tenant.channel.waiting() > 0);
        let at = moving.map(|tenant| tenant.moving_until).min();
        let in_fifo = (self.fifo.waiting() > 0)
            .then_some(())
            .and_then(|()| self.tenants.iter().map(|tenant| tenant.moving_until).filter(|until| *until > now).min());
        at.into_iter().chain(in_fifo).min().map_or(Decision::Idle, |at| Decision::IdleUntil(at.max(now)))
    }

    fn charge(&mut self, now: Nanos, _grant: Grant, cost: Cost) {
        let Some((index, since, by_turns)) = self.running.take() else { return };
        let members = self.members[usize::from(by_turns)];
        let served = &mut self.served[usize::from(by_turns)];
        *served = served.saturating_add(cost.time.0 / members.max(1));
        let tenant = &mut self.tenants[index];
        if by_turns {
            tenant.deficit = tenant.deficit.saturating_sub_unsigned(cost.time.0);
            if tenant.deficit <= 0 && self.active.front() == Some(&index) {
                self.active.rotate_left(1);
            }
        }
        tenant.observe(now.since(since).0);
        self.migrate_by_tail(now, index);
    }

    fn cancel(&mut self, _now: Nanos, queue: QueueId) {
        self.fifo.cancel(queue);
        let index = self.index_of(queue.tenant);
        self.tenants[index].channel.cancel(queue);
        if self.attached.detach(queue) {
            self.members[usize::from(self.tenants[index].in_round_robin)] -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Arrivals, Client, Driver};

    #[test]
    fn a_tenant_with_a_long_tail_goes_to_the_round_robin_and_pays_for_the_move() {
        let flood = Client::new(0, 0, 2_000, Arrivals::Closed { depth: 128, think: 0 });
        let light = Client::new(1, 1, 2_000, Arrivals::Open { units: 1, every: 200_000 });
        let mut driver = Driver::new(Ipipe::new(Thresholds::default()), &[flood, light]);
        driver.run(100_000_000);
        assert!(driver.dispatcher.policy().is_in_round_robin(TenantId(0)));
        let waited = driver.longest_wait(1, 50_000_000);
        assert!(waited < 150_000, "{waited} ns beside a flood whose FIFO takes 256,000");
        assert!(driver.units_of(1, 0) >= 495);
    }

    #[test]
    fn a_tenant_that_moves_is_not_served_meanwhile_whichever_way_it_goes() {
        let mut policy = Ipipe::new(Thresholds::default());
        let migration = Thresholds::default().migration;
        let [queue, other] = [0, 1].map(|index| QueueId { tenant: TenantId(0), index });
        let one = Work { units: 1, bytes: 0 };
        let mut now = Nanos(0);
        for (waits, goes) in [(Nanos::MILLI, true), (Nanos(0), false)] {
            // A request a millisecond, until it is judged by them. One of another queue of it is left wherever it was.
            while policy.is_in_round_robin(TenantId(0)) != goes {
                let (came, ran) = (now + Nanos::MILLI, now + Nanos::MILLI + waits);
                policy.ready(came, queue, one);
                let Decision::Run(grant) = policy.decide(ran) else { panic!("it has work at {ran:?}") };
                assert_eq!(grant.queue, queue);
                policy.ready(ran, other, one);
                policy.charge(ran, grant, Cost { units: 1, time: Nanos(1_000), ..Cost::default() });
                if policy.is_in_round_robin(TenantId(0)) != goes {
                    assert!(matches!(policy.decide(ran), Decision::Run(grant) if grant.queue == other));
                }
                now = ran;
            }
            policy.ready(now, queue, one);
            assert_eq!(policy.decide(now), Decision::IdleUntil(now + migration), "to the round robin: {goes}");
            assert_eq!(policy.decide(Nanos(now.0 + migration.0 - 1)), Decision::IdleUntil(now + migration));
            now = now + migration;
            let mut left = vec![queue, other];
            while let Decision::Run(grant) = policy.decide(now) {
                left.retain(|queue| *queue != grant.queue);
            }
            assert!(left.is_empty(), "{left:?}");
        }
    }

    #[test]
    fn tenants_without_queues_on_the_core_do_not_count_for_the_fifo() {
        let flood = |tenant: u16| Client::new(tenant, tenant.into(), 2_000, Arrivals::Closed { depth: 128, think: 0 });
        let mut policy = Ipipe::new(Thresholds { back: 0, ..Thresholds::default() });
        for tenant in 0..50 {
            policy.configure(TenantId(tenant), Share::default());
        }
        let mut driver = Driver::new(policy, &[flood(0), flood(1)]);
        driver.run(10_000_000);
        assert_eq!(driver.dispatcher.policy().members, [0, 2]);
        driver.dispatcher.cancel(Nanos(driver.now), QueueId { tenant: TenantId(1), index: 1 });
        assert_eq!(driver.dispatcher.policy().members, [0, 1]);
    }

    #[test]
    fn where_no_tenant_waits_long_it_is_first_come_first_served() {
        let clients: Vec<Client> =
            (0..4).map(|at| Client::new(at, at.into(), 1_000, Arrivals::Open { units: 1, every: 10_000 })).collect();
        let mut driver = Driver::new(Ipipe::new(Thresholds::default()), &clients);
        driver.run(10_000_000);
        assert!((0..4).all(|tenant| !driver.dispatcher.policy().is_in_round_robin(TenantId(tenant))));
        assert_eq!(driver.wasted, 0);
    }
}
