//! A core that yields, on seeds' arrivals: polls, slices and wake-ups in simulated time, and what is promised of them.
//!
//! | promise | what is compared |
//! |---|---|
//! | [`POLLS`] | the time from one poll to the next, with the longest slice |
//! | [`ADAPTS`] | each slice, with what became of the one before (Tai Chi §4.1) |
//! | [`GIVES`] | CPU time in a second without work: at most half a hundredth |
//! | [`LEARNS`] | yields while work comes evenly, sooner than a slice is over: few: each is a false positive (§4.3) |

use softdpu_sched::record::{Encoder, Event, Header};
use softdpu_sched::{Nanos, SliceEnd, YieldPolicy, YieldTuning, YieldedSlice, Yielding};

use super::{Explored, Violation};
use crate::arrivals::{Arrivals, FRACTION, Stream};
use crate::random::Random;

/// The policy, as it is named.
pub const ADAPTIVE: &str = "adaptive-yield";

const POLLS: &str = "a core polls at least once a slice";
const ADAPTS: &str = "slices double when they expire and begin anew when work ends them";
const GIVES: &str = "an idle core gives its CPU away";
const LEARNS: &str = "false positives become rare";

const SECOND: u64 = 1_000_000_000;
/// What a core may use of a second without work, nanoseconds.
const IDLE_USE: u64 = SECOND / 200;
/// Slices that even work, in gaps shorter than a slice, may end: the threshold doubles with each, from least to most.
const FALSE_POSITIVES: u64 = 9;

/// A policy of yielding that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BrokenYield {
    /// Its slices have no bound.
    Unbounded,
    /// It does not begin anew after work.
    Keeps,
    /// Its threshold does not rise.
    Eager,
    /// Its slices do not grow.
    Short,
}

impl BrokenYield {
    /// All of them, by name.
    pub const NAMES: [(&'static str, BrokenYield); 4] = [
        ("broken-yield-unbounded", BrokenYield::Unbounded),
        ("broken-yield-keeps", BrokenYield::Keeps),
        ("broken-yield-eager", BrokenYield::Eager),
        ("broken-yield-short", BrokenYield::Short),
    ];
}

/// Adaptive yielding, which may be broken.
struct Policy {
    yielding: Yielding,
    tuning: YieldTuning,
    how: Option<BrokenYield>,
}

impl Policy {
    fn new(how: Option<BrokenYield>) -> Policy {
        let tuning = YieldTuning::default();
        let used = match how {
            Some(BrokenYield::Unbounded) => YieldTuning { longest: Nanos(1 << 50), ..tuning },
            Some(BrokenYield::Eager) => YieldTuning { threshold: tuning.least, most: tuning.least, ..tuning },
            Some(BrokenYield::Short) => YieldTuning { longest: tuning.slice, ..tuning },
            Some(BrokenYield::Keeps) | None => tuning,
        };
        Policy { yielding: Yielding::new(YieldPolicy::Adaptive(used)), tuning, how }
    }

    fn ended(&mut self, end: SliceEnd) {
        if self.how != Some(BrokenYield::Keeps) || end != SliceEnd::Preempted {
            self.yielding.ended(end);
        }
    }
}

/// How work comes for a while.
struct Phase {
    law: Arrivals,
    lasts: u64,
    /// Evenly, and so often that each slice is a false positive.
    is_steady: bool,
}

/// A core and its work.
struct Scenario {
    /// What an empty poll takes, nanoseconds.
    poll: u64,
    /// What a unit of work takes.
    service: u64,
    /// From a wake-up to the next poll.
    wake: u64,
    /// What it uses of that and of going to sleep.
    cost: u64,
    phases: Vec<Phase>,
    random: Random,
}

impl Scenario {
    fn of(seed: u64) -> Scenario {
        let mut random = Random::new(seed ^ 0x7969_656c);
        // From a core with a ring to one with some hundreds; a wake-up as in one kernel and in another.
        let (poll, service) = (random.between(60, 4_000), random.between(500, 4_000));
        let (wake, cost) = (random.between(2_000, 30_000), random.between(2_000, 15_000));
        let count = random.between(3, 8);
        let mut phases: Vec<Phase> = (0..count).map(|_| Phase::any(&mut random)).collect();
        phases.push(Phase::silence(2 * SECOND));
        Scenario { poll, service, wake, cost, phases, random }
    }

    fn about(&self) -> String {
        let Scenario { poll, service, wake, phases, .. } = self;
        format!("a poll of {poll} ns, work of {service} ns, a wake-up of {wake} ns; {} phases", phases.len())
    }

