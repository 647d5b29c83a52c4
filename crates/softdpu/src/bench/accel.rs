//! `softdpu bench accel`: what accelerators do on one core, and how tenants share one.

use clap::Args;
use softdpu_bench::accel::{self, Plan, tenants};

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
    /// Instead: N tenants that share one engine, the first of which floods it, first come, first served and by weight
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=1024), conflicts_with_all = ["case", "no_peers"])]
    tenants: Option<u16>,
    /// With --tenants: requests of each that does not flood, at a time
    #[arg(long, value_name = "D", default_value_t = 1, requires = "tenants")]
    depth: usize,
    /// Print one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Accel) -> Result<(), String> {
    let progress = |what: &str| eprintln!("softdpu bench: {what}");
    if let Some(tenants) = options.tenants {
        let (rounds, length) = (options.rounds, seconds(options.seconds)?);
        let plan = tenants::Plan { tenants, depth: options.depth, rounds, length, cpu: options.cpu };
        let report = tenants::run(&plan, progress)?;
        return if options.json { print_json(|to| report.write_json(to)) } else { print(&report.table()) };
    }
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
