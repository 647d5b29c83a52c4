//! The parser against one that is not ours, and against anything at all.

mod common;

use etherparse::{Ipv6ExtensionSlice, LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use softdpu_vpc::packet::{Layer4, Payload, parse};
use softdpu_vpc::{DropReason, Mac};

use common::{GATEWAY, ip, mac, udp, udp_of};

/// What both parsers say of a frame, in one form.
#[derive(Debug, PartialEq)]
struct Facts {
    macs: [[u8; 6]; 2],
    vlan: Option<u16>,
    addresses: [std::net::IpAddr; 2],
    hop_limit: u8,
    protocol: u8,
    fragment: bool,
    layer4: Option<(&'static str, u16, u16)>,
    payload_end: usize,
}

fn ours(frame: &[u8]) -> Option<Facts> {
    let parsed = parse(frame, frame.len()).ok()?;
    let Payload::Ip(ip) = parsed.payload else { return None };
    Some(Facts {
        macs: [parsed.destination.0, parsed.source.0],
        vlan: parsed.vlan,
        addresses: [ip.source, ip.destination],
        hop_limit: ip.hop_limit,
        protocol: ip.protocol,
        fragment: ip.fragment.is_some(),
        layer4: match ip.layer4 {
            _ if ip.fragment.is_some() => None,
            Layer4::Tcp { source, destination, .. } => Some(("tcp", source, destination)),
            Layer4::Udp { source, destination } => Some(("udp", source, destination)),
            Layer4::Icmp { kind, code } => Some(("icmp", kind.into(), code.into())),
            Layer4::Other => None,
        },
        payload_end: ip.end as usize,
    })
}

/// etherparse 0.19 takes the wrong two bits of an IPv6 fragment header for the reserved ones, those of the lowest
/// values of the offset (RFC 8200 §4.5 has the offset in the upper 13 bits, then the two reserved, then M), so what it
/// says of such a packet is not what it is.
fn misread(extensions: &etherparse::Ipv6ExtensionsSlice<'_>) -> bool {
    extensions.clone().into_iter().any(|extension| match extension {
        Ipv6ExtensionSlice::Fragment(header) => {
            let word = u16::from_be_bytes([header.slice()[2], header.slice()[3]]);
            (word & !0b110 != 0) != header.is_fragmenting_payload()
        }
        _ => false,
    })
}

fn theirs(frame: &[u8]) -> Option<Facts> {
    let sliced = SlicedPacket::from_ethernet(frame).ok()?;
    let Some(etherparse::LinkSlice::Ethernet2(ethernet)) = &sliced.link else { return None };
    let vlan = match sliced.link_exts.as_slice() {
        [] => None,
        [LinkExtSlice::Vlan(vlan)] => Some(vlan.vlan_identifier().value()),
        _ => return None,
    };
    let (addresses, hop_limit, payload) = match &sliced.net {
        Some(NetSlice::Ipv4(ip)) => {
            ([ip.header().source_addr().into(), ip.header().destination_addr().into()], ip.header().ttl(), ip.payload())
        }
        Some(NetSlice::Ipv6(ip)) if misread(ip.extensions()) => return None,
        // A length of nothing is for them as much as there is (a kernel's frame of more than 64 KiB), for us nothing.
        Some(NetSlice::Ipv6(ip)) if ip.header().payload_length() == 0 && !ip.payload().payload.is_empty() => {
            return None;
        }
        Some(NetSlice::Ipv6(ip)) => (
            [ip.header().source_addr().into(), ip.header().destination_addr().into()],
            ip.header().hop_limit(),
            ip.payload(),
        ),
        _ => return None,
    };
    Some(Facts {
        macs: [ethernet.destination(), ethernet.source()],
        vlan,
        addresses,
        hop_limit,
        protocol: payload.ip_number.0,
        fragment: payload.fragmented || sliced.is_ip_payload_fragmented(),
        layer4: match &sliced.transport {
            Some(TransportSlice::Tcp(tcp)) => Some(("tcp", tcp.source_port(), tcp.destination_port())),
            Some(TransportSlice::Udp(udp)) => Some(("udp", udp.source_port(), udp.destination_port())),
            Some(TransportSlice::Icmpv4(icmp)) => Some(("icmp", icmp.type_u8().into(), icmp.code_u8().into())),
            Some(TransportSlice::Icmpv6(icmp)) => Some(("icmp", icmp.type_u8().into(), icmp.code_u8().into())),
            None => None,
        },
        payload_end: payload.payload.as_ptr() as usize + payload.payload.len() - frame.as_ptr() as usize,
    })
}

fn tagged(frame: &[u8], vlan: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &vlan.to_be_bytes(), &frame[12..]].concat()
}

fn tcp(source: &str, destination: &str, options: &[u8]) -> Vec<u8> {
    let builder = etherparse::PacketBuilder::ethernet2(mac(1).0, mac(2).0);
    let builder = match (ip(source), ip(destination)) {
        (std::net::IpAddr::V4(s), std::net::IpAddr::V4(d)) => builder.ipv4(s.octets(), d.octets(), 9),
        (std::net::IpAddr::V6(s), std::net::IpAddr::V6(d)) => builder.ipv6(s.octets(), d.octets(), 9),
        _ => panic!("two families"),
    };
    let mut frame = Vec::new();
    builder.tcp(80, 81, 1, 2).options_raw(options).unwrap().write(&mut frame, b"abc").unwrap();
    frame
}

/// An IPv6 packet with extension headers: (type, bytes) each, the bytes without the next header field.
fn extended(extensions: &[(u8, Vec<u8>)], last: u8, payload: &[u8]) -> Vec<u8> {
    let mut body = Vec::new();
    for (at, (_, bytes)) in extensions.iter().enumerate() {
        body.push(extensions.get(at + 1).map_or(last, |(kind, _)| *kind));
        body.extend_from_slice(bytes);
    }
    body.extend_from_slice(payload);
    let mut frame = udp(mac(1), mac(2), "2001:db8::2", "2001:db8::3");
    frame.truncate(54);
    frame[18..20].copy_from_slice(&(body.len() as u16).to_be_bytes());
    frame[20] = extensions.first().map_or(last, |(kind, _)| *kind);
    frame.extend(body);
    frame
}

fn frames() -> Vec<Vec<u8>> {
    let four = udp(mac(1), mac(2), "10.0.0.2", "10.0.0.3");
    let six = udp(mac(1), GATEWAY, "2001:db8::2", "2001:db8:0:1::5");
    let datagram = six[54..].to_vec();
    let pad = |len: u8| [vec![len], vec![1, 4, 0, 0, 0, 0], vec![0; usize::from(len) * 8]].concat();
    vec![
        tagged(&four, 5),
        tagged(&six, 0),
        tcp("10.0.0.2", "10.0.0.3", &[2, 4, 5, 180]),
        tcp("2001:db8::2", "2001:db8::3", &[]),
        extended(&[(0, pad(0)), (60, pad(1))], 17, &datagram),
        extended(&[(43, vec![0, 3, 1, 0, 0, 0, 0])], 17, &datagram),
        extended(&[(0, pad(0)), (44, vec![0, 0, 1, 0, 0, 0, 7])], 17, &datagram),
        extended(&[(44, vec![0, 0, 9, 0, 0, 0, 7])], 17, &datagram),
        extended(&[], 58, &[128, 0, 0, 0, 1, 2, 3, 4]),
        extended(&[], 59, &[]),
        udp_of(mac(1), mac(2), "10.0.0.2", "10.0.0.3", 1, &[0; 900]),
        four,
        six,
    ]
}

#[test]
fn both_parsers_agree_on_good_frames() {
    for frame in frames() {
        let found = ours(&frame);
        assert!(found.is_some(), "{frame:02x?}");
        assert_eq!(found, theirs(&frame), "{frame:02x?}");
    }
}

#[test]
fn headers_beyond_the_head_are_not_believed() {
    let frame = udp(mac(1), mac(2), "10.0.0.2", "10.0.0.3");
    assert_eq!(parse(&frame[..38], frame.len()), Err(DropReason::Headers));
    assert_eq!(parse(&frame[..38], 38), Err(DropReason::Truncated));
    assert!(parse(&frame[..42], frame.len()).is_ok());
}

#[test]
fn extension_headers_have_an_end() {
    let pad = vec![0, 1, 4, 0, 0, 0, 0];
    let of = |count| extended(&vec![(60, pad.clone()); count], 59, &[]);
    assert!(parse(&of(8), of(8).len()).is_ok());
    assert_eq!(parse(&of(9), of(9).len()), Err(DropReason::Malformed));
    // Hop-by-hop options that are not first, two fragment headers, a routing header of type 0 that is not used up.
    for wrong in [
        extended(&[(60, pad.clone()), (0, pad.clone())], 59, &[]),
        extended(&[(44, vec![0, 0, 1, 0, 0, 0, 7]), (44, vec![0, 0, 1, 0, 0, 0, 7])], 59, &[]),
        extended(&[(43, vec![0, 0, 1, 0, 0, 0, 0])], 59, &[]),
    ] {
        assert_eq!(parse(&wrong, wrong.len()), Err(DropReason::Malformed));
    }
}

#[test]
fn every_bit_of_an_offset_makes_a_fragment_and_reserved_bits_do_not() {
    for bit in 0..16 {
        let [high, low] = (1u16 << bit).to_be_bytes();
        let frame = extended(&[(44, vec![0, high, low, 0, 0, 0, 7])], 59, &[0; 8]);
        assert_eq!(ours(&frame).unwrap().fragment, ![1, 2].contains(&bit), "bit {bit}");
    }
}

#[test]
fn arp_is_for_ipv4_over_ethernet() {
    let mut frame = [&[0xff; 6][..], &mac(1).0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
    frame.extend([&mac(1).0[..], &[10, 0, 0, 2], &[0; 6], &[10, 0, 0, 3]].concat());
    let Payload::Arp(arp) = parse(&frame, frame.len()).unwrap().payload else { panic!("no ARP") };
    assert_eq!((arp.operation, arp.sender_mac, arp.target_mac), (1, mac(1), Mac::default()));
    assert_eq!((arp.sender.to_string(), arp.target.to_string()), ("10.0.0.2".into(), "10.0.0.3".into()));
    frame[14] = 6;
    assert_eq!(parse(&frame, frame.len()), Err(DropReason::Malformed));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    /// What we accept, they accept, and say the same of. They accept more: what contradicts itself.
    #[test]
    fn whatever_is_accepted_both_read_alike(
        which in 0..13usize,
        changes in prop::collection::vec((0..160usize, any::<u8>()), 0..4),
        cut in prop::option::weighted(0.2, 0..100usize),
    ) {
        let mut frame = frames()[which].clone();
        for (at, byte) in changes {
            let at = at % frame.len();
            frame[at] = byte;
        }
        frame.truncate(cut.unwrap_or(usize::MAX).max(1));
        if let (Some(ours), Some(theirs)) = (ours(&frame), theirs(&frame))
            // They walk authentication headers and headers of mobility too, which for us are what the packet carries.
            && ours.protocol == theirs.protocol
        {
            prop_assert_eq!(ours, theirs);
        }
    }

    #[test]
    fn no_bytes_make_it_panic_or_point_outside(bytes in prop::collection::vec(any::<u8>(), 0..200), more in 0..2000usize) {
        let len = bytes.len() + more;
        if let Ok(parsed) = parse(&bytes, len)
            && let Some(ip) = parsed.ip()
        {
            prop_assert!(ip.end as usize <= len && u32::from(ip.transport) <= ip.end && ip.header < ip.transport);
        }
    }
}
