//! Exact matches of addresses: the endpoint that has one, and its node (VM-to-node entries).

use std::net::{IpAddr, Ipv4Addr};

use softdpu_vpc::Mac;
use softdpu_vpc::exact::{ExactKey, ExactTable};
use softdpu_vpc::spec::{Spec, TableCapacity};
use softdpu_vpc::tables::Loading;

use super::{Case, Load, flow};

/// Look-ups on their way at once.
const BATCH: usize = 32;

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let sizes = [(64_000, "64 k"), (1_000_000, "1 M"), (8_000_000, "8 M")];
    let find = sizes.map(|(entries, size)| -> Box<dyn Case> { Box::new(Find { entries, size }) });
    let load = sizes.map(|(entries, size)| -> Box<dyn Case> { Box::new(Fill { entries, size }) });
    let nodes: Box<dyn Case> = Box::new(FillNodes { entries: 8_000_000 });
    find.into_iter().chain(load).chain([nodes]).collect()
}

/// A number that looks random, different for different `n`.
fn scattered(n: u32) -> u32 {
    n.wrapping_mul(0x9e37_79b1).rotate_left(7).wrapping_mul(0x85eb_ca6b)
}

fn entries(count: u32) -> Vec<(ExactKey, u32)> {
    let address = |n| IpAddr::V4(Ipv4Addr::from_bits(scattered(n)));
    (0..count).map(|n| (ExactKey::address(n % 1000, address(n)), n)).collect()
}

struct Find {
    entries: u32,
    size: &'static str,
}

impl Case for Find {
    fn name(&self) -> String {
        format!("exact: find one of {} addresses", self.size)
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let entries = entries(self.entries);
        Ok(Box::new(Finding { table: ExactTable::build(&entries, 0), keys: entries, at: 0 }))
    }
}

struct Finding {
    table: ExactTable<u32>,
    keys: Vec<(ExactKey, u32)>,
    at: u32,
}

impl Load for Finding {
    fn run(&mut self, operations: u64) -> u64 {
        let batches = operations.div_ceil(BATCH as u64);
        let mut sum = 0u32;
        for _ in 0..batches {
            let asked: [_; BATCH] = std::array::from_fn(|at| {
                let key = self.keys[scattered(self.at + at as u32) as usize % self.keys.len()].0;
                let home = self.table.home(&key);
                self.table.prefetch(home);
                (key, home)
            });
            self.at = self.at.wrapping_add(BATCH as u32) & 0xffff_ffff >> 1;
            for (key, home) in &asked {
                sum = sum.wrapping_add(self.table.get_at(*home, key).unwrap_or_default());
            }
        }
        std::hint::black_box(sum);
        batches * BATCH as u64
    }
}

struct Fill {
    entries: u32,
    size: &'static str,
}

impl Case for Fill {
    fn name(&self) -> String {
        format!("exact: load {} addresses, each", self.size)
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        Ok(Box::new(Filling { entries: entries(self.entries) }))
    }
}

struct Filling {
    entries: Vec<(ExactKey, u32)>,
}

impl Load for Filling {
    fn run(&mut self, operations: u64) -> u64 {
        let rounds = operations.div_ceil(self.entries.len() as u64);
        for _ in 0..rounds {
            std::hint::black_box(ExactTable::build(&self.entries, 0));
        }
        rounds * self.entries.len() as u64
    }
}

/// Which guests are on which node: checked one by one, and made ready to be in force.
struct FillNodes {
    entries: u32,
}

impl Case for FillNodes {
    fn name(&self) -> String {
        "exact: load 8 M VM-to-node entries, each".to_owned()
    }

    fn prepare(&self) -> Result<Box<dyn Load>, String> {
        let spec = flow::node()?;
        let entries = (0..self.entries).map(|number| {
            // Behind those that the node has; of one node come many in a row.
            let address = Ipv4Addr::from_bits(0x0a01_0000 + number);
            let [_, a, b, c] = number.to_be_bytes();
            (address, Mac([2, 0x5e, 0, a, b, c]), Ipv4Addr::new(198, 18, (number >> 21) as u8, (number >> 13) as u8))
        });
        Ok(Box::new(FillingNodes { entries: entries.collect(), spec }))
    }
}

struct FillingNodes {
    entries: Vec<(Ipv4Addr, Mac, Ipv4Addr)>,
    spec: Spec,
}

impl Load for FillingNodes {
    fn run(&mut self, operations: u64) -> u64 {
        let count = self.entries.len();
        let own = self.spec.underlay.iter().flat_map(|underlay| underlay.addresses.clone()).collect::<Vec<_>>();
        let capacity = TableCapacity { endpoints: count, routes: 0, hosts: 1 << 11 };
        let rounds = operations.div_ceil(count as u64);
        for _ in 0..rounds {
            let mut loading = Loading::new(&self.spec.networks, &own, capacity, 0);
            for (line, (address, mac, node)) in (1..).zip(&self.entries) {
                let loaded = loading.endpoint(line, "bench", (*address).into(), *mac, (*node).into());
                assert!(loaded.is_ok(), "entry {line}: {loaded:?}");
            }
            let loaded = loading.finish().expect("entries that differ");
            assert_eq!(std::hint::black_box(loaded).counts().endpoints, count);
        }
        rounds * count as u64
    }
}
