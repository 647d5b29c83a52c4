//! `softdpu bench tenants`: tenants that share a core.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use softdpu_bench::tenants::comparison::{Case, Load, Plan, Rates, TenantsReport, measure};
use softdpu_bench::tenants::decision;
use softdpu_frontend::{Frames, Transfer};
use softdpu_site::MacAddress;

use super::{Frame, Turns, seconds, this_program, with_progress};

/// `softdpu bench tenants`
#[derive(Debug, Args)]
pub struct Tenants {
    /// What is measured: what tenants of a daemon get, or what a scheduler takes to decide
    #[arg(long, value_enum, default_value = "share")]
    topic: Topic,
    /// What tenants do, one case each: requests at disks; frames between two interfaces; every other tenant the one,
    /// the others the other; or frames through real-time analytics, a flow monitor, a router, a firewall
    #[arg(long, value_enum, value_delimiter = ',', default_value = "block")]
    load: Vec<LoadKind>,
    /// Which frames, one case each: 64 bytes; imix, 7 of 64, 4 of 570 and 1 of 1518 bytes in every 12; or IP packets of
    /// 1500 bytes
    #[arg(long, value_enum, value_delimiter = ',', default_value = "64")]
    frame: Vec<Frame>,
    /// How many tenants, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8")]
    tenants: Vec<usize>,
    /// How much they want, one case each where there are several: all alike, or 4, 2, 2, 1 as in MTDA's Table IV
    #[arg(long, value_enum, value_delimiter = ',', default_value = "balanced,unbalanced")]
    rates: Vec<RatesChoice>,
    /// Schedulers, by their names in a site file; throughput is compared with the last
    #[arg(long, value_delimiter = ',', default_value = "weighted,mtda,mtda-printed,ipipe,fairnic,lognic,fcfs")]
    scheduler: Vec<String>,
    /// Writes instead of reads
    #[arg(long)]
    write: bool,
    /// Requests or frames in flight of each tenant; of one that wants several times as much, several times as many
    #[arg(long, default_value_t = 32)]
    depth: usize,
    #[command(flatten)]
    turns: Turns,
    /// Draw throughput, Fair1 and p99 over tenants into FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Topic {
    Share,
    Decision,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LoadKind {
    Block,
    Net,
    Mixed,
    Functions,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum RatesChoice {
    Balanced,
    Unbalanced,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Tenants) -> Result<(), String> {
    if options.topic == Topic::Decision {
        return decide(options);
    }
    let plan = plan(options)?;
    // Known before anything is measured.
    if let Some(path) = &options.plot {
        softdpu_plot::Format::of(path).map_err(|reason| format!("{}: {reason}", path.display()))?;
    }
    let report = with_progress(|progress| measure(&plan, progress))?;
    if let Some(path) = &options.plot {
        report.draw(path).map_err(|error| error.to_string())?;
    }
    options.turns.output.show(|to| report.write_json(to), || text(options, &plan, &report))
}

fn text(options: &Tenants, plan: &Plan, report: &TenantsReport) -> String {
    let mut text = format!(
        "{}\nclients on CPU {}, data plane on CPU {}; {} rounds of {} s taking turns, medians; requests of 4 KiB, {} in flight \
         for\neach part that a tenant wants (unbalanced: 4, 2, 2, 1 and so on, which are their weights as well); mean and p99: \
         of the\ntenants' means and p99; unstdy: deviation of a tenant's rate over twentieths of the time, of its mean; burst: \
         p99 of the\nothers after the first tenant went to eight times its load, over that before; ovrhd: the core's busy time a \
         request,\nbeside that with fcfs; ratio: throughput to the last scheduler of a case\n",
        report.table(),
        plan.client_cpu,
        plan.server_cpu,
        plan.rounds,
        options.turns.seconds,
        plan.depth
    );
    let verdicts = report.verdicts();
    if !verdicts.is_empty() {
        text.push_str("\nweighted:\n");
    }
    for verdict in verdicts {
        text.push_str(&format!("  {verdict}\n"));
    }
    text
}

fn plan(options: &Tenants) -> Result<Plan, String> {
    let mut loads = Vec::new();
    for kind in &options.load {
        for frames in options.frame.iter().map(|frame| Frames::from(*frame)) {
            if frames == Frames::Tso {
                return Err(
                    "--frame 64k: tenants' frames are not cut up on their way; expected 64, imix or 1500".to_owned()
                );
            }
            let load = match kind {
                LoadKind::Block => Load::Block,
                LoadKind::Net => Load::Net(frames),
                LoadKind::Mixed => Load::Mixed(frames),
                LoadKind::Functions => Load::Functions(frames),
            };
            // Disks have no frames.
            if !loads.contains(&load) {
                loads.push(load);
            }
        }
    }
    let mut cases = Vec::new();
    for load in loads {
        for &tenants in &options.tenants {
            if !(1..=1024).contains(&tenants) {
                return Err(format!("--tenants {tenants}: expected 1 to 1024"));
            }
            for (wants, rates) in
                [(RatesChoice::Balanced, Rates::Balanced), (RatesChoice::Unbalanced, Rates::Unbalanced)]
            {
                // One alone wants what it wants.
                if options.rates.contains(&wants) && (tenants > 1 || wants == RatesChoice::Balanced) {
                    cases.push(Case { load, tenants, rates });
                }
            }
        }
    }
    if !(1..=85).contains(&options.depth) {
        return Err(format!("--depth {}: expected 1 to 85, four times of which fit into a ring", options.depth));
    }
    Ok(Plan {
        program: this_program()?,
        gateway: |network, address: Ipv4Addr| MacAddress::derived(network, address.into()).0,
        schedulers: options.scheduler.clone(),
        cases,
        transfer: if options.write { Transfer::Write } else { Transfer::Read },
        depth: options.depth,
        rounds: options.turns.rounds,
        duration: seconds(options.turns.seconds)?,
        client_cpu: options.turns.cpus.client_cpu,
        server_cpu: options.turns.cpus.server_cpu,
    })
}

fn decide(options: &Tenants) -> Result<(), String> {
    let report =
        decision::measure(options.turns.cpus.server_cpu, options.turns.rounds).map_err(|error| error.to_string())?;
    let (cpu, rounds) = (options.turns.cpus.server_cpu, options.turns.rounds);
    let text = || format!("{}\non CPU {cpu}, {rounds} rounds; {}\n", report.table(), report.verdict());
    options.turns.output.show(|to| report.write_json(to), text)
}
