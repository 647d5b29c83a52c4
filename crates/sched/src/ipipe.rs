//! iPipe's hybrid scheduler (Liu et al., SIGCOMM 2019), as MTDA describes and measures it (MTDA §I, §V-C, §V-E): first come, first
//! served, and deficit round robin for tenants whose tail latency is beyond a threshold, at the cost of moving them.
//!
//! Here a tenant is what an actor is there. A core has both groups and takes turns between them in time, in proportion to the
//! tenants in each that have queues on it, where iPipe has cores for one and cores for the other; it does not move work to the host.

use std::collections::VecDeque;

use crate::here::Here;
use crate::line::Line;
use crate::{Cost, Decision, Fcfs, Grant, Nanos, Placement, QueueId, Share, TenantId, TenantScheduler, Work};

/// iPipe's thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// A tenant whose tail latency is beyond this goes to the round robin.
    pub tail: Nanos,
    /// One in the round robin whose tail is below so many hundredths of it comes back.
    pub back: u64,
    /// For how long a tenant that moves is not served: what it costs to take its state and requests along.
    pub migration: Nanos,
    /// Cost per turn of the round robin.
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
    /// Its requests while it is in the round robin; and while it is not, none.
    channel: Line,
    in_round_robin: bool,
    /// In the round robin's line.
    is_queued: bool,
    credit: i64,
    /// Of what it waited for and what it took, moving averages, nanoseconds.
    mean: u64,
    deviation: u64,
    seen: u32,
    moving_until: Nanos,
}

impl Tenant {
    /// The tail is taken to be the mean and three deviations, as iPipe does.
    fn tail(&self) -> u64 {
        self.mean + 3 * self.deviation
    }

