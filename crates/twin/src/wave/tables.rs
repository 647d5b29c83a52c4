//! What the paper states in tables and text, beside what the machine finds.

use softdpu_offload::link::LinkStep;
use softdpu_sched::Nanos;
use softdpu_sched::threads::{FifoThreads, MultiQueueShinjuku, SLICE, Shinjuku, SloClass, ThreadScheduler};

use super::memory;
use super::{Costs, Load, Machine, Measured, Placement, Scenario, Scope};
use crate::figure::{Figure, Stated, above};
use crate::summary::{Summary, over_seeds};

/// An experiment that can be run.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it shows.
    pub about: &'static str,
    /// Runs it with one seed.
    pub run: fn(&Scope) -> Figure,
}

impl Experiment {
    /// Runs it with so many seeds, at least one, from the scope's on.
    pub fn summary(&self, scope: &Scope, seeds: u64) -> Summary {
        over_seeds(scope.seed, seeds, |seed| (self.run)(&Scope { seed, ..*scope }))
    }
}

/// All of them.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment { name: "wave-table3", about: "a decision and a context switch, step by step (Table 3)", run: table_3 },
    Experiment { name: "wave-fifo", about: "saturation of a FIFO policy, step by step (§7.2.2, Fig. 4a)", run: fifo },
    Experiment { name: "wave-shinjuku", about: "saturation of a preemptive policy (§7.2.3, Fig. 4b)", run: shinjuku },
    Experiment { name: "wave-multi-queue", about: "a queue for each SLO (§7.3.2, Fig. 6b)", run: multi_queue },
    Experiment { name: "wave-memory", about: "memory under SOL (§7.4.2)", run: tiering },
];

const WAVE: Placement = Placement::Dpu(LinkStep::Prestaged);
const ON_HOST: Placement = Placement::OnHost { prestages: true };

/// GETs of 10 µs (§7.2.2).
const GETS: Load = Load { rate: None, short: 10_000, long: 10_000, long_permille: 0 };
/// 99.5 % of them, and 0.5 % RANGE queries of 10 ms (§7.2.3).
const MIX: Load = Load { rate: None, short: 10_000, long: 10_000_000, long_permille: 5 };

/// Cores that the workload has beside an agent on the host (§7.2.2).
const FEWER: u32 = 15;
const ALL: u32 = 16;

fn fifo_policy() -> Box<dyn ThreadScheduler> {
    Box::new(FifoThreads::run_to_completion())
}

fn shinjuku_policy() -> Box<dyn ThreadScheduler> {
    Box::new(Shinjuku::preemptive(SLICE))
}

/// Requests are there for all threads all the time; or, at a rate, threads for all requests.
fn run(
    placement: Placement,
    cores: u32,
    load: Load,
    policy: fn() -> Box<dyn ThreadScheduler>,
    scope: &Scope,
    span: u64,
) -> Measured {
    let threads = if load.rate.is_some() { 1_024 } else { cores * 4 };
    let scenario = Scenario { placement, cores, threads, load };
    Machine::new(scenario, policy(), scope.constants, scope.seed).run(span)
}

fn calibrated(figure: &mut Figure, what: &str, unit: &'static str, paper: f64, twin: f64) {
    let what = what.to_owned();
    figure.stated.push(Stated { what, unit, paper, twin: Some(twin), is_calibrated: true });
}

/// From a thread that blocks to the next one, on one core; the mean, as all are alike.
pub(super) fn switch(placement: Placement, scope: &Scope) -> f64 {
    let scenario = Scenario { placement, cores: 1, threads: 4, load: GETS };
    Machine::new(scenario, fifo_policy(), scope.constants, scope.seed).run(scope.span / 4).switches.mean()
}

