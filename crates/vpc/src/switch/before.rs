//! Before the flow tier: parse, classify, network, route (Zephyrus §4.2, figure 5).

use std::net::IpAddr;

use super::route::{self, Reached};
use super::{Frame, Metadata, Stop, offload, outer, spoof};
use crate::exact::{ExactKey, HomeSlot};
use crate::hash::five_tuple_hash;
use crate::packet::Checksum;
use crate::packet::{Ip, Packet, Parsed, Payload, parse};
use crate::spec::UnderlaySpec;
use crate::stamp::Stamp;
use crate::tables::{Attachment, Leads, Owner, Tables};
use crate::verdict::DropReason;

/// Where the look-up of a destination begins, on its way into the cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sought {
    key: ExactKey,
    home: HomeSlot,
    /// Owner of the source, of a frame from an endpoint; None where that is not the endpoint's.
    owner: Option<Owner>,
}

/// A frame of which its network is known.
pub(crate) type Classified = (Frame, Metadata, Sought);

/// Parses and classifies a frame, and starts fetching what is looked up next. The frame stays as it is. `trace` is its identifier.
#[inline]
pub(crate) fn classify(tables: &Tables, packet: &Packet, trace: u32) -> Result<Classified, Stop> {
    match tables.attachment(packet.port) {
        Attachment::Endpoint(number) => from_endpoint(tables, number, packet, trace),
        Attachment::Underlay => match tables.underlay() {
            Some(underlay) => from_tunnel(tables, underlay, packet, trace),
            None => Err(DropReason::PortDown.into()),
        },
        Attachment::Nothing => Err(DropReason::PortDown.into()),
    }
}

#[inline]
fn from_endpoint(tables: &Tables, number: u32, packet: &Packet, trace: u32) -> Result<Classified, Stop> {
    let endpoint = tables.endpoint(number).ok_or(DropReason::PortDown)?;
    let parsed = parse(packet.head.bytes(), packet.len())?;
    if parsed.source.is_group() || (endpoint.spoof_check && parsed.source != endpoint.mac) {
        return Err(DropReason::SpoofedMac.into());
    }
    let ip = ip(packet, &parsed, packet.head.len(), packet.checksum, |arp| spoof::arp(endpoint, arp))?;
    let owner = spoof::source(tables, endpoint, number, &parsed, &ip)?;
    let metadata = Metadata::from_endpoint(trace, endpoint.network, number);
    finish(tables, Frame { parsed, outer: 0, ecn: 0, checksum: packet.checksum }, &ip, metadata, owner)
}

#[inline]
fn from_tunnel(tables: &Tables, underlay: &UnderlaySpec, packet: &Packet, trace: u32) -> Result<Classified, Stop> {
    let outer = outer::outer(tables, underlay, packet)?;
    let head = packet.head.bytes();
    // The head may be longer than the outer packet: what follows that is padding.
    let inner = &head[usize::from(outer.len).min(head.len())..];
    let inner = &inner[..inner.len().min(outer.inner)];
    let parsed = parse(inner, outer.inner)?;
    // Who asks through a tunnel asks everybody: neighbours are known to the control plane.
    let ip = ip(packet, &parsed, inner.len(), outer.checksum, |_| DropReason::Multicast.into())?;
    let metadata = Metadata::from_tunnel(trace, outer.network, outer.tunnel);
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
    owner: Option<Owner>,
) -> Result<Classified, Stop> {
    let broadcast = matches!(ip.destination, IpAddr::V4(address) if address.is_broadcast());
    if frame.parsed.destination.is_group() || broadcast || ip.destination.is_multicast() {
        return Err(DropReason::Multicast.into());
    }
    let key = ExactKey::address(metadata.network, ip.destination);
    let home = tables.addresses().home(&key);
    tables.addresses().prefetch(home);
    metadata.hash = five_tuple_hash(ip);
    Ok((frame, metadata, Sought { key, home, owner }))
}

