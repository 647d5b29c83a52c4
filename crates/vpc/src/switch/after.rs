//! After the flow tier: next hop, path MTU, rewriting, encapsulation (Zephyrus §3.2, post-DPU).

use super::{Ask, Frame, Ingress, Metadata, Outer, Stop, encapsulate, offload, outer, rewrite};
use crate::flow::{Action, Origin, Seen};
use crate::id::{EndpointId, HopId, Vni};
use crate::packet::parse::ETHERNET;
use crate::packet::{Checksum, Ip, Mac, Packet};
use crate::tables::{Egress, Hop, Tables, Tunnel};
use crate::verdict::{DropReason, Verdict};

/// A frame that may leave: everything about it was checked.
#[derive(Clone, Copy)]
pub(crate) struct Departure<'a> {
    ip: Ip,
    hop_id: HopId,
    hop: Hop,
    tunnel: Option<&'a Tunnel>,
    vni: Vni,
    /// The inner source MAC address, where it is to be another.
    source: Option<Mac>,
    /// What a SYN may announce, by its packets' size; None: what it likes.
    clamp: Option<u16>,
    ecn: Option<u8>,
    routed: bool,
}

impl Departure<'_> {
    /// What is done to the packets of the flow that this is the first of.
    pub fn action(&self, metadata: &Metadata) -> Action {
        let Metadata { hash, is_ecmp_member, is_same_subnet, .. } = *metadata;
        let origin = match metadata.ingress {
            Ingress::Endpoint(_) => Origin::port(metadata.metered),
            Ingress::Tunnel(_) => Origin::tunnel(metadata.return_hop),
        };
        let connection = metadata.connection.map(|connection| connection.into());
        let is_translated = metadata.crossing.is_some();
        let (hop, is_routed) = (self.hop_id, self.routed);
        Action { hash, hop, is_routed, is_ecmp_member, is_same_subnet, is_translated, origin, connection }
    }

    /// Bytes of the frame without padding.
    pub fn len(&self) -> u32 {
        self.ip.end
    }
}

/// Makes the head what leaves, as was decided for the packet's flow before, if `admit` (asked with the flow's metered
/// endpoint and the packet's length in bytes) lets it pass, and writes the verdict to `verdict`. False, and the packet
/// is unchanged, where it needs a decision of its own. `id` is the identification of the last outer packet.
#[inline(always)]
pub(crate) fn follow(
    tables: &Tables,
    packet: &mut Packet,
    seen: &Seen,
    action: &Action,
    id: &mut u16,
    admit: impl FnOnce(Option<EndpointId>, u32) -> bool,
    verdict: &mut Verdict,
) -> bool {
    let mut room = None;
    let Some(hop) = hop_of(tables, seen, action, &mut room) else { return false };
    // Each branch writes its verdict itself: one put together on the stack is read back there before its parts have
    // arrived, which waits for all stores before them.
    match hop.egress {
        Egress::Port(port) => {
            if admit(action.origin.metered(), seen.end.get().into()) {
                rewrite_inner(packet, seen, action.is_routed, hop);
                *verdict = Verdict::Local { port, hash: action.hash };
                return true;
            }
        }
        Egress::Tunnel(tunnel) => {
            let Some(tunnel) = tables.tunnel(tunnel).filter(|tunnel| tunnel.resolved) else { return false };
            if admit(action.origin.metered(), seen.end.get().into()) {
                *id = id.wrapping_add(1);
                rewrite_and_depart(packet, seen, (action.hash, action.is_routed), hop, tunnel, *id, verdict);
                return true;
            }
        }
    }
    *verdict = Verdict::Drop(DropReason::Metered);
    true
}

/// The part of [`follow`] for a packet that goes into a tunnel, outside of the loop over those that do not. The
/// action's parts are passed by value: passed whole, it would be stored to memory for all packets.
#[inline(never)]
fn rewrite_and_depart(
    packet: &mut Packet,
    seen: &Seen,
    (hash, is_routed): (u32, bool),
    hop: &Hop,
    tunnel: &Tunnel,
    id: u16,
    verdict: &mut Verdict,
) {
    rewrite_inner(packet, seen, is_routed, hop);
    *verdict = depart(packet, tunnel, hop.vni, hash, seen.traffic_class, id);
}

/// Whether [`follow`] would decide about a packet that `admit` lets pass.
pub(crate) fn may_follow(tables: &Tables, seen: &Seen, action: &Action) -> bool {
    hop_of(tables, seen, action, &mut None).is_some_and(|hop| match hop.egress {
        Egress::Port(_) => true,
        Egress::Tunnel(tunnel) => tables.tunnel(tunnel).is_some_and(|tunnel| tunnel.resolved),
    })
}

