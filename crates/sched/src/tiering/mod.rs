//! Which memory stays in the fast tier, and which goes to the slow one: policies of a memory agent (Wave §4.2, §7.4).
//!
//! Memory is in batches of 256 KiB. The policy says which batches to scan and when; it is told whether a batch was
//! accessed since it was last scanned; once an epoch it says which batches change the tier.
//!
//! [`Sol`] learns for each batch how likely it is accessed, and scans seldom where it is sure. [`Clock`] scans all
//! batches at a fixed rate.

mod clock;
mod random;
mod sol;

pub use clock::Clock;
pub use sol::{Sol, SolTuning};

use crate::Nanos;

/// Bytes of a batch: 64 pages of 4 KiB (Wave §7.4.1).
pub const BATCH_BYTES: u64 = 256 << 10;
/// The shortest time between two scans of a batch (Wave §4.2; the experiment of §7.4 begins with twice that).
pub const LEAST_PERIOD: Nanos = Nanos(300_000_000);
/// The longest.
pub const MOST_PERIOD: Nanos = Nanos(9_600_000_000);
/// Batches move between tiers once in this time: four times the longest period.
pub const EPOCH: Nanos = Nanos(38_400_000_000);

/// A batch of consecutive pages, by its place in the address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId(pub u32);

/// Where a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// Memory.
    #[default]
    Fast,
    /// Swap, a disk, remote memory.
    Slow,
}

/// A batch is to change its tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Migration {
    /// The batch.
    pub batch: BatchId,
    /// Where it is to go.
    pub to: Tier,
}

/// A policy that places batches in tiers. Pure.
pub trait TieringPolicy: Send {
    /// Batches that are to be scanned now; each is expected to be reported by [`scanned`](Self::scanned).
    fn due(&mut self, now: Nanos, batches: &mut Vec<BatchId>);
    /// A batch was scanned: whether any of its pages was accessed since it was scanned before.
    fn scanned(&mut self, now: Nanos, batch: BatchId, was_accessed: bool);
    /// What moves, where an epoch has ended; the host is asked to.
    fn migrate(&mut self, now: Nanos, migrations: &mut Vec<Migration>);
    /// What the host did with a migration: the batch is in this tier. A refused one leaves it where it was.
    fn placed(&mut self, batch: BatchId, tier: Tier);
    /// When [`due`](Self::due) or [`migrate`](Self::migrate) has something next.
    fn deadline(&self) -> Nanos;
}

#[cfg(test)]
mod tests;
