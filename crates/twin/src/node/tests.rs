use softdpu_sched::{BackEnd, DeferredWork, Fcfs, LatencyClass, Preemption, Weighted, WorkKind};

use super::*;

mod balance;

const MILLI: u64 = 1_000_000;

fn queue(tenant: u16, index: u32, capacity: usize) -> QueuePlan {
    let id = QueueId { tenant: TenantId(tenant), index };
    QueuePlan { id, core: 0, placement: Placement::default(), capacity, station: None, deferred: None }
}

fn source(arrivals: Arrivals, unit: u64, queue: usize) -> Source {
    Source { arrivals, start: 0, bytes: 1_000, service: Service { unit, byte: 0, spread: 0 }, queues: vec![queue] }
}

fn flood(unit: u64, queue: usize) -> Source {
    source(Arrivals::Closed { depth: 200, think: 1 }, unit, queue)
}

fn run<S: TenantScheduler>(plan: Plan, policy: impl Fn() -> S, until: u64) -> Node<S, Tally> {
    let tenants = plan.queues.iter().map(|queue| queue.id.tenant.0 + 1).max().unwrap_or(0);
    let mut node = Node::new(plan, |_| policy(), Tally::new(tenants.into(), 0), 1);
    node.run(until);
    node
}

#[test]
fn a_core_does_what_it_has_time_for() {
    let plan = Plan { cores: 1, queues: vec![queue(0, 0, 1_000)], sources: vec![flood(1_000, 0)], ..Plan::default() };
    let node = run(plan, Fcfs::new, 10 * MILLI);
    let done = node.watch.tenants[0].latency.count();
    assert!((9_900..=10_000).contains(&done), "{done}");
}

#[test]
fn going_from_one_tenant_to_another_costs_a_switch_and_deciding_its_time() {
    let plan = |switch, decision| Plan {
        cores: 1,
        queues: vec![queue(0, 0, 1_000), queue(1, 1, 1_000)],
        sources: vec![flood(1_000, 0), flood(1_000, 1)],
        switch,
        decision,
        ..Plan::default()
    };
    let done = |plan| {
        let node = run(plan, Weighted::default, 20 * MILLI);
        let counts = node.watch.tenants.iter().map(|tenant| tenant.latency.count());
        (counts.sum::<u64>(), node.watch.decisions)
    };
    let ((free, none), (switching, _), (deciding, time)) =
        (done(plan(0, 0)), done(plan(4_000, 0)), done(plan(0, 4_000)));
    assert!(free > 19_800 && none == 0, "{free}");
    assert!(switching < free * 9 / 10, "{switching} of {free}");
    assert!(deciding < free * 95 / 100 && time > MILLI, "{deciding} of {free}, {time} ns");
}

#[test]
fn what_comes_to_a_full_queue_is_lost_and_counted() {
    let sources = vec![source(Arrivals::poisson(2e6), 1_000, 0)];
    let plan = Plan { cores: 1, queues: vec![queue(0, 0, 64)], sources, ..Plan::default() };
    let node = run(plan, Fcfs::new, 20 * MILLI);
    let tally = &node.watch.tenants[0];
    assert!(tally.dropped.abs_diff(20_000) < 1_000, "half of 40,000: {}", tally.dropped);
    let inside = tally.arrived - tally.dropped - tally.latency.count();
    assert!(inside <= 128, "{inside}: nothing is lost without being counted");
    assert!(tally.latency.quantile(1.0) <= 132_000, "64 in the queue, 64 in a grant");
}

#[test]
fn a_back_end_serves_as_many_at_once_as_it_has_servers_and_never_has_more_than_its_depth() {
    let mut disk = queue(0, 0, 1_000);
    disk.station = Some(0);
    disk.placement = Placement { back_end: Some(BackEnd { index: 0, depth: 8 }), kind: WorkKind::Requests, device: 0 };
    let stations = vec![Station { servers: 4, service: 10_000, spread: 0 }];
    let plan = Plan { cores: 1, queues: vec![disk], sources: vec![flood(100, 0)], stations, ..Plan::default() };
    let node = run(plan, Weighted::default, 10 * MILLI);
    let done = node.watch.tenants[0].latency.count();
    assert!((3_900..=4_000).contains(&done), "four in each 10 us: {done}");
    assert!(node.most_at(0) <= 8);
}

