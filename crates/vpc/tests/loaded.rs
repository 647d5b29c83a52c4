//! Entries that were loaded by file, beside those of the spec; and a node between two others.

mod common;

use std::net::IpAddr;
use std::sync::Arc;

use common::*;
use softdpu_vpc::spec::{EndpointSpec, NeighborSpec, Place, RouteSpec, Spec, TableCapacity, Via};
use softdpu_vpc::tables::Loading;
use softdpu_vpc::{Datapath, Destination, DropReason, Mac, Problem, Verdict, Vpc};

const CAPACITY: TableCapacity = TableCapacity { endpoints: 8, routes: 4, hosts: 3 };
const THIRD: &str = "192.0.2.3";

/// What `node` is loaded with: red's 10.0.0.77 and 203.0.113.0/24 on node 2, and 10.0.0.78 on node 3.
fn with_entries(mut spec: Spec) -> Spec {
    let own = spec.underlay.as_ref().expect("an underlay").addresses.clone();
    let other = vtep(Family::V4, 2);
    let mut loading = Loading::new(&spec.networks, &own, CAPACITY, 2);
    loading.endpoint(1, "red", ip("10.0.0.77"), mac(77), other).expect("a good entry");
    loading.endpoint(2, "red", ip("10.0.0.78"), mac(78), ip(THIRD)).expect("a good entry");
    loading.route(3, "red", "203.0.113.0/24".parse().expect("prefix"), other).expect("a good entry");
    let loaded = loading.finish().expect("good entries");
    spec.neighbors.push(NeighborSpec { host: ip(THIRD), mac: Mac([2, 0, 0, 0, 0, 3]) });
    Spec { loaded: Some(Arc::new(loaded)), ..spec }
}