/// Finds where a frame goes, by its inner destination: the number of its next hop, and the versions of what says so.
#[inline]
pub(crate) fn find(tables: &Tables, frame: &Frame, metadata: &mut Metadata, sought: &Sought) -> Result<(), Stop> {
    let ip = frame.parsed.ip().ok_or(DropReason::EtherType)?;
    let exact = tables.addresses().get_at(sought.home, &sought.key);
    let exact = exact.or_else(|| tables.loaded_owner(metadata.network, ip.destination));
    if exact.is_some_and(|owner| owner.hop().is_none()) {
        return Err(match metadata.endpoint() {
            Some(_) => spoof::gateway(ip),
            // Every node has its own gateway.
            None => DropReason::NoRoute.into(),
        });
    }
    let reached = match exact {
        Some(owner) => {
            let said_by = tables.owner_stamp(metadata.network, ip.destination, owner.hop().unwrap_or_default());
            Some(Reached { owner, said_by, also: Stamp::default(), is_member: false, is_owned: true })
        }
        None => route::reach(tables, metadata.network, metadata.hash, ip)?,
    };
    metadata.set_routed(reached.is_none_or(|reached| !reached.is_owned));
    metadata.set_to_member(reached.is_some_and(|reached| reached.is_member));
    let found = reached.and_then(|reached| Some((reached.owner, reached.owner.hop()?)));
    let (hop, is_beside) = match metadata.endpoint() {
        Some(number) => {
            // Nobody is told that an address is nobody's while those who have it are being loaded.
            let nobody =
                || if tables.is_loading() { DropReason::Unresolved.into() } else { Stop::Ask(super::Ask::NoRoute) };
            let (owner, hop) = found.ok_or_else(nobody)?;
            if hop == number {
                // Nothing goes back to where it came from.
                return Err(DropReason::NoRoute.into());
            }
            metadata.decided_by([tables.stamp(number)]);
            (hop, sought.owner.is_some_and(|source| source.is_beside(owner)))
        }
        None => {
            let Behind { owner: source, is_owner, said_by } = tunnel_source(tables, metadata, ip)?;
            let (owner, hop) = found.ok_or(DropReason::NoRoute)?;
            metadata.set_back(source.hop(), is_owner);
            match said_by {
                Some(said_by) => metadata.decided_by(said_by),
                None => metadata.set_alone(),
            }
            (hop, source.is_beside(owner))
        }
    };
    let is_here = tables.is_here(hop);
    // Nothing turns round between nodes, unless this one is there for it: what is not here has moved.
    if !is_here && let Some(from) = metadata.tunnel() {
        let is_transit = tables.network(metadata.network).is_some_and(|network| network.transit);
        if !is_transit || tables.tunnel_of(hop).is_none_or(|to| to == from) {
            return Err(DropReason::Unresolved.into());
        }
    }
    metadata.hop = hop;
    metadata.set_beside(is_beside);
    metadata.set_here(is_here);
    if let Some(Reached { said_by, also, .. }) = reached {
        // A bucket has another version when another way is in it.
        let is_said = metadata.is_to_member() && tables.endpoint(hop).is_none();
        let way = if is_said { Stamp::default() } else { tables.stamp(hop) };
        metadata.decided_by([said_by, also, way]);
    }
    Ok(())
}

/// Who is at the other end of a tunnel.
struct Behind {
    /// Of the source: an endpoint there, somebody behind a route there, or the gateway, which every node has.
    owner: Owner,
    /// The address is the owner's own.
    is_owner: bool,
    /// The objects that said so; None where more did than flows are compared with. That the owner is behind the very tunnel is none of
    /// theirs: it is looked up for every packet.
    said_by: Option<[Stamp; 2]>,
}

/// The owner of the source of a packet from a tunnel.
#[inline]
fn tunnel_source(tables: &Tables, metadata: &Metadata, ip: &Ip) -> Result<Behind, DropReason> {
    let network = metadata.network;
    if let Some(owner) = tables.owner(network, ip.source) {
        let by = |stamp| Ok(Behind { owner, is_owner: true, said_by: Some([stamp, Stamp::default()]) });
        return match owner.hop().map(|hop| (hop, tables.tunnel_of(hop))) {
            None => by(tables.network(network).map_or(Stamp::default(), |network| tables.stamp(network.routes))),
            Some((hop, way)) if way.is_some() && way == metadata.tunnel() => {
                by(tables.owner_stamp(network, ip.source, hop))
            }
            Some(_) => Err(DropReason::SpoofedAddress),
        };
    }
    // Where what the destination sends back would go, or anybody else in the network.
    let back = tables.routing(network, ip.destination, ip.source);
    // What is being loaded may say that it is somebody else's, behind another tunnel.
    if tables.may_be_loaded(network, ip.source, back.is_by_table) {
        return Err(DropReason::Unresolved);
    }
    let is_awaited = tables.is_awaited(network);
    let also = if back.is_by_table && !is_awaited { tables.route(network, ip.source) } else { None };
    let ways = [back.owner, also];
    for way in ways.into_iter().flatten() {
        if let Some(owner) = tables.hop_behind(way, ip.source, metadata.tunnel()) {
            let hop = owner.hop().unwrap_or_default();
            let through = match way.leads() {
                Leads::Ecmp(slot) => tables.group(slot).map_or(Stamp::default(), |group| tables.stamp(group.object)),
                Leads::Peer(peer) => tables.owner_stamp(peer, ip.source, hop),
                Leads::Hop(_) | Leads::Nobody | Leads::Nowhere => tables.stamp(hop),
            };
            let is_peer = |way: Owner| matches!(way.leads(), Leads::Peer(_));
            // Of two ways, which one it is depends on where others are, and matters where one leads to a peer.
            let is_either = also.is_some() && ways.into_iter().flatten().any(is_peer);
            let said_by = [tables.stamp(back.said_by), through];
            return Ok(Behind { owner, is_owner: is_peer(way), said_by: (!is_either).then_some(said_by) });
        }
    }
    let may_be_loaded = |way: Owner| match way.leads() {
        Leads::Peer(peer) => tables.is_awaited(peer) && tables.owner(peer, ip.source).is_none(),
        Leads::Hop(_) | Leads::Ecmp(_) | Leads::Nobody | Leads::Nowhere => false,
    };
    let is_unresolved = is_awaited || ways.into_iter().flatten().any(may_be_loaded);
    Err(if is_unresolved { DropReason::Unresolved } else { DropReason::SpoofedAddress })
}
