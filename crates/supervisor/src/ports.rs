//! Devices' listening sockets and the front ends connected to them: one at a time for each device, a second one waits
//! in the socket's backlog until the first is gone.

use std::os::fd::AsFd;
use std::time::Instant;

use super::front_end::{FrontEnd, Hangup};
use super::hand_over::Ban;
use super::poller::{EventFlags, Token};
use super::socket::{Listener, SocketError};
use super::state::{ACCEPT_PAUSE, Supervisor};
use softdpu_link::{ConnectionId, Down, FdId, REFS_PAUSE, SharedFd};
use softdpu_site::Device;

/// A device's listening socket.
#[derive(Debug)]
pub(super) struct Port {
    pub(super) device: String,
    number: u64,
    listener: Listener,
    pub(super) connection: Option<ConnectionId>,
    /// There if data planes died of its front ends.
    pub(super) ban: Option<Ban>,
}

impl Supervisor {
    /// Opens a device's socket, if it has one; nobody is accepted before [`add_port`](Self::add_port).
    pub(super) fn open_port(&mut self, device: &Device) -> Result<Option<Port>, SocketError> {
        let Some(access) = device.access() else { return Ok(None) };
        let listener = Listener::bind(access)?;
        self.next_port += 1;
        Ok(Some(Port { device: device.name.clone(), number: self.next_port, listener, connection: None, ban: None }))
    }

    pub(super) fn add_port(&mut self, port: Port) {
        let device = port.device.clone();
        self.ports.insert(device.clone(), port);
        self.watch_port(&device);
    }

    /// Closes a device's socket and its connection.
    pub(super) fn remove_port(&mut self, device: &str) {
        let connection = self.ports.get(device).and_then(|port| port.connection);
        if let Some(id) = connection {
            self.close_front_end(id, "the device was removed");
        }
        if let Some(port) = self.ports.remove(device) {
            self.poller.forget(port.listener.as_fd(), Token::Port(port.number));
        }
    }

    pub(super) fn watch_port(&mut self, device: &str) {
        let Some(port) = self.ports.get(device) else {
            return;
        };
        let banned = port.ban.as_ref().is_some_and(|ban| ban.until > Instant::now());
        let paused = banned || self.congested || self.accept_at.is_some() || self.stopping.is_some();
        let open = port.connection.is_none() && !paused;
        let events = if open { EventFlags::IN } else { EventFlags::empty() };
        if let Err(error) = self.poller.watch(port.listener.as_fd(), Token::Port(port.number), events) {
            tracing::error!(device, %error, "the device's socket cannot be waited for");
        }
    }

    pub(super) fn watch_listeners(&mut self) {
        let devices: Vec<String> = self.ports.keys().cloned().collect();
        for device in devices {
            self.watch_port(&device);
        }
        self.watch_api();
    }

    /// The process has no descriptor left for a connection: try again in a while.
    pub(super) fn pause_accepting(&mut self, error: rustix::io::Errno) {
        tracing::error!(%error, "connections cannot be accepted: raise the limit of open files (LimitNOFILE, ulimit -Hn)");
        self.accept_at = Some(Instant::now() + ACCEPT_PAUSE);
        self.watch_listeners();
    }

    pub(super) fn port_ready(&mut self, number: u64) {
        let Some(port) = self.ports.values_mut().find(|port| port.number == number) else {
            return;
        };
        if port.connection.is_some() {
            return;
        }
        let socket = match port.listener.accept() {
            Ok(Some(socket)) => socket,
            Ok(None) => return,
            Err(error) => return self.pause_accepting(error),
        };
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        port.connection = Some(id);
        let device = port.device.clone();
        let front_end = FrontEnd::new(id, device.clone(), socket);
        let peer = front_end.peer();
        tracing::info!(device, connection = id.0, pid = peer.map(|peer| peer.pid), "a front end has connected");
        self.front_ends.insert(id, front_end);
        self.watch_port(&device);
        self.watch_front_end(id);
        self.hand_over(id);
    }

    /// Watches a connection for what is wanted of it now. Its end is always noticed.
    fn watch_front_end(&mut self, id: ConnectionId) {
        let Some(front_end) = self.front_ends.get(&id) else {
            return;
        };
        if front_end.is_held_up() {
            self.held_up_until.get_or_insert(Instant::now() + REFS_PAUSE);
        }
        let mut events = EventFlags::RDHUP;
        if front_end.wants_read() && !self.congested {
            events |= EventFlags::IN;
        }
        if front_end.wants_write() {
            events |= EventFlags::OUT;
        }
        if let Err(error) = self.poller.watch(front_end.as_fd(), Token::FrontEnd(id), events) {
            self.close_front_end(id, &format!("its socket cannot be waited for: {error}"));
        }
    }

    pub(super) fn watch_front_ends(&mut self) {
        let all: Vec<ConnectionId> = self.front_ends.keys().copied().collect();
        for id in all {
            self.watch_front_end(id);
        }
    }

    /// Sends again what the kernel had no room for, though the sockets had.
    pub(super) fn retry_held_up(&mut self) {
        self.held_up_until = None;
        self.link_ready(self.plane.incarnation);
        let held_up = self.front_ends.values().filter(|front_end| front_end.is_held_up());
        let held_up: Vec<ConnectionId> = held_up.map(|front_end| front_end.id).collect();
        for id in held_up {
            self.front_end_ready(id, EventFlags::empty());
        }
    }

    pub(super) fn front_end_ready(&mut self, id: ConnectionId, events: EventFlags) {
        let Some(front_end) = self.front_ends.get_mut(&id) else {
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
                self.give_message(id);
                self.watch_front_end(id);
            }
            Ok(false) => self.watch_front_end(id),
            Err(hangup) => self.close_front_end(id, &hangup.to_string()),
        }
    }

    /// A message is applied: stores what came of it, then replies, then forgets it.
    pub(super) fn handled(
        &mut self,
        id: ConnectionId,
        (reply, reply_fds): (Vec<u8>, Vec<SharedFd>),
        (session, kept, released): (String, Vec<(FdId, SharedFd)>, Vec<FdId>),
        close: Option<String>,
    ) {
        // It may have gone while the answer was on its way.
        let Some(front_end) = self.front_ends.get_mut(&id) else {
            return;
        };
        if !front_end.applied() {
            tracing::error!(connection = id.0, "the data plane answered a message that nobody sent; it is ignored");
            return;
        }
        if let Err(reason) = front_end.store(session, kept, &released) {
            return self.close_front_end(id, &reason);
        }
        front_end.reply(reply, reply_fds);
        let flushed = front_end.flush();
        self.set_quiet(id);
        match (flushed, close) {
            (Err(hangup), _) => self.close_front_end(id, &hangup.to_string()),
            (Ok(()), Some(reason)) => self.close_front_end(id, &reason),
            (Ok(()), None) => self.watch_front_end(id),
        }
    }

    /// Closes a connection, tells the data plane, and lets the next front end in.
    pub(super) fn close_front_end(&mut self, id: ConnectionId, reason: &str) {
        let Some(front_end) = self.front_ends.remove(&id) else {
            return;
        };
        tracing::info!(device = front_end.device, connection = id.0, reason, "the front end's connection is closed");
        self.poller.forget(front_end.as_fd(), Token::FrontEnd(id));
        if let Some(running) = &mut self.plane.running {
            running.hand_over.forget(id);
        }
        if front_end.is_given() {
            self.send(&Down::Closed { connection: id }, Vec::new());
        }
        if let Some(port) = self.ports.get_mut(&front_end.device) {
            port.connection = None;
        }
        self.watch_port(&front_end.device);
    }
}
