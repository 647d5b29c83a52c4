//! Before the flow tier: parse, classify, network, route (Zephyrus §4.2, figure 5).

use std::net::IpAddr;

use super::{Metadata, Next, Origin, Stop, offload, outer, spoof};
use crate::Checksum;
use crate::flow;
use crate::packet::{Ip, Packet, Parsed, Payload, parse};
use crate::spec::UnderlaySpec;
use crate::tables::{Attachment, Key, Owner, Tables, Way};
use crate::verdict::DropReason;

/// Parses and classifies a frame, and starts fetching what is looked up next. The frame stays as it is.
#[inline]
pub(crate) fn classify(tables: &Tables, packet: &Packet) -> Result<Metadata, Stop> {
    match tables.attachment(packet.port) {
        Attachment::Endpoint(number) => from_endpoint(tables, number, packet),
        Attachment::Underlay => match tables.underlay() {
            Some(underlay) => from_tunnel(tables, underlay, packet),
            None => Err(DropReason::PortDown.into()),
        },
        Attachment::Nothing => Err(DropReason::PortDown.into()),
    }
}

#[inline]
fn from_endpoint(tables: &Tables, number: u32, packet: &Packet) -> Result<Metadata, Stop> {
    let endpoint = tables.endpoint(number).ok_or(DropReason::PortDown)?;
    let parsed = parse(packet.head.bytes(), packet.len())?;
    if parsed.source.is_group() || (endpoint.spoof_check && parsed.source != endpoint.mac) {
        return Err(DropReason::SpoofedMac.into());
    }
    let ip = ip(packet, &parsed, packet.head.len(), packet.checksum, |arp| spoof::arp(endpoint, arp))?;
    let owner = spoof::source(tables, endpoint, number, &parsed, &ip)?;
    finish(tables, parsed, &ip, endpoint.network, Origin::Endpoint { number, owner })
}

#[inline]
fn from_tunnel(tables: &Tables, underlay: &UnderlaySpec, packet: &Packet) -> Result<Metadata, Stop> {
    let outer = outer::outer(tables, underlay, packet)?;
    let head = packet.head.bytes();
    // The head may be longer than the outer packet: what follows that is padding.
    let inner = &head[usize::from(outer.len).min(head.len())..];
    let inner = &inner[..inner.len().min(outer.inner)];
    let parsed = parse(inner, outer.inner)?;
    // Who asks through a tunnel asks everybody: neighbours are known to the control plane.
    let ip = ip(packet, &parsed, inner.len(), outer.checksum, |_| DropReason::Multicast.into())?;
    let from = Origin::Tunnel { number: outer.tunnel, outer: outer.len, ecn: outer.ecn, checksum: outer.checksum };
    finish(tables, parsed, &ip, outer.network, from)
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
fn finish(tables: &Tables, parsed: Parsed, ip: &Ip, network: u32, from: Origin) -> Result<Metadata, Stop> {
    let broadcast = matches!(ip.destination, IpAddr::V4(address) if address.is_broadcast());
    if parsed.destination.is_group() || broadcast || ip.destination.is_multicast() {
        return Err(DropReason::Multicast.into());
    }
    let key = Key::address(network, ip.destination);
    let place = tables.addresses().place(&key);
    tables.addresses().prefetch(place);
    Ok(Metadata { parsed, network, from, hash: flow::hash(ip), key, place })
}

/// Finds where a frame goes, by its inner destination.
#[inline]
pub(crate) fn find(tables: &Tables, metadata: &Metadata) -> Result<Next, Stop> {
    let ip = metadata.parsed.ip().ok_or(DropReason::EtherType)?;
    let exact = tables.addresses().get_at(metadata.place, &metadata.key);
    let exact = exact.or_else(|| tables.loaded_owner(metadata.network, ip.destination));
    if exact.is_some_and(|owner| owner.hop().is_none()) {
        return Err(match metadata.from {
            Origin::Endpoint { .. } => spoof::gateway(ip),
            // Every node has its own gateway.
            Origin::Tunnel { .. } => DropReason::NoRoute.into(),
        });
    }
    // Loaded entries have no versions of their own.
    let said_by = match exact.and_then(|owner| owner.hop()).filter(|hop| !Tables::is_loaded(*hop)) {
        Some(endpoint) => endpoint,
        None => tables.network(metadata.network).map_or(0, |network| network.routes),
    };
    let owner = exact.or_else(|| tables.route(metadata.network, ip.destination));
    let found = owner.and_then(|owner| owner.hop().map(|hop| (owner, hop)));
    match metadata.from {
        Origin::Endpoint { number, owner: source } => {
            // Nobody is told that an address is nobody's while those who have it are being loaded.
            let nobody =
                || if tables.is_loading() { DropReason::Unresolved.into() } else { Stop::Ask(super::Ask::NoRoute) };
            let (owner, hop) = found.ok_or_else(nobody)?;
            if hop == number {
                // Nothing goes back to where it came from.
                return Err(DropReason::NoRoute.into());
            }
            Ok(Next { hop, said_by, back: None, beside: source.is_some_and(|source| source.is_beside(owner)) })
        }
        Origin::Tunnel { number, .. } => {
            let source = tunnel_source(tables, metadata, ip, number)?;
            let (owner, hop) = found.ok_or(DropReason::NoRoute)?;
            // Nothing turns round between nodes, unless this one is there for it: what is not here has moved.
            let is_transit = || tables.network(metadata.network).is_some_and(|network| network.transit);
            match tables.hop(hop).map(|hop| hop.way) {
                Some(Way::Port(_)) => {}
                Some(Way::Tunnel(to)) if to != number && is_transit() => {}
                Some(Way::Tunnel(_)) | None => return Err(DropReason::Unresolved.into()),
            }
            Ok(Next { hop, said_by, back: source.hop(), beside: source.is_beside(owner) })
        }
    }
}

/// The owner of the source of a packet from a tunnel: an endpoint there, somebody behind a route there, or the gateway, which
/// every node has.
#[inline]
fn tunnel_source(tables: &Tables, metadata: &Metadata, ip: &Ip, tunnel: u32) -> Result<Owner, DropReason> {
    let owner = tables
        .owner(metadata.network, ip.source)
        .or_else(|| tables.route(metadata.network, ip.source).filter(|owner| owner.hop().is_some()))
        .ok_or(DropReason::SpoofedAddress)?;
    match owner.hop().map(|hop| tables.hop(hop).map(|hop| hop.way)) {
        None => Ok(owner),
        Some(Some(Way::Tunnel(way))) if way == tunnel => Ok(owner),
        Some(_) => Err(DropReason::SpoofedAddress),
    }
}
