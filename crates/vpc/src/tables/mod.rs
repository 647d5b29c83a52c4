//! What forwarding looks up: built from a [`Spec`](crate::spec::Spec) at once, then only read, shared by all cores.
//!
//! ```text
//!   port ──► attachment ──► endpoint ─► network        VNI ──► network
//!   (network, address) ──► owner: the gateway, or a next hop              exact
//!   (network, prefix)  ──► a next hop, an ECMP group, a peer, or nobody   longest prefix
//!   next hop ──► MAC address, path MTU, port or tunnel ──► tunnel's outer headers
//! ```

mod build;
mod ecmp;
mod error;
mod loaded;
mod objects;
mod policy;
mod prefixes;
mod routing;
mod tunnel;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

pub use ecmp::MemberStatus;
pub(crate) use ecmp::{Choice, Group};
pub use error::{Entry, Problem, SpecError};
pub use loaded::{LoadCounts, LoadError, Loaded, Loading};
pub(crate) use prefixes::Prefixes;
pub(crate) use routing::{Leads, Routing};
pub(crate) use tunnel::Tunnel;

pub use softdpu_lpm::coalesce::Conflict;
use softdpu_sys::prefetch;

use crate::exact::{ExactKey, ExactTable};
use crate::id::PortId;
use crate::packet::Mac;
use crate::policy::EndpointPolicy;
use crate::policy::connections::Connections;
use crate::policy::group::GroupId;
use crate::policy::meter::{self, MeterCount, NodeMeter};
use crate::spec::{Prefix, ServiceLimit, SubnetSpec, UnderlaySpec};
use crate::stamp::{SOURCES, Stamp};

/// The number of an endpoint, a next hop or a tunnel that is none.
const NONE: u32 = u32::MAX;

/// How routes of one family are looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup<'a> {
    /// Which.
    pub of: RoutesOf<'a>,
    /// Their family.
    pub is_ipv6: bool,
    /// By exact match, or why not: by longest prefix match then.
    pub exact: Result<(), Conflict>,
}

/// Routes that are looked up together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoutesOf<'a> {
    /// A network's, with its subnets and those of its peers.
    Network,
    /// Those of a network that were loaded by file.
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
    /// Likewise.
    hops: Box<[Option<Hop>]>,
    tunnels: Box<[Tunnel]>,
    ports: Box<[Attachment]>,
    vnis: ExactTable<u32>,
    addresses: ExactTable<Owner>,
    /// Those of networks, then those of route tables.
    prefixes: Prefixes<loaded::Routed>,
    route_tables: routing::RouteTables,
    groups: ecmp::Groups,
    /// (network, tunnel end point): the tunnels by which a network's endpoints and routes are reached.
    members: ExactTable<u32>,
    underlay: Option<UnderlaySpec>,
    /// Hosts that it does not reach.
    unreached: Box<[IpAddr]>,
    services: ServiceLimit,
    policies: policy::Policies,
    /// Whether an endpoint here is in a group or has a list.
    has_policies: bool,
    /// By name.
    meters: BTreeMap<Box<str>, Arc<NodeMeter>>,
    /// What was loaded by file.
    loaded: Option<Arc<Loaded>>,
    /// The versions of its guests.
    guests: Option<loaded::Versions>,
    /// The tunnels to its nodes, by their numbers; [`NONE`] where this node does not reach one.
    loaded_tunnels: Box<[u32]>,
    /// Its networks, by their numbers there; [`NONE`] for those that are not here.
    loaded_networks: Box<[u32]>,
    /// Its ECMP groups, by their numbers there.
    loaded_groups: Box<[Owner]>,
    /// Whether flows are kept.
    keeps_flows: bool,
    /// Entries are being loaded: who is not known may be in a moment.
    is_loading: bool,
}

