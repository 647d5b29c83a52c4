//! The data plane's life: its start, the link to it, its end, and when the next one starts.
//!
//! ```text
//!  start ──▶ starting ── Ready ──▶ running ── End ──▶ bury ── RestartPolicy ──▶ start
//!               └── silent for too long: killed ───────▲
//! ```
//!
//! What the data plane says is for others to act on: [`Plane::receive`] gives it to the loop. A second data plane, on
//! standby for an upgrade, is in `standby`.

mod kept;
mod running;
mod standby;

use std::time::{Duration, Instant};

use self::running::Running;
use self::standby::{Promotion, Replaced, Standby};
use super::desired::Desired;
use super::poller::{Poller, Token};
use super::process::{Exit, Process, Spawner};
use super::restart::RestartPolicy;
use super::supervisor::Timing;
use super::vault::Vault;

pub(super) use self::kept::PlaneState;
pub(super) use self::running::Hello;
use softdpu_api::status::{DataPlaneState, DataPlaneStatus};
use softdpu_api::{ApiError, ErrorCode};
use softdpu_link::{BEAT, Death, Down, REFS_PAUSE, SharedFd, Up, monotonic_ns};
use softdpu_sys::ReapedFd;

/// A data plane that has said nothing for this long may be dead without a notification.
const OVERDUE: Duration = BEAT.saturating_add(Duration::from_millis(500));

/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Messages that wait for the data plane to take them while it asks for more: several for each device of a large site.
const MOST_QUEUED: usize = 32 << 10;

/// Bytes of a name in the vault or of a reason.
const MOST_TEXT: usize = 4 << 10;

/// Bytes of a session, or of a reply to a front end.
const MOST_SESSION: usize = 1 << 20;

/// Descriptors that one message of a front end brings into its connection's table: some for each queue.
const MOST_KEPT: usize = 4 << 10;

/// The data plane as the supervisor sees it.
pub(super) struct Plane {
    poller: Poller,
    spawner: Box<dyn Spawner>,
    timing: Timing,
    running: Option<Running>,
    standby: Option<Standby>,
    /// The upgrade that the one that runs came by.
    promotion: Option<Promotion>,
    /// Those that upgrades have replaced, until they have left.
    replaced: Vec<Replaced>,
    /// Those that are dead and cannot be reaped yet, with their incarnations.
    hanging: Vec<(u64, Box<dyn Process>)>,
    /// How many were started.
    started: u64,
    /// The number of the one that serves, or of the last that did.
    incarnation: u64,
    restarts: u64,
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

/// That a data plane is dead.
pub(super) struct End {
    /// Its number.
    incarnation: u64,
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
    /// [`Plane::leave`].
    pub(super) leave: Option<Instant>,
}

impl Deadlines {
    /// The first of them.
    pub(super) fn first(&self) -> Option<Instant> {
        [self.start, self.silence, self.look, self.resend, self.stop, self.leave].into_iter().flatten().min()
    }
}

impl Plane {
    pub(super) fn new(spawner: Box<dyn Spawner>, timing: Timing, poller: Poller) -> Plane {
        Plane {
            poller,
            spawner,
            timing,
            running: None,
            standby: None,
            promotion: None,
            replaced: Vec::new(),
            hanging: Vec::new(),
            started: 0,
            incarnation: 0,
            restarts: 0,
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
            _ if self.restarts == 0 => DataPlaneState::Starting,
            _ => DataPlaneState::Restarting,
        }
    }

    pub(super) fn status(&self) -> DataPlaneStatus {
        DataPlaneStatus {
            pid: self.running.as_ref().map(|running| running.process.id()),
            state: self.state(),
            version: self.hello().map(|hello| hello.version.clone()),
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
            time_to_ready_us: self.time_to_ready.map(|took| took.as_micros() as u64),
            first_completion_after_restart_us: self.first_completion_ns.map(|ns| ns / 1000),
            upgrade: None,
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
        self.restarts += u64::from(self.started > 0);
        self.started += 1;
        self.incarnation = self.started;
        self.first_completion_ns = None;
        let incarnation = self.incarnation;
        let running = match Running::spawn(&mut *self.spawner, incarnation, &self.poller) {
            Ok(running) => running,
            Err(error) => {
                self.last_exit = Some(format!("cannot be started: {error}"));
                let pause = self.policy.died(Duration::ZERO);
                tracing::error!(%error, ?pause, "the data plane cannot be started");
                // Unlike a death this costs no time by itself: never try twice without a pause.
                self.start_at = Some(Instant::now() + pause.max(Duration::from_millis(50)));
                return;
            }
        };
        tracing::info!(pid = running.process.id(), incarnation, "the data plane is started");
        self.running = Some(running);
        let (kept, fds) = vault.contents();
        let start = Down::Start {
            site: Box::new(desired.site().clone()),
            incarnation,
            kept,
            placements: desired.placements().to_vec(),
            death: self.death.clone(),
            loaded: desired.loaded_networks(),
            standby: false,
        };
        self.send(&start, fds);
    }

    /// What the one that runs has said of itself.
    pub(super) fn hello(&self) -> Option<&Hello> {
        self.running.as_ref()?.hello.as_ref()
    }

    /// It says which program it is.
    pub(super) fn greeted(&mut self, hello: Hello) {
        if let Some(running) = &mut self.running {
            running.hello = Some(hello);
        }
    }

    /// Sends to the data plane, if one runs. Whatever it does not get any more its successor will.
    pub(super) fn send(&mut self, message: &Down, fds: Vec<SharedFd>) {
        if let Some(running) = &mut self.running {
            running.send(message, fds);
        }
    }

    /// How many messages wait for the data plane to take them.
    pub(super) fn queued(&self) -> usize {
        self.running.as_ref().map_or(0, |running| running.link.queued())
    }

    /// Why `message` is more than a data plane may say: the supervisor would grow by it without a bound.
    pub(super) fn excess(&self, message: &Up) -> Option<&'static str> {
        match message {
            Up::Open { .. } | Up::Connect { .. } | Up::OpenTap { .. } if self.queued() > MOST_QUEUED => {
                Some("it asks for files and takes no answers")
            }
            Up::Keep { key } if key.len() > MOST_TEXT => Some("it wants something kept under a name that is too long"),
            Up::Handled { session, reply, kept, .. }
                if session.len().max(reply.len()) > MOST_SESSION || kept.len() > MOST_KEPT =>
            {
                Some("it wants more kept of a connection than any has")
            }
            Up::Close { reason, .. } if reason.len() > MOST_TEXT => Some("it closes a connection with too many words"),
            _ => None,
        }
    }

