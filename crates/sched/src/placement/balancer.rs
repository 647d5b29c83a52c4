//! Which core serves which queue: the slow path above the schedulers, for what spans cores.
//!
//! Each scheduler is fair on its own core; how much of a node a tenant gets is decided by where its queues are. MTDA
//! §III-C: "if the available multicore processors can satisfy the tenant demands, we allocate certain amounts of cores
//! to each tenant to avoid frequent context switching"; otherwise cores are shared by time.

use std::collections::BTreeMap;

use super::Hysteresis;
use crate::{Nanos, QueueId, TenantId};

/// A queue and its recent load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueLoad {
    /// Which.
    pub queue: QueueId,
    /// The core it is on, from 0.
    pub core: usize,
    /// The part of the core's time that it had, in thousandths. What it would have had without waiting is not known.
    pub load: u32,
    /// The configuration or an operator has put it where it is: it never moves, and what it takes of its core counts.
    pub is_fixed: bool,
}

/// A queue is to go to another core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    /// Which.
    pub queue: QueueId,
    /// Where to.
    pub to: usize,
}

/// Puts queues on cores, see the [module](self). Pure: it is asked now and then, and answers with moves.
#[derive(Debug)]
pub struct Balancer {
    hysteresis: Hysteresis,
    moved: BTreeMap<QueueId, Nanos>,
}

impl Default for Balancer {
    fn default() -> Self {
        Balancer::new(Balancer::HYSTERESIS)
    }
}

impl Balancer {
    /// A tenth of a core, a second, four queues at a time.
    pub const HYSTERESIS: Hysteresis = Hysteresis { imbalance: 100, dwell: Nanos::SECOND, moves: 4 };

    /// A balancer that has moved nothing yet.
    pub fn new(hysteresis: Hysteresis) -> Balancer {
        Balancer { hysteresis, moved: BTreeMap::new() }
    }

    /// Plans the moves at `now`, of all queues of a node with so many cores, given the tenants' weights.
    ///
    /// While there is a core for each tenant that has work, and none of it is fixed, each tenant has cores of its own.
    /// Otherwise queues move from the busiest core to the idlest, where that makes the larger of both loads smaller.
    pub fn plan(
        &mut self,
        now: Nanos,
        cores: usize,
        queues: &[QueueLoad],
        weight: impl Fn(TenantId) -> u32,
    ) -> Vec<Move> {
        self.moved.retain(|queue, _| queues.iter().any(|load| load.queue == *queue));
        if cores < 2 {
            return Vec::new();
        }
        let mut tenants = BTreeMap::<TenantId, u32>::new();
        for load in queues.iter().filter(|load| load.load > 0) {
            *tenants.entry(load.queue.tenant).or_default() += load.load;
        }
        let is_free = queues.iter().all(|load| !load.is_fixed || load.load == 0);
        let moves = if is_free && tenants.len() > 1 && tenants.len() <= cores {
            assign(cores, queues, &tenants, weight)
        } else {
            self.level(now, cores, queues)
        };
        let rested: Vec<Move> =
            moves.into_iter().filter(|to| self.may_move(now, to.queue)).take(self.hysteresis.moves).collect();
        for to in &rested {
            self.moved.insert(to.queue, now);
        }
        rested
    }

    fn may_move(&self, now: Nanos, queue: QueueId) -> bool {
        self.moved.get(&queue).is_none_or(|at| now.since(*at) >= self.hysteresis.dwell)
    }

