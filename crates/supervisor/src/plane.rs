//! The data plane's life: start, what it tells, its end, and the next one.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::hand_over::HandOver;
use super::opener::{Backing, Opened};
use super::poller::{EventFlags, Token};
use super::process::{Exit, Process};
use super::restart::RestartPolicy;
use super::state::Supervisor;
use softdpu_api::status::DataPlaneState;
use softdpu_link::{
    BEAT, Death, Down, LinkError, Open, OpenFailure, REFS_PAUSE, SharedFd, SupervisorLink, Up, monotonic_ns,
};
use softdpu_sys::ReapedFd;

/// Nothing more is taken from front ends while so many messages wait to be taken by the data plane. A front end that
/// connects, sends and leaves again and again would otherwise fill memory and the table of descriptors with what nobody
/// needs any more.
const MOST_QUEUED: usize = 256;

/// The most descriptors the vault holds.
const MAX_VAULT: usize = 16 << 10;

/// A data plane that has said nothing for this long may be dead without its end being told.
const OVERDUE: Duration = BEAT.saturating_add(Duration::from_millis(500));

/// So often that is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The data plane as the supervisor sees it.
#[derive(Default)]
pub(super) struct Plane {
    pub(super) running: Option<Running>,
    /// Those that are dead and cannot be reaped yet, with their incarnations.
    hanging: Vec<(u64, Box<dyn Process>)>,
    /// How many were started.
    pub(super) incarnation: u64,
    /// When the next is started, while none runs.
    pub(super) start_at: Option<Instant>,
    pub(super) last_exit: Option<String>,
    pub(super) time_to_ready: Option<Duration>,
    /// Nanoseconds from the last death to the first request completed after it.
    pub(super) first_completion_ns: Option<u64>,
    policy: RestartPolicy,
    death: Option<Death>,
}

/// A data plane that runs.
pub(super) struct Running {
    pub(super) process: Box<dyn Process>,
    pub(super) ready: bool,
    /// Since when it serves, having been given every connection.
    pub(super) serves_since: Option<Instant>,
    pub(super) hand_over: HandOver,
    link: SupervisorLink,
    /// Nothing more is to be had from the link.
    link_is_done: bool,
    started: Instant,
    beat: Instant,
    /// When to look whether it [hangs](Process::hangs).
    look: Instant,
    /// Why the supervisor killed it.
    killed: Option<String>,
}

impl Plane {
    /// Whether one data plane after the other dies, so that pauses are made.
    pub(super) fn is_in_crash_loop(&self) -> bool {
        self.policy.is_backing_off()
    }
}

impl Supervisor {
    /// Whether the data plane can be asked things.
    pub(super) fn plane_is_ready(&self) -> bool {
        self.plane.running.as_ref().is_some_and(|running| running.ready && running.killed.is_none())
    }

    pub(super) fn plane_state(&self) -> DataPlaneState {
        match &self.plane.running {
            _ if self.stopping.is_some() => DataPlaneState::Stopped,
            Some(running) if running.ready => DataPlaneState::Running,
            _ if self.plane.policy.is_backing_off() => DataPlaneState::Failed,
            _ if self.plane.incarnation <= 1 => DataPlaneState::Starting,
            _ => DataPlaneState::Restarting,
        }
    }

