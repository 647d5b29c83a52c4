//! One bounded pass over a frame's headers: Ethernet II, at most one 802.1Q tag, ARP, IPv4, IPv6 with extension
//! headers, TCP, UDP, ICMP.
//!
//! Only the head is read; lengths are checked against the whole frame. Nothing is believed that contradicts itself: a
//! [`Parsed`] that comes out says where things are, and they are there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::Mac;
use crate::verdict::DropReason;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;
/// Bytes of an IPv4 header without options.
pub const IPV4: usize = 20;
/// Bytes of an IPv6 header.
pub const IPV6: usize = 40;
/// Bytes of a UDP header.
pub const UDP: usize = 8;

/// EtherType of IPv4.
pub const ETHERTYPE_IPV4: u16 = 0x0800;
/// EtherType of ARP.
pub const ETHERTYPE_ARP: u16 = 0x0806;
/// EtherType of IPv6.
pub const ETHERTYPE_IPV6: u16 = 0x86dd;
/// EtherType of an 802.1Q tag.
const ETHERTYPE_VLAN: u16 = 0x8100;

/// IP protocol numbers (IANA).
pub mod protocol {
    /// Internet Control Message Protocol.
    pub const ICMP: u8 = 1;
    /// Transmission Control Protocol.
    pub const TCP: u8 = 6;
    /// User Datagram Protocol.
    pub const UDP: u8 = 17;
    /// ICMP for IPv6.
    pub const ICMPV6: u8 = 58;
}

/// IPv6 extension headers that are walked before a packet is given up on. RFC 8200 §4.1 names six, one of them twice.
const MOST_EXTENSIONS: usize = 8;
const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const DESTINATION: u8 = 60;

/// A frame's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parsed {
    /// Ethernet destination.
    pub destination: Mac,
    /// Ethernet source.
    pub source: Mac,
    /// VLAN identifier of an 802.1Q tag, which lies between the addresses and the EtherType.
    pub vlan: Option<u16>,
    /// What the frame carries.
    pub payload: Payload,
}

/// What a frame carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload {
    /// ARP for IPv4 over Ethernet.
    Arp(Arp),
    /// IPv4 or IPv6.
    Ip(Ip),
    /// Something else.
    Other {
        /// EtherType; below 0x600 a length (IEEE 802.3).
        ether_type: u16,
    },
}

/// An ARP message (RFC 826).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arp {
    /// 1 for a request, 2 for a reply.
    pub operation: u16,
    /// Sender's MAC address.
    pub sender_mac: Mac,
    /// Sender's address.
    pub sender: Ipv4Addr,
    /// Target's MAC address; means nothing in a request.
    pub target_mac: Mac,
    /// Target's address.
    pub target: Ipv4Addr,
}

/// An IP packet's headers. Offsets are from the start of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ip {
    /// Source address.
    pub source: IpAddr,
    /// Destination address. Of the same family.
    pub destination: IpAddr,
    /// Where the IP header begins.
    pub header: u16,
    /// Where the transport header begins: behind options and extension headers.
    pub transport: u16,
    /// Behind the packet's last byte; what follows in the frame is padding.
    pub end: u32,
    /// What is at `transport` (IANA protocol number).
    pub protocol: u8,
    /// Hop limit or time to live.
    pub hop_limit: u8,
    /// DSCP (upper six bits) and ECN (lower two).
    pub traffic_class: u8,
    /// DF: no router may fragment the packet. Set for every IPv6 packet.
    pub dont_fragment: bool,
    /// The packet is a fragment.
    pub fragment: Option<Fragment>,
    /// The transport header, where there is one.
    pub layer4: Layer4,
}

#[cfg(test)]
impl Ip {
    /// The headers of a datagram from `port` of 10.0.0.1 to port 53 of 10.0.0.2.
    pub(crate) fn datagram(port: u16) -> Ip {
        Ip {
            source: "10.0.0.1".parse().unwrap(),
            destination: "10.0.0.2".parse().unwrap(),
            header: 14,
            transport: 34,
            end: 42,
            protocol: protocol::UDP,
            hop_limit: 64,
            traffic_class: 0,
            dont_fragment: false,
            fragment: None,
            layer4: Layer4::Udp { source: port, destination: 53 },
        }
    }
}

/// Which part of a packet a fragment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Its first byte's place in the payload, bytes; a multiple of 8.
    pub offset: u16,
    /// There are more behind it.
    pub more: bool,
    /// What the fragments of one packet have in common.
    pub id: u32,
}

/// A transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer4 {
    /// TCP.
    Tcp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
        /// FIN, SYN, RST, PSH, ACK, URG, ECE, CWR from bit 0 up (RFC 9293 §3.1).
        flags: u8,
        /// Bytes of the header with its options.
        header: u8,
    },
    /// UDP.
    Udp {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// ICMP or ICMPv6.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
    /// Another protocol, or a fragment that is not the first.
    Other,
}

