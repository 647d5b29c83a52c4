//! Tables of records that outlive the data plane that writes them: in memory that a data plane shares with those after
//! it, for what a kill may not lose.
//!
//! ```text
//!  header │ chains: first record of each │ records: links, check, what stays the same │ check, what changes
//! ```
//!
//! A data plane writes a [`Table`] of its own, which no other process can write, and reads those of its predecessors
//! ([`Predecessor`]). A process that was killed may have torn any record, and one that a guest had taken over may have
//! written anything: a reader copies a record out, compares its checks, and gives back plain words. **What they say is
//! the caller's to check**; no number in the file leads out of it, and no chain is followed for longer than was asked
//! for.
//!
//! A record has a part that stays as it was inserted and one that changes. Each has a check, which is cleared before
//! the part is written and set after it. So a torn change costs what changes, and the record is still there.

#![forbid(unsafe_code)]

mod layout;
mod predecessor;
mod table;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use layout::{Format, NotRead};
pub use predecessor::{Predecessor, Record};
pub use table::{Place, Table};

/// A table could not be made.
#[derive(Debug, Error)]
#[error("memory for records that outlive this process: {0}")]
pub struct NotMade(#[from] std::io::Error);

/// Mixes two words: both halves of their product, combined by XOR.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product >> 64) as u64 ^ product as u64
}

/// What tells a part of a record that is whole: never 0. It tells torn parts, not malice.
#[inline]
fn check(words: &[u64]) -> u64 {
    let sum = words.iter().fold(0x9e37_79b9_7f4a_7c15, |sum, word| mix(sum ^ word, 0xa076_1d64_78bd_642f) ^ sum >> 1);
    sum | 1
}

/// A number for a name, the same in all processes.
pub fn name(bytes: &[u8]) -> u64 {
    let hash =
        bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
    mix(hash ^ 0xe703_7ed1_a0b4_28db, 0xa076_1d64_78bd_642f)
}