    /// Starts a data plane, with the site and the vault. What front ends have to do with comes when it is ready.
    pub(super) fn start_plane(&mut self) {
        self.plane.start_at = None;
        self.plane.incarnation += 1;
        self.plane.first_completion_ns = None;
        let now = Instant::now();
        let incarnation = self.plane.incarnation;
        let spawned = SupervisorLink::pair()
            .map_err(std::io::Error::from)
            .and_then(|(link, far)| self.spawner.spawn(far).map(|process| (link, process)));
        let (link, process) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                self.plane.last_exit = Some(format!("cannot be started: {error}"));
                let pause = self.plane.policy.died(Duration::ZERO);
                tracing::error!(%error, ?pause, "the data plane cannot be started");
                // Unlike a death this costs no time by itself: never try twice without a pause.
                self.plane.start_at = Some(now + pause.max(Duration::from_millis(50)));
                return;
            }
        };
        tracing::info!(pid = process.id(), incarnation, "the data plane is started");
        if let Err(error) = self.poller.watch(process.end(), Token::End { incarnation }, EventFlags::IN) {
            tracing::error!(%error, "the data plane's end cannot be waited for");
        }
        self.plane.running = Some(Running {
            process,
            ready: false,
            serves_since: None,
            hand_over: HandOver::default(),
            link,
            link_is_done: false,
            started: now,
            beat: now,
            look: now + OVERDUE,
            killed: None,
        });
        let start = Down::Start {
            site: Box::new(self.desired.site().clone()),
            incarnation,
            kept: self.vault.keys().cloned().collect(),
            placements: self.desired.placements().to_vec(),
            death: self.plane.death.clone(),
            loaded: self.desired.loaded_networks(),
        };
        self.send(&start, self.vault.values().cloned().collect());
    }

    /// Sends to the data plane, if one runs. Whatever it does not get any more its successor will.
    pub(super) fn send(&mut self, message: &Down, fds: Vec<SharedFd>) {
        let Some(running) = self.plane.running.as_mut().filter(|running| !running.link_is_done) else {
            return;
        };
        match running.link.send(message, fds) {
            // What it said before its end is still to be read.
            Ok(()) | Err(LinkError::Closed) => {}
            Err(error) => self.kill_plane(&format!("nothing can be sent to it: {error}")),
        }
    }

    /// Watches the link for what is wanted of it now, and front ends no longer while it takes nothing.
    pub(super) fn watch_link(&mut self) {
        let queued = self.plane.running.as_ref().map_or(0, |running| running.link.queued());
        let congested = queued >= if self.congested { MOST_QUEUED / 2 } else { MOST_QUEUED };
        if congested != self.congested {
            self.congested = congested;
            tracing::debug!(congested, queued, "the data plane's backlog");
            self.watch_listeners();
            self.watch_front_ends();
        }
        let token = Token::Link { incarnation: self.plane.incarnation };
        let Some(running) = &self.plane.running else {
            return;
        };
        if running.link_is_done {
            self.poller.forget(running.link.as_fd(), token);
            return;
        }
        if running.link.is_held_up() {
            self.held_up_until.get_or_insert(Instant::now() + REFS_PAUSE);
        }
        let mut events = EventFlags::IN;
        if running.link.wants_write() {
            events |= EventFlags::OUT;
        }
        if let Err(error) = self.poller.watch(running.link.as_fd(), token, events) {
            tracing::error!(%error, "the link cannot be waited for");
        }
    }

    pub(super) fn link_ready(&mut self, incarnation: u64) {
        if incarnation != self.plane.incarnation {
            return;
        }
        if let Some(running) = &mut self.plane.running
            && let Err(error) = running.link.flush()
            && !matches!(error, LinkError::Closed)
        {
            self.kill_plane(&format!("nothing can be sent to it: {error}"));
        }
        self.hear();
    }

    /// Takes everything the data plane has said.
    fn hear(&mut self) {
        loop {
            let Some(running) = self.plane.running.as_mut().filter(|running| !running.link_is_done) else {
                return;
            };
            match running.link.receive() {
                Ok(Some((message, fds))) => self.heard(message, fds),
                Ok(None) => return,
                Err(LinkError::Closed) => {
                    running.link_is_done = true;
                    // Dead, or of no use without its link; a dead one keeps its own reason.
                    running.process.kill();
                    return;
                }
                Err(error) => {
                    running.link_is_done = true;
                    self.kill_plane(&format!("it broke the link's rules: {error}"));
                    return;
                }
            }
        }
    }

    fn heard(&mut self, message: Up, fds: Vec<ReapedFd>) {
        let mut fds = fds.into_iter().map(Arc::new);
        match message {
            Up::Ready => self.plane_ready(),
            Up::Alive => {
                if let Some(running) = &mut self.plane.running {
                    running.beat = Instant::now();
                }
            }
            Up::Attached { connection } => self.attached(connection),
            Up::Held { connection } => self.held(connection),
            Up::Handled { connection, reply, reply_fds, session, kept, released, close } => {
                let reply_fds = fds.by_ref().take(reply_fds as usize).collect();
                let kept = kept.into_iter().zip(fds).collect();
                self.handled(connection, (reply, reply_fds), (session, kept, released), close);
            }
            Up::Close { connection, reason } => self.close_front_end(connection, &reason),
            Up::Answer { id, result } => self.answered(id, result),
            Up::Open { call, open } => self.open(call, &open),
            Up::Keep { key } => {
                if self.vault.len() >= MAX_VAULT && !self.vault.contains_key(&key) {
                    self.kill_plane(&format!("it keeps more than {MAX_VAULT} descriptors"));
                } else if let Some(fd) = fds.next() {
                    self.vault.insert(key, fd);
                }
            }
            Up::Forget { key } => drop(self.vault.remove(&key)),
            Up::FirstCompletion { ns } => {
                tracing::info!(us = ns / 1000, "the first request has completed since the data plane died");
                self.plane.first_completion_ns = Some(ns);
            }
        }
    }

    fn plane_ready(&mut self) {
        let Some(running) = self.plane.running.as_mut().filter(|running| !running.ready) else {
            return;
        };
        running.ready = true;
        running.beat = Instant::now();
        let took = running.started.elapsed();
        self.plane.time_to_ready = Some(took);
        tracing::info!(us = took.as_micros() as u64, "the data plane is ready");
        self.notifier.ready();
        self.hand_over_all();
    }

    /// Opens a volume's backing for the data plane. The descriptor goes to it and nowhere else.
    fn open(&mut self, call: u64, open: &Open) {
        let known = self.desired.site().volume(&open.volume).map(|volume| (volume, self.desired.is_new(volume)));
        let volume = known.or_else(|| Some((self.volume_in_progress(&open.volume)?, true)));
        let backing = match volume {
            Some((volume, is_new)) => Backing::of(volume, open, is_new),
            None => Err(OpenFailure {
                errno: Some(Errno::NOENT.raw_os_error()),
                message: format!("there is no volume called {:?}", open.volume),
            }),
        };
        self.opener.start(self.plane.incarnation, call, &open.volume, backing);
    }

    /// Files have been opened. Those for a data plane that died meanwhile are closed: a lock on them would be nobody's.
    pub(super) fn opened(&mut self) {
        let opened: Vec<Opened> = std::iter::from_fn(|| self.opener.take()).collect();
        // Before a guest can have anything in them: what is missing later is gone.
        let images = opened.iter().filter(|opened| opened.result.is_ok());
        let images = images.filter_map(|opened| Some((opened.volume.as_str(), opened.image.as_deref()?)));
        if self.desired.saw(images) {
            let saved = self.desired.save();
            self.saved(&saved);
        }
        for Opened { incarnation, call, result, .. } in opened {
            if incarnation != self.plane.incarnation {
                continue;
            }
            let (result, fds) = match result {
                Ok(fd) => (Ok(()), vec![Arc::new(fd.into())]),
                Err(failure) => (Err(failure), Vec::new()),
            };
            self.send(&Down::Opened { call, result }, fds);
        }
    }

    /// When the data plane will have been silent for too long.
    pub(super) fn silence_ends(&self) -> Option<Instant> {
        let running = self.plane.running.as_ref().filter(|running| running.killed.is_none())?;
        let patience = if running.ready { self.timing.watchdog } else { self.timing.startup };
        Some(running.beat + patience)
    }

    pub(super) fn plane_is_silent(&mut self) {
        // The supervisor itself may have been held up: what was said meanwhile counts.
        self.hear();
        if self.silence_ends().is_some_and(|end| end <= Instant::now()) {
            self.kill_plane("it was silent for too long");
        }
    }

    pub(super) fn kill_plane(&mut self, reason: &str) {
        if let Some(running) = self.plane.running.as_mut().filter(|running| running.killed.is_none()) {
            tracing::error!(pid = running.process.id(), reason, "killing the data plane");
            running.killed = Some(reason.to_owned());
            running.look = Instant::now() + LOOK;
            running.process.kill();
        }
    }

    /// When to look whether the data plane is dead although its end is not told.
    pub(super) fn look_due(&self) -> Option<Instant> {
        self.plane.running.as_ref().map(|running| running.look)
    }

    /// Looks whether it is. A process whose operation hangs in the kernel has no end that could be waited for, and
    /// nobody else's requests are to wait for it: what it may still write is the fences' to keep from what comes after.
    pub(super) fn look_after_plane(&mut self, now: Instant) {
        let Some(running) = &mut self.plane.running else { return };
        let overdue = running.beat + OVERDUE;
        if now < overdue && running.killed.is_none() {
            running.look = overdue;
            return;
        }
        running.look = now + LOOK;
        if let Some(exit) = running.process.exit() {
            self.plane_is_dead(exit, false);
        } else if let Some(exit) = running.process.hangs() {
            tracing::warn!(
                pid = running.process.id(),
                "the data plane is dead, but the kernel is in the middle of an operation of its that hangs"
            );
            self.plane_is_dead(exit, true);
        }
    }

    /// A data plane can be reaped.
    pub(super) fn plane_ended(&mut self, incarnation: u64) {
        if let Some(at) = self.plane.hanging.iter().position(|(other, _)| *other == incarnation) {
            if let (_, process) = &mut self.plane.hanging[at]
                && process.exit().is_some()
            {
                tracing::info!(pid = process.id(), incarnation, "what hung of a dead data plane is over");
                self.poller.forget(process.end(), Token::End { incarnation });
                self.plane.hanging.swap_remove(at);
            }
            return;
        }
        if incarnation != self.plane.incarnation {
            return;
        }
        if let Some(exit) = self.plane.running.as_mut().and_then(|running| running.process.exit()) {
            self.plane_is_dead(exit, false);
        }
    }

    /// The data plane is dead: takes what it said last, and starts the next.
    fn plane_is_dead(&mut self, exit: Exit, hangs: bool) {
        let incarnation = self.plane.incarnation;
        let at_ns = monotonic_ns();
        self.hear();
        let Some(running) = self.plane.running.take() else {
            return;
        };
        self.poller.forget(running.link.as_fd(), Token::Link { incarnation });
        if hangs {
            self.plane.hanging.push((incarnation, running.process));
        } else {
            self.poller.forget(running.process.end(), Token::End { incarnation });
        }
        let lived = running.started.elapsed();
        let served = running.serves_since.map_or(Duration::ZERO, |since| since.elapsed());
        let killed = running.killed;
        let reason = match &killed {
            Some(why) => format!("{} ({why})", exit.reason),
            None => exit.reason.clone(),
        };
        drop(running.link);
        self.calls_are_lost();
        if self.stopping.is_some() {
            tracing::info!(reason, "the data plane has stopped");
            return;
        }
        tracing::error!(reason, lived_ms = lived.as_millis() as u64, "the data plane died");
        self.plane.last_exit = Some(reason.clone());
        self.plane.death = Some(Death { at_ns, reason });
        self.blame(&running.hand_over, served, exit.sent && killed.is_none());
        let pause = self.plane.policy.died(served);
        if pause.is_zero() {
            self.start_plane();
        } else {
            tracing::warn!(?pause, "the data plane dies again and again: waiting before the next start");
            self.plane.start_at = Some(Instant::now() + pause);
        }
    }

    /// Stops everything in good order.
    pub(super) fn stop(&mut self) {
        if self.stopping.is_some() {
            return;
        }
        self.notifier.stopping();
        self.plane.start_at = None;
        self.stopping = Some(Instant::now() + self.timing.shutdown);
        self.send(&Down::Shutdown, Vec::new());
    }
}
