//! Loaded entries that come, go and are replaced one by one: what is in force is what a load of the same would be.

mod common;

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use common::*;
use proptest::prelude::*;
use softdpu_vpc::spec::{NeighborSpec, Prefix, Spec, TableCapacity};
use softdpu_vpc::tables::{
    Changes, EntryChange, Expected, Ground, LoadCounts, Loaded, LoadedEntry, Loading, Pair, RouteTo, RoutesOf,
};
use softdpu_vpc::{Mac, Problem, Verdict, Vpc};

const CAPACITY: TableCapacity = TableCapacity { endpoints: 20, routes: 40, hosts: 5 };

/// Guests of red, and destinations of its routes.
const GUESTS: [&str; 4] = ["10.0.0.65", "10.0.0.66", "10.0.0.77", "10.0.1.9"];
const ROUTES: [&str; 9] = [
    "0.0.0.0/0",
    "203.0.113.0/24",
    "203.0.113.0/25",
    "203.0.113.128/26",
    "203.0.0.0/16",
    "198.18.0.0/24",
    "10.0.0.64/28",
    "172.16.0.0/13",
    "198.51.100.0/24",
];
const DESTINATIONS: [&str; 9] = [
    "8.8.8.8",
    "203.0.113.9",
    "203.0.113.130",
    "203.0.113.250",
    "203.0.9.9",
    "198.18.0.7",
    "10.0.0.70",
    "172.16.0.9",
    "198.51.100.9",
];

/// Node 1 with four other nodes.
fn site() -> Spec {
    let mut spec = spec(Family::V4, 1);
    spec.services.burst = 1 << 20;
    spec.neighbors.extend((3..6).map(|node| NeighborSpec { host: host(node), mac: Mac([2, 0, 0, 0, 0, node]) }));
    spec
}

fn host(node: u8) -> IpAddr {
    vtep(Family::V4, node)
}

/// What is loaded: guests by address and routes by prefix, each with its node.
#[derive(Clone, Debug, Default)]
struct Model {
    guests: BTreeMap<IpAddr, u8>,
    routes: BTreeMap<Prefix, u8>,
}

impl Model {
    fn load(&self, spec: &Spec) -> Loaded {
        let own = &spec.underlay.as_ref().expect("an underlay").addresses;
        let mut loading = Loading::new(&spec.networks, own, CAPACITY, 0).with_room(CAPACITY.routes);
        for (address, node) in &self.guests {
            loading.endpoint(1, "red", *address, mac(*node), host(*node)).expect("a good guest");
        }
        for (prefix, node) in &self.routes {
            loading.route(1, "red", *prefix, host(*node)).expect("a good route");
        }
        loading.finish().expect("good entries")
    }

    /// Makes a change as it should be made.
    fn change(&mut self, change: &EntryChange) {
        match &change.entry {
            LoadedEntry::Guest { address, to: Some((mac, _)) } => drop(self.guests.insert(*address, mac.0[5])),
            LoadedEntry::Guest { address, to: None } => drop(self.guests.remove(address)),
            LoadedEntry::Route { prefix, to: Some(RouteTo::Host(to)) } => {
                let node = (2..6).find(|node| host(*node) == *to).expect("a node");
                self.routes.insert(*prefix, node);
            }
            LoadedEntry::Route { prefix, .. } => drop(self.routes.remove(prefix)),
        }
    }
}

fn check(loaded: &Loaded, spec: &Spec, changes: &[EntryChange]) -> Result<Changes, (usize, Problem)> {
    let ground = Ground {
        network: &spec.networks[0],
        own: &spec.underlay.as_ref().expect("an underlay").addresses,
        capacity: CAPACITY,
        endpoints: 0,
        routes: 0,
        hosts: &HashSet::new(),
        groups: &HashSet::from(["far"]),
    };
    loaded.check(changes, &ground).map_err(|error| (error.index, error.problem))
}

fn guest(address: &str, node: Option<u8>, expected: Expected) -> EntryChange {
    let to = node.map(|node| (mac(node), host(node)));
    EntryChange { entry: LoadedEntry::Guest { address: ip(address), to }, expected }
}

fn route(prefix: &str, node: Option<u8>, expected: Expected) -> EntryChange {
    let to = node.map(|node| RouteTo::Host(host(node)));
    EntryChange { entry: LoadedEntry::Route { prefix: prefix.parse().expect("a prefix"), to }, expected }
}

