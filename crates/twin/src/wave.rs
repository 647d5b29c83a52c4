//! The thread scheduling experiments of Wave (Humphries et al., ASPLOS '25): Tables 2 and 3, §7.2.2, §7.2.3, and the
//! memory of §7.4.
//!
//! ```text
//!  host cores (machine)  ── what a message takes, what a decision takes (costs) ──▶  agent (machine)
//!    threads, requests        softdpu's own queues over the link model                 softdpu's own policies
//! ```
//!
//! What an access takes is the paper's Table 2. How many accesses there are is counted by running the queues of
//! [`softdpu_offload`] over its link model; nothing is fitted there. What the paper does not say is in [`Constants`].
//! One of them is [calibrated](KERNEL_NS).

mod costs;
mod machine;
mod memory;
mod tables;

pub use costs::{Costs, Placement};
pub use machine::{Load, Machine, Measured, Scenario};
pub use tables::{EXPERIMENTS, Experiment};

use crate::summary::Summary;

/// **Calibrated**, the only number here that was chosen by a result: what the kernel of the host does for a context
/// switch, beside queues, nanoseconds. With it a switch with a prestaged decision takes the on-host scheduler 2,805 ns,
/// the middle of what Table 3 states, which therefore does not count as reproduced.
pub const KERNEL_NS: u64 = 2_790;

/// What the paper does not say, with the values that are assumed, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Constants {
    /// See [`KERNEL_NS`].
    pub kernel: u64,
    /// A policy takes in a message, or decides. Assumed as for MTDA.
    pub policy: u64,
    /// A line that another core of the same machine wrote. Assumed.
    pub coherent: u64,
    /// An agent that finds a decision not taken looks again after this, and interrupts. Assumed.
    pub look_again: u64,
}

impl Default for Constants {
    fn default() -> Self {
        Constants { kernel: KERNEL_NS, policy: 100, coherent: 100, look_again: 5_000 }
    }
}

/// How much is simulated.
#[derive(Clone, Copy, Debug)]
pub struct Scope {
    /// The first seed.
    pub seed: u64,
    /// Simulated time that counts, nanoseconds; a quarter of it goes before that does not.
    pub span: u64,
    /// What is assumed.
    pub constants: Constants,
}

impl Default for Scope {
    fn default() -> Self {
        Scope { seed: 1, span: 20_000_000, constants: Constants::default() }
    }
}

/// All experiments, with so many seeds each.
pub fn summaries(scope: &Scope, seeds: u64) -> Vec<Summary> {
    EXPERIMENTS.iter().map(|experiment| experiment.summary(scope, seeds)).collect()
}

/// What the paper states, beside the twin: a Markdown table.
pub fn markdown(scope: &Scope, seeds: u64) -> String {
    let heading =
        "| table | what the paper states | paper | twin | difference, or whether it holds |\n|---|---|---|---|---|\n";
    heading.to_owned() + &summaries(scope, seeds).iter().map(Summary::markdown).collect::<String>()
}

#[cfg(test)]
mod tests;