#[test]
fn a_station_that_stalls_ends_nothing_and_then_goes_on() {
    let mut disk = queue(0, 0, 1_000);
    disk.station = Some(0);
    let stations = vec![Station { servers: 1, service: 10_000, spread: 0 }];
    let plan = Plan { cores: 1, queues: vec![disk], sources: vec![flood(100, 0)], stations, ..Plan::default() };
    let mut node = Node::new(plan, |_| Fcfs::new(), Tally::new(1, 0), 1);
    node.plan_fault(2 * MILLI, Fault::Stall { station: 0, lasts: 3 * MILLI });
    node.run(10 * MILLI);
    let done = node.watch.tenants[0].latency.count();
    assert!((690..=702).contains(&done), "7 of 10 ms: {done}");
}

#[test]
fn a_queue_that_moves_takes_along_what_waits() {
    let queues = vec![queue(0, 0, 10_000)];
    let sources = vec![source(Arrivals::Trace(vec![0; 1_000].into()), 1_000, 0)];
    let plan = Plan { cores: 2, queues, sources, ..Plan::default() };
    let mut node = Node::new(plan, |_| Fcfs::new(), Tally::new(1, 0), 1);
    node.plan_fault(MILLI / 2, Fault::Move { queue: 0, core: 1 });
    node.run(2 * MILLI);
    assert_eq!(node.watch.tenants[0].latency.count(), 1_000);
    assert_eq!(node.queues()[0].units(), 0);
}

/// The longest that a tenant's packet was there beside a flood of another, nanoseconds.
fn longest_beside_a_flood<S: TenantScheduler>(class: LatencyClass, policy: impl Fn() -> S) -> u64 {
    let sources = vec![flood(1_000, 0), source(Arrivals::Paced(301_000 << 10), 1_000, 1)];
    let shares = vec![Share::default(), Share { class, ..Share::default() }];
    let queues = vec![queue(0, 0, 1_000), queue(1, 1, 1_000)];
    let mut node = Node::new(
        Plan { cores: 1, queues, sources, shares, ..Plan::default() },
        |_| policy(),
        Tally::new(2, 2 * MILLI),
        1,
    );
    node.run(40 * MILLI);
    assert!(node.watch.tenants[0].latency.count() > 37_000, "the flood has the rest");
    node.watch.tenants[1].latency.quantile(1.0)
}

#[test]
fn a_grant_ends_for_those_whom_the_policy_lets_go_before_the_rest_of_it() {
    // The flood's grants are 32 us: after 8 us they look, and a unit is 1 us.
    let normal = longest_beside_a_flood(LatencyClass::Normal, Weighted::default);
    assert!(normal <= 10_200, "{normal} ns");
    // One of the first class is seen after each unit.
    let first = longest_beside_a_flood(LatencyClass::Latency, Weighted::default);
    assert!(first <= 2_200, "{first} ns");
    let stays = || crate::explore::broken::Broken::new(crate::explore::broken::How::Stays);
    let whole = longest_beside_a_flood(LatencyClass::Normal, stays);
    assert!(whole > 24_000, "{whole} ns where no grant ends before its time");
}

