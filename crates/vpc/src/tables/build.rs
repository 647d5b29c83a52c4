//! From a spec to tables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::check::{check_mtu, check_underlay, host, station};
use super::ecmp::{EcmpBuilder, MemberHop};
use super::error::{Entry, Problem, SpecError};
use super::fib::FibRoute;
use super::loaded::{GuestVersions, Loaded, LoadedNetworkId};
use super::objects::{Numbering, ObjectKind};
use super::policy::PolicyBuilder;
use super::prefixes::PrefixTableId;
use super::routing::RoutingBuilder;
use super::{Attachment, Egress, Endpoint, FibEntry, Hop, MeteredPort, Network, Prefixes, Tables, Target, Tunnel};
use crate::exact::{ExactKey, ExactTable};
use crate::id::{EndpointId, HopId, NetworkId, ObjectId, PortId, SubnetId, TunnelId, Vni};
use crate::kept::Keeper;
use crate::nat::Nat;
use crate::packet::Mac;
use crate::policy::meter::MeterIds;
use crate::policy::meter::NodeMeter;
use crate::spec::{
    EcmpSpec, EndpointSpec, METERS, MemberVia, MeterSpec, NatSpec, NetworkSpec, Place, Prefix, RouteSpec, Spec,
    SubnetSpec,
};

/// Port numbers are indices: larger ones are mistakes.
const MOST_PORTS: u32 = 65_535;
const MOST_NETWORKS: usize = Prefixes::<FibRoute>::TABLES;
impl Tables {
    /// The tables that `spec` describes, with the entries in `loaded`. Where both say something of an address or a
    /// prefix, `spec` wins.
    ///
    /// # Errors
    /// [`SpecError`] with the first entry that is wrong.
    pub fn build(spec: &Spec, loaded: Option<Arc<Loaded>>) -> Result<Tables, SpecError> {
        Tables::build_after(spec, loaded, None)
    }

    /// The tables that `spec` describes, with the entries in `loaded`, to replace `self`: flows that were computed from
    /// what is the same in both stay valid.
    ///
    /// # Errors
    /// As of [`build`](Self::build).
    pub fn rebuild(&self, spec: &Spec, loaded: Option<Arc<Loaded>>) -> Result<Tables, SpecError> {
        Tables::build_after(spec, loaded, Some(self))
    }

    fn build_after<'a>(
        spec: &'a Spec,
        loaded: Option<Arc<Loaded>>,
        previous: Option<&'a Tables>,
    ) -> Result<Tables, SpecError> {
        let mut builder = Builder::new(spec, loaded, previous)?;
        for meter in &spec.meters {
            builder.meter(meter).map_err(at(|| Entry::Meter(meter.name.clone())))?;
        }
        builder.number_meters();
        for network in &spec.networks {
            builder.network(network).map_err(at(|| Entry::Network(network.name.clone())))?;
        }
        for endpoint in &spec.endpoints {
            builder.endpoint(endpoint).map_err(at(|| endpoint.into()))?;
        }
        builder.check_exits()?;
        for group in &spec.ecmp {
            let entry = || Entry::Ecmp { network: group.network.clone(), name: group.name.clone() };
            builder.ecmp_group(group).map_err(at(entry))?;
        }
        for peering in &spec.peerings {
            builder.peering(peering).map_err(at(|| Entry::Peering(peering.networks.clone())))?;
        }
        for table in &spec.route_tables {
            let entry = || Entry::RouteTable { network: table.network.clone(), name: table.name.clone() };
            builder.route_table(table).map_err(at(entry))?;
        }
        for route in &spec.routes {
            builder.route(route).map_err(at(|| route.into()))?;
        }
        builder.add_loaded();
        builder.finish()
    }
}

/// Names the entry that a problem is with.
fn at(entry: impl FnOnce() -> Entry) -> impl FnOnce(Problem) -> SpecError {
    |problem| SpecError { entry: entry(), problem }
}

