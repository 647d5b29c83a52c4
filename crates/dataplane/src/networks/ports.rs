//! Ports of devices.

use std::sync::Arc;

use softdpu_engine::{Engine, PortCounters, PortSpec, Socket};
use softdpu_sched::TenantId;
use softdpu_vpc::PortId;

use super::super::functions::Functions;
use super::super::nic::{self, Nic};
use super::super::{broker::Wire, tap, underlay::Underlay};
use super::Networks;
use softdpu_api::UNDERLAY;
use softdpu_site::{self as config, DeviceKind, NetworkPort};

/// A device's port.
pub(crate) struct Attached {
    pub id: PortId,
    pub settings: NetworkPort,
    pub tenant: String,
    /// What it counts, core by core.
    pub counters: Vec<Arc<PortCounters>>,
}

impl Networks {
    /// Puts an interface into other groups, or under another meter.
    pub(crate) fn set_device(&mut self, change: &config::DeviceChange) {
        if let Some(port) = self.ports.get_mut(&change.name) {
            change.apply(&mut port.settings);
        }
    }

    /// Gives an interface its settings back.
    pub(crate) fn put_back(&mut self, device: &str, settings: NetworkPort) {
        if let Some(port) = self.ports.get_mut(device) {
            port.settings = settings;
        }
    }

    /// Attaches a device; an interface's model, if it is one for a guest. A TAP that cannot be made has a
    /// port all the same where devices [wait](Self::wait) for the others: it is tried again.
    pub(crate) fn add(
        &mut self,
        device: &config::Device,
        (settings, tenant): (&NetworkPort, TenantId),
        functions: &mut Functions,
        wire: &Wire,
        engine: &mut Engine,
    ) -> Result<Option<Nic>, String> {
        self.know_tenant(&device.tenant, tenant);
        let mtu = self.mtu(&settings.network).ok_or_else(|| format!("there is no network '{}'", settings.network))?;
        match &device.kind {
            DeviceKind::VirtioBlk(_) => Ok(None),
            DeviceKind::VirtioNet(nic) => {
                let id = self.attach(device, settings, None, functions, engine)?;
                let made = Nic::new(nic, id, mtu, self.are_spent()).map_err(|error| error.to_string());
                made.map(Some).inspect_err(|_| {
                    functions.detach(engine, id);
                    self.detach(&device.name, engine);
                })
            }
            DeviceKind::Tap(tap) => {
                let opened = tap::open(&device.name, tap, mtu, wire);
                let (socket, failure) = match opened {
                    Ok(socket) => (Some(socket), None),
                    Err(reason) if self.waits => (None, Some(reason)),
                    Err(reason) => return Err(reason),
                };
                self.attach(device, settings, socket, functions, engine)?;
                failure.map_or(Ok(None), Err)
            }
        }
    }

