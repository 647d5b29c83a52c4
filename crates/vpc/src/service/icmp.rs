//! ICMP (RFC 792, RFC 1812 §4.3) and ICMPv6 (RFC 4443) of the gateway: it answers echo requests and says what became of
//! packets that it could not deliver.

use std::net::IpAddr;

use super::build::{HOP_LIMIT, V4, V6};
use super::{Answer, ServiceContext};
use crate::packet::parse::{IPV4, IPV6, protocol};
use crate::packet::{Ip, Layer4, Parsed};
use crate::verdict::DropReason;

/// Types of ICMP (RFC 792).
mod v4 {
    pub const ECHO_REPLY: u8 = 0;
    pub const UNREACHABLE: u8 = 3;
    pub const ECHO: u8 = 8;
    pub const TIME_EXCEEDED: u8 = 11;
    /// Unreachable, source quench, redirect, time exceeded, parameter problem (RFC 1122 §3.2.2).
    pub const ERRORS: [u8; 5] = [UNREACHABLE, 4, 5, TIME_EXCEEDED, 12];
    /// Code of unreachable: fragmentation needed (RFC 1191 §4).
    pub const FRAGMENTATION_NEEDED: u8 = 4;
    /// Most bytes of an error with its IP header (RFC 1812 §4.3.2.3).
    pub const MOST: usize = 576;
}

/// Types of ICMPv6 (RFC 4443 §2.1).
mod v6 {
    pub const UNREACHABLE: u8 = 1;
    pub const TOO_BIG: u8 = 2;
    pub const TIME_EXCEEDED: u8 = 3;
    /// Types below are errors.
    pub const ECHO: u8 = 128;
    pub const ECHO_REPLY: u8 = 129;
    /// Redirect (RFC 4861 §4.5), about which there are no errors either (RFC 4443 §2.4 (e.2)).
    pub const REDIRECT: u8 = 137;
    /// Most bytes of an error with its IP header: the smallest MTU of IPv6 (RFC 4443 §2.4 (c)).
    pub const MOST: usize = crate::spec::MIN_MTU_IPV6 as usize;
}

/// Why a packet cannot be delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// There is no route.
    Network,
    /// There is a route, but no endpoint has the address.
    Host,
    /// Nothing listens there.
    Port,
    /// It is forbidden.
    Prohibited,
}

impl Unreachable {
    /// Codes of ICMP (RFC 1812 §5.2.7.1) and of ICMPv6 (RFC 4443 §3.1).
    const fn codes(self) -> (u8, u8) {
        match self {
            Unreachable::Network => (0, 0),
            Unreachable::Host => (1, 3),
            Unreachable::Port => (3, 4),
            Unreachable::Prohibited => (13, 1),
        }
    }
}

/// Answers an echo request to an address of the gateway.
///
/// # Errors
/// [`DropReason::Service`] for everything else.
pub fn echo(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8]) -> Answer {
    let ip = parsed.ip().filter(|ip| ip.fragment.is_none()).ok_or(DropReason::Service)?;
    let gateway = context.subnets.iter().any(|subnet| subnet.gateway == ip.destination)
        || ip.destination == IpAddr::V6(context.link_local());
    let message = frame.get(usize::from(ip.transport)..ip.end as usize).ok_or(DropReason::Truncated)?;
    if !gateway || !answerable(parsed, ip) || message.len() < 8 {
        return Err(DropReason::Service);
    }
    let mut reply = message.to_vec();
    reply[2..4].copy_from_slice(&[0, 0]);
    match (ip.protocol, ip.layer4) {
        (protocol::ICMP, Layer4::Icmp { kind: v4::ECHO, code: 0 }) => reply[0] = v4::ECHO_REPLY,
        (protocol::ICMPV6, Layer4::Icmp { kind: v6::ECHO, code: 0 }) => reply[0] = v6::ECHO_REPLY,
        _ => return Err(DropReason::Service),
    }
    send(context, parsed, ip, ip.destination, reply)
}

/// Tells the sender of a packet that is longer than its way takes, and how long it may be: `mtu` bytes of IP packet
/// (RFC 1191 §4, RFC 4443 §3.2).
///
/// # Errors
/// [`DropReason::Service`] for packets about which there are no errors.
pub fn too_big(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8], mtu: u16) -> Answer {
    let [high, low] = mtu.to_be_bytes();
    let v4 = [v4::UNREACHABLE, v4::FRAGMENTATION_NEEDED, 0, 0, 0, 0, high, low];
    error(context, parsed, frame, v4, [v6::TOO_BIG, 0, 0, 0, 0, 0, high, low])
}

