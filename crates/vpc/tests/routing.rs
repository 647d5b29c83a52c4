//! Where packets go that are for no endpoint of their network: ECMP groups, routes of some sources, peers.

mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::*;
use etherparse::PacketBuilder;
use softdpu_vpc::policy::Service;
use softdpu_vpc::spec::{
    EcmpMemberSpec, EcmpSpec, EndpointSpec, MemberVia, NeighborSpec, PeeringSpec, Place, Prefix, RouteSpec,
    RouteTableSpec, RulePeer, SecurityGroupSpec, SecurityRule, Spec, SubnetSpec, TableCapacity, Via,
};
use softdpu_vpc::tables::{Loading, RoutesOf};
use softdpu_vpc::{DropReason, Mac, Packet, PortId, Problem, Tables, Verdict, Vpc};

const GREEN_1: PortId = PortId(8);

fn prefix(text: &str) -> Prefix {
    text.parse().expect("prefix")
}

fn host(node: u8) -> MemberVia {
    MemberVia::Host(vtep(Family::V4, node))
}

fn member(node: u8, weight: u16) -> EcmpMemberSpec {
    EcmpMemberSpec { via: host(node), weight, zone: None, is_up: true }
}

/// Node 1, on which network red reaches 198.51.100.0/24 by nodes 2 to 5 with these weights.
fn site(weights: &[u16]) -> Spec {
    let mut spec = spec(Family::V4, 1);
    let members = (2..).zip(weights).map(|(node, weight)| member(node, *weight)).collect();
    spec.ecmp = vec![EcmpSpec { network: "red".into(), name: "far".into(), members }];
    spec.routes[1].via = Via::Ecmp("far".into());
    let neighbor = |node| NeighborSpec { host: vtep(Family::V4, node), mac: Mac([2, 0, 0, 0, 0, node]) };
    spec.neighbors = (2..8).map(neighbor).collect();
    spec
}

/// A UDP packet of flow `number` of red's first guest, which no more of it than its source port tells apart.
fn flow(number: u16, destination: [u8; 4]) -> Packet {
    let builder = PacketBuilder::ethernet2(mac(1).0, GATEWAY.0).ipv4([10, 0, 0, 2], destination, 64);
    let mut frame = Vec::new();
    builder.udp(1000 + number, 5000).write(&mut frame, &[0x5a; 20]).expect("a vector");
    packet(RED_1, &frame)
}

const FLOWS: u16 = 1600;

/// Which node each of the flows goes to.
fn nodes(vpc: &mut Vpc) -> HashMap<u16, Option<u8>> {
    let mut packets: Vec<Packet> = (0..FLOWS).map(|number| flow(number, [198, 51, 100, 7])).collect();
    let mut verdicts = Vec::new();
    vpc.forward(0, &mut packets, &mut verdicts);
    let node = |(packet, verdict): (&Packet, Verdict)| match verdict {
        Verdict::Underlay { .. } => Some(packet.head.bytes()[33]),
        Verdict::Drop(DropReason::NoNextHop) => None,
        other => panic!("{other:?}"),
    };
    (0..FLOWS).zip(packets.iter().zip(verdicts).map(node)).collect()
}

fn of(all: &HashMap<u16, Option<u8>>, node: u8) -> usize {
    all.values().filter(|at| **at == Some(node)).count()
}

/// The sender, from which address to which, and where that leads.
type Step = ((PortId, u8), &'static str, &'static str, Result<u32, DropReason>);