/// A network.
#[derive(Debug)]
pub(crate) struct Network {
    pub name: String,
    pub vni: u32,
    pub gateway_mac: Mac,
    pub mtu: u16,
    pub dns: Box<[IpAddr]>,
    /// What comes by one tunnel may leave by another.
    pub transit: bool,
    /// Entries of it are being loaded,
    pub is_awaited: bool,
    /// of it or of a peer: nodes may be its members in a moment.
    pub awaits_members: bool,
    /// The object that is its routes.
    pub routes: u32,
    /// Its number among those that have connections; [`NONE`] without.
    tracker: u32,
    /// Its number among those that have loaded entries; [`NONE`] without.
    loaded: u32,
    /// The number of its first subnet.
    first_subnet: u32,
    subnets: Box<[Prefix]>,
}

impl Network {
    /// Whether an entry that is being loaded may have `address`, or a longer prefix for it, where no guest is known that has it and a
    /// route of the network, or one that `is_by_table`, does.
    #[cold]
    fn may_get(&self, address: IpAddr, is_by_table: bool) -> bool {
        // Route tables come before the network's routes, however long, and behind guests, who are in subnets.
        !is_by_table || self.subnets.iter().any(|subnet| subnet.contains(address))
    }
}

/// An endpoint. Its next hop has the same number.
#[derive(Debug)]
pub(crate) struct Endpoint {
    pub network: u32,
    pub mac: Mac,
    pub spoof_check: bool,
    pub mtu: u16,
    pub addresses: Box<[IpAddr]>,
    /// Numbers of their subnets, in their order.
    numbers: Box<[u32]>,
    /// Where its addresses are, in their order, each once.
    pub subnets: Box<[SubnetSpec]>,
    /// The security groups that it is in.
    pub groups: Box<[GroupId]>,
    /// Name of its access control list.
    pub acl: Option<Box<str>>,
    /// What is allowed to and from it, where it is at a port of this node; None: everything.
    pub policy: Option<Arc<EndpointPolicy>>,
    /// What its packets pass, where it is at a port of this node.
    pub meters: Box<[Arc<NodeMeter>]>,
}

impl Endpoint {
    /// The owner of `address` where that is this endpoint, whose number is `number`.
    #[inline]
    pub fn owner(&self, number: u32, address: IpAddr) -> Option<Owner> {
        let at = self.addresses.iter().position(|own| *own == address)?;
        Some(Owner { hop: number, subnet: *self.numbers.get(at)? })
    }
}

/// Where packets go next: the index that the flow tier hands to the switch tier (Zephyrus §4.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop {
    pub network: u32,
    /// Largest IP packet on the way there, bytes.
    pub mtu: u16,
    /// Inner destination MAC address.
    pub mac: Mac,
    pub way: Way,
    /// Of its network.
    pub gateway_mac: Mac,
    pub vni: u32,
}

const _: () = assert!(size_of::<Option<Hop>>() == 32, "two in a cache line");

/// How a next hop is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    Port(PortId),
    Tunnel(u32),
}

/// Somebody on another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The node's tunnel end point.
    pub host: IpAddr,
    /// The MAC address: behind a route, the network's gateway's.
    pub mac: Mac,
}

/// What is at a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Attachment {
    #[default]
    Nothing,
    Endpoint(u32),
    Underlay,
}

/// Who has an address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Number of its next hop; [`NONE`] where the gateway has it, or nobody.
    hop: u32,
    /// The subnet, by its number in all networks; [`NONE`] behind a route; what tells how else it [leads](Owner::leads) on.
    subnet: u32,
}

impl Owner {
    /// Its next hop.
    #[inline]
    pub fn hop(self) -> Option<u32> {
        match self.leads() {
            Leads::Hop(hop) => Some(hop),
            Leads::Nobody | Leads::Ecmp(_) | Leads::Peer(_) | Leads::Nowhere => None,
        }
    }

    /// Whether both are in one subnet.
    #[inline]
    pub fn is_beside(self, other: Owner) -> bool {
        self.subnet == other.subnet && self.subnet != NONE
    }
}

