//! Where a packet goes that no endpoint of its network has the destination of: by the route table of its source, or by
//! the network's routes, to a next hop, to a member of an ECMP group, or to a member of a peer (Zephyrus §4.2, figure
//! 5).

use crate::id::{EcmpId, NetworkId};
use crate::packet::Ip;
use crate::stamp::Stamp;
use crate::tables::{EcmpChoice, FibEntry, RouteLookup, Tables, Target};
use crate::verdict::DropReason;

/// What a destination resolves to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved {
    /// Leads to a next hop: the destination's own, or a route's.
    pub entry: FibEntry,
    /// What decided so.
    pub decided_by: Stamp,
    /// What else did: the bucket of an ECMP group, or that of a peer's loaded guest.
    pub also: Stamp,
    pub is_ecmp_member: bool,
    /// The entry is that of the destination's address.
    pub is_owned: bool,
}

/// The steps of a look-up among routes, for traces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteWalk {
    pub lookup: RouteLookup,
    pub target: Option<Target>,
    pub choice: Option<(EcmpId, EcmpChoice)>,
}

/// Resolves a destination by routes. None: no route contains it, or no endpoint has it.
///
/// # Errors
/// Why a route that contains it leads nowhere.
#[inline]
pub(super) fn resolve(tables: &Tables, network: NetworkId, hash: u32, ip: &Ip) -> Result<Option<Resolved>, DropReason> {
    let RouteLookup { entry, decided_by, is_policy_route, .. } = tables.route_from(network, ip.source, ip.destination);
    // A route that is being loaded may be within a peer's subnet, too.
    if tables.may_load(network, ip.destination, is_policy_route) {
        return Err(DropReason::Unresolved);
    }
    let Some(entry) = entry else { return Ok(None) };
    let plain = Resolved { entry, decided_by, also: Stamp::default(), is_ecmp_member: false, is_owned: false };
    match entry.target() {
        Target::Hop(_) => Ok(Some(plain)),
        Target::Connected => Ok(None),
        Target::Blackhole => Err(DropReason::Unresolved),
        Target::Ecmp(group) => {
            let choice = tables.ecmp_group(group).ok_or(DropReason::Unresolved)?.choose(hash);
            let (_, hop) = choice.member.ok_or(DropReason::NoNextHop)?;
            let entry = FibEntry::routed(Target::Hop(hop));
            Ok(Some(Resolved { entry, also: choice.stamp, is_ecmp_member: true, ..plain }))
        }
        Target::Peer(peer) => {
            let entry = tables.resolve(peer, ip.destination);
            let Some((entry, hop)) = entry.and_then(|entry| Some((entry, entry.hop()?))) else {
                return if tables.loads_network(peer) { Err(DropReason::Unresolved) } else { Ok(None) };
            };
            let also = if hop.is_loaded() { tables.guest_stamp(peer, ip.destination) } else { Stamp::default() };
            Ok(Some(Resolved { entry, also, is_owned: true, ..plain }))
        }
    }
}

/// The same look-up, step by step.
pub(crate) fn walk(tables: &Tables, network: NetworkId, hash: u32, ip: &Ip) -> RouteWalk {
    let lookup = tables.route_from(network, ip.source, ip.destination);
    let target = lookup.entry.map(FibEntry::target);
    let choice = match target {
        Some(Target::Ecmp(group)) => tables.ecmp_group(group).map(|it| (group, it.choose(hash))),
        _ => None,
    };
    RouteWalk { lookup, target, choice }
}
