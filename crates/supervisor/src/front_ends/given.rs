//! What the data plane is given of connections, what it answers, and which of them is closed because it dies of it.

use std::time::{Duration, Instant};

use super::ban::Ban;
use super::hand_over::{HandOver, SUSPECTED};
use super::{FrontEnds, Plane};
use crate::restart;
use softdpu_link::{ConnectionId, Down, FdId, SharedFd};

/// What came of a front end's message: [`Up::Handled`](softdpu_link::Up::Handled) with its descriptors.
pub(crate) struct Handled {
    pub(crate) reply: Vec<u8>,
    pub(crate) reply_fds: Vec<SharedFd>,
    pub(crate) session: String,
    pub(crate) kept: Vec<(FdId, SharedFd)>,
    pub(crate) released: Vec<FdId>,
    /// Why the connection is to be closed then.
    pub(crate) close: Option<String>,
}

impl FrontEnds {
    /// The data plane is ready: it is given everything, the suspects one after the other.
    pub(crate) fn give_all(&mut self, plane: &mut Plane) {
        let crash_loop = plane.is_in_crash_loop();
        let connections = self.connections.values().map(|front_end| (front_end.deaths(), front_end.id));
        let (suspects, others): (Vec<_>, Vec<_>) =
            connections.partition(|(deaths, _)| crash_loop || *deaths >= SUSPECTED);
        let mut others = others.into_iter().peekable();
        while let Some((_, id)) = others.next() {
            self.give(id, others.peek().is_some(), plane);
        }
        self.hand_over.begin(suspects, Instant::now());
    }

    /// The data plane is told to quiesce: what is not given to it yet waits for the next.
    pub(crate) fn hold(&mut self) {
        self.switching = true;
    }

    /// Another data plane serves, which was given nothing yet: it is given everything.
    pub(crate) fn give_over(&mut self, plane: &mut Plane) {
        self.switching = false;
        self.hand_over = HandOver::default();
        self.connections.values_mut().for_each(|front_end| front_end.start_anew());
        self.give_all(plane);
    }

    /// Whether the data plane has taken up every connection, or lets it wait.
    pub(crate) fn are_attached(&self) -> bool {
        self.connections.values().all(|front_end| front_end.is_attached() || front_end.is_held())
    }

    /// A front end has connected.
    pub(super) fn connected(&mut self, id: ConnectionId, plane: &mut Plane) {
        if !self.switching && self.hand_over.connected(id) {
            self.give(id, false, plane);
        }
    }

    fn give(&mut self, id: ConnectionId, more: bool, plane: &mut Plane) {
        let Some(front_end) = self.connections.get_mut(&id) else {
            return;
        };
        let (message, fds) = front_end.attach(self.hand_over.number(), more);
        plane.send(&message, fds);
        self.give_message(id, plane);
    }

    /// Gives the data plane a connection's message, if it knows of the connection.
    pub(super) fn give_message(&mut self, id: ConnectionId, plane: &mut Plane) {
        if self.switching {
            return;
        }
        let Some(front_end) = self.connections.get_mut(&id).filter(|front_end| front_end.is_given()) else {
            return;
        };
        if let Some((message, fds)) = front_end.message(self.hand_over.number()) {
            plane.send(&message, fds);
        }
    }

    /// The data plane has taken up a connection's session.
    pub(crate) fn attached(&mut self, id: ConnectionId) {
        if let Some(front_end) = self.connections.get_mut(&id) {
            front_end.attached();
        }
        self.hand_over.answered(id, Instant::now());
    }

    /// The data plane lets a connection wait, and will take it up by itself: it cannot die of it before. One on trial
    /// must not be taken up among others: it is taken back.
    pub(crate) fn held(&mut self, id: ConnectionId, plane: &mut Plane) {
        let Some(front_end) = self.connections.get_mut(&id) else {
            return;
        };
        front_end.held();
        if self.hand_over.held(id, Instant::now()) {
            front_end.start_anew();
            plane.send(&Down::Closed { connection: id }, Vec::new());
        }
    }

    /// A message is applied: stores what came of it, then replies, then forgets it.
    pub(crate) fn handled(&mut self, id: ConnectionId, handled: Handled, plane: &mut Plane) {
        // It may have gone while the answer was on its way.
        let Some(front_end) = self.connections.get_mut(&id) else {
            return;
        };
        if !front_end.applied() {
            tracing::error!(
                connection = id.0,
                "the data plane answered a message that no front end sent; it is ignored"
            );
            return;
        }
        let Handled { reply, reply_fds, session, kept, released, close } = handled;
        if let Err(reason) = front_end.store(session, kept, &released) {
            return self.close(id, &reason, plane);
        }
        front_end.reply(reply, reply_fds);
        let flushed = front_end.flush();
        self.hand_over.answered(id, Instant::now());
        match (flushed, close) {
            (Err(hangup), _) => self.close(id, &hangup.to_string(), plane),
            (Ok(()), Some(reason)) => self.close(id, &reason, plane),
            (Ok(()), None) => self.watch_or_close(id, plane),
        }
    }

    /// The quiet moment has passed: the next one is tried.
    pub(super) fn next_trial(&mut self, plane: &mut Plane) {
        if let Some(front_end) = self.hand_over.on_trial().and_then(|tried| self.connections.get_mut(&tried)) {
            if !front_end.is_attached() {
                let reason = format!("it did not take up the session of {}", front_end.id);
                self.hand_over.give_up();
                return plane.kill(&reason);
            }
            front_end.acquit();
        }
        if let Some(id) = self.hand_over.next_trial(Instant::now(), self.trial) {
            self.give(id, false, plane);
        }
    }

    /// The data plane is dead, or stopped. One that was killed `from_outside` died of nothing that it was given. How
    /// long it had served.
    pub(crate) fn blame(&mut self, from_outside: bool, plane: &mut Plane) -> Duration {
        self.switching = false;
        let hand_over = std::mem::take(&mut self.hand_over);
        let served = hand_over.served(Instant::now());
        let suspect = if from_outside { None } else { self.suspect(&hand_over) };
        let mut verdict = None;
        for front_end in self.connections.values_mut() {
            if suspect == Some(front_end.id) {
                verdict = front_end.accuse().err().map(|hangup| (front_end.id, hangup.to_string()));
                let (connection, deaths) = (front_end.id.0, front_end.deaths());
                tracing::warn!(
                    device = front_end.device,
                    connection,
                    deaths,
                    "the data plane may have died of this front end"
                );
            } else if served >= restart::YOUNG && front_end.is_attached() {
                front_end.acquit();
            }
            front_end.start_anew();
        }
        if let Some((id, reason)) = verdict {
            self.ban(id, reason, plane);
        }
        served
    }

    fn suspect(&self, hand_over: &HandOver) -> Option<ConnectionId> {
        let unanswered = self.connections.values().filter_map(|it| Some((it.first_unanswered()?, it.id)));
        hand_over.suspect(&unanswered.collect::<Vec<_>>())
    }

    /// Closes a connection that data planes die of, and lets its device accept no other for a while.
    fn ban(&mut self, id: ConnectionId, reason: String, plane: &mut Plane) {
        let front_end = self.connections.get(&id);
        let Some(port) = front_end.and_then(|front_end| self.ports.get_mut(&front_end.device)) else {
            return;
        };
        let (ban, pause) = Ban::after(port.ban.as_ref(), reason.clone(), Instant::now());
        tracing::error!(device = port.device, connection = id.0, ?pause, "the front end is closed: {reason}");
        port.ban = Some(ban);
        self.close(id, &reason, plane);
        self.readmit();
    }
}
