//! Neighbor discovery (RFC 4861) answered for all endpoints, as [`arp`](super::arp) is.

use std::net::{IpAddr, Ipv6Addr};

use super::build::V6;
use super::{Answer, ServiceContext};
use crate::packet::checksum::{self, Sum};
use crate::packet::parse::protocol;
use crate::packet::{Ip, Mac, Parsed};
use crate::verdict::DropReason;

/// Message types (RFC 4861 §4).
mod kind {
    pub const NEIGHBOR_SOLICITATION: u8 = 135;
    pub const NEIGHBOR_ADVERTISEMENT: u8 = 136;
}

/// Options (RFC 4861 §4.6).
pub(super) mod option {
    pub const SOURCE_LINK_LAYER_ADDRESS: u8 = 1;
    pub const TARGET_LINK_LAYER_ADDRESS: u8 = 2;
}

/// Flags of an advertisement (RFC 4861 §4.4).
mod flag {
    pub const ROUTER: u8 = 0x80;
    pub const SOLICITED: u8 = 0x40;
    pub const OVERRIDE: u8 = 0x20;
}

/// The hop limit of every message: it has not crossed a router (RFC 4861 §3.1).
pub(super) const HOP_LIMIT: u8 = 255;
/// All nodes on the link (RFC 4291 §2.7.1).
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
/// What an IPv6 multicast to all nodes is sent to (RFC 2464 §7).
const ALL_NODES_MAC: Mac = Mac([0x33, 0x33, 0, 0, 0, 1]);
/// What solicited-node multicast addresses begin with (RFC 4291 §2.7.1), 104 bits.
const SOLICITED_NODE: u128 = 0xff02_0000_0000_0000_0000_0001_ff00_0000;

/// A valid message: its bytes, and its sender.
pub(super) struct Message<'a> {
    pub bytes: &'a [u8],
    pub source: Ipv6Addr,
    pub destination: Ipv6Addr,
}

/// The message of this type with options from `options` on, if it is valid (RFC 4861 §6.1.1, §7.1.1).
///
/// # Errors
/// [`DropReason::Service`] where it is not, [`DropReason::SpoofedNeighbor`] where it names another sender than the
/// frame does.
pub(super) fn message<'a>(
    parsed: &Parsed,
    frame: &'a [u8],
    kind: u8,
    options: usize,
) -> Result<Message<'a>, DropReason> {
    let bytes = parsed.ip().and_then(|ip| checked(ip, frame)).ok_or(DropReason::Service)?;
    let Some((IpAddr::V6(source), IpAddr::V6(destination))) = parsed.ip().map(|ip| (ip.source, ip.destination)) else {
        return Err(DropReason::Service);
    };
    if bytes.len() < options || bytes[..2] != [kind, 0] || !parsed.source.is_station() {
        return Err(DropReason::Service);
    }
    let mut rest = &bytes[options..];
    while !rest.is_empty() {
        // Length in units of 8 bytes; 0 is invalid (§4.6).
        let size = usize::from(*rest.get(1).ok_or(DropReason::Service)?) * 8;
        let (option, behind) = rest.split_at_checked(size).filter(|_| size > 0).ok_or(DropReason::Service)?;
        if option[0] == option::SOURCE_LINK_LAYER_ADDRESS {
            if source.is_unspecified() {
                return Err(DropReason::Service);
            }
            if option[2..8] != parsed.source.0 {
                return Err(DropReason::SpoofedNeighbor);
            }
        }
        rest = behind;
    }
    Ok(Message { bytes, source, destination })
}

/// An ICMPv6 message that has not crossed a router and is undamaged.
fn checked<'a>(ip: &Ip, frame: &'a [u8]) -> Option<&'a [u8]> {
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (ip.source, ip.destination) else { return None };
    let message = frame.get(usize::from(ip.transport)..ip.end as usize)?;
    let pseudo = Sum::pseudo_v6(source.octets(), destination.octets(), protocol::ICMPV6, message.len() as u32);
    let right = ip.protocol == protocol::ICMPV6
        && ip.fragment.is_none()
        && ip.hop_limit == HOP_LIMIT
        && checksum::verify(true, protocol::ICMPV6, pseudo, message);
    right.then_some(message)
}

/// The way back to the sender, or to all nodes where it has no address yet (RFC 4861 §7.2.4, §6.2.6).
pub(super) fn way_back(parsed: &Parsed, asker: Ipv6Addr, from_mac: Mac, from: Ipv6Addr) -> V6 {
    let (to_mac, to) = if asker.is_unspecified() { (ALL_NODES_MAC, ALL_NODES) } else { (parsed.source, asker) };
    V6 { to_mac, from_mac, from, to, hop_limit: HOP_LIMIT }
}

