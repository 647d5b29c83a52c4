//! Whether a guest may use the addresses of its frames, and which of its frames are for the network's own services.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::{Ask, Stop};
use crate::exact::ExactKey;
use crate::id::EndpointId;
use crate::packet::parse::protocol;
use crate::packet::{Arp, Ip, Layer4, Parsed};
use crate::tables::{Endpoint, FibEntry, Tables};
use crate::verdict::DropReason;

/// All DHCPv6 relays and servers (RFC 8415 §7.1).
const DHCP6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);
/// RFC 826.
const ARP_REQUEST: u16 = 1;
/// Ports of DHCP clients and servers (RFC 2131 §4.1), and of DHCPv6 servers (RFC 8415 §7.2).
const DHCP_CLIENT: u16 = 68;
const DHCP_SERVER: u16 = 67;
const DHCP6_SERVER: u16 = 547;
/// ICMPv6 types (RFC 4861 §4).
const ROUTER_SOLICITATION: u8 = 133;
const ROUTER_ADVERTISEMENT: u8 = 134;
const NEIGHBOR_SOLICITATION: u8 = 135;
const NEIGHBOR_ADVERTISEMENT: u8 = 136;
const REDIRECT: u8 = 137;
/// Multicast listener reports and dones (RFC 2710 §3.1, RFC 9777 §5.2).
const LISTENER: [u8; 3] = [131, 132, 143];
/// Echo requests (RFC 792, RFC 4443 §4.1).
const ECHO: u8 = 8;
const ECHO6: u8 = 128;

/// A guest's ARP message: requests are answered, a guest that asks for itself announces where it is (RFC 5227 §2.3),
/// and nothing else was asked for.
pub(super) fn arp(endpoint: &Endpoint, arp: &Arp) -> Stop {
    let sender = IpAddr::V4(arp.sender);
    let probe = arp.sender.is_unspecified();
    if endpoint.spoof_check && (arp.sender_mac != endpoint.mac || !(probe || endpoint.addresses.contains(&sender))) {
        return DropReason::SpoofedNeighbor.into();
    }
    match arp.operation {
        ARP_REQUEST if arp.sender == arp.target && endpoint.addresses.contains(&sender) => Stop::Ask(Ask::Announce),
        ARP_REQUEST => Stop::Ask(Ask::Arp),
        _ => DropReason::Service.into(),
    }
}

/// The source of a guest's IP packet: its owner where it is the guest's own. Stops what is not the guest's, and what is
/// for a service.
#[inline]
pub(super) fn source(
    tables: &Tables,
    endpoint: &Endpoint,
    id: EndpointId,
    parsed: &Parsed,
    ip: &Ip,
) -> Result<Option<FibEntry>, Stop> {
    let owner = endpoint.entry(id, ip.source);
    if ip.protocol == protocol::ICMPV6 && ip.is_ipv6() {
        neighbor_discovery(tables, endpoint, ip, owner)?;
    }
    if let Layer4::Udp { source, destination } = ip.layer4 {
        dhcp(endpoint, parsed, ip, owner, (source, destination))?;
    }
    match owner {
        Some(owner) => Ok(Some(owner)),
        None if is_link_local(ip.source) => link_local(tables, endpoint, ip),
        None if is_nameless_listener(ip) => Err(DropReason::Multicast.into()),
        None if endpoint.spoof_check || !is_station(ip.source) => Err(DropReason::SpoofedAddress.into()),
        None => Ok(None),
    }
}