impl Tables {
    #[inline]
    pub(crate) fn attachment(&self, port: PortId) -> Attachment {
        self.ports.get(port.0 as usize).copied().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn network(&self, number: u32) -> Option<&Network> {
        self.networks.get(number as usize)
    }

    /// The network whose routes are the object `routes`.
    pub(crate) fn network_with(&self, routes: u32) -> Option<&Network> {
        self.networks.iter().find(|network| network.routes == routes)
    }

    #[inline]
    pub(crate) fn endpoint(&self, number: u32) -> Option<&Endpoint> {
        self.endpoints.get(number as usize)?.as_ref()
    }

    #[inline]
    pub(crate) fn hop(&self, number: u32) -> Option<Hop> {
        match self.hops.get(number as usize) {
            Some(hop) => *hop,
            None => self.loaded_hop(number),
        }
    }

    /// The same without a copy where it is not a loaded entry's, for what is done for every packet.
    #[inline(always)]
    pub(crate) fn hop_in<'a>(&'a self, number: u32, room: &'a mut Option<Hop>) -> Option<&'a Hop> {
        match self.hops.get(number as usize) {
            Some(hop) => hop.as_ref(),
            None => {
                *room = self.loaded_hop(number);
                room.as_ref()
            }
        }
    }

    /// The next hop of a loaded entry.
    #[inline(never)]
    fn loaded_hop(&self, number: u32) -> Option<Hop> {
        let target = self.loaded.as_deref()?.target(number)?;
        let network = *self.loaded_networks.get(target.network as usize)?;
        let Network { gateway_mac, vni, mtu, .. } = *self.networks.get(network as usize)?;
        let tunnel = *self.loaded_tunnels.get(target.host as usize)?;
        let mtu = mtu.min(self.tunnels.get(tunnel as usize)?.mtu(self.underlay.as_ref()?.mtu));
        Some(Hop { network, mtu, mac: target.mac.unwrap_or(gateway_mac), way: Way::Tunnel(tunnel), gateway_mac, vni })
    }

    /// Whether a next hop is a loaded entry's.
    #[inline]
    pub(crate) fn is_loaded(number: u32) -> bool {
        (loaded::FIRST..NONE).contains(&number)
    }

    /// Who has `address` in `network` by a loaded entry.
    #[inline]
    pub(crate) fn loaded_owner(&self, network: u32, address: IpAddr) -> Option<Owner> {
        let loaded = self.loaded.as_deref()?;
        let Network { loaded: number, first_subnet, .. } = *self.network(network)?;
        let owner = loaded.owner(number, address)?;
        Some(Owner { subnet: first_subnet + owner.subnet, ..owner })
    }

    /// Who has `address` in `network`.
    pub(crate) fn owner(&self, network: u32, address: IpAddr) -> Option<Owner> {
        self.addresses.get(&ExactKey::address(network, address)).or_else(|| self.loaded_owner(network, address))
    }

    /// Who has `address` in the network called `network`, or a route to it, on another node; of ECMP groups no one node.
    pub fn elsewhere(&self, network: &str, address: IpAddr) -> Option<Elsewhere> {
        let number = self.networks.iter().position(|known| known.name == network)? as u32;
        let owner = self.owner(number, address).or_else(|| self.route(number, address))?;
        let Hop { mac, way, .. } = self.hop(owner.hop()?)?;
        match way {
            Way::Tunnel(tunnel) => Some(Elsewhere { host: self.tunnel(tunnel)?.host, mac }),
            Way::Port(_) => None,
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
    pub(crate) fn is_awaited(&self, network: u32) -> bool {
        self.network(network).is_some_and(|network| network.is_awaited)
    }

    /// Whether an entry of `network` that is being loaded may win over the route, of a route table if it `is_by_table`, that `address`
    /// has now; no guest that is known has it.
    #[inline]
    pub(crate) fn may_be_loaded(&self, network: u32, address: IpAddr, is_by_table: bool) -> bool {
        self.network(network).is_some_and(|network| network.is_awaited && network.may_get(address, is_by_table))
    }

    /// What was loaded by file.
    pub fn loaded(&self) -> Option<&Arc<Loaded>> {
        self.loaded.as_ref()
    }

    #[inline]
    pub(crate) fn prefetch_hop(&self, number: u32) {
        if let Some(hop) = self.hops.get(number as usize) {
            prefetch::read(hop);
        }
    }

    /// Whether the next hop `number` is a port of this node.
    #[inline]
    pub(crate) fn is_here(&self, number: u32) -> bool {
        self.hop(number).is_some_and(|hop| matches!(hop.way, Way::Port(_)))
    }

    /// The tunnel that the next hop `number` is behind.
    #[inline]
    pub(crate) fn tunnel_of(&self, number: u32) -> Option<u32> {
        match self.hop(number)?.way {
            Way::Tunnel(tunnel) => Some(tunnel),
            Way::Port(_) => None,
        }
    }

    /// Number and version of an object.
    #[inline]
    pub(crate) fn stamp(&self, object: u32) -> Stamp {
        self.objects.stamp(object)
    }

    /// Whether an object, a bucket of an ECMP group, or one of loaded guests, is as it was.
    #[inline]
    pub(crate) fn is_current(&self, stamp: Stamp) -> bool {
        self.objects.is_current(stamp)
            || self.groups.current(stamp) == Some(stamp)
            || self.current_guest(stamp) == Some(stamp)
    }

    fn current_guest(&self, stamp: Stamp) -> Option<Stamp> {
        self.guests.as_ref()?.current(stamp)
    }

    /// The stamp of who has `address` in `network` by a loaded entry.
    #[inline]
    pub(crate) fn guest_stamp(&self, network: u32, address: IpAddr) -> Stamp {
        let number = self.network(network).map_or(NONE, |network| network.loaded);
        let hash = self.loaded.as_deref().and_then(|loaded| loaded.hash(number, address));
        hash.zip(self.guests.as_ref()).map_or(Stamp::default(), |(hash, guests)| guests.stamp(hash))
    }

    /// The stamp of who has `address` in `network`, whose next hop is `hop`.
    #[inline]
    pub(crate) fn owner_stamp(&self, network: u32, address: IpAddr, hop: u32) -> Stamp {
        if Tables::is_loaded(hop) { self.guest_stamp(network, address) } else { self.stamp(hop) }
    }

    /// The stamp that has now what `stamp` is of.
    pub(crate) fn current(&self, stamp: Stamp) -> Stamp {
        let above = self.groups.current(stamp).or_else(|| self.current_guest(stamp));
        above.unwrap_or_else(|| self.stamp(stamp.number() as u32))
    }

    /// An ECMP group, by its slot.
    #[inline]
    pub(crate) fn group(&self, slot: u32) -> Option<&Group> {
        self.groups.get(slot).map(|group| &**group)
    }

    /// Counts a packet to a member of an ECMP group: its next hop, what decided about it, the core's number, the packet's bytes.
    #[inline(never)]
    pub(crate) fn count_member(&self, hop: u32, sources: impl FnOnce() -> [Stamp; SOURCES], shard: usize, bytes: u64) {
        self.groups.count(hop, sources, shard, bytes);
    }

    /// ECMP groups: network, name, and each member as it is.
    pub fn ecmp_groups(&self) -> impl Iterator<Item = (&str, &str, Vec<MemberStatus>)> {
        self.groups.iter().map(|group| (&*group.network, &*group.name, group.status()))
    }

    #[inline]
    pub(crate) fn tunnel(&self, number: u32) -> Option<&Tunnel> {
        self.tunnels.get(number as usize)
    }

    #[inline]
    pub(crate) fn addresses(&self) -> &ExactTable<Owner> {
        &self.addresses
    }

    #[inline]
    pub(crate) fn route(&self, network: u32, address: IpAddr) -> Option<Owner> {
        let own = self.prefixes.longest(network, address);
        let loaded = self.loaded.as_deref().and_then(|loaded| loaded.route(self.network(network)?.loaded, address));
        match (own, loaded) {
            // Of two that are as long, what was said last wins: what is loaded can be overruled.
            (Some(own), Some(loaded)) if loaded.length > own.length => Some(self.loaded_way(loaded.owner)),
            (Some(own), _) => Some(own.owner),
            (None, loaded) => loaded.map(|loaded| self.loaded_way(loaded.owner)),
        }
    }

    /// The owner of a loaded route as these tables have it.
    #[inline]
    fn loaded_way(&self, owner: Owner) -> Owner {
        match owner.leads() {
            Leads::Ecmp(group) => self.loaded_groups.get(group as usize).copied().unwrap_or_else(Owner::nowhere),
            Leads::Nobody | Leads::Hop(_) | Leads::Peer(_) | Leads::Nowhere => owner,
        }
    }

    /// How the routes of a network are looked up, those that are loaded and its route tables' with them: each family that there are routes of.
    pub fn lookups<'a>(&'a self, network: &str) -> Vec<Lookup<'a>> {
        let Some(at) = self.networks.iter().position(|it| it.name == network) else { return Vec::new() };
        let mut all = Vec::new();
        let mut add = |of: RoutesOf<'a>, families: [Option<Result<(), Conflict>>; 2]| {
            let families = families.into_iter().zip([false, true]);
            all.extend(families.filter_map(|(exact, is_ipv6)| Some(Lookup { of, is_ipv6, exact: exact? })));
        };
        add(RoutesOf::Network, self.prefixes.lookups(at as u32));
        if let (Some(loaded), Some(network)) = (&self.loaded, self.networks.get(at)) {
            add(RoutesOf::Loaded, loaded.lookups(network.loaded));
        }
        for (row, table) in
            self.route_tables.rows(self.networks.len()).filter(|(_, table)| table.network as usize == at)
        {
            add(RoutesOf::Table(&table.name), self.prefixes.lookups(row));
        }
        all
    }

