//! Router advertisements (RFC 4861 §4.2), in answer to solicitations and without: the gateway is the router, addresses
//! come from [`dhcp6`](super::dhcp6).

use std::net::{IpAddr, Ipv6Addr};

use super::build::HOP_LIMIT;
use super::nd::{message, option, way_back};
use super::{Answer, ServiceContext};
use crate::packet::{Parsed, Payload};
use crate::spec::MIN_MTU_IPV6;

/// Message types (RFC 4861 §4).
mod kind {
    pub const ROUTER_SOLICITATION: u8 = 133;
    pub const ROUTER_ADVERTISEMENT: u8 = 134;
}

/// Prefix information (RFC 4861 §4.6.2).
const PREFIX_INFORMATION: u8 = 3;
/// MTU (RFC 4861 §4.6.4).
const MTU: u8 = 5;
/// Recursive DNS servers (RFC 8106 §5.1).
const RDNSS: u8 = 25;
/// Addresses and the rest by DHCPv6 (RFC 4861 §4.2, M and O).
const MANAGED_AND_OTHER: u8 = 0xc0;
/// The prefix is on the link; there is no autonomous configuration from it (RFC 4861 §4.6.2, L without A).
const ON_LINK: u8 = 0x80;
/// How long the gateway is a router for, seconds: the default of RFC 4861 §6.2.1, three times its longest interval.
pub(crate) const ROUTER_LIFETIME: u16 = 1800;
/// Most name servers that are told: an option has at most 255 units of 8 bytes, and the message is to fit the least
/// MTU.
const MOST_SERVERS: usize = 16;
/// Most prefixes that are told.
const MOST_PREFIXES: usize = 16;

/// Answers a solicitation; nothing where the endpoint's network has no IPv6.
///
/// # Errors
/// Those of neighbor discovery for messages that are invalid or no solicitation.
pub fn answer(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8]) -> Answer {
    let asked = message(parsed, frame, kind::ROUTER_SOLICITATION, 8)?;
    if asked.source.is_multicast() {
        return Ok(None);
    }
    let way = way_back(parsed, asked.source, context.gateway_mac, context.link_local());
    Ok(advertisement(context).map(|message| way.icmp(parsed, message)))
}

/// An unsolicited advertisement, to all nodes behind the endpoint's port; nothing where its network has
/// no IPv6.
pub(crate) fn unsolicited(context: &ServiceContext<'_>) -> Option<Vec<u8>> {
    // What would be answered, if a guest without an address and a VLAN had asked.
    let payload = Payload::Other { ether_type: 0 };
    let nobody = Parsed { destination: context.gateway_mac, source: context.mac, vlan: None, payload };
    let way = way_back(&nobody, Ipv6Addr::UNSPECIFIED, context.gateway_mac, context.link_local());
    advertisement(context).map(|message| way.icmp(&nobody, message))
}

/// The message, without its checksum.
fn advertisement(context: &ServiceContext<'_>) -> Option<Vec<u8>> {
    let mut subnets = context.subnets.iter().filter(|subnet| subnet.gateway.is_ipv6()).peekable();
    subnets.peek()?;
    let lease = context.lease.to_be_bytes();
    let mut reply = vec![kind::ROUTER_ADVERTISEMENT, 0, 0, 0, HOP_LIMIT, MANAGED_AND_OTHER];
    reply.extend_from_slice(&ROUTER_LIFETIME.to_be_bytes());
    // Reachable time and retransmission timer: the host's own.
    reply.extend_from_slice(&[0; 8]);
    reply.extend_from_slice(&[option::SOURCE_LINK_LAYER_ADDRESS, 1]);
    reply.extend_from_slice(&context.gateway_mac.0);
    if context.mtu >= MIN_MTU_IPV6 {
        reply.extend_from_slice(&[MTU, 1, 0, 0, 0, 0]);
        reply.extend_from_slice(&context.mtu.to_be_bytes());
    }
    for subnet in subnets.take(MOST_PREFIXES) {
        let IpAddr::V6(prefix) = subnet.prefix.address() else { continue };
        reply.extend_from_slice(&[PREFIX_INFORMATION, 4, subnet.prefix.length(), ON_LINK]);
        reply.extend_from_slice(&lease);
        reply.extend_from_slice(&lease);
        reply.extend_from_slice(&[0; 4]);
        reply.extend_from_slice(&prefix.octets());
    }
    let servers: Vec<[u8; 16]> = super::dns6(context).take(MOST_SERVERS).map(|server| server.octets()).collect();
    if !servers.is_empty() {
        reply.extend_from_slice(&[RDNSS, 1 + 2 * servers.len() as u8, 0, 0]);
        reply.extend_from_slice(&lease);
        reply.extend_from_slice(servers.as_flattened());
    }
    Some(reply)
}

#[cfg(test)]
mod tests {
    use super::super::testing::*;
    use super::*;
    use crate::verdict::DropReason;

    const ALL_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 2);

    #[test]
    fn a_solicitation_is_told_of_the_network() {
        let body = vec![133, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0x5d, 0, 0, 0, 2];
        let asker = GUEST_MAC.link_local();
        let reply = ask(answer, &icmp6(asker, ALL_ROUTERS, 255, body)).unwrap().unwrap();
        let (ip, message) = icmp6_of(&reply);
        assert_eq!((ip.source, ip.destination, ip.hop_limit), (GATEWAY_MAC.link_local().octets(), asker.octets(), 255));
        assert_eq!(message[..2], [134, 0]);
        assert_eq!(message[4..16], [64, 0xc0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(message[16..32], [1, 1, 2, 0x5d, 0, 0, 0, 1, 5, 1, 0, 0, 0, 0, 0x05, 0xaa]);
        let prefix = [3, 4, 64, 0x80, 0, 0, 0x0e, 0x10, 0, 0, 0x0e, 0x10, 0, 0, 0, 0, 0xfd, 0, 0, 0];
        assert_eq!(message[32..64], [&prefix[..], &[0; 12]].concat());
        let dns = Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 0x53).octets();
        assert_eq!(message[64..], [&[25, 3, 0, 0, 0, 0, 0x0e, 0x10][..], &dns].concat());
    }

    #[test]
    fn who_has_no_address_yet_is_answered_with_everybody() {
        let frame = icmp6(Ipv6Addr::UNSPECIFIED, ALL_ROUTERS, 255, vec![133, 0, 0, 0, 0, 0, 0, 0]);
        let reply = ask(answer, &frame).unwrap().unwrap();
        assert_eq!(reply[..6], [0x33, 0x33, 0, 0, 0, 1]);
        let beyond = icmp6(GUEST6, ALL_ROUTERS, 64, vec![133, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(ask(answer, &beyond), Err(DropReason::Service));
    }

    #[test]
    fn nobody_has_to_ask() {
        let asked = icmp6(Ipv6Addr::UNSPECIFIED, ALL_ROUTERS, 255, vec![133, 0, 0, 0, 0, 0, 0, 0]);
        let solicited = ask(answer, &asked).unwrap().unwrap();
        with_context(|context| assert_eq!(unsolicited(context).unwrap(), solicited));
    }

    #[test]
    fn nothing_hostile_panics() {
        let frame = icmp6(Ipv6Addr::UNSPECIFIED, ALL_ROUTERS, 255, vec![133, 0, 0, 0, 0, 0, 0, 0]);
        with_context(|context| hostile(answer, context, &[frame]));
    }
}
