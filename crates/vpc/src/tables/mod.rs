//! What forwarding looks up: built from a [`Spec`](crate::spec::Spec) at once, then only read, shared by all cores.
//!
//! ```text
//!   port ──► attachment ──► endpoint ─► network        VNI ──► network
//!   (network, address) ──► entry: the gateway, or a next hop                           exact
//!   (network, prefix)  ──► entry: a next hop, an ECMP group, a peer, or a blackhole    longest prefix
//!   next hop ──► MAC address, path MTU, port or tunnel ──► tunnel's outer headers
//! ```
//!
//! - `topology`: networks, endpoints, next hops
//! - `fib`: what addresses and prefixes resolve to; `routing`: route tables of some sources, peerings; `ecmp`
//! - `objects`: what flows are computed from, with versions
//! - `loaded`: entries that are loaded by file
//! - `build`: from a spec to all this

mod build;
mod check;
mod ecmp;
mod error;
mod fib;
mod keeping;
mod loaded;
mod names;
mod nat;
mod objects;
mod policy;
mod prefixes;
mod routing;
mod topology;
mod tunnel;

use std::net::IpAddr;
use std::sync::Arc;
#[cfg(debug_assertions)]
use std::sync::atomic::Ordering;

pub use softdpu_lpm::coalesce::Conflict;
use softdpu_sys::prefetch;

pub use ecmp::MemberStatus;
pub(crate) use ecmp::{EcmpChoice, EcmpGroup};
pub use error::{Entry, Problem, SpecError};
pub(crate) use fib::{FibEntry, Target};
pub use loaded::{
    ChangeError, Changes, EntryChange, Expected, Ground, LoadCounts, LoadError, Loaded, LoadedEntry, Loading, Pair,
    RouteTo,
};
pub use nat::Exit;
pub(crate) use prefixes::Prefixes;
pub(crate) use routing::RouteLookup;
pub use topology::RemoteEndpoint;
pub(crate) use topology::{Attachment, Egress, Endpoint, Hop, MeteredPort, Network};
pub(crate) use tunnel::Tunnel;

use crate::exact::{ExactKey, ExactTable};
use crate::id::{EcmpId, EndpointId, HopId, NetworkId, ObjectId, PortId, TunnelId, Vni};
use crate::kept::Keeping;
use crate::nat::Nat;
use crate::policy::connections::Connections;
use crate::policy::conntrack::Zone;
use crate::policy::meter::MeterIds;
use crate::policy::meter::{MeterCount, NodeMeter};
use crate::spec::{ServiceLimit, UnderlaySpec};
use crate::stamp::{SOURCES, Stamp, StampSubject};

/// How routes of one family are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupMethod<'a> {
    /// The routes.
    pub of: RoutesOf<'a>,
    /// Their family.
    pub is_ipv6: bool,
    /// By exact match, or by longest prefix match because of this conflict.
    pub exact: Result<(), Conflict>,
}

/// Routes that are looked up together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutesOf<'a> {
    /// A network's, with its subnets and those of its peers.
    Network,
    /// A network's that were loaded by file.
    Loaded,
    /// A route table's, by its name, with the subnets that it has no route for.
    Table(&'a str),
}

