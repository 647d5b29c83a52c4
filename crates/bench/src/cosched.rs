//! What a data-plane core's idle time gives to the control plane, and what that costs the data plane.
//!
//! ```text
//!  CPU of the data plane     │▓▓▓▓▓▓ 300 us ▓▓▓▓▓▓│            idle             │▓▓▓▓▓▓ …      each millisecond
//!                            │    the core works   │ polls │ control plane │ ◀─ a timer wakes the core
//!  CPU of the control plane  │░░░░░░░░░░░░░░░░░░░░░░░ control plane ░░░░░░░░░░░░░░░░░░░░░░░░░
//! ```
//!
//! The load is made in the process: a timer stands for a driver's kick, so that no third CPU is needed. The core polls,
//! yields by `softdpu_sched::Yielding` and waits as the engine's core does; rings and tenants are left out. Threads of
//! the control plane have the policy SCHED_IDLE and count what they did. Each way is measured after a *static
//! partition* in the same round, where the data plane's CPU is its alone.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hdrhistogram::Histogram;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use softdpu_plot::Table;
use softdpu_sched::{Nanos, SliceEnd, YieldPolicy, YieldTuning, Yielding};
use softdpu_sys::threads::{self, OrdinaryPolicy};
use softdpu_sys::{affinity, clock, wake};

use crate::SetupError;
use crate::samples::Samples;
use crate::side_by_side::{Figure, Progress};

/// What an empty poll takes, nanoseconds: that of the engine's core with a few rings.
const POLL: u64 = 100;
/// Requests of a burst follow each other at once, and take this long each, nanoseconds.
const REQUEST: u64 = 1_000;
/// Longest wait told apart, nanoseconds.
const LONGEST: u64 = 10_000_000_000;
/// A core sleeps after this long without work, as `idle-sleep` is by default, nanoseconds.
const IDLE_SLEEP: u64 = 50_000;

/// What is measured, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// How long each burst keeps the core busy.
    pub busy: Duration,
    /// From the beginning of one burst to that of the next.
    pub period: Duration,
    /// Of one measurement.
    pub duration: Duration,
    /// Pairs of a static partition and each way.
    pub rounds: usize,
    /// The control plane's CPU.
    pub control_cpu: usize,
    /// The data plane's.
    pub data_cpu: usize,
}

/// How the core gives its CPU away, with control-plane threads on both CPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Not at all.
    Spin,
    /// After a fixed time, until it is woken.
    IdleSleep,
    /// By empty polls, for slices.
    Adaptive,
}

impl Way {
    /// All of them.
    pub const ALL: [Way; 3] = [Way::Spin, Way::IdleSleep, Way::Adaptive];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Spin => "spin",
            Way::IdleSleep => "idle-sleep",
            Way::Adaptive => "adaptive",
        }
    }

    fn policy(self) -> YieldPolicy {
        match self {
            Way::Spin => YieldPolicy::Never,
            Way::IdleSleep => YieldPolicy::After(Nanos(IDLE_SLEEP)),
            Way::Adaptive => YieldPolicy::Adaptive(YieldTuning::spinning(Nanos(IDLE_SLEEP))),
        }
    }
}

/// What the data plane's core did.
#[derive(Clone, Debug)]
struct CoreRun {
    /// Bursts that were done, and all there were.
    bursts: (u64, u64),
    /// From a burst's beginning until the core had its first request, nanoseconds.
    first: Histogram<u64>,
    /// From when a request came until it was done, nanoseconds.
    requests: Histogram<u64>,
    /// CPU time over time.
    cpu: f64,
    yields: u64,
    preempted: u64,
}

/// A way, round by round.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Which.
    pub way: Way,
    /// What the control plane did, over what it did with a static partition in the same round.
    pub control: Samples,
    /// The data plane's bursts that were done, of all there were.
    pub done: Samples,
    /// Delay of bursts' first requests: median and 99th percentile, nanoseconds.
    pub first: (Samples, Samples),
    /// Latency of requests: the same.
    pub requests: (Samples, Samples),
    /// CPU time of the core over time.
    pub cpu: Samples,
    /// Yields a second.
    pub yields: Samples,
    /// Of those, the part that work preempted.
    pub preempted: Samples,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Figures {
    plan: Plan,
    /// Each way.
    pub measured: Vec<Measured>,
}

