//! A data plane that was started: its process, and the link to it.

mod kept;

use std::os::fd::AsFd;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use softdpu_link::{BEAT, Down, Formats, LinkError, SharedFd, SupervisorLink, Up, monotonic_ns};
use softdpu_sys::ReapedFd;

pub(super) use self::kept::RunningState;
use super::{End, LOOK, OVERDUE};
use crate::poller::{EventFlags, Poller, Token};
use crate::process::{Process, Spawner};
use crate::supervisor::Timing;

/// What a data plane has said of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    /// Its release.
    pub(crate) version: String,
    /// What it understands.
    pub(crate) formats: Formats,
}

/// A data plane that was started.
pub(super) struct Running {
    /// Its number among those of this supervisor.
    pub(super) incarnation: u64,
    pub(super) process: Box<dyn Process>,
    /// It serves.
    pub(super) ready: bool,
    pub(super) hello: Option<Hello>,
    pub(super) link: SupervisorLink,
    /// Nothing more is to be had from the link.
    pub(super) link_is_done: bool,
    pub(super) started: Instant,
    pub(super) beat: Instant,
    /// When to look whether it [hangs](Process::hangs).
    look: Instant,
    /// Why the supervisor killed it.
    pub(super) killed: Option<String>,
}

impl Running {
    /// Starts one; nothing is sent to it.
    pub(super) fn spawn(spawner: &mut dyn Spawner, incarnation: u64, poller: &Poller) -> std::io::Result<Running> {
        let (link, far) = SupervisorLink::pair().map_err(std::io::Error::from)?;
        let process = spawner.spawn(far)?;
        if let Err(error) = poller.watch(process.end(), Token::End { incarnation }, EventFlags::IN) {
            tracing::error!(%error, "the data plane's end cannot be waited for");
        }
        let now = Instant::now();
        Ok(Running {
            incarnation,
            process,
            ready: false,
            hello: None,
            link,
            link_is_done: false,
            started: now,
            beat: now,
            look: now + OVERDUE,
            killed: None,
        })
    }

    /// Sends to it. Whatever it does not get any more its successor will.
    pub(super) fn send(&mut self, message: &Down, fds: Vec<SharedFd>) {
        if self.link_is_done {
            return;
        }
        match self.link.send(message, fds) {
            // What it said before its end is still to be read.
            Ok(()) | Err(LinkError::Closed) => {}
            Err(error) => self.kill(&format!("nothing can be sent to it: {error}")),
        }
    }

    /// Sends what the link takes.
    pub(super) fn flush(&mut self) {
        if let Err(error) = self.link.flush()
            && !matches!(error, LinkError::Closed)
        {
            self.kill(&format!("nothing can be sent to it: {error}"));
        }
    }

    /// The next message that it has sent.
    pub(super) fn receive(&mut self) -> Option<(Up, Vec<ReapedFd>)> {
        if self.link_is_done {
            return None;
        }
        match self.link.receive() {
            Ok(received) => received,
            Err(LinkError::Closed) => {
                self.link_is_done = true;
                // Dead, or of no use without its link; a dead one keeps its own reason.
                self.process.kill();
                None
            }
            Err(error) => {
                self.link_is_done = true;
                self.kill(&format!("it broke the link's rules: {error}"));
                None
            }
        }
    }

    /// Watches the link for what is wanted of it now.
    pub(super) fn watch_link(&self, poller: &Poller) {
        let token = Token::Link { incarnation: self.incarnation };
        if self.link_is_done {
            return poller.forget(self.link.as_fd(), token);
        }
        let mut events = EventFlags::IN;
        if self.link.wants_write() {
            events |= EventFlags::OUT;
        }
        if let Err(error) = poller.watch(self.link.as_fd(), token, events) {
            tracing::error!(%error, "the link cannot be waited for");
        }
    }

    pub(super) fn kill(&mut self, reason: &str) {
        if self.killed.is_none() {
            tracing::error!(pid = self.process.id(), reason, "killing the data plane");
            self.killed = Some(reason.to_owned());
            self.look = Instant::now() + LOOK;
            self.process.kill();
        }
    }

    /// When it will have been silent for too long.
    pub(super) fn silence_ends(&self, timing: &Timing) -> Option<Instant> {
        let patience = if self.ready { timing.watchdog } else { timing.startup };
        self.killed.is_none().then(|| self.beat + patience)
    }

    /// When to [`look`](Self::look).
    pub(super) fn look_at(&self) -> Instant {
        self.look
    }

    /// Looks whether it is dead although there was no notification. A process with an operation that hangs in the
    /// kernel has no end that could be waited for, and no other request is to wait for it: what it may still write is
    /// the fences' to keep from what comes after.
    pub(super) fn look(&mut self, now: Instant) -> Option<End> {
        let overdue = self.beat + OVERDUE;
        if now < overdue && self.killed.is_none() {
            self.look = overdue;
            return None;
        }
        self.look = now + LOOK;
        if let Some(exit) = self.process.exit() {
            return Some(End { incarnation: self.incarnation, exit, hangs: false, at_ns: monotonic_ns() });
        }
        let exit = self.process.hangs()?;
        tracing::warn!(
            pid = self.process.id(),
            "the data plane is dead, but the kernel is in the middle of an operation of its that hangs"
        );
        Some(End { incarnation: self.incarnation, exit, hangs: true, at_ns: monotonic_ns() })
    }

    /// Watches it no more; a process that cannot be reaped yet is left watched.
    pub(super) fn forget(&self, poller: &Poller, hangs: bool) {
        let incarnation = self.incarnation;
        poller.forget(self.link.as_fd(), Token::Link { incarnation });
        if !hangs {
            poller.forget(self.process.end(), Token::End { incarnation });
        }
    }
}

const _: () = assert!(OVERDUE.as_millis() > BEAT.as_millis());
