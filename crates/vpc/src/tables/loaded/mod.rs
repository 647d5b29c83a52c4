//! Entries that are loaded by file, millions at once: which guest is on which node, and which prefixes are behind which
//! node (Zephyrus §4.2: VM-to-node and route tables).
//!
//! They are built by a [`Loading`], and shared by all [`Tables`](super::Tables) that are built while they are in force:
//! a change of something else costs nothing for them. What the spec says wins over them, so that a guest can move
//! without another load. Single entries come and go by [changes](change), made in a copy that no core reads.
//!
//! ```text
//!   (network, address) ──► entry: MAC address, node ──┐
//!   (network, prefix)  ──► entry: gateway, node     ──┴──► next hop, put together when it is looked up
//! ```
//!
//! Entries have numbers of next hops from [`HopId::FIRST_LOADED`] on, which they [keep](numbers) from load to load.
//! Flows to and from guests are told apart by the [versions of these](versions). Flows by routes are told apart by the
//! version of their network's routes, which changes with the network's loaded routes.

mod apply;
mod build;
mod change;
mod loading;
mod numbers;
mod versions;

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::AtomicU32;

use softdpu_lpm::Lpm;
use softdpu_lpm::coalesce::Conflict;
use thiserror::Error;

pub use change::{ChangeError, Changes, EntryChange, Expected, Ground, LoadedEntry, Pair, RouteTo};
pub use loading::Loading;
use versions::GuestGenerations;
pub(super) use versions::GuestVersions;

use super::error::Problem;
use super::prefixes::Prefixes;
use crate::exact::{ExactKey, ExactTable};
use crate::id::{HopId, ids};
use crate::packet::Mac;
use crate::spec::Prefix;

/// Loads are numbered within the process.
static LOADS: AtomicU32 = AtomicU32::new(1);

ids! {
    /// A network, by its place among those that have loaded entries.
    LoadedNetworkId;
    /// A node that loaded entries lead to.
    LoadedHostId;
    /// An ECMP group, by its place among those that loaded routes lead to.
    LoadedGroupId;
}

/// An entry that cannot be loaded.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{problem}")]
pub struct LoadError {
    /// The entry's line.
    pub line: u32,
    /// What is wrong with it.
    pub problem: Problem,
}

/// How many entries are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadCounts {
    /// Guests on other nodes.
    pub endpoints: usize,
    /// Routes.
    pub routes: usize,
    /// Nodes that entries lead to.
    pub hosts: usize,
}

/// The entry of a guest's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LoadedGuest {
    pub hop: HopId,
    /// The subnet, by its place among its network's.
    pub subnet: u32,
}

/// Where a loaded route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LoadedVia {
    Hop(HopId),
    Ecmp(LoadedGroupId),
}

/// A loaded route, with the length by which it is compared with routes from another table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoadedRoute {
    pub via: LoadedVia,
    pub length: u8,
}

impl Default for LoadedRoute {
    fn default() -> LoadedRoute {
        LoadedRoute { via: LoadedVia::Hop(HopId::default()), length: 0 }
    }
}

/// The next hop of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadedHop {
    /// None: the network's gateway, for what is behind a route.
    pub mac: Option<Mac>,
    pub network: LoadedNetworkId,
    pub host: LoadedHostId,
}

/// A network that has entries.
#[derive(Clone, Debug)]
struct LoadedNetwork {
    name: String,
    counts: LoadCounts,
    /// The seed of the hash of its guests' addresses.
    seed: u64,
    /// The last load that changed its guests.
    guests: u32,
    /// A digest of its routes, their next hops included.
    routes: u128,
    /// How many of its routes are within a subnet: addresses there that no guest has go by the route.
    routes_in_subnets: usize,
}

/// A node where a network has entries.
#[derive(Clone, Copy, Debug)]
struct LoadedMember {
    /// How many.
    entries: usize,
    /// The next hop of the network's routes to the node.
    hop: HopId,
}

/// A node that entries lead to.
#[derive(Clone, Copy, Debug)]
struct LoadedHost {
    address: IpAddr,
    /// In how many networks. In none, once the last entry has gone: the number is another's next.
    networks: usize,
}

/// What a route adds to the digest of its network's.
fn route_content(prefix: Prefix, via: LoadedVia, groups: &[(LoadedNetworkId, Box<str>)]) -> u128 {
    match via {
        LoadedVia::Hop(hop) => versions::digest(&(prefix, hop)),
        LoadedVia::Ecmp(group) => versions::digest(&(prefix, groups.get(group.index()).map(|(_, name)| name))),
    }
}

