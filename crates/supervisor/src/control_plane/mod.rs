//! Control-plane tasks: programs that run on the idle time of the data plane's cores (Tai Chi §4.2), unmodified.
//!
//! ```text
//!  control-plane.add ──▶ thread: every BEAT, /proc ──▶ MinimumShare ──▶ SCHED_IDLE on all CPUs
//!                            │                               └───────▶ as before, on the control plane's CPUs
//!                            └── control-plane.json: the next supervisor goes on with them
//! ```
//!
//! A thread of its own does it: looking at many processes takes milliseconds, which the supervisor's loop does not
//! have. What it needs to give tasks back is in the run directory, for a supervisor that follows or starts after a
//! crash.

mod processes;
mod task;

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::json;
use softdpu_api::status::ControlPlaneStatus;
use softdpu_api::{ApiError, ControlPlaneCpus, ControlPlaneTask, ErrorCode};
use softdpu_link::monotonic_ns;
use softdpu_sched::Nanos;
use softdpu_site::{Site, read_file};
use softdpu_sys::wake::Doorbell;
use softdpu_sys::{affinity, threads};

use super::changes::Outcome;
use super::clients::Ticket;
use task::{Kept, NoTask, Task};

/// How often tasks are looked at.
const BEAT: Duration = Duration::from_millis(100);

/// The most tasks.
const MOST_TASKS: usize = 256;

/// What is kept in the run directory.
const FILE: &str = "control-plane.json";

/// The longest of it that is read, bytes.
const LONGEST_FILE: u64 = 4 << 20;

/// How long the supervisor waits at its end for tasks to be given back.
const PATIENCE: Duration = Duration::from_secs(2);

/// What the thread is asked.
enum Ask {
    Add {
        task: ControlPlaneTask,
        user: u32,
        data_plane: Option<u32>,
        ticket: Ticket,
    },
    Remove {
        name: String,
        user: u32,
        ticket: Ticket,
    },
    /// The CPUs have changed.
    Cpus(ControlPlaneCpus),
    Stop(SyncSender<()>),
}

/// Control-plane tasks, and the thread that looks after them while there are any.
pub(super) struct ControlPlane {
    folder: PathBuf,
    bell: Arc<Doorbell>,
    asks: Option<Sender<Ask>>,
    answers: Receiver<(Ticket, Outcome)>,
    sender: Sender<(Ticket, Outcome)>,
    status: Arc<Mutex<ControlPlaneStatus>>,
    cpus: ControlPlaneCpus,
    /// Requests that the thread has not answered.
    unanswered: usize,
}

impl ControlPlane {
    /// Takes up tasks of a supervisor before. `bell` is rung for each answer.
    pub(super) fn new(site: &Site, bell: Arc<Doorbell>) -> ControlPlane {
        let (sender, answers) = channel();
        let folder = site.node.run_directory.clone();
        let (status, cpus) = (Arc::default(), cpus(site));
        let mut control_plane = ControlPlane { folder, bell, asks: None, answers, sender, status, cpus, unanswered: 0 };
        match kept(&control_plane.folder) {
            Ok(kept) if kept.is_empty() => {}
            Ok(kept) => control_plane.start(kept).unwrap_or_else(|error| {
                tracing::error!(%error, "control-plane tasks stay as they are");
            }),
            Err(error) => tracing::error!(
                path = %control_plane.folder.join(FILE).display(), %error,
                "the control-plane tasks of the supervisor before cannot be read: they stay on idle time"
            ),
        }
        control_plane
    }

    fn start(&mut self, kept: Vec<Kept>) -> io::Result<()> {
        let (asks, to_thread) = channel();
        let mut looker = Looker {
            asks: to_thread,
            answers: self.sender.clone(),
            bell: Arc::clone(&self.bell),
            folder: self.folder.clone(),
            status: Arc::clone(&self.status),
            cpus: self.cpus.clone(),
            tasks: kept.into_iter().map(Task::resume).collect(),
        };
        looker.tell();
        std::thread::Builder::new().name("control-plane".into()).spawn(move || looker.run())?;
        self.asks = Some(asks);
        Ok(())
    }