/// A case, as it is shown while it is measured.
#[derive(Clone, Copy, Debug)]
pub struct Case;

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("control plane beside bursts")
    }
}

/// Measures each way in turns.
///
/// # Errors
/// [`SetupError`]: the CPUs cannot be had, or are one.
pub fn measure(plan: &Plan, mut progress: impl FnMut(Progress<'_, Case>)) -> Result<Figures, SetupError> {
    if plan.control_cpu == plan.data_cpu {
        return Err(SetupError::Plan("the control plane and the data plane are to have a CPU each".to_owned()));
    }
    if plan.busy >= plan.period || plan.busy.as_nanos() < u128::from(REQUEST) {
        return Err(SetupError::Plan("a burst is at least 1 us long, and shorter than a period".to_owned()));
    }
    // Its threads come before the programs of other sessions.
    let _first = affinity::SessionFirst::new();
    let empty = || Samples::default();
    let new = |way| Measured {
        way,
        control: empty(),
        done: empty(),
        first: (empty(), empty()),
        requests: (empty(), empty()),
        cpu: empty(),
        yields: empty(),
        preempted: empty(),
    };
    let mut measured = Way::ALL.map(new).to_vec();
    let of = plan.rounds * measured.len();
    for round in 0..plan.rounds {
        for (index, one) in measured.iter_mut().enumerate() {
            progress(Progress { done: round * Way::ALL.len() + index, of, case: Case, subject: one.way.name() });
            let (partition, _) = run(plan, Way::Spin, &[plan.control_cpu])?;
            let (control, core) = run(plan, one.way, &[plan.control_cpu, plan.data_cpu])?;
            one.control.push(control / partition.max(1.0));
            one.done.push(core.bursts.0 as f64 / core.bursts.1.max(1) as f64);
            let ends = |of: &mut (Samples, Samples), histogram: &Histogram<u64>| {
                of.0.push(histogram.value_at_quantile(0.5) as f64);
                of.1.push(histogram.value_at_quantile(0.99) as f64);
            };
            ends(&mut one.first, &core.first);
            ends(&mut one.requests, &core.requests);
            one.cpu.push(core.cpu);
            one.yields.push(core.yields as f64 / plan.duration.as_secs_f64());
            one.preempted.push(core.preempted as f64 / core.yields.max(1) as f64);
        }
    }
    Ok(Figures { plan: *plan, measured })
}

/// What control-plane threads on these CPUs did in the plan's time, and the core beside them.
fn run(plan: &Plan, way: Way, control: &[usize]) -> Result<(f64, CoreRun), SetupError> {
    let (over, count) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let threads: Vec<_> = control.iter().map(|cpu| scope.spawn(|| control_plane(*cpu, &over, &count))).collect();
        let core = scope.spawn(|| {
            let core = core(plan, way);
            over.store(true, Relaxed);
            core
        });
        let ended = |_| SetupError::Plan("a thread of the measurement panicked".to_owned());
        let core = core.join().map_err(ended)?;
        for thread in threads {
            thread.join().map_err(ended)??;
        }
        Ok((count.load(Relaxed) as f64, core?))
    })
}

fn system(what: &str, error: rustix::io::Errno) -> SetupError {
    SetupError::Plan(format!("{what}: {error}"))
}

