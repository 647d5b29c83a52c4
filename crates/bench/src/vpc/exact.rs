//! Exact matches of addresses: who has one, and on which node (VM-to-node entries).

use std::net::{IpAddr, Ipv4Addr};

use softdpu_vpc::tables::{Exact, Key};

use super::{Case, Load};

/// Look-ups on their way at once.
const BATCH: usize = 32;

pub(super) fn cases() -> Vec<Box<dyn Case>> {
    let sizes = [(64_000, "64 k"), (1_000_000, "1 M"), (8_000_000, "8 M")];
    let find = sizes.map(|(entries, size)| -> Box<dyn Case> { Box::new(Find { entries, size }) });
    let load = sizes.map(|(entries, size)| -> Box<dyn Case> { Box::new(Fill { entries, size }) });
    find.into_iter().chain(load).collect()
}

/// A number that looks random, different for different `n`.
fn scattered(n: u32) -> u32 {
    n.wrapping_mul(0x9e37_79b1).rotate_left(7).wrapping_mul(0x85eb_ca6b)
}

fn entries(count: u32) -> Vec<(Key, u32)> {
    let address = |n| IpAddr::V4(Ipv4Addr::from_bits(scattered(n)));
    (0..count).map(|n| (Key::address(n % 1000, address(n)), n)).collect()
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
        Ok(Box::new(Finding { table: Exact::build(&entries, 0), keys: entries, at: 0 }))
    }
}

struct Finding {
    table: Exact<u32>,
    keys: Vec<(Key, u32)>,
    at: u32,
}

impl Load for Finding {
    fn run(&mut self, operations: u64) -> u64 {
        let batches = operations.div_ceil(BATCH as u64);
        let mut sum = 0u32;
        for _ in 0..batches {
            let asked: [_; BATCH] = std::array::from_fn(|at| {
                let key = self.keys[scattered(self.at + at as u32) as usize % self.keys.len()].0;
                let place = self.table.place(&key);
                self.table.prefetch(place);
                (key, place)
            });
            self.at = self.at.wrapping_add(BATCH as u32) & 0xffff_ffff >> 1;
            for (key, place) in &asked {
                sum = sum.wrapping_add(self.table.get_at(*place, key).unwrap_or_default());
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
    entries: Vec<(Key, u32)>,
}

impl Load for Filling {
    fn run(&mut self, operations: u64) -> u64 {
        let rounds = operations.div_ceil(self.entries.len() as u64);
        for _ in 0..rounds {
            std::hint::black_box(Exact::build(&self.entries, 0));
        }
        rounds * self.entries.len() as u64
    }
}
