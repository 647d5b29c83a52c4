//! The networks of the site, their ports on this node, and the tables that the cores forward by.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use softdpu_engine::{Engine, PortCounters, PortSpec, Socket};
use softdpu_vpc::spec::{
    ConnectionLimit, EndpointSpec, MembershipSpec, NetworkSpec, Place, Prefix, ServiceLimit, Spec, SubnetSpec,
    TableCapacity, UnderlaySpec,
};
use softdpu_vpc::tables::{LoadCounts, Loaded, MemberStatus};
use softdpu_vpc::{Mac, PortId, Tables};

use super::broker::Wire;
use super::functions::Functions;
use super::loader::{Ground, Loader};
use super::nic::{self, Nic};
use super::policy;
use super::refusal;
use super::routing;
use super::tap;
use super::underlay::Underlay;
use crate::api::{EndpointChange, LoadResult, NetworkEntries, UNDERLAY};
use crate::config::{self, DeviceKind, MeterSettings, NetworkPort};
use crate::link::{Refusal, SharedFd};

/// How long cores have to go on with other tables: a round of theirs is far shorter.
const SWITCH: Duration = Duration::from_secs(1);

/// What whoever asked for a change is told where one has not.
const LATE: &str =
    "a core has not gone on with the changed networks within a second: until it does, it forwards as before";

/// Room for whatever there is.
const UNBOUNDED: TableCapacity = TableCapacity { endpoints: usize::MAX, routes: usize::MAX, hosts: usize::MAX };

/// Why nothing can be loaded now.
const NO_THREAD: &str = "there is no thread to load them";

/// Everything of networks that is not on a core.
pub(super) struct Networks {
    networks: Vec<config::Network>,
    /// Of tenants that have one, by their names.
    tenant_meters: BTreeMap<String, MeterSettings>,
    /// By the name of their device.
    ports: BTreeMap<String, Attached>,
    underlay: Option<Underlay>,
    /// Numbers of ports that are no more.
    free: Vec<PortId>,
    next: u32,
    /// In force.
    tables: Option<Arc<Tables>>,
    capacity: TableCapacity,
    connections: ConnectionLimit,
    keeps_flows: bool,
    /// This node's tunnel end points, as they are configured; None: it has no underlay.
    end_points: Option<Vec<IpAddr>>,
    /// Hosts that those of the underlay's interface do not reach.
    unreached: Vec<IpAddr>,
    loader: Loader,
    /// What was loaded by file.
    loaded: Option<Arc<Loaded>>,
    /// What was in force before this process began is being loaded.
    is_loading: bool,
    /// Networks that have entries there.
    awaited: Vec<String>,
    zone: Option<String>,
    /// Why that is not in force.
    load_error: Option<String>,
    /// What is attached waits for [`publish_all`](Self::publish_all).
    waits: bool,
    /// A core may still go by the tables before.
    is_late: bool,
}

/// A device's port.
pub(super) struct Attached {
    pub id: PortId,
    pub settings: NetworkPort,
    pub tenant: String,
    /// What it counts, core by core.
    pub counters: Vec<Arc<PortCounters>>,
}

impl Networks {
    pub(super) fn new(
        networks: &[config::Network],
        tenants: &[config::Tenant],
        node: &config::Node,
    ) -> Result<Networks, Errno> {
        let meter = |tenant: &config::Tenant| Some((tenant.name.clone(), tenant.meter?));
        let config::TableSizes { endpoints, routes, hosts, connections, .. } = node.tables;
        Ok(Networks {
            capacity: TableCapacity { endpoints: endpoints as usize, routes: routes as usize, hosts: hosts as usize },
            connections: ConnectionLimit(connections),
            keeps_flows: node.flow_tier,
            end_points: node.underlay.as_ref().map(|underlay| underlay.addresses.clone()),
            unreached: Vec::new(),
            loader: Loader::new()?,
            loaded: None,
            is_loading: false,
            awaited: Vec::new(),
            zone: node.zone.clone(),
            load_error: None,
            waits: false,
            is_late: false,
            networks: networks.to_vec(),
            tenant_meters: tenants.iter().filter_map(meter).collect(),
            ports: BTreeMap::new(),
            underlay: None,
            free: Vec::new(),
            next: 0,
            tables: None,
        })
    }

