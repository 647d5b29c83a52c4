//! Every scheduler in turn, over the same tenants.
//!
//! Each round starts a daemon for each scheduler, connects a client for each tenant, lets one tenant of each kind work
//! alone and then all together, then one in a burst beside the others, and ends it. Figures are medians of the rounds.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use softdpu_frontend::Transfer;
use softdpu_frontend::load::block::BlockWork;
use softdpu_frontend::load::{
    BlockClient, FrameClient, Generator, GeneratorOptions, Job, LoadError, Outcome, Priority, RunOptions, Waiting,
    fair_batch, on_cpu, run,
};
use softdpu_sched::{Cost, Nanos, Weighted, fair1, fair2, jain};

pub use super::report::{METRICS, SchedulerMeasurement, TenantsReport};
use super::site::site;
pub use super::site::{Application, Load};
use crate::SetupError;
use crate::process::Server;
use crate::scratch::Folder;
use crate::side_by_side::Progress;

/// Before each measurement.
const WARM_UP: Duration = Duration::from_millis(50);
/// Bytes of a request.
const BLOCK: u32 = 4096;
/// What tenants have in flight before a burst, of what they want.
const LIGHT: usize = 8;
/// Frames on their way of a tenant that shares a core with disks, for each request of those: a frame takes the core
/// about a quarter of what a request does, and with as many as requests it would be the round trip to the client that
/// says what frames get.
const FRAMES_FOR_REQUEST: usize = 4;
/// The most frames on their way that a stream can have.
const MOST_FRAMES: usize = 768;
/// The scheduler that others' core time is compared with.
const PLAIN: &str = "fcfs";

/// How much each tenant wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rates {
    /// All alike.
    Balanced,
    /// 4:1 for two tenants, 4:2:2:1 for four, 4×4, 2×2, 2 and 1 for eight, as in MTDA's experiments; requests in flight
    /// and weights.
    Unbalanced,
}

impl Rates {
    /// What each of so many tenants wants, beside the others.
    pub fn of(self, tenants: usize) -> Vec<u32> {
        match (self, tenants) {
            (Rates::Balanced, _) => vec![1; tenants],
            (Rates::Unbalanced, 2) => vec![4, 1],
            (Rates::Unbalanced, 4) => vec![4, 2, 2, 1],
            (Rates::Unbalanced, 8) => vec![4, 4, 4, 4, 2, 2, 2, 1],
            (Rates::Unbalanced, _) => (0..tenants).map(|at| [4, 2, 2, 1][at % 4]).collect(),
        }
    }
}

/// What is held equal between schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Case {
    /// What tenants do.
    pub load: Load,
    /// How many tenants.
    pub tenants: usize,
    /// What they want.
    pub rates: Rates,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rates = if self.rates == Rates::Balanced { "balanced" } else { "unbalanced" };
        write!(f, "{}, {} tenants {rates}", self.load, self.tenants)
    }
}

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// softdpu's program.
    pub program: PathBuf,
    /// The MAC address of the gateway of a network of this name with this address: a tenant's router.
    pub gateway: fn(&str, Ipv4Addr) -> [u8; 6],
    /// Schedulers, by the names of `fairness` in a site file. Throughput is compared with the last.
    pub schedulers: Vec<String>,
    /// Cases.
    pub cases: Vec<Case>,
    /// Reads or writes.
    pub transfer: Transfer,
    /// Requests in flight of a tenant that wants 1.
    pub depth: usize,
    /// Measurements of each.
    pub rounds: usize,
    /// Of each measurement.
    pub duration: Duration,
    /// CPU of all clients.
    pub client_cpu: usize,
    /// CPU of the data plane.
    pub server_cpu: usize,
}

/// What a process has open beside what tenants bring.
const OWN_FILES: u64 = 128;
/// What a tenant brings at the most, in the clients or either of the daemon's processes: two interfaces, each with a
/// socket, a connection, memory, and two or three eventfds for each of two queues.
const FILES_OF_A_TENANT: u64 = 20;

