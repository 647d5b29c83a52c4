//! Saving a session, and continuing it in another process.

use serde::{Deserialize, Serialize};

use super::command::Command;
use super::state::State;
use super::vring::RingState;
use super::{DeviceModel, Session, queue_limit};
use crate::vhost_user::error::{ProtocolError, RestoreError};
use crate::vhost_user::messages::request;

/// Version of the format. A field added with `#[serde(default)]` does not change it; a field that must not be
/// missing does, and then this release has to read the version before, too.
pub const SESSION_FORMAT: u32 = 1;

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
    /// The session as of the last message that was applied and acknowledged.
    pub fn save(&self) -> SavedSession {
        SavedSession { format: SESSION_FORMAT, state: self.state.clone() }
    }

    /// Continues a saved session. Queues that ran come back with [`QueueStart::resumed`].
    ///
    /// # Errors
    /// The session cannot go on with this device: close the connection with this reason logged.
    pub fn restore(saved: SavedSession, device: &dyn DeviceModel) -> Result<Restored, RestoreError> {
        let SavedSession { format, mut state } = saved;
        if format != SESSION_FORMAT {
            return Err(RestoreError::Format { found: format, expected: SESSION_FORMAT });
        }
        state.negotiation.check_offered(device)?;
        let limit = queue_limit(device);
        if let Some(queue) = state.vrings.last_in_use().filter(|queue| *queue >= limit) {
            return Err(RestoreError::Queues { queue, limit });
        }
        // Queues the device has lost may still have call descriptors; `Session::descriptors` no longer names them.
        state.vrings.resize(limit);
        let commands = restoring(&state, device)?;
        Ok(Restored { session: Session { state, pending: None, next_command: 1 }, commands })
    }
}

/// What brings a new device to a saved state.
fn restoring(state: &State, device: &dyn DeviceModel) -> Result<Vec<Command>, ProtocolError> {
    let mut commands = Vec::new();
    let damaged = |request, fault| ProtocolError::new(request, fault);
    state.negotiation.check_features(device).map_err(|fault| damaged(request::SET_FEATURES, fault))?;
    if !state.memory.regions().is_empty() {
        state.memory.check(device.memory_slots()).map_err(|fault| damaged(request::SET_MEM_TABLE, fault))?;
        commands.push(Command::MemoryChange { regions: state.memory.regions().to_vec(), broken: Vec::new() });
    }
    let log = state.dirty_log();
    if log.memory.is_some() || log.event.is_some() || log.logging {
        commands.push(Command::DirtyLog(log));
    }
    commands.extend(state.mtu.map(Command::SetMtu));
    if state.negotiation.status() != 0 {
        commands.push(Command::Status(state.negotiation.status()));
    }
    for (index, _) in state.vrings.in_state(RingState::Running) {
        let start = state.vrings.start(index, state.start_context(device), true);
        commands.push(Command::QueueStart(start.map_err(|fault| damaged(request::SET_VRING_KICK, fault))?));
    }
    Ok(commands)
}