    fn saw(&mut self, latency: u64) {
        self.seen = self.seen.saturating_add(1);
        if self.seen == 1 {
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
    here: Here,
    line: Line,
    round: VecDeque<usize>,
    /// What the groups had of the core, over the tenants in each: the lesser is next.
    had: [u64; 2],
    running: Option<(usize, Nanos, bool)>,
    /// Tenants with queues here: in the line, and in the round robin.
    members: [u64; 2],
    /// Until when somebody moves.
    moving_until: Nanos,
}

/// What a tenant's latency is judged by at the least.
const SAMPLES: u32 = 32;

impl Ipipe {
    /// A scheduler without tenants.
    pub fn new(thresholds: Thresholds) -> Ipipe {
        Ipipe {
            thresholds,
            tenants: Vec::new(),
            here: Here::default(),
            line: Line::default(),
            round: VecDeque::new(),
            had: [0; 2],
            running: None,
            members: [0; 2],
            moving_until: Nanos(0),
        }
    }

    /// Whether a tenant is in the round robin.
    pub fn is_in_round_robin(&self, tenant: TenantId) -> bool {
        self.tenants.get(usize::from(tenant.0)).is_some_and(|tenant| tenant.in_round_robin)
    }

    fn make(&mut self, tenant: TenantId) -> usize {
        let index = usize::from(tenant.0);
        if self.tenants.len() <= index {
            self.tenants.resize_with(index + 1, Tenant::default);
        }
        index
    }

    /// A queue is on the core.
    fn arrive(&mut self, queue: QueueId) -> usize {
        let index = self.make(queue.tenant);
        if self.here.arrive(queue) {
            self.members[usize::from(self.tenants[index].in_round_robin)] += 1;
        }
        index
    }

    /// The line's next grant: who moves is not served, and does not keep others waiting.
    fn first(&mut self, now: Nanos) -> Option<(Grant, Nanos)> {
        if now >= self.moving_until {
            return self.line.pop(Fcfs::BATCH);
        }
        let Ipipe { line, tenants, .. } = self;
        line.pop_of(Fcfs::BATCH, |queue| tenants[usize::from(queue.tenant.0)].moving_until <= now)
    }

    fn enter(&mut self, index: usize) {
        let tenant = &mut self.tenants[index];
        if !tenant.is_queued && tenant.channel.waiting() > 0 {
            tenant.is_queued = true;
            self.round.push_back(index);
        }
    }

    /// The round robin's next grant.
    fn turn(&mut self, now: Nanos) -> Option<(Grant, Nanos)> {
        // A debt is paid at a quantum a turn; so many turns at the most, then whoever is first.
        for _ in 0..self.round.len() * 4 {
            let index = *self.round.front()?;
            let tenant = &mut self.tenants[index];
            if tenant.channel.waiting() == 0 {
                tenant.is_queued = false;
                tenant.credit = tenant.credit.min(0);
                self.round.pop_front();
                continue;
            }
            if tenant.moving_until > now || tenant.credit <= 0 {
                if tenant.moving_until <= now {
                    tenant.credit += self.thresholds.quantum.0 as i64;
                }
                self.round.rotate_left(1);
                continue;
            }
            return tenant.channel.pop(Fcfs::BATCH / 8);
        }
        let index = self.round.iter().copied().find(|&index| self.tenants[index].moving_until <= now)?;
        self.tenants[index].channel.pop(Fcfs::BATCH / 8)
    }

    fn judge(&mut self, now: Nanos, index: usize) {
        let Thresholds { tail, back, migration, .. } = self.thresholds;
        let tenant = &mut self.tenants[index];
        if tenant.seen < SAMPLES {
            return;
        }
        let moves = if tenant.in_round_robin { tenant.tail() < tail.0 / 100 * back } else { tenant.tail() > tail.0 };
        if !moves {
            return;
        }
        tenant.in_round_robin = !tenant.in_round_robin;
        tenant.moving_until = now + migration;
        self.moving_until = tenant.moving_until;
        (tenant.seen, tenant.deviation) = (0, 0);
        // What it has in the line stays there and is served there; what comes goes where it is now.
        if self.here.has(index) {
            let to = usize::from(tenant.in_round_robin);
            self.members[to] += 1;
            self.members[1 - to] -= 1;
        }
    }
}

impl TenantScheduler for Ipipe {
    /// iPipe has no weights.
    fn configure(&mut self, tenant: TenantId, _share: Share) {
        self.make(tenant);
    }

    fn place(&mut self, queue: QueueId, _placement: Placement) {
        self.arrive(queue);
    }

    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        let index = self.arrive(queue);
        if self.tenants[index].in_round_robin {
            self.tenants[index].channel.push(now, queue, work.units);
            self.enter(index);
        } else {
            self.line.push(now, queue, work.units);
        }
    }

    fn decide(&mut self, now: Nanos) -> Decision {
        self.running = None;
        let first = usize::from(self.had[1] < self.had[0]);
        for group in [first, 1 - first] {
            let found = if group == 0 { self.first(now) } else { self.turn(now) };
            if let Some((grant, since)) = found {
                self.running = Some((usize::from(grant.queue.tenant.0), since, group == 1));
                return Decision::Run(grant);
            }
            // Who has no work saves nothing up.
            self.had[group] = self.had[group].max(self.had[1 - group]);
        }
        // What is left is of tenants that move.
        let moving = self.round.iter().map(|&index| &self.tenants[index]).filter(|tenant| tenant.channel.waiting() > 0);
        let at = moving.map(|tenant| tenant.moving_until).min();
        let in_line = (self.line.waiting() > 0)
            .then_some(())
            .and_then(|()| self.tenants.iter().map(|tenant| tenant.moving_until).filter(|until| *until > now).min());
        at.into_iter().chain(in_line).min().map_or(Decision::Idle, |at| Decision::IdleUntil(at.max(now)))
    }

    fn charge(&mut self, now: Nanos, _grant: Grant, cost: Cost) {
        let Some((index, since, by_turns)) = self.running.take() else { return };
        let members = self.members[usize::from(by_turns)];
        let had = &mut self.had[usize::from(by_turns)];
        *had = had.saturating_add(cost.time.0 / members.max(1));
        let tenant = &mut self.tenants[index];
        if by_turns {
            tenant.credit = tenant.credit.saturating_sub_unsigned(cost.time.0);
            if tenant.credit <= 0 && self.round.front() == Some(&index) {
                self.round.rotate_left(1);
            }
        }
        tenant.saw(now.since(since).0);
        self.judge(now, index);
    }

    fn complete(&mut self, _now: Nanos, _grant: Grant, _cost: Cost) {}

    fn cancel(&mut self, _now: Nanos, queue: QueueId) {
        self.line.cancel(queue);
        let index = self.make(queue.tenant);
        self.tenants[index].channel.cancel(queue);
        if self.here.depart(queue) {
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
        assert!(driver.policy.is_in_round_robin(TenantId(0)));
        let waited = driver.longest_wait(1, 50_000_000);
        assert!(waited < 150_000, "{waited} ns beside a flood whose line takes 256,000");
        assert!(driver.units_of(1, 0) >= 495);
    }

    #[test]
    fn who_moves_is_not_served_meanwhile_whichever_way_it_goes() {
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
    fn tenants_that_have_no_queue_here_do_not_count_for_the_line() {
        let flood = |tenant: u16| Client::new(tenant, tenant.into(), 2_000, Arrivals::Closed { depth: 128, think: 0 });
        let mut policy = Ipipe::new(Thresholds { back: 0, ..Thresholds::default() });
        for tenant in 0..50 {
            policy.configure(TenantId(tenant), Share::default());
        }
        let mut driver = Driver::new(policy, &[flood(0), flood(1)]);
        driver.run(10_000_000);
        assert_eq!(driver.policy.members, [0, 2]);
        driver.policy.cancel(Nanos(driver.now), QueueId { tenant: TenantId(1), index: 1 });
        assert_eq!(driver.policy.members, [0, 1]);
    }

    #[test]
    fn where_nobody_waits_long_it_is_first_come_first_served() {
        let clients: Vec<Client> =
            (0..4).map(|at| Client::new(at, at.into(), 1_000, Arrivals::Open { units: 1, every: 10_000 })).collect();
        let mut driver = Driver::new(Ipipe::new(Thresholds::default()), &clients);
        driver.run(10_000_000);
        assert!((0..4).all(|tenant| !driver.policy.is_in_round_robin(TenantId(tenant))));
        assert_eq!(driver.wasted, 0);
    }
}
