//! What follows the first 24 bits of an IPv4 address in a large table: the last eight in one step, as the runs of addresses that
//! have the same longest prefix there (the idea of Degermark, Brodnik, Carlsson, Pink: "Small Forwarding Tables for Fast Routing
//! Lookups", 1997; counted as in Asai, Ohara: "Poptrie", 2015).
//!
//! ```text
//!   slot of 24 bits ─► node: where runs begin, as a bitmap ─► run: length and value of the longest prefix of 25 to 32 bits
//! ```
//!
//! Two lines, where the trie takes two nodes and a value, and a third node for the last two bits. A prefix is in one node, which is
//! drawn anew from the trie when one of its prefixes changes.

use super::bits::Bits;
use super::node::STRIDE;
use super::pool::Pool;
use super::top::Slot;
use super::trie::Trie;

/// Places that a node decides between.
const PLACES: usize = 256;
/// Bits before the step.
const BEFORE: u32 = 24;
/// Level of the trie's nodes that begin there.
const LEVEL: usize = (BEFORE / STRIDE) as usize;
/// What comes behind the last slot that is to be filled.
const END: u32 = 1 << BEFORE;

/// A node. The default leads to the run that has nothing.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Node {
    /// A bit for each place but the first where a run begins.
    begins: [u64; PLACES / 64],
    /// How many begin in the words before.
    before: [u8; PLACES / 64],
    /// The first run's unit.
    first: u32,
    /// How many there are.
    count: u32,
}

impl Node {
    /// The unit of the run that has `place`.
    #[inline(always)]
    fn run(&self, place: u32) -> u32 {
        let word = (place >> 6) as usize % self.begins.len();
        let begun = (self.begins[word] << (!place & 63)).count_ones();
        self.first + u32::from(self.before[word]) + begun
    }
}

/// The steps of one table.
#[derive(Clone, Debug)]
pub struct Steps<V> {
    nodes: Pool<Node>,
    runs: Pool<Slot<V>>,
    /// Slots before it are filled.
    filled: u32,
    /// There was no room: they are never whole.
    is_full: bool,
}

/// What a node is drawn from: by place, which of the prefixes is the longest, and what is behind it.
struct Drawing<V> {
    slots: [Slot<V>; PLACES],
    /// Numbers of the prefixes, 0 for none.
    prefixes: [u16; PLACES],
    last: u16,
}

impl<V: Copy + Default> Drawing<V> {
    fn new() -> Drawing<V> {
        Drawing { slots: [Slot::default(); PLACES], prefixes: [0; PLACES], last: 0 }
    }

    /// A prefix of `length` bits has `count` places from `from` on. Shorter ones come first.
    fn paint(&mut self, from: u32, count: u32, length: u32, value: V) {
        self.last += 1;
        let places = from as usize..(from + count) as usize;
        self.slots[places.clone()].fill(Slot::new(0, length, value));
        self.prefixes[places].fill(self.last);
    }
}

impl<V: Copy + Default> Steps<V> {
    /// Steps of nothing yet, for a table among `routes` routes. None where there is not that much memory.
    pub fn new(routes: usize) -> Option<Steps<V>> {
        let mut nodes = Pool::new(routes.saturating_add(PLACES))?;
        nodes.put(Node::default())?;
        // A prefix begins two runs at the most, and a node one more; lists have a power of two of units.
        let mut runs = Pool::new(routes.saturating_mul(8).saturating_add(4 * PLACES))?;
        runs.put(Slot::default())?;
        Some(Steps { nodes, runs, filled: 0, is_full: false })
    }

    /// Whether they are filled and can be used.
    pub fn is_whole(&self) -> bool {
        self.filled == END && !self.is_full
    }

    /// Whether there was no room for all of them.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Bytes that they take.
    pub fn bytes(&self) -> usize {
        self.nodes.bytes() + self.runs.bytes()
    }

    #[inline(always)]
    pub fn prefetch_node(&self, node: u32) {
        self.nodes.prefetch(node);
    }

    #[inline(always)]
    pub fn prefetch_run(&self, run: u32) {
        self.runs.prefetch(run);
    }

    /// The unit of the run that has the address `bits` in `node`.
    #[inline(always)]
    pub fn run_of<B: Bits>(&self, node: u32, bits: B) -> u32 {
        self.nodes.get(node).run(bits.first(32) & 0xff)
    }

