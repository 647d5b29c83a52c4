//! `softdpu bench vpc`: the gateway's tables and tiers in memory, on one core.

use clap::Args;
use softdpu_bench::vpc::{self, Plan};

use crate::output::print;

use super::{print_json, seconds};

/// `softdpu bench vpc`
#[derive(Debug, Args)]
pub struct Vpc {
    /// Parts of the gateway, all unless some are named
    #[arg(long, value_name = "TOPIC", value_delimiter = ',')]
    topic: Vec<String>,
    /// Only cases with TEXT in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    case: String,
    /// Length of one measurement
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Measurements of each case
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The CPU
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    cpu: usize,
    /// Leave other people's programs out
    #[arg(long)]
    no_peers: bool,
    /// Print one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Vpc) -> Result<(), String> {
    let plan = Plan {
        topics: options.topic.clone(),
        case: options.case.clone(),
        rounds: options.rounds,
        seconds: seconds(options.seconds)?.as_secs_f64(),
        cpu: options.cpu,
        peers: !options.no_peers,
    };
    let report = vpc::run(&plan, |case| eprintln!("softdpu bench: {case}"))?;
    if options.json { print_json(|to| report.write_json(to)) } else { print(&report.table()) }
}
