//! The loop under all loads: it gives every job its turn, again and again, for a time.
//!
//! It makes no allocation and, when polling, no system call but the kicks that devices ask for. The clock is read once
//! for a batch of completions; without completions once in [`PATIENCE`] rounds.

use std::fmt;
use std::time::{Duration, Instant};

use rustix::event::PollFd;
use smallvec::SmallVec;
use softdpu_sys::clock;

use super::pace::Pace;
use super::{LoadError, Outcome};
use crate::sleep_until;

/// Jobs of which none completes anything for this long are given up.
const STALL: Duration = Duration::from_secs(10);
/// Rounds between two looks at the clock and at what jobs wait for.
const PATIENCE: u32 = 1 << 10;
/// The longest that a client sleeps before it looks for what its jobs have lost.
const NAP: Duration = Duration::from_millis(20);

/// How the client learns of completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Waiting {
    /// It looks at the rings all the time; notifications are off.
    Polling,
    /// It sleeps on the call eventfds while there are no completions.
    Blocking,
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Waiting::Polling => "polling",
            Waiting::Blocking => "blocking",
        })
    }
}

/// What a turn of a job did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Turn {
    /// Completions that it took.
    pub completed: usize,
    /// When it found them; 0 without completions.
    pub now: u64,
    /// Whether it published requests.
    pub submitted: bool,
}

/// Notifications of a job in both directions, since it connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signals {
    /// Kicks sent.
    pub kicks: u64,
    /// Notifications slept for.
    pub interrupts: u64,
}

/// What a client sleeps on.
pub type PollFds<'a> = SmallVec<[PollFd<'a>; 8]>;

/// Requests of one kind that are kept in flight.
pub trait Job: Send {
    /// Requests in flight at full load.
    fn depth(&self) -> usize;

    /// Raises what is in flight to `depth`, at most [`depth`](Self::depth), and publishes that. It is kept there by
    /// turns that submit.
    ///
    /// # Errors
    /// [`LoadError`].
    fn raise(&mut self, depth: usize) -> Result<(), LoadError>;

    /// Takes what is completed, at most `most`, records it, and publishes as many requests if it `submits`.
    ///
    /// # Errors
    /// [`LoadError`].
    fn turn(&mut self, most: usize, submits: bool, outcome: &mut Outcome) -> Result<Turn, LoadError>;

    /// Requests in flight.
    fn in_flight(&self) -> usize;

    /// Looks for what is lost. Called now and then.
    ///
    /// # Errors
    /// [`LoadError`] of a job that is given up though others are served.
    fn check(&mut self, now: u64) -> Result<(), LoadError> {
        let _ = now;
        Ok(())
    }

    /// Notifications so far.
    fn signals(&self) -> Signals;

    /// Enables notifications. True where a completion arrived in the meantime.
    fn arm(&mut self) -> bool;

    /// Appends what the job's notifications come by.
    fn poll_fds<'a>(&'a self, fds: &mut PollFds<'a>);

    /// Disables notifications where the job does not sleep on, and takes those that came if it `slept`.
    fn woken(&mut self, slept: bool);

    /// The error of a job without a completion for `waited`.
    fn overdue(&self, waited: Duration) -> LoadError;
}

/// How a generator goes about its jobs.
#[derive(Clone, Copy, Debug)]
pub struct GeneratorOptions {
    /// How the client learns of completions.
    pub waiting: Waiting,
    /// Completions of one job that are taken before the next job has its turn.
    pub batch: usize,
    /// Lets completions gather, for a client with so many requests in flight that is alone with its server; none: it
    /// takes them as they come.
    pub pace: Option<usize>,
    /// Measures the time that the client itself takes (a clock reading a batch more).
    pub profile: bool,
}

/// Drives jobs from the calling thread. Its steps in their order: [`start`](Self::start), [`warm_up`](Self::warm_up),
/// [`measure`](Self::measure), [`drain`](Self::drain).
pub struct Generator {
    options: GeneratorOptions,
    pace: Option<Pace>,
    /// What is not measured.
    unmeasured: Outcome,
}

/// Where completions are recorded.
enum Record<'a> {
    /// By job.
    Each(&'a mut [Outcome]),
    All(&'a mut Outcome),
}

impl Record<'_> {
    #[inline(always)]
    fn of(&mut self, job: usize) -> &mut Outcome {
        match self {
            Record::Each(outcomes) => &mut outcomes[job],
            Record::All(outcome) => outcome,
        }
    }
}

impl Generator {
    /// A generator of no load yet.
    pub fn new(options: GeneratorOptions) -> Generator {
        Generator { options, pace: options.pace.map(Pace::new), unmeasured: Outcome::default() }
    }