/// Measures all of a plan, and calls `progress` before each measurement.
///
/// # Errors
/// [`SetupError`].
pub fn measure(plan: &Plan, mut progress: impl FnMut(Progress<'_, Case>)) -> Result<TenantsReport, SetupError> {
    if plan.schedulers.is_empty() || plan.cases.is_empty() || plan.rounds == 0 || plan.depth == 0 {
        return Err(SetupError::Plan("nothing to measure: a scheduler, a case, a round and a depth".to_owned()));
    }
    if plan.client_cpu == plan.server_cpu {
        return Err(SetupError::Plan("clients and data plane need a CPU each".to_owned()));
    }
    let largest = plan.cases.iter().map(|case| case.tenants as u64).max().unwrap_or(0);
    // The daemons that are started have what this process has.
    if let Some(most) = softdpu_sys::files::raise_limit()
        && most < OWN_FILES + largest * FILES_OF_A_TENANT
    {
        let needed = OWN_FILES + largest * FILES_OF_A_TENANT;
        return Err(SetupError::Plan(format!(
            "{largest} tenants take up to {needed} open files, and this process may have {most}: raise the hard limit \
             (ulimit -Hn), or measure fewer tenants"
        )));
    }
    let of = plan.cases.len() * plan.schedulers.len() * plan.rounds;
    let mut report = TenantsReport::default();
    let mut done = 0;
    for &case in &plan.cases {
        let first = report.measurements.len();
        for scheduler in &plan.schedulers {
            report.measurements.push(SchedulerMeasurement::new(scheduler, case));
        }
        for round in 0..plan.rounds {
            let measurements = &mut report.measurements[first..];
            // Back and forth: the order of the schedulers, and what changes on the machine during a round, evens out.
            let count = measurements.len();
            for place in 0..count {
                let at = if round % 2 == 0 { place } else { count - 1 - place };
                let measurement = &mut measurements[at];
                progress(Progress { done, of, subject: &measurement.scheduler, case });
                done += 1;
                for (metric, value) in one(plan, case, &measurement.scheduler)? {
                    measurement.add(metric, value);
                }
            }
            compare(measurements);
        }
    }
    Ok(report)
}

/// Adds what is a ratio to another scheduler's figure of the same round.
fn compare(measurements: &mut [SchedulerMeasurement]) {
    let last = measurements.last().and_then(|last| last.latest("throughput"));
    let plain = measurements.iter().find(|measurement| measurement.scheduler == PLAIN);
    let plain = plain.and_then(|plain| plain.latest("core-time"));
    for measurement in measurements {
        if let (Some(rate), Some(last)) = (measurement.latest("throughput"), last) {
            measurement.add("throughput-ratio", rate / last.max(f64::MIN_POSITIVE));
        }
        if let (Some(time), Some(plain)) = (measurement.latest("core-time"), plain) {
            measurement.add("overhead", time / plain.max(f64::MIN_POSITIVE) - 1.0);
        }
    }
}

/// One round of one scheduler.
fn one(plan: &Plan, case: Case, scheduler: &str) -> Result<Vec<(&'static str, f64)>, SetupError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| SetupError::Load {
        subject: scheduler.to_owned(),
        case: case.to_string(),
        source,
    };
    let (wants, applications) = (case.rates.of(case.tenants), case.load.of(case.tenants));
    let folder = Folder::new().map_err(|error| SetupError::Folder(error.to_string()))?;
    let sockets: Vec<Vec<PathBuf>> =
        applications.iter().enumerate().map(|(at, application)| application.sockets(at, folder.path())).collect();
    // Flow records go to a socket that is not read.
    let collector = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|error| failed(Box::new(error)))?;
    let address = collector.local_addr().map_err(|error| failed(Box::new(error)))?;
    let text = site(scheduler, plan.server_cpu, &applications, &wants, address);
    std::fs::write(folder.path().join("site.toml"), text).map_err(|error| SetupError::Folder(error.to_string()))?;
    let mut server = Server::start("softdpu", &plan.program, ["run", "site.toml"], folder.path(), None)?;
    server.until("its sockets", || sockets.iter().flatten().all(|socket| socket.exists()).then_some(()))?;
    let mut clients = Vec::new();
    for (at, (sockets, want)) in sockets.iter().zip(&wants).enumerate() {
        let depth = depth(plan.depth, case.load, applications[at], *want);
        let client = match (applications[at].route(at, plan.gateway), &sockets[..]) {
            (Some(route), [from, to, ..]) => {
                FrameClient::connect([from, to], route, depth).map(|client| Box::new(client) as Box<dyn Job>)
            }
            _ => {
                let work = BlockWork { transfer: plan.transfer, block_size: BLOCK, depth };
                BlockClient::connect(&sockets[0], work).map(|client| Box::new(client) as Box<dyn Job>)
            }
        };
        clients.push(client.map_err(|error| failed(Box::new(error)))?);
    }
    let at_work = |clients: &mut [Box<dyn Job>], duration: Duration| {
        let options =
            RunOptions { cpu: plan.client_cpu, priority: Priority::Session, batch: None, warm_up: WARM_UP, duration };
        run(clients.iter_mut().map(|client| &mut **client), &options).map_err(|error| failed(Box::new(error)))
    };
    // Tenants that do and want the same are alone alike.
    let mut alone = BTreeMap::new();
    for (at, kind) in applications.iter().zip(&wants).enumerate() {
        if let Entry::Vacant(entry) = alone.entry(kind) {
            let served = at_work(&mut clients[at..=at], plan.duration / 4)?;
            entry.insert(served[0].latency.mean());
        }
    }
    let before = usage(plan, folder.path(), case.tenants);
    let served = at_work(&mut clients, plan.duration)?;
    let after = usage(plan, folder.path(), case.tenants);
    let expected: Vec<f64> = wants.iter().map(|want| f64::from(*want)).collect();
    let got: Vec<f64> = served.iter().map(Outcome::rate).collect();
    let shared: Vec<f64> = served.iter().map(|served| served.latency.mean()).collect();
    let alone: Vec<f64> = applications.iter().zip(&wants).map(|kind| alone[&kind]).collect();
    let p99: Vec<f64> = served.iter().map(|served| served.latency_at(0.99) as f64).collect();
    let unsteadiness: Vec<f64> = served.iter().map(Outcome::unsteadiness).collect();
    let mut metrics = vec![
        ("throughput", got.iter().sum()),
        ("latency-mean", mean(&shared)),
        ("latency-p99", mean(&p99)),
        ("latency-p99-worst-tenant", p99.iter().copied().fold(0.0, f64::max)),
        ("fair1", fair1(&expected, &got)),
        ("fair2", fair2(&alone, &shared)),
        ("jain", jain(&expected, &got)),
        ("unsteadiness", mean(&unsteadiness)),
    ];
    if let (Some(before), Some(after)) = (before, after) {
        let cost: Vec<f64> = before.cost.iter().zip(&after.cost).map(|(before, after)| after - before).collect();
        metrics.push(("fair1-cost", fair1(&expected, &cost)));
        metrics.push(("core-time", (after.busy - before.busy) / (after.served - before.served).max(1.0)));
        metrics.push(("grant-length", (after.served - before.served) / (after.grants - before.grants).max(1.0)));
    }
    if case.tenants > 1 {
        let [before, during] =
            in_a_burst(&mut clients, plan.client_cpu, plan.duration / 4).map_err(|error| failed(Box::new(error)))?;
        metrics.push(("burst", burst(&before, &during)));
    }
    Ok(metrics)
}

