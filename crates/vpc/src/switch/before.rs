//! Before the flow tier: parse, classify, network, route (Zephyrus §4.2, figure 5).

use std::net::IpAddr;

use super::route::{self, Resolved};
use super::{Ask, Frame, Ingress, Metadata, Stop, nat, offload, outer, spoof};
use crate::exact::{ExactKey, HomeSlot};
use crate::hash::five_tuple_hash;
use crate::id::EndpointId;
use crate::nat::Way;
use crate::packet::Checksum;
use crate::packet::{Ip, Packet, Parsed, Payload, parse};
use crate::spec::UnderlaySpec;
use crate::stamp::Stamp;
use crate::tables::{Attachment, FibEntry, Tables, Target};
use crate::verdict::DropReason;

/// The look-up of a destination's address: its first slot is on its way into the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DestinationLookup {
    key: ExactKey,
    home: HomeSlot,
    /// Of a frame from an endpoint: the entry of the source; None where that is not the endpoint's own address.
    source: Option<FibEntry>,
}

/// A frame of a known network.
pub(crate) type Classified = (Frame, Metadata, DestinationLookup);

/// Parses and classifies a frame, and starts fetching what is looked up next. The frame stays as it is.
#[inline]
pub(crate) fn classify(tables: &Tables, packet: &Packet) -> Result<Classified, Stop> {
    match tables.attachment(packet.port) {
        Attachment::Endpoint(id) => from_endpoint(tables, id, packet),
        Attachment::Underlay => match tables.underlay() {
            Some(underlay) => from_tunnel(tables, underlay, packet),
            None => Err(DropReason::PortDown.into()),
        },
        Attachment::Nothing => Err(DropReason::PortDown.into()),
    }
}

#[inline]
fn from_endpoint(tables: &Tables, id: EndpointId, packet: &Packet) -> Result<Classified, Stop> {
    let endpoint = tables.endpoint(id).ok_or(DropReason::PortDown)?;
    let parsed = parse(packet.head.bytes(), packet.len())?;
    if parsed.source.is_group() || (endpoint.spoof_check && parsed.source != endpoint.mac) {
        return Err(DropReason::SpoofedMac.into());
    }
    let ip = ip(packet, &parsed, packet.head.len(), packet.checksum, |arp| spoof::arp(endpoint, arp))?;
    let source = spoof::source(tables, endpoint, id, &parsed, &ip)?;
    let mut metadata = Metadata::new(endpoint.network, Ingress::Endpoint(id));
    let mut frame = Frame { parsed, outer: 0, ecn: 0, checksum: packet.checksum };
    if let Some(of) = endpoint.nat
        && let Some((crossing, routes)) = nat::enter(tables, (id, endpoint), of, &mut frame, packet.head.bytes())?
    {
        metadata.crossing = Some(crossing);
        metadata.decided_by([routes]);
        let ip = *frame.parsed.ip().ok_or(DropReason::EtherType)?;
        return finish(tables, frame, &ip, metadata, source);
    }
    finish(tables, frame, &ip, metadata, source)
}

#[inline]
fn from_tunnel(tables: &Tables, underlay: &UnderlaySpec, packet: &Packet) -> Result<Classified, Stop> {
    let outer = outer::outer(tables, underlay, packet)?;
    let head = packet.head.bytes();
    // The head may be longer than the outer packet: what follows that is padding.
    let inner = &head[usize::from(outer.len).min(head.len())..];
    let inner = &inner[..inner.len().min(outer.inner)];
    let parsed = parse(inner, outer.inner)?;
    // ARP through a tunnel is a broadcast: neighbours are known by the tables.
    let ip = ip(packet, &parsed, inner.len(), outer.checksum, |_| DropReason::Multicast.into())?;
    let metadata = Metadata::new(outer.network, Ingress::Tunnel(outer.tunnel));
    finish(tables, Frame { parsed, outer: outer.len, ecn: outer.ecn, checksum: outer.checksum }, &ip, metadata, None)
}

/// The IP headers, if that is what the frame has and its offload fits.
#[inline]
fn ip(
    packet: &Packet,
    parsed: &Parsed,
    head: usize,
    checksum: Checksum,
    arp: impl FnOnce(&crate::packet::Arp) -> Stop,
) -> Result<Ip, Stop> {
    if parsed.vlan.is_some() {
        return Err(DropReason::Vlan.into());
    }
    match &parsed.payload {
        Payload::Ip(ip) => {
            offload::check(ip, head, checksum, packet.segmentation)?;
            Ok(*ip)
        }
        Payload::Arp(message) => {
            offload::none(checksum, packet.segmentation)?;
            Err(arp(message))
        }
        Payload::Other { .. } => Err(DropReason::EtherType.into()),
    }
}