fn to(vpc: &mut Vpc, destination: &str) -> (Verdict, Option<IpAddr>) {
    let (verdict, left) = forward(vpc, RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", destination));
    let outer = matches!(verdict, Verdict::Underlay { .. });
    (verdict, outer.then(|| IpAddr::from([left[30], left[31], left[32], left[33]])))
}

#[test]
fn loaded_guests_and_routes_are_reached_and_what_the_spec_says_wins() {
    let spec = with_entries(spec(Family::V4, 1));
    let mut node = vpc(&spec);
    assert_eq!(to(&mut node, "10.0.0.77").1, Some(vtep(Family::V4, 2)));
    assert_eq!(to(&mut node, "10.0.0.78").1, Some(ip(THIRD)));
    assert_eq!(to(&mut node, "203.0.113.9").1, Some(vtep(Family::V4, 2)));
    assert_eq!(to(&mut node, "10.0.0.79").0, Verdict::Software, "nobody's");
    assert!(matches!(to(&mut node, "10.0.0.3").0, Verdict::Local { .. }), "a guest of the spec");
    // Flows of what is loaded are kept, and end when somebody else has the address.
    let before = node.stats().cached;
    to(&mut node, "10.0.0.78");
    assert_eq!(node.stats().cached, before + 1);
    let mut moved = spec.clone();
    moved.endpoints.push(EndpointSpec {
        network: "red".into(),
        mac: mac(78),
        addresses: vec![ip("10.0.0.78")],
        place: Place::Host(vtep(Family::V4, 2)),
        mtu: None,
        spoof_check: true,
        policy: Default::default(),
    });
    node.replace(Arc::new(node.tables().rebuild(&moved).expect("a good spec")));
    assert_eq!(to(&mut node, "10.0.0.78").1, Some(vtep(Family::V4, 2)), "it has moved");
    node.replace(Arc::new(node.tables().rebuild(&spec).expect("a good spec")));
    assert_eq!(to(&mut node, "10.0.0.78").1, Some(ip(THIRD)), "and back");
    // Without them there is nobody, not even for a flow.
    let without = Spec { loaded: None, ..spec };
    node.replace(Arc::new(node.tables().rebuild(&without).expect("a good spec")));
    assert_eq!(to(&mut node, "10.0.0.78").0, Verdict::Software);
    // While others are being loaded, nobody is told so.
    let loading = Spec { is_loading: true, ..without };
    node.replace(Arc::new(node.tables().rebuild(&loading).expect("a good spec")));
    assert_eq!(to(&mut node, "10.0.0.78").0, Verdict::Drop(DropReason::Unresolved));
}

#[test]
fn routes_wait_for_what_is_being_loaded_in_their_network() {
    let mut spec = spec(Family::V4, 1);
    let default = "0.0.0.0/0".parse().expect("prefix");
    spec.routes.push(RouteSpec { network: "red".into(), prefix: default, via: Via::Host(vtep(Family::V4, 2)) });
    let reached = |spec: &Spec, destination: &str| to(&mut vpc(spec), destination).1;
    assert!(reached(&spec, "203.0.113.9").is_some());
    let mut awaited = Spec { is_loading: true, awaited: vec!["red".into()], ..spec.clone() };
    let verdict = to(&mut vpc(&awaited), "203.0.113.9").0;
    assert_eq!(verdict, Verdict::Drop(DropReason::Unresolved), "a longer prefix may be loaded");
    assert!(matches!(to(&mut vpc(&awaited), "10.0.0.3").0, Verdict::Local { .. }), "a guest of the spec");
    awaited.awaited = vec!["blue".into()];
    assert!(reached(&awaited, "203.0.113.9").is_some(), "it is another network's");
}

#[test]
fn flows_to_others_go_on_through_a_load() {
    let plain = spec(Family::V4, 1);
    let mut node = vpc(&plain);
    to(&mut node, "10.0.0.3");
    to(&mut node, "10.0.0.5");
    node.replace(Arc::new(node.tables().rebuild(&with_entries(plain)).expect("a good spec")));
    let before = node.stats().clone();
    to(&mut node, "10.0.0.3");
    to(&mut node, "10.0.0.5");
    assert_eq!((node.stats().cached - before.cached, node.stats().recomputed - before.recomputed), (2, 0));
}

#[test]
fn frames_from_loaded_guests_are_believed_from_their_own_node_only() {
    let mut receiver = vpc(&with_entries(spec(Family::V4, 1)));
    // What node 2 would send for its guest, with and without being that node.
    let mut sender = spec(Family::V4, 2);
    for endpoint in &mut sender.endpoints {
        if endpoint.mac == mac(4) {
            endpoint.addresses = vec![ip("10.0.0.77")];
        }
    }
    let mut sender = vpc(&sender);
    let frame = udp(mac(4), GATEWAY, "10.0.0.77", "10.0.0.2");
    let (_, mut outer) = forward(&mut sender, RED_3, &frame);
    assert!(matches!(forward(&mut receiver, UNDERLAY, &outer).0, Verdict::Local { port: RED_1, .. }));
    // The same from node 3, where this guest is not.
    outer[29] = 3;
    outer[24..26].fill(0);
    assert_eq!(dropped(&mut receiver, UNDERLAY, &outer), Some(DropReason::SpoofedAddress));
}

#[test]
fn a_node_between_two_others_passes_on_what_it_is_told_to() {
    let mut gateway = with_entries(spec(Family::V4, 1));
    let mut sender = spec(Family::V4, 2);
    for endpoint in &mut sender.endpoints {
        match endpoint.mac {
            own if own == mac(4) => endpoint.addresses = vec![ip("10.0.0.77")],
            other if other == mac(1) && endpoint.network == "red" => endpoint.addresses = vec![ip("10.0.0.78")],
            _ => {}
        }
    }
    let mut sender = vpc(&sender);
    let mut frames = [64, 1].map(|hops| {
        let frame = udp_of(mac(4), GATEWAY, "10.0.0.77", "10.0.0.78", hops, b"payload");
        forward(&mut sender, RED_3, &frame).1
    });
    assert_eq!(dropped(&mut vpc(&gateway), UNDERLAY, &frames[0]), Some(DropReason::Unresolved), "no transit");
    gateway.networks[0].transit = true;
    let mut node = vpc(&gateway);
    let (verdict, left) = forward(&mut node, UNDERLAY, &frames[0]);
    assert!(matches!(verdict, Verdict::Underlay { port: UNDERLAY, .. }), "{verdict:?}");
    assert_eq!(left[26..34], [192, 0, 2, 1, 192, 0, 2, 3], "from the node between to the third");
    assert_eq!(left[50..], udp_of(GATEWAY, mac(78), "10.0.0.77", "10.0.0.78", 63, b"payload"));
    assert_sound(&left);
    assert_eq!(node.stats().paths.get(Destination::Transit, Datapath::Switch), 1, "by the switch tier alone");
    // What goes round in a circle ends.
    frames[1][50 + 22] = 1;
    let (verdict, _) = forward(&mut node, UNDERLAY, &frames[1]);
    assert!(!matches!(verdict, Verdict::Underlay { .. }), "{verdict:?}");
}

#[test]
fn wrong_entries_and_too_many_are_refused() {
    let spec = spec(Family::V4, 1);
    let own = [vtep(Family::V4, 1)];
    let other = vtep(Family::V4, 2);
    let mut loading = Loading::new(&spec.networks, &own, CAPACITY, 6);
    let mut endpoint = |network: &str, address: &str, at: IpAddr| loading.endpoint(1, network, ip(address), mac(9), at);
    assert_eq!(endpoint("green", "10.0.0.9", other), Err(Problem::NoNetwork("green".into())));
    assert_eq!(endpoint("red", "10.9.0.9", other), Err(Problem::AddressOutside(ip("10.9.0.9"))));
    assert_eq!(endpoint("red", "10.0.0.1", other), Err(Problem::AddressTaken(ip("10.0.0.1"))));
    assert_eq!(endpoint("red", "10.0.0.9", own[0]), Err(Problem::OwnHost(own[0])));
    assert_eq!(endpoint("red", "10.0.0.9", ip("2001:db8::9")), Err(Problem::NoUnderlay(ip("2001:db8::9"))));
    assert_eq!(endpoint("red", "10.0.0.9", other), Ok(()));
    assert_eq!(endpoint("blue", "10.0.0.9", other), Ok(()));
    let full = endpoint("red", "10.0.0.10", other).unwrap_err();
    assert_eq!(full, Problem::Full { table: "endpoints", capacity: 8, wanted: 9 });
    let said = "the table of endpoints is full: it has room for 8, and 9 are wanted; set `endpoints` in node.tables";
    assert!(full.to_string().contains(said), "{full}");
    assert!(matches!(endpoint("red", "10.0.0.11", other), Err(Problem::Full { wanted: 10, .. })), "each is counted");
    assert_eq!(
        loading.route(2, "red", "10.0.0.0/24".parse().unwrap(), other),
        Err(Problem::RouteTaken("10.0.0.0/24".parse().unwrap()))
    );
    let mut twice = Loading::new(&spec.networks, &own, CAPACITY, 0);
    for line in [7, 5, 9] {
        twice.endpoint(line, "red", ip("10.0.0.9"), mac(9), other).expect("told at the end");
    }
    let error = twice.finish().unwrap_err();
    assert_eq!((error.line, error.problem), (7, Problem::AddressTaken(ip("10.0.0.9"))));
}

#[test]
fn routes_and_hosts_have_room_beside_those_that_are_not_loaded() {
    let spec = spec(Family::V4, 1);
    let own = [vtep(Family::V4, 1)];
    let known = [vtep(Family::V4, 2), ip(THIRD)];
    let mut loading = Loading::new(&spec.networks, &own, CAPACITY, 0).beside(2, known.into());
    let mut route = |third: u8, host: IpAddr| {
        let prefix = format!("203.0.{third}.0/24").parse().expect("a prefix");
        loading.route(third.into(), "red", prefix, host)
    };
    // Two of three hosts are known: each counts once, whoever leads to it.
    assert_eq!(route(1, known[0]), Ok(()));
    assert_eq!(route(2, ip("192.0.2.4")), Ok(()));
    let full = route(3, ip("192.0.2.5")).unwrap_err();
    assert_eq!(full, Problem::Full { table: "hosts", capacity: 3, wanted: 4 });
    assert_eq!(route(3, ip("192.0.2.5")).unwrap_err(), full, "it is one host");
    assert!(full.to_string().contains("set `hosts` in node.tables"), "{full}");
    // Two of four routes are there beside them, and two are loaded.
    let full = route(4, known[1]).unwrap_err();
    assert_eq!(full, Problem::Full { table: "routes", capacity: 4, wanted: 5 });
    assert!(full.to_string().contains("it has room for 4, and 5 are wanted; set `routes`"), "{full}");
}

#[test]
fn the_path_to_what_is_loaded_says_that_it_is() {
    let node = vpc(&with_entries(spec(Family::V4, 1)));
    for (to, host) in [("10.0.0.78", THIRD.to_owned()), ("203.0.113.9", vtep(Family::V4, 2).to_string())] {
        let path = node.explain(0, RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", to), &|_| String::new());
        let told: Vec<&str> = path.steps.iter().map(|step| step.found.as_str()).collect();
        let expected = format!("loaded entry of red on {host}");
        assert!(told.iter().any(|found| found.contains(&expected)), "{to}: {told:?}");
        let no_more = path.steps.iter().any(|step| format!("{step:?}").contains("which is no more"));
        assert!(!no_more, "{to}: {:?}", path.steps);
    }
}
