//! Where a packet goes whose destination nobody in its network has: by the route table of its source, or by the network's routes, to a next
//! hop, to a member of an ECMP group, or to a member of a peer (Zephyrus §4.2, figure 5).

use crate::packet::Ip;
use crate::stamp::Stamp;
use crate::tables::{Choice, Leads, Owner, Routing, Tables};
use crate::verdict::DropReason;

/// What a route leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    /// Its next hop; the destination's own owner in the case of a peer.
    pub owner: Owner,
    /// What said so.
    pub said_by: Stamp,
    /// What else decided: the bucket of a group, or that of a peer's loaded guest.
    pub also: Stamp,
    pub is_member: bool,
    /// The owner has the destination's address.
    pub is_owned: bool,
}

/// The steps of a look-up, for whoever follows the packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Walk {
    pub routing: Routing,
    pub leads: Option<Leads>,
    /// The slot of an ECMP group, and what it chose.
    pub choice: Option<(u32, Choice)>,
}

/// Finds it. None: no route has the destination, or nobody has it.
///
/// # Errors
/// Why a route that there is leads nowhere.
#[inline]
pub(super) fn reach(tables: &Tables, network: u32, hash: u32, ip: &Ip) -> Result<Option<Reached>, DropReason> {
    let Routing { owner, said_by, is_by_table, .. } = tables.routing(network, ip.source, ip.destination);
    // A route that is loaded may be inside a peer's subnet, too.
    if tables.may_be_loaded(network, ip.destination, is_by_table) {
        return Err(DropReason::Unresolved);
    }
    let Some(owner) = owner else { return Ok(None) };
    let said_by = tables.stamp(said_by);
    let plain = Reached { owner, said_by, also: Stamp::default(), is_member: false, is_owned: false };
    match owner.leads() {
        Leads::Hop(_) => Ok(Some(plain)),
        Leads::Nobody => Ok(None),
        Leads::Nowhere => Err(DropReason::Unresolved),
        Leads::Ecmp(slot) => {
            let choice = tables.group(slot).ok_or(DropReason::Unresolved)?.choose(hash);
            let (_, hop) = choice.member.ok_or(DropReason::NoNextHop)?;
            Ok(Some(Reached { owner: Owner::behind(hop), also: choice.stamp, is_member: true, ..plain }))
        }
        Leads::Peer(peer) => {
            let Some((owner, hop)) = tables.owner(peer, ip.destination).and_then(|owner| Some((owner, owner.hop()?)))
            else {
                return if tables.is_awaited(peer) { Err(DropReason::Unresolved) } else { Ok(None) };
            };
            let is_loaded = Tables::is_loaded(hop);
            let also = if is_loaded { tables.guest_stamp(peer, ip.destination) } else { Stamp::default() };
            Ok(Some(Reached { owner, also, is_owned: true, ..plain }))
        }
    }
}

/// The same, step by step.
pub(crate) fn walk(tables: &Tables, network: u32, hash: u32, ip: &Ip) -> Walk {
    let routing = tables.routing(network, ip.source, ip.destination);
    let leads = routing.owner.map(Owner::leads);
    let choice = match leads {
        Some(Leads::Ecmp(slot)) => tables.group(slot).map(|group| (slot, group.choose(hash))),
        _ => None,
    };
    Walk { routing, leads, choice }
}
