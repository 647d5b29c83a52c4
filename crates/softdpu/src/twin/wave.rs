//! `softdpu twin wave`: what Wave's text states of thread scheduling and memory, beside the twin.

use clap::Args;
use softdpu_twin::mtda::SEEDS;
use softdpu_twin::wave::{self, Scope};

use super::print;

/// `softdpu twin wave`
#[derive(Debug, Args)]
pub struct Wave {
    /// The first seed of all random numbers: the same seeds, the same figures
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many seeds: figures are medians of them, with intervals
    #[arg(long, value_name = "N", default_value_t = SEEDS, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    seeds: u64,
    /// Simulated time that counts, milliseconds, for each seed; ten times that for tails
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    span: u64,
    /// Print one JSON object a line, with every figure, instead of a Markdown table
    #[arg(long, conflicts_with = "all")]
    json: bool,
    /// Print every figure and every assumption as text instead of a Markdown table
    #[arg(long)]
    all: bool,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Wave) -> Result<(), String> {
    let scope = Scope { seed: options.seed, span: options.span * 1_000_000, ..Scope::default() };
    let summaries = || wave::summaries(&scope, options.seeds);
    print(&match (options.json, options.all) {
        (true, _) => summaries().iter().map(|summary| summary.json()).collect::<String>(),
        (_, true) => summaries().iter().map(|summary| summary.table() + "\n").collect::<String>(),
        _ => wave::markdown(&scope, options.seeds),
    })
}
