//! Saving a session, and continuing it in another process.

use serde::{Deserialize, Serialize};

use super::command::{Command, QueueStart};
use super::state::{State, Vring, VringRun};
use super::{DeviceModel, Session, memory, negotiation, queue_limit};
use crate::vhost_user::error::{ProtocolError, RestoreError};
use crate::vhost_user::features::{F_LOG_ALL, F_PROTOCOL_FEATURES};
use crate::vhost_user::messages::request;

/// Version of the format. A field added with `#[serde(default)]` does not change it; a field whose absence would be
/// misread does, and then this release has to read the version before, too.
const FORMAT: u32 = 1;

/// A session as plain data, to be stored with the reply to the message that led to it. Store it in a self-describing
/// format such as JSON: then a release one step away can leave out fields it does not know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedSession {
    format: u32,
    state: State,
}

/// A session that continues, and what brings the device to where it was.
#[derive(Clone, Debug)]
pub struct Restored {
    /// The session, ready for the next message.
    pub session: Session,
    /// To be carried out in this order before the next message: memory, dirty log, MTU, status, queues. If one fails,
    /// close the connection.
    pub commands: Vec<Command>,
}

impl Session {
    /// The session as of the last message whose command has been acknowledged.
    pub fn save(&self) -> SavedSession {
        SavedSession { format: FORMAT, state: self.state.clone() }
    }

    /// Continues a saved session. Queues that ran come back with [`QueueStart::resumed`].
    ///
    /// # Errors
    /// The session cannot go on with this device: close the connection with this reason logged.
    pub fn restore(saved: SavedSession, device: &dyn DeviceModel) -> Result<Restored, RestoreError> {
        let SavedSession { format, mut state } = saved;
        if format != FORMAT {
            return Err(RestoreError::Format { found: format, expected: FORMAT });
        }
        let bits = state.features.unwrap_or(0) & !negotiation::offered(device);
        if bits != 0 {
            return Err(RestoreError::Features { bits });
        }
        let protocol = state.protocol_features.unwrap_or_default().without(negotiation::offered_protocol(device));
        if protocol.0 != 0 {
            return Err(RestoreError::ProtocolFeatures(protocol));
        }
        let limit = queue_limit(device);
        let in_use = |ring: &Vring| ring.size.is_some() || ring.run != VringRun::Stopped;
        if let Some(queue) = state.vrings.iter().rposition(in_use).filter(|queue| *queue >= limit.into()) {
            return Err(RestoreError::Queues { queue: queue as u16, limit });
        }
        // Queues the device has lost may still have call descriptors; `Session::descriptors` no longer names them.
        state.vrings.resize(limit.into(), Vring::default());
        let commands = state.commands(device)?;
        Ok(Restored { session: Session { state, pending: None, next_command: 1 }, commands })
    }
}

impl State {
    fn commands(&self, device: &dyn DeviceModel) -> Result<Vec<Command>, ProtocolError> {
        let mut commands = Vec::new();
        if let Some(features) = self.features {
            let features = features & !(F_PROTOCOL_FEATURES | F_LOG_ALL);
            device.check_features(features).map_err(|reason| {
                ProtocolError::new(request::SET_FEATURES, crate::vhost_user::error::Fault::Device(reason))
            })?;
        }
        if !self.regions.is_empty() {
            memory::check_table(&self.regions, device.memory_slots())
                .map_err(|fault| ProtocolError::new(request::SET_MEM_TABLE, fault))?;
            commands.push(Command::MemoryChange { regions: self.regions.clone(), broken: Vec::new() });
        }
        let log = self.dirty_log();
        if log.memory.is_some() || log.event.is_some() || log.logging {
            commands.push(Command::DirtyLog(log));
        }
        commands.extend(self.mtu.map(Command::SetMtu));
        if self.status != 0 {
            commands.push(Command::Status(self.status));
        }
        for index in (0..).zip(&self.vrings).filter(|(_, ring)| ring.run == VringRun::Running).map(|(index, _)| index) {
            let start: Box<QueueStart> = self
                .queue_start(device, index, true)
                .map_err(|fault| ProtocolError::new(request::SET_VRING_KICK, fault))?;
            commands.push(Command::QueueStart(start));
        }
        Ok(commands)
    }
}
