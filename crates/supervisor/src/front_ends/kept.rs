//! Devices' sockets and connections as the next program of the supervisor is given them.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::ban::BanState;
use super::connection::{FrontEnd, FrontEndState};
use super::hand_over::HandOverState;
use super::{FrontEnds, Plane, Port};
use crate::reexec::{Leaving, Left, NoFd};
use crate::socket::{Listener, ListenerState};

/// [`FrontEnds`].
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FrontEndsState {
    ports: Vec<PortState>,
    connections: Vec<FrontEndState>,
    next_connection: u64,
    hand_over: HandOverState,
}

/// [`Port`]. Its connection is the one that names the device.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PortState {
    device: String,
    listener: ListenerState,
    ban: Option<BanState>,
}

impl FrontEnds {
    pub(crate) fn state<'a>(&'a self, leaving: &mut Leaving<'a>) -> FrontEndsState {
        let ports = self.ports.values().map(|port| PortState {
            device: port.device.clone(),
            listener: port.listener.state(leaving),
            ban: port.ban.as_ref().map(BanState::from),
        });
        let ports = ports.collect();
        FrontEndsState {
            ports,
            connections: self.connections.values().map(|front_end| front_end.state(leaving)).collect(),
            next_connection: self.next_connection,
            hand_over: HandOverState::from(&self.hand_over),
        }
    }

    /// Takes up what the program before had; none of it is waited for before [`watch_all`](Self::watch_all).
    pub(crate) fn resume(&mut self, state: FrontEndsState, left: &mut Left) -> Result<(), NoFd> {
        let FrontEndsState { ports, connections, next_connection, hand_over } = state;
        for PortState { device, listener, ban } in ports {
            self.next_port += 1;
            let listener = Listener::resume(listener, left)?;
            let ban = ban.map(Into::into);
            let port = Port { device: device.clone(), number: self.next_port, listener, connection: None, ban };
            self.ports.insert(device, port);
        }
        for state in connections {
            let front_end = FrontEnd::resume(state, left)?;
            if let Some(port) = self.ports.get_mut(&front_end.device) {
                port.connection = Some(front_end.id);
            }
            self.connections.insert(front_end.id, front_end);
        }
        self.next_connection = next_connection;
        self.hand_over = hand_over.into();
        Ok(())
    }

    /// Waits for everything that was taken up.
    pub(crate) fn watch_all(&mut self, plane: &mut Plane) {
        self.watch_ports();
        self.readmit();
        let all: Vec<_> = self.connections.keys().copied().collect();
        for id in all {
            self.watch_or_close(id, plane);
        }
        // What could not be sent for the kernel's want of room is tried at once.
        self.resend_at = Some(Instant::now());
    }

    /// Another program has the devices' sockets: their files stay.
    #[cfg(test)]
    pub(crate) fn leave_files(&mut self) {
        self.ports.values_mut().for_each(|port| port.listener.leave_file());
    }
}
