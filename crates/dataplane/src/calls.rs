//! What the management API asks of the data plane.

use std::time::Instant;

use serde_json::Value;

use super::DataPlane;
use super::device::Backing;
use super::explain::explain;
use super::networks::Networks;
use super::report::{report, request_counts};
use super::tap;
use softdpu_api::{ApiError, Change, EntryChanges, ErrorCode, LoadFile, QueuePlacement};
use softdpu_link::{Call, LinkError};
use softdpu_site as config;
use softdpu_sys::ReapedFd;

/// What a call is answered with.
pub(super) type Answer = Result<Value, ApiError>;

/// The answer to what is done and has nothing to tell.
pub(super) fn nothing() -> Value {
    Value::Object(Default::default())
}

/// The answer to what could not be begun.
fn unless_begun(begun: Result<(), ApiError>) -> Option<Answer> {
    begun.err().map(Err)
}

impl DataPlane {
    /// Does what is asked, or begins it. None: it is answered when it is done.
    pub(super) fn call(&mut self, id: u64, call: Call, fds: Vec<ReapedFd>) -> Result<Option<Answer>, LinkError> {
        let done = match call {
            Call::Status => return Ok(Some(report(self))),
            Call::Change(change) => return self.change(id, change, fds),
            Call::TracePacket { trace, greeting } => {
                self.traces.show(&trace, greeting, fds, &self.networks, &mut self.engine)
            }
            Call::TraceExplain(question) => return Ok(Some(explain(&question, &self.networks, &self.engine))),
            Call::TraceReplay { port, id } => self.traces.replay(&port, id, fds, &self.networks, &mut self.engine),
        };
        Ok(Some(done.map(|()| nothing())))
    }

    /// Makes a change, or begins it. None: it is answered when a volume has opened or grown, or a file is loaded.
    fn change(&mut self, id: u64, change: Change, fds: Vec<ReapedFd>) -> Result<Option<Answer>, LinkError> {
        // A warning about an earlier change is not about this one.
        self.warning();
        let made = match change {
            Change::VolumeCreate(volume) => {
                self.volumes.add(volume, Some(id), Instant::now());
                return Ok(None);
            }
            Change::VolumeGrow { name, size } => {
                let begun = self.volumes.grow(&name, size.0, id, Instant::now());
                return Ok(unless_begun(begun.map_err(|error| ApiError::new(ErrorCode::Failed, error))));
            }
            Change::VolumeDelete { name } => self.delete_volume(&name),
            Change::DeviceAdd(device) => self.new_device(&device)?,
            Change::DeviceSet(change) => self.set_device(&change),
            Change::DeviceRemove { name } => self.remove_device(&name),
            Change::NetworkAdd(network) => self.change_networks(|networks| networks.insert(*network)),
            Change::NetworkRemove { name } => self.change_networks(|networks| networks.remove(&name)),
            Change::NetworkEndpoints(change) => self.change_networks(|networks| networks.change_endpoints(&change)),
            Change::NetworkPolicy(changes) => self.change_networks(|networks| networks.change(&changes)),
            Change::NetworkRouting(changes) => self.change_networks(|networks| networks.change(&changes)),
            Change::NetworkNat(changes) => self.change_networks(|networks| networks.change(&changes)),
            Change::NetworkMember(change) => self.change_networks(|networks| networks.change_member(&change)),
            Change::NetworkLoad(LoadFile { path }) => {
                let name = path.display().to_string();
                return Ok(unless_begun(self.networks.load(id, name, fds)));
            }
            Change::NetworkUnload(unload) => return Ok(self.change_entries(id, (&unload).into())),
            Change::NetworkEntries(changes) => return Ok(self.change_entries(id, changes)),
            Change::FunctionAdd(function) => self.functions.insert(&function, &self.engine),
            Change::FunctionSet(change) => self.functions.set(&change, &self.engine),
            Change::FunctionRemove { name } => self.functions.remove(&name),
            Change::NetworkSteer(change) => self.steering.change(&change, &self.placements, &mut self.engine),
            Change::NodeScale(change) => self.scale(&change),
            Change::TenantAdd(tenant) => self.tenants.add(&tenant, &mut self.networks, &mut self.engine),
            Change::TenantSet(change) => self.tenants.change(&change, &mut self.networks, &mut self.engine),
            Change::TenantRemove { name } => self.remove_tenant(&name),
            Change::QueueMove(to) => self.move_queue(to),
        };
        Ok(Some(made.map(|()| self.warned(nothing()))))
    }

