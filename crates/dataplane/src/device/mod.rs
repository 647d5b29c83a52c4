//! A device and the front end that is connected to it.
//!
//! The session says what to do ([`Command`](softdpu_transport::vhost_user::Command)), `commands` does it with the
//! engine and the queues, and acknowledges.
//!
//! A device is there before its volume is. A front end that comes meanwhile is held: none of its messages is answered
//! until the volume is open, and it is let go with the reason when the volume turns out to fail. One that was connected
//! before this process began is kept whatever happens: its session says enough of the volume to go on with, and its
//! queues start when the volume is open.

mod commands;
mod messages;
mod queues;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use softdpu_engine::{Engine, QueueCounters};
use softdpu_memory::Domain;
use softdpu_sched::TenantId;
use softdpu_storage::{Broker, Volume};
use softdpu_transport::vhost_user::{Ack, CommandId, SavedSession, Session};

use super::broker::Wire;
use super::connection::{Connection, command_name};
use super::disk::{Disk, Geometry};
use super::model::{Model, State};
use super::nic::Nic;
use super::placements::Placements;
use super::rings;
use softdpu_link::{ConnectionId, FdId as LinkFd, HEADER_SIZE, LinkError, SharedFd, Up};
use softdpu_site as config;
use softdpu_sys::ReapedFd;

/// What a device needs of its surroundings while it handles something.
pub(super) struct Host<'a> {
    pub engine: &'a mut Engine,
    pub wire: &'a Wire,
    pub placements: &'a Placements,
    /// When the data plane before this one ended or let go, [`monotonic_ns`](softdpu_link::monotonic_ns).
    pub since_ns: Option<u64>,
}

/// The supervisor's events of a device's connections, in their order.
pub(super) enum Event {
    Attach { connection: ConnectionId, session: Option<String>, fds: BTreeMap<u32, SharedFd> },
    Message { connection: ConnectionId, header: [u8; HEADER_SIZE], payload: Vec<u8>, fds: Vec<(LinkFd, ReapedFd)> },
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

/// A device's volume, as far as it has come.
pub(super) enum Backing {
    /// It has none: it is an interface.
    Nothing,
    /// It is being opened.
    Opening,
    /// It cannot be opened, or not be used; it is tried again.
    Failing(String),
    Open(Arc<Volume>),
}

/// A device as configured, and its front end.
pub(super) struct Device {
    pub name: Arc<str>,
    pub config: config::Device,
    pub tenant: TenantId,
    pub domain: Arc<Domain>,
    pub backing: Backing,
    /// A disk's is made when its volume is open, or from the geometry in a session. There is no connection without.
    pub(super) model: Option<Model>,
    pub counters: Vec<Arc<QueueCounters>>,
    pub connection: Option<Connection>,
    /// What last broke a queue or closed a connection; cleared when the driver starts anew.
    pub trouble: Option<String>,
    /// Messages that were refused or led to a close.
    pub protocol_errors: u64,
    /// How long its queues stood still before this data plane took them up, nanoseconds.
    pub pause_ns: Option<u64>,
    /// When the volume's fence is asked for again, if queues wait for it.
    fence: FenceRetry,
    /// Events of a connection that follows one still being wound up, or that is held.
    later: VecDeque<Event>,
}

/// A fence that another process has.
struct Busy {
    since: Instant,
    is_reported: bool,
}

/// When to ask for a fence again. A dead process's I/O mostly ends at once; what does not, or cannot be asked for, is
/// not worth a core.
struct FenceRetry {
    at: Instant,
    pause: Duration,
    /// While another process has it.
    busy: Option<Busy>,
}

impl FenceRetry {
    const FIRST_PAUSE: Duration = Duration::from_millis(1);
    /// While another process has it.
    const WHILE_BUSY: Duration = Duration::from_millis(50);
    /// While it cannot be asked for.
    const WHILE_FAILING: Duration = Duration::from_secs(2);
    /// A dead process's last writes are done by then, unless its disk hangs; a living process keeps its lock for good.
    const BUSY_TOO_LONG: Duration = Duration::from_secs(2);

    fn now() -> Self {
        FenceRetry { at: Instant::now(), pause: Self::FIRST_PAUSE, busy: None }
    }

    /// Another process has it. Whether that is to be reported: once, when it has been so for too long.
    fn busy(&mut self, now: Instant) -> bool {
        let busy = self.busy.get_or_insert(Busy { since: now, is_reported: false });
        let report = !busy.is_reported && now.saturating_duration_since(busy.since) > Self::BUSY_TOO_LONG;
        busy.is_reported |= report;
        self.put_off(now, Self::WHILE_BUSY);
        report
    }