pub(super) struct Builder<'a> {
    spec: &'a Spec,
    loaded: Option<Arc<Loaded>>,
    /// MAC addresses of the underlay's next hops.
    neighbors: HashMap<IpAddr, Mac>,
    names: HashMap<&'a str, NetworkId>,
    pub(super) networks: Vec<Network>,
    pub(super) subnets: Vec<SubnetSpec>,
    /// For each network, the places of its subnets in `subnets`.
    pub(super) ranges: Vec<std::ops::Range<usize>>,
    vnis: HashMap<Vni, NetworkId>,
    previous: Option<&'a Tables>,
    pub(super) objects: Numbering<'a>,
    policies: PolicyBuilder<'a>,
    /// Networks with endpoints of this node in groups. Their peers have connections, too.
    tracked: BTreeSet<NetworkId>,
    /// By the numbers of their objects, as next hops are.
    endpoints: Vec<Option<Endpoint>>,
    hops: Vec<Option<Hop>>,
    tunnels: Vec<Tunnel>,
    hosts: HashMap<IpAddr, TunnelId>,
    unreached: Vec<IpAddr>,
    ports: Vec<Attachment>,
    macs: HashSet<(NetworkId, Mac)>,
    pub(super) addresses: HashMap<(NetworkId, IpAddr), FibEntry>,
    pub(super) prefixes: HashMap<(NetworkId, Prefix), FibEntry>,
    pub(super) members: HashMap<(NetworkId, IpAddr), TunnelId>,
    pub(super) ecmp: EcmpBuilder<'a>,
    pub(super) routing: RoutingBuilder<'a>,
    meters: BTreeMap<&'a str, Arc<NodeMeter>>,
    pub(super) nats: Vec<Arc<Nat>>,
    /// Meters' numbers, in the order of names.
    meter_numbers: HashMap<&'a str, u32>,
    loaded_tunnels: Vec<Option<TunnelId>>,
    loaded_networks: Vec<Option<NetworkId>>,
    loaded_groups: Vec<Target>,
}

