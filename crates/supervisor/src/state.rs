//! The supervisor's state and its loop. What happens on each event is in `plane` (the data plane), `ports` (devices and
//! front ends) and `api` (clients).

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use softdpu_sys::wake::Doorbell;

use super::api::{Client, InProgress, Purpose, Ticket};
use super::changes::Task;
use super::desired::Desired;
use super::front_end::FrontEnd;
use super::loads::Copier;
use super::notify::Notifier;
use super::opener::Opener;
use super::plane::Plane;
use super::poller::{EventFlags, Poller, Token};
use super::ports::Port;
use super::process::Spawner;
use super::run::RunError;
use super::socket::Listener;
use softdpu_api::status::NodeStatus;
use softdpu_link::{ConnectionId, SharedFd};

/// How long to leave a listening socket alone when the process is out of descriptors.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// How long after changes could not be saved that is tried again.
pub(super) const SAVE_PAUSE: Duration = Duration::from_secs(3);

/// Changes that are made and could not be saved.
pub(super) struct Unsaved {
    /// What to say of them.
    pub(super) warning: String,
    /// When to try again.
    pub(super) again: Instant,
}

/// How long the supervisor waits for things.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// A data plane that is silent for this long is killed.
    pub watchdog: Duration,
    /// The same before it is ready: opening volumes may take long.
    pub startup: Duration,
    /// How long it may take to stop in good order.
    pub shutdown: Duration,
    /// A management client that is silent for this long makes room for another, where there are as many as may be.
    pub idle_client: Duration,
    /// A copy of a file of loaded entries that gets nothing for this long is given up.
    pub copy: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            watchdog: Duration::from_secs(10),
            startup: Duration::from_secs(60),
            shutdown: Duration::from_secs(5),
            idle_client: Duration::from_secs(30),
            copy: Duration::from_secs(20),
        }
    }
}

/// What other threads ask of the supervisor.
enum Ask {
    Status(SyncSender<NodeStatus>),
    Stop,
}

/// A way to a running supervisor from other threads of its process.
#[derive(Clone)]
pub struct Handle {
    asks: Sender<Ask>,
    bell: Arc<Doorbell>,
}

impl Handle {
    /// The node's status; none if the supervisor does not answer within `patience` or has stopped.
    pub fn status(&self, patience: Duration) -> Option<NodeStatus> {
        let (sender, receiver) = sync_channel(1);
        self.asks.send(Ask::Status(sender)).ok()?;
        self.bell.ring();
        receiver.recv_timeout(patience).ok()
    }

    /// Stops it in good order, as SIGTERM does.
    pub fn stop(&self) {
        // It fails only for a supervisor that has stopped.
        let _ = self.asks.send(Ask::Stop);
        self.bell.ring();
    }
}

/// The signals that the process takes.
pub(super) struct Signals {
    /// Has a byte for each that came.
    pub(super) bell: UnixStream,
    /// One of them was to stop.
    pub(super) stop: Arc<AtomicBool>,
}

/// Everything that outlives the data plane.
pub(super) struct Supervisor {
    pub(super) poller: Poller,
    pub(super) timing: Timing,
    pub(super) spawner: Box<dyn Spawner>,
    pub(super) desired: Desired,
    pub(super) plane: Plane,
    pub(super) vault: BTreeMap<String, SharedFd>,
    pub(super) opener: Opener,
    pub(super) copier: Copier,
    /// Of the load in progress, to be kept if it is made.
    pub(super) copied_file: Option<SharedFd>,
    pub(super) ports: BTreeMap<String, Port>,
    pub(super) next_port: u64,
    pub(super) front_ends: BTreeMap<ConnectionId, FrontEnd>,
    pub(super) next_connection: u64,
    pub(super) api: Listener,
    pub(super) clients: BTreeMap<u64, Client>,
    pub(super) next_client: u64,
    /// Clients that may have sent more while they waited for an answer.
    pub(super) served_late: Vec<u64>,
    pub(super) calls: BTreeMap<u64, Purpose>,
    pub(super) next_call: u64,
    pub(super) unsaved: Option<Unsaved>,
    pub(super) change: Option<InProgress>,
    pub(super) changes: VecDeque<(Task, Ticket)>,
    /// The data plane does not keep up: nothing more is taken from front ends.
    pub(super) congested: bool,
    /// When to send again what the kernel had no room for.
    pub(super) held_up_until: Option<Instant>,
    /// When to try to accept again.
    pub(super) accept_at: Option<Instant>,
    /// When a silent management client makes room for another, while there is none.
    pub(super) client_idle_at: Option<Instant>,
    /// When a device accepts again whose front end was closed for the data planes that died of it.
    pub(super) readmit_at: Option<Instant>,
    pub(super) notifier: Notifier,
    pub(super) started: Instant,
    /// Until when the data plane may take to stop.
    pub(super) stopping: Option<Instant>,
    bell: Arc<Doorbell>,
    asks: Receiver<Ask>,
    signals: Option<Signals>,
}

