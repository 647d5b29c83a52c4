//! Destinations that are no endpoint's in their network: routes, route tables of some sources, peerings (Zephyrus §4.2, figure 5).
//!
//! ```text
//!   (network, source) ──► route table, or none          longest prefix: the policy route
//!   (table, destination) ─► (network, destination) ──► owner: a next hop, an ECMP group, a peer; a subnet, where nobody has it
//! ```
//!
//! What no route of the source's table has is looked up among the network's. Subnets, those of peers included, are in all tables; routes of
//! the network within them are, too, where the table has none that is within the subnet.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use super::build::Builder;
use super::error::Problem;
use super::loaded::Routed;
use super::objects::Kind;
use super::{NONE, Owner, Prefixes, Tables};
use crate::spec::{PeeringSpec, Prefix, RouteTableSpec, Via};

/// Stands for a subnet: the hop is an ECMP group's slot,
const ECMP: u32 = NONE - 1;
/// a network's number,
const PEER: u32 = NONE - 2;
/// nothing.
const NOWHERE: u32 = NONE - 3;

/// Where the owner of a prefix leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leads {
    /// It is a subnet, where nobody has the address.
    Nobody,
    Hop(u32),
    /// The slot of an ECMP group.
    Ecmp(u32),
    /// To the members of another network, by its number.
    Peer(u32),
    /// It is not known how it is reached.
    Nowhere,
}

impl Owner {
    /// Where it leads.
    #[inline]
    pub fn leads(self) -> Leads {
        match self.subnet {
            ECMP => Leads::Ecmp(self.hop),
            PEER => Leads::Peer(self.hop),
            NOWHERE => Leads::Nowhere,
            _ if self.hop == NONE => Leads::Nobody,
            _ => Leads::Hop(self.hop),
        }
    }

    pub(super) fn ecmp(slot: u32) -> Owner {
        Owner { hop: slot, subnet: ECMP }
    }

    fn peer(network: u32) -> Owner {
        Owner { hop: network, subnet: PEER }
    }

    pub(super) fn nowhere() -> Owner {
        Owner { hop: NONE, subnet: NOWHERE }
    }

    /// Its next hop is behind a route.
    pub fn behind(hop: u32) -> Owner {
        Owner { hop, subnet: NONE }
    }

    /// Whether a number of a next hop is none.
    pub(super) fn is_special(self) -> bool {
        (NOWHERE..NONE).contains(&self.subnet)
    }
}

/// Route tables of tables.
#[derive(Debug, Default)]
pub(super) struct RouteTables {
    /// By network and source: the number of a route table.
    sources: Option<Prefixes<u32>>,
    tables: Box<[RouteTable]>,
}

impl RouteTables {
    /// All, with their rows among prefixes, of which networks have the first.
    pub fn rows(&self, networks: usize) -> impl Iterator<Item = (u32, &RouteTable)> {
        (networks as u32..).zip(&self.tables)
    }
}

/// Routes of some sources. They are in the table of prefixes behind those of all networks.
#[derive(Debug)]
pub(crate) struct RouteTable {
    pub network: u32,
    pub name: Box<str>,
    /// The object that they are.
    pub object: u32,
}

/// Where a destination leads that no endpoint has, and the object that says so.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Routing {
    pub owner: Option<Owner>,
    pub said_by: u32,
    /// The route table of the source.
    pub table: Option<u32>,
    /// That has the route.
    pub is_by_table: bool,
}

impl Tables {
    /// Where packets from `source` go that are for `destination`, which is no endpoint's.
    #[inline]
    pub(crate) fn routing(&self, network: u32, source: IpAddr, destination: IpAddr) -> Routing {
        if let Some(sources) = &self.route_tables.sources
            && let Some(number) = sources.longest(network, source)
        {
            return self.routing_by(number, network, destination);
        }
        let said_by = self.network(network).map_or(0, |network| network.routes);
        Routing { owner: self.route(network, destination), said_by, table: None, is_by_table: false }
    }

    #[inline(never)]
    fn routing_by(&self, number: u32, network: u32, destination: IpAddr) -> Routing {
        let row = self.networks.len() as u32 + number;
        let own = self.prefixes.longest(row, destination).map(|routed| routed.owner);
        // A subnet, or a peer's, is there for what the table has no longer prefix for: within it the network may have routes.
        let own = own.filter(|own| !matches!(own.leads(), Leads::Nobody | Leads::Peer(_)));
        let said_by = self.route_tables.tables.get(number as usize).map_or(0, |table| table.object);
        let owner = own.or_else(|| self.route(network, destination));
        Routing { owner, said_by, table: Some(number), is_by_table: own.is_some() }
    }

