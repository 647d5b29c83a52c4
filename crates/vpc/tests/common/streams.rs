//! Streams of frames while tables change, and whether flows decide what would be decided without them.

use std::sync::Arc;

use etherparse::PacketBuilder;
use proptest::prelude::*;
use softdpu_vpc::policy::acl::{AclSpec, Action, RuleSpec};
use softdpu_vpc::policy::{Ports, Service};
use softdpu_vpc::spec::{
    EcmpMemberSpec, EcmpSpec, EndpointSpec, Measure, MemberVia, MeterAlgorithm, MeterSpec, NamedAcl, NeighborSpec,
    PeeringSpec, Place, Rate, RouteSpec, RouteTableSpec, RulePeer, SecurityGroupSpec, SecurityRule, ServiceLimit, Spec,
    SubnetSpec, TableCapacity, Via,
};
use softdpu_vpc::tables::{Loaded, Loading};
use softdpu_vpc::{Checksum, Head, Packet, PortId, Segmentation, SegmentationKind, Verdict, Vpc};

use super::*;

/// A guest of network green, which may be red's peer, here.
const GREEN_1: PortId = PortId(8);

const SOURCES: [(PortId, u8, &str, &str); 5] = [
    (RED_1, 1, "10.0.0.2", "2001:db8::2"),
    (RED_2, 2, "10.0.0.3", "2001:db8::3"),
    (RED_ROUTER, 3, "10.0.0.4", "2001:db8::4"),
    (BLUE_1, 1, "10.0.0.2", "2001:db8::2"),
    (GREEN_1, 7, "10.7.0.2", "2001:db8:7::2"),
];
const TO_V4: [&str; 13] = [
    "10.0.0.2",
    "10.0.0.3",
    "10.0.0.4",
    "10.0.0.5",
    "10.0.1.5",
    "172.16.0.9",
    "198.51.100.7",
    "10.0.0.1",
    "198.51.100.8",
    "10.7.0.2",
    "10.7.0.3",
    "10.7.0.9",
    "192.88.99.9",
];
const TO_V6: [&str; 7] = [
    "2001:db8::2",
    "2001:db8::3",
    "2001:db8:0:1::5",
    "2001:db8::1",
    "2001:db8:7::2",
    "2001:db8:3::9",
    "2001:db8:ee::1",
];

/// Sources of what comes by tunnels, and in which network most of it comes: guests of the other nodes, and of this one;
/// what is behind routes, of one node or of several; a gateway; a peer's guest.
const AFAR: [(u32, &str, &str); 12] = [
    (RED_VNI, "10.0.0.5", "2001:db8:0:1::5"),
    (RED_VNI, "192.88.99.9", "2001:db8:3::9"),
    (RED_VNI, "198.51.100.7", "2001:db8:ee::1"),
    (RED_VNI, "10.0.1.5", "2001:db8:0:1::5"),
    (RED_VNI, "198.51.100.8", "2001:db8:ee::1"),
    (RED_VNI, "203.0.113.9", "2001:db8:ef::1"),
    (RED_VNI, "10.0.0.1", "2001:db8::1"),
    (RED_VNI, "10.7.0.3", "2001:db8:7::2"),
    (RED_VNI, "10.0.0.2", "2001:db8::2"),
    (GREEN_VNI, "10.7.0.3", "2001:db8:7::2"),
    (GREEN_VNI, "10.0.0.5", "2001:db8:0:1::5"),
    (BLUE_VNI, "10.0.0.5", "2001:db8:0:1::5"),
];
const GREEN_VNI: u32 = 8;
/// Networks that it comes in otherwise: one that there is only after a change.
const VNIS: [u32; 4] = [RED_VNI, GREEN_VNI, BLUE_VNI, 99];

/// How a frame comes by a tunnel.
#[derive(Clone, Debug)]
pub struct Came {
    source: usize,
    /// The node that it is from.
    host: u8,
    /// Another network than most of what is from that source.
    vni: Option<u32>,
    /// ECN of the outer packet and of the inner one.
    ecn: [u8; 2],
    /// A byte of the outer headers that is another.
    change: Option<(usize, u8)>,
}