#[inline]
fn finish(
    tables: &Tables,
    frame: Frame,
    ip: &Ip,
    mut metadata: Metadata,
    source: Option<FibEntry>,
) -> Result<Classified, Stop> {
    let broadcast = matches!(ip.destination, IpAddr::V4(address) if address.is_broadcast());
    if frame.parsed.destination.is_group() || broadcast || ip.destination.is_multicast() {
        return Err(DropReason::Multicast.into());
    }
    let key = ExactKey::address(metadata.network.number(), ip.destination);
    let home = tables.addresses().home(&key);
    tables.addresses().prefetch(home);
    metadata.hash = five_tuple_hash(ip);
    Ok((frame, metadata, DestinationLookup { key, home, source }))
}

/// Finds where a frame goes, by its inner destination: the next hop, and the versions of what decided. A frame for an
/// outside address of inside goes on with the inside one.
#[inline]
pub(crate) fn find(
    tables: &Tables,
    frame: &mut Frame,
    packet: &Packet,
    metadata: &mut Metadata,
    destination: &DestinationLookup,
) -> Result<(), Stop> {
    find_hop(tables, frame, metadata, destination)?;
    if tables.has_nat() { cross(tables, frame, packet, metadata, destination) } else { Ok(()) }
}

/// What a route leads to an exit with translation is to be translated.
#[inline(never)]
fn cross(
    tables: &Tables,
    frame: &mut Frame,
    packet: &Packet,
    metadata: &mut Metadata,
    destination: &DestinationLookup,
) -> Result<(), Stop> {
    let Some(exit) = metadata.hop.filter(|_| metadata.is_by_route) else { return Ok(()) };
    if metadata.crossing.is_some() {
        // From one exit to another: it would be translated twice.
        return if nat::leave(tables, exit, frame)?.is_some() { Err(DropReason::NoRoute.into()) } else { Ok(()) };
    }
    metadata.crossing = nat::leave(tables, exit, frame)?;
    let Some(crossing) = metadata.crossing.filter(|crossing| crossing.way == Way::Hairpin) else { return Ok(()) };
    let bytes = packet.head.bytes().get(frame.outer.into()..).unwrap_or_default();
    let nat = tables.nat(crossing.nat).ok_or(DropReason::NoTranslation)?;
    nat::turn_inward(nat, frame, bytes, crossing.way)?;
    let ip = frame.parsed.ip().ok_or(DropReason::EtherType)?;
    let key = ExactKey::address(metadata.network.number(), ip.destination);
    let inside = DestinationLookup { key, home: tables.addresses().home(&key), source: destination.source };
    find_hop(tables, frame, metadata, &inside)?;
    if metadata.hop == Some(exit) {
        // The inside address is outside.
        return Err(DropReason::NoRoute.into());
    }
    // There is a router between the two, whatever their subnets are.
    metadata.is_same_subnet = false;
    Ok(())
}

#[inline]
fn find_hop(
    tables: &Tables,
    frame: &Frame,
    metadata: &mut Metadata,
    destination: &DestinationLookup,
) -> Result<(), Stop> {
    let ip = frame.parsed.ip().ok_or(DropReason::EtherType)?;
    let exact = tables.addresses().get_at(destination.home, &destination.key);
    let exact = exact.or_else(|| tables.resolve_loaded(metadata.network, ip.destination));
    let resolved = match exact.map(|entry| (entry, entry.hop())) {
        Some((_, None)) => {
            return Err(match metadata.ingress {
                Ingress::Endpoint(_) => spoof::gateway(ip),
                // Each node has its own gateway.
                Ingress::Tunnel(_) => DropReason::NoRoute.into(),
            });
        }
        Some((entry, Some(hop))) => {
            let decided_by = tables.address_stamp(metadata.network, ip.destination, hop);
            Some(Resolved { entry, decided_by, also: Stamp::default(), is_ecmp_member: false, is_owned: true })
        }
        None => route::resolve(tables, metadata.network, metadata.hash, ip)?,
    };
    metadata.is_by_route = resolved.is_none_or(|resolved| !resolved.is_owned);
    metadata.is_ecmp_member = resolved.is_some_and(|resolved| resolved.is_ecmp_member);
    let found = resolved.and_then(|resolved| Some((resolved, resolved.entry.hop()?)));
    let (resolved, hop, is_same_subnet) = match metadata.ingress {
        Ingress::Endpoint(endpoint) => {
            // While entries are being loaded, no sender is told that an address does not exist.
            let unknown = || if tables.is_loading() { DropReason::Unresolved.into() } else { Stop::Ask(Ask::NoRoute) };
            let (resolved, hop) = found.ok_or_else(unknown)?;
            if hop == endpoint.into() {
                // Nothing goes back to where it came from.
                return Err(DropReason::NoRoute.into());
            }
            metadata.decided_by([tables.stamp(endpoint)]);
            (resolved, hop, destination.source.is_some_and(|source| source.is_same_subnet(resolved.entry)))
        }
        Ingress::Tunnel(_) => {
            let TunnelSource { entry: source, is_owned, decided_by } = tunnel_source(tables, metadata, ip)?;
            let (resolved, hop) = found.ok_or(DropReason::NoRoute)?;
            (metadata.return_hop, metadata.is_source_owned) = (source.hop(), is_owned);
            match decided_by {
                Some(decided_by) => metadata.decided_by(decided_by),
                None => metadata.is_uncacheable = true,
            }
            (resolved, hop, source.is_same_subnet(resolved.entry))
        }
    };
    let is_local = tables.is_local(hop);
    // Only a gateway passes packets on from node to node. Elsewhere the destination has moved.
    if !is_local && let Ingress::Tunnel(from) = metadata.ingress {
        let is_transit = tables.network(metadata.network).is_some_and(|network| network.transit);
        if !is_transit || tables.tunnel_of(hop).is_none_or(|to| to == from && metadata.crossing.is_none()) {
            return Err(DropReason::Unresolved.into());
        }
    }
    metadata.hop = Some(hop);
    metadata.is_same_subnet = is_same_subnet;
    metadata.is_local = is_local;
    // The stamp of a bucket covers the next hop of its member, unless that is an endpoint.
    let is_covered = metadata.is_ecmp_member && tables.endpoint_at(hop).is_none();
    let of_hop = if is_covered { Stamp::default() } else { tables.hop_stamp(hop) };
    metadata.decided_by([resolved.decided_by, resolved.also, of_hop]);
    Ok(())
}