    /// A warning about the last change, which is made.
    fn warning(&mut self) -> Option<&'static str> {
        let (networks, functions) = (self.networks.warning(), self.functions.warning());
        networks.or(functions)
    }

    /// The answer to a change, with its warnings.
    pub(super) fn warned(&mut self, mut result: Value) -> Value {
        if let (Some(warning), Some(members)) = (self.warning(), result.as_object_mut()) {
            members.insert("warning".to_owned(), warning.into());
        }
        result
    }

    fn delete_volume(&mut self, volume: &str) -> Result<(), ApiError> {
        if let Some(user) = self.devices.users(volume).next() {
            return Err(ApiError::new(ErrorCode::Busy, format!("device '{}' uses volume '{volume}'", user.name)));
        }
        if let Some(closed) = self.volumes.remove(volume) {
            self.engine.detach(&closed);
        }
        Ok(())
    }

    /// One on a volume that is being opened is fine; that one cannot be opened is better reported now.
    fn new_device(&mut self, device: &config::Device) -> Result<Result<(), ApiError>, LinkError> {
        self.add_device(device)?;
        let reason = match self.devices.get(&device.name).map(|added| &added.backing) {
            Some(Backing::Failing(reason)) => reason.clone(),
            Some(_) => return Ok(Ok(())),
            None => {
                return Ok(Err(ApiError::new(ErrorCode::NotFound, format!("there is no tenant '{}'", device.tenant))));
            }
        };
        self.devices.remove(&device.name);
        Ok(Err(ApiError::new(ErrorCode::Failed, reason)))
    }

    /// An interface is in other groups, passes another meter, or has other functions, from now on; it stays as it was
    /// where the cores cannot go on with that.
    fn set_device(&mut self, change: &config::DeviceChange) -> Result<(), ApiError> {
        let name = &change.name;
        let DataPlane { networks, functions, engine, .. } = self;
        let port = networks.port(name).map(|port| (port.id, port.settings.clone()));
        let (id, before) = port.ok_or_else(|| {
            ApiError::new(ErrorCode::NotFound, format!("there is no interface '{name}' in a network"))
        })?;
        let vni = networks.vni(&before.network);
        if let Some(names) = &change.functions {
            functions.attach(engine, id, vni, names).map_err(|error| ApiError::new(ErrorCode::Refused, error))?;
        }
        networks.set_device(change);
        if change.is_about_tables()
            && let Err(error) = networks.publish(engine)
        {
            // They were there a moment ago.
            let _ = functions.attach(engine, id, vni, &before.functions);
            networks.put_back(name, before);
            return Err(ApiError::new(ErrorCode::Failed, error));
        }
        if let Some(port) = self.devices.get_mut(name).and_then(|device| device.config.port_mut()) {
            change.apply(port);
        }
        Ok(())
    }

    fn remove_device(&mut self, device: &str) -> Result<(), ApiError> {
        if self.devices.get(device).is_some_and(|known| !known.is_idle()) {
            return Err(ApiError::new(ErrorCode::Busy, format!("a front end is connected to device '{device}'")));
        }
        if let Some(gone) = self.devices.remove(device) {
            gone.forget_records(&self.wire);
            // A volume's counters only count up, whichever devices come and go.
            if let Some(volume) = gone.config.volume() {
                gone.counters.iter().for_each(|queue| self.volumes.keep(volume, &request_counts(queue)));
            }
            if let Some(port) = self.networks.detach(device, &mut self.engine) {
                self.functions.detach(&self.engine, port);
            }
            tap::close(device, &self.wire);
        }
        self.placements.forget(device);
        Ok(())
    }

    /// Single loaded entries change. None: what they are part of is still being loaded.
    fn change_entries(&mut self, id: u64, changes: EntryChanges) -> Option<Answer> {
        let made = self.networks.change_entries(id, changes, &self.engine)?;
        Some(made.map(|result| self.warned(result)))
    }

    /// The cores forward by what `change` made of the networks; by what was there before, where it is refused.
    fn change_networks(&mut self, change: impl FnOnce(&mut Networks) -> Result<(), ApiError>) -> Result<(), ApiError> {
        let before = self.networks.configured();
        let made = change(&mut self.networks).and_then(|()| self.networks.has_room(&before));
        let made = made.and_then(|()| {
            self.networks.publish(&self.engine).map_err(|error| ApiError::new(ErrorCode::Failed, error))
        });
        made.inspect_err(|_| self.networks.configure(before))
    }

    fn remove_tenant(&mut self, name: &str) -> Result<(), ApiError> {
        if let Some(user) = self.devices.iter().find(|device| device.config.tenant == name) {
            let message = format!("device '{}' is of tenant '{name}'", user.config.name);
            return Err(ApiError::new(ErrorCode::Busy, message));
        }
        self.tenants.take_away(name, &mut self.networks, &mut self.engine)
    }

    fn move_queue(&mut self, to: QueuePlacement) -> Result<(), ApiError> {
        let device = self
            .devices
            .get(&to.device)
            .ok_or_else(|| ApiError::new(ErrorCode::NotFound, format!("there is no device '{}'", to.device)))?;
        let core = self.placements.core(to.core).ok_or_else(|| {
            let mut cpus = self.placements.cpus().to_vec();
            cpus.sort_unstable();
            ApiError::new(ErrorCode::NotFound, format!("CPU {} is no data-plane core; there are {cpus:?}", to.core))
        })?;
        if usize::from(to.queue) >= device.counters.len() {
            let text = match device.counters.len() {
                0 => format!("device '{}' has no queues: its core reads it by itself", to.device),
                1 => format!("device '{}' has queue 0 alone", to.device),
                count => format!("device '{}' has queues 0 to {}", to.device, count - 1),
            };
            return Err(ApiError::new(ErrorCode::NotFound, text));
        }
        if let Some(key) = device.queue(to.queue) {
            self.engine.move_queue(key, core).map_err(|error| ApiError::new(ErrorCode::Failed, error.to_string()))?;
        }
        self.placements.record(to);
        Ok(())
    }
}