    /// Times at which work comes, and when each phase ends.
    fn arrivals(&mut self) -> (Vec<u64>, Vec<u64>) {
        let (mut all, mut ends, mut start) = (Vec::new(), Vec::new(), 0);
        for phase in &self.phases {
            let end = start + phase.lasts;
            let mut stream = Stream::new(phase.law.clone(), start, self.random.fork());
            all.extend(std::iter::from_fn(|| stream.next()).take_while(|at| *at < end));
            ends.push(end);
            start = end;
        }
        (all, ends)
    }
}

impl Phase {
    fn any(random: &mut Random) -> Phase {
        let lasts = random.between(5_000_000, 40_000_000);
        let law = match random.below(4) {
            // The paper's bursts: idle for most of a millisecond.
            0 => Arrivals::OnOff { on: 300_000, off: 700_000, gap: random.between(2_000, 8_000) << FRACTION },
            1 => Arrivals::Poisson(random.between(1_000, 3_000_000) << FRACTION),
            2 => return Phase::silence(random.between(SECOND, 2 * SECOND)),
            _ => {
                let gap = random.between(12_000, 44_000);
                return Phase { law: Arrivals::Paced(gap << FRACTION), lasts, is_steady: true };
            }
        };
        Phase { law, lasts, is_steady: false }
    }

    fn silence(lasts: u64) -> Phase {
        Phase { law: Arrivals::Trace([].into()), lasts, is_steady: false }
    }
}

/// What is compared with the promises.
#[derive(Default)]
struct Examined {
    /// When the core polled last.
    polled: u64,
    /// What the next slice has to be.
    slice: Option<u64>,
    /// Slices in this phase.
    in_phase: u64,
    /// CPU time since the last work, nanoseconds, and since when that is.
    used: u64,
    idle_since: u64,
    violation: Option<Violation>,
}

impl Examined {
    fn broke(&mut self, now: u64, promise: &'static str, what: String) {
        self.violation.get_or_insert(Violation { now, promise, what });
    }
}

/// The slices of a seed, and what was not as promised.
fn run(seed: u64, how: Option<BrokenYield>) -> (Scenario, Vec<YieldedSlice>, Option<Violation>) {
    let mut scenario = Scenario::of(seed);
    let (arrivals, ends) = scenario.arrivals();
    let mut policy = Policy::new(how);
    let tuning = policy.tuning;
    let mut examined = Examined { slice: Some(tuning.slice.0), ..Examined::default() };
    let (mut slices, mut next, mut phase) = (Vec::new(), 0, 0);
    let (mut now, mut idle_since, mut polls) = (0_u64, 0, 0);
    while phase < ends.len() && examined.violation.is_none() {
        if now >= ends[phase] {
            phase += 1;
            examined.in_phase = 0;
            continue;
        }
        let longest = tuning.longest.0 + scenario.wake + scenario.service + scenario.poll;
        if now - examined.polled > longest {
            examined.broke(now, POLLS, format!("{} us without a poll", (now - examined.polled) / 1_000));
        }
        examined.polled = now;
        if arrivals.get(next).is_some_and(|at| *at <= now) {
            next += 1;
            now += scenario.service;
            (idle_since, polls) = (now, 0);
            (examined.idle_since, examined.used) = (now, 0);
            continue;
        }
        now += scenario.poll;
        polls += 1;
        examined.used += scenario.poll;
        if now - examined.idle_since > SECOND {
            if examined.used > IDLE_USE {
                examined.broke(now, GIVES, format!("{} us of a second without work", examined.used / 1_000));
            }
            (examined.idle_since, examined.used) = (now, 0);
        }
        let spun = Nanos(now - idle_since);
        let Some(slice) = policy.yielding.yields(polls, spun) else { continue };
        if examined.slice != Some(slice.0) {
            examined.broke(now, ADAPTS, format!("{} ns, where {:?} were due", slice.0, examined.slice));
        }
        let over = now.saturating_add(slice.0);
        let (woken, end) = match arrivals.get(next) {
            Some(&at) if at < over => (at.max(now), SliceEnd::Preempted),
            _ => (over, SliceEnd::Expired),
        };
        now = woken + scenario.wake;
        examined.used += scenario.cost;
        examined.in_phase += 1;
        if scenario.phases[phase].is_steady && examined.in_phase > FALSE_POSITIVES + 3 {
            examined.broke(now, LEARNS, format!("slice {} of a phase of even work", examined.in_phase));
        }
        examined.slice = Some(match end {
            SliceEnd::Expired => (slice.0 * 2).min(tuning.longest.0),
            SliceEnd::Preempted | SliceEnd::Due => tuning.slice.0,
        });
        slices.push(YieldedSlice { now: Nanos(now), polls, spun, slice, end });
        policy.ended(end);
        (idle_since, polls) = (now, 0);
    }
    (scenario, slices, examined.violation)
}

/// Runs a seed with a policy of yielding, if `name` is one.
pub(super) fn explore(name: &str, seed: u64) -> Option<Explored> {
    let how = BrokenYield::NAMES.iter().find(|(known, _)| *known == name).map(|(_, how)| *how);
    if how.is_none() && name != ADAPTIVE {
        return None;
    }
    let (scenario, slices, violation) = run(seed, how);
    Some(Explored { scenario: scenario.about(), grants: slices.len() as u64, violation })
}

/// Whether `name` is a policy of yielding.
pub fn is_yielding(name: &str) -> bool {
    name == ADAPTIVE || BrokenYield::NAMES.iter().any(|(known, _)| *known == name)
}

/// A seed's slices as a core would have recorded them.
pub fn record(seed: u64) -> Vec<u8> {
    let header = Header { core: 0, policy: "fcfs".to_owned(), parameters: Vec::new() };
    let mut encoder = Encoder::new(&header, 1 << 20);
    encoder.write(&Event::Yielding(YieldPolicy::Adaptive(YieldTuning::default())));
    run(seed, None).1.into_iter().for_each(|slice| encoder.write(&Event::Yielded(slice)));
    encoder.take(Vec::new())
}

#[cfg(test)]
mod tests {
    use softdpu_sched::record::Decoder;