/// The next hop of a packet's flow, if this packet can go there as it is.
#[inline(always)]
fn hop_of<'a>(tables: &'a Tables, seen: &Seen, action: &Action, room: &'a mut Option<Hop>) -> Option<&'a Hop> {
    let hop = tables.hop_in(action.hop, room)?;
    let is_too_long = seen.len() - ETHERNET > usize::from(hop.mtu);
    (!is_too_long && (!action.is_routed || seen.hop_limit > 1)).then_some(hop)
}

/// Does the same for a packet that came by a tunnel, with the outer headers `came`.
#[inline(always)]
pub(crate) fn follow_tunnelled(
    tables: &Tables,
    packet: &mut Packet,
    seen: &Seen,
    came: &Outer,
    action: &Action,
    id: &mut u16,
    verdict: &mut Verdict,
) -> bool {
    let (mut room, mut room_back) = (None, None);
    let Some(hop) = hop_of(tables, seen, action, &mut room) else { return false };
    let mut source = hop.gateway_mac;
    if let Some(return_hop) = action.origin.return_hop() {
        // A source that is behind another tunnel now, or at a port, does not send by this one.
        match tables.hop_in(return_hop, &mut room_back) {
            Some(back) if back.egress == Egress::Tunnel(came.tunnel) => {
                if action.is_same_subnet && !action.is_routed {
                    source = back.mac;
                }
            }
            _ => return false,
        }
    }
    let inner = seen.traffic_class & 3;
    let Ok(ecn) = outer::decapsulated_ecn(inner, came.ecn) else { return false };
    let tunnel = match hop.egress {
        Egress::Port(_) if action.is_routed => return false,
        Egress::Port(_) => None,
        Egress::Tunnel(id) => {
            let is_transit = tables.network(came.network).is_some_and(|network| network.transit);
            let tunnel = tables.tunnel(id).filter(|tunnel| tunnel.resolved);
            let Some(tunnel) = tunnel.filter(|_| is_transit && id != came.tunnel && action.is_routed) else {
                return false;
            };
            Some(tunnel)
        }
    };
    packet.head.strip(came.len.into());
    packet.checksum = came.checksum;
    packet.truncate(seen.len());
    let frame = packet.head.bytes_mut();
    rewrite::set_macs(frame, hop.mac, Some(source));
    let is_ipv6 = seen.key.is_ipv6();
    if action.is_routed {
        rewrite::decrement_hop_limit(frame, ETHERNET, is_ipv6);
    }
    if ecn != inner {
        rewrite::set_ecn(frame, ETHERNET, is_ipv6, ecn);
    }
    *verdict = match (hop.egress, tunnel) {
        (Egress::Port(port), _) => Verdict::Local { port, hash: action.hash },
        (Egress::Tunnel(_), Some(tunnel)) => {
            *id = id.wrapping_add(1);
            depart(packet, tunnel, hop.vni, action.hash, seen.traffic_class & !3 | ecn, *id)
        }
        (Egress::Tunnel(_), None) => Verdict::Drop(DropReason::Unresolved),
    };
    true
}

/// Makes the inner frame what leaves.
#[inline(always)]
fn rewrite_inner(packet: &mut Packet, seen: &Seen, is_routed: bool, hop: &Hop) {
    packet.truncate(seen.len());
    let frame = packet.head.bytes_mut();
    if is_routed {
        route_inner(frame, hop, seen.key.is_ipv6());
    } else {
        rewrite::set_macs(frame, hop.mac, None);
    }
}

/// As a router does it.
#[inline(never)]
fn route_inner(frame: &mut [u8], hop: &Hop, is_ipv6: bool) {
    rewrite::set_macs(frame, hop.mac, Some(hop.gateway_mac));
    rewrite::decrement_hop_limit(frame, ETHERNET, is_ipv6);
}

/// Changes the inner frame of a packet that is ready to leave; where that cannot be done, it is dropped.
pub(crate) fn rewrite_sent(
    packet: &mut Packet,
    verdict: &mut Verdict,
    rewrite: impl FnOnce(&mut [u8], Checksum) -> Option<()>,
) {
    let overhead = match verdict {
        Verdict::Local { .. } => 0,
        Verdict::Underlay { overhead, .. } => usize::from(*overhead),
        Verdict::Software | Verdict::Consumed | Verdict::Drop(_) => return,
    };
    let sum = packet.checksum;
    let frame = packet.head.bytes_mut().get_mut(overhead..);
    if frame.and_then(|frame| rewrite(frame, sum)).is_none() {
        *verdict = Verdict::Drop(DropReason::Headers);
    }
}

