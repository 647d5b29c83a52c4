//! Entries that are loaded by file, millions at once: which guest is on which node, and which prefixes are behind which node
//! (Zephyrus §4.2: VM-to-node and route tables).
//!
//! They are built once, by a [`Loading`], and shared by all [`Tables`](super::Tables) that are built while they are in force: a change of
//! something else costs nothing for them. What the rest of a spec says wins over them, so that a guest can move without
//! another load.
//!
//! ```text
//!   (network, address) ──► entry: MAC address, node ──┐
//!   (network, prefix)  ──► entry: gateway, node     ──┴──► next hop, put together when it is looked up
//! ```
//!
//! Entries have numbers of next hops from [`FIRST`] on, which they [keep](numbers) from load to load. Flows to and from guests are told
//! apart by the [versions of these](versions); those by routes by the version of their network's routes, which follows what is loaded of them.

mod build;
mod numbers;
mod versions;

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use thiserror::Error;
use versions::Ids;
pub(super) use versions::{Versions, hash_of};

use super::build::{host, station};
use super::error::Problem;
use super::{Owner, Prefixes};
use crate::exact::{ExactKey, ExactTable};
use crate::packet::Mac;
use crate::spec::{NetworkSpec, Prefix, TableCapacity};
use softdpu_lpm::coalesce::Conflict;

/// The first number of a next hop that is a loaded entry's.
pub(super) const FIRST: u32 = 1 << 23;
/// How many there may be: in a flow a next hop's number has 24 bits.
const MOST: usize = (1 << 24) - FIRST as usize;

/// Loads are numbered through in the process.
static LOADS: AtomicU32 = AtomicU32::new(1);

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

/// A route's owner with the length of its prefix, by which it is compared with routes from elsewhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Routed {
    pub owner: Owner,
    pub length: u8,
}

/// The next hop of an entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Target {
    /// None: the network's gateway, for what is behind a route.
    pub mac: Option<Mac>,
    /// The network's number among those that have entries.
    pub network: u32,
    /// The node's number.
    pub host: u32,
}

/// A network that has entries.
#[derive(Debug)]
struct Holder {
    name: String,
    counts: LoadCounts,
    /// What its guests' addresses are hashed with.
    seed: u64,
    /// The load since which it has the guests that it has.
    guests: u32,
    /// A digest of its routes, their next hops included.
    routes: u128,
    /// One of its routes is inside a subnet: what is not loaded there is behind it.
    is_pierced: bool,
}

/// Entries in force.
pub struct Loaded {
    version: u32,
    networks: Box<[Holder]>,
    guest_ids: Ids,
    targets: Box<[Target]>,
    addresses: ExactTable<Owner>,
    routes: Prefixes<Routed>,
    hosts: Box<[IpAddr]>,
    /// Which network has something at which node.
    members: Box<[(u32, u32)]>,
    /// For each of these, the number of the next hop that is what is behind routes there.
    ways: Box<[u32]>,
    /// ECMP groups that routes lead to, by network and name; in owners of routes they are numbers.
    groups: Box<[(u32, Box<str>)]>,
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

    /// Networks that have entries, by name, and how many.
    pub fn networks(&self) -> impl Iterator<Item = (&str, LoadCounts)> {
        self.networks.iter().map(|network| (network.name.as_str(), network.counts))
    }

    /// The nodes that entries lead to.
    pub fn hosts(&self) -> &[IpAddr] {
        &self.hosts
    }

    /// What flows by routes of a network are computed from, of what is loaded. Who `is_pierced` has routes inside its subnets that are not
    /// loaded.
    pub(super) fn content(&self, network: u32, is_pierced: bool) -> (u128, Option<u32>) {
        let network = self.networks.get(network as usize);
        let content = |network: &Holder| (network.routes, (is_pierced || network.is_pierced).then_some(network.guests));
        network.map(content).unwrap_or_default()
    }

    /// As of [`Prefixes::lookups`], of a network by its number here.
    pub(super) fn lookups(&self, network: u32) -> [Option<Result<(), Conflict>>; 2] {
        self.routes.lookups(network)
    }

    /// The hash of a guest, by which it has a version; of a network by its number here.
    #[inline]
    pub(super) fn hash(&self, network: u32, address: IpAddr) -> Option<u32> {
        let network = self.networks.get(network as usize)?;
        Some(versions::hash(network.seed, &ExactKey::address(0, address)))
    }