    /// Opens the way to other hosts, or begins to try to.
    pub(super) fn add_underlay(
        &mut self,
        settings: &config::Underlay,
        engine: &mut Engine,
        now: Instant,
    ) -> Result<(), String> {
        let port = self.number();
        let spec = PortSpec { name: UNDERLAY.into(), socket: None, limit: None };
        let counters = engine.add_port(port, spec, None).map_err(|error| error.to_string())?;
        self.underlay = Some(Underlay::new(settings, port, counters, now));
        self.find_hosts();
        self.open_underlay(engine, now);
        Ok(())
    }

    /// The port by which tunnels come, where there is one.
    pub(super) fn underlay_port(&self) -> Option<PortId> {
        self.underlay.as_ref().map(|underlay| underlay.port)
    }

    /// This node's tunnel end point, once the way to other hosts was open.
    pub(super) fn underlay_spec(&self) -> Option<UnderlaySpec> {
        self.underlay.as_ref()?.spec()
    }

    /// Tries to open the way to other hosts.
    fn open_underlay(&mut self, engine: &Engine, now: Instant) {
        let Some(underlay) = &mut self.underlay else { return };
        let (port, interface) = (underlay.port, underlay.interface().to_owned());
        let (sockets, before) = match underlay.open(engine.cores().count()) {
            Ok(opened) => underlay.take(opened),
            Err(reason) => return underlay.failed(reason, now),
        };
        if let Err(reason) = self.publish(engine) {
            if let Some(underlay) = &mut self.underlay {
                underlay.put_back(before);
                underlay.failed(reason, now);
            }
            return;
        }
        engine.set_sockets(port, sockets);
        tracing::info!(interface, "the underlay is open");
    }

    /// The networks as they are configured.
    pub(super) fn configured(&self) -> Vec<config::Network> {
        self.networks.clone()
    }

    /// Goes on with `networks`, once they are [published](Self::publish).
    pub(super) fn configure(&mut self, networks: Vec<config::Network>) {
        self.networks = networks;
        self.find_hosts();
    }

    /// One more network.
    pub(super) fn insert(&mut self, network: config::Network) -> Result<(), Refusal> {
        if self.networks.iter().any(|known| known.name == network.name) {
            return Err(refusal("exists", format!("there is a network '{}' already", network.name)));
        }
        self.networks.push(network);
        self.find_hosts();
        Ok(())
    }

    /// Without the network `name`, which nothing here is attached to.
    pub(super) fn remove(&mut self, name: &str) -> Result<(), Refusal> {
        if let Some((device, _)) = self.ports.iter().find(|(_, port)| port.settings.network == name) {
            return Err(refusal("busy", format!("device '{device}' is attached to network '{name}'")));
        }
        self.networks.retain(|network| network.name != name);
        self.find_hosts();
        Ok(())
    }

    /// Other guests of a network on other hosts.
    pub(super) fn change_endpoints(&mut self, change: &EndpointChange) -> Result<(), Refusal> {
        let network = self.networks.iter_mut().find(|known| known.name == change.network);
        let network =
            network.ok_or_else(|| refusal("not-found", format!("there is no network '{}'", change.network)))?;
        network.change_endpoints(&change.add, &change.remove);
        self.find_hosts();
        Ok(())
    }

    /// Other groups and lists, or other routing, of networks.
    pub(super) fn change(&mut self, change: &config::NetworksChange) -> Result<(), Refusal> {
        for name in change.networks() {
            if self.networks.iter().all(|known| known.name != name) {
                return Err(refusal("not-found", format!("there is no network '{name}'")));
            }
        }
        change.apply(&mut self.networks);
        self.find_hosts();
        Ok(())
    }