/// Everything that forwarding looks up.
#[derive(Debug)]
pub struct Tables {
    networks: Box<[Network]>,
    /// What flows are computed from.
    objects: objects::Objects,
    /// By the numbers of their objects.
    endpoints: Box<[Option<Endpoint>]>,
    /// By their numbers; those of loaded entries are not here.
    hops: Box<[Option<Hop>]>,
    tunnels: Box<[Tunnel]>,
    ports: Box<[Attachment]>,
    vnis: ExactTable<NetworkId>,
    addresses: ExactTable<FibEntry>,
    /// Those of networks, then those of route tables.
    prefixes: Prefixes<fib::FibRoute>,
    route_tables: routing::RouteTables,
    ecmp_groups: ecmp::EcmpGroups,
    /// (network, tunnel end point): the tunnels by which a network's endpoints and routes are reached.
    members: ExactTable<TunnelId>,
    underlay: Option<UnderlaySpec>,
    /// Hosts that it does not reach.
    unreached: Box<[IpAddr]>,
    services: ServiceLimit,
    policies: policy::Policies,
    /// An endpoint at a port of this node is in a group or has a list.
    has_policies: bool,
    /// In the order of their names. A meter's number is its place.
    meters: Box<[Arc<NodeMeter>]>,
    /// By port; empty where there are no meters.
    metered_ports: Box<[MeteredPort]>,
    /// What was loaded by file.
    loaded: Option<Arc<Loaded>>,
    /// The versions of loaded guests.
    guests: Option<loaded::GuestVersions>,
    /// By the numbers of loaded hosts; None where this node does not reach the host.
    loaded_tunnels: Box<[Option<TunnelId>]>,
    /// By the numbers of networks among those with loaded entries; None where the network is not in the spec.
    loaded_networks: Box<[Option<NetworkId>]>,
    /// By the numbers of ECMP groups among those that loaded routes lead to.
    loaded_groups: Box<[Target]>,
    /// What is translated at exits, by their numbers.
    nats: Box<[Arc<Nat>]>,
    keeping: Keeping,
    /// Flows are kept.
    keeps_flows: bool,
    /// Entries are being loaded: an unknown address may be known in a moment.
    is_loading: bool,
}