/// A link-local source talks to the gateway alone: nothing forwards it (RFC 4291 §2.5.6). What it says to
/// groups, as every guest does, is no forgery.
fn link_local(tables: &Tables, endpoint: &Endpoint, ip: &Ip) -> Result<Option<FibEntry>, Stop> {
    let owns = |address| tables.addresses().get(&ExactKey::address(endpoint.network.number(), address));
    match (owns(ip.source), owns(ip.destination)) {
        (None, Some(owner)) if owner.hop().is_none() => Ok(None),
        (None, _) if ip.destination.is_multicast() => Err(DropReason::Multicast.into()),
        _ => Err(DropReason::SpoofedAddress.into()),
    }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Whether this tells of a group that a guest without an address yet listens to (RFC 3590 §4).
fn is_nameless_listener(ip: &Ip) -> bool {
    let says = matches!(ip.layer4, Layer4::Icmp { kind, .. } if LISTENER.contains(&kind));
    says && ip.is_ipv6() && ip.source.is_unspecified() && ip.destination.is_multicast()
}

/// Whether an address can be a source at all.
fn is_station(address: IpAddr) -> bool {
    let broadcast = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !(address.is_unspecified() || address.is_multicast() || address.is_loopback() || broadcast)
}

fn neighbor_discovery(tables: &Tables, endpoint: &Endpoint, ip: &Ip, owner: Option<FibEntry>) -> Result<(), Stop> {
    let Layer4::Icmp { kind, .. } = ip.layer4 else { return Ok(()) };
    let ask = match kind {
        ROUTER_SOLICITATION => Ask::Router,
        NEIGHBOR_SOLICITATION => Ask::Neighbor,
        // It was not asked for: the network knows its neighbours.
        NEIGHBOR_ADVERTISEMENT => return Err(DropReason::Service.into()),
        ROUTER_ADVERTISEMENT | REDIRECT => return Err(DropReason::SpoofedNeighbor.into()),
        _ => return Ok(()),
    };
    let gateway = ExactKey::address(endpoint.network.number(), ip.source);
    let own = owner.is_some()
        || ip.source.is_unspecified()
        || (is_link_local(ip.source) && tables.addresses().get(&gateway).is_none());
    // Neighbour discovery is never in fragments (RFC 6980 §5).
    if (endpoint.spoof_check && !own) || ip.fragment.is_some() {
        return Err(DropReason::SpoofedNeighbor.into());
    }
    Err(Stop::Ask(ask))
}

fn dhcp(
    endpoint: &Endpoint,
    parsed: &Parsed,
    ip: &Ip,
    owner: Option<FibEntry>,
    (source, destination): (u16, u16),
) -> Result<(), Stop> {
    let (ask, nameless) = match ip.destination {
        IpAddr::V4(Ipv4Addr::BROADCAST) if (source, destination) == (DHCP_CLIENT, DHCP_SERVER) => {
            (Ask::Dhcp4, ip.source.is_unspecified())
        }
        IpAddr::V6(DHCP6_SERVERS) if destination == DHCP6_SERVER => (Ask::Dhcp6, is_link_local(ip.source)),
        _ => return Ok(()),
    };
    if !parsed.destination.is_group() || ip.fragment.is_some() {
        return Err(DropReason::Malformed.into());
    }
    if endpoint.spoof_check && owner.is_none() && !nameless {
        return Err(DropReason::SpoofedAddress.into());
    }
    Err(Stop::Ask(ask))
}

/// What the gateway does with a packet that is for itself.
pub(super) fn gateway(ip: &Ip) -> Stop {
    if ip.fragment.is_some() {
        return DropReason::Service.into();
    }
    match (ip.layer4, ip.is_ipv6()) {
        (Layer4::Icmp { kind: ECHO, .. }, false) | (Layer4::Icmp { kind: ECHO6, .. }, true) => Stop::Ask(Ask::Echo),
        (Layer4::Udp { destination: DHCP_SERVER, .. }, false) => Stop::Ask(Ask::Dhcp4),
        (Layer4::Udp { destination: DHCP6_SERVER, .. }, true) => Stop::Ask(Ask::Dhcp6),
        (Layer4::Udp { .. }, _) => Stop::Ask(Ask::NoPort),
        (Layer4::Tcp { .. } | Layer4::Icmp { .. } | Layer4::Other, _) => DropReason::Service.into(),
    }
}