    fn put_off(&mut self, now: Instant, most: Duration) {
        self.at = now + self.pause;
        self.pause = (self.pause * 2).min(most);
    }
}

impl Device {
    /// A disk, or with `nic` an interface.
    pub(super) fn new(config: config::Device, tenant: TenantId, domain: Arc<Domain>, nic: Option<Nic>) -> Self {
        let queues = nic.as_ref().map_or_else(|| config.disk().map_or(0, |blk| blk.queues), |nic| nic.net.queues());
        let is_disk = config.disk().is_some();
        let counters = (0..queues).map(|_| Arc::default()).collect();
        Device {
            name: config.name.as_str().into(),
            config,
            tenant,
            domain,
            backing: if is_disk { Backing::Opening } else { Backing::Nothing },
            model: nic.map(Model::Nic),
            counters,
            connection: None,
            trouble: None,
            protocol_errors: 0,
            pause_ns: None,
            fence: FenceRetry::now(),
            later: VecDeque::new(),
        }
    }

    /// Its volume is open: front ends that wait for it go on.
    pub(super) fn opened(&mut self, volume: Arc<Volume>, host: &mut Host<'_>) -> Result<(), LinkError> {
        let disk = match self.make_disk(Geometry::of(&volume)) {
            Ok(disk) => disk,
            Err(reason) => return self.failing(reason, host),
        };
        let before = self.model.as_ref().filter(|_| self.connection.is_some()).map(Model::save);
        let kept = before.map_or(Ok(()), |before| disk.restore(&before));
        self.model = Some(disk);
        self.backing = Backing::Open(volume);
        self.fence = FenceRetry::now();
        match kept {
            Ok(()) => self.tell_size(),
            Err(reason) => {
                self.give_up_waiting();
                self.close(format!("its session cannot go on: {reason}"), host)?;
            }
        }
        if self.connection.is_none() { self.catch_up(host) } else { Ok(()) }
    }

    /// Its volume cannot be opened for now. Held front ends that have nothing to lose are let go.
    pub(super) fn failing(&mut self, reason: String, host: &mut Host<'_>) -> Result<(), LinkError> {
        let fresh = |event: &Event| match event {
            Event::Attach { connection, session: None, .. } => Some(*connection),
            _ => None,
        };
        let fresh: Vec<_> = self.later.iter().filter_map(fresh).collect();
        self.later.retain(|event| !fresh.contains(&event.connection()));
        for connection in fresh {
            self.turn_away(connection, &reason, host)?;
        }
        self.backing = Backing::Failing(reason);
        Ok(())
    }

    fn turn_away(&self, connection: ConnectionId, reason: &str, host: &Host<'_>) -> Result<(), LinkError> {
        let reason = format!("device '{}' cannot be served: {reason}", self.name);
        host.wire.send(&Up::Close { connection, reason }, Vec::new())
    }

    fn make_disk(&self, geometry: Geometry) -> Result<Model, String> {
        let blk = self.config.disk().ok_or("it is no disk")?;
        Disk::new(blk, geometry).map(Model::Disk).map_err(|error| error.to_string())
    }