impl Tables {
    #[inline]
    pub(crate) fn attachment(&self, port: PortId) -> Attachment {
        self.ports.get(port.0 as usize).copied().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn network(&self, network: NetworkId) -> Option<&Network> {
        self.networks.get(network.index())
    }

    /// The network with routes that are the object `routes`.
    pub(crate) fn network_with(&self, routes: ObjectId) -> Option<&Network> {
        self.networks.iter().find(|network| network.routes == routes)
    }

    #[inline]
    pub(crate) fn endpoint(&self, endpoint: EndpointId) -> Option<&Endpoint> {
        self.endpoints.get(endpoint.index())?.as_ref()
    }

    /// The endpoint that is an object.
    #[inline]
    pub(crate) fn endpoint_with(&self, object: ObjectId) -> Option<(EndpointId, &Endpoint)> {
        Some((EndpointId::new(object.number()), self.endpoints.get(object.index())?.as_ref()?))
    }

    /// The endpoint that a next hop leads to.
    #[inline]
    pub(crate) fn endpoint_at(&self, hop: HopId) -> Option<(EndpointId, &Endpoint)> {
        self.endpoint_with(hop.object()?)
    }

    #[inline]
    pub(crate) fn hop(&self, hop: HopId) -> Option<Hop> {
        match self.hops.get(hop.index()) {
            Some(hop) => *hop,
            None => self.loaded_hop(hop),
        }
    }

    /// The next hop `hop`, by reference unless it is a loaded entry's, which is put into `room`. For what is done for
    /// every packet.
    #[inline(always)]
    pub(crate) fn hop_in<'a>(&'a self, hop: HopId, room: &'a mut Option<Hop>) -> Option<&'a Hop> {
        match self.hops.get(hop.index()) {
            Some(hop) => hop.as_ref(),
            None => {
                *room = self.loaded_hop(hop);
                room.as_ref()
            }
        }
    }

    /// The next hop of a loaded entry.
    #[inline(never)]
    fn loaded_hop(&self, hop: HopId) -> Option<Hop> {
        let entry = self.loaded.as_deref()?.hop(hop)?;
        let network = (*self.loaded_networks.get(entry.network.index())?)?;
        let Network { gateway_mac, vni, mtu, .. } = *self.network(network)?;
        let tunnel = (*self.loaded_tunnels.get(entry.host.index())?)?;
        let mtu = mtu.min(self.tunnel(tunnel)?.mtu(self.underlay.as_ref()?.mtu));
        let egress = Egress::Tunnel(tunnel);
        Some(Hop { network, mtu, mac: entry.mac.unwrap_or(gateway_mac), egress, gateway_mac, vni })
    }

    #[inline]
    pub(crate) fn prefetch_hop(&self, hop: HopId) {
        if let Some(hop) = self.hops.get(hop.index()) {
            prefetch::read(hop);
        }
    }

    /// Whether the next hop is a port of this node.
    #[inline]
    pub(crate) fn is_local(&self, hop: HopId) -> bool {
        self.hop(hop).is_some_and(|hop| matches!(hop.egress, Egress::Port(_)))
    }

    /// The tunnel that the next hop is behind.
    #[inline]
    pub(crate) fn tunnel_of(&self, hop: HopId) -> Option<TunnelId> {
        match self.hop(hop)?.egress {
            Egress::Tunnel(tunnel) => Some(tunnel),
            Egress::Port(_) => None,
        }
    }

    /// Whether flows are kept.
    #[inline]
    pub(crate) fn keeps_flows(&self) -> bool {
        self.keeps_flows
    }

    /// Whether entries are being loaded.
    pub(crate) fn is_loading(&self) -> bool {
        self.is_loading
    }

    /// Whether entries of `network` are being loaded.
    #[inline]
    pub(crate) fn loads_network(&self, network: NetworkId) -> bool {
        self.network(network).is_some_and(|network| network.is_loading)
    }

    /// Whether an entry of `network` that is being loaded may win over the route that `address`, which no known guest
    /// has, has now.
    #[inline]
    pub(crate) fn may_load(&self, network: NetworkId, address: IpAddr, is_policy_route: bool) -> bool {
        self.network(network).is_some_and(|network| network.is_loading && network.may_load(address, is_policy_route))
    }

    /// What was loaded by file.
    pub fn loaded(&self) -> Option<&Arc<Loaded>> {
        self.loaded.as_ref()
    }

    /// An object with its version.
    #[inline]
    pub(crate) fn stamp(&self, object: impl Into<ObjectId>) -> Stamp {
        self.objects.stamp(object.into())
    }

    /// The object that a next hop is, with its version; nothing's stamp, if it is a loaded entry's.
    #[inline]
    pub(crate) fn hop_stamp(&self, hop: HopId) -> Stamp {
        hop.object().map_or(Stamp::default(), |object| self.objects.stamp(object))
    }

    /// A network's routes with their version.
    #[inline]
    pub(crate) fn routes_stamp(&self, network: NetworkId) -> Stamp {
        self.network(network).map_or(Stamp::default(), |network| self.stamp(network.routes))
    }

    /// Whether what a stamp is of has the same version still.
    #[inline]
    pub(crate) fn is_current(&self, stamp: Stamp) -> bool {
        self.objects.is_current(stamp) || self.above_objects(stamp) == Some(stamp)
    }

    /// What a stamp is of, with its present version, unless it is of an object.
    fn above_objects(&self, stamp: Stamp) -> Option<Stamp> {
        match stamp.subject() {
            StampSubject::Object(_) => None,
            StampSubject::Bucket(bucket) => self.ecmp_groups.bucket_stamp(bucket),
            StampSubject::Guests(hash) => Some(self.guests.as_ref()?.stamp(hash)),
        }
    }

    /// What a stamp is of, with its present version.
    pub(crate) fn current(&self, stamp: Stamp) -> Stamp {
        match stamp.subject() {
            StampSubject::Object(object) => self.stamp(object),
            StampSubject::Bucket(_) | StampSubject::Guests(_) => self.above_objects(stamp).unwrap_or_default(),
        }
    }

    /// The stamp of the loaded guest with `address` in `network`.
    #[inline]
    pub(crate) fn guest_stamp(&self, network: NetworkId, address: IpAddr) -> Stamp {
        let hash = || {
            let network = self.network(network)?.loaded?;
            self.loaded.as_deref()?.hash(network, address)
        };
        hash().zip(self.guests.as_ref()).map_or(Stamp::default(), |(hash, guests)| guests.stamp(hash))
    }

    /// The stamp of what `address` of `network` resolves to: the next hop `hop`.
    #[inline]
    pub(crate) fn address_stamp(&self, network: NetworkId, address: IpAddr, hop: HopId) -> Stamp {
        if hop.is_loaded() { self.guest_stamp(network, address) } else { self.hop_stamp(hop) }
    }

    #[inline]
    pub(crate) fn ecmp_group(&self, group: EcmpId) -> Option<&EcmpGroup> {
        self.ecmp_groups.get(group).map(|group| &**group)
    }

    /// Counts a packet of `bytes` bytes that goes to a member of an ECMP group by the next hop `hop`; `sources` decided
    /// so. `shard` is the core's number.
    #[inline(never)]
    pub(crate) fn count_member(
        &self,
        hop: HopId,
        sources: impl FnOnce() -> [Stamp; SOURCES],
        shard: usize,
        bytes: u64,
    ) {
        self.ecmp_groups.count(hop, sources, shard, bytes);
    }

    /// ECMP groups: network, name, and the status of each member.
    pub fn ecmp_groups(&self) -> impl Iterator<Item = (&str, &str, Vec<MemberStatus>)> {
        self.ecmp_groups.iter().map(|group| (&*group.network, &*group.name, group.status()))
    }

    #[inline]
    pub(crate) fn tunnel(&self, tunnel: TunnelId) -> Option<&Tunnel> {
        self.tunnels.get(tunnel.index())
    }

    /// How the routes of a network, those that are loaded and its route tables' included, are looked up: each family
    /// that there are routes of.
    pub fn lookups<'a>(&'a self, network: &str) -> Vec<LookupMethod<'a>> {
        let Some(at) = self.networks.iter().position(|it| it.name == network) else { return Vec::new() };
        let (id, network) = (NetworkId::new(at as u32), &self.networks[at]);
        let mut all = Vec::new();
        let mut add = |of: RoutesOf<'a>, families: [Option<Result<(), Conflict>>; 2]| {
            let families = families.into_iter().zip([false, true]);
            all.extend(families.filter_map(|(exact, is_ipv6)| Some(LookupMethod { of, is_ipv6, exact: exact? })));
        };
        add(RoutesOf::Network, self.prefixes.lookups(id.into()));
        if let (Some(loaded), Some(network)) = (&self.loaded, network.loaded) {
            add(RoutesOf::Loaded, loaded.lookups(network));
        }
        for (prefixes, table) in self.route_tables.rows(self.networks.len()).filter(|(_, table)| table.network == id) {
            add(RoutesOf::Table(&table.name), self.prefixes.lookups(prefixes));
        }
        all
    }

    #[inline]
    pub(crate) fn route_table(&self, table: crate::id::RouteTableId) -> Option<&routing::RouteTable> {
        self.route_tables.get(table)
    }

    #[inline]
    pub(crate) fn network_of(&self, vni: Vni) -> Option<NetworkId> {
        self.vnis.get(&ExactKey::new(0, vni.get().into()))
    }

    /// The tunnel to `host`, if anything of `network` is there.
    #[inline]
    pub(crate) fn member(&self, network: NetworkId, host: IpAddr) -> Option<TunnelId> {
        self.members.get(&ExactKey::address(network.number(), host))
    }

    /// The tunnels to all hosts that have anything of `network`.
    pub(crate) fn tunnels_of(&self, network: NetworkId) -> impl Iterator<Item = &Tunnel> {
        let numbered = (0..).map(TunnelId::new).zip(&self.tunnels);
        numbered.filter(move |(id, to)| self.member(network, to.host) == Some(*id)).map(|(_, tunnel)| tunnel)
    }

    /// The ports of this node that have endpoints of `network`.
    pub(crate) fn ports_of(&self, network: NetworkId) -> impl Iterator<Item = PortId> {
        let is_in = move |at: &Attachment| match at {
            Attachment::Endpoint(id) => self.endpoint(*id).is_some_and(|endpoint| endpoint.network == network),
            Attachment::Underlay | Attachment::Nothing => false,
        };
        (0..).map(PortId).zip(&self.ports).filter(move |(_, at)| is_in(at)).map(|(port, _)| port)
    }

    /// Hosts of the spec that the underlay does not reach, where
    /// [that is no error](crate::spec::Spec::allows_unreached).
    pub fn unreached(&self) -> &[IpAddr] {
        &self.unreached
    }

    /// The port by which tunnels come and go.
    pub fn underlay_port(&self) -> Option<PortId> {
        self.underlay.as_ref().map(|underlay| underlay.port)
    }

    #[inline]
    pub(crate) fn underlay(&self) -> Option<&UnderlaySpec> {
        self.underlay.as_ref()
    }

    /// Whether the software tier has to be asked about packets that no flow decides.
    #[inline]
    pub(crate) fn has_policies(&self) -> bool {
        self.has_policies
    }

    /// What the meters counted, by name: green, yellow, red. What is green counts when the lease that a core spent it
    /// of has ended: 64 ms later at the latest.
    pub fn meter_counts(&self) -> impl Iterator<Item = (&str, [MeterCount; 3])> {
        self.meters.iter().map(|meter| (meter.spec.name.as_str(), meter.counts()))
    }

    /// The endpoint at a port with its meters, if it has some.
    #[inline(always)]
    pub(crate) fn metered_port(&self, port: PortId) -> Option<MeteredPort> {
        self.metered_ports.get(port.0 as usize).copied().filter(|port| !port.meters.is_empty())
    }

    /// The meters of an endpoint, by their numbers.
    #[inline(always)]
    pub(crate) fn meters_of(&self, endpoint: EndpointId) -> MeterIds {
        self.endpoint(endpoint).map_or_else(MeterIds::default, |endpoint| endpoint.meters)
    }

    /// The meters, by their numbers.
    #[inline(always)]
    pub(crate) fn meters(&self) -> &[Arc<NodeMeter>] {
        &self.meters
    }

    /// The meter of a name.
    fn meter_called(&self, name: &str) -> Option<&Arc<NodeMeter>> {
        self.meters.binary_search_by(|meter| meter.spec.name.as_str().cmp(name)).ok().and_then(|at| self.meters.get(at))
    }

    /// How many connections there are of endpoints in groups, and what was counted; None where there are no such
    /// endpoints.
    pub fn connection_stats(&self) -> Option<(usize, crate::policy::conntrack::Stats)> {
        self.connections().filter(|_| self.has_zones()).map(Connections::stats)
    }

    /// How often a core took a lock that cores share, for a connection or a meter. For tests of what packets do without
    /// one.
    #[cfg(debug_assertions)]
    #[doc(hidden)]
    pub fn locks_taken(&self) -> u64 {
        let meters: u64 = self.meters.iter().map(|meter| meter.asked.load(Ordering::Relaxed)).sum();
        meters + self.connections().map_or(0, Connections::locks_taken)
    }

    /// What was counted of the connections of each network, by name.
    pub fn connections_of_networks(&self) -> Vec<(String, crate::policy::conntrack::ZoneStats)> {
        self.connections().map(Connections::networks).unwrap_or_default()
    }

    /// How many connections there can be; 0 where there are no endpoints in groups.
    pub fn connection_capacity(&self) -> usize {
        self.connections().filter(|_| self.has_zones()).map_or(0, Connections::capacity)
    }

    /// Whether any network has connections.
    fn has_zones(&self) -> bool {
        self.networks.iter().any(|network| network.zone.is_some())
    }

    /// The connections of endpoints in groups.
    #[inline]
    pub(crate) fn connections(&self) -> Option<&Connections> {
        self.policies.connections.as_deref()
    }

    /// The zone of a network's connections.
    #[inline]
    pub(crate) fn zone_of(&self, network: NetworkId) -> Option<Zone> {
        self.network(network)?.zone
    }

    pub(crate) fn services(&self) -> ServiceLimit {
        self.services
    }

    /// Port numbers are below this.
    pub(crate) fn ports(&self) -> usize {
        self.ports.len()
    }
}