/// Where packets of red's first guest to these go: by flows, and by the routes that the first packets have.
fn ways(vpc: &mut Vpc) -> Vec<(Verdict, Option<IpAddr>)> {
    let mut way = |destination: &str| {
        let (verdict, left) = forward(vpc, RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", destination));
        let outer = matches!(verdict, Verdict::Underlay { .. });
        (verdict, outer.then(|| IpAddr::from([left[30], left[31], left[32], left[33]])))
    };
    GUESTS.iter().chain(&DESTINATIONS).map(|to| way(to)).collect()
}

/// Counts, without networks that have no entries any more.
fn counts(loaded: &Loaded) -> (LoadCounts, Vec<(String, LoadCounts)>) {
    let networks = loaded.networks().filter(|(_, counts)| *counts != LoadCounts::default());
    (loaded.counts(), networks.map(|(name, counts)| (name.to_owned(), counts)).collect())
}

fn changes() -> impl Strategy<Value = Vec<EntryChange>> {
    let node = || prop::option::of(2u8..6);
    let one = prop_oneof![
        (prop::sample::select(&GUESTS[..]), node()).prop_map(|(of, to)| guest(of, to, Expected::Either)),
        (prop::sample::select(&ROUTES[..]), node()).prop_map(|(of, to)| route(of, to, Expected::Either)),
        (prop::sample::select(&ROUTES[..]), node()).prop_map(|(of, to)| route(of, to, Expected::Either)),
    ];
    prop::collection::vec(one, 1..4)
}

proptest! {
    #[test]
    fn what_is_changed_one_by_one_is_what_is_loaded_at_once(
        first in changes(),
        batches in prop::collection::vec((changes(), any::<bool>()), 1..24),
        back in any::<bool>(),
    ) {
        let spec = site();
        let mut model = Model::default();
        first.iter().for_each(|change| model.change(change));
        let front = Arc::new(model.load(&spec));
        let mut pair = Pair::new(Arc::clone(&front), back.then(|| Arc::new(Loaded::clone(&front))));
        let mut node = vpc(&Site { spec: spec.clone(), loaded: Some(front) });
        ways(&mut node);
        for (batch, undone) in batches {
            let Ok(checked) = check(pair.front(), &spec, &batch) else { continue };
            if undone {
                let before = counts(pair.front());
                pair.make(checked.clone()).expect("room");
                pair.undo();
                prop_assert_eq!(counts(pair.front()), before);
            }
            pair.make(checked).expect("room");
            change(&mut node, &Site { spec: spec.clone(), loaded: Some(Arc::clone(pair.front())) });
            batch.iter().for_each(|change| model.change(change));
            let anew = Arc::new(model.load(&spec));
            prop_assert_eq!(counts(pair.front()), counts(&anew));
            let hosts = |loaded: &Loaded| loaded.hosts().collect::<HashSet<_>>();
            prop_assert_eq!(hosts(pair.front()), hosts(&anew));
            let mut other = vpc(&Site { spec: spec.clone(), loaded: Some(anew) });
            let fresh = ways(&mut other);
            // With what flows of the packets before say, and with flows of these.
            prop_assert_eq!(&ways(&mut node), &fresh);
            prop_assert_eq!(&ways(&mut node), &fresh);
            for address in GUESTS {
                let remote = |vpc: &Vpc| vpc.tables().remote("red", ip(address));
                prop_assert_eq!(remote(&node), remote(&other));
            }
        }
    }
}

#[test]
fn a_change_that_cannot_be_made_says_why_and_none_of_its_batch_is() {
    let spec = site();
    let model = Model {
        guests: [(ip("10.0.0.77"), 2)].into(),
        routes: [("203.0.113.0/24".parse().expect("a prefix"), 2)].into(),
    };
    let loaded = model.load(&spec);
    let told = |wrong: EntryChange| {
        let good = route("198.18.0.0/24", Some(3), Expected::Absent);
        let (at, problem) = check(&loaded, &spec, &[good, wrong]).expect_err("a wrong change");
        assert_eq!(at, 1);
        problem.to_string()
    };
    let route_to = |to| EntryChange {
        entry: LoadedEntry::Route { prefix: "1.0.0.0/8".parse().expect("a prefix"), to },
        expected: Expected::Either,
    };
    for (wrong, why) in [
        (route("203.0.113.0/24", Some(3), Expected::Absent), "there is a route to 203.0.113.0/24 already"),
        (route("203.0.113.0/25", None, Expected::Present), "203.0.113.0/25 is not loaded"),
        (route("203.0.113.0/25", Some(2), Expected::Present), "203.0.113.0/25 is not loaded"),
        (route("10.0.0.0/24", Some(3), Expected::Either), "10.0.0.0/24 is routed twice, or is a subnet"),
        (route("198.18.0.0/24", None, Expected::Either), "twice"),
        (guest("10.0.0.77", Some(3), Expected::Absent), "10.0.0.77"),
        (guest("10.0.0.78", None, Expected::Present), "10.0.0.78 is not loaded"),
        (guest("11.0.0.1", Some(3), Expected::Either), "11.0.0.1 is in none of the network's subnets"),
        (route_to(Some(RouteTo::Host(host(1)))), "192.0.2.1"),
        (route_to(Some(RouteTo::Host(ip("2001:db8::7")))), "2001:db8::7"),
        (route_to(Some(RouteTo::Ecmp("near".into()))), "near"),
    ] {
        let problem = told(wrong.clone());
        assert!(problem.contains(why), "{wrong:?}: {problem}");
    }
    check(&loaded, &spec, &[route_to(Some(RouteTo::Ecmp("far".into())))]).expect("a known group");
}

#[test]
fn there_is_room_for_as_many_as_the_tables_have() {
    let spec = site();
    let loaded = Loaded::empty(CAPACITY.routes).expect("memory");
    let some = |count: u8, last: &str| -> Vec<EntryChange> {
        (0..count).map(|at| route(&format!("198.18.{at}.{last}"), Some(2), Expected::Absent)).collect()
    };
    let all = check(&loaded, &spec, &some(40, "0/24")).expect("there is room");
    let mut pair = Pair::new(Arc::new(loaded), None);
    pair.make(all).expect("memory");
    assert_eq!(pair.front().counts().routes, 40);
    let one = route("0.0.0.0/0", Some(2), Expected::Absent);
    let (_, problem) = check(pair.front(), &spec, std::slice::from_ref(&one)).expect_err("one too many");
    assert_eq!(problem, Problem::Full { table: "routes", capacity: 40, wanted: 41 });
    // One that goes makes room in the same batch.
    let both = check(pair.front(), &spec, &[one, route("198.18.7.0/24", None, Expected::Present)]).expect("room");
    pair.make(both).expect("memory");
    assert_eq!(pair.front().counts().routes, 40);
    let hosts: Vec<_> = (0u8..6)
        .map(|at| EntryChange {
            entry: LoadedEntry::Route {
                prefix: format!("198.19.{at}.0/24").parse().expect("a prefix"),
                to: Some(RouteTo::Host(IpAddr::from([192, 0, 2, 100 + at]))),
            },
            expected: Expected::Absent,
        })
        .collect();
    let empty = Loaded::empty(CAPACITY.routes).expect("memory");
    let (at, problem) = check(&empty, &spec, &hosts).expect_err("too many nodes");
    assert_eq!((at, problem), (5, Problem::Full { table: "hosts", capacity: 5, wanted: 6 }));
}

#[test]
fn routes_that_are_added_leave_those_that_were_loaded_in_exact_match_and_are_said_to_be_longest_match() {
    let spec = site();
    let routes = ["198.18.0.0/24", "203.0.113.0/24"].map(|prefix| (prefix.parse().expect("a prefix"), 2));
    let loaded = Arc::new(Model { guests: BTreeMap::new(), routes: routes.into() }.load(&spec));
    let mut pair = Pair::new(loaded, None);
    let mut node = vpc(&Site { spec: spec.clone(), loaded: Some(Arc::clone(pair.front())) });
    let mut told = |edit: Option<EntryChange>| {
        if let Some(edit) = edit {
            let changes = check(pair.front(), &spec, &[edit]).expect("a good change");
            pair.make(changes).expect("room");
            change(&mut node, &Site { spec: spec.clone(), loaded: Some(Arc::clone(pair.front())) });
        }
        let all = node.tables().lookups("red");
        let loaded = all.into_iter().find(|lookup| lookup.of == RoutesOf::Loaded).expect("loaded routes");
        loaded.exact.map_err(|why| why.to_string())
    };
    assert_eq!(told(None), Ok(()));
    let nested = "203.0.113.0/25";
    assert_eq!(told(Some(route(nested, Some(3), Expected::Absent))), Err("routes were added one by one".to_owned()));
    assert_eq!(told(Some(route(nested, None, Expected::Present))), Ok(()), "it has gone");
    assert_eq!(told(Some(route("198.18.0.0/24", Some(3), Expected::Either))), Ok(()), "it is in the other's place");
}