#[test]
fn each_table_says_whether_its_routes_are_exact_and_what_is_in_the_way() {
    let mut spec = spec(Family::V4, 1);
    let other = vtep(Family::V4, 2);
    spec.routes.push(RouteSpec { network: "red".into(), prefix: prefix("172.16.9.0/24"), via: Via::Host(other) });
    let routes = vec![(prefix("203.0.113.0/24"), Via::Host(other)), (prefix("203.0.113.128/25"), Via::Host(other))];
    let (name, sources) = ("one".into(), vec![prefix("10.0.0.2/32")]);
    spec.route_tables.push(RouteTableSpec { network: "red".into(), name, sources, routes });
    let own = [vtep(Family::V4, 1)];
    let capacity = TableCapacity { endpoints: 8, routes: 8, hosts: 8 };
    let mut loading = Loading::new(&spec.networks, &own, capacity, 0);
    for (line, route) in [(1, "198.18.0.0/15"), (2, "198.18.1.0/24"), (3, "2001:db8:9::/48")] {
        loading.route(line, "red", prefix(route), other).expect("a good entry");
    }
    let loaded = Some(Arc::new(loading.finish().expect("good entries")));
    let tables = Tables::build(&spec, loaded).expect("a good spec");
    let told = |network: &str| -> Vec<_> {
        let all = tables.lookups(network).into_iter();
        all.map(|it| (it.of, it.is_ipv6, it.exact.map_err(|why| why.to_string()))).collect()
    };
    let because = |why: &str| Err(why.to_owned());
    assert_eq!(
        told("red"),
        [
            (RoutesOf::Network, false, because("172.16.9.0/24 is inside 172.16.0.0/12")),
            (RoutesOf::Network, true, Ok(())),
            (RoutesOf::Loaded, false, because("198.18.1.0/24 is inside 198.18.0.0/15")),
            (RoutesOf::Loaded, true, Ok(())),
            (RoutesOf::Table("one"), false, because("203.0.113.128/25 is inside 203.0.113.0/24")),
            (RoutesOf::Table("one"), true, Ok(())),
        ]
    );
    assert_eq!(told("blue"), [(RoutesOf::Network, false, Ok(())), (RoutesOf::Network, true, Ok(()))]);
    assert_eq!(told("green"), []);
}

#[test]
fn flows_are_spread_by_weight_and_counted() {
    let mut vpc = vpc(&site(&[1, 2, 5, 0]));
    let all = nodes(&mut vpc);
    for (node, share) in [(2, 0.125), (3, 0.25), (4, 0.625), (5, 0.0)] {
        let got = of(&all, node) as f64 / f64::from(FLOWS);
        assert!((got - share).abs() < 0.04, "node {node}: {got}");
    }
    // Every packet of a flow is counted, by whatever tier it went.
    assert_eq!(nodes(&mut vpc), all);
    let (network, name, members) = vpc.tables().ecmp_groups().next().expect("a group");
    assert_eq!((network, name), ("red", "far"));
    for (node, member) in (2..).zip(&members) {
        assert_eq!((member.via, member.packets), (host(node), 2 * of(&all, node) as u64));
        assert_eq!(member.bytes, member.packets * (14 + 20 + 8 + 20));
    }
    assert_eq!(members.iter().map(|member| member.buckets).sum::<usize>(), 4096);
    assert!(vpc.stats().cached >= u64::from(FLOWS));
}

#[test]
fn as_many_groups_as_there_can_be_are_renamed_and_flows_find_out() {
    let mut spec = site(&[1]);
    let group = |name: String, node: u8| EcmpSpec { network: "red".into(), name, members: vec![member(node, 1)] };
    let all = |first: &str, node: u8| {
        let mut all: Vec<EcmpSpec> = (0..1023).map(|number| group(format!("{first}{number}"), node)).collect();
        all.push(group("stays".into(), 4));
        all
    };
    spec.ecmp = all("a", 2);
    spec.routes[1].via = Via::Ecmp("a7".into());
    let mut vpc = vpc(&spec);
    let far = |vpc: &mut Vpc| goes(vpc, (RED_1, 1), "10.0.0.2", "198.51.100.7");
    assert_eq!((far(&mut vpc), far(&mut vpc)), (Ok(102), Ok(102)));
    spec.ecmp = all("b", 3);
    spec.routes[1].via = Via::Ecmp("b9".into());
    change(&mut vpc, &spec);
    assert_eq!((far(&mut vpc), far(&mut vpc)), (Ok(103), Ok(103)));
    spec.ecmp.push(group("more".into(), 2));
    assert!(matches!(vpc.tables().rebuild(&spec, None).expect_err("wrong").problem, Problem::TooManyEcmp(1024)));
}