    /// Both that have a link.
    fn linked(&mut self) -> impl Iterator<Item = &mut Running> {
        self.running.iter_mut().chain(self.standby.iter_mut().map(|standby| &mut standby.running))
    }

    /// Watches the links for what is wanted of them now.
    pub(super) fn watch_link(&mut self) {
        let poller = self.poller.clone();
        let mut held_up = false;
        for running in self.linked() {
            held_up |= !running.link_is_done && running.link.is_held_up();
            running.watch_link(&poller);
        }
        if held_up {
            self.resend_at.get_or_insert(Instant::now() + REFS_PAUSE);
        }
    }

    /// Sends what the links take. What there is to receive is the caller's to take then.
    pub(super) fn flush(&mut self) {
        self.linked().for_each(Running::flush);
    }

    /// [Flushes](Self::flush) what the kernel had no room for, though the socket had.
    pub(super) fn resend(&mut self) {
        self.resend_at = None;
        self.flush();
    }

    /// The next message that the data plane has sent.
    pub(super) fn receive(&mut self) -> Option<(Up, Vec<ReapedFd>)> {
        self.running.as_mut()?.receive()
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
            silence: self.running.as_ref().and_then(|running| running.silence_ends(&self.timing)),
            look: self.running.as_ref().map(Running::look_at),
            resend: self.resend_at,
            stop: self.stop_by,
            leave: self.replaced.iter().map(|replaced| replaced.due).min(),
        }
    }

    /// Kills it if it has been silent for too long.
    pub(super) fn kill_if_silent(&mut self) {
        let end = self.running.as_ref().and_then(|running| running.silence_ends(&self.timing));
        if end.is_some_and(|end| end <= Instant::now()) {
            self.kill("it was silent for too long");
        }
    }

    pub(super) fn kill(&mut self, reason: &str) {
        if let Some(running) = &mut self.running {
            running.kill(reason);
        }
    }

    /// Looks whether it is dead although there was no notification.
    pub(super) fn look(&mut self, now: Instant) -> Option<End> {
        self.running.as_mut()?.look(now)
    }

    /// A data plane can be reaped: the one that runs, whose end this is then, or one that hung.
    pub(super) fn ended(&mut self, incarnation: u64) -> Option<End> {
        if let Some(at) = self.hanging.iter().position(|(other, _)| *other == incarnation) {
            if let (_, process) = &mut self.hanging[at]
                && process.exit().is_some()
            {
                tracing::info!(pid = process.id(), incarnation, "what was left of a data plane is over");
                self.poller.forget(process.end(), Token::End { incarnation });
                self.hanging.swap_remove(at);
            }
            return None;
        }
        self.reap_replaced(incarnation);
        let exit = self.running.as_mut().filter(|_| incarnation == self.incarnation)?.process.exit()?;
        Some(End { incarnation, exit, hangs: false, at_ns: monotonic_ns() })
    }

    /// Whether it is the end of the data plane that serves, and not of one that was replaced meanwhile, which is reaped
    /// then.
    pub(super) fn concerns(&mut self, end: &End) -> bool {
        let is_present = end.incarnation == self.incarnation;
        if !is_present {
            self.reap_replaced(end.incarnation);
        }
        is_present
    }

    /// Records a death, after what was said last is received. Whether something from outside killed it.
    pub(super) fn bury(&mut self, end: End) -> bool {
        let End { exit, hangs, at_ns, .. } = end;
        let Some(running) = self.running.take() else {
            return false;
        };
        running.forget(&self.poller, hangs);
        if hangs {
            self.hanging.push((running.incarnation, running.process));
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
        self.step_back();
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
