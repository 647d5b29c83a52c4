//! An upgrade: another data plane, started beside the one that serves, takes over from it.
//!
//! ```text
//!  Greeting ── Hello ──▶ Preparing ── Prepared ──▶ Quiescing ── Quiesced ──▶ Attaching ── all attached ──▶ done
//!      │                     │                         │                         │
//!      └─────────────────────┴─ the one that served    │ it dies or is late:     └─ the new one dies: an
//!                               serves on              ▼ killed, and followed       ordinary death
//!                                                   by the one on standby
//! ```
//!
//! No change is made meanwhile: the new data plane was told what to be when it was started.

use std::time::{Duration, Instant};

use serde_json::json;

use super::clients::Ticket;
use super::plane::Hello;
use super::process::Spawner;
use super::reexec::{self, Reexec};
use super::supervisor::Supervisor;
use softdpu_api::status::{UpgradeStage, UpgradeStatus};
use softdpu_api::{ApiError, ErrorCode, SupervisorUpgradeResult, Upgrade, UpgradePart, UpgradeResult};
use softdpu_link::{Down, Up, monotonic_ns};

/// What requests in flight get to finish when queues are stopped for the switch.
const PATIENCE: Duration = Duration::from_millis(20);

/// How much longer the answer may take than that.
const MARGIN: Duration = Duration::from_millis(480);

/// How long all devices may take to be attached before the upgrade is called done without them.
const ATTACHING: Duration = Duration::from_secs(5);

/// How far an upgrade has come.
enum Stage {
    /// The new data plane was started.
    Greeting,
    /// It was told what to be.
    Preparing,
    /// The one that serves was told to let go.
    Quiescing { since_ns: u64, until: Instant },
    /// The new one serves, and takes up connections.
    Attaching { since_ns: u64, until: Instant },
}

/// What a client wants upgraded, and what was done of it.
pub(super) struct Order {
    pub(super) ticket: Ticket,
    pub(super) upgrade: Upgrade,
    /// The program that was at that path when it was asked for.
    pub(super) program: Box<dyn Spawner>,
    pub(super) supervisor: Option<SupervisorUpgradeResult>,
    pub(super) data_plane: Option<UpgradeResult>,
}

/// The upgrade of the data plane that is under way.
struct Running {
    order: Order,
    started: Instant,
    stage: Stage,
    prepared: Duration,
    abandoned: u64,
}

/// The upgrade that is under way, and how it goes or the last one went.
#[derive(Default)]
pub(super) struct Upgrades {
    /// That of the supervisor.
    pub(super) reexec: Reexec,
    running: Option<Running>,
    status: Option<UpgradeStatus>,
    /// When [`Supervisor::upgrade_is_late`] has to look.
    silence: Option<Instant>,
    /// No request has completed since the switch.
    awaits_completion: bool,
}

impl Upgrades {
    pub(super) fn status(&self) -> Option<UpgradeStatus> {
        self.status.clone()
    }

    /// Whether changes have to wait.
    pub(super) fn is_under_way(&self) -> bool {
        self.running.is_some() || self.reexec.is_under_way()
    }

    /// As the program before left it.
    pub(super) fn resume(reexec: Reexec, status: Option<UpgradeStatus>) -> Upgrades {
        Upgrades { reexec, status, ..Upgrades::default() }
    }

    /// Whether the one that served was told to let go, and the new one has not been told to serve.
    pub(super) fn is_switching(&self) -> bool {
        matches!(self.running, Some(Running { stage: Stage::Quiescing { .. }, .. }))
    }

    /// When something takes too long.
    pub(super) fn due(&self) -> Option<Instant> {
        let Some(running) = &self.running else { return self.reexec.due() };
        match running.stage {
            Stage::Greeting | Stage::Preparing => self.silence,
            Stage::Quiescing { until, .. } | Stage::Attaching { until, .. } => Some(until),
        }
    }

    /// The first request has completed since the switch, `ns` nanoseconds after its beginning. False: there was none.
    pub(super) fn first_completion(&mut self, ns: u64) -> bool {
        if !std::mem::take(&mut self.awaits_completion) {
            return false;
        }
        self.set(|status| status.first_completion_us = Some(ns / 1000));
        tracing::info!(us = ns / 1000, "the first request has completed since the upgrade");
        true
    }

    /// The data plane has died: what completes first is of the next.
    pub(super) fn forget_completion(&mut self) {
        self.awaits_completion = false;
    }

    fn set(&mut self, change: impl FnOnce(&mut UpgradeStatus)) {
        if let Some(status) = &mut self.status {
            change(status);
        }
    }
}

