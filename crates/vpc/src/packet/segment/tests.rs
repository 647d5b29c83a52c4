//! Frames are made, and what comes out is read, by `etherparse`.

use std::net::IpAddr;

use etherparse::{NetSlice, PacketBuilder, SlicedPacket, TcpHeader, TransportSlice};
use proptest::prelude::*;

use super::*;
use crate::id::PortId;
use crate::packet::{HEAD, Head, Segmentation};

const V4: [[u8; 4]; 2] = [[10, 0, 0, 2], [10, 0, 0, 3]];
const V6: [[u8; 16]; 2] =
    [[0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2], [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 3]];
/// Outer Ethernet, IPv4, UDP, VXLAN.
const OVERHEAD_V4: usize = 14 + 20 + 8 + 8;
/// Outer Ethernet, IPv6, UDP, VXLAN.
const OVERHEAD_V6: usize = 14 + 40 + 8 + 8;

fn link() -> etherparse::PacketBuilderStep<etherparse::Ethernet2Header> {
    PacketBuilder::ethernet2([2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3])
}

fn payload(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn tcp_header(options: usize) -> TcpHeader {
    let mut tcp = TcpHeader::new(443, 40_000, 0xffff_ff00, 1000);
    (tcp.ack, tcp.psh, tcp.fin, tcp.cwr, tcp.acknowledgment_number) = (true, true, true, true, 77);
    tcp.set_options_raw(&vec![1; options]).unwrap();
    tcp
}

fn tcp(v6: bool, options: usize, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let step = if v6 { link().ipv6(V6[0], V6[1], 64) } else { link().ipv4(V4[0], V4[1], 64) };
    step.tcp_header(tcp_header(options)).write(&mut frame, &payload(len)).unwrap();
    frame
}

fn udp(v6: bool, len: usize) -> Vec<u8> {
    let mut frame = Vec::new();
    let step = if v6 { link().ipv6(V6[0], V6[1], 64) } else { link().ipv4(V4[0], V4[1], 64) };
    step.udp(4789, 53).write(&mut frame, &payload(len)).unwrap();
    frame
}

/// The frame in a tunnel, with lengths that are not yet those of anything.
fn tunnel(v6: bool, inner: &[u8]) -> (Vec<u8>, usize) {
    let mut frame = Vec::new();
    let step = if v6 { link().ipv6(V6[1], V6[0], 64) } else { link().ipv4(V4[1], V4[0], 64) };
    step.udp(50_000, 4789).write(&mut frame, &[8, 0, 0, 0, 0, 0x13, 0x89, 0]).unwrap();
    let overhead = frame.len();
    assert_eq!(overhead, if v6 { OVERHEAD_V6 } else { OVERHEAD_V4 });
    frame[16..18].copy_from_slice(&[0xff, 0xff]);
    frame.extend_from_slice(inner);
    (frame, overhead)
}

/// A packet with a head that holds the tunnel's headers and as much of the inner frame as a head holds, and its tail.
fn packet(frame: &[u8], overhead: usize, segmentation: Option<Segmentation>, checksum: Checksum) -> (Packet, Vec<u8>) {
    let inner = &frame[overhead..];
    let (near, tail) = inner.split_at(inner.len().min(HEAD));
    let mut head = Head::of(near);
    head.prepend(overhead).unwrap().copy_from_slice(&frame[..overhead]);
    (Packet { head, tail: tail.len() as u32, checksum, segmentation, port: PortId(1) }, tail.to_vec())
}

fn gso(kind: SegmentationKind, size: u16) -> Option<Segmentation> {
    Some(Segmentation { kind, size, ecn: true })
}

fn frames(packet: &Packet, overhead: usize, tail: &[u8]) -> Vec<Vec<u8>> {
    let segmenter = Segmenter::new(packet, overhead, 65_600).unwrap();
    let mut all = Vec::new();
    // Backwards: they do not depend on each other.
    for index in (0..segmenter.segments()).rev() {
        let mut out = vec![0xee; segmenter.len(index) + 1];
        segmenter.write(index, tail, &mut out).unwrap();
        assert_eq!(out.pop(), Some(0xee), "a byte behind the frame was touched");
        all.insert(0, out);
    }
    all
}

/// What the oracle says of a frame with right lengths and checksums.
struct Seen {
    identification: Option<u16>,
    payload: Vec<u8>,
    tcp: Option<TcpHeader>,
}

fn addresses(net: &NetSlice<'_>) -> (IpAddr, IpAddr) {
    match net {
        NetSlice::Ipv4(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        NetSlice::Ipv6(ip) => (ip.header().source_addr().into(), ip.header().destination_addr().into()),
        NetSlice::Arp(_) => panic!("not IP"),
    }
}

fn see(frame: &[u8]) -> Seen {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let net = sliced.net.unwrap();
    let identification = match &net {
        NetSlice::Ipv4(ip) => {
            let header = ip.header().to_header();
            assert_eq!(usize::from(header.total_len) + ETHERNET, frame.len());
            assert_eq!(header.header_checksum, header.calc_header_checksum());
            Some(header.identification)
        }
        NetSlice::Ipv6(ip) => {
            assert_eq!(usize::from(ip.header().payload_length()) + ETHERNET + IPV6, frame.len());
            None
        }
        NetSlice::Arp(_) => panic!("not IP"),
    };
    match sliced.transport.unwrap() {
        TransportSlice::Tcp(tcp) => {
            let checksum = match addresses(&net) {
                (IpAddr::V4(source), IpAddr::V4(to)) => tcp.calc_checksum_ipv4(source.octets(), to.octets()),
                (IpAddr::V6(source), IpAddr::V6(to)) => tcp.calc_checksum_ipv6(source.octets(), to.octets()),
                _ => unreachable!(),
            };
            assert_eq!(tcp.checksum(), checksum.unwrap());
            Seen { identification, payload: tcp.payload().to_vec(), tcp: Some(tcp.to_header()) }
        }
        TransportSlice::Udp(udp) => {
            let header = udp.to_header();
            assert_eq!(usize::from(header.length), udp.payload().len() + UDP);
            let checksum = match addresses(&net) {
                (IpAddr::V4(source), IpAddr::V4(to)) => {
                    header.calc_checksum_ipv4_raw(source.octets(), to.octets(), udp.payload())
                }
                (IpAddr::V6(source), IpAddr::V6(to)) => {
                    header.calc_checksum_ipv6_raw(source.octets(), to.octets(), udp.payload())
                }
                _ => unreachable!(),
            };
            let none = header.checksum == 0 && identification.is_some();
            assert!(none || header.checksum == checksum.unwrap());
            Seen { identification, payload: udp.payload().to_vec(), tcp: None }
        }
        other => panic!("{other:?}"),
    }
}

/// The inner frame of a tunnelled one with right outer headers.
fn inside(frame: &[u8]) -> Vec<u8> {
    see(frame).payload[8..].to_vec()
}

#[test]
fn tcp_is_cut_into_segments_that_continue_each_other() {
    for (v6, kind) in [(false, SegmentationKind::TcpV4), (true, SegmentationKind::TcpV6)] {
        for (options, len, size) in [(0, 5000, 1460), (12, 2896, 1448), (40, 100, 8), (0, 65_000, 1400), (12, 10, 1400)]
        {
            let frame = tcp(v6, options, len);
            let (packet, tail) = packet(&frame, 0, gso(kind, size), Checksum::Complete);
            let seen: Vec<Seen> = frames(&packet, 0, &tail).iter().map(|frame| see(frame)).collect();
            assert_eq!(seen.len(), len.div_ceil(usize::from(size)));
            assert_eq!(seen.iter().flat_map(|seen| seen.payload.clone()).collect::<Vec<u8>>(), payload(len));
            let mut sequence = 0xffff_ff00_u32;
            for (index, one) in seen.iter().enumerate() {
                let (header, last) = (one.tcp.as_ref().unwrap(), index + 1 == seen.len());
                assert_eq!(header.sequence_number, sequence);
                assert_eq!((header.fin, header.psh, header.ack, header.cwr), (last, last, true, index == 0));
                assert_eq!(header.options.as_slice(), vec![1; options]);
                assert!(last || one.payload.len() == usize::from(size));
                assert_eq!(one.identification, if v6 { None } else { Some(index as u16) });
                sequence = sequence.wrapping_add(one.payload.len() as u32);
            }
        }
    }
}

#[test]
fn a_vlan_tag_stays_where_it_is() {
    let mut frame = tcp(false, 0, 3000);
    frame.splice(12..12, [0x81, 0x00, 0x00, 0x07]);
    let (packet, tail) =
        packet(&frame, 0, gso(SegmentationKind::TcpV4, 1460), Checksum::Partial { start: 38, offset: 16 });
    let mut arrived = Vec::new();
    for mut frame in frames(&packet, 0, &tail) {
        assert_eq!(frame.splice(12..16, []).collect::<Vec<u8>>(), [0x81, 0x00, 0x00, 0x07]);
        arrived.extend(see(&frame).payload);
    }
    assert_eq!(arrived, payload(3000));
}

#[test]
fn cwr_stays_on_every_segment_without_ecn() {
    let frame = tcp(false, 0, 3000);
    let segmentation = Segmentation { kind: SegmentationKind::TcpV4, size: 1000, ecn: false };
    let (packet, tail) = packet(&frame, 0, Some(segmentation), Checksum::Complete);
    assert!(frames(&packet, 0, &tail).iter().all(|frame| see(frame).tcp.unwrap().cwr));
}

#[test]
fn udp_is_cut_into_datagrams() {
    for v6 in [false, true] {
        let frame = udp(v6, 3001);
        let start = if v6 { 54 } else { 34 };
        let checksum = Checksum::Partial { start, offset: 6 };
        let (packet, tail) = packet(&frame, 0, gso(SegmentationKind::Udp, 1000), checksum);
        let seen: Vec<Seen> = frames(&packet, 0, &tail).iter().map(|frame| see(frame)).collect();
        assert_eq!(seen.iter().map(|seen| seen.payload.len()).collect::<Vec<usize>>(), [1000, 1000, 1000, 1]);
        assert_eq!(seen.iter().flat_map(|seen| seen.payload.clone()).collect::<Vec<u8>>(), payload(3001));
    }
}

#[test]
fn each_frame_has_a_tunnel_of_its_own() {
    for outer_v6 in [false, true] {
        for (v6, kind) in [(false, SegmentationKind::TcpV4), (true, SegmentationKind::TcpV6)] {
            let (frame, overhead) = tunnel(outer_v6, &tcp(v6, 12, 4001));
            let (packet, tail) = packet(&frame, overhead, gso(kind, 1000), Checksum::Complete);
            let all = frames(&packet, overhead, &tail);
            assert_eq!(all.len(), 5);
            for (index, frame) in all.iter().enumerate() {
                assert_eq!(see(frame).identification, if outer_v6 { None } else { Some(index as u16) });
                assert_eq!(see(&inside(frame)).payload, payload(4001)[index * 1000..4001.min(index * 1000 + 1000)]);
                let outer_sum = if outer_v6 { &frame[60..62] } else { &frame[40..42] };
                assert_eq!(outer_sum == [0, 0], !outer_v6, "RFC 8200 §8.1, RFC 7348 §5");
            }
        }
    }
}

#[test]
fn a_frame_that_stands_for_itself_gets_its_checksum_and_its_tunnel() {
    for outer_v6 in [false, true] {
        for len in [0, 1, 100, 1400, 1401] {
            let right = tcp(false, 0, len);
            let mut frame = right.clone();
            let seed = Sum::pseudo_v4(V4[0], V4[1], protocol::TCP, (20 + len) as u16).fold();
            frame[50..52].copy_from_slice(&seed.to_be_bytes());
            let partial = Checksum::Partial { start: 34, offset: 16 };
            let (bare, tail) = packet(&frame, 0, None, partial);
            assert_eq!(frames(&bare, 0, &tail), std::slice::from_ref(&right));
            let (outer, overhead) = tunnel(outer_v6, &frame);
            let (tunnelled, tail) = packet(&outer, overhead, None, partial);
            assert_eq!(inside(&frames(&tunnelled, overhead, &tail)[0]), right);
            let (outer, overhead) = tunnel(outer_v6, &right);
            let (complete, tail) = packet(&outer, overhead, None, Checksum::Complete);
            assert_eq!(inside(&frames(&complete, overhead, &tail)[0]), right);
        }
    }
}

#[test]
fn an_offload_that_does_not_fit_the_headers_is_refused() {
    let refused = |frame: &[u8], segmentation, checksum| {
        let (packet, _) = packet(frame, 0, segmentation, checksum);
        Segmenter::new(&packet, 0, 65_600).err()
    };
    let (bad, none) = (Some(DropReason::BadOffload), Checksum::Complete);
    let good = tcp(false, 0, 3000);
    assert_eq!(refused(&good, gso(SegmentationKind::TcpV4, 1000), none), None);
    assert_eq!(refused(&good, gso(SegmentationKind::TcpV4, 0), none), bad);
    assert_eq!(refused(&good, gso(SegmentationKind::TcpV4, MIN_TCP_SIZE - 1), none), bad);
    let most = tcp(false, 0, 64 * MAX_TCP_SEGMENTS - 1000);
    assert_eq!(refused(&most, gso(SegmentationKind::TcpV4, 64), none), None);
    assert_eq!(refused(&most, gso(SegmentationKind::TcpV4, 62), none), bad, "more segments than a frame stands for");
    assert_eq!(refused(&good, gso(SegmentationKind::TcpV6, 1000), none), bad);
    assert_eq!(refused(&good, gso(SegmentationKind::Udp, 1000), none), bad);
    assert_eq!(refused(&udp(false, 3000), gso(SegmentationKind::Udp, 0), none), bad);
    assert_eq!(refused(&udp(false, 3000), gso(SegmentationKind::Udp, 20), none), bad, "150 datagrams");
    let elsewhere = Checksum::Partial { start: 34, offset: 6 };
    assert_eq!(refused(&good, gso(SegmentationKind::TcpV4, 1000), elsewhere), bad);
    let changed = |at: usize, byte: u8| {
        let mut frame = good.clone();
        frame[at] = byte;
        refused(&frame, gso(SegmentationKind::TcpV4, 1000), none)
    };
    assert_eq!(changed(13, 9), bad, "not IP");
    assert_eq!(changed(20, 0x20), bad, "more fragments");
    assert_eq!(changed(21, 1), bad, "a fragment offset");
    assert_eq!(changed(17, 0x3c), bad, "a packet shorter than its frame");
    assert_eq!(changed(16, 0xff), Some(DropReason::Truncated), "a packet longer than its frame");
    assert_eq!(changed(14, 0x44), Some(DropReason::Malformed), "a header shorter than a header");
    assert_eq!(changed(46, 0x40), Some(DropReason::Malformed), "a TCP header shorter than a header");
    let short = tcp(false, 0, 0);
    let mut frame = short.clone();
    frame[46] = 0x60;
    assert_eq!(refused(&frame, gso(SegmentationKind::TcpV4, 1000), none), Some(DropReason::Truncated));
}

#[test]
fn a_guest_cannot_have_its_checked_headers_overwritten() {
    let (frame, other) = (tcp(false, 0, 100), udp(false, 100));
    let accepts = |frame: &[u8], start, offset| {
        let (packet, _) = packet(frame, 0, None, Checksum::Partial { start, offset });
        Segmenter::new(&packet, 0, 65_600).is_ok()
    };
    assert!(accepts(&frame, 34, 16));
    assert!(accepts(&other, 34, 6));
    assert!(accepts(&other, 50, 16), "in what the guest itself tunnels");
    for (start, offset) in
        [(34, 0), (34, 2), (34, 6), (14, 16), (14, 12), (26, 0), (0, 0), (14, 36), (152, 1), (153, 0)]
    {
        assert!(!accepts(&frame, start, offset), "{start} {offset}");
    }
    let mut fragment = frame.clone();
    fragment[20] = 0x20;
    assert!(!accepts(&fragment, 34, 16));
}

#[test]
fn a_frame_longer_than_the_port_takes_is_refused() {
    let (packet, _) = packet(&tcp(false, 0, 3000), 0, gso(SegmentationKind::TcpV4, 1460), Checksum::Complete);
    assert!(Segmenter::new(&packet, 0, 1514).is_ok());
    assert_eq!(Segmenter::new(&packet, 0, 1513).unwrap_err(), DropReason::TooLong);
}

#[test]
fn what_cannot_be_written_says_why() {
    let (packet, tail) = packet(&tcp(false, 0, 3000), 0, gso(SegmentationKind::TcpV4, 1460), Checksum::Complete);
    let segmenter = Segmenter::new(&packet, 0, 1514).unwrap();
    let mut out = [0; 1514];
    assert_eq!(segmenter.write(3, &tail[..], &mut out), Err(WriteError::Index { index: 3, segments: 3 }));
    assert_eq!(segmenter.write(0, &tail[..], &mut out[1..]), Err(WriteError::NoRoom { wanted: 1514, room: 1513 }));
    let error = TailError { offset: 2920 - 138, len: 80 };
    assert_eq!(segmenter.write(2, &tail[..tail.len() - 1], &mut out), Err(WriteError::Tail(error)));
    assert_eq!((segmenter.len(2), segmenter.len(3)), (134, 0));
}

/// Frames of all kinds with a few bytes changed.
fn hostile() -> impl Strategy<Value = Vec<u8>> {
    let base = prop_oneof![
        (any::<bool>(), 0..11_usize, 0..4000_usize).prop_map(|(v6, options, len)| tcp(v6, options * 4, len)),
        (any::<bool>(), 0..4000_usize).prop_map(|(v6, len)| udp(v6, len)),
        (any::<bool>(), any::<bool>(), 0..2000_usize).prop_map(|(outer, v6, len)| tunnel(outer, &tcp(v6, 0, len)).0),
        prop::collection::vec(any::<u8>(), 0..300),
    ];
    (base, prop::collection::vec((0..200_usize, any::<u8>()), 0..4)).prop_map(|(mut frame, changes)| {
        for (at, byte) in changes {
            if let Some(place) = frame.get_mut(at) {
                *place = byte;
            }
        }
        frame
    })
}

fn any_segmentation() -> impl Strategy<Value = Option<Segmentation>> {
    let kind = prop::sample::select(vec![SegmentationKind::TcpV4, SegmentationKind::TcpV6, SegmentationKind::Udp]);
    let size = prop_oneof![Just(0), 1..100_u16, any::<u16>()];
    prop::option::weighted(
        0.8,
        (kind, size, any::<bool>()).prop_map(|(kind, size, ecn)| Segmentation { kind, size, ecn }),
    )
}

fn any_checksum() -> impl Strategy<Value = Checksum> {
    let start = prop_oneof![Just(34), Just(54), any::<u16>(), 0..200_u16];
    let offset = prop_oneof![Just(6), Just(16), any::<u16>(), 0..200_u16];
    prop_oneof![
        Just(Checksum::Complete),
        (start, offset).prop_map(|(start, offset)| Checksum::Partial { start, offset })
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn nothing_hostile_panics(
        frame in hostile(), segmentation in any_segmentation(), checksum in any_checksum(),
        overhead in prop_oneof![Just(0), Just(OVERHEAD_V4), Just(OVERHEAD_V6), 0..300_usize],
        max_len in prop_oneof![Just(1514_usize), Just(65_600), any::<usize>()], missing in 0..3_usize,
    ) {
        let split = overhead.min(96).min(frame.len());
        let (packet, tail) = packet(&frame, split, segmentation, checksum);
        let Ok(segmenter) = Segmenter::new(&packet, overhead, max_len) else { return Ok(()) };
        let tail = &tail[..tail.len().saturating_sub(missing)];
        let mut out = vec![0; segmenter.len(0)];
        let mut sum = 0;
        for index in 0..segmenter.segments() {
            prop_assert!(segmenter.len(index) <= max_len);
            sum += segmenter.len(index) - segmenter.headers;
            if segmenter.write(index, tail, &mut out).is_err() {
                prop_assert_ne!(missing, 0);
            }
        }
        prop_assert_eq!(sum + segmenter.headers, frame.len());
    }

    #[test]
    fn any_tcp_frame_arrives(v6: bool, outer in any::<Option<bool>>(), options in 0..11_usize, len in 0..20_000_usize, size in 8..9000_u16) {
        let size = size.max(len.div_ceil(MAX_TCP_SEGMENTS) as u16);
        let inner = tcp(v6, options * 4, len);
        let kind = if v6 { SegmentationKind::TcpV6 } else { SegmentationKind::TcpV4 };
        let (frame, overhead) = outer.map_or((inner.clone(), 0), |v6| tunnel(v6, &inner));
        let (packet, tail) = packet(&frame, overhead, gso(kind, size), Checksum::Complete);
        let mut arrived = Vec::new();
        for frame in frames(&packet, overhead, &tail) {
            arrived.extend(see(&if overhead > 0 { inside(&frame) } else { frame }).payload);
        }
        prop_assert_eq!(arrived, payload(len));
    }
}