/// What a tenant has in flight that runs `application` and wants so many parts.
fn depth(each: usize, load: Load, application: Application, want: u32) -> usize {
    let depth = each * want as usize;
    match (load, application) {
        (Load::Mixed(_), Application::Frames(_)) => (depth * FRAMES_FOR_REQUEST).min(MOST_FRAMES),
        _ => depth,
    }
}

/// Has all clients work lightly, and then the first with all that it wants: what they got before and in that burst.
fn in_a_burst(clients: &mut [Box<dyn Job>], cpu: usize, part: Duration) -> Result<[Vec<Outcome>; 2], LoadError> {
    let mut jobs: Vec<&mut dyn Job> = clients.iter_mut().map(|client| &mut **client).collect();
    let outcomes = || vec![Outcome::default(); jobs.len()];
    let (mut before, mut during) = (outcomes(), outcomes());
    on_cpu(cpu, Priority::Session, LoadError::Load, move || {
        let batch = fair_batch(&jobs);
        let mut generator =
            Generator::new(GeneratorOptions { waiting: Waiting::Polling, batch, pace: None, profile: false });
        generator.probe(&mut jobs)?;
        for job in &mut jobs {
            job.raise((job.depth() / LIGHT).max(1))?;
        }
        generator.warm_up(&mut jobs, WARM_UP)?;
        generator.measure(&mut jobs, part, &mut before)?;
        let deep = jobs[0].depth();
        jobs[0].raise(deep)?;
        generator.measure(&mut jobs, part, &mut during)?;
        generator.drain(&mut jobs)?;
        Ok([before, during])
    })
}