    /// Whether there is room for the hosts that networks and loaded entries lead to, unless there were as many `before`. Entries that were in
    /// force before this process began and are still being read are not known yet: as at the start, they come in whatever there is then.
    pub(super) fn has_room(&self, before: &[config::Network]) -> Result<(), Refusal> {
        let loaded = || self.loaded.iter().flat_map(|loaded| loaded.hosts()).copied();
        let all = |networks: &[config::Network]| config::hosts(networks).chain(loaded()).collect::<HashSet<_>>();
        let (capacity, wanted, before) = (self.capacity.hosts, all(&self.networks), all(before));
        if wanted.len() <= capacity || wanted.len() <= before.len() {
            return Ok(());
        }
        // Whatever else there is, the entry to be told is one that came.
        let known = before.intersection(&wanted).copied().collect();
        let place = config::first_beyond(&self.networks, known, capacity);
        let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
        let message = config::full("hosts", capacity, wanted.len());
        Err(refusal(
            "refused",
            format!("{place}{message}, those of loaded entries among them; set `hosts` in node.tables for more"),
        ))
    }

    /// Another state or weight of a member of an ECMP group.
    pub(super) fn change_member(&mut self, change: &config::MemberChange) -> Result<(), Refusal> {
        let network = self.networks.iter_mut().find(|known| known.name == change.network);
        let is_changed = network.is_some_and(|network| network.change_member(change));
        is_changed.then_some(()).ok_or_else(|| refusal("not-found", "there is no such member".to_owned()))
    }

    /// The ECMP groups of a network, member by member as the cores take them.
    pub(super) fn ecmp_groups(&self, network: &str) -> Vec<(String, Vec<MemberStatus>)> {
        let groups = self.tables.iter().flat_map(|tables| tables.ecmp_groups());
        let own = groups.filter(|(of, ..)| *of == network);
        own.map(|(_, name, members)| (name.to_owned(), members)).collect()
    }

    /// What all that a tenant's interfaces send passes from now on; what it was before.
    pub(super) fn set_tenant_meter(&mut self, tenant: &str, meter: Option<MeterSettings>) -> Option<MeterSettings> {
        match meter {
            Some(meter) => self.tenant_meters.insert(tenant.to_owned(), meter),
            None => self.tenant_meters.remove(tenant),
        }
    }

    /// Puts an interface into other groups, or under another meter.
    pub(super) fn set_device(&mut self, change: &config::DeviceChange) {
        if let Some(port) = self.ports.get_mut(&change.name) {
            change.apply(&mut port.settings);
        }
    }

    /// The VNI of a network; 0 of one that is not there.
    pub(super) fn vni(&self, name: &str) -> u32 {
        self.networks.iter().find(|network| network.name == name).map_or(0, |network| network.vni.get())
    }

    /// Gives an interface its settings back.
    pub(super) fn put_back(&mut self, device: &str, settings: NetworkPort) {
        if let Some(port) = self.ports.get_mut(device) {
            port.settings = settings;
        }
    }

    /// The ways to the hosts of all endpoints are looked for, and watched.
    fn find_hosts(&mut self) {
        if let Some(underlay) = &mut self.underlay {
            let endpoints = self.networks.iter().flat_map(|network| &network.endpoints);
            let loaded = self.loaded.iter().flat_map(|loaded| loaded.hosts());
            let routed = self.networks.iter().flat_map(|network| network.route_hosts());
            let plain = endpoints.map(|endpoint| &endpoint.host).chain(loaded).copied().chain(routed);
            // Of several next hops one that is gone is not to be taken.
            let members = self.networks.iter().flat_map(|network| network.member_hosts());
            underlay.set_hosts(plain.map(|host| (host, false)).chain(members.map(|host| (host, true))).collect());
        }
    }

    /// Loads the file that was in force before this process began, which has entries of the networks `of`.
    pub(super) fn load_kept(&mut self, file: &SharedFd, of: Vec<String>) {
        let begun = file.try_clone().map_err(|error| error.to_string()).and_then(|file| {
            // There was room for all when they were loaded; what came since is no reason to go without them.
            let ground = Ground { capacity: UNBOUNDED, is_kept: true, ..self.ground()? };
            let begun = self.loader.start(None, file, "the loaded entries".to_owned(), ground);
            begun.then_some(()).ok_or_else(|| NO_THREAD.to_owned())
        });
        match begun {
            Ok(()) => (self.is_loading, self.awaited) = (true, of),
            Err(error) => self.not_loaded(error),
        }
    }

    fn not_loaded(&mut self, error: String) {
        tracing::error!(error, "the loaded entries are not in force");
        self.load_error = Some(error);
    }