    fn ask(&mut self, ask: Ask) -> Result<(), ApiError> {
        let failed = |error: String| ApiError::new(ErrorCode::Failed, format!("there is no thread for tasks: {error}"));
        if self.asks.is_none() {
            self.start(Vec::new()).map_err(|error| failed(error.to_string()))?;
        }
        let sent = self.asks.as_ref().map(|asks| asks.send(ask));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(failed("it has ended".to_owned())) }
    }

    /// A client of `user` asks for a task.
    pub(super) fn add(
        &mut self,
        task: ControlPlaneTask,
        user: u32,
        data_plane: Option<u32>,
        ticket: Ticket,
    ) -> Result<(), ApiError> {
        self.ask(Ask::Add { task, user, data_plane, ticket })?;
        self.unanswered += 1;
        Ok(())
    }

    /// A client of `user` asks for a task to be given back.
    pub(super) fn remove(&mut self, name: String, user: u32, ticket: Ticket) -> Result<(), ApiError> {
        self.ask(Ask::Remove { name, user, ticket })?;
        self.unanswered += 1;
        Ok(())
    }

    /// What has come of requests.
    pub(super) fn answer(&mut self) -> Option<(Ticket, Outcome)> {
        let answer = self.answers.try_recv().ok()?;
        self.unanswered = self.unanswered.saturating_sub(1);
        Some(answer)
    }

    /// What a thread does for requests, and no program may follow before it is done.
    pub(super) fn under_way(&self) -> Option<&'static str> {
        (self.unanswered > 0).then_some("a control-plane task is added or released")
    }

    /// The data plane's cores may be others.
    pub(super) fn follow(&mut self, site: &Site) {
        let cpus = cpus(site);
        if cpus != self.cpus {
            self.cpus = cpus;
            if let Some(asks) = &self.asks {
                // It fails only for a thread that has ended.
                let _ = asks.send(Ask::Cpus(self.cpus.clone()));
            }
        }
    }

    /// The tasks, if there are any.
    pub(super) fn status(&self) -> Option<ControlPlaneStatus> {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
        (!status.tasks.is_empty()).then(|| status.clone())
    }

    /// Has all tasks run as they did before: the daemon ends.
    pub(super) fn give_back(&mut self) {
        let Some(asks) = self.asks.take() else { return };
        let (done, is_done) = sync_channel(1);
        if asks.send(Ask::Stop(done)).is_ok() && is_done.recv_timeout(PATIENCE).is_err() {
            tracing::error!("control-plane tasks are not all given back: the next start does it");
        }
    }
}

/// The CPUs that tasks may use.
fn cpus(site: &Site) -> ControlPlaneCpus {
    // The supervisor's own threads may be kept to fewer.
    let all = threads::scheduling(1).map_or_else(|_| affinity::allowed(), |first| first.cpus);
    let is_core = |cpu: &usize| site.node.dataplane.cores.iter().any(|core| *core as usize == *cpu);
    let own = all.iter().copied().filter(|cpu| !is_core(cpu)).collect();
    ControlPlaneCpus { cpus: all, own }
}

