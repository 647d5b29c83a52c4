//! What was measured, for people and for programs.

use std::fmt::{self, Write as _};
use std::io;

use serde::Serialize;
use softdpu_frontend::load::Outcome;
use softdpu_plot::Table;

use crate::calibration::Calibration;
use crate::samples::{Samples, Spread};
use crate::turns::Conditions;

/// A kind of work that subjects are measured at: what its rounds add up to, and how that is shown.
pub trait Work: Default {
    /// What is held equal between subjects.
    type Case: Clone + Eq + fmt::Display;
    /// What one measurement gives.
    type Outcome;

    /// As `bench` in JSON.
    const BENCH: &'static str;
    /// The rate's metrics in JSON: its median, least, largest, and the ratio to the peer's.
    const RATE: [&'static str; 4];
    /// Titles of the table's columns behind case and subject, as [`Table::new`] takes them.
    const COLUMNS: &'static [&'static str];

    /// Units of work a second.
    fn rate(outcome: &Self::Outcome) -> f64;
    /// Of a profiled measurement: nanoseconds that the client itself takes for a unit, and units in a batch.
    fn client(outcome: &Self::Outcome) -> Option<(f64, f64)>;
    /// Adds a measurement.
    fn add(&mut self, outcome: &Self::Outcome);
    /// The metrics between the rate's and its ratio: name, unit, value.
    fn figures(measurement: &Measurement<Self>) -> Vec<(&'static str, &'static str, f64)>;
    /// The cells of the columns.
    fn cells(measurement: &Measurement<Self>, ratio: String) -> Vec<String>;
}

/// Rounds that a median says something of.
const ENOUGH: usize = 3;

/// One subject's figures in one case.
#[derive(Clone, Debug)]
pub struct Measurement<W: Work> {
    /// Name of the subject.
    pub subject: String,
    /// The case.
    pub case: W::Case,
    /// Units of work a second.
    pub rates: Samples,
    /// What the machine was like, round by round.
    conditions: Vec<Conditions>,
    /// Time the client itself takes for a unit, nanoseconds, and units in a batch.
    pub client: Option<(f64, f64)>,
    /// All rounds together.
    pub work: W,
}

impl<W: Work> Measurement<W> {
    pub(crate) fn new(subject: &str, case: W::Case) -> Self {
        let (rates, conditions) = (Samples::default(), Vec::new());
        Measurement { subject: subject.to_owned(), case, rates, conditions, client: None, work: W::default() }
    }

    pub(crate) fn add(&mut self, outcome: &W::Outcome, conditions: Conditions) {
        if let Some(client) = W::client(outcome) {
            self.client = Some(client);
            return;
        }
        self.rates.push(W::rate(outcome));
        self.conditions.push(conditions);
        self.work.add(outcome);
    }

    /// Median of the rounds' two hops, nanoseconds.
    pub fn two_hops(&self) -> f64 {
        self.conditions.iter().map(|conditions| conditions.hops).collect::<Samples>().median()
    }

    /// Its rate over `peer`'s, round by round: of the rounds in which nothing moved, if those are [`ENOUGH`].
    fn ratios(&self, peer: &Self) -> Samples {
        let all = self.rates.over(&peer.rates);
        let steady = all.iter().zip(&self.conditions).filter(|(_, conditions)| conditions.is_steady);
        let steady: Samples = steady.map(|(ratio, _)| ratio).collect();
        if steady.len() >= ENOUGH { steady } else { all }
    }

    /// What the client takes and units in a batch, for a table; nanoseconds with `digits` behind the point.
    pub(crate) fn client_cells(&self, digits: usize) -> [String; 2] {
        match self.client {
            Some((busy, batch)) => [format!("{busy:.digits$} ns"), format!("{batch:.1}")],
            None => [String::from("-"), String::from("-")],
        }
    }

