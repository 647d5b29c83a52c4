//! Longest prefix match: look-ups in large tables and in many small ones, and changes of a table that is looked up
//! meanwhile.

mod peer;
mod routes;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use fastrand::Rng;
use hdrhistogram::Histogram;
use softdpu_lpm::{Address, Capacity, Lpm, Prefix};
use softdpu_sys::clock;

use super::{Case, Load};
pub(super) use routes::Mix;
use routes::Skew;

pub(super) use peer::peers;

/// Look-ups in one call.
const BATCH: usize = 64;
/// Addresses that are asked for, over and over: more than caches keep the way to.
const KEYS: usize = 1 << 20;

/// Tables, and what is in each.
#[derive(Clone, Copy, Debug)]
struct Shape {
    mix: Mix,
    tables: u32,
    /// In each table.
    routes: usize,
}

const MILLION: usize = 1_000_000;
const SHAPES: &[Shape] = &[
    Shape { mix: Mix::Internet, tables: 1, routes: MILLION },
    Shape { mix: Mix::Vpc, tables: 1, routes: MILLION },
    Shape { mix: Mix::Internet6, tables: 1, routes: MILLION },
    Shape { mix: Mix::Vpc, tables: 10_000, routes: 100 },
];

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let mut cases: Vec<Box<dyn Case>> = Vec::new();
    for &shape in SHAPES {
        for skew in [Skew::Uniform, Skew::Zipf] {
            cases.push(Box::new(Find { shape, skew }));
        }
    }
    cases.extend(SHAPES.iter().map(|&shape| -> Box<dyn Case> { Box::new(Change { shape }) }));
    cases
}

impl Shape {
    fn name(&self) -> String {
        let size = if self.tables == 1 { "1 M".to_owned() } else { format!("{} x {}", self.tables, self.routes) };
        format!("{size} {}", self.mix.name())
    }

    fn routes(&self, random: &mut Rng) -> Vec<(u32, Prefix)> {
        let of = |table, random: &mut Rng| {
            self.mix.prefixes(self.routes, random).into_iter().map(move |prefix| (table, prefix))
        };
        (0..self.tables).flat_map(|table| of(table, random).collect::<Vec<_>>()).collect()
    }

    /// Tables with these routes, to a few thousand next hops, and room for some more.
    fn build(&self, routes: &[(u32, Prefix)]) -> Result<Lpm<u32>, String> {
        let room = routes.len() + routes.len() / 8;
        let mut lpm = Lpm::new(Capacity::worst_case(self.tables as usize, room)).map_err(|error| error.to_string())?;
        for (at, &(table, prefix)) in routes.iter().enumerate() {
            lpm.insert(table, prefix, at as u32 % 4096).map_err(|error| error.to_string())?;
        }
        lpm.settle();
        Ok(lpm)
    }
}

struct Find {
    shape: Shape,
    skew: Skew,
}

impl Case for Find {
    fn name(&self) -> String {
        format!("lpm: find, {}, {}", self.shape.name(), self.skew.name())
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let mut random = Rng::with_seed(1);
        let routes = self.shape.routes(&mut random);
        let lpm = self.shape.build(&routes)?;
        let (mut four, mut six) = (Vec::new(), Vec::new());
        for _ in 0..KEYS {
            let (table, prefix) = routes[self.skew.pick(routes.len(), &mut random)];
            match routes::inside(prefix, &mut random) {
                IpAddr::V4(address) => four.push((table, address)),
                IpAddr::V6(address) => six.push((table, address)),
            }
        }
        Ok(if six.is_empty() {
            Box::new(Finding::<Ipv4Addr> { lpm, keys: four, at: 0 })
        } else {
            Box::new(Finding::<Ipv6Addr> { lpm, keys: six, at: 0 })
        })
    }
}

struct Finding<A> {
    lpm: Lpm<u32>,
    keys: Vec<(u32, A)>,
    at: usize,
}