#[test]
fn what_comes_within_a_turn_is_seen_when_it_is_over() {
    /// Grants of one unit, and turns of 6 us.
    #[derive(Default)]
    struct Turns(VecDeque<softdpu_sched::Grant>);
    impl DeferredWork for Turns {}
    impl Preemption for Turns {
        fn turn(&self, _: Nanos) -> Nanos {
            Nanos(6_000)
        }
    }
    impl TenantScheduler for Turns {
        fn configure(&mut self, _: TenantId, _: Share) {}
        fn ready(&mut self, _: Nanos, queue: QueueId, work: softdpu_sched::Work) {
            self.0.extend((0..work.units).map(|_| softdpu_sched::Grant { queue, units: 1 }));
        }
        fn decide(&mut self, _: Nanos) -> softdpu_sched::Decision {
            self.0.pop_front().map_or(softdpu_sched::Decision::Idle, softdpu_sched::Decision::Run)
        }
        fn charge(&mut self, _: Nanos, _: softdpu_sched::Grant, _: softdpu_sched::Cost) {}
        fn cancel(&mut self, _: Nanos, _: QueueId) {}
    }
    struct Looks(Vec<u64>);
    impl<S> Watch<S> for Looks {
        fn polled(&mut self, now: u64, _core: usize, _turn: Nanos) {
            self.0.push(now);
        }
    }
    let mut came = vec![0; 10];
    came.push(2_500);
    let sources = vec![source(Arrivals::Trace(came.into()), 1_000, 0)];
    let plan = Plan { cores: 1, queues: vec![queue(0, 0, 64)], sources, ..Plan::default() };
    let mut node = Node::new(plan, |_| Turns::default(), Looks(Vec::new()), 1);
    node.run(20_000);
    // The first unit alone; the nine that came while it ran, of which six are a turn; the others with the one that came
    // in it.
    assert_eq!(node.watch.0, [0, 1_000, 7_000]);
}

#[test]
fn a_seed_gives_the_same_run_and_another_seed_another() {
    let outcome = |seed| {
        let sources = vec![source(Arrivals::poisson(900_000.0), 1_000, 0)];
        let plan = Plan { cores: 1, queues: vec![queue(0, 0, 1_000)], sources, ..Plan::default() };
        let mut node = Node::new(plan, |_| Fcfs::new(), Tally::new(1, 0), seed);
        node.run(5 * MILLI);
        let tally = &node.watch.tenants[0];
        (tally.arrived, tally.time, tally.latency.mean().to_bits())
    };
    assert_eq!(outcome(1), outcome(1));
    assert_ne!(outcome(1), outcome(2));
}

/// M/M/1 would need exponential service; with a constant one it is M/D/1, whose mean wait is known (Pollaczek and
/// Khinchine).
#[test]
fn the_mean_wait_is_the_textbooks() {
    let sources = vec![source(Arrivals::poisson(500_000.0), 1_000, 0)];
    let plan = Plan { cores: 1, queues: vec![queue(0, 0, 10_000)], sources, ..Plan::default() };
    // One at a time, as the textbook's server.
    struct OneByOne(Fcfs, std::collections::VecDeque<softdpu_sched::Grant>);
    impl Preemption for OneByOne {}
    impl DeferredWork for OneByOne {}
    impl TenantScheduler for OneByOne {
        fn configure(&mut self, _: TenantId, _: Share) {}
        fn ready(&mut self, _: Nanos, queue: QueueId, work: softdpu_sched::Work) {
            self.1.extend((0..work.units).map(|_| softdpu_sched::Grant { queue, units: 1 }));
        }
        fn decide(&mut self, _: Nanos) -> softdpu_sched::Decision {
            self.1.pop_front().map_or(softdpu_sched::Decision::Idle, softdpu_sched::Decision::Run)
        }
        fn charge(&mut self, now: Nanos, grant: softdpu_sched::Grant, cost: softdpu_sched::Cost) {
            self.0.charge(now, grant, cost);
        }
        fn cancel(&mut self, _: Nanos, _: QueueId) {}
    }
    let node = run(plan, || OneByOne(Fcfs::new(), Default::default()), 200 * MILLI);
    // Service 1 µs, and ρ/(2(1-ρ)) of it in line: 1.5 µs at ρ = 0.5.
    let mean = node.watch.tenants[0].latency.mean();
    assert!((mean / 1_500.0 - 1.0).abs() < 0.02, "{mean}");
}
