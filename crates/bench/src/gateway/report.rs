//! Losses and round trips, for people and for programs.

use std::io;

use super::{Between, Outcome};
use crate::side_by_side::Figure;

/// What was measured, each with the highest rate at which nothing was lost.
#[derive(Clone, Debug)]
pub struct Report {
    /// What frames went between.
    pub between: Between,
    /// Flows that frames belonged to.
    pub flows: u16,
    /// With the flow tier.
    pub with: (f64, Outcome),
    /// Every frame decided by itself.
    pub without: (f64, Outcome),
}

impl Report {
    fn cases(&self) -> [(&'static str, &(f64, Outcome)); 2] {
        let [with, without] = match self.between {
            Between::Guests => ["flow-tier", "no-flow-tier"],
            Between::Sites => ["sites, flow-tier", "sites, no-flow-tier"],
        };
        [(with, &self.with), (without, &self.without)]
    }

    /// One JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        for (case, (highest, outcome)) in self.cases() {
            let quantile = |at: f64| outcome.round_trips.value_at_quantile(at) as f64;
            for (metric, unit, value) in [
                ("no-drop-rate", "1/s", *highest),
                ("rate", "1/s", outcome.rate),
                ("sent", "1", outcome.sent as f64),
                ("lost", "1", outcome.lost as f64),
                ("refused", "1", outcome.refused as f64),
                ("server-stolen", "ns", outcome.stolen.as_nanos() as f64),
                ("round-trip", "ns", outcome.round_trips.mean()),
                ("round-trip-p50", "ns", quantile(0.5)),
                ("round-trip-p99", "ns", quantile(0.99)),
                ("sender-held-up", "1", outcome.held_up as f64),
            ] {
                Figure { bench: "gateway", subject: "softdpu", case, metric, unit, value }.write(to)?;
            }
        }
        Ok(())
    }

    /// For people.
    pub fn table(&self) -> String {
        let mut text = format!(
            "{:<20} {:>14} {:>12} {:>10} {:>8} {:>12} {:>12} {:>12}\n",
            "", "no-drop rate/s", "sent at/s", "frames", "lost", "mean RTT µs", "p50 µs", "p99 µs"
        );
        for (case, (highest, outcome)) in self.cases() {
            let micros = |nanos: f64| nanos / 1e3;
            let quantile = |at: f64| micros(outcome.round_trips.value_at_quantile(at) as f64);
            text.push_str(&format!(
                "{case:<20} {highest:>14.0} {:>12.0} {:>10} {:>8} {:>12.1} {:>12.1} {:>12.1}\n",
                outcome.rate,
                outcome.sent,
                outcome.lost,
                micros(outcome.round_trips.mean()),
                quantile(0.5),
                quantile(0.99)
            ));
        }
        text.push_str(&format!(
            "\n{} flows of 64-byte frames from {} and back, five-tuple swapped at the far end; both sent at 80 % of the \
             highest rate\nat which the flow tier lost nothing. Of what was lost, {} and {} frames found the sender's queue full, which \
             softdpu had not got to in time;\nthe hypervisor took its CPU away for {} and {} ms meanwhile. The sender was held up {} \
             and {} times.\n",
            self.flows,
            match self.between {
                Between::Guests => "guest to guest",
                Between::Sites => "site to site, by VXLAN in a network namespace,",
            },
            self.with.1.refused,
            self.without.1.refused,
            self.with.1.stolen.as_millis(),
            self.without.1.stolen.as_millis(),
            self.with.1.held_up,
            self.without.1.held_up
        ));
        text
    }
}
