//! Every scheduler in turn, over the same tenants.
//!
//! Each round starts a daemon for each scheduler, connects a client for each tenant, lets one tenant of each kind work alone and
//! then all together, and ends it. Figures are medians of the rounds.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::load::{Client, Served, Work, run};
use super::{fair1, fair2, jain};
use crate::SetupError;
use crate::front_end::Transfer;
use crate::plot::draw_panels;
use crate::process::Server;
use crate::scratch::Folder;
use crate::side_by_side::{Figure, Progress};
use softdpu_plot::{Lines, Panel};

/// Before each measurement.
const WARM_UP: Duration = Duration::from_millis(50);
/// Bytes of a request.
const BLOCK: u32 = 4096;
/// Bytes of each tenant's volume, in the daemon's memory.
const VOLUME: u64 = 256 << 10;

/// How much each tenant wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rates {
    /// All alike.
    Balanced,
    /// 4:1 for two tenants, 4:2:2:1 for four, 4×4, 2×2, 2 and 1 for eight, as in MTDA's experiments; requests in flight and weights.
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
    /// How many tenants.
    pub tenants: usize,
    /// What they want.
    pub rates: Rates,
}

impl std::fmt::Display for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rates = if self.rates == Rates::Balanced { "balanced" } else { "unbalanced" };
        write!(f, "{} tenants {rates}", self.tenants)
    }
}

/// What is measured, and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// softdpu's program.
    pub program: PathBuf,
    /// Schedulers, by the names of `fairness` in a site file. Overhead is against the last.
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

/// Metrics in a report, with their units, in its order.
pub const METRICS: [(&str, &str); 10] = [
    ("throughput", "requests/s"),
    ("latency-mean", "ns"),
    ("latency-p99", "ns"),
    ("latency-p99-worst-tenant", "ns"),
    ("fair1", "index"),
    ("fair1-cost", "index"),
    ("fair2", "index"),
    ("jain", "index"),
    ("unsteadiness", "ratio"),
    ("throughput-ratio", "ratio"),
];

/// One scheduler's figures in one case, round by round, by metric.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The scheduler.
    pub scheduler: String,
    /// The case.
    pub case: Case,
    rounds: BTreeMap<&'static str, Vec<f64>>,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// In the order of cases, then schedulers.
    pub measurements: Vec<Measurement>,
}

/// Measures all of a plan, and tells `progress` before each measurement.
///
/// # Errors
/// [`SetupError`].
pub fn measure(plan: &Plan, mut progress: impl FnMut(Progress<'_, Case>)) -> Result<Report, SetupError> {
    if plan.schedulers.is_empty() || plan.cases.is_empty() || plan.rounds == 0 || plan.depth == 0 {
        return Err(SetupError::Plan("nothing to measure: a scheduler, a case, a round and a depth".to_owned()));
    }
    if plan.client_cpu == plan.server_cpu {
        return Err(SetupError::Plan("clients and data plane need a CPU each".to_owned()));
    }
    let of = plan.cases.len() * plan.schedulers.len() * plan.rounds;
    let mut report = Report::default();
    let mut done = 0;
    for &case in &plan.cases {
        let first = report.measurements.len();
        for scheduler in &plan.schedulers {
            let rounds = METRICS.iter().map(|(metric, _)| (*metric, Vec::new())).collect();
            report.measurements.push(Measurement { scheduler: scheduler.clone(), case, rounds });
        }
        for _ in 0..plan.rounds {
            let measurements = &mut report.measurements[first..];
            for measurement in measurements.iter_mut() {
                progress(Progress { done, of, subject: &measurement.scheduler, case });
                done += 1;
                for (metric, value) in one(plan, case, &measurement.scheduler)? {
                    measurement.rounds.entry(metric).or_default().push(value);
                }
            }
            let rate = |measurement: &Measurement| measurement.rounds["throughput"].last().copied().unwrap_or(0.0);
            let base = measurements.last().map_or(0.0, rate);
            for measurement in measurements.iter_mut() {
                let ratio = rate(measurement) / base.max(f64::MIN_POSITIVE);
                measurement.rounds.entry("throughput-ratio").or_default().push(ratio);
            }
        }
    }
    Ok(report)
}

/// One round of one scheduler.
fn one(plan: &Plan, case: Case, scheduler: &str) -> Result<Vec<(&'static str, f64)>, SetupError> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| SetupError::Load {
        subject: scheduler.to_owned(),
        case: case.to_string(),
        source,
    };
    let wants = case.rates.of(case.tenants);
    let folder = Folder::new().map_err(|error| SetupError::Folder(error.to_string()))?;
    let sockets: Vec<PathBuf> = (0..case.tenants).map(|at| folder.path().join(format!("{at}.sock"))).collect();
    let text = site(plan, scheduler, &wants);
    std::fs::write(folder.path().join("site.toml"), text).map_err(|error| SetupError::Folder(error.to_string()))?;
    let mut server = Server::start("softdpu", &plan.program, ["run", "site.toml"], folder.path(), None)?;
    server.until("its sockets", || sockets.iter().all(|socket| socket.exists()).then_some(()))?;
    let mut clients = Vec::new();
    for (socket, want) in sockets.iter().zip(&wants) {
        let work = Work { transfer: plan.transfer, block_size: BLOCK, depth: plan.depth * *want as usize };
        clients.push(Client::connect(socket, work).map_err(|error| failed(Box::new(error)))?);
    }
    let mut at_work = |active: &[usize], duration| {
        run(&mut clients, active, plan.client_cpu, WARM_UP, duration).map_err(|error| failed(Box::new(error)))
    };
    // Tenants that want the same are alone alike.
    let mut alone = BTreeMap::new();
    for (at, want) in wants.iter().enumerate() {
        if !alone.contains_key(want) {
            alone.insert(*want, at_work(&[at], plan.duration / 4)?[0].latency.mean());
        }
    }
    let all: Vec<usize> = (0..case.tenants).collect();
    let before = core_time(plan, folder.path(), case.tenants);
    let served = at_work(&all, plan.duration)?;
    let after = core_time(plan, folder.path(), case.tenants);
    let expected: Vec<f64> = wants.iter().map(|want| f64::from(*want)).collect();
    let got: Vec<f64> = served.iter().map(Served::rate).collect();
    let shared: Vec<f64> = served.iter().map(|served| served.latency.mean()).collect();
    let alone: Vec<f64> = wants.iter().map(|want| alone[want]).collect();
    let p99: Vec<f64> = served.iter().map(|served| served.latency_at(0.99) as f64).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let unsteadiness: Vec<f64> = served.iter().map(Served::unsteadiness).collect();
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
        let cost: Vec<f64> = before.iter().zip(&after).map(|(before, after)| after - before).collect();
        metrics.push(("fair1-cost", fair1(&expected, &cost)));
    }
    Ok(metrics)
}

