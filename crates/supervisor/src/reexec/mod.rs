//! An upgrade of the supervisor: another program follows in its process (execve(2)), with its descriptors and its
//! state.
//!
//! ```text
//!  Asking ── Understood ──▶ Checking ── Verdict ──▶ Draining ── no thread waits ──▶ state ── Verdict ──▶ execve
//!     └────────────────────────┴───────────────────────┴── refused, or late: this one goes on          │
//!                                                                                                ▼
//!                         it cannot take up the state: the program before follows again ◀── resume ──▶ arrived
//! ```
//!
//! The first check is of a state like the one that will be; nothing stands still for it. The last is of that very
//! state, from which on nothing is listened to until the next program does. The data plane notices nothing of all this.

mod formats;
mod program;
mod resume;
mod state;
mod table;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::formats::VERSION;
use super::clients::Ticket;
use super::process::Spawner;
use super::supervisor::Supervisor;
use super::upgrade::Order;
use softdpu_api::status::{UpgradeStage, UpgradeStatus};
use softdpu_api::{SupervisorUpgradeResult, Upgrade, UpgradePart, UpgradeResult};
use softdpu_link::{LINK_FORMAT, monotonic_ns};
use softdpu_sys::{reaper, wake::Doorbell};

pub(crate) use self::formats::VERSION as RELEASE;
pub(crate) use self::program::Binary;
pub use self::program::{
    CHECK_SUBCOMMAND, Executed, FORMATS_SUBCOMMAND, RESUME_SUBCOMMAND, Successor, Understood, Verdict,
};
pub use self::resume::{Resume, check, resume, understood};
pub(crate) use self::state::State;
#[cfg(test)]
pub(crate) use self::state::read;
pub(crate) use self::table::{Bytes, FdIndex, Leaving, Left, Moment, NoFd};

/// How long a program may take to say what it understands, or that it can take up a state, while nothing waits for it.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may take for the last check, for which front ends and clients wait.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// How long what threads do may take to come to its end.
const DRAINING: Duration = Duration::from_secs(5);

/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(2);

/// What a program is asked on a thread, which rings the bell.
struct Question<T> {
    answer: Receiver<Result<T, String>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> Question<T> {
    fn ask(bell: &Arc<Doorbell>, ask: impl FnOnce() -> Result<T, String> + Send + 'static) -> Result<Self, String> {
        let (sender, answer) = channel();
        let bell = Arc::clone(bell);
        let run = move || {
            // The receiver is gone if the upgrade was given up.
            let _ = sender.send(ask());
            bell.ring();
        };
        let thread = std::thread::Builder::new().name("successor".into()).spawn(run);
        let thread = thread.map_err(|error| format!("there is no thread to ask it: {error}"))?;
        Ok(Question { answer, thread: Some(thread) })
    }

    fn take(&mut self) -> Option<Result<T, String>> {
        let answer = match self.answer.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err("the thread that asked it ended early".to_owned()),
        };
        // It has nothing more to do, and must not be there when the program is executed.
        let _ = self.thread.take().map(JoinHandle::join);
        Some(answer)
    }
}

/// How far an attempt has come.
enum Stage {
    Asking(Question<Understood>),
    Checking { question: Question<Verdict>, to: Understood, format: u32 },
    Draining { to: Understood, format: u32, until: Instant, look: Instant },
}

/// An upgrade that is under way.
struct Attempt {
    order: Order,
    successor: Arc<dyn Successor>,
    started: Instant,
    stage: Stage,
}

/// The upgrade that is under way, and how it goes or the last one went.
#[derive(Default)]
pub(super) struct Reexec {
    attempt: Option<Attempt>,
    status: Option<UpgradeStatus>,
    /// What the program before has left to do.
    arrival: Option<Arrival>,
}

/// What a client wants, as the next program is given it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ArrivalState {
    ticket: Ticket,
    upgrade: Upgrade,
    /// The program's file.
    file: FdIndex,
    /// What was done of it.
    data_plane: Option<UpgradeResult>,
    from: String,
    prepared_us: u64,
    /// Since when nothing is listened to, [`monotonic_ns`].
    since_ns: u64,
}

/// The same, taken up.
struct Arrival {
    order: Order,
    from: String,
    prepared_us: u64,
    since_ns: u64,
    failed: Option<String>,
}

impl Reexec {
    pub(super) fn status(&self) -> Option<UpgradeStatus> {
        self.status.clone()
    }

    pub(super) fn is_under_way(&self) -> bool {
        self.attempt.is_some()
    }

    /// When [`advance`] has something to do, beside when the bell rings.
    pub(super) fn due(&self) -> Option<Instant> {
        match self.attempt.as_ref()?.stage {
            Stage::Draining { look, .. } => Some(look),
            Stage::Asking(_) | Stage::Checking { .. } => None,
        }
    }

