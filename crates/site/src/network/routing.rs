//! `[[network.route]]`, `[[network.ecmp]]`, `[[network.route-table]]` and `peer`: where packets go whose destination is
//! not in the network.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::Network;
use super::file::changed;
use super::read::{WHAT_ADDRESS, WHAT_PREFIX, prefix, unicast};
use super::rules::overlap;
use crate::Site;
use crate::diagnostic::Problem;
use crate::read::name;
use crate::reader::{Reader, is_name};
use crate::rules::{MOST_PROBLEMS, dangling};

use super::rules::check_host;

/// The largest weight of a member.
pub const LARGEST_MEMBER_WEIGHT: u16 = softdpu_vpc::policy::ecmp::WEIGHT;
/// Most members of a group, and most groups of a site.
const MOST_MEMBERS: usize = softdpu_vpc::policy::ecmp::MEMBERS;
const MOST_GROUPS: usize = 1024;
const WHAT_NETWORK: &str = "the name of a network";

/// `[[network.route]]`, and the routes of a table: exactly one of `host`, `address` and `ecmp` is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The destinations.
    pub prefix: IpNet,
    /// They are behind the host with this tunnel end point,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<IpAddr>,
    /// behind the network's guest that has this address,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// or behind the members of this ECMP group of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecmp: Option<String>,
}

/// `[[network.ecmp]]`: next hops of which each flow takes one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EcmpGroup {
    /// Its name, unique in the network.
    pub name: String,
    /// Members that are hosts get packets while their BFD session is up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub bfd: bool,
    /// Its members.
    #[serde(default, rename = "member", skip_serializing_if = "Vec::is_empty")]
    pub members: Vec<EcmpMember>,
}

/// `[[network.ecmp.member]]`: exactly one of `host` and `address` is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EcmpMember {
    /// The tunnel end point of another host,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<IpAddr>,
    /// or the address of a guest of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// How many flows it gets relative to the others.
    pub weight: u16,
    /// The availability zone it is in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// It gets no packets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub down: bool,
}

impl EcmpMember {
    /// The host's or the guest's address.
    pub fn via(&self) -> IpAddr {
        self.host.or(self.address).unwrap_or(IpAddr::V4(0.into()))
    }
}

/// `[[network.route-table]]`: routes of some sources.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteTable {
    /// Its name, unique in the network.
    pub name: String,
    /// The sources of the packets that it routes.
    #[serde(rename = "source")]
    pub sources: Vec<IpNet>,
    /// Its routes.
    #[serde(default, rename = "route", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
}

/// All routes, ECMP groups, route tables and peers of a network: what `network.routing` puts in the place of those
/// before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RoutingChange {
    /// The network.
    pub network: String,
    /// Its peers from now on.
    #[serde(default, rename = "peer", skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Its routes from now on.
    #[serde(default, rename = "route", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Its groups from now on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ecmp: Vec<EcmpGroup>,
    /// Its route tables from now on.
    #[serde(default, rename = "route-table", skip_serializing_if = "Vec::is_empty")]
    pub route_tables: Vec<RouteTable>,
}

/// Another state, or weight, of a member of an ECMP group. What is left out stays as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberChange {
    /// The network.
    pub network: String,
    /// The group.
    pub ecmp: String,
    /// The member's host, or its address.
    pub member: IpAddr,
    /// Whether it gets no packets from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub down: Option<bool>,
    /// How many flows it gets relative to the others from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u16>,
}

impl MemberChange {
    /// Whether both are of one member.
    pub fn is_same_member(&self, other: &MemberChange) -> bool {
        (&self.network, &self.ecmp, self.member) == (&other.network, &other.ecmp, other.member)
    }

    /// Whether it is one that a member can have; what is wrong otherwise.
    ///
    /// # Errors
    /// Text for people.
    pub fn check(&self) -> Result<(), String> {
        match (self.down, self.weight) {
            (None, None) => Err("nothing is to be changed: neither `down` nor `weight` is given".to_owned()),
            (_, Some(weight)) if weight > LARGEST_MEMBER_WEIGHT => {
                Err(format!("weight {weight} is more than {LARGEST_MEMBER_WEIGHT}"))
            }
            _ => Ok(()),
        }
    }

    /// Both, this one first.
    pub fn then(&mut self, later: &MemberChange) {
        self.down = later.down.or(self.down);
        self.weight = later.weight.or(self.weight);
    }
}