    /// Why what was in force before this process began is not.
    pub(super) fn load_error(&self) -> Option<&str> {
        self.load_error.as_deref()
    }

    /// Begins to load a file, or, where it `is_kept`, what is left of the one in force; [`loaded`](Self::loaded) tells what came of it.
    pub(super) fn load(&mut self, id: u64, name: String, is_kept: bool, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let file = fds.into_iter().next().ok_or_else(|| refusal("failed", "no file came with the call".to_owned()))?;
        let mut ground = Ground { is_kept, ..self.ground().map_err(|error| refusal("failed", error))? };
        if is_kept {
            // They are fewer than those in force: what is too much gets no less by being refused.
            ground.capacity = UNBOUNDED;
        }
        if self.end_points.is_none() {
            let message = "entries lead to other hosts, and this node has no node.underlay".to_owned();
            return Err(refusal("refused", message));
        }
        let begun = self.loader.start(Some(id), file, name, ground);
        begun.then_some(()).ok_or_else(|| refusal("failed", NO_THREAD.to_owned()))
    }

    fn ground(&self) -> Result<Ground, String> {
        let known = self.underlay.as_ref().and_then(Underlay::spec).map(|spec| spec.addresses);
        Ok(Ground {
            networks: self.networks.iter().map(|network| self.network_spec(network)).collect::<Result<_, _>>()?,
            own: known.or_else(|| self.end_points.clone()).unwrap_or_default(),
            capacity: self.capacity,
            others: config::TableUse::of(&self.networks).endpoints,
            routes: config::TableUse::of(&self.networks).routes,
            hosts: config::hosts(&self.networks).collect(),
            groups: self
                .networks
                .iter()
                .flat_map(|network| network.ecmp.iter().map(|group| (network.name.clone(), group.name.clone())))
                .collect(),
            is_kept: false,
            previous: self.loaded.clone(),
        })
    }

    /// Goes on with entries that were loaded: the call to answer, if one asked, and how.
    pub(super) fn loaded(&mut self, engine: &Engine) -> Option<(Option<u64>, Result<serde_json::Value, Refusal>)> {
        let outcome = self.loader.outcome()?;
        if outcome.asked.is_none() && !std::mem::replace(&mut self.is_loading, false) {
            // Others were loaded meanwhile.
            return Some((None, Ok(serde_json::Value::Null)));
        }
        let result = outcome.result.map_err(|error| refusal("refused", error)).and_then(|loaded| {
            let began = Instant::now();
            let published = self.go_on_with(Arc::clone(&loaded), |networks| networks.publish(engine));
            published.map_err(|error| refusal("failed", error))?;
            self.find_hosts();
            let (read, published) = (outcome.took, began.elapsed());
            tracing::info!(counts = ?loaded.counts(), ?read, ?published, "entries are loaded");
            Ok(load_result(&loaded, outcome.took + began.elapsed()))
        });
        if outcome.asked.is_none()
            && let Err(refusal) = &result
        {
            self.not_loaded(refusal.message.clone());
            if let Err(error) = self.publish(engine) {
                tracing::error!(error, "networks without loaded entries");
            }
        }
        let result = result.map(|loaded| serde_json::to_value(loaded).unwrap_or_default());
        Some((outcome.asked, result))
    }

    /// Has `publish` put loaded entries into force, with which nothing is being loaded any more; what there was before, where
    /// it cannot.
    fn go_on_with(
        &mut self,
        loaded: Arc<Loaded>,
        publish: impl FnOnce(&mut Networks) -> Result<(), String>,
    ) -> Result<(), String> {
        let before = (self.loaded.replace(loaded), std::mem::replace(&mut self.is_loading, false));
        if let Err(error) = publish(self) {
            (self.loaded, self.is_loading) = before;
            return Err(error);
        }
        self.load_error = None;
        Ok(())
    }

    /// Whether entries that were in force before this process began are not yet.
    pub(super) fn is_loading(&self) -> bool {
        self.is_loading
    }

