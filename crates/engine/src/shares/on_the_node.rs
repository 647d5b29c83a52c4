//! What is divided over cores holds for the node: schedulers that are told what [`Shares`] says, and queues that move
//! between them.

use proptest::prelude::*;
use softdpu_sched::{Cost, Decision, Nanos, Placement, QueueId, TenantScheduler, Weighted, Work};

use super::*;

const TENANT: TenantId = TenantId(0);
const CORES: usize = 3;
/// Between two measurements of the cores, nanoseconds.
const STEP: u64 = 20_000;

/// Cores that run a tenant's queues, which always have work.
struct Node {
    shares: Shares,
    cores: Vec<Weighted>,
    /// Where each queue is, and what of it was ready and has not run; none: it is stopped.
    queues: Vec<Option<(usize, u32)>>,
    now: u64,
    /// What ran, and when.
    ran: Vec<(u64, u32)>,
    /// Nanoseconds in which no queue ran, so that nothing could be had.
    stopped: u64,
}

/// What becomes of a queue: it comes or moves to a core, or it stops.
#[derive(Clone, Copy, Debug)]
enum Change {
    To(usize),
    Stop,
}

impl Node {
    fn new(share: Share, queues: usize) -> Node {
        let mut shares = Shares::new(CORES, false);
        shares.configure(TENANT, share, CORES);
        let cores = (0..CORES).map(|_| Weighted::default()).collect();
        let (queues, ran) = (vec![None; queues], Vec::new());
        let mut node = Node { shares, cores, queues, now: 1_000_000, ran, stopped: 0 };
        (0..node.queues.len()).for_each(|queue| node.change(queue, Change::To(0)));
        node
    }

    fn tell(&mut self) {
        for (core, tenant, share, _) in self.shares.divide(CORES) {
            self.cores[core.0].configure(tenant, share);
        }
    }

    fn change(&mut self, queue: usize, change: Change) {
        let from = self.queues[queue].map(|(core, _)| core);
        let to = match change {
            Change::To(core) => Some(core),
            Change::Stop => None,
        };
        if from == to {
            return;
        }
        if let Some(from) = from {
            self.cores[from].cancel(Nanos(self.now), id(queue));
        }
        if let Some(to) = to {
            self.cores[to].place(id(queue), Placement { device: queue as u32, ..Placement::default() });
        }
        self.queues[queue] = to.map(|core| (core, 0));
        match (from, to) {
            (Some(from), Some(to)) => self.shares.move_one(TENANT, CoreIndex(from), CoreIndex(to)),
            (Some(from), None) => self.shares.count(TENANT, CoreIndex(from), -1),
            (None, Some(to)) => self.shares.count(TENANT, CoreIndex(to), 1),
            (None, None) => false,
        };
        self.tell();
    }

    fn run(&mut self, time: u64) {
        let until = self.now + time;
        while self.now < until {
            self.now += STEP;
            if self.queues.iter().all(Option::is_none) {
                self.stopped += STEP;
            }
            let now = Nanos(self.now);
            let running = self.queues.iter_mut().enumerate();
            for (queue, (core, waiting)) in running.filter_map(|(queue, at)| at.as_mut().map(|at| (queue, at))) {
                self.cores[*core].ready(now, id(queue), Work { units: 64 - *waiting, bytes: 0 });
                *waiting = 64;
            }
            for core in &mut self.cores {
                // It takes no time, so that the core is never what there is too little of.
                while let Decision::Run(grant) = core.decide(now) {
                    core.charge(now, grant, Cost { units: grant.units, time: Nanos(100), ..Cost::default() });
                    let queue = self.queues[grant.queue.index as usize].as_mut();
                    let waiting = &mut queue.expect("a queue that is stopped has no grants").1;
                    *waiting -= grant.units;
                    core.ready(now, grant.queue, Work { units: 64 - *waiting, bytes: 0 });
                    *waiting = 64;
                    self.ran.push((self.now, grant.units));
                }
            }
        }
    }
}

fn id(queue: usize) -> QueueId {
    QueueId { tenant: TENANT, index: queue as u32 }
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![3 => (0..CORES).prop_map(Change::To), 1 => Just(Change::Stop)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Over every span of time, wherever the tenant's queues are and however often they come, go and move.
    #[test]
    fn a_limit_of_the_node_holds_on_its_cores_together(
        rate in 2_000_u64..200_000, burst in 30_u64..2_000, queues in 1_usize..4,
        changes in proptest::collection::vec((0_usize..3, change(), 50_000_u64..8_000_000), 1..16),
    ) {
        let limits = Limits { requests: Some(Rate { rate, burst }), ..Limits::default() };
        let mut node = Node::new(Share { limits, ..Share::default() }, queues);
        node.run(5_000_000);
        for (queue, change, time) in &changes {
            node.change(queue % queues, *change);
            node.run(*time);
        }
        // What each core has where the tenant is not: a request, at each change; and one in parts.
        let most = burst as f64 + 1.0 + 2.0 * changes.len() as f64 + CORES as f64;
        let (mut level, mut last) = (0.0_f64, 0);
        for &(at, units) in &node.ran {
            level = (level - (at - last) as f64 * rate as f64 / 1e9).max(0.0) + f64::from(units);
            last = at;
            prop_assert!(level <= most, "{level} beyond its rate at {at}, of {most}");
        }
        let (units, time) = (node.ran.iter().map(|(_, units)| f64::from(*units)).sum::<f64>(), node.now - 1_000_000 - node.stopped);
        // What the limit allows is had: only what a rate that is no multiple of the cores leaves is not.
        let due = 0.98 * rate as f64 * (time - STEP) as f64 / 1e9 - 2.0 * CORES as f64;
        prop_assert!(units >= due, "{units} of {due}");
    }
}
