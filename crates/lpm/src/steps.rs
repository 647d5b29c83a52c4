//! What follows the first 24 bits of an IPv4 address in a large table: the last eight in one step, as the runs of
//! addresses that have the same longest prefix there (the idea of Degermark, Brodnik, Carlsson, Pink: "Small Forwarding
//! Tables for Fast Routing Lookups", 1997; counted as in Asai, Ohara: "Poptrie", 2015).
//!
//! ```text
//!   slot of 24 bits ─► one of 1, 2, 4 … 32 lines, by the next bits ─► where runs begin there, and the value of each
//! ```
//!
//! A block has as many lines as it takes for each to hold the runs of its places, so that a look-up reads one, and
//! where that is, is known before it has come. A prefix is in one block, which is drawn anew from the trie when one of
//! its prefixes changes.

use crate::bits::Bits;
use crate::node::STRIDE;
use crate::pool::Pool;
use crate::trie::Trie;

/// Places that a block decides between.
const PLACES: usize = 256;
/// Bits before the step.
const BEFORE: u32 = 24;
/// Level of the trie's nodes that begin there.
const LEVEL: usize = (BEFORE / STRIDE) as usize;
/// What comes behind the last slot that is to be filled.
const END: u32 = 1 << BEFORE;
/// Runs that a line has values for: with values of four bytes it is a cache line.
const RUNS: usize = 13;
/// Runs of a line with more places than a word has bits: one begins with the line, the others' places are bytes of
/// the word.
const FEW: usize = 9;
/// Lines of a block, as powers of two: at most 32, of 8 places each: their runs always fit.
const MOST: u32 = 5;
/// Bits of a block's number that say how many lines it has.
const LINES_BITS: u32 = 3;
/// Most lines: a [`slot`](super::top) keeps 27 bits of a number.
const MOST_LINES: usize = 1 << 24;

/// The runs of some places. The default has one, with nothing.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct StepLine<V> {
    /// Of at most 64 places, a bit for each but the first where a run begins. Of more, a byte for each run but the
    /// first: the place before its own, and 255 where there is none.
    begins: u64,
    /// By run: whether its longest prefix is one of more than 24 bits.
    is_there: u32,
    values: [V; RUNS],
}

const _: () = assert!(size_of::<StepLine<u32>>() == 64, "a look-up reads one cache line");

/// The lowest bit of each 16.
const LANES: u64 = 0x0001_0001_0001_0001;

impl<V: Copy> StepLine<V> {
    /// The value at `place`; the last of the line's places is `last`.
    #[inline(always)]
    fn value(&self, place: u32, last: u32) -> Option<V> {
        let by_bit = (self.begins << (!place & 63)).count_ones();
        // In sixteen bits for each byte: bit 8 is set where the byte is less than the place.
        let reached = LANES * u64::from(place + 255);
        let (even, odd) = (self.begins & (LANES * 255), (self.begins >> 8) & (LANES * 255));
        let (even, odd) = ((reached - even) & (LANES << 8), (reached - odd) & (LANES << 8));
        let by_byte = (even | (odd << 1)).count_ones();
        // Not by a branch: it could not be predicted.
        let are_many = u32::from(last < 64).wrapping_sub(1);
        let run = (by_byte & are_many) | (by_bit & !are_many);
        let value = *self.values.get(run as usize)?;
        (self.is_there >> run & 1 == 1).then_some(value)
    }
}

/// Where an address is decided: a line, its place there, and how many places that has, less one.
#[derive(Clone, Copy, Debug, Default)]
pub struct Place {
    line: u32,
    place: u8,
    last: u8,
}

/// The steps of one table.
#[derive(Clone, Debug)]
pub struct Steps<V> {
    /// Line 0 has nothing.
    lines: Pool<StepLine<V>>,
    /// Slots before it are filled.
    filled: u32,
    /// There was no room: they are never whole.
    is_full: bool,
}

/// What a node is drawn from: by place, which of the prefixes is the longest, and what is behind it.
struct Drawing<V> {
    values: [V; PLACES],
    /// Numbers of the prefixes, 0 for none.
    prefixes: [u16; PLACES],
    last: u16,
}

impl<V: Copy + Default> Drawing<V> {
    fn new() -> Drawing<V> {
        Drawing { values: [V::default(); PLACES], prefixes: [0; PLACES], last: 0 }
    }

