//! The first 18 or 24 bits of a large table at once: an array that stands for the first levels of its trie, which stays
//! what it is and answers for a table without one.
//!
//! ```text
//!   bits   8                    18     longest prefix of   1 to 8    9 to 18               and the node that goes on
//!          8         16         24                         1 to 8    9 to 16   17 to 24    there
//! ```
//!
//! Behind 24 bits of IPv4 it is not the trie that goes on, but [`steps`](super::steps).
//!
//! Several arrays, so that no prefix is spread over more than 512 slots. An array is filled a part with every change of
//! its table and is used when it is whole: no single change pays for it.

use softdpu_sys::{pages, prefetch};

use crate::bits::Bits;
use crate::node::STRIDE;
use crate::steps::Steps;
use crate::trie::Trie;

/// Slots that one node has in the last array.
const SLOTS: usize = 1 << STRIDE;
/// Bits of a slot's word that are a length, at most 24.
const LENGTH_BITS: u32 = 5;

/// How many bits an array decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Size {
    /// 18 bits, three levels.
    Large,
    /// 24 bits, four levels: of an Internet's IPv4 routes nearly all.
    Huge,
}

impl Size {
    /// What a table of `routes` has, that has `now` so far.
    pub fn of(routes: usize, now: Option<Size>) -> Option<Size> {
        // It goes at half of what it comes at, so that no sequence of changes makes it come and go.
        let stays = |size: Size| routes >= size.routes() || (now >= Some(size) && routes >= size.routes() / 2);
        [Size::Huge, Size::Large].into_iter().find(|size| stays(*size))
    }

    /// Routes that it takes to be worth 2 or 128 MiB (with values of four bytes): 128 and 512 bytes for each.
    const fn routes(self) -> usize {
        match self {
            Size::Large => 1 << 14,
            Size::Huge => 1 << 18,
        }
    }

    const fn tiers(self) -> &'static [u32] {
        match self {
            Size::Large => &[8, 18],
            Size::Huge => &[8, 16, 24],
        }
    }
}

/// The value of the longest prefix of so many bits, and a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct Slot<V> {
    /// The node's unit, and behind it the prefix's length, 0 where there is none.
    word: u32,
    value: V,
}

impl<V: Copy> Slot<V> {
    pub fn new(node: u32, length: u32, value: V) -> Slot<V> {
        Slot { word: node << LENGTH_BITS | length, value }
    }

    pub fn set_node(&mut self, node: u32) {
        self.word = node << LENGTH_BITS | self.length();
    }

    /// The node's unit, 0 where there is none.
    #[inline(always)]
    pub fn node(&self) -> u32 {
        self.word >> LENGTH_BITS
    }

    #[inline(always)]
    fn length(&self) -> u32 {
        self.word & ((1 << LENGTH_BITS) - 1)
    }

    /// The prefix's value, if there is one.
    #[inline(always)]
    pub fn value(&self) -> Option<V> {
        (self.length() != 0).then_some(self.value)
    }
}

/// The arrays.
#[derive(Debug)]
pub struct Top<V> {
    size: Size,
    bits: u32,
    /// The last array as far as it is filled.
    slots: Vec<Slot<V>>,
    /// Those before it, for fewer bits.
    short: Vec<Vec<Slot<V>>>,
    /// What follows them, of IPv4 behind 24 bits.
    steps: Option<Steps<V>>,
}

impl<V: Copy + Default> Top<V> {
    /// Arrays of nothing yet, for a table among `routes` routes. None where there is not that much memory.
    pub fn new<B: Bits>(size: Size, routes: usize) -> Option<Top<V>> {
        let (&bits, short) = size.tiers().split_last()?;
        let room = |bits: u32| {
            let mut slots = Vec::new();
            slots.try_reserve_exact(1 << bits).ok()?;
            pages::prefer_large(&mut slots);
            Some(slots)
        };
        Some(Top {
            size,
            bits,
            slots: room(bits)?,
            short: short.iter().map(|bits| room(*bits)).collect::<Option<_>>()?,
            steps: if size == Size::Huge && B::FAMILY == 0 { Some(Steps::new(routes)?) } else { None },
        })
    }

    pub fn size(&self) -> Size {
        self.size
    }

    /// Bits that it decides.
    #[inline(always)]
    pub fn bits(&self) -> u32 {
        self.bits
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        let arrays: usize = self.short.iter().chain([&self.slots]).map(|slots| size_of_val(&**slots)).sum();
        arrays + self.steps.as_ref().map_or(0, Steps::bytes)
    }

    /// Whether it is filled and can be used.
    pub fn is_whole(&self) -> bool {
        self.is_filled() && self.steps.as_ref().is_none_or(Steps::is_whole)
    }

    /// Whether there was no room for what follows the slots: it is of no use any more.
    pub fn is_full(&self) -> bool {
        self.steps.as_ref().is_some_and(Steps::is_full)
    }

    fn is_filled(&self) -> bool {
        self.slots.len() == 1 << self.bits
    }

    /// What follows the slots, where that is not the trie.
    #[inline(always)]
    pub fn steps(&self) -> Option<&Steps<V>> {
        self.steps.as_ref()
    }

    /// Has the slot of `bits` fetched into the cache.
    #[inline(always)]
    pub fn prefetch<B: Bits>(&self, bits: B) {
        prefetch::read(self.slots.as_ptr().wrapping_add(bits.first(self.bits) as usize));
    }