/// Tells the sender of a packet that its hop limit is used up.
///
/// # Errors
/// [`DropReason::Service`] for packets about which there are no errors.
pub fn time_exceeded(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8]) -> Answer {
    let message = |kind| [kind, 0, 0, 0, 0, 0, 0, 0];
    error(context, parsed, frame, message(v4::TIME_EXCEEDED), message(v6::TIME_EXCEEDED))
}

/// Tells the sender of a packet that cannot be delivered.
///
/// # Errors
/// [`DropReason::Service`] for packets about which there are no errors.
pub fn unreachable(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8], why: Unreachable) -> Answer {
    let (v4, v6) = why.codes();
    let message = |kind, code| [kind, code, 0, 0, 0, 0, 0, 0];
    error(context, parsed, frame, message(v4::UNREACHABLE, v4), message(v6::UNREACHABLE, v6))
}

/// An error about a packet, with as much of it as fits. None about errors, fragments but the first, and packets to or
/// from a group (RFC 1812 §4.3.2.7, RFC 4443 §2.4 (e)).
fn error(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8], v4: [u8; 8], v6: [u8; 8]) -> Answer {
    let ip = parsed.ip().ok_or(DropReason::Service)?;
    let about_error = match (ip.protocol, ip.layer4) {
        (protocol::ICMP, Layer4::Icmp { kind, .. }) => v4::ERRORS.contains(&kind),
        (protocol::ICMPV6, Layer4::Icmp { kind, .. }) => kind < v6::ECHO || kind == v6::REDIRECT,
        _ => false,
    };
    if about_error || !answerable(parsed, ip) || ip.fragment.is_some_and(|fragment| fragment.offset != 0) {
        return Err(DropReason::Service);
    }
    let from = context.gateway(ip.is_ipv6()).ok_or(DropReason::Service)?;
    let (message, room) = if ip.is_ipv6() { (v6, v6::MOST - IPV6) } else { (v4, v4::MOST - IPV4) };
    let start = usize::from(ip.header);
    let end = (ip.end as usize).min(start + room - message.len());
    let quote = frame.get(start..end).ok_or(DropReason::Truncated)?;
    send(context, parsed, ip, from, [&message, quote].concat())
}

/// Whether the packet is from one host to another, so that its sender may be told something.
fn answerable(parsed: &Parsed, ip: &Ip) -> bool {
    let host = |address: IpAddr| {
        let group = address.is_multicast() || address == IpAddr::V4(std::net::Ipv4Addr::BROADCAST);
        !group && !address.is_unspecified() && !address.is_loopback()
    };
    parsed.source.is_station() && !parsed.destination.is_group() && host(ip.source) && host(ip.destination)
}

