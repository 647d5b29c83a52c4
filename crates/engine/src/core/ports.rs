//! Ports of a core, and the sockets of those that it owns.

use softdpu_sched::TenantScheduler;
use softdpu_vpc::PortId;

use super::Core;
use crate::ids::CoreIndex;
use crate::net::{Port, Socket};

impl<S: TenantScheduler> Core<S> {
    /// A port as this core has it from now on, or no more.
    pub(super) fn set_port(&mut self, id: PortId, port: Option<Box<Port>>) {
        self.forget_socket(id);
        self.net.set_port(id, port.map(|port| *port));
        self.net.vpc.begin_anew(id);
        self.watch_socket(id);
        self.net.ports_changed();
    }

    /// Another socket for a port, which `owner` has, or none for now.
    pub(super) fn set_socket(&mut self, id: PortId, owner: Option<CoreIndex>, socket: Option<Box<Socket>>) {
        self.forget_socket(id);
        if let Some(port) = self.net.port(id) {
            port.owner = owner;
            port.socket = socket.map(|socket| *socket);
            port.complained = false;
        }
        self.watch_socket(id);
    }

    fn forget_socket(&mut self, id: PortId) {
        if let Some(Some(old)) = self.net.ports.get(id.0 as usize)
            && let Some(socket) = &old.socket
        {
            socket.fds().for_each(|fd| self.sleep.forget(fd));
            self.net.sockets.retain(|other| *other != id);
        }
    }

    fn watch_socket(&mut self, id: PortId) {
        if let Some(Some(port)) = self.net.ports.get(id.0 as usize)
            && let Some(socket) = &port.socket
        {
            for fd in socket.fds() {
                if let Err(error) = self.sleep.watch_port(id.0, fd) {
                    tracing::error!(port = %port.name, %error, "its socket cannot be waited for");
                }
            }
            self.net.sockets.push(id);
        }
    }
}