/// The parameters of `network.routing`; the network's name is under `key`.
pub(super) fn change(reader: &Reader<'_>, key: &'static str) -> RoutingChange {
    RoutingChange {
        network: changed(reader, key),
        peers: peers(reader),
        routes: routes(reader, "route"),
        ecmp: groups(reader),
        route_tables: tables(reader),
    }
}

/// `peer`
pub(super) fn peers(reader: &Reader<'_>) -> Vec<String> {
    let named = |text: &str| if is_name(text) { Ok(text.to_owned()) } else { Err(String::new()) };
    reader.one_or_more("peer", WHAT_NETWORK, named).unwrap_or_default()
}

/// `[[network.route]]`
pub(super) fn routes(reader: &Reader<'_>, key: &'static str) -> Vec<Route> {
    reader.tables(key, "[[network.route]]", route)
}

/// `[[network.ecmp]]`
pub(super) fn groups(reader: &Reader<'_>) -> Vec<EcmpGroup> {
    let group = |reader: &Reader<'_>| EcmpGroup {
        name: name(reader, "site-b"),
        bfd: reader.boolean("bfd").unwrap_or(false),
        members: reader.tables("member", "[[network.ecmp.member]]", member),
    };
    reader.tables("ecmp", "[[network.ecmp]]", group)
}

/// `[[network.route-table]]`
pub(super) fn tables(reader: &Reader<'_>) -> Vec<RouteTable> {
    let table = |reader: &Reader<'_>| {
        if reader.value("source").is_none() {
            reader.missing("source", "source = \"10.0.1.0/24\"");
        }

        RouteTable {
            name: name(reader, "audited"),
            sources: reader.one_or_more("source", WHAT_PREFIX, prefix).unwrap_or_default(),
            routes: routes(reader, "route"),
        }
    };
    reader.tables("route-table", "[[network.route-table]]", table)
}

fn route(reader: &Reader<'_>) -> Route {
    if reader.value("prefix").is_none() {
        reader.missing("prefix", "prefix = \"172.16.0.0/12\"");
    }
    let route = Route {
        prefix: reader.converted("prefix", WHAT_PREFIX, prefix).unwrap_or_default(),
        host: reader.converted("host", WHAT_ADDRESS, unicast),
        address: reader.converted("address", WHAT_ADDRESS, unicast),
        ecmp: reader.name("ecmp"),
    };
    exactly_one(reader, &["host", "address", "ecmp"], "a route");
    route
}

fn member(reader: &Reader<'_>) -> EcmpMember {
    let member = EcmpMember {
        host: reader.converted("host", WHAT_ADDRESS, unicast),
        address: reader.converted("address", WHAT_ADDRESS, unicast),
        weight: reader.integer("weight", 0..=LARGEST_MEMBER_WEIGHT).unwrap_or(1),
        zone: reader.name("zone"),
        down: reader.boolean("down").unwrap_or(false),
    };
    exactly_one(reader, &["host", "address"], "a member");
    member
}

fn exactly_one(reader: &Reader<'_>, keys: &[&'static str], what: &str) {
    let found: Vec<&str> = keys.iter().copied().filter(|key| reader.value(key).is_some()).collect();
    if found.len() != 1 {
        let found = if found.is_empty() { "none".to_owned() } else { format!("`{}`", found.join("` and `")) };
        reader.report(
            Problem::error(&*reader.path, format!("{what} leads to one place"))
                .found(found)
                .expected(format!("exactly one of `{}`", keys.join("`, `"))),
        );
    }
}

impl Network {
    /// Routes, groups, tables and peers from now on.
    pub fn change_routing(&mut self, change: &RoutingChange) {
        self.peers.clone_from(&change.peers);
        self.routes.clone_from(&change.routes);
        self.ecmp.clone_from(&change.ecmp);
        self.route_tables.clone_from(&change.route_tables);
    }

    /// Another state of a member; whether there is such a member.
    pub fn change_member(&mut self, change: &MemberChange) -> bool {
        let group = self.ecmp.iter_mut().find(|group| group.name == change.ecmp);
        let member = group.and_then(|group| group.members.iter_mut().find(|member| member.via() == change.member));
        let Some(member) = member else { return false };
        member.down = change.down.unwrap_or(member.down);
        member.weight = change.weight.unwrap_or(member.weight);
        true
    }

