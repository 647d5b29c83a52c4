//! Destinations that are no endpoint's in their network: routes, route tables of some sources, peerings (Zephyrus §4.2,
//! figure 5).
//!
//! ```text
//!   (network, source) ──► route table, or none                          longest prefix: the policy route
//!   (table, destination) ─► (network, destination) ──► entry: a next hop, an ECMP group, a peer, connected
//! ```
//!
//! What no route of the source's table contains is looked up among the network's routes. Subnets, those of peers
//! included, are in all tables. So are the network's routes within a subnet, unless the table has a route within it.

use std::collections::{HashMap, HashSet};

use super::build::Builder;
use super::error::Problem;
use super::fib::{FibEntry, FibRoute, Target};
use super::objects::ObjectKind;
use super::prefixes::{PrefixTableId, Prefixes};
use crate::id::{EcmpId, HopId, NetworkId, ObjectId, RouteTableId, Vni};
use crate::spec::{PeeringSpec, Prefix, RouteTableSpec, Via};
use crate::stamp::Stamp;

/// The route tables of all networks.
#[derive(Debug, Default)]
pub(super) struct RouteTables {
    /// By network and source. None: there are no route tables.
    pub sources: Option<Prefixes<RouteTableId>>,
    tables: Box<[RouteTable]>,
}

impl RouteTables {
    pub fn get(&self, table: RouteTableId) -> Option<&RouteTable> {
        self.tables.get(table.index())
    }

    pub fn iter(&self) -> impl Iterator<Item = &RouteTable> {
        self.tables.iter()
    }

    /// All, with their tables of prefixes, which follow those of so many networks.
    pub fn rows(&self, networks: usize) -> impl Iterator<Item = (PrefixTableId, &RouteTable)> {
        let prefixes = (0..).map(move |table| PrefixTableId::of_route_table(networks, RouteTableId::new(table)));
        prefixes.zip(&self.tables)
    }
}

/// Routes for packets from some sources.
#[derive(Debug)]
pub(crate) struct RouteTable {
    pub network: NetworkId,
    pub name: Box<str>,
    /// The object that is its routes.
    pub object: ObjectId,
}

/// Where packets to a destination that is no endpoint's go, and what decides so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteLookup {
    pub entry: Option<FibEntry>,
    /// The routes that decide, with their version.
    pub decided_by: Stamp,
    /// The route table of the source.
    pub table: Option<RouteTableId>,
    /// The route is that table's, not the network's.
    pub is_policy_route: bool,
}

/// What a prefix leads to, independent of the numbers that a build gives to networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RouteContent {
    Connected,
    Hop(HopId),
    Ecmp(EcmpId),
    Peer { vni: Vni },
    Blackhole,
}

/// Route tables and peerings while tables are built.
#[derive(Default)]
pub(super) struct RoutingBuilder<'a> {
    tables: Vec<(NetworkId, &'a RouteTableSpec, HashMap<Prefix, FibEntry>)>,
    sources: HashMap<(NetworkId, Prefix), RouteTableId>,
    pub peers: HashSet<(NetworkId, NetworkId)>,
}

impl<'a> Builder<'a> {
    /// Lets both networks reach each other's members.
    pub(super) fn peering(&mut self, spec: &'a PeeringSpec) -> Result<(), Problem> {
        let [a, b] = &spec.networks;
        let (a, b) = (self.network_id(a)?, self.network_id(b)?);
        if a == b {
            return Err(Problem::OwnPeer);
        }
        if self.routing.peers.contains(&(a, b)) {
            return Err(Problem::Twice);
        }
        for (one, other) in [(a, b), (b, a)] {
            // A network that reaches two others must be able to tell their addresses apart.
            let peers: Vec<NetworkId> =
                self.routing.peers.iter().filter(|(of, _)| *of == one).map(|(_, peer)| *peer).collect();
            for near in peers.into_iter().chain([one]) {
                for far in self.subnets_of(other) {
                    if let Some(near) = self.subnets_of(near).find(|near| near.overlaps(far)) {
                        return Err(Problem::PeerOverlap(near, far));
                    }
                }
            }
        }
        for (one, other) in [(a, b), (b, a)] {
            for prefix in self.subnets_of(other).collect::<Vec<_>>() {
                self.prefixes.insert((one, prefix), FibEntry::routed(Target::Peer(other)));
            }
            self.routing.peers.insert((one, other));
        }
        Ok(())
    }

    pub(super) fn subnets_of(&self, network: NetworkId) -> impl Iterator<Item = Prefix> {
        let range = self.ranges.get(network.index()).cloned().unwrap_or_default();
        self.subnets[range].iter().map(|subnet| subnet.prefix)
    }

    /// Adds a table of policy routes.
    pub(super) fn route_table(&mut self, spec: &'a RouteTableSpec) -> Result<(), Problem> {
        let network = self.network_id(&spec.network)?;
        let id = RouteTableId::new(self.routing.tables.len() as u32);
        if self.routing.tables.iter().any(|(of, table, _)| *of == network && table.name == spec.name) {
            return Err(Problem::TableTaken(spec.name.clone()));
        }
        for source in &spec.sources {
            if self.routing.sources.insert((network, *source), id).is_some() {
                return Err(Problem::SourceTaken(*source));
            }
        }
        let mut routes = HashMap::new();
        for (prefix, via) in &spec.routes {
            let entry = self.via(network, &spec.network, via)?;
            if self.subnets_of(network).any(|subnet| subnet == *prefix) || routes.insert(*prefix, entry).is_some() {
                return Err(Problem::RouteTaken(*prefix));
            }
        }
        self.routing.tables.push((network, spec, routes));
        Ok(())
    }

