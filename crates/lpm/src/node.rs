//! One node of the trie: six bits of the address, as bitmaps (Eatherton, Varghese, Dittia: "Tree Bitmap", 2004).
//!
//! ```text
//!   short   prefixes that end after 1 to 5 of the six bits: bit 2^length + (the bits)
//!   long    those that end after all six: bit (the bits)
//!   next    where a child goes on
//!   values, children: the lists, in the order of the bits
//! ```
//!
//! A value or child is found by counting the bits before its own. Nothing is copied into children or spread over slots:
//! adding a prefix changes one node.

/// Bits of the address that a node decides.
pub const STRIDE: u32 = 6;

/// A node. The one of all zeros has nothing and leads nowhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Node {
    short: u64,
    long: u64,
    next: u64,
    children: u32,
    values: u32,
}

/// By the six bits of an address: the bits of `short` of all prefixes that contain it.
static SHORTER: [u64; 64] = shorter();

const fn shorter() -> [u64; 64] {
    let mut masks = [0; 64];
    let mut bits = 0;
    while bits < 64 {
        let mut length = 1;
        while length < STRIDE {
            masks[bits] |= 1 << ((1 << length) + (bits >> (STRIDE - length)));
            length += 1;
        }
        bits += 1;
    }
    masks
}

/// The bits below bit `bit` of a word, `bit` < 64.
#[inline(always)]
fn below(bit: u32) -> u64 {
    (1 << bit) - 1
}

