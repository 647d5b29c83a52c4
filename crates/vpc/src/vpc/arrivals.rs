//! The passes over what came by tunnels: each packet's outer headers, the key of the frame inside, its flow, and what
//! that decides.
//!
//! A flow of a tunnel's packets is known by the network and the 5-tuple. What depends on more than these is looked up
//! for every packet: whether the sender's node is one of the network, and whether the source is behind that very
//! tunnel.

use super::FlowLookup;
use crate::flow::{self, Candidate, Flows, Seen};
use crate::packet::Packet;
use crate::spec::UnderlaySpec;
use crate::switch::{Last, Outer, outer, outer_plain};
use crate::tables::Tables;

/// A packet from a tunnel that may be in a flow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    pub outer: Outer,
    /// The entry that its flow probably is.
    pub candidate: Candidate,
}

/// What a packet from the underlay's port is known by, where it came by a tunnel and is of a shape that flows are made
/// of. `last` is where the packet before belonged.
#[inline(always)]
pub(super) fn see(tables: &Tables, underlay: &UnderlaySpec, packet: &Packet, last: &mut Last) -> Option<(Outer, Seen)> {
    if packet.segmentation.is_some() {
        return None;
    }
    let outer = match outer_plain(tables, underlay, packet, last) {
        Some(outer) => outer,
        None => outer_of_any_shape(tables, underlay, packet)?,
    };
    let routes = Some(tables.network(outer.network)?.routes);
    let head = packet.head.bytes().get(outer.len.into()..)?;
    let head = &head[..head.len().min(outer.inner)];
    let inner = flow::Bytes { head, len: outer.inner, checksum: &outer.checksum, port: packet.port, routes };
    Some((outer, flow::see_bytes(&inner)?))
}

#[inline(never)]
fn outer_of_any_shape(tables: &Tables, underlay: &UnderlaySpec, packet: &Packet) -> Option<Outer> {
    outer(tables, underlay, packet).ok()
}

/// What packets are known by, in `all` and, of those from tunnels, in `arrivals`; their entries are on their way into
/// the cache.
#[inline(never)]
pub(super) fn look(
    tables: &Tables,
    flows: &Flows,
    packets: &[Packet],
    all: &mut Vec<Option<FlowLookup>>,
    arrivals: &mut Vec<Option<Arrival>>,
) {
    all.clear();
    all.resize(packets.len(), None);
    arrivals.clear();
    arrivals.resize(packets.len(), None);
    let Some(underlay) = tables.underlay() else { return };
    let mut last = Last::default();
    for ((packet, lookup), arrival) in packets.iter().zip(&mut *all).zip(&mut *arrivals) {
        if packet.port != underlay.port {
            *lookup = flow::see(packet).map(|seen| FlowLookup::new(flows, seen));
        } else if let Some((outer, seen)) = see(tables, underlay, packet, &mut last) {
            *lookup = Some(FlowLookup::new(flows, seen));
            *arrival = Some(Arrival { outer, candidate: Candidate::NONE });
        }
    }
    for (lookup, arrival) in all.iter_mut().zip(arrivals) {
        let Some(lookup) = lookup else { continue };
        let candidate = flows.approach(lookup.home);
        match arrival {
            Some(arrival) => arrival.candidate = candidate,
            None => lookup.candidate = candidate,
        }
    }
}
