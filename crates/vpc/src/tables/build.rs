//! From a spec to tables.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::error::{Entry, Problem, SpecError};
use super::loaded::{self, Loaded, Routed};
use super::objects::{Kind, Numbering};
use super::policy::Building;
use super::routing::Leads;
use super::{Attachment, Endpoint, Hop, NONE, Network, Owner, Prefixes, Tables, Tunnel, Way, ecmp, routing};
use crate::exact::{ExactKey, ExactTable};
use crate::id::PortId;
use crate::packet::Mac;
use crate::policy::meter::NodeMeter;
use crate::spec::{
    EcmpSpec, EndpointSpec, METERS, MemberVia, MeterSpec, NetworkSpec, Place, Prefix, RouteSpec, Spec, SubnetSpec,
    UnderlaySpec,
};

/// Port numbers are indices: nobody means to have more than these.
const MOST_PORTS: u32 = 65_535;
/// Least MTU of IPv4 that hosts count on (RFC 791 §3.1: 576 bytes are always taken).
const LEAST_MTU: u16 = 576;
/// Least MTU of IPv6 (RFC 8200 §5).
const LEAST_MTU_V6: u16 = 1280;

impl Tables {
    /// The tables that `spec` describes, with the entries in `loaded`. Where both say something of an address or a prefix, `spec` wins.
    ///
    /// # Errors
    /// [`SpecError`] with the first entry that is wrong.
    pub fn build(spec: &Spec, loaded: Option<Arc<Loaded>>) -> Result<Tables, SpecError> {
        Tables::build_after(spec, loaded, None)
    }

