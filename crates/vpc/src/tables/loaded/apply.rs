//! Changes that were [checked](super::change) are made in place: each touches a few slots of the tables, however many
//! entries there are.

use std::net::IpAddr;

use softdpu_lpm::Full;

use super::change::{Changes, Checked, PlacedGuest, RouteTo};
use super::{
    LoadCounts, Loaded, LoadedGroupId, LoadedGuest, LoadedHop, LoadedHost, LoadedHostId, LoadedMember, LoadedNetwork,
    LoadedNetworkId, LoadedRoute, LoadedVia, route_content, versions,
};
use crate::exact::ExactKey;
use crate::id::HopId;
use crate::spec::{Prefix, SubnetSpec};

impl Loaded {
    /// Makes `changes`, which were [checked](Self::check) against a copy of what is here, in place.
    ///
    /// # Errors
    /// [`Full`]: only some of them are made, and this copy is of no use any more.
    pub fn apply(&mut self, changes: &Changes) -> Result<(), Full> {
        self.version = changes.version;
        let network = self.number(&changes.network).unwrap_or_else(|| self.add_network(&changes.network));
        for change in &changes.all {
            match change {
                Checked::Guest { address, to } => self.set_guest(network, *address, *to, changes.version),
                Checked::Route { prefix, to } => self.set_route(network, *prefix, to.as_ref(), &changes.subnets)?,
            }
        }
        Ok(())
    }

    fn add_network(&mut self, name: &str) -> LoadedNetworkId {
        self.networks.push(LoadedNetwork {
            name: name.to_owned(),
            counts: LoadCounts::default(),
            seed: versions::seed(name),
            guests: self.version,
            routes: 0,
            routes_in_subnets: 0,
        });
        self.added.grow(self.networks.len());
        LoadedNetworkId::new(self.networks.len() as u32 - 1)
    }

    fn set_guest(&mut self, network: LoadedNetworkId, address: IpAddr, to: Option<PlacedGuest>, version: u32) {
        let key = ExactKey::address(network.number(), address);
        let before = self.guests.get(&key);
        if let Some(hop) = before.and_then(|guest| self.hop(guest.hop)).copied() {
            self.leave(network, hop.host);
        }
        // Its next hop is looked up for each packet: one that moves leaves flows valid, as in another load.
        if before.map(|guest| guest.subnet) != to.map(|to| to.subnet) {
            let row = &mut self.networks[network.index()];
            self.guest_generations.set(versions::hash(row.seed, &key), version);
            row.guests = version;
        }
        let Some(PlacedGuest { mac, host, subnet }) = to else {
            if let Some(guest) = self.guests.remove(&key) {
                self.free_hop(guest.hop);
                self.networks[network.index()].counts.endpoints -= 1;
                self.counts.endpoints -= 1;
            }
            return;
        };
        let host = self.join(network, host).0;
        let hop = before.map_or_else(|| self.new_hop(), |guest| guest.hop);
        self.put_hop(hop, LoadedHop { mac: Some(mac), network, host });
        if self.guests.set(key, LoadedGuest { hop, subnet }).is_none() {
            self.networks[network.index()].counts.endpoints += 1;
            self.counts.endpoints += 1;
        }
    }