    /// An address that somebody else has, if it is loaded.
    pub(super) fn overruled(&self, network: u32, address: IpAddr) -> Option<(u32, u64, IpAddr)> {
        self.owner(network, address)?;
        Some((self.hash(network, address)?, self.networks.get(network as usize)?.seed, address))
    }

    pub(super) fn groups(&self) -> impl Iterator<Item = (u32, &str)> {
        self.groups.iter().map(|(network, name)| (*network, &**name))
    }

    pub(super) fn members(&self) -> &[(u32, u32)] {
        &self.members
    }

    #[inline]
    pub(super) fn target(&self, number: u32) -> Option<&Target> {
        self.targets.get(number.checked_sub(FIRST)? as usize)
    }

    /// The owner of an address; its subnet's number is among its network's.
    #[inline]
    pub(super) fn owner(&self, network: u32, address: IpAddr) -> Option<Owner> {
        // Whoever has no entries has no number that would be in a key.
        self.networks.get(network as usize)?;
        self.addresses.get(&ExactKey::address(network, address))
    }

    #[inline]
    pub(super) fn route(&self, network: u32, address: IpAddr) -> Option<Routed> {
        self.routes.longest(network, address)
    }
}

struct Known<'a> {
    spec: &'a NetworkSpec,
    /// Its number among those that have entries.
    number: Option<u32>,
}

struct Guest {
    network: u32,
    address: IpAddr,
    mac: Mac,
    host: u32,
    subnet: u32,
    line: u32,
}

struct Route {
    network: u32,
    prefix: Prefix,
    via: Via,
    line: u32,
}

/// Where a route leads: the number of a host, or of an ECMP group.
#[derive(Clone, Copy)]
enum Via {
    Host(u32),
    Ecmp(u32),
}

/// Entries that are being loaded. Nothing of them is in force before [`finish`](Self::finish) has found all of them right and they are
/// in a [`Spec`](crate::spec::Spec).
pub struct Loading<'a> {
    capacity: TableCapacity,
    /// Endpoints that there are beside them,
    others: usize,
    /// routes,
    other_routes: usize,
    /// and nodes that these and those lead to.
    other_hosts: HashSet<IpAddr>,
    /// How many endpoints and routes there was no room for,
    excess: [usize; 2],
    /// and which nodes.
    refused: HashSet<IpAddr>,
    /// The most next hops.
    next_hops: usize,
    /// This node's tunnel end points.
    own: &'a [IpAddr],
    known: HashMap<&'a str, Known<'a>>,
    names: Vec<&'a str>,
    hosts: Vec<IpAddr>,
    numbers: HashMap<IpAddr, u32>,
    /// The last one that was looked up: entries often come sorted.
    last: Option<(IpAddr, u32)>,
    guests: Vec<Guest>,
    routes: Vec<Route>,
    /// ECMP groups that there are, by network and name.
    known_groups: HashMap<&'a str, HashSet<&'a str>>,
    /// Routes to others are no error.
    allows_unknown_groups: bool,
    /// Those that routes lead to, by network number and name.
    groups: Vec<(u32, Box<str>)>,
    group_numbers: HashMap<u32, HashMap<Box<str>, u32>>,
    previous: Option<Arc<Loaded>>,
}

/// Whether one more has room where `there` are; `excess` counts those that have none.
fn room(table: &'static str, there: usize, capacity: usize, excess: &mut usize) -> Result<(), Problem> {
    if there < capacity {
        return Ok(());
    }
    *excess += 1;
    Err(Problem::Full { table, capacity, wanted: there + *excess })
}