/// The bits that are set, lowest first.
fn ones(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

/// The bit of `short` of the first `length` of six `bits`.
#[inline(always)]
fn short_bit(bits: u32, length: u32) -> u32 {
    (1 << length) + (bits >> (STRIDE - length))
}

impl Node {
    /// A node with nothing but a child at `bits`, in block `child`.
    pub fn with_child(bits: u32, child: u32) -> Node {
        Node { next: 1 << bits, children: child, ..Node::default() }
    }

    /// A node with nothing but a value, in block `value`, for the first `length` (1 to 6) of six `bits`.
    pub fn with_value(bits: u32, length: u32, value: u32) -> Node {
        let mut node = Node { values: value, ..Node::default() };
        node.mark(bits, length);
        node
    }

    pub fn is_empty(&self) -> bool {
        self.short | self.long | self.next == 0
    }

    /// The first value's unit.
    pub fn values(&self) -> u32 {
        self.values
    }

    /// How many values it has.
    pub fn value_count(&self) -> usize {
        (self.short.count_ones() + self.long.count_ones()) as usize
    }

    /// The first child's unit.
    pub fn children(&self) -> u32 {
        self.children
    }

    /// How many children it has.
    pub fn child_count(&self) -> usize {
        self.next.count_ones() as usize
    }

    /// Whether there is a prefix of the first `length` of `bits`.
    pub fn has(&self, bits: u32, length: u32) -> bool {
        if length == STRIDE { self.long >> bits & 1 == 1 } else { self.short >> short_bit(bits, length) & 1 == 1 }
    }

    /// Where in the list of values that of the first `length` of `bits` is, or would be.
    pub fn value_rank(&self, bits: u32, length: u32) -> usize {
        if length == STRIDE {
            (self.short.count_ones() + (self.long & below(bits)).count_ones()) as usize
        } else {
            (self.short & below(short_bit(bits, length))).count_ones() as usize
        }
    }

    /// Where in the list of children that of `bits` is, or would be.
    pub fn child_rank(&self, bits: u32) -> usize {
        (self.next & below(bits)).count_ones() as usize
    }

    /// The child's unit, or 0.
    #[inline(always)]
    pub fn child(&self, bits: u32) -> u32 {
        let child = self.children + (self.next & below(bits)).count_ones();
        if self.next >> bits & 1 == 1 { child } else { 0 }
    }

    /// Whether any of its prefixes contains `bits`.
    #[inline(always)]
    pub fn matches(&self, bits: u32) -> bool {
        self.short & SHORTER[(bits & 63) as usize] | self.long >> bits & 1 != 0
    }

    /// The unit of the value of the longest prefix that contains `bits`; there is one.
    #[inline(always)]
    pub fn longest(&self, bits: u32) -> u32 {
        let short = self.short & SHORTER[(bits & 63) as usize];
        let last = 63 - (short | 1).leading_zeros();
        let is_long = self.long >> bits & 1 == 1;
        let before = if is_long { u64::MAX } else { below(last) };
        let behind = if is_long { below(bits) } else { 0 };
        self.values + (self.short & before).count_ones() + (self.long & behind).count_ones()
    }

    /// The longest prefix, of at most `most` bits, that contains `bits`: its length.
    pub fn longest_within(&self, bits: u32, most: u32) -> Option<u32> {
        (1..=most.min(STRIDE)).rev().find(|length| self.has(bits, *length))
    }

    /// Its prefixes in the order of their values, shorter ones first: the six bits, of which those behind the length
    /// are 0, the length, and the value's unit.
    pub fn prefixes(&self) -> impl Iterator<Item = (u32, u32, u32)> + use<> {
        let short = ones(self.short).map(|bit| {
            let length = bit.ilog2();
            ((bit - (1 << length)) << (STRIDE - length), length)
        });
        let all = short.chain(ones(self.long).map(|bits| (bits, STRIDE)));
        all.zip(self.values..).map(|((bits, length), unit)| (bits, length, unit))
    }

    /// Its children: the six bits, and the child's unit.
    pub fn child_units(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        ones(self.next).zip(self.children..)
    }

    fn mark(&mut self, bits: u32, length: u32) {
        if length == STRIDE {
            self.long ^= 1 << bits;
        } else {
            self.short ^= 1 << short_bit(bits, length);
        }
    }

    /// There is (or no longer is) a prefix of the first `length` of `bits`; the list of values is in block `values`.
    pub fn change_value(&mut self, bits: u32, length: u32, values: u32) {
        self.mark(bits, length);
        self.values = values;
    }

    /// There is (or no longer is) a child at `bits`; the list of children is in block `children`.
    pub fn change_child(&mut self, bits: u32, children: u32) {
        self.next ^= 1 << bits;
        self.children = children;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_half_a_cache_line() {
        assert_eq!((size_of::<Node>(), align_of::<Node>()), (32, 32));
    }

    #[test]
    fn the_longest_prefix_is_found_by_counting() {
        let mut node = Node { values: 100, ..Node::default() };
        assert!(!node.matches(0b101_101));
        // In the order of the list: 1*, 10*, 11*, 10110*, 101101.
        for (bits, length) in [(0b100_000, 1), (0b100_000, 2), (0b110_000, 2), (0b101_100, 5), (0b101_101, 6)] {
            node.change_value(bits, length, 100);
        }
        assert_eq!(node.value_count(), 5);
        let longest = |bits| node.matches(bits).then(|| node.longest(bits));
        assert_eq!(longest(0b000_001), None);
        assert_eq!(longest(0b100_000), Some(101));
        assert_eq!(longest(0b111_111), Some(102));
        assert_eq!(longest(0b101_100), Some(103));
        assert_eq!(longest(0b101_101), Some(104));
        assert_eq!(node.longest_within(0b101_101, 5), Some(5));
        assert_eq!(node.longest_within(0b101_101, 4), Some(2));
        assert_eq!(node.value_rank(0b101_101, 6), 4);
        let all: Vec<_> = node.prefixes().map(|(bits, length, unit)| (bits, length, unit - 100)).collect();
        let expected = [(0b100_000, 1, 0), (0b100_000, 2, 1), (0b110_000, 2, 2), (0b101_100, 5, 3), (0b101_101, 6, 4)];
        assert_eq!(all, expected);
    }
}
