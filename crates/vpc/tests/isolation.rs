//! Whatever comes in: nothing panics, nothing gets into another network, nothing leaves with another's name.

mod common;

use common::*;
use proptest::prelude::*;
use softdpu_vpc::packet::{Layer4, parse};
use softdpu_vpc::{Checksum, Mac, Packet, Paths, PortId, Reply, Segmentation, SegmentationKind, Stats, Verdict, Vpc};

const ADDRESSES: [&str; 14] = [
    "10.0.0.1",
    "10.0.0.2",
    "10.0.0.3",
    "10.0.0.4",
    "10.0.0.5",
    "10.0.1.5",
    "10.0.0.99",
    "172.16.0.1",
    "198.51.100.1",
    "0.0.0.0",
    "255.255.255.255",
    "192.0.2.1",
    "192.0.2.2",
    "224.0.0.1",
];
const ADDRESSES6: [&str; 8] =
    ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::5", "fe80::1", "ff02::1", "::", "::ffff:10.0.0.2"];

fn any_mac() -> impl Strategy<Value = Mac> {
    prop_oneof![(1u8..5).prop_map(mac), Just(GATEWAY), Just(Mac::BROADCAST), Just(Mac([2, 0, 0, 0, 0, 1]))]
}

/// Mostly good frames.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let addresses = prop_oneof![
        prop::sample::select(ADDRESSES.to_vec()).prop_flat_map(|a| (Just(a), prop::sample::select(ADDRESSES.to_vec()))),
        prop::sample::select(ADDRESSES6.to_vec())
            .prop_flat_map(|a| (Just(a), prop::sample::select(ADDRESSES6.to_vec()))),
    ];
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3);
    let ports = prop::sample::select(vec![(4000u16, 5000u16), (68, 67), (546, 547), (9, 4789)]);
    (any_mac(), any_mac(), addresses, 0u8..3, 0usize..1600, changes, ports).prop_map(
        |(from, to, (source, destination), hops, len, changes, ports)| {
            let mut frame = udp_of(from, to, source, destination, hops, &vec![0; len]);
            let at = if frame[12] == 8 { 34 } else { 54 };
            frame[at..at + 2].copy_from_slice(&ports.0.to_be_bytes());
            frame[at + 2..at + 4].copy_from_slice(&ports.1.to_be_bytes());
            for (at, byte) in changes {
                let at = at.index(frame.len().min(100));
                frame[at] = byte;
            }
            frame
        },
    )
}

/// The same inside a tunnel from node 1 to node 2, of either network.
fn tunnelled() -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((0usize..50, any::<u8>()), 0..2);
    (frame(), prop::sample::select(vec![RED_VNI, BLUE_VNI, 99]), changes).prop_map(|(inner, vni, changes)| {
        let vxlan = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), &inner].concat();
        let mut frame = udp_of(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]), "192.0.2.1", "192.0.2.2", 64, &vxlan);
        frame[36..38].copy_from_slice(&4789u16.to_be_bytes());
        for (at, byte) in changes {
            frame[at] = byte;
        }
        frame
    })
}

fn offload() -> impl Strategy<Value = (Checksum, Option<Segmentation>)> {
    let checksum = prop_oneof![
        4 => Just(Checksum::Complete),
        1 => Just(Checksum::Valid),
        1 => Just(Checksum::Partial { start: 34, offset: 6 }),
        1 => (any::<u16>(), any::<u16>()).prop_map(|(start, offset)| Checksum::Partial { start, offset }),
    ];
    let kind = prop::sample::select(vec![SegmentationKind::TcpV4, SegmentationKind::TcpV6, SegmentationKind::Udp]);
    let cut = (kind, 0u16..1600).prop_map(|(kind, size)| Segmentation { kind, size, ecn: false });
    (checksum, prop::option::weighted(0.2, cut))
}

/// Networks of node 1's ports, and of node 2's.
const NETWORKS: [&[(PortId, &str)]; 2] =
    [&[(RED_1, "red"), (RED_2, "red"), (RED_ROUTER, "red"), (BLUE_1, "blue")], &[(RED_3, "red"), (BLUE_2, "blue")]];

