//! The heaviest of a stream of weighted keys, in bounded memory: Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient
//! Computation of Frequent and Top-k Elements in Data Streams", ICDT 2005), with weights.
//!
//! With `m` counters and a total weight of `W`, for every key with a counter: its true weight is at most `weight` and
//! at least `weight - error`, and `error` ≤ W/m. Every key with a true weight above W/m has a counter. Both hold
//! whatever the order is in which keys come.

use std::collections::HashMap;
use std::hash::Hash;

/// A key that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item<K> {
    /// What.
    pub key: K,
    /// At most that: its own, and what the counter had when it took it over.
    pub weight: u64,
    /// How much of it may be others'.
    pub error: u64,
}

/// Counters for the heaviest keys.
///
/// A binary heap with the lightest at the top, and an index that tells where in it a key is.
#[derive(Clone, Debug)]
pub struct SpaceSaving<K> {
    heap: Vec<Item<K>>,
    places: HashMap<K, u32>,
    capacity: usize,
}

impl<K: Copy + Eq + Hash> SpaceSaving<K> {
    /// With so many counters, at least one.
    pub fn new(capacity: usize) -> SpaceSaving<K> {
        let capacity = capacity.max(1);
        SpaceSaving { heap: Vec::with_capacity(capacity), places: HashMap::with_capacity(capacity), capacity }
    }

    /// Counts a key.
    pub fn add(&mut self, key: K, weight: u64) {
        match self.places.get(&key) {
            Some(&at) => {
                let item = &mut self.heap[at as usize];
                item.weight = item.weight.saturating_add(weight);
                self.sink(at as usize);
            }
            None if self.heap.len() < self.capacity => {
                let at = self.heap.len();
                self.heap.push(Item { key, weight, error: 0 });
                self.places.insert(key, at as u32);
                self.rise(at);
            }
            None => {
                let lightest = &mut self.heap[0];
                self.places.remove(&lightest.key);
                let error = lightest.weight;
                *lightest = Item { key, weight: error.saturating_add(weight), error };
                self.places.insert(key, 0);
                self.sink(0);
            }
        }
    }

    /// What any key without a counter weighs at the most.
    pub fn bound(&self) -> u64 {
        if self.heap.len() < self.capacity { 0 } else { self.heap[0].weight }
    }

    /// What is counted, in no order.
    pub fn items(&self) -> &[Item<K>] {
        &self.heap
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.heap.clear();
        self.places.clear();
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        for at in [a, b] {
            self.places.insert(self.heap[at].key, at as u32);
        }
    }

    /// An item has become heavier.
    fn sink(&mut self, mut at: usize) {
        loop {
            let children = [2 * at + 1, 2 * at + 2].into_iter().filter(|child| *child < self.heap.len());
            let Some(lighter) = children.min_by_key(|child| self.heap[*child].weight) else { return };
            if self.heap[lighter].weight >= self.heap[at].weight {
                return;
            }
            self.swap(at, lighter);
            at = lighter;
        }
    }

