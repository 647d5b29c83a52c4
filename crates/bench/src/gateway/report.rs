//! Losses and round trips, for people and for programs.

use std::io;

use softdpu_plot::Table;

use super::{Between, NoDropRate, Outcome, SHARE};
use crate::side_by_side::Figure;

/// softdpu with the flow tier or without it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The highest rate at which nothing was lost.
    pub no_drop: NoDropRate,
    /// Frames at a share of that with the flow tier.
    pub outcome: Outcome,
}

/// What was measured.
#[derive(Clone, Debug)]
pub struct GatewayReport {
    /// What frames went between.
    pub between: Between,
    /// Flows that frames belonged to.
    pub flows: u16,
    /// With the flow tier.
    pub with: Measured,
    /// Every frame decided by itself.
    pub without: Measured,
}

impl GatewayReport {
    fn cases(&self) -> [(&'static str, &Measured); 2] {
        let [with, without] = match self.between {
            Between::Guests => ["flow-tier", "no-flow-tier"],
            Between::Sites => ["sites, flow-tier", "sites, no-flow-tier"],
        };
        [(with, &self.with), (without, &self.without)]
    }

    /// One JSON object a line. Where no rate held there is no `no-drop-rate`, but the `lowest-rate-tried`.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        for (case, Measured { no_drop, outcome }) in self.cases() {
            let quantile = |at: f64| outcome.round_trips.value_at_quantile(at) as f64;
            let highest = match no_drop {
                NoDropRate::Held(rate) => ("no-drop-rate", "1/s", *rate),
                NoDropRate::NoneHeld { lowest } => ("lowest-rate-tried", "1/s", *lowest),
            };
            for (metric, unit, value) in [
                highest,
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
        let mut table = Table::new([
            "case",
            "no-drop rate/s>",
            "sent at/s>",
            "frames>",
            "lost>",
            "mean RTT µs>",
            "p50 µs>",
            "p99 µs>",
        ]);
        for (case, Measured { no_drop, outcome }) in self.cases() {
            let micros = |nanos: f64| format!("{:.1}", nanos / 1e3);
            let quantile = |at: f64| micros(outcome.round_trips.value_at_quantile(at) as f64);
            table.row(vec![
                case.to_owned(),
                match no_drop {
                    NoDropRate::Held(rate) => format!("{rate:.0}"),
                    NoDropRate::NoneHeld { .. } => "none held".to_owned(),
                },
                format!("{:.0}", outcome.rate),
                outcome.sent.to_string(),
                outcome.lost.to_string(),
                micros(outcome.round_trips.mean()),
                quantile(0.5),
                quantile(0.99),
            ]);
        }
        let mut text = table.to_string();
        for (case, Measured { no_drop, .. }) in self.cases() {
            if let NoDropRate::NoneHeld { lowest } = no_drop {
                text.push_str(&format!(
                    "\n{case}: no rate held, down to {lowest:.0} frames a second, the lowest that was tried: something else \
                     takes the machine's time now and then\n"
                ));
            }
        }
        text + &self.notes()
    }

    fn notes(&self) -> String {
        let (with, without) = (&self.with.outcome, &self.without.outcome);
        format!(
            "\n{} flows of 64-byte frames from {} and back, five-tuple swapped at the far end; both sent at {:.0} % of the \
             {}.\nOf what was lost, {} and {} frames found the sender's queue full, which softdpu had not got to in time;\nthe \
             hypervisor took its CPU away for {} and {} ms meanwhile. The sender was held up {} and {} times.\n",
            self.flows,
            match self.between {
                Between::Guests => "guest to guest",
                Between::Sites => "site to site, by VXLAN in a network namespace,",
            },
            SHARE * 100.0,
            match self.with.no_drop {
                NoDropRate::Held(_) => "highest rate at which the flow tier lost nothing",
                NoDropRate::NoneHeld { .. } => "lowest rate that was tried with the flow tier",
            },
            with.refused,
            without.refused,
            with.stolen.as_millis(),
            without.stolen.as_millis(),
            with.held_up,
            without.held_up
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hdrhistogram::Histogram;

    use super::*;

    fn report(no_drop: [NoDropRate; 2]) -> GatewayReport {
        let outcome = Outcome {
            rate: 80_000.0,
            sent: 1_000,
            lost: 3,
            refused: 1,
            stolen: Duration::ZERO,
            round_trips: Histogram::new(3).unwrap(),
            held_up: 0,
        };
        let [with, without] = no_drop.map(|no_drop| Measured { no_drop, outcome: outcome.clone() });
        GatewayReport { between: Between::Guests, flows: 64, with, without }
    }

    fn json(report: &GatewayReport) -> String {
        let mut json = Vec::new();
        report.write_json(&mut json).unwrap();
        String::from_utf8(json).unwrap()
    }

    #[test]
    fn a_rate_that_held_is_the_no_drop_rate() {
        let report = report([NoDropRate::Held(100_000.0), NoDropRate::Held(40_000.0)]);
        let (table, json) = (report.table(), json(&report));
        let row = table.lines().find(|line| line.starts_with("flow-tier")).unwrap_or_default();
        assert_eq!(row.split_whitespace().take(3).collect::<Vec<_>>(), ["flow-tier", "100000", "80000"], "{table}");
        assert!(!table.contains("none held"), "{table}");
        assert!(table.contains("80 % of the highest rate at which the flow tier lost nothing"), "{table}");
        assert_eq!(json.matches(r#""metric":"no-drop-rate""#).count(), 2);
        assert!(!json.contains("lowest-rate-tried"), "{json}");
    }

    #[test]
    fn where_no_rate_held_the_report_says_so_and_calls_none_the_no_drop_rate() {
        let report = report([NoDropRate::NoneHeld { lowest: 99_999.0 }, NoDropRate::Held(40_000.0)]);
        let (table, json) = (report.table(), json(&report));
        let row = table.lines().find(|line| line.starts_with("flow-tier ")).unwrap();
        assert!(row.contains("none held") && !row.contains("99999"), "{table}");
        assert!(table.contains("flow-tier: no rate held, down to 99999 frames a second"), "{table}");
        assert!(table.contains("80 % of the lowest rate that was tried"), "{table}");
        let of = |case: &str| {
            let lines = json.lines().filter(|line| line.contains(&format!(r#""case":"{case}""#)));
            lines.map(str::to_owned).collect::<Vec<_>>().concat()
        };
        let (with, without) = (of("flow-tier"), of("no-flow-tier"));
        assert!(!with.contains("no-drop-rate") && with.contains(r#""lowest-rate-tried","unit":"1/s","value":99999"#));
        assert!(without.contains(r#""no-drop-rate","unit":"1/s","value":40000"#), "{without}");
    }
}
