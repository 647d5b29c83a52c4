//! Exact matches: open addressing, linear probing with Robin Hood order, never more than [`PROBES`] slots looked at.
//!
//! A table that cores look up in is only read. A copy that no core has can be [changed](ExactTable::set) in place, a
//! few slots for each entry. Tenants choose addresses, so they could choose ones that meet in one place: every table
//! has a random seed, and one in which too many meet is built anew with another.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::IpAddr;

use softdpu_sys::prefetch;

use crate::hash::{MIX, folded_multiply};

/// Most slots that one look-up reads. At half load Robin Hood order needs fewer in practice; a table that would need
/// more gets another seed, then more slots.
const PROBES: usize = 16;
/// Seeds that are tried before the table is doubled.
const SEEDS: u32 = 4;
/// `space` of an empty slot.
const EMPTY: u32 = u32::MAX;

/// What is looked up: an address (or number) in a space of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ExactKey {
    high: u64,
    low: u64,
    space: u32,
}

impl ExactKey {
    /// `bits` in `space`, which is less than `u32::MAX`.
    #[inline]
    pub const fn new(space: u32, bits: u128) -> ExactKey {
        ExactKey { high: (bits >> 64) as u64, low: bits as u64, space }
    }

    /// An address of network number `network`. The two families never meet, not even in an IPv4-mapped address.
    #[inline]
    pub fn address(network: u32, address: IpAddr) -> ExactKey {
        match address {
            IpAddr::V4(address) => ExactKey { high: 0, low: address.to_bits().into(), space: network << 1 },
            IpAddr::V6(address) => ExactKey::new(network << 1 | 1, address.to_bits()),
        }
    }

    /// Of an [address](Self::address): the number of its network.
    pub(crate) fn network(&self) -> u32 {
        self.space >> 1
    }

    /// What it is in its space, mixed with `seed`, which hides both factors: no tenant can make one of them zero.
    #[inline]
    pub(crate) fn mixed(&self, seed: u64) -> u64 {
        folded_multiply(self.low ^ seed, self.high ^ seed.rotate_left(32) ^ MIX[1])
    }
}

#[derive(Clone, Copy, Debug)]
struct Slot<V> {
    high: u64,
    low: u64,
    space: u32,
    value: V,
}

impl<V> Slot<V> {
    #[inline]
    fn is(&self, key: &ExactKey) -> bool {
        // One comparison without branches: a probe that misses is as cheap as one that hits.
        (self.low ^ key.low) | (self.high ^ key.high) | u64::from(self.space ^ key.space) == 0
    }

    fn key(&self) -> ExactKey {
        ExactKey { high: self.high, low: self.low, space: self.space }
    }
}

/// A table from keys to values.
#[derive(Clone, Debug)]
pub struct ExactTable<V> {
    slots: Box<[Slot<V>]>,
    mask: u64,
    seed: u64,
}

/// Where a look-up begins.
#[derive(Clone, Copy, Debug)]
pub struct HomeSlot(usize);

impl<V: Copy + Default> ExactTable<V> {
    /// A table of `entries` with keys that differ, with room for at least `capacity` of them at half load.
    pub fn build(entries: &[(ExactKey, V)], capacity: usize) -> ExactTable<V> {
        let mut size = (entries.len().max(capacity).max(PROBES) * 2).next_power_of_two();
        loop {
            for _ in 0..SEEDS {
                if let Some(table) = ExactTable::try_build(entries, size) {
                    return table;
                }
            }
            size *= 2;
        }
    }

    fn try_build(entries: &[(ExactKey, V)], size: usize) -> Option<ExactTable<V>> {
        let empty = Slot { high: 0, low: 0, space: EMPTY, value: V::default() };
        let mut table = ExactTable {
            // A look-up never wraps around: there is room for all its probes behind the last place.
            slots: vec![empty; size + PROBES].into(),
            mask: size as u64 - 1,
            seed: RandomState::new().build_hasher().finish(),
        };
        entries.iter().all(|(key, value)| table.insert(*key, *value).is_none()).then_some(table)
    }

    /// An entry that is nearer to the place where its look-up begins makes room for one that is farther (Robin Hood).
    /// The entry that finds no place, if one does not.
    fn insert(&mut self, key: ExactKey, value: V) -> Option<(ExactKey, V)> {
        let mut slot = Slot { high: key.high, low: key.low, space: key.space, value };
        let mut at = self.home(&key).0;
        let mut distance = 0;
        while distance < PROBES {
            let there = self.slots[at];
            if there.space == EMPTY {
                self.slots[at] = slot;
                return None;
            }
            let home = self.home(&there.key()).0;
            if at - home < distance {
                self.slots[at] = slot;
                (slot, distance) = (there, at - home);
            }
            at += 1;
            distance += 1;
        }
        Some((slot.key(), slot.value))
    }

    /// Gives `key` the value `value`; the one that it had. Few slots are written. One change of many finds no place for
    /// an entry within the reach of a look-up, and builds the table anew, with another seed or of twice the size.
    pub fn set(&mut self, key: ExactKey, value: V) -> Option<V> {
        if let Some(at) = self.position(&key) {
            return Some(std::mem::replace(&mut self.slots[at].value, value));
        }
        if let Some(homeless) = self.insert(key, value) {
            let entries: Vec<_> = self.iter().chain([homeless]).collect();
            *self = ExactTable::build(&entries, 0);
        }
        None
    }

