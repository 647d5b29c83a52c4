//! What tenants got: a table, JSON lines, a plot, and what of the bars is met.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use softdpu_plot::{Lines, Panel, Table};

use super::comparison::{Case, Rates};
use crate::SetupError;
use crate::plot::draw_panels;
use crate::samples::{Samples, Spread};
use crate::side_by_side::{Figure, rate};

/// Metrics in a report, with their units, in its order.
pub const METRICS: [(&str, &str); 14] = [
    ("throughput", "requests/s"),
    ("latency-mean", "ns"),
    ("latency-p99", "ns"),
    ("latency-p99-worst-tenant", "ns"),
    ("fair1", "index"),
    ("fair1-cost", "index"),
    ("fair2", "index"),
    ("jain", "index"),
    ("unsteadiness", "ratio"),
    ("burst", "ratio"),
    ("core-time", "ns/request"),
    ("grant-length", "requests"),
    ("overhead", "ratio"),
    ("throughput-ratio", "ratio"),
];

/// The scheduler that has to meet the bars.
const OURS: &str = "weighted";
/// Jain's index of requests below which a scheduler leaves tenants without service: one that serves a single tenant of
/// four has 0.25.
const SHARED: f64 = 0.75;
/// The most that Fair1 of equal tenants may be.
const FAIR: f64 = 0.02;
/// The most that scheduling may cost beside first come, first served, by the number of tenants.
const OVERHEAD: [(usize, f64); 2] = [(1, 0.01), (4, 0.02)];

/// Titles of the table.
const COLUMNS: [&str; 15] = [
    "case",
    "scheduler",
    "requests/s>",
    "mean>",
    "p99>",
    "worst p99>",
    "Fair1>",
    "of cost>",
    "Fair2>",
    "Jain>",
    "unstdy>",
    "grant>",
    "burst>",
    "ovrhd>",
    "ratio>",
];

/// What a panel shows, of which metric, and how its values are written.
type Chart = (&'static str, &'static str, fn(f64) -> String);

/// One scheduler's figures in one case, round by round, by metric.
#[derive(Clone, Debug)]
pub struct SchedulerMeasurement {
    /// The scheduler.
    pub scheduler: String,
    /// The case.
    pub case: Case,
    rounds: BTreeMap<&'static str, Samples>,
}

