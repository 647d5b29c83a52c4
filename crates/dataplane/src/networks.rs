//! The networks of the site, their ports on this node, and the tables that the cores forward by.

mod entries;
mod keeping;
mod loads;
mod ports;
mod publish;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use softdpu_engine::{Engine, PortSpec};
use softdpu_sched::TenantId;
use softdpu_sys::clock;
use softdpu_vpc::spec::{ConnectionLimit, TableCapacity, UnderlaySpec};
use softdpu_vpc::tables::{Loaded, MemberStatus, Pair};
use softdpu_vpc::{PortId, Tables, Vni};

use super::broker::Wire;
use super::loader::Loader;
use super::underlay::Underlay;
use super::underlay::bfd::{BfdSessions, SessionStatus};
use softdpu_api::status::TakenOverStatus;
use softdpu_api::{ApiError, EndpointChange, EntryChanges, ErrorCode, UNDERLAY};
use softdpu_site::{self as config, MeterSettings};

use keeping::Legacy;
pub(super) use ports::Attached;
use publish::SWITCH;

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
    /// What was loaded by file, and changed since.
    loaded: Option<Pair>,
    /// A copy of what is loaded, for changes, is being made.
    is_copying: bool,
    /// A change of single entries that waits for what is being loaded or copied, and the call that asked for it.
    waiting: Option<(u64, EntryChanges)>,
    /// The hosts of loaded entries that are watched, by their number.
    watched: Option<u32>,
    /// What was in force before this process began is being loaded.
    is_loading: bool,
    /// Networks that have entries there.
    awaited: Vec<String>,
    zone: Option<String>,
    /// Why that is not in force.
    load_error: Option<String>,
    /// The numbers of tenants, to which what wires bring belongs.
    tenants: HashMap<String, TenantId>,
    /// What is attached waits for [`publish_all`](Self::publish_all).
    waits: bool,
    /// A core may still go by the tables before.
    is_late: bool,
    /// Sessions with the hosts of ECMP groups that ask for them.
    bfd: BfdSessions,
    /// When another data plane may have given the bursts of meters, nanoseconds.
    meters_empty_at: Option<u64>,
    /// Connections and translations for the data planes to come, and of those before.
    legacy: Legacy,
}

