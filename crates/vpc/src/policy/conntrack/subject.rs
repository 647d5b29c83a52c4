//! What the tracker reads of a packet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::key::{Key, Zone};
use super::tcp::TcpHeader;
use crate::packet::parse::{IPV4, IPV6, protocol};
use crate::packet::{Ip, Layer4};

/// What a packet is to the tracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Of a connection, or the first of one.
    Segment(Segment),
    /// An ICMP error about a packet that went the way of this key; the error is on its way to that packet's source.
    Error(Key),
    /// Neither: a fragment but the first, ICMP that is not an echo, an error about nothing that can be read. Stateless
    /// rules decide.
    Untracked,
}

/// A packet of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// The connection and the direction.
    pub key: Key,
    /// What else matters.
    pub content: Content,
}

/// What else matters of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// TCP.
    Tcp(TcpHeader),
    /// UDP.
    Udp,
    /// An echo.
    Echo {
        /// A request, not a reply.
        is_request: bool,
    },
    /// Any other protocol.
    Other,
}

/// Echo request and reply, and which types are errors.
const ECHO4: [u8; 2] = [8, 0];
const ECHO6: [u8; 2] = [128, 129];
/// Unreachable, source quench, time exceeded, parameter problem (RFC 792).
const ERRORS4: [u8; 4] = [3, 4, 11, 12];
/// Unreachable, too big, time exceeded, parameter problem (RFC 4443 §2.1).
const ERRORS6: [u8; 4] = [1, 2, 3, 4];
/// Bytes of an ICMP header, behind which errors have the packet they are about.
const ICMP: usize = 8;
/// TCP options (RFC 9293 §3.1, RFC 7323 §2.2).
const END: u8 = 0;
const NOP: u8 = 1;
const WINDOW_SCALE: u8 = 3;
/// Bytes of a TCP header without options.
const TCP: usize = 20;

impl Subject {
    /// Of the packet of zone number `zone` with headers `ip`, in a frame that begins with `head`.
    pub fn of(zone: Zone, ip: &Ip, head: &[u8]) -> Subject {
        let Some(transport) = head.get(usize::from(ip.transport)..) else { return Subject::Untracked };
        if ip.fragment.is_some_and(|part| part.offset != 0) {
            return Subject::Untracked;
        }
        let key = |source_port, destination_port| Key {
            zone,
            source: ip.source,
            destination: ip.destination,
            protocol: ip.protocol,
            source_port,
            destination_port,
        };
        let (key, content) = match ip.layer4 {
            Layer4::Tcp { source, destination, flags, header } => {
                let Some(tcp) = tcp(ip, transport, flags, header) else { return Subject::Untracked };
                (key(source, destination), Content::Tcp(tcp))
            }
            Layer4::Udp { source, destination } => (key(source, destination), Content::Udp),
            Layer4::Icmp { kind, .. } => match echo(ip.is_ipv6(), kind, transport) {
                Some((is_request, source, destination)) => (key(source, destination), Content::Echo { is_request }),
                None => return error(zone, ip, kind, transport),
            },
            Layer4::Other => (key(0, 0), Content::Other),
        };
        Subject::Segment(Segment { key, content })
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2).and_then(|bytes| bytes.try_into().ok()).map(u16::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_be_bytes)
}

fn tcp(ip: &Ip, bytes: &[u8], flags: u8, header: u8) -> Option<TcpHeader> {
    let options = bytes.get(TCP..usize::from(header).min(bytes.len()))?;
    Some(TcpHeader {
        flags,
        sequence: u32_at(bytes, 4)?,
        acknowledgement: u32_at(bytes, 8)?,
        window: u16_at(bytes, 14)?,
        len: ip.end.saturating_sub(u32::from(ip.transport) + u32::from(header)),
        scale: scale(options),
    })
}

