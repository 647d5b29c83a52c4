//! A node's VPC: networks with policies, routes, ECMP groups and peers, which change underneath; frames from guests and
//! from tunnels, of any bytes or mostly right, with whatever their senders say is left to do. Nothing panics, every
//! packet gets a verdict, what leaves can be cut up, no network's frames come out in another's, and what is explained
//! of a packet is what becomes of it.
#![no_main]

#[allow(
    dead_code,
    missing_docs,
    unused_imports,
    reason = "the tests' networks: not all of what they have is used here"
)]
#[path = "../../crates/vpc/tests/common/mod.rs"]
mod common;

use std::sync::{Arc, LazyLock};

use common::streams::site;
use common::{BLUE_1, BLUE_VNI, Family, GATEWAY, RED_1, RED_2, RED_ROUTER, RED_VNI, UNDERLAY, ip, mac, vni, vtep};
use libfuzzer_sys::arbitrary::Unstructured;
use softdpu_vpc::packet::segment::Segmenter;
use softdpu_vpc::spec::ConnectionLimit;
use softdpu_vpc::{
    Asked, Checksum, Head, Packet, PortId, Probe, ProbeService, Segmentation, SegmentationKind, Tables, Verdict, Vpc,
    through_tunnel,
};

/// The longest frame that a port takes, and a little more.
const LONGEST: usize = 65_600;
/// Bytes of a family, changes, and a frame.
const SHORTEST: usize = 24;
/// Changes of the configuration in a run: each builds tables.
const CHANGES: u32 = 4;
/// Ports: guests of three networks, the underlay, and one that nothing is at.
const PORTS: [u32; 8] = [0, 1, 2, 3, 4, 8, 0, 11];
const ADDRESSES: [&str; 24] = [
    "10.0.0.2",
    "10.0.0.3",
    "10.0.0.4",
    "10.0.0.5",
    "10.0.1.5",
    "10.0.0.1",
    "10.7.0.2",
    "10.7.0.3",
    "172.16.0.9",
    "198.51.100.7",
    "198.51.100.8",
    "192.88.99.9",
    "203.0.113.9",
    "255.255.255.255",
    "224.0.0.1",
    "2001:db8::2",
    "2001:db8::3",
    "2001:db8:0:1::5",
    "2001:db8::1",
    "2001:db8:7::2",
    "2001:db8:ee::1",
    "2001:db8:3::9",
    "fe80::ff:fe00:1",
    "ff02::1",
];

/// The networks without policies: what is built from them has connections and meters of its own, and does not build all
/// else anew.
static PLAIN: LazyLock<[Tables; 2]> = LazyLock::new(|| {
    [Family::V4, Family::V6].map(|family| {
        let mut spec = site(family, 0);
        spec.meters.clear();
        spec.networks.iter_mut().for_each(|network| network.policy = Default::default());
        spec.endpoints.iter_mut().for_each(|endpoint| endpoint.policy = Default::default());
        Tables::build(&spec, None).expect("a good spec")
    })
});

/// What is read from the front; zeros when it is used up.
struct Input<'a>(Unstructured<'a>);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        self.0.arbitrary().unwrap_or(0)
    }

    fn word(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::from(self.byte()) % all.len()]
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        self.0.bytes(len.min(self.0.len())).unwrap_or_default().to_vec()
    }

    /// A packet that could be sent, between two of [`ADDRESSES`].
    fn packet(&mut self) -> Option<Vec<u8>> {
        let (from, to) = (self.one_of(&ADDRESSES), self.one_of(&ADDRESSES));
        let ports = (4000 + u16::from(self.byte() % 4), self.one_of(&[80, 53, 67, 68, 547, 443, 5000, 4001]));
        let service = match self.byte() % 5 {
            0 => ProbeService::Echo,
            1 => ProbeService::Other(self.byte()),
            2 => ProbeService::Udp(ports),
            3 => ProbeService::Udp((ports.1, ports.0)),
            _ => ProbeService::Tcp { ports, flags: self.byte() },
        };
        let payload = match self.byte() {
            long @ 250.. => usize::from(long - 249) * 9_000,
            some @ 230.. => 1_380 + usize::from(some),
            few => usize::from(few),
        };
        let from_mac = mac(self.byte() % 10);
        Probe { from_mac, to_mac: GATEWAY, addresses: (ip(from), ip(to)), service, payload }.frame()
    }

    /// A frame as it comes in by `port`.
    fn frame(&mut self, family: Family, port: PortId) -> Vec<u8> {
        let kind = self.byte();
        if kind % 8 == 0 {
            let len = usize::from(self.word());
            return self.bytes(len);
        }
        let mut frame = self.packet().unwrap_or_default();
        self.damage(&mut frame, kind >> 6);
        if port == UNDERLAY && kind % 8 != 1 {
            let underlay = common::spec(family, 1).underlay.expect("of the site");
            let host = vtep(family, self.one_of(&[2, 2, 2, 3, 1, 9]));
            let number = self.one_of(&[RED_VNI, RED_VNI, RED_VNI, 8, BLUE_VNI, 99]);
            frame = through_tunnel(&underlay, host, vni(number), &frame).unwrap_or_default();
            let times = self.byte() >> 6;
            self.damage(&mut frame, times);
        }
        frame
    }

    /// Other bytes in the headers, and another length.
    fn damage(&mut self, frame: &mut Vec<u8>, times: u8) {
        for _ in 0..times {
            let (at, value) = (usize::from(self.byte()), self.byte());
            match frame.get_mut(at) {
                Some(byte) => *byte = value,
                None => frame.resize(at, value),
            }
        }
        if times == 3 {
            let len = usize::from(self.byte());
            frame.truncate(len.max(14));
        }
    }

    fn offload(&mut self) -> (Checksum, Option<Segmentation>) {
        let kind = self.byte();
        let checksum = match kind % 4 {
            0 => Checksum::Complete,
            1 => Checksum::Valid,
            2 => Checksum::Partial { start: self.byte().into(), offset: self.byte().into() },
            // As it is for TCP and UDP over IPv4 and IPv6.
            _ => Checksum::Partial { start: self.one_of(&[34, 54, 84, 104]), offset: self.one_of(&[16, 6]) },
        };
        let kinds = [SegmentationKind::TcpV4, SegmentationKind::TcpV6, SegmentationKind::Udp];
        let segmentation = (kind >= 224).then(|| Segmentation {
            kind: self.one_of(&kinds),
            size: self.word().max(1),
            ecn: kind % 2 == 0,
        });
        (checksum, segmentation)
    }
}