    fn set_route(
        &mut self,
        network: LoadedNetworkId,
        prefix: Prefix,
        to: Option<&RouteTo>,
        subnets: &[SubnetSpec],
    ) -> Result<(), Full> {
        let is_in_subnet = subnets.iter().any(|subnet| subnet.prefix.has_inside(prefix));
        // The one that it becomes is put together first: its node keeps its number.
        let via = match to {
            None => None,
            Some(RouteTo::Host(at)) => Some(LoadedVia::Hop(self.join(network, *at).1)),
            Some(RouteTo::Ecmp(group)) => Some(LoadedVia::Ecmp(self.group(network, group))),
        };
        let before = match via {
            Some(via) => self.put_route(network, prefix, LoadedRoute { via, length: prefix.length() })?,
            None => {
                let added = self.added.remove(network.number(), prefix);
                added.or_else(|| self.routes.remove(network.into(), prefix))
            }
        };
        let content = |via: LoadedVia| route_content(prefix, via, &self.groups);
        let (lost, won) = (before.map_or(0, |route| content(route.via)), via.map_or(0, content));
        let row = &mut self.networks[network.index()];
        row.routes = row.routes.wrapping_sub(lost).wrapping_add(won);
        match (before, via) {
            (None, Some(_)) => {
                row.counts.routes += 1;
                row.routes_in_subnets += usize::from(is_in_subnet);
                self.counts.routes += 1;
            }
            (Some(_), None) => {
                row.counts.routes -= 1;
                row.routes_in_subnets = row.routes_in_subnets.saturating_sub(usize::from(is_in_subnet));
                self.counts.routes -= 1;
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        if let Some(LoadedRoute { via: LoadedVia::Hop(hop), .. }) = before
            && let Some(hop) = self.hop(hop).copied()
        {
            self.leave(network, hop.host);
        }
        Ok(())
    }

    /// Puts a route where the one with its prefix is, or among those that were added; the one that was there.
    fn put_route(
        &mut self,
        network: LoadedNetworkId,
        prefix: Prefix,
        route: LoadedRoute,
    ) -> Result<Option<LoadedRoute>, Full> {
        match self.routes.replace(network.into(), prefix, route) {
            Some(before) => Ok(Some(before)),
            None => self.added.insert(network.number(), prefix, route),
        }
    }

    /// An entry of `network` more at a node: its number, and the next hop of the network's routes to it.
    fn join(&mut self, network: LoadedNetworkId, address: IpAddr) -> (LoadedHostId, HopId) {
        let host = self.host_ids.get(&address).copied().unwrap_or_else(|| {
            let host = self.free_hosts.pop().unwrap_or(LoadedHostId::new(self.hosts.len() as u32));
            if host.index() == self.hosts.len() {
                self.hosts.push(LoadedHost { address, networks: 0 });
            }
            self.hosts[host.index()].address = address;
            self.host_ids.insert(address, host);
            host
        });
        if let Some(member) = self.members.get_mut(&(network, host)) {
            member.entries += 1;
            return (host, member.hop);
        }
        let hop = self.new_hop();
        self.put_hop(hop, LoadedHop { mac: None, network, host });
        self.members.insert((network, host), LoadedMember { entries: 1, hop });
        self.networks[network.index()].counts.hosts += 1;
        let row = &mut self.hosts[host.index()];
        row.networks += 1;
        if row.networks == 1 {
            self.counts.hosts += 1;
            self.hosts_version = self.version;
        }
        (host, hop)
    }

    /// An entry of `network` less at a node.
    fn leave(&mut self, network: LoadedNetworkId, host: LoadedHostId) {
        let Some(member) = self.members.get_mut(&(network, host)) else { return };
        member.entries -= 1;
        if member.entries > 0 {
            return;
        }
        let hop = member.hop;
        self.members.remove(&(network, host));
        self.free_hop(hop);
        self.networks[network.index()].counts.hosts -= 1;
        let row = &mut self.hosts[host.index()];
        row.networks -= 1;
        if row.networks == 0 {
            self.host_ids.remove(&row.address);
            self.free_hosts.push(host);
            self.counts.hosts -= 1;
            self.hosts_version = self.version;
        }
    }

    fn group(&mut self, network: LoadedNetworkId, name: &str) -> LoadedGroupId {
        let at = self.groups.iter().position(|(of, known)| *of == network && **known == *name);
        let at = at.unwrap_or_else(|| {
            self.groups.push((network, name.into()));
            self.groups.len() - 1
        });
        LoadedGroupId::new(at as u32)
    }

    /// An unused number. It may have been another next hop's: flows by that have a stamp that is stale.
    fn new_hop(&mut self) -> HopId {
        self.free_hops.pop().unwrap_or_else(|| {
            self.hops.push(None);
            HopId::loaded(self.hops.len() - 1)
        })
    }

    fn put_hop(&mut self, id: HopId, hop: LoadedHop) {
        if let Some(slot) = id.loaded_index().and_then(|at| self.hops.get_mut(at)) {
            *slot = Some(hop);
        }
    }

    fn free_hop(&mut self, id: HopId) {
        if let Some(slot) = id.loaded_index().and_then(|at| self.hops.get_mut(at)) {
            *slot = None;
            self.free_hops.push(id);
        }
    }
}
