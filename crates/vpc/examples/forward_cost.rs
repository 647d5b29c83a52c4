//! What forwarding costs: nanoseconds per packet for local delivery, into a tunnel and from tunnel to tunnel, each by
//! flows and by the switch tier alone; in batches of 32 over 2, 1,024 and 65,536 endpoints, 64-byte UDP frames to
//! endpoints at random. Filling the heads is not counted.
//!
//! `cargo run --release -p softdpu-vpc --example forward_cost [-- ROUNDS]`

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_vpc::spec::{EndpointSpec, NeighborSpec, NetworkSpec, Place, Spec, SubnetSpec, UnderlaySpec, VXLAN_PORT};
use softdpu_vpc::{Checksum, Head, Mac, Packet, PortId, Tables, Verdict, Vni, Vpc};

const VNI: Vni = Vni::new(5001).unwrap();
const BATCH: usize = 32;
const FRAME: usize = 64;
const GATEWAY: Mac = Mac([2, 0xff, 0, 0, 0, 1]);
const REMOTE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
/// The node that is measured, and the one that sends through it.
const MEASURED: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const SENDER: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 3));
const UNDERLAY: PortId = PortId(65_535);

/// What is measured: where the packets leave to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Local,
    Tunnel,
    Transit,
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0002 + number)
}

fn mac(number: u32) -> Mac {
    let [a, b, c, d] = number.to_be_bytes();
    Mac([2, 0x5d, a, b, c, d])
}

/// The tables of `node`. Endpoint 0 is there, but for transit, where it is at the sender; the others are there, or
/// behind a tunnel.
fn tables(endpoints: u32, node: IpAddr, case: Case, without_flows: bool) -> Tables {
    let subnet =
        SubnetSpec { prefix: "10.0.0.0/8".parse().expect("prefix"), gateway: Ipv4Addr::new(10, 0, 0, 1).into() };
    let network = NetworkSpec { transit: true, ..NetworkSpec::new("bench", VNI, GATEWAY, vec![subnet]) };
    let endpoint = |number: u32| EndpointSpec {
        network: "bench".into(),
        mac: mac(number),
        addresses: vec![address(number).into()],
        place: match (number, case) {
            (0, Case::Transit) if node == MEASURED => Place::Host(SENDER),
            (0, _) | (_, Case::Local) => Place::Port(PortId(number)),
            (_, Case::Transit) if node == SENDER => Place::Host(MEASURED),
            _ => Place::Host(REMOTE),
        },
        mtu: None,
        spoof_check: true,
        policy: Default::default(),
    };
    let underlay = UnderlaySpec {
        port: UNDERLAY,
        addresses: vec![node],
        mac: Mac([2, 0, 0, 0, 0, 1]),
        udp_port: VXLAN_PORT,
        mtu: 1600,
        dont_fragment: true,
    };
    Tables::build(
        &Spec {
            networks: vec![network],
            endpoints: (0..endpoints).map(endpoint).collect(),
            underlay: Some(underlay),
            neighbors: [REMOTE, MEASURED, SENDER]
                .map(|host| NeighborSpec { host, mac: Mac([2, 0, 0, 0, 0, 1]) })
                .into(),
            without_flows,
            ..Spec::default()
        },
        None,
    )
    .expect("a good spec")
}

/// A UDP frame from endpoint 0.
fn frame(to: u32) -> [u8; FRAME] {
    let mut frame = [0; FRAME];
    frame[..6].copy_from_slice(&GATEWAY.0);
    frame[6..12].copy_from_slice(&mac(0).0);
    frame[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, FRAME as u8 - 14, 0, 0, 0x40, 0, 64, 17]);
    frame[26..30].copy_from_slice(&address(0).octets());
    frame[30..34].copy_from_slice(&address(to).octets());
    frame[34..40].copy_from_slice(&[0x10, 0, 0x20, 0, 0, FRAME as u8 - 34]);
    frame
}

fn measure(endpoints: u32, case: Case, without_flows: bool, rounds: u32) -> f64 {
    let node = |address| Vpc::new(Arc::new(tables(endpoints, address, case, without_flows)));
    let (mut vpc, mut sender) = (node(MEASURED), (case == Case::Transit).then(|| node(SENDER)));
    let mut packets: Vec<_> = (0..BATCH)
        .map(|_| Packet {
            head: Head::with_len(FRAME),
            tail: 0,
            checksum: Checksum::Complete,
            segmentation: None,
            port: PortId(0),
        })
        .collect();
    let mut verdicts = Vec::with_capacity(BATCH);
    let (mut random, mut time) = (1u64, Duration::ZERO);
    for _ in 0..rounds {
        for packet in &mut packets {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let to = 1 + (random >> 33) as u32 % (endpoints - 1);
            packet.head.reset(FRAME);
            packet.head.bytes_mut().copy_from_slice(&frame(to));
            packet.port = PortId(0);
        }
        verdicts.clear();
        if let Some(sender) = &mut sender {
            sender.forward(0, &mut packets, &mut verdicts);
            verdicts.clear();
            packets.iter_mut().for_each(|packet| packet.port = UNDERLAY);
        }
        let start = Instant::now();
        vpc.forward(0, &mut packets, &mut verdicts);
        time += start.elapsed();
    }
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Local { .. } | Verdict::Underlay { .. })));
    time.as_nanos() as f64 / f64::from(rounds) / BATCH as f64
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(50_000);
    println!("ns per packet, batches of {BATCH}, {FRAME} byte UDP over IPv4");
    for endpoints in [2, 1024, 65_535] {
        measure(endpoints, Case::Local, false, rounds / 10);
        let [[local, local_alone], [tunnel, tunnel_alone], [transit, transit_alone]] =
            [Case::Local, Case::Tunnel, Case::Transit]
                .map(|case| [false, true].map(|alone| measure(endpoints, case, alone, rounds)));
        println!(
            "{endpoints:6} endpoints: local {local:5.1} (switch only {local_alone:5.1})   VXLAN {tunnel:5.1} \
             ({tunnel_alone:5.1})   VXLAN to VXLAN {transit:5.1} ({transit_alone:5.1})"
        );
    }
}