    /// A route table of some sources.
    pub(crate) fn route_table(&self, number: u32) -> Option<&RouteTable> {
        self.route_tables.tables.get(number as usize)
    }

    /// The name of the route table that is an object.
    pub(super) fn table_name(&self, object: u32) -> Option<String> {
        let table = self.route_tables.tables.iter().find(|table| table.object == object)?;
        Some(format!("route table {} of {}", table.name, self.network(table.network)?.name))
    }

    /// The next hop to the owner of a prefix or an address that is behind `tunnel`, if any is; `address` is in the prefix.
    #[inline]
    pub(crate) fn hop_behind(&self, owner: Owner, address: IpAddr, tunnel: Option<u32>) -> Option<Owner> {
        let is_behind = |hop: u32| tunnel.is_some() && self.tunnel_of(hop) == tunnel;
        match owner.leads() {
            Leads::Hop(hop) => is_behind(hop).then_some(owner),
            Leads::Nobody | Leads::Nowhere => None,
            // What is set down gets nothing, and may send.
            Leads::Ecmp(slot) => {
                let hops = self.group(slot)?.members().iter().map(|member| member.hop);
                hops.filter(|hop| is_behind(*hop)).map(Owner::behind).next()
            }
            Leads::Peer(network) => self.owner(network, address).filter(|owner| owner.hop().is_some_and(is_behind)),
        }
    }
}

/// Route tables and peerings while tables are built.
#[derive(Default)]
pub(super) struct Building<'a> {
    tables: Vec<(u32, &'a RouteTableSpec, HashMap<Prefix, Owner>)>,
    sources: HashMap<(u32, Prefix), u32>,
    pub peers: HashSet<(u32, u32)>,
}

