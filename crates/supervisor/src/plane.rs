//! The data plane's life: its start, the link to it, its end, and when the next one starts.
//!
//! ```text
//!  start ──▶ starting ── Ready ──▶ running ── End ──▶ bury ── RestartPolicy ──▶ start
//!               └── silent for too long: killed ───────▲
//! ```
//!
//! What the data plane says is for others to act on: [`Plane::receive`] gives it to the loop.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::desired::Desired;
use super::poller::{EventFlags, Poller, Token};
use super::process::{Exit, Process, Spawner};
use super::restart::RestartPolicy;
use super::supervisor::Timing;
use super::vault::Vault;
use softdpu_api::status::{DataPlaneState, DataPlaneStatus};
use softdpu_api::{ApiError, ErrorCode};
use softdpu_link::{BEAT, Death, Down, LinkError, REFS_PAUSE, SharedFd, SupervisorLink, Up, monotonic_ns};
use softdpu_sys::ReapedFd;

/// A data plane that has said nothing for this long may be dead without a notification.
const OVERDUE: Duration = BEAT.saturating_add(Duration::from_millis(500));

/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The data plane as the supervisor sees it.
pub(super) struct Plane {
    poller: Poller,
    spawner: Box<dyn Spawner>,
    timing: Timing,
    running: Option<Running>,
    /// Those that are dead and cannot be reaped yet, with their incarnations.
    hanging: Vec<(u64, Box<dyn Process>)>,
    /// How many were started.
    incarnation: u64,
    /// When the next is started, while none runs.
    start_at: Option<Instant>,
    /// When to send again what the kernel had no room for.
    resend_at: Option<Instant>,
    /// When it is killed for not having stopped, once it was told to.
    stop_by: Option<Instant>,
    policy: RestartPolicy,
    death: Option<Death>,
    last_exit: Option<String>,
    time_to_ready: Option<Duration>,
    /// Nanoseconds from the last death to the first request completed after it.
    first_completion_ns: Option<u64>,
}

/// A data plane that runs.
struct Running {
    process: Box<dyn Process>,
    ready: bool,
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

/// That a data plane is dead.
pub(super) struct End {
    exit: Exit,
    /// It cannot be reaped yet.
    hangs: bool,
    at_ns: u64,
}

/// When something is to be done about the data plane.
#[derive(Clone, Copy, Default)]
pub(super) struct Deadlines {
    /// [`Plane::start`].
    pub(super) start: Option<Instant>,
    /// [`Plane::kill_if_silent`], once what it said is taken.
    pub(super) silence: Option<Instant>,
    /// [`Plane::look`].
    pub(super) look: Option<Instant>,
    /// [`Plane::resend`].
    pub(super) resend: Option<Instant>,
    /// [`Plane::kill_unstopped`].
    pub(super) stop: Option<Instant>,
}

impl Deadlines {
    /// The first of them.
    pub(super) fn first(&self) -> Option<Instant> {
        [self.start, self.silence, self.look, self.resend, self.stop].into_iter().flatten().min()
    }
}

impl Plane {
    pub(super) fn new(spawner: Box<dyn Spawner>, timing: Timing, poller: Poller) -> Plane {
        Plane {
            poller,
            spawner,
            timing,
            running: None,
            hanging: Vec::new(),
            incarnation: 0,
            start_at: None,
            resend_at: None,
            stop_by: None,
            policy: RestartPolicy::default(),
            death: None,
            last_exit: None,
            time_to_ready: None,
            first_completion_ns: None,
        }
    }

    /// The number of the data plane that runs, or of the last that did.
    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether one data plane after the other dies, so that pauses are made.
    pub(super) fn is_in_crash_loop(&self) -> bool {
        self.policy.is_backing_off()
    }

    /// Whether it can be asked things.
    pub(super) fn is_ready(&self) -> bool {
        self.running.as_ref().is_some_and(|running| running.ready && running.killed.is_none())
    }

    /// Whether it was told to stop for good.
    pub(super) fn is_stopping(&self) -> bool {
        self.stop_by.is_some()
    }

    /// Whether it was, and has.
    pub(super) fn has_stopped(&self) -> bool {
        self.is_stopping() && self.running.is_none()
    }

    pub(super) fn state(&self) -> DataPlaneState {
        match &self.running {
            _ if self.is_stopping() => DataPlaneState::Stopped,
            Some(running) if running.ready => DataPlaneState::Running,
            _ if self.policy.is_backing_off() => DataPlaneState::Failed,
            _ if self.incarnation <= 1 => DataPlaneState::Starting,
            _ => DataPlaneState::Restarting,
        }
    }

    pub(super) fn status(&self) -> DataPlaneStatus {
        DataPlaneStatus {
            pid: self.running.as_ref().map(|running| running.process.id()),
            state: self.state(),
            restarts: self.incarnation.saturating_sub(1),
            last_exit: self.last_exit.clone(),
            time_to_ready_us: self.time_to_ready.map(|took| took.as_micros() as u64),
            first_completion_after_restart_us: self.first_completion_ns.map(|ns| ns / 1000),
        }
    }