    /// `failed`: why the program that was to follow could not.
    pub(super) fn resume(
        state: ArrivalState,
        failed: Option<String>,
        left: &mut Left,
        any: &dyn Spawner,
    ) -> Result<Reexec, NoFd> {
        let ArrivalState { ticket, upgrade, file, data_plane, from, prepared_us, since_ns } = state;
        let program = any.of(left.own(file)?);
        let order = Order { ticket, upgrade, program, supervisor: None, data_plane };
        let arrival = Some(Arrival { order, from, prepared_us, since_ns, failed });
        Ok(Reexec { attempt: None, status: None, arrival })
    }
}

/// Another program is to follow, as `order` says.
pub(super) fn begin(supervisor: &mut Supervisor, order: Order) {
    supervisor.upgrades.reexec.status = Some(UpgradeStatus {
        program: order.upgrade.program.display().to_string(),
        from: VERSION.to_owned(),
        ..UpgradeStatus::default()
    });
    let successor = match order.program.successor() {
        Ok(successor) => successor,
        Err(error) => return fail(supervisor, order, &format!("it cannot be opened: {error}")),
    };
    let asked = Arc::clone(&successor);
    match Question::ask(&supervisor.bell, move || asked.understands(PATIENCE)) {
        Ok(question) => {
            let stage = Stage::Asking(question);
            let attempt = Attempt { order, successor, started: Instant::now(), stage };
            supervisor.upgrades.reexec.attempt = Some(attempt);
        }
        Err(error) => fail(supervisor, order, &error),
    }
}

/// Does what there is to do for an upgrade. Whether another supervisor goes on in place of this one, in tests.
pub(super) fn advance(supervisor: &mut Supervisor) -> bool {
    let Some(Attempt { order, successor, started, mut stage }) = supervisor.upgrades.reexec.attempt.take() else {
        return false;
    };
    let next = match &mut stage {
        Stage::Asking(question) => match question.take() {
            None => Ok(None),
            Some(answer) => match answer.and_then(|to| fit(supervisor, &order, to)) {
                Ok(Fit::Follows(to, format)) => {
                    let checked = first_check(supervisor, &order, &successor, format);
                    checked.map(|question| Some(Stage::Checking { question, to, format }))
                }
                Ok(Fit::DataPlaneFirst) => {
                    supervisor.upgrades.reexec.status = None;
                    supervisor.upgrade_data_plane(order);
                    return false;
                }
                Err(error) => Err(error),
            },
        },
        Stage::Checking { question, to, format } => match question.take() {
            None => Ok(None),
            Some(Ok(Verdict::Fits(_))) => {
                let now = Instant::now();
                Ok(Some(Stage::Draining { to: to.clone(), format: *format, until: now + DRAINING, look: now }))
            }
            Some(Ok(Verdict::Refused(reason))) => Err(refused(to, &reason)),
            Some(Err(error)) => Err(error),
        },
        Stage::Draining { to, format, until, look } => {
            *look = Instant::now() + LOOK;
            supervisor.files_are_open();
            supervisor.files_are_read();
            match obstacle(supervisor) {
                None => {
                    let prepared = started.elapsed();
                    match replace(supervisor, &order, &*successor, to, *format, prepared) {
                        Ok(()) => return true,
                        Err(error) => Err(error),
                    }
                }
                Some(obstacle) if Instant::now() >= *until => Err(format!(
                    "{obstacle}, and that does not come to an end: the program cannot be changed meanwhile"
                )),
                Some(_) => Ok(None),
            }
        }
    };
    match next {
        Ok(next) => {
            let again = next.is_some();
            let stage = next.unwrap_or(stage);
            supervisor.upgrades.reexec.attempt = Some(Attempt { order, successor, started, stage });
            again && advance(supervisor)
        }
        Err(error) => {
            fail(supervisor, order, &error);
            false
        }
    }
}

fn refused(to: &Understood, reason: &str) -> String {
    format!("softdpu {} cannot take up the state: {reason}", to.version)
}

/// In which order the two programs of a node are to follow.
enum Fit {
    /// It can follow, with a state of this format.
    Follows(Understood, u32),
    /// The data plane goes first: this one speaks to the new, and the new one not to the present.
    DataPlaneFirst,
}

fn fit(supervisor: &mut Supervisor, order: &Order, to: Understood) -> Result<Fit, String> {
    if let Some(status) = &mut supervisor.upgrades.reexec.status {
        status.to = Some(to.version.clone());
    }
    let link = supervisor.plane.hello().map_or(LINK_FORMAT, |hello| hello.formats.link);
    if !to.link.contains(link) {
        if order.upgrade.only.is_none() && order.data_plane.is_none() {
            return Ok(Fit::DataPlaneFirst);
        }
        return Err(format!(
            "softdpu {} does not speak link format {link}, which the data plane has: upgrade the data plane first",
            to.version
        ));
    }
    to.common_format().map(|format| Fit::Follows(to, format))
}

/// Has the program look at a state like the one that will be.
fn first_check(
    supervisor: &Supervisor,
    order: &Order,
    successor: &Arc<dyn Successor>,
    format: u32,
) -> Result<Question<Verdict>, String> {
    let mut leaving = Leaving::default();
    let state = write(supervisor, order, Duration::ZERO, format, &mut leaving)?;
    let successor = Arc::clone(successor);
    Question::ask(&supervisor.bell, move || verdict(&*successor, &state, PATIENCE))
}