impl<'a> Builder<'a> {
    /// Both networks reach each other's members.
    pub(super) fn peering(&mut self, spec: &'a PeeringSpec) -> Result<(), Problem> {
        let [a, b] = &spec.networks;
        let (a, b) = (self.network_number(a)?, self.network_number(b)?);
        if a == b {
            return Err(Problem::OwnPeer);
        }
        if self.routing.peers.contains(&(a, b)) {
            return Err(Problem::Twice);
        }
        for (one, other) in [(a, b), (b, a)] {
            // One that reaches both must be able to tell them apart.
            let peers: Vec<u32> =
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
                self.prefixes.insert((one, prefix), Owner::peer(other));
            }
            self.routing.peers.insert((one, other));
        }
        Ok(())
    }

    fn subnets_of(&self, network: u32) -> impl Iterator<Item = Prefix> {
        let range = self.ranges.get(network as usize).cloned().unwrap_or_default();
        self.subnets[range].iter().map(|subnet| subnet.prefix)
    }

    /// Routes of some sources.
    pub(super) fn route_table(&mut self, spec: &'a RouteTableSpec) -> Result<(), Problem> {
        let network = self.network_number(&spec.network)?;
        let number = self.routing.tables.len() as u32;
        if self.routing.tables.iter().any(|(of, table, _)| *of == network && table.name == spec.name) {
            return Err(Problem::TableTaken(spec.name.clone()));
        }
        for source in &spec.sources {
            if self.routing.sources.insert((network, *source), number).is_some() {
                return Err(Problem::SourceTaken(*source));
            }
        }
        let mut routes = HashMap::new();
        for (prefix, via) in &spec.routes {
            let owner = self.via(network, &spec.network, via)?;
            if self.subnets_of(network).any(|subnet| subnet == *prefix) || routes.insert(*prefix, owner).is_some() {
                return Err(Problem::RouteTaken(*prefix));
            }
        }
        self.routing.tables.push((network, spec, routes));
        Ok(())
    }

    /// Where a route leads.
    pub(super) fn via(&mut self, network: u32, name: &'a str, via: &Via) -> Result<Owner, Problem> {
        match via {
            Via::Endpoint(address) => {
                let owner = self.addresses.get(&(network, *address));
                owner.and_then(|owner| owner.hop()).map(Owner::behind).ok_or(Problem::NoEndpoint(*address))
            }
            Via::Host(host) => self.way(network, Kind::Way, &(name, host), *host).map(Owner::behind),
            Via::Ecmp(group) => {
                let slot = self.ecmp.slot(network, group);
                slot.map(Owner::ecmp).ok_or_else(|| Problem::NoEcmp(group.clone()))
            }
            Via::Nowhere => Ok(Owner::nowhere()),
        }
    }

    /// The rows of route tables among prefixes, behind those of networks.
    pub(super) fn table_rows(&self) -> Vec<(u32, Prefix, Routed)> {
        let first = self.networks.len() as u32;
        let mut rows = Vec::new();
        for (row, (network, _, routes)) in (first..).zip(&self.routing.tables) {
            let routed = |prefix: Prefix, owner: Owner| (row, prefix, Routed { owner, length: prefix.length() });
            rows.extend(routes.iter().map(|(prefix, owner)| routed(*prefix, *owner)));
            let main = self.prefixes.iter().filter(|((of, prefix), owner)| {
                of == network && matches!(owner.leads(), Leads::Nobody | Leads::Peer(_)) && !routes.contains_key(prefix)
            });
            rows.extend(main.map(|((_, prefix), owner)| routed(*prefix, *owner)));
        }
        rows
    }

    /// The rows of a network's route tables among prefixes.
    pub(super) fn tables_of(&self, network: u32) -> impl Iterator<Item = u32> {
        let first = self.networks.len() as u32;
        (first..).zip(&self.routing.tables).filter(move |(_, (of, ..))| *of == network).map(|(row, _)| row)
    }

    /// The prefixes that a network's route tables have routes for.
    pub(super) fn table_prefixes(&self, network: u32) -> impl Iterator<Item = &Prefix> {
        let of = self.routing.tables.iter().filter(move |(of, ..)| *of == network);
        of.flat_map(|(_, _, routes)| routes.keys())
    }

    /// Which sources of a network have which tables.
    pub(super) fn policy(&self, network: u32) -> Vec<(Prefix, &'a str)> {
        let of = self.routing.sources.iter().filter(|((of, _), _)| *of == network);
        let mut policy: Vec<_> =
            of.map(|((_, source), table)| (*source, self.routing.tables[*table as usize].1.name.as_str())).collect();
        policy.sort_unstable();
        policy
    }

    /// What tells owners of prefixes apart, the same in all builds.
    pub(super) fn content(&self, owner: Owner) -> (u32, u32) {
        match owner.leads() {
            Leads::Peer(network) => (self.networks[network as usize].vni, PEER),
            _ if owner.is_special() => (owner.hop, owner.subnet),
            _ => (owner.hop, NONE),
        }
    }

    /// Route tables, once the routes of networks are objects.
    pub(super) fn route_tables(&mut self) -> Result<RouteTables, Problem> {
        let mut tables = Vec::with_capacity(self.routing.tables.len());
        for at in 0..self.routing.tables.len() {
            let (network, spec, routes) = &self.routing.tables[at];
            let mut content: Vec<_> = routes.iter().map(|(prefix, owner)| (*prefix, self.content(*owner))).collect();
            content.sort_unstable();
            // What it has no route for the network's decide, which know of the sources, too.
            let content = (content, self.objects.stamp(self.networks[*network as usize].routes));
            let (network, spec) = (*network, *spec);
            let object = self.objects.object(Kind::RouteTable, &(&spec.network, &spec.name), &content)?;
            tables.push(RouteTable { network, name: spec.name.as_str().into(), object });
        }
        let sources: Vec<_> =
            self.routing.sources.iter().map(|((network, source), table)| (*network, *source, *table)).collect();
        let sources = (!sources.is_empty()).then(|| Prefixes::build(self.networks.len(), &sources)).transpose();
        Ok(RouteTables { sources: sources.map_err(Problem::Memory)?, tables: tables.into() })
    }

    /// Hosts of a network are its peers', too: what they send to its peers is theirs.
    pub(super) fn peer_members(&mut self) {
        if self.routing.peers.is_empty() {
            return;
        }
        let own: Vec<_> = self.members.iter().map(|((network, host), tunnel)| (*network, *host, *tunnel)).collect();
        for &(of, peer) in &self.routing.peers {
            self.networks[of as usize].awaits_members |= self.networks[peer as usize].is_awaited;
            let hosts = own.iter().filter(|(network, ..)| *network == peer);
            self.members.extend(hosts.map(|(_, host, tunnel)| ((of, *host), *tunnel)));
        }
    }
}