/// Sends a message, without its checksum, to the sender of a packet.
fn send(context: &ServiceContext<'_>, parsed: &Parsed, ip: &Ip, from: IpAddr, message: Vec<u8>) -> Answer {
    let (to_mac, from_mac) = (parsed.source, context.gateway_mac);
    Ok(Some(match (from, ip.source) {
        (IpAddr::V4(from), IpAddr::V4(to)) => V4 { to_mac, from_mac, from, to }.icmp(parsed, message),
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            V6 { to_mac, from_mac, from, to, hop_limit: HOP_LIMIT }.icmp(parsed, message)
        }
        _ => return Err(DropReason::Service),
    }))
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TransportSlice};

    use super::super::testing::*;
    use super::*;
    use crate::packet::checksum::checksum;

    fn udp(v6: bool, len: usize) -> Vec<u8> {
        let link = PacketBuilder::ethernet2(GUEST_MAC.0, GATEWAY_MAC.0);
        let step =
            if v6 { link.ipv6(GUEST6.octets(), [0x20; 16], 1) } else { link.ipv4(GUEST.octets(), [192, 0, 2, 1], 1) };
        let mut frame = Vec::new();
        step.udp(1000, 2000).write(&mut frame, &vec![7; len]).unwrap();
        frame
    }

    fn ping4(to: [u8; 4], len: usize) -> Vec<u8> {
        let mut frame = Vec::new();
        let link = PacketBuilder::ethernet2(GUEST_MAC.0, GATEWAY_MAC.0);
        link.ipv4(GUEST.octets(), to, 64).icmpv4_echo_request(7, 9).write(&mut frame, &vec![5; len]).unwrap();
        frame
    }

    fn icmp4_of(frame: &[u8]) -> (etherparse::Ipv4Header, Vec<u8>) {
        let sliced = SlicedPacket::from_ethernet(frame).unwrap();
        let Some(NetSlice::Ipv4(ip)) = sliced.net else { panic!() };
        let Some(TransportSlice::Icmpv4(icmp)) = sliced.transport else { panic!() };
        let header = ip.header().to_header();
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        assert_eq!(checksum(icmp.slice()), 0);
        (header, icmp.slice().to_vec())
    }

    #[test]
    fn the_gateway_answers_pings() {
        let frame = ping4([10, 0, 0, 1], 33);
        let (ip, message) = icmp4_of(&ask(echo, &frame).unwrap().unwrap());
        assert_eq!((ip.source, ip.destination), (GATEWAY.octets(), GUEST.octets()));
        assert_eq!((message[0], &message[4..]), (0, &frame[38..]));
        assert_eq!(ask(echo, &ping4([10, 0, 0, 3], 33)), Err(DropReason::Service), "not the gateway");
        for gateway in [GATEWAY6, GATEWAY_MAC.link_local()] {
            let reply =
                ask(echo, &icmp6(GUEST6, gateway, 64, vec![128, 0, 0, 0, 0, 7, 0, 9, 1, 2, 3])).unwrap().unwrap();
            let (ip, message) = icmp6_of(&reply);
            assert_eq!((ip.source, ip.destination), (gateway.octets(), GUEST6.octets()));
            assert_eq!((message[0], &message[4..]), (129, &[0, 7, 0, 9, 1, 2, 3][..]));
        }
    }

    #[test]
    fn errors_quote_as_much_as_fits() {
        let big: Service = |context, parsed, frame| too_big(context, parsed, frame, 1400);
        for len in [0, 10, 2000] {
            let frame = udp(false, len);
            let (ip, message) = icmp4_of(&ask(big, &frame).unwrap().unwrap());
            assert_eq!((ip.source, ip.destination), (GATEWAY.octets(), GUEST.octets()));
            assert_eq!((&message[..2], &message[4..8]), (&[3, 4][..], &[0, 0, 0x05, 0x78][..]));
            assert_eq!(message[8..], frame[14..(14 + 548).min(frame.len())]);
            let frame = udp(true, len);
            let (_, message) = icmp6_of(&ask(big, &frame).unwrap().unwrap());
            assert_eq!((&message[..2], &message[4..8]), (&[2, 0][..], &[0, 0, 0x05, 0x78][..]));
            assert_eq!(message[8..], frame[14..(14 + 1232).min(frame.len())]);
        }
        assert_eq!(icmp4_of(&ask(time_exceeded, &udp(false, 9)).unwrap().unwrap()).1[..2], [11, 0]);
        assert_eq!(icmp6_of(&ask(time_exceeded, &udp(true, 9)).unwrap().unwrap()).1[..2], [3, 0]);
        let host: Service = |context, parsed, frame| unreachable(context, parsed, frame, Unreachable::Host);
        assert_eq!(icmp4_of(&ask(host, &udp(false, 9)).unwrap().unwrap()).1[..2], [3, 1]);
        assert_eq!(icmp6_of(&ask(host, &udp(true, 9)).unwrap().unwrap()).1[..2], [1, 3]);
    }

    #[test]
    fn there_are_no_errors_about_errors_fragments_and_groups() {
        let silent = |frame: &[u8]| ask(time_exceeded, frame) == Err(DropReason::Service);
        let changed = |change: fn(&mut Vec<u8>)| {
            let mut frame = udp(false, 100);
            change(&mut frame);
            silent(&frame)
        };
        assert!(!changed(|_| ()));
        assert!(changed(|frame| frame[0] = 1), "a group's MAC");
        assert!(changed(|frame| frame[30] = 224), "a group's address");
        assert!(changed(|frame| frame[30..34].fill(255)), "everybody's address");
        assert!(changed(|frame| frame[26..30].fill(0)), "nobody's address");
        assert!(changed(|frame| frame[21] = 1), "a fragment");
        assert!(!changed(|frame| frame[20] = 0x20), "the first fragment");
        assert!(!silent(&ping4([192, 0, 2, 1], 0)));
        for (at, kind) in [(34, 3), (34, 11), (34, 5)] {
            let mut frame = ping4([192, 0, 2, 1], 0);
            frame[at] = kind;
            assert!(silent(&frame));
        }
        assert!(silent(&icmp6(GUEST6, OTHER6, 1, vec![1, 0, 0, 0, 0, 0, 0, 0])));
        assert!(!silent(&icmp6(GUEST6, OTHER6, 1, vec![128, 0, 0, 0, 0, 0, 0, 0])));
    }

    #[test]
    fn nothing_hostile_panics() {
        let echo6 = icmp6(GUEST6, GATEWAY6, 64, vec![128, 0, 0, 0, 0, 7, 0, 9, 1, 2, 3]);
        let frames = [ping4([10, 0, 0, 1], 9), echo6, udp(false, 700), udp(true, 9)];
        with_context(|context| {
            hostile(echo, context, &frames);
            hostile(time_exceeded, context, &frames);
        });
    }
}
