//! A node that is balanced as a daemon's control thread does it: now and then the balancer is asked with what each
//! queue had of its core, queues move, and each core counts its part of the tenants' weights.

use std::collections::BTreeMap;

use softdpu_sched::{Balancer, Hysteresis, Move, QueueLoad, WeightPart, Weighted, weights_on_core};

use super::*;

/// Between two questions: a second of a daemon's.
const PERIOD: u64 = 20 * MILLI;
/// What a unit takes.
const UNIT: u64 = 20_000;

/// Core time by queue.
struct Times(Vec<u64>);

impl<S> Watch<S> for Times {
    fn ran(&mut self, ran: &Ran) {
        self.0[ran.grant.queue.index as usize] += ran.end - ran.start;
    }
}

struct Balanced {
    node: Node<Weighted, Times>,
    balancer: Balancer,
    weights: Vec<u32>,
    /// The cores' parts of them, as far as they are not what they were at first.
    on_cores: BTreeMap<(usize, usize), u32>,
    /// What queues had at the last question.
    before: Vec<u64>,
    fixed: Vec<usize>,
}

impl Balanced {
    /// A node of queues as `(tenant, core)`, each with a source.
    fn new(cores: usize, weights: &[u32], queues: &[(u16, usize)], arrivals: impl Fn(u16) -> Arrivals) -> Balanced {
        let plan_of = |(index, &(tenant, core)): (usize, &(u16, usize))| {
            let placement = Placement { device: tenant.into(), ..Placement::default() };
            QueuePlan { core, placement, ..queue(tenant, index as u32, 64) }
        };
        let service = Service { unit: UNIT, byte: 0, spread: 25 };
        let source_of = |(index, &(tenant, _)): (usize, &(u16, usize))| Source {
            service,
            start: index as u64 * 131,
            ..source(arrivals(tenant), UNIT, index)
        };
        let plan = Plan {
            cores,
            shares: weights.iter().map(|weight| Share { weight: *weight, ..Share::default() }).collect(),
            queues: queues.iter().enumerate().map(plan_of).collect(),
            sources: queues.iter().enumerate().map(source_of).collect(),
            ..Plan::default()
        };
        let balancer = Balancer::new(Hysteresis { dwell: Nanos(PERIOD), ..Balancer::HYSTERESIS });
        let mut balanced = Balanced {
            node: Node::new(plan, |_| Weighted::default(), Times(vec![0; queues.len()]), 1),
            balancer,
            weights: weights.to_vec(),
            on_cores: BTreeMap::new(),
            before: vec![0; queues.len()],
            fixed: Vec::new(),
        };
        balanced.divide_weights();
        balanced
    }

    /// A period, and the question after it. How many queues moved.
    fn period(&mut self) -> usize {
        let now = self.node.now() + PERIOD;
        self.node.run(now);
        let load = |(index, queue): (usize, &Queue)| {
            let load = (self.node.watch.0[index] - self.before[index]) * 1_000 / PERIOD;
            let is_fixed = self.fixed.contains(&index);
            QueueLoad { queue: queue.plan.id, core: queue.plan.core, load: load.min(1_000) as u32, is_fixed }
        };
        let loads: Vec<QueueLoad> = self.node.queues().iter().enumerate().map(load).collect();
        self.before.clone_from(&self.node.watch.0);
        let share = |tenant: TenantId| Share { weight: self.weights[usize::from(tenant.0)], ..Share::default() };
        let moves = self.balancer.plan(Nanos(now), self.node.cores.len(), &loads, share);
        for Move { queue, to } in &moves {
            self.node.relocate(queue.index as usize, *to);
        }
        if !moves.is_empty() {
            self.divide_weights();
        }
        moves.len()
    }

    /// Configures each core with its parts of the weights of the tenants that it serves.
    fn divide_weights(&mut self) {
        let mut counts = vec![BTreeMap::<usize, u32>::new(); self.node.cores.len()];
        let mut all = vec![0; self.weights.len()];
        for queue in self.node.queues() {
            let tenant = usize::from(queue.plan.id.tenant.0);
            *counts[queue.plan.core].entry(tenant).or_default() += 1;
            all[tenant] += 1;
        }
        for (core, here) in counts.into_iter().enumerate() {
            let part =
                |(&tenant, &here): (&usize, &u32)| WeightPart { weight: self.weights[tenant], here, all: all[tenant] };
            let parts: Vec<WeightPart> = here.iter().map(part).collect();
            for (tenant, weight) in here.into_keys().zip(weights_on_core(&parts)) {
                if self.on_cores.insert((core, tenant), weight) != Some(weight) {
                    let share = Share { weight, ..Share::default() };
                    self.node.cores[core].dispatcher.configure(TenantId(tenant as u16), share);
                }
            }
        }
    }