#[test]
fn a_guest_that_is_in_two_groups_is_counted_in_each_by_itself() {
    let mut spec = site(&[1]);
    let member = EcmpMemberSpec { via: MemberVia::Endpoint(ip("10.0.0.3")), ..member(2, 1) };
    spec.ecmp = ["near", "nearer"]
        .map(|name| EcmpSpec { network: "red".into(), name: name.into(), members: vec![member.clone()] })
        .to_vec();
    spec.routes[1].via = Via::Ecmp("near".into());
    spec.routes.push(RouteSpec {
        network: "red".into(),
        prefix: prefix("192.88.99.0/24"),
        via: Via::Ecmp("nearer".into()),
    });
    let mut vpc = vpc(&spec);
    for destination in [[198, 51, 100, 7], [198, 51, 100, 7], [198, 51, 100, 7], [192, 88, 99, 7], [192, 88, 99, 7]] {
        let mut verdicts = Vec::new();
        vpc.forward(0, &mut [flow(1, destination)], &mut verdicts);
        assert!(matches!(verdicts[..], [Verdict::Local { port: RED_2, .. }]), "{verdicts:?}");
    }
    let counted: Vec<u64> = vpc.tables().ecmp_groups().map(|(_, _, members)| members[0].packets).collect();
    assert_eq!(counted, [3, 2]);
    assert_eq!(vpc.stats().cached, 3, "most of them by their flows");
}

#[test]
fn a_member_that_goes_moves_its_own_flows_and_no_others_are_computed_anew() {
    let mut spec = site(&[1, 1, 2]);
    let mut vpc = vpc(&spec);
    let before = nodes(&mut vpc);
    spec.ecmp[0].members[1].is_up = false;
    change(&mut vpc, &spec);
    let sent = |vpc: &Vpc| vpc.tables().ecmp_groups().next().expect("one").2[1].packets;
    let (stats, sent_before) = (vpc.stats().clone(), sent(&vpc));
    let without = nodes(&mut vpc);
    assert!(of(&before, 3) > 300 && of(&without, 3) == 0);
    assert_eq!(sent(&vpc), sent_before, "nothing goes to a member that is down, and its counts stay");
    for (number, was) in &before {
        assert!(*was == Some(3) || without[number] == *was, "flow {number} had a member that stays");
    }
    assert_eq!(vpc.stats().recomputed - stats.recomputed, of(&before, 3) as u64);
    // It comes back: all is as it was, and again nothing else is computed.
    spec.ecmp[0].members[1].is_up = true;
    change(&mut vpc, &spec);
    let stats = vpc.stats().clone();
    assert_eq!(nodes(&mut vpc), before);
    assert_eq!(vpc.stats().recomputed - stats.recomputed, of(&before, 3) as u64);
    // Another group, another route: nothing of these flows.
    spec.ecmp.push(EcmpSpec { name: "other".into(), members: vec![member(6, 1)], network: "red".into() });
    change(&mut vpc, &spec);
    let stats = vpc.stats().clone();
    nodes(&mut vpc);
    assert_eq!(vpc.stats().recomputed, stats.recomputed);
}

#[test]
fn where_all_members_are_down_packets_are_dropped_for_that_reason() {
    let mut spec = site(&[1, 1]);
    let mut vpc = vpc(&spec);
    let before = nodes(&mut vpc);
    spec.ecmp[0].members.iter_mut().for_each(|member| member.is_up = false);
    change(&mut vpc, &spec);
    assert!(nodes(&mut vpc).values().all(Option::is_none));
    assert_eq!(vpc.stats().drops(DropReason::NoNextHop), u64::from(FLOWS));
    // Nor does one get any that has no known MAC address.
    spec.ecmp[0].members.iter_mut().for_each(|member| member.is_up = true);
    spec.neighbors.retain(|neighbor| neighbor.host != vtep(Family::V4, 2));
    change(&mut vpc, &spec);
    assert_eq!(of(&nodes(&mut vpc), 3), usize::from(FLOWS));
    spec = site(&[1, 1]);
    change(&mut vpc, &spec);
    assert_eq!(nodes(&mut vpc), before);
}

