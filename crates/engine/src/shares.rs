//! Each core's part of a tenant's share.
//!
//! Schedulers are fair each on its own core. What a tenant may claim or not exceed on the node as a whole is divided
//! over the cores that serve it, in equal parts, its weight by its queues, and again whenever one of its queues comes,
//! goes or moves.

use std::collections::HashMap;
use std::sync::Arc;

use softdpu_sched::{Limits, Rate, Share, TenantId, WeightPart, weights_on_core};

use crate::counters::TenantCounters;
use crate::ids::CoreIndex;

/// What all guarantees of a core may come to, thousandths of its time ([`Share::guarantee`]).
const MOST_GUARANTEED: u32 = 900;

/// The tenants of a node.
pub(crate) struct Shares {
    tenants: HashMap<TenantId, TenantShare>,
    /// Cores that what is guaranteed is in parts of: the data plane's.
    guaranteeing: usize,
    /// Policies want to know how many cores serve a tenant ([`Share::cores`]).
    counts_cores: bool,
}

struct TenantShare {
    /// Of the node as a whole.
    share: Share,
    counters: Vec<Arc<TenantCounters>>,
    /// Its queues that bring work, core by core.
    queues: Vec<u32>,
    /// What each core was sent last.
    sent: Vec<Option<Share>>,
}

/// A tenant's share, to be sent to a core.
pub(crate) type ShareUpdate = (CoreIndex, TenantId, Share, Arc<TenantCounters>);

impl Shares {
    /// Shares without tenants, of so many cores of the data plane. `counts_cores`: each share says how many cores serve
    /// the tenant.
    pub(crate) fn new(guaranteeing: usize, counts_cores: bool) -> Shares {
        Shares { tenants: HashMap::new(), guaranteeing, counts_cores }
    }

    /// The data plane has so many cores from now on.
    pub(crate) fn set_guaranteeing(&mut self, cores: usize) {
        self.guaranteeing = cores;
    }

    /// A tenant has another share, of the node as a whole: its guarantee is in thousandths of all cores' time.
    pub(crate) fn configure(&mut self, tenant: TenantId, share: Share, cores: usize) {
        let entry = self.tenants.entry(tenant).or_insert_with(|| TenantShare {
            share,
            counters: (0..cores).map(|_| Arc::default()).collect(),
            queues: vec![0; cores],
            sent: vec![None; cores],
        });
        entry.share = share;
    }

    /// A tenant has one more queue on a core, or one less. Whether that changes what cores give to tenants.
    pub(crate) fn count(&mut self, tenant: TenantId, core: CoreIndex, change: i32) -> bool {
        let has_several = self.tenants.len() > 1;
        let Some(entry) = self.tenants.get_mut(&tenant) else { return false };
        let Some(queues) = entry.queues.get_mut(core.0) else { return false };
        let before = *queues;
        *queues = queues.saturating_add_signed(change);
        let is_divided = self.counts_cores || entry.share.guarantee > 0 || entry.share.limits != Limits::default();
        let is_another_core = (before == 0) != (*queues == 0);
        // Weights on a core are by the queues of all its tenants.
        (is_divided || has_several) && is_another_core || entry.is_elsewhere(core.0)
    }

    /// One of a tenant's queues goes to another core. Whether that changes what cores give to tenants.
    pub(crate) fn move_one(&mut self, tenant: TenantId, from: CoreIndex, to: CoreIndex) -> bool {
        // Both, whatever the first says.
        let [left, came] = [(from, -1), (to, 1)].map(|(core, change)| self.count(tenant, core, change));
        left || came
    }

    /// What a tenant got, core by core.
    pub(crate) fn counters(&self, tenant: TenantId) -> &[Arc<TenantCounters>] {
        self.tenants.get(&tenant).map_or(&[], |entry| entry.counters.as_slice())
    }

    /// What a core gives a tenant now.
    pub(crate) fn on(&self, tenant: TenantId, core: CoreIndex) -> Option<Share> {
        *self.tenants.get(&tenant)?.sent.get(core.0)?
    }

    /// What a tenant is to have of the node.
    pub(crate) fn of_node(&self, tenant: TenantId) -> Option<Share> {
        Some(self.tenants.get(&tenant)?.share)
    }