/// Does something that takes a microsecond or so, until all is over.
fn control_plane(cpu: usize, over: &AtomicBool, count: &AtomicU64) -> Result<(), SetupError> {
    affinity::pin_to(cpu).map_err(|error| system("the control plane's CPU", error))?;
    let own = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    threads::set_policy(own, OrdinaryPolicy::Idle)
        .map_err(|error| SetupError::Plan(format!("SCHED_IDLE for the control plane: {error}")))?;
    let (mut state, mut done) = (cpu as u64, 0);
    while !over.load(Relaxed) {
        for _ in 0..500 {
            // An LCG of Knuth's; only its time counts.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        }
        std::hint::black_box(state);
        done += 1;
    }
    count.fetch_add(done, Relaxed);
    Ok(())
}

/// Descriptors by which a core is woken.
struct Waking {
    set: OwnedFd,
    timer: OwnedFd,
}

impl Waking {
    fn new() -> Result<Waking, SetupError> {
        let failed = |error| system("a timer", error);
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).map_err(failed)?;
        let set = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        epoll::add(&set, &timer, EventData::new_u64(0), EventFlags::IN | EventFlags::ET).map_err(failed)?;
        Ok(Waking { set, timer })
    }

    /// Waits for `slice`, or until work comes in `due` nanoseconds. What it was.
    fn wait(&self, slice: Nanos, due: u64) -> SliceEnd {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let at = Timespec { tv_sec: (due / 1_000_000_000) as i64, tv_nsec: (due % 1_000_000_000) as i64 };
        let timer = Itimerspec { it_interval: zero, it_value: at };
        if rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &timer).is_err() {
            return SliceEnd::Due;
        }
        let mut end = SliceEnd::Expired;
        match wake::wait(self.set.as_fd(), slice.0, |_| end = SliceEnd::Preempted) {
            Ok(()) => end,
            Err(_) => SliceEnd::Due,
        }
    }
}

/// The data plane's core, for the plan's time.
fn core(plan: &Plan, way: Way) -> Result<CoreRun, SetupError> {
    affinity::pin_to(plan.data_cpu).map_err(|error| system("the data plane's CPU", error))?;
    // Without the right it runs at ordinary priority, which still comes before SCHED_IDLE.
    let _ = affinity::highest_nice();
    wake::exact_timers().map_err(|error| system("exact timers", error))?;
    let waking = Waking::new()?;
    let histogram =
        || Histogram::new_with_bounds(1, LONGEST, 3).map_err(|error| SetupError::Plan(format!("a histogram: {error}")));
    let (mut first, mut requests) = (histogram()?, histogram()?);
    let (busy, period) = (plan.busy.as_nanos() as u64, plan.period.as_nanos() as u64);
    let all = plan.duration.as_nanos() as u64 / period;
    let mut yielding = Yielding::new(way.policy());
    let (began, used) = (clock::now(), clock::thread_time());
    let (mut burst, mut yields, mut preempted) = (0, 0, 0);
    let (mut idle_since, mut polls) = (began, 0);
    while burst < all {
        let next = began + (burst + 1) * period;
        let now = clock::now();
        if now >= next {
            first.saturating_record((now - next).max(1));
            for request in 0..busy / REQUEST {
                let done = now + (request + 1) * REQUEST;
                spin_until(done);
                requests.saturating_record(clock::now().saturating_sub(next + request * REQUEST).max(1));
            }
            burst += 1;
            (idle_since, polls) = (clock::now(), 0);
            continue;
        }
        spin_until(now + POLL);
        polls += 1;
        let now = clock::now();
        let Some(slice) = yielding.yields(polls, Nanos(now - idle_since)) else { continue };
        // Looked at once more, as rings are.
        if now < next {
            let end = waking.wait(slice, next - now);
            yields += 1;
            preempted += u64::from(end == SliceEnd::Preempted);
            yielding.ended(end);
        }
        (idle_since, polls) = (clock::now(), 0);
    }
    let cpu = (clock::thread_time() - used) as f64 / (clock::now() - began).max(1) as f64;
    Ok(CoreRun { bursts: (burst, all), first, requests, cpu, yields, preempted })
}

fn spin_until(at: u64) {
    while clock::now() < at {
        std::hint::spin_loop();
    }
}

