//! Looking addresses up.

use std::net::IpAddr;
use std::slice::Iter;

use softdpu_sys::cpu::{Work, counting_bits};

use crate::bits::{Address, Bits};
use crate::node::STRIDE;
use crate::steps::{Place, Steps};
use crate::top::Top;
use crate::{Lpm, Root};

/// Look-ups that are taken through passes together.
const BATCH: usize = 64;
/// How far ahead slots are fetched that look-ups begin with. About as many lines as a core waits for at once: fetching
/// more before the first look-up would only wait, while nothing is looked up.
const AHEAD: usize = 24;

impl<V: Copy + Default> Lpm<V> {
    /// The value of the longest prefix of table `table` that contains `address`.
    #[inline]
    pub fn lookup(&self, table: u32, address: IpAddr) -> Option<V> {
        match address {
            IpAddr::V4(address) => self.lookup_bits(table, address.bits()),
            IpAddr::V6(address) => self.lookup_bits(table, address.bits()),
        }
    }

    /// Of each table and address, the value of the longest prefix that contains it: into `found`, in their order. What
    /// one list has more than the other is left alone.
    #[inline]
    pub fn lookup_batch<A: Address>(&self, keys: &[(u32, A)], found: &mut [Option<V>]) {
        counting_bits(Batches { lpm: self, keys, found });
    }

    /// What all of `keys` are looked up by, where they are of one table and that has steps.
    #[inline(always)]
    fn stepped<A: Address>(&self, keys: &[(u32, A)]) -> Option<(&Root<V>, &Top<V>, &Steps<V>)> {
        let (table, _) = keys.first()?;
        let root = self.root::<A::Bits>(*table)?;
        let top = root.top.as_deref()?;
        let steps = top.steps()?;
        keys.iter().all(|(other, _)| other == table).then_some((root, top, steps))
    }

    /// Has the slot fetched into the cache that a look-up begins with.
    #[inline(always)]
    fn prefetch<A: Address>(&self, (table, address): &(u32, A)) {
        if let Some(Root { top: Some(top), .. }) = self.root::<A::Bits>(*table) {
            top.prefetch(address.bits());
        }
    }

    fn lookup_bits<B: Bits>(&self, table: u32, bits: B) -> Option<V> {
        let root = self.root::<B>(table)?;
        let (mut number, mut rest, short) = root.start(bits);
        let mut last = None;
        while number != 0 {
            let (node, six) = (self.trie.nodes.get(number), rest.six());
            if node.matches(six) {
                last = Some((node, six));
            }
            number = node.child(six);
            rest = rest.skip(STRIDE);
        }
        last.map(|(node, six)| *self.trie.values.get(node.longest(six))).or(short)
    }
}

impl<V: Copy + Default> Root<V> {
    /// The first node that decides anything of an address, what is left of its bits, and its value if no node has one.
    #[inline(always)]
    fn start<B: Bits>(&self, bits: B) -> (u32, B, Option<V>) {
        match &self.top {
            Some(top) => {
                let slot = top.slot(bits);
                if let Some(steps) = top.steps() {
                    let value = steps.lookup(slot.node(), bits).or_else(|| slot.value());
                    return (0, bits, value.or_else(|| top.shorter(bits).or(self.default)));
                }
                let value = slot.value().or_else(|| top.shorter(bits).or(self.default));
                (slot.node(), bits.skip(top.bits()), value)
            }
            None => (self.node, bits, self.default),
        }
    }
}

struct Batches<'a, A, V> {
    lpm: &'a Lpm<V>,
    keys: &'a [(u32, A)],
    found: &'a mut [Option<V>],
}

impl<A: Address, V: Copy + Default> Work for Batches<'_, A, V> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let mut waiting = self.keys;
        let (first, ahead) = waiting.split_at(waiting.len().min(AHEAD));
        first.iter().for_each(|key| self.lpm.prefetch(key));
        let mut ahead = ahead.iter();
        for found in self.found.chunks_mut(BATCH) {
            let (keys, next) = waiting.split_at(waiting.len().min(found.len()));
            match self.lpm.stepped(keys) {
                Some((root, top, steps)) => Waiting { root, top, steps, keys, found }.step(&mut ahead),
                None => batch(self.lpm, keys, &mut ahead, found),
            }
            waiting = next;
        }
    }
}

