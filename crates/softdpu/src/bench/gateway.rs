//! `softdpu bench gateway`: losses and round trips with the flow tier and without.

use clap::{Args, ValueEnum};
use softdpu_bench::gateway::{self, Between, Plan};

use super::{Cpus, Form, this_program};

/// `softdpu bench gateway`
#[derive(Debug, Args)]
pub struct Gateway {
    /// What the frames go between: two guests, or two sites beyond the underlay, which is a veth pair in a network
    /// namespace that is made for it and takes root
    #[arg(long, value_enum, default_value = "guests")]
    between: Ends,
    /// Frames of a measurement
    #[arg(long, default_value_t = 10_000_000)]
    packets: u64,
    /// Frames of each step of the search for the highest rate without losses
    #[arg(long, default_value_t = 200_000)]
    probe: u64,
    /// UDP flows the frames belong to
    #[arg(long, default_value_t = 64)]
    flows: u16,
    #[command(flatten)]
    cpus: Cpus,
    #[command(flatten)]
    output: Form,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Ends {
    Guests,
    Sites,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Gateway) -> Result<(), String> {
    let Gateway { packets, probe, flows, cpus: Cpus { client_cpu, server_cpu }, output, .. } = *options;
    if packets == 0 || probe == 0 || flows == 0 {
        return Err("--packets, --probe and --flows have to be at least 1".to_owned());
    }
    let between = match options.between {
        Ends::Guests => Between::Guests,
        Ends::Sites => Between::Sites,
    };
    let plan = Plan { program: this_program()?, between, packets, flows, probe, client_cpu, server_cpu };
    let report = gateway::run(&plan, |step| eprintln!("{step}")).map_err(|error| error.to_string())?;
    output.show(|to| report.write_json(to), || report.table())
}