/// Entries in force.
#[derive(Clone)]
pub struct Loaded {
    version: u32,
    /// The load or change that made the nodes what they are.
    hosts_version: u32,
    networks: Vec<LoadedNetwork>,
    guest_generations: GuestGenerations,
    /// By [index](HopId::loaded_index); None of unused numbers.
    hops: Vec<Option<LoadedHop>>,
    /// Unused numbers below the largest.
    free_hops: Vec<HopId>,
    guests: ExactTable<LoadedGuest>,
    routes: Prefixes<LoadedRoute>,
    /// Routes that came one by one, by network: they may overlap those that were loaded.
    added: Lpm<LoadedRoute>,
    hosts: Vec<LoadedHost>,
    /// Numbers of nodes that no entry leads to any more.
    free_hosts: Vec<LoadedHostId>,
    host_ids: HashMap<IpAddr, LoadedHostId>,
    /// By network and node.
    members: BTreeMap<(LoadedNetworkId, LoadedHostId), LoadedMember>,
    /// ECMP groups that routes lead to, or did, by network and name.
    groups: Vec<(LoadedNetworkId, Box<str>)>,
    counts: LoadCounts,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("version", &self.version).field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl PartialEq for Loaded {
    fn eq(&self, other: &Loaded) -> bool {
        self.version == other.version
    }
}

impl Eq for Loaded {}

impl Loaded {
    /// How many there are in all.
    pub fn counts(&self) -> LoadCounts {
        self.counts
    }

    /// Networks that have entries, or had some, by name, and how many.
    pub fn networks(&self) -> impl Iterator<Item = (&str, LoadCounts)> {
        self.networks.iter().map(|network| (network.name.as_str(), network.counts))
    }

    /// Another number where the nodes that entries lead to are others.
    pub fn hosts_version(&self) -> u32 {
        self.hosts_version
    }

    /// The nodes that entries lead to.
    pub fn hosts(&self) -> impl Iterator<Item = IpAddr> {
        self.numbered_hosts().flatten()
    }

    /// By number: the nodes; None where no entry leads to the node any more.
    pub(super) fn numbered_hosts(&self) -> impl Iterator<Item = Option<IpAddr>> {
        self.hosts.iter().map(|host| (host.networks > 0).then_some(host.address))
    }

    /// The loaded content that flows by routes of a network are computed from. `has_route_in_subnet`: the network has
    /// routes within its subnets that are not loaded.
    pub(super) fn content(&self, network: LoadedNetworkId, has_route_in_subnet: bool) -> (u128, Option<u32>) {
        let Some(network) = self.networks.get(network.index()) else { return Default::default() };
        let depends_on_guests = has_route_in_subnet || network.routes_in_subnets > 0;
        (network.routes, depends_on_guests.then_some(network.guests))
    }

    /// [`Prefixes::lookups`] of a network's routes.
    pub(super) fn lookups(&self, network: LoadedNetworkId) -> [Option<Result<(), Conflict>>; 2] {
        let (mut lookups, added) = (self.routes.lookups(network.into()), self.added.counts(network.number()));
        for (lookup, _) in lookups.iter_mut().zip(added).filter(|(_, added)| *added > 0) {
            *lookup = lookup.filter(|lookup| lookup.is_err()).or(Some(Err(Conflict::Added)));
        }
        lookups
    }

    /// The hash of a guest's address, by which the guest has a version.
    #[inline]
    pub(super) fn hash(&self, network: LoadedNetworkId, address: IpAddr) -> Option<u32> {
        let network = self.networks.get(network.index())?;
        Some(versions::hash(network.seed, &ExactKey::address(0, address)))
    }

    /// An address that an endpoint of the spec has, if a loaded guest has it, too.
    pub(super) fn overruled(&self, network: LoadedNetworkId, address: IpAddr) -> Option<(u32, u64, IpAddr)> {
        self.guest(network, address)?;
        Some((self.hash(network, address)?, self.networks.get(network.index())?.seed, address))
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (LoadedNetworkId, &str)> {
        self.groups.iter().map(|(network, name)| (*network, &**name))
    }

    /// Networks, and nodes where each has entries.
    pub(super) fn members(&self) -> impl Iterator<Item = (LoadedNetworkId, LoadedHostId, IpAddr)> {
        self.members.keys().map(|&(network, host)| (network, host, self.hosts[host.index()].address))
    }

    #[inline]
    pub(super) fn hop(&self, hop: HopId) -> Option<&LoadedHop> {
        self.hops.get(hop.loaded_index()?)?.as_ref()
    }

    /// The guest with `address`.
    #[inline]
    pub(super) fn guest(&self, network: LoadedNetworkId, address: IpAddr) -> Option<LoadedGuest> {
        self.guests.get(&ExactKey::address(network.number(), address))
    }

    /// The longest route that contains `address`.
    #[inline]
    pub(super) fn route(&self, network: LoadedNetworkId, address: IpAddr) -> Option<LoadedRoute> {
        let loaded = self.routes.longest(network.into(), address);
        if self.added.is_empty() {
            return loaded;
        }
        let added = self.added.lookup(network.number(), address);
        loaded.into_iter().chain(added).max_by_key(|route| route.length)
    }
}