fn network(node: usize, port: PortId) -> &'static str {
    NETWORKS[node].iter().find(|(at, _)| *at == port).map_or("none", |(_, name)| *name)
}

fn check_headers(frame: &[u8], len: usize) {
    // What leaves parses, and its UDP ports are still inside.
    let parsed = parse(frame, len).expect("what leaves is good");
    let ip = parsed.ip().expect("only IP leaves");
    assert!(matches!(ip.layer4, Layer4::Udp { .. } | Layer4::Tcp { .. } | Layer4::Icmp { .. } | Layer4::Other));
    assert!(ip.end as usize == len);
}

/// What does not go back to the sender is part of a packet that was too long: it goes on, in the sender's network.
fn check_piece(reply: &Reply, own: &str, at: usize) {
    let frame = &reply.frame;
    let inner = match (reply.port, frame[12]) {
        (UNDERLAY, 0x08) => 50,
        (UNDERLAY, _) => 70,
        _ => 0,
    };
    if inner == 0 {
        assert_eq!(network(at, reply.port), own);
    } else {
        let vni = u32::from_be_bytes([0, frame[inner - 4], frame[inner - 3], frame[inner - 2]]);
        assert_eq!(vni, if own == "red" { RED_VNI } else { BLUE_VNI });
    }
    let piece = u16::from_be_bytes([frame[inner + 20], frame[inner + 21]]);
    assert!(frame[inner + 12..inner + 14] == [8, 0] && piece & 0x3fff != 0, "{frame:x?} is no fragment");
}

/// `own`: the network of the sender, on node `at` (0 or 1).
fn send(node: &mut Vpc, packet: &mut Packet, frame: &[u8], own: &str, at: usize) -> Verdict {
    let verdict = one(node, packet);
    match verdict {
        Verdict::Local { .. } => check_headers(packet.head.bytes(), packet.len()),
        Verdict::Underlay { overhead, .. } => {
            check_headers(&packet.head.bytes()[usize::from(overhead)..], packet.len() - usize::from(overhead));
        }
        Verdict::Software => {
            let mut replies = Vec::new();
            let verdict = node.software(packet.port, frame, packet.checksum, packet.segmentation, &mut replies);
            assert!(matches!(verdict, Verdict::Consumed | Verdict::Drop(_)), "{verdict:?}");
            for reply in replies {
                if reply.port != packet.port {
                    check_piece(&reply, own, at);
                }
                assert_sound(&reply.frame);
            }
        }
        Verdict::Consumed => panic!("only software consumes"),
        Verdict::Drop(_) => {}
    }
    verdict
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_guest_reaches_only_its_own_network(frame in frame(), offload in offload(), port in 1u32..5) {
        let (mut a, mut b) = (node(Family::V4, 1), node(Family::V4, 2));
        let mut sent = Packet { checksum: offload.0, segmentation: offload.1, ..packet(PortId(port), &frame) };
        let source = parse(&frame, frame.len()).ok().and_then(|parsed| parsed.ip().copied());
        let from = network(0, PortId(port));
        let verdict = send(&mut a, &mut sent, &frame, from, 0);
        if let Verdict::Local { port: to, .. } = verdict {
            prop_assert_eq!(from, network(0, to));
            prop_assert_ne!(to, PortId(port));
        }
        if let Verdict::Underlay { overhead, .. } = verdict {
            let vni = if from == "red" { RED_VNI } else { BLUE_VNI };
            let at = usize::from(overhead);
            prop_assert_eq!(&sent.head.bytes()[at - 4..at - 1], &vni.to_be_bytes()[1..]);
            let mut arrived = Packet { port: UNDERLAY, checksum: Checksum::Complete, segmentation: None, ..sent };
            if let Verdict::Local { port: to, .. } = one(&mut b, &mut arrived) {
                prop_assert_eq!(from, network(1, to));
            }
        }
        // A guest that is checked leaves with its own addresses.
        if matches!(verdict, Verdict::Local { .. } | Verdict::Underlay { .. }) && PortId(port) != RED_ROUTER {
            let own = spec(Family::V4, 1).endpoints.into_iter().find(|endpoint| {
                endpoint.place == softdpu_vpc::spec::Place::Port(PortId(port))
            });
            prop_assert!(own.unwrap().addresses.contains(&source.unwrap().source));
        }
    }

    #[test]
    fn a_tunnel_leads_only_into_its_network(frame in tunnelled(), offload in offload()) {
        let mut b = node(Family::V4, 2);
        let vni = u32::from_be_bytes([0, frame[46], frame[47], frame[48]]);
        let mut sent = Packet { checksum: offload.0, segmentation: offload.1, ..packet(UNDERLAY, &frame) };
        let own = if vni == RED_VNI { "red" } else { "blue" };
        match send(&mut b, &mut sent, &frame, own, 1) {
            Verdict::Local { port, .. } => prop_assert_eq!(network(1, port), own),
            verdict => prop_assert!(!matches!(verdict, Verdict::Underlay { .. }), "it turned round"),
        }
    }

    #[test]
    fn any_bytes_at_any_port(bytes in prop::collection::vec(any::<u8>(), 0..400), offload in offload(), port in 0u32..7) {
        let mut a = node(Family::V6, 1);
        let mut sent = Packet { checksum: offload.0, segmentation: offload.1, ..packet(PortId(port), &bytes) };
        send(&mut a, &mut sent, &bytes, network(0, PortId(port)), 0);
    }
}

