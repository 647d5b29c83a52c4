//! The forwarding information base: what addresses and prefixes of a network resolve to.
//!
//! ```text
//!   (network, address) ──► entry: target, subnet             exact
//!   (network, prefix)  ──► entry, prefix length              longest prefix, of loaded routes and the spec's
//! ```

use std::net::IpAddr;

use super::loaded::LoadedVia;
use super::routing::RouteLookup;
use super::{Hop, RemoteEndpoint, Tables};
use crate::exact::{ExactKey, ExactTable};
use crate::id::{EcmpId, HopId, NetworkId, RouteTableId, SubnetId, TunnelId};
use crate::stamp::Stamp;
use crate::tables::prefixes::PrefixTableId;
use crate::tables::topology::Egress;

/// Where packets to an address or a prefix go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The subnet itself: its gateway has the address, or no endpoint has it.
    Connected,
    Hop(HopId),
    /// A member of an ECMP group, chosen by flow.
    Ecmp(EcmpId),
    /// The member of a peered network that has the address.
    Peer(NetworkId),
    /// Nowhere: it is not known how the destination is reached.
    Blackhole,
}

/// What an address or a prefix resolves to: a [`Target`], and the subnet that an address is in. Packed into 8 bytes, so
/// that a slot of the address table is half a cache line.
///
/// ```text
///   kind of target, 3 bits │ number, 29 bits │ 1 + number of the subnet, or 0, 32 bits
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FibEntry {
    target: u32,
    subnet: u32,
}

const _: () = assert!(size_of::<FibEntry>() == 8, "a slot of the address table has 32 bytes");

const KIND: u32 = 29;
const NUMBER: u32 = (1 << KIND) - 1;
const CONNECTED: u32 = 0;
const HOP: u32 = 1;
const ECMP: u32 = 2;
const PEER: u32 = 3;
const BLACKHOLE: u32 = 4;

impl FibEntry {
    #[inline]
    pub fn new(target: Target, subnet: Option<SubnetId>) -> FibEntry {
        let (kind, number) = match target {
            Target::Connected => (CONNECTED, 0),
            Target::Hop(hop) => (HOP, hop.number()),
            Target::Ecmp(group) => (ECMP, group.number()),
            Target::Peer(network) => (PEER, network.number()),
            Target::Blackhole => (BLACKHOLE, 0),
        };
        FibEntry { target: kind << KIND | number & NUMBER, subnet: subnet.map_or(0, |subnet| subnet.number() + 1) }
    }

    /// The entry of a prefix that is no subnet.
    pub fn routed(target: Target) -> FibEntry {
        FibEntry::new(target, None)
    }

    #[inline]
    pub fn target(self) -> Target {
        let number = self.target & NUMBER;
        match self.target >> KIND {
            CONNECTED => Target::Connected,
            HOP => Target::Hop(HopId::new(number)),
            ECMP => Target::Ecmp(EcmpId::new(number)),
            PEER => Target::Peer(NetworkId::new(number)),
            _ => Target::Blackhole,
        }
    }

    /// The next hop, where the target is one.
    #[inline]
    pub fn hop(self) -> Option<HopId> {
        (self.target >> KIND == HOP).then_some(HopId::new(self.target & NUMBER))
    }

    #[cfg(test)]
    fn subnet(self) -> Option<SubnetId> {
        self.subnet.checked_sub(1).map(SubnetId::new)
    }

    /// Whether both addresses are in one subnet, so that no router is between them.
    #[inline]
    pub fn is_same_subnet(self, other: FibEntry) -> bool {
        self.subnet == other.subnet && self.subnet != 0
    }
}

/// A route, with the length by which it is compared with routes from another table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FibRoute {
    pub entry: FibEntry,
    pub length: u8,
}

impl Tables {
    #[inline]
    pub(crate) fn addresses(&self) -> &ExactTable<FibEntry> {
        &self.addresses
    }

    /// The entry of `address` in `network`.
    pub(crate) fn resolve(&self, network: NetworkId, address: IpAddr) -> Option<FibEntry> {
        let configured = self.addresses.get(&ExactKey::address(network.number(), address));
        configured.or_else(|| self.resolve_loaded(network, address))
    }

    /// The entry of `address` in `network` among loaded guests.
    #[inline]
    pub(crate) fn resolve_loaded(&self, network: NetworkId, address: IpAddr) -> Option<FibEntry> {
        let loaded = self.loaded.as_deref()?;
        let network = self.network(network)?;
        let guest = loaded.guest(network.loaded?, address)?;
        let subnet = SubnetId::new(network.first_subnet.number() + guest.subnet);
        Some(FibEntry::new(Target::Hop(guest.hop), Some(subnet)))
    }

