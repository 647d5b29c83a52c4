//! The order in which a data plane is given connections, and which of them it died of. Pure: time comes in as an
//! argument.
//!
//! A data plane that is ready is given each connection: its session, then the message that is not yet applied. It
//! answers both, so when it dies the first that it was given and has not answered is what it died of, as far as
//! is known: what came before was survived, what came later was not yet looked at.
//!
//! An answer is not the end of it: queues that a session has started run on other threads, and a message may be
//! answered out of turn. Therefore a connection that is suspected, and in a crash loop every connection, is put *on
//! trial*: it is given alone, after everything before it was followed by a [`QUIET`] moment, and until such a moment
//! has passed for it, too, it is what the data plane died of.
//!
//! ```text
//!  ready ── those above suspicion ──▶ quiet ── the first suspect ──▶ attached, quiet ── the next ──▶ … ──▶ serving
//! ```
//!
//! Suspects with the fewest deaths come first, so that the worst one keeps no other waiting.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::reexec::Moment;
use softdpu_link::ConnectionId;

/// A data plane that lives on for so long after it was given something has survived it.
const QUIET: Duration = Duration::from_millis(50);

/// A connection is tried alone from so many deaths on. One may be chance: whatever kills a data plane from outside hits
/// some message.
pub(super) const SUSPECTED: u32 = 2;

/// How far a data plane has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
    /// It is not ready, or there is none: it is given nothing.
    #[default]
    NotReady,
    /// Suspects wait for their trial.
    Trials,
    /// It was given every connection.
    Serving { since: Instant },
}

/// What one data plane was given.
#[derive(Debug, Default)]
pub(super) struct HandOver {
    stage: Stage,
    /// The number of the next thing that is given.
    next: u64,
    /// What was given under smaller numbers it has survived.
    survived: u64,
    /// Connections that wait for their trial.
    waiting: VecDeque<ConnectionId>,
    on_trial: Option<ConnectionId>,
    /// When the next one is tried.
    due: Option<Instant>,
}

/// A [`HandOver`] as the next program of the supervisor is given it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HandOverState {
    stage: StageState,
    next: u64,
    survived: u64,
    waiting: Vec<ConnectionId>,
    on_trial: Option<ConnectionId>,
    due: Option<Moment>,
}

/// [`Stage`].
#[derive(Debug, Serialize, Deserialize)]
enum StageState {
    NotReady,
    Trials,
    Serving { since: Moment },
}

impl From<&HandOver> for HandOverState {
    fn from(hand_over: &HandOver) -> HandOverState {
        let stage = match hand_over.stage {
            Stage::NotReady => StageState::NotReady,
            Stage::Trials => StageState::Trials,
            Stage::Serving { since } => StageState::Serving { since: since.into() },
        };
        HandOverState {
            stage,
            next: hand_over.next,
            survived: hand_over.survived,
            waiting: hand_over.waiting.iter().copied().collect(),
            on_trial: hand_over.on_trial,
            due: hand_over.due.map(Moment::from),
        }
    }
}

impl From<HandOverState> for HandOver {
    fn from(state: HandOverState) -> HandOver {
        let stage = match state.stage {
            StageState::NotReady => Stage::NotReady,
            StageState::Trials => Stage::Trials,
            StageState::Serving { since } => Stage::Serving { since: since.into() },
        };
        HandOver {
            stage,
            next: state.next,
            survived: state.survived,
            waiting: state.waiting.into(),
            on_trial: state.on_trial,
            due: state.due.map(Instant::from),
        }
    }
}

impl HandOver {
    /// The number of something that is given now.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// When [`next_trial`](Self::next_trial) is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// The data plane was given all those above suspicion; `suspects`, with their deaths, wait.
    pub(super) fn begin(&mut self, mut suspects: Vec<(u32, ConnectionId)>, now: Instant) {
        suspects.sort_unstable();
        self.waiting = suspects.into_iter().map(|(_, id)| id).collect();
        if self.waiting.is_empty() {
            self.stage = Stage::Serving { since: now };
        } else {
            self.stage = Stage::Trials;
            self.due = Some(now + QUIET);
        }
    }

    /// A front end has connected. Whether it is given at once; it has its turn later otherwise.
    pub(super) fn connected(&mut self, id: ConnectionId) -> bool {
        match self.stage {
            Stage::NotReady => false,
            Stage::Trials => {
                self.waiting.push_back(id);
                false
            }
            Stage::Serving { .. } => true,
        }
    }

    /// A connection is no more.
    pub(super) fn forget(&mut self, id: ConnectionId, now: Instant) {
        self.waiting.retain(|waiting| *waiting != id);
        if self.on_trial == Some(id) {
            self.on_trial = None;
            self.due = Some(now + QUIET);
        }
    }

    /// A connection has answered what it was given: one on trial is acquitted after a quiet moment more. What it sends
    /// meanwhile makes it no longer.
    pub(super) fn answered(&mut self, id: ConnectionId, now: Instant) {
        if self.on_trial == Some(id) {
            self.due = self.due.map(|due| due.min(now + QUIET));
        }
    }

