//! Front ends: devices' listening sockets and the connections to them, one at a time for each device. A second front
//! end waits in the socket's backlog until the first is gone.
//!
//! Here is what concerns sockets; what a data plane is given of connections, and what becomes of those that it dies of,
//! is in `given`.

mod ban;
mod connection;
mod given;
mod hand_over;
mod kept;

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use self::ban::Ban;
use self::connection::Hangup;
use self::hand_over::HandOver;
use super::plane::Plane;
use super::poller::{EventFlags, Poller, Token};
use super::socket::{Listener, SocketError};
use softdpu_api::status::DeviceStatus;
use softdpu_link::{ConnectionId, Down, REFS_PAUSE};
use softdpu_site::Device;

pub(super) use self::connection::FrontEnd;
pub(super) use self::given::Handled;
pub(super) use self::kept::FrontEndsState;

/// Nothing more is taken from front ends while so many messages wait to be taken by the data plane. A front end that
/// connects, sends and leaves again and again would otherwise fill memory and the table of descriptors with what is of
/// no use any more.
const MOST_QUEUED: usize = 256;

/// A device's listening socket.
#[derive(Debug)]
pub(super) struct Port {
    device: String,
    number: u64,
    listener: Listener,
    connection: Option<ConnectionId>,
    /// There if data planes died of its front ends.
    ban: Option<Ban>,
}

/// All devices' sockets and connections.
pub(super) struct FrontEnds {
    poller: Poller,
    ports: BTreeMap<String, Port>,
    next_port: u64,
    connections: BTreeMap<ConnectionId, FrontEnd>,
    next_connection: u64,
    /// What the present data plane was given.
    hand_over: HandOver,
    /// How long the data plane may be silent about a connection on trial.
    trial: Duration,
    /// Connections are accepted.
    accepting: bool,
    /// The data plane does not keep up: nothing more is taken.
    congested: bool,
    /// Another data plane takes over: messages wait for it.
    switching: bool,
    /// When to send again what the kernel had no room for.
    resend_at: Option<Instant>,
    /// When a device accepts again whose front end was closed for the data planes that died of it.
    readmit_at: Option<Instant>,
}

impl FrontEnds {
    /// None yet. A data plane that is silent for `watchdog` is killed.
    pub(super) fn new(poller: Poller, watchdog: Duration) -> FrontEnds {
        FrontEnds {
            poller,
            ports: BTreeMap::new(),
            next_port: 0,
            connections: BTreeMap::new(),
            next_connection: 1,
            hand_over: HandOver::default(),
            // One that hangs is killed before that for its silence.
            trial: watchdog * 2,
            accepting: true,
            congested: false,
            switching: false,
            resend_at: None,
            readmit_at: None,
        }
    }

    /// Opens a device's socket, if it has one; no connection is accepted before [`add`](Self::add).
    pub(super) fn open(&mut self, device: &Device) -> Result<Option<Port>, SocketError> {
        let Some(access) = device.access() else { return Ok(None) };
        let listener = Listener::bind(access)?;
        self.next_port += 1;
        Ok(Some(Port { device: device.name.clone(), number: self.next_port, listener, connection: None, ban: None }))
    }

    pub(super) fn add(&mut self, port: Port) {
        let device = port.device.clone();
        self.ports.insert(device.clone(), port);
        self.watch_port(&device);
    }

    /// Closes a device's socket and its connection.
    pub(super) fn remove(&mut self, device: &str, plane: &mut Plane) {
        let connection = self.ports.get(device).and_then(|port| port.connection);
        if let Some(id) = connection {
            self.close(id, "the device was removed", plane);
        }
        if let Some(port) = self.ports.remove(device) {
            self.poller.forget(port.listener.as_fd(), Token::Port(port.number));
        }
    }

    /// How many devices have sockets, and how many front ends are connected.
    pub(super) fn count(&self) -> (usize, usize) {
        (self.ports.len(), self.connections.len())
    }

    /// Whether a front end is connected to the device.
    pub(super) fn is_connected(&self, device: &str) -> bool {
        self.ports.get(device).is_some_and(|port| port.connection.is_some())
    }

    /// Adds its front end to the status of a device.
    pub(super) fn complete(&self, device: &mut DeviceStatus) {
        let port = self.ports.get(&device.name);
        let connection = port.and_then(|port| port.connection);
        device.peer = connection.and_then(|id| self.connections.get(&id)?.peer());
        let ban = port.and_then(|port| port.ban.as_ref());
        device.closed_front_ends = ban.map(|ban| ban.status(Instant::now()));
    }

    /// Accepts connections, or does not.
    pub(super) fn set_accepting(&mut self, accepting: bool) {
        self.accepting = accepting;
        self.watch_ports();
    }

    /// So many messages are `queued` for the data plane: takes nothing more while these are too many.
    pub(super) fn set_backlog(&mut self, queued: usize, plane: &mut Plane) {
        let congested = queued >= if self.congested { MOST_QUEUED / 2 } else { MOST_QUEUED };
        if congested == self.congested {
            return;
        }
        self.congested = congested;
        tracing::debug!(congested, queued, "the data plane's backlog");
        self.watch_ports();
        let all: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in all {
            self.watch_or_close(id, plane);
        }
    }

    fn watch_ports(&mut self) {
        let devices: Vec<String> = self.ports.keys().cloned().collect();
        for device in devices {
            self.watch_port(&device);
        }
    }