    #[inline]
    pub(crate) fn network_of(&self, vni: u32) -> Option<u32> {
        self.vnis.get(&ExactKey::new(0, vni.into()))
    }

    /// The tunnel to `host`, if anything of `network` is there.
    #[inline]
    pub(crate) fn member(&self, network: u32, host: IpAddr) -> Option<u32> {
        self.members.get(&ExactKey::address(network, host))
    }

    /// The tunnels to all hosts that have anything of `network`.
    pub(crate) fn tunnels_of(&self, network: u32) -> impl Iterator<Item = &Tunnel> {
        let numbered = (0..).zip(&self.tunnels);
        numbered.filter(move |(number, to)| self.member(network, to.host) == Some(*number)).map(|(_, tunnel)| tunnel)
    }

    /// The ports of this node that have endpoints of `network`.
    pub(crate) fn ports_of(&self, network: u32) -> impl Iterator<Item = PortId> {
        let is_in = move |at: &Attachment| match at {
            Attachment::Endpoint(number) => self.endpoint(*number).is_some_and(|endpoint| endpoint.network == network),
            Attachment::Underlay | Attachment::Nothing => false,
        };
        (0..).zip(&self.ports).filter(move |(_, at)| is_in(at)).map(|(number, _)| PortId(number))
    }