    /// The data plane lets a connection wait. Whether it was on trial: it is taken back then, and tried again after
    /// those that wait.
    pub(super) fn held(&mut self, id: ConnectionId, now: Instant) -> bool {
        let on_trial = self.on_trial == Some(id);
        if on_trial {
            self.forget(id, now);
            self.waiting.push_back(id);
        }
        on_trial
    }

    /// The one on trial, once its quiet moment has passed.
    pub(super) fn on_trial(&self) -> Option<ConnectionId> {
        self.on_trial
    }

    /// The one on trial has failed it: no other is tried.
    pub(super) fn give_up(&mut self) {
        self.due = None;
    }

    /// The quiet moment has passed: the one that is tried next, which has to answer within `patience`.
    pub(super) fn next_trial(&mut self, now: Instant, patience: Duration) -> Option<ConnectionId> {
        self.survived = self.next;
        self.on_trial = self.waiting.pop_front();
        if self.on_trial.is_some() {
            self.due = Some(now + patience);
        } else {
            self.due = None;
            self.stage = Stage::Serving { since: now };
        }
        self.on_trial
    }

    /// How long the data plane has served, having been given every connection.
    pub(super) fn served(&self, now: Instant) -> Duration {
        match self.stage {
            Stage::Serving { since } => now.saturating_duration_since(since),
            Stage::NotReady | Stage::Trials => Duration::ZERO,
        }
    }

    /// The connection that the data plane died of, of those with the first numbers that they have not answered.
    pub(super) fn suspect(&self, unanswered: &[(u64, ConnectionId)]) -> Option<ConnectionId> {
        let new = unanswered.iter().filter(|(number, _)| *number >= self.survived).min();
        // A message may also be answered late; it is suspect again when there is nothing newer.
        let suspect = new.map(|(_, id)| *id).or(self.on_trial);
        suspect.or_else(|| unanswered.iter().min().map(|(_, id)| *id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn id(number: u64) -> ConnectionId {
        ConnectionId(number)
    }

    #[test]
    fn suspects_are_tried_one_after_the_other_the_least_suspicious_first() {
        let (now, mut hand_over) = (Instant::now(), HandOver::default());
        assert!(!hand_over.connected(id(9)), "a data plane that is not ready is given nothing");
        hand_over.begin(vec![(4, id(1)), (2, id(2))], now);
        assert!(!hand_over.connected(id(3)), "it waits behind the suspects");
        assert_eq!(hand_over.due(), Some(now + QUIET));
        for tried in [2, 1, 3] {
            assert_eq!(hand_over.next_trial(now, PATIENCE), Some(id(tried)));
            assert_eq!(hand_over.due(), Some(now + PATIENCE));
            hand_over.answered(id(tried), now);
            assert_eq!(hand_over.due(), Some(now + QUIET), "no longer than a quiet moment after its answer");
            assert_eq!(hand_over.served(now + PATIENCE), Duration::ZERO);
        }
        assert_eq!(hand_over.next_trial(now, PATIENCE), None);
        assert_eq!((hand_over.due(), hand_over.served(now + PATIENCE)), (None, PATIENCE));
        assert!(hand_over.connected(id(4)));
    }

    #[test]
    fn one_that_is_held_on_trial_is_tried_again_after_those_that_wait() {
        let (now, mut hand_over) = (Instant::now(), HandOver::default());
        hand_over.begin(vec![(2, id(1)), (2, id(2))], now);
        hand_over.next_trial(now, PATIENCE);
        assert!(!hand_over.held(id(2), now), "it is not on trial");
        assert!(hand_over.held(id(1), now));
        assert_eq!(hand_over.next_trial(now, PATIENCE), Some(id(2)));
        assert_eq!(hand_over.next_trial(now, PATIENCE), Some(id(1)));
    }

    #[test]
    fn a_data_plane_died_of_the_first_thing_since_the_last_quiet_moment_that_is_not_answered() {
        let (now, mut hand_over) = (Instant::now(), HandOver::default());
        let (late, first, second) = ((hand_over.number(), id(1)), hand_over.number(), hand_over.number());
        hand_over.begin(vec![(2, id(3))], now);
        assert_eq!(hand_over.suspect(&[(second, id(2)), late]), Some(id(1)));
        hand_over.next_trial(now, PATIENCE);
        let tried = hand_over.number();
        assert_eq!(hand_over.suspect(&[(first, id(1)), (tried, id(3))]), Some(id(3)));
        assert_eq!(hand_over.suspect(&[late]), Some(id(3)), "it has answered, and is on trial still");
        hand_over.next_trial(now, PATIENCE);
        assert_eq!(hand_over.suspect(&[(second, id(2)), late]), Some(id(1)), "nothing is newer");
        assert_eq!(hand_over.suspect(&[]), None);
    }
}