/// The tasks of the supervisor before.
fn kept(folder: &Path) -> io::Result<Vec<Kept>> {
    match read_file(&folder.join(FILE), LONGEST_FILE) {
        Ok(bytes) => Ok(serde_json::from_slice(&bytes)?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The thread.
struct Looker {
    asks: Receiver<Ask>,
    answers: Sender<(Ticket, Outcome)>,
    bell: Arc<Doorbell>,
    folder: PathBuf,
    status: Arc<Mutex<ControlPlaneStatus>>,
    cpus: ControlPlaneCpus,
    tasks: Vec<Task>,
}

impl Looker {
    fn run(&mut self) {
        self.beat();
        let mut next = Instant::now() + BEAT;
        loop {
            let wait =
                if self.tasks.is_empty() { Duration::MAX } else { next.saturating_duration_since(Instant::now()) };
            match self.asks.recv_timeout(wait) {
                Ok(Ask::Add { task, user, data_plane, ticket }) => {
                    let outcome = self.add(task, user, data_plane);
                    self.answer(ticket, outcome);
                }
                Ok(Ask::Remove { name, user, ticket }) => {
                    let outcome = self.remove(&name, user);
                    self.answer(ticket, outcome);
                }
                Ok(Ask::Cpus(cpus)) => {
                    self.cpus = cpus;
                    self.tasks.iter_mut().for_each(Task::settle_anew);
                }
                Ok(Ask::Stop(done)) => {
                    let all = processes::processes();
                    self.tasks.drain(..).for_each(|mut task| task.give_back(&all));
                    self.keep();
                    // The supervisor may have given up.
                    let _ = done.send(());
                    return;
                }
                Err(RecvTimeoutError::Timeout) => {
                    self.beat();
                    next = Instant::now() + BEAT;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn answer(&self, ticket: Ticket, outcome: Outcome) {
        self.tell();
        // The receiver is gone only when the supervisor is.
        let _ = self.answers.send((ticket, outcome));
        self.bell.ring();
    }

    /// Looks at all tasks.
    fn beat(&mut self) {
        if self.tasks.is_empty() {
            return;
        }
        let (now, all, before) = (Nanos(monotonic_ns()), processes::processes(), self.tasks.len());
        let cpus = &self.cpus;
        self.tasks.retain_mut(|task| {
            let goes_on = task.look(now, &all, cpus);
            if !goes_on {
                let ran = Duration::from_micros(task.status().ran_us);
                tracing::info!(task = task.name(), ran = ?ran, "a control-plane task has ended");
            }
            goes_on
        });
        if self.tasks.len() != before {
            self.keep();
        }
        self.tell();
    }

    fn tell(&self) {
        let tasks = self.tasks.iter().map(Task::status).collect();
        let status = ControlPlaneStatus { cpus: self.cpus.clone(), tasks };
        *self.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Keeps what the next supervisor needs.
    fn keep(&self) {
        let (path, new) = (self.folder.join(FILE), self.folder.join("control-plane.new"));
        let kept: Vec<&Kept> = self.tasks.iter().map(Task::kept).collect();
        let write = || {
            if kept.is_empty() {
                return fs::remove_file(&path);
            }
            let mut options = fs::OpenOptions::new();
            let file = options.write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            serde_json::to_writer(file, &kept)?;
            fs::rename(&new, &path)
        };
        match write() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::error!(path = %path.display(), %error, "control-plane tasks cannot be kept for the next supervisor");
            }
            _ => {}
        }
    }

    fn add(&mut self, task: ControlPlaneTask, user: u32, data_plane: Option<u32>) -> Outcome {
        let refused = |message: String| ApiError::new(ErrorCode::Refused, message);
        if self.tasks.len() >= MOST_TASKS {
            return Err(refused(format!("there are {MOST_TASKS} control-plane tasks, which is the most")));
        }
        if let Some(same) = self.tasks.iter().find(|it| it.is_same(&task)) {
            return Err(ApiError::new(ErrorCode::Exists, format!("it is the control-plane task {:?}", same.name())));
        }
        if self.tasks.iter().any(|it| it.name() == task.name) {
            let message = format!("there is a control-plane task called {:?} already", task.name);
            return Err(ApiError::new(ErrorCode::Exists, message));
        }
        let name = task.name.clone();
        let task = Task::new(task, user, data_plane).map_err(|no| match no {
            NoTask::Absent(message) => ApiError::new(ErrorCode::NotFound, message),
            NoTask::Refused(message) => refused(message),
        })?;
        self.tasks.push(task);
        // Before anything is changed.
        self.keep();
        self.beat();
        tracing::info!(task = name, "a control-plane task runs on idle time");
        Ok(json!(self.cpus))
    }

    fn remove(&mut self, name: &str, user: u32) -> Outcome {
        let Some(at) = self.tasks.iter().position(|task| task.name() == name) else {
            let message = format!("there is no control-plane task called {name:?}");
            return Err(ApiError::new(ErrorCode::NotFound, message));
        };
        if !self.tasks[at].is_of(user) {
            return Err(
                ApiError::new(ErrorCode::Refused, "it belongs to another user").hint("ask as root, or as that user")
            );
        }
        self.tasks.remove(at).give_back(&processes::processes());
        self.keep();
        Ok(json!({}))
    }
}
