//! A device and the front end that is connected to it.
//!
//! The session says what to do ([`Command`]), this module does it with the engine, and acknowledges. A command whose effect
//! has to reach cores first is [awaited](Awaited); until then the connection takes no further message, which the
//! supervisor sees to.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use softdpu_device::block;
use softdpu_engine::{CoreIndex, Engine, FromCore, QueueCounters, QueueKey, QueueSpec, QueueUpdate};
use softdpu_memory::Domain;
use softdpu_sched::TenantId;
use softdpu_storage::{Activation, Broker, Volume};
use softdpu_transport::vhost_user::{
    Ack, Action, Command, CommandId, Header, QueueIndex, QueueStart, ResetCause, SavedSession, Session, VringBase,
};

use super::broker::Wire;
use super::connection::{Awaited, Connection, End, Run, Started, WaitingQueue, command_name};
use super::disk::Disk;
use super::rings;
use crate::config;
use crate::link::{ConnectionId, FdId as LinkFd, HEADER_SIZE, LinkError, Peer, Up};

/// What a stopped queue's requests get to finish. QEMU waits for the answer with its big lock held, so a volume that hangs
/// must not hold it up for long; what does not finish stays recorded as in flight.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

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

    fn message(
        &mut self,
        header: [u8; HEADER_SIZE],
        payload: &[u8],
        fds: Vec<(LinkFd, OwnedFd)>,
        host: &mut Host<'_>,
    ) -> Result<(), LinkError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        let ids: Vec<_> = fds.iter().map(|(id, _)| softdpu_transport::vhost_user::FdId(*id)).collect();
        connection.fds.extend(fds.into_iter().map(|(id, fd)| (id, Arc::new(fd))));
        connection.answering = true;
        let actions = Header::parse(&header).map_err(|error| error.to_string()).and_then(|header| {
            connection.session.message(&self.disk, header, payload, ids).map_err(|error| error.to_string())
        });
        match actions {
            Ok(actions) => self.act(actions, host),
            Err(reason) => self.close(reason, host),
        }
    }

    /// Carries out what the session wants; answers the supervisor when nothing is awaited any more.
    fn act(&mut self, actions: Vec<Action>, host: &mut Host<'_>) -> Result<(), LinkError> {
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let Some(connection) = &mut self.connection else { return Ok(()) };
            match action {
                Action::Reply { bytes, fds } => {
                    connection.reply.0.extend(bytes);
                    for fd in fds {
                        if let Ok(fd) = connection.fd(fd).cloned() {
                            connection.reply.1.push(fd);
                        }
                    }
                }
                Action::Backend(message) => connection.send_backend(&message),
                Action::Release(fd) => connection.release(fd),
                Action::Refused(error) => {
                    tracing::warn!(device = %self.name, %error, "message refused");
                    self.protocol_errors += 1;
                }
                Action::Command { id, command } => {
                    if let Some(ack) = self.execute(id, command, host) {
                        match self.acknowledge(id, ack) {
                            Ok(more) => actions.extend(more),
                            Err(reason) => return self.close(reason, host),
                        }
                    }
                }
            }
        }
        self.answer(host)
    }

    fn acknowledge(&mut self, id: CommandId, ack: Ack) -> Result<Vec<Action>, String> {
        let Some(connection) = &mut self.connection else { return Ok(Vec::new()) };
        connection.session.acknowledge(id, ack).map_err(|error| error.to_string())
    }

    /// Tells the supervisor what became of the message, if that is settled; ends a connection that is wound up.
    fn answer(&mut self, host: &mut Host<'_>) -> Result<(), LinkError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if !connection.session.ready() {
            return Ok(());
        }
        if connection.closing {
            self.connection = None;
            self.peer = None;
            return self.catch_up(host);
        }
        if std::mem::take(&mut connection.answering) {
            return send_handled(connection, &self.disk, None, host.wire);
        }
        Ok(())
    }

    /// Goes on with what came while the last connection was being wound up.
    fn catch_up(&mut self, host: &mut Host<'_>) -> Result<(), LinkError> {
        for event in std::mem::take(&mut self.later) {
            self.event(event, host)?;
        }
        Ok(())
    }

    /// Asks the supervisor to close the connection. `Closed` follows and winds it up.
    fn close(&mut self, reason: String, host: &mut Host<'_>) -> Result<(), LinkError> {
        tracing::warn!(device = %self.name, reason, "closing the connection");
        self.protocol_errors += 1;
        self.trouble = Some(reason.clone());
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if std::mem::take(&mut connection.answering) {
            return send_handled(connection, &self.disk, Some(reason), host.wire);
        }
        host.wire.send(&Up::Close { connection: connection.id, reason }, Vec::new())
    }

    /// The front end is gone.
    fn disconnect(&mut self, host: &mut Host<'_>) -> Result<(), LinkError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        connection.closing = true;
        connection.answering = false;
        let actions = connection.session.disconnect();
        self.act(actions, host)
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

    /// Carries out a command. None: the answer comes when the cores have done their part.
    fn execute(&mut self, id: CommandId, command: Command, host: &mut Host<'_>) -> Option<Ack> {
        let ack = match command {
            Command::MemoryChange { regions, broken } => {
                let connection = self.connection.as_mut()?;
                match connection.map(&regions) {
                    Ok(view) => {
                        connection.view = view;
                        return self.spread_view(id, broken, host);
                    }
                    Err(reason) => Ack::Failed(reason),
                }
            }
            Command::DirtyLog(log) => {
                let connection = self.connection.as_mut()?;
                match connection.set_dirty_log(&log) {
                    Ok(()) => return self.spread_view(id, Vec::new(), host),
                    Err(reason) => Ack::Failed(reason),
                }
            }
            Command::QueueStart(start) => match self.start_queue(*start, host) {
                Ok(()) => Ack::Done,
                Err(reason) => Ack::Failed(reason),
            },
            Command::QueueUpdate { index, change } => {
                let connection = self.connection.as_mut()?;
                let update = match connection.update(change) {
                    Ok(update) => update,
                    Err(reason) => return Some(Ack::Failed(reason)),
                };
                match connection.queues.get_mut(&index) {
                    Some(Run::Running(started) | Run::Broken(started)) => {
                        let key = started.key;
                        return self.await_updates(id, [(key, update)], host);
                    }
                    Some(Run::Waiting(waiting)) => {
                        apply(&mut waiting.start, change);
                        Ack::Done
                    }
                    Some(Run::Failed { .. }) | None => Ack::Done,
                }
            }
            Command::QueueStop { index, may_leave_inflight: _ } => {
                return self.stop_queues(id, vec![index], STOP_PATIENCE, End::Stopped(index), host);
            }
            Command::CreateInflight { bytes, .. } => match self.connection.as_mut()?.make_inflight(bytes) {
                Ok(fd) => Ack::Memory(fd),
                Err(reason) => Ack::Failed(reason),
            },
            Command::Reset(cause) => {
                let connection = self.connection.as_mut()?;
                if cause != ResetCause::Disconnect {
                    self.disk.block.reset();
                    self.trouble = None;
                }
                // A driver that resets has given its requests up; one that went away may come back for them.
                let patience = if cause == ResetCause::Disconnect { STOP_PATIENCE } else { Duration::ZERO };
                let all = connection.queues.keys().copied().collect();
                return self.stop_queues(id, all, patience, End::Done, host);
            }
            Command::SetConfig { offset, bytes, live_migration } => {
                match self.disk.block.write_config(offset, &bytes) {
                    // A migration brings the whole space, of which all but the cache mode is configured here.
                    Err(_) if live_migration => Ack::Done,
                    Err(error) => Ack::Failed(error.to_string()),
                    Ok(()) => Ack::Done,
                }
            }
            Command::Status(_) | Command::SetMtu(_) | Command::SendRarp { .. } => Ack::Done,
        };
        Some(ack)
    }

    /// Gives every queue the connection's present view; `broken` ones are stopped instead.
    fn spread_view(&mut self, id: CommandId, broken: Vec<QueueIndex>, host: &mut Host<'_>) -> Option<Ack> {
        let connection = self.connection.as_mut()?;
        let view = connection.tracked();
        for run in connection.queues.values_mut() {
            if let Run::Waiting(waiting) = run
                && let Err(error) = waiting.ring.remap(&view)
            {
                tracing::warn!(device = %self.name, %error, "queue lost its memory before it started");
            }
        }
        let updates: Vec<_> = connection
            .live()
            .into_iter()
            .filter(|(index, _)| !broken.contains(index))
            .map(|(_, key)| (key, QueueUpdate::View(Arc::clone(&view))))
            .collect();
        let end = if broken.is_empty() { End::Done } else { End::Broken(broken.clone()) };
        let mut awaited = Awaited { id, tokens: HashSet::new(), stops: HashMap::new(), bases: BTreeMap::new(), end };
        for (key, update) in updates {
            awaited.tokens.extend(host.engine.update_queue(key, update).ok());
        }
        self.begin_stops(&mut awaited, &broken, Duration::ZERO, host);
        self.await_or_ack(awaited)
    }

    fn await_updates(
        &mut self,
        id: CommandId,
        updates: impl IntoIterator<Item = (QueueKey, QueueUpdate)>,
        host: &mut Host<'_>,
    ) -> Option<Ack> {
        let tokens =
            updates.into_iter().filter_map(|(key, update)| host.engine.update_queue(key, update).ok()).collect();
        self.await_or_ack(Awaited { id, tokens, stops: HashMap::new(), bases: BTreeMap::new(), end: End::Done })
    }

    fn stop_queues(
        &mut self,
        id: CommandId,
        indexes: Vec<QueueIndex>,
        patience: Duration,
        end: End,
        host: &mut Host<'_>,
    ) -> Option<Ack> {
        let mut awaited = Awaited { id, tokens: HashSet::new(), stops: HashMap::new(), bases: BTreeMap::new(), end };
        self.begin_stops(&mut awaited, &indexes, patience, host);
        self.await_or_ack(awaited)
    }

    fn begin_stops(&mut self, awaited: &mut Awaited, indexes: &[QueueIndex], patience: Duration, host: &mut Host<'_>) {
        let Some(connection) = &mut self.connection else { return };
        for index in indexes {
            match connection.queues.remove(index) {
                Some(run @ (Run::Running(Started { key, .. }) | Run::Broken(Started { key, .. }))) => {
                    let patience = if matches!(run, Run::Broken(_)) { Duration::ZERO } else { patience };
                    connection.queues.insert(*index, run);
                    if host.engine.stop_queue(key, patience).is_ok() {
                        awaited.stops.insert(key, *index);
                    }
                }
                Some(Run::Waiting(mut waiting)) => {
                    awaited.bases.insert(*index, rings::base_of(waiting.ring.retire()));
                }
                Some(Run::Failed { base }) => {
                    awaited.bases.insert(*index, base);
                }
                None => {}
            }
        }
    }

    fn await_or_ack(&mut self, awaited: Awaited) -> Option<Ack> {
        if awaited.is_over() {
            self.lose_queues(&awaited);
            return Some(awaited.ack());
        }
        self.connection.as_mut()?.awaited = Some(awaited);
        None
    }

    fn start_queue(&mut self, start: QueueStart, host: &mut Host<'_>) -> Result<(), String> {
        let connection = self.connection.as_mut().ok_or("not connected")?;
        // Bad descriptors are the message's fault and refused with it.
        for fd in [start.kick, start.call, start.err] {
            connection.optional_eventfd(fd)?;
        }
        let (index, base, error) = (start.index, start.base, start.err);
        match rings::make(&self.name, &start, &connection.tracked(), &connection.fds, host.wire) {
            Ok(ring) => {
                let waiting = WaitingQueue { start, ring };
                // It starts when the supervisor has the session that says so: a queue that had served before could not be
                // told from a fresh one after a kill.
                connection.queues.insert(index, Run::Waiting(Box::new(waiting)));
            }
            Err(reason) => {
                // The ring's content is the driver's, not the message's: the queue is broken, the connection goes on.
                connection.queues.insert(index, Run::Failed { base });
                connection.signal_error(error);
                self.trouble = Some(format!("queue {index}: {reason}"));
                tracing::warn!(device = %self.name, queue = index.0, reason, "queue cannot start");
            }
        }
        Ok(())
    }

    /// Whether queues wait for the volume's fence.
    pub(super) fn has_waiting(&self) -> bool {
        self.connection.as_ref().is_some_and(|c| c.queues.values().any(|run| matches!(run, Run::Waiting(_))))
    }

    /// Starts what waits, if the volume is ours by now.
    pub(super) fn start_waiting(&mut self, host: &mut Host<'_>) {
        match self.volume.activate() {
            Ok(Activation::Active) => {}
            Ok(Activation::Busy { why }) => {
                tracing::debug!(device = %self.name, why, "waiting for the volume's fence");
                return;
            }
            Err(error) => {
                let error = error.to_string();
                if self.trouble.as_ref() != Some(&error) {
                    tracing::error!(device = %self.name, error, "the volume cannot be activated");
                    self.trouble = Some(error);
                }
                return;
            }
        }
        let Some(connection) = &mut self.connection else { return };
        let waiting: Vec<QueueIndex> = connection
            .queues
            .iter()
            .filter_map(|(index, run)| matches!(run, Run::Waiting(_)).then_some(*index))
            .collect();
        for index in waiting {
            let Some(Run::Waiting(waiting)) = connection.queues.remove(&index) else { continue };
            let (base, error) = (waiting.start.base, waiting.start.err);
            let (size, format) = (waiting.start.size, waiting.start.format);
            let run = match self.start_now(index, *waiting, host) {
                Ok(key) => Run::Running(Started { key, size, format }),
                Err(reason) => {
                    tracing::warn!(device = %self.name, queue = index.0, reason, "queue cannot start");
                    self.trouble = Some(format!("queue {index}: {reason}"));
                    Run::Failed { base }
                }
            };
            let Some(current) = &mut self.connection else { return };
            let failed = matches!(run, Run::Failed { .. });
            if failed {
                current.signal_error(error);
            }
            current.queues.insert(index, run);
            let ailing = |run: &Run| matches!(run, Run::Failed { .. } | Run::Broken(_));
            if !failed && !current.queues.values().any(ailing) {
                self.trouble = None;
            }
            return self.start_waiting(host);
        }
    }

    fn start_now(&mut self, index: QueueIndex, waiting: WaitingQueue, host: &mut Host<'_>) -> Result<QueueKey, String> {
        let connection = self.connection.as_ref().ok_or("not connected")?;
        let WaitingQueue { start, ring } = waiting;
        let counters = self.counters.get(usize::from(index.0)).ok_or("the device has no such queue")?;
        let spec = QueueSpec {
            device: Arc::clone(&self.name),
            index: index.0,
            tenant: self.tenant,
            volume: Arc::clone(&self.volume),
            requests: self.disk.block.requests(start.features),
            ring,
            view: connection.tracked(),
            kick: connection.optional_eventfd(start.kick)?,
            call: connection.optional_eventfd(start.call)?,
            error: connection.optional_eventfd(start.err)?,
            enabled: start.enabled,
            resumed: start.resumed,
            counters: Arc::clone(counters),
        };
        let core = self.core_for(index, host);
        host.engine.start_queue(core, spec).map_err(|error| error.to_string())
    }

    /// Where a queue goes: where it was moved to, or in turn over the device's own cores, or wherever there is least.
    fn core_for(&self, index: QueueIndex, host: &Host<'_>) -> Option<CoreIndex> {
        let moved = host.placements.get(&(self.name.to_string(), index.0));
        let own = self.config.cores.as_deref().filter(|cores| !cores.is_empty());
        let cpu = moved.or_else(|| own.map(|cores| &cores[usize::from(index.0) % cores.len()]))?;
        host.cores.get(cpu).copied()
    }

    /// Something happened to a queue of this device on its core.
    pub(super) fn core_event(&mut self, event: &FromCore, host: &mut Host<'_>) -> Result<(), LinkError> {
        let Some(connection) = &mut self.connection else { return Ok(()) };
        match event {
            FromCore::Updated { token, .. } => {
                if let Some(awaited) = &mut connection.awaited {
                    awaited.tokens.remove(token);
                }
            }
            FromCore::Stopped { key, position, abandoned } => {
                let Some(index) = connection.queue_of(*key) else { return Ok(()) };
                connection.queues.remove(&index);
                if *abandoned > 0 && self.trouble.is_none() {
                    self.trouble = Some(format!(
                        "queue {index} was stopped with {abandoned} requests that volume '{}' had not finished",
                        self.volume.name()
                    ));
                }
                if let Some(awaited) = &mut connection.awaited
                    && awaited.stops.remove(key).is_some()
                {
                    awaited.bases.insert(index, rings::base_of(*position));
                }
            }
            FromCore::Broken { key, reason } => {
                if let Some(index) = connection.queue_of(*key) {
                    if let Some(Run::Running(started)) = connection.queues.remove(&index) {
                        connection.queues.insert(index, Run::Broken(started));
                    }
                    self.trouble = Some(format!("queue {index}: {reason}"));
                }
            }
            FromCore::FirstCompletion { .. } | FromCore::CoreFailed { .. } => {}
        }
        let Some(awaited) = connection.awaited.take_if(|awaited| awaited.is_over()) else { return Ok(()) };
        self.lose_queues(&awaited);
        let (id, ack) = (awaited.id, awaited.ack());
        match self.acknowledge(id, ack) {
            Ok(actions) => self.act(actions, host),
            Err(reason) => self.close(reason, host),
        }
    }

    /// The queues that a new memory table left without their rings are broken, and everybody who looks is told.
    fn lose_queues(&mut self, awaited: &Awaited) {
        let End::Broken(indexes) = &awaited.end else { return };
        for (index, base) in indexes.iter().filter_map(|index| Some((*index, *awaited.bases.get(index)?))) {
            self.lose_queue(index, base);
        }
    }

    fn lose_queue(&mut self, index: QueueIndex, base: VringBase) {
        let Some(connection) = &mut self.connection else { return };
        let reason = "its rings are not in the memory that the front end shares now";
        tracing::warn!(device = %self.name, queue = index.0, reason, "queue broken by its front end");
        self.trouble = Some(format!("queue {index}: {reason}"));
        connection.queues.insert(index, Run::Failed { base });
        connection.signal_error(connection.session.error_descriptor(index));
    }

    /// Whether one of its queues has this key.
    pub(super) fn owns(&self, key: QueueKey) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.queue_of(key).is_some())
    }

    /// The running queue of that index.
    pub(super) fn queue(&self, index: u16) -> Option<QueueKey> {
        match self.connection.as_ref()?.queues.get(&QueueIndex(index))? {
            Run::Running(started) | Run::Broken(started) => Some(started.key),
            Run::Waiting(_) | Run::Failed { .. } => None,
        }
    }
}

