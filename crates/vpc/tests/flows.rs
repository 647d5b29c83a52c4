//! What a flow decides for a packet is what would have been decided without it.

mod common;

use std::sync::Arc;

use common::*;
use etherparse::PacketBuilder;
use proptest::prelude::*;
use softdpu_vpc::spec::{Place, ServiceLimit, Spec};
use softdpu_vpc::{Checksum, Head, Packet, PortId, Segmentation, SegmentationKind, Tables, Verdict, Vpc};

const SOURCES: [(PortId, u8, &str, &str); 4] = [
    (RED_1, 1, "10.0.0.2", "2001:db8::2"),
    (RED_2, 2, "10.0.0.3", "2001:db8::3"),
    (RED_ROUTER, 3, "10.0.0.4", "2001:db8::4"),
    (BLUE_1, 1, "10.0.0.2", "2001:db8::2"),
];
const TO_V4: [&str; 8] =
    ["10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.1.5", "172.16.0.9", "198.51.100.7", "10.0.0.1"];
const TO_V6: [&str; 4] = ["2001:db8::2", "2001:db8::3", "2001:db8:0:1::5", "2001:db8::1"];

/// A frame, and what its sender says about it. Few different ones, so that flows have many packets.
#[derive(Clone, Debug)]
struct Sent {
    source: usize,
    destination: usize,
    is_ipv6: bool,
    /// None: UDP.
    tcp_flags: Option<u8>,
    port: u16,
    hops: u8,
    payload: usize,
    /// A byte that is another.
    change: Option<(usize, u8)>,
    /// Bytes taken off, or added as padding.
    length: isize,
    checksum: u8,
    cut: bool,
}

fn sent() -> impl Strategy<Value = Sent> {
    let hops = prop_oneof![8 => Just(64u8), 1 => 0u8..3];
    let payload = prop_oneof![6 => Just(20usize), 1 => Just(0), 1 => 1440usize..1500];
    let flags = prop_oneof![3 => Just(None), 3 => Just(Some(0x10u8)), 1 => (0u8..64).prop_map(Some)];
    let change = prop_oneof![5 => Just(None), 4 => (0usize..90, any::<u8>()).prop_map(Some)];
    let length = prop_oneof![6 => Just(0isize), 1 => -60isize..0, 1 => 1isize..30];
    let checksum = prop_oneof![4 => Just(0u8), 3 => 1u8..4];
    let who = (0..SOURCES.len(), 0..TO_V4.len(), any::<bool>());
    (who, flags, 0u16..2, hops, payload, change, length, checksum, prop::bool::weighted(0.05)).prop_map(
        |((source, destination, is_ipv6), tcp_flags, port, hops, payload, change, length, checksum, cut)| Sent {
            source,
            destination,
            is_ipv6,
            tcp_flags,
            port,
            hops,
            payload,
            change,
            length,
            checksum,
            cut,
        },
    )
}

impl Sent {
    fn packet(&self) -> Packet {
        let (port, last, v4, v6) = SOURCES[self.source];
        let builder = PacketBuilder::ethernet2(mac(last).0, GATEWAY.0);
        let octets = |text: &str| match ip(text) {
            std::net::IpAddr::V4(address) => (address.octets(), [0; 16]),
            std::net::IpAddr::V6(address) => ([0; 4], address.octets()),
        };
        let builder = if self.is_ipv6 {
            builder.ipv6(octets(v6).1, octets(TO_V6[self.destination % TO_V6.len()]).1, self.hops)
        } else {
            builder.ipv4(octets(v4).0, octets(TO_V4[self.destination]).0, self.hops)
        };
        let payload = vec![0x5a; self.payload];
        let mut frame = Vec::new();
        match self.tcp_flags {
            Some(flags) => {
                builder.tcp(4000 + self.port, 80, 1, 1000).write(&mut frame, &payload).expect("a vector");
                let at = if self.is_ipv6 { 14 + 40 } else { 14 + 20 };
                frame[at + 13] = flags;
            }
            None => builder.udp(4000 + self.port, 5000).write(&mut frame, &payload).expect("a vector"),
        }
        if let Some((at, value)) = self.change
            && let Some(byte) = frame.get_mut(at)
        {
            *byte = value;
        }
        frame.resize(frame.len().saturating_add_signed(self.length), 0);
        let head = Head::of(&frame);
        let transport = if self.is_ipv6 { 54 } else { 34 };
        let field = if self.tcp_flags.is_some() { 16 } else { 6 };
        let checksum = match self.checksum {
            0 => Checksum::Complete,
            1 => Checksum::Valid,
            2 => Checksum::Partial { start: transport, offset: field },
            _ => Checksum::Partial { start: transport + 2, offset: field },
        };
        let kind = match (self.tcp_flags, self.is_ipv6) {
            (None, _) => SegmentationKind::Udp,
            (Some(_), true) => SegmentationKind::TcpV6,
            (Some(_), false) => SegmentationKind::TcpV4,
        };
        let segmentation = self.cut.then_some(Segmentation { kind, size: 500, ecn: false });
        Packet { tail: (frame.len() - head.len()) as u32, head, checksum, segmentation, port }
    }
}