impl Ip {
    /// Whether it is IPv6.
    #[inline]
    pub fn is_ipv6(&self) -> bool {
        self.source.is_ipv6()
    }

    /// Bytes of the packet from its IP header on.
    #[inline]
    pub fn len(&self) -> usize {
        self.end as usize - usize::from(self.header)
    }

    /// Always false: a packet has its header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Source and destination port, where there are any.
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        match self.layer4 {
            Layer4::Tcp { source, destination, .. } | Layer4::Udp { source, destination } => {
                Some((source, destination))
            }
            Layer4::Icmp { .. } | Layer4::Other => None,
        }
    }
}

impl Parsed {
    /// The IP headers, of an IP packet.
    #[inline]
    pub fn ip(&self) -> Option<&Ip> {
        match &self.payload {
            Payload::Ip(ip) => Some(ip),
            Payload::Arp(_) | Payload::Other { .. } => None,
        }
    }
}

/// The bytes that are here of something longer.
#[derive(Clone, Copy)]
struct Frame<'a> {
    bytes: &'a [u8],
    len: usize,
}

impl Frame<'_> {
    /// `N` bytes from `offset`.
    #[inline(always)]
    fn at<const N: usize>(&self, offset: usize) -> Result<[u8; N], DropReason> {
        if offset + N > self.len {
            return Err(DropReason::Truncated);
        }
        self.bytes.get(offset..offset + N).and_then(|bytes| bytes.try_into().ok()).ok_or(DropReason::Headers)
    }

    #[inline(always)]
    fn u16_at(&self, offset: usize) -> Result<u16, DropReason> {
        self.at(offset).map(u16::from_be_bytes)
    }
}

/// Parses the frame of `len` bytes that begins with `head`.
///
/// # Errors
/// [`DropReason::Truncated`], [`DropReason::Malformed`], or [`DropReason::Headers`] where they go on behind the head.
#[inline]
pub fn parse(head: &[u8], len: usize) -> Result<Parsed, DropReason> {
    let frame = Frame { bytes: head, len };
    let ethernet: [u8; ETHERNET] = frame.at(0)?;
    let [d0, d1, d2, d3, d4, d5, s0, s1, s2, s3, s4, s5, t0, t1] = ethernet;
    let (mut ether_type, mut header, mut vlan) = (u16::from_be_bytes([t0, t1]), ETHERNET, None);
    if ether_type == ETHERTYPE_VLAN {
        vlan = Some(frame.u16_at(header)? & 0xfff);
        ether_type = frame.u16_at(header + 2)?;
        header += 4;
    }
    let payload = match ether_type {
        ETHERTYPE_IPV4 => Payload::Ip(ipv4(frame, header)?),
        ETHERTYPE_IPV6 => Payload::Ip(ipv6(frame, header)?),
        ETHERTYPE_ARP => arp(frame, header)?,
        ether_type => Payload::Other { ether_type },
    };
    Ok(Parsed { destination: Mac([d0, d1, d2, d3, d4, d5]), source: Mac([s0, s1, s2, s3, s4, s5]), vlan, payload })
}

/// RFC 826: hardware type Ethernet (1), protocol type IPv4, address lengths 6 and 4.
fn arp(frame: Frame<'_>, header: usize) -> Result<Payload, DropReason> {
    let fixed: [u8; 8] = frame.at(header)?;
    if fixed[..6] != [0, 1, 8, 0, 6, 4] {
        return Err(DropReason::Malformed);
    }
    Ok(Payload::Arp(Arp {
        operation: u16::from_be_bytes([fixed[6], fixed[7]]),
        sender_mac: Mac(frame.at(header + 8)?),
        sender: frame.at::<4>(header + 14)?.into(),
        target_mac: Mac(frame.at(header + 18)?),
        target: frame.at::<4>(header + 24)?.into(),
    }))
}

/// RFC 791 §3.1.
#[inline(always)]
fn ipv4(frame: Frame<'_>, header: usize) -> Result<Ip, DropReason> {
    let fixed: [u8; IPV4] = frame.at(header)?;
    let header_len = usize::from(fixed[0] & 15) * 4;
    let total = usize::from(u16::from_be_bytes([fixed[2], fixed[3]]));
    if fixed[0] >> 4 != 4 || header_len < IPV4 || total < header_len {
        return Err(DropReason::Malformed);
    }
    let end = header + total;
    if end > frame.len {
        return Err(DropReason::Truncated);
    }
    let fragmentation = u16::from_be_bytes([fixed[6], fixed[7]]);
    let (offset, more) = ((fragmentation & 0x1fff) * 8, fragmentation & 0x2000 != 0);
    let fragment =
        (offset != 0 || more).then(|| Fragment { offset, more, id: u16::from_be_bytes([fixed[4], fixed[5]]).into() });
    if usize::from(offset) + total - header_len > usize::from(u16::MAX) {
        return Err(DropReason::Malformed);
    }
    let transport = header + header_len;
    Ok(Ip {
        source: Ipv4Addr::new(fixed[12], fixed[13], fixed[14], fixed[15]).into(),
        destination: Ipv4Addr::new(fixed[16], fixed[17], fixed[18], fixed[19]).into(),
        header: header as u16,
        transport: transport as u16,
        end: end as u32,
        protocol: fixed[9],
        hop_limit: fixed[8],
        traffic_class: fixed[1],
        dont_fragment: fragmentation & 0x4000 != 0,
        fragment,
        layer4: layer4(Frame { len: end, ..frame }, transport, fixed[9], fragment)?,
    })
}