    use super::*;
    use crate::replay::{Ending, Outcome, verify};

    #[test]
    fn adaptive_yielding_keeps_what_it_promises() {
        let slices = (0..60).map(|seed| {
            let explored = explore(ADAPTIVE, seed).expect("a policy");
            assert_eq!(explored.violation, None, "seed {seed}: {}", explored.scenario);
            explored.grants
        });
        assert!(slices.sum::<u64>() > 2_000);
    }

    #[test]
    fn each_that_is_broken_is_found_out_for_what_it_is() {
        for (name, how) in BrokenYield::NAMES {
            let promises: &[&str] = match how {
                BrokenYield::Unbounded => &[POLLS, ADAPTS],
                BrokenYield::Keeps => &[ADAPTS],
                BrokenYield::Eager => &[LEARNS],
                BrokenYield::Short => &[ADAPTS, GIVES],
            };
            let found = (0..60).find_map(|seed| explore(name, seed)?.violation);
            let found = found.unwrap_or_else(|| panic!("{name} was not found out"));
            assert!(promises.contains(&found.promise), "{name}: {found}");
        }
    }

    #[test]
    fn what_was_recorded_is_replayed_and_another_tuning_differs() {
        for seed in 0..5 {
            let file = record(seed);
            let verified = verify(&file).expect("a recording");
            assert_eq!((verified.outcome, verified.ending), (Outcome::Same, Ending::Whole), "seed {seed}");
            assert!(verified.slices > 10, "seed {seed}: {}", verified.slices);
            let (header, decoder) = Decoder::new(&file).expect("a recording");
            let mut encoder = Encoder::new(&header, 1 << 20);
            let tuning = YieldTuning { slice: Nanos(60_000), ..YieldTuning::default() };
            encoder.write(&Event::Yielding(YieldPolicy::Adaptive(tuning)));
            decoder.flatten().skip(1).for_each(|event| encoder.write(&event));
            let verified = verify(&encoder.take(Vec::new())).expect("a recording");
            assert!(matches!(verified.outcome, Outcome::YieldDiffers { .. }), "seed {seed}: {:?}", verified.outcome);
        }
    }

    #[test]
    fn a_core_that_yielded_too_early_or_too_late_differs() {
        let header = Header { core: 0, policy: "fcfs".to_owned(), parameters: Vec::new() };
        for (polls, spun, is_same) in [(513, 9_000, true), (512, 9_000, false), (514, 9_000, false), (40, 50_000, true)]
        {
            let mut encoder = Encoder::new(&header, 1 << 10);
            encoder.write(&Event::Yielding(YieldPolicy::Adaptive(YieldTuning::default())));
            let (slice, end) = (Nanos(50_000), SliceEnd::Expired);
            encoder.write(&Event::Yielded(YieldedSlice { now: Nanos(1), polls, spun: Nanos(spun), slice, end }));
            let outcome = verify(&encoder.take(Vec::new())).expect("a recording").outcome;
            assert_eq!(outcome == Outcome::Same, is_same, "{polls} polls in {spun} ns: {outcome:?}");
        }
    }

    #[test]
    fn a_slice_of_a_core_that_does_not_yield_is_refused() {
        let file = record(1);
        let (header, decoder) = Decoder::new(&file).expect("a recording");
        let mut encoder = Encoder::new(&header, 1 << 20);
        decoder.flatten().skip(1).for_each(|event| encoder.write(&event));
        let refused = verify(&encoder.take(Vec::new())).expect_err("no policy of yielding");
        assert!(refused.to_string().contains("a slice of a core that does not yield"), "{refused}");
    }
}