fn table_3(scope: &Scope) -> Figure {
    let mut figure = Figure::new("wave-table3", "Table 3: a decision, and a context switch");
    let decision = |placement| {
        let costs = Costs::of(placement, &scope.constants);
        (scope.constants.policy + costs.queue.agent_send + costs.interrupt_send) as f64
    };
    let dpu = |step| Placement::Dpu(step);
    let what = "Table 3, 1: open a decision and send MSI-X, baseline";
    figure.state(what, "ns", 1_013.0, decision(dpu(LinkStep::Baseline)));
    figure.state("the same, write-back pages on the DPU", "ns", 426.0, decision(dpu(LinkStep::DpuWriteBack)));
    figure.state("Table 3, 3: the same on the host", "ns", 770.0, decision(ON_HOST));
    // The paper gives ranges of medians; here their middles.
    let middles = [13_420.0, 10_050.0, 6_505.0, 3_680.0];
    let mut found = Vec::new();
    for (step, paper) in LinkStep::ALL.into_iter().zip(middles) {
        let value = switch(dpu(step), scope);
        figure.state(format!("Table 3, 2: context switch, {}", step.name()), "ns", paper, value);
        figure.point("wave", step.name(), "switch", "ns", value);
        found.push(value);
    }
    let on_host = switch(Placement::OnHost { prestages: false }, scope);
    figure.state("Table 3, 4: context switch, on the host", "ns", 4_685.0, on_host);
    calibrated(&mut figure, "the same with prestaging", "ns", 2_805.0, switch(ON_HOST, scope));
    let steps = found.windows(2).zip(&LinkStep::ALL[1..]);
    let margins = steps.map(|(pair, step)| above(step.name(), pair[1], pair[0], -1.0)).collect();
    figure.order("each optimisation makes a switch shorter (Table 3)", margins);
    figure.notes.push("The paper's values are the middles of its ranges.".to_owned());
    figure
}

/// The 99th percentile of short requests at a part of what the host's own agent can do, microseconds.
fn tail(placement: Placement, load: Load, policy: fn() -> Box<dyn ThreadScheduler>, scope: &Scope, span: u64) -> f64 {
    run(placement, FEWER, load, policy, scope, span).short.quantile(0.99) as f64 / 1e3
}

/// The part of the saturation at which latencies are compared. Assumed: the paper does not say at which load.
const LOAD: f64 = 0.7;

fn fifo(scope: &Scope) -> Figure {
    let mut figure = Figure::new("wave-fifo", "§7.2.2: saturation of a FIFO policy, 10 µs GETs");
    let throughput = |placement, cores| run(placement, cores, GETS, fifo_policy, scope, scope.span).throughput();
    let papers = [258_000.0, 520_000.0, 680_000.0, 895_000.0];
    let mut found = Vec::new();
    for (step, paper) in LinkStep::ALL.into_iter().zip(papers) {
        let value = throughput(Placement::Dpu(step), ALL);
        figure.state(format!("§7.2.2: saturation, {}", step.name()), "1/s", paper, value);
        figure.point("wave", step.name(), "saturation", "1/s", value);
        found.push(value);
    }
    let gain = |one: f64, other: f64| (one / other - 1.0) * 100.0;
    for (at, paper) in [102.0, 31.0, 32.0].into_iter().enumerate() {
        let what = format!("§7.2.2: gain of {}", LinkStep::ALL[at + 1].name());
        figure.state(what, "%", paper, gain(found[at + 1], found[at]));
    }
    figure.state("§7.2.2: all optimisations beside none", "1", 3.47, found[3] / found[0]);
    let on_host = throughput(ON_HOST, FEWER);
    let fewer = throughput(WAVE, FEWER);
    figure.state("§7.2.2: Wave-15 beside On-Host, saturation", "%", -1.1, gain(fewer, on_host));
    figure.state("§7.2.2: Wave-16 beside On-Host, saturation", "%", 4.6, gain(found[3], on_host));
    let load = Load { rate: Some(on_host * LOAD), ..GETS };
    let span = scope.span * LONGER;
    let longer = tail(WAVE, load, fifo_policy, scope, span) - tail(ON_HOST, load, fifo_policy, scope, span);
    figure.state("Fig. 4a, §7.2.2: p99 of Wave-15 above On-Host", "us", 3.0, longer);
    let steps = found.windows(2).zip(&LinkStep::ALL[1..]);
    let margins = steps.map(|(pair, step)| above(step.name(), pair[1], pair[0], 1.0)).collect();
    figure.order("each optimisation adds throughput (§7.2.2)", margins);
    figure.order("the freed core makes Wave-16 exceed On-Host", vec![above("Wave-16", found[3], on_host, 1.0)]);
    figure.notes.push(format!("Assumed: latencies at {LOAD} of On-Host's saturation."));
    figure
}

/// Tails and long requests need a longer run.
const LONGER: u64 = 10;

