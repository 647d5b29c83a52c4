//! What of `node.tables` a site fills, and whether there is room.

use std::collections::HashSet;
use std::net::IpAddr;

use super::{Network, TableSizes};
use crate::diagnostic::Problem;
use crate::site::Site;

/// How many entries of each table there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableUse {
    /// Guests on other hosts.
    pub endpoints: usize,
    /// Routes, those of route tables among them.
    pub routes: usize,
}

impl TableUse {
    /// Of some networks.
    pub fn of(networks: &[Network]) -> TableUse {
        TableUse {
            endpoints: networks.iter().map(|network| network.endpoints.len()).sum(),
            routes: networks.iter().map(Network::route_count).sum(),
        }
    }
}

/// All hosts that networks lead to, as often as they do.
pub fn hosts(networks: &[Network]) -> impl Iterator<Item = IpAddr> {
    networks.iter().flat_map(|network| {
        let guests = network.endpoints.iter().map(|endpoint| endpoint.host);
        guests.chain(network.route_hosts()).chain(network.member_hosts())
    })
}

/// The first entry of `networks` with whose host there are more than `capacity`, those that are `known` among them: its
/// network, its place there, and the host.
pub fn first_beyond(networks: &[Network], mut known: HashSet<IpAddr>, capacity: usize) -> Option<String> {
    let mut is_beyond = |host: IpAddr| known.insert(host) && known.len() > capacity;
    networks.iter().find_map(|network| {
        let (place, host) = network.find_host(&mut is_beyond)?;
        Some(format!("network {:?}, {place}, {host}", network.name))
    })
}

/// What is said where a table has no room.
pub fn full(table: &str, capacity: usize, wanted: usize) -> String {
    format!("the table of {table} is full: it has room for {capacity}, and {wanted} are wanted")
}

impl Network {
    /// Its routes, and those of its route tables.
    pub fn route_count(&self) -> usize {
        self.routes.len() + self.route_tables.iter().map(|table| table.routes.len()).sum::<usize>()
    }

    /// The first of its entries that leads to a host of which `is_it` says so, in the order of [`hosts`]: where it is,
    /// and the host.
    fn find_host(&self, mut is_it: impl FnMut(IpAddr) -> bool) -> Option<(String, IpAddr)> {
        if let Some((at, endpoint)) = self.endpoints.iter().enumerate().find(|(_, endpoint)| is_it(endpoint.host)) {
            return Some((format!("endpoint[{at}]"), endpoint.host));
        }
        let tables = self.route_tables.iter().flat_map(|table| &table.routes);
        let routes = self.routes.iter().chain(tables).enumerate();
        if let Some((at, host)) =
            routes.filter_map(|(at, route)| Some((at, route.host?))).find(|(_, host)| is_it(*host))
        {
            return Some((self.route_place(at), host));
        }
        let members = self.ecmp.iter().enumerate().flat_map(|(group, ecmp)| {
            let hosts = ecmp.members.iter().enumerate().filter_map(|(at, member)| Some((at, member.host?)));
            hosts.map(move |(at, host)| (format!("ecmp[{group}].member[{at}]"), host))
        });
        members.into_iter().find(|(_, host)| is_it(*host))
    }

    /// Where its route with this number is, those of route tables after the others.
    fn route_place(&self, mut number: usize) -> String {
        if number < self.routes.len() {
            return format!("route[{number}]");
        }
        number -= self.routes.len();
        for (at, table) in self.route_tables.iter().enumerate() {
            if number < table.routes.len() {
                return format!("route-table[{at}].route[{number}]");
            }
            number -= table.routes.len();
        }
        "route".to_owned()
    }
}

impl Site {
    /// The capacities of node.tables, with what is in the tables beside the site.
    pub fn check_tables(&self, beside: TableUse, problems: &mut Vec<Problem>) {
        let TableSizes { endpoints, routes, hosts, .. } = self.node.tables;
        let there = TableUse::of(&self.networks);
        // The first entry that has no room, by the number of its network and its own.
        let first = |room: usize, count: fn(&Network) -> usize| {
            let mut left = room;
            self.networks.iter().enumerate().find_map(|(at, network)| {
                let has = count(network);
                if has > left {
                    return Some((at, left));
                }
                left -= has;
                None
            })
        };
        let mut tell = |table: &str, place: String, capacity: u32, wanted: usize| {
            let problem = Problem::error(place, full(table, capacity as usize, wanted));
            problems.push(problem.help(format!("set `{table}` in node.tables for more")));
        };
        let wanted = there.endpoints + beside.endpoints;
        let room = (endpoints as usize).saturating_sub(beside.endpoints);
        if let Some((at, number)) = first(room, |network| network.endpoints.len()) {
            tell("endpoints", format!("network[{at}].endpoint[{number}]"), endpoints, wanted);
        }
        let wanted = there.routes + beside.routes;
        let room = (routes as usize).saturating_sub(beside.routes);
        if let Some((at, number)) = first(room, Network::route_count) {
            let place = format!("network[{at}].{}", self.networks[at].route_place(number));
            tell("routes", place, routes, wanted);
        }
        let all: HashSet<IpAddr> = super::hosts(&self.networks).collect();
        if all.len() > hosts as usize {
            let mut seen = HashSet::new();
            let first = self.networks.iter().position(|network| {
                seen.extend(super::hosts(std::slice::from_ref(network)));
                seen.len() > hosts as usize
            });
            tell("hosts", format!("network[{}]", first.unwrap_or(0)), hosts, all.len());
        }
    }
}
