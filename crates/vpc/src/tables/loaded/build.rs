//! From entries that were found right to tables, with the numbers and versions that the load before gave to what stays.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use softdpu_lpm::{Capacity, Lpm};

use super::loading::{GuestLine, Loading, RouteVia};
use super::numbers::HopNumbering;
use super::versions::{self, GuestGenerations};
use super::{
    LOADS, LoadCounts, LoadError, Loaded, LoadedGuest, LoadedHop, LoadedHost, LoadedHostId, LoadedMember,
    LoadedNetwork, LoadedNetworkId, LoadedRoute, LoadedVia, route_content,
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
        Some(loaded.members.get(&(network, *loaded.host_ids.get(&host)?))?.hop)
    }
}

/// Builds tables of entries that are sorted and each there once.
pub(super) fn build(loading: Loading<'_>) -> Result<Loaded, LoadError> {
    let Loading { guests, routes, names, hosts, groups, known, previous, next_hops, room_for_routes, .. } = loading;
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
                routes_in_subnets: 0,
            }
        })
        .collect();
    // By node's address, not by its number, which is another in each load.
    let mut members = BTreeMap::new();
    for guest in &guests {
        networks[guest.network.index()].counts.endpoints += 1;
        *members.entry((guest.network, hosts[guest.host.index()], guest.host)).or_insert(0_usize) += 1;
    }
    for route in &routes {
        networks[route.network.index()].counts.routes += 1;
        if let RouteVia::Host(host) = route.via {
            *members.entry((route.network, hosts[host.index()], host)).or_insert(0) += 1;
        }
    }
    let mut placed: Vec<LoadedHost> = hosts.iter().map(|&address| LoadedHost { address, networks: 0 }).collect();
    for (network, _, host) in members.keys() {
        networks[network.index()].counts.hosts += 1;
        placed[host.index()].networks += 1;
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
        .keys()
        .map(|&(network, address, _)| before.route_hop(network, address).filter(|hop| numbering.keep(*hop)))
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
    let members: BTreeMap<(LoadedNetworkId, LoadedHostId), LoadedMember> = members
        .into_iter()
        .zip(kept)
        .map(|(((network, _, host), entries), kept)| {
            let hop = kept.unwrap_or_else(|| numbering.unused());
            put(hop, LoadedHop { mac: None, network, host });
            ((network, host), LoadedMember { entries, hop })
        })
        .collect();

    let mut entries = Vec::with_capacity(routes.len());
    for route in &routes {
        let via = match route.via {
            RouteVia::Host(host) => {
                let member = members.get(&(route.network, host));
                LoadedVia::Hop(member.map(|member| member.hop).unwrap_or_default())
            }
            RouteVia::Ecmp(group) => LoadedVia::Ecmp(group),
        };
        let content = route_content(route.prefix, via, &groups);
        let network = &mut networks[route.network.index()];
        // A sum: the same in whatever order they are.
        network.routes = network.routes.wrapping_add(content);
        let subnets = known.get(network.name.as_str()).map_or(&[][..], |known| &known.spec.subnets);
        let is_in_subnet = subnets.iter().any(|subnet| subnet.prefix.has_inside(route.prefix));
        network.routes_in_subnets += usize::from(is_in_subnet);
        entries.push((route.network.into(), route.prefix, LoadedRoute { via, length: route.prefix.length() }));
    }
    let routes = Prefixes::build(networks.len(), &entries).map_err(|error| full(Problem::Memory(error)))?;
    // Memory is reserved, and used as routes are added. Where there is not that much, none can be.
    let room = |routes| Lpm::new(Capacity::worst_case(networks.len(), routes));
    let added = room(room_for_routes).or_else(|_| room(0)).map_err(|error| full(Problem::Memory(error)))?;
    Ok(Loaded {
        version,
        hosts_version: version,
        counts: LoadCounts { endpoints: guests.len(), routes: entries.len(), hosts: hosts.len() },
        networks,
        guest_generations: generations,
        guests: ExactTable::build(&addresses, 0),
        routes,
        added,
        free_hops: (0..).map(HopId::loaded).zip(&hops).filter(|(_, hop)| hop.is_none()).map(|(id, _)| id).collect(),
        hops,
        host_ids: hosts.into_iter().zip((0..).map(LoadedHostId::new)).collect(),
        hosts: placed,
        free_hosts: Vec::new(),
        members,
        groups,
    })
}
