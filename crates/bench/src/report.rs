//! What was measured, for people and for programs.

use std::fmt::{self, Write as _};
use std::io;

use hdrhistogram::Histogram;
use serde::Serialize;
use softdpu_ring::Format;

use crate::calibration::Calibration;
use crate::comparison::VolumeKind;
use crate::load::{Outcome, Pattern, Waiting};

/// What is held equal between subjects.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// Volume.
    pub volume: VolumeKind,
    /// Access pattern.
    pub pattern: Pattern,
    /// Bytes of a request.
    pub block_size: u32,
    /// Queues.
    pub queues: u16,
    /// Ring layout.
    pub format: Format,
    /// How the client waits.
    pub client: Waiting,
    /// Requests in flight on each queue.
    pub depth: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = match self.block_size {
            size if size.is_multiple_of(1024) => format!("{}k", size / 1024),
            size => format!("{size}"),
        };
        write!(f, "{} {} {size} q{}", self.volume, self.pattern.name(), self.queues)?;
        if self.format == Format::Packed {
            f.write_str(" packed")?;
        }
        write!(f, " {} qd{}", self.client, self.depth)
    }
}

impl fmt::Display for VolumeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VolumeKind::Null => "null",
            VolumeKind::Memory => "memory",
            VolumeKind::File => "file",
        })
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiting::Polling => "polling",
            Waiting::Blocking => "blocking",
        })
    }
}

/// One subject's figures in one case.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Who.
    pub subject: String,
    /// What.
    pub case: Case,
    /// Requests a second, round by round.
    pub iops: Vec<f64>,
    /// Two bare cross-core hops just before and after, nanoseconds, round by round.
    pub hops: Vec<f64>,
    /// Latencies of all rounds, nanoseconds.
    pub latency: Option<Histogram<u64>>,
    /// Kicks sent per request.
    pub kicks: f64,
    /// Notifications slept for per request.
    pub interrupts: f64,
    /// Time the client itself takes for a request, nanoseconds, and requests in a batch.
    pub client: Option<(f64, f64)>,
    requests: u64,
}

impl Measurement {
    pub(crate) fn new(subject: &str, case: Case) -> Measurement {
        Measurement {
            subject: subject.to_owned(),
            case,
            iops: Vec::new(),
            hops: Vec::new(),
            latency: None,
            kicks: 0.0,
            interrupts: 0.0,
            client: None,
            requests: 0,
        }
    }

    pub(crate) fn add(&mut self, outcome: &Outcome, hops: f64) {
        let requests = outcome.requests.max(1) as f64;
        if let Some(busy) = outcome.busy {
            self.client = Some((busy.as_nanos() as f64 / requests, requests / outcome.batches.max(1) as f64));
            return;
        }
        self.iops.push(outcome.iops());
        self.hops.push(hops);
        let (before, all) = (self.requests as f64, self.requests as f64 + requests);
        self.kicks = (self.kicks * before + outcome.kicks as f64) / all;
        self.interrupts = (self.interrupts * before + outcome.interrupts as f64) / all;
        self.requests += outcome.requests;
        match &mut self.latency {
            // Same bounds throughout, so nothing is out of range.
            Some(all) => drop(all.add(&outcome.latency)),
            none => *none = Some(outcome.latency.clone()),
        }
    }

    /// Median of the rounds' two hops, nanoseconds.
    pub fn two_hops(&self) -> f64 {
        let mut sorted = self.hops.clone();
        sorted.sort_by(f64::total_cmp);
        median(&sorted)
    }

    /// Median, least, largest of the rounds' IOPS.
    pub fn spread(&self) -> (f64, f64, f64) {
        let mut sorted = self.iops.clone();
        sorted.sort_by(f64::total_cmp);
        let (least, most) = (sorted.first().copied().unwrap_or_default(), sorted.last().copied().unwrap_or_default());
        (median(&sorted), least, most)
    }

    /// The latency that a share `quantile` of the requests did not exceed, nanoseconds.
    pub fn latency_at(&self, quantile: f64) -> u64 {
        self.latency.as_ref().map_or(0, |latency| latency.value_at_quantile(quantile))
    }
}

/// Of sorted values; 0 of none.
pub(crate) fn median(sorted: &[f64]) -> f64 {
    match sorted.len() {
        0 => 0.0,
        odd if odd % 2 == 1 => sorted[odd / 2],
        even => (sorted[even / 2 - 1] + sorted[even / 2]) / 2.0,
    }
}

/// Latency quantiles in a report, with their names.
pub const QUANTILES: [(f64, &str); 3] = [(0.5, "latency-p50"), (0.99, "latency-p99"), (0.999, "latency-p99.9")];

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct Report {
    /// The machine alone.
    pub calibration: Calibration,
    /// Case by case, and in each subject by subject.
    pub measurements: Vec<Measurement>,
    /// Rounds in which the distance of the two CPUs changed. They were repeated, three times at the most.
    pub disturbed: usize,
}