/// The source of a packet from a tunnel.
struct TunnelSource {
    /// An endpoint at the other end of the tunnel, a route to there, or the gateway, which each node has.
    entry: FibEntry,
    /// The entry is that of the source's address.
    is_owned: bool,
    /// What decided so; None where more did than a flow is compared with. It does not cover that the entry leads to
    /// this very tunnel, which is checked for each packet.
    decided_by: Option<[Stamp; 2]>,
}

/// Resolves the source of a packet from a tunnel.
#[inline]
fn tunnel_source(tables: &Tables, metadata: &Metadata, ip: &Ip) -> Result<TunnelSource, DropReason> {
    let network = metadata.network;
    if let Some(entry) = tables.resolve(network, ip.source) {
        let by = |stamp| Ok(TunnelSource { entry, is_owned: true, decided_by: Some([stamp, Stamp::default()]) });
        return match entry.hop().map(|hop| (hop, tables.tunnel_of(hop))) {
            None => by(tables.routes_stamp(network)),
            Some((hop, tunnel)) if tunnel.is_some() && tunnel == metadata.tunnel() => {
                by(tables.address_stamp(network, ip.source, hop))
            }
            Some(_) => Err(DropReason::SpoofedAddress),
        };
    }
    // The route that the destination's answers take, or those of any other endpoint of the network.
    let back = tables.route_from(network, ip.destination, ip.source);
    // An entry that is being loaded may put the address behind another tunnel.
    if tables.may_load(network, ip.source, back.is_policy_route) {
        return Err(DropReason::Unresolved);
    }
    let is_loading = tables.loads_network(network);
    let also = if back.is_policy_route && !is_loading { tables.route(network, ip.source) } else { None };
    let routes = [back.entry, also];
    for route in routes.into_iter().flatten() {
        if let Some(entry) = tables.hop_through(route, ip.source, metadata.tunnel()) {
            let hop = entry.hop().unwrap_or_default();
            let through = match route.target() {
                Target::Ecmp(group) => {
                    tables.ecmp_group(group).map_or(Stamp::default(), |group| tables.stamp(group.object))
                }
                Target::Peer(peer) => tables.address_stamp(peer, ip.source, hop),
                Target::Hop(_) | Target::Connected | Target::Blackhole => tables.hop_stamp(hop),
            };
            let is_peer = |route: FibEntry| matches!(route.target(), Target::Peer(_));
            // Which of two routes it is depends on where other endpoints are, and matters where one leads to a peer.
            let is_either = also.is_some() && routes.into_iter().flatten().any(is_peer);
            let decided_by = (!is_either).then_some([back.decided_by, through]);
            return Ok(TunnelSource { entry, is_owned: is_peer(route), decided_by });
        }
    }
    let may_load = |route: FibEntry| match route.target() {
        Target::Peer(peer) => tables.loads_network(peer) && tables.resolve(peer, ip.source).is_none(),
        Target::Hop(_) | Target::Ecmp(_) | Target::Connected | Target::Blackhole => false,
    };
    let is_unresolved = is_loading || routes.into_iter().flatten().any(may_load);
    Err(if is_unresolved { DropReason::Unresolved } else { DropReason::SpoofedAddress })
}
