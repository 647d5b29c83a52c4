//! Single changes among a million loaded entries, as the daemon makes them: checked, made in the copy that no core
//! reads, and tables built with that. What is left of a change is a message to each core.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use fastrand::Rng;
use hdrhistogram::Histogram;
use softdpu_sys::clock;
use softdpu_vpc::spec::{Spec, TableCapacity};
use softdpu_vpc::tables::{EntryChange, Expected, Ground, Loaded, LoadedEntry, Loading, Pair, RouteTo};
use softdpu_vpc::{Mac, Tables};

use super::lpm::{Mix, add_and_delete, quantiles};
use super::{Case, Load, flow};

const MILLION: usize = 1_000_000;
const CAPACITY: TableCapacity = TableCapacity { endpoints: 2 * MILLION, routes: 2 * MILLION, hosts: 64 };

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let case = |(guests, here)| -> Box<dyn Case> { Box::new(Change { guests, here }) };
    [(false, 64), (false, 1024), (true, 64)].map(case).into()
}

/// Deletes one entry and adds another.
struct Change {
    /// Of guests on other nodes, not of routes.
    guests: bool,
    /// How many guests the node itself has: tables are built for them anew.
    here: usize,
}

fn node(number: usize) -> IpAddr {
    Ipv4Addr::new(198, 18, 0, number as u8 % 32 + 1).into()
}

fn guest(number: usize) -> IpAddr {
    Ipv4Addr::from_bits(0x0a01_0000 + number as u32).into()
}

const MAC: Mac = Mac([2, 0x5e, 0, 0, 0, 1]);

impl Case for Change {
    fn name(&self) -> String {
        format!("changes: 1 M loaded {}, {} guests here", if self.guests { "guests" } else { "routes" }, self.here)
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let mut spec = flow::node()?;
        spec.endpoints.truncate(self.here);
        let own = spec.underlay.iter().flat_map(|underlay| underlay.addresses.clone()).collect::<Vec<_>>();
        let mut random = Rng::with_seed(4);
        // Half of them are loaded, and the others are not yet.
        let entries: Vec<LoadedEntry> = if self.guests {
            (0..2 * MILLION).map(|at| LoadedEntry::Guest { address: guest(at), to: None }).collect()
        } else {
            let prefixes = Mix::Internet.prefixes(2 * MILLION, &mut random);
            prefixes.into_iter().map(|prefix| LoadedEntry::Route { prefix, to: None }).collect()
        };
        let mut loading = Loading::new(&spec.networks, &own, CAPACITY, 0).with_room(CAPACITY.routes);
        for (at, entry) in entries[..MILLION].iter().enumerate() {
            let added = match entry {
                LoadedEntry::Guest { address, .. } => loading.endpoint(1, "bench", *address, MAC, node(at)),
                LoadedEntry::Route { prefix, .. } => loading.route(1, "bench", *prefix, node(at)),
            };
            added.map_err(|problem| problem.to_string())?;
        }
        let loaded = Arc::new(loading.finish().map_err(|error| error.to_string())?);
        let back = Arc::new(Loaded::clone(&loaded));
        let tables = Tables::build(&spec, Some(Arc::clone(&loaded))).map_err(|error| error.to_string())?;
        let (pair, present) = (Pair::new(loaded, Some(back)), MILLION);
        let (adds, deletes) = (quantiles(), quantiles());
        Ok(Box::new(Changing { spec, own, pair, tables, entries, present, random, adds, deletes }))
    }
}

struct Changing {
    spec: Spec,
    own: Vec<IpAddr>,
    pair: Pair,
    tables: Tables,
    /// The first `present` are loaded.
    entries: Vec<LoadedEntry>,
    present: usize,
    random: Rng,
    adds: Histogram<u64>,
    deletes: Histogram<u64>,
}

impl Changing {
    /// Makes a change; how long it takes, in nanoseconds.
    fn change(&mut self, entry: LoadedEntry, expected: Expected) -> u64 {
        let start = clock::now();
        let ground = Ground {
            network: &self.spec.networks[0],
            own: &self.own,
            capacity: CAPACITY,
            endpoints: 0,
            routes: 0,
            hosts: &HashSet::new(),
            groups: &HashSet::new(),
        };
        let checked = self.pair.front().check(&[EntryChange { entry, expected }], &ground).expect("a good change");
        self.pair.make(checked).expect("room");
        let tables = self.tables.rebuild(&self.spec, Some(Arc::clone(self.pair.front()))).expect("a good spec");
        // No core has those before any more.
        self.tables = tables;
        clock::now() - start
    }
}

impl Load for Changing {
    fn run(&mut self, operations: u64) -> u64 {
        let pairs = operations.div_ceil(2);
        for _ in 0..pairs {
            let (old, new) = (self.random.usize(..self.present), self.random.usize(self.present..self.entries.len()));
            let at = node(new);
            let deleted = self.change(self.entries[old].clone(), Expected::Present);
            let entry = match self.entries[new].clone() {
                LoadedEntry::Guest { address, .. } => LoadedEntry::Guest { address, to: Some((MAC, at)) },
                LoadedEntry::Route { prefix, .. } => LoadedEntry::Route { prefix, to: Some(RouteTo::Host(at)) },
            };
            let added = self.change(entry, Expected::Absent);
            self.deletes.saturating_record(deleted);
            self.adds.saturating_record(added);
            self.entries.swap(old, new);
        }
        pairs * 2
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        add_and_delete(&self.adds, &self.deletes)
    }
}
