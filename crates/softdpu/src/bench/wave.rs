//! `softdpu bench wave`: what the queues of agents cost the host.

use clap::Args;
use softdpu_bench::wave::{self, Plan};

use super::{Form, seconds};

/// `softdpu bench wave`
#[derive(Debug, Args)]
pub struct Wave {
    /// Only cases with TEXT in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    case: String,
    /// Measurements of each case
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Length of one measurement
    #[arg(long, default_value_t = 0.2)]
    seconds: f64,
    /// The CPU
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    cpu: usize,
    #[command(flatten)]
    output: Form,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Wave) -> Result<(), String> {
    let Wave { case, rounds, seconds: length, cpu, output } = options;
    let plan = Plan { case: case.clone(), rounds: *rounds, length: seconds(*length)?, cpu: *cpu };
    let report = wave::run(&plan, |case| eprintln!("softdpu bench: {case}"))?;
    output.show(|to| report.write_json(to), || report.table())
}
