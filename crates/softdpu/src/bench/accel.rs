//! `softdpu bench accel`: what the encryption of volumes does on one core.

use clap::Args;
use softdpu_bench::accel::{self, Plan};

use crate::output::print;

use super::{print_json, seconds};

/// `softdpu bench accel`
#[derive(Debug, Args)]
pub struct Accel {
    /// Only cases with TEXT in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    case: String,
    /// Length of one measurement; openssl's take whole seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Measurements of each case, taking turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The CPU
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    cpu: usize,
    /// Leave openssl out
    #[arg(long)]
    no_peers: bool,
    /// Print one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Accel) -> Result<(), String> {
    let progress = |what: &str| eprintln!("softdpu bench: {what}");
    let plan = Plan {
        case: options.case.clone(),
        rounds: options.rounds,
        length: seconds(options.seconds)?,
        cpu: options.cpu,
        peers: !options.no_peers,
    };
    let report = accel::run(&plan, progress)?;
    if options.json { print_json(|to| report.write_json(to)) } else { print(&report.table()) }
}
