//! Which stale flows of a batch are computed anew.
//!
//! All, where they are few. Where a change has made more of them stale than [`RECOMPUTATIONS`], each network has its
//! turn: one flow of each, then a second, from the network after the one that was last served on. So a batch, and with
//! it whoever waits for a packet whose flow is fresh, is held up for so many computations at most, and a tenant whose
//! flows all went stale takes no other's turn.

use super::table::FlowIndex;
use crate::id::NetworkId;

/// Stale flows that a batch computes anew. Half of an engine's burst; at 100 to 200 ns each, 2 to 3 µs.
pub(crate) const RECOMPUTATIONS: usize = 16;

/// A packet whose flow is stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stale {
    /// The packet, by its place in the batch.
    pub at: u32,
    /// Its flow.
    pub entry: FlowIndex,
    /// The network whose budget the computation takes.
    pub network: Option<NetworkId>,
    /// Whether it is the first of its flow in the batch.
    pub is_first: bool,
    /// Its flow's number among those of its network.
    rank: u32,
    /// Whether its flow is computed anew, or is one's that is.
    pub is_chosen: bool,
}

impl Stale {
    pub fn new(at: u32, entry: FlowIndex, network: Option<NetworkId>) -> Stale {
        Stale { at, entry, network, is_first: false, rank: 0, is_chosen: false }
    }
}

/// Chooses among `stale`, which are in the order of their packets. `turn` is the network that comes first; it moves on.
pub(crate) fn choose(stale: &mut [Stale], turn: &mut u32) {
    let mut flows = 0;
    for at in 0..stale.len() {
        let (before, rest) = stale.split_at_mut(at);
        let this = &mut rest[0];
        this.is_first = before.iter().all(|other| other.entry != this.entry);
        if this.is_first {
            let same = |other: &&Stale| other.is_first && other.network == this.network;
            this.rank = before.iter().filter(same).count() as u32;
            flows += 1;
        }
    }
    if flows <= RECOMPUTATIONS {
        stale.iter_mut().for_each(|one| one.is_chosen = true);
        return;
    }
    let from = *turn;
    // The rank first; within one, networks from `from` on.
    let order = |one: &Stale| (one.rank, one.network.map_or(u32::MAX, NetworkId::number).wrapping_sub(from));
    let mut firsts: Vec<(u32, u32)> = stale.iter().filter(|one| one.is_first).map(order).collect();
    firsts.sort_unstable();
    let last = firsts[RECOMPUTATIONS - 1];
    *turn = last.1.wrapping_add(from).wrapping_add(1);
    for at in 0..stale.len() {
        let (before, rest) = stale.split_at_mut(at);
        let this = &mut rest[0];
        this.is_chosen = if this.is_first {
            order(this) <= last
        } else {
            before.iter().any(|other| other.entry == this.entry && other.is_chosen)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(flows: &[(u32, u32)], turn: &mut u32) -> Vec<(u32, u32)> {
        let mut stale: Vec<Stale> = flows
            .iter()
            .enumerate()
            .map(|(at, &(entry, network))| Stale::new(at as u32, FlowIndex::new(entry), Some(NetworkId::new(network))))
            .collect();
        choose(&mut stale, turn);
        stale
            .iter()
            .filter(|one| one.is_chosen && one.is_first)
            .filter_map(|one| Some((one.entry.number(), one.network?.number())))
            .collect()
    }

    #[test]
    fn few_are_all_computed_and_one_flow_counts_once() {
        let many_packets: Vec<_> = (0..64).map(|at| (at % 16, 0)).collect();
        assert_eq!(chosen(&many_packets, &mut 0).len(), 16);
    }

    #[test]
    fn one_network_does_not_take_the_others_turns() {
        // 30 flows of network 7, one each of 8 and 9, behind them.
        let mut flows: Vec<_> = (0..30).map(|entry| (entry, 7)).collect();
        flows.extend([(30, 8), (31, 9)]);
        let chosen = chosen(&flows, &mut 0);
        assert_eq!(chosen.len(), RECOMPUTATIONS);
        assert!(chosen.contains(&(30, 8)) && chosen.contains(&(31, 9)));
    }

    #[test]
    fn with_more_networks_than_budget_each_has_its_turn() {
        let flows: Vec<_> = (0..40).map(|network| (network, network)).collect();
        let mut turn = 0;
        let mut served = std::collections::BTreeSet::new();
        for _ in 0..3 {
            served.extend(chosen(&flows, &mut turn).into_iter().map(|(_, network)| network));
        }
        assert_eq!(served.len(), 40, "40 networks in three batches of 16");
    }

    #[test]
    fn packets_of_a_chosen_flow_go_with_it() {
        let flows: Vec<_> = (0..20).chain(0..20).map(|entry| (entry, 0)).collect();
        let mut stale: Vec<Stale> = flows
            .iter()
            .enumerate()
            .map(|(at, &(entry, network))| Stale::new(at as u32, FlowIndex::new(entry), Some(NetworkId::new(network))))
            .collect();
        choose(&mut stale, &mut 0);
        assert_eq!(stale.iter().filter(|one| one.is_chosen).count(), 2 * RECOMPUTATIONS);
    }
}