    /// The tables that `spec` describes, with the entries in `loaded`, to replace `self`: flows that were computed from what is the same
    /// in both stay valid.
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
        for network in &spec.networks {
            builder.network(network).map_err(at(|| Entry::Network(network.name.clone())))?;
        }
        for endpoint in &spec.endpoints {
            builder.endpoint(endpoint).map_err(at(|| endpoint.into()))?;
        }
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

fn at(entry: impl FnOnce() -> Entry) -> impl FnOnce(Problem) -> SpecError {
    |problem| SpecError { entry: entry(), problem }
}

pub(super) struct Builder<'a> {
    spec: &'a Spec,
    loaded: Option<Arc<Loaded>>,
    /// MAC addresses of the underlay's next hops.
    neighbors: HashMap<IpAddr, Mac>,
    names: HashMap<&'a str, u32>,
    pub(super) networks: Vec<Network>,
    pub(super) subnets: Vec<SubnetSpec>,
    /// For each network, its subnets' place in `subnets`.
    pub(super) ranges: Vec<std::ops::Range<usize>>,
    vnis: HashMap<u32, u32>,
    previous: Option<&'a Tables>,
    pub(super) objects: Numbering<'a>,
    policies: Building<'a>,
    /// Networks with endpoints of this node in groups; their peers have connections, too.
    tracked: BTreeSet<u32>,
    /// Both by the numbers of their objects.
    endpoints: Vec<Option<Endpoint>>,
    hops: Vec<Option<Hop>>,
    tunnels: Vec<Tunnel>,
    hosts: HashMap<IpAddr, u32>,
    unreached: Vec<IpAddr>,
    ports: Vec<Attachment>,
    macs: HashSet<(u32, Mac)>,
    pub(super) addresses: HashMap<(u32, IpAddr), Owner>,
    pub(super) prefixes: HashMap<(u32, Prefix), Owner>,
    pub(super) members: HashMap<(u32, IpAddr), u32>,
    pub(super) ecmp: ecmp::Building<'a>,
    pub(super) routing: routing::Building<'a>,
    meters: BTreeMap<&'a str, Arc<NodeMeter>>,
    loaded_tunnels: Vec<u32>,
    loaded_networks: Vec<u32>,
    loaded_groups: Vec<Owner>,
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
        if let Some(first_too_many) = spec.networks.get(Prefixes::<Routed>::NETWORKS) {
            let entry = || Entry::Network(first_too_many.name.clone());
            return Err(at(entry)(Problem::TooMany(Prefixes::<Routed>::NETWORKS)));
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
            policies: Building::default(),
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
            ecmp: ecmp::Building::after(previous.map(|tables| &tables.groups), &spec.ecmp),
            routing: routing::Building::default(),
            meters: BTreeMap::new(),
            loaded_tunnels: Vec::new(),
            loaded_networks: Vec::new(),
            loaded_groups: Vec::new(),
        })
    }

    fn meter(&mut self, spec: &'a MeterSpec) -> Result<(), Problem> {
        let before = self.previous.and_then(|tables| tables.meters.get(spec.name.as_str()));
        match self.meters.insert(&spec.name, NodeMeter::new(spec, before)) {
            None => Ok(()),
            Some(_) => Err(Problem::MeterTaken),
        }
    }

    fn meters_of(&self, spec: &EndpointSpec) -> Result<Box<[Arc<NodeMeter>]>, Problem> {
        let names = &spec.policy.meters;
        if names.len() > METERS {
            return Err(Problem::TooManyMeters(names.len()));
        }
        let meter = |name: &String| {
            let meter = self.meters.get(name.as_str()).cloned();
            meter.ok_or_else(|| Problem::NoMeter(name.clone()))
        };
        names.iter().map(meter).collect()
    }

    fn network(&mut self, spec: &'a NetworkSpec) -> Result<(), Problem> {
        let number = self.networks.len() as u32;
        if self.names.insert(&spec.name, number).is_some() {
            return Err(Problem::NameTaken);
        }
        if !(1..1 << 24).contains(&spec.vni) {
            return Err(Problem::Vni(spec.vni));
        }
        if let Some(other) = self.vnis.insert(spec.vni, number) {
            return Err(Problem::VniTaken { vni: spec.vni, other: self.networks[other as usize].name.clone() });
        }
        station(spec.gateway_mac)?;
        self.macs.insert((number, spec.gateway_mac));
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
            let owner = Owner { hop: NONE, subnet: (first + at) as u32 };
            self.addresses.insert((number, subnet.gateway), owner);
            self.prefixes.insert((number, subnet.prefix), owner);
        }
        let link_local = IpAddr::V6(spec.gateway_mac.link_local());
        self.addresses.insert((number, link_local), Owner { hop: NONE, subnet: NONE });
        self.subnets.extend(&spec.subnets);
        self.ranges.push(first..self.subnets.len());
        self.networks.push(Network {
            name: spec.name.clone(),
            vni: spec.vni,
            gateway_mac: spec.gateway_mac,
            mtu: spec.mtu,
            dns: spec.dns.as_slice().into(),
            transit: spec.transit,
            is_awaited: self.spec.awaited.contains(&spec.name),
            awaits_members: self.spec.awaited.contains(&spec.name),
            routes: NONE,
            tracker: NONE,
            loaded: NONE,
            first_subnet: first as u32,
            subnets: spec.subnets.iter().map(|subnet| subnet.prefix).collect(),
        });
        self.policies.network(number, spec, &mut self.objects)
    }

    pub(super) fn network_number(&self, name: &str) -> Result<u32, Problem> {
        self.names.get(name).copied().ok_or_else(|| Problem::NoNetwork(name.to_owned()))
    }

    fn endpoint(&mut self, spec: &'a EndpointSpec) -> Result<(), Problem> {
        let network = self.network_number(&spec.network)?;
        station(spec.mac)?;
        if !self.macs.insert((network, spec.mac)) {
            return Err(Problem::MacTaken(spec.mac));
        }
        if spec.addresses.is_empty() {
            return Err(Problem::NoAddress);
        }
        let mut numbers = Vec::new();
        for &address in &spec.addresses {
            host(address)?;
            let mut range = self.ranges[network as usize].clone();
            let subnet = range.find(|&subnet| self.subnets[subnet].prefix.contains(address));
            numbers.push(subnet.ok_or(Problem::AddressOutside(address))? as u32);
        }
        let within: Vec<SubnetSpec> = numbers.iter().map(|&subnet| self.subnets[subnet as usize]).collect();
        // What a flow from or to it looks at. Its next hop is looked up for each packet, so that one that moves between other
        // nodes, or whose MTU changes, leaves flows as they are.
        let port = match spec.place {
            Place::Port(port) => Some(port.0),
            Place::Host(_) => None,
        };
        let part = self.policies.endpoint(network, spec, self.previous)?;
        if part.policy.as_ref().is_some_and(|policy| policy.groups.is_some()) {
            self.tracked.insert(network);
        }
        let meters = self.meters_of(spec)?;
        // Which they are, and their rates, is looked up for each packet.
        let content = (spec.spoof_check, &spec.addresses, &within, port, &part.key, meters.is_empty());
        let number = self.objects.object(Kind::Endpoint, &(&spec.network, spec.mac), &content)?;
        for (&address, &subnet) in spec.addresses.iter().zip(&numbers) {
            if self.addresses.insert((network, address), Owner { hop: number, subnet }).is_some() {
                return Err(Problem::AddressTaken(address));
            }
        }
        let mut subnets = Vec::new();
        for subnet in within {
            if !subnets.contains(&subnet) {
                subnets.push(subnet);
            }
        }
        let mtu = spec.mtu.unwrap_or(self.networks[network as usize].mtu);
        check_mtu(mtu, spec.addresses.iter().any(IpAddr::is_ipv6))?;
        let way = match spec.place {
            Place::Port(port) => {
                attach(&mut self.ports, port, Attachment::Endpoint(number))?;
                Way::Port(port)
            }
            Place::Host(host) => Way::Tunnel(self.tunnel(network, host)?),
        };
        self.hop(number, network, mtu, spec.mac, way);
        let endpoint = Endpoint {
            network,
            mac: spec.mac,
            spoof_check: spec.spoof_check,
            mtu,
            addresses: spec.addresses.as_slice().into(),
            numbers: numbers.into(),
            subnets: subnets.into(),
            groups: part.groups,
            acl: spec.policy.acl.as_deref().map(Into::into),
            policy: part.policy,
            meters,
        };
        put(&mut self.endpoints, number, endpoint);
        Ok(())
    }

    fn hop(&mut self, number: u32, network: u32, mtu: u16, mac: Mac, way: Way) {
        let Network { gateway_mac, vni, .. } = self.networks[network as usize];
        let hop = Hop { network, mtu: self.path_mtu(mtu, way), mac, way, gateway_mac, vni };
        put(&mut self.hops, number, hop);
    }

    fn route(&mut self, spec: &'a RouteSpec) -> Result<(), Problem> {
        let network = self.network_number(&spec.network)?;
        let owner = self.via(network, &spec.network, &spec.via)?;
        match self.prefixes.insert((network, spec.prefix), owner) {
            None => Ok(()),
            Some(_) => Err(Problem::RouteTaken(spec.prefix)),
        }
    }

    /// The number of the way to `host` by which something of `network` is reached, an object of its own.
    pub(super) fn way(
        &mut self,
        network: u32,
        kind: Kind,
        identity: &impl std::hash::Hash,
        host: IpAddr,
    ) -> Result<u32, Problem> {
        let way = Way::Tunnel(self.tunnel(network, host)?);
        let Network { mtu, gateway_mac, .. } = self.networks[network as usize];
        let number = self.objects.object(kind, identity, &())?;
        self.hop(number, network, mtu, gateway_mac, way);
        Ok(number)
    }

    fn ecmp_group(&mut self, spec: &'a EcmpSpec) -> Result<(), Problem> {
        let network = self.network_number(&spec.network)?;
        let mut found = Vec::with_capacity(spec.members.len());
        for member in &spec.members {
            let hop = match member.via {
                MemberVia::Endpoint(address) => self.addresses.get(&(network, address)).and_then(|owner| owner.hop()),
                MemberVia::Host(_) if self.spec.underlay.is_none() => None,
                MemberVia::Host(host) => {
                    Some(self.way(network, Kind::Member, &(&spec.network, &spec.name, host), host)?)
                }
            };
            // Who is not attached yet, and what an underlay will lead to, is not reached.
            let absent = |objects: &mut Numbering<'_>| {
                objects.object(Kind::Member, &(&spec.network, &spec.name, member.via, "absent"), &())
            };
            let hop = hop.map_or_else(|| absent(&mut self.objects), Ok)?;
            let is_resolved = self.hops.get(hop as usize).and_then(Option::as_ref).is_some_and(|hop| match hop.way {
                Way::Port(_) => true,
                Way::Tunnel(tunnel) => self.tunnels[tunnel as usize].resolved,
            });
            found.push((member, ecmp::Found { hop, is_resolved }));
        }
        let vni = self.networks[network as usize].vni;
        let zone = self.spec.zone.as_deref();
        self.ecmp.group((&spec.network, network, vni), &spec.name, found.into_iter(), zone, &mut self.objects)
    }

    /// The ways to the nodes of loaded entries, as far as there are any.
    fn add_loaded(&mut self) {
        let Some(loaded) = self.loaded.clone() else { return };
        for (number, (name, _)) in (0..).zip(loaded.networks()) {
            let here = self.names.get(name).copied();
            self.loaded_networks.push(here.unwrap_or(NONE));
            if let Some(network) = here {
                self.networks[network as usize].loaded = number;
            }
        }
        for (network, name) in loaded.groups() {
            let slot = self.ecmp.slot(self.loaded_networks[network as usize], name);
            // A group that has gone since leads nowhere.
            self.loaded_groups.push(slot.map_or_else(Owner::nowhere, Owner::ecmp));
        }
        for &host in loaded.hosts() {
            let number = self.host_tunnel(host);
            self.loaded_tunnels.push(number.unwrap_or(NONE));
        }
        for &(network, at) in loaded.members() {
            let (network, tunnel) = (self.loaded_networks[network as usize], self.loaded_tunnels[at as usize]);
            if network != NONE && tunnel != NONE {
                self.members.insert((network, loaded.hosts()[at as usize]), tunnel);
            }
        }
    }

    /// The tunnel to a node that is reached.
    fn host_tunnel(&mut self, to: IpAddr) -> Option<u32> {
        let underlay = self.spec.underlay.as_ref().filter(|_| !self.unreached.contains(&to))?;
        if underlay.addresses.contains(&to) {
            return None;
        }
        if let Some(number) = self.hosts.get(&to) {
            return Some(*number);
        }
        self.tunnels.push(Tunnel::new(underlay, to, self.neighbors.get(&to).copied())?);
        let number = self.tunnels.len() as u32 - 1;
        self.hosts.insert(to, number);
        Some(number)
    }

    fn path_mtu(&self, mtu: u16, way: Way) -> u16 {
        match (way, &self.spec.underlay) {
            (Way::Tunnel(tunnel), Some(underlay)) => mtu.min(self.tunnels[tunnel as usize].mtu(underlay.mtu)),
            (Way::Tunnel(_), None) | (Way::Port(_), _) => mtu,
        }
    }

    /// The tunnel to `to`, by which something of `network` is reached.
    fn tunnel(&mut self, network: u32, to: IpAddr) -> Result<u32, Problem> {
        host(to)?;
        let underlay = self.spec.underlay.as_ref().ok_or(Problem::NoUnderlay(to))?;
        if let Some(number) = self.host_tunnel(to) {
            self.members.insert((network, to), number);
            return Ok(number);
        }
        if !self.spec.allows_unreached {
            let is_own = underlay.addresses.contains(&to);
            return Err(if is_own { Problem::OwnHost(to) } else { Problem::NoUnderlay(to) });
        }
        if let Some(number) = self.hosts.get(&to) {
            return Ok(*number);
        }
        // Nothing comes from there either: it is no member.
        self.tunnels.push(Tunnel::nowhere(underlay, to).ok_or(Problem::NoUnderlay(to))?);
        let number = self.tunnels.len() as u32 - 1;
        self.hosts.insert(to, number);
        self.unreached.push(to);
        Ok(number)
    }

    /// What decides over destinations in a network that are no endpoint's: its routes, its subnets and gateways, and those
    /// endpoints' addresses that would be routed elsewhere if they were not there.
    fn routes(&mut self, prefixes: &Prefixes<Routed>) -> Result<(), Problem> {
        let loaded = self.loaded.clone();
        let mut contents = vec![(Vec::new(), Vec::new()); self.networks.len()];
        for (&(network, prefix), owner) in &self.prefixes {
            contents[network as usize].0.push((prefix, self.content(*owner)));
        }
        for (&(network, address), owner) in &self.addresses {
            let is_routed =
                prefixes.longest(network, address).is_some_and(|other| other.owner.leads() != Leads::Nobody);
            let of_network = self.networks[network as usize].loaded;
            // The longer prefix decides, and a subnet that is longer keeps the address from a loaded route.
            let own = prefixes.longest(network, address).map(|own| own.length);
            let is_loaded = loaded
                .as_ref()
                .and_then(|loaded| loaded.route(of_network, address))
                .is_some_and(|route| own.is_none_or(|own| route.length > own));
            let is_in_table = self
                .tables_of(network)
                .any(|row| prefixes.longest(row, address).is_some_and(|other| other.owner.leads() != Leads::Nobody));
            if owner.hop().is_none() || is_routed || is_loaded || is_in_table {
                contents[network as usize].1.push(address);
            }
        }
        for (number, mut content) in contents.into_iter().enumerate() {
            content.0.sort_unstable();
            content.1.sort_unstable();
            let policy = self.policy(number as u32);
            let of_network = self.networks[number].loaded;
            let is_pierced = self.is_pierced(number as u32);
            let loaded = loaded.as_ref().map(|loaded| loaded.content(of_network, is_pierced)).unwrap_or_default();
            let network = &mut self.networks[number];
            let content = (content, loaded, policy);
            network.routes = self.objects.object(Kind::Routes, &network.name, &content)?;
        }
        Ok(())
    }

    /// Whether a route of a network is inside one of its subnets: whoever is loaded there takes addresses from it.
    fn is_pierced(&self, network: u32) -> bool {
        let subnets = &self.subnets[self.ranges[network as usize].clone()];
        let is_inside = |route: &Prefix| subnets.iter().any(|subnet| subnet.prefix.has_inside(*route));
        self.prefixes.keys().any(|(of, prefix)| *of == network && is_inside(prefix))
            || self.table_prefixes(network).any(is_inside)
    }

    /// The versions of loaded guests.
    fn guests(&self) -> Option<loaded::Versions> {
        let loaded = self.loaded.as_ref()?;
        let mut ground = BTreeMap::new();
        for ((name, _), &network) in loaded.networks().zip(&self.loaded_networks) {
            let subnets = self.ranges.get(network as usize).map(|range| &self.subnets[range.clone()]);
            ground.insert(name.into(), self.objects.digest_of(&subnets));
        }
        let overruled = self.addresses.keys().filter_map(|&(network, address)| {
            let number = self.networks.get(network as usize)?.loaded;
            loaded.overruled(number, address)
        });
        let previous = self.previous.and_then(|tables| tables.guests.as_ref());
        Some(loaded::Versions::after(previous, loaded, ground, overruled.collect(), self.objects.build()))
    }

    fn finish(mut self) -> Result<Tables, SpecError> {
        let addresses: Vec<_> = self
            .addresses
            .iter()
            .map(|(&(network, address), &owner)| (ExactKey::address(network, address), owner))
            .collect();
        let routed = |(&(network, prefix), &owner): (&(u32, Prefix), &Owner)| {
            (network, prefix, Routed { owner, length: prefix.length() })
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
        let members: Vec<_> =
            self.members.iter().map(|(&(network, host), &tunnel)| (ExactKey::address(network, host), tunnel)).collect();
        let vnis: Vec<_> = self.vnis.iter().map(|(&vni, &network)| (ExactKey::new(0, vni.into()), network)).collect();
        // Which of two peers has the connections between them must not change when the other one gets some of its own.
        let peers = self.routing.peers.iter().filter(|(of, _)| self.tracked.contains(of)).map(|(_, peer)| *peer);
        let tracked: BTreeSet<u32> = self.tracked.iter().copied().chain(peers).collect();
        let tracked: Vec<u32> = tracked.into_iter().collect();
        let names: Vec<&str> =
            tracked.iter().map(|number| self.spec.networks[*number as usize].name.as_str()).collect();
        let (policies, numbers) = self.policies.finish(&names, self.previous, self.spec.connections.0);
        for (network, number) in tracked.iter().zip(numbers) {
            self.networks[*network as usize].tracker = number;
        }
        let has_policies = self.endpoints.iter().flatten().any(|endpoint| endpoint.policy.is_some());
        Ok(Tables {
            policies,
            has_policies,
            prefixes,
            route_tables,
            groups: self.ecmp.finish(),
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
            meters: self.meters.into_iter().map(|(name, meter)| (name.into(), meter)).collect(),
            loaded: self.loaded,
            guests,
            loaded_tunnels: self.loaded_tunnels.into(),
            loaded_networks: self.loaded_networks.into(),
            loaded_groups: self.loaded_groups.into(),
            keeps_flows: !self.spec.without_flows,
            is_loading: self.spec.is_loading,
        })
    }
}