    /// The entry of a route.
    pub(super) fn via(&mut self, network: NetworkId, name: &'a str, via: &Via) -> Result<FibEntry, Problem> {
        let target = match via {
            Via::Endpoint(address) => {
                let entry = self.addresses.get(&(network, *address));
                Target::Hop(entry.and_then(|entry| entry.hop()).ok_or(Problem::NoEndpoint(*address))?)
            }
            Via::Host(host) => Target::Hop(self.host_hop(network, ObjectKind::RouteHop, &(name, host), *host)?),
            Via::Ecmp(group) => {
                Target::Ecmp(self.ecmp.id(network, group).ok_or_else(|| Problem::NoEcmp(group.clone()))?)
            }
            Via::Nowhere => Target::Blackhole,
        };
        Ok(FibEntry::routed(target))
    }

    /// The numbers of route tables, with their tables of prefixes.
    fn numbered_tables(
        &self,
    ) -> impl Iterator<Item = (PrefixTableId, &(NetworkId, &'a RouteTableSpec, HashMap<Prefix, FibEntry>))> {
        let networks = self.networks.len();
        let prefixes = (0..).map(move |table| PrefixTableId::of_route_table(networks, RouteTableId::new(table)));
        prefixes.zip(&self.routing.tables)
    }

    /// The prefixes of route tables, with those that they take over from their networks.
    pub(super) fn table_rows(&self) -> Vec<(PrefixTableId, Prefix, FibRoute)> {
        let mut rows = Vec::new();
        for (table, (network, _, routes)) in self.numbered_tables() {
            let row = |prefix: Prefix, entry: FibEntry| (table, prefix, FibRoute { entry, length: prefix.length() });
            rows.extend(routes.iter().map(|(prefix, entry)| row(*prefix, *entry)));
            let of_network = self.prefixes.iter().filter(|((of, prefix), entry)| {
                let is_subnet = matches!(entry.target(), Target::Connected | Target::Peer(_));
                of == network && is_subnet && !routes.contains_key(prefix)
            });
            rows.extend(of_network.map(|((_, prefix), entry)| row(*prefix, *entry)));
        }
        rows
    }

    /// The tables of prefixes of a network's route tables.
    pub(super) fn tables_of(&self, network: NetworkId) -> impl Iterator<Item = PrefixTableId> {
        self.numbered_tables().filter(move |(_, (of, ..))| *of == network).map(|(table, _)| table)
    }

    /// The prefixes that a network's route tables have routes for.
    pub(super) fn table_prefixes(&self, network: NetworkId) -> impl Iterator<Item = &Prefix> {
        let of = self.routing.tables.iter().filter(move |(of, ..)| *of == network);
        of.flat_map(|(_, _, routes)| routes.keys())
    }

    /// The sources of a network that have route tables, with the names of these.
    pub(super) fn policy(&self, network: NetworkId) -> Vec<(Prefix, &'a str)> {
        let of = self.routing.sources.iter().filter(|((of, _), _)| *of == network);
        let mut policy: Vec<_> =
            of.map(|((_, source), table)| (*source, self.routing.tables[table.index()].1.name.as_str())).collect();
        policy.sort_unstable();
        policy
    }

    /// What tells the entries of prefixes apart, the same in all builds.
    pub(super) fn content(&self, entry: FibEntry) -> RouteContent {
        match entry.target() {
            Target::Connected => RouteContent::Connected,
            Target::Hop(hop) => RouteContent::Hop(hop),
            Target::Ecmp(group) => RouteContent::Ecmp(group),
            Target::Peer(network) => RouteContent::Peer { vni: self.networks[network.index()].vni },
            Target::Blackhole => RouteContent::Blackhole,
        }
    }

    /// The route tables, once the routes of networks are objects.
    pub(super) fn route_tables(&mut self) -> Result<RouteTables, Problem> {
        let mut tables = Vec::with_capacity(self.routing.tables.len());
        for at in 0..self.routing.tables.len() {
            let (network, spec, routes) = &self.routing.tables[at];
            let mut content: Vec<_> = routes.iter().map(|(prefix, entry)| (*prefix, self.content(*entry))).collect();
            content.sort_unstable();
            // Where it has no route, the network's routes decide: their version follows the sources, too.
            let content = (content, self.objects.stamp(self.networks[network.index()].routes));
            let (network, spec) = (*network, *spec);
            let object = self.objects.object(ObjectKind::RouteTable, &(&spec.network, &spec.name), &content)?;
            tables.push(RouteTable { network, name: spec.name.as_str().into(), object });
        }
        let sources: Vec<_> = self
            .routing
            .sources
            .iter()
            .map(|((network, source), table)| ((*network).into(), *source, *table))
            .collect();
        let sources = (!sources.is_empty()).then(|| Prefixes::build(self.networks.len(), &sources)).transpose();
        Ok(RouteTables { sources: sources.map_err(Problem::Memory)?, tables: tables.into() })
    }

    /// Makes the hosts of a network members of its peers: what they send to these peers comes from there.
    pub(super) fn peer_members(&mut self) {
        if self.routing.peers.is_empty() {
            return;
        }
        let own: Vec<_> = self.members.iter().map(|((network, host), tunnel)| (*network, *host, *tunnel)).collect();
        for &(of, peer) in &self.routing.peers {
            self.networks[of.index()].loads_members |= self.networks[peer.index()].is_loading;
            let hosts = own.iter().filter(|(network, ..)| *network == peer);
            self.members.extend(hosts.map(|(_, host, tunnel)| ((of, *host), *tunnel)));
        }
    }
}