/// RFC 8200 §3, §4.
#[inline(always)]
fn ipv6(frame: Frame<'_>, header: usize) -> Result<Ip, DropReason> {
    let fixed: [u8; 8] = frame.at(header)?;
    let source: [u8; 16] = frame.at(header + 8)?;
    let destination: [u8; 16] = frame.at(header + 24)?;
    if fixed[0] >> 4 != 6 {
        return Err(DropReason::Malformed);
    }
    let end = header + IPV6 + usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
    if end > frame.len {
        return Err(DropReason::Truncated);
    }
    let packet = Frame { len: end, ..frame };
    let (mut next, mut transport, mut part, mut walked) = (fixed[6], header + IPV6, None, 0);
    while let HOP_BY_HOP | ROUTING | FRAGMENT | DESTINATION = next {
        // Hop-by-hop options come first or not at all (§4.1).
        if walked == MOST_EXTENSIONS || (next == HOP_BY_HOP && walked != 0) {
            return Err(DropReason::Malformed);
        }
        walked += 1;
        let extension: [u8; 8] = packet.at(transport)?;
        if next == FRAGMENT {
            if part.is_some() {
                return Err(DropReason::Malformed);
            }
            let field = u16::from_be_bytes([extension[2], extension[3]]);
            let found = Fragment {
                offset: field & 0xfff8,
                more: field & 1 != 0,
                id: u32::from_be_bytes([extension[4], extension[5], extension[6], extension[7]]),
            };
            part = Some(found);
            (next, transport) = (extension[0], transport + 8);
            if found.offset != 0 {
                break;
            }
            continue;
        }
        // A routing header of type 0 that is not used up is to be discarded (RFC 5095 §3).
        if next == ROUTING && extension[2] == 0 && extension[3] != 0 {
            return Err(DropReason::Malformed);
        }
        transport += 8 * (1 + usize::from(extension[1]));
        next = extension[0];
        if transport > end {
            return Err(DropReason::Truncated);
        }
    }
    // Nothing before it, nothing after it: the packet is whole (RFC 6946 §4).
    let fragment = part.filter(|part: &Fragment| part.offset != 0 || part.more);
    Ok(Ip {
        source: Ipv6Addr::from(source).into(),
        destination: Ipv6Addr::from(destination).into(),
        header: header as u16,
        transport: transport as u16,
        end: end as u32,
        protocol: next,
        hop_limit: fixed[7],
        traffic_class: fixed[0] << 4 | fixed[1] >> 4,
        dont_fragment: true,
        fragment,
        layer4: layer4(packet, transport, next, fragment)?,
    })
}

/// The transport header at `transport` of a packet that ends where `packet` does. A first fragment too short for it is
/// an attack on filters by ports (RFC 1858 §3, RFC 7112).
#[inline(always)]
fn layer4(packet: Frame<'_>, transport: usize, protocol: u8, fragment: Option<Fragment>) -> Result<Layer4, DropReason> {
    if fragment.is_some_and(|fragment| fragment.offset != 0) {
        return Ok(Layer4::Other);
    }
    match protocol {
        protocol::TCP => {
            let fixed: [u8; 20] = packet.at(transport)?;
            let header = (fixed[12] >> 4) * 4;
            if header < 20 {
                return Err(DropReason::Malformed);
            }
            if transport + usize::from(header) > packet.len {
                return Err(DropReason::Truncated);
            }
            Ok(Layer4::Tcp {
                source: u16::from_be_bytes([fixed[0], fixed[1]]),
                destination: u16::from_be_bytes([fixed[2], fixed[3]]),
                flags: fixed[13],
                header,
            })
        }
        protocol::UDP => {
            let fixed: [u8; UDP] = packet.at(transport)?;
            let len = usize::from(u16::from_be_bytes([fixed[4], fixed[5]]));
            if len < UDP {
                return Err(DropReason::Malformed);
            }
            if fragment.is_none() && transport + len > packet.len {
                return Err(DropReason::Truncated);
            }
            Ok(Layer4::Udp {
                source: u16::from_be_bytes([fixed[0], fixed[1]]),
                destination: u16::from_be_bytes([fixed[2], fixed[3]]),
            })
        }
        protocol::ICMP | protocol::ICMPV6 => {
            let [kind, code, _, _] = packet.at(transport)?;
            Ok(Layer4::Icmp { kind, code })
        }
        _ => Ok(Layer4::Other),
    }
}