    fn level(&self, now: Nanos, cores: usize, queues: &[QueueLoad]) -> Vec<Move> {
        let mut queues = queues.to_vec();
        let mut loads = vec![0_u32; cores];
        for load in &queues {
            if let Some(core) = loads.get_mut(load.core) {
                *core += load.load;
            }
        }
        let mut moves = Vec::new();
        for _ in 0..self.hysteresis.moves {
            let by_load = |&core: &usize| (loads[core], core);
            let (Some(from), Some(to)) = ((0..cores).max_by_key(by_load), (0..cores).min_by_key(by_load)) else {
                break;
            };
            let difference = loads[from] - loads[to];
            if difference < self.hysteresis.imbalance {
                break;
            }
            // The one that comes nearest to half the difference; one that is more than all of it would make it worse.
            let candidates = queues.iter().enumerate().filter(|(_, load)| {
                !load.is_fixed
                    && load.core == from
                    && load.load > 0
                    && load.load < difference
                    && self.may_move(now, load.queue)
            });
            let best =
                candidates.min_by_key(|(_, load)| (difference.abs_diff(2 * load.load), load.queue)).map(|(at, _)| at);
            let Some(at) = best else { break };
            loads[from] -= queues[at].load;
            loads[to] += queues[at].load;
            queues[at].core = to;
            moves.push(Move { queue: queues[at].queue, to });
        }
        moves
    }
}

