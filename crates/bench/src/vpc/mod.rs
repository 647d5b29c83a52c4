//! The gateway's tables and tiers in memory, on one core: what a look-up, a flow, a change costs.
//!
//! ```text
//!   a topic's cases()  ──▶ Case::prepare ──▶ Load::run, in rounds ──▶ Report: table, JSON lines
//!   a topic's peers()  ──▶ the figures of other programs for the same, where they are installed
//! ```
//!
//! Nothing here moves a packet: rings and sockets are measured by [`net`](crate::net).

mod acl;
pub mod bars;
mod changes;
mod conntrack;
mod exact;
mod flow;
mod hash;
mod lpm;
mod policy;
pub mod report;

use softdpu_sys::clock;

use crate::side_by_side::on_cpu;
use report::{CaseMeasurement, VpcReport};

/// Something that is measured.
pub trait Case: Send + Sync {
    /// What it is called: topic first, then what is special, in few words.
    fn name(&self) -> String;

    /// Makes what is measured: that is not part of the measurement.
    ///
    /// # Errors
    /// A sentence for the user: not enough memory, say.
    fn prepare(&self) -> Result<Box<dyn Load>, String>;
}

/// A case made ready.
pub trait Load {
    /// Does about `operations` operations (it may go on to the end of a batch) and returns how many it did.
    fn run(&mut self, operations: u64) -> u64;

    /// What else was measured: metric, unit, value. Bytes for an entry, quantiles of single operations.
    fn figures(&self) -> Vec<(&'static str, &'static str, f64)> {
        Vec::new()
    }
}

/// Figures of a program that is compared with.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The program.
    pub subject: String,
    /// The case, as the program calls it.
    pub case: String,
    /// Metric, unit, value.
    pub figures: Vec<(&'static str, &'static str, f64)>,
}

/// Runs programs on a CPU, and gives what they found.
type Peers = fn(cpu: usize) -> Result<Vec<Peer>, String>;

/// A part of the gateway.
struct Topic {
    name: &'static str,
    cases: fn() -> Vec<Box<dyn Case>>,
    /// Runs other programs. An error is why there is nothing to compare with.
    peers: Option<Peers>,
}

/// All parts, in the order in which packets meet them.
const TOPICS: &[Topic] = &[
    Topic { name: "exact", cases: exact::cases, peers: Some(hash::peers) },
    Topic { name: "flow", cases: flow::cases, peers: None },
    Topic { name: "lpm", cases: lpm::cases, peers: Some(lpm::peers) },
    Topic { name: "changes", cases: changes::cases, peers: None },
    Topic { name: "acl", cases: acl::cases, peers: Some(acl::peers) },
    Topic { name: "conntrack", cases: conntrack::cases, peers: None },
    Topic { name: "policy", cases: policy::cases, peers: None },
];

/// What to measure, how often and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Names of topics; empty: all.
    pub topics: Vec<String>,
    /// A part of the cases' names; empty: all.
    pub case: String,
    /// Rounds of each case.
    pub rounds: usize,
    /// Length of a round, seconds.
    pub seconds: f64,
    /// The core.
    pub cpu: usize,
    /// Other programs too.
    pub peers: bool,
}

/// Names of all topics.
pub fn topics() -> impl Iterator<Item = &'static str> {
    TOPICS.iter().map(|topic| topic.name)
}

/// Measures what `plan` says; `progress` gets the name of each case before it runs.
///
/// # Errors
/// A sentence for the user: no such topic, no such case, a CPU that can't be used.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<VpcReport, String> {
    if let Some(unknown) = plan.topics.iter().find(|name| !topics().any(|topic| topic == **name)) {
        let known: Vec<_> = topics().collect();
        return Err(format!("there is no topic {unknown}: expected one of {}", known.join(", ")));
    }
    let mut report = VpcReport::new(clock::ticks_per_nanosecond());
    for topic in
        TOPICS.iter().filter(|topic| plan.topics.is_empty() || plan.topics.iter().any(|name| name == topic.name))
    {
        for case in (topic.cases)().iter().filter(|case| case.name().contains(&plan.case)) {
            progress(&case.name());
            match on_cpu(plan.cpu, |wrong| wrong, || measure(plan, &**case)) {
                Ok(measurement) => report.measurements.push(measurement),
                Err(why) => report.left_out.push((case.name(), why)),
            }
        }
        if let Some(peers) = topic.peers.filter(|_| plan.peers) {
            progress(&format!("{}: peers", topic.name));
            match peers(plan.cpu) {
                Ok(peers) => report.peers.extend(peers),
                Err(why) => report.left_out.push((format!("peers of {}", topic.name), why)),
            }
        }
    }
    if report.measurements.is_empty() && report.left_out.is_empty() {
        return Err(format!("no case has \"{}\" in its name", plan.case));
    }
    Ok(report)
}

/// One case in its rounds. How many operations make a round is found by trying.
fn measure(plan: &Plan, case: &dyn Case) -> Result<CaseMeasurement, String> {
    let mut load = case.prepare()?;
    let wanted = plan.seconds * 1e9;
    let mut operations = 64;
    let mut timed = |operations: u64| {
        let start = clock::now();
        let done = load.run(operations).max(1);
        (done, (clock::now() - start).max(1) as f64)
    };
    loop {
        let (done, nanos) = timed(operations);
        if nanos >= wanted / 8.0 {
            operations = ((done as f64 * wanted / nanos) as u64).max(1);
            break;
        }
        operations = operations.saturating_mul(2);
    }
    let nanos = (0..plan.rounds.max(1))
        .map(|_| {
            let (done, nanos) = timed(operations);
            nanos / done as f64
        })
        .collect();
    Ok(CaseMeasurement { case: case.name(), nanos, figures: load.figures() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(topics: &[&str], case: &str) -> Plan {
        let topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        Plan { topics, case: case.to_owned(), rounds: 1, seconds: 0.0005, cpu: 0, peers: false }
    }

    #[test]
    fn what_is_asked_for_is_measured_and_nothing_else() {
        let mut named = Vec::new();
        let report = run(&plan(&["exact"], "64 k"), |name| named.push(name.to_owned())).unwrap();
        assert_eq!(report.measurements.iter().map(|found| found.case.clone()).collect::<Vec<_>>(), named);
        assert!(named.iter().all(|name| name.contains("64 k")) && !named.is_empty());
        let mut json = Vec::new();
        report.write_json(&mut json).unwrap();
        let lines = String::from_utf8(json).unwrap();
        assert!(lines.contains(r#""metric":"rate""#) && report.table().contains(&named[0]), "{lines}");
    }

    #[test]
    fn what_there_is_not_is_an_error_that_says_what_there_is() {
        let wrong = run(&plan(&["exakt"], ""), |_| ()).unwrap_err();
        assert!(wrong.contains("exakt") && wrong.contains("exact"), "{wrong}");
        assert!(run(&plan(&["exact"], "no such case"), |_| ()).is_err());
    }
}