/// One figure, as `--json` prints it: an object a line, its keys in this order.
#[derive(Debug, Serialize)]
pub(crate) struct Figure<'a> {
    pub bench: &'static str,
    pub subject: &'a str,
    pub case: String,
    pub metric: &'static str,
    pub unit: &'static str,
    pub value: f64,
}

impl Figure<'_> {
    pub(crate) fn write(&self, to: &mut impl io::Write) -> io::Result<()> {
        serde_json::to_writer(&mut *to, self)?;
        writeln!(to)
    }
}

impl Report {
    /// Median of the IOPS of `measurement` over that of the last other subject of its case; none where it is alone, or that
    /// other.
    pub fn ratio(&self, measurement: &Measurement) -> Option<f64> {
        let peer = self.measurements.iter().rev().find(|other| other.case == measurement.case)?;
        if peer.subject == measurement.subject {
            return None;
        }
        Some(measurement.spread().0 / peer.spread().0)
    }

    /// Whom the others are compared with.
    pub fn peer(&self) -> Option<&str> {
        let last = self.measurements.last()?;
        self.measurements.iter().any(|other| other.subject != last.subject).then_some(&last.subject)
    }

    /// One JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        let mut line = |subject, case: String, metric, unit, value| {
            Figure { bench: "block", subject, case, metric, unit, value }.write(to)
        };
        line("machine", "calibration".to_owned(), "two-hops", "ns", self.calibration.two_hops)?;
        line("machine", "calibration".to_owned(), "clock-reading", "ns", self.calibration.clock)?;
        line("machine", "calibration".to_owned(), "disturbed-rounds", "1", self.disturbed as f64)?;
        for measurement in &self.measurements {
            let (subject, case) = (measurement.subject.as_str(), measurement.case.to_string());
            let (median, least, most) = measurement.spread();
            line(subject, case.clone(), "iops", "1/s", median)?;
            line(subject, case.clone(), "iops-min", "1/s", least)?;
            line(subject, case.clone(), "iops-max", "1/s", most)?;
            for (quantile, name) in QUANTILES {
                line(subject, case.clone(), name, "ns", measurement.latency_at(quantile) as f64)?;
            }
            line(subject, case.clone(), "two-hops", "ns", measurement.two_hops())?;
            line(subject, case.clone(), "kicks-per-request", "1", measurement.kicks)?;
            line(subject, case.clone(), "notifications-per-request", "1", measurement.interrupts)?;
            if let Some((busy, batch)) = measurement.client {
                line(subject, case.clone(), "client-time-per-request", "ns", busy)?;
                line(subject, case.clone(), "requests-per-batch", "1", batch)?;
            }
            if let Some(ratio) = self.ratio(measurement) {
                line(subject, case.clone(), "iops-ratio", "1", ratio)?;
            }
        }
        Ok(())
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            out,
            "two bare cross-core hops {:.0} ns, a clock reading {:.1} ns\n",
            self.calibration.two_hops, self.calibration.clock
        );
        let _ = writeln!(
            out,
            "{:<36} {:<20} {:>10} {:>23} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>7} {:>7}",
            "case",
            "subject",
            "IOPS",
            "min - max",
            "ratio",
            "p50",
            "p99",
            "p99.9",
            "client",
            "batch",
            "kicks",
            "2 hops"
        );
        let mut previous = None;
        for measurement in &self.measurements {
            let (median, least, most) = measurement.spread();
            let case = measurement.case.to_string();
            let shown = if previous.as_ref() == Some(&case) { "" } else { &case };
            let (busy, batch) = measurement.client.map_or((String::from("-"), String::from("-")), |(busy, batch)| {
                (format!("{busy:.0} ns"), format!("{batch:.1}"))
            });
            let _ = writeln!(
                out,
                "{shown:<36} {:<20} {:>10} {:>23} {:>7} {:>9} {:>9} {:>9} {:>7} {:>6} {:>7.4} {:>7}",
                measurement.subject,
                rate(median),
                format!("{} - {}", rate(least), rate(most)),
                self.ratio(measurement).map_or(String::from("-"), |ratio| format!("{ratio:.2}")),
                time(measurement.latency_at(QUANTILES[0].0)),
                time(measurement.latency_at(QUANTILES[1].0)),
                time(measurement.latency_at(QUANTILES[2].0)),
                busy,
                batch,
                measurement.kicks,
                format!("{:.0} ns", measurement.two_hops()),
            );
            previous = Some(case);
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

/// Requests a second with three or four digits.
pub(crate) fn rate(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2} M/s", value / 1e6),
        value if value >= 1e3 => format!("{:.1} k/s", value / 1e3),
        value => format!("{value:.1} /s"),
    }
}

/// Nanoseconds in the unit that suits.
pub(crate) fn time(nanos: u64) -> String {
    match nanos {
        nanos if nanos >= 10_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        nanos if nanos >= 1000 => format!("{:.2} us", nanos as f64 / 1e3),
        nanos => format!("{nanos} ns"),
    }
}
