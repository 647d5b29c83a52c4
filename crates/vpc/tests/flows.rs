//! What a flow decides for a packet is what would have been decided without it.

mod common;

use common::streams::{CHANGES, compare, site, steps, steps_from_afar};
use common::*;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use softdpu_vpc::spec::{EndpointSpec, NeighborSpec, NetworkSpec, Place, RouteSpec, Spec, SubnetSpec, Via};
use softdpu_vpc::{Datapath, Destination, DropReason, Mac, Packet, PortId, Tables, Verdict, Vpc};

proptest! {
    #[test]
    fn flows_decide_what_would_be_decided_without_them(steps in steps(), is_v6 in any::<bool>(), small in any::<bool>()) {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let tables = build(&site(family, 0));
        let mut vpc = Vpc::with_flows(tables, if small { 5 } else { 4096 });
        if let Err(difference) = compare(&mut vpc, family, &steps) {
            prop_assert!(false, "{}", difference);
        }
    }
}

proptest! {
    #[test]
    fn flows_from_tunnels_decide_what_would_be_decided_without_them(steps in steps_from_afar(), is_v6 in any::<bool>()) {
        let family = if is_v6 { Family::V6 } else { Family::V4 };
        let mut vpc = vpc(&site(family, 0));
        if let Err(difference) = compare(&mut vpc, family, &steps) {
            prop_assert!(false, "{}", difference);
        }
    }
}

#[test]
fn streams_from_tunnels_meet_flows() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let [mut here, mut through] = [0; 2];
    for _ in 0..32 {
        let stream = steps_from_afar().new_tree(&mut runner).expect("a stream").current();
        let mut vpc = vpc(&site(Family::V4, 0));
        compare(&mut vpc, Family::V4, &stream).expect("no difference");
        here += vpc.stats().paths.get(Destination::Port, Datapath::Fast);
        through += vpc.stats().paths.get(Destination::Transit, Datapath::Fast);
        assert_eq!(vpc.stats().paths.get(Destination::Tunnel, Datapath::Fast), 0);
    }
    assert!(here > 100 && through > 20, "{here} to guests here, {through} from node to node");
}

#[test]
fn streams_meet_loaded_entries_meters_and_many_stale_flows() {
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut recomputed, mut metered, mut loaded) = (0, 0, 0);
    for _ in 0..96 {
        let stream = steps().new_tree(&mut runner).expect("a stream").current();
        let mut vpc = vpc(&site(Family::V4, 0));
        compare(&mut vpc, Family::V4, &stream).expect("no difference");
        recomputed += vpc.stats().recomputed;
        metered += vpc.stats().drops(DropReason::Metered);
        loaded += vpc.tables().loaded().map_or(0, |loaded| loaded.counts().endpoints);
    }
    assert!(recomputed > 200 && metered > 50 && loaded > 20, "{recomputed} {metered} {loaded}");
}

