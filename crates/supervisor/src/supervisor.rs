//! The supervisor's loop, and the parts that it joins:
//!
//! ```text
//!  front_ends   devices' sockets, connections, fd tables, sessions, what the data plane was given
//!  plane        the data plane's process and link, its restarts
//!  vault        descriptors for data planes to come
//!  changes      desired state, changes being made and saved
//!  control_plane  programs on the idle time of cores
//!  clients      the management socket, requests and answers
//!  calls        what the data plane was asked and has not answered
//!  opener       threads that open what the data plane may not; `dials` limits connections
//!  upgrades     the upgrade that is under way, how the last one went
//! ```
//!
//! Each part owns its state and watches its own descriptors. `from_plane` and `requests` are the two places where one
//! event concerns several of them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use signal_hook::consts::SIGHUP;
use softdpu_sys::signals::SignalFd;
use softdpu_sys::wake::Doorbell;

use super::calls::{Calls, StatusFor};
use super::changes::Changes;
use super::clients::Clients;
use super::control_plane::ControlPlane;
use super::desired::Desired;
use super::front_ends::FrontEnds;
use super::notify::Notifier;
use super::opener::Opener;
use super::plane::Plane;
use super::poller::{EventFlags, Poller, Token};
use super::process::Spawner;
use super::reexec::{self, ArrivalState, Leaving, Left, NoFd, RELEASE, Reexec, State};
use super::run::RunError;
use super::socket::Listener;
use super::upgrade::Upgrades;
use super::vault::Vault;
use super::wanted::Dials;
use softdpu_api::status::NodeStatus;
use softdpu_site::Site;

/// How long to leave listening sockets alone when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// How long the supervisor waits at its end for changes that are being saved.
const LAST_SAVE: Duration = Duration::from_secs(5);

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
    /// A save of the changes that takes longer is told.
    pub slow_save: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            watchdog: Duration::from_secs(10),
            startup: Duration::from_secs(60),
            shutdown: Duration::from_secs(5),
            idle_client: Duration::from_secs(30),
            copy: Duration::from_secs(20),
            slow_save: Duration::from_secs(2),
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

/// What the loop stands on.
pub(super) struct Ground {
    pub(super) poller: Poller,
    pub(super) bell: Arc<Doorbell>,
}

/// Everything that outlives the data plane.
pub(super) struct Supervisor {
    poller: Poller,
    pub(super) plane: Plane,
    pub(super) front_ends: FrontEnds,
    pub(super) clients: Clients,
    pub(super) changes: Changes,
    pub(super) control_plane: ControlPlane,
    pub(super) vault: Vault,
    pub(super) opener: Opener,
    pub(super) dials: Dials,
    pub(super) calls: Calls,
    pub(super) upgrades: Upgrades,
    pub(super) notifier: Notifier,
    pub(super) started: Instant,
    /// When to try to accept connections again.
    accept_at: Option<Instant>,
    pub(super) bell: Arc<Doorbell>,
    asks: Receiver<Ask>,
    signals: Option<SignalFd>,
    /// The locked file in the run directory.
    pub(super) lock: Option<OwnedFd>,
    /// Where metrics are served.
    pub(super) metrics: Option<OwnedFd>,
}

impl Supervisor {
    /// Opens every socket of the site; nothing runs yet.
    pub(super) fn new(
        desired: Desired,
        spawner: Box<dyn Spawner>,
        timing: Timing,
    ) -> Result<(Supervisor, Handle), RunError> {
        let bell = Arc::new(Doorbell::new().map_err(RunError::Kernel)?);
        let (sender, asks) = channel();
        let handle = Handle { asks: sender, bell: Arc::clone(&bell) };
        let poller = Poller::new().map_err(RunError::Kernel)?;
        let node = &desired.site().node;
        let clients = Listener::bind(&node.api)?;
        poller.watch(bell.as_fd(), Token::Bell, EventFlags::IN).map_err(RunError::Kernel)?;
        let clients = Clients::new(poller.clone(), clients, node.run_directory.clone(), timing.idle_client);
        let clients = clients.map_err(RunError::Kernel)?;
        let mut supervisor = Supervisor {
            control_plane: ControlPlane::new(desired.site(), Arc::clone(&bell)),
            plane: Plane::new(spawner, timing, poller.clone()),
            front_ends: FrontEnds::new(poller.clone(), timing.watchdog),
            clients,
            changes: Changes::new(desired, timing, Arc::clone(&bell)),
            vault: Vault::default(),
            opener: Opener::new(Arc::clone(&bell)),
            dials: Dials::default(),
            calls: Calls::default(),
            upgrades: Upgrades::default(),
            notifier: Notifier::new(),
            started: Instant::now(),
            accept_at: None,
            poller,
            bell,
            asks,
            signals: None,
            lock: None,
            metrics: None,
        };
        supervisor.changes.keep_loaded(&mut supervisor.vault)?;
        for device in &supervisor.changes.site().devices {
            if let Some(port) = supervisor.front_ends.open(device)? {
                supervisor.front_ends.add(port);
            }
        }
        Ok((supervisor, handle))
    }