    /// Least and largest rate, for a table.
    pub(crate) fn range_cell(&self) -> String {
        let Spread { least, most, .. } = self.rates.spread();
        format!("{} - {}", rate(least), rate(most))
    }
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct Report<W: Work> {
    /// The machine alone.
    pub calibration: Calibration,
    /// Case by case, and in each subject by subject.
    pub measurements: Vec<Measurement<W>>,
    /// Rounds in which the distance of the two CPUs changed. They were repeated, three times at the most.
    pub disturbed: usize,
    /// Subjects that could not be measured in a case, and why.
    pub left_out: Vec<(String, W::Case, String)>,
}

/// One figure, as `--json` prints it: an object a line, its keys in this order.
#[derive(Debug, Serialize)]
pub(crate) struct Figure<'a> {
    pub bench: &'static str,
    pub subject: &'a str,
    pub case: &'a str,
    pub metric: &'a str,
    pub unit: &'static str,
    pub value: f64,
}

impl Figure<'_> {
    pub(crate) fn write(&self, to: &mut impl io::Write) -> io::Result<()> {
        serde_json::to_writer(&mut *to, self)?;
        writeln!(to)
    }
}

impl<W: Work> Report<W> {
    /// Median over the rounds of the rate of `measurement` over that of the last other subject of its case in the same
    /// round; none where it is alone, or that other. Two that were measured one right after the other met the same
    /// machine; their medians by themselves may be of two: virtual CPUs that move next to each other and apart make
    /// rates that differ twofold.
    pub fn ratio(&self, measurement: &Measurement<W>) -> Option<f64> {
        let peer = self.measurements.iter().rev().find(|other| other.case == measurement.case)?;
        if peer.subject == measurement.subject {
            return None;
        }
        Some(measurement.ratios(peer).median())
    }

    /// One JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        let mut line = |subject: &str, case: &str, metric, unit, value| {
            Figure { bench: W::BENCH, subject, case, metric, unit, value }.write(to)
        };
        line("machine", "calibration", "two-hops", "ns", self.calibration.two_hops)?;
        line("machine", "calibration", "clock-reading", "ns", self.calibration.clock)?;
        line("machine", "calibration", "disturbed-rounds", "1", self.disturbed as f64)?;
        for measurement in &self.measurements {
            let (subject, case) = (&measurement.subject, measurement.case.to_string());
            let Spread { median, least, most } = measurement.rates.spread();
            for (metric, value) in W::RATE.into_iter().zip([median, least, most]) {
                line(subject, &case, metric, "1/s", value)?;
            }
            for (metric, unit, value) in W::figures(measurement) {
                line(subject, &case, metric, unit, value)?;
            }
            if let Some(ratio) = self.ratio(measurement) {
                line(subject, &case, W::RATE[3], "1", ratio)?;
            }
        }
        Ok(())
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut table = Table::new(["case", "subject"].iter().chain(W::COLUMNS).copied());
        let mut previous = None;
        for measurement in &self.measurements {
            let case = measurement.case.to_string();
            let shown = if previous.as_ref() == Some(&case) { String::new() } else { case.clone() };
            let ratio = self.ratio(measurement).map_or(String::from("-"), |ratio| format!("{ratio:.2}"));
            let mut row = vec![shown, measurement.subject.clone()];
            row.extend(W::cells(measurement, ratio));
            table.row(row);
            previous = Some(case);
        }
        let Calibration { two_hops, clock } = self.calibration;
        let mut out = format!("two bare cross-core hops {two_hops:.0} ns, a clock reading {clock:.1} ns\n\n{table}");
        // Writing to a String cannot fail.
        for (subject, case, why) in &self.left_out {
            let _ = writeln!(out, "\n{case}: {subject} was left out: {why}");
        }
        if self.disturbed > 0 {
            let _ = writeln!(
                out,
                "\n{} rounds were disturbed: the distance between the CPUs changed (a virtual machine's CPUs were moved?); they \
                 were repeated where possible",
                self.disturbed
            );
        }
        out
    }
}

/// Of a profiled measurement: nanoseconds that the client itself takes for a request, and requests in a batch.
pub(crate) fn client(outcome: &Outcome) -> Option<(f64, f64)> {
    let requests = outcome.requests.max(1) as f64;
    Some((outcome.busy?.as_nanos() as f64 / requests, requests / outcome.batches.max(1) as f64))
}

/// Units a second with three or four digits.
pub(crate) fn rate(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} M/s", value / 1e6),
        value if value >= 1e3 => format!("{:.1} k/s", value / 1e3),
        value => format!("{value:.1} /s"),
    }
}