/// From a tunnel, a byte longer than what fits, and may be cut up: as it was once found at random.
#[test]
fn what_is_too_long_from_a_tunnel_goes_on_in_pieces() {
    let (from, to) = (mac(1), mac(2));
    for (len, pieces) in [(1472, 0), (1473, 2)] {
        let mut inner = udp_of(from, to, "10.0.0.2", "10.0.0.5", 64, &vec![0; len]);
        // It may be cut up: without DF, and its checksum is larger by as much.
        let checksum = u16::from_be_bytes([inner[24], inner[25]]);
        let (sum, carry) = checksum.overflowing_add(u16::from_be_bytes([inner[20], inner[21]]));
        inner[24..26].copy_from_slice(&(sum + u16::from(carry)).to_be_bytes());
        inner[20..22].fill(0);
        let vxlan = [&[8, 0, 0, 0][..], &(RED_VNI << 8).to_be_bytes(), &inner].concat();
        let mut frame = udp_of(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]), "192.0.2.1", "192.0.2.2", 64, &vxlan);
        frame[36..38].copy_from_slice(&4789u16.to_be_bytes());
        let mut b = node(Family::V4, 2);
        let mut sent = Packet { checksum: Checksum::Complete, segmentation: None, ..packet(UNDERLAY, &frame) };
        let verdict = one(&mut b, &mut sent);
        let mut replies = Vec::new();
        if verdict == Verdict::Software {
            b.software(UNDERLAY, &frame, Checksum::Complete, None, &mut replies);
        }
        assert_eq!(replies.len(), pieces, "{verdict:?} of {len} bytes");
        replies.iter().for_each(|reply| check_piece(reply, "red", 1));
    }
}

#[test]
fn batches_and_single_frames_are_the_same() {
    let frames: Vec<_> =
        (0..200u8).map(|at| udp(mac(1), GATEWAY, "10.0.0.2", ADDRESSES[usize::from(at) % ADDRESSES.len()])).collect();
    let (mut whole, mut single) = (node(Family::V4, 1), node(Family::V4, 1));
    let mut batch: Vec<_> = frames.iter().map(|frame| packet(RED_1, frame)).collect();
    let mut verdicts = Vec::new();
    whole.forward(0, &mut batch, &mut verdicts);
    for ((frame, packet), verdict) in frames.iter().zip(&batch).zip(&verdicts) {
        let (alone, left) = forward(&mut single, RED_1, frame);
        assert_eq!((alone, &left[..]), (*verdict, packet.head.bytes()));
    }
    // Of one batch no packet knows what was decided for another.
    assert!(single.stats().cached > 0);
    // Only the tier that decided it differs.
    let counts = |vpc: &Vpc| Stats { cached: 0, paths: Paths::default(), ..vpc.stats().clone() };
    assert_eq!(counts(&whole), counts(&single));
}
