//! Which core serves which queue: the slow path above the schedulers, for what spans cores.
//!
//! Each scheduler is fair on its own core; how much of a node a tenant gets is decided by where its queues are. A queue
//! asks for what it had of its core. Where the core was full, queues that wanted more than their share of it ask for
//! what their tenant is due of the node, by weighted max-min fairness: that is not known, but no more is theirs. Queues
//! move until cores have as much asked of them, so that no core idles while queues wait on another.
//!
//! Where all that tenants ask for fits into cores of their own, they have such ([`whole_cores`](super::whole_cores)).

use std::collections::BTreeMap;

use super::division::{WeightPart, weights_on_core};
use super::entitlement::{Claim, entitlements};
use super::{Hysteresis, whole_cores};
use crate::{Nanos, QueueId, Share, TenantId};

/// A core's time.
const CORE: u32 = 1_000;
/// A core of which queues had so much is full, thousandths of its time.
const FULL: u32 = 930;
/// What a tenant may ask of a core that is to be its own from now on, thousandths. Less than [`FULL`], so that what is
/// near either is not moved back and forth.
const ROOMY: u32 = 750;
/// A tenant that had so much of its share of a full core, thousandths, wanted more.
const WANTED_MORE: u32 = 900;
/// For how many times [`Hysteresis::dwell`] all has to fit before tenants have cores of their own again.
const SETTLED: u64 = 5;

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
    /// What each queue has of its core, over a window.
    window: BTreeMap<QueueId, u32>,
    moved: BTreeMap<QueueId, Nanos>,
    /// Tenants have cores of their own.
    is_whole: bool,
    /// When what tenants ask for did not fit into cores of their own for the last time.
    crowded: Option<Nanos>,
}

impl Default for Balancer {
    fn default() -> Self {
        Balancer::new(Balancer::HYSTERESIS)
    }
}

impl Balancer {
    /// A twentieth of a core, a second, four queues for two cores at a time.
    pub const HYSTERESIS: Hysteresis = Hysteresis { imbalance: 50, dwell: Nanos::SECOND, moves: 4 };

    /// A balancer that has moved nothing yet.
    pub fn new(hysteresis: Hysteresis) -> Balancer {
        Balancer { hysteresis, window: BTreeMap::new(), moved: BTreeMap::new(), is_whole: false, crowded: None }
    }

    /// Plans the moves at `now`, of all queues of a node with so many cores, given the tenants' shares of the node:
    /// weights, and guarantees in thousandths of all cores' time.
    pub fn plan(
        &mut self,
        now: Nanos,
        cores: usize,
        queues: &[QueueLoad],
        share: impl Fn(TenantId) -> Share,
    ) -> Vec<Move> {
        let known: BTreeMap<QueueId, u32> = queues.iter().map(|load| (load.queue, load.load)).collect();
        self.moved.retain(|queue, _| known.contains_key(queue));
        self.window.retain(|queue, _| known.contains_key(queue));
        if cores < 2 {
            return Vec::new();
        }
        let queues: Vec<QueueLoad> = queues
            .iter()
            .filter(|load| load.core < cores)
            .map(|load| QueueLoad { load: self.over_window(load), ..*load })
            .collect();
        let demand = Demand::of(cores, &queues, &share);
        let moves = if self.have_own_cores(now, cores, &queues, &demand) {
            whole_cores::assign(cores, &queues, &demand.cores_needed(FULL), |tenant| share(tenant).weight)
        } else {
            self.level(now, cores, &queues, &demand)
        };
        let most = self.hysteresis.moves.saturating_mul(cores) / 2;
        let rested: Vec<Move> = moves.into_iter().filter(|to| self.may_move(now, to.queue)).take(most).collect();
        for to in &rested {
            self.moved.insert(to.queue, now);
        }
        rested
    }

    /// What a queue has of its core, over the last few calls.
    fn over_window(&mut self, load: &QueueLoad) -> u32 {
        let mean = self.window.entry(load.queue).or_insert(load.load);
        // Up to the half at once, and rounded up: a queue with work has a load.
        *mean = (*mean + load.load).div_ceil(2);
        if load.load == 0 && *mean == 1 {
            *mean = 0;
        }
        *mean
    }

    fn may_move(&self, now: Nanos, queue: QueueId) -> bool {
        self.moved.get(&queue).is_none_or(|at| now.since(*at) >= self.hysteresis.dwell)
    }

