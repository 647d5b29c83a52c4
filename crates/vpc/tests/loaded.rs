//! Entries that were loaded by file, beside those of the spec; and a node between two others.

mod common;

use std::net::IpAddr;
use std::sync::Arc;

use common::*;
use softdpu_vpc::spec::{
    EndpointSpec, NeighborSpec, PeeringSpec, Place, RouteSpec, RouteTableSpec, Spec, SubnetSpec, TableCapacity, Via,
};
use softdpu_vpc::tables::Loading;
use softdpu_vpc::{Asked, Datapath, Destination, DropReason, Mac, PortId, Problem, Verdict, Vpc};

const CAPACITY: TableCapacity = TableCapacity { endpoints: 8, routes: 4, hosts: 3 };
const THIRD: &str = "192.0.2.3";

/// What `node` is loaded with: red's 10.0.0.77 and 203.0.113.0/24 on node 2, and 10.0.0.78 on node 3.
fn with_entries(mut spec: Spec) -> Site {
    let own = spec.underlay.as_ref().expect("an underlay").addresses.clone();
    let other = vtep(Family::V4, 2);
    let mut loading = Loading::new(&spec.networks, &own, CAPACITY, 2);
    loading.endpoint(1, "red", ip("10.0.0.77"), mac(77), other).expect("a good entry");
    loading.endpoint(2, "red", ip("10.0.0.78"), mac(78), ip(THIRD)).expect("a good entry");
    loading.route(3, "red", "203.0.113.0/24".parse().expect("prefix"), other).expect("a good entry");
    let loaded = loading.finish().expect("good entries");
    spec.neighbors.push(NeighborSpec { host: ip(THIRD), mac: Mac([2, 0, 0, 0, 0, 3]) });
    Site { spec, loaded: Some(Arc::new(loaded)) }
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
    let elsewhere = |address| node.tables().remote("red", ip(address)).map(|there| (there.host, there.mac));
    assert_eq!(elsewhere("10.0.0.78"), Some((ip(THIRD), mac(78))));
    assert_eq!(elsewhere("203.0.113.9"), Some((vtep(Family::V4, 2), GATEWAY)));
    assert_eq!(to(&mut node, "10.0.0.79").0, Verdict::Software, "nobody's");
    assert!(matches!(to(&mut node, "10.0.0.3").0, Verdict::Local { .. }), "a guest of the spec");
    // Flows of what is loaded are kept, and end when another endpoint has the address.
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
    change(&mut node, &moved);
    assert_eq!(to(&mut node, "10.0.0.78").1, Some(vtep(Family::V4, 2)), "it has moved");
    change(&mut node, &spec);
    assert_eq!(to(&mut node, "10.0.0.78").1, Some(ip(THIRD)), "and back");
    // Without them there is no guest, not even for a flow.
    let without = spec.spec;
    change(&mut node, &without);
    assert_eq!(to(&mut node, "10.0.0.78").0, Verdict::Software);
    // While others are being loaded, no sender is told so.
    let loading = Spec { is_loading: true, ..without };
    change(&mut node, &loading);
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

/// What node 2 sends to node 1 in red, from any guest to any; or as if it were from another node.
fn tunneled(node: u8, source: &str, destination: &str) -> Vec<u8> {
    let mut sender = spec(Family::V4, 2);
    let all = "0.0.0.0/0".parse().expect("prefix");
    sender.routes.push(RouteSpec { network: "red".into(), prefix: all, via: Via::Host(vtep(Family::V4, 1)) });
    for endpoint in sender.endpoints.iter_mut().filter(|endpoint| endpoint.mac == mac(4)) {
        endpoint.spoof_check = false;
    }
    let (verdict, mut outer) = forward(&mut vpc(&sender), RED_3, &udp(mac(4), GATEWAY, source, destination));
    assert!(matches!(verdict, Verdict::Underlay { .. }), "{verdict:?}");
    outer[29] = node;
    outer[24..26].fill(0);
    outer
}

/// While entries of these networks are being loaded.
fn awaiting(site: &Site, networks: &[&str]) -> Site {
    let awaited = networks.iter().map(|network| (*network).to_owned()).collect();
    Site { spec: Spec { is_loading: true, awaited, ..site.spec.clone() }, ..site.clone() }
}

/// What becomes of frames through tunnels (node, source, destination): None where they arrive at a port of node 1.
fn check_tunneled(spec: &Site, all: &[(u8, &str, &str, Option<DropReason>)]) {
    let mut node = vpc(spec);
    for (from, source, destination, expected) in all.iter().chain(all) {
        let verdict = forward(&mut node, UNDERLAY, &tunneled(*from, source, destination)).0;
        let expected = expected.map(Verdict::Drop);
        let is_so = expected.map_or(matches!(verdict, Verdict::Local { .. }), |expected| verdict == expected);
        assert!(is_so, "from {source} on node {from} to {destination}: {verdict:?}, not {expected:?}");
    }
}

const SPOOFED: Option<DropReason> = Some(DropReason::SpoofedAddress);
const UNRESOLVED: Option<DropReason> = Some(DropReason::Unresolved);

#[test]
fn sources_wait_for_what_is_being_loaded_in_their_network() {
    // 198.51.100.0/24 is behind node 2, of the spec; its second half and a guest are loaded, behind node 3.
    let spec = with_third();
    let entries = [("red", "198.51.100.128/25", ip(THIRD)), ("red", "10.0.0.77", ip(THIRD))];
    let loaded = load(&vpc(&spec), &spec, &entries);
    let (low, high, guest, known, here) = ("198.51.100.9", "198.51.100.200", "10.0.0.77", "10.0.0.5", "10.0.0.2");
    let cases = |expected: [Option<DropReason>; 7]| {
        let from = [(2, low), (2, high), (3, high), (2, guest), (3, guest), (2, known), (3, known)];
        let case = |((node, source), expected): ((u8, &'static str), _)| (node, source, here, expected);
        from.into_iter().zip(expected).map(case).collect::<Vec<_>>()
    };
    let unknown = Some(DropReason::UnknownTunnel);
    let before = cases([None, None, unknown, SPOOFED, unknown, None, unknown]);
    check_tunneled(&spec, &before);
    check_tunneled(&awaiting(&spec, &["blue"]), &before);
    let awaited = awaiting(&spec, &["red"]);
    check_tunneled(&awaited, &cases([UNRESOLVED, UNRESOLVED, UNRESOLVED, UNRESOLVED, UNRESOLVED, None, UNRESOLVED]));
    check_tunneled(&loaded, &cases([None, SPOOFED, None, SPOOFED, None, None, SPOOFED]));
    // No entry changes a guest of the spec: from elsewhere it is spoofed now as then.
    let mut routed = awaited;
    let behind_third = "192.88.99.0/24".parse().expect("prefix");
    routed.routes.push(RouteSpec { network: "red".into(), prefix: behind_third, via: Via::Host(ip(THIRD)) });
    check_tunneled(&routed, &[(3, known, here, SPOOFED), (3, "192.88.99.9", here, UNRESOLVED)]);
}

#[test]
fn peers_wait_for_what_is_being_loaded_on_either_side() {
    // Green's 10.7.0.2 is on node 2, of the spec; what is loaded is on node 3.
    let mut spec = with_third();
    let mut green = spec.networks[0].clone();
    (green.name, green.vni) = ("green".into(), vni(8));
    green.subnets = vec![SubnetSpec { prefix: "10.7.0.0/24".parse().expect("prefix"), gateway: ip("10.7.0.1") }];
    spec.networks.push(green);
    let place = Place::Host(vtep(Family::V4, 2));
    let (network, addresses, first) = ("green".into(), vec![ip("10.7.0.2")], spec.endpoints[0].clone());
    spec.endpoints.push(EndpointSpec { network, mac: mac(7), addresses, place, ..first });
    spec.peerings = vec![PeeringSpec { networks: ["red".into(), "green".into()] }];
    let (known, guest, here) = ("10.7.0.2", "10.7.0.9", "10.0.0.2");
    let reached = |spec: &Site, to_whom: &str| match to(&mut vpc(spec), to_whom) {
        (Verdict::Drop(reason), _) => Err(Some(reason)),
        (_, host) => host.ok_or(None),
    };
    let second = vtep(Family::V4, 2);
    assert_eq!((reached(&spec, known), reached(&spec, guest)), (Ok(second), Err(None)));
    check_tunneled(&spec, &[(2, known, here, None), (2, guest, here, SPOOFED)]);
    // Entries of red may have a longer prefix in green's subnet.
    let loaded = load(&vpc(&spec), &spec, &[("red", "10.7.0.0/25", ip(THIRD))]);
    assert_eq!(reached(&loaded, known), Ok(ip(THIRD)));
    check_tunneled(&loaded, &[(2, known, here, SPOOFED), (3, known, here, None)]);
    let awaited = awaiting(&spec, &["red"]);
    assert_eq!(reached(&awaited, known), Err(UNRESOLVED));
    check_tunneled(&awaited, &[(2, known, here, UNRESOLVED), (2, "10.0.0.5", known, UNRESOLVED)]);
    // Those of green may have guests, which are red's peers, too; not those that are known already.
    let loaded = load(&vpc(&spec), &spec, &[("green", guest, ip(THIRD)), ("green", known, ip(THIRD))]);
    assert_eq!((reached(&loaded, known), reached(&loaded, guest)), (Ok(second), Ok(ip(THIRD))));
    check_tunneled(&loaded, &[(2, known, here, None), (3, known, here, SPOOFED), (3, guest, here, None)]);
    let awaited = awaiting(&spec, &["green"]);
    assert_eq!((reached(&awaited, known), reached(&awaited, guest)), (Ok(second), Err(UNRESOLVED)));
    check_tunneled(&awaited, &[(2, known, here, None), (2, guest, here, UNRESOLVED), (3, guest, here, UNRESOLVED)]);
    check_tunneled(&awaited, &[(2, "10.0.0.5", guest, UNRESOLVED), (2, "10.0.0.99", here, SPOOFED)]);
}

#[test]
fn route_tables_wait_for_loaded_guests_only() {
    let mut spec = with_third();
    let (inside, outside) = ("10.0.1.128/25".parse().expect("prefix"), "198.18.0.0/15".parse().expect("prefix"));
    let second = vtep(Family::V4, 2);
    spec.route_tables.push(RouteTableSpec {
        network: "red".into(),
        name: "sites".into(),
        sources: vec!["10.0.0.2/32".parse().expect("prefix")],
        routes: vec![(inside, Via::Host(second)), (outside, Via::Host(second))],
    });
    // Node 3 has a route of the network for what the table says is behind node 2.
    let third = Via::Host(ip(THIRD));
    spec.routes.push(RouteSpec { network: "red".into(), prefix: "198.18.7.0/24".parse().expect("prefix"), via: third });
    let (guest, site, here) = ("10.0.1.200", "198.18.7.9", "10.0.0.2");
    assert_eq!((to(&mut vpc(&spec), guest).1, to(&mut vpc(&spec), site).1), (Some(second), Some(second)));
    check_tunneled(&spec, &[(2, guest, here, None), (2, site, here, None), (3, site, here, None)]);
    // Of what is loaded a guest comes before the table, and a route behind it.
    let loaded = load(&vpc(&spec), &spec, &[("red", guest, ip(THIRD)), ("red", "198.18.7.0/28", second)]);
    assert_eq!((to(&mut vpc(&loaded), guest).1, to(&mut vpc(&loaded), site).1), (Some(ip(THIRD)), Some(second)));
    check_tunneled(&loaded, &[(2, guest, here, SPOOFED), (2, site, here, None), (3, site, here, SPOOFED)]);
    let awaited = awaiting(&spec, &["red"]);
    assert_eq!(to(&mut vpc(&awaited), guest).0, Verdict::Drop(DropReason::Unresolved));
    assert_eq!(to(&mut vpc(&awaited), site).1, Some(second));
    check_tunneled(&awaited, &[(2, guest, here, UNRESOLVED), (2, site, here, None), (3, site, here, UNRESOLVED)]);
}

#[test]
fn flows_to_others_go_on_through_a_load() {
    let plain = spec(Family::V4, 1);
    let mut node = vpc(&plain);
    to(&mut node, "10.0.0.3");
    to(&mut node, "10.0.0.5");
    change(&mut node, &with_entries(plain));
    let before = node.stats().clone();
    to(&mut node, "10.0.0.3");
    to(&mut node, "10.0.0.5");
    assert_eq!((node.stats().cached - before.cached, node.stats().recomputed - before.recomputed), (2, 0));
}

/// `spec` with these entries (network, what, host) in the place of those of `vpc`.
fn load(vpc: &Vpc, spec: &Spec, entries: &[(&str, &str, IpAddr)]) -> Site {
    let own = spec.underlay.as_ref().expect("an underlay").addresses.clone();
    let capacity = TableCapacity { endpoints: 1 << 20, routes: 1 << 20, hosts: 8 };
    let loading = Loading::new(&spec.networks, &own, capacity, 0).with_groups([("red", "far")]);
    let mut loading = loading.after(vpc.tables().loaded().cloned());
    for (line, &(network, what, host)) in (1..).zip(entries) {
        match what.split_once('/') {
            None => loading.endpoint(line, network, ip(what), mac(what.len() as u8), host),
            Some(_) => loading.route(line, network, what.parse().expect("prefix"), host),
        }
        .expect("a good entry");
    }
    Site { spec: spec.clone(), loaded: Some(Arc::new(loading.finish().expect("good entries"))) }
}

/// Node 1 with a third node, and no entries.
fn with_third() -> Site {
    let mut spec = spec(Family::V4, 1);
    spec.neighbors.push(NeighborSpec { host: ip(THIRD), mac: Mac([2, 0, 0, 0, 0, 3]) });
    spec.into()
}

/// Packets from `port` to all of these, in one batch: how many go by their flows, and how many are computed anew.
fn batch(vpc: &mut Vpc, port: PortId, destinations: &[String]) -> [u64; 2] {
    let before = vpc.stats().clone();
    let frame = |to: &String| packet(port, &udp(mac(1), GATEWAY, "10.0.0.2", to));
    let mut packets: Vec<_> = destinations.iter().map(frame).collect();
    vpc.forward(0, &mut packets, &mut Vec::new());
    let stats = vpc.stats();
    [stats.cached - before.cached, stats.recomputed - before.recomputed]
}

#[test]
fn a_load_touches_the_flows_of_no_other_network() {
    let (plain, second) = (with_third(), vtep(Family::V4, 2));
    let mut node = vpc(&plain);
    // Red is before blue, in the file and by number: what it loses and gets moves all that follows.
    let guests = |network: &'static str, last: std::ops::Range<u8>| -> Vec<(&'static str, String)> {
        last.map(|last| (network, format!("10.0.0.{last}"))).collect()
    };
    let entries = |red: std::ops::Range<u8>, routes: &[(&'static str, &str)]| {
        let mut all = guests("red", red);
        all.extend(routes.iter().map(|(network, prefix)| (*network, (*prefix).to_owned())));
        all.extend(guests("blue", 100..120));
        all
    };
    let by = |node: &Vpc, all: &[(&'static str, String)], red_at: IpAddr| {
        let entry = |(network, what): &(&'static str, String)| {
            (*network, what.clone(), if *network == "red" { red_at } else { ip(THIRD) })
        };
        let owned: Vec<_> = all.iter().map(entry).collect();
        let borrowed: Vec<_> = owned.iter().map(|(network, what, host)| (*network, what.as_str(), *host)).collect();
        load(node, &plain, &borrowed)
    };
    let of_blue = ("blue", "203.0.113.0/24");
    let routes = [("red", "203.0.113.0/24"), of_blue];
    let first = by(&node, &entries(50..60, &routes), second);
    change(&mut node, &first);
    let mut blue: Vec<String> = (100..120).map(|last| format!("10.0.0.{last}")).collect();
    blue.extend((1..21).map(|last| format!("203.0.113.{last}")));
    let all = blue.len() as u64;
    batch(&mut node, BLUE_1, &blue);
    let other_routes = [("red", "198.18.0.0/24"), ("red", "203.0.113.0/25"), of_blue];
    let loads = [
        ("the same", entries(50..60, &routes), second),
        ("one less", entries(51..60, &routes), second),
        ("many more", entries(20..90, &routes), second),
        ("other routes", entries(20..90, &other_routes), second),
        ("at another node", entries(20..90, &other_routes), ip(THIRD)),
        ("nothing of red", entries(0..0, &[of_blue]), second),
    ];
    for (what, entries, host) in loads {
        let spec = by(&node, &entries, host);
        change(&mut node, &spec);
        // Of thousands of buckets, a few guests may be in those of red's by chance.
        let [cached, recomputed] = batch(&mut node, BLUE_1, &blue);
        let chance = if what == "the same" { 0 } else { 3 };
        assert!(recomputed <= chance && cached + recomputed == all, "{what}: {cached} {recomputed}");
    }
    // Nor what red is configured with.
    let mut others = Site { loaded: node.tables().loaded().cloned(), ..plain.clone() };
    others.routes.retain(|route| route.network != "red");
    change(&mut node, &others);
    assert_eq!(batch(&mut node, BLUE_1, &blue), [all, 0]);
}

#[test]
fn a_load_touches_few_flows_of_its_own_network() {
    let (plain, second) = (with_third(), vtep(Family::V4, 2));
    let mut node = vpc(&plain);
    let guests: Vec<String> = (0..2).flat_map(|high| (20..220).map(move |low| format!("10.0.{high}.{low}"))).collect();
    let loaded = |node: &Vpc, guests: &[String], routes: &[&str], host: IpAddr| {
        let entry = guests.iter().map(|guest| ("red", guest.as_str(), host));
        let entries: Vec<_> = entry.chain(routes.iter().map(|route| ("red", *route, second))).collect();
        load(node, &plain, &entries)
    };
    let spec = loaded(&node, &guests, &["203.0.113.0/24"], second);
    change(&mut node, &spec);
    let all: Vec<String> = guests[1..].to_vec();
    let sum = |node: &mut Vpc, of: &[String]| {
        let counts = of.chunks(16).map(|chunk| batch(node, RED_1, chunk));
        counts.fold([0; 2], |a, b| [a[0] + b[0], a[1] + b[1]])
    };
    sum(&mut node, &all);
    to(&mut node, "203.0.113.9");
    // The first is gone: of 399 others those are computed anew that have its version, about two; the route is as it
    // was.
    let spec = loaded(&node, &all, &["203.0.113.0/24"], second);
    change(&mut node, &spec);
    let [cached, recomputed] = sum(&mut node, &all);
    assert!(recomputed < 20 && cached + recomputed == 399, "{cached} {recomputed}");
    assert_eq!(batch(&mut node, RED_1, &["203.0.113.9".into()]), [1, 0]);
    assert_eq!(to(&mut node, &guests[0]).0, Verdict::Software, "it is nobody's");
    // Another route: none of guests is, nor any where all of them are on another node.
    let spec = loaded(&node, &all, &["203.0.113.0/25"], ip(THIRD));
    change(&mut node, &spec);
    assert_eq!(sum(&mut node, &all), [399, 0]);
    assert_eq!(to(&mut node, &all[0]).1, Some(ip(THIRD)), "by its flow, to where it is now");
    assert_eq!(batch(&mut node, RED_1, &["203.0.113.9".into()]), [0, 1]);
    assert_eq!(to(&mut node, "203.0.113.200").0, Verdict::Software, "no route has it");
    // Of more than were there, what was there goes on.
    let more: Vec<String> = (0..2).flat_map(|high| (2..250).map(move |low| format!("10.0.{high}.{low}"))).collect();
    let more: Vec<String> = more.into_iter().filter(|guest| guest != "10.0.1.1").collect();
    let mut ten: Vec<String> = all[..10].to_vec();
    ten.push("203.0.113.9".into());
    let spec = loaded(&node, &more, &["203.0.113.0/25"], ip(THIRD));
    change(&mut node, &spec);
    let [cached, _] = batch(&mut node, RED_1, &ten);
    assert!(cached >= 1, "the route's at the least: {cached}");
    // Nothing is loaded: no flow goes on by what was.
    change(&mut node, &plain);
    assert_eq!(to(&mut node, &all[5]).0, Verdict::Software);
    change(&mut node, &spec);
    assert_eq!(batch(&mut node, RED_1, &all[..1]), [0, 1], "of a load that was not in force before");
}

#[test]
fn an_address_that_is_somebody_elses_for_a_while_leaves_the_others_flows() {
    let plain = with_third();
    let mut node = vpc(&plain);
    let guests: Vec<String> = (20..220).map(|last| format!("10.0.0.{last}")).collect();
    let entries: Vec<_> = guests.iter().map(|guest| ("red", guest.as_str(), ip(THIRD))).collect();
    let spec = load(&node, &plain, &entries);
    change(&mut node, &spec);
    for chunk in guests.chunks(16) {
        batch(&mut node, RED_1, chunk);
    }
    let mut moved = spec.clone();
    moved.endpoints.push(EndpointSpec {
        network: "red".into(),
        mac: mac(78),
        addresses: vec![ip(&guests[7])],
        place: Place::Host(vtep(Family::V4, 2)),
        mtu: None,
        spoof_check: true,
        policy: Default::default(),
    });
    for (spec, host) in [(&moved, vtep(Family::V4, 2)), (&spec, ip(THIRD))] {
        change(&mut node, spec);
        let computed: u64 = guests.chunks(16).map(|chunk| batch(&mut node, RED_1, chunk)[1]).sum();
        assert!((1..20).contains(&computed), "{computed} of 200");
        assert_eq!(to(&mut node, &guests[7]).1, Some(host));
    }
}

#[test]
fn a_guest_that_is_loaded_where_a_route_went_takes_its_flow() {
    let mut plain = with_third();
    let inside = "10.0.1.128/25".parse().expect("prefix");
    plain.routes.push(RouteSpec { network: "red".into(), prefix: inside, via: Via::Host(vtep(Family::V4, 2)) });
    let mut node = vpc(&plain);
    let spec = load(&node, &plain, &[("red", "10.0.1.9", ip(THIRD))]);
    change(&mut node, &spec);
    for _ in 0..2 {
        assert_eq!(to(&mut node, "10.0.1.200").1, Some(vtep(Family::V4, 2)), "by the route");
    }
    let spec = load(&node, &plain, &[("red", "10.0.1.9", ip(THIRD)), ("red", "10.0.1.200", ip(THIRD))]);
    change(&mut node, &spec);
    assert_eq!(to(&mut node, "10.0.1.200").1, Some(ip(THIRD)), "who is there now");
    // The same where the route within the subnet is loaded.
    let spec = load(&node, &with_third(), &[("red", "10.0.1.0/25", vtep(Family::V4, 2))]);
    change(&mut node, &spec);
    for _ in 0..2 {
        assert_eq!(to(&mut node, "10.0.1.9").1, Some(vtep(Family::V4, 2)));
    }
    let both = [("red", "10.0.1.0/25", vtep(Family::V4, 2)), ("red", "10.0.1.9", ip(THIRD))];
    let spec = load(&node, &with_third(), &both);
    change(&mut node, &spec);
    assert_eq!(to(&mut node, "10.0.1.9").1, Some(ip(THIRD)));
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
    // Two of three hosts are known: each counts once, whatever leads to it.
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
        let asked = Asked { names: &|_| String::new(), clock: &|| 0 };
        let path = node.explain(0, RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", to), asked);
        let told: Vec<&str> = path.steps.iter().map(|(_, step)| step.found.as_str()).collect();
        let expected = format!("loaded entry of red on {host}");
        assert!(told.iter().any(|found| found.contains(&expected)), "{to}: {told:?}");
        let no_more = path.steps.iter().any(|step| format!("{step:?}").contains("which is no more"));
        assert!(!no_more, "{to}: {:?}", path.steps);
    }
}