/// How much longer requests of the other tenants take when the first tenant's load grows: of each of them the p99 in
/// the burst over that before, and the mean of these.
fn burst(before: &[Outcome], during: &[Outcome]) -> f64 {
    let ratio = |(before, during): (&Outcome, &Outcome)| {
        during.latency_at(0.99) as f64 / (before.latency_at(0.99) as f64).max(f64::MIN_POSITIVE)
    };
    mean(&before.iter().zip(during).skip(1).map(ratio).collect::<Vec<_>>())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// What the daemon did so far.
struct Usage {
    /// What each tenant had: nanoseconds of the core, and bytes at what `weighted` counts them.
    cost: Vec<f64>,
    /// What the core was busy, nanoseconds.
    busy: f64,
    /// Requests and frames of all tenants.
    served: f64,
    /// Grants of its scheduler.
    grants: f64,
}

/// What `status` says; none where it cannot be asked.
fn usage(plan: &Plan, folder: &Path, tenants: usize) -> Option<Usage> {
    let mut command = Command::new(&plan.program);
    command.args(["status", "--json", "--socket", "run/api.sock"]).current_dir(folder);
    let status: serde_json::Value = serde_json::from_slice(&command.output().ok()?.stdout).ok()?;
    let of = |key: &str| (0..tenants).map(|at| status["tenants"][at][key].as_u64()).collect::<Option<Vec<u64>>>();
    let (policy, times, bytes) = (Weighted::default(), of("core_time_ns")?, of("bytes")?);
    let price =
        |(&time, &bytes): (&u64, &u64)| policy.price(Cost { time: Nanos(time), bytes, ..Cost::default() }) as f64;
    Some(Usage {
        cost: times.iter().zip(&bytes).map(price).collect(),
        busy: status["cores"][0]["busy_ns"].as_f64()?,
        served: of("served")?.iter().sum::<u64>() as f64,
        grants: status["cores"][0]["grants"].as_f64()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenants_want_what_the_papers_do() {
        assert_eq!(Rates::Unbalanced.of(2), [4, 1]);
        assert_eq!(Rates::Unbalanced.of(4), [4, 2, 2, 1]);
        assert_eq!(Rates::Unbalanced.of(8), [4, 4, 4, 4, 2, 2, 2, 1]);
        assert_eq!(Rates::Balanced.of(3), [1, 1, 1]);
        assert_eq!(Rates::Unbalanced.of(64).len(), 64);
    }

    #[test]
    fn frames_beside_disks_are_more() {
        let frames = softdpu_frontend::Frames::Smallest;
        let (mixed, frame) = (Load::Mixed(frames), Application::Frames(frames));
        assert_eq!([depth(32, mixed, Application::Disk, 2), depth(32, mixed, frame, 2)], [64, 256]);
        assert_eq!([depth(32, Load::Net(frames), frame, 2), depth(85, mixed, frame, 4)], [64, MOST_FRAMES]);
    }

    #[test]
    fn overhead_is_core_time_over_that_of_first_come_first_served() {
        let case = Case { load: Load::Block, tenants: 1, rates: Rates::Balanced };
        let mut measurements: Vec<SchedulerMeasurement> =
            ["weighted", PLAIN].iter().map(|name| SchedulerMeasurement::new(name, case)).collect();
        for (measurement, time) in measurements.iter_mut().zip([110.0, 100.0]) {
            measurement.add("core-time", time);
            measurement.add("throughput", 1e9 / time);
        }
        compare(&mut measurements);
        assert!((measurements[0].median("overhead").expect("compared") - 0.1).abs() < 1e-9);
        assert_eq!(measurements[1].median("throughput-ratio"), Some(1.0));
    }
}