impl SchedulerMeasurement {
    pub(super) fn new(scheduler: &str, case: Case) -> SchedulerMeasurement {
        SchedulerMeasurement { scheduler: scheduler.to_owned(), case, rounds: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, metric: &'static str, value: f64) {
        self.rounds.entry(metric).or_default().push(value);
    }

    /// Of the last round.
    pub(super) fn latest(&self, metric: &str) -> Option<f64> {
        self.rounds.get(metric)?.last()
    }

    /// The median, least and largest, over the rounds, of a metric over that of another scheduler in the same round:
    /// what changes on the machine between rounds is not in it.
    fn times(&self, other: &SchedulerMeasurement, metric: &str) -> Option<Spread> {
        let times = self.rounds.get(metric)?.over(other.rounds.get(metric)?);
        (!times.is_empty()).then(|| times.spread())
    }

    /// The median, least and largest of a metric's rounds; none where it was not measured.
    fn spread(&self, metric: &str) -> Option<Spread> {
        self.rounds.get(metric).filter(|values| !values.is_empty()).map(Samples::spread)
    }

    /// The median of a metric's rounds; none where it was not measured.
    pub fn median(&self, metric: &str) -> Option<f64> {
        self.spread(metric).map(|spread| spread.median)
    }
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub struct TenantsReport {
    /// In the order of cases, then schedulers.
    pub measurements: Vec<SchedulerMeasurement>,
}

impl TenantsReport {
    /// A line for each case and scheduler.
    pub fn table(&self) -> String {
        let mut table = Table::new(COLUMNS);
        for measurement in &self.measurements {
            let number = |metric, digits: usize| {
                measurement.median(metric).map_or("-".to_owned(), |value| format!("{value:.digits$}"))
            };
            let time =
                |metric| measurement.median(metric).map_or("-".to_owned(), |value| format!("{:.1} us", value / 1e3));
            let overhead = measurement.median("overhead");
            table.row(vec![
                measurement.case.to_string(),
                measurement.scheduler.clone(),
                number("throughput", 0),
                time("latency-mean"),
                time("latency-p99"),
                time("latency-p99-worst-tenant"),
                number("fair1", 4),
                number("fair1-cost", 4),
                number("fair2", 3),
                number("jain", 4),
                number("unsteadiness", 3),
                number("grant-length", 1),
                number("burst", 2),
                overhead.map_or("-".to_owned(), |value| format!("{:+.1}%", value * 100.0)),
                number("throughput-ratio", 3),
            ]);
        }
        table.to_string()
    }

    /// What is demanded of `weighted`, one line each, with what it is.
    pub fn verdicts(&self) -> Vec<String> {
        let line = |(met, what): &(bool, String)| format!("{:<7} {what}", if *met { "met" } else { "MISSED" });
        self.bars().iter().map(line).collect()
    }

    /// Whether each bar is met, by the median of the rounds, and what it is, with the least and the largest of them:
    /// where the bar is between those, few rounds say little.
    fn bars(&self) -> Vec<(bool, String)> {
        let mut bars = Vec::new();
        let mut judge = |met: bool, what: String| bars.push((met, what));
        for ours in self.measurements.iter().filter(|measurement| measurement.scheduler == OURS) {
            let case = ours.case;
            if case.rates == Rates::Balanced && [2, 4, 8].contains(&case.tenants) {
                // Where requests cost different tenants different times, equal parts are equal in these.
                let (metric, of) =
                    if case.load.is_alike() { ("fair1", "requests") } else { ("fair1-cost", "core time") };
                if let Some(Spread { median: fair, least, most }) = ours.spread(metric) {
                    let range = format!("({least:.4} to {most:.4})");
                    judge(fair <= FAIR, format!("{case}: Fair1 in {of} {fair:.4} {range}, at most {FAIR}"));
                }
            }
            if case.rates == Rates::Unbalanced {
                let others = || self.measurements.iter().filter(|other| other.case == case && other.scheduler != OURS);
                let mut beside = |of: &str, others: &mut dyn Iterator<Item = &SchedulerMeasurement>| {
                    let times = others.filter_map(|other| Some((ours.times(other, "throughput")?, &other.scheduler)));
                    let least_ahead = times.min_by(|(one, _), (other, _)| one.median.total_cmp(&other.median));
                    if let Some((Spread { median: times, least, most }, name)) = least_ahead {
                        let range = format!("({least:.2} to {most:.2})");
                        judge(times >= 1.0, format!("{case}: throughput {times:.3} {range} times that {of} ({name})"));
                    }
                };
                let shares = |other: &&SchedulerMeasurement| other.median("jain").is_some_and(|jain| jain >= SHARED);
                beside("of the best other", &mut others());
                beside("of the best other that serves all", &mut others().filter(shares));
            }
            if let (Some((_, bar)), Some(Spread { median: overhead, least, most })) =
                (OVERHEAD.iter().find(|(tenants, _)| *tenants == case.tenants), ours.spread("overhead"))
            {
                let range = format!("({:+.1} to {:+.1})", least * 100.0, most * 100.0);
                let what = format!("{:+.1} % {range} beside fcfs, at most +{:.0} %", overhead * 100.0, bar * 100.0);
                judge(overhead <= *bar, format!("{case}: core time a request {what}"));
            }
        }
        bars
    }

    /// An object a line, as all benches print them. Last are the bars: `bar` is 1 where what the case says is met, else
    /// 0.
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
        for (met, what) in self.bars() {
            let value = if met { 1.0 } else { 0.0 };
            Figure { bench: "tenants", subject: OURS, case: &what, metric: "bar", unit: "1", value }.write(to)?;
        }
        Ok(())
    }

    /// Draws throughput, Fair1, that of cost, and p99 over the number of tenants to `path`, as SVG or PNG: panels for
    /// each load and rates, in each a line for a scheduler.
    ///
    /// # Errors
    /// [`SetupError::Output`].
    pub fn draw(&self, path: &Path) -> Result<(), SetupError> {
        let index = |value: f64| format!("{value:.3}");
        let charts: [Chart; 4] = [
            ("requests and frames a second", "throughput", rate),
            ("Fair1 (less is fairer)", "fair1", index),
            ("Fair1 of cost", "fair1-cost", index),
            ("mean p99", "latency-p99", |value| format!("{:.0} us", value / 1e3)),
        ];
        let kinds: BTreeSet<_> = self.measurements.iter().map(|one| (one.case.load, one.case.rates)).collect();
        let mut panels = Vec::new();
        for (load, rates) in kinds {
            let of_kind = |one: &&SchedulerMeasurement| (one.case.load, one.case.rates) == (load, rates);
            for (title, metric, label) in charts {
                let mut lines = Lines::new();
                for one in self.measurements.iter().filter(of_kind) {
                    if let Some(value) = one.median(metric) {
                        lines.entry(one.scheduler.clone()).or_default().push((one.case.tenants as f64, value));
                    }
                }
                let kind = if rates == Rates::Balanced { "balanced" } else { "unbalanced" };
                panels.push(Panel::new(format!("{load}, {kind}: {title}"), "tenants", lines, label));
            }
        }
        draw_panels(&panels, path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::comparison::Load;

    fn measurement(name: &str, case: Case, values: &[(&'static str, f64)]) -> SchedulerMeasurement {
        let mut measurement = SchedulerMeasurement::new(name, case);
        values.iter().for_each(|&(metric, value)| measurement.add(metric, value));
        measurement
    }

    #[test]
    fn bars_are_judged_by_what_is_alike_in_a_case() {
        let frames = softdpu_frontend::Frames::Smallest;
        let alike = Case { load: Load::Block, tenants: 2, rates: Rates::Balanced };
        let unlike = Case { load: Load::Mixed(frames), ..alike };
        let values = [("fair1", 0.3), ("fair1-cost", 0.01)];
        let report = TenantsReport {
            measurements: vec![measurement("weighted", alike, &values), measurement("weighted", unlike, &values)],
        };
        let verdicts = report.verdicts();
        assert!(verdicts[0].starts_with("MISSED") && verdicts[1].starts_with("met"), "{verdicts:?}");
    }

    #[test]
    fn throughput_is_judged_round_by_round_and_also_beside_those_that_serve_all() {
        let case = Case { load: Load::Block, tenants: 4, rates: Rates::Unbalanced };
        let subject = |name: &str, rates: [f64; 3], jain: f64| {
            let mut subject = measurement(name, case, &[("jain", jain)]);
            rates.iter().for_each(|rate| subject.add("throughput", *rate));
            subject
        };
        // A machine that is twice as fast in one round: the median of neither is what they are beside each other.
        let measurements = vec![
            subject("weighted", [100.0, 210.0, 90.0], 0.99),
            subject("lognic", [125.0, 250.0, 125.0], 0.25),
            subject("fcfs", [80.0, 200.0, 80.0], 0.95),
        ];
        let verdicts = TenantsReport { measurements }.verdicts();
        assert!(verdicts[0].starts_with("MISSED") && verdicts[0].contains("0.800 (0.72 to 0.84)"), "{verdicts:?}");
        assert!(verdicts[1].starts_with("met") && verdicts[1].contains("1.125"), "{verdicts:?}");
    }

    #[test]
    fn throughput_is_judged_beside_the_best_other() {
        let case = Case { load: Load::Block, tenants: 2, rates: Rates::Unbalanced };
        let rates = [("weighted", 99.0), ("mtda", 90.0), ("fcfs", 100.0)];
        let measurements = rates.map(|(name, rate)| measurement(name, case, &[("throughput", rate)])).into();
        let verdicts = TenantsReport { measurements }.verdicts();
        assert!(
            verdicts.len() == 1 && verdicts[0].starts_with("MISSED") && verdicts[0].contains("fcfs"),
            "{verdicts:?}"
        );
    }
}