    /// Readable when entries were loaded.
    pub(super) fn loads(&self) -> BorrowedFd<'_> {
        self.loader.bell()
    }

    /// What is loaded of a network.
    pub(super) fn entries(&self, network: &str) -> NetworkEntries {
        let loaded = self.loaded.iter().flat_map(|loaded| loaded.networks());
        let counts = loaded.filter(|(name, _)| *name == network).map(|(_, counts)| counts).next().unwrap_or_default();
        NetworkEntries { endpoints: counts.endpoints as u64, routes: counts.routes as u64 }
    }

    /// Readable when the way to another host changed.
    pub(super) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.underlay.as_ref().and_then(Underlay::bell)
    }

    /// When [`turn`](Self::turn) has something to do without the bell.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        Some(self.underlay.as_ref()?.absence()?.next)
    }

    /// Goes on with what is known of the ways to other hosts.
    pub(super) fn turn(&mut self, engine: &Engine, now: Instant) {
        let Some(underlay) = &mut self.underlay else { return };
        match underlay.changed() {
            Ok(false) => {}
            Ok(true) => self.other_ways(engine),
            Err(reason) => {
                underlay.close(reason, engine, now);
                // ECMP groups take members that are reached otherwise, or none.
                self.other_ways(engine);
            }
        }
        if self.next_deadline().is_some_and(|at| at <= now) {
            self.open_underlay(engine, now);
        }
    }

    fn other_ways(&mut self, engine: &Engine) {
        if let Err(error) = self.publish(engine) {
            tracing::error!(error, "networks with other ways to hosts");
        }
    }

    /// The way to other hosts, if one is configured.
    pub(super) fn underlay(&self) -> Option<&Underlay> {
        self.underlay.as_ref()
    }

    /// Attaches a device; an interface's model, if it is one for a guest. A TAP whose interface cannot be made has a port all the same where
    /// devices [wait](Self::wait) for the others: it is tried again.
    pub(super) fn add(
        &mut self,
        device: &config::Device,
        settings: &NetworkPort,
        functions: &mut Functions,
        wire: &Wire,
        engine: &mut Engine,
    ) -> Result<Option<Nic>, String> {
        let mtu = self.mtu(&settings.network).ok_or_else(|| format!("there is no network '{}'", settings.network))?;
        match &device.kind {
            DeviceKind::VirtioBlk(_) => Ok(None),
            DeviceKind::VirtioNet(nic) => {
                let id = self.attach(device, settings, None, functions, engine)?;
                let made = Nic::new(nic, id, mtu).map_err(|error| error.to_string());
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
    fn number(&mut self) -> PortId {
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
        let id = self.number();
        // Before its first frame.
        let attached = functions.attach(engine, id, self.vni(&settings.network), &settings.functions);
        attached.inspect_err(|_| self.free.push(id))?;
        let name: Arc<str> = device.into();
        // A guest's frames wait in its queues when it sends too much, those of the kernel are dropped.
        let limit = settings.rate.as_ref().filter(|_| is_tap).and_then(nic::limit);
        let counters =
            engine.add_port(id, PortSpec { name, socket, limit }, None).map_err(|error| error.to_string())?;
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

    /// What is attached from now on is put into force by [`publish_all`](Self::publish_all): all tables are built, and all cores
    /// waited for, whenever something is.
    pub(super) fn wait(&mut self) {
        self.waits = true;
    }

    /// Puts all that was attached since [`wait`](Self::wait) into force, and does so with what follows at once. The devices
    /// that cannot be, which are detached, with the reason.
    pub(super) fn publish_all(&mut self, functions: &mut Functions, engine: &mut Engine) -> Vec<(String, String)> {
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
    pub(super) fn detach(&mut self, device: &str, engine: &mut Engine) -> Option<PortId> {
        let Attached { id, .. } = self.ports.remove(device)?;
        engine.remove_port(id);
        self.free.push(id);
        if let Err(error) = self.publish(engine) {
            tracing::error!(device, error, "networks without the device");
        }
        Some(id)
    }

    /// The largest packet of a network.
    pub(super) fn mtu(&self, network: &str) -> Option<u16> {
        let network = self.networks.iter().find(|known| known.name == network)?;
        Some(network.mtu_over(self.underlay.as_ref().map(|underlay| (underlay.room(), 0))))
    }

    /// The number of a port, by the name of its device or as [`UNDERLAY`].
    pub(super) fn port_id(&self, name: &str) -> Option<PortId> {
        let underlay = || self.underlay.as_ref().filter(|_| name == UNDERLAY).map(|underlay| underlay.port);
        self.ports.get(name).map(|port| port.id).or_else(underlay)
    }

    /// What a port is called.
    pub(super) fn port_name(&self, id: PortId) -> Option<&str> {
        let underlay = self.underlay.as_ref().filter(|underlay| underlay.port == id).map(|_| UNDERLAY);
        let device = self.ports.iter().find(|(_, port)| port.id == id).map(|(name, _)| name.as_str());
        device.or(underlay)
    }

    /// The ports of devices, with their names.
    pub(super) fn ports(&self) -> impl Iterator<Item = (&str, &Attached)> {
        self.ports.iter().map(|(name, port)| (name.as_str(), port))
    }

    /// All ports: name, and what it is.
    pub(super) fn descriptions(&self) -> impl Iterator<Item = (String, String)> {
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

    /// The devices whose frames pass the function called `name`.
    pub(super) fn users_of(&self, name: &str) -> Vec<String> {
        let uses = |port: &Attached| port.settings.functions.iter().any(|used| used == name);
        self.ports.iter().filter(|(_, port)| uses(port)).map(|(device, _)| device.clone()).collect()
    }

    pub(super) fn port(&self, device: &str) -> Option<&Attached> {
        self.ports.get(device)
    }

    /// The networks, with the devices that are attached to each.
    pub(super) fn iter(&self) -> impl Iterator<Item = &config::Network> {
        self.networks.iter()
    }

    /// How many ports a network has here.
    pub(super) fn ports_of(&self, network: &str) -> usize {
        self.ports.values().filter(|port| port.settings.network == network).count()
    }

    /// The tables in force.
    pub(super) fn tables(&self) -> Option<&Tables> {
        self.tables.as_deref()
    }

    /// What is to be said of the changes since this was asked last, although they are made.
    pub(super) fn warning(&mut self) -> Option<&'static str> {
        std::mem::take(&mut self.is_late).then_some(LATE)
    }

    /// Puts what is attached into force on all cores.
    pub(super) fn publish(&mut self, engine: &Engine) -> Result<(), String> {
        let spec = self.spec()?;
        // Flows of what is the same in both go on.
        let tables = self.tables.as_ref().map_or_else(|| Tables::build(&spec), |before| before.rebuild(&spec));
        let tables = Arc::new(tables.map_err(|error| error.to_string())?);
        // Who asked for the change may rely on it once it is answered.
        if !engine.set_tables(&tables).wait(SWITCH) {
            tracing::error!("{LATE}");
            self.is_late = true;
        }
        for host in tables.unreached().iter().filter(|host| !self.unreached.contains(host)) {
            tracing::warn!(%host, "what is for this host is dropped: it is this node, or the underlay's interface has no address of its family");
        }
        self.unreached = tables.unreached().to_vec();
        self.tables = Some(tables);
        Ok(())
    }

    fn spec(&self) -> Result<Spec, String> {
        let mut spec = Spec {
            networks: self.networks.iter().map(|network| self.network_spec(network)).collect::<Result<_, _>>()?,
            endpoints: Vec::new(),
            routes: Vec::new(),
            underlay: None,
            neighbors: Vec::new(),
            services: ServiceLimit::default(),
            connections: self.connections,
            meters: Vec::new(),
            loaded: self.loaded.clone(),
            without_flows: !self.keeps_flows,
            is_loading: self.is_loading,
            awaited: if self.is_loading { self.awaited.clone() } else { Vec::new() },
            zone: self.zone.clone(),
            // What is configured was checked with the rest.
            allows_unreached: self.end_points.as_ref().is_none_or(Vec::is_empty),
            ..Spec::default()
        };
        let tenant_meters = self.tenant_meters.iter().map(|(tenant, meter)| meter.spec(tenant_meter(tenant)));
        spec.meters.extend(tenant_meters);
        for (device, Attached { id, settings, tenant, .. }) in &self.ports {
            let own = settings.meter.map(|meter| meter.spec(format!("device {device}")));
            let shared = self.tenant_meters.contains_key(tenant).then(|| tenant_meter(tenant));
            let meters = own.iter().map(|meter| meter.name.clone()).chain(shared).collect();
            spec.meters.extend(own);
            spec.endpoints.push(EndpointSpec {
                network: settings.network.clone(),
                mac: Mac(settings.mac.0),
                addresses: settings.addresses.clone(),
                place: Place::Port(*id),
                mtu: settings.mtu,
                spoof_check: settings.spoof_check,
                policy: MembershipSpec {
                    meters,
                    ..policy::membership(&settings.security_groups, settings.acl.as_ref())
                },
            });
        }
        if let Some(underlay) = &self.underlay
            && let Some(known) = underlay.spec()
        {
            spec.underlay = Some(known);
            spec.neighbors = underlay.neighbors();
            for network in &self.networks {
                spec.endpoints.extend(network.endpoints.iter().map(|endpoint| EndpointSpec {
                    network: network.name.clone(),
                    mac: Mac(endpoint.mac.0),
                    addresses: endpoint.addresses.clone(),
                    place: Place::Host(endpoint.host),
                    mtu: None,
                    spoof_check: true,
                    policy: policy::membership(&endpoint.security_groups, None),
                }));
            }
        }
        routing::add(&self.networks, &mut spec)?;
        Ok(spec)
    }

    fn network_spec(&self, network: &config::Network) -> Result<NetworkSpec, String> {
        let subnet = |subnet: config::Subnet| {
            let prefix = Prefix::new(subnet.prefix.network(), subnet.prefix.prefix_len());
            let prefix = prefix.map_err(|error| format!("network '{}': {error}", network.name))?;
            Ok::<_, String>(SubnetSpec { prefix, gateway: subnet.gateway })
        };
        Ok(NetworkSpec {
            name: network.name.clone(),
            vni: network.vni.get(),
            subnets: network.subnets().map(subnet).collect::<Result<_, _>>()?,
            gateway_mac: Mac(network.gateway_mac().0),
            mtu: self.mtu(&network.name).unwrap_or(config::DEFAULT_MTU),
            dns: network.dns.clone(),
            policy: policy::spec(network)?,
            transit: network.transit,
        })
    }
}

/// What a tenant's meter is called.
fn tenant_meter(tenant: &str) -> String {
    format!("tenant {tenant}")
}

fn load_result(loaded: &Loaded, took: Duration) -> LoadResult {
    let counts = loaded.counts();
    let entries = |(name, counts): (&str, LoadCounts)| {
        (name.to_owned(), NetworkEntries { endpoints: counts.endpoints as u64, routes: counts.routes as u64 })
    };
    LoadResult {
        endpoints: counts.endpoints as u64,
        routes: counts.routes as u64,
        hosts: counts.hosts as u64,
        networks: loaded.networks().map(entries).collect(),
        took_us: took.as_micros() as u64,
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};

    use serde_json::json;

    use super::*;

    /// A network with `endpoints` guests of the site file, and room for two in all.
    fn networks(endpoints: u8) -> Networks {
        let guest = |last: u8| json!({"address": format!("10.0.0.{last}"), "mac": format!("02:5d:00:00:00:{last}"), "host": "192.0.2.2"});
        let guests: Vec<_> = (10..10 + endpoints).map(guest).collect();
        let network = json!({"name": "acme", "vni": 1, "cidr": ["10.0.0.0/16"], "endpoint": guests});
        let network = config::network_from_json(&network).unwrap();
        let tables = config::TableSizes { endpoints: 2, ..config::TableSizes::default() };
        Networks::new(&[network], &[], &config::Node { tables, ..config::Node::default() }).unwrap()
    }

    fn file(text: &str) -> SharedFd {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        Arc::new(file.into())
    }

    const GUEST: &str = "endpoint,acme,10.0.0.3,,192.0.2.2\n";

    /// What comes of the file that was in force before.
    fn kept(networks: &mut Networks, text: &str) -> Result<Arc<Loaded>, String> {
        networks.load_kept(&file(text), vec!["acme".into()]);
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(outcome) = networks.loader.outcome() {
                return outcome.result;
            }
            assert!(Instant::now() < deadline, "the file is read in time");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_loaded_while_what_was_kept_is_read_is_all_there_is() {
        let mut networks = networks(0);
        let loaded = kept(&mut networks, GUEST).unwrap();
        let spec = networks.spec().unwrap();
        assert!(spec.is_loading && spec.awaited == ["acme"]);
        let failed = networks.go_on_with(Arc::clone(&loaded), |_| Err("no".to_owned()));
        assert!(failed.is_err() && networks.spec().unwrap().is_loading && networks.loaded.is_none());
        let published = networks.go_on_with(loaded, |networks| {
            let spec = networks.spec()?;
            (spec.loaded.is_some() && !spec.is_loading && spec.awaited.is_empty())
                .then_some(())
                .ok_or_else(|| "as if it were being read".to_owned())
        });
        assert_eq!(published, Ok(()));
        assert!(!networks.is_loading());
    }

    #[test]
    fn what_was_in_force_is_loaded_again_though_the_table_is_full_meanwhile() {
        let mut networks = networks(2);
        assert_eq!(kept(&mut networks, GUEST).unwrap().counts().endpoints, 1);
    }

    #[test]
    fn fewer_entries_than_are_in_force_have_room_though_the_table_is_too_small() {
        let mut networks = networks(2);
        networks.end_points = Some(Vec::new());
        let mut load = |is_kept| {
            let file = file(GUEST).try_clone().unwrap();
            networks.load(1, "guests.csv".to_owned(), is_kept, vec![file]).unwrap();
            let deadline = Instant::now() + Duration::from_secs(20);
            loop {
                if let Some(outcome) = networks.loader.outcome() {
                    return outcome.result.map(|loaded| loaded.counts().endpoints);
                }
                assert!(Instant::now() < deadline, "the file is read in time");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        assert!(load(false).unwrap_err().contains("the table of endpoints is full"));
        assert_eq!(load(true), Ok(1));
    }

    #[test]
    fn hosts_have_room_beside_those_of_loaded_entries() {
        let mut networks = networks(1);
        networks.capacity.hosts = 2;
        let loaded = kept(&mut networks, &GUEST.replace("192.0.2.2", "192.0.2.3")).unwrap();
        networks.go_on_with(loaded, |_| Ok(())).unwrap();
        let before = networks.configured();
        let route = |host: &str| {
            let change = json!({"network": "acme", "route": [{"prefix": "172.16.0.0/12", "host": host}]});
            config::networks_change_from_json(config::NetworkPart::Routing, &change).unwrap()
        };
        networks.change(&route("192.0.2.3")).unwrap();
        networks.has_room(&before).unwrap();
        networks.change(&route("192.0.2.4")).unwrap();
        let refusal = networks.has_room(&before).unwrap_err();
        let full =
            "network \"acme\", route[0], 192.0.2.4: the table of hosts is full: it has room for 2, and 3 are wanted";
        assert!(refusal.code == "refused" && refusal.message.starts_with(full), "{refusal:?}");
        // What is too many already does not grow, and may change.
        networks.capacity.hosts = 1;
        networks.has_room(&networks.configured()).unwrap();
    }

    #[test]
    fn a_core_that_has_not_gone_on_is_told_of_once() {
        let (engine, mut core) = Engine::by_hand(8).unwrap();
        let mut networks = networks(0);
        networks.publish(&engine).unwrap();
        assert_eq!((networks.warning(), networks.warning()), (Some(LATE), None));
        // One that does, while it is waited for.
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    core.round();
                }
            });
            let published = networks.publish(&engine);
            is_done.store(true, Ordering::Relaxed);
            published.unwrap();
        });
        assert_eq!(networks.warning(), None);
    }

    #[test]
    fn why_what_was_in_force_is_not_is_told_until_something_else_is_loaded() {
        let mut networks = networks(0);
        let error = kept(&mut networks, "endpoint,gone,10.0.0.3,,192.0.2.2\n").unwrap_err();
        networks.not_loaded(error);
        assert!(networks.load_error().is_some_and(|error| error.contains("gone")), "{:?}", networks.load_error());
        let loaded = kept(&mut networks, GUEST).unwrap();
        networks.go_on_with(loaded, |_| Ok(())).unwrap();
        assert_eq!(networks.load_error(), None);
    }
}