#[test]
fn each_change_and_each_two_of_them_are_good_specs() {
    for family in [Family::V4, Family::V6] {
        for (a, b) in (0..CHANGES).flat_map(|a| (0..CHANGES).map(move |b| (a, b))) {
            Tables::build(&site(family, 1u64 << a | 1 << b), None)
                .unwrap_or_else(|error| panic!("{a} and {b}: {error}"));
        }
        Tables::build(&site(family, (1 << CHANGES) - 1), None).expect("all of them");
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

/// Endpoints 0 to `count` of each network at ports of their own, in networks of a /16 each.
fn crowd(networks: u32, count: u32) -> Spec {
    let name = |network: u32| format!("network-{network}");
    let network = |number: u32| {
        let subnet = SubnetSpec { prefix: "10.0.0.0/16".parse().expect("prefix"), gateway: ip("10.0.255.1") };
        NetworkSpec::new(name(number), vni(1 + number), GATEWAY, vec![subnet])
    };
    let endpoint = |number: u32| EndpointSpec {
        network: name(number / count),
        mac: mac((number % count) as u8),
        addresses: vec![ip(&format!("10.0.0.{}", number % count + 2))],
        place: Place::Port(PortId(number)),
        mtu: None,
        spoof_check: true,
        policy: Default::default(),
    };
    Spec {
        networks: (0..networks).map(network).collect(),
        endpoints: (0..networks * count).map(endpoint).collect(),
        ..Spec::default()
    }
}

/// Each endpoint of `from` sends to the first one of its network, the first to the second.
fn packets(from: std::ops::Range<u32>, count: u32) -> Vec<Packet> {
    let one = |number: u32| {
        let to = if number.is_multiple_of(count) { 1 } else { 0 };
        let address = |last: u32| format!("10.0.0.{}", last + 2);
        packet(PortId(number), &udp(mac((number % count) as u8), GATEWAY, &address(number % count), &address(to)))
    };
    from.map(one).collect()
}

fn send(vpc: &mut Vpc, mut packets: Vec<Packet>) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    vpc.forward(0, &mut packets, &mut verdicts);
    verdicts
}

#[test]
fn flows_that_used_nothing_that_changed_go_on() {
    let mut spec = crowd(2, 8);
    let mut vpc = vpc(&spec);
    send(&mut vpc, packets(0..16, 8));
    // The last endpoint of network 0 is gone, and no other one's route.
    spec.endpoints.remove(7);
    change(&mut vpc, &spec);
    let before = vpc.stats().clone();
    let verdicts = send(&mut vpc, packets(0..16, 8));
    assert_eq!(verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Local { .. })).count(), 15);
    assert_eq!(verdicts[7], Verdict::Drop(DropReason::PortDown));
    let stats = vpc.stats();
    assert_eq!(stats.cached - before.cached, 15, "all but one by their flows");
    assert_eq!((stats.revalidated - before.revalidated, stats.recomputed - before.recomputed), (15, 1));
    // Once compared they are as fresh as ever.
    send(&mut vpc, packets(0..7, 8));
    assert_eq!(vpc.stats().revalidated, stats_after(&before, 15));
    assert_eq!(vpc.flows(), 15, "the one of the endpoint that is gone is forgotten");
}

fn stats_after(before: &softdpu_vpc::Stats, more: u64) -> u64 {
    before.revalidated + more
}

#[test]
fn a_change_of_what_all_flows_use_loses_no_packet() {
    let (networks, count) = (3, 30);
    let mut spec = crowd(networks, count);
    let mut vpc = vpc(&spec);
    let all = || packets(0..networks * count, count);
    send(&mut vpc, all());
    spec.endpoints
        .iter_mut()
        .filter(|endpoint| endpoint.network != "network-2")
        .for_each(|one| one.spoof_check = false);
    change(&mut vpc, &spec);
    let before = vpc.stats().clone();
    let verdicts = send(&mut vpc, all());
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Local { .. })), "{verdicts:?}");
    let stats = vpc.stats();
    assert_eq!(stats.recomputed - before.recomputed, 60, "all stale flows, in the batch in which they are met");
    assert_eq!(stats.cached - before.cached, 30, "those of network 2 are fresh");
    send(&mut vpc, all());
    assert_eq!((vpc.stats().recomputed, vpc.stats().cached - before.cached), (60, 120), "all are fresh again");
}

#[test]
fn an_elephant_is_computed_once() {
    let mut spec = crowd(1, 2);
    let mut vpc = vpc(&spec);
    let herd = || (0..100).flat_map(|_| packets(0..1, 2)).collect::<Vec<_>>();
    send(&mut vpc, herd());
    spec.endpoints[0].spoof_check = false;
    change(&mut vpc, &spec);
    let verdicts = send(&mut vpc, herd());
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Local { .. })));
    assert_eq!(vpc.stats().recomputed, 1);
}

