//! What a data plane is given of each connection, and which of them it died of.
//!
//! A data plane that is ready is given each connection: its session, then the message that is not yet applied. It
//! answers both, so when it dies the first that it was given and has not answered is what it died of, as far as can be
//! told: what came before was survived, what came later was not yet looked at.
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
//! Suspects with the fewest deaths come first, so that the worst one keeps nobody waiting. One that too many died of is
//! closed, and its device accepts nobody for a while: most front ends reconnect at once and bring the same guest.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::plane::Running;
use super::state::Supervisor;
use softdpu_link::{ConnectionId, Down};

/// A data plane that lives on for so long after it was given something has survived it.
const QUIET: Duration = Duration::from_millis(50);

/// A connection is tried alone from so many deaths on. One may be chance: whatever kills a data plane from outside hits
/// some message.
const SUSPECTED: u32 = 2;

/// For how long a device accepts nobody after its front end was closed; doubles each time.
const FIRST_BAN: Duration = Duration::from_secs(10);

/// The longest of these pauses.
const LONGEST_BAN: Duration = Duration::from_secs(600);

/// What one data plane was given.
#[derive(Debug, Default)]
pub(super) struct HandOver {
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

impl HandOver {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.due
    }

    /// A connection is no more.
    pub(super) fn forget(&mut self, id: ConnectionId) {
        self.waiting.retain(|waiting| *waiting != id);
        if self.on_trial == Some(id) {
            self.on_trial = None;
            self.due = Some(Instant::now() + QUIET);
        }
    }
}

/// What became of a device's front ends that data planes died of.
#[derive(Debug)]
pub(super) struct Ban {
    /// How many were closed.
    pub(super) front_ends: u32,
    /// Why the last one was.
    pub(super) reason: String,
    /// Nobody is accepted before.
    pub(super) until: Instant,
}

impl Supervisor {
    /// The data plane is ready: it is given everything, the suspects one after the other.
    pub(super) fn hand_over_all(&mut self) {
        let crash_loop = self.plane.is_in_crash_loop();
        let (suspects, others): (Vec<_>, Vec<_>) = self
            .front_ends
            .values()
            .map(|front_end| (front_end.deaths(), front_end.id))
            .partition(|(deaths, _)| crash_loop || *deaths >= SUSPECTED);
        let mut others = others.into_iter().peekable();
        while let Some((_, id)) = others.next() {
            self.give(id, others.peek().is_some());
        }
        let Some(running) = &mut self.plane.running else {
            return;
        };
        let mut suspects = suspects;
        suspects.sort_unstable();
        running.hand_over.waiting = suspects.into_iter().map(|(_, id)| id).collect();
        if running.hand_over.waiting.is_empty() {
            running.serves_since = Some(Instant::now());
        } else {
            running.hand_over.due = Some(Instant::now() + QUIET);
        }
    }

    /// A front end has connected.
    pub(super) fn hand_over(&mut self, id: ConnectionId) {
        match &mut self.plane.running {
            // It gets its turn when the data plane is ready.
            Some(running) if !running.ready => {}
            Some(running) if running.serves_since.is_none() => running.hand_over.waiting.push_back(id),
            Some(_) => self.give(id, false),
            None => {}
        }
    }

    fn give(&mut self, id: ConnectionId, more: bool) {
        let Some(running) = &mut self.plane.running else {
            return;
        };
        let Some(front_end) = self.front_ends.get_mut(&id) else {
            return;
        };
        let (message, fds) = front_end.attach(running.hand_over.number(), more);
        self.send(&message, fds);
        self.give_message(id);
    }

    /// Gives the data plane a connection's message, if it knows of the connection.
    pub(super) fn give_message(&mut self, id: ConnectionId) {
        let (Some(running), Some(front_end)) = (&mut self.plane.running, self.front_ends.get_mut(&id)) else {
            return;
        };
        if front_end.is_given()
            && let Some((message, fds)) = front_end.message(running.hand_over.number())
        {
            self.send(&message, fds);
        }
    }

    /// The data plane has taken up a connection's session.
    pub(super) fn attached(&mut self, id: ConnectionId) {
        if let Some(front_end) = self.front_ends.get_mut(&id) {
            front_end.attached();
        }
        self.set_quiet(id);
    }