impl Supervisor {
    /// A client wants an upgrade: of the supervisor first, which then upgrades the data plane, unless the two could not
    /// speak to each other meanwhile.
    pub(super) fn upgrade(&mut self, ticket: Ticket, upgrade: Upgrade) {
        if let Some(refusal) = self.upgrade_refusal(upgrade.only) {
            let error = ApiError::new(ErrorCode::Unavailable, refusal).hint("try again in a moment");
            return self.clients.answer(ticket, Err(error));
        }
        let program = match self.plane.program(&upgrade.program) {
            Ok(program) => program,
            Err(error) => {
                let message = format!("{} cannot be started: {error}", upgrade.program.display());
                return self.clients.answer(ticket, Err(ApiError::new(ErrorCode::Failed, message)));
            }
        };
        let order = Order { ticket, upgrade, program, supervisor: None, data_plane: None };
        match order.upgrade.only {
            Some(UpgradePart::DataPlane) => self.upgrade_data_plane(order),
            Some(UpgradePart::Supervisor) | None => reexec::begin(self, order),
        }
    }

    fn upgrade_refusal(&self, only: Option<UpgradePart>) -> Option<&'static str> {
        let needs_data_plane = only != Some(UpgradePart::Supervisor);
        match self.plane.hello() {
            _ if self.plane.is_stopping() => Some("the daemon stops"),
            _ if self.upgrades.is_under_way() => Some("another upgrade is under way"),
            _ if self.changes.is_busy() => Some("a change is being made"),
            _ if !needs_data_plane => None,
            None => Some("there is no data plane that could be replaced"),
            Some(_) if !self.plane.is_ready() => Some("the data plane does not serve yet"),
            Some(_) => None,
        }
    }

    /// Everything that was asked for is done.
    pub(super) fn upgrade_succeeds(&mut self, order: Order) {
        let version = || self.plane.hello().map(|hello| hello.version.clone()).unwrap_or_default();
        let data_plane = order.data_plane.unwrap_or_else(|| UpgradeResult::none(version()));
        let result = UpgradeResult { supervisor: order.supervisor, ..data_plane };
        self.clients.answer(order.ticket, Ok(json!(result)));
        self.next_changes();
    }

    /// What is left of an upgrade is not done.
    pub(super) fn refuse_upgrade(&mut self, order: Order, reason: &str) {
        let done = match (&order.supervisor, &order.data_plane) {
            (Some(done), _) => format!("the supervisor was upgraded from {} to {}; ", done.from, done.to),
            (None, Some(done)) => format!("the data plane was upgraded from {} to {}; ", done.from, done.to),
            (None, None) => String::new(),
        };
        self.clients.answer(order.ticket, Err(ApiError::new(ErrorCode::Failed, format!("{done}{reason}"))));
        self.next_changes();
    }

    /// The upgrade of the data plane begins.
    pub(super) fn upgrade_data_plane(&mut self, order: Order) {
        if !self.plane.is_ready() {
            return self.refuse_upgrade(order, "the data plane does not serve");
        }
        let program = order.upgrade.program.clone();
        let started = order.program.file().and_then(|file| self.plane.start_standby(order.program.of(file)));
        if let Err(error) = started {
            let message = format!("{} cannot be started: {error}", program.display());
            return self.refuse_upgrade(order, &message);
        }
        let from = self.plane.hello().map(|hello| hello.version.clone()).unwrap_or_default();
        self.upgrades.status = Some(UpgradeStatus {
            program: program.display().to_string(),
            from,
            stage: UpgradeStage::Preparing,
            ..UpgradeStatus::default()
        });
        self.upgrades.running = Some(Running {
            order,
            started: Instant::now(),
            stage: Stage::Greeting,
            prepared: Duration::ZERO,
            abandoned: 0,
        });
        self.upgrades.silence = self.plane.standby_silence();
    }

    /// Takes everything that the data plane on standby has said.
    pub(super) fn hear_standby(&mut self) {
        while let Some((message, fds)) = self.plane.receive_standby() {
            let mut fds = fds.into_iter().map(std::sync::Arc::new);
            match message {
                Up::Hello { version, formats } => self.standby_greets(Hello { version, formats }),
                Up::Alive => self.plane.standby_alive(),
                Up::Open { .. } | Up::Connect { .. } => {
                    let Some(incarnation) = self.plane.standby() else { return };
                    self.open(incarnation, message);
                }
                Up::Keep { key } => self.plane.standby_keeps(key, fds.next()),
                Up::Forget { key } => self.plane.standby_keeps(key, None),
                Up::Prepared { problems } => self.standby_is_prepared(&problems),
                other => {
                    let error = format!("the new data plane says what it may not before it serves: {other:?}");
                    return self.upgrade_fails(&error);
                }
            }
        }
        self.upgrades.silence = self.plane.standby_silence();
    }

    fn standby_greets(&mut self, hello: Hello) {
        let Some(Running { stage: stage @ Stage::Greeting, .. }) = &mut self.upgrades.running else { return };
        *stage = Stage::Preparing;
        self.upgrades.set(|status| status.to = Some(hello.version.clone()));
        let refusal = self.plane.hello().and_then(|before| hello.formats.refusal(&before.formats));
        match refusal {
            Some(refusal) => self.upgrade_fails(&format!("softdpu {} cannot take over: {refusal}", hello.version)),
            None => self.plane.brief_standby(hello, self.changes.desired(), &self.vault),
        }
    }

    /// Everything is ready: the one that serves lets go.
    fn standby_is_prepared(&mut self, problems: &[String]) {
        let Some(running) = &mut self.upgrades.running else { return };
        if !matches!(running.stage, Stage::Preparing) {
            return;
        }
        if !problems.is_empty() && !running.order.upgrade.force {
            let error = format!("the new data plane cannot serve: {}", problems.join("; "));
            return self.upgrade_fails(&error);
        }
        running.prepared = running.started.elapsed();
        let (prepared_us, since_ns) = (running.prepared.as_micros() as u64, monotonic_ns());
        running.stage = Stage::Quiescing { since_ns, until: Instant::now() + PATIENCE + MARGIN };
        self.upgrades.set(|status| {
            status.stage = UpgradeStage::Switching;
            status.prepared_us = Some(prepared_us);
        });
        self.front_ends.hold();
        self.plane.send(&Down::Quiesce { patience_ms: PATIENCE.as_millis() as u64 }, Vec::new());
    }

    /// The one that served has let go, or is dead: the other serves.
    pub(super) fn switch(&mut self, abandoned: u64) {
        let Some(running) = &mut self.upgrades.running else { return };
        let Stage::Quiescing { since_ns, .. } = running.stage else { return };
        running.abandoned = abandoned;
        self.upgrades.awaits_completion = true;
        running.stage = Stage::Attaching { since_ns, until: Instant::now() + ATTACHING };
        self.calls_are_lost();
        self.plane.promote(since_ns, &mut self.vault);
        self.front_ends.give_over(&mut self.plane);
        self.look_at_upgrade();
    }

    /// Whether every connection has been taken up: the upgrade is done then.
    pub(super) fn look_at_upgrade(&mut self) {
        if let Some(Running { stage: Stage::Attaching { .. }, .. }) = self.upgrades.running
            && self.front_ends.are_attached()
        {
            self.upgrade_is_done();
        }
    }

    fn upgrade_is_done(&mut self) {
        let Some(running) = self.upgrades.running.take() else { return };
        let Stage::Attaching { since_ns, .. } = running.stage else { return };
        let switched_us = monotonic_ns().saturating_sub(since_ns) / 1000;
        let status = self.upgrades.status.get_or_insert_default();
        status.stage = UpgradeStage::Done;
        status.switched_us = Some(switched_us);
        let (from, to) = (status.from.clone(), status.to.clone().unwrap_or_default());
        let prepared_us = running.prepared.as_micros() as u64;
        tracing::info!(from, to, prepared_us, switched_us, "the data plane was upgraded");
        let abandoned = running.abandoned;
        let result = UpgradeResult { from, to, prepared_us, switched_us, abandoned, supervisor: None };
        let order = Order { data_plane: Some(result), ..running.order };
        match order.upgrade.only {
            None if order.supervisor.is_none() => reexec::begin(self, order),
            None | Some(_) => self.upgrade_succeeds(order),
        }
    }

    /// An upgrade, if one is under way, is given up.
    pub(super) fn upgrade_fails(&mut self, reason: &str) {
        let Some(running) = self.upgrades.running.take() else { return };
        tracing::error!(reason, "the upgrade of the data plane failed");
        self.plane.discard_standby();
        match running.stage {
            Stage::Greeting | Stage::Preparing | Stage::Attaching { .. } => {}
            // It has stopped its queues, and will not start them again.
            Stage::Quiescing { .. } => self.plane.kill("it was quiesced for an upgrade that failed"),
        }
        self.upgrades.set(|status| {
            status.stage = UpgradeStage::Failed;
            status.error = Some(reason.to_owned());
        });
        self.refuse_upgrade(running.order, &format!("the upgrade of the data plane failed: {reason}"));
    }

    /// The process on standby has ended.
    pub(super) fn standby_ended(&mut self) {
        // What it said last is not listened to: were it that all is prepared, the other would let go for nothing.
        if let Some(reason) = self.plane.standby_end() {
            self.upgrade_fails(&format!("the new data plane has ended: {reason}; its log says why"));
        }
    }

    /// Something of an upgrade takes too long.
    pub(super) fn upgrade_is_late(&mut self) {
        match self.upgrades.running.as_ref().map(|running| &running.stage) {
            Some(Stage::Greeting | Stage::Preparing) => {
                self.hear_standby();
                if self.plane.standby_silence().is_some_and(|at| at <= Instant::now()) {
                    self.upgrade_fails("the new data plane was silent for too long");
                }
            }
            Some(Stage::Quiescing { .. }) => {
                // Its end makes the switch.
                self.plane.kill("it did not let go of its queues in time");
                if let Some(Running { stage: Stage::Quiescing { until, .. }, .. }) = &mut self.upgrades.running {
                    *until += ATTACHING;
                }
            }
            Some(Stage::Attaching { .. }) => self.upgrade_is_done(),
            None => {}
        }
    }
}