    /// Takes an event of the supervisor.
    pub(super) fn event(&mut self, event: Event, host: &mut Host<'_>) -> Result<(), LinkError> {
        if self.connection.as_ref().is_some_and(|connection| connection.closing) {
            return self.put_off(event, host);
        }
        let id = event.connection();
        if self.later.iter().any(|held| held.connection() == id) {
            return self.put_off(event, host);
        }
        match event {
            Event::Attach { connection, session, fds } => self.arrive(connection, session, fds, host),
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

    /// A front end is here: served, where the volume is open or its session says enough of it; otherwise held or turned
    /// away.
    fn arrive(
        &mut self,
        connection: ConnectionId,
        session: Option<String>,
        fds: BTreeMap<u32, SharedFd>,
        host: &mut Host<'_>,
    ) -> Result<(), LinkError> {
        match (&self.backing, &session) {
            (Backing::Open(_) | Backing::Nothing, _) => return self.attach(connection, session, fds, host),
            (Backing::Failing(reason), None) => return self.turn_away(connection, reason, host),
            (Backing::Opening, None) => {}
            (_, Some(saved)) => {
                let geometry = serde_json::from_str::<Saved>(saved).ok().and_then(|saved| saved.geometry);
                if let Some(disk) = geometry.and_then(|geometry| self.make_disk(geometry).ok()) {
                    self.model = Some(disk);
                    return self.attach(connection, session, fds, host);
                }
            }
        }
        self.put_off(Event::Attach { connection, session, fds }, host)
    }

    /// Keeps what belongs to the next connection for later. One that has come and gone meanwhile leaves nothing.
    fn put_off(&mut self, event: Event, host: &Host<'_>) -> Result<(), LinkError> {
        if let Event::Closed { connection } = event {
            let before = self.later.len();
            self.later.retain(|other| other.connection() != connection);
            if self.later.len() != before {
                return Ok(());
            }
        }
        let held = match event {
            Event::Attach { connection, .. } => Some(connection),
            _ => None,
        };
        self.later.push_back(event);
        held.map_or(Ok(()), |connection| host.wire.send(&Up::Held { connection }, Vec::new()))
    }

    /// Gives up the in-flight records that the supervisor keeps: the device is no more.
    pub(super) fn forget_records(&self, wire: &Wire) {
        for index in 0..self.counters.len() as u16 {
            // It fails only with the link, which the control loop notices by itself.
            let _ = wire.forget(&rings::records_key(&self.name, index));
        }
    }

    /// Takes up a connection, which is answered here and nowhere else: `Attached`, or `Close`.
    fn attach(
        &mut self,
        id: ConnectionId,
        saved: Option<String>,
        fds: BTreeMap<u32, SharedFd>,
        host: &mut Host<'_>,
    ) -> Result<(), LinkError> {
        let Some(model) = &self.model else { return self.turn_away(id, "its volume is not open", host) };
        let Some(saved) = saved else {
            // What the driver before it chose ends with it.
            model.reset();
            self.connection = Some(Connection::new(id, Session::new(model), fds, self.domain.join()));
            return host.wire.send(&Up::Attached { connection: id }, Vec::new());
        };
        let restored = serde_json::from_str::<Saved>(&saved).map_err(|error| error.to_string()).and_then(|saved| {
            model.restore(&saved.device)?;
            Session::restore(saved.session, model).map_err(|error| error.to_string())
        });
        let restored = match restored {
            Ok(restored) => restored,
            Err(reason) => {
                self.connection = Some(Connection::new(id, Session::new(model), fds, self.domain.join()));
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
            self.lose_queue(index, base, host);
        }
        self.tell_size();
        host.wire.send(&Up::Attached { connection: id }, Vec::new())
    }

    /// The volume may have grown since the driver last read its capacity.
    fn tell_size(&mut self) {
        let (Some(volume), Some(disk)) = (self.volume(), self.model.as_ref().and_then(Model::disk)) else { return };
        let size = volume.size();
        if size > disk.block.capacity()
            && let Err(error) = self.grow(size)
        {
            tracing::warn!(device = %self.name, error, "the driver is not told that its volume grew");
        }
    }

    /// Its volume, if it is open.
    pub(super) fn volume(&self) -> Option<&Arc<Volume>> {
        match &self.backing {
            Backing::Open(volume) => Some(volume),
            Backing::Nothing | Backing::Opening | Backing::Failing(_) => None,
        }
    }

    /// Whether the device can go: no front end is connected.
    pub(super) fn is_idle(&self) -> bool {
        self.connection.is_none() && self.later.is_empty()
    }

    /// The volume grew: the capacity, and word to the driver.
    pub(super) fn grow(&mut self, size: u64) -> Result<(), String> {
        let Some(Model::Disk(disk)) = &mut self.model else { return Ok(()) };
        disk.grow(size)?;
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
    device: State,
    #[serde(default)]
    geometry: Option<Geometry>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_that_stays_busy_is_reported_once() {
        let start = Instant::now();
        let mut fence = FenceRetry::now();
        let reported: Vec<bool> =
            [0, 1000, 2000, 2001, 2050, 9000].map(|ms| fence.busy(start + Duration::from_millis(ms))).to_vec();
        assert_eq!(reported, [false, false, false, true, false, false]);
        fence = FenceRetry::now();
        assert!(!fence.busy(start + Duration::from_secs(60)), "the next wait begins anew");
    }

    #[test]
    fn a_fence_is_asked_for_again_at_once_at_first_and_ever_more_rarely() {
        let now = Instant::now();
        let mut fence = FenceRetry::now();
        assert!(fence.at <= Instant::now());
        let mut pauses = Vec::new();
        for _ in 0..12 {
            fence.put_off(now, FenceRetry::WHILE_FAILING);
            pauses.push((fence.at - now).as_millis());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2000]);
    }
}
