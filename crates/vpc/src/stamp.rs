//! What a flow was computed from, as a word: an object's number with its version (Zephyrus §4.3).

/// Stamps that a flow is compared by, at most.
pub(crate) const SOURCES: usize = 4;

/// Bits of an object's number in a stamp.
const NUMBER_BITS: u32 = 24;
/// Numbers in stamps.
const MOST: usize = 1 << NUMBER_BITS;

/// An object's number with its version. 0 is the stamp of nothing, which never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stamp(u64);

impl Stamp {
    /// Of what is no object: `number` is above all objects'.
    #[inline(always)]
    pub fn new(version: u64, number: u32) -> Stamp {
        Stamp(version << NUMBER_BITS | u64::from(number))
    }

    #[inline(always)]
    pub fn from_bits(bits: u64) -> Stamp {
        Stamp(bits)
    }

    #[inline(always)]
    pub fn to_bits(self) -> u64 {
        self.0
    }

    /// The number of the build that gave the object its content.
    pub fn version(self) -> u64 {
        self.0 >> NUMBER_BITS
    }

    /// The object's number.
    #[inline(always)]
    pub fn number(self) -> usize {
        self.0 as usize & (MOST - 1)
    }
}