    /// The value of a run.
    #[inline(always)]
    pub fn value(&self, run: u32) -> Option<V> {
        self.runs.get(run).value()
    }

    /// The value of the longest prefix of `bits` among those of more than 24 bits; `node` is what their slot leads to.
    #[inline]
    pub fn lookup<B: Bits>(&self, node: u32, bits: B) -> Option<V> {
        if node == 0 { None } else { self.value(self.run_of(node, bits)) }
    }

    /// Fills the next part: as many slots as a node of the trie leads on from, or one that leads on. Gives that slot, and the node
    /// that it leads to from now on.
    pub fn fill<B: Bits>(&mut self, trie: &Trie<V>, root: u32) -> Option<(usize, u32)> {
        const SLOTS: u32 = 1 << STRIDE;
        if self.filled >= END || self.is_full {
            return None;
        }
        let (first, done) = (self.filled & !(SLOTS - 1), self.filled & (SLOTS - 1));
        let above = trie.node_at(root, B::from_first(first, BEFORE), LEVEL - 1);
        let next = trie.nodes.get(above).child_units().find(|(six, _)| *six >= done);
        let Some((six, _)) = next else {
            self.filled = first + SLOTS;
            return None;
        };
        let slot = first | six;
        self.filled = slot + 1;
        Some((slot as usize, self.draw(trie, root, B::from_first(slot, BEFORE), 0)))
    }

    /// A prefix of more than 24 bits has come, gone or got another value. `before` is the node that its slot leads to; gives the one
    /// that it leads to from now on.
    pub fn changed<B: Bits>(&mut self, trie: &Trie<V>, root: u32, bits: B, before: u32) -> u32 {
        let is_filled = bits.first(BEFORE) < self.filled && !self.is_full;
        if is_filled { self.draw(trie, root, bits, before) } else { before }
    }

    /// Draws the node of the slot of `bits` anew, which was `before`.
    fn draw<B: Bits>(&mut self, trie: &Trie<V>, root: u32, bits: B, before: u32) -> u32 {
        let mut drawing = Drawing::new();
        let node = trie.nodes.get(trie.node_at(root, bits, LEVEL));
        for (six, length, unit) in node.prefixes() {
            drawing.paint(six << 2, 1 << (8 - length), BEFORE + length, *trie.values.get(unit));
        }
        for (six, child) in node.child_units() {
            for (rest, length, unit) in trie.nodes.get(child).prefixes().filter(|(_, length, _)| *length <= 2) {
                let length_before = BEFORE + STRIDE;
                drawing.paint(six << 2 | rest >> 4, 1 << (2 - length), length_before + length, *trie.values.get(unit));
            }
        }
        self.keep(before, &drawing)
    }

    /// Makes what was drawn the node `before`, or a new one where that is 0. The number of the node, 0 where there is none.
    fn keep(&mut self, before: u32, drawing: &Drawing<V>) -> u32 {
        let old = *self.nodes.get(before);
        if before != 0 {
            self.runs.give_list(old.first, old.count as usize);
        }
        if drawing.last == 0 {
            if before != 0 {
                self.nodes.remove(before, 1, 0);
            }
            return 0;
        }
        let (mut node, mut runs, mut count) = (Node::default(), [Slot::default(); PLACES], 0);
        let mut last = None;
        for (place, (prefix, slot)) in drawing.prefixes.iter().zip(&drawing.slots).enumerate() {
            if place % 64 == 0 {
                // Less the first run, whose bit is not set.
                node.before[place / 64] = (count as u8).saturating_sub(1);
            }
            if last != Some(*prefix) {
                node.begins[place / 64] |= u64::from(place != 0) << (place % 64);
                runs[count] = *slot;
                count += 1;
                last = Some(*prefix);
            }
        }
        let placed = self.runs.put_list(&runs[..count]);
        let number = if before != 0 { Some(before) } else { self.nodes.put(Node::default()) };
        match (placed, number) {
            (Some(first), Some(number)) => {
                (node.first, node.count) = (first, count as u32);
                *self.nodes.get_mut(number) = node;
                number
            }
            _ => {
                self.is_full = true;
                0
            }
        }
    }
}