impl Supervisor {
    /// Opens every socket of the site; nothing runs yet.
    pub(super) fn new(
        desired: Desired,
        spawner: Box<dyn Spawner>,
        timing: Timing,
        signals: Option<Signals>,
    ) -> Result<(Supervisor, Handle), RunError> {
        let bell = Arc::new(Doorbell::new().map_err(RunError::Kernel)?);
        let (sender, asks) = channel();
        let handle = Handle { asks: sender, bell: Arc::clone(&bell) };
        let mut poller = Poller::new().map_err(RunError::Kernel)?;
        let api = Listener::bind(&desired.site().node.api)?;
        poller.watch(bell.as_fd(), Token::Bell, EventFlags::IN).map_err(RunError::Kernel)?;
        poller.watch(api.as_fd(), Token::Api, EventFlags::IN).map_err(RunError::Kernel)?;
        if let Some(signals) = &signals {
            signals.bell.set_nonblocking(true).map_err(RunError::Signals)?;
            poller.watch(signals.bell.as_fd(), Token::Signal, EventFlags::IN).map_err(RunError::Kernel)?;
        }
        let devices = desired.site().devices.clone();
        let mut supervisor = Supervisor {
            poller,
            timing,
            spawner,
            desired,
            plane: Plane::default(),
            vault: BTreeMap::new(),
            opener: Opener::new(Arc::clone(&bell)),
            copier: Copier::new(Arc::clone(&bell)),
            copied_file: None,
            ports: BTreeMap::new(),
            next_port: 0,
            front_ends: BTreeMap::new(),
            next_connection: 1,
            api,
            clients: BTreeMap::new(),
            next_client: 1,
            served_late: Vec::new(),
            calls: BTreeMap::new(),
            next_call: 1,
            unsaved: None,
            change: None,
            changes: VecDeque::new(),
            congested: false,
            held_up_until: None,
            accept_at: None,
            client_idle_at: None,
            readmit_at: None,
            notifier: Notifier::new(),
            started: Instant::now(),
            stopping: None,
            bell,
            asks,
            signals,
        };
        supervisor.keep_loaded()?;
        for device in &devices {
            if let Some(port) = supervisor.open_port(device)? {
                supervisor.add_port(port);
            }
        }
        Ok((supervisor, handle))
    }

    /// Runs until it is told to stop.
    pub(super) fn run(mut self) -> Result<(), RunError> {
        self.start_plane();
        loop {
            let now = Instant::now();
            self.watch_link();
            let timeout = self.next_deadline().map(|deadline| deadline.saturating_duration_since(now));
            for (token, events) in self.poller.wait(timeout).map_err(RunError::Kernel)? {
                self.event(token, events);
            }
            self.timers(Instant::now());
            self.serve_late();
            self.notifier.status(self.summary());
            if self.stopping.is_some() && self.plane.running.is_none() {
                self.save_again();
                self.flush_clients();
                return Ok(());
            }
        }
    }

    fn event(&mut self, token: Token, events: EventFlags) {
        match token {
            Token::Bell => {
                self.bell.drain();
                self.asked();
                self.opened();
                self.copied();
            }
            Token::Signal => self.signalled(),
            Token::Link { incarnation } => self.link_ready(incarnation),
            Token::End { incarnation } => self.plane_ended(incarnation),
            Token::Port(number) => self.port_ready(number),
            Token::FrontEnd(id) => self.front_end_ready(id, events),
            Token::Api => self.accept_clients(),
            Token::Client(number) => self.client_ready(number, events),
        }
    }

    fn asked(&mut self) {
        while let Ok(ask) = self.asks.try_recv() {
            match ask {
                Ask::Status(to) => self.read(Purpose::Snapshot(to)),
                Ask::Stop => self.stop(),
            }
        }
    }

    fn signalled(&mut self) {
        let Some(signals) = &mut self.signals else {
            return;
        };
        let mut bytes = [0; 16];
        if !matches!(signals.bell.read(&mut bytes), Ok(count) if count > 0) {
            return;
        }
        if signals.stop.load(Ordering::SeqCst) {
            tracing::info!("stopping on a signal");
            self.stop();
        } else {
            tracing::warn!(
                "SIGHUP is ignored: nothing is reloaded; for another site file, stop softdpu and start it again"
            );
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let trial = self.plane.running.as_ref().and_then(|running| running.hand_over.due());
        let plane = [self.plane.start_at, self.silence_ends(), self.look_due(), trial];
        let others = [
            self.held_up_until,
            self.accept_at,
            self.client_idle_at,
            self.readmit_at,
            self.stopping,
            self.notifier.due(),
        ];
        let others = others.into_iter().chain([self.copier.due(), self.unsaved.as_ref().map(|unsaved| unsaved.again)]);
        plane.into_iter().chain(others).flatten().min()
    }

    fn timers(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.plane.start_at) {
            self.start_plane();
        }
        if due(self.silence_ends()) {
            self.plane_is_silent();
        }
        if due(self.look_due()) {
            self.look_after_plane(now);
        }
        if due(self.plane.running.as_ref().and_then(|running| running.hand_over.due())) {
            self.next_trial();
        }
        if due(self.held_up_until) {
            self.retry_held_up();
        }
        if due(self.copier.due()) {
            self.look_after_copy(now);
        }
        if due(self.unsaved.as_ref().map(|unsaved| unsaved.again)) {
            self.save_again();
        }
        if due(self.readmit_at) {
            self.readmit();
        }
        if due(self.stopping) {
            self.kill_plane("it did not stop in time");
            // The kill is followed by its end.
            self.stopping = Some(now + self.timing.shutdown);
        }
        if due(self.accept_at) {
            self.accept_at = None;
            self.watch_listeners();
        }
        if due(self.client_idle_at) {
            self.watch_api();
        }
        self.notifier.alive(now);
    }

    /// One line for people.
    fn summary(&self) -> String {
        let devices = self.ports.len();
        format!("data plane {}, {devices} devices, {} connected", self.plane_state(), self.front_ends.len())
    }
}
