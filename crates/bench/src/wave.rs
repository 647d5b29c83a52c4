//! What the queues of agents cost the host: measured over plain memory on one core, and charged by the model of a link,
//! optimisation by optimisation (Wave §5, Table 3).

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use softdpu_offload::link::{Charges, LinkCosts, LinkStep};
use softdpu_offload::{
    AgentSlot, Consumer, Entry, HostSlot, Producer, SLOT_LINES, SharedMemory, Transaction, queue_lines,
};
use softdpu_plot::Table;
use softdpu_sched::threads::{CoreId, Sequence, SloClass, ThreadDecision, ThreadEvent, ThreadId, ThreadMessage};

use crate::samples::{Samples, Spread};
use crate::side_by_side::{Figure, on_cpu};

/// What to measure, how often and where.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A part of the cases' names; empty: all.
    pub case: String,
    /// Rounds, in each of which every case is measured once.
    pub rounds: usize,
    /// Length of one measurement.
    pub length: Duration,
    /// The core.
    pub cpu: usize,
}

/// The host's time for one message or decision.
#[derive(Clone, Debug)]
pub struct WaveMeasurement {
    /// `memory`, measured; or the link model with the optimisations of a step, charged.
    pub subject: &'static str,
    /// What the host does.
    pub case: &'static str,
    /// Nanoseconds, one for each round; of the model, which is always the same, one.
    pub times: Samples,
}

/// Everything that was measured.
#[derive(Clone, Debug, Default)]
pub struct WaveReport {
    /// In the order of the cases.
    pub measurements: Vec<WaveMeasurement>,
}

/// Entries between two looks at the clock.
const BLOCK: usize = 512;
/// The subject that is measured.
const MEMORY: &str = "memory";

/// A case: its name, what the model charges for it, and how it is measured.
struct Case {
    name: &'static str,
    charged: fn(&Charges) -> u64,
    work: Work,
}

#[derive(Clone, Copy)]
enum Work {
    Send { batch: usize },
    Poll,
    Take,
}

const CASES: [Case; 4] = [
    Case { name: "message, alone", charged: |charges| charges.host_send, work: Work::Send { batch: 1 } },
    Case {
        name: "message, in batches of 32",
        charged: |charges| charges.host_send_batched,
        work: Work::Send { batch: Charges::BATCH },
    },
    Case { name: "decision, polled", charged: |charges| charges.host_poll, work: Work::Poll },
    Case { name: "decision, prestaged", charged: |charges| charges.host_take, work: Work::Take },
];

/// Both ends of a queue in shared memory.
type Ends<T> = (Producer<T, SharedMemory>, Consumer<T, SharedMemory>);

fn queue<T: Entry>() -> Result<Ends<T>, String> {
    let memory = SharedMemory::heap(queue_lines(BLOCK));
    let producer = Producer::new(memory.clone(), BLOCK).map_err(|error| error.to_string())?;
    Ok((producer, Consumer::new(memory, BLOCK).map_err(|error| error.to_string())?))
}

fn transaction(number: usize) -> Transaction {
    let decision = ThreadDecision { core: CoreId(1), thread: ThreadId(number as u32), sequence: Sequence(7) };
    Transaction { number: number as u32, decision, preempts: false }
}

/// Nanoseconds of the host's for each, the agent's side being done beside the clock.
fn measure(work: Work, length: Duration) -> Result<f64, String> {
    let (start, mut spent, mut count) = (Instant::now(), Duration::ZERO, 0_u64);
    let broken = |error: softdpu_offload::QueueError| error.to_string();
    let (event, class) = (ThreadEvent::Wakeup, SloClass(0));
    let message = ThreadMessage { thread: ThreadId(1), sequence: Sequence(1), event, core: CoreId(1), class };
    let (mut messages, mut messages_out) = queue::<ThreadMessage>()?;
    let (mut transactions, mut transactions_out) = queue::<Transaction>()?;
    let memory = SharedMemory::heap(BLOCK * SLOT_LINES);
    let line = |slot: usize| slot * SLOT_LINES;
    let mut staging: Vec<AgentSlot<Transaction, _>> =
        (0..BLOCK).filter_map(|slot| AgentSlot::new(memory.clone(), line(slot))).collect();
    let mut taking: Vec<HostSlot<Transaction, _>> =
        (0..BLOCK).filter_map(|slot| HostSlot::new(memory.clone(), line(slot))).collect();
    let (mut taken, mut polled) = (Vec::with_capacity(BLOCK), Vec::with_capacity(BLOCK));
    let all: Vec<Transaction> = (0..BLOCK).map(transaction).collect();
    while start.elapsed() < length {
        match work {
            Work::Send { batch } => {
                let entries = vec![message; batch];
                let from = Instant::now();
                for _ in 0..BLOCK / batch {
                    black_box(messages.send(black_box(&entries)).map_err(broken)?);
                }
                spent += from.elapsed();
                taken.clear();
                count += messages_out.poll(&mut taken, BLOCK).map_err(broken)? as u64;
            }
            Work::Poll => {
                transactions.send(&all).map_err(broken)?;
                polled.clear();
                let from = Instant::now();
                for _ in 0..BLOCK {
                    count += black_box(transactions_out.poll(&mut polled, 1).map_err(broken)?) as u64;
                }
                spent += from.elapsed();
            }
            Work::Take => {
                for (slot, staged) in staging.iter_mut().zip(&all) {
                    slot.replace(Some(*staged));
                }
                let from = Instant::now();
                for slot in &mut taking {
                    count += u64::from(black_box(slot.take()).is_some());
                }
                spent += from.elapsed();
            }
        }
    }
    Ok(spent.as_nanos() as f64 / count.max(1) as f64)
}