    /// The slot of `bits`, if it is whole.
    #[inline(always)]
    pub fn slot<B: Bits>(&self, bits: B) -> &Slot<V> {
        &self.slots[bits.first(self.bits) as usize]
    }

    /// The value of the longest prefix of fewer bits than the slots are for.
    #[cold]
    pub fn shorter<B: Bits>(&self, bits: B) -> Option<V> {
        let tiers = self.short.iter().zip(self.size.tiers()).rev();
        tiers.filter_map(|(slots, tier)| slots[bits.first(*tier) as usize].value()).next()
    }

    /// Fills the next part from the trie.
    pub fn fill<B: Bits>(&mut self, trie: &Trie<V>, root: u32) {
        let mut least = 1;
        for (slots, &tier) in self.short.iter_mut().zip(self.size.tiers()) {
            if slots.len() < 1 << tier {
                for _ in 0..SLOTS {
                    let bits = B::from_first(slots.len() as u32, tier);
                    let found = trie.longest_within(root, bits, tier).filter(|(length, _)| *length >= least);
                    let (length, value) = found.unwrap_or_default();
                    slots.push(Slot::new(0, length, value));
                }
                return;
            }
            least = tier + 1;
        }
        if self.is_filled() {
            if let Some(steps) = &mut self.steps
                && let Some((slot, node)) = steps.fill::<B>(trie, root)
            {
                self.slots[slot].set_node(node);
            }
            return;
        }
        let bits = B::from_first(self.slots.len() as u32, self.bits);
        let depth = self.bits - STRIDE;
        let above = trie.longest_within(root, bits, depth).filter(|(length, _)| *length >= least).unwrap_or_default();
        let node = trie.nodes.get(trie.node_at(root, bits, self.level()));
        for six in 0..SLOTS as u32 {
            let (length, value) = match node.longest_within(six, STRIDE) {
                Some(length) if depth + length >= least => (depth + length, *trie.values.get(node.longest(six))),
                _ => above,
            };
            let node = if self.steps.is_some() { 0 } else { node.child(six) };
            self.slots.push(Slot::new(node, length, value));
        }
    }

    /// Level of the nodes with children in the slots.
    fn level(&self) -> usize {
        (self.bits / STRIDE) as usize - 1
    }

    /// The node of `level` on the way along `bits` has got or lost a child.
    pub fn relink<B: Bits>(&mut self, trie: &Trie<V>, root: u32, bits: B, level: usize) {
        if level > self.level() || self.steps.is_some() {
            return;
        }
        let start = bits.first(self.bits) as usize / SLOTS * SLOTS;
        let node = trie.nodes.get(trie.node_at(root, bits, self.level()));
        for (six, slot) in self.slots.iter_mut().skip(start).take(SLOTS).enumerate() {
            *slot = Slot::new(node.child(six as u32), slot.length(), slot.value);
        }
    }

    /// The prefix of the first `length` of `bits` has come, gone or got another value, if it is for the steps.
    pub fn stepped<B: Bits>(&mut self, trie: &Trie<V>, root: u32, bits: B, length: u32) {
        if let Some(steps) = &mut self.steps
            && length > self.bits
            && let Some(slot) = self.slots.get_mut(bits.first(self.bits) as usize)
        {
            slot.set_node(steps.changed(trie, root, bits, slot.node()));
        }
    }

    /// The prefix of the first `length` (at least 1) of `bits` has `value` now.
    pub fn added<B: Bits>(&mut self, bits: B, length: u32, value: V) {
        for slot in self.of(bits, length).1 {
            if slot.length() <= length {
                *slot = Slot::new(slot.node(), length, value);
            }
        }
    }

    /// The prefix of the first `length` (at least 1) of `bits` is no longer in the trie.
    pub fn removed<B: Bits>(&mut self, trie: &Trie<V>, root: u32, bits: B, length: u32) {
        let (least, slots) = self.of(bits, length);
        if slots.is_empty() {
            return;
        }
        let above = trie.longest_within(root, bits, length - 1).filter(|(above, _)| *above >= least);
        let (above, value) = above.unwrap_or_default();
        for slot in slots {
            if slot.length() == length {
                *slot = Slot::new(slot.node(), above, value);
            }
        }
    }

    /// Slots that a prefix is spread over, as far as they are filled, and the least length that prefixes in their array
    /// have.
    fn of<B: Bits>(&mut self, bits: B, length: u32) -> (u32, &mut [Slot<V>]) {
        let mut least = 1;
        for (slots, &tier) in self.short.iter_mut().chain([&mut self.slots]).zip(self.size.tiers()) {
            if length <= tier {
                let start = bits.first(tier) as usize;
                let end = (start + (1 << (tier - length))).min(slots.len());
                return (least, slots.get_mut(start..end).unwrap_or_default());
            }
            least = tier + 1;
        }
        (least, &mut [])
    }
}

impl<V: Clone> Clone for Top<V> {
    /// The copy has room for as much as this one.
    fn clone(&self) -> Top<V> {
        let copy = |from: &Vec<Slot<V>>| {
            let mut slots = Vec::with_capacity(from.capacity());
            pages::prefer_large(&mut slots);
            slots.extend_from_slice(from);
            slots
        };
        let (slots, short) = (copy(&self.slots), self.short.iter().map(copy).collect());
        Top { size: self.size, bits: self.bits, slots, short, steps: self.steps.clone() }
    }
}
