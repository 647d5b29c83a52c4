//! The devices, the connections of their front ends, and what they share: guests' memory, interfaces that are made
//! again.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use softdpu_engine::{Engine, FromCore, QueueKey};
use softdpu_link::{ConnectionId, LinkError, SharedFd, Up};
use softdpu_memory::Domain;
use softdpu_sched::TenantId;
use softdpu_site as config;
use softdpu_storage::Volume;
use softdpu_vpc::PortId;

use super::broker::Wire;
use super::device::{Backing, Device, Event, Host};
use super::functions::Functions;
use super::networks::Networks;
use super::tap;
use super::volumes::{Readiness, Volumes};

/// Every device, by name.
#[derive(Default)]
pub(super) struct Devices {
    by_name: BTreeMap<String, Device>,
    /// The device of each front end's connection.
    connections: HashMap<ConnectionId, String>,
    /// Guests' memory, by the name of the domain. Kept for a guest that comes back.
    domains: HashMap<String, Arc<Domain>>,
    /// Bytes that each domain may have mapped.
    domain_memory: u64,
    /// TAP devices without their interface.
    lost_taps: BTreeMap<String, tap::Lost>,
    /// Connections follow, and their queues start together with those of the present ones.
    awaits_more: bool,
}

impl Devices {
    /// No devices; each domain may map `domain_memory` bytes.
    pub(super) fn new(domain_memory: u64) -> Devices {
        Devices { domain_memory, ..Devices::default() }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Device> {
        self.by_name.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Device> {
        self.by_name.get_mut(name)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Device> {
        self.by_name.values()
    }

    /// The devices on the volume of that name.
    pub(super) fn users(&self, volume: &str) -> impl Iterator<Item = &Device> {
        self.iter().filter(move |device| device.config.volume() == Some(volume))
    }

    fn users_mut(&mut self, volume: &str) -> impl Iterator<Item = &mut Device> {
        self.by_name.values_mut().filter(move |device| device.config.volume() == Some(volume))
    }

    /// The volumes that a queue uses, or is about to use.
    pub(super) fn volumes_in_use(&self) -> HashSet<&str> {
        self.iter().filter(|device| device.uses_volume()).filter_map(|device| device.config.volume()).collect()
    }

    pub(super) fn remove(&mut self, name: &str) -> Option<Device> {
        self.by_name.remove(name)
    }

    /// One more device, on the volume or in the network that it names: what keeps it from being served is in its
    /// `backing`.
    pub(super) fn add(
        &mut self,
        device: &config::Device,
        tenant: TenantId,
        (volumes, networks, functions): (&Volumes, &mut Networks, &mut Functions),
        host: &mut Host<'_>,
    ) -> Result<(), LinkError> {
        let domain_memory = self.domain_memory;
        let domain = self
            .domains
            .entry(device.domain.clone())
            .or_insert_with(|| Domain::new(device.domain.as_str(), domain_memory));
        let domain = Arc::clone(domain);
        let made = match device.port() {
            Some(port) => {
                let (nic, failure) = match networks.add(device, (port, tenant), functions, host.wire, host.engine) {
                    Ok(nic) => (nic, None),
                    Err(error) => (None, Some(error)),
                };
                let mut made = Device::new(device.clone(), tenant, domain, nic);
                if let Some(error) = failure {
                    tracing::error!(device = device.name, error, "device cannot be served");
                    made.failing(error, host)?;
                    if networks.port_id(&device.name).is_some() {
                        self.lost_taps.insert(device.name.clone(), tap::Lost::new(Instant::now()));
                    }
                }
                made
            }
            None => {
                let mut made = Device::new(device.clone(), tenant, domain, None);
                match device.volume().and_then(|name| volumes.readiness(name)) {
                    Some(Readiness::Open(volume)) => made.opened(Arc::clone(volume), host)?,
                    Some(Readiness::Failing(reason)) => made.failing(reason.to_owned(), host)?,
                    Some(Readiness::Opening) => {}
                    None => made.failing("there is no such volume".to_owned(), host)?,
                }
                made
            }
        };
        self.by_name.insert(device.name.clone(), made);
        Ok(())
    }

    /// A device cannot be attached to its network, or is lost.
    pub(super) fn cannot_be_served(&mut self, name: &str, error: String, host: &mut Host<'_>) -> Result<(), LinkError> {
        tracing::error!(device = name, error, "device cannot be served");
        match self.by_name.get_mut(name) {
            Some(device) => {
                // An interface without a port has nothing behind it.
                device.model = None;
                device.failing(error, host)
            }
            None => Ok(()),
        }
    }

    /// The interface of a TAP is gone: it is made again.
    pub(super) fn socket_lost(
        &mut self,
        port: PortId,
        reason: &str,
        networks: &Networks,
        host: &mut Host<'_>,
    ) -> Result<(), LinkError> {
        host.engine.set_sockets(port, Vec::new());
        let Some(name) = networks.port_name(port).map(str::to_owned) else { return Ok(()) };
        tap::close(&name, host.wire);
        self.cannot_be_served(&name, format!("{reason}: its interface was deleted; it is made again"), host)?;
        self.lost_taps.insert(name, tap::Lost::new(Instant::now()));
        Ok(())
    }

    /// Makes interfaces that were deleted, or could not be made at the start. Returns when to try those again that
    /// could not be made.
    pub(super) fn open_taps(
        &mut self,
        now: Instant,
        networks: &Networks,
        wire: &Wire,
        engine: &mut Engine,
    ) -> Option<Instant> {
        let devices = &mut self.by_name;
        self.lost_taps.retain(|name, lost| {
            let Some(device) = devices.get_mut(name) else { return false };
            let (config::DeviceKind::Tap(settings), Some(port)) = (&device.config.kind, networks.port_id(name)) else {
                return false;
            };
            if lost.next > now {
                return true;
            }
            let mtu = networks.mtu(&settings.port.network).unwrap_or(config::DEFAULT_MTU);
            match tap::open(name, settings, mtu, wire) {
                Ok(socket) => {
                    tracing::info!(device = name, interface = settings.interface, "the interface was made");
                    engine.set_sockets(port, vec![socket]);
                    device.backing = Backing::Nothing;
                    false
                }
                Err(reason) => {
                    device.backing = Backing::Failing(format!("{reason}; it is tried again"));
                    lost.put_off(now);
                    true
                }
            }
        });
        self.lost_taps.values().map(|lost| lost.next).min()
    }

    /// A volume has opened: devices on it can be served.
    pub(super) fn volume_opened(&mut self, volume: &Arc<Volume>, host: &mut Host<'_>) -> Result<(), LinkError> {
        self.users_mut(volume.name()).try_for_each(|device| device.opened(Arc::clone(volume), host))
    }

    /// A volume fails: devices on it cannot be served.
    pub(super) fn volume_failing(&mut self, name: &str, reason: &str, host: &mut Host<'_>) -> Result<(), LinkError> {
        self.users_mut(name).try_for_each(|device| device.failing(reason.to_owned(), host))
    }

    /// A volume has grown: drivers of devices on it get a configuration change notification.
    pub(super) fn volume_grown(&mut self, name: &str, size: u64) -> Result<(), String> {
        self.users_mut(name).try_for_each(|device| device.grow(size))
    }

    /// Starts queues of volumes that are fenced by now. Returns when to ask again for those that are not.
    pub(super) fn start_waiting(&mut self, now: Instant, host: &mut Host<'_>) -> Option<Instant> {
        if self.awaits_more {
            // A message follows, which is what is waited for.
            return None;
        }
        let is_due = |device: &&mut Device| device.fence_due().is_some_and(|at| at <= now);
        // After a kill they all wait: what the first ones send is to find its receivers.
        self.by_name.values_mut().filter(is_due).for_each(|device| device.start_receivers(host));
        self.by_name.values_mut().filter(is_due).for_each(|device| device.start_waiting(now, host));
        self.by_name.values().filter_map(Device::fence_due).min()
    }

    /// A front end is at a device, `more` of them to follow at once.
    pub(super) fn attach(
        &mut self,
        device: String,
        connection: ConnectionId,
        session: Option<String>,
        fds: BTreeMap<u32, SharedFd>,
        more: bool,
        host: &mut Host<'_>,
    ) -> Result<(), LinkError> {
        self.awaits_more = more;
        if !self.by_name.contains_key(&device) {
            let reason = format!("there is no device '{device}'");
            return host.wire.send(&Up::Close { connection, reason }, Vec::new());
        }
        self.connections.insert(connection, device);
        self.event(connection, Event::Attach { connection, session, fds }, host)
    }

    /// A front end is gone.
    pub(super) fn closed(&mut self, connection: ConnectionId, host: &mut Host<'_>) -> Result<(), LinkError> {
        let outcome = self.event(connection, Event::Closed { connection }, host);
        self.connections.remove(&connection);
        outcome
    }

    /// Something happened on a connection.
    pub(super) fn event(
        &mut self,
        connection: ConnectionId,
        event: Event,
        host: &mut Host<'_>,
    ) -> Result<(), LinkError> {
        match self.connections.get(&connection).and_then(|name| self.by_name.get_mut(name)) {
            Some(device) => device.event(event, host),
            None => Ok(()),
        }
    }

    /// Something happened to a queue.
    pub(super) fn core_event(&mut self, key: QueueKey, event: &FromCore, host: &mut Host<'_>) -> Result<(), LinkError> {
        match self.by_name.values_mut().find(|device| device.owns(key)) {
            Some(device) => device.core_event(event, host),
            None => Ok(()),
        }
    }
}