impl<'a> Loading<'a> {
    /// Begins to load entries of `networks`. `others` endpoints are in the tables already; `own` are this node's tunnel end points,
    /// none while they are not known.
    pub fn new(networks: &'a [NetworkSpec], own: &'a [IpAddr], capacity: TableCapacity, others: usize) -> Loading<'a> {
        let known = networks.iter().map(|spec| (spec.name.as_str(), Known { spec, number: None })).collect();
        Loading {
            capacity,
            others,
            other_routes: 0,
            other_hosts: HashSet::new(),
            excess: [0; 2],
            refused: HashSet::new(),
            next_hops: MOST,
            own,
            known,
            names: Vec::new(),
            hosts: Vec::new(),
            numbers: HashMap::new(),
            last: None,
            guests: Vec::new(),
            routes: Vec::new(),
            known_groups: HashMap::new(),
            allows_unknown_groups: false,
            groups: Vec::new(),
            group_numbers: HashMap::new(),
            previous: None,
        }
    }

    /// What is loaded takes the place of `previous`: flows of what is the same in both go on.
    #[must_use]
    pub fn after(mut self, previous: Option<Arc<Loaded>>) -> Loading<'a> {
        self.previous = previous;
        self
    }

    /// With so many routes in the tables already, and the nodes that they and the endpoints there lead to.
    #[must_use]
    pub fn beside(mut self, routes: usize, hosts: HashSet<IpAddr>) -> Loading<'a> {
        (self.other_routes, self.other_hosts) = (routes, hosts);
        self
    }

    /// With ECMP groups that routes may lead to, by network and name.
    #[must_use]
    pub fn with_groups(mut self, groups: impl IntoIterator<Item = (&'a str, &'a str)>) -> Loading<'a> {
        for (network, group) in groups {
            self.known_groups.entry(network).or_default().insert(group);
        }
        self
    }

    /// Routes may lead to groups that there are not, too: what they have is dropped for as long. Entries that were in force once are to
    /// be again, whatever was changed since.
    #[must_use]
    pub fn with_unknown_groups(mut self) -> Loading<'a> {
        self.allows_unknown_groups = true;
        self
    }

    /// What has the `prefix` is behind the members of an ECMP group of the network.
    ///
    /// # Errors
    /// As of [`endpoint`](Self::endpoint).
    pub fn route_to_group(&mut self, line: u32, network: &str, prefix: Prefix, group: &str) -> Result<(), Problem> {
        let (spec, number) = self.network(network)?;
        let is_known = self.known_groups.get(spec.name.as_str()).is_some_and(|groups| groups.contains(group));
        if !is_known && !self.allows_unknown_groups {
            return Err(Problem::NoEcmp(group.to_owned()));
        }
        let numbers = self.group_numbers.entry(number).or_default();
        let at = numbers.get(group).copied().unwrap_or_else(|| {
            let next = self.groups.len() as u32;
            self.groups.push((number, group.into()));
            numbers.insert(group.into(), next);
            next
        });
        self.add_route(spec, Route { network: number, prefix, via: Via::Ecmp(at), line })
    }

    fn add_route(&mut self, spec: &NetworkSpec, route: Route) -> Result<(), Problem> {
        if spec.subnets.iter().any(|subnet| subnet.prefix == route.prefix) {
            return Err(Problem::RouteTaken(route.prefix));
        }
        let there = self.routes.len() + self.other_routes;
        room("routes", there, self.capacity.routes, &mut self.excess[1])?;
        self.routes.push(route);
        Ok(())
    }

    /// The guest with `address` and `mac` is on the node with the tunnel end point `host`. `line` is told where it turns out wrong.
    ///
    /// # Errors
    /// [`Problem`] with it, or no room.
    pub fn endpoint(&mut self, line: u32, network: &str, address: IpAddr, mac: Mac, at: IpAddr) -> Result<(), Problem> {
        station(mac)?;
        host(address)?;
        let (spec, network) = self.network(network)?;
        let subnet = spec.subnets.iter().position(|subnet| subnet.prefix.contains(address));
        let subnet = subnet.ok_or(Problem::AddressOutside(address))?;
        if spec.subnets[subnet].gateway == address {
            return Err(Problem::AddressTaken(address));
        }
        let host = self.host(at)?;
        room("endpoints", self.guests.len() + self.others, self.capacity.endpoints, &mut self.excess[0])?;
        self.guests.push(Guest { network, address, mac, host, subnet: subnet as u32, line });
        Ok(())
    }

    /// What has the `prefix` is behind the node with the tunnel end point `host`.
    ///
    /// # Errors
    /// As of [`endpoint`](Self::endpoint).
    pub fn route(&mut self, line: u32, network: &str, prefix: Prefix, host: IpAddr) -> Result<(), Problem> {
        let (spec, network) = self.network(network)?;
        let via = Via::Host(self.host(host)?);
        self.add_route(spec, Route { network, prefix, via, line })
    }

    fn network(&mut self, name: &str) -> Result<(&'a NetworkSpec, u32), Problem> {
        let known = self.known.get_mut(name).ok_or_else(|| Problem::NoNetwork(name.to_owned()))?;
        let number = *known.number.get_or_insert(self.names.len() as u32);
        if number as usize == self.names.len() {
            self.names.push(known.spec.name.as_str());
        }
        Ok((known.spec, number))
    }

    fn host(&mut self, address: IpAddr) -> Result<u32, Problem> {
        if let Some((last, number)) = self.last
            && last == address
        {
            return Ok(number);
        }
        let number = match self.numbers.get(&address) {
            Some(number) => *number,
            None => {
                host(address)?;
                if self.own.contains(&address) {
                    return Err(Problem::OwnHost(address));
                }
                if !self.own.is_empty() && !self.own.iter().any(|own| own.is_ipv4() == address.is_ipv4()) {
                    return Err(Problem::NoUnderlay(address));
                }
                let (there, capacity) = (self.hosts.len() + self.other_hosts.len(), self.capacity.hosts);
                if !self.other_hosts.remove(&address) && there >= capacity {
                    self.refused.insert(address);
                    return Err(Problem::Full { table: "hosts", capacity, wanted: there + self.refused.len() });
                }
                self.hosts.push(address);
                self.numbers.insert(address, self.hosts.len() as u32 - 1);
                self.hosts.len() as u32 - 1
            }
        };
        self.last = Some((address, number));
        Ok(number)
    }

    /// The entries, if no two of them contradict each other.
    ///
    /// # Errors
    /// [`LoadError`] with the line of the second of two.
    pub fn finish(mut self) -> Result<Loaded, LoadError> {
        self.guests.sort_unstable_by_key(|guest| (guest.network, guest.address, guest.line));
        let twice = self.guests.windows(2).filter(|two| {
            let [first, second] = two else { return false };
            (first.network, first.address) == (second.network, second.address)
        });
        if let Some(guest) = twice.map(|two| &two[1]).min_by_key(|guest| guest.line) {
            return Err(LoadError { line: guest.line, problem: Problem::AddressTaken(guest.address) });
        }
        self.routes.sort_unstable_by_key(|route| (route.network, route.prefix, route.line));
        let twice = self.routes.windows(2).filter(|two| {
            let [first, second] = two else { return false };
            (first.network, first.prefix) == (second.network, second.prefix)
        });
        if let Some(route) = twice.map(|two| &two[1]).min_by_key(|route| route.line) {
            return Err(LoadError { line: route.line, problem: Problem::RouteTaken(route.prefix) });
        }
        build::build(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SubnetSpec;

    #[test]
    fn guests_and_hosts_of_networks_have_numbers_of_next_hops_as_far_as_there_are_some() {
        let subnet = SubnetSpec {
            prefix: "10.0.0.0/8".parse().expect("a prefix"),
            gateway: "10.0.0.1".parse().expect("an address"),
        };
        let network = NetworkSpec {
            name: "red".into(),
            vni: 1,
            subnets: vec![subnet],
            gateway_mac: Mac([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            dns: Vec::new(),
            policy: Default::default(),
            transit: false,
        };
        let capacity = TableCapacity { endpoints: 8, routes: 8, hosts: 8 };
        let (networks, at) = ([network], "192.0.2.2".parse().expect("an address"));
        let load = |guests: u8| {
            let mut loading = Loading { next_hops: 3, ..Loading::new(&networks, &[], capacity, 0) };
            for last in 2..2 + guests {
                let address = IpAddr::from([10, 0, 0, last]);
                loading.endpoint(last.into(), "red", address, Mac([2, 0, 0, 0, 0, last]), at).expect("a good entry");
            }
            loading.finish().map(|loaded| loaded.counts().endpoints)
        };
        assert_eq!(load(2), Ok(2));
        let error = load(3).expect_err("a fourth next hop");
        assert_eq!(error.problem, Problem::NextHops { capacity: 3, wanted: 4 });
        let told = error.to_string();
        assert!(told.contains("next hops is full: it has room for 3, and 4 are wanted"), "{told}");
    }
}