/// The window scale option.
fn scale(mut options: &[u8]) -> Option<u8> {
    loop {
        options = match options {
            [] | [END, ..] => return None,
            [NOP, rest @ ..] => rest,
            [WINDOW_SCALE, 3, scale, ..] => return Some(*scale),
            [_, len, ..] if *len >= 2 => options.get(usize::from(*len)..)?,
            _ => return None,
        }
    }
}

/// Of an echo: whether it is a request, and what stands for its ports.
fn echo(is_ipv6: bool, kind: u8, bytes: &[u8]) -> Option<(bool, u16, u16)> {
    let [request, reply] = if is_ipv6 { ECHO6 } else { ECHO4 };
    let id = u16_at(bytes, 4)?;
    match kind {
        kind if kind == request => Some((true, id, 0)),
        kind if kind == reply => Some((false, 0, id)),
        _ => None,
    }
}

fn error(zone: Zone, ip: &Ip, kind: u8, bytes: &[u8]) -> Subject {
    let errors = if ip.is_ipv6() { ERRORS6 } else { ERRORS4 };
    let quoted = bytes.get(ICMP..).filter(|_| errors.contains(&kind));
    // The error goes to the sender of the packet that it is about.
    let key = quoted.and_then(|quoted| quote(zone, ip.is_ipv6(), quoted)).filter(|key| key.source == ip.destination);
    key.map_or(Subject::Untracked, Subject::Error)
}

