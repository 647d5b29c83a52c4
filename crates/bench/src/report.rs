//! What was measured of disks, for people and for programs.

use std::fmt;

use hdrhistogram::Histogram;
use softdpu_frontend::Format;
use softdpu_frontend::load::{Outcome, Pattern, Waiting};

use crate::comparison::VolumeKind;
use crate::side_by_side::{self, Work, client, rate};

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

/// Requests of all rounds.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    requests: u64,
    kicks: u64,
    interrupts: u64,
    /// Latencies, nanoseconds.
    latency: Option<Histogram<u64>>,
}

/// One subject's figures in one case.
pub type BlockMeasurement = side_by_side::Measurement<Requests>;
/// Everything that was measured.
pub type BlockReport = side_by_side::Report<Requests>;

/// Latency quantiles in a report, with their names.
pub const QUANTILES: [(f64, &str); 3] = [(0.5, "latency-p50"), (0.99, "latency-p99"), (0.999, "latency-p99.9")];

impl Requests {
    /// The latency that a share `quantile` of the requests did not exceed, nanoseconds.
    pub fn latency_at(&self, quantile: f64) -> u64 {
        self.latency.as_ref().map_or(0, |latency| latency.value_at_quantile(quantile))
    }

    /// Notifications that the client slept for, per request.
    pub fn interrupts_per_request(&self) -> f64 {
        self.per_request(self.interrupts)
    }

    fn per_request(&self, count: u64) -> f64 {
        count as f64 / self.requests.max(1) as f64
    }
}

impl Work for Requests {
    type Case = Case;
    type Outcome = Outcome;

    const BENCH: &'static str = "block";
    const RATE: [&'static str; 4] = ["iops", "iops-min", "iops-max", "iops-ratio"];
    const COLUMNS: &'static [&'static str] = &[
        "IOPS>",
        "min - max>",
        "ratio>",
        "p50>",
        "p99>",
        "p99.9>",
        "client>",
        "batch>",
        "kicks>",
        "interrupts>",
        "2 hops>",
    ];

    fn rate(outcome: &Outcome) -> f64 {
        outcome.rate()
    }

    fn client(outcome: &Outcome) -> Option<(f64, f64)> {
        client(outcome)
    }

    fn add(&mut self, outcome: &Outcome) {
        self.requests += outcome.requests;
        self.kicks += outcome.kicks;
        self.interrupts += outcome.interrupts;
        match &mut self.latency {
            // Same bounds throughout, so nothing is out of range.
            Some(all) => drop(all.add(&outcome.latency)),
            none => *none = Some(outcome.latency.clone()),
        }
    }

    fn figures(measurement: &BlockMeasurement) -> Vec<(&'static str, &'static str, f64)> {
        let work = &measurement.work;
        let mut figures: Vec<_> =
            QUANTILES.iter().map(|(quantile, name)| (*name, "ns", work.latency_at(*quantile) as f64)).collect();
        figures.extend([
            ("two-hops", "ns", measurement.two_hops()),
            ("kicks-per-request", "1", work.per_request(work.kicks)),
            ("notifications-per-request", "1", work.interrupts_per_request()),
        ]);
        if let Some((busy, batch)) = measurement.client {
            figures.extend([("client-time-per-request", "ns", busy), ("requests-per-batch", "1", batch)]);
        }
        figures
    }

    fn cells(measurement: &BlockMeasurement, ratio: String) -> Vec<String> {
        let work = &measurement.work;
        let mut cells = vec![rate(measurement.rates.median()), measurement.range_cell(), ratio];
        cells.extend(QUANTILES.iter().map(|(quantile, _)| time(work.latency_at(*quantile))));
        cells.extend(measurement.client_cells(0));
        cells.extend([work.kicks, work.interrupts].map(|count| format!("{:.4}", work.per_request(count))));
        cells.push(format!("{:.0} ns", measurement.two_hops()));
        cells
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
