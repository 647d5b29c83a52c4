//! The session's commands, carried out with the engine. One that has to reach cores first is
//! [awaited](Awaited); until then the connection takes no further message, which the supervisor sees to.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use softdpu_engine::{FromCore, QueueKey, QueueUpdate};
use softdpu_memory::GuestAddress;
use softdpu_transport::vhost_user::{Ack, Command, CommandId, QueueChange, QueueIndex, QueueStart, ResetCause};

use super::{Device, Host};
use crate::connection::{Awaited, End, QueueState, Started};
use crate::model::Model;
use crate::rings;
use softdpu_link::LinkError;
use softdpu_site::MacAddress;

/// What a stopped queue's requests get to finish. QEMU waits for the answer with its big lock held, so a volume that
/// hangs must not hold it up for long; what does not finish stays recorded as in flight.
const STOP_PATIENCE: Duration = Duration::from_secs(2);

impl Device {
    /// Carries out a command. None: the answer comes when the cores have done their part.
    pub(super) fn execute(&mut self, id: CommandId, command: Command, host: &mut Host<'_>) -> Option<Ack> {
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
                    Some(QueueState::Running(started) | QueueState::Broken(started)) => {
                        let key = started.key;
                        return self.await_updates(id, [(key, update)], host);
                    }
                    Some(QueueState::Waiting(waiting)) => {
                        if let QueueChange::Log(log) = &change {
                            // Its ring is made already.
                            waiting.ring.set_log_used(log.map(GuestAddress));
                        }
                        apply(&mut waiting.start, change);
                        Ack::Done
                    }
                    Some(QueueState::Failed { .. }) | None => Ack::Done,
                }
            }
            Command::QueueStop(index) => {
                return self.stop_queues(id, vec![index], STOP_PATIENCE, End::Stopped(index), host);
            }
            Command::CreateInflight { bytes, .. } => match self.connection.as_mut()?.make_inflight(bytes) {
                Ok(fd) => Ack::Memory(fd),
                Err(reason) => Ack::Failed(reason),
            },
            Command::Reset(cause) => {
                let connection = self.connection.as_mut()?;
                if cause != ResetCause::Disconnect {
                    self.trouble = None;
                    if let Some(model) = &self.model {
                        model.reset();
                    }
                }
                // A driver that resets has given its requests up, and uses their memory and blocks anew once it is
                // answered: what the kernel is in the middle of has to end first. A front end that went away may come
                // back for them. A status of 0 may be the driver's, or the first thing that QEMU before 8.1 says when
                // it pauses its guest or moves it: the requests and positions are wanted then.
                let end = if cause == ResetCause::Status { End::Reset } else { End::Done };
                let all = connection.queues.keys().copied().collect();
                return self.stop_queues(id, all, STOP_PATIENCE, end, host);
            }
            Command::SetConfig { offset, bytes, live_migration } => {
                let written = self.model.as_ref().map_or(Ok(()), |model| model.write_config(offset, &bytes));
                match written {
                    // A migration brings the whole space, of which all but the cache mode is configured here.
                    Err(_) if live_migration => Ack::Done,
                    Err(error) => Ack::Failed(error),
                    Ok(()) => Ack::Done,
                }
            }
            Command::SetMtu(mtu) => match self.model.as_ref().map_or(Ok(()), |model| model.check_mtu(mtu.into())) {
                Ok(()) => Ack::Done,
                Err(error) => Ack::Failed(error),
            },
            Command::SendRarp { mac } => {
                self.announce(mac, host);
                Ack::Done
            }
            Command::Status(_) => Ack::Done,
        };
        Some(ack)
    }

    /// Its guest is here now, after a migration that the guest does not announce itself.
    fn announce(&self, mac: [u8; 6], host: &Host<'_>) {
        let Some(Model::Nic(nic)) = &self.model else { return };
        let own = nic.net.config().mac;
        if mac == own {
            host.engine.announce(nic.port);
        } else {
            let (mac, own) = (MacAddress(mac), MacAddress(own));
            tracing::warn!(device = %self.name, %mac, %own, "a guest is announced by another MAC address than its own, to nobody");
        }
    }

    /// Gives every queue the connection's present view; `broken` ones are stopped instead.
    fn spread_view(&mut self, id: CommandId, broken: Vec<QueueIndex>, host: &mut Host<'_>) -> Option<Ack> {
        let connection = self.connection.as_mut()?;
        let view = connection.tracked();
        for state in connection.queues.values_mut() {
            if let QueueState::Waiting(waiting) = state
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
        self.await_or_ack(awaited, host)
    }

    fn await_updates(
        &mut self,
        id: CommandId,
        updates: impl IntoIterator<Item = (QueueKey, QueueUpdate)>,
        host: &mut Host<'_>,
    ) -> Option<Ack> {
        let tokens =
            updates.into_iter().filter_map(|(key, update)| host.engine.update_queue(key, update).ok()).collect();
        self.await_or_ack(Awaited { id, tokens, stops: HashMap::new(), bases: BTreeMap::new(), end: End::Done }, host)
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
        self.await_or_ack(awaited, host)
    }

    fn begin_stops(&mut self, awaited: &mut Awaited, indexes: &[QueueIndex], patience: Duration, host: &mut Host<'_>) {
        let Some(connection) = &mut self.connection else { return };
        for index in indexes {
            match connection.queues.remove(index) {
                Some(state @ (QueueState::Running(Started { key, .. }) | QueueState::Broken(Started { key, .. }))) => {
                    connection.queues.insert(*index, state);
                    if host.engine.stop_queue(key, patience).is_ok() {
                        awaited.stops.insert(key, *index);
                    }
                }
                Some(QueueState::Waiting(mut waiting)) => {
                    awaited.bases.insert(*index, rings::base_of(waiting.ring.retire()));
                }
                Some(QueueState::Failed { base }) => {
                    awaited.bases.insert(*index, base);
                }
                None => {}
            }
        }
    }

    fn await_or_ack(&mut self, awaited: Awaited, host: &mut Host<'_>) -> Option<Ack> {
        if awaited.is_over() {
            self.lose_queues(&awaited, host);
            return Some(awaited.ack());
        }
        self.connection.as_mut()?.awaited = Some(awaited);
        None
    }

    /// Something happened to a queue of this device on its core.
    pub(crate) fn core_event(&mut self, event: &FromCore, host: &mut Host<'_>) -> Result<(), LinkError> {
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
                        self.config.volume().unwrap_or_default()
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
                    if let Some(QueueState::Running(started)) = connection.queues.remove(&index) {
                        connection.set_state(index, QueueState::Broken(started));
                    }
                    self.trouble = Some(format!("queue {index}: {reason}"));
                }
            }
            FromCore::SocketLost { .. } | FromCore::FirstCompletion { .. } | FromCore::Stalled { .. } => {}
        }
        let Some(awaited) = connection.awaited.take_if(|awaited| awaited.is_over()) else { return Ok(()) };
        self.lose_queues(&awaited, host);
        let (id, ack) = (awaited.id, awaited.ack());
        match self.acknowledge(id, ack) {
            Ok(actions) => self.act(actions, host),
            Err(reason) => self.close(reason, host),
        }
    }
}

fn apply(start: &mut QueueStart, change: QueueChange) {
    match change {
        QueueChange::Kick(fd) => start.kick = fd,
        QueueChange::Call(fd) => start.call = fd,
        QueueChange::Err(fd) => start.err = fd,
        QueueChange::Enabled(enabled) => start.enabled = enabled,
        QueueChange::Log(log) => start.log = log,
    }
}