/// Puts the outer headers before a frame.
#[inline(never)]
fn depart(packet: &mut Packet, tunnel: &Tunnel, vni: Vni, hash: u32, traffic_class: u8, id: u16) -> Verdict {
    let inner = packet.len();
    let overhead = tunnel.headers().len();
    match packet.head.prepend(overhead) {
        Some(headers) => {
            encapsulate(headers, tunnel, vni, hash, inner, traffic_class, id);
            Verdict::Underlay { port: tunnel.port, hash, overhead: overhead as u16 }
        }
        None => Verdict::Drop(DropReason::Headers),
    }
}

/// Resolves the next hop and checks whether the frame can go there. The frame stays as it is.
#[inline]
pub(crate) fn check<'a>(
    tables: &'a Tables,
    packet: &Packet,
    frame: &Frame,
    metadata: &Metadata,
) -> Result<Departure<'a>, Stop> {
    let ip = *frame.parsed.ip().ok_or(DropReason::EtherType)?;
    let hop_id = metadata.hop.ok_or(DropReason::Unresolved)?;
    let hop = tables.hop(hop_id).ok_or(DropReason::Unresolved)?;
    let network = tables.network(hop.network).ok_or(DropReason::UnknownNetwork)?;
    let routed = match metadata.ingress {
        Ingress::Endpoint(_) => !metadata.is_same_subnet,
        // From node to node: the hop limit ends loops.
        Ingress::Tunnel(_) => matches!(hop.egress, Egress::Tunnel(_)),
    };
    if routed && ip.hop_limit <= 1 {
        return Err(Stop::Ask(Ask::HopLimit));
    }
    let tunnel = match hop.egress {
        Egress::Port(_) => None,
        Egress::Tunnel(tunnel) => {
            Some(tables.tunnel(tunnel).filter(|tunnel| tunnel.resolved).ok_or(DropReason::Unresolved)?)
        }
    };
    if offload::packet_len(&ip, packet.segmentation) > usize::from(hop.mtu) {
        let ask = if ip.dont_fragment { Ask::PathMtu(hop.mtu) } else { Ask::Fragment(hop.mtu) };
        return Err(Stop::Ask(ask));
    }
    let (source, clamp, ecn) = match metadata.ingress {
        Ingress::Endpoint(_) => (routed.then_some(network.gateway_mac), tunnel.map(|_| hop.mtu), None),
        Ingress::Tunnel(_) => {
            let inner = ip.traffic_class & 3;
            let ecn = outer::decapsulated_ecn(inner, frame.ecn)?;
            let back = metadata.return_hop.and_then(|back| tables.hop(back));
            // A MAC address from a tunnel is not trusted: the source is the endpoint in the same subnet, or the router.
            let own = back.filter(|_| metadata.is_same_subnet && !routed);
            let source = own.map_or(network.gateway_mac, |back| back.mac);
            let clamp = back.map_or(hop.mtu, |back| hop.mtu.min(back.mtu));
            (Some(source), Some(clamp), (ecn != inner).then_some(ecn))
        }
    };
    Ok(Departure { ip, hop_id, hop, tunnel, vni: network.vni, source, clamp, ecn, routed })
}

/// Makes the head what leaves.
#[inline]
pub(crate) fn send(
    packet: &mut Packet,
    frame: &Frame,
    metadata: &Metadata,
    departure: &Departure<'_>,
    id: u16,
) -> Verdict {
    let Departure { ip, hop, .. } = departure;
    if metadata.tunnel().is_some() {
        packet.head.strip(frame.outer.into());
        packet.checksum = frame.checksum;
    }
    packet.truncate(ip.end as usize);
    let checksum: Checksum = packet.checksum;
    let frame = packet.head.bytes_mut();
    rewrite::set_macs(frame, hop.mac, departure.source);
    if departure.routed {
        rewrite::decrement_hop_limit(frame, ip.header.into(), ip.is_ipv6());
    }
    let mut traffic_class = ip.traffic_class;
    if let Some(ecn) = departure.ecn {
        rewrite::set_ecn(frame, ip.header.into(), ip.is_ipv6(), ecn);
        // Of the next tunnel, too: it is put on as it is now (RFC 6040 §4.1).
        traffic_class = traffic_class & !3 | ecn;
    }
    if let Some(mtu) = departure.clamp {
        rewrite::clamp_mss(frame, ip, checksum, mtu);
    }
    match (hop.egress, departure.tunnel) {
        (Egress::Port(port), _) => Verdict::Local { port, hash: metadata.hash },
        (Egress::Tunnel(_), Some(tunnel)) => depart(packet, tunnel, departure.vni, metadata.hash, traffic_class, id),
        (Egress::Tunnel(_), None) => Verdict::Drop(DropReason::Unresolved),
    }
}
