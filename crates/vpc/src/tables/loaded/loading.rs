//! Entries as they come, line by line, until all of them are there.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::{LoadError, Loaded, LoadedGroupId, LoadedHostId, LoadedNetworkId, build};
use crate::id::HopId;
use crate::packet::Mac;
use crate::spec::{NetworkSpec, Prefix, TableCapacity};
use crate::tables::check::{guest_subnet, other_host, station};
use crate::tables::error::Problem;

pub(super) struct KnownNetwork<'a> {
    pub spec: &'a NetworkSpec,
    /// Its number, once it has an entry.
    id: Option<LoadedNetworkId>,
}

/// A guest on another node, as it was loaded.
pub(super) struct GuestLine {
    pub network: LoadedNetworkId,
    pub address: IpAddr,
    pub mac: Mac,
    pub host: LoadedHostId,
    /// The subnet, by its place among its network's.
    pub subnet: u32,
    pub line: u32,
}

/// A route, as it was loaded.
pub(super) struct RouteLine {
    pub network: LoadedNetworkId,
    pub prefix: Prefix,
    pub via: RouteVia,
    pub line: u32,
}

/// Where a route leads.
#[derive(Clone, Copy)]
pub(super) enum RouteVia {
    Host(LoadedHostId),
    Ecmp(LoadedGroupId),
}

/// Entries that are being loaded. They are in force once [`finish`](Self::finish) has found all of them right and
/// tables are built with them.
pub struct Loading<'a> {
    capacity: TableCapacity,
    /// Endpoints in the tables that are not loaded.
    other_endpoints: usize,
    /// Routes in the tables that are not loaded.
    other_routes: usize,
    /// The nodes that other endpoints and routes lead to, less those that loaded ones lead to as well.
    other_hosts: HashSet<IpAddr>,
    /// Endpoints, and routes, that there was no room for.
    excess: [usize; 2],
    /// Nodes that there was no room for.
    refused_hosts: HashSet<IpAddr>,
    /// The most next hops.
    pub(super) next_hops: usize,
    /// How many routes can be added one by one afterwards.
    pub(super) room_for_routes: usize,
    /// This node's tunnel end points.
    own: &'a [IpAddr],
    pub(super) known: HashMap<&'a str, KnownNetwork<'a>>,
    /// By number: the names of networks with entries.
    pub(super) names: Vec<&'a str>,
    pub(super) hosts: Vec<IpAddr>,
    host_ids: HashMap<IpAddr, LoadedHostId>,
    /// The host that was looked up last: entries often come sorted.
    last_host: Option<(IpAddr, LoadedHostId)>,
    pub(super) guests: Vec<GuestLine>,
    pub(super) routes: Vec<RouteLine>,
    /// The ECMP groups of the spec, by network and name.
    known_groups: HashMap<&'a str, HashSet<&'a str>>,
    /// Routes to other groups are no error.
    allows_unknown_groups: bool,
    /// The groups that routes lead to.
    pub(super) groups: Vec<(LoadedNetworkId, Box<str>)>,
    group_ids: HashMap<LoadedNetworkId, HashMap<Box<str>, LoadedGroupId>>,
    pub(super) previous: Option<Arc<Loaded>>,
}

/// Checks that `table` has room for one more than are `there`. `excess` counts those that it has no room for.
fn check_room(table: &'static str, there: usize, capacity: usize, excess: &mut usize) -> Result<(), Problem> {
    if there < capacity {
        return Ok(());
    }
    *excess += 1;
    Err(Problem::Full { table, capacity, wanted: there + *excess })
}