impl<A: Address> Load for Finding<A> {
    fn run(&mut self, operations: u64) -> u64 {
        let batches = operations.div_ceil(BATCH as u64);
        let mut found = [None; BATCH];
        let mut missed = 0;
        for _ in 0..batches {
            self.lpm.lookup_batch(&self.keys[self.at..self.at + BATCH], &mut found);
            self.at = (self.at + BATCH) % KEYS;
            missed += usize::from(found[0].is_none());
        }
        assert_eq!(missed, 0, "every address is in a route");
        batches * BATCH as u64
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        memory(&self.lpm)
    }
}

fn memory(lpm: &Lpm<u32>) -> Vec<(&'static str, &'static str, f64)> {
    let usage = lpm.usage();
    let bytes = usage.bytes as f64;
    vec![("bytes per route", "B", bytes / usage.routes as f64), ("memory", "MiB", bytes / f64::from(1 << 20))]
}

struct Change {
    shape: Shape,
}

impl Case for Change {
    fn name(&self) -> String {
        format!("lpm: add or delete, {}", self.shape.name())
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let mut random = Rng::with_seed(2);
        let mut routes = self.shape.routes(&mut random);
        let count = routes.len();
        // Some that are not in it yet.
        for _ in 0..count / 16 {
            let table = random.usize(..self.shape.tables as usize) as u32;
            routes.push((table, self.shape.mix.prefixes(1, &mut random)[0]));
        }
        let mut seen = std::collections::HashSet::new();
        routes.retain(|route| seen.insert(*route));
        let lpm = self.shape.build(&routes[..count])?;
        Ok(Box::new(Changing { lpm, routes, present: count, random, adds: quantiles(), deletes: quantiles() }))
    }
}

/// The figures of single changes, from how long they took in nanoseconds.
pub(super) fn add_and_delete(
    adds: &Histogram<u64>,
    deletes: &Histogram<u64>,
) -> Vec<(&'static str, &'static str, f64)> {
    let at = |histogram: &Histogram<u64>, quantile| histogram.value_at_quantile(quantile) as f64;
    vec![
        ("add, p50", "ns", at(adds, 0.5)),
        ("add, p99", "ns", at(adds, 0.99)),
        ("add, max", "ns", adds.max() as f64),
        ("delete, p50", "ns", at(deletes, 0.5)),
        ("delete, p99", "ns", at(deletes, 0.99)),
        ("delete, max", "ns", deletes.max() as f64),
    ]
}

/// Nanoseconds of single operations.
pub(super) fn quantiles() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 1_000_000_000, 3).expect("bounds in order")
}

struct Changing {
    lpm: Lpm<u32>,
    /// The first `present` are in the tables.
    routes: Vec<(u32, Prefix)>,
    present: usize,
    random: Rng,
    adds: Histogram<u64>,
    deletes: Histogram<u64>,
}

impl Load for Changing {
    /// Deletes one route and adds another.
    fn run(&mut self, operations: u64) -> u64 {
        let pairs = operations.div_ceil(2);
        for _ in 0..pairs {
            let (old, new) = (self.random.usize(..self.present), self.random.usize(..self.routes.len() - self.present));
            let (old, new) = (old, self.present + new);
            let (deleted, added) = (self.routes[old], self.routes[new]);
            let start = clock::now();
            let was = self.lpm.remove(deleted.0, deleted.1);
            let middle = clock::now();
            let full = self.lpm.insert(added.0, added.1, new as u32);
            let end = clock::now();
            assert!(was.is_some() && full == Ok(None), "one goes, one comes");
            self.deletes.saturating_record(middle - start);
            self.adds.saturating_record(end - middle);
            self.routes.swap(old, new);
        }
        pairs * 2
    }

    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        let mut figures = add_and_delete(&self.adds, &self.deletes);
        figures.extend(memory(&self.lpm));
        figures
    }
}
