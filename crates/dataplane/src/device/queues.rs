//! The device's queues: made, started when the volume is fenced, lost.

use std::sync::Arc;
use std::time::Instant;

use softdpu_device::net::QueueRole;
use softdpu_engine::{CoreIndex, QueueKey, QueueSpec, Role};
use softdpu_storage::{Activation, Volume};
use softdpu_transport::vhost_user::{QueueIndex, QueueStart, VringBase};

use super::{Backing, Device, FenceRetry, Host};
use crate::connection::{Awaited, End, QueueState, Started, WaitingQueue};
use crate::model::Model;
use crate::placements::Placements;
use crate::rings;
use softdpu_link::monotonic_ns;

impl Device {
    pub(super) fn start_queue(&mut self, start: QueueStart, host: &mut Host<'_>) -> Result<(), String> {
        let connection = self.connection.as_mut().ok_or("not connected")?;
        // Bad descriptors are the message's fault and refused with it.
        for fd in [start.kick, start.call, start.err] {
            connection.optional_eventfd(fd)?;
        }
        let (index, base, error) = (start.index, start.base, start.err);
        let in_order = matches!(self.backing, Backing::Nothing);
        match rings::make(&self.name, &start, in_order, &connection.tracked(), &connection.fds, host.wire) {
            Ok(ring) => {
                let waiting = WaitingQueue { start, ring };
                // It starts when the supervisor has the session that says so: a queue that had served before could not
                // be told from a fresh one after a kill.
                connection.queues.insert(index, QueueState::Waiting(Box::new(waiting)));
                self.fence = FenceRetry::now();
            }
            Err(reason) => {
                // The ring's content is the driver's, not the message's: the queue is broken, the connection goes on.
                connection.set_state(index, QueueState::Failed { base });
                connection.signal_error(error, host.engine);
                self.trouble = Some(format!("queue {index}: {reason}"));
                tracing::warn!(device = %self.name, queue = index.0, reason, "queue cannot start");
            }
        }
        Ok(())
    }

    /// When queues that wait for the volume's fence are to be [started](Self::start_waiting); none while there are
    /// none, or the volume is not even open.
    pub(crate) fn fence_due(&self) -> Option<Instant> {
        let ready = matches!(self.backing, Backing::Open(_) | Backing::Nothing);
        (ready && self.has_waiting()).then_some(self.fence.at)
    }

    fn has_waiting(&self) -> bool {
        self.connection.as_ref().is_some_and(|c| c.queues.values().any(|state| matches!(state, QueueState::Waiting(_))))
    }

    /// Whether a core has a queue of its volume, or one waits for it.
    pub(crate) fn uses_volume(&self) -> bool {
        let uses = |state: &QueueState| !matches!(state, QueueState::Failed { .. });
        self.connection.as_ref().is_some_and(|connection| connection.queues.values().any(uses))
    }

    /// Starts what waits, if the volume is ours by now.
    pub(crate) fn start_waiting(&mut self, now: Instant, host: &mut Host<'_>) {
        let volume = match &self.backing {
            Backing::Open(volume) => Some(Arc::clone(volume)),
            Backing::Nothing => None,
            Backing::Opening | Backing::Failing(_) => return,
        };
        match volume.as_ref().map_or(Ok(Activation::Active), |volume| volume.activate()) {
            Ok(Activation::Active) => {
                self.fence = FenceRetry::now();
                // Another host may have made it larger.
                self.tell_size();
            }
            Ok(Activation::Busy { why }) => {
                tracing::trace!(device = %self.name, why, "waiting for the volume's fence");
                if self.fence.busy(now) {
                    let volume = self.config.volume().unwrap_or_default();
                    tracing::warn!(device = %self.name, volume, %why, "the guest waits: the volume's fence stays busy");
                    self.trouble = Some(format!("it waits for its volume: {why}"));
                }
                return;
            }
            Err(error) => {
                self.fence.put_off(now, FenceRetry::WHILE_FAILING);
                let error = error.to_string();
                if self.trouble.as_ref() != Some(&error) {
                    tracing::error!(device = %self.name, error, "the volume cannot be activated; it is tried again");
                    self.trouble = Some(error);
                }
                return;
            }
        }
        self.start_each(volume.as_ref(), |_| true, host);
    }

    /// Starts the queues that wait to take frames: before any that sends some, of this device or of another.
    pub(crate) fn start_receivers(&mut self, host: &mut Host<'_>) {
        if matches!(self.backing, Backing::Nothing) {
            let receives = |QueueIndex(index)| matches!(QueueRole::of(index), QueueRole::Receive { .. });
            self.start_each(None, receives, host);
        }
    }

