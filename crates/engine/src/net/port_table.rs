//! The ports of a core.

use softdpu_vpc::{DropReason, PortId};

use super::{Port, Socket};
use crate::ids::CoreIndex;
use crate::sleep::Sleep;

/// The ports as a core has them, and which of them have a socket on it.
#[derive(Default)]
pub(crate) struct PortTable {
    /// By port number.
    slots: Vec<Option<Port>>,
    /// Ports with a socket on this core.
    sockets: Vec<PortId>,
}

impl PortTable {
    /// The ports, by number.
    pub(crate) fn slots(&self) -> &[Option<Port>] {
        &self.slots
    }

    #[inline]
    pub(crate) fn get(&self, PortId(id): PortId) -> Option<&Port> {
        self.slots.get(id as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, PortId(id): PortId) -> Option<&mut Port> {
        self.slots.get_mut(id as usize)?.as_mut()
    }

    /// A port's name, for people.
    pub(crate) fn name(&self, port: PortId) -> String {
        self.get(port).map_or_else(|| format!("port {}, which is no more", port.0), |port| port.name.to_string())
    }

    /// Adds, replaces or removes a port. `sleep` wakes the core for its socket.
    pub(crate) fn set(&mut self, id: PortId, port: Option<Port>, sleep: &Sleep) {
        self.forget_socket(id, sleep);
        let place = id.0 as usize;
        if self.slots.len() <= place {
            self.slots.resize_with(place + 1, || None);
        }
        self.slots[place] = port;
        self.watch_socket(id, sleep);
    }

    /// Gives a port another socket, which core `owner` has, or none for now.
    pub(crate) fn set_socket(
        &mut self,
        id: PortId,
        owner: Option<CoreIndex>,
        socket: Option<Box<Socket>>,
        sleep: &Sleep,
    ) {
        self.forget_socket(id, sleep);
        if let Some(port) = self.get_mut(id) {
            port.owner = owner;
            port.socket = socket.map(|socket| *socket);
            port.is_failure_logged = false;
        }
        self.watch_socket(id, sleep);
    }

    /// The socket of a port, which has none here from now on.
    pub(crate) fn take_socket(&mut self, id: PortId, sleep: &Sleep) -> Option<Socket> {
        self.forget_socket(id, sleep);
        self.get_mut(id)?.socket.take()
    }

    fn forget_socket(&mut self, id: PortId, sleep: &Sleep) {
        if let Some(old) = self.get(id)
            && let Some(socket) = &old.socket
        {
            socket.fds().for_each(|fd| sleep.forget(fd));
            self.sockets.retain(|other| *other != id);
        }
    }

    fn watch_socket(&mut self, id: PortId, sleep: &Sleep) {
        if let Some(port) = self.get(id)
            && let Some(socket) = &port.socket
        {
            for fd in socket.fds() {
                if let Err(error) = sleep.watch_port(id.0, fd) {
                    tracing::error!(port = %port.name, %error, "its socket cannot be waited for");
                }
            }
            self.sockets.push(id);
        }
    }

    /// The port at this place among those with a socket on this core, from 0.
    #[inline]
    pub(crate) fn socket_at(&self, place: usize) -> Option<PortId> {
        self.sockets.get(place).copied()
    }

    /// Whether any port has a socket on this core.
    #[inline]
    pub(crate) fn has_sockets(&self) -> bool {
        !self.sockets.is_empty()
    }

    /// Whether frames wait for a socket that took no more.
    pub(crate) fn is_backed_up(&self) -> bool {
        let mut sockets = self.sockets.iter().filter_map(|id| self.get(*id)?.socket.as_ref());
        sockets.any(|socket| socket.waiting() > 0)
    }

    /// A frame came in by a port.
    #[inline]
    pub(crate) fn count_in(&self, port: PortId, len: usize) {
        if let Some(port) = self.get(port) {
            port.counters.frames_in.add(1);
            port.counters.bytes_in.add(len as u64);
        }
    }

    /// A frame that came in by a port is dropped.
    #[inline]
    pub(crate) fn drop_in(&self, port: PortId, reason: DropReason) {
        if let Some(port) = self.get(port) {
            port.counters.drop_in(reason);
        }
    }

    /// A frame that was to leave by a port is dropped.
    #[inline]
    pub(crate) fn drop_out(&self, port: PortId, reason: DropReason) {
        if let Some(port) = self.get(port) {
            port.counters.drop_out(reason);
        }
    }
}
