//! Frames, built by hand so that any part of them can be wrong.

use std::net::{Ipv4Addr, Ipv6Addr};

use softdpu_frontend::Station;

pub const A: Station = Station::A;
pub const B: Station = Station::B;

/// The guest that misbehaves.
pub const MALLORY: Station = Station { mac: [0x02, 0x5d, 0, 0, 0, 0x66], address: Ipv4Addr::new(10, 0, 0, 66) };
/// A port of hers that no driver is connected to.
pub const SINK: Station = Station { mac: [0x02, 0x5d, 0, 0, 0, 0x67], address: Ipv4Addr::new(10, 0, 0, 67) };
/// The network's gateway.
pub const GATEWAY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// Nobody's address.
pub const NOBODY: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 99);
pub const BROADCAST: [u8; 6] = [0xff; 6];
/// The MAC address of all IPv6 nodes.
pub const ALL_NODES: [u8; 6] = [0x33, 0x33, 0, 0, 0, 1];

/// EtherTypes.
pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
pub const IPV6: u16 = 0x86dd;

/// IANA protocol numbers.
pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP6: u8 = 58;
pub const HOP_BY_HOP: u8 = 0;
pub const ROUTING: u8 = 43;
pub const FRAGMENT: u8 = 44;
pub const DESTINATION: u8 = 60;

/// Where things are in a frame without options.
pub const AT_IP: usize = 14;
pub const AT_TRANSPORT: usize = 34;
pub const AT_TRANSPORT6: usize = 54;

/// The IPv6 address of the station with this last byte.
pub fn six(last: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0x5d, 0, 0, 0, 0, 0, last)
}

/// An Ethernet frame from [`MALLORY`].
pub fn ether(to: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&to[..], &MALLORY.mac, &kind.to_be_bytes(), payload].concat()
}

/// An IPv4 packet with its header's checksum.
pub fn ipv4(from: Ipv4Addr, to: Ipv4Addr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = (20 + payload.len()) as u16;
    let mut header = [0x45, 0, 0, 0, 0, 0, 0, 0, 64, protocol, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    header[2..4].copy_from_slice(&total.to_be_bytes());
    header[12..16].copy_from_slice(&from.octets());
    header[16..20].copy_from_slice(&to.octets());
    let sum: u32 = header.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    header[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    [&header[..], payload].concat()
}

/// An IPv6 packet.
pub fn ipv6(from: Ipv6Addr, to: Ipv6Addr, next: u8, payload: &[u8]) -> Vec<u8> {
    let len = (payload.len() as u16).to_be_bytes();
    [&[0x60, 0, 0, 0, len[0], len[1], next, 255][..], &from.octets(), &to.octets(), payload].concat()
}

/// A UDP datagram without a checksum.
pub fn udp(source: u16, destination: u16, payload: &[u8]) -> Vec<u8> {
    let len = (8 + payload.len()) as u16;
    [&source.to_be_bytes()[..], &destination.to_be_bytes(), &len.to_be_bytes(), &[0, 0], payload].concat()
}

/// A TCP segment with ACK.
pub fn tcp(payload: &[u8]) -> Vec<u8> {
    [&[0x40, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0][..], payload].concat()
}

/// A UDP frame from [`MALLORY`] to a station.
pub fn udp_to(to: Station, payload: &[u8]) -> Vec<u8> {
    ether(to.mac, IPV4, &ipv4(MALLORY.address, to.address, UDP, &udp(9, 9, payload)))
}

/// A TCP frame from [`MALLORY`] to a station.
pub fn tcp_to(to: Station, payload: &[u8]) -> Vec<u8> {
    ether(to.mac, IPV4, &ipv4(MALLORY.address, to.address, TCP, &tcp(payload)))
}

/// The same over IPv6, to the station with this last byte.
pub fn tcp6_to(to: Station, last: u16, payload: &[u8]) -> Vec<u8> {
    ether(to.mac, IPV6, &ipv6(six(0x66), six(last), TCP, &tcp(payload)))
}

/// An ARP message (RFC 826): 1 asks, 2 answers.
pub fn arp(operation: u8, sender: [u8; 6], sender_ip: Ipv4Addr, target: Ipv4Addr) -> Vec<u8> {
    let fixed = [0, 1, 8, 0, 6, 4, 0, operation];
    ether(BROADCAST, ARP, &[&fixed[..], &sender, &sender_ip.octets(), &[0; 6], &target.octets()].concat())
}

/// An ICMPv6 message to all nodes with a hop limit of 255, for which no checksum is made.
pub fn icmp6(from: Ipv6Addr, to: Ipv6Addr, kind: u8, body: &[u8]) -> Vec<u8> {
    ether(ALL_NODES, IPV6, &ipv6(from, to, ICMP6, &[&[kind, 0, 0, 0][..], body].concat()))
}

/// An IPv4 packet that no router may cut up.
pub fn uncut(frame: Vec<u8>) -> Vec<u8> {
    with(frame, AT_IP + 6, &[0x40, 0])
}

/// The frame with other bytes at `at`.
pub fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}