    /// That it cannot be asked now, and so `consequence`.
    pub(super) fn unavailable(&self, consequence: &str) -> ApiError {
        let message = format!("the data plane is {}; {consequence}", self.state());
        ApiError::new(ErrorCode::Unavailable, message).hint("try again in a moment")
    }

    /// Starts a data plane, with the site and the vault. What concerns front ends comes when it is ready.
    pub(super) fn start(&mut self, desired: &Desired, vault: &Vault) {
        self.start_at = None;
        self.incarnation += 1;
        self.first_completion_ns = None;
        let now = Instant::now();
        let incarnation = self.incarnation;
        let spawned = SupervisorLink::pair()
            .map_err(std::io::Error::from)
            .and_then(|(link, far)| self.spawner.spawn(far).map(|process| (link, process)));
        let (link, process) = match spawned {
            Ok(spawned) => spawned,
            Err(error) => {
                self.last_exit = Some(format!("cannot be started: {error}"));
                let pause = self.policy.died(Duration::ZERO);
                tracing::error!(%error, ?pause, "the data plane cannot be started");
                // Unlike a death this costs no time by itself: never try twice without a pause.
                self.start_at = Some(now + pause.max(Duration::from_millis(50)));
                return;
            }
        };
        tracing::info!(pid = process.id(), incarnation, "the data plane is started");
        if let Err(error) = self.poller.watch(process.end(), Token::End { incarnation }, EventFlags::IN) {
            tracing::error!(%error, "the data plane's end cannot be waited for");
        }
        self.running = Some(Running {
            process,
            ready: false,
            link,
            link_is_done: false,
            started: now,
            beat: now,
            look: now + OVERDUE,
            killed: None,
        });
        let (kept, fds) = vault.contents();
        let start = Down::Start {
            site: Box::new(desired.site().clone()),
            incarnation,
            kept,
            placements: desired.placements().to_vec(),
            death: self.death.clone(),
            loaded: desired.loaded_networks(),
        };
        self.send(&start, fds);
    }

    /// Sends to the data plane, if one runs. Whatever it does not get any more its successor will.
    pub(super) fn send(&mut self, message: &Down, fds: Vec<SharedFd>) {
        let Some(running) = self.running.as_mut().filter(|running| !running.link_is_done) else {
            return;
        };
        match running.link.send(message, fds) {
            // What it said before its end is still to be read.
            Ok(()) | Err(LinkError::Closed) => {}
            Err(error) => self.kill(&format!("nothing can be sent to it: {error}")),
        }
    }

    /// How many messages wait for the data plane to take them.
    pub(super) fn queued(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.link.queued())
    }

    /// Watches the link for what is wanted of it now.
    pub(super) fn watch_link(&mut self) {
        let token = Token::Link { incarnation: self.incarnation };
        let Some(running) = &self.running else {
            return;
        };
        if running.link_is_done {
            self.poller.forget(running.link.as_fd(), token);
            return;
        }
        if running.link.is_held_up() {
            self.resend_at.get_or_insert(Instant::now() + REFS_PAUSE);
        }
        let mut events = EventFlags::IN;
        if running.link.wants_write() {
            events |= EventFlags::OUT;
        }
        if let Err(error) = self.poller.watch(running.link.as_fd(), token, events) {
            tracing::error!(%error, "the link cannot be waited for");
        }
    }

    /// Sends what the link takes. What there is to receive is the caller's to take then.
    pub(super) fn flush(&mut self) {
        if let Some(running) = &mut self.running
            && let Err(error) = running.link.flush()
            && !matches!(error, LinkError::Closed)
        {
            self.kill(&format!("nothing can be sent to it: {error}"));
        }
    }

    /// [Flushes](Self::flush) what the kernel had no room for, though the socket had.
    pub(super) fn resend(&mut self) {
        self.resend_at = None;
        self.flush();
    }

    /// The next message that the data plane has sent.
    pub(super) fn receive(&mut self) -> Option<(Up, Vec<ReapedFd>)> {
        let running = self.running.as_mut().filter(|running| !running.link_is_done)?;
        match running.link.receive() {
            Ok(received) => received,
            Err(LinkError::Closed) => {
                running.link_is_done = true;
                // Dead, or of no use without its link; a dead one keeps its own reason.
                running.process.kill();
                None
            }
            Err(error) => {
                running.link_is_done = true;
                self.kill(&format!("it broke the link's rules: {error}"));
                None
            }
        }
    }

    /// It says that it is alive.
    pub(super) fn alive(&mut self) {
        if let Some(running) = &mut self.running {
            running.beat = Instant::now();
        }
    }

    /// It says that the site is up; `false` if it has said so before.
    pub(super) fn ready(&mut self) -> bool {
        let Some(running) = self.running.as_mut().filter(|running| !running.ready) else {
            return false;
        };
        running.ready = true;
        running.beat = Instant::now();
        let took = running.started.elapsed();
        self.time_to_ready = Some(took);
        tracing::info!(us = took.as_micros() as u64, "the data plane is ready");
        true
    }