    /// Whether tenants have cores of their own: no longer than all fits there, and again only after it did for a while.
    fn have_own_cores(&mut self, now: Nanos, cores: usize, queues: &[QueueLoad], demand: &Demand) -> bool {
        let fits = |most: u32| whole_cores::fits(cores, queues, &demand.cores_needed(most));
        if !fits(FULL) {
            (self.is_whole, self.crowded) = (false, Some(now));
        } else if !self.is_whole {
            if !fits(ROOMY) {
                self.crowded = Some(now);
            }
            let rested = |at: Nanos| now.since(at).0 >= self.hysteresis.dwell.0.saturating_mul(SETTLED);
            self.is_whole = self.crowded.is_none_or(rested);
        }
        self.is_whole
    }

    /// Moves queues from the core of which most is asked to the one of which least is, where that makes the larger of
    /// both smaller.
    fn level(&self, now: Nanos, cores: usize, queues: &[QueueLoad], demand: &Demand) -> Vec<Move> {
        let mut place: Vec<usize> = queues.iter().map(|load| load.core).collect();
        let mut loads = vec![0_u32; cores];
        for (load, asked) in queues.iter().zip(&demand.asked) {
            loads[load.core] += asked;
        }
        let mut is_stuck = vec![false; cores];
        let mut moves = Vec::new();
        for _ in 0..self.hysteresis.moves.saturating_mul(cores) / 2 {
            let by_load = |&core: &usize| (loads[core], core);
            let busiest = (0..cores).filter(|core| !is_stuck[*core]).max_by_key(by_load);
            let (Some(from), Some(to)) = (busiest, (0..cores).min_by_key(by_load)) else { break };
            let difference = loads[from].saturating_sub(loads[to]);
            // Once queues move, they go on to where loads differ less than it takes to begin.
            let least = if moves.is_empty() { self.hysteresis.imbalance } else { self.hysteresis.imbalance / 4 };
            if difference < least.max(1) {
                break;
            }
            // The one that comes nearest to half the difference; one that is about all of it would make it no better.
            let candidates = (0..queues.len()).filter(|&at| {
                let (load, asked) = (&queues[at], demand.asked[at]);
                let is_less = asked > 0 && 8 * asked <= 7 * difference;
                is_less && !load.is_fixed && place[at] == from && self.may_move(now, load.queue)
            });
            match candidates.min_by_key(|&at| (difference.abs_diff(2 * demand.asked[at]), queues[at].queue)) {
                Some(at) => {
                    loads[from] -= demand.asked[at];
                    loads[to] += demand.asked[at];
                    place[at] = to;
                    moves.push(Move { queue: queues[at].queue, to });
                }
                // None of its queues fits into the difference: those of other cores may.
                None => is_stuck[from] = true,
            }
        }
        moves
    }
}

/// What tenants and their queues ask for, in thousandths of a core's time.
struct Demand {
    /// By place in the list of queues.
    asked: Vec<u32>,
    tenants: BTreeMap<TenantId, TenantDemand>,
}

#[derive(Clone, Copy, Debug, Default)]
struct TenantDemand {
    /// What those of its queues had that wanted no more.
    sated: u32,
    /// How many queues wanted more.
    hungry: u32,
}

impl Demand {
    fn of(cores: usize, queues: &[QueueLoad], share: &impl Fn(TenantId) -> Share) -> Demand {
        let hungry = hungry(cores, queues, share);
        let mut tenants = BTreeMap::<TenantId, TenantDemand>::new();
        for (load, is_hungry) in queues.iter().zip(&hungry).filter(|(load, _)| load.load > 0) {
            let tenant = tenants.entry(load.queue.tenant).or_default();
            tenant.sated += if *is_hungry { 0 } else { load.load };
            tenant.hungry += u32::from(*is_hungry);
        }
        let claim = |(tenant, of): (&TenantId, &TenantDemand)| {
            let Share { weight, guarantee, .. } = share(*tenant);
            Claim { weight, guarantee: u32::from(guarantee) * cores as u32, most: of.sated + of.hungry * CORE }
        };
        let claims: Vec<Claim> = tenants.iter().map(claim).collect();
        let due = entitlements(cores as u32 * CORE, &claims);
        let due: BTreeMap<TenantId, u32> = tenants.keys().copied().zip(due).collect();
        let asked = |(load, is_hungry): (&QueueLoad, &bool)| match tenants.get(&load.queue.tenant) {
            Some(of) if *is_hungry => (due[&load.queue.tenant].saturating_sub(of.sated) / of.hungry).clamp(1, CORE),
            _ => load.load,
        };
        Demand { asked: queues.iter().zip(&hungry).map(asked).collect(), tenants }
    }

