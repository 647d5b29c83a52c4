//! The one constant that is calibrated: what a switch to another tenant's work takes, on DPDK's total of Fig. 4(c).

use super::run::{self, Case, System};
use super::throughput::EXAMPLE_SIZE;
use super::{Constants, Scope};
use crate::statistics::Estimate;

/// DPDK's total of four balanced tenants, Gbit/s (§V-D: 4.349 + 3.284 + 3.273 + 4.439).
pub const TARGET: f64 = 15.345;
/// What is searched, nanoseconds.
const RANGE: (f64, f64) = (0.0, 20_000.0);
/// The search ends when it is known to so many nanoseconds.
const EXACT: f64 = 5.0;

/// What was found.
#[derive(Clone, Copy, Debug)]
pub struct Calibrated {
    /// The constant, nanoseconds.
    pub switch_ns: f64,
    /// DPDK's total with it, Gbit/s.
    pub total: Estimate,
}

/// DPDK's total over several seeds, Gbit/s.
pub fn total(switch_ns: f64, scope: &Scope, seeds: u64) -> Estimate {
    let constants = Constants { switch_ns, ..scope.constants };
    let case = Case::new(4, true, EXAMPLE_SIZE, &constants);
    let one = |seed| run::run(System::Dpdk, &case, &Scope { seed: scope.seed + seed, ..*scope }).total() / 1e9;
    Estimate::of(&(0..seeds).map(one).collect::<Vec<f64>>())
}

/// Finds the constant by bisection: a dearer switch leaves less throughput.
pub fn calibrate(scope: &Scope, seeds: u64) -> Calibrated {
    let (mut low, mut high) = RANGE;
    while high - low > EXACT {
        let middle = (low + high) / 2.0;
        if total(middle, scope, seeds).median > TARGET {
            low = middle;
        } else {
            high = middle;
        }
    }
    let switch_ns = ((low + high) / 20.0).round() * 10.0;
    Calibrated { switch_ns, total: total(switch_ns, scope, seeds) }
}