#[test]
fn a_full_table_decides_new_flows_one_by_one_and_forgets_idle_ones() {
    let spec = crowd(1, 100);
    let mut vpc = Vpc::with_flows(build(&spec), 64);
    for _ in 0..2 {
        assert!(send(&mut vpc, packets(0..100, 100)).iter().all(|verdict| matches!(verdict, Verdict::Local { .. })));
    }
    let stats = vpc.stats();
    assert!(vpc.flows() <= 64 && vpc.flows() > 48, "{}", vpc.flows());
    assert_eq!(stats.unkept, 2 * (100 - vpc.flows() as u64));
    assert_eq!(stats.cached, vpc.flows() as u64);
    // Two minutes later, with a packet every now and then.
    let mut verdicts = Vec::new();
    for second in 0..120 {
        for milli in 0..10 {
            vpc.forward(second * 1_000_000_000 + milli * 100_000_000, &mut packets(0..1, 100), &mut verdicts);
        }
    }
    assert_eq!(vpc.flows(), 1, "only one is not idle");
    assert_eq!(vpc.flow_counters(&packets(0..1, 100)[0]).expect("it").packets, 1201);
}

#[test]
fn other_tables_are_heeded_from_the_next_packet_on() {
    let mut vpc = vpc(&site(Family::V4, 0));
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3");
    for _ in 0..2 {
        assert!(matches!(forward(&mut vpc, RED_1, &frame).0, Verdict::Local { port: RED_2, .. }));
    }
    change(&mut vpc, &site(Family::V4, 1));
    assert!(matches!(forward(&mut vpc, RED_1, &frame).0, Verdict::Underlay { .. }));
}

fn route(prefix: &str, host: u8) -> RouteSpec {
    let prefix = prefix.parse().expect("prefix");
    RouteSpec { network: "red".into(), prefix, via: Via::Host(vtep(Family::V4, host)) }
}

/// A frame from guest 4 of red, which is at node `host`, to `destination`, as it comes to node 1.
fn from_afar(host: u8, destination: &str) -> Vec<u8> {
    let mut far = spec(Family::V4, 2);
    let underlay = far.underlay.as_mut().expect("one");
    (underlay.addresses, underlay.mac) = (vec![vtep(Family::V4, host)], Mac([2, 0, 0, 0, 0, host]));
    far.routes.retain(|route| !matches!(route.via, Via::Host(_)));
    far.routes.push(route("198.51.100.0/24", 1));
    let (verdict, frame) = forward(&mut vpc(&far), RED_3, &udp(mac(4), GATEWAY, "10.0.0.5", destination));
    assert!(matches!(verdict, Verdict::Underlay { .. }), "{verdict:?}");
    frame
}

/// Node 1 with a third node, which has something of red.
fn with_third_node() -> Spec {
    let mut spec = spec(Family::V4, 1);
    spec.neighbors.push(NeighborSpec { host: vtep(Family::V4, 3), mac: Mac([2, 0, 0, 0, 0, 3]) });
    spec.routes.retain(|route| !matches!(route.via, Via::Host(_)));
    spec.routes.extend([route("198.51.100.0/24", 3), route("203.0.113.0/24", 2)]);
    spec.networks[0].transit = true;
    spec
}

fn cached(vpc: &Vpc) -> u64 {
    vpc.stats().cached
}

