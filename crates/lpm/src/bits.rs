//! Addresses as rows of bits, first bit first.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::node::STRIDE;

/// An address of a known family.
pub trait Address: Copy + Into<IpAddr> {
    /// Its bits.
    #[doc(hidden)]
    type Bits: Bits;

    /// Its bits.
    #[doc(hidden)]
    fn bits(self) -> Self::Bits;
}

/// The bits of an address.
#[doc(hidden)]
pub trait Bits: Copy + Default {
    /// Number of the family: a table has one trie for each.
    const FAMILY: usize;

    /// Of the address with these bits cut off, the first [`STRIDE`]; zeros behind its end.
    fn six(self) -> u32;

    /// Without the first `count`, fewer than it has.
    fn skip(self, count: u32) -> Self;

    /// The first `count`, 1 to 32 of them.
    fn first(self, count: u32) -> u32;

    /// The bits `first`, of which there are `count` (1 to 32), and 0 behind them.
    fn from_first(first: u32, count: u32) -> Self;
}

/// Left-aligned, so that one shift suffices whatever is asked for.
impl Bits for u64 {
    const FAMILY: usize = 0;

    #[inline(always)]
    fn six(self) -> u32 {
        (self >> (64 - STRIDE)) as u32
    }

    #[inline(always)]
    fn skip(self, count: u32) -> u64 {
        self << count
    }

    #[inline(always)]
    fn first(self, count: u32) -> u32 {
        (self >> (64 - count)) as u32
    }

    fn from_first(first: u32, count: u32) -> u64 {
        u64::from(first) << (64 - count)
    }
}

impl Bits for u128 {
    const FAMILY: usize = 1;

    #[inline(always)]
    fn six(self) -> u32 {
        (self >> (128 - STRIDE)) as u32
    }

    #[inline(always)]
    fn skip(self, count: u32) -> u128 {
        self << count
    }

    #[inline(always)]
    fn first(self, count: u32) -> u32 {
        ((self >> 64) as u64).first(count)
    }

    fn from_first(first: u32, count: u32) -> u128 {
        u128::from(first) << (128 - count)
    }
}

impl Address for Ipv4Addr {
    type Bits = u64;

    #[inline(always)]
    fn bits(self) -> u64 {
        u64::from(self.to_bits()) << 32
    }
}

impl Address for Ipv6Addr {
    type Bits = u128;

    #[inline(always)]
    fn bits(self) -> u128 {
        self.to_bits()
    }
}