    /// Removes `key`; the value that it had. Entries behind it move up, so that no look-up ends at the gap.
    pub fn remove(&mut self, key: &ExactKey) -> Option<V> {
        let mut at = self.position(key)?;
        let value = self.slots[at].value;
        while let Some(next) = self.slots.get(at + 1).copied()
            && next.space != EMPTY
            && self.home(&next.key()).0 <= at
        {
            self.slots[at] = next;
            at += 1;
        }
        self.slots[at].space = EMPTY;
        Some(value)
    }

    /// The place of `key`'s slot.
    fn position(&self, key: &ExactKey) -> Option<usize> {
        let home = self.home(key).0;
        let slots = self.slots.get(home..home + PROBES)?;
        let used = slots.iter().take_while(|slot| slot.space != EMPTY);
        Some(home + used.enumerate().find(|(_, slot)| slot.is(key))?.0)
    }

    /// Where the look-up of `key` begins.
    #[inline]
    pub fn home(&self, key: &ExactKey) -> HomeSlot {
        HomeSlot(
            (folded_multiply(key.mixed(self.seed) ^ u64::from(key.space), 0x8ebc_6af0_9c88_c6e3) & self.mask) as usize,
        )
    }

    /// Has the slots at `home` fetched into the cache.
    #[inline]
    pub fn prefetch(&self, home: HomeSlot) {
        if let Some(slot) = self.slots.get(home.0) {
            prefetch::read(slot);
        }
    }

    /// The value of `key`: its look-up begins at `home`.
    #[inline]
    pub fn get_at(&self, home: HomeSlot, key: &ExactKey) -> Option<V> {
        for slot in self.slots.get(home.0..home.0 + PROBES)? {
            if slot.is(key) {
                return Some(slot.value);
            }
            if slot.space == EMPTY {
                return None;
            }
        }
        None
    }

    /// All entries, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (ExactKey, V)> {
        let entry = |slot: &Slot<V>| (slot.key(), slot.value);
        self.slots.iter().filter(|slot| slot.space != EMPTY).map(entry)
    }

    /// The value of `key`.
    #[inline]
    pub fn get(&self, key: &ExactKey) -> Option<V> {
        self.get_at(self.home(key), key)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_slot_of_the_address_table_is_half_a_cache_line() {
        assert_eq!(size_of::<Slot<[u32; 2]>>(), 32);
    }

    #[test]
    fn the_families_do_not_meet() {
        let mapped: IpAddr = "::ffff:10.0.0.2".parse().unwrap();
        let table = ExactTable::build(&[(ExactKey::address(7, "10.0.0.2".parse().unwrap()), 1u32)], 0);
        assert_eq!(table.get(&ExactKey::address(7, mapped)), None);
        assert_eq!(table.get(&ExactKey::address(7, mapped.to_canonical())), Some(1));
    }

    #[test]
    fn addresses_with_a_half_that_is_known_from_the_code_fit() {
        for known in [0, u64::MAX, MIX[0], MIX[1], MIX[2]] {
            let halves = |at: u32| [u128::from(known) << 64 | u128::from(at), u128::from(at) << 64 | u128::from(known)];
            let entries: Vec<_> = (1..20_000).flat_map(halves).map(|bits| (ExactKey::new(1, bits), 7u32)).collect();
            let table = ExactTable::build(&entries, 0);
            assert!(table.slots.len() <= entries.len() * 8, "{} slots", table.slots.len());
        }
    }

    #[test]
    fn many_sequential_addresses_fit() {
        let entries: Vec<_> = (0..200_000u32).map(|at| (ExactKey::new(at % 3, at.into()), at)).collect();
        let table = ExactTable::build(&entries, 0);
        assert!(entries.iter().all(|(key, value)| table.get(key) == Some(*value)));
        assert!(table.slots.len() <= (1 << 19) + PROBES, "{} slots", table.slots.len());
    }

    proptest! {
        #[test]
        fn a_table_that_is_changed_is_the_one_that_is_built(
            steps in prop::collection::vec((0u32..2, 0u128..48, prop::option::of(any::<u32>())), 0..600),
        ) {
            let (mut table, mut model) = (ExactTable::build(&[], 0), HashMap::new());
            for (space, bits, value) in steps {
                let key = ExactKey::new(space, bits);
                match value {
                    Some(value) => prop_assert_eq!(table.set(key, value), model.insert(key, value)),
                    None => prop_assert_eq!(table.remove(&key), model.remove(&key)),
                }
                for space in 0..2 {
                    for bits in 0..48 {
                        let key = ExactKey::new(space, bits);
                        prop_assert_eq!(table.get(&key), model.get(&key).copied());
                    }
                }
            }
            prop_assert_eq!(table.iter().collect::<HashMap<_, _>>(), model);
        }

        #[test]
        fn it_is_a_map(
            entries in prop::collection::hash_map((0u32..4, prop_oneof![0u128..64, any::<u128>()]), any::<u32>(), 0..300),
            others in prop::collection::vec((0u32..4, prop_oneof![0u128..64, any::<u128>()]), 0..50),
        ) {
            let listed: Vec<_> = entries.iter().map(|(&(space, bits), &value)| (ExactKey::new(space, bits), value)).collect();
            let table = ExactTable::build(&listed, 0);
            let model: HashMap<_, _> = listed.iter().copied().collect();
            for key in model.keys().copied().chain(others.into_iter().map(|(space, bits)| ExactKey::new(space, bits))) {
                prop_assert_eq!(table.get(&key), model.get(&key).copied());
            }
        }
    }
}