/// What each tenant had of the core so far, as `status` tells it; none where it cannot be asked.
fn core_time(plan: &Plan, folder: &Path, tenants: usize) -> Option<Vec<f64>> {
    let mut command = Command::new(&plan.program);
    command.args(["status", "--json", "--socket", "run/api.sock"]).current_dir(folder);
    let status: serde_json::Value = serde_json::from_slice(&command.output().ok()?.stdout).ok()?;
    (0..tenants).map(|at| status["tenants"][at]["core_time_ns"].as_f64()).collect()
}

fn site(plan: &Plan, scheduler: &str, wants: &[u32]) -> String {
    let mut site = format!(
        "[node]\nfairness = \"{scheduler}\"\ndataplane = {{ cores = [{}], idle-sleep = \"never\" }}\n\
         run-directory = \"run\"\nlog = {{ level = \"error\" }}\n",
        plan.server_cpu
    );
    for (at, want) in wants.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = write!(
            site,
            "\n[[tenant]]\nname = \"t{at}\"\nweight = {want}\n\n[[volume]]\nname = \"v{at}\"\nmemory = {{ size = \
             \"{VOLUME} B\" }}\n\n[[device]]\nname = \"d{at}\"\ntenant = \"t{at}\"\nvirtio-blk = {{ volume = \"v{at}\", \
             queue-size = 1024, socket = \"{at}.sock\" }}\n"
        );
    }
    site
}

impl Measurement {
    /// The median of a metric's rounds; none where it was not measured.
    pub fn median(&self, metric: &str) -> Option<f64> {
        let mut values = self.rounds.get(metric)?.clone();
        values.sort_by(f64::total_cmp);
        values.get(values.len() / 2).copied()
    }
}

impl Report {
    /// A line for each case and scheduler.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<26} {:<13} {:>12} {:>9} {:>9} {:>9} {:>8} {:>8} {:>7} {:>7} {:>7} {:>6}\n",
            "",
            "scheduler",
            "requests/s",
            "mean",
            "p99",
            "worst p99",
            "Fair1",
            "of cost",
            "Fair2",
            "Jain",
            "unstdy",
            "ratio"
        );
        for measurement in &self.measurements {
            let value = |metric| measurement.median(metric).unwrap_or(f64::NAN);
            let time = |metric| format!("{:.1} us", value(metric) / 1e3);
            let _ = writeln!(
                text,
                "{:<26} {:<13} {:>12.0} {:>9} {:>9} {:>9} {:>8.4} {:>8.4} {:>7.3} {:>7.4} {:>7.3} {:>6.3}",
                measurement.case.to_string(),
                measurement.scheduler,
                value("throughput"),
                time("latency-mean"),
                time("latency-p99"),
                time("latency-p99-worst-tenant"),
                value("fair1"),
                value("fair1-cost"),
                value("fair2"),
                value("jain"),
                value("unsteadiness"),
                value("throughput-ratio"),
            );
        }
        text
    }

    /// An object a line, as all benches print them.
    ///
    /// # Errors
    /// The writer's.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        for measurement in &self.measurements {
            let case = measurement.case.to_string();
            for (metric, unit) in METRICS {
                let Some(value) = measurement.median(metric) else { continue };
                Figure { bench: "tenants", subject: &measurement.scheduler, case: &case, metric, unit, value }
                    .write(to)?;
            }
        }
        Ok(())
    }

    /// Draws Fair1 and throughput over the number of tenants to `path`, an SVG file.
    ///
    /// # Errors
    /// [`SetupError::Output`].
    pub fn draw(&self, path: &Path) -> Result<(), SetupError> {
        let (mut fair, mut throughput) = (Lines::new(), Lines::new());
        for measurement in &self.measurements {
            let rates = if measurement.case.rates == Rates::Balanced { "balanced" } else { "unbalanced" };
            let name = format!("{}, {rates}", measurement.scheduler);
            let tenants = measurement.case.tenants as f64;
            let add = |lines: &mut Lines, metric, scale: f64| {
                if let Some(value) = measurement.median(metric) {
                    lines.entry(name.clone()).or_default().push((tenants, (value * scale).max(1.0)));
                }
            };
            // The axis begins at 1.
            add(&mut fair, "fair1", 10_000.0);
            add(&mut throughput, "throughput", 1.0);
        }
        let axis = "tenants";
        let label = |value: f64| format!("{:.4}", value / 10_000.0);
        let fair = Panel::new("Fair1 over tenants: less is fairer", axis, fair, label);
        let throughput = Panel::new("requests a second over tenants", axis, throughput, crate::side_by_side::rate);
        draw_panels(&[fair, throughput], path)
    }
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
}
