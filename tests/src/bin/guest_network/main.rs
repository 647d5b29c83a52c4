//! Two guests joined by several links at once, measured in turns: by softdpu's interfaces, by QEMU's `-netdev stream`,
//! by TAPs on a bridge. TCP with iperf3, whose segments are as large as an interface takes them, and round trips.
//!
//! ```text
//!          ┌── virtio-net over vhost-user ── softdpu ───────┐
//!   guest ─┼── virtio-net ── QEMU ── Unix socket ── QEMU ───┼─ guest
//!     a    └── virtio-net ── QEMU ── TAP ── bridge ── TAP ──┘    b
//! ```
//!
//! The same guests in the same run, so what else the machine does meets all alike. `make bench` runs it.

#![forbid(unsafe_code)]

mod answers;
mod links;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use serde_json::{Value, json};
use softdpu_tests::{Accel, Daemon, Failure, Guest, GuestSpec, Lab, Qemu, Root, wait_until};

use crate::links::{Link, Namespace, Side};

/// Every step of a guest is done within this time, beside what it measures, on a busy machine without KVM.
const DEADLINE: Duration = Duration::from_secs(120);

/// Measures TCP between two guests on softdpu's interfaces, beside QEMU's own networking.
#[derive(Parser)]
struct Options {
    /// Length of one measurement, seconds
    #[arg(long, default_value_t = 3)]
    seconds: u32,
    /// Measurements of each link, taking turns
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Echo requests of a measurement of round trips
    #[arg(long, default_value_t = 200)]
    echoes: u32,
    /// CPU of softdpu's data plane
    #[arg(long, value_name = "CPU", default_value_t = 1)]
    server_cpu: usize,
    /// Run the guests by the machine's own QEMU, though `lab/setup.sh --bench` fetched one that has MSI-X for every
    /// interface
    #[arg(long)]
    own_qemu: bool,
    /// More keys of softdpu's interfaces in its site file, such as `queue-size = 256, packed = false`
    #[arg(long, value_name = "KEYS", default_value = "")]
    interface: String,
    /// How long softdpu's core spins without work before it sleeps, as `idle-sleep` in its site file
    #[arg(long, value_name = "TIME", default_value = "50 us")]
    idle_sleep: String,
    /// Print one JSON object a line instead of a table
    #[arg(long)]
    json: bool,
}

/// What was measured over one link, round by round.
#[derive(Default)]
struct Figures {
    /// Bits a second.
    throughput: Vec<f64>,
    /// Nanoseconds.
    round_trip: Vec<f64>,
    /// Of all rounds, in the guest that sends and in the one that receives.
    guests: [Account; 2],
}

/// What a guest says of itself.
#[derive(Clone, Copy, Default)]
struct Account {
    frames: f64,
    bytes: f64,
    interrupts: f64,
    /// Seconds of its processor.
    busy: f64,
}

impl Account {
    fn of(guest: &mut Guest) -> Result<Account, Failure> {
        let report = guest.ask("account", DEADLINE)?;
        let sum = |keys: &[&str]| keys.iter().map(|key| report.get::<f64>(key)).sum::<Result<f64, Failure>>();
        Ok(Account {
            frames: sum(&["tx_packets"])?,
            bytes: sum(&["tx_bytes"])?,
            interrupts: sum(&["interrupts"])?,
            busy: sum(&["user", "system", "irq", "softirq"])? / 100.0,
        })
    }

    fn add(&mut self, before: Account, after: Account) {
        self.frames += after.frames - before.frames;
        self.bytes += after.bytes - before.bytes;
        self.interrupts += after.interrupts - before.interrupts;
        self.busy += after.busy - before.busy;
    }
}

/// What softdpu counted while it was measured.
#[derive(Clone, Copy, Default)]
struct Counts {
    frames: u64,
    sent: u64,
    suppressed: u64,
}