    /// A prefix has `count` places from `from` on. Shorter ones come first.
    fn paint(&mut self, from: u32, count: u32, value: V) {
        self.last += 1;
        let places = from as usize..(from + count) as usize;
        self.values[places.clone()].fill(value);
        self.prefixes[places].fill(self.last);
    }

    /// The line that has the places from `from` on, `places` of them; None: they have too many runs for one.
    fn line(&self, from: usize, places: usize) -> Option<StepLine<V>> {
        let are_bits = places <= 64;
        let mut line = StepLine { begins: if are_bits { 0 } else { u64::MAX }, ..StepLine::default() };
        let (mut runs, mut last) = (0, None);
        for place in 0..places {
            let prefix = self.prefixes[from + place];
            if last == Some(prefix) {
                continue;
            }
            last = Some(prefix);
            if runs == if are_bits { RUNS } else { FEW } {
                return None;
            }
            match place.checked_sub(1) {
                None => {}
                Some(_) if are_bits => line.begins |= 1 << place,
                Some(before) => line.begins ^= (before as u64 ^ 0xff) << (8 * (runs - 1)),
            }
            line.is_there |= u32::from(prefix != 0) << runs;
            line.values[runs] = self.values[from + place];
            runs += 1;
        }
        Some(line)
    }

    /// All lines, as few as there can be: how many, as a power of two.
    fn lines(&self, lines: &mut [StepLine<V>; 1 << MOST]) -> u32 {
        (0..MOST).find(|power| self.fits(*power, lines)).unwrap_or_else(|| {
            self.fits(MOST, lines);
            MOST
        })
    }

    /// Whether 2^`power` lines hold the runs: they are in `lines` then.
    fn fits(&self, power: u32, lines: &mut [StepLine<V>; 1 << MOST]) -> bool {
        let places = PLACES >> power;
        lines[..1 << power]
            .iter_mut()
            .enumerate()
            .all(|(number, line)| self.line(number * places, places).map(|drawn| *line = drawn).is_some())
    }
}

impl<V: Copy + Default> Steps<V> {
    /// Steps of nothing yet, for a table among `routes` routes. None where there is not that much memory.
    pub fn new(routes: usize) -> Option<Steps<V>> {
        // A prefix alone takes a line; of those that lie close together, a few take 32. Where that is all there is,
        // there may be no room.
        let mut lines = Pool::new(routes.saturating_mul(4).saturating_add(PLACES).min(MOST_LINES))?;
        lines.put(StepLine::default())?;
        Some(Steps { lines, filled: 0, is_full: false })
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
        self.lines.bytes()
    }

    /// Where the address `bits` is decided, behind a slot that leads to `block`, 0 for none.
    #[inline(always)]
    pub fn place<B: Bits>(&self, block: u32, bits: B) -> Place {
        let (power, place) = (block & ((1 << LINES_BITS) - 1), bits.first(32) & 0xff);
        let last = (PLACES as u32 - 1) >> power;
        let line = (block >> LINES_BITS) + ((place << power) >> 8);
        Place { line, place: (place & last) as u8, last: last as u8 }
    }

    /// Has the line fetched into the cache.
    #[inline(always)]
    pub fn prefetch(&self, place: Place) {
        self.lines.prefetch(place.line);
    }

    /// The value of the longest prefix of more than 24 bits there.
    #[inline(always)]
    pub fn value(&self, place: Place) -> Option<V> {
        self.lines.get(place.line).value(place.place.into(), place.last.into())
    }

    /// The value of the longest prefix of `bits` among those of more than 24 bits; `block` is what their slot leads to.
    #[inline]
    pub fn lookup<B: Bits>(&self, block: u32, bits: B) -> Option<V> {
        if block == 0 { None } else { self.value(self.place(block, bits)) }
    }

    /// Fills the next part: as many slots as a node of the trie leads on from, or one that leads on. Gives that slot,
    /// and the block that it leads to from now on.
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

    /// A prefix of more than 24 bits has come, gone or got another value. `before` is the block that its slot leads to;
    /// gives the one that it leads to from now on.
    pub fn changed<B: Bits>(&mut self, trie: &Trie<V>, root: u32, bits: B, before: u32) -> u32 {
        let is_filled = bits.first(BEFORE) < self.filled && !self.is_full;
        if is_filled { self.draw(trie, root, bits, before) } else { before }
    }