    fn time_of(&self, tenant: u16) -> u64 {
        let of = |queue: &&Queue| queue.plan.id.tenant.0 == tenant;
        self.node.queues().iter().filter(of).map(|queue| self.node.watch.0[queue.plan.id.index as usize]).sum()
    }
}

fn floods(_: u16) -> Arrivals {
    Arrivals::Closed { depth: 40, think: 1 }
}

/// `tenants` with `each` queues, all on the first `on` cores.
fn queues(tenants: u16, each: usize, on: usize) -> Vec<(u16, usize)> {
    (0..usize::from(tenants) * each).map(|at| ((at / each) as u16, at * 7 % on)).collect()
}

/// Lets the node settle, and then no queue move. The time that each tenant has had since.
fn settled(node: &mut Balanced, periods: usize, counted: usize) -> Vec<u64> {
    for _ in 0..periods {
        node.period();
    }
    let before: Vec<u64> = (0..node.weights.len()).map(|tenant| node.time_of(tenant as u16)).collect();
    for period in 0..counted {
        let moved = node.period();
        assert_eq!(moved, 0, "queues still move {period} periods after {periods}");
    }
    (0..).zip(before).map(|(tenant, before)| node.time_of(tenant) - before).collect()
}

#[test]
fn a_busy_tenant_beside_idle_ones_has_two_cores() {
    for (cores, idle) in [(2, 1), (2, 200), (8, 300)] {
        // The idle ones have a hundredth of a core together, and every queue begins on the first core.
        let mut all = vec![(0, 0); 2 * cores];
        all.extend((1..=idle).map(|tenant| (tenant, 0)));
        let arrivals = |tenant: u16| if tenant == 0 { floods(0) } else { Arrivals::poisson(500.0 / f64::from(idle)) };
        let mut node = Balanced::new(cores, &vec![1; usize::from(idle) + 1], &all, arrivals);
        for _ in 0..20 {
            node.period();
        }
        let before = node.time_of(0);
        for _ in 0..20 {
            node.period();
        }
        let rate = (node.time_of(0) - before) as f64 / (20 * PERIOD) as f64;
        assert!(rate >= 0.9 * cores as f64, "{rate:.2} of {cores} cores, {idle} idle tenants");
    }
}

#[test]
fn a_fixed_queue_takes_no_cores_from_a_busy_tenant() {
    let mut node = Balanced::new(2, &[1, 1], &[(0, 0), (1, 1), (1, 1), (1, 1), (1, 1)], |tenant| match tenant {
        0 => Arrivals::poisson(50.0),
        _ => floods(tenant),
    });
    node.fixed.push(0);
    let had = settled(&mut node, 20, 20);
    assert!(had[1] >= 36 * PERIOD, "{had:?} of {PERIOD} ns, 20 times");
}

#[test]
fn shares_follow_weights_on_many_cores_wherever_queues_begin() {
    // Of fewer queues than cores; of more; of other numbers of queues.
    for (cores, tenants, each, on) in [(8, 200, 3, 1), (64, 300, 8, 16), (96, 300, 8, 96)] {
        let weights: Vec<u32> = (0..tenants).map(|tenant| 1 + u32::from(tenant) % 4).collect();
        let mut node = Balanced::new(cores, &weights, &queues(tenants, each, on), floods);
        // As many periods as it takes to move all.
        let periods = 25 + usize::from(tenants) * each / (2 * cores);
        // The fewer cores, the longer: what each of so many tenants is ahead or behind is not to count.
        let counted = 20.max(640 / cores);
        let had = settled(&mut node, periods, counted);
        let all: u64 = had.iter().sum();
        assert!(all >= (cores * counted) as u64 * PERIOD * 95 / 100, "cores idle: {all} ns");
        let weight: u32 = weights.iter().sum();
        let part = |(had, own): (&u64, &u32)| *had as f64 / all as f64 * f64::from(weight) / f64::from(*own);
        let mut parts: Vec<(f64, usize)> = had.iter().zip(&weights).map(part).zip(0..).collect();
        parts.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (least, most) = (parts[0], parts[parts.len() - 1]);
        assert!(
            least.0 >= 0.95 && most.0 <= 1.05,
            "of {cores} cores tenant {} has {:.3} of its share, tenant {} {:.3}",
            least.1,
            least.0,
            most.1,
            most.0
        );
    }
}