    /// Hosts of the spec that the underlay does not reach, where [that is no error](crate::spec::Spec::allows_unreached).
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

    /// What an object, or a bucket, is called that is no endpoint.
    pub(crate) fn stamp_name(&self, stamp: Stamp) -> Option<String> {
        match self.groups.bucket_of(stamp) {
            Some((group, bucket)) => Some(format!("bucket {bucket} of ECMP group {} of {}", group.name, group.network)),
            None if loaded::hash_of(stamp).is_some() => {
                self.guests.as_ref().map(|_| "loaded guests with its hash".to_owned())
            }
            None => self.object_name(stamp.number() as u32),
        }
    }

    fn object_name(&self, number: u32) -> Option<String> {
        if let Some(group) = self.groups.iter().find(|group| group.object == number) {
            return Some(format!("members of ECMP group {} of {}", group.name, group.network));
        }
        let routes = self.network_with(number);
        let name = |network: u32| self.network(network).map_or("?", |network| network.name.as_str());
        match (routes, self.hop(number)) {
            (Some(network), _) => Some(format!("routes of {}", network.name)),
            (None, Some(Hop { way: Way::Tunnel(tunnel), network, .. })) => {
                Some(format!("way of {} to {}", name(network), self.tunnel(tunnel)?.host))
            }
            (None, _) => self.table_name(number),
        }
    }