/// A frame, and what its sender says about it. Few different ones, so that flows have many packets.
#[derive(Clone, Debug)]
pub struct Sent {
    /// None: by a port, from the guest there.
    came: Option<Came>,
    source: usize,
    destination: usize,
    is_ipv6: bool,
    /// None: UDP.
    tcp_flags: Option<u8>,
    port: u16,
    /// It goes from where the others go to.
    is_reply: bool,
    hops: u8,
    payload: usize,
    /// A byte that is another.
    change: Option<(usize, u8)>,
    /// Bytes taken off, or added as padding.
    length: isize,
    checksum: u8,
    cut: bool,
}

fn came() -> impl Strategy<Value = Option<Came>> {
    let source = prop_oneof![2 => 0..2usize, 1 => 0..AFAR.len()];
    let host = prop_oneof![12 => Just(2u8), 6 => Just(3), 1 => 1u8..5];
    let vni = prop_oneof![12 => Just(None), 1 => prop::sample::select(VNIS.to_vec()).prop_map(Some)];
    let ecn = prop_oneof![4 => Just([0u8; 2]), 1 => [0u8..4, 0u8..4]];
    let change = prop_oneof![12 => Just(None), 1 => (0usize..70, any::<u8>()).prop_map(Some)];
    let came = (source, host, vni, ecn, change).prop_map(|(source, host, vni, ecn, change)| Came {
        source,
        host,
        vni,
        ecn,
        change,
    });
    prop::option::weighted(0.5, came)
}

