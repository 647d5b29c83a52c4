//! `softdpu bench accel`: what the encryption of volumes does on one core.

use clap::Args;
use softdpu_bench::accel::{self, Plan};

use super::{OneCpu, seconds};

/// `softdpu bench accel`
#[derive(Debug, Args)]
pub struct Accel {
    /// Length of one measurement; openssl's take whole seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    #[command(flatten)]
    cases: OneCpu,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Accel) -> Result<(), String> {
    let OneCpu { case, rounds, cpu, no_peers, output } = &options.cases;
    let plan =
        Plan { case: case.clone(), rounds: *rounds, length: seconds(options.seconds)?, cpu: *cpu, peers: !no_peers };
    let report = accel::run(&plan, |case| eprintln!("softdpu bench: {case}"))?;
    output.show(|to| report.write_json(to), || report.table())
}