impl Networks {
    pub(super) fn new(
        networks: &[config::Network],
        tenants: &[config::Tenant],
        node: &config::Node,
        wire: Arc<Wire>,
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
            is_copying: false,
            waiting: None,
            watched: None,
            is_loading: false,
            awaited: Vec::new(),
            zone: node.zone.clone(),
            load_error: None,
            waits: false,
            is_late: false,
            meters_empty_at: None,
            legacy: Legacy::new(Arc::clone(&wire), connections),
            bfd: BfdSessions::new(wire),
            networks: networks.to_vec(),
            tenant_meters: tenants.iter().filter_map(meter).collect(),
            tenants: HashMap::new(),
            ports: BTreeMap::new(),
            underlay: None,
            free: Vec::new(),
            next: 0,
            tables: None,
        })
    }

    /// Opens the underlay, or begins to try to.
    pub(super) fn add_underlay(
        &mut self,
        settings: &config::Underlay,
        engine: &mut Engine,
        now: Instant,
    ) -> Result<(), String> {
        let port = self.number();
        let spec = PortSpec { name: UNDERLAY.into(), ..PortSpec::default() };
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

    /// This node's tunnel end point, once the underlay was open.
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
        // Sessions that were up before this process began are up in the first tables.
        self.find_sessions();
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
    pub(super) fn insert(&mut self, network: config::Network) -> Result<(), ApiError> {
        if self.networks.iter().any(|known| known.name == network.name) {
            return Err(ApiError::new(ErrorCode::Exists, format!("there is a network '{}' already", network.name)));
        }
        self.networks.push(network);
        self.find_hosts();
        Ok(())
    }

    /// Without the network `name`, which nothing here is attached to.
    pub(super) fn remove(&mut self, name: &str) -> Result<(), ApiError> {
        if let Some((device, _)) = self.ports.iter().find(|(_, port)| port.settings.network == name) {
            return Err(ApiError::new(ErrorCode::Busy, format!("device '{device}' is attached to network '{name}'")));
        }
        self.networks.retain(|network| network.name != name);
        self.find_hosts();
        Ok(())
    }

    /// Other guests of a network on other hosts.
    pub(super) fn change_endpoints(&mut self, change: &EndpointChange) -> Result<(), ApiError> {
        let network = self.networks.iter_mut().find(|known| known.name == change.network);
        let network = network
            .ok_or_else(|| ApiError::new(ErrorCode::NotFound, format!("there is no network '{}'", change.network)))?;
        network.change_endpoints(&change.add, &change.remove);
        self.find_hosts();
        Ok(())
    }

    /// Other groups and lists, or other routing, of networks.
    pub(super) fn change<T: config::NetworkChange>(&mut self, changes: &[T]) -> Result<(), ApiError> {
        for name in changes.iter().map(T::network) {
            if self.networks.iter().all(|known| known.name != name) {
                return Err(ApiError::new(ErrorCode::NotFound, format!("there is no network '{name}'")));
            }
        }
        T::apply_all(changes, &mut self.networks);
        self.find_hosts();
        Ok(())
    }

    /// Whether there is room for the hosts that networks and loaded entries lead to, unless there were as many
    /// `before`. Entries that were in force before this process began and are still being read are not known yet: as at
    /// the start, they come in whatever there is then.
    pub(super) fn has_room(&self, before: &[config::Network]) -> Result<(), ApiError> {
        let loaded = || self.in_force().into_iter().flat_map(|loaded| loaded.hosts());
        let all = |networks: &[config::Network]| config::hosts(networks).chain(loaded()).collect::<HashSet<_>>();
        let (capacity, wanted, before) = (self.capacity.hosts, all(&self.networks), all(before));
        if wanted.len() <= capacity || wanted.len() <= before.len() {
            return Ok(());
        }
        // Whatever else there is, the entry to report is a new one.
        let known = before.intersection(&wanted).copied().collect();
        let place = config::first_beyond(&self.networks, known, capacity);
        let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
        let message = config::full("hosts", capacity, wanted.len());
        Err(ApiError::new(
            ErrorCode::Refused,
            format!("{place}{message}, those of loaded entries among them; set `hosts` in node.tables for more"),
        ))
    }

    /// Another state or weight of a member of an ECMP group.
    pub(super) fn change_member(&mut self, change: &config::MemberChange) -> Result<(), ApiError> {
        let network = self.networks.iter_mut().find(|known| known.name == change.network);
        let is_changed = network.is_some_and(|network| network.change_member(change));
        is_changed.then_some(()).ok_or_else(|| ApiError::new(ErrorCode::NotFound, "there is no such member".to_owned()))
    }

    /// The ECMP groups of a network, member by member as the cores take them.
    pub(super) fn ecmp_groups(&self, network: &str) -> Vec<(String, Vec<MemberStatus>)> {
        let groups = self.tables.iter().flat_map(|tables| tables.ecmp_groups());
        let own = groups.filter(|(of, ..)| *of == network);
        own.map(|(_, name, members)| (name.to_owned(), members)).collect()
    }

    /// The number of a tenant, which keeps it.
    pub(super) fn know_tenant(&mut self, name: &str, id: TenantId) {
        self.tenants.insert(name.to_owned(), id);
    }

    /// All that the tenant's interfaces send passes `meter` from now on; what it passed before, where the cores cannot
    /// go on with that.
    pub(super) fn meter_tenant(
        &mut self,
        name: &str,
        meter: Option<MeterSettings>,
        engine: &Engine,
    ) -> Result<(), ApiError> {
        let before = self.set_tenant_meter(name, meter);
        if before == meter {
            return Ok(());
        }
        self.publish(engine).map_err(|error| {
            self.set_tenant_meter(name, before);
            ApiError::new(ErrorCode::Failed, error)
        })
    }

    /// What all that a tenant's interfaces send passes from now on; what it was before.
    fn set_tenant_meter(&mut self, tenant: &str, meter: Option<MeterSettings>) -> Option<MeterSettings> {
        match meter {
            Some(meter) => self.tenant_meters.insert(tenant.to_owned(), meter),
            None => self.tenant_meters.remove(tenant),
        }
    }

    /// The VNI of a network; 0 of one that is not there.
    pub(super) fn vni(&self, name: &str) -> Vni {
        self.networks.iter().find(|network| network.name == name).map_or(Vni::NONE, |network| network.vni)
    }

    /// Has the next hops to the hosts of all endpoints resolved and watched.
    fn find_hosts(&mut self) {
        self.watched = self.in_force().map(|loaded| loaded.hosts_version());
        if let Some(underlay) = &mut self.underlay {
            let endpoints = self.networks.iter().flat_map(|network| &network.endpoints);
            let loaded = self.loaded.iter().flat_map(|loaded| loaded.front().hosts());
            let routed = self.networks.iter().flat_map(|network| network.route_hosts());
            let plain = endpoints.map(|endpoint| endpoint.host).chain(loaded).chain(routed);
            // Of several next hops one that is gone is not to be taken.
            let members = self.networks.iter().flat_map(|network| network.member_hosts());
            underlay.set_hosts(plain.map(|host| (host, false)).chain(members.map(|host| (host, true))).collect());
        }
        self.find_sessions();
    }

    /// Has BFD sessions with the hosts of ECMP groups that ask for them.
    fn find_sessions(&mut self) {
        if let Some(underlay) = &self.underlay {
            let hosts = self.networks.iter().flat_map(|network| network.bfd_hosts()).collect();
            self.bfd.want(hosts, underlay.bfd(), underlay.addresses());
        }
    }

    /// What is loaded and in force.
    fn in_force(&self) -> Option<&Arc<Loaded>> {
        self.loaded.as_ref().map(Pair::front)
    }

    /// Readable when the state of a BFD session changed.
    pub(super) fn bfd_bell(&self) -> Option<BorrowedFd<'_>> {
        self.bfd.bell()
    }

    /// The BFD sessions by host.
    pub(super) fn bfd_status(&self) -> BTreeMap<IpAddr, SessionStatus> {
        self.bfd.status()
    }

    /// Readable when the way to another host changed.
    pub(super) fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.underlay.as_ref().and_then(Underlay::bell)
    }

    /// When [`turn`](Self::turn) has something to do without the bell.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.absence_ends().into_iter().chain(self.legacy.due()).min()
    }

    /// When it is tried again to open the underlay.
    fn absence_ends(&self) -> Option<Instant> {
        Some(self.underlay.as_ref()?.absence()?.next)
    }

    /// Goes on with what is known of the ways to other hosts.
    pub(super) fn turn(&mut self, engine: &Engine, now: Instant) {
        self.legacy.turn(self.tables.as_deref(), now);
        let Some(underlay) = &mut self.underlay else { return };
        let session_changed = self.bfd.changed();
        match underlay.changed() {
            Ok(false) if !session_changed => {}
            Ok(_) => self.other_ways(engine),
            Err(reason) => {
                underlay.close(reason, engine, now);
                // ECMP groups take members that are reached otherwise, or none.
                self.other_ways(engine);
            }
        }
        if self.absence_ends().is_some_and(|at| at <= now) {
            self.open_underlay(engine, now);
        }
    }

    fn other_ways(&mut self, engine: &Engine) {
        if let Err(error) = self.publish(engine) {
            tracing::error!(error, "networks with other ways to hosts");
        }
    }

    /// What processes before this one have left is this one's: it serves. Before the first tables. `follows`: there was
    /// one, which may have given the bursts of all limits.
    pub(super) fn inherit(&mut self, follows: bool, now: Instant) {
        self.meters_empty_at = follows.then(clock::now);
        self.legacy.inherit(now);
    }

    /// Whether limits of what is attached now may have given their bursts.
    fn are_spent(&self) -> bool {
        self.waits && self.meters_empty_at.is_some()
    }

    /// This process ends: connections and translations stay for the next.
    pub(super) fn bequeath(&mut self) {
        self.legacy.close();
    }

    /// What was taken over.
    pub(super) fn taken_over(&self) -> Option<TakenOverStatus> {
        self.legacy.status()
    }

    /// Closes interfaces and sockets, which another data plane opens, and waits until no core has one.
    pub(super) fn let_go(&mut self, wire: &Arc<Wire>, engine: &Engine, now: Instant) {
        self.bequeath();
        self.bfd = BfdSessions::new(Arc::clone(wire));
        if let Some(underlay) = &mut self.underlay {
            underlay.let_go(engine, now);
        }
        for port in self.ports.values() {
            engine.set_sockets(port.id, Vec::new());
        }
        if let Some(tables) = &self.tables
            && !engine.set_tables(tables).wait(SWITCH)
        {
            tracing::error!("a core has not closed its sockets within a second");
        }
    }

    /// The way to other hosts, if one is configured.
    pub(super) fn underlay(&self) -> Option<&Underlay> {
        self.underlay.as_ref()
    }

    /// The largest packet of a network.
    pub(super) fn mtu(&self, network: &str) -> Option<u16> {
        let network = self.networks.iter().find(|known| known.name == network)?;
        Some(network.mtu_over(self.underlay.as_ref().map(|underlay| (underlay.room(), 0))))
    }

    /// The networks, with the devices that are attached to each.
    pub(super) fn iter(&self) -> impl Iterator<Item = &config::Network> {
        self.networks.iter()
    }
}