/// The key of the packet that an error is about: its IP header and at least 8 bytes more (RFC 792, RFC 4443 §3.1).
fn quote(zone: Zone, is_ipv6: bool, quoted: &[u8]) -> Option<Key> {
    let first = *quoted.first()?;
    let (source, destination, protocol, header): (IpAddr, IpAddr, u8, usize) = if is_ipv6 {
        let address = |at: usize| <[u8; 16]>::try_from(quoted.get(at..at + 16)?).ok().map(Ipv6Addr::from);
        // With extension headers it is of no connection.
        (address(8)?.into(), address(24)?.into(), *quoted.get(6)?, IPV6)
    } else {
        let address = |at: usize| u32_at(quoted, at).map(Ipv4Addr::from_bits);
        let is_later = u16_at(quoted, 6)? & 0x1fff != 0;
        if is_later {
            return None;
        }
        (address(12)?.into(), address(16)?.into(), *quoted.get(9)?, usize::from(first & 15) * 4)
    };
    if first >> 4 != if is_ipv6 { 6 } else { 4 } || header < IPV4 {
        return None;
    }
    let transport = quoted.get(header..)?;
    let (source_port, destination_port) = match protocol {
        protocol::TCP | protocol::UDP => (u16_at(transport, 0)?, u16_at(transport, 2)?),
        protocol::ICMP | protocol::ICMPV6 => {
            let (_, source, destination) = echo(is_ipv6, *transport.first()?, transport)?;
            (source, destination)
        }
        _ => (0, 0),
    };
    Some(Key { zone, source, destination, protocol, source_port, destination_port })
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    use super::super::tcp::{ACK, SYN};
    use super::*;
    use crate::packet::parse;

    const A: [u8; 4] = [10, 0, 0, 1];
    const B: [u8; 4] = [10, 0, 0, 2];

    fn subject(frame: &[u8]) -> Subject {
        Subject::of(Zone(3), parse(frame, frame.len()).unwrap().ip().unwrap(), frame)
    }

    #[test]
    fn a_segment_is_read_with_its_options() {
        let mut frame = Vec::new();
        let options = [2, 4, 5, 0xb4, 1, 3, 3, 7];
        PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv4(A, B, 64)
            .tcp(4000, 80, 0xffff_fff0, 500)
            .syn()
            .ack(9)
            .options_raw(&options)
            .unwrap()
            .write(&mut frame, &[1, 2, 3])
            .unwrap();
        let Subject::Segment(Segment { key, content: Content::Tcp(header) }) = subject(&frame) else { panic!() };
        assert_eq!((key.zone, key.source_port, key.destination_port, key.protocol), (Zone(3), 4000, 80, 6));
        let expected = TcpHeader {
            flags: SYN | ACK,
            sequence: 0xffff_fff0,
            acknowledgement: 9,
            window: 500,
            len: 3,
            scale: Some(7),
        };
        assert_eq!(header, expected);
        assert_eq!(scale(&[8, 10, 0, 0]), None, "cut off");
        assert_eq!(scale(&[9, 0, 3, 3, 7]), None, "an option without length");
    }

    #[test]
    fn echoes_and_errors() {
        let link = || PacketBuilder::ethernet2([2; 6], [4; 6]);
        let (mut request, mut reply) = (Vec::new(), Vec::new());
        link().ipv4(A, B, 64).icmpv4_echo_request(77, 1).write(&mut request, &[]).unwrap();
        link().ipv4(B, A, 64).icmpv4_echo_reply(77, 1).write(&mut reply, &[]).unwrap();
        let key = |frame: &[u8]| match subject(frame) {
            Subject::Segment(segment) => segment.key,
            other => panic!("{other:?}"),
        };
        assert_eq!(key(&request), key(&reply).reversed());
        for v6 in [false, true] {
            let step = || match v6 {
                false => link().ipv4(B, A, 64),
                true => link().ipv6([0xb; 16], [0xa; 16], 64),
            };
            let mut sent = Vec::new();
            match v6 {
                false => link().ipv4(A, B, 64),
                true => link().ipv6([0xa; 16], [0xb; 16], 64),
            }
            .udp(5, 6)
            .write(&mut sent, &[0; 30])
            .unwrap();
            let error = |quote: &[u8]| {
                let mut frame = Vec::new();
                match v6 {
                    false => step().icmpv4_raw(3, 1, [0; 4]).write(&mut frame, quote).unwrap(),
                    true => step().icmpv6_raw(1, 0, [0; 4]).write(&mut frame, quote).unwrap(),
                }
                frame
            };
            let header = if v6 { 40 } else { 20 };
            assert_eq!(subject(&error(&sent[14..14 + header + 8])), Subject::Error(key(&sent)));
            assert_eq!(subject(&error(&sent[14..14 + header + 3])), Subject::Untracked, "cut off");
            let mut other = sent.clone();
            other[14 + header - 1 - if v6 { 16 } else { 4 }] ^= 1;
            assert_eq!(subject(&error(&other[14..])), Subject::Untracked, "told to somebody else");
        }
    }

    proptest! {
        /// What a guest writes into its packets, and into the packets that its errors quote.
        #[test]
        fn whatever_is_in_a_packet_it_is_read_or_left(
            v6 in any::<bool>(),
            protocol in prop_oneof![Just(1_u8), Just(6), Just(17), Just(58), any::<u8>()],
            first in prop_oneof![Just(3_u8), Just(1), Just(8), Just(128), any::<u8>()],
            mut payload in prop::collection::vec(any::<u8>(), 0..80),
            quotes in any::<bool>(),
            cut in 0_usize..120,
        ) {
            if let [kind, _, _, _, _, _, _, _, version, ..] = &mut payload[..] {
                *kind = first;
                if quotes {
                    *version = if v6 { 0x60 } else { 0x45 };
                }
            }
            let mut frame = vec![2; 12];
            if v6 {
                frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, payload.len() as u8, protocol, 64]);
                frame.extend([0xaa; 32]);
            } else {
                frame.extend([8, 0, 0x45, 0, 0, 20 + payload.len() as u8, 0, 0, 0, 0, 64, protocol, 0, 0]);
                frame.extend([0xaa; 8]);
            }
            frame.extend(&payload);
            if let Ok(parsed) = parse(&frame, frame.len()) {
                let ip = parsed.ip().expect("an IP packet");
                match Subject::of(Zone(3), ip, &frame[..cut.min(frame.len())]) {
                    Subject::Segment(segment) => prop_assert_eq!(segment.key.source, ip.source),
                    Subject::Error(quoted) => prop_assert_eq!(quoted.source, ip.destination),
                    Subject::Untracked => {}
                }
            }
        }
    }
}