    /// Starts what waits of the `wanted` queues.
    fn start_each(&mut self, volume: Option<&Arc<Volume>>, wanted: impl Fn(QueueIndex) -> bool, host: &mut Host<'_>) {
        while let Some((index, waiting)) = self.take_waiting(&wanted) {
            let (base, error) = (waiting.start.base, waiting.start.err);
            let (size, format, resumed) = (waiting.start.size, waiting.start.format, waiting.start.resumed);
            let state = match self.start_now(index, waiting, volume, host) {
                Ok(key) => QueueState::Running(Started { key, size, format }),
                Err(reason) => {
                    tracing::warn!(device = %self.name, queue = index.0, reason, "queue cannot start");
                    self.trouble = Some(format!("queue {index}: {reason}"));
                    QueueState::Failed { base }
                }
            };
            let Some(current) = &mut self.connection else { return };
            let failed = matches!(state, QueueState::Failed { .. });
            if failed {
                current.signal_error(error, host.engine);
            } else if let Some(since) = host.since_ns.filter(|_| resumed) {
                self.pause_ns.get_or_insert(monotonic_ns().saturating_sub(since));
            }
            current.set_state(index, state);
            if !failed && !current.needs_reset() {
                self.trouble = None;
            }
        }
    }

    fn take_waiting(&mut self, wanted: impl Fn(QueueIndex) -> bool) -> Option<(QueueIndex, WaitingQueue)> {
        let queues = &mut self.connection.as_mut()?.queues;
        let waits = |(index, state): (&QueueIndex, &QueueState)| {
            (matches!(state, QueueState::Waiting(_)) && wanted(*index)).then_some(*index)
        };
        let index = queues.iter().find_map(waits)?;
        match queues.remove(&index)? {
            QueueState::Waiting(waiting) => Some((index, *waiting)),
            QueueState::Running(_) | QueueState::Broken(_) | QueueState::Failed { .. } => None,
        }
    }

    /// What waits will never start: the volume is not what the driver knows.
    pub(super) fn give_up_waiting(&mut self) {
        while let Some((index, mut waiting)) = self.take_waiting(|_| true) {
            let base = rings::base_of(waiting.ring.retire());
            if let Some(connection) = &mut self.connection {
                connection.set_state(index, QueueState::Failed { base });
            }
        }
    }

    fn start_now(
        &mut self,
        index: QueueIndex,
        waiting: WaitingQueue,
        volume: Option<&Arc<Volume>>,
        host: &mut Host<'_>,
    ) -> Result<QueueKey, String> {
        let connection = self.connection.as_ref().ok_or("not connected")?;
        let model = self.model.as_ref().ok_or("not connected")?;
        let WaitingQueue { start, ring } = waiting;
        let counters = self.counters.get(usize::from(index.0)).ok_or("the device has no such queue")?;
        let role = match (model, volume) {
            (Model::Disk(disk), Some(volume)) => {
                Role::Block { volume: Arc::clone(volume), requests: disk.block.requests(start.features) }
            }
            (Model::Disk(_), None) => return Err("its volume is not open".to_owned()),
            (Model::Nic(nic), _) => nic.role(index.0, start.features),
        };
        let spec = QueueSpec {
            device: Arc::clone(&self.name),
            index: index.0,
            tenant: self.tenant,
            role,
            ring,
            view: connection.tracked(),
            kick: connection.optional_eventfd(start.kick)?,
            call: connection.optional_eventfd(start.call)?,
            error: connection.optional_eventfd(start.err)?,
            enabled: start.enabled,
            resumed: start.resumed,
            counters: Arc::clone(counters),
        };
        let core = self.core_for(index, host.placements);
        host.engine.start_queue(core, spec).map_err(|error| error.to_string())
    }

    /// Where a queue goes: where it was moved to, or in turn over the device's own cores, or wherever there is least.
    pub(crate) fn core_for(&self, index: QueueIndex, placements: &Placements) -> Option<CoreIndex> {
        let moved = placements.moved(&self.name, index.0);
        let own = self.config.cores.as_deref().filter(|cores| !cores.is_empty());
        let cpu = moved.or_else(|| own.map(|cores| cores[usize::from(index.0) % cores.len()]))?;
        placements.core(cpu)
    }

    /// The queues that a new memory table left without their rings are broken; log, status and the front end say so.
    pub(super) fn lose_queues(&mut self, awaited: &Awaited, host: &mut Host<'_>) {
        let End::Broken(indexes) = &awaited.end else { return };
        for (index, base) in indexes.iter().filter_map(|index| Some((*index, *awaited.bases.get(index)?))) {
            self.lose_queue(index, base, host);
        }
    }

    pub(super) fn lose_queue(&mut self, index: QueueIndex, base: VringBase, host: &mut Host<'_>) {
        let Some(connection) = &mut self.connection else { return };
        let reason = "its rings are not in the memory that the front end shares now";
        tracing::warn!(device = %self.name, queue = index.0, reason, "queue broken by its front end");
        self.trouble = Some(format!("queue {index}: {reason}"));
        connection.set_state(index, QueueState::Failed { base });
        connection.signal_error(connection.session.error_descriptor(index), host.engine);
    }

    /// Whether one of its queues has this key.
    pub(crate) fn owns(&self, key: QueueKey) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.queue_of(key).is_some())
    }

    /// The running queue of that index.
    pub(crate) fn queue(&self, index: u16) -> Option<QueueKey> {
        match self.connection.as_ref()?.queues.get(&QueueIndex(index))? {
            QueueState::Running(started) | QueueState::Broken(started) => Some(started.key),
            QueueState::Waiting(_) | QueueState::Failed { .. } => None,
        }
    }
}