    /// The hosts that routes lead to.
    pub fn route_hosts(&self) -> impl Iterator<Item = IpAddr> {
        let tables = self.route_tables.iter().flat_map(|table| &table.routes);
        self.routes.iter().chain(tables).filter_map(|route| route.host)
    }

    /// The hosts that are members of ECMP groups with BFD.
    pub fn bfd_hosts(&self) -> impl Iterator<Item = IpAddr> {
        self.ecmp.iter().filter(|group| group.bfd).flat_map(|group| &group.members).filter_map(|member| member.host)
    }

    /// The hosts that are members of ECMP groups.
    pub fn member_hosts(&self) -> impl Iterator<Item = IpAddr> {
        self.ecmp.iter().flat_map(|group| &group.members).filter_map(|member| member.host)
    }
}

pub(super) fn check_routing(site: &Site, place: &str, network: &Network, problems: &mut Vec<Problem>) {
    let index = RoutingIndex::of(site, network);
    let mut names = HashSet::new();
    for (at, group) in network.ecmp.iter().enumerate() {
        let place = format!("{place}.ecmp[{at}]");
        second_name(&place, "ECMP group", &group.name, &mut names, problems);
        check_group_members(site, &place, &index, group, problems);
    }
    let (mut seen, mut names) = (HashSet::new(), HashSet::new());
    check_routes(site, place, &index, &network.routes, problems);
    for (at, table) in network.route_tables.iter().enumerate() {
        let place = format!("{place}.route-table[{at}]");
        if problems.len() >= MOST_PROBLEMS {
            return;
        }
        second_name(&place, "route table", &table.name, &mut names, problems);
        for (number, source) in table.sources.iter().enumerate() {
            if !seen.insert(*source) {
                let place = format!("{place}.source[{number}]");
                let message = format!("another route table of the network is for the source {source}");
                problems.push(Problem::error(place, message).help("of several prefixes the longest counts"));
            }
        }
        check_routes(site, &place, &index, &table.routes, problems);
    }
    check_peers(site, place, &index, problems);
}

/// As far as the whole site is concerned.
pub(super) fn check_group_count(site: &Site, problems: &mut Vec<Problem>) {
    let groups: usize = site.networks.iter().map(|network| network.ecmp.len()).sum();
    if groups > MOST_GROUPS {
        let problem = Problem::error("network", "too many ECMP groups").found(groups.to_string());
        problems.push(problem.expected(format!("at most {MOST_GROUPS} in all networks")));
    }
}

fn check_group_members(
    site: &Site,
    place: &str,
    index: &RoutingIndex<'_>,
    group: &EcmpGroup,
    problems: &mut Vec<Problem>,
) {
    if group.members.len() > MOST_MEMBERS {
        let problem = Problem::error(format!("{place}.member"), "too many members");
        problems.push(problem.found(group.members.len().to_string()).expected(format!("at most {MOST_MEMBERS}")));
        return;
    }
    let mut seen = HashSet::new();
    for (number, member) in group.members.iter().enumerate() {
        let place = format!("{place}.member[{number}]");
        if problems.len() >= MOST_PROBLEMS {
            return;
        }
        check_next_hop(site, &place, index, member.host, member.address, problems);
        let via = member.via();
        if !via.is_unspecified() && !seen.insert(via) {
            let message = format!("{via} is a member of the group already");
            problems.push(Problem::error(place, message).help("give it a larger `weight` instead"));
        }
    }
}

fn check_routes(site: &Site, place: &str, index: &RoutingIndex<'_>, routes: &[Route], problems: &mut Vec<Problem>) {
    let mut seen = HashSet::new();
    let RoutingIndex { network, peers, groups, .. } = index;
    for (number, route) in routes.iter().enumerate() {
        if problems.len() >= MOST_PROBLEMS {
            return;
        }
        let place = format!("{place}.route[{number}]");
        let prefix = route.prefix;
        let taken = if network.cidr.contains(&prefix) {
            Some("is a subnet of the network".to_owned())
        } else if let Some(peer) = peers.iter().find(|peer| peer.cidr.contains(&prefix)) {
            Some(format!("is a subnet of its peer `{}`", peer.name))
        } else {
            (!seen.insert(prefix)).then(|| "is routed already".to_owned())
        };
        if let Some(taken) = taken {
            problems.push(Problem::error(format!("{place}.prefix"), format!("{prefix} {taken}")));
        }
        check_next_hop(site, &place, index, route.host, route.address, problems);
        if let Some(name) = &route.ecmp
            && !groups.contains(name.as_str())
        {
            let names = network.ecmp.iter().map(|group| group.name.as_str());
            problems.extend(dangling(format!("{place}.ecmp"), "network.ecmp", name, names));
        }
    }
}

