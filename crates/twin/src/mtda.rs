//! The experiments of MTDA (Huang et al., IEEE TSC 17(6), 2024), §V, Figs. 4 to 14.
//!
//! What the paper says of its set-up is in [`setup`] with its section; what it does not say is an assumption, named as
//! such and made once, before anything was compared. No value here was chosen by a result.

mod compare;
mod dynamics;
mod fairness;
pub mod figure;
mod latency;
mod overhead;
mod run;
pub mod setup;
mod starvation;
mod throughput;

pub use figure::{Figure, Ordering, Point, Stated};
pub use run::{Measured, System};

/// How much is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// The seed of all random numbers.
    pub seed: u64,
    /// Simulated time that counts, nanoseconds; a quarter of it goes before that does not.
    pub span: u64,
}

impl Default for Scope {
    fn default() -> Self {
        Scope { seed: 1, span: 12_000_000 }
    }
}

/// An experiment that can be run.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Runs it.
    pub run: fn(&Scope) -> Figure,
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