    /// Takes signals by `signals`.
    pub(super) fn listen_for(&mut self, signals: SignalFd) -> Result<(), RunError> {
        self.poller.watch(signals.as_fd(), Token::Signal, EventFlags::IN).map_err(RunError::Kernel)?;
        self.signals = Some(signals);
        Ok(())
    }

    /// Everything that the program which follows has to have. No change is being made, and no thread does anything.
    pub(super) fn state<'a>(&'a self, arrival: ArrivalState, leaving: &mut Leaving<'a>) -> io::Result<State> {
        Ok(State {
            version: RELEASE.to_owned(),
            started: self.started.into(),
            changes: self.changes.state(),
            plane: self.plane.kept(leaving)?,
            front_ends: self.front_ends.state(leaving),
            clients: self.clients.state(leaving),
            vault: self.vault.state(leaving),
            calls: self.calls.state(),
            upgrade: self.upgrades.status(),
            notified: self.notifier.is_ready(),
            lock: self.lock.as_ref().map(|lock| leaving.add(lock.as_fd())),
            metrics: self.metrics.as_ref().map(|metrics| leaving.add(metrics.as_fd())),
            arrival,
        })
    }

    /// Takes up what the program before had; `any` starts data planes of any program. `failed`: this is the program
    /// before, and why the other could not go on.
    pub(super) fn resume(
        state: State,
        mut left: Left,
        any: &dyn Spawner,
        timing: Timing,
        Ground { poller, bell }: Ground,
        failed: Option<String>,
    ) -> Result<(Supervisor, Handle), String> {
        let (sender, asks) = channel();
        let handle = Handle { asks: sender, bell: Arc::clone(&bell) };
        poller.watch(bell.as_fd(), Token::Bell, EventFlags::IN).map_err(|error| error.to_string())?;
        let left = &mut left;
        let run_directory = state.changes.desired.site().node.run_directory.clone();
        let no_fd = |error: NoFd| error.to_string();
        let plane = Plane::resume(state.plane, left, any, timing, poller.clone()).map_err(no_fd)?;
        let clients = Clients::resume(state.clients, left, poller.clone(), run_directory, timing.idle_client);
        let mut front_ends = FrontEnds::new(poller.clone(), timing.watchdog);
        front_ends.resume(state.front_ends, left).map_err(no_fd)?;
        let reexec = Reexec::resume(state.arrival, failed, left, any).map_err(no_fd)?;
        let changes = Changes::resume(state.changes, timing, Arc::clone(&bell))?;
        let supervisor = Supervisor {
            plane,
            control_plane: ControlPlane::new(changes.site(), Arc::clone(&bell)),
            front_ends,
            clients: clients.map_err(no_fd)?,
            changes,
            vault: Vault::resume(state.vault, left).map_err(no_fd)?,
            opener: Opener::new(Arc::clone(&bell)),
            dials: Dials::default(),
            calls: Calls::resume(state.calls),
            upgrades: Upgrades::resume(reexec, state.upgrade),
            notifier: Notifier::resume(state.notified),
            started: state.started.into(),
            accept_at: None,
            poller,
            bell,
            asks,
            signals: None,
            lock: state.lock.map(|fd| left.own(fd)).transpose().map_err(no_fd)?,
            metrics: state.metrics.map(|fd| left.own(fd)).transpose().map_err(no_fd)?,
        };
        Ok((supervisor, handle))
    }

    /// What is to run.
    pub(super) fn site(&self) -> &Site {
        self.changes.site()
    }

    /// Runs until it is told to stop.
    pub(super) fn run(mut self) -> Result<(), RunError> {
        self.start_plane();
        self.serve_until_stopped()
    }

    /// Goes on where the program before was.
    pub(super) fn go_on(mut self) -> Result<(), RunError> {
        self.front_ends.watch_all(&mut self.plane);
        self.clients.watch_all();
        // What it has read, and not yet looked at.
        self.hear();
        reexec::arrived(&mut self);
        self.serve_clients();
        self.serve_until_stopped()
    }

    fn serve_until_stopped(mut self) -> Result<(), RunError> {
        loop {
            let now = Instant::now();
            self.front_ends.set_backlog(self.plane.queued(), &mut self.plane);
            self.plane.watch_link();
            let timeout = self.next_deadline().map(|deadline| deadline.saturating_duration_since(now));
            for (token, events) in self.poller.wait(timeout).map_err(RunError::Kernel)? {
                self.event(token, events);
            }
            self.timers(Instant::now());
            self.serve_clients();
            if reexec::advance(&mut self) {
                return Ok(());
            }
            self.notifier.status(self.summary());
            if self.plane.has_stopped() {
                self.control_plane.give_back();
                self.save_at_last(LAST_SAVE);
                self.clients.flush();
                return Ok(());
            }
        }
    }

    fn event(&mut self, token: Token, events: EventFlags) {
        match token {
            Token::Bell => {
                self.bell.drain();
                self.asked();
                self.files_are_open();
                self.files_are_read();
                self.changes_are_saved();
                self.tasks_are_looked_after();
            }
            Token::Signal => self.signalled(),
            Token::Link { incarnation } => self.link_ready(incarnation),
            Token::End { incarnation } => {
                if self.plane.is_standby(incarnation) {
                    self.standby_ended();
                } else if let Some(end) = self.plane.ended(incarnation) {
                    self.plane_is_dead(end);
                }
            }
            Token::Port(number) => {
                let accepted = self.front_ends.accept(number, &mut self.plane);
                self.pause_unless(accepted);
            }
            Token::FrontEnd(id) => self.front_ends.ready(id, events, &mut self.plane),
            Token::Api => {
                let accepted = self.clients.accept();
                self.pause_unless(accepted);
            }
            Token::Client(number) => {
                self.clients.ready(number, events);
                self.serve_clients();
            }
        }
    }

    /// Tries to accept again in a while where the process has no descriptor left for a connection.
    fn pause_unless(&mut self, accepted: Result<(), Errno>) {
        if let Err(error) = accepted {
            tracing::error!(%error, "connections cannot be accepted: raise the limit of open files (LimitNOFILE, ulimit -Hn)");
            self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
            self.front_ends.set_accepting(false);
            self.clients.set_accepting(false);
        }
    }

    fn asked(&mut self) {
        while let Ok(ask) = self.asks.try_recv() {
            match ask {
                Ask::Status(to) => self.read_status(StatusFor::Thread(to)),
                Ask::Stop => self.stop(),
            }
        }
    }

    fn signalled(&mut self) {
        while let Some(signal) = self.signals.as_ref().and_then(SignalFd::next) {
            if signal == SIGHUP {
                tracing::warn!(
                    "SIGHUP is ignored: nothing is reloaded; for another site file, stop softdpu and start it again"
                );
            } else {
                tracing::info!("stopping on a signal");
                self.stop();
            }
        }
    }

    /// Stops everything in good order.
    pub(super) fn stop(&mut self) {
        if !self.plane.is_stopping() {
            self.notifier.stopping();
            self.front_ends.set_accepting(false);
            self.upgrade_fails("the daemon stops");
            reexec::give_up(self, "the daemon stops");
            self.plane.stop();
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let parts = [self.plane.deadlines().first(), self.front_ends.due(), self.clients.due(), self.notifier.due()];
        let others = [self.changes.file_due(), self.changes.save_due(), self.accept_at, self.upgrades.due()];
        parts.into_iter().chain(others).flatten().min()
    }

    fn timers(&mut self, now: Instant) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.start_plane_if_due(now);
        if due(self.plane.deadlines().silence) {
            // The supervisor itself may have been held up: what was said meanwhile counts.
            self.hear();
            self.plane.kill_if_silent();
        }
        if due(self.plane.deadlines().look)
            && let Some(end) = self.plane.look(now)
        {
            self.plane_is_dead(end);
        }
        if due(self.plane.deadlines().resend) {
            self.plane.resend();
            self.hear();
        }
        if due(self.plane.deadlines().stop) {
            self.plane.kill_unstopped(now);
        }
        if due(self.plane.deadlines().leave) {
            self.plane.leave(now);
        }
        if due(self.upgrades.due()) {
            self.upgrade_is_late();
        }
        self.front_ends.timers(now, &mut self.plane);
        if due(self.changes.file_due()) {
            let step = self.changes.give_up_file(now, &mut self.vault);
            self.advance_changes(step);
        }
        if due(self.changes.save_due()) {
            self.changes.save_again();
        }
        if due(self.accept_at) {
            self.accept_at = None;
            self.front_ends.set_accepting(!self.plane.is_stopping());
            self.clients.set_accepting(true);
        }
        if due(self.clients.due()) {
            self.clients.watch_listener();
        }
        self.notifier.alive(now);
    }
}