    /// Draws the block of the slot of `bits` anew, which was `before`.
    fn draw<B: Bits>(&mut self, trie: &Trie<V>, root: u32, bits: B, before: u32) -> u32 {
        let mut drawing = Drawing::new();
        let node = trie.nodes.get(trie.node_at(root, bits, LEVEL));
        for (six, length, unit) in node.prefixes() {
            drawing.paint(six << 2, 1 << (8 - length), *trie.values.get(unit));
        }
        for (six, child) in node.child_units() {
            for (rest, length, unit) in trie.nodes.get(child).prefixes().filter(|(_, length, _)| *length <= 2) {
                drawing.paint(six << 2 | rest >> 4, 1 << (2 - length), *trie.values.get(unit));
            }
        }
        self.keep(before, &drawing)
    }

    /// Makes what was drawn the block `before`, or a new one. Its number and how many lines it has, 0 where there is
    /// none.
    fn keep(&mut self, before: u32, drawing: &Drawing<V>) -> u32 {
        if before != 0 {
            self.lines.give_list(before >> LINES_BITS, 1 << (before & ((1 << LINES_BITS) - 1)));
        }
        if drawing.last == 0 {
            return 0;
        }
        let mut lines = [StepLine::default(); 1 << MOST];
        let power = drawing.lines(&mut lines);
        match self.lines.put_list(&lines[..1 << power]) {
            Some(first) => first << LINES_BITS | power,
            None => {
                self.is_full = true;
                0
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Prefixes that begin at some place and have some length, shorter ones first, and what they are drawn as.
    fn drawn(prefixes: &[(u32, u32)]) -> Drawing<u32> {
        let mut drawing = Drawing::new();
        for (value, &(place, length)) in prefixes.iter().enumerate() {
            let count = 1 << (8 - length);
            drawing.paint(place & !(count - 1), count, value as u32);
        }
        drawing
    }

    /// How many lines they take, as a power of two; every place has the value of the longest of those that contain it.
    fn lines_of(mut prefixes: Vec<(u32, u32)>) -> u32 {
        prefixes.sort_by_key(|(_, length)| *length);
        let mut steps = Steps::new(1000).expect("room");
        let block = steps.keep(0, &drawn(&prefixes));
        for place in 0..PLACES as u32 {
            let longest = prefixes.iter().rposition(|(from, length)| (from ^ place) >> (8 - length) == 0);
            let bits = u64::from_first(0x0a00_0000 | place, 32);
            assert_eq!(steps.lookup(block, bits), longest.map(|value| value as u32), "{place} of {prefixes:?}");
        }
        block & ((1 << LINES_BITS) - 1)
    }

    #[test]
    fn as_many_lines_as_the_runs_take_and_no_more() {
        let hosts = |count: u32, apart: u32| (0..count).map(|at| (1 + at * apart, 8)).collect();
        assert_eq!(lines_of(vec![(0, 1), (255, 8)]), 0);
        assert_eq!(lines_of(hosts(4, 60)), 0, "nine runs");
        assert_eq!(lines_of(hosts(5, 50)), 1, "eleven");
        assert_eq!(lines_of(hosts(12, 20)), 2, "up to nine in 64 places");
        assert_eq!(lines_of(hosts(24, 10)), 3, "up to fifteen in 64 places, thirteen fit");
        assert_eq!(lines_of(hosts(60, 4)), 4);
        assert_eq!(lines_of(hosts(255, 1)), 5);
    }

    #[test]
    fn every_place_has_its_longest_prefix_however_many_there_are() {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % below) as u32
        };
        let mut seen = [0; MOST as usize + 1];
        for round in 0..2000 {
            let count = 1 + random(1 + round % 150);
            // Short ones among them, or addresses alone.
            let shortest = if round < 1000 { 1 } else { 8 };
            let prefixes = (0..count).map(|_| (random(256), shortest + random(9 - u64::from(shortest)))).collect();
            seen[lines_of(prefixes) as usize] += 1;
        }
        assert!(seen.iter().all(|seen| *seen > 10), "blocks of all sizes: {seen:?}");
    }

    #[test]
    fn what_changes_takes_the_room_that_it_had_before() {
        let mut steps = Steps::new(1000).expect("room");
        let mut block = 0;
        for round in 0..100_000 {
            let hosts: Vec<_> = (0..round * 7 % 200).map(|at| (at, 8)).collect();
            block = steps.keep(block, &drawn(&hosts));
        }
        assert!(!steps.is_full() && steps.lines.used() <= 1 + (1 << MOST), "{} lines", steps.lines.used());
        assert_eq!(steps.keep(block, &Drawing::new()), 0);
        assert_eq!(steps.lines.used(), 1);
    }
}
