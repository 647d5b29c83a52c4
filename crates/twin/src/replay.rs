//! Recorded cores: the same decisions again, and what another policy would have done.
//!
//! A recording has every call of a core's policy and every answer ([`softdpu_sched::record`]). [`verify`] makes the
//! same calls to a policy of the same parameters and compares the answers. [`compare`] keeps when work came and what
//! each unit cost, and lets a policy decide anew.

mod again;

use std::fmt;

use softdpu_sched::record::{DecodeError, Decoder, Event, Fault, Header};
use softdpu_sched::{
    Decision, Grant, Nanos, Policy, TenantScheduler, UnknownPolicy, YieldPolicy, YieldedSlice, Yielding,
};

pub use again::{Comparison, Fared, TenantWaits, compare};

/// Why a recording cannot be replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplayError {
    /// It cannot be read.
    Decode(DecodeError),
    /// It was made by a policy that this release does not have.
    Policy(UnknownPolicy),
    /// It tells of something that no core does.
    Inconsistent {
        /// The event, from 0.
        event: u64,
        /// What is wrong.
        what: &'static str,
    },
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Decode(error) => error.fmt(f),
            ReplayError::Policy(error) => write!(f, "made by another release? {error}"),
            ReplayError::Inconsistent { event, what } => write!(f, "event {event}: {what}: the file is damaged"),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<DecodeError> for ReplayError {
    fn from(error: DecodeError) -> Self {
        ReplayError::Decode(error)
    }
}

/// How a recording ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// After an event.
    Whole,
    /// Within one, at this byte: its writer was killed.
    Truncated(usize),
    /// Its buffer was full: the core went on.
    Stopped,
}

/// What a replay found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Every decision was the same.
    Same,
    /// The first that was not.
    Differs {
        /// The event, from 0.
        event: u64,
        /// When.
        now: Nanos,
        /// What the recording has.
        recorded: Decision,
        /// What the policy decided now.
        decided: Decision,
    },
    /// The first slice that was not: the core had yielded earlier, later, or for another time.
    YieldDiffers {
        /// The event, from 0.
        event: u64,
        /// What the recording has.
        recorded: YieldedSlice,
        /// The slice after as many empty polls now; none: it polls on.
        decided: Option<Nanos>,
    },
}

/// A replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The recording's header.
    pub header: Header,
    /// Events that were replayed.
    pub events: u64,
    /// Decisions that were compared.
    pub decisions: u64,
    /// Of them, grants.
    pub grants: u64,
    /// Slices that the core gave away, which were compared, too.
    pub slices: u64,
    /// How the recording ends.
    pub ending: Ending,
    /// What came of it.
    pub outcome: Outcome,
}

/// Events of a file, up to where it is whole.
fn events(decoder: Decoder<'_>) -> Result<(Vec<Event>, Ending), ReplayError> {
    let (mut all, mut ending) = (Vec::new(), Ending::Whole);
    for event in decoder {
        match event {
            Ok(Event::Stopped) => ending = Ending::Stopped,
            Ok(event) => all.push(event),
            Err(DecodeError { offset, fault: Fault::Truncated }) => ending = Ending::Truncated(offset),
            Err(error) => return Err(error.into()),
        }
    }
    Ok((all, ending))
}

fn policy_of(header: &Header) -> Result<Policy, ReplayError> {
    let policy = Policy::named(&header.policy).and_then(|policy| policy.with(&header.parameters));
    policy.map_err(ReplayError::Policy)
}

