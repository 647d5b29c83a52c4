//! A running node whose queues a balancer moves, as a daemon's control thread does: now and then it is asked with what
//! each queue had of its core.

use softdpu_sched::{Balancer, Hysteresis, Nanos, QueueLoad, Share, TenantId};

use super::run::Running;

/// See the [module](self).
pub(super) struct Balanced {
    node: Running,
    tenants: usize,
    balancer: Option<Balancer>,
    /// Core time of each queue at the last question, nanoseconds.
    before: Vec<u64>,
    moved: usize,
}

impl Balanced {
    pub fn new(node: Running, tenants: usize) -> Balanced {
        let before = vec![0; node.queues().len()];
        Balanced { node, tenants, balancer: None, before, moved: 0 }
    }

    /// Goes on for a time, nanoseconds.
    pub fn run(&mut self, span: u64) {
        let until = self.node.now() + span;
        self.node.run(until);
    }

    /// Asks the balancer with what queues had in the last `period` nanoseconds, and moves them. The first call makes
    /// the balancer: queues rest for a period, as they do for a second in a daemon.
    pub fn balance(&mut self, period: u64) {
        let hysteresis = Hysteresis { dwell: Nanos(period), ..Balancer::HYSTERESIS };
        let balancer = self.balancer.get_or_insert_with(|| Balancer::new(hysteresis));
        let had = |index: usize| self.node.watch.queues.get(index).copied().unwrap_or(0);
        let load = |(index, queue): (usize, &crate::node::Queue)| {
            let load = had(index).saturating_sub(self.before[index]) * 1_000 / period.max(1);
            QueueLoad { queue: queue.plan.id, core: queue.plan.core, load: load.min(1_000) as u32, is_fixed: false }
        };
        let loads: Vec<QueueLoad> = self.node.queues().iter().enumerate().map(load).collect();
        self.before = (0..loads.len()).map(had).collect();
        let moves = balancer.plan(Nanos(self.node.now()), super::setup::CORES, &loads, |_| Share::default());
        self.moved += moves.len();
        for to in &moves {
            self.node.move_queue(to.queue.index as usize, to.to);
        }
        if !moves.is_empty() {
            self.tell_cores();
        }
    }

    /// Tells every policy how many cores serve each tenant (CM_i), as an engine does when queues have moved.
    fn tell_cores(&mut self) {
        for tenant in 0..self.tenants {
            let tenant = TenantId(tenant as u16);
            let queues = self.node.queues().iter().filter(|queue| queue.plan.id.tenant == tenant);
            let mut cores: Vec<usize> = queues.map(|queue| queue.plan.core).collect();
            cores.sort_unstable();
            cores.dedup();
            self.node.configure(tenant, Share { cores: cores.len() as u16, ..Share::default() });
        }
    }

    /// How many queues have moved.
    pub fn moved(&self) -> usize {
        self.moved
    }

    pub fn into_node(self) -> Running {
        self.node
    }
}