fn main() -> ExitCode {
    let options = Options::parse();
    let result = Lab::open("guest-network").and_then(|lab| {
        let result = measure(&options, &lab);
        lab.close(result.is_err());
        result
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("guest-network: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options, lab: &Lab) -> Result<(), Failure> {
    let accel = Accel::detect();
    let qemu = choose(options, accel)?;
    let namespace = Namespace::make();
    if let Err(why) = &namespace {
        eprintln!("guest-network: no TAPs on a bridge: {why}");
    }
    let namespace = namespace.ok();
    let links = Link::possible(accel == Accel::Kvm || qemu.has_msix_without_kvm(), namespace.is_some());
    eprintln!("guest-network: QEMU {} ({accel:?})", qemu.version());
    let daemon = Daemon::start(lab.path(), &links::site(options.server_cpu, &options.idle_sleep, &options.interface))?;
    let mut guests = Vec::new();
    for side in [Side::A, Side::B] {
        guests.push(boot(lab, &daemon, namespace.as_ref(), (accel, &qemu), &links, side)?);
        // The one end of the streams waits for the other.
        wait_until("the streams' sockets", DEADLINE, || {
            Ok(links.iter().all(|link| link.socket().is_none_or(|name| lab.path().join(name).exists())).then_some(()))
        })?;
    }
    let [a, b] = &mut guests[..] else { return Err(Failure::new("two guests")) };
    b.ask("serve", DEADLINE)?;
    let mut figures: Vec<Figures> = links.iter().map(|_| Figures::default()).collect();
    let mut counted = Counts::default();
    for link in &links {
        // Addresses are resolved, and what is slow only once is over.
        a.ask(&format!("iperf {} 1", link.address(Side::B)), DEADLINE)?;
    }
    for _ in 0..options.rounds {
        for (link, figures) in links.iter().zip(&mut figures) {
            let before = counts(&daemon)?;
            let accounts = [Account::of(a)?, Account::of(b)?];
            let report = a.ask(&format!("iperf {} {}", link.address(Side::B), options.seconds), DEADLINE * 2)?;
            for ((guest, account), before) in [&mut *a, &mut *b].into_iter().zip(&mut figures.guests).zip(accounts) {
                account.add(before, Account::of(guest)?);
            }
            figures.throughput.push(report.get::<f64>("mbits")? * 1e6);
            if *link == Link::Softdpu {
                let after = counts(&daemon)?;
                counted.frames += after.frames - before.frames;
                counted.sent += after.sent - before.sent;
                counted.suppressed += after.suppressed - before.suppressed;
            }
            let report = a.ask(&format!("rtt {} {}", link.address(Side::B), options.echoes), DEADLINE)?;
            figures.round_trip.push(report.get::<f64>("rtt_ms")? * 1e6);
        }
    }
    let answers = answers::times(&daemon, a, &Link::Softdpu.address(Side::B), options.echoes)?;
    for guest in [a, b] {
        guest.type_line("stop")?;
        guest.finish(DEADLINE)?;
    }
    daemon.stop()?;
    let case = format!("guest-guest tcp {}", format!("{accel:?}").to_lowercase());
    print(options, &case, &links, &figures, counted, median(&answers));
    Ok(())
}

/// The QEMU that gives every interface the same kind of interrupt, where there is one.
fn choose(options: &Options, accel: Accel) -> Result<Qemu, Failure> {
    if options.own_qemu || accel == Accel::Kvm {
        return Qemu::of_machine();
    }
    Qemu::with_msix().or_else(|why| {
        eprintln!("guest-network: softdpu's interfaces have no MSI-X: {why}");
        Qemu::of_machine()
    })
}

fn boot(
    lab: &Lab,
    daemon: &Daemon,
    namespace: Option<&Namespace>,
    (accel, qemu): (Accel, &Qemu),
    links: &[Link],
    side: Side,
) -> Result<Guest, Failure> {
    let mut spec = GuestSpec::new(side.name()).memory_mib(512).accel(accel).qemu(qemu.clone()).root(Root::NetworkRam);
    if let Some(namespace) = namespace {
        spec = spec.namespace(namespace.name());
    }
    for link in links {
        spec = spec.device(match link.device(side) {
            Some(device) => device,
            None => daemon.guest_device(side.name())?,
        });
    }
    let spec = spec.job("network").parameter("NAME", side.name()).parameter("MIB", 1);
    let mut guest = Guest::boot(lab.path(), spec)?;
    guest.booted()?;
    guest.step("ready", DEADLINE)?;
    for link in links {
        guest.ask(&format!("interface {} {}/24", link.mac(side), link.address(side)), DEADLINE)?;
    }
    Ok(guest)
}

/// What softdpu has sent to both guests so far, and their interrupts.
fn counts(daemon: &Daemon) -> Result<Counts, Failure> {
    let status = daemon.status()?;
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let sum = |values: &[Value], key: &str| values.iter().filter_map(|value| value[key].as_u64()).sum::<u64>();
    let devices = list(&status["devices"]);
    let queues: Vec<Value> = devices.iter().flat_map(|device| list(&device["queues"])).collect();
    let ports: Vec<Value> = devices.iter().map(|device| device["port"].clone()).collect();
    Ok(Counts {
        frames: sum(&ports, "frames_out"),
        sent: sum(&queues, "interrupts_sent"),
        suppressed: sum(&queues, "interrupts_suppressed"),
    })
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

/// What softdpu reached over what each other link did in the same round: the median of the rounds.
fn ratios(links: &[Link], figures: &[Figures]) -> Vec<(Link, f64)> {
    let Some(own) = links.iter().position(|link| *link == Link::Softdpu) else { return Vec::new() };
    let ratio = |other: &Figures| {
        let rounds = figures[own].throughput.iter().zip(&other.throughput);
        median(&rounds.map(|(own, other)| own / other).collect::<Vec<f64>>())
    };
    let others = links.iter().zip(figures).filter(|(link, _)| **link != Link::Softdpu);
    others.map(|(link, figures)| (*link, ratio(figures))).collect()
}

fn print(options: &Options, case: &str, links: &[Link], figures: &[Figures], counted: Counts, answer: f64) {
    let frames = counted.frames.max(1) as f64;
    let interrupts = [
        ("interrupts-per-frame", counted.sent as f64 / frames),
        ("suppressed-per-frame", counted.suppressed as f64 / frames),
    ];
    if options.json {
        let line = |subject: &str, metric: &str, unit: &str, value: f64| {
            // In the order of every bench's lines, which a JSON object of its own would not keep.
            println!(
                r#"{{"bench":"guest-network","subject":{},"case":{},"metric":{},"unit":{},"value":{value}}}"#,
                json!(subject),
                json!(case),
                json!(metric),
                json!(unit)
            );
        };
        for (link, figures) in links.iter().zip(figures) {
            let throughput = &figures.throughput;
            line(link.name(), "throughput", "bit/s", median(throughput));
            line(link.name(), "throughput-min", "bit/s", throughput.iter().copied().fold(f64::MAX, f64::min));
            line(link.name(), "throughput-max", "bit/s", throughput.iter().copied().fold(0.0, f64::max));
            line(link.name(), "round-trip", "ns", median(&figures.round_trip));
        }
        interrupts.iter().for_each(|(metric, value)| line("softdpu", metric, "1", *value));
        line("softdpu", "interrupt-to-answer", "ns", answer);
        for (link, ratio) in ratios(links, figures) {
            line("softdpu", &format!("throughput-ratio-to-{}", link.name()), "1", ratio);
        }
        return;
    }
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(
        out,
        "{:<20} {:<18} {:>12} {:>25} {:>12} {:>13}",
        "case", "subject", "TCP", "min - max", "round trip", "softdpu/this"
    );
    let ratios = ratios(links, figures);
    for (link, figures) in links.iter().zip(figures) {
        let ratio =
            ratios.iter().find(|(other, _)| other == link).map_or(String::from("-"), |(_, it)| format!("{it:.2}"));
        let gigabits = |value: f64| format!("{:.2} Gbit/s", value / 1e9);
        let least = figures.throughput.iter().copied().fold(f64::MAX, f64::min);
        let most = figures.throughput.iter().copied().fold(0.0, f64::max);
        let _ = writeln!(
            out,
            "{case:<20} {:<18} {:>12} {:>25} {:>9.0} us {ratio:>13}",
            link.name(),
            gigabits(median(&figures.throughput)),
            format!("{} - {}", gigabits(least), gigabits(most)),
            median(&figures.round_trip) / 1e3
        );
    }
    let _ = writeln!(
        out,
        "\n{:<20} {:<18} {:>10} {:>14} {:>14} {:>15} {:>15} {:>10}",
        "per MB", "subject", "frame", "interrupts, a", "interrupts, b", "processor, a", "processor, b", "answers"
    );
    for (link, figures) in links.iter().zip(figures) {
        let [a, b] = figures.guests;
        let megabytes = a.bytes / 1e6;
        let _ = writeln!(
            out,
            "{case:<20} {:<18} {:>8.0} B {:>14.1} {:>14.1} {:>12.2} ms {:>12.2} ms {:>10.1}",
            link.name(),
            a.bytes / a.frames,
            a.interrupts / megabytes,
            b.interrupts / megabytes,
            a.busy / megabytes * 1e3,
            b.busy / megabytes * 1e3,
            b.frames / megabytes
        );
    }
    for (metric, value) in interrupts {
        let _ = writeln!(out, "softdpu, {metric}: {value:.4}");
    }
    let _ = writeln!(out, "softdpu, from an echo request in the guest's queue to its answer: {:.0} us", answer / 1e3);
    print!("{out}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_the_median_of_those_within_a_round() {
        let links = [Link::Softdpu, Link::Stream { vectors: 0 }, Link::Tap { vectors: 4 }];
        // The machine's speed changes from round to round, for all alike.
        let figures = [[5.0, 60.0, 9.0], [2.0, 30.0, 3.0], [10.0, 120.0, 1.0]]
            .map(|rounds| Figures { throughput: rounds.to_vec(), ..Figures::default() });
        assert_eq!(ratios(&links, &figures), [(links[1], 2.5), (links[2], 0.5)]);
    }
}