/// A next hop that is a host, or an address.
fn check_next_hop(
    site: &Site,
    place: &str,
    index: &RoutingIndex<'_>,
    host: Option<IpAddr>,
    address: Option<IpAddr>,
    problems: &mut Vec<Problem>,
) {
    if let Some(host) = host {
        check_host(site, &format!("{place}.host"), host, problems);
    }
    if let Some(address) = address.filter(|address| !index.guests.contains(address)) {
        let message = format!("nobody in network `{}` has the address {address}", index.network.name);
        let problem = Problem::error(format!("{place}.address"), message);
        problems.push(problem.help("name a device's address, or one of a [[network.endpoint]]"));
    }
}

/// Peers are there, and what one network reaches does not overlap.
fn check_peers(site: &Site, place: &str, index: &RoutingIndex<'_>, problems: &mut Vec<Problem>) {
    let (network, mut seen) = (index.network, HashSet::new());
    let mut reached: Vec<(&str, IpNet)> = network.cidr.iter().map(|prefix| (network.name.as_str(), *prefix)).collect();
    for (number, name) in network.peers.iter().enumerate() {
        if problems.len() >= MOST_PROBLEMS {
            return;
        }
        let place = format!("{place}.peer[{number}]");
        if *name == network.name || !seen.insert(name) {
            let message = format!("network `{name}` is named here already, or is the network itself");
            problems.push(Problem::error(place, message));
            continue;
        }
        let Some(peer) = index.networks.get(name.as_str()) else {
            let names = site.networks.iter().map(|network| network.name.as_str());
            problems.extend(dangling(place, "network", name, names));
            continue;
        };
        let overlaps = |far: &&IpNet| reached.iter().any(|(_, near)| overlap(near, far));
        if let Some(far) = peer.cidr.iter().find(overlaps) {
            let near = reached.iter().find(|(_, near)| overlap(near, far));
            let (owner, near) = near.copied().unwrap_or(("", *far));
            problems.push(
                Problem::error(place, format!("{far} of `{name}` overlaps {near} of `{owner}`"))
                    .help("networks whose addresses overlap cannot be peers, nor can two peers of one network"),
            );
        }
        reached.extend(peer.cidr.iter().map(|prefix| (name.as_str(), *prefix)));
    }
}

/// What a network's routes are held against, found once for all of them.
struct RoutingIndex<'a> {
    network: &'a Network,
    /// The networks of the site by name, where this one has peers; and those peers.
    networks: HashMap<&'a str, &'a Network>,
    peers: Vec<&'a Network>,
    /// Its ECMP groups.
    groups: HashSet<&'a str>,
    /// The addresses of its guests, here and on other hosts.
    guests: HashSet<IpAddr>,
}

impl<'a> RoutingIndex<'a> {
    fn of(site: &'a Site, network: &'a Network) -> RoutingIndex<'a> {
        let mut networks = HashMap::new();
        if !network.peers.is_empty() {
            for known in &site.networks {
                networks.entry(known.name.as_str()).or_insert(known);
            }
        }
        let here = site.attached(&network.name).filter_map(|device| device.port()).flat_map(|port| &port.addresses);
        let elsewhere = network.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        RoutingIndex {
            network,
            peers: network.peers.iter().filter_map(|name| networks.get(name.as_str()).copied()).collect(),
            networks,
            groups: network.ecmp.iter().map(|group| group.name.as_str()).collect(),
            guests: here.chain(elsewhere).copied().collect(),
        }
    }
}

fn second_name<'a>(place: &str, what: &str, name: &'a str, seen: &mut HashSet<&'a str>, problems: &mut Vec<Problem>) {
    if !name.is_empty() && !seen.insert(name) {
        let problem = Problem::error(format!("{place}.name"), format!("the network has a second {what} `{name}`"));
        problems.push(problem.help("give each a name of its own"));
    }
}
