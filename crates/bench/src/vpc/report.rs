//! What was measured, for people and for programs.

use std::fmt::Write as _;
use std::io;

use softdpu_plot::Table;

use super::Peer;
use super::bars::{BARS, Outcome};
use crate::samples::{Samples, Spread};
use crate::side_by_side::{Figure, rate};

/// One case.
#[derive(Clone, Debug)]
pub struct CaseMeasurement {
    /// Its name.
    pub case: String,
    /// Nanoseconds for an operation.
    pub nanos: Samples,
    /// Metric, unit, value.
    pub figures: Vec<(&'static str, &'static str, f64)>,
}

/// Everything that was measured.
#[derive(Clone, Debug)]
pub struct VpcReport {
    /// Ticks of the processor's time-stamp counter in a nanosecond: what cycles are counted in.
    pub ticks: Option<f64>,
    /// Case by case.
    pub measurements: Vec<CaseMeasurement>,
    /// Other programs.
    pub peers: Vec<Peer>,
    /// What was not measured, and why.
    pub left_out: Vec<(String, String)>,
}

impl VpcReport {
    pub(super) fn new(ticks: Option<f64>) -> VpcReport {
        VpcReport { ticks, measurements: Vec::new(), peers: Vec::new(), left_out: Vec::new() }
    }

    /// One JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        let mut line = |subject: &str, case: &str, metric: &str, unit, value| {
            Figure { bench: "vpc", subject, case, metric, unit, value }.write(to)
        };
        for measurement in &self.measurements {
            let Spread { median, least, most } = measurement.nanos.spread();
            let case = &measurement.case;
            // Most time is least rate.
            for (metric, nanos) in [("rate", median), ("rate-min", most), ("rate-max", least)] {
                line("softdpu", case, metric, "1/s", 1e9 / nanos)?;
            }
            line("softdpu", case, "time", "ns", median)?;
            if let Some(ticks) = self.ticks {
                line("softdpu", case, "cycles", "1", median * ticks)?;
            }
            for (metric, unit, value) in &measurement.figures {
                line("softdpu", case, metric, unit, *value)?;
            }
        }
        for bar in BARS {
            let is_met = match bar.outcome(&self.measurements) {
                Outcome::Met(_) => 1.0,
                Outcome::Missed(_) => 0.0,
                Outcome::NotMeasured => continue,
            };
            line("softdpu", bar.case, &format!("bar: {}", bar.metric), "1", is_met)?;
        }
        for peer in &self.peers {
            for (metric, unit, value) in &peer.figures {
                line(&peer.subject, &peer.case, metric, unit, *value)?;
            }
        }
        Ok(())
    }

    /// A table for people.
    pub fn table(&self) -> String {
        // Writing to a String cannot fail.
        let mut out = String::new();
        let cycles = self.ticks.map(|ticks| format!("; a cycle is one of {ticks:.2} GHz, the time-stamp counter's"));
        let _ = writeln!(out, "one core{}\n", cycles.unwrap_or_default());
        let mut table = Table::new(["case", "median>", "min - max>", "ns>", "cycles>"]);
        for measurement in &self.measurements {
            let Spread { median, least, most } = measurement.nanos.spread();
            let range = format!("{} - {}", rate(1e9 / most), rate(1e9 / least));
            let cycles = self.ticks.map_or("-".to_owned(), |ticks| format!("{:.0}", median * ticks));
            let time = format!("{median:.1}");
            table.row(vec![measurement.case.clone(), rate(1e9 / median), range, time, cycles]);
            figures(&mut table, &measurement.figures);
        }
        for peer in &self.peers {
            table.line(format!("{}: {}", peer.subject, peer.case));
            figures(&mut table, &peer.figures);
        }
        let _ = writeln!(out, "{table}\nbars");
        for bar in BARS {
            let _ = writeln!(out, "    {}", bar.line(&self.measurements));
        }
        for (what, why) in &self.left_out {
            let _ = writeln!(out, "\n{what}: left out: {why}");
        }
        out
    }
}

fn figures(table: &mut Table, figures: &[(&'static str, &'static str, f64)]) {
    for (metric, unit, value) in figures {
        let (unit, decimals) = match *unit {
            "1" => ("", 1),
            unit @ ("x" | "%") => (unit, 2),
            unit => (unit, 1),
        };
        table.line(format!("    {metric:<40} {value:>12.decimals$} {unit}").trim_end().to_owned());
    }
}