/// A frame that came, and its packet.
type Came = (Packet, Vec<u8>);

fn arrival(input: &mut Input<'_>, family: Family) -> Came {
    let port = PortId(input.one_of(&PORTS));
    let mut frame = input.frame(family, port);
    frame.truncate(LONGEST);
    let head = Head::of(&frame);
    let tail = (frame.len() - head.len()) as u32;
    let (checksum, segmentation) = input.offload();
    (Packet { head, tail, checksum, segmentation, port }, frame)
}

/// What becomes of a batch.
fn forward(vpc: &mut Vpc, now: u64, batch: &[Came]) {
    let mut packets: Vec<Packet> = batch.iter().map(|(packet, _)| packet.clone()).collect();
    let asked = Asked { names: &|port| port.0.to_string(), clock: &|| 0 };
    let told = batch.first().map(|(packet, frame)| vpc.explain_packet(now, packet.clone(), frame, asked));
    let mut verdicts = Vec::new();
    vpc.forward(now, &mut packets, &mut verdicts);
    assert_eq!(verdicts.len(), packets.len());
    for (at, ((came, frame), (packet, verdict))) in batch.iter().zip(packets.iter().zip(verdicts)).enumerate() {
        let mut replies = Vec::new();
        let verdict = match verdict {
            Verdict::Software => vpc.software(came.port, frame, came.checksum, came.segmentation, &mut replies),
            decided => decided,
        };
        if let (0, 1, Some(told)) = (at, batch.len(), &told) {
            assert_eq!((told.verdict, &told.replies), (verdict, &replies), "{came:?}: {:#?}", told.steps);
        }
        let tail = &frame[came.head.len()..];
        match verdict {
            Verdict::Local { port, .. } => {
                let is_red = [RED_1, RED_2, RED_ROUTER].contains(&came.port);
                assert!(
                    !(is_red && port == BLUE_1) && !(came.port == BLUE_1 && port != BLUE_1),
                    "{came:?} to {port:?}"
                );
                leave(packet, 0, tail);
            }
            Verdict::Underlay { overhead, .. } => leave(packet, overhead.into(), tail),
            Verdict::Software | Verdict::Consumed | Verdict::Drop(_) => {}
        }
    }
}

/// A packet is cut up where that is to be done. Only what is in its headers may be wrong.
fn leave(packet: &Packet, overhead: usize, tail: &[u8]) {
    assert!(packet.tail as usize <= tail.len(), "nothing is added to {packet:?}");
    let Ok(pieces) = Segmenter::new(packet, overhead, LONGEST) else { return };
    let mut out = vec![0; LONGEST];
    for index in (0..pieces.segments()).take(3).chain(pieces.segments().checked_sub(1)) {
        pieces.write(index, tail, &mut out).expect("all of it is there");
    }
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // What is shorter says nothing that is worth tables.
    if data.len() < SHORTEST {
        return;
    }
    let mut input = Input(Unstructured::new(data));
    let family = if input.byte() % 2 == 0 { Family::V4 } else { Family::V6 };
    let mut changes = u64::from_be_bytes(std::array::from_fn(|_| input.byte()));
    let spec = |changes: u64| {
        let mut spec = site(family, changes);
        spec.connections = ConnectionLimit(64);
        spec
    };
    // Not all changes go together.
    let plain = &PLAIN[usize::from(family == Family::V6)];
    let Ok(tables) = plain.rebuild(&spec(changes), None) else { return };
    let mut vpc = Vpc::with_flows(Arc::new(tables), 64);
    let (mut now, mut batch, mut left) = (0, Vec::new(), CHANGES);
    while !input.0.is_empty() {
        match input.byte() {
            0 if left > 0 => {
                left -= 1;
                changes ^= 1 << (input.byte() % 64);
                if let Ok(tables) = vpc.tables().rebuild(&spec(changes), None) {
                    vpc.replace(Arc::new(tables));
                }
            }
            1..=3 => {
                now += u64::from(input.word()) << 20;
                forward(&mut vpc, now, &std::mem::take(&mut batch));
                vpc.advertise(now, |_| true, &mut Vec::new());
            }
            _ => batch.push(arrival(&mut input, family)),
        }
    }
    forward(&mut vpc, now, &batch);
});