    /// The weights of the tenants that a core serves, there.
    fn weights(&self, core: usize) -> HashMap<TenantId, u32> {
        let here: Vec<(&TenantId, &TenantShare)> = self.tenants.iter().filter(|(_, entry)| entry.is_on(core)).collect();
        let parts: Vec<WeightPart> = here.iter().map(|(_, entry)| entry.weight_part(core)).collect();
        here.into_iter().map(|(tenant, _)| *tenant).zip(weights_on_core(&parts)).collect()
    }

    /// What is to be sent to cores since the last call.
    pub(crate) fn divide(&mut self, cores: usize) -> Vec<ShareUpdate> {
        let mut guaranteed = vec![0_u32; cores];
        for entry in self.tenants.values() {
            for (_, sum) in guaranteed.iter_mut().enumerate().filter(|(core, _)| entry.is_on(*core)) {
                *sum += entry.guarantee(self.guaranteeing);
            }
        }
        let weights: Vec<HashMap<TenantId, u32>> = (0..cores).map(|core| self.weights(core)).collect();
        let mut news = Vec::new();
        for (&tenant, entry) in &mut self.tenants {
            for (core, sum) in guaranteed.iter().enumerate() {
                let served_on = if self.counts_cores { entry.cores() as u16 } else { 0 };
                let mut share = Share { limits: entry.limits(core), cores: served_on, ..entry.share };
                share.weight = weights[core].get(&tenant).copied().unwrap_or(entry.share.weight);
                // More than a core has is had in proportion.
                let own = entry.guarantee(self.guaranteeing);
                share.guarantee = (own * MOST_GUARANTEED / (*sum).max(MOST_GUARANTEED)) as u16;
                if entry.sent[core] != Some(share) {
                    entry.sent[core] = Some(share);
                    news.push((CoreIndex(core), tenant, share, Arc::clone(&entry.counters[core])));
                }
            }
        }
        news
    }
}

impl TenantShare {
    fn is_on(&self, core: usize) -> bool {
        self.queues.get(core).is_some_and(|queues| *queues > 0)
    }

    fn is_elsewhere(&self, core: usize) -> bool {
        self.queues.iter().enumerate().any(|(other, queues)| other != core && *queues > 0)
    }

    fn weight_part(&self, core: usize) -> WeightPart {
        let here = self.queues.get(core).copied().unwrap_or(0);
        WeightPart { weight: self.share.weight, here, all: self.queues.iter().sum() }
    }

    /// How many cores serve it, one at least.
    fn cores(&self) -> u32 {
        (self.queues.iter().filter(|queues| **queues > 0).count() as u32).max(1)
    }

    /// Thousandths of each core that serves it.
    fn guarantee(&self, cores: usize) -> u32 {
        (u32::from(self.share.guarantee) * cores as u32 / self.cores()).min(MOST_GUARANTEED)
    }

    /// Its part of the limits. A core that does not serve it while others do has next to nothing: otherwise it would
    /// save up a burst beside theirs, for a queue that comes to it.
    fn limits(&self, core: usize) -> Limits {
        let cores = u64::from(self.cores());
        let is_elsewhere = !self.is_on(core) && self.is_elsewhere(core);
        let part = |rate: Rate| match is_elsewhere {
            true => Rate { rate: 1, burst: 1 },
            false => Rate { rate: (rate.rate / cores).max(1), burst: (rate.burst / cores).max(1) },
        };
        let Limits { requests, bytes, packets } = self.share.limits;
        Limits { requests: requests.map(part), bytes: bytes.map(part), packets: packets.map(part) }
    }
}

#[cfg(test)]
mod on_the_node;
#[cfg(test)]
mod tests {
    use super::*;

    const A: TenantId = TenantId(0);
    const B: TenantId = TenantId(1);

    fn limited(rate: u64, guarantee: u16) -> Share {
        let limits = Limits { requests: Some(Rate { rate, burst: rate / 10 }), ..Limits::default() };
        Share { limits, guarantee, ..Share::default() }
    }

    fn on(shares: &Shares, tenant: TenantId, core: usize) -> (u64, u64, u16) {
        let share = shares.on(tenant, CoreIndex(core)).unwrap();
        let rate = share.limits.requests.unwrap();
        (rate.rate, rate.burst, share.guarantee)
    }