    /// The data plane lets a connection wait, and will take it up by itself: it cannot die of it before. One on trial
    /// must not be taken up among others: it is taken back, and tried again after those that wait.
    pub(super) fn held(&mut self, id: ConnectionId) {
        let Some(front_end) = self.front_ends.get_mut(&id) else {
            return;
        };
        front_end.held();
        if let Some(Running { hand_over, .. }) = &mut self.plane.running
            && hand_over.on_trial == Some(id)
        {
            front_end.start_anew();
            hand_over.forget(id);
            hand_over.waiting.push_back(id);
            self.send(&Down::Closed { connection: id }, Vec::new());
        }
    }

    /// The one on trial was answered: a quiet moment more, and it is acquitted. What it sends meanwhile makes it no
    /// longer.
    pub(super) fn set_quiet(&mut self, id: ConnectionId) {
        if let Some(running) = &mut self.plane.running
            && running.hand_over.on_trial == Some(id)
        {
            let quiet = Instant::now() + QUIET;
            running.hand_over.due = running.hand_over.due.map(|due| due.min(quiet));
        }
    }

    /// The quiet moment has passed: the next one is tried.
    pub(super) fn next_trial(&mut self) {
        let Some(Running { hand_over, serves_since, .. }) = &mut self.plane.running else {
            return;
        };
        if let Some(front_end) = hand_over.on_trial.and_then(|tried| self.front_ends.get_mut(&tried)) {
            if !front_end.is_attached() {
                let reason = format!("it did not take up the session of {}", front_end.id);
                hand_over.due = None;
                return self.kill_plane(&reason);
            }
            front_end.acquit();
        }
        hand_over.survived = hand_over.next;
        hand_over.on_trial = hand_over.waiting.pop_front();
        match hand_over.on_trial {
            Some(id) => {
                // A data plane that hangs is killed before that for its silence.
                hand_over.due = Some(Instant::now() + self.timing.watchdog * 2);
                self.give(id, false);
            }
            None => {
                hand_over.due = None;
                *serves_since = Some(Instant::now());
            }
        }
    }

    /// A data plane is dead that was given this, and served for `served`. One that was killed `from_outside` died of
    /// nothing that it was given.
    pub(super) fn blame(&mut self, hand_over: &HandOver, served: Duration, from_outside: bool) {
        let unanswered = || self.front_ends.values().filter_map(|it| Some((it.first_unanswered()?, it.id)));
        let new = unanswered().filter(|(number, _)| *number >= hand_over.survived).min();
        // A message may also be answered late; it is suspect again when there is nothing newer.
        let suspect = new.map(|(_, id)| id).or(hand_over.on_trial).or_else(|| unanswered().min().map(|(_, id)| id));
        let suspect = suspect.filter(|_| !from_outside);
        let mut verdict = None;
        for front_end in self.front_ends.values_mut() {
            if suspect == Some(front_end.id) {
                verdict = front_end.accuse().err().map(|hangup| (front_end.id, hangup.to_string()));
                let (connection, deaths) = (front_end.id.0, front_end.deaths());
                tracing::warn!(
                    device = front_end.device,
                    connection,
                    deaths,
                    "the data plane may have died of this front end"
                );
            } else if served >= super::restart::YOUNG && front_end.is_attached() {
                front_end.acquit();
            }
            front_end.start_anew();
        }
        if let Some((id, reason)) = verdict {
            self.ban(id, reason);
        }
    }

    /// Closes a connection that data planes die of, and its device's door for a while.
    fn ban(&mut self, id: ConnectionId, reason: String) {
        let Some(port) = self.front_ends.get(&id).and_then(|front_end| self.ports.get_mut(&front_end.device)) else {
            return;
        };
        let front_ends = port.ban.as_ref().map_or(0, |ban| ban.front_ends) + 1;
        let pause = (FIRST_BAN * (1 << (front_ends - 1).min(16))).min(LONGEST_BAN);
        tracing::error!(device = port.device, connection = id.0, ?pause, "the front end is closed: {reason}");
        port.ban = Some(Ban { front_ends, reason: reason.clone(), until: Instant::now() + pause });
        self.close_front_end(id, &reason);
        self.readmit();
    }

    /// Opens the doors of devices whose time has come.
    pub(super) fn readmit(&mut self) {
        let now = Instant::now();
        let bans = self.ports.values().filter_map(|port| Some((port.ban.as_ref()?.until, port.device.clone())));
        let (over, still): (Vec<_>, Vec<_>) = bans.partition(|(until, _)| *until <= now);
        self.readmit_at = still.into_iter().map(|(until, _)| until).min();
        for (_, device) in over {
            self.watch_port(&device);
        }
    }
}
