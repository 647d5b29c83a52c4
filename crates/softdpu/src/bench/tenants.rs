//! `softdpu bench tenants`: tenants that share a core.

use std::path::PathBuf;

use clap::Args;
use softdpu_bench::front_end::Transfer;
use softdpu_bench::tenants::comparison::{Case, Plan, Rates, measure};

use super::{Turns, print_json, seconds, this_program, with_progress};

/// `softdpu bench tenants`
#[derive(Debug, Args)]
pub struct Tenants {
    /// How many tenants, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    tenants: Vec<usize>,
    /// Schedulers, by their names in a site file; throughput is compared with the last
    #[arg(long, value_delimiter = ',', default_value = "weighted,mtda,mtda-printed,ipipe,fairnic,lognic,fcfs")]
    scheduler: Vec<String>,
    /// Writes instead of reads
    #[arg(long)]
    write: bool,
    /// Requests in flight of each tenant; of one that wants several times as much, several times as many
    #[arg(long, default_value_t = 32)]
    depth: usize,
    #[command(flatten)]
    turns: Turns,
    /// Draw Fair1 and throughput over tenants into FILE.svg
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Tenants) -> Result<(), String> {
    let mut cases = Vec::new();
    for &tenants in &options.tenants {
        if !(1..=1024).contains(&tenants) {
            return Err(format!("--tenants {tenants}: expected 1 to 1024"));
        }
        cases.push(Case { tenants, rates: Rates::Balanced });
        if tenants > 1 {
            cases.push(Case { tenants, rates: Rates::Unbalanced });
        }
    }
    if !(1..=85).contains(&options.depth) {
        return Err(format!("--depth {}: expected 1 to 85, four times of which fit into a ring", options.depth));
    }
    let plan = Plan {
        program: this_program()?,
        schedulers: options.scheduler.clone(),
        cases,
        transfer: if options.write { Transfer::Write } else { Transfer::Read },
        depth: options.depth,
        rounds: options.turns.rounds,
        duration: seconds(options.turns.seconds)?,
        client_cpu: options.turns.client_cpu,
        server_cpu: options.turns.server_cpu,
    };
    let report = with_progress(|progress| measure(&plan, progress))?;
    if let Some(path) = &options.plot {
        report.draw(path).map_err(|error| error.to_string())?;
    }
    if options.turns.json {
        return print_json(|to| report.write_json(to));
    }
    print!("{}", report.table());
    println!(
        "\nclients on CPU {}, data plane on CPU {}; {} rounds of {} s taking turns, medians; requests of 4 KiB, {} in flight \
         for\neach part that a tenant wants (unbalanced: 4, 2, 2, 1 and so on, which are their weights as well); ratio: \
         throughput to the last\nscheduler of a case",
        plan.client_cpu, plan.server_cpu, plan.rounds, options.turns.seconds, plan.depth
    );
    Ok(())
}
