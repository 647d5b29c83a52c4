//! Two nodes with two networks of the same addresses, and frames between them.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod streams;

use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use etherparse::PacketBuilder;
use softdpu_vpc::spec::{
    ConnectionLimit, EndpointSpec, NeighborSpec, NetworkSpec, Place, RouteSpec, ServiceLimit, Spec, SubnetSpec,
    UnderlaySpec, VXLAN_PORT, Via,
};
use softdpu_vpc::tables::Loaded;
use softdpu_vpc::{Checksum, DropReason, Head, Mac, Packet, PortId, Tables, Verdict, Vni, Vpc};

pub const UNDERLAY: PortId = PortId(0);
/// Ports of node A: red's first and second guest and its router, blue's first guest.
pub const RED_1: PortId = PortId(1);
pub const RED_2: PortId = PortId(2);
pub const RED_ROUTER: PortId = PortId(3);
pub const BLUE_1: PortId = PortId(4);
/// Port of node B: red's third guest (in the second subnet) and blue's second.
pub const RED_3: PortId = PortId(1);
pub const BLUE_2: PortId = PortId(2);

pub const GATEWAY: Mac = Mac([2, 0xff, 0, 0, 0, 1]);
pub const RED_VNI: u32 = 0x01_0203;
pub const BLUE_VNI: u32 = 7;

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

pub fn mac(last: u8) -> Mac {
    Mac([2, 0x5d, 0, 0, 0, last])
}

/// A VNI from a number that is one.
pub fn vni(number: u32) -> Vni {
    Vni::new(number).expect("a VNI")
}

fn network(name: &str, number: u32) -> NetworkSpec {
    let subnet =
        |prefix: &str, gateway: &str| SubnetSpec { prefix: prefix.parse().expect("prefix"), gateway: ip(gateway) };
    let subnets = vec![
        subnet("10.0.0.0/24", "10.0.0.1"),
        subnet("10.0.1.0/24", "10.0.1.1"),
        subnet("2001:db8::/64", "2001:db8::1"),
        subnet("2001:db8:0:1::/64", "2001:db8:0:1::1"),
    ];
    NetworkSpec { dns: vec![ip("10.0.0.1")], ..NetworkSpec::new(name, vni(number), GATEWAY, subnets) }
}

/// Which family the underlay has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

pub fn vtep(family: Family, node: u8) -> IpAddr {
    match family {
        Family::V4 => ip(&format!("192.0.2.{node}")),
        Family::V6 => ip(&format!("2001:db8:ffff::{node}")),
    }
}

/// The spec of node 1 (A) or 2 (B).
pub fn spec(family: Family, node: u8) -> Spec {
    let other = 3 - node;
    let place = |at: u8, port: PortId| if at == node { Place::Port(port) } else { Place::Host(vtep(family, at)) };
    let endpoint = |network: &str, last: u8, addresses: &[&str], place, spoof_check| EndpointSpec {
        network: network.into(),
        mac: mac(last),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        place,
        mtu: None,
        spoof_check,
        policy: Default::default(),
    };
    Spec {
        networks: vec![network("red", RED_VNI), network("blue", BLUE_VNI)],
        endpoints: vec![
            endpoint("red", 1, &["10.0.0.2", "2001:db8::2"], place(1, RED_1), true),
            endpoint("red", 2, &["10.0.0.3", "2001:db8::3"], place(1, RED_2), true),
            endpoint("red", 3, &["10.0.0.4"], place(1, RED_ROUTER), false),
            endpoint("red", 4, &["10.0.0.5", "10.0.1.5", "2001:db8:0:1::5"], place(2, RED_3), true),
            endpoint("blue", 1, &["10.0.0.2", "2001:db8::2"], place(1, BLUE_1), true),
            endpoint("blue", 2, &["10.0.0.5"], place(2, BLUE_2), true),
        ],
        routes: vec![
            RouteSpec {
                network: "red".into(),
                prefix: "172.16.0.0/12".parse().expect("prefix"),
                via: Via::Endpoint(ip("10.0.0.4")),
            },
            RouteSpec {
                network: "red".into(),
                prefix: if node == 1 { "198.51.100.0/24" } else { "203.0.113.0/24" }.parse().expect("prefix"),
                via: Via::Host(vtep(family, other)),
            },
        ],
        underlay: Some(UnderlaySpec {
            port: UNDERLAY,
            addresses: vec![vtep(family, node)],
            mac: Mac([2, 0, 0, 0, 0, node]),
            udp_port: VXLAN_PORT,
            mtu: 1600,
            dont_fragment: true,
        }),
        neighbors: vec![NeighborSpec { host: vtep(family, other), mac: Mac([2, 0, 0, 0, 0, other]) }],
        services: ServiceLimit::default(),
        connections: ConnectionLimit(1024),
        ..Spec::default()
    }
}

/// A spec with the entries that are loaded beside it.
#[derive(Clone)]
pub struct Site {
    pub spec: Spec,
    pub loaded: Option<Arc<Loaded>>,
}

impl From<Spec> for Site {
    fn from(spec: Spec) -> Site {
        Site { spec, loaded: None }
    }
}