    fn watch_port(&mut self, device: &str) {
        let Some(port) = self.ports.get(device) else {
            return;
        };
        let banned = port.ban.as_ref().is_some_and(|ban| !ban.is_over(Instant::now()));
        let open = port.connection.is_none() && self.accepting && !self.congested && !banned;
        let events = if open { EventFlags::IN } else { EventFlags::empty() };
        if let Err(error) = self.poller.watch(port.listener.as_fd(), Token::Port(port.number), events) {
            tracing::error!(device, %error, "the device's socket cannot be waited for");
        }
    }

    /// A front end may wait at a port. An error says that the process has no descriptor left for it.
    pub(super) fn accept(&mut self, number: u64, plane: &mut Plane) -> Result<(), Errno> {
        let Some(port) = self.ports.values_mut().find(|port| port.number == number) else {
            return Ok(());
        };
        if port.connection.is_some() {
            return Ok(());
        }
        let Some(socket) = port.listener.accept()? else {
            return Ok(());
        };
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        port.connection = Some(id);
        let device = port.device.clone();
        let front_end = FrontEnd::new(id, device.clone(), socket);
        let peer = front_end.peer();
        tracing::info!(device, connection = id.0, pid = peer.map(|peer| peer.pid), "a front end has connected");
        self.connections.insert(id, front_end);
        self.watch_port(&device);
        self.watch_or_close(id, plane);
        self.connected(id, plane);
        Ok(())
    }

    /// Watches a connection for what is wanted of it now. Its end is always noticed.
    fn watch_connection(&mut self, id: ConnectionId) -> Result<(), Errno> {
        let Some(front_end) = self.connections.get(&id) else {
            return Ok(());
        };
        if front_end.is_held_up() {
            self.resend_at.get_or_insert(Instant::now() + REFS_PAUSE);
        }
        let mut events = EventFlags::RDHUP;
        if front_end.wants_read() && !self.congested {
            events |= EventFlags::IN;
        }
        if front_end.wants_write() {
            events |= EventFlags::OUT;
        }
        self.poller.watch(front_end.as_fd(), Token::FrontEnd(id), events)
    }

    fn watch_or_close(&mut self, id: ConnectionId, plane: &mut Plane) {
        if let Err(error) = self.watch_connection(id) {
            self.close(id, &format!("its socket cannot be waited for: {error}"), plane);
        }
    }

    /// A connection's socket is ready, or its front end is gone.
    pub(super) fn ready(&mut self, id: ConnectionId, events: EventFlags, plane: &mut Plane) {
        let Some(front_end) = self.connections.get_mut(&id) else {
            return;
        };
        let gone = events.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR);
        let outcome = front_end.flush().and_then(|()| {
            // One that is gone is read from in any case: it tells a cut message from an orderly end.
            let read = (gone || !self.congested) && front_end.read()?;
            // A front end that is gone has no use for what it may have sent before; one message at the most was read.
            if gone { Err(Hangup::Disconnected) } else { Ok(read) }
        });
        match outcome {
            Ok(true) => {
                self.give_message(id, plane);
                self.watch_or_close(id, plane);
            }
            Ok(false) => self.watch_or_close(id, plane),
            Err(hangup) => self.close(id, &hangup.to_string(), plane),
        }
    }

    /// Closes a connection, tells the data plane, and lets the next front end in.
    pub(super) fn close(&mut self, id: ConnectionId, reason: &str, plane: &mut Plane) {
        let Some(front_end) = self.connections.remove(&id) else {
            return;
        };
        tracing::info!(device = front_end.device, connection = id.0, reason, "the front end's connection is closed");
        self.poller.forget(front_end.as_fd(), Token::FrontEnd(id));
        self.hand_over.forget(id, Instant::now());
        if front_end.is_given() {
            plane.send(&Down::Closed { connection: id }, Vec::new());
        }
        if let Some(port) = self.ports.get_mut(&front_end.device) {
            port.connection = None;
        }
        self.watch_port(&front_end.device);
    }

    /// When [`timers`](Self::timers) has something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        [self.hand_over.due(), self.resend_at, self.readmit_at].into_iter().flatten().min()
    }

    pub(super) fn timers(&mut self, now: Instant, plane: &mut Plane) {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        if due(self.hand_over.due()) {
            self.next_trial(plane);
        }
        if due(self.resend_at) {
            self.resend(plane);
        }
        if due(self.readmit_at) {
            self.readmit();
        }
    }

    /// Sends again what the kernel had no room for, though the sockets had.
    fn resend(&mut self, plane: &mut Plane) {
        self.resend_at = None;
        let held_up = self.connections.values().filter(|front_end| front_end.is_held_up());
        let held_up: Vec<ConnectionId> = held_up.map(|front_end| front_end.id).collect();
        for id in held_up {
            self.ready(id, EventFlags::empty(), plane);
        }
    }

    /// Lets devices accept again whose bans are over.
    fn readmit(&mut self) {
        let now = Instant::now();
        let bans = self.ports.values().filter_map(|port| Some((port.ban.as_ref()?.until, port.device.clone())));
        let (over, still): (Vec<_>, Vec<_>) = bans.partition(|(until, _)| *until <= now);
        self.readmit_at = still.into_iter().map(|(until, _)| until).min();
        for (_, device) in over {
            self.watch_port(&device);
        }
    }
}