/// Measures what `plan` says; `progress` gets the name of each case before it runs for the first time.
///
/// # Errors
/// A sentence for the user: no such case, a CPU that can't be used.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str) + Send) -> Result<WaveReport, String> {
    let cases: Vec<&Case> = CASES.iter().filter(|case| case.name.contains(&plan.case)).collect();
    if cases.is_empty() {
        return Err(format!("no case has \"{}\" in its name", plan.case));
    }
    on_cpu(
        plan.cpu,
        |wrong| wrong,
        || {
            let mut report = WaveReport::default();
            for case in &cases {
                let new = |subject| WaveMeasurement { subject, case: case.name, times: Samples::default() };
                report.measurements.push(new(MEMORY));
                for step in LinkStep::ALL {
                    let mut charged = new(step.name());
                    charged.times.push((case.charged)(&Charges::over_link(LinkCosts::WAVE, step)) as f64);
                    report.measurements.push(charged);
                }
            }
            for round in 0..plan.rounds.max(1) {
                for case in &cases {
                    if round == 0 {
                        progress(case.name);
                    }
                    let time = measure(case.work, plan.length)?;
                    let mut own = report.measurements.iter_mut();
                    if let Some(found) = own.find(|found| found.case == case.name && found.subject == MEMORY) {
                        found.times.push(time);
                    }
                }
            }
            Ok(report)
        },
    )
}

impl WaveReport {
    /// For people.
    pub fn table(&self) -> String {
        let mut table = Table::new(["host's part of a", "queues in", "ns>", "min - max>"]);
        for measurement in &self.measurements {
            let Spread { median, least, most } = measurement.times.spread();
            let is_measured = measurement.subject == MEMORY;
            table.row(vec![
                measurement.case.to_owned(),
                match is_measured {
                    true => "plain memory, measured".to_owned(),
                    false => format!("the link model, {}", measurement.subject),
                },
                format!("{median:.1}"),
                if is_measured { format!("{least:.1} - {most:.1}") } else { String::new() },
            ]);
        }
        table.to_string()
    }

    /// For programs: a JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        for measurement in &self.measurements {
            let Spread { median, least, most } = measurement.times.spread();
            for (metric, value) in [("host-time", median), ("host-time-min", least), ("host-time-max", most)] {
                let (subject, case) = (measurement.subject, measurement.case);
                Figure { bench: "wave", subject, case, metric, unit: "ns", value }.write(to)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_measured_over_memory_and_charged_for_every_step() {
        let plan = Plan { case: String::new(), rounds: 2, length: Duration::from_millis(1), cpu: 0 };
        let mut named = Vec::new();
        let report = run(&plan, |name| named.push(name.to_owned())).unwrap();
        assert_eq!((report.measurements.len(), named.len()), (4 * 5, 4));
        for found in &report.measurements {
            assert!(found.times.spread().least > 0.0, "{found:?}");
            assert_eq!(found.times.len(), if found.subject == MEMORY { 2 } else { 1 }, "{found:?}");
        }
        let mut json = Vec::new();
        report.write_json(&mut json).unwrap();
        assert_eq!(String::from_utf8(json).unwrap().lines().count(), 4 * 5 * 3);
        assert!(report.table().contains("plain memory, measured"));
        assert!(run(&Plan { case: "no such case".into(), ..plan }, |_| ()).is_err());
    }

    #[test]
    fn the_model_charges_a_prestaged_decision_a_tenth_of_a_polled_one() {
        let plan = Plan { case: "decision".into(), rounds: 1, length: Duration::from_millis(1), cpu: 0 };
        let report = run(&plan, |_| ()).unwrap();
        let charged = |case: &str| {
            let all = LinkStep::Prestaged.name();
            let found = report.measurements.iter().find(|found| found.case == case && found.subject == all);
            found.expect("a case").times.median()
        };
        assert!(charged("decision, prestaged") * 10.0 < charged("decision, polled"));
    }
}