#[test]
fn members_of_the_own_zone_are_preferred_while_one_is_healthy() {
    let mut spec = site(&[1, 1, 1, 1]);
    for (member, zone) in spec.ecmp[0].members.iter_mut().zip(["a", "a", "b", "c"]) {
        member.zone = Some(zone.into());
    }
    let mut vpc = vpc(&spec);
    let shares = |vpc: &mut Vpc| {
        let all = nodes(vpc);
        (2..6).filter(|node| of(&all, *node) > 0).collect::<Vec<u8>>()
    };
    assert_eq!(shares(&mut vpc), [2, 3, 4, 5], "without a zone of its own all are alike");
    spec.zone = Some("a".into());
    change(&mut vpc, &spec);
    assert_eq!(shares(&mut vpc), [2, 3]);
    spec.ecmp[0].members[0].is_up = false;
    change(&mut vpc, &spec);
    assert_eq!(shares(&mut vpc), [3]);
    spec.ecmp[0].members[1].is_up = false;
    change(&mut vpc, &spec);
    assert_eq!(shares(&mut vpc), [4, 5], "the others, when none is left");
    spec.ecmp[0].members[0].is_up = true;
    change(&mut vpc, &spec);
    assert_eq!(shares(&mut vpc), [2]);
}

#[test]
fn what_comes_from_any_member_is_taken_and_from_others_not() {
    let mut vpc = vpc(&site(&[1, 1]));
    let mut arrive = |node: u8| {
        // As node `node` sends it: 198.51.100.7 to red's first guest.
        let mut far = spec(Family::V4, 2);
        far.underlay.as_mut().expect("one").addresses = vec![vtep(Family::V4, node)];
        far.networks[0].transit = true;
        far.endpoints.iter_mut().filter(|one| one.mac == mac(4)).for_each(|router| router.spoof_check = false);
        let mut far = common::vpc(&far);
        let (verdict, bytes) = forward(&mut far, RED_3, &udp(mac(4), GATEWAY, "198.51.100.7", "10.0.0.2"));
        assert!(matches!(verdict, Verdict::Underlay { .. }), "{verdict:?}");
        forward(&mut vpc, UNDERLAY, &bytes).0
    };
    assert!(matches!(arrive(2), Verdict::Local { port: RED_1, .. }));
    assert!(matches!(arrive(3), Verdict::Local { port: RED_1, .. }));
    assert_eq!(arrive(4), Verdict::Drop(DropReason::UnknownTunnel));
}

#[test]
fn loaded_routes_lead_to_groups_and_nowhere_when_those_are_gone() {
    let mut spec = site(&[1, 1]);
    spec.routes.remove(1);
    let networks = spec.networks.clone();
    let capacity = TableCapacity { endpoints: 10, routes: 10, hosts: 10 };
    let mut loading = Loading::new(&networks, &[], capacity, 0).with_groups([("red", "far")]);
    let wrong = loading.route_to_group(1, "blue", prefix("198.51.100.0/24"), "far");
    assert_eq!(wrong, Err(Problem::NoEcmp("far".into())), "it is another network's");
    loading.route_to_group(2, "red", prefix("198.51.100.0/24"), "far").expect("a good route");
    let mut spec = Site { spec, loaded: Some(Arc::new(loading.finish().expect("good entries"))) };
    let mut vpc = vpc(&spec);
    let all = nodes(&mut vpc);
    assert!(of(&all, 2) > 600 && of(&all, 3) > 600);
    spec.ecmp[0].members[0].is_up = false;
    change(&mut vpc, &spec);
    let stats = vpc.stats().clone();
    assert_eq!(of(&nodes(&mut vpc), 3), usize::from(FLOWS));
    assert_eq!(vpc.stats().recomputed - stats.recomputed, of(&all, 2) as u64);
    spec.ecmp.clear();
    change(&mut vpc, &spec);
    assert_eq!(goes(&mut vpc, (RED_1, 1), "10.0.0.2", "198.51.100.7"), Err(DropReason::Unresolved));
}