    /// [Probes](Self::probe) all jobs, and raises them to their depths.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn start<J: Job + ?Sized>(&mut self, jobs: &mut [&mut J]) -> Result<(), LoadError> {
        self.probe(jobs)?;
        jobs.iter_mut().try_for_each(|job| job.raise(job.depth()))
    }

    /// Has every job, one after the other, complete a single request. A server may acknowledge the messages that start
    /// a queue (SET_VRING_KICK) before it runs the queue: with the others under load already, the one that starts late
    /// would be measured beside less load than there is to be, or its rate over less than the whole time.
    ///
    /// # Errors
    /// [`LoadError`], for the first job whose request is not completed.
    pub fn probe<J: Job + ?Sized>(&mut self, jobs: &mut [&mut J]) -> Result<(), LoadError> {
        for job in jobs {
            let since = clock::now();
            let mut rounds = 0u32;
            loop {
                if job.in_flight() == 0 {
                    job.raise(1)?;
                }
                if job.turn(1, false, &mut self.unmeasured)?.completed > 0 {
                    break;
                }
                rounds = rounds.wrapping_add(1);
                if rounds.is_multiple_of(PATIENCE) {
                    let now = clock::now();
                    job.check(now)?;
                    if Duration::from_nanos(now - since) > STALL {
                        return Err(job.overdue(STALL));
                    }
                }
            }
        }
        Ok(())
    }

    /// Keeps jobs at their depths for `length`, and records nothing.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn warm_up<J: Job + ?Sized>(&mut self, jobs: &mut [&mut J], length: Duration) -> Result<(), LoadError> {
        let end = clock::now() + length.as_nanos() as u64;
        self.rounds::<J, true>(jobs, None, end)
    }

    /// Keeps jobs at their depths for `length`, and records what each of them gets in the outcome of its place, which
    /// is empty before.
    ///
    /// # Errors
    /// [`LoadError`].
    ///
    /// # Panics
    /// With fewer outcomes than jobs.
    pub fn measure<J: Job + ?Sized>(
        &mut self,
        jobs: &mut [&mut J],
        length: Duration,
        outcomes: &mut [Outcome],
    ) -> Result<(), LoadError> {
        let before: Vec<Signals> = jobs.iter().map(|job| job.signals()).collect();
        let start = clock::now();
        outcomes.iter_mut().for_each(|outcome| outcome.begin(start, length));
        self.rounds::<J, true>(jobs, Some(outcomes), start + length.as_nanos() as u64)?;
        let elapsed = Duration::from_nanos(clock::now() - start);
        for ((outcome, job), before) in outcomes.iter_mut().zip(jobs).zip(before) {
            let after = job.signals();
            outcome.elapsed = elapsed;
            outcome.kicks = after.kicks - before.kicks;
            outcome.interrupts = after.interrupts - before.interrupts;
        }
        Ok(())
    }

    /// Takes what is in flight, and submits nothing more.
    ///
    /// # Errors
    /// [`LoadError`].
    pub fn drain<J: Job + ?Sized>(&mut self, jobs: &mut [&mut J]) -> Result<(), LoadError> {
        self.rounds::<J, false>(jobs, None, u64::MAX)
    }

    /// Gives all jobs their turns until `end` (submitting), or until nothing is in flight.
    fn rounds<J: Job + ?Sized, const SUBMITS: bool>(
        &mut self,
        jobs: &mut [&mut J],
        outcomes: Option<&mut [Outcome]>,
        end: u64,
    ) -> Result<(), LoadError> {
        let GeneratorOptions { waiting, batch, profile, .. } = self.options;
        let mut record = match outcomes {
            Some(outcomes) => Record::Each(outcomes),
            None => Record::All(&mut self.unmeasured),
        };
        let (mut last, mut rounds) = (clock::now(), 0u32);
        loop {
            let (mut found, mut submitted) = (false, false);
            for (at, job) in jobs.iter_mut().enumerate() {
                let turn = job.turn(batch, SUBMITS, record.of(at))?;
                submitted |= turn.submitted;
                if turn.completed == 0 {
                    continue;
                }
                (found, last) = (true, turn.now);
                if profile {
                    record.of(at).profile(clock::now() - turn.now);
                }
                if SUBMITS && turn.now >= end {
                    return Ok(());
                }
                if let Some(pace) = &mut self.pace {
                    pace.wait(turn.now, turn.completed);
                }
            }
            if !SUBMITS && jobs.iter().all(|job| job.in_flight() == 0) {
                return Ok(());
            }
            let sleeps = waiting == Waiting::Blocking && !found && !submitted;
            if sleeps {
                sleep(jobs);
            }
            rounds = rounds.wrapping_add(1);
            if sleeps || rounds.is_multiple_of(PATIENCE) {
                let now = clock::now();
                jobs.iter_mut().try_for_each(|job| job.check(now))?;
                if SUBMITS && now >= end {
                    return Ok(());
                }
                if now.saturating_sub(last) > STALL.as_nanos() as u64 {
                    return Err(stalled(jobs));
                }
            }
        }
    }
}

/// Sleeps until a job is notified, or for [`NAP`].
fn sleep<J: Job + ?Sized>(jobs: &mut [&mut J]) {
    let sleeps = !jobs.iter_mut().any(|job| job.arm());
    if sleeps {
        let mut fds = PollFds::new();
        jobs.iter().for_each(|job| job.poll_fds(&mut fds));
        // Nothing is wrong with a deadline that passes: the caller looks at how long it has been.
        let _ = sleep_until(&mut fds, Instant::now() + NAP);
    }
    jobs.iter_mut().for_each(|job| job.woken(sleeps));
}

#[cold]
fn stalled<J: Job + ?Sized>(jobs: &[&mut J]) -> LoadError {
    match jobs.iter().max_by_key(|job| job.in_flight()) {
        Some(job) => job.overdue(STALL),
        None => LoadError::Load("a load has at least one job".to_owned()),
    }
}

#[cfg(test)]
mod tests;
