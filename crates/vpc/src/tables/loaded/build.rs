//! From entries that were found right to tables, with the numbers and versions that the load before gave to what stays.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use super::loading::{GuestLine, Loading, RouteVia};
use super::numbers::HopNumbering;
use super::versions::{self, GuestGenerations};
use super::{
    LOADS, LoadCounts, LoadError, Loaded, LoadedGuest, LoadedHop, LoadedHostId, LoadedNetwork, LoadedNetworkId,
    LoadedRoute, LoadedVia,
};
use crate::exact::{ExactKey, ExactTable};
use crate::id::HopId;
use crate::tables::error::Problem;
use crate::tables::prefixes::Prefixes;

/// The load before, as it is seen from the one that is built.
struct Before<'a> {
    loaded: Option<&'a Loaded>,
    /// The number there of each network.
    networks: Vec<Option<LoadedNetworkId>>,
}

impl<'a> Before<'a> {
    fn new(loaded: Option<&'a Loaded>, names: &[&str]) -> Before<'a> {
        let numbers = (0..).map(LoadedNetworkId::new);
        let known: HashMap<&str, LoadedNetworkId> =
            loaded.into_iter().flat_map(Loaded::networks).map(|(name, _)| name).zip(numbers).collect();
        Before { loaded, networks: names.iter().map(|name| known.get(name).copied()).collect() }
    }

    /// The number there of a network.
    fn network(&self, network: LoadedNetworkId) -> Option<LoadedNetworkId> {
        *self.networks.get(network.index())?
    }

    /// The guest that had the address of `guest`.
    fn guest(&self, guest: &GuestLine) -> Option<LoadedGuest> {
        self.loaded?.guest(self.network(guest.network)?, guest.address)
    }

    /// The next hop that routes of a network to a node had.
    fn route_hop(&self, network: LoadedNetworkId, host: IpAddr) -> Option<HopId> {
        let (loaded, network) = (self.loaded?, self.network(network)?);
        let place = |(of, at): &(LoadedNetworkId, LoadedHostId)| (*of, loaded.hosts.get(at.index()));
        let at = loaded.members.partition_point(|member| place(member) < (network, Some(&host)));
        let is_it = place(loaded.members.get(at)?) == (network, Some(&host));
        is_it.then(|| loaded.route_hops.get(at).copied()).flatten()
    }
}

/// Builds tables of entries that are sorted and each there once.
pub(super) fn build(loading: Loading<'_>) -> Result<Loaded, LoadError> {
    let Loading { guests, routes, names, hosts, groups, known, previous, next_hops, .. } = loading;
    let version = LOADS.fetch_add(1, Ordering::Relaxed);
    let before = Before::new(previous.as_deref(), &names);
    let last = routes.last().map_or(0, |route| route.line);
    let full = |problem| LoadError { line: last, problem };
    let mut networks: Vec<LoadedNetwork> = (0..)
        .map(LoadedNetworkId::new)
        .zip(&names)
        .map(|(id, name)| {
            let was = before.network(id).zip(before.loaded);
            let was = was.and_then(|(at, loaded)| loaded.networks.get(at.index()));
            LoadedNetwork {
                name: (*name).to_owned(),
                counts: LoadCounts::default(),
                seed: versions::seed(name),
                guests: was.map_or(version, |was| was.guests),
                routes: 0,
                has_route_in_subnet: false,
            }
        })
        .collect();
    // By node's address, not by its number, which is another in each load.
    let mut members = BTreeSet::new();
    for guest in &guests {
        networks[guest.network.index()].counts.endpoints += 1;
        members.insert((guest.network, hosts[guest.host.index()], guest.host));
    }
    for route in &routes {
        networks[route.network.index()].counts.routes += 1;
        if let RouteVia::Host(host) = route.via {
            members.insert((route.network, hosts[host.index()], host));
        }
    }
    let members: Box<[(LoadedNetworkId, LoadedHostId)]> =
        members.into_iter().map(|(network, _, host)| (network, host)).collect();
    for (network, _) in &members {
        networks[network.index()].counts.hosts += 1;
    }
    let wanted = guests.len() + members.len();
    if wanted > next_hops {
        return Err(full(Problem::NextHops { capacity: next_hops, wanted }));
    }

    // Numbers: first those that stay, then the others.
    let mut numbering = HopNumbering::after(before.loaded.map_or(0, |loaded| loaded.hops.len()));
    let was: Vec<Option<LoadedGuest>> =
        guests.iter().map(|guest| before.guest(guest).filter(|was| numbering.keep(was.hop))).collect();
    let kept: Vec<Option<HopId>> = members
        .iter()
        .map(|&(network, host)| before.route_hop(network, hosts[host.index()]).filter(|hop| numbering.keep(*hop)))
        .collect();
    // Guests that are new, are gone, or are in another subnet change the generation of their buckets.
    let mut generations =
        GuestGenerations::after(before.loaded.map(|loaded| &loaded.guest_generations), guests.len(), version);
    if let Some(loaded) = before.loaded
        && was.iter().flatten().count() < loaded.counts.endpoints
    {
        let now: HashMap<u32, usize> =
            before.networks.iter().zip(0..).filter_map(|(was, now)| Some((was.as_ref()?.number(), now))).collect();
        for (key, _) in loaded.guests.iter().filter(|(_, guest)| !numbering.is_kept(guest.hop)) {
            if let Some(network) = loaded.networks.get(key.network() as usize) {
                generations.set(versions::hash(network.seed, &key), version);
            }
            if let Some(network) = now.get(&key.network()) {
                networks[*network].guests = version;
            }
        }
    }
    let mut hops = Vec::with_capacity(guests.len() + members.len());
    let mut put = |id: HopId, hop: LoadedHop| {
        let at = id.loaded_index().unwrap_or_default();
        if hops.len() <= at {
            hops.resize(at + 1, None);
        }
        hops[at] = Some(hop);
    };
    let mut addresses = Vec::with_capacity(guests.len());
    for (guest, was) in guests.iter().zip(was) {
        let hop = was.map_or_else(|| numbering.unused(), |was| was.hop);
        let key = ExactKey::address(guest.network.number(), guest.address);
        if was.is_none_or(|was| was.subnet != guest.subnet) {
            let network = &mut networks[guest.network.index()];
            generations.set(versions::hash(network.seed, &key), version);
            network.guests = version;
        }
        addresses.push((key, LoadedGuest { hop, subnet: guest.subnet }));
        put(hop, LoadedHop { mac: Some(guest.mac), network: guest.network, host: guest.host });
    }
    // Routes have one next hop for each network and node.
    let route_hops: Box<[HopId]> = kept.into_iter().map(|hop| hop.unwrap_or_else(|| numbering.unused())).collect();
    for (&(network, host), &hop) in members.iter().zip(&route_hops) {
        put(hop, LoadedHop { mac: None, network, host });
    }

    let hop_of: HashMap<(LoadedNetworkId, LoadedHostId), HopId> =
        members.iter().copied().zip(route_hops.iter().copied()).collect();
    let mut entries = Vec::with_capacity(routes.len());
    for route in &routes {
        let (via, content) = match route.via {
            RouteVia::Host(host) => {
                let hop = hop_of.get(&(route.network, host)).copied().unwrap_or_default();
                (LoadedVia::Hop(hop), versions::digest(&(route.prefix, hop)))
            }
            RouteVia::Ecmp(group) => {
                let name = groups.get(group.index()).map(|(_, name)| name);
                (LoadedVia::Ecmp(group), versions::digest(&(route.prefix, name)))
            }
        };
        let network = &mut networks[route.network.index()];
        // A sum: the same in whatever order they are.
        network.routes = network.routes.wrapping_add(content);
        let subnets = known.get(network.name.as_str()).map_or(&[][..], |known| &known.spec.subnets);
        network.has_route_in_subnet |= subnets.iter().any(|subnet| subnet.prefix.has_inside(route.prefix));
        entries.push((route.network.into(), route.prefix, LoadedRoute { via, length: route.prefix.length() }));
    }
    let routes = Prefixes::build(networks.len(), &entries).map_err(|error| full(Problem::Memory(error)))?;
    Ok(Loaded {
        version,
        counts: LoadCounts { endpoints: guests.len(), routes: entries.len(), hosts: hosts.len() },
        networks: networks.into(),
        guest_generations: generations,
        guests: ExactTable::build(&addresses, 0),
        routes,
        hops: hops.into(),
        hosts: hosts.into(),
        members,
        route_hops,
        groups: groups.into(),
    })
}