/// Assigns each tenant cores by weight, one at least, first those that have most of its work, and spreads its queues
/// over them.
fn assign(
    cores: usize,
    queues: &[QueueLoad],
    tenants: &BTreeMap<TenantId, u32>,
    weight: impl Fn(TenantId) -> u32,
) -> Vec<Move> {
    let of = |tenant: TenantId| queues.iter().filter(move |load| load.queue.tenant == tenant && load.load > 0);
    // More cores than queues are of no use to a tenant.
    let mut counts: BTreeMap<TenantId, usize> = tenants.keys().map(|&tenant| (tenant, 1)).collect();
    for _ in tenants.len()..cores {
        let short = counts.iter().filter(|(tenant, count)| **count < of(**tenant).count());
        let due = |tenant: TenantId, count: usize| u64::from(weight(tenant).max(1)) * 1_000_000 / (count as u64 + 1);
        let Some(tenant) = short.max_by_key(|(tenant, count)| due(**tenant, **count)).map(|(tenant, _)| *tenant) else {
            break;
        };
        counts.entry(tenant).and_modify(|count| *count += 1);
    }
    let mut owner: Vec<Option<TenantId>> = vec![None; cores];
    // The busiest tenants choose first, so that few queues have to move.
    let mut order: Vec<TenantId> = tenants.keys().copied().collect();
    order.sort_by_key(|tenant| (std::cmp::Reverse(tenants[tenant]), *tenant));
    for &tenant in &order {
        for _ in 0..counts[&tenant] {
            let load_on = |core: usize| of(tenant).filter(|load| load.core == core).map(|load| load.load).sum::<u32>();
            let free = (0..cores).filter(|&core| owner[core].is_none());
            if let Some(core) = free.max_by_key(|&core| (load_on(core), std::cmp::Reverse(core))) {
                owner[core] = Some(tenant);
            }
        }
    }
    let mut loads = vec![0_u32; cores];
    let mut moves = Vec::new();
    for &tenant in &order {
        let is_own = |core: usize| owner.get(core).copied().flatten() == Some(tenant);
        let own: Vec<usize> = (0..cores).filter(|&core| is_own(core)).collect();
        let part = tenants[&tenant].div_ceil(own.len().max(1) as u32);
        let (mut stay, mut go): (Vec<&QueueLoad>, Vec<&QueueLoad>) = of(tenant).partition(|load| is_own(load.core));
        stay.sort_by_key(|load| std::cmp::Reverse(load.load));
        for load in stay {
            // A queue on a core of its tenant's stays, unless there is too much.
            if loads[load.core] > 0 && loads[load.core] + load.load > part + part / 8 {
                go.push(load);
            } else {
                loads[load.core] += load.load;
            }
        }
        go.sort_by_key(|load| (std::cmp::Reverse(load.load), load.queue));
        for load in go {
            let Some(&to) = own.iter().min_by_key(|&&core| (loads[core], core)) else { continue };
            loads[to] += load.load;
            if to != load.core {
                moves.push(Move { queue: load.queue, to });
            }
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(tenant: u16, index: u32, core: usize, load: u32) -> QueueLoad {
        QueueLoad { queue: QueueId { tenant: TenantId(tenant), index }, core, load, is_fixed: false }
    }

    fn carry_out(queues: &mut [QueueLoad], moves: &[Move]) {
        for to in moves {
            for load in queues.iter_mut().filter(|load| load.queue == to.queue) {
                load.core = to.to;
            }
        }
    }

    #[test]
    fn what_is_fixed_stays_and_its_core_is_not_taken_for_idle() {
        let pinned = QueueLoad { is_fixed: true, ..load(0, 0, 0, 1_000) };
        let queues = [pinned, load(1, 1, 1, 450), load(1, 2, 1, 450)];
        assert_eq!(Balancer::default().plan(Nanos::SECOND, 2, &queues, |_| 1), []);
        let crowded = [pinned, load(1, 1, 0, 450), load(2, 2, 0, 450)];
        let moves = Balancer::default().plan(Nanos::SECOND, 2, &crowded, |_| 1);
        assert_eq!(
            moves.iter().map(|to| (to.queue.tenant, to.to)).collect::<Vec<_>>(),
            [(TenantId(1), 1), (TenantId(2), 1)]
        );
    }

    #[test]
    fn while_there_are_enough_cores_each_tenant_has_its_own() {
        let mut queues = [load(0, 0, 0, 500), load(0, 1, 0, 500), load(1, 2, 0, 500), load(2, 3, 1, 500)];
        let mut balancer = Balancer::default();
        let moves = balancer.plan(Nanos(0), 4, &queues, |_| 1);
        carry_out(&mut queues, &moves);
        let mut owners = BTreeMap::new();
        for queue in &queues {
            assert_eq!(*owners.entry(queue.core).or_insert(queue.queue.tenant), queue.queue.tenant, "{queues:?}");
        }
        assert_eq!(owners.len(), 4, "the fourth core is for the tenant with two queues: {queues:?}");
        assert_eq!(balancer.plan(Nanos::SECOND, 4, &queues, |_| 1), [], "and it stays so");
    }

    #[test]
    fn with_more_tenants_than_cores_loads_are_levelled_and_then_left_alone() {
        let mut queues: Vec<QueueLoad> = (0..8).map(|at| load(at, at.into(), 0, 100 + u32::from(at) * 10)).collect();
        let mut balancer = Balancer::default();
        for round in 0..4 {
            let moves = balancer.plan(Nanos(round * 2 * Nanos::SECOND.0), 2, &queues, |_| 1);
            carry_out(&mut queues, &moves);
        }
        let of = |core| queues.iter().filter(|load| load.core == core).map(|load| load.load).sum::<u32>();
        assert!(of(0).abs_diff(of(1)) < 100, "{} and {}", of(0), of(1));
        assert_eq!(balancer.plan(Nanos(100 * Nanos::SECOND.0), 2, &queues, |_| 1), []);
    }

    #[test]
    fn a_queue_that_moved_rests_and_one_queue_alone_is_not_chased_around() {
        let queues = [load(0, 0, 0, 900)];
        let mut balancer = Balancer::default();
        assert_eq!(balancer.plan(Nanos(0), 2, &queues, |_| 1), [], "it would only be the other core that is busy");
        let mut queues: Vec<QueueLoad> = (0..3).map(|at| load(at, at.into(), 0, 300)).collect();
        let moves = balancer.plan(Nanos(0), 2, &queues, |_| 1);
        assert_eq!(moves.len(), 1);
        carry_out(&mut queues, &moves);
        // Now the others have nothing to do and it is busier: it would go back.
        for load in &mut queues {
            load.load = if load.queue == moves[0].queue { 400 } else { 0 };
        }
        queues.push(load(3, 3, moves[0].to, 400));
        queues.push(load(4, 4, moves[0].to, 10));
        let next = balancer.plan(Nanos::MILLI, 2, &queues, |_| 1);
        assert!(next.iter().all(|to| to.queue != moves[0].queue), "{next:?}");
    }
}
