//! `softdpu bench`: measure, beside the peers that are installed.

mod accel;
mod gateway;
mod net;
mod tenants;
mod vpc;
mod wave;

use std::fmt::Display;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use softdpu_bench::comparison::{self, Plan, VolumeKind};
use softdpu_bench::outage::Event;
use softdpu_bench::side_by_side::Progress;
use softdpu_bench::subject::{Subject, Variant};
use softdpu_bench::{SetupError, cosched, idle, interrupt, outage, plot};
use softdpu_frontend::load::{Pattern, Waiting};
use softdpu_frontend::{Format, Frames, Transfer};

use crate::output::print;

/// `softdpu bench …`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Drive virtio-blk over vhost-user from the driver's side, against softdpu and a peer in turns
    Block(Block),
    /// Send frames from guest to guest and to the underlay, over vhost-user, through softdpu and a peer in turns
    Net(net::Net),
    /// Losses and round trips at 80 % of the highest rate without losses, with the flow tier and without it
    Gateway(gateway::Gateway),
    /// The gateway's tables and tiers in memory, on one core: look-ups, flows, changes
    Vpc(vpc::Vpc),
    /// Tenants that share a core, under every scheduler in turn: what each gets, and how fair that is
    Tenants(tenants::Tenants),
    /// Encryption of volumes on one core, beside openssl
    Accel(accel::Accel),
    /// The queues between a host and its agents: a message, a decision, over memory and over a modelled link
    Wave(wave::Wave),
    /// What an interrupt costs, from the data plane's write to the driver that wakes up, and how many are saved at load
    Interrupt(Interrupt),
    /// What a daemon with idle disks takes: memory and CPU time
    Idle(Idle),
    /// What the control plane gets of a core's idle time, beside a static partition, and what that costs bursts of work
    Cosched(Cosched),
    /// The gap that clients of disks see when the data plane is upgraded
    Upgrade(Outage),
    /// The gap that clients of disks see when the data plane is killed
    Recover(Outage),
}

/// Which frames, as `net` and `tenants` name them.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Frame {
    #[value(name = "64")]
    Smallest,
    Imix,
    #[value(name = "1500")]
    Mtu,
    #[value(name = "64k")]
    Tso,
}

impl From<Frame> for Frames {
    fn from(frame: Frame) -> Frames {
        match frame {
            Frame::Smallest => Frames::Smallest,
            Frame::Imix => Frames::Imix,
            Frame::Mtu => Frames::Mtu,
            Frame::Tso => Frames::Tso,
        }
    }
}