fn shinjuku(scope: &Scope) -> Figure {
    let mut figure =
        Figure::new("wave-shinjuku", "§7.2.3: Shinjuku, 99.5 % 10 µs GETs, 0.5 % 10 ms RANGEs, slice 30 µs");
    let span = scope.span * LONGER;
    // By core time that requests had, as few long ones are most of it.
    let throughput = |placement, cores| {
        let measured = run(placement, cores, MIX, shinjuku_policy, scope, span);
        measured.served as f64 / span as f64
    };
    let (on_host, fewer, all) = (throughput(ON_HOST, FEWER), throughput(WAVE, FEWER), throughput(WAVE, ALL));
    for (name, value) in [("on-host", on_host), ("wave-15", fewer), ("wave-16", all)] {
        figure.point(name, "closed loop", "request time served", "cores", value);
    }
    let gain = |one: f64, other: f64| (one / other - 1.0) * 100.0;
    figure.state("§7.2.3: Wave-15 beside On-Host, saturation", "%", -7.6, gain(fewer, on_host));
    figure.state("§7.2.3: Wave-16 beside On-Host, saturation", "%", 1.9, gain(all, on_host));
    // Mean request time: 59.95 µs.
    let rate = on_host / 59_950e-9 * LOAD;
    let load = Load { rate: Some(rate), ..MIX };
    let longer = tail(WAVE, load, shinjuku_policy, scope, span) - tail(ON_HOST, load, shinjuku_policy, scope, span);
    figure.state("Fig. 4b, §7.2.3: p99 of GETs, Wave-15 above On-Host", "us", 5.0, longer);
    let to_completion = tail(WAVE, load, fifo_policy, scope, span);
    let preemptive = tail(WAVE, load, shinjuku_policy, scope, span);
    figure.point("fifo", "0.7 of saturation", "GET p99", "us", to_completion);
    figure.point("shinjuku", "0.7 of saturation", "GET p99", "us", preemptive);
    let margin = above("p99", preemptive, to_completion, -1.0);
    figure.order("preemption shortens the tail of GETs beside RANGEs (§7.2.3)", vec![margin]);
    figure.notes.push(format!("Assumed: latencies at {LOAD} of On-Host's saturation."));
    figure
}

fn multi_queue_policy() -> Box<dyn ThreadScheduler> {
    // The paper names no objectives: assumed, ten times what a request takes.
    let slos = [(SloClass(0), Nanos(100_000)), (SloClass(1), Nanos(100_000_000))];
    Box::new(MultiQueueShinjuku::multi_queue(slos, SLICE))
}

fn multi_queue(scope: &Scope) -> Figure {
    let mut figure = Figure::new("wave-multi-queue", "§7.3.2: Shinjuku with a queue for each SLO");
    let span = scope.span * LONGER;
    let mut margins = Vec::new();
    for (part, rate) in [("200,000/s", 200_000.0), ("220,000/s", 220_000.0)] {
        let load = Load { rate: Some(rate), ..MIX };
        let of = |policy: fn() -> Box<dyn ThreadScheduler>| {
            run(WAVE, ALL, load, policy, scope, span).short.quantile(0.99) as f64 / 1e3
        };
        let (single, multi) = (of(shinjuku_policy), of(multi_queue_policy));
        figure.point("single-queue", part, "GET p99", "us", single);
        figure.point("multi-queue", part, "GET p99", "us", multi);
        margins.push(above(part, multi, single, -1.0));
    }
    figure.order("with SLOs the tail of GETs is shorter near saturation (§7.3.2)", margins);
    let notes = "The RPC stack is not modelled, so the saturations of Figs. 6a and 6b are not. Assumed: SLOs of 100 µs and \
                 100 ms.";
    figure.notes.push(notes.to_owned());
    figure
}

fn tiering(scope: &Scope) -> Figure {
    let mut figure = Figure::new("wave-memory", "§7.4.2: memory of RocksDB under SOL");
    let gib = (1_u64 << 30) as f64;
    let (sol, fixed) = (memory::sol(3, scope.seed), memory::fixed_rate(3, scope.seed));
    for (epoch, bytes) in sol.resident.iter().enumerate() {
        figure.point("sol", format!("after epoch {}", epoch + 1), "resident", "GiB", bytes / gib);
    }
    figure.point("sol", "three epochs", "scans", "1", sol.scans as f64);
    figure.point("fixed rate", "three epochs", "scans", "1", fixed.scans as f64);
    figure.point("sol", "after epoch 3", "hot batches in the slow tier", "1", sol.misplaced);
    let last = sol.resident.last().copied().unwrap_or(0.0);
    figure.state("§7.4.2: memory after 3 epochs, of 102 GiB", "GiB", 21.3, last / gib);
    figure.state("§7.4.2: reduction", "%", 79.0, (1.0 - last / memory::BYTES as f64) * 100.0);
    let fewer = above("scans", sol.scans as f64, fixed.scans as f64, -1.0);
    figure.order("SOL scans fewer batches than a fixed rate (§4.2)", vec![fewer]);
    figure
        .notes
        .push(format!("Assumed: {} % of the batches are hot; the paper has only the result.", memory::HOT_PERCENT));
    figure
}
