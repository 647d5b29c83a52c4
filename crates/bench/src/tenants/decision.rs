//! What a scheduler takes: nanoseconds of a [`decide`](TenantScheduler::decide), and of a whole turn (decide, charge,
//! ready), with 1, 4 and 1,024 tenants that always have work, `weighted` beside `fcfs`.

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use softdpu_frontend::load::{Priority, on_cpu};
use softdpu_plot::Table;
use softdpu_sched::{Cost, Decision, Fcfs, Nanos, QueueId, Share, TenantId, TenantScheduler, Weighted, Work};

use crate::SetupError;
use crate::samples::{Samples, Spread};
use crate::side_by_side::Figure;

/// Turns of a round.
const TURNS: u32 = 100_000;
/// Tenants, case by case.
const TENANTS: [u16; 3] = [1, 4, 1_024];
/// The most that a decision may take with the most tenants, nanoseconds.
const BAR: f64 = 50.0;

/// One policy with so many tenants.
#[derive(Clone, Debug)]
pub struct DecisionMeasurement {
    /// The policy.
    pub policy: &'static str,
    /// How many tenants.
    pub tenants: u16,
    /// Nanoseconds of a decision.
    pub decide: Samples,
    /// Nanoseconds of a turn.
    pub turn: Samples,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub struct DecisionReport {
    /// Case by case, and in each policy by policy.
    pub measurements: Vec<DecisionMeasurement>,
}

/// Measures all cases on `cpu`, in `rounds` rounds that take turns.
///
/// # Errors
/// [`SetupError::Cpu`].
pub fn measure(cpu: usize, rounds: usize) -> Result<DecisionReport, SetupError> {
    on_cpu(cpu, Priority::Session, SetupError::Cpu, || {
        let mut report = DecisionReport::default();
        for tenants in TENANTS {
            for policy in ["weighted", "fcfs"] {
                let (decide, turn) = Default::default();
                report.measurements.push(DecisionMeasurement { policy, tenants, decide, turn });
            }
        }
        for _ in 0..rounds {
            for measurement in &mut report.measurements {
                let (decide, turn) = match measurement.policy {
                    "weighted" => round(Weighted::default(), measurement.tenants),
                    _ => round(Fcfs::new(), measurement.tenants),
                };
                measurement.decide.push(decide);
                measurement.turn.push(turn);
            }
        }
        Ok(report)
    })
}

/// A turn, as a core has it: 64 requests of 400 ns each at the most.
fn turn<S: TenantScheduler>(policy: &mut S, now: &mut u64, decide: impl FnOnce(&mut S, Nanos) -> Decision) {
    // There is always work.
    let Decision::Run(grant) = decide(policy, Nanos(*now)) else { return };
    let time = Nanos(u64::from(grant.units) * 400);
    *now += time.0;
    let bytes = u64::from(grant.units) * 4_096;
    policy.charge(Nanos(*now), grant, Cost { units: grant.units, time, bytes, pending: 0 });
    policy.ready(Nanos(*now), grant.queue, Work { units: grant.units, bytes });
}

/// A function of its own, so that its instructions can be counted (callgrind's `--toggle-collect`).
#[inline(never)]
fn decided<S: TenantScheduler>(policy: &mut S, now: Nanos) -> Decision {
    black_box(policy.decide(now))
}

/// Nanoseconds of a decision and of a turn.
fn round<S: TenantScheduler>(mut policy: S, tenants: u16) -> (f64, f64) {
    let queue = |tenant: u16| QueueId { tenant: TenantId(tenant), index: tenant.into() };
    let work = Work { units: 128, bytes: 128 * 4_096 };
    for tenant in 0..tenants {
        policy.configure(TenantId(tenant), Share { weight: 1 + u32::from(tenant % 7), ..Share::default() });
        policy.ready(Nanos(0), queue(tenant), work);
    }
    let mut now = 0;
    let plain = decided::<S>;
    (0..TURNS / 10).for_each(|_| turn(&mut policy, &mut now, plain));
    let started = Instant::now();
    (0..TURNS).for_each(|_| turn(&mut policy, &mut now, plain));
    let whole = started.elapsed();
    let mut decisions = Duration::ZERO;
    for _ in 0..TURNS {
        turn(&mut policy, &mut now, |policy, now| {
            let started = Instant::now();
            let decision = decided(policy, now);
            decisions += started.elapsed();
            decision
        });
    }
    // What two readings of the clock take by themselves.
    let mut clock = Duration::ZERO;
    for _ in 0..TURNS {
        let started = Instant::now();
        clock += black_box(started).elapsed();
    }
    let each = |time: Duration| time.as_nanos() as f64 / f64::from(TURNS);
    (each(decisions.saturating_sub(clock)), each(whole))
}

impl DecisionMeasurement {
    fn case(&self) -> String {
        match self.tenants {
            1 => "1 tenant".to_owned(),
            many => format!("{many} tenants"),
        }
    }
}

impl DecisionReport {
    /// A line for each case and policy.
    pub fn table(&self) -> String {
        let mut table = Table::new(["case", "policy", "decide, ns>", "best>", "whole turn, ns>"]);
        for measurement in &self.measurements {
            let Spread { median, least, .. } = measurement.decide.spread();
            let nanos = [median, least, measurement.turn.median()].map(|nanos| format!("{nanos:.1}"));
            let mut row = vec![measurement.case(), measurement.policy.to_owned()];
            row.extend(nanos);
            table.row(row);
        }
        table.to_string()
    }

    /// Whether the bar is met, in a sentence.
    pub fn verdict(&self) -> String {
        let most = self.measurements.iter().filter(|measurement| measurement.policy == "weighted");
        let Some(measurement) = most.max_by_key(|measurement| measurement.tenants) else { return String::new() };
        let median = measurement.decide.median();
        let verdict = if median <= BAR { "met" } else { "MISSED" };
        format!("a decision of weighted with {} {median:.1} ns, at most {BAR}: {verdict}", measurement.case())
    }

    /// An object a line, as all benches print them.
    ///
    /// # Errors
    /// The writer's.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        for measurement in &self.measurements {
            let case = measurement.case();
            let Spread { median, least, .. } = measurement.decide.spread();
            let turn = measurement.turn.median();
            for (metric, value) in [("decide", median), ("decide-min", least), ("turn", turn)] {
                let subject = measurement.policy;
                Figure { bench: "tenants", subject, case: &case, metric, unit: "ns", value }.write(to)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_takes_time() {
        let (_, turn) = round(Weighted::default(), 4);
        assert!(turn > 0.0);
        let measurement = |tenants, nanos| {
            let [decide, turn] = [nanos, 2.0 * nanos].map(|nanos| Samples::from_iter([nanos]));
            DecisionMeasurement { policy: "weighted", tenants, decide, turn }
        };
        let report = DecisionReport { measurements: vec![measurement(4, 10.0), measurement(1_024, 60.0)] };
        assert!(report.verdict().ends_with("MISSED"), "{}", report.verdict());
    }
}