/// Takes the same decisions, event for event, up to the first that differs.
///
/// # Errors
/// [`ReplayError`].
pub fn verify(file: &[u8]) -> Result<Verified, ReplayError> {
    let (header, decoder) = Decoder::new(file)?;
    let mut policy = policy_of(&header)?.build();
    let (events, ending) = events(decoder)?;
    let mut verified =
        Verified { header, events: 0, decisions: 0, grants: 0, slices: 0, ending, outcome: Outcome::Same };
    let mut yields = Yields::default();
    let mut grants = Grants::default();
    let mut last = Decision::Idle;
    for event in &events {
        grants.see(verified.events, event)?;
        if let Some(outcome) = yields.see(verified.events, event)? {
            verified.outcome = outcome;
            return Ok(verified);
        }
        verified.slices = yields.slices;
        let asked = match *event {
            Event::Decide { now, decision } => Some((now, decision)),
            Event::Again { now, .. } => Some((now, last)),
            _ => None,
        };
        if let Some((now, recorded)) = asked {
            let decided = policy.decide(now);
            verified.decisions += 1;
            verified.grants += u64::from(matches!(decided, Decision::Run(_)));
            last = recorded;
            if decided != recorded {
                verified.outcome = Outcome::Differs { event: verified.events, now, recorded, decided };
                return Ok(verified);
            }
        } else {
            tell(&mut policy, event);
        }
        verified.events += 1;
    }
    Ok(verified)
}

/// Makes the call of an event that asks nothing.
fn tell(policy: &mut impl TenantScheduler, event: &Event) {
    match *event {
        Event::Configure { tenant, share } => policy.configure(tenant, share),
        Event::Place { queue, placement } => policy.place(queue, placement),
        Event::Ready { now, queue, work } => policy.ready(now, queue, work),
        Event::Charge { now, grant, cost } => policy.charge(now, grant, cost),
        Event::Complete { now, grant, cost } => policy.complete(now, grant, cost),
        Event::Cancel { now, queue } => policy.cancel(now, queue),
        Event::Yielding(yielding) => policy.yielding(yielding),
        Event::Yielded(slice) => policy.yielded(slice),
        Event::Decide { .. } | Event::Again { .. } | Event::Stopped => {}
    }
}

/// When the core yielded, and when it does now.
#[derive(Debug, Default)]
struct Yields {
    yielding: Option<Yielding>,
    slices: u64,
}

impl Yields {
    /// What differs, if anything.
    fn see(&mut self, event: u64, seen: &Event) -> Result<Option<Outcome>, ReplayError> {
        let recorded = match *seen {
            Event::Yielding(policy) => {
                self.yielding = Some(Yielding::new(policy));
                return Ok(None);
            }
            Event::Yielded(slice) => slice,
            _ => return Ok(None),
        };
        let Some(yielding) = &mut self.yielding else {
            return Err(ReplayError::Inconsistent { event, what: "a slice of a core that does not yield" });
        };
        let decided = yielding.yields(recorded.polls, recorded.spun);
        // By polls alone: how long the one before took is not recorded.
        let is_late = matches!(yielding.policy(), YieldPolicy::Adaptive(_))
            && yielding.yields(recorded.polls.saturating_sub(1), Nanos(0)).is_some();
        if decided != Some(recorded.slice) || is_late {
            return Ok(Some(Outcome::YieldDiffers { event, recorded, decided }));
        }
        yielding.ended(recorded.end);
        self.slices += 1;
        Ok(None)
    }
}

/// What every core keeps to: a charge is of the last grant, once, and of no more than that.
#[derive(Debug, Default)]
struct Grants {
    running: Option<Grant>,
}

impl Grants {
    fn see(&mut self, number: u64, event: &Event) -> Result<(), ReplayError> {
        match *event {
            Event::Decide { decision: Decision::Run(grant), .. } => self.running = Some(grant),
            Event::Charge { grant, cost, .. } => {
                let wrong = |what| Err(ReplayError::Inconsistent { event: number, what });
                if self.running.take() != Some(grant) {
                    return wrong("a charge for what was not granted");
                }
                if cost.units > grant.units {
                    return wrong("more ran than was granted");
                }
                if cost.pending > grant.units {
                    return wrong("more went to a back end than was granted");
                }
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