impl Deref for Site {
    type Target = Spec;

    fn deref(&self) -> &Spec {
        &self.spec
    }
}

impl DerefMut for Site {
    fn deref_mut(&mut self) -> &mut Spec {
        &mut self.spec
    }
}

/// What tables are built from: a spec, alone or with loaded entries.
pub trait Source {
    fn spec(&self) -> &Spec;

    fn loaded(&self) -> Option<Arc<Loaded>> {
        None
    }
}

impl Source for Spec {
    fn spec(&self) -> &Spec {
        self
    }
}

impl Source for Site {
    fn spec(&self) -> &Spec {
        &self.spec
    }

    fn loaded(&self) -> Option<Arc<Loaded>> {
        self.loaded.clone()
    }
}

pub fn build(site: &impl Source) -> Arc<Tables> {
    Arc::new(Tables::build(site.spec(), site.loaded()).expect("a good spec"))
}

pub fn vpc(site: &impl Source) -> Vpc {
    Vpc::new(build(site))
}

/// Replaces the tables of `vpc` by those of `site`, built after them.
pub fn change(vpc: &mut Vpc, site: &impl Source) {
    let tables = vpc.tables().rebuild(site.spec(), site.loaded()).expect("a good spec");
    vpc.replace(Arc::new(tables));
}

pub fn node(family: Family, node: u8) -> Vpc {
    vpc(&spec(family, node))
}

/// A UDP frame with 32 bytes of payload.
pub fn udp(from: Mac, to: Mac, source: &str, destination: &str) -> Vec<u8> {
    udp_of(from, to, source, destination, 64, &[0x5a; 32])
}

pub fn udp_of(from: Mac, to: Mac, source: &str, destination: &str, hops: u8, payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(from.0, to.0);
    let builder = match (ip(source), ip(destination)) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => builder.ipv4(source.octets(), destination.octets(), hops),
        (IpAddr::V6(source), IpAddr::V6(destination)) => builder.ipv6(source.octets(), destination.octets(), hops),
        _ => panic!("two families"),
    };
    let builder = builder.udp(4000, 5000);
    let mut frame = Vec::with_capacity(builder.size(payload.len()));
    builder.write(&mut frame, payload).expect("a vector");
    frame
}

pub fn packet(port: PortId, frame: &[u8]) -> Packet {
    let head = Head::of(frame);
    let tail = (frame.len() - head.len()) as u32;
    Packet { head, tail, checksum: Checksum::Complete, segmentation: None, port }
}

/// Forwards one packet; it is then as it leaves.
pub fn one(vpc: &mut Vpc, packet: &mut Packet) -> Verdict {
    let mut verdicts = Vec::new();
    vpc.forward(0, std::slice::from_mut(packet), &mut verdicts);
    assert_eq!(verdicts.len(), 1);
    verdicts[0]
}

/// Forwards a frame that fits into a head: the verdict, and the frame as it leaves.
pub fn forward(vpc: &mut Vpc, port: PortId, frame: &[u8]) -> (Verdict, Vec<u8>) {
    let mut packet = packet(port, frame);
    let verdict = one(vpc, &mut packet);
    (verdict, packet.head.bytes().to_vec())
}

/// Why a frame is dropped; None: it is not.
pub fn dropped(vpc: &mut Vpc, port: PortId, frame: &[u8]) -> Option<DropReason> {
    match forward(vpc, port, frame).0 {
        Verdict::Drop(reason) => Some(reason),
        _ => None,
    }
}

/// Checks all checksums of a frame, with a parser that is not ours.
pub fn assert_sound(frame: &[u8]) {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    let sliced = SlicedPacket::from_ethernet(frame).expect("a frame");
    match (&sliced.net, &sliced.transport) {
        (Some(NetSlice::Ipv4(ip)), transport) => {
            let header = ip.header().to_header();
            assert_eq!(header.header_checksum, header.calc_header_checksum(), "IPv4 header");
            match transport {
                Some(TransportSlice::Udp(udp)) if udp.checksum() != 0 => {
                    let sum = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).expect("short");
                    assert_eq!(udp.checksum(), sum, "UDP");
                }
                Some(TransportSlice::Tcp(tcp)) => {
                    let sum = tcp.to_header().calc_checksum_ipv4(&header, tcp.payload()).expect("short");
                    assert_eq!(tcp.checksum(), sum, "TCP");
                }
                _ => {}
            }
        }
        (Some(NetSlice::Ipv6(ip)), transport) => {
            let header = ip.header().to_header();
            match transport {
                Some(TransportSlice::Udp(udp)) if udp.checksum() != 0 => {
                    let sum = udp.to_header().calc_checksum_ipv6(&header, udp.payload()).expect("short");
                    assert_eq!(udp.checksum(), sum, "UDP");
                }
                Some(TransportSlice::Tcp(tcp)) => {
                    let sum = tcp.to_header().calc_checksum_ipv6(&header, tcp.payload()).expect("short");
                    assert_eq!(tcp.checksum(), sum, "TCP");
                }
                _ => {}
            }
        }
        _ => {}
    }
}
