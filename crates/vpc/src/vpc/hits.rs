//! The first passes over a batch: each packet's key, its line of the index, its flow, and what that decides. Loops
//! without a call for nearly all packets; the others are left to `look_closer`.

use super::arrivals::Arrival;
use super::follow::Follower;
use super::leases::CoreMeters;
use super::{FlowLookup, Vpc};
use crate::flow::{self, Flows};
use crate::packet::Packet;
use crate::policy::meter::MeterCount;
use crate::tables::{MeteredPort, Tables};
use crate::verdict::Verdict;

/// What the packets' flows are known by, and where they probably are, on their way into the cache. Gives the endpoint
/// that sends the first of them, where that has meters, which are on their way as well.
pub(super) fn look(
    tables: &Tables,
    meters: &CoreMeters,
    flows: &Flows,
    packets: &[Packet],
    all: &mut Vec<Option<FlowLookup>>,
) -> Option<MeteredPort> {
    all.resize(packets.len(), None);
    let sender = packets.first().and_then(|first| tables.metered_port(first.port));
    if let Some(sender) = sender {
        meters.prefetch(sender.meters);
    }
    read_keys(flows, packets, all);
    approach(flows, all);
    sender
}

/// What [`forward`](Vpc::forward) begins with, part by part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Each packet's key is read and hashed.
    Key,
    /// Then its line of the index is looked through.
    Index,
    /// Then its flow is compared with the key, and its version with the one in force.
    Entry,
}

impl Vpc {
    /// Does what [`forward`](Self::forward) begins with, as far as `to`, and nothing else, so that it can be seen what
    /// that costs. Returns how many packets had a key, or a flow that decides.
    pub fn look_up(&mut self, packets: &[Packet], to: Part) -> usize {
        let (flows, all) = (&self.flows, &mut self.batch.lookups);
        all.resize(packets.len(), None);
        read_keys(flows, packets, all);
        if to >= Part::Index {
            approach(flows, all);
        }
        let is_found =
            |lookup: &&FlowLookup| to < Part::Entry || flows.hit(lookup.candidate, &lookup.seen.key).is_some();
        all.iter().flatten().filter(is_found).count()
    }
}

#[inline(never)]
fn read_keys(flows: &Flows, packets: &[Packet], all: &mut [Option<FlowLookup>]) {
    for (packet, lookup) in packets.iter().zip(all) {
        match flow::see_ipv4(packet) {
            Some(seen) => *lookup = Some(FlowLookup::new(flows, seen)),
            None => read_other_key(flows, packet, lookup),
        }
    }
}

/// The key of a packet that has not the shape of IPv4 in flows.
#[inline(never)]
fn read_other_key(flows: &Flows, packet: &Packet, lookup: &mut Option<FlowLookup>) {
    *lookup = flow::see_ipv6(packet).map(|seen| FlowLookup::new(flows, seen));
}

#[inline(never)]
fn approach(flows: &Flows, all: &mut [Option<FlowLookup>]) {
    for lookup in all.iter_mut().flatten() {
        lookup.candidate = flows.approach(lookup.home);
    }
}

impl Vpc {
    /// Does what their flows decide to packets from the first on, which is the one at `at`, for as long as those are
    /// found where they were looked for. Returns how many; the one behind them is left to
    /// [`look_closer`](Self::look_closer).
    #[inline(never)]
    pub(super) fn follow_known(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        all: &[Option<FlowLookup>],
        decided: &mut [Verdict],
        at: usize,
    ) -> usize {
        let Vpc { tables, flows, meters: core_meters, id, stats, shard, batch, .. } = self;
        let meters = &mut batch.meters;
        let mut follower = Follower { tables, flows, id, shard: *shard, now };
        let (mut done, mut local, mut metered) = (0, 0, MeterCount::default());
        for ((packet, lookup), decided) in packets.iter_mut().zip(all).zip(decided) {
            let Some(FlowLookup { seen, candidate, .. }) = lookup else { break };
            let Some(hit) = follower.flows.hit(*candidate, &seen.key) else { break };
            let action = hit.action();
            let flow = (candidate.entry(), &action);
            // Two copies of the code that follows: one that asks about meters for each packet is slower for all.
            match action.origin.metered() {
                None => {
                    if !follower.follow::<false>(packet, seen, None, flow, |_, _| true, decided) {
                        break;
                    }
                }
                endpoint @ Some(metered_by) => {
                    let Some(passes) = meters.passes(at + done, metered_by) else {
                        meters.wanted = endpoint;
                        break;
                    };
                    if !follower.follow::<false>(packet, seen, None, flow, |_, _| passes, decided) {
                        break;
                    }
                    metered.add(seen.end.get().into());
                }
            }
            match decided {
                Verdict::Local { .. } => local += 1,
                _ => stats.count_followed(decided, true),
            }
            done += 1;
        }
        stats.count_local(local);
        meters.settle(core_meters, metered);
        done
    }

    /// Does what their flows decide to packets from tunnels, from the first on, for as long as those are found where
    /// they were looked for. Returns how many; the one behind them is left to [`look_closer`](Self::look_closer).
    #[inline(never)]
    pub(super) fn follow_arrived(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        all: &[Option<FlowLookup>],
        decided: &mut [Verdict],
        from: usize,
    ) -> usize {
        let Vpc { tables, flows, id, stats, shard, batch, .. } = self;
        let mut follower = Follower { tables, flows, id, shard: *shard, now };
        let mut done = 0;
        let arrivals = batch.arrivals.get(from..).unwrap_or_default();
        for (((packet, lookup), arrival), decided) in packets.iter_mut().zip(all).zip(arrivals).zip(decided) {
            let (Some(FlowLookup { seen, .. }), Some(Arrival { outer, candidate })) = (lookup, arrival) else { break };
            let Some(hit) = follower.flows.hit(*candidate, &seen.key) else { break };
            let flow = (candidate.entry(), &hit.action());
            // Meters are of endpoints that send from here.
            if !follower.follow::<false>(packet, seen, Some(outer), flow, |_, _| true, decided) {
                break;
            }
            stats.count_followed(decided, false);
            done += 1;
        }
        done
    }
}