/// Answers a solicitation for the gateway or another endpoint with its MAC address. A guest that looks for duplicates
/// of its own address (RFC 4862 §5.4) is never answered; duplicates of others' addresses are found.
///
/// # Errors
/// [`DropReason::Service`] for invalid and other messages, [`DropReason::SpoofedNeighbor`] where a solicitation names
/// another sender than the frame does.
pub fn answer(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8]) -> Answer {
    if message(parsed, frame, kind::NEIGHBOR_ADVERTISEMENT, 24).is_ok() {
        return Ok(None);
    }
    let asked = message(parsed, frame, kind::NEIGHBOR_SOLICITATION, 24)?;
    let target: [u8; 16] = asked.bytes[8..24].try_into().map_err(|_| DropReason::Service)?;
    let target = Ipv6Addr::from(target);
    let probe = asked.source.is_unspecified();
    if target.is_multicast()
        || asked.source.is_multicast()
        || probe && asked.destination.to_bits() >> 24 != SOLICITED_NODE >> 24
    {
        return Err(DropReason::Service);
    }
    if context.addresses.contains(&target.into()) || asked.source == target {
        return Ok(None);
    }
    let known = (context.neighbor)(target.into()).filter(|mac| *mac != parsed.source && *mac != context.mac);
    let Some(mac) = known else { return Ok(None) };
    let router = if mac == context.gateway_mac { flag::ROUTER } else { 0 };
    let solicited = if probe { 0 } else { flag::SOLICITED };
    let mut reply = vec![kind::NEIGHBOR_ADVERTISEMENT, 0, 0, 0, router | solicited | flag::OVERRIDE, 0, 0, 0];
    reply.extend_from_slice(&target.octets());
    reply.extend_from_slice(&[option::TARGET_LINK_LAYER_ADDRESS, 1]);
    reply.extend_from_slice(&mac.0);
    Ok(Some(way_back(parsed, asked.source, mac, target).icmp(parsed, reply)))
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;

    fn solicit(source: Ipv6Addr, target: Ipv6Addr, options: &[u8]) -> Vec<u8> {
        let destination = Ipv6Addr::from_bits(SOLICITED_NODE | target.to_bits() & 0xff_ffff);
        let body = [&[135, 0, 0, 0, 0, 0, 0, 0], &target.octets()[..], options].concat();
        icmp6(source, destination, 255, body)
    }

    const LINK: [u8; 8] = [1, 1, 2, 0x5d, 0, 0, 0, 2];

    #[test]
    fn the_gateway_is_a_router_and_a_neighbour_is_not() {
        for (target, mac, flags) in
            [(GATEWAY6, GATEWAY_MAC, 0xe0), (GATEWAY_MAC.link_local(), GATEWAY_MAC, 0xe0), (OTHER6, OTHER_MAC, 0x60)]
        {
            let reply = ask(answer, &solicit(GUEST6, target, &LINK)).unwrap().unwrap();
            let (ip, message) = icmp6_of(&reply);
            assert_eq!((ip.source, ip.destination, ip.hop_limit), (target.octets(), GUEST6.octets(), 255));
            assert_eq!((&reply[..6], &reply[6..12]), (&GUEST_MAC.0[..], &mac.0[..]));
            let head = [136, 0, message[2], message[3], flags, 0, 0, 0];
            assert_eq!(message, [&head[..], &target.octets(), &[2, 1], &mac.0].concat());
        }
    }

    #[test]
    fn duplicates_of_others_are_found_and_of_oneself_never() {
        let none = Ipv6Addr::UNSPECIFIED;
        let reply = ask(answer, &solicit(none, OTHER6, &[])).unwrap().unwrap();
        let (ip, message) = icmp6_of(&reply);
        assert_eq!((&reply[..6], ip.destination, message[4]), (&ALL_NODES_MAC.0[..], ALL_NODES.octets(), 0x20));
        assert_eq!(ask(answer, &solicit(none, GUEST6, &[])), Ok(None));
        assert_eq!(ask(answer, &solicit(GUEST6, GUEST6, &LINK)), Ok(None));
        assert_eq!(ask(answer, &solicit(none, GUEST_MAC.link_local(), &[])), Ok(None));
    }

    #[test]
    fn invalid_messages_are_dropped() {
        let service = Err(DropReason::Service);
        assert_eq!(ask(answer, &solicit(Ipv6Addr::UNSPECIFIED, OTHER6, &LINK)), service, "RFC 4861 §7.1.1");
        assert_eq!(ask(answer, &solicit(GUEST6, OTHER6, &[1, 0, 0, 0, 0, 0, 0, 0])), service, "an empty option");
        assert_eq!(ask(answer, &solicit(GUEST6, OTHER6, &[1, 2, 0, 0, 0, 0, 0, 0])), service, "a long option");
        let spoofed = [1, 1, 2, 0x5d, 0, 0, 0, 9];
        assert_eq!(ask(answer, &solicit(GUEST6, OTHER6, &spoofed)), Err(DropReason::SpoofedNeighbor));
        let mut frame = solicit(GUEST6, OTHER6, &LINK);
        frame[21] = 254;
        assert_eq!(ask(answer, &frame), service, "from beyond a router");
        frame[21] = 255;
        frame[60] ^= 1;
        assert_eq!(ask(answer, &frame), service, "damaged");
    }

    #[test]
    fn nothing_hostile_panics() {
        with_context(|context| {
            hostile(answer, context, &[solicit(GUEST6, OTHER6, &LINK), solicit(GUEST6, GATEWAY6, &[])])
        });
    }
}