#[test]
fn what_was_loaded_once_is_loaded_again_though_a_group_has_gone() {
    let mut spec = site(&[1]);
    spec.routes.remove(1);
    let networks = spec.networks.clone();
    let capacity = TableCapacity { endpoints: 10, routes: 10, hosts: 10 };
    let mut loading = Loading::new(&networks, &[], capacity, 0).with_unknown_groups();
    loading.route_to_group(1, "red", prefix("198.51.100.0/24"), "far").expect("a group that was there once");
    loading.route_to_group(2, "blue", prefix("198.51.100.0/24"), "far").expect("likewise");
    let mut spec = Site { spec, loaded: Some(Arc::new(loading.finish().expect("good entries"))) };
    let group = std::mem::take(&mut spec.ecmp);
    let mut vpc = vpc(&spec);
    let far = |vpc: &mut Vpc| goes(vpc, (RED_1, 1), "10.0.0.2", "198.51.100.7");
    assert_eq!(far(&mut vpc), Err(DropReason::Unresolved));
    spec.ecmp = group;
    change(&mut vpc, &spec);
    assert_eq!(far(&mut vpc), Ok(102), "it is there again");
}

/// Where a packet of one of red's guests goes: the node, or the port.
fn goes(vpc: &mut Vpc, (port, last): (PortId, u8), source: &str, destination: &str) -> Result<u32, DropReason> {
    match forward(vpc, port, &udp(mac(last), GATEWAY, source, destination)) {
        (Verdict::Underlay { .. }, bytes) => Ok(100 + u32::from(bytes[33])),
        (Verdict::Local { port, .. }, _) => Ok(port.0),
        (Verdict::Drop(reason), _) => Err(reason),
        (Verdict::Software | Verdict::Consumed, _) => Err(DropReason::NoRoute),
    }
}

#[test]
fn routes_of_a_source_come_before_the_networks() {
    let mut spec = site(&[1]);
    let table = |name: &str, sources: &[&str], routes: &[(&str, Via)]| RouteTableSpec {
        network: "red".into(),
        name: name.into(),
        sources: sources.iter().map(|source| prefix(source)).collect(),
        routes: routes.iter().map(|(text, via)| (prefix(text), via.clone())).collect(),
    };
    let by = |node: u8| Via::Host(vtep(Family::V4, node));
    spec.route_tables = vec![
        table("wide", &["10.0.0.0/24"], &[("198.51.100.0/24", by(4)), ("0.0.0.0/0", by(5))]),
        table("one", &["10.0.0.3/32"], &[("198.51.100.128/25", by(6))]),
    ];
    let mut vpc = vpc(&spec);
    let (first, second) = ((RED_1, 1), (RED_2, 2));
    let check = |vpc: &mut Vpc, expected: &[Step]| {
        // The second time by their flows.
        for (from, source, destination, to) in expected.iter().chain(expected) {
            assert_eq!(goes(vpc, *from, source, destination), *to, "{source} to {destination}");
        }
    };
    check(
        &mut vpc,
        &[
            (first, "10.0.0.2", "198.51.100.7", Ok(104)),
            (first, "10.0.0.2", "8.8.8.8", Ok(105)),
            // The longest prefix of the source counts, and what its table does not have is the network's to say.
            (second, "10.0.0.3", "198.51.100.200", Ok(106)),
            (second, "10.0.0.3", "198.51.100.7", Ok(102)),
            (second, "10.0.0.3", "8.8.8.8", Err(DropReason::NoRoute)),
            // Guests and subnets are in all tables.
            (first, "10.0.0.2", "10.0.0.3", Ok(RED_2.0)),
            (first, "10.0.0.2", "10.0.0.99", Err(DropReason::NoRoute)),
        ],
    );
    // A route of one table: flows by the other go on.
    let stats = vpc.stats().clone();
    spec.route_tables[1].routes[0].1 = by(7);
    change(&mut vpc, &spec);
    check(&mut vpc, &[(first, "10.0.0.2", "198.51.100.7", Ok(104)), (second, "10.0.0.3", "198.51.100.200", Ok(107))]);
    assert_eq!(vpc.stats().recomputed - stats.recomputed, 1);
    // A source that is another table's.
    spec.route_tables[1].sources = vec![prefix("10.0.0.2/32")];
    change(&mut vpc, &spec);
    check(&mut vpc, &[(first, "10.0.0.2", "198.51.100.7", Ok(102)), (second, "10.0.0.3", "198.51.100.200", Ok(104))]);
    // An address becomes a guest's that a table has a route for.
    spec.route_tables[0].routes.push((prefix("10.0.0.77/32"), by(5)));
    change(&mut vpc, &spec);
    check(&mut vpc, &[(second, "10.0.0.3", "10.0.0.77", Ok(105))]);
    spec.endpoints[0].addresses.push(ip("10.0.0.77"));
    change(&mut vpc, &spec);
    check(&mut vpc, &[(second, "10.0.0.3", "10.0.0.77", Ok(RED_1.0))]);
    let problem = |spec: &Spec| Tables::build(spec, None).map(drop).expect_err("wrong").to_string();
    spec.route_tables[1].sources = vec![prefix("10.0.0.0/24")];
    assert_eq!(
        problem(&spec),
        "route table one of network red: another route table of the network is for the source 10.0.0.0/24"
    );
}