/// The same site at two times: guests have moved, and one has another path.
fn sites(family: Family) -> [Arc<Tables>; 2] {
    let generous =
        |spec: Spec| Spec { services: ServiceLimit { rate: 1_000_000_000, burst: 1_000_000, ..spec.services }, ..spec };
    let before = generous(spec(family, 1));
    let mut after = before.clone();
    for endpoint in &mut after.endpoints {
        match (endpoint.network.as_str(), endpoint.mac) {
            ("red", mac) if mac == common::mac(2) => endpoint.place = Place::Host(vtep(family, 2)),
            ("red", mac) if mac == common::mac(4) => endpoint.mtu = Some(1300),
            ("blue", _) => endpoint.spoof_check = false,
            _ => {}
        }
    }
    [before, after].map(|spec| Arc::new(Tables::build(&spec).expect("a good spec")))
}

proptest! {
    #[test]
    fn flows_decide_what_would_be_decided_without_them(
        batches in prop::collection::vec((prop::collection::vec(sent(), 1..24), prop::bool::weighted(0.2)), 1..24),
        is_v6 in any::<bool>(),
    ) {
        let sites = sites(if is_v6 { Family::V6 } else { Family::V4 });
        let mut site = 0;
        let (mut vpc, mut plain) = (Vpc::new(Arc::clone(&sites[0])), Vpc::new(Arc::clone(&sites[0])));
        for (batch, change) in batches {
            if change {
                site = 1 - site;
                vpc.replace(Arc::clone(&sites[site]));
            }
            let mut packets: Vec<Packet> = batch.iter().map(Sent::packet).collect();
            let mut verdicts = Vec::new();
            vpc.forward(0, &mut packets, &mut verdicts);
            prop_assert_eq!(verdicts.len(), batch.len());
            for ((sent, packet), verdict) in batch.iter().zip(&packets).zip(verdicts) {
                let mut alone = [sent.packet()];
                let mut expected = Vec::new();
                // It forgets all flows.
                plain.replace(Arc::clone(&sites[site]));
                plain.forward(0, &mut alone, &mut expected);
                prop_assert_eq!(verdict, expected[0], "{:?}", sent);
                if matches!(verdict, Verdict::Local { .. } | Verdict::Underlay { .. } | Verdict::Software) {
                    prop_assert_eq!(packet.head.bytes(), alone[0].head.bytes(), "{:?}", sent);
                    prop_assert_eq!(packet.tail, alone[0].tail);
                    prop_assert_eq!((packet.checksum, packet.segmentation), (alone[0].checksum, alone[0].segmentation));
                }
            }
        }
    }
}

#[test]
fn a_flow_decides_all_but_its_first_packet() {
    for family in [Family::V4, Family::V6] {
        let mut vpc = node(family, 1);
        for destination in ["10.0.0.3", "10.0.0.5", "10.0.1.5", "172.16.0.9"] {
            let before = vpc.stats().clone();
            for _ in 0..10 {
                let frame = udp(mac(1), GATEWAY, "10.0.0.2", destination);
                assert!(matches!(forward(&mut vpc, RED_1, &frame).0, Verdict::Local { .. } | Verdict::Underlay { .. }));
            }
            assert_eq!(vpc.stats().flow - before.flow, 10);
            assert_eq!(vpc.stats().cached - before.cached, 9, "{destination}");
        }
    }
}

#[test]
fn other_tables_are_heeded_from_the_next_packet_on() {
    let [before, after] = sites(Family::V4);
    let mut vpc = Vpc::new(before);
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3");
    for _ in 0..2 {
        assert!(matches!(forward(&mut vpc, RED_1, &frame).0, Verdict::Local { port: RED_2, .. }));
    }
    vpc.replace(after);
    assert!(matches!(forward(&mut vpc, RED_1, &frame).0, Verdict::Underlay { .. }));
}