impl<'a> Loading<'a> {
    /// Begins to load entries of `networks`. `others` endpoints of the tables are not loaded. `own` are this node's
    /// tunnel end points, none while they are not known.
    pub fn new(networks: &'a [NetworkSpec], own: &'a [IpAddr], capacity: TableCapacity, others: usize) -> Loading<'a> {
        let known = networks.iter().map(|spec| (spec.name.as_str(), KnownNetwork { spec, id: None })).collect();
        Loading {
            capacity,
            other_endpoints: others,
            other_routes: 0,
            other_hosts: HashSet::new(),
            excess: [0; 2],
            refused_hosts: HashSet::new(),
            next_hops: HopId::MOST_LOADED,
            room_for_routes: 0,
            own,
            known,
            names: Vec::new(),
            hosts: Vec::new(),
            host_ids: HashMap::new(),
            last_host: None,
            guests: Vec::new(),
            routes: Vec::new(),
            known_groups: HashMap::new(),
            allows_unknown_groups: false,
            groups: Vec::new(),
            group_ids: HashMap::new(),
            previous: None,
        }
    }

    /// Replaces `previous`: flows of what is the same in both stay valid.
    #[must_use]
    pub fn after(mut self, previous: Option<Arc<Loaded>>) -> Loading<'a> {
        self.previous = previous;
        self
    }

    /// Accounts for so many routes of the tables that are not loaded, and for the nodes that they and such endpoints
    /// lead to.
    #[must_use]
    pub fn beside(mut self, routes: usize, hosts: HashSet<IpAddr>) -> Loading<'a> {
        (self.other_routes, self.other_hosts) = (routes, hosts);
        self
    }

    /// Allows routes to these ECMP groups, by network and name.
    #[must_use]
    pub fn with_groups(mut self, groups: impl IntoIterator<Item = (&'a str, &'a str)>) -> Loading<'a> {
        for (network, group) in groups {
            self.known_groups.entry(network).or_default().insert(group);
        }
        self
    }

    /// Allows routes to groups that do not exist. Their packets are dropped as long as that is so. For entries that
    /// were in force before, and are to be again whatever has changed since.
    #[must_use]
    pub fn with_unknown_groups(mut self) -> Loading<'a> {
        self.allows_unknown_groups = true;
        self
    }

    /// Reserves memory for so many routes to be [added one by one](Loaded::apply) afterwards.
    #[must_use]
    pub fn with_room(mut self, routes: usize) -> Loading<'a> {
        self.room_for_routes = routes;
        self
    }

    /// Adds a route by an ECMP group of the network.
    ///
    /// # Errors
    /// As of [`endpoint`](Self::endpoint).
    pub fn route_to_group(&mut self, line: u32, network: &str, prefix: Prefix, group: &str) -> Result<(), Problem> {
        let (spec, network) = self.network(network)?;
        let is_known = self.known_groups.get(spec.name.as_str()).is_some_and(|groups| groups.contains(group));
        if !is_known && !self.allows_unknown_groups {
            return Err(Problem::NoEcmp(group.to_owned()));
        }
        let ids = self.group_ids.entry(network).or_default();
        let id = ids.get(group).copied().unwrap_or_else(|| {
            let next = LoadedGroupId::new(self.groups.len() as u32);
            self.groups.push((network, group.into()));
            ids.insert(group.into(), next);
            next
        });
        self.add_route(spec, RouteLine { network, prefix, via: RouteVia::Ecmp(id), line })
    }

    fn add_route(&mut self, spec: &NetworkSpec, route: RouteLine) -> Result<(), Problem> {
        if spec.subnets.iter().any(|subnet| subnet.prefix == route.prefix) {
            return Err(Problem::RouteTaken(route.prefix));
        }
        let there = self.routes.len() + self.other_routes;
        check_room("routes", there, self.capacity.routes, &mut self.excess[1])?;
        self.routes.push(route);
        Ok(())
    }

    /// Adds a guest with `address` and `mac` on the node with the tunnel end point `at`. Errors that are found later
    /// name `line`.
    ///
    /// # Errors
    /// [`Problem`]: what is wrong with it, or that there is no room.
    pub fn endpoint(&mut self, line: u32, network: &str, address: IpAddr, mac: Mac, at: IpAddr) -> Result<(), Problem> {
        station(mac)?;
        let (spec, network) = self.network(network)?;
        let subnet = guest_subnet(address, spec)?;
        let host = self.host(at)?;
        check_room(
            "endpoints",
            self.guests.len() + self.other_endpoints,
            self.capacity.endpoints,
            &mut self.excess[0],
        )?;
        self.guests.push(GuestLine { network, address, mac, host, subnet, line });
        Ok(())
    }

    /// Adds a route to the node with the tunnel end point `host`.
    ///
    /// # Errors
    /// As of [`endpoint`](Self::endpoint).
    pub fn route(&mut self, line: u32, network: &str, prefix: Prefix, host: IpAddr) -> Result<(), Problem> {
        let (spec, network) = self.network(network)?;
        let via = RouteVia::Host(self.host(host)?);
        self.add_route(spec, RouteLine { network, prefix, via, line })
    }

    fn network(&mut self, name: &str) -> Result<(&'a NetworkSpec, LoadedNetworkId), Problem> {
        let known = self.known.get_mut(name).ok_or_else(|| Problem::NoNetwork(name.to_owned()))?;
        let id = *known.id.get_or_insert(LoadedNetworkId::new(self.names.len() as u32));
        if id.index() == self.names.len() {
            self.names.push(known.spec.name.as_str());
        }
        Ok((known.spec, id))
    }

    fn host(&mut self, address: IpAddr) -> Result<LoadedHostId, Problem> {
        if let Some((last, id)) = self.last_host
            && last == address
        {
            return Ok(id);
        }
        let id = match self.host_ids.get(&address) {
            Some(id) => *id,
            None => {
                other_host(address, self.own)?;
                let (there, capacity) = (self.hosts.len() + self.other_hosts.len(), self.capacity.hosts);
                if !self.other_hosts.remove(&address) && there >= capacity {
                    self.refused_hosts.insert(address);
                    return Err(Problem::Full { table: "hosts", capacity, wanted: there + self.refused_hosts.len() });
                }
                let id = LoadedHostId::new(self.hosts.len() as u32);
                self.hosts.push(address);
                self.host_ids.insert(address, id);
                id
            }
        };
        self.last_host = Some((address, id));
        Ok(id)
    }

    /// The entries, unless two of them contradict each other.
    ///
    /// # Errors
    /// [`LoadError`] with the line of the second of the two.
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
    use crate::id::Vni;
    use crate::spec::SubnetSpec;

    #[test]
    fn guests_and_hosts_of_networks_have_numbers_of_next_hops_as_far_as_there_are_some() {
        let subnet = SubnetSpec {
            prefix: "10.0.0.0/8".parse().expect("a prefix"),
            gateway: "10.0.0.1".parse().expect("an address"),
        };
        let network = NetworkSpec::new("red", Vni::new(1).unwrap(), Mac([2, 0, 0, 0, 0, 1]), vec![subnet]);
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