    /// An item is new at the end.
    fn rise(&mut self, mut at: usize) {
        while at > 0 && self.heap[(at - 1) / 2].weight > self.heap[at].weight {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }
}

/// What several counted of parts of one stream, put together: the bounds hold for the sum. A part is its items and its
/// [bound](SpaceSaving::bound). The heaviest come first, at most `most`; of two as heavy, the one that is surer.
pub fn merge<K: Copy + Eq + Hash + Ord>(parts: &[(&[Item<K>], u64)], most: usize) -> Vec<Item<K>> {
    let bounds: u64 = parts.iter().map(|(_, bound)| bound).sum();
    let mut sums: HashMap<K, Item<K>> = HashMap::new();
    for (items, bound) in parts {
        for item in *items {
            // Of a part that has no counter for it, it may have the bound.
            let sum = sums.entry(item.key).or_insert(Item { key: item.key, weight: bounds, error: bounds });
            sum.weight = sum.weight - bound + item.weight;
            sum.error = sum.error - bound + item.error;
        }
    }
    let mut sums: Vec<Item<K>> = sums.into_values().collect();
    sums.sort_unstable_by_key(|item| (std::cmp::Reverse(item.weight), item.error, item.key));
    sums.truncate(most);
    sums
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exact(stream: &[(u8, u64)]) -> HashMap<u8, u64> {
        let mut sums = HashMap::new();
        stream.iter().for_each(|(key, weight)| *sums.entry(*key).or_default() += weight);
        sums
    }

    fn count(stream: &[(u8, u64)], capacity: usize) -> SpaceSaving<u8> {
        let mut counters = SpaceSaving::new(capacity);
        stream.iter().for_each(|(key, weight)| counters.add(*key, *weight));
        counters
    }

    #[test]
    fn few_keys_are_counted_exactly() {
        let counters = count(&[(1, 10), (2, 5), (1, 1), (3, 7)], 3);
        let top = merge(&[(counters.items(), counters.bound())], 2);
        assert_eq!(top, [Item { key: 1, weight: 11, error: 0 }, Item { key: 3, weight: 7, error: 0 }]);
    }

    #[test]
    fn a_heavy_key_among_many_light_ones_is_found() {
        let stream: Vec<(u8, u64)> =
            (0..2000u32).map(|n| if n % 4 == 0 { (255, 1) } else { ((n % 250) as u8, 1) }).collect();
        let counters = count(&stream, 16);
        let top = merge(&[(counters.items(), counters.bound())], 1)[0];
        assert_eq!(top.key, 255);
        assert!(top.weight - top.error <= 500 && 500 <= top.weight && top.error <= 2000 / 16, "{top:?}");
    }

    #[test]
    fn it_begins_anew() {
        let mut counters = count(&[(1, 10), (2, 5)], 1);
        counters.clear();
        assert_eq!((counters.items(), counters.bound()), (&[][..], 0));
        counters.add(3, 1);
        assert_eq!(counters.items(), [Item { key: 3, weight: 1, error: 0 }]);
    }

    proptest! {
        /// The bounds of the paper, for any stream (its lemmas 3 and 4).
        #[test]
        fn bounds_hold(stream in prop::collection::vec((any::<u8>(), 0u64..100), 0..600), capacity in 1usize..20) {
            let (counters, exact) = (count(&stream, capacity), exact(&stream));
            let total: u64 = exact.values().sum();
            let most = total / capacity as u64;
            prop_assert!(counters.items().len() <= capacity && counters.bound() <= most);
            prop_assert_eq!(counters.items().iter().map(|item| item.weight).sum::<u64>(), total);
            for item in counters.items() {
                let true_weight = exact[&item.key];
                prop_assert!(item.error <= most);
                prop_assert!(item.weight - item.error <= true_weight && true_weight <= item.weight);
            }
            for (key, weight) in &exact {
                if *weight > most {
                    prop_assert!(counters.items().iter().any(|item| item.key == *key), "{key} weighs {weight}");
                }
            }
        }

        /// They hold for what several counted, too.
        #[test]
        fn bounds_hold_for_parts_together(
            parts in prop::collection::vec(prop::collection::vec((any::<u8>(), 0u64..100), 0..200), 1..4),
            capacity in 1usize..20,
        ) {
            let counted: Vec<SpaceSaving<u8>> = parts.iter().map(|part| count(part, capacity)).collect();
            let views: Vec<(&[Item<u8>], u64)> = counted.iter().map(|part| (part.items(), part.bound())).collect();
            let (merged, exact) = (merge(&views, usize::MAX), exact(&parts.concat()));
            let most: u64 = parts.iter().map(|part| part.iter().map(|(_, weight)| weight).sum::<u64>() / capacity as u64).sum();
            for item in &merged {
                let true_weight = exact[&item.key];
                prop_assert!(item.error <= most);
                prop_assert!(item.weight - item.error <= true_weight && true_weight <= item.weight);
            }
            prop_assert!(merged.windows(2).all(|two| two[0].weight >= two[1].weight));
        }
    }
}