#[test]
fn a_route_of_the_network_within_a_subnet_is_not_hidden_by_a_table() {
    let mut spec = peered(1);
    let by = |node: u8| Via::Host(vtep(Family::V4, node));
    spec.neighbors =
        (2..8).map(|node| NeighborSpec { host: vtep(Family::V4, node), mac: Mac([2, 0, 0, 0, 0, node]) }).collect();
    for (within, node) in [("10.0.0.128/25", 3), ("10.7.0.128/25", 4)] {
        spec.routes.push(RouteSpec { network: "red".into(), prefix: prefix(within), via: by(node) });
    }
    let route = |text: &str, node| (prefix(text), by(node));
    spec.route_tables = vec![RouteTableSpec {
        network: "red".into(),
        name: "some".into(),
        sources: vec![prefix("10.0.0.2/32")],
        routes: vec![route("0.0.0.0/0", 5), route("10.0.0.192/26", 6)],
    }];
    let mut vpc = vpc(&spec);
    for (destination, to) in [
        ("10.0.0.130", Ok(103)),
        ("10.0.0.200", Ok(106)),
        ("10.0.0.99", Err(DropReason::NoRoute)),
        ("10.7.0.130", Ok(104)),
        ("10.7.0.2", Ok(GREEN_1.0)),
        ("10.7.0.99", Err(DropReason::NoRoute)),
        ("8.8.8.8", Ok(105)),
    ] {
        for _ in 0..2 {
            assert_eq!(goes(&mut vpc, (RED_1, 1), "10.0.0.2", destination), to, "{destination}");
        }
    }
}

#[test]
fn a_host_that_is_not_reached_keeps_no_other_from_being_reached_where_addresses_are_not_checked_before() {
    let mut spec = site(&[1, 1]);
    let own = vtep(Family::V4, 1);
    let (other_family, via) = (ip("2001:db8::9"), |host| Via::Host(host));
    spec.ecmp[0].members[1].via = MemberVia::Host(other_family);
    for (to, host) in
        [("203.0.113.0/25", own), ("203.0.113.128/25", other_family), ("192.88.99.0/24", vtep(Family::V4, 3))]
    {
        spec.routes.push(RouteSpec { network: "red".into(), prefix: prefix(to), via: via(host) });
    }
    let error = Tables::build(&spec, None).map(drop).expect_err("wrong").problem;
    assert_eq!(error, Problem::NoUnderlay(other_family));
    spec.allows_unreached = true;
    let mut vpc = vpc(&spec);
    assert_eq!(vpc.tables().unreached(), [other_family, own]);
    let mut reached = |to: &str| goes(&mut vpc, (RED_1, 1), "10.0.0.2", to);
    assert_eq!(reached("192.88.99.9"), Ok(103));
    assert_eq!(reached("198.51.100.7"), Ok(102), "the other member has no way");
    assert_eq!(reached("203.0.113.9"), Err(DropReason::Unresolved));
    assert_eq!(reached("203.0.113.200"), Err(DropReason::Unresolved));
}

/// Node 1 or 2 with network green, 10.7.0.0/24, which has a guest on node 1, and which is red's peer.
fn peered(node: u8) -> Spec {
    let mut spec = spec(Family::V4, node);
    let mut green = spec.networks[0].clone();
    (green.name, green.vni) = ("green".into(), vni(8));
    green.subnets = vec![SubnetSpec { prefix: prefix("10.7.0.0/24"), gateway: ip("10.7.0.1") }];
    green.gateway_mac = Mac([2, 0xff, 0, 0, 0, 9]);
    spec.networks.push(green);
    let place = if node == 1 { Place::Port(GREEN_1) } else { Place::Host(vtep(Family::V4, 1)) };
    let red = spec.endpoints[0].clone();
    spec.endpoints.push(EndpointSpec {
        network: "green".into(),
        mac: mac(7),
        addresses: vec![ip("10.7.0.2")],
        place,
        ..red
    });
    spec.peerings = vec![PeeringSpec { networks: ["red".into(), "green".into()] }];
    spec
}