#[test]
fn a_flow_from_a_tunnel_is_hit_by_that_tunnel_alone() {
    let mut vpc = vpc(&with_third_node());
    let (good, forged) = (from_afar(2, "10.0.0.2"), from_afar(3, "10.0.0.2"));
    for _ in 0..3 {
        assert!(matches!(forward(&mut vpc, UNDERLAY, &good).0, Verdict::Local { port: RED_1, .. }));
    }
    assert_eq!(cached(&vpc), 2);
    assert_eq!(dropped(&mut vpc, UNDERLAY, &forged), Some(DropReason::SpoofedAddress));
    // The same 5-tuple from a port here, and from another network.
    let inner = udp(mac(4), GATEWAY, "10.0.0.5", "10.0.0.2");
    assert_eq!(dropped(&mut vpc, RED_1, &inner), Some(DropReason::SpoofedMac));
    let mut blue = good.clone();
    blue[46..49].copy_from_slice(&BLUE_VNI.to_be_bytes()[1..]);
    assert!(matches!(forward(&mut vpc, UNDERLAY, &blue).0, Verdict::Local { port: BLUE_1, .. }));
    assert_eq!(cached(&vpc), 2, "none of them by the flow");
    assert_eq!(forward(&mut vpc, UNDERLAY, &good).0, forward(&mut vpc, UNDERLAY, &good).0);
    assert_eq!(cached(&vpc), 4, "which goes on");
}

#[test]
fn a_guest_that_moves_between_other_nodes_takes_its_flows_along() {
    let mut spec = with_third_node();
    let mut vpc = vpc(&spec);
    let (before, after) = (from_afar(2, "10.0.0.2"), from_afar(3, "10.0.0.2"));
    forward(&mut vpc, UNDERLAY, &before);
    let guest = spec.endpoints.iter_mut().find(|one| one.network == "red" && one.mac == mac(4)).expect("of the site");
    guest.place = Place::Host(vtep(Family::V4, 3));
    change(&mut vpc, &spec);
    assert_eq!(dropped(&mut vpc, UNDERLAY, &before), Some(DropReason::SpoofedAddress));
    assert!(matches!(forward(&mut vpc, UNDERLAY, &after).0, Verdict::Local { .. }));
    assert_eq!((cached(&vpc), vpc.stats().recomputed), (1, 0), "by its flow, as it is");
}

#[test]
fn transit_goes_by_flows_as_long_as_the_network_has_it() {
    let mut spec = with_third_node();
    let mut vpc = vpc(&spec);
    let frame = from_afar(2, "198.51.100.7");
    let sent: Vec<_> = (0..3).map(|_| forward(&mut vpc, UNDERLAY, &frame)).collect();
    assert!(sent.iter().all(|(verdict, _)| matches!(verdict, Verdict::Underlay { overhead: 50, .. })), "{sent:?}");
    assert_eq!(sent[0].1[50..], sent[2].1[50..]);
    assert_eq!(sent[2].1[30..34], [192, 0, 2, 3], "to the third node");
    assert_eq!(vpc.stats().paths.get(Destination::Transit, Datapath::Fast), 2);
    assert_eq!(vpc.stats().paths.get(Destination::Transit, Datapath::Switch), 1);
    spec.networks[0].transit = false;
    change(&mut vpc, &spec);
    assert_eq!(dropped(&mut vpc, UNDERLAY, &frame), Some(DropReason::Unresolved));
}

#[test]
fn congestion_on_the_way_is_told_of_by_flows_too() {
    let mut vpc = vpc(&with_third_node());
    let ecn = |outer: u8, inner: u8, destination: &str| {
        let mut frame = from_afar(2, destination);
        (frame[15], frame[50 + 15]) = (frame[15] & !3 | outer, frame[50 + 15] & !3 | inner);
        frame
    };
    for destination in ["10.0.0.2", "198.51.100.7"] {
        forward(&mut vpc, UNDERLAY, &from_afar(2, destination));
        let before = cached(&vpc);
        let (verdict, marked) = forward(&mut vpc, UNDERLAY, &ecn(3, 2, destination));
        match verdict {
            Verdict::Local { .. } => assert_eq!(marked[15] & 3, 3),
            // In the inner header, and in the one that it leaves with.
            _ => assert_eq!((marked[15] & 3, marked[50 + 15] & 3), (3, 3)),
        }
        assert_eq!(cached(&vpc) - before, 1);
        assert_eq!(dropped(&mut vpc, UNDERLAY, &ecn(3, 0, destination)), Some(DropReason::Congestion));
    }
}