/// What the program says of a state. One that cannot know the state's checksum has not read it.
fn verdict(successor: &dyn Successor, state: &OwnedFd, patience: Duration) -> Result<Verdict, String> {
    use std::os::fd::AsFd;
    let checksum = state::checksum_of(state).map_err(|error| error.to_string())?;
    match successor.check(state.as_fd(), patience)? {
        Verdict::Fits(read) if read != checksum => Err("it says that the state fits, and has not read it".to_owned()),
        verdict => Ok(verdict),
    }
}

fn write<'a>(
    supervisor: &'a Supervisor,
    order: &'a Order,
    prepared: Duration,
    format: u32,
    leaving: &mut Leaving<'a>,
) -> Result<OwnedFd, String> {
    let failed = |error: std::io::Error| format!("the state cannot be written: {error}");
    let arrival = ArrivalState {
        ticket: order.ticket.clone(),
        upgrade: order.upgrade.clone(),
        file: leaving.give(order.program.file().map_err(failed)?),
        data_plane: order.data_plane.clone(),
        from: VERSION.to_owned(),
        prepared_us: prepared.as_micros() as u64,
        since_ns: monotonic_ns(),
    };
    let state = supervisor.state(arrival, leaving).map_err(failed)?;
    state::seal(&state, format, &leaving.fds()).map_err(failed)
}

/// What a thread does that execve(2) would wait for, for ever where the kernel does.
fn obstacle(supervisor: &Supervisor) -> Option<&'static str> {
    let descriptors = (reaper::pending() > 0).then_some("descriptors of other processes are being closed");
    let opening = supervisor.opener.is_busy().then_some("a backing file is being opened");
    supervisor.changes.under_way().or(supervisor.control_plane.under_way()).or(opening).or(descriptors)
}

/// The point of no return. It returns if there was none: with an error, or, in tests, because another supervisor goes
/// on.
fn replace(
    supervisor: &mut Supervisor,
    order: &Order,
    successor: &dyn Successor,
    to: &Understood,
    format: u32,
    prepared: Duration,
) -> Result<(), String> {
    use std::os::fd::AsFd;
    supervisor.clients.flush();
    let mut leaving = Leaving::default();
    let state = write(supervisor, order, prepared, format, &mut leaving)?;
    match verdict(successor, &state, LAST_PATIENCE)? {
        Verdict::Fits(_) => {}
        Verdict::Refused(reason) => return Err(refused(to, &reason)),
    }
    tracing::info!(from = VERSION, to = to.version, "another program follows in the supervisor");
    match successor.execute(state.as_fd(), &leaving.fds(), None) {
        Executed::Failed(error) => Err(format!("it cannot be executed: {error}")),
        #[cfg(test)]
        Executed::Elsewhere => {
            drop(leaving);
            supervisor.front_ends.leave_files();
            supervisor.clients.leave_file();
            Ok(())
        }
    }
}

/// The upgrade is given up: this program goes on.
fn fail(supervisor: &mut Supervisor, order: Order, reason: &str) {
    tracing::error!(reason, "the upgrade of the supervisor failed");
    if let Some(status) = &mut supervisor.upgrades.reexec.status {
        status.stage = UpgradeStage::Failed;
        status.error = Some(reason.to_owned());
    }
    supervisor.refuse_upgrade(order, &format!("the upgrade of the supervisor failed: {reason}"));
}

/// An upgrade, if one is under way, is given up.
pub(super) fn give_up(supervisor: &mut Supervisor, reason: &str) {
    if let Some(attempt) = supervisor.upgrades.reexec.attempt.take() {
        fail(supervisor, attempt.order, reason);
    }
}

/// This program has followed another, or follows itself because that could not: what the program before had begun is
/// done.
pub(super) fn arrived(supervisor: &mut Supervisor) {
    let Some(Arrival { mut order, from, prepared_us, since_ns, failed }) = supervisor.upgrades.reexec.arrival.take()
    else {
        return;
    };
    let switched_us = monotonic_ns().saturating_sub(since_ns) / 1000;
    let to = VERSION.to_owned();
    supervisor.upgrades.reexec.status = Some(UpgradeStatus {
        stage: UpgradeStage::Done,
        program: order.upgrade.program.display().to_string(),
        from: from.clone(),
        to: Some(to.clone()).filter(|_| failed.is_none()),
        prepared_us: Some(prepared_us),
        switched_us: Some(switched_us),
        ..UpgradeStatus::default()
    });
    if let Some(reason) = failed {
        return fail(supervisor, order, &reason);
    }
    tracing::info!(from, to, prepared_us, switched_us, "the supervisor was upgraded");
    order.supervisor = Some(SupervisorUpgradeResult { from, to, prepared_us, switched_us });
    match order.upgrade.only {
        None if order.data_plane.is_none() => supervisor.upgrade_data_plane(order),
        None | Some(UpgradePart::Supervisor | UpgradePart::DataPlane) => supervisor.upgrade_succeeds(order),
    }
}
