//! From entries that were found right to tables, with the numbers and versions that the load before gave to what stays.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use super::numbers::Numbers;
use super::versions::{self, Ids};
use super::{FIRST, Guest, Holder, LOADS, LoadCounts, LoadError, Loaded, Loading, Routed, Target, Via};
use crate::exact::{ExactKey, ExactTable};
use crate::tables::error::Problem;
use crate::tables::{Owner, Prefixes};

/// The number of a host that is none.
const NOBODY: u32 = u32::MAX;

/// The load before, as it is seen from the one that is built.
struct Before<'a> {
    loaded: Option<&'a Loaded>,
    /// For each network, its number there.
    networks: Vec<Option<u32>>,
}

impl<'a> Before<'a> {
    fn new(loaded: Option<&'a Loaded>, names: &[&str]) -> Before<'a> {
        let known: HashMap<&str, u32> =
            loaded.into_iter().flat_map(Loaded::networks).map(|(name, _)| name).zip(0..).collect();
        Before { loaded, networks: names.iter().map(|name| known.get(name).copied()).collect() }
    }

    /// The number there of a network.
    fn network(&self, number: u32) -> Option<u32> {
        *self.networks.get(number as usize)?
    }

    /// What a guest was, by its address.
    fn guest(&self, guest: &Guest) -> Option<Owner> {
        self.loaded?.owner(self.network(guest.network)?, guest.address)
    }

    /// The number that the way of a network to a node had.
    fn way(&self, network: u32, host: std::net::IpAddr) -> Option<u32> {
        let (loaded, network) = (self.loaded?, self.network(network)?);
        let at =
            loaded.members.partition_point(|(of, at)| (*of, loaded.hosts.get(*at as usize)) < (network, Some(&host)));
        let (of, at_host) = loaded.members.get(at)?;
        let is_it = *of == network && loaded.hosts.get(*at_host as usize) == Some(&host);
        is_it.then(|| loaded.ways.get(at).copied()).flatten()
    }
}

/// Entries, sorted and each once, as tables.
pub(super) fn build(loading: Loading<'_>) -> Result<Loaded, LoadError> {
    let Loading { guests, routes, names, hosts, groups, known, previous, next_hops, .. } = loading;
    let version = LOADS.fetch_add(1, Ordering::Relaxed);
    let before = Before::new(previous.as_deref(), &names);
    let last = routes.last().map_or(0, |route| route.line);
    let full = |problem| LoadError { line: last, problem };
    let mut networks: Vec<Holder> = names
        .iter()
        .enumerate()
        .map(|(number, name)| {
            let was = before.network(number as u32).zip(before.loaded);
            let was = was.and_then(|(at, loaded)| loaded.networks.get(at as usize));
            Holder {
                name: (*name).to_owned(),
                counts: LoadCounts::default(),
                seed: versions::seed(name),
                guests: was.map_or(version, |was| was.guests),
                routes: 0,
                is_pierced: false,
            }
        })
        .collect();
    // By node's address, not by its number, which is another in each load.
    let mut members = BTreeSet::new();
    for guest in &guests {
        networks[guest.network as usize].counts.endpoints += 1;
        members.insert((guest.network, hosts[guest.host as usize], guest.host));
    }
    for route in &routes {
        networks[route.network as usize].counts.routes += 1;
        if let Via::Host(host) = route.via {
            members.insert((route.network, hosts[host as usize], host));
        }
    }
    let members: Box<[(u32, u32)]> = members.into_iter().map(|(network, _, host)| (network, host)).collect();
    for (network, _) in &members {
        networks[*network as usize].counts.hosts += 1;
    }
    let wanted = guests.len() + members.len();
    if wanted > next_hops {
        return Err(full(Problem::NextHops { capacity: next_hops, wanted }));
    }

    // Numbers: first those that stay, then the others.
    let mut numbers = Numbers::new(before.loaded.map_or(0, |loaded| loaded.targets.len()));
    let was: Vec<Option<Owner>> =
        guests.iter().map(|guest| before.guest(guest).filter(|was| numbers.keep(was.hop))).collect();
    let kept_ways: Vec<Option<u32>> = members
        .iter()
        .map(|&(network, host)| before.way(network, hosts[host as usize]).filter(|number| numbers.keep(*number)))
        .collect();
    // Guests that are gone, or are in other subnets, and those that are new, make their buckets others.
    let mut guest_ids = Ids::after(before.loaded.map(|loaded| &loaded.guest_ids), guests.len(), version);
    if let Some(loaded) = before.loaded
        && was.iter().flatten().count() < loaded.counts.endpoints
    {
        let here: HashMap<u32, usize> =
            before.networks.iter().zip(0..).filter_map(|(at, own)| Some(((*at)?, own))).collect();
        for (key, _) in loaded.addresses.iter().filter(|(_, owner)| !numbers.is_kept(owner.hop)) {
            if let Some(network) = loaded.networks.get(key.network() as usize) {
                guest_ids.set(versions::hash(network.seed, &key), version);
            }
            if let Some(network) = here.get(&key.network()) {
                networks[*network].guests = version;
            }
        }
    }
    let mut targets = Vec::with_capacity(guests.len() + members.len());
    let mut put = |number: u32, target: Target| {
        let at = (number - FIRST) as usize;
        if targets.len() <= at {
            targets.resize(at + 1, Target { mac: None, network: NOBODY, host: NOBODY });
        }
        targets[at] = target;
    };
    let mut addresses = Vec::with_capacity(guests.len());
    for (guest, was) in guests.iter().zip(was) {
        let hop = was.map_or_else(|| numbers.unused(), |was| was.hop);
        let key = ExactKey::address(guest.network, guest.address);
        if was.is_none_or(|was| was.subnet != guest.subnet) {
            let network = &mut networks[guest.network as usize];
            guest_ids.set(versions::hash(network.seed, &key), version);
            network.guests = version;
        }
        addresses.push((key, Owner { hop, subnet: guest.subnet }));
        put(hop, Target { mac: Some(guest.mac), network: guest.network, host: guest.host });
    }
    // What is behind routes: a next hop for each network and node.
    let ways: Box<[u32]> = kept_ways.into_iter().map(|way| way.unwrap_or_else(|| numbers.unused())).collect();
    for (&(network, host), &number) in members.iter().zip(&ways) {
        put(number, Target { mac: None, network, host });
    }

    let way_of: HashMap<(u32, u32), u32> = members.iter().copied().zip(ways.iter().copied()).collect();
    let mut entries = Vec::with_capacity(routes.len());
    for route in &routes {
        let (owner, content) = match route.via {
            Via::Host(host) => {
                let way = way_of.get(&(route.network, host)).copied().unwrap_or_default();
                (Owner::behind(way), versions::digest(&(route.prefix, way)))
            }
            Via::Ecmp(group) => {
                let name = groups.get(group as usize).map(|(_, name)| name);
                (Owner::ecmp(group), versions::digest(&(route.prefix, name)))
            }
        };
        let network = &mut networks[route.network as usize];
        // In whatever order they are.
        network.routes = network.routes.wrapping_add(content);
        let subnets = known.get(network.name.as_str()).map_or(&[][..], |known| &known.spec.subnets);
        network.is_pierced |= subnets.iter().any(|subnet| subnet.prefix.has_inside(route.prefix));
        entries.push((route.network, route.prefix, Routed { owner, length: route.prefix.length() }));
    }
    let routes = Prefixes::build(networks.len(), &entries).map_err(|error| full(Problem::Memory(error)))?;
    Ok(Loaded {
        version,
        counts: LoadCounts { endpoints: guests.len(), routes: entries.len(), hosts: hosts.len() },
        networks: networks.into(),
        guest_ids,
        addresses: ExactTable::build(&addresses, 0),
        routes,
        targets: targets.into(),
        hosts: hosts.into(),
        members,
        ways,
        groups: groups.into(),
    })
}
