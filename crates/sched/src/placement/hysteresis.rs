//! Thresholds that keep work from moving back and forth.

use crate::Nanos;

/// When work moves to another core: only where loads differ enough, and not again soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hysteresis {
    /// By how much the busiest core has to be above the idlest one before work moves, thousandths of a core's time.
    pub imbalance: u32,
    /// For how long work stays where it was moved to.
    pub dwell: Nanos,
    /// Moves at a time.
    pub moves: usize,
}