fn put<T>(all: &mut Vec<Option<T>>, number: u32, one: T) {
    let at = number as usize;
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

fn check_underlay(underlay: &UnderlaySpec) -> Result<(), Problem> {
    station(underlay.mac)?;
    check_mtu(underlay.mtu, underlay.addresses.iter().any(IpAddr::is_ipv6))?;
    if underlay.addresses.is_empty() {
        return Err(Problem::NoAddress);
    }
    for (at, address) in underlay.addresses.iter().enumerate() {
        host(*address)?;
        if underlay.addresses[..at].iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
            return Err(Problem::SecondAddress(*address));
        }
    }
    Ok(())
}

fn check_mtu(mtu: u16, ipv6: bool) -> Result<(), Problem> {
    let least = if ipv6 { LEAST_MTU_V6 } else { LEAST_MTU };
    if mtu < least { Err(Problem::Mtu { mtu, least }) } else { Ok(()) }
}

pub(super) fn station(mac: Mac) -> Result<(), Problem> {
    if mac.is_station() { Ok(()) } else { Err(Problem::NotAStation(mac)) }
}

/// An address that one host can have: no group's, not unspecified, no loopback, none that only stands for an IPv4 one.
pub(super) fn host(address: IpAddr) -> Result<(), Problem> {
    let no_host = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some() || address.is_unicast_link_local(),
    };
    if no_host || address.is_multicast() || address.is_unspecified() || address.is_loopback() {
        return Err(Problem::NotAHost(address));
    }
    Ok(())
}
