//! `softdpu bench vpc`: the gateway's tables and tiers in memory, on one core.

use clap::Args;
use softdpu_bench::vpc::{self, Plan};

use super::{OneCpu, seconds};

/// `softdpu bench vpc`
#[derive(Debug, Args)]
pub struct Vpc {
    /// Parts of the gateway, all unless some are named
    #[arg(long, value_name = "TOPIC", value_delimiter = ',')]
    topic: Vec<String>,
    /// Length of one measurement
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    #[command(flatten)]
    cases: OneCpu,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Vpc) -> Result<(), String> {
    let OneCpu { case, rounds, cpu, no_peers, output } = &options.cases;
    let plan = Plan {
        topics: options.topic.clone(),
        case: case.clone(),
        rounds: *rounds,
        seconds: seconds(options.seconds)?.as_secs_f64(),
        cpu: *cpu,
        peers: !no_peers,
    };
    let report = vpc::run(&plan, |case| eprintln!("softdpu bench: {case}"))?;
    output.show(|to| report.write_json(to), || report.table())
}