    #[test]
    fn limits_and_guarantees_are_divided_over_the_cores_that_serve_a_tenant() {
        let mut shares = Shares::new(4, false);
        shares.configure(A, limited(1_000, 200), 4);
        assert!(shares.count(A, CoreIndex(0), 1));
        assert_eq!(shares.divide(4).len(), 4, "every core knows every tenant");
        assert_eq!(on(&shares, A, 0), (1_000, 100, 800), "a fifth of four cores, on one");
        assert!(!shares.count(A, CoreIndex(0), 1), "one more on the same core changes nothing");
        assert!(shares.count(A, CoreIndex(2), 1));
        assert_eq!(shares.divide(4).len(), 4);
        assert_eq!(on(&shares, A, 2), (500, 50, 400));
        assert!(shares.divide(4).is_empty(), "nothing is sent twice");
        assert_eq!(on(&shares, A, 1).0, 1, "nothing is saved up where it has no queue");
        assert!(shares.count(A, CoreIndex(2), -1));
        shares.divide(4);
        assert_eq!(on(&shares, A, 0), (1_000, 100, 800));
    }

    #[test]
    fn what_is_guaranteed_on_a_core_leaves_something_of_it() {
        let mut shares = Shares::new(2, false);
        for tenant in [A, B] {
            shares.configure(tenant, limited(10, 400), 2);
            shares.count(tenant, CoreIndex(0), 1);
        }
        shares.divide(2);
        assert_eq!([A, B].map(|tenant| on(&shares, tenant, 0).2), [450, 450], "each would have 800");
    }

    #[test]
    fn a_queue_that_moves_is_nowhere_in_between() {
        let mut shares = Shares::new(3, false);
        shares.configure(A, limited(1_000, 0), 3);
        shares.count(A, CoreIndex(0), 1);
        shares.divide(3);
        assert!(shares.move_one(A, CoreIndex(0), CoreIndex(1)));
        let sent: Vec<_> = shares
            .divide(3)
            .into_iter()
            .map(|(core, _, share, _)| (core.0, share.limits.requests.unwrap().rate))
            .collect();
        assert_eq!(sent, [(0, 1), (1, 1_000)], "the third core is sent nothing, and none twice");
    }

    #[test]
    fn cores_are_counted_for_policies_that_go_by_them() {
        let mut shares = Shares::new(2, true);
        shares.configure(A, Share::default(), 2);
        assert!(shares.count(A, CoreIndex(0), 1));
        shares.divide(2);
        assert_eq!(shares.on(A, CoreIndex(0)).unwrap().cores, 1);
        assert!(shares.count(A, CoreIndex(1), 1));
        assert_eq!(shares.divide(2).len(), 2);
        assert_eq!(shares.on(A, CoreIndex(0)).unwrap().cores, 2);
    }

    #[test]
    fn a_weight_is_for_the_node() {
        let mut shares = Shares::new(2, false);
        for (tenant, weight) in [(A, 1), (B, 2)] {
            shares.configure(tenant, Share { weight, ..Share::default() }, 2);
        }
        // A has its only queue where B has one of two.
        shares.count(A, CoreIndex(0), 1);
        shares.count(B, CoreIndex(0), 1);
        shares.divide(2);
        let weight = |shares: &Shares, tenant, core| shares.on(tenant, CoreIndex(core)).unwrap().weight;
        assert_eq!([A, B].map(|tenant| weight(&shares, tenant, 0)), [1, 2]);
        assert!(shares.count(B, CoreIndex(1), 1));
        shares.divide(2);
        assert_eq!([A, B].map(|tenant| weight(&shares, tenant, 0)), [1, 1]);
        assert_eq!(weight(&shares, B, 1), 2);
        assert_eq!(shares.of_node(B).unwrap().weight, 2);
    }

    #[test]
    fn a_tenant_without_limits_or_guarantee_has_the_same_share_wherever_it_is() {
        let mut shares = Shares::new(2, false);
        shares.configure(A, Share { weight: 7, ..Share::default() }, 2);
        assert_eq!(shares.divide(2).len(), 2);
        assert!(!shares.count(A, CoreIndex(1), 1));
        assert!(shares.divide(2).is_empty());
    }
}
