//! `softdpu bench net`: frames from guest to guest and to the underlay, beside a peer.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use softdpu_bench::net::comparison::{self, Plan};
use softdpu_bench::net::report::{self, NetReport, Route};
use softdpu_bench::net::subject::{NetSubject, TESTPMD};
use softdpu_frontend::{Format, Frames};

use super::{Client, Frame, Turns, seconds, this_program, with_progress};

/// `softdpu bench net`
#[derive(Debug, Args)]
pub struct Net {
    /// What is measured: `softdpu`, `testpmd`, or the sender's and the receiver's vhost-user-net sockets as A,B, also
    /// as NAME=A,B. Several: one option each
    #[arg(long, value_name = "SUBJECT", default_value = "softdpu")]
    subject: Vec<String>,
    /// What the subjects are compared with, named like a subject; `none`: nothing
    #[arg(long, value_name = "SUBJECT", default_value = "testpmd")]
    peer: String,
    /// Where frames go: to another guest, or out of an interface to another host. The underlay's wire is a veth pair in
    /// a network namespace that is made for it, which takes root
    #[arg(long, value_enum, value_delimiter = ',', default_value = "guest,underlay")]
    route: Vec<Destination>,
    /// Which frames, one case each: 64 bytes; imix, 7 of 64, 4 of 570 and 1 of 1518 bytes in every 12; IP packets of
    /// 1500 bytes; or TCP frames of 44 segments of 1460 bytes
    #[arg(long, value_enum, value_delimiter = ',', default_value = "64,imix,1500,64k")]
    frame: Vec<Frame>,
    /// How the client waits for frames
    #[arg(long, value_enum, default_value = "both")]
    client: Client,
    /// Ring layout
    #[arg(long, value_enum, default_value = "split")]
    format: Layout,
    /// UDP or TCP flows the frames belong to
    #[arg(long, default_value_t = 64)]
    flows: u16,
    /// Descriptors of a queue
    #[arg(long, default_value_t = 256)]
    queue_size: u16,
    #[command(flatten)]
    turns: Turns,
    /// Draw frames and bytes a second over the frames' length into FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Destination {
    Guest,
    Underlay,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Layout {
    Split,
    Packed,
    Both,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(options: &Net) -> Result<(), String> {
    let plan = plan(options)?;
    let report = with_progress(|progress| comparison::run(&plan, progress))?;
    // Before anything is printed, which may be read no further than its beginning.
    if let Some(path) = &options.plot {
        report::draw(&report, path).map_err(|error| error.to_string())?;
    }
    show(options, &plan, &report)
}

fn plan(options: &Net) -> Result<Plan, String> {
    let mut subjects = Vec::new();
    for name in &options.subject {
        subjects.push(subject(name)?.ok_or_else(|| format!("{name} is not installed on this machine"))?);
    }
    let peer = if options.peer == "none" { None } else { subject(&options.peer)? };
    if peer.is_none() && options.peer != "none" {
        eprintln!(
            "softdpu bench: {} ({TESTPMD}) is not installed here: nothing to compare with; Debian has it in dpdk-dev",
            options.peer
        );
    }
    // Compared are the others with the last.
    subjects.extend(peer);
    Ok(Plan {
        subjects,
        routes: options
            .route
            .iter()
            .map(|to| match to {
                Destination::Guest => Route::Guest,
                Destination::Underlay => Route::Underlay,
            })
            .collect(),
        frames: options.frame.iter().map(|frame| Frames::from(*frame)).collect(),
        flows: options.flows,
        formats: match options.format {
            Layout::Split => vec![Format::Split],
            Layout::Packed => vec![Format::Packed],
            Layout::Both => vec![Format::Split, Format::Packed],
        },
        queue_size: options.queue_size,
        clients: options.client.cases(),
        rounds: options.turns.rounds,
        duration: seconds(options.turns.seconds)?,
        client_cpu: options.turns.cpus.client_cpu,
        server_cpu: options.turns.cpus.server_cpu,
    })
}

fn show(options: &Net, plan: &Plan, report: &NetReport) -> Result<(), String> {
    if options.turns.output.json {
        for (subject, case, why) in &report.left_out {
            eprintln!("softdpu bench: {case}: {subject} was left out: {why}");
        }
    }
    let text = || {
        format!(
            "{}\nclient on CPU {}, servers on CPU {}; {} rounds of {} s taking turns, medians; frames and bytes received, without \
             FCS;\nratio to the last subject of a case in the same round; client: what a frame costs the client itself, sent and \
             received; queues of {}, {} flows\n",
            report.table(),
            plan.client_cpu,
            plan.server_cpu,
            plan.rounds,
            options.turns.seconds,
            plan.queue_size,
            plan.flows
        )
    };
    options.turns.output.show(|to| report.write_json(to), text)
}

/// The subject called `name`; none where it is a program that is not installed.
fn subject(name: &str) -> Result<Option<NetSubject>, String> {
    Ok(match name {
        "softdpu" => Some(NetSubject::Softdpu { program: this_program()? }),
        "testpmd" => NetSubject::testpmd(),
        sockets => {
            let (name, paths) = sockets.split_once('=').unwrap_or((sockets, sockets));
            let expected = "expected `softdpu`, `testpmd` or two paths of vhost-user-net sockets as A,B";
            let (a, b) = paths.split_once(',').ok_or_else(|| format!("{paths:?} is not a subject: {expected}"))?;
            for path in [a, b] {
                if !std::path::Path::new(path).exists() {
                    return Err(format!("{path} does not exist; {expected}"));
                }
            }
            Some(NetSubject::Sockets { name: name.to_owned(), a: a.into(), b: b.into() })
        }
    })
}