    /// It says that the first request has completed, `ns` nanoseconds after the death of the one before it.
    pub(super) fn first_completion(&mut self, ns: u64) {
        tracing::info!(us = ns / 1000, "the first request has completed since the data plane died");
        self.first_completion_ns = Some(ns);
    }

    pub(super) fn deadlines(&self) -> Deadlines {
        Deadlines {
            start: self.start_at,
            silence: self.silence_ends(),
            look: self.running.as_ref().map(|running| running.look),
            resend: self.resend_at,
            stop: self.stop_by,
        }
    }

    /// When it will have been silent for too long.
    fn silence_ends(&self) -> Option<Instant> {
        let running = self.running.as_ref().filter(|running| running.killed.is_none())?;
        let patience = if running.ready { self.timing.watchdog } else { self.timing.startup };
        Some(running.beat + patience)
    }

    /// Kills it if it has been silent for too long.
    pub(super) fn kill_if_silent(&mut self) {
        if self.silence_ends().is_some_and(|end| end <= Instant::now()) {
            self.kill("it was silent for too long");
        }
    }

    pub(super) fn kill(&mut self, reason: &str) {
        if let Some(running) = self.running.as_mut().filter(|running| running.killed.is_none()) {
            tracing::error!(pid = running.process.id(), reason, "killing the data plane");
            running.killed = Some(reason.to_owned());
            running.look = Instant::now() + LOOK;
            running.process.kill();
        }
    }

    /// Looks whether it is dead although there was no notification. A process whose operation hangs in the kernel has
    /// no end that could be waited for, and no other request is to wait for it: what it may still write is the fences'
    /// to keep from what comes after.
    pub(super) fn look(&mut self, now: Instant) -> Option<End> {
        let running = self.running.as_mut()?;
        let overdue = running.beat + OVERDUE;
        if now < overdue && running.killed.is_none() {
            running.look = overdue;
            return None;
        }
        running.look = now + LOOK;
        if let Some(exit) = running.process.exit() {
            return Some(End { exit, hangs: false, at_ns: monotonic_ns() });
        }
        let exit = running.process.hangs()?;
        tracing::warn!(
            pid = running.process.id(),
            "the data plane is dead, but the kernel is in the middle of an operation of its that hangs"
        );
        Some(End { exit, hangs: true, at_ns: monotonic_ns() })
    }

    /// A data plane can be reaped: the one that runs, whose end this is then, or one that hung.
    pub(super) fn ended(&mut self, incarnation: u64) -> Option<End> {
        if let Some(at) = self.hanging.iter().position(|(other, _)| *other == incarnation) {
            if let (_, process) = &mut self.hanging[at]
                && process.exit().is_some()
            {
                tracing::info!(pid = process.id(), incarnation, "what hung of a dead data plane is over");
                self.poller.forget(process.end(), Token::End { incarnation });
                self.hanging.swap_remove(at);
            }
            return None;
        }
        let exit = self.running.as_mut().filter(|_| incarnation == self.incarnation)?.process.exit()?;
        Some(End { exit, hangs: false, at_ns: monotonic_ns() })
    }

    /// Records a death, after what was said last is received. Whether something from outside killed it.
    pub(super) fn bury(&mut self, end: End) -> bool {
        let incarnation = self.incarnation;
        let End { exit, hangs, at_ns } = end;
        let Some(running) = self.running.take() else {
            return false;
        };
        self.poller.forget(running.link.as_fd(), Token::Link { incarnation });
        if hangs {
            self.hanging.push((incarnation, running.process));
        } else {
            self.poller.forget(running.process.end(), Token::End { incarnation });
        }
        let reason = match &running.killed {
            Some(why) => format!("{} ({why})", exit.reason),
            None => exit.reason,
        };
        if self.is_stopping() {
            tracing::info!(reason, "the data plane has stopped");
            return false;
        }
        let lived_ms = running.started.elapsed().as_millis() as u64;
        tracing::error!(reason, lived_ms, "the data plane died");
        self.last_exit = Some(reason.clone());
        self.death = Some(Death { at_ns, reason });
        exit.sent && running.killed.is_none()
    }

    /// The next one is due, after one that had served for `served`: at once, or after a pause.
    pub(super) fn restart(&mut self, served: Duration) {
        let pause = self.policy.died(served);
        if !pause.is_zero() {
            tracing::warn!(?pause, "the data plane dies again and again: waiting before the next start");
        }
        self.start_at = Some(Instant::now() + pause);
    }

    /// Stops it in good order, and starts none any more.
    pub(super) fn stop(&mut self) {
        self.start_at = None;
        self.stop_by = Some(Instant::now() + self.timing.shutdown);
        self.send(&Down::Shutdown, Vec::new());
    }

    /// It did not stop in time.
    pub(super) fn kill_unstopped(&mut self, now: Instant) {
        self.kill("it did not stop in time");
        // The kill is followed by its end.
        self.stop_by = Some(now + self.timing.shutdown);
    }
}
