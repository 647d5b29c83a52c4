//! The passes over what came by tunnels: each packet's outer headers, the key of the frame inside, its flow, and what that decides.
//!
//! A flow of a tunnel's packets is known by the network and the 5-tuple. What depends on more than these is looked up for every packet:
//! whether the sender's node is one of the network, and whether the source is behind that very tunnel.

use super::hits::seek;
use super::{Sought, Vpc, goes_on};
use crate::flow::{self, Candidate, Flows, Seen};
use crate::packet::Packet;
use crate::spec::UnderlaySpec;
use crate::switch::{Outer, after, outer};
use crate::tables::Tables;
use crate::verdict::Verdict;

/// A packet from a tunnel that may be in a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub outer: Outer,
    /// The entry that its flow probably is.
    pub candidate: Candidate,
}

/// What a packet from the underlay's port is known by, where it came by a tunnel and is of a shape that flows are made of.
#[inline]
pub(super) fn see(tables: &Tables, underlay: &UnderlaySpec, packet: &Packet) -> Option<(Outer, Seen)> {
    if packet.segmentation.is_some() {
        return None;
    }
    let outer = outer(tables, underlay, packet).ok()?;
    let network = Some(tables.network(outer.network)?.routes);
    let head = packet.head.bytes().get(outer.len.into()..)?;
    let head = &head[..head.len().min(outer.inner)];
    let inner = flow::Bytes { head, len: outer.inner, checksum: outer.checksum, port: packet.port, network };
    Some((outer, flow::see_bytes(&inner)?))
}

/// What packets from the underlay are known by, in `all` and, by the packet, in `arrivals`; their entries are on their way into the
/// cache. Other packets are left as they are.
#[inline(never)]
pub(super) fn look(
    tables: &Tables,
    flows: &Flows,
    packets: &[Packet],
    all: &mut [Option<Sought>],
    arrivals: &mut Vec<Option<Arrival>>,
) {
    arrivals.clear();
    arrivals.resize(packets.len(), None);
    let Some(underlay) = tables.underlay() else { return };
    for ((packet, sought), arrival) in packets.iter().zip(&mut *all).zip(&mut *arrivals) {
        if packet.port == underlay.port
            && let Some((outer, seen)) = see(tables, underlay, packet)
        {
            *sought = Some(seek(flows, seen));
            *arrival = Some(Arrival { outer, candidate: Candidate::NONE });
        }
    }
    for (sought, arrival) in all.iter().zip(arrivals) {
        if let (Some(sought), Some(arrival)) = (sought, arrival) {
            arrival.candidate = flows.approach(sought.home);
        }
    }
}

impl Vpc {
    /// Does what their flows decide to packets from tunnels, from the first on, for as long as those are found where they were looked
    /// for. Returns how many; somebody else is to see to the one behind them.
    #[inline(never)]
    pub(super) fn follow_arrived(
        &mut self,
        now: u64,
        packets: &mut [Packet],
        all: &[Option<Sought>],
        decided: &mut [Verdict],
        from: usize,
    ) -> usize {
        let Vpc { tables, flows, id, stats, shard, arrivals, .. } = self;
        let tables = &**tables;
        let mut done = 0;
        let arrivals = arrivals.get(from..).unwrap_or_default();
        for (((packet, sought), arrival), decided) in packets.iter_mut().zip(all).zip(arrivals).zip(decided) {
            let (Some(sought), Some(Arrival { outer, candidate })) = (sought, arrival) else { break };
            let Some(hit) = flows.hit(*candidate, &sought.seen.key) else { break };
            let action = hit.action();
            let entry = candidate.entry();
            if action.connection != flow::NONE
                && !goes_on::<false>(tables, flows, packet, (sought, outer.len), entry, now)
            {
                break;
            }
            if !after::follow_tunnelled(tables, packet, &sought.seen, outer, &action, id, decided) {
                break;
            }
            flows.count(entry, sought.seen.len() as u64);
            if action.is_member && !matches!(decided, Verdict::Drop(_)) {
                tables.count_member(action.hop, *shard, sought.seen.len() as u64);
            }
            stats.count_followed(decided, false);
            done += 1;
        }
        done
    }
}