impl<'a> Builder<'a> {
    fn new(
        spec: &'a Spec,
        loaded: Option<Arc<Loaded>>,
        previous: Option<&'a Tables>,
    ) -> Result<Builder<'a>, SpecError> {
        let mut ports = Vec::new();
        if let Some(underlay) = &spec.underlay {
            check_underlay(underlay).map_err(at(|| Entry::Underlay))?;
            attach(&mut ports, underlay.port, Attachment::Underlay).map_err(at(|| Entry::Underlay))?;
        }
        let mut neighbors = HashMap::new();
        for neighbor in &spec.neighbors {
            let entry = || Entry::Neighbor(neighbor.host);
            station(neighbor.mac).map_err(at(entry))?;
            if neighbors.insert(neighbor.host, neighbor.mac).is_some() {
                return Err(at(entry)(Problem::Twice));
            }
        }
        for number in [spec.services.rate, spec.services.burst] {
            if !(1..=1_000_000_000).contains(&number) {
                return Err(at(|| Entry::Services)(Problem::Rate(number)));
            }
        }
        if let Some(first_too_many) = spec.networks.get(MOST_NETWORKS) {
            let entry = || Entry::Network(first_too_many.name.clone());
            return Err(at(entry)(Problem::TooMany(MOST_NETWORKS)));
        }
        Ok(Builder {
            spec,
            loaded,
            neighbors,
            names: HashMap::new(),
            networks: Vec::new(),
            subnets: Vec::new(),
            ranges: Vec::new(),
            vnis: HashMap::new(),
            previous,
            objects: Numbering::after(previous.map(|tables| &tables.objects)),
            policies: PolicyBuilder::default(),
            tracked: BTreeSet::new(),
            endpoints: Vec::new(),
            hops: Vec::new(),
            tunnels: Vec::new(),
            hosts: HashMap::new(),
            unreached: Vec::new(),
            ports,
            macs: HashSet::new(),
            addresses: HashMap::new(),
            prefixes: HashMap::new(),
            members: HashMap::new(),
            ecmp: EcmpBuilder::after(previous.map(|tables| &tables.ecmp_groups), &spec.ecmp),
            routing: RoutingBuilder::default(),
            meters: BTreeMap::new(),
            nats: Vec::new(),
            meter_numbers: HashMap::new(),
            loaded_tunnels: Vec::new(),
            loaded_networks: Vec::new(),
            loaded_groups: Vec::new(),
        })
    }

    fn meter(&mut self, spec: &'a MeterSpec) -> Result<(), Problem> {
        let before = self.previous.and_then(|tables| tables.meter_called(&spec.name));
        match self.meters.insert(&spec.name, NodeMeter::new(spec, before, self.spec.meters_empty_at)) {
            None => Ok(()),
            Some(_) => Err(Problem::MeterTaken),
        }
    }

    fn number_meters(&mut self) {
        self.meter_numbers = self.meters.keys().copied().zip(0..).collect();
    }

    fn meters_of(&self, spec: &EndpointSpec) -> Result<MeterIds, Problem> {
        let names = &spec.policy.meters;
        if names.len() > METERS {
            return Err(Problem::TooManyMeters(names.len()));
        }
        let meter = |name: &String| {
            let meter = self.meter_numbers.get(name.as_str()).copied();
            meter.ok_or_else(|| Problem::NoMeter(name.clone()))
        };
        Ok(MeterIds::new(&names.iter().map(meter).collect::<Result<Vec<u32>, Problem>>()?))
    }

    fn network(&mut self, spec: &'a NetworkSpec) -> Result<(), Problem> {
        let id = NetworkId::new(self.networks.len() as u32);
        if self.names.insert(&spec.name, id).is_some() {
            return Err(Problem::NameTaken);
        }
        let vni = spec.vni;
        if let Some(other) = self.vnis.insert(vni, id) {
            return Err(Problem::VniTaken { vni, other: self.networks[other.index()].name.clone() });
        }
        station(spec.gateway_mac)?;
        self.macs.insert((id, spec.gateway_mac));
        check_mtu(spec.mtu, spec.subnets.iter().any(|subnet| subnet.gateway.is_ipv6()))?;
        let first = self.subnets.len();
        for (at, subnet) in spec.subnets.iter().enumerate() {
            if !subnet.prefix.contains(subnet.gateway) {
                return Err(Problem::GatewayOutside { gateway: subnet.gateway, prefix: subnet.prefix });
            }
            host(subnet.gateway)?;
            if let Some(other) = spec.subnets[..at].iter().find(|other| other.prefix.overlaps(subnet.prefix)) {
                return Err(Problem::Overlap(other.prefix, subnet.prefix));
            }
            let entry = FibEntry::new(Target::Connected, Some(SubnetId::new((first + at) as u32)));
            self.addresses.insert((id, subnet.gateway), entry);
            self.prefixes.insert((id, subnet.prefix), entry);
        }
        let link_local = IpAddr::V6(spec.gateway_mac.link_local());
        self.addresses.insert((id, link_local), FibEntry::new(Target::Connected, None));
        self.subnets.extend(&spec.subnets);
        self.ranges.push(first..self.subnets.len());
        self.networks.push(Network {
            name: spec.name.clone(),
            vni,
            gateway_mac: spec.gateway_mac,
            mtu: spec.mtu,
            dns: spec.dns.as_slice().into(),
            transit: spec.transit,
            tenant: spec.tenant,
            is_loading: self.spec.awaited.contains(&spec.name),
            loads_members: self.spec.awaited.contains(&spec.name),
            // An object once all routes are known.
            routes: ObjectId::default(),
            zone: None,
            loaded: None,
            first_subnet: SubnetId::new(first as u32),
            subnets: spec.subnets.iter().map(|subnet| subnet.prefix).collect(),
        });
        self.policies.network(id, spec, &mut self.objects)
    }

    pub(super) fn keeper(&self) -> Option<&'a Arc<Keeper>> {
        self.spec.keeping.0.as_ref()
    }

    pub(super) fn nat_specs(&self) -> &'a [NatSpec] {
        &self.spec.nat
    }

    /// Each exit is an endpoint here, and has rules once.
    fn check_exits(&self) -> Result<(), SpecError> {
        for (at, one) in self.spec.nat.iter().enumerate() {
            let is_same = |other: &NatSpec| other.network == one.network && other.exit == one.exit;
            let is_there = self.nats.iter().any(|nat| *nat.network == *one.network && nat.exit == one.exit);
            if !is_there || self.spec.nat[..at].iter().any(is_same) {
                let entry = Entry::Nat { network: one.network.clone(), exit: one.exit };
                return Err(SpecError { entry, problem: Problem::NoExit(one.exit) });
            }
        }
        Ok(())
    }

    pub(super) fn network_id(&self, name: &str) -> Result<NetworkId, Problem> {
        self.names.get(name).copied().ok_or_else(|| Problem::NoNetwork(name.to_owned()))
    }

    fn endpoint(&mut self, spec: &'a EndpointSpec) -> Result<(), Problem> {
        let network = self.network_id(&spec.network)?;
        station(spec.mac)?;
        if !self.macs.insert((network, spec.mac)) {
            return Err(Problem::MacTaken(spec.mac));
        }
        if spec.addresses.is_empty() {
            return Err(Problem::NoAddress);
        }
        let mut subnet_ids = Vec::new();
        for &address in &spec.addresses {
            host(address)?;
            let mut range = self.ranges[network.index()].clone();
            let subnet = range.find(|&subnet| self.subnets[subnet].prefix.contains(address));
            subnet_ids.push(SubnetId::new(subnet.ok_or(Problem::AddressOutside(address))? as u32));
        }
        let within: Vec<SubnetSpec> = subnet_ids.iter().map(|subnet| self.subnets[subnet.index()]).collect();
        // What a flow from or to it looks at. Its next hop is looked up for each packet: an endpoint that moves between
        // other nodes, or that gets another MTU, leaves flows valid.
        let port = match spec.place {
            Place::Port(port) => Some(port.0),
            Place::Host(_) => None,
        };
        let part = self.policies.endpoint(network, spec, self.previous)?;
        if part.policy.as_ref().is_some_and(|policy| policy.groups.is_some()) {
            self.tracked.insert(network);
        }
        let meters = self.meters_of(spec)?;
        // The meters and their rates are looked up for each packet.
        let content =
            (spec.spoof_check, &spec.addresses, &within, port, &part.key, meters.is_empty(), self.nat_of(spec));
        let object = self.objects.object(ObjectKind::Endpoint, &(&spec.network, spec.mac), &content)?;
        let id = EndpointId::new(object.number());
        for (&address, &subnet) in spec.addresses.iter().zip(&subnet_ids) {
            let entry = FibEntry::new(Target::Hop(id.into()), Some(subnet));
            if self.addresses.insert((network, address), entry).is_some() {
                return Err(Problem::AddressTaken(address));
            }
        }
        let nat = match self.nat_of(spec) {
            None => None,
            Some(rules) => {
                self.tracked.insert(network);
                Some(self.nat(network, rules, self.previous)?)
            }
        };
        let mut subnets = Vec::new();
        for subnet in within {
            if !subnets.contains(&subnet) {
                subnets.push(subnet);
            }
        }
        let mtu = spec.mtu.unwrap_or(self.networks[network.index()].mtu);
        check_mtu(mtu, spec.addresses.iter().any(IpAddr::is_ipv6))?;
        let egress = match spec.place {
            Place::Port(port) => {
                attach(&mut self.ports, port, Attachment::Endpoint(id))?;
                Egress::Port(port)
            }
            Place::Host(host) => Egress::Tunnel(self.tunnel(network, host)?),
        };
        self.hop(id.into(), network, mtu, spec.mac, egress);
        let endpoint = Endpoint {
            network,
            mac: spec.mac,
            spoof_check: spec.spoof_check,
            mtu,
            addresses: spec.addresses.as_slice().into(),
            subnet_ids: subnet_ids.into(),
            subnets: subnets.into(),
            groups: part.groups,
            acl: spec.policy.acl.as_deref().map(Into::into),
            policy: part.policy,
            nat,
            meters,
        };
        put(&mut self.endpoints, id.index(), endpoint);
        Ok(())
    }

    fn hop(&mut self, id: HopId, network: NetworkId, mtu: u16, mac: Mac, egress: Egress) {
        let Network { gateway_mac, vni, .. } = self.networks[network.index()];
        let hop = Hop { network, mtu: self.path_mtu(mtu, egress), mac, egress, gateway_mac, vni };
        put(&mut self.hops, id.index(), hop);
    }

    fn route(&mut self, spec: &'a RouteSpec) -> Result<(), Problem> {
        let network = self.network_id(&spec.network)?;
        let entry = self.via(network, &spec.network, &spec.via)?;
        match self.prefixes.insert((network, spec.prefix), entry) {
            None => Ok(()),
            Some(_) => Err(Problem::RouteTaken(spec.prefix)),
        }
    }

    /// The next hop to `host`, an object of its own.
    pub(super) fn host_hop(
        &mut self,
        network: NetworkId,
        kind: ObjectKind,
        identity: &impl std::hash::Hash,
        host: IpAddr,
    ) -> Result<HopId, Problem> {
        let egress = Egress::Tunnel(self.tunnel(network, host)?);
        let Network { mtu, gateway_mac, .. } = self.networks[network.index()];
        let id = HopId::from(self.objects.object(kind, identity, &())?);
        self.hop(id, network, mtu, gateway_mac, egress);
        Ok(id)
    }

    fn ecmp_group(&mut self, spec: &'a EcmpSpec) -> Result<(), Problem> {
        let network = self.network_id(&spec.network)?;
        let mut found = Vec::with_capacity(spec.members.len());
        for member in &spec.members {
            let hop = match member.via {
                MemberVia::Endpoint(address) => self.addresses.get(&(network, address)).and_then(|entry| entry.hop()),
                MemberVia::Host(_) if self.spec.underlay.is_none() => None,
                MemberVia::Host(host) => {
                    Some(self.host_hop(network, ObjectKind::MemberHop, &(&spec.network, &spec.name, host), host)?)
                }
            };
            // An endpoint that is not attached yet, or a host where there is no underlay yet, is not reached.
            let absent = |objects: &mut Numbering<'_>| {
                let identity = (&spec.network, &spec.name, member.via, "absent");
                objects.object(ObjectKind::MemberHop, &identity, &()).map(HopId::from)
            };
            let hop = hop.map_or_else(|| absent(&mut self.objects), Ok)?;
            let is_resolved = self.hops.get(hop.index()).and_then(Option::as_ref).is_some_and(|hop| match hop.egress {
                Egress::Port(_) => true,
                Egress::Tunnel(tunnel) => self.tunnels[tunnel.index()].resolved,
            });
            found.push((member, MemberHop { hop, is_resolved }));
        }
        let vni = self.networks[network.index()].vni;
        let zone = self.spec.zone.as_deref();
        self.ecmp.group((&spec.network, network, vni), &spec.name, found.into_iter(), zone, &mut self.objects)
    }

    /// Resolves the networks, groups and nodes of loaded entries, as far as they are known.
    fn add_loaded(&mut self) {
        let Some(loaded) = self.loaded.clone() else { return };
        for (number, (name, _)) in (0..).map(LoadedNetworkId::new).zip(loaded.networks()) {
            let network = self.names.get(name).copied();
            self.loaded_networks.push(network);
            if let Some(network) = network {
                self.networks[network.index()].loaded = Some(number);
            }
        }
        for (network, name) in loaded.groups() {
            let group = self.loaded_networks[network.index()].and_then(|network| self.ecmp.id(network, name));
            // A group that has gone since the load leads nowhere.
            self.loaded_groups.push(group.map_or(Target::Blackhole, Target::Ecmp));
        }
        for host in loaded.numbered_hosts() {
            let tunnel = host.and_then(|host| self.host_tunnel(host));
            self.loaded_tunnels.push(tunnel);
        }
        for (network, number, host) in loaded.members() {
            let network = self.loaded_networks[network.index()];
            if let Some((network, tunnel)) = network.zip(self.loaded_tunnels[number.index()]) {
                self.members.insert((network, host), tunnel);
            }
        }
    }

    /// The tunnel to a node, if the underlay reaches it.
    fn host_tunnel(&mut self, to: IpAddr) -> Option<TunnelId> {
        let underlay = self.spec.underlay.as_ref().filter(|_| !self.unreached.contains(&to))?;
        if underlay.addresses.contains(&to) {
            return None;
        }
        if let Some(id) = self.hosts.get(&to) {
            return Some(*id);
        }
        let tunnel = Tunnel::new(underlay, to, self.neighbors.get(&to).copied())?;
        Some(self.add_tunnel(tunnel))
    }

    fn add_tunnel(&mut self, tunnel: Tunnel) -> TunnelId {
        let id = TunnelId::new(self.tunnels.len() as u32);
        self.hosts.insert(tunnel.host, id);
        self.tunnels.push(tunnel);
        id
    }

    fn path_mtu(&self, mtu: u16, egress: Egress) -> u16 {
        match (egress, &self.spec.underlay) {
            (Egress::Tunnel(tunnel), Some(underlay)) => mtu.min(self.tunnels[tunnel.index()].mtu(underlay.mtu)),
            (Egress::Tunnel(_), None) | (Egress::Port(_), _) => mtu,
        }
    }

    /// The tunnel to `to`, by which something of `network` is reached.
    fn tunnel(&mut self, network: NetworkId, to: IpAddr) -> Result<TunnelId, Problem> {
        host(to)?;
        let underlay = self.spec.underlay.as_ref().ok_or(Problem::NoUnderlay(to))?;
        if let Some(id) = self.host_tunnel(to) {
            self.members.insert((network, to), id);
            return Ok(id);
        }
        if !self.spec.allows_unreached {
            let is_own = underlay.addresses.contains(&to);
            return Err(if is_own { Problem::OwnHost(to) } else { Problem::NoUnderlay(to) });
        }
        if let Some(id) = self.hosts.get(&to) {
            return Ok(*id);
        }
        // Nothing comes from there either: it is no member.
        let tunnel = Tunnel::nowhere(underlay, to).ok_or(Problem::NoUnderlay(to))?;
        self.unreached.push(to);
        Ok(self.add_tunnel(tunnel))
    }

    /// Makes objects of networks' routes: of all that decides about destinations that are no endpoint's. That is a
    /// network's routes, its subnets and gateways, and those endpoints' addresses that would be routed elsewhere if the
    /// endpoints were not there.
    fn routes(&mut self, prefixes: &Prefixes<FibRoute>) -> Result<(), Problem> {
        let loaded = self.loaded.clone();
        let mut contents = vec![(Vec::new(), Vec::new()); self.networks.len()];
        for (&(network, prefix), entry) in &self.prefixes {
            contents[network.index()].0.push((prefix, self.content(*entry)));
        }
        let routed = |table: PrefixTableId, address| {
            prefixes.longest(table, address).is_some_and(|route| route.entry.target() != Target::Connected)
        };
        for (&(network, address), entry) in &self.addresses {
            let loaded_route = || loaded.as_ref()?.route(self.networks[network.index()].loaded?, address);
            // The longer prefix decides: a longer subnet wins over a loaded route.
            let configured = prefixes.longest(network.into(), address).map(|route| route.length);
            let is_loaded = loaded_route().is_some_and(|route| configured.is_none_or(|own| route.length > own));
            let is_in_table = self.tables_of(network).any(|table| routed(table, address));
            if entry.hop().is_none() || routed(network.into(), address) || is_loaded || is_in_table {
                contents[network.index()].1.push(address);
            }
        }
        for (id, mut content) in (0..).map(NetworkId::new).zip(contents) {
            content.0.sort_unstable();
            content.1.sort_unstable();
            let policy = self.policy(id);
            let has_route_in_subnet = self.has_route_in_subnet(id);
            let of_loaded = self.networks[id.index()].loaded.zip(loaded.as_ref());
            let of_loaded = of_loaded.map(|(network, loaded)| loaded.content(network, has_route_in_subnet));
            let network = &mut self.networks[id.index()];
            let content = (content, of_loaded.unwrap_or_default(), policy);
            network.routes = self.objects.object(ObjectKind::Routes, &network.name, &content)?;
        }
        Ok(())
    }

    /// Whether a route of a network is within one of its subnets: loaded guests there take addresses from the route.
    fn has_route_in_subnet(&self, network: NetworkId) -> bool {
        let subnets = &self.subnets[self.ranges[network.index()].clone()];
        let is_inside = |route: &Prefix| subnets.iter().any(|subnet| subnet.prefix.has_inside(*route));
        self.prefixes.keys().any(|(of, prefix)| *of == network && is_inside(prefix))
            || self.table_prefixes(network).any(is_inside)
    }

    /// The versions of loaded guests.
    fn guests(&self) -> Option<GuestVersions> {
        let loaded = self.loaded.as_ref()?;
        let mut digests = BTreeMap::new();
        for ((name, _), network) in loaded.networks().zip(&self.loaded_networks) {
            let range = network.and_then(|network| self.ranges.get(network.index()));
            let subnets = range.map(|range| &self.subnets[range.clone()]);
            digests.insert(name.into(), self.objects.digest_of(&subnets));
        }
        let overruled = self
            .addresses
            .keys()
            .filter_map(|&(network, address)| loaded.overruled(self.networks.get(network.index())?.loaded?, address));
        let previous = self.previous.and_then(|tables| tables.guests.as_ref());
        Some(GuestVersions::after(previous, loaded, digests, overruled.collect(), self.objects.build()))
    }

    /// By port: its endpoint and that one's meters.
    fn metered_ports(&self) -> Box<[MeteredPort]> {
        if self.meters.is_empty() {
            return Box::default();
        }
        let metered = |port: &Attachment| {
            let Attachment::Endpoint(endpoint) = *port else { return MeteredPort::default() };
            let of = self.endpoints.get(endpoint.index()).and_then(Option::as_ref);
            MeteredPort { endpoint, meters: of.map_or_else(MeterIds::default, |of| of.meters) }
        };
        self.ports.iter().map(metered).collect()
    }

    fn finish(mut self) -> Result<Tables, SpecError> {
        let addresses: Vec<_> = self
            .addresses
            .iter()
            .map(|(&(network, address), &entry)| (ExactKey::address(network.number(), address), entry))
            .collect();
        let routed = |(&(network, prefix), &entry): (&(NetworkId, Prefix), &FibEntry)| {
            (PrefixTableId::from(network), prefix, FibRoute { entry, length: prefix.length() })
        };
        let prefixes: Vec<_> = self.prefixes.iter().map(routed).chain(self.table_rows()).collect();
        let full = |full| at(|| Entry::Routes)(Problem::Memory(full));
        let rows = self.networks.len() + self.spec.route_tables.len();
        let prefixes = Prefixes::build(rows, &prefixes).map_err(full)?;
        let first = self.networks.first().map(|network| network.name.clone()).unwrap_or_default();
        self.routes(&prefixes).map_err(at(|| Entry::Network(first)))?;
        let route_tables = self.route_tables().map_err(at(|| Entry::Routes))?;
        self.peer_members();
        let guests = self.guests();
        let members: Vec<_> = self
            .members
            .iter()
            .map(|(&(network, host), &tunnel)| (ExactKey::address(network.number(), host), tunnel))
            .collect();
        let vnis: Vec<_> =
            self.vnis.iter().map(|(&vni, &network)| (ExactKey::new(0, vni.get().into()), network)).collect();
        // Which of two peers has the connections between them must not change when the other one gets connections of
        // its own.
        let peers = self.routing.peers.iter().filter(|(of, _)| self.tracked.contains(of)).map(|(_, peer)| *peer);
        let tracked: BTreeSet<NetworkId> = self.tracked.iter().copied().chain(peers).collect();
        let tracked: Vec<NetworkId> = tracked.into_iter().collect();
        let names: Vec<&str> =
            tracked.iter().map(|network| self.spec.networks[network.index()].name.as_str()).collect();
        let metered_ports = self.metered_ports();
        let (policies, zones) = self.policies.finish(&names, self.previous, self.spec);
        for (network, zone) in tracked.iter().zip(zones) {
            self.networks[network.index()].zone = Some(zone);
        }
        let has_policies =
            !self.nats.is_empty() || self.endpoints.iter().flatten().any(|endpoint| endpoint.policy.is_some());
        Ok(Tables {
            policies,
            has_policies,
            prefixes,
            route_tables,
            ecmp_groups: self.ecmp.finish(),
            objects: self.objects.finish(),
            networks: self.networks.into(),
            endpoints: self.endpoints.into(),
            hops: self.hops.into(),
            tunnels: self.tunnels.into(),
            ports: self.ports.into(),
            vnis: ExactTable::build(&vnis, 0),
            addresses: ExactTable::build(&addresses, 0),
            members: ExactTable::build(&members, 0),
            underlay: self.spec.underlay.clone(),
            unreached: self.unreached.into(),
            services: self.spec.services,
            meters: self.meters.into_values().collect(),
            metered_ports,
            loaded: self.loaded,
            guests,
            loaded_tunnels: self.loaded_tunnels.into(),
            loaded_networks: self.loaded_networks.into(),
            loaded_groups: self.loaded_groups.into(),
            nats: self.nats.into(),
            keeping: self.spec.keeping.clone(),
            keeps_flows: !self.spec.without_flows,
            is_loading: self.spec.is_loading,
        })
    }
}

fn put<T>(all: &mut Vec<Option<T>>, at: usize, one: T) {
    if all.len() <= at {
        all.resize_with(at + 1, || None);
    }
    all[at] = Some(one);
}

fn attach(ports: &mut Vec<Attachment>, port: PortId, what: Attachment) -> Result<(), Problem> {
    if port.0 > MOST_PORTS {
        return Err(Problem::PortNumber { port, most: MOST_PORTS });
    }
    let at = port.0 as usize;
    if ports.len() <= at {
        ports.resize(at + 1, Attachment::Nothing);
    }
    match std::mem::replace(&mut ports[at], what) {
        Attachment::Nothing => Ok(()),
        Attachment::Endpoint(_) | Attachment::Underlay => Err(Problem::PortTaken(port)),
    }
}