impl Figures {
    /// One JSON object a line.
    ///
    /// # Errors
    /// Those of `to`.
    pub fn write_json(&self, to: &mut impl io::Write) -> io::Result<()> {
        let case = self.case();
        for one in &self.measured {
            let mut line = |metric, unit, value| {
                Figure { bench: "cosched", subject: one.way.name(), case: &case, metric, unit, value }.write(to)
            };
            let (least, most) = one.control.interval();
            line("control-plane-to-static-partition", "1", one.control.median())?;
            line("control-plane-to-static-partition-from", "1", least)?;
            line("control-plane-to-static-partition-to", "1", most)?;
            line("bursts-done", "1", one.done.median())?;
            line("first-request-delay-p50", "ns", one.first.0.median())?;
            line("first-request-delay-p99", "ns", one.first.1.median())?;
            line("latency-p50", "ns", one.requests.0.median())?;
            line("latency-p99", "ns", one.requests.1.median())?;
            line("core-cpu", "core", one.cpu.median())?;
            line("yields", "1/s", one.yields.median())?;
            line("preempted", "1", one.preempted.median())?;
        }
        Ok(())
    }

    fn case(&self) -> String {
        format!("{} us of {}", self.plan.busy.as_micros(), self.plan.period.as_micros())
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let columns = [
            "the core",
            "control plane>",
            "95 %>",
            "bursts done>",
            "first request, p50>",
            "p99>",
            "latency, p99>",
            "core CPU>",
            "yields/s>",
            "preempted>",
        ];
        let mut table = Table::new(columns);
        let us = |samples: &Samples| format!("{:.1} us", samples.median() / 1e3);
        let percent = |samples: &Samples| format!("{:.1} %", samples.median() * 100.0);
        for one in &self.measured {
            let (least, most) = one.control.interval();
            table.row(vec![
                one.way.name().to_owned(),
                format!("{:.2}", one.control.median()),
                format!("{least:.2} to {most:.2}"),
                percent(&one.done),
                us(&one.first.0),
                us(&one.first.1),
                us(&one.requests.1),
                percent(&one.cpu),
                format!("{:.0}", one.yields.median()),
                percent(&one.preempted),
            ]);
        }
        let plan = &self.plan;
        write!(
            f,
            "{table}\nthe data plane busy for {} us on CPU {}, control plane at SCHED_IDLE on CPU {} and on what is left of \
             CPU {}; {} pairs of {:.1} s with a static partition, medians;\ncontrol plane: what it did, over what it did \
             with the partition; by cycles at most {:.2}\n",
            self.case(),
            plan.data_cpu,
            plan.control_cpu,
            plan.data_cpu,
            plan.rounds,
            plan.duration.as_secs_f64(),
            2.0 - plan.busy.as_secs_f64() / plan.period.as_secs_f64()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Option<Plan> {
        let allowed = affinity::allowed();
        let (busy, period) = (Duration::from_micros(300), Duration::from_millis(1));
        let [control_cpu, data_cpu, ..] = allowed[..] else { return None };
        Some(Plan { busy, period, duration: Duration::from_millis(20), rounds: 1, control_cpu, data_cpu })
    }

    #[test]
    fn a_core_does_all_of_its_work_whichever_way_it_yields() {
        let Some(plan) = plan() else {
            return softdpu_testing::skip("a control plane beside a core", "it needs two CPUs");
        };
        let figures = measure(&plan, |_| ()).expect("it is measured");
        let done: Vec<f64> = figures.measured.iter().map(|one| one.done.median()).collect();
        assert_eq!(done, [1.0; 3]);
        let yields: Vec<bool> = figures.measured.iter().map(|one| one.yields.median() > 0.0).collect();
        assert_eq!(yields, [false, true, true]);
        let mut lines = Vec::new();
        figures.write_json(&mut lines).expect("to memory");
        assert_eq!(String::from_utf8_lossy(&lines).lines().count(), 3 * 11);
        assert!(figures.to_string().contains("by cycles at most 1.70"), "{figures}");
    }

    #[test]
    fn plans_that_cannot_be_measured_are_refused() {
        let Some(plan) = plan() else {
            return softdpu_testing::skip("a control plane beside a core", "it needs two CPUs");
        };
        let refused = |plan| measure(&plan, |_| ()).is_err();
        assert!(refused(Plan { data_cpu: plan.control_cpu, ..plan }));
        assert!(refused(Plan { busy: plan.period, ..plan }) && refused(Plan { busy: Duration::ZERO, ..plan }));
    }
}
