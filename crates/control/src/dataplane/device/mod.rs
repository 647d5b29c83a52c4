//! A device and the front end that is connected to it.
//!
//! The session says what to do ([`Command`](softdpu_transport::vhost_user::Command)), `commands` does it with the engine
//! and the queues, and acknowledges.

mod commands;
mod messages;
mod queues;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use softdpu_device::block;
use softdpu_engine::{CoreIndex, Engine, QueueCounters};
use softdpu_memory::Domain;
use softdpu_sched::TenantId;
use softdpu_storage::{Broker, Volume};
use softdpu_transport::vhost_user::{Ack, CommandId, SavedSession, Session};

use super::broker::Wire;
use super::connection::{Connection, command_name};
use super::disk::Disk;
use super::rings;
use crate::config;
use crate::link::{ConnectionId, FdId as LinkFd, HEADER_SIZE, LinkError, Peer};

/// What a device needs of its surroundings while it handles something.
pub(super) struct Host<'a> {
    pub engine: &'a mut Engine,
    pub wire: &'a Wire,
    /// CPU → core.
    pub cores: &'a HashMap<u32, CoreIndex>,
    /// (device, queue) → CPU, for queues that were moved.
    pub placements: &'a HashMap<(String, u16), u32>,
}

/// What the supervisor says about a device's connections, in its order.
pub(super) enum Event {
    Attach { connection: ConnectionId, session: Option<String>, fds: BTreeMap<u32, Arc<OwnedFd>>, peer: Option<Peer> },
    Message { connection: ConnectionId, header: [u8; HEADER_SIZE], payload: Vec<u8>, fds: Vec<(LinkFd, OwnedFd)> },
    Closed { connection: ConnectionId },
}

impl Event {
    fn connection(&self) -> ConnectionId {
        match self {
            Event::Attach { connection, .. } | Event::Message { connection, .. } | Event::Closed { connection } => {
                *connection
            }
        }
    }
}

/// A device as configured, and its front end.
pub(super) struct Device {
    pub name: Arc<str>,
    pub config: config::Device,
    pub tenant: TenantId,
    pub domain: Arc<Domain>,
    pub volume: Arc<Volume>,
    pub disk: Disk,
    pub counters: Vec<Arc<QueueCounters>>,
    pub connection: Option<Connection>,
    pub peer: Option<Peer>,
    /// What last broke a queue or closed a connection; cleared when the driver starts anew.
    pub trouble: Option<String>,
    /// Messages that were refused or led to a close.
    pub protocol_errors: u64,
    /// Events of a connection that follows one still being wound up.
    later: VecDeque<Event>,
}

impl Device {
    pub(super) fn new(
        config: config::Device,
        tenant: TenantId,
        domain: Arc<Domain>,
        volume: Arc<Volume>,
        disk: Disk,
    ) -> Self {
        let counters = (0..disk.block.config().queues).map(|_| Arc::default()).collect();
        Device {
            name: config.name.as_str().into(),
            config,
            tenant,
            domain,
            volume,
            disk,
            counters,
            connection: None,
            peer: None,
            trouble: None,
            protocol_errors: 0,
            later: VecDeque::new(),
        }
    }

    /// Takes an event of the supervisor.
    pub(super) fn event(&mut self, event: Event, host: &mut Host<'_>) -> Result<(), LinkError> {
        if self.connection.as_ref().is_some_and(|connection| connection.closing) {
            self.put_off(event);
            return Ok(());
        }
        match event {
            Event::Attach { connection, session, fds, peer } => self.attach(connection, session, fds, peer, host),
            Event::Message { connection, header, payload, fds } => {
                match self.connection.as_mut().filter(|current| current.id == connection) {
                    Some(_) => self.message(header, &payload, fds, host),
                    None => Ok(()),
                }
            }
            Event::Closed { connection } => match self.connection.as_mut().filter(|current| current.id == connection) {
                Some(_) => self.disconnect(host),
                None => Ok(()),
            },
        }
    }

    /// Keeps what belongs to the next connection for later. One that has come and gone meanwhile leaves nothing.
    fn put_off(&mut self, event: Event) {
        if let Event::Closed { connection } = event {
            let before = self.later.len();
            self.later.retain(|other| other.connection() != connection);
            if self.later.len() != before {
                return;
            }
        }
        self.later.push_back(event);
    }

    /// Gives up the in-flight records that the supervisor keeps: the device is no more.
    pub(super) fn forget_records(&self, wire: &Wire) {
        for index in 0..self.counters.len() as u16 {
            // It fails only with the link, which the control loop notices by itself.
            let _ = wire.forget(&rings::records_key(&self.name, index));
        }
    }

    fn attach(
        &mut self,
        id: ConnectionId,
        saved: Option<String>,
        fds: BTreeMap<u32, Arc<OwnedFd>>,
        peer: Option<Peer>,
        host: &mut Host<'_>,
    ) -> Result<(), LinkError> {
        self.peer = peer;
        let Some(saved) = saved else {
            // What the driver before it chose ends with it.
            self.disk.block.reset();
            self.connection = Some(Connection::new(id, Session::new(&self.disk), fds, self.domain.join()));
            return Ok(());
        };
        let restored = serde_json::from_str::<Saved>(&saved).map_err(|error| error.to_string()).and_then(|saved| {
            self.disk.restore(&saved.device)?;
            Session::restore(saved.session, &self.disk).map_err(|error| error.to_string())
        });
        let restored = match restored {
            Ok(restored) => restored,
            Err(reason) => {
                self.connection = Some(Connection::new(id, Session::new(&self.disk), fds, self.domain.join()));
                return self.close(format!("its session cannot go on: {reason}"), host);
            }
        };
        self.connection = Some(Connection::new(id, restored.session, fds, self.domain.join()));
        for command in restored.commands {
            let name = command_name(&command);
            // Nothing that restores waits for a core: no queue ran before.
            if let Some(Ack::Failed(reason)) = self.execute(CommandId(0), command, host) {
                return self.close(format!("resuming: {name}: {reason}"), host);
            }
        }
        if let Some(connection) = &mut self.connection {
            connection.awaited = None;
        }
        let lost: Vec<_> = self.connection.iter().flat_map(|connection| connection.session.broken()).collect();
        for (index, base) in lost {
            self.lose_queue(index, base);
        }
        // The volume may have grown since the driver was last told.
        if self.volume.size() > self.disk.block.capacity()
            && let Err(error) = self.grow(self.volume.size())
        {
            tracing::warn!(device = %self.name, error, "the driver is not told that its volume grew");
        }
        Ok(())
    }

    /// Whether the device can go: nobody is connected.
    pub(super) fn is_idle(&self) -> bool {
        self.connection.is_none()
    }

    /// The volume grew: the capacity, and word to the driver.
    pub(super) fn grow(&mut self, size: u64) -> Result<(), String> {
        self.disk.block.grow(size).map_err(|error| error.to_string())?;
        if let Some(connection) = &mut self.connection
            && let Some(message) = connection.session.config_changed()
        {
            connection.send_backend(&message);
        }
        Ok(())
    }
}

/// What a connection needs to go on in another process.
#[derive(Serialize, Deserialize)]
struct Saved {
    session: SavedSession,
    device: block::State,
}
