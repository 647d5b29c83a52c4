//! Frames that services send: Ethernet, IP and UDP around what they say.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::packet::checksum::{self, Sum};
use crate::packet::parse::{ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4, IPV6, UDP, protocol};
use crate::packet::{Mac, Parsed};

/// Hop limit and time to live of what services send (RFC 1700, "IP time to live").
pub(super) const HOP_LIMIT: u8 = 64;
/// EtherType of a VLAN tag (IEEE 802.1Q §9.4).
const ETHERTYPE_VLAN: u16 = 0x8100;

/// An Ethernet header, in the VLAN of the frame that is answered.
pub(super) fn ethernet(asked: &Parsed, to: Mac, from: Mac, ether_type: u16) -> Vec<u8> {
    let mut frame = Vec::with_capacity(128);
    frame.extend_from_slice(&to.0);
    frame.extend_from_slice(&from.0);
    if let Some(vlan) = asked.vlan {
        frame.extend_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
        frame.extend_from_slice(&vlan.to_be_bytes());
    }
    frame.extend_from_slice(&ether_type.to_be_bytes());
    frame
}

/// Both ends of a packet over IPv4.
#[derive(Clone, Copy)]
pub(super) struct V4 {
    pub to_mac: Mac,
    pub from_mac: Mac,
    pub from: Ipv4Addr,
    pub to: Ipv4Addr,
}

/// Both ends of a packet over IPv6, and its hop limit.
#[derive(Clone, Copy)]
pub(super) struct V6 {
    pub to_mac: Mac,
    pub from_mac: Mac,
    pub from: Ipv6Addr,
    pub to: Ipv6Addr,
    pub hop_limit: u8,
}

impl V4 {
    /// An IPv4 packet (RFC 791 §3.1) that may not be fragmented, so that its identification means nothing (RFC 6864
    /// §4.1).
    pub fn packet(&self, asked: &Parsed, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = ethernet(asked, self.to_mac, self.from_mac, ETHERTYPE_IPV4);
        let mut header = [0; IPV4];
        header[0] = 0x45;
        header[2..4].copy_from_slice(&((IPV4 + payload.len()) as u16).to_be_bytes());
        header[6] = 0x40;
        (header[8], header[9]) = (HOP_LIMIT, protocol);
        header[12..16].copy_from_slice(&self.from.octets());
        header[16..20].copy_from_slice(&self.to.octets());
        let sum = checksum::checksum(&header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend_from_slice(&header);
        frame.extend_from_slice(payload);
        frame
    }

    /// An ICMP message: type, code, 0, and the rest.
    pub fn icmp(&self, asked: &Parsed, mut message: Vec<u8>) -> Vec<u8> {
        let sum = checksum::checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.packet(asked, protocol::ICMP, &message)
    }

    /// A UDP datagram.
    pub fn udp(&self, asked: &Parsed, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let len = UDP + payload.len();
        let pseudo = Sum::pseudo_v4(self.from.octets(), self.to.octets(), protocol::UDP, len as u16);
        self.packet(asked, protocol::UDP, &udp(ports, payload, pseudo))
    }
}

impl V6 {
    /// An IPv6 packet (RFC 8200 §3).
    pub fn packet(&self, asked: &Parsed, next: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = ethernet(asked, self.to_mac, self.from_mac, ETHERTYPE_IPV6);
        let mut header = [0; IPV6];
        header[0] = 0x60;
        header[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
        (header[6], header[7]) = (next, self.hop_limit);
        header[8..24].copy_from_slice(&self.from.octets());
        header[24..40].copy_from_slice(&self.to.octets());
        frame.extend_from_slice(&header);
        frame.extend_from_slice(payload);
        frame
    }

    /// An ICMPv6 message: type, code, 0, and the rest.
    pub fn icmp(&self, asked: &Parsed, mut message: Vec<u8>) -> Vec<u8> {
        let (from, to) = (self.from.octets(), self.to.octets());
        let pseudo = Sum::pseudo_v6(from, to, protocol::ICMPV6, message.len() as u32);
        let sum = pseudo.bytes(&message).checksum();
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        self.packet(asked, protocol::ICMPV6, &message)
    }

    /// A UDP datagram.
    pub fn udp(&self, asked: &Parsed, ports: (u16, u16), payload: &[u8]) -> Vec<u8> {
        let len = UDP + payload.len();
        let pseudo = Sum::pseudo_v6(self.from.octets(), self.to.octets(), protocol::UDP, len as u32);
        self.packet(asked, protocol::UDP, &udp(ports, payload, pseudo))
    }
}

/// A UDP header (RFC 768) from the first port to the second, and its payload.
fn udp(ports: (u16, u16), payload: &[u8], pseudo: Sum) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(UDP + payload.len());
    for word in [ports.0, ports.1, (UDP + payload.len()) as u16, 0] {
        datagram.extend_from_slice(&word.to_be_bytes());
    }
    datagram.extend_from_slice(payload);
    let sum = pseudo.bytes(&datagram).transport_checksum();
    datagram[6..8].copy_from_slice(&sum.to_be_bytes());
    datagram
}

/// The payload of a UDP datagram to `port` that is not a fragment.
pub(super) fn udp_payload<'a>(parsed: &Parsed, frame: &'a [u8], port: u16) -> Option<&'a [u8]> {
    let ip = parsed.ip()?;
    if ip.fragment.is_some() || ip.protocol != protocol::UDP || ip.ports()?.1 != port {
        return None;
    }
    let at = usize::from(ip.transport);
    let len = frame.get(at + 4..at + 6)?;
    frame.get(at + UDP..at + usize::from(u16::from_be_bytes([len[0], len[1]])))
}