pub fn sent() -> impl Strategy<Value = Sent> {
    let hops = prop_oneof![8 => Just(64u8), 1 => 0u8..3];
    let payload = prop_oneof![6 => Just(20usize), 1 => Just(0), 1 => 1440usize..1500];
    let flags = prop_oneof![3 => Just(None), 3 => Just(Some(0x10u8)), 1 => (0u8..64).prop_map(Some)];
    let change = prop_oneof![5 => Just(None), 4 => (0usize..90, any::<u8>()).prop_map(Some)];
    let length = prop_oneof![6 => Just(0isize), 1 => -60isize..0, 1 => 1isize..30];
    let checksum = prop_oneof![4 => Just(0u8), 3 => 1u8..4];
    let who = (came(), 0..SOURCES.len(), 0..TO_V4.len(), any::<bool>());
    let ports = (0u16..2, prop::bool::weighted(0.4));
    (who, flags, ports, hops, payload, change, length, checksum, prop::bool::weighted(0.05)).prop_map(
        |(
            (came, source, destination, is_ipv6),
            tcp_flags,
            (port, is_reply),
            hops,
            payload,
            change,
            length,
            checksum,
            cut,
        )| Sent {
            came,
            source,
            destination,
            is_ipv6,
            tcp_flags,
            port,
            is_reply,
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
    pub fn packet(&self, family: Family) -> Packet {
        self.with_frame(family).0
    }

    /// The packet, and the whole frame, over an underlay of `family`.
    pub fn with_frame(&self, family: Family) -> (Packet, Vec<u8>) {
        let (port, last, v4, v6) = match &self.came {
            None => SOURCES[self.source],
            Some(Came { source, .. }) => (UNDERLAY, 9, AFAR[*source].1, AFAR[*source].2),
        };
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
        let ports = |client: u16, server: u16| if self.is_reply { (server, client) } else { (client, server) };
        let (tcp, udp) = (ports(4000 + self.port, 80), ports(4000 + self.port, 5000));
        let mut frame = Vec::new();
        match self.tcp_flags {
            Some(flags) => {
                builder.tcp(tcp.0, tcp.1, 1, 1000).write(&mut frame, &payload).expect("a vector");
                let at = if self.is_ipv6 { 14 + 40 } else { 14 + 20 };
                frame[at + 13] = flags;
            }
            None => builder.udp(udp.0, udp.1).write(&mut frame, &payload).expect("a vector"),
        }
        if let Some((at, value)) = self.change
            && let Some(byte) = frame.get_mut(at)
        {
            *byte = value;
        }
        frame.resize(frame.len().saturating_add_signed(self.length), 0);
        let mut outer = 0;
        if let Some(came) = &self.came {
            if let (Some(class), false) = (frame.get_mut(15), self.is_ipv6) {
                *class = *class & !3 | came.ecn[1];
            }
            let inner = frame;
            frame = came.by_tunnel(family, &inner);
            outer = (frame.len() - inner.len()) as u16;
        }
        let head = Head::of(&frame);
        let transport = outer + if self.is_ipv6 { 54 } else { 34 };
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
        (Packet { tail: (frame.len() - head.len()) as u32, head, checksum, segmentation, port }, frame)
    }
}

impl Came {
    /// The frame with outer headers, as another node puts them before it.
    fn by_tunnel(&self, family: Family, inner: &[u8]) -> Vec<u8> {
        let vni = self.vni.unwrap_or(AFAR[self.source].0);
        let vxlan = [&[8, 0, 0, 0][..], &(vni << 8).to_be_bytes(), inner].concat();
        let builder = PacketBuilder::ethernet2([2, 0, 0, 0, 0, self.host], [2, 0, 0, 0, 0, 1]);
        let builder = match (vtep(family, self.host), vtep(family, 1)) {
            (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => builder.ipv4(from.octets(), to.octets(), 64),
            (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => builder.ipv6(from.octets(), to.octets(), 64),
            _ => unreachable!("of one family"),
        };
        let mut frame = Vec::new();
        builder.udp(50_000, VXLAN_PORT).write(&mut frame, &vxlan).expect("a vector");
        match family {
            Family::V4 => frame[15] |= self.ecn[0],
            Family::V6 => frame[15] |= self.ecn[0] << 4,
        }
        if let Some((at, value)) = self.change
            && at < frame.len() - inner.len()
        {
            frame[at] = value;
        }
        frame
    }
}

/// Changes of the site: each is there, or not.
pub const CHANGES: u64 = 42;
/// The first of those that are of what is loaded by file, or of meters.
const FIRST_LOADED: u64 = 37;

/// Node 1 with the changes of the bits that are set in `changes`. All of them go together.
pub fn site(family: Family, changes: u64) -> Spec {
    let mut spec = spec(family, 1);
    spec.services = ServiceLimit { rate: 1_000_000_000, burst: 1_000_000, ..spec.services };
    let set = |change: u64| changes & 1 << change != 0;
    fn red(spec: &mut Spec, last: u8) -> &mut EndpointSpec {
        let one = |endpoint: &&mut EndpointSpec| endpoint.network == "red" && endpoint.mac == mac(last);
        spec.endpoints.iter_mut().find(one).expect("of the site")
    }
    if set(0) {
        // A guest moves to the other node,
        red(&mut spec, 2).place = Place::Host(vtep(family, 2));
    }
    if set(1) {
        // another comes from there,
        red(&mut spec, 4).place = Place::Port(PortId(7));
    }
    if set(2) {
        red(&mut spec, 4).mtu = Some(1300);
    }
    if set(3) {
        spec.endpoints[4].spoof_check = false;
        red(&mut spec, 1).spoof_check = false;
    }
    if set(4) {
        // Another endpoint is at a port.
        let others = (red(&mut spec, 1).place, red(&mut spec, 3).place);
        (red(&mut spec, 3).place, red(&mut spec, 1).place) = others;
    }
    if set(5) {
        // An address is another's.
        red(&mut spec, 4).addresses.retain(|address| *address != ip("10.0.0.5"));
        let router = red(&mut spec, 3);
        router.addresses.push(ip("10.0.0.5"));
    }
    if set(6) {
        spec.routes.remove(0);
    }
    if set(7) {
        let route = |prefix: &str| RouteSpec {
            network: "red".into(),
            prefix: prefix.parse().expect("prefix"),
            via: Via::Host(vtep(family, 2)),
        };
        spec.routes.extend([route("172.16.0.0/24"), route("10.0.1.0/25"), route("2001:db8:0:1::/96")]);
    }
    if set(8) {
        // An address that a route has otherwise.
        red(&mut spec, 4).addresses.retain(|address| *address != ip("10.0.1.5") && address.is_ipv4());
        if red(&mut spec, 4).addresses.is_empty() {
            red(&mut spec, 4).addresses.push(ip("10.0.0.9"));
        }
    }
    // What comes from one node may leave to another.
    spec.networks[0].transit = !set(30);
    if set(31) && !set(1) {
        // A guest of another node is on a third one.
        red(&mut spec, 4).place = Place::Host(vtep(family, 3));
    }
    if set(32) {
        let vni = spec.networks[0].vni;
        spec.networks[0].vni = std::mem::replace(&mut spec.networks[1].vni, vni);
    }
    if set(9) {
        spec.networks[0].vni = vni(99);
    }
    if set(10) {
        spec.networks[0].gateway_mac = Mac([2, 0xff, 0, 0, 0, 2]);
    }
    if set(11) {
        // An endpoint that was beside is behind the gateway.
        let cut = |prefix: &str, gateway| SubnetSpec { prefix: prefix.parse().expect("prefix"), gateway: ip(gateway) };
        spec.networks[0].subnets.splice(
            0..1,
            [cut("10.0.0.0/30", "10.0.0.1"), cut("10.0.0.4/30", "10.0.0.6"), cut("10.0.0.8/29", "10.0.0.10")],
        );
    }
    if set(12) {
        spec.neighbors.clear();
    }
    if set(13) {
        spec.underlay.as_mut().expect("one").mtu = 1400;
    }
    if set(14) {
        // Numbers of all are others, if they go by the order.
        spec.endpoints.reverse();
        spec.networks.reverse();
        spec.endpoints.retain(|endpoint| endpoint.network != "blue" || endpoint.mac != mac(2));
    }
    policies(&mut spec, set);
    routing(&mut spec, family, set);
    meters(&mut spec, set);
    spec
}

/// Meters by which all passes or nothing: what is in between depends on the order of packets, which flows change.
fn meters(spec: &mut Spec, set: impl Fn(u64) -> bool) {
    let (algorithm, measure) = (MeterAlgorithm::Rfc4115, Measure::Bytes);
    let meter = |name: &str, is_wide: bool| {
        let all =
            if is_wide { Rate { rate: 1_000_000_000_000, burst: 1_000_000_000 } } else { Rate { rate: 0, burst: 1 } };
        MeterSpec { name: name.into(), algorithm, measure, committed: all, second: all }
    };
    spec.meters = vec![meter("wide", true), meter("either", set(FIRST_LOADED + 3))];
    let of = |endpoint: &EndpointSpec| endpoint.network == "red" && [mac(1), mac(2)].contains(&endpoint.mac);
    let names = if set(FIRST_LOADED + 4) { &["wide", "either"][..] } else { &["wide"] };
    for endpoint in spec.endpoints.iter_mut().filter(|endpoint| of(endpoint) && (set(3) || set(FIRST_LOADED + 4))) {
        endpoint.policy.meters = names.iter().map(|name| (*name).into()).collect();
    }
}

/// What is loaded by file, with these changes, in the place of `before`: guests, some of which are configured as well,
/// and routes, one of them inside a subnet.
fn loaded(family: Family, spec: &Spec, changes: u64, before: Option<Arc<Loaded>>) -> Option<Arc<Loaded>> {
    let set = |change: u64| changes & 1 << (FIRST_LOADED + change) != 0;
    let host = |node: u8| vtep(family, if set(2) { 5 - node } else { node });
    let (mut guests, mut routes) = (Vec::new(), Vec::new());
    if set(0) {
        guests.extend([
            ("red", "10.0.0.5", 3),
            ("red", "10.0.1.5", 2),
            ("red", "2001:db8:0:1::5", 3),
            ("green", "10.7.0.9", 3),
            ("blue", "10.0.0.5", 2),
        ]);
        routes.extend([("198.51.100.0/25", 3), ("203.0.113.0/25", 2), ("2001:db8:3::/56", 2)]);
    }
    if set(1) {
        guests.extend([("green", "10.7.0.3", 3), ("red", "10.0.0.3", 2), ("red", "10.0.0.9", 2)]);
        routes.extend([("198.51.100.8/32", 2), ("10.0.1.0/28", 3)]);
    }
    if guests.is_empty() {
        return None;
    }
    let own = spec.underlay.as_ref().map_or(&[][..], |underlay| &underlay.addresses);
    let capacity = TableCapacity { endpoints: 64, routes: 64, hosts: 8 };
    let groups = spec.ecmp.iter().map(|group| (group.network.as_str(), group.name.as_str()));
    let mut loading = Loading::new(&spec.networks, own, capacity, 0).with_groups(groups).after(before);
    for (line, (network, address, node)) in (1..).zip(guests) {
        // A subnet that it is in may not be there.
        let _ = loading.endpoint(line, network, ip(address), mac(line as u8), host(node));
    }
    for (line, (prefix, node)) in (1..).zip(routes) {
        loading.route(line, "red", prefix.parse().expect("prefix"), host(node)).expect("a good entry");
    }
    if set(1) {
        let prefix = "203.0.113.0/24".parse().expect("prefix");
        loading.route_to_group(99, "red", prefix, "far").expect("a good entry");
    }
    Some(Arc::new(loading.finish().expect("good entries")))
}

/// Network green, with addresses of its own; where routes lead, and what changes of that.
fn routing(spec: &mut Spec, family: Family, set: impl Fn(u64) -> bool) {
    let prefix = |text: &str| text.parse().expect("prefix");
    let subnet = |text: &str, gateway| SubnetSpec { prefix: prefix(text), gateway: ip(gateway) };
    let mut green = spec.networks[0].clone();
    (green.name, green.vni, green.policy) = ("green".into(), vni(8), Default::default());
    green.subnets = vec![subnet("10.7.0.0/24", "10.7.0.1"), subnet("2001:db8:7::/64", "2001:db8:7::1")];
    spec.networks.push(green);
    let guest = |last: u8, addresses: &[&str], place| EndpointSpec {
        network: "green".into(),
        mac: mac(last),
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        place,
        mtu: None,
        spoof_check: true,
        policy: Default::default(),
    };
    // A peer's guest moves.
    let place = if set(29) { Place::Port(PortId(9)) } else { Place::Host(vtep(family, 2)) };
    spec.endpoints.push(guest(7, &["10.7.0.2", "2001:db8:7::2"], Place::Port(GREEN_1)));
    spec.endpoints.push(guest(8, &["10.7.0.3"], place));
    let member = |via, weight, zone: &str, is_up| EcmpMemberSpec { via, weight, zone: Some(zone.into()), is_up };
    spec.ecmp.push(EcmpSpec {
        network: "red".into(),
        name: "far".into(),
        members: vec![
            member(MemberVia::Host(vtep(family, 2)), if set(24) { 5 } else { 1 }, "a", !set(27)),
            member(MemberVia::Host(vtep(family, 3)), 1, "b", !set(23) && !set(27)),
            member(MemberVia::Endpoint(ip("10.0.0.4")), if set(27) { 0 } else { 2 }, "b", true),
        ],
    });
    if !set(12) {
        spec.neighbors.push(NeighborSpec { host: vtep(family, 3), mac: Mac([2, 0, 0, 0, 0, 3]) });
    }
    spec.zone = set(25).then(|| "b".into());
    if set(22) {
        // Routes lead to the group,
        let far = |text: &str| RouteSpec { network: "red".into(), prefix: prefix(text), via: Via::Ecmp("far".into()) };
        spec.routes.retain(|route| route.prefix != prefix("198.51.100.0/24"));
        spec.routes.extend([far("198.51.100.0/24"), far("2001:db8:ee::/48")]);
    }
    if set(26) {
        // those of one guest elsewhere,
        spec.route_tables.push(RouteTableSpec {
            network: "red".into(),
            name: "one".into(),
            sources: vec![prefix("10.0.0.2/32"), prefix("2001:db8::2/128")],
            routes: vec![
                (prefix("198.51.100.8/32"), Via::Endpoint(ip("10.0.0.4"))),
                (prefix("0.0.0.0/0"), Via::Ecmp("far".into())),
                (prefix("2001:db8:ee::/64"), Via::Host(vtep(family, 2))),
            ],
        });
    }
    // A group of guests, by which and to which a route leads.
    let near = if set(34) { "10.0.0.4" } else { "10.0.0.5" };
    spec.ecmp.push(EcmpSpec {
        network: "red".into(),
        name: "near".into(),
        members: vec![member(MemberVia::Endpoint(ip(near)), 1, "a", true)],
    });
    for route in ["192.88.99.0/24", "2001:db8:3::/64"] {
        let via = Via::Host(vtep(family, 3));
        spec.routes.push(RouteSpec { network: "red".into(), prefix: prefix(route), via });
    }
    if !set(33) {
        for route in ["203.0.113.0/24", "2001:db8:ef::/48"] {
            let via = if set(35) { Via::Host(vtep(family, 3)) } else { Via::Ecmp("near".into()) };
            spec.routes.push(RouteSpec { network: "red".into(), prefix: prefix(route), via });
        }
    }
    if set(36) {
        // What is for a guest here is behind a table of its own.
        spec.route_tables.push(RouteTableSpec {
            network: "red".into(),
            name: "two".into(),
            sources: vec![prefix("10.0.0.3/32"), prefix("2001:db8::3/128"), prefix("198.51.100.0/29")],
            routes: vec![
                (prefix("198.51.100.0/28"), Via::Host(vtep(family, 3))),
                (prefix("203.0.113.8/29"), Via::Ecmp("far".into())),
            ],
        });
    }
    if set(28) {
        spec.peerings.push(PeeringSpec { networks: ["green".into(), "red".into()] });
    }
}

/// The groups and the list of network red, their members, and what changes of that.
fn policies(spec: &mut Spec, set: impl Fn(u64) -> bool) {
    let rule = |peer, service| SecurityRule { peer, service };
    let service = if set(17) { Service::udp(Ports::one(5000)) } else { Service::tcp(Ports::one(80)) };
    let web = SecurityGroupSpec { name: "web".into(), ingress: vec![rule(RulePeer::Any, service)], egress: None };
    let inside = RulePeer::Prefix("10.0.0.0/24".parse().expect("prefix"));
    let db = SecurityGroupSpec {
        name: "db".into(),
        ingress: vec![rule(RulePeer::Group("web".into()), Service::Any)],
        egress: Some(vec![rule(inside, Service::Any), rule(RulePeer::Group("web".into()), Service::tcp(Ports::ALL))]),
    };
    let deny = |priority, port| RuleSpec {
        priority,
        action: Action::Deny,
        source: None,
        destination: None,
        service: Service::Tcp { source: Ports::one(port), destination: Ports::ALL },
    };
    let list = AclSpec { rules: vec![deny(1, if set(20) { 80 } else { 4001 })], default: Action::Allow };
    for network in spec.networks.iter_mut().filter(|network| network.name == "red") {
        network.policy.groups = vec![web.clone(), db.clone()];
        network.policy.acls = vec![NamedAcl { name: "list".into(), list: list.clone() }];
    }
    let members = [(15, 1, "web"), (16, 2, "db"), (18, 4, "web"), (21, 3, "web"), (21, 3, "db")];
    for endpoint in spec.endpoints.iter_mut().filter(|endpoint| endpoint.network == "red") {
        let is_in = |&(change, last, _): &(u64, u8, &str)| set(change) && endpoint.mac == mac(last);
        endpoint.policy.groups =
            members.iter().filter(|member| is_in(member)).map(|(.., name)| (*name).into()).collect();
        endpoint.policy.acl = (set(19) && endpoint.mac == mac(1)).then(|| "list".into());
    }
}

/// A batch, and what changes before it.
#[derive(Clone, Debug)]
pub struct Step {
    pub batch: Vec<Sent>,
    pub change: Option<u64>,
    /// The tables are built with no regard to those before.
    pub anew: bool,
}

pub fn steps() -> impl Strategy<Value = Vec<Step>> {
    let change = prop_oneof![
        6 => Just(None),
        3 => (0..CHANGES).prop_map(Some),
        1 => (FIRST_LOADED..CHANGES).prop_map(Some),
    ];
    // Some are longer than what is computed anew of a batch.
    let batch = prop_oneof![
        7 => prop::collection::vec(sent(), 1..17),
        1 => prop::collection::vec(sent(), 32..129),
    ];
    let step =
        (batch, change, prop::bool::weighted(0.1)).prop_map(|(batch, change, anew)| Step { batch, change, anew });
    // Half of these come again when all of their flows are stale.
    let again = |mut steps: Vec<Step>| {
        for at in (0..steps.len()).rev().step_by(2) {
            if steps[at].batch.len() > 16 {
                let step = Step { change: Some(at as u64 % CHANGES), anew: true, ..steps[at].clone() };
                steps.insert(at + 1, step);
            }
        }
        steps
    };
    prop::collection::vec(step, 1..24).prop_map(again)
}

/// Streams of what comes by tunnels alone: of few flows, and most of it such as flows are made of.
pub fn steps_from_afar() -> impl Strategy<Value = Vec<Step>> {
    steps().prop_map(|mut steps| {
        for sent in steps.iter_mut().flat_map(|step| &mut step.batch) {
            let kind = sent.source;
            let (source, host) = [(0, 2), (1, 3), (2, 2)][kind % 3];
            let usual = Came { source, host, vni: None, ecn: [0; 2], change: None };
            sent.destination = [0, 1, 3, 12][sent.destination % 4];
            if kind == 0 {
                sent.came.get_or_insert(usual);
            } else {
                sent.came = Some(usual);
                (sent.change, sent.length, sent.cut, sent.hops) = (None, 0, false, 64);
                (sent.is_ipv6, sent.checksum) = (kind == 4, sent.checksum % 2);
                sent.is_reply &= kind == 1;
                sent.tcp_flags = match kind {
                    1 => sent.tcp_flags,
                    _ => sent.tcp_flags.filter(|_| kind == 4).map(|_| 0x10),
                };
            }
        }
        steps
    })
}

/// Nanoseconds between batches: after a few of them flows of connections ask again.
pub const PAUSE: u64 = 25_000_000;

/// Sends the batches to `vpc`, which begins with tables of `site(family, 0)`, and to one without flows, while tables
/// change. An error says where the two differ.
pub fn compare(vpc: &mut Vpc, family: Family, steps: &[Step]) -> Result<(), String> {
    let mut changes = 0;
    // Its connections are its own.
    let mut plain = Vpc::with_flows(build(&site(family, 0)), 0);
    let mut now = 0;
    for Step { batch, change, anew } in steps {
        now += PAUSE;
        if let Some(change) = change {
            changes ^= 1 << change;
            let spec = site(family, changes);
            for vpc in [&mut *vpc, &mut plain] {
                let before = vpc.tables().loaded().cloned();
                // As where a daemon goes on: entries are loaded when others are to be, or where they are held against
                // something else.
                let loaded = match change {
                    11 | FIRST_LOADED.. => loaded(family, &spec, changes, before),
                    _ => before,
                };
                let site = Site { spec: spec.clone(), loaded };
                if *anew { vpc.replace(build(&site)) } else { super::change(vpc, &site) }
            }
        }
        let mut packets: Vec<Packet> = batch.iter().map(|sent| sent.packet(family)).collect();
        let mut verdicts = Vec::new();
        vpc.forward(now, &mut packets, &mut verdicts);
        assert_eq!(verdicts.len(), batch.len());
        for ((sent, packet), verdict) in batch.iter().zip(&packets).zip(verdicts) {
            let mut alone = [sent.packet(family)];
            let mut expected = Vec::new();
            plain.forward(now, &mut alone, &mut expected);
            if verdict != expected[0] {
                return Err(format!("{verdict:?}, without flows {:?}: {sent:?}, changes {changes:b}", expected[0]));
            }
            let is_sent = matches!(verdict, Verdict::Local { .. } | Verdict::Underlay { .. } | Verdict::Software);
            let left = |packet: &Packet| {
                let mut bytes = packet.head.bytes().to_vec();
                // The outer packet's identification counts what the core has sent, and its checksum follows.
                if let (Verdict::Underlay { .. }, 0x45) = (verdict, bytes[14]) {
                    bytes[18..20].fill(0);
                    bytes[24..26].fill(0);
                }
                (bytes, packet.tail, packet.checksum, packet.segmentation)
            };
            if is_sent && left(packet) != left(&alone[0]) {
                return Err(format!(
                    "{:02x?}, without flows {:02x?}: {sent:?}, changes {changes:b}",
                    left(packet),
                    left(&alone[0])
                ));
            }
        }
    }
    Ok(())
}