/// `softdpu bench block`
#[derive(Debug, Args)]
pub struct Block {
    /// What is measured: `softdpu`, `softdpu-encrypted` (AES-XTS, for `--volume memory` and `file`),
    /// `softdpu-unconfined` (without isolation), `qsd`, or the path of any vhost-user-blk socket, also as
    /// NAME=PATH. Several: one option each
    #[arg(long, value_name = "SUBJECT", default_value = "softdpu")]
    subject: Vec<String>,
    /// What the subjects are compared with, named like a subject; `none`: nothing
    #[arg(long, value_name = "SUBJECT", default_value = "qsd")]
    peer: String,
    /// How the client waits for completions
    #[arg(long, value_enum, default_value = "both")]
    client: Client,
    /// Requests in flight on each queue, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64,128")]
    depth: Vec<usize>,
    /// Bytes of a request; a k behind the number makes it KiB
    #[arg(long, value_parser = block_size, default_value = "4k")]
    block_size: u32,
    /// Access pattern
    #[arg(long, value_enum, default_value = "randread")]
    rw: Access,
    /// What is behind the disk: nothing, the server's memory, or a file in the page cache
    #[arg(long, value_enum, default_value = "null")]
    volume: VolumeChoice,
    /// Queues, all driven by the one client thread
    #[arg(long, default_value_t = 1)]
    queues: u16,
    /// Packed virtqueues instead of split ones
    #[arg(long)]
    packed: bool,
    #[command(flatten)]
    turns: Turns,
    /// poll-max-ns of qemu-storage-daemon's iothread
    #[arg(long, value_name = "NS", default_value_t = softdpu_bench::subject::QSD_POLL_MAX_NS)]
    poll_max_ns: u64,
    /// Folder for the file of `--volume file`
    #[arg(long, value_name = "FOLDER", default_value_os_t = std::env::temp_dir())]
    folder: PathBuf,
    /// Draw IOPS and latency over depth into FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

/// `softdpu bench idle`
#[derive(Debug, Args)]
pub struct Idle {
    /// Disks, each with a front end attached
    #[arg(long, default_value_t = 8)]
    devices: usize,
    /// How long it is watched
    #[arg(long, default_value_t = 10.0)]
    seconds: f64,
    /// CPU of the data plane
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    server_cpu: usize,
    #[command(flatten)]
    output: Form,
}

/// `softdpu bench upgrade` and `softdpu bench recover`
#[derive(Debug, Args)]
pub struct Outage {
    /// Disks, each with a client that has one request in flight, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,64")]
    devices: Vec<usize>,
    /// How often it happens in each case
    #[arg(long, default_value_t = 20)]
    rounds: u32,
    /// CPU of the data plane
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    server_cpu: usize,
    /// CPU of the clients
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    client_cpu: usize,
    #[command(flatten)]
    output: Form,
}

/// `softdpu bench interrupt`
#[derive(Debug, Args)]
pub struct Interrupt {
    /// Requests in flight, one case each
    #[arg(long, value_delimiter = ',', default_value = "1,8,32,128")]
    depth: Vec<usize>,
    #[command(flatten)]
    turns: Turns,
}

/// `softdpu bench cosched`
#[derive(Debug, Args)]
pub struct Cosched {
    /// How long a burst keeps the core busy, microseconds
    #[arg(long, value_name = "US", default_value_t = 300)]
    busy: u64,
    /// From one burst to the next, microseconds
    #[arg(long, value_name = "US", default_value_t = 1000)]
    period: u64,
    /// Length of one measurement
    #[arg(long, default_value_t = 0.5)]
    seconds: f64,
    /// Pairs of a static partition and each way, taking turns
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// The control plane's CPU
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    control_cpu: usize,
    /// The data plane's CPU
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    data_cpu: usize,
    #[command(flatten)]
    output: Form,
}

/// How often is measured, where, and how it is printed.
#[derive(Debug, Args)]
struct Turns {
    /// Length of one measurement
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Measurements of each case and subject, taking turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    #[command(flatten)]
    cpus: Cpus,
    #[command(flatten)]
    output: Form,
}

/// Where client and server run.
#[derive(Clone, Copy, Debug, Args)]
struct Cpus {
    /// CPU of the client: the drivers of all guests, and hosts beyond the underlay
    #[arg(long, value_name = "CPU", default_value_t = 0)]
    client_cpu: usize,
    /// CPU of the servers
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    server_cpu: usize,
}

/// Cases that run on one CPU.
#[derive(Debug, Args)]
struct OneCpu {
    /// Only cases with TEXT in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    case: String,
    /// Measurements of each case
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The CPU
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    cpu: usize,
    /// Leave out the programs that are compared with
    #[arg(long)]
    no_peers: bool,
    #[command(flatten)]
    output: Form,
}

/// How results are printed.
#[derive(Clone, Copy, Debug, Args)]
struct Form {
    /// Print one JSON object a line instead of text
    #[arg(long)]
    json: bool,
}

impl Form {
    /// Prints the JSON lines that `write` writes, or `text`.
    fn show(
        self,
        write: impl FnOnce(&mut Vec<u8>) -> std::io::Result<()>,
        text: impl FnOnce() -> String,
    ) -> Result<(), String> {
        if !self.json {
            return print(&text());
        }
        let mut lines = Vec::new();
        write(&mut lines).map_err(|error| format!("writing the results: {error}"))?;
        print(&String::from_utf8_lossy(&lines))
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Client {
    Polling,
    Blocking,
    Both,
}

impl Client {
    fn cases(self) -> Vec<Waiting> {
        match self {
            Client::Polling => vec![Waiting::Polling],
            Client::Blocking => vec![Waiting::Blocking],
            Client::Both => vec![Waiting::Polling, Waiting::Blocking],
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Access {
    Randread,
    Randwrite,
    Read,
    Write,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VolumeChoice {
    Null,
    Memory,
    File,
}

/// Runs it; the error is a sentence for the user.
pub fn execute(command: &BenchCommand) -> Result<(), String> {
    softdpu_bench::scratch::clean_up_on_signals().map_err(|error| format!("waiting for signals: {error}"))?;
    match command {
        BenchCommand::Block(options) => block(options),
        BenchCommand::Gateway(options) => gateway::execute(options),
        BenchCommand::Net(options) => net::execute(options),
        BenchCommand::Vpc(options) => vpc::execute(options),
        BenchCommand::Tenants(options) => tenants::execute(options),
        BenchCommand::Accel(options) => accel::execute(options),
        BenchCommand::Wave(options) => wave::execute(options),
        BenchCommand::Interrupt(options) => measure_interrupt(options),
        BenchCommand::Idle(options) => measure_idle(options),
        BenchCommand::Cosched(options) => measure_cosched(options),
        BenchCommand::Upgrade(options) => measure_outage(options, Event::Upgrade),
        BenchCommand::Recover(options) => measure_outage(options, Event::Kill),
    }
}

fn block(options: &Block) -> Result<(), String> {
    let mut subjects = Vec::new();
    for name in &options.subject {
        subjects.push(subject(name, options)?.ok_or_else(|| format!("{name} is not installed on this machine"))?);
    }
    let peer = if options.peer == "none" { None } else { subject(&options.peer, options)? };
    if peer.is_none() && options.peer != "none" {
        eprintln!("softdpu bench: {} is not installed here: nothing to compare with", options.peer);
    }
    // Compared are the others with the last.
    subjects.extend(peer);
    let plan = Plan {
        subjects,
        volume: match options.volume {
            VolumeChoice::Null => VolumeKind::Null,
            VolumeChoice::Memory => VolumeKind::Memory,
            VolumeChoice::File => VolumeKind::File,
        },
        pattern: match options.rw {
            Access::Randread => Pattern { transfer: Transfer::Read, random: true },
            Access::Randwrite => Pattern { transfer: Transfer::Write, random: true },
            Access::Read => Pattern { transfer: Transfer::Read, random: false },
            Access::Write => Pattern { transfer: Transfer::Write, random: false },
        },
        block_size: options.block_size,
        queues: options.queues,
        format: if options.packed { Format::Packed } else { Format::Split },
        depths: options.depth.clone(),
        clients: options.client.cases(),
        rounds: options.turns.rounds,
        duration: seconds(options.turns.seconds)?,
        client_cpu: options.turns.cpus.client_cpu,
        server_cpu: options.turns.cpus.server_cpu,
        folder: options.folder.clone(),
    };
    let report = with_progress(|progress| comparison::run(&plan, progress))?;
    // Before anything is printed, which may be read no further than its beginning.
    if let Some(path) = &options.plot {
        plot::draw(&report, path).map_err(|error| error.to_string())?;
    }
    let text = || {
        format!(
            "{}\nclient on CPU {}, servers on CPU {}; {} rounds of {} s taking turns, medians; ratio to the last subject of a \
             case in the same round;\nclient: what a request costs the client itself; qemu-storage-daemon with poll-max-ns={}\n",
            report.table(),
            plan.client_cpu,
            plan.server_cpu,
            plan.rounds,
            options.turns.seconds,
            options.poll_max_ns
        )
    };
    options.turns.output.show(|to| report.write_json(to), text)
}

/// Calls `run` and shows on a terminal how far it is.
fn with_progress<C: Display, R>(
    run: impl FnOnce(&mut dyn FnMut(Progress<'_, C>)) -> Result<R, SetupError>,
) -> Result<R, String> {
    let shown = std::io::stderr().is_terminal();
    let result = run(&mut |progress| {
        if shown {
            eprint!("\r\x1b[K{}/{} {}: {}", progress.done + 1, progress.of, progress.case, progress.subject);
        }
    });
    if shown {
        eprint!("\r\x1b[K");
    }
    result.map_err(|error| error.to_string())
}

fn measure_interrupt(options: &Interrupt) -> Result<(), String> {
    let plan = Plan {
        subjects: vec![Subject::Softdpu { program: this_program()?, variant: Variant::Plain }],
        volume: VolumeKind::Null,
        pattern: Pattern { transfer: Transfer::Read, random: true },
        block_size: 4096,
        queues: 1,
        format: Format::Split,
        depths: options.depth.clone(),
        clients: Client::Both.cases(),
        rounds: options.turns.rounds,
        duration: seconds(options.turns.seconds)?,
        client_cpu: options.turns.cpus.client_cpu,
        server_cpu: options.turns.cpus.server_cpu,
        folder: std::env::temp_dir(),
    };
    let figures = with_progress(|progress| interrupt::measure(&plan, progress))?;
    options.turns.output.show(|to| figures.write_json(to), || figures.to_string())
}

fn measure_idle(options: &Idle) -> Result<(), String> {
    let program = this_program()?;
    let figures = idle::measure(
        &Subject::Softdpu { program, variant: Variant::Plain },
        options.devices,
        options.server_cpu,
        seconds(options.seconds)?,
    )
    .map_err(|error| error.to_string())?;
    options.output.show(|to| figures.write_json(to), || format!("{figures}\n"))
}

fn measure_cosched(options: &Cosched) -> Result<(), String> {
    let Cosched { busy, period, seconds: length, rounds, control_cpu, data_cpu, output } = *options;
    let (busy, period) = (Duration::from_micros(busy), Duration::from_micros(period));
    let plan = cosched::Plan { busy, period, duration: seconds(length)?, rounds, control_cpu, data_cpu };
    let figures = with_progress(|progress| cosched::measure(&plan, progress))?;
    output.show(|to| figures.write_json(to), || figures.to_string())
}

fn measure_outage(options: &Outage, event: Event) -> Result<(), String> {
    let Outage { devices, rounds, server_cpu, client_cpu, output } = options;
    let (devices, rounds) = (devices.clone(), *rounds);
    let plan = outage::Plan { event, rounds, devices, server_cpu: *server_cpu, client_cpu: *client_cpu };
    let gaps = outage::measure(&this_program()?, &plan).map_err(|error| error.to_string())?;
    output.show(|to| gaps.write_json(to), || gaps.to_string())
}

/// The subject called `name`; none where it is a program that is not installed.
fn subject(name: &str, options: &Block) -> Result<Option<Subject>, String> {
    Ok(match name {
        "softdpu" => Some(Subject::Softdpu { program: this_program()?, variant: Variant::Plain }),
        "softdpu-encrypted" => Some(Subject::Softdpu { program: this_program()?, variant: Variant::Encrypted }),
        "softdpu-unconfined" => Some(Subject::Softdpu { program: this_program()?, variant: Variant::Unconfined }),
        "qsd" | "qemu-storage-daemon" => Subject::qsd(options.poll_max_ns),
        socket => {
            let (name, path) = socket.split_once('=').unwrap_or((socket, socket));
            if !std::path::Path::new(path).exists() {
                return Err(format!(
                    "{path} does not exist; expected `softdpu`, `softdpu-encrypted`, `softdpu-unconfined`, `qsd` or the path of a vhost-user-blk socket"
                ));
            }
            Some(Subject::Socket { name: name.to_owned(), path: path.into() })
        }
    })
}

fn this_program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("finding softdpu's own program: {error}"))
}

fn seconds(value: f64) -> Result<Duration, String> {
    // A tenth of a second is a hundred thousand requests; an hour is a typing mistake.
    if !(0.1..=3600.0).contains(&value) {
        return Err(format!("--seconds {value}: expected 0.1 to 3600"));
    }
    Ok(Duration::from_secs_f64(value))
}

fn block_size(text: &str) -> Result<u32, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let bytes = digits.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    bytes
        .filter(|bytes| *bytes > 0 && bytes.is_multiple_of(512) && *bytes <= 1 << 20)
        .ok_or_else(|| format!("{text:?} is not a multiple of 512 up to 1024k, such as 4096 or 4k"))
}