fn apply(start: &mut QueueStart, change: softdpu_transport::vhost_user::QueueChange) {
    use softdpu_transport::vhost_user::QueueChange;
    match change {
        QueueChange::Kick(fd) => start.kick = fd,
        QueueChange::Call(fd) => start.call = fd,
        QueueChange::Err(fd) => start.err = fd,
        QueueChange::Enabled(enabled) => start.enabled = enabled,
        QueueChange::Log(log) => start.log = log,
    }
}

/// What a connection needs to go on in another process.
#[derive(Serialize, Deserialize)]
struct Saved {
    session: SavedSession,
    device: block::State,
}

fn send_handled(connection: &mut Connection, disk: &Disk, close: Option<String>, wire: &Wire) -> Result<(), LinkError> {
    let (reply, reply_fds) = std::mem::take(&mut connection.reply);
    let kept = std::mem::take(&mut connection.kept);
    let released = std::mem::take(&mut connection.released);
    // Plain data always serialises.
    let saved = Saved { session: connection.session.save(), device: disk.block.save() };
    let session = serde_json::to_string(&saved).unwrap_or_default();
    let fds = reply_fds.iter().chain(kept.iter().filter_map(|id| connection.fds.get(id))).cloned().collect();
    let message = Up::Handled {
        connection: connection.id,
        reply,
        reply_fds: reply_fds.len() as u32,
        session,
        kept,
        released,
        close,
    };
    wire.send(&message, fds)
}