    /// The name of a security group.
    pub(crate) fn group_name(&self, group: GroupId) -> Option<&str> {
        self.policies.group_name(group)
    }

    /// Whether the software tier has to be asked about packets that no flow decides.
    #[inline]
    pub(crate) fn has_policies(&self) -> bool {
        self.has_policies
    }

    /// What the meters counted, by name: green, yellow, red.
    pub fn meter_counts(&self) -> impl Iterator<Item = (&str, [MeterCount; 3])> {
        self.meters.iter().map(|(name, meter)| (&**name, meter.counts()))
    }

    /// Whether a packet of `bytes` bytes from endpoint `number` may pass its meters at `now`, nanoseconds; its colours behind each of
    /// them go into `colours`.
    #[cold]
    pub(crate) fn admit<const REHEARSES: bool>(
        &self,
        number: u32,
        now: u64,
        bytes: u32,
        colours: &mut meter::Colours,
    ) -> bool {
        self.endpoint(number).is_none_or(|endpoint| meter::admit::<REHEARSES>(&endpoint.meters, now, bytes, colours))
    }

    /// As [`admit`](Self::admit), of at most [`AT_ONCE`](meter::AT_ONCE) packets, one after the other: a bit for each.
    pub(crate) fn admit_all(&self, number: u32, now: u64, bytes: &[u32]) -> u64 {
        self.endpoint(number).map_or(u64::MAX, |endpoint| meter::admit_all(&endpoint.meters, now, bytes))
    }

    /// Takes `load` from the meters of endpoint `number`, if it is green by all of them; otherwise nothing. Whether it was; what of it
    /// was used is to be [settled](Self::settle).
    #[inline(never)]
    pub(crate) fn take(&self, number: u32, now: u64, load: MeterCount) -> bool {
        self.endpoint(number).is_none_or(|endpoint| meter::take(&endpoint.meters, now, load))
    }

    /// Of what was taken, `used` was used.
    #[inline(never)]
    pub(crate) fn settle(&self, number: u32, taken: MeterCount, used: MeterCount) {
        if let Some(endpoint) = self.endpoint(number) {
            meter::settle(&endpoint.meters, taken, used);
        }
    }

    /// The endpoint at a port, if any endpoint has meters: on its way into the cache, to be [asked](Self::meters_of) for them in a
    /// while.
    #[inline(always)]
    pub(crate) fn prefetch_metered(&self, port: PortId) -> Option<u32> {
        if self.meters.is_empty() {
            return None;
        }
        let Attachment::Endpoint(number) = self.attachment(port) else { return None };
        // Of two lines, as it may lie; which of them has what is asked for, is the compiler's choice.
        let endpoint = std::ptr::from_ref(self.endpoints.get(number as usize)?);
        prefetch::read(endpoint);
        prefetch::read(endpoint.wrapping_add(1).cast::<u8>().wrapping_sub(1));
        Some(number)
    }

    /// The meters of endpoint `number`.
    #[inline(always)]
    pub(crate) fn meters_of(&self, number: u32) -> &[Arc<NodeMeter>] {
        self.endpoint(number).map_or(&[], |endpoint| &endpoint.meters)
    }

    /// How many connections there are of endpoints in groups, and what was counted; None where there are no such endpoints.
    pub fn connection_stats(&self) -> Option<(usize, crate::policy::conntrack::Stats)> {
        self.connections().map(Connections::stats)
    }

    /// How many connections there can be; 0 where there are no endpoints in groups.
    pub fn connection_capacity(&self) -> usize {
        self.connections().map_or(0, Connections::capacity)
    }

    /// The connections of endpoints in groups.
    #[inline]
    pub(crate) fn connections(&self) -> Option<&Connections> {
        self.policies.connections.as_deref()
    }

    /// The number by which connections know a network.
    #[inline]
    pub(crate) fn tracker_of(&self, network: u32) -> Option<u32> {
        self.network(network).map(|network| network.tracker).filter(|number| *number != NONE)
    }

    pub(crate) fn services(&self) -> ServiceLimit {
        self.services
    }

    /// Port numbers are below this.
    pub(crate) fn ports(&self) -> usize {
        self.ports.len()
    }
}
