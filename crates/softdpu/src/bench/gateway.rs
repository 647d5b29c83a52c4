//! `softdpu bench gateway`: losses and round trips with the flow tier and without.

use clap::{Args, ValueEnum};
use softdpu_bench::gateway::{self, Between, Plan};

use crate::output::print;

use super::{print_json, this_program};

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
    /// CPU of both ends
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    client_cpu: usize,
    /// CPU of softdpu
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    server_cpu: usize,
    /// Print one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Ends {
    Guests,
    Sites,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Gateway) -> Result<(), String> {
    let Gateway { packets, probe, flows, client_cpu, server_cpu, .. } = *options;
    if packets == 0 || probe == 0 || flows == 0 {
        return Err("--packets, --probe and --flows have to be at least 1".to_owned());
    }
    let between = match options.between {
        Ends::Guests => Between::Guests,
        Ends::Sites => Between::Sites,
    };
    let plan = Plan { program: this_program()?, between, packets, flows, probe, client_cpu, server_cpu };
    let report = gateway::run(&plan, |step| eprintln!("{step}")).map_err(|error| error.to_string())?;
    if options.json {
        return print_json(|to| report.write_json(to));
    }
    print(&report.table())
}
