//! The experiments of MTDA (Huang et al., IEEE TSC 17(6), 2024), §V, Figs. 4 to 14.
//!
//! What the paper says of its set-up is in [`setup`] with its section; what it does not say is in [`Constants`], by
//! name. One of them is [calibrated](SWITCH_NS) on one number of the paper's, which then does not count as reproduced;
//! the others were made before anything was compared.
//!
//! An experiment gives a [`Figure`] for a seed. A [`Summary`] of several has medians, intervals and verdicts.

mod balancing;
pub mod calibrate;
mod compare;
mod constants;
mod dynamics;
mod fairness;
mod latency;
mod overhead;
mod run;
pub mod sensitivity;
pub mod setup;
mod starvation;
mod throughput;

pub use crate::figure::{Figure, Margin, Ordering, Point, Stated};
pub use crate::summary::{Compared, LEVEL, Ordered, Pair, Summary, Verdict};
pub use constants::{Constants, ENTRIES, Entry, SWITCH_NS};
pub use run::{Measured, System};

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scope {
    /// The seed of all random numbers.
    pub seed: u64,
    /// Simulated time that counts, nanoseconds; a quarter of it goes before that does not.
    pub span: u64,
    /// What is assumed.
    pub constants: Constants,
}

impl Default for Scope {
    fn default() -> Self {
        Scope { seed: 1, span: 4_000_000, constants: Constants::default() }
    }
}

/// Seeds that a summary is of by default. With fewer than six no interval has 95 %.
pub const SEEDS: u64 = 10;

/// An experiment that can be run.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Runs it with one seed.
    pub run: fn(&Scope) -> Figure,
}

impl Experiment {
    /// Runs it with so many seeds, at least one, from the scope's on; as many at a time as there are CPUs.
    pub fn summary(&self, scope: &Scope, seeds: u64) -> Summary {
        crate::summary::over_seeds(scope.seed, seeds, |seed| (self.run)(&Scope { seed, ..*scope }))
    }
}

/// What the paper's text states of all figures, beside the twin: a Markdown table.
pub fn markdown(scope: &Scope, seeds: u64) -> String {
    let mut text =
        "| figure | what the paper states | paper | twin | difference, or whether it holds |\n|---|---|---|---|---|\n"
            .to_owned();
    for experiment in sensitivity::figures() {
        text.push_str(&experiment.summary(scope, seeds).markdown());
    }
    text
}

/// All of them.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "mtda-fig4", about: "throughput, balanced load (Fig. 4; Fig. 1)", run: throughput::balanced },
    Experiment { name: "mtda-fig5", about: "throughput, unbalanced load (Fig. 5)", run: throughput::unbalanced },
    Experiment { name: "mtda-fig6", about: "mean latency, balanced load (Fig. 6)", run: latency::balanced },
    Experiment { name: "mtda-fig7", about: "mean latency, unbalanced load (Fig. 7)", run: latency::unbalanced },
    Experiment { name: "mtda-fig8", about: "p99 latency of each of four tenants (Fig. 8)", run: latency::tail_of_each },
    Experiment { name: "mtda-fig9", about: "p99 latency of all of four tenants (Fig. 9)", run: latency::tail_of_all },
    Experiment { name: "mtda-fig10", about: "Fair1, equation (1) (Fig. 10)", run: fairness::fair1 },
    Experiment { name: "mtda-fig11", about: "Fair2, equation (3) (Fig. 11)", run: fairness::fair2 },
    Experiment {
        name: "mtda-fig12",
        about: "throughput of three tenants over time (Fig. 12)",
        run: dynamics::stability,
    },
    Experiment { name: "mtda-fig13", about: "p99 latency under a burst (Fig. 13)", run: dynamics::burst },
    Experiment { name: "mtda-fig14", about: "beside partitions tuned by hand (Fig. 14)", run: overhead::overhead },
    Experiment {
        name: "mtda-starvation",
        about: "Algorithm 2 as printed starves tenants",
        run: starvation::starvation,
    },
];

#[cfg(test)]
mod tests;