#[test]
fn members_of_peers_reach_each_other_and_nobody_else_does() {
    let mut spec = peered(1);
    let mut vpc = vpc(&spec);
    let (red, blue, green) = ((RED_1, 1), (BLUE_1, 1), (GREEN_1, 7));
    let check = |vpc: &mut Vpc, expected: &[Step]| {
        for (from, source, destination, to) in expected.iter().chain(expected) {
            assert_eq!(goes(vpc, *from, source, destination), *to, "{source} to {destination}");
        }
    };
    let no = Err(DropReason::NoRoute);
    check(
        &mut vpc,
        &[
            (red, "10.0.0.2", "10.7.0.2", Ok(GREEN_1.0)),
            (green, "10.7.0.2", "10.0.0.3", Ok(RED_2.0)),
            (green, "10.7.0.2", "10.0.0.5", Ok(102)),
            (blue, "10.0.0.2", "10.7.0.2", no),
            // A peer's routes and gateways are its own.
            (green, "10.7.0.2", "172.16.0.9", no),
            (green, "10.7.0.2", "10.0.0.1", no),
            (red, "10.0.0.2", "10.7.0.9", no),
        ],
    );
    // It is routed: the MAC addresses are those of the network that it goes to.
    let (_, bytes) = forward(&mut vpc, RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", "10.7.0.2"));
    assert_eq!((&bytes[..6], &bytes[6..12], bytes[22]), (&mac(7).0[..], &[2, 0xff, 0, 0, 0, 9][..], 63));
    assert_sound(&bytes);
    // No longer peers: nothing passes, flows or not.
    spec.peerings.clear();
    change(&mut vpc, &spec);
    check(&mut vpc, &[(red, "10.0.0.2", "10.7.0.2", no), (green, "10.7.0.2", "10.0.0.3", no)]);
}

#[test]
fn peers_on_two_nodes_reach_each_other_through_tunnels() {
    let (mut near, mut far) = (vpc(&peered(1)), vpc(&peered(2)));
    // Green's guest on node 1 to red's on node 2, and back.
    let there = udp(mac(7), Mac([2, 0xff, 0, 0, 0, 9]), "10.7.0.2", "10.0.0.5");
    let (verdict, mut bytes) = forward(&mut near, GREEN_1, &there);
    assert!(matches!(verdict, Verdict::Underlay { .. }), "{verdict:?}");
    assert_eq!(bytes[14 + 20 + 8 + 4..][..3], [1, 2, 3], "as red's");
    assert!(matches!(forward(&mut far, UNDERLAY, &bytes).0, Verdict::Local { port: RED_3, .. }));
    // A node that has nothing of green's may not send in its name.
    bytes[14 + 15] = 3;
    assert_eq!(dropped(&mut far, UNDERLAY, &bytes), Some(DropReason::UnknownTunnel));
    let (verdict, mut bytes) = forward(&mut far, RED_3, &udp(mac(4), GATEWAY, "10.0.0.5", "10.7.0.2"));
    assert!(matches!(verdict, Verdict::Underlay { .. }), "{verdict:?}");
    assert!(matches!(forward(&mut near, UNDERLAY, &bytes).0, Verdict::Local { port: GREEN_1, .. }));
    // Nor in the name of a guest of red's that is not there.
    bytes[50 + 14 + 15] = 2;
    assert_eq!(dropped(&mut near, UNDERLAY, &bytes), Some(DropReason::SpoofedAddress));
}

#[test]
fn security_groups_apply_to_peers() {
    let mut spec = peered(1);
    let rule = |peer| SecurityRule { peer, service: Service::Any };
    let group = |peer| SecurityGroupSpec { name: "web".into(), ingress: vec![rule(peer)], egress: None };
    let allow = RulePeer::Prefix(prefix("10.7.0.0/24"));
    for (peer, allowed) in
        [(allow, true), (RulePeer::Prefix(prefix("10.0.0.0/24")), false), (RulePeer::Group("web".into()), false)]
    {
        spec.networks[0].policy.groups = vec![group(peer)];
        for endpoint in spec.endpoints.iter_mut().filter(|endpoint| endpoint.network != "blue") {
            endpoint.policy.groups = if endpoint.network == "red" { vec!["web".into()] } else { Vec::new() };
        }
        let mut vpc = vpc(&spec);
        let there = udp(mac(7), GATEWAY, "10.7.0.2", "10.0.0.2");
        let expected = if allowed { None } else { Some(DropReason::SecurityGroup) };
        assert_eq!(dropped(&mut vpc, GREEN_1, &there), expected, "{:?}", spec.networks[0].policy);
        // What red's guest sends first is its group's to allow, and the reply passes: it is one connection.
        let back = udp(mac(1), GATEWAY, "10.0.0.2", "10.7.0.2");
        assert_eq!(dropped(&mut vpc, RED_1, &back), None);
        let mut reply = there.clone();
        reply[34..38].copy_from_slice(&[back[36], back[37], back[34], back[35]]);
        reply[40..42].fill(0);
        assert_eq!(dropped(&mut vpc, GREEN_1, &reply), None, "a reply");
    }
}

#[test]
fn connections_between_peers_outlive_that_the_other_one_gets_groups() {
    let mut spec = peered(1);
    let any = SecurityRule { peer: RulePeer::Any, service: Service::Any };
    for (network, rules) in spec.networks.iter_mut().zip([vec![], vec![], vec![any]]) {
        network.policy.groups = vec![SecurityGroupSpec { name: "web".into(), ingress: rules, egress: None }];
    }
    let join = |spec: &mut Spec, network: &str| {
        let members = spec.endpoints.iter_mut().filter(|endpoint| endpoint.network == network);
        members.for_each(|endpoint| endpoint.policy.groups = vec!["web".into()]);
    };
    assert_eq!(spec.networks[2].name, "green");
    join(&mut spec, "red");
    let mut vpc = vpc(&spec);
    let there = udp(mac(1), GATEWAY, "10.0.0.2", "10.7.0.2");
    let mut reply = udp(mac(7), GATEWAY, "10.7.0.2", "10.0.0.2");
    assert_eq!(dropped(&mut vpc, GREEN_1, &reply), Some(DropReason::SecurityGroup), "red lets nothing in");
    reply[34..38].copy_from_slice(&[there[36], there[37], there[34], there[35]]);
    reply[40..42].fill(0);
    assert_eq!(dropped(&mut vpc, RED_1, &there), None);
    assert_eq!(dropped(&mut vpc, GREEN_1, &reply), None, "but replies");
    join(&mut spec, "green");
    change(&mut vpc, &spec);
    assert_eq!(dropped(&mut vpc, GREEN_1, &reply), None);
}

#[test]
fn peers_that_could_not_be_told_apart_are_refused() {
    let problem = |spec: &Spec| Tables::build(spec, None).map(drop).expect_err("wrong");
    let mut spec = peered(1);
    spec.peerings.push(PeeringSpec { networks: ["red".into(), "blue".into()] });
    let error = problem(&spec);
    assert_eq!(
        error.to_string(),
        "peering of networks red and blue: 10.0.0.0/24 and 10.0.0.0/24 overlap: packets could not be told where to go"
    );
    // Blue does not overlap green, which reaches red already.
    spec.peerings[1].networks = ["blue".into(), "green".into()];
    assert!(matches!(problem(&spec).problem, Problem::PeerOverlap(..)));
    spec.peerings[1].networks = ["green".into(), "red".into()];
    assert_eq!(problem(&spec).problem, Problem::Twice);
    spec.peerings = vec![PeeringSpec { networks: ["red".into(), "red".into()] }];
    assert_eq!(problem(&spec).problem, Problem::OwnPeer);
    spec.peerings.clear();
    spec.routes.push(RouteSpec { network: "red".into(), prefix: prefix("10.7.0.0/24"), via: Via::Ecmp("no".into()) });
    assert_eq!(problem(&spec).problem, Problem::NoEcmp("no".into()));
}