/// At most [`BATCH`] look-ups in one table that has steps.
struct Waiting<'a, A, V> {
    root: &'a Root<V>,
    top: &'a Top<V>,
    steps: &'a Steps<V>,
    keys: &'a [(u32, A)],
    found: &'a mut [Option<V>],
}

impl<A: Address, V: Copy + Default> Waiting<'_, A, V> {
    /// In passes, each of which has fetched what the next reads; the first fetches for those that are `ahead`.
    #[inline(always)]
    fn step(self, ahead: &mut Iter<'_, (u32, A)>) {
        let Waiting { root, top, steps, keys, found } = self;
        // Those that go on, and where.
        let mut on = [(Place::default(), 0u8); BATCH];
        let mut left = 0;
        for (number, ((_, address), found)) in keys.iter().zip(found.iter_mut()).enumerate() {
            if let Some((_, address)) = ahead.next() {
                top.prefetch(address.bits());
            }
            let bits = address.bits();
            let slot = top.slot(bits);
            // Not by a closure: it is called, with its surroundings in memory, for all of them.
            *found = match slot.value() {
                Some(value) => Some(value),
                None => shorter(root, top, bits),
            };
            // By a branch: in most tables nearly all go on, or nearly none.
            if slot.node() != 0 {
                let place = steps.place(slot.node(), bits);
                steps.prefetch(place);
                on[left % BATCH] = (place, number as u8);
                left += 1;
            }
        }
        for (place, number) in &on[..left] {
            if let Some(value) = steps.value(*place) {
                found[usize::from(*number)] = Some(value);
            }
        }
    }
}

/// The value of the longest prefix of fewer bits than the slots are for.
#[cold]
#[inline(never)]
fn shorter<B: Bits, V: Copy + Default>(root: &Root<V>, top: &Top<V>, bits: B) -> Option<V> {
    top.shorter(bits).or(root.default)
}

/// At most [`BATCH`] of them: every pass takes all of them one step further and has fetched what their next step reads.
/// The first step reads what was fetched before, and fetches for those that are `ahead`.
#[inline(always)]
fn batch<A: Address, V: Copy + Default>(
    lpm: &Lpm<V>,
    keys: &[(u32, A)],
    ahead: &mut Iter<'_, (u32, A)>,
    found: &mut [Option<V>],
) {
    let nodes = &lpm.trie.nodes;
    // By look-up: the node it has come to, what is left of its bits, and the last node with a prefix of it.
    let mut at = [0u32; BATCH];
    let mut rest = [A::Bits::default(); BATCH];
    let mut last = [(0u32, 0u32); BATCH];
    // Look-ups that go through nodes.
    let mut all = [0u8; BATCH];
    let mut left = 0;
    for (number, ((table, address), found)) in keys.iter().zip(found.iter_mut()).enumerate() {
        if let Some(key) = ahead.next() {
            lpm.prefetch(key);
        }
        *found = None;
        if let Some(root) = lpm.root::<A::Bits>(*table) {
            let slot = number % BATCH;
            (at[slot], rest[slot], *found) = root.start(address.bits());
            nodes.prefetch(at[slot]);
            all[left % BATCH] = number as u8;
            left += usize::from(at[slot] != 0);
        }
    }
    let through = left;
    let mut alive = all;
    while left != 0 {
        let mut still = 0;
        for index in 0..left {
            let number = alive[index % BATCH];
            let slot = usize::from(number) % BATCH;
            let (node, six) = (nodes.get(at[slot]), rest[slot].six());
            let child = node.child(six);
            nodes.prefetch(child);
            last[slot] = if node.matches(six) { (at[slot], six) } else { last[slot] };
            at[slot] = child;
            rest[slot] = rest[slot].skip(STRIDE);
            alive[still % BATCH] = number;
            still += usize::from(child != 0);
        }
        left = still;
    }
    // Those of them that have a value there, and where.
    let mut units = [(0u8, 0u32); BATCH];
    let mut some = 0;
    for number in &all[..through] {
        let (node, six) = last[usize::from(*number) % BATCH];
        let unit = nodes.get(node).longest(six);
        lpm.trie.values.prefetch(unit);
        units[some % BATCH] = (*number, unit);
        some += usize::from(node != 0);
    }
    for (number, unit) in &units[..some] {
        found[usize::from(*number)] = Some(*lpm.trie.values.get(*unit));
    }
}