    /// A port's number.
    pub(super) fn number(&mut self) -> PortId {
        self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            PortId(self.next - 1)
        })
    }

    /// Attaches a device's port; the cores forward to it from now on.
    fn attach(
        &mut self,
        device: &config::Device,
        settings: &NetworkPort,
        socket: Option<Socket>,
        functions: &mut Functions,
        engine: &mut Engine,
    ) -> Result<PortId, String> {
        let is_tap = matches!(device.kind, DeviceKind::Tap(_));
        let (device, tenant) = (device.name.as_str(), device.tenant.clone());
        let owner = self.tenants.get(&tenant).copied();
        let id = self.number();
        // Before its first frame.
        let attached = functions.attach(engine, id, self.vni(&settings.network), &settings.functions);
        attached.inspect_err(|_| self.free.push(id))?;
        let name: Arc<str> = device.into();
        // A guest's frames wait in its queues when it sends too much, those of the kernel are dropped.
        let limit = |rate: Option<&config::RateLimit>| nic::limit(rate?, self.are_spent());
        let (limit, receive_limit) =
            (limit(settings.rate.as_ref().filter(|_| is_tap)), limit(settings.receive_rate.as_ref()));
        let spec = PortSpec { name, socket, limit, receive_limit, tenant: owner };
        let counters = engine.add_port(id, spec, None).map_err(|error| error.to_string())?;
        self.ports.insert(device.to_owned(), Attached { id, settings: settings.clone(), tenant, counters });
        if self.waits {
            return Ok(id);
        }
        let published = self.publish(engine).inspect_err(|_| {
            functions.detach(engine, id);
            self.detach(device, engine);
        });
        published.map(|()| id)
    }

    /// What is attached from now on is put into force by [`publish_all`](Self::publish_all): all tables are built, and
    /// all cores waited for, whenever something is.
    pub(crate) fn wait(&mut self) {
        self.waits = true;
    }

    /// Puts all that was attached since [`wait`](Self::wait) into force, and does so with what follows at once. The
    /// devices that cannot be, which are detached, with the reason.
    pub(crate) fn publish_all(&mut self, functions: &mut Functions, engine: &mut Engine) -> Vec<(String, String)> {
        self.waits = false;
        if self.ports.is_empty() || self.publish(engine).is_ok() {
            return Vec::new();
        }
        // One of them is why: one after the other tells which.
        let mut refused = Vec::new();
        for (device, port) in std::mem::take(&mut self.ports) {
            self.ports.insert(device.clone(), port);
            if let Err(error) = self.publish(engine) {
                if let Some(port) = self.ports.get(&device) {
                    functions.detach(engine, port.id);
                }
                self.detach(&device, engine);
                refused.push((device, error));
            }
        }
        refused
    }

    /// The device is no more. Which port it had.
    pub(crate) fn detach(&mut self, device: &str, engine: &mut Engine) -> Option<PortId> {
        let Attached { id, .. } = self.ports.remove(device)?;
        engine.remove_port(id);
        self.free.push(id);
        if let Err(error) = self.publish(engine) {
            tracing::error!(device, error, "networks without the device");
        }
        Some(id)
    }

    /// The number of a port, by the name of its device or as [`UNDERLAY`].
    pub(crate) fn port_id(&self, name: &str) -> Option<PortId> {
        let underlay = || self.underlay.as_ref().filter(|_| name == UNDERLAY).map(|underlay| underlay.port);
        self.ports.get(name).map(|port| port.id).or_else(underlay)
    }

    /// What a port is called.
    pub(crate) fn port_name(&self, id: PortId) -> Option<&str> {
        let underlay = self.underlay.as_ref().filter(|underlay| underlay.port == id).map(|_| UNDERLAY);
        let device = self.ports.iter().find(|(_, port)| port.id == id).map(|(name, _)| name.as_str());
        device.or(underlay)
    }

    /// The ports of devices, with their names.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (&str, &Attached)> {
        self.ports.iter().map(|(name, port)| (name.as_str(), port))
    }

    /// All ports: name, and what it is.
    pub(crate) fn descriptions(&self) -> impl Iterator<Item = (String, String)> {
        let underlay = self.underlay.as_ref().map(Underlay::udp_port);
        let underlay = underlay.map(|port| (UNDERLAY.to_owned(), format!("the underlay, VXLAN on UDP port {port}")));
        let vni =
            |name: &str| self.networks.iter().find(|network| network.name == name).map(|network| network.vni.get());
        let ports = self.ports.iter().map(move |(name, port)| {
            let network = &port.settings.network;
            (name.clone(), format!("{} in {network}, VNI {}", port.settings.mac, vni(network).unwrap_or_default()))
        });
        ports.chain(underlay)
    }

    /// The devices with frames that pass the function called `name`.
    pub(crate) fn users_of(&self, name: &str) -> Vec<String> {
        let uses = |port: &Attached| port.settings.functions.iter().any(|used| used == name);
        self.ports.iter().filter(|(_, port)| uses(port)).map(|(device, _)| device.clone()).collect()
    }

    pub(crate) fn port(&self, device: &str) -> Option<&Attached> {
        self.ports.get(device)
    }

    /// How many ports a network has here.
    pub(crate) fn ports_of(&self, network: &str) -> usize {
        self.ports.values().filter(|port| port.settings.network == network).count()
    }
}