    /// How many whole cores each tenant needs, of each of which it asks for no more than `most`.
    fn cores_needed(&self, most: u32) -> BTreeMap<TenantId, usize> {
        let need = |of: &TenantDemand| (of.hungry + of.sated.div_ceil(most)).max(1) as usize;
        self.tenants.iter().map(|(tenant, of)| (*tenant, need(of))).collect()
    }
}

/// Which queues wanted more than they had: of a tenant that had its share of a full core, those that had no less than
/// half as much there as its queues have on average.
fn hungry(cores: usize, queues: &[QueueLoad], share: &impl Fn(TenantId) -> Share) -> Vec<bool> {
    // By core and tenant: what its queues had there, how many those are, and what is due to it.
    let mut here: Vec<BTreeMap<TenantId, (u32, u32, u32)>> = vec![BTreeMap::new(); cores];
    let mut all = BTreeMap::<TenantId, u32>::new();
    for load in queues.iter().filter(|load| load.load > 0) {
        let (had, count, _) = here[load.core].entry(load.queue.tenant).or_default();
        (*had, *count) = (*had + load.load, *count + 1);
        *all.entry(load.queue.tenant).or_default() += 1;
    }
    for tenants in &mut here {
        let sum: u32 = tenants.values().map(|(had, _, _)| had).sum();
        if sum < FULL {
            tenants.clear();
            continue;
        }
        let part = |(tenant, (_, here, _)): (&TenantId, &(u32, u32, u32))| WeightPart {
            weight: share(*tenant).weight,
            here: *here,
            all: all[tenant],
        };
        let weights = weights_on_core(&tenants.iter().map(part).collect::<Vec<_>>());
        let claims: Vec<Claim> = weights.into_iter().map(|weight| Claim { weight, guarantee: 0, most: sum }).collect();
        let due = entitlements(sum, &claims);
        tenants.values_mut().zip(due).for_each(|((_, _, share), due)| *share = due);
    }
    let is_hungry = |load: &QueueLoad| match here[load.core].get(&load.queue.tenant) {
        Some((had, count, due)) => {
            load.load > 0
                && u64::from(*had) * u64::from(CORE) >= u64::from(*due) * u64::from(WANTED_MORE)
                && 2 * load.load * count >= *had
        }
        None => false,
    };
    queues.iter().map(is_hungry).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(_: TenantId) -> Share {
        Share::default()
    }

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
        assert_eq!(Balancer::default().plan(Nanos::SECOND, 2, &queues, share), []);
        let crowded = [pinned, load(1, 1, 0, 450), load(2, 2, 0, 450)];
        let moves = Balancer::default().plan(Nanos::SECOND, 2, &crowded, share);
        assert_eq!(
            moves.iter().map(|to| (to.queue.tenant, to.to)).collect::<Vec<_>>(),
            [(TenantId(1), 1), (TenantId(2), 1)]
        );
    }

    #[test]
    fn while_there_are_enough_cores_each_tenant_has_its_own() {
        let mut queues = [load(0, 0, 0, 500), load(0, 1, 0, 500), load(1, 2, 0, 500), load(2, 3, 1, 500)];
        let mut balancer = Balancer::default();
        let moves = balancer.plan(Nanos(0), 4, &queues, share);
        carry_out(&mut queues, &moves);
        let mut owners = BTreeMap::new();
        for queue in &queues {
            assert_eq!(*owners.entry(queue.core).or_insert(queue.queue.tenant), queue.queue.tenant, "{queues:?}");
        }
        assert_eq!(owners.len(), 4, "the fourth core is for the tenant with two queues: {queues:?}");
        assert_eq!(balancer.plan(Nanos::SECOND, 4, &queues, share), [], "and it stays so");
    }

    #[test]
    fn with_more_tenants_than_cores_loads_are_levelled_and_then_left_alone() {
        let mut queues: Vec<QueueLoad> = (0..8).map(|at| load(at, at.into(), 0, 100 + u32::from(at) * 10)).collect();
        let mut balancer = Balancer::default();
        for round in 0..4 {
            let moves = balancer.plan(Nanos(round * 2 * Nanos::SECOND.0), 2, &queues, share);
            carry_out(&mut queues, &moves);
        }
        let of = |core| queues.iter().filter(|load| load.core == core).map(|load| load.load).sum::<u32>();
        assert!(of(0).abs_diff(of(1)) < 100, "{} and {}", of(0), of(1));
        assert_eq!(balancer.plan(Nanos(100 * Nanos::SECOND.0), 2, &queues, share), []);
    }

    #[test]
    fn a_queue_that_moved_rests_and_one_queue_alone_is_not_chased_around() {
        let queues = [load(0, 0, 0, 900)];
        let mut balancer = Balancer::default();
        assert_eq!(balancer.plan(Nanos(0), 2, &queues, share), [], "it would only be the other core that is busy");
        let mut queues: Vec<QueueLoad> = (0..3).map(|at| load(at, at.into(), 0, 300)).collect();
        let moves = balancer.plan(Nanos(0), 2, &queues, share);
        assert_eq!(moves.len(), 1);
        carry_out(&mut queues, &moves);
        // Now the others have nothing to do and it is busier: it would go back.
        for load in &mut queues {
            load.load = if load.queue == moves[0].queue { 400 } else { 0 };
        }
        queues.push(load(3, 3, moves[0].to, 400));
        queues.push(load(4, 4, moves[0].to, 10));
        let next = balancer.plan(Nanos::MILLI, 2, &queues, share);
        assert!(next.iter().all(|to| to.queue != moves[0].queue), "{next:?}");
    }

    /// A node in which what queues want is known: each core gives tenants their weights' parts of what its queues want.
    fn serve(cores: usize, queues: &mut [QueueLoad], wants: impl Fn(QueueId) -> u32) {
        for core in 0..cores {
            let here: Vec<usize> = (0..queues.len()).filter(|&at| queues[at].core == core).collect();
            let claim = |&at: &usize| Claim { weight: 1, guarantee: 0, most: wants(queues[at].queue) };
            let loads = entitlements(CORE, &here.iter().map(claim).collect::<Vec<_>>());
            here.into_iter().zip(loads).for_each(|(at, load)| queues[at].load = load);
        }
    }

    /// What of all cores a tenant has when the balancer has had its way for a while, thousandths; and that then nothing
    /// moves any more.
    fn settled(cores: usize, queues: &mut [QueueLoad], wants: impl Fn(QueueId) -> u32, tenant: u16) -> u32 {
        let mut balancer = Balancer::default();
        for second in 0..60 {
            serve(cores, queues, &wants);
            let moves = balancer.plan(Nanos(second * Nanos::SECOND.0), cores, queues, share);
            assert!(second < 30 || moves.is_empty(), "{second} s: {moves:?} of {queues:?}");
            carry_out(queues, &moves);
        }
        serve(cores, queues, &wants);
        queues.iter().filter(|load| load.queue.tenant.0 == tenant).map(|load| load.load).sum()
    }

    #[test]
    fn a_busy_tenant_has_what_an_idle_one_leaves() {
        // Tenant 0 asks for a thousandth, and has a queue with a core to begin with.
        let mut queues: Vec<QueueLoad> = (0..5).map(|at| load(u16::from(at > 0), at, usize::from(at > 0), 0)).collect();
        let wants = |queue: QueueId| if queue.tenant.0 == 0 { 1 } else { 1_000 };
        let had = settled(2, &mut queues, wants, 1);
        assert!(had >= 1_900, "{had}: {queues:?}");
    }

    #[test]
    fn one_fixed_queue_does_not_mix_all_tenants() {
        // Each of eight tenants asks for half a core; on the first core a queue of tenant 0 is fixed.
        let mut queues: Vec<QueueLoad> = (0..16).map(|at| load((at / 2) as u16, at, 0, 0)).collect();
        queues[0].is_fixed = true;
        settled(8, &mut queues, |_| 250, 0);
        for one in &queues {
            assert!(
                queues.iter().all(|other| other.core != one.core || other.queue.tenant == one.queue.tenant),
                "{queues:?}"
            );
        }
    }

    #[test]
    fn a_demand_near_a_whole_core_is_not_moved_back_and_forth() {
        for wanted in [600, 700, 740, 760, 800, 900, 920, 940, 1_000] {
            let mut queues: Vec<QueueLoad> = (0..8).map(|at| load((at / 4) as u16, at, 0, 0)).collect();
            let had = settled(2, &mut queues, |_| wanted / 4, 1);
            assert!(had >= wanted * 95 / 100, "{had} of {wanted}");
        }
    }
}