    /// The entry of the longest prefix of `network` that contains `address`.
    #[inline]
    pub(crate) fn route(&self, network: NetworkId, address: IpAddr) -> Option<FibEntry> {
        let configured = self.prefixes.longest(network.into(), address);
        let loaded = self.loaded.as_deref().and_then(|loaded| loaded.route(self.network(network)?.loaded?, address));
        match (configured, loaded) {
            // Of two of one length the configured one wins, so that what is loaded can be overruled.
            (Some(configured), Some(loaded)) if loaded.length > configured.length => {
                Some(self.loaded_entry(loaded.via))
            }
            (Some(configured), _) => Some(configured.entry),
            (None, loaded) => loaded.map(|loaded| self.loaded_entry(loaded.via)),
        }
    }

    /// The entry of a loaded route in these tables.
    #[inline]
    fn loaded_entry(&self, via: LoadedVia) -> FibEntry {
        let target = match via {
            LoadedVia::Hop(hop) => Target::Hop(hop),
            LoadedVia::Ecmp(group) => self.loaded_groups.get(group.index()).copied().unwrap_or(Target::Blackhole),
        };
        FibEntry::routed(target)
    }

    /// Where packets from `source` to `destination`, an address that is not in the address table, go.
    #[inline]
    pub(crate) fn route_from(&self, network: NetworkId, source: IpAddr, destination: IpAddr) -> RouteLookup {
        if let Some(sources) = &self.route_tables.sources
            && let Some(table) = sources.longest(network.into(), source)
        {
            return self.policy_route(table, network, destination);
        }
        let decided_by = self.routes_stamp(network);
        RouteLookup { entry: self.route(network, destination), decided_by, table: None, is_policy_route: false }
    }

    #[inline(never)]
    fn policy_route(&self, table: RouteTableId, network: NetworkId, destination: IpAddr) -> RouteLookup {
        let prefixes = PrefixTableId::of_route_table(self.networks.len(), table);
        let own = self.prefixes.longest(prefixes, destination).map(|route| route.entry);
        // Subnets, those of peers included, are in each table; within them the network may have longer routes.
        let own = own.filter(|own| !matches!(own.target(), Target::Connected | Target::Peer(_)));
        let decided_by = self.route_table(table).map_or(Stamp::default(), |table| self.stamp(table.object));
        let entry = own.or_else(|| self.route(network, destination));
        RouteLookup { entry, decided_by, table: Some(table), is_policy_route: own.is_some() }
    }

    /// Of the next hops that `entry` leads to, the one behind `tunnel`; `address` is what `entry` was found for.
    #[inline]
    pub(crate) fn hop_through(&self, entry: FibEntry, address: IpAddr, tunnel: Option<TunnelId>) -> Option<FibEntry> {
        let is_behind = |hop: HopId| tunnel.is_some() && self.tunnel_of(hop) == tunnel;
        match entry.target() {
            Target::Hop(hop) => is_behind(hop).then_some(entry),
            Target::Connected | Target::Blackhole => None,
            // A member that is down gets no packets, but may send some.
            Target::Ecmp(group) => {
                let hops = self.ecmp_group(group)?.members().iter().map(|member| member.hop);
                hops.filter(|hop| is_behind(*hop)).map(|hop| FibEntry::routed(Target::Hop(hop))).next()
            }
            Target::Peer(network) => self.resolve(network, address).filter(|entry| entry.hop().is_some_and(is_behind)),
        }
    }

    /// The other node that has `address` in the network called `network`, or a route to it. ECMP groups lead to no
    /// single node.
    pub fn remote(&self, network: &str, address: IpAddr) -> Option<RemoteEndpoint> {
        let at = self.networks.iter().position(|known| known.name == network)?;
        let network = NetworkId::new(at as u32);
        let entry = self.resolve(network, address).or_else(|| self.route(network, address))?;
        let Hop { mac, egress, .. } = self.hop(entry.hop()?)?;
        match egress {
            Egress::Tunnel(tunnel) => Some(RemoteEndpoint { host: self.tunnel(tunnel)?.host, mac }),
            Egress::Port(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn target_and_subnet_come_out_again(
            target in prop_oneof![
                Just(Target::Connected),
                (0u32..1 << HopId::BITS).prop_map(|number| Target::Hop(HopId::new(number))),
                (0u32..super::super::ecmp::MOST as u32).prop_map(|number| Target::Ecmp(EcmpId::new(number))),
                (0u32..1 << 22).prop_map(|number| Target::Peer(NetworkId::new(number))),
                Just(Target::Blackhole),
            ],
            subnet in prop::option::of((0u32..u32::MAX).prop_map(SubnetId::new)),
        ) {
            let entry = FibEntry::new(target, subnet);
            prop_assert_eq!((entry.target(), entry.subnet()), (target, subnet));
            let hop = if let Target::Hop(hop) = target { Some(hop) } else { None };
            prop_assert_eq!(entry.hop(), hop);
        }
    }
}
