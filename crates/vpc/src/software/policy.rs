//! What the policies of a packet's two ends allow: checked for a flow's first packet, before it may go (Zephyrus §4.1:
//! software does what the flow tier does not know).
//!
//! ```text
//!   the sender's ACL ─► the receiver's ACL ─► connections ─ known ─► passes
//!                                             │ new
//!                                             └─► the sender's groups: egress ─► the receiver's: ingress ─► connection
//! ```
//!
//! An end has rules only on the node where it is at a port. Those of an end elsewhere are checked there; here only the
//! groups that it is in count.

use std::net::IpAddr;

use super::nat;
use crate::id::{EndpointId, HopId, NetworkId};
use crate::packet::{Ip, Packet};
use crate::policy::acl::{Action, Decision};
use crate::policy::connections::{End, Note, Passage, Question};
use crate::policy::conntrack::{Subject, Zone};
use crate::policy::{EndpointPolicy, Tuple};
use crate::stamp::Stamp;
use crate::switch::{Frame, Ingress, Metadata};
use crate::tables::{Endpoint, Tables};
use crate::verdict::DropReason;

/// A step on the way to a decision.
#[derive(Clone, Copy, Debug)]
pub(crate) enum PolicyStep {
    /// An endpoint's list was asked.
    Acl { endpoint: EndpointId, decision: Decision },
    /// The connections or the groups were.
    Connection(Note),
}

/// Whether a packet from one end to the other may go, and its flow after it, at `now`, nanoseconds. With `REHEARSES`
/// nothing changes. `found` gets each step.
///
/// # Errors
/// Why it is dropped.
pub(crate) fn ask<const REHEARSES: bool>(
    tables: &Tables,
    packet: &Packet,
    (frame, metadata): (&Frame, &Metadata),
    now: u64,
    mut found: impl FnMut(PolicyStep),
) -> Result<Passage, DropReason> {
    let ip = frame.parsed.ip().ok_or(DropReason::EtherType)?;
    let hop = metadata.hop.filter(|_| metadata.is_local);
    let receiver = hop.and_then(|hop| tables.endpoint_at(hop)).map(|(endpoint, _)| endpoint);
    let ends = [metadata.endpoint(), receiver].map(|end| end.and_then(|end| Some((end, rules(tables, end)?))));
    if ends.iter().all(Option::is_none) && metadata.crossing.is_none() {
        return Ok(Passage::Free);
    }
    let tuple = Tuple::of(ip).map_err(|_| DropReason::Malformed)?;
    for (endpoint, policy) in ends.into_iter().flatten() {
        let Some(acl) = &policy.acl else { continue };
        let decision = acl.decide(&tuple);
        found(PolicyStep::Acl { endpoint, decision });
        if decision.action == Action::Deny {
            return Err(DropReason::Acl);
        }
    }
    let [from, to] = ends.map(|end| end.and_then(|(_, policy)| policy.groups.as_ref()));
    if from.is_none() && to.is_none() && metadata.crossing.is_none() {
        return Ok(Passage::All);
    }
    let (connections, zone) = tables.connections().zip(zone(tables, metadata)).ok_or(DropReason::NoConnectionShare)?;
    let (from, to) =
        (End { rules: from, ..source(tables, metadata, ip) }, End { rules: to, ..destination(tables, metadata, ip) });
    let inner = packet.head.bytes().get(frame.outer.into()..).unwrap_or_default();
    let subject = match metadata.crossing {
        None => Subject::of(zone, ip, inner),
        Some(crossing) => nat::subject(tables, packet, (frame, metadata), crossing, now)?,
    };
    let question = Question { now, subject, tuple, from, to };
    let (current, note) = (|stamp| tables.is_current(stamp), |note| found(PolicyStep::Connection(note)));
    if REHEARSES { connections.rehearse(&question, current, note) } else { connections.ask(&question, current, note) }
}

/// The zone of connections between both ends. Peers have one zone for both directions: that of the network with the
/// lower VNI. Where one of them has connections, both have a zone. Their addresses do not overlap, so a connection
/// between them is no other connection of either.
pub(super) fn zone(tables: &Tables, metadata: &Metadata) -> Option<Zone> {
    let of_hop = |hop: HopId| tables.hop(hop).map(|hop| hop.network);
    let from = metadata.return_hop.and_then(of_hop).unwrap_or(metadata.network);
    let to = metadata.hop.and_then(of_hop).unwrap_or(metadata.network);
    if from == to {
        return tables.zone_of(to);
    }
    let vni = |network: NetworkId| tables.network(network).map(|network| network.vni);
    tables.zone_of(if vni(from) <= vni(to) { from } else { to })
}

/// The rules of an endpoint, if it has any: only those at a port of this node do.
fn rules(tables: &Tables, endpoint: EndpointId) -> Option<&EndpointPolicy> {
    tables.endpoint(endpoint)?.policy.as_deref()
}

/// The end at a next hop: an endpoint, the groups of which count for its own addresses, or a host.
fn at_hop(tables: &Tables, hop: HopId, address: IpAddr) -> End<'_> {
    let owns = |endpoint: &&Endpoint| endpoint.addresses.contains(&address);
    let endpoint = tables.endpoint_at(hop).map(|(_, endpoint)| endpoint);
    let member_of = endpoint.filter(owns).map_or(&[][..], |endpoint| &endpoint.groups);
    End { rules: None, member_of, stamp: tables.hop_stamp(hop) }
}

/// An end that is known by its network's routes only.
fn by_routes(tables: &Tables, network: NetworkId) -> End<'_> {
    End { rules: None, member_of: &[], stamp: tables.routes_stamp(network) }
}

/// A loaded guest, in the network of its next hop. It is in no group.
fn loaded(tables: &Tables, hop: HopId, address: IpAddr) -> End<'_> {
    let stamp = tables.hop(hop).map_or_else(Stamp::default, |hop| tables.guest_stamp(hop.network, address));
    End { rules: None, member_of: &[], stamp }
}

fn source<'a>(tables: &'a Tables, metadata: &Metadata, ip: &Ip) -> End<'a> {
    let hop = match metadata.ingress {
        Ingress::Endpoint(endpoint) => Some(endpoint.into()),
        Ingress::Tunnel(_) => metadata.return_hop.filter(|_| metadata.is_source_owned),
    };
    match hop {
        Some(hop) if hop.is_loaded() => loaded(tables, hop, ip.source),
        Some(hop) => at_hop(tables, hop, ip.source),
        None => by_routes(tables, metadata.network),
    }
}

fn destination<'a>(tables: &'a Tables, metadata: &Metadata, ip: &Ip) -> End<'a> {
    match metadata.hop {
        Some(hop) if hop.is_loaded() && !metadata.is_by_route => loaded(tables, hop, ip.destination),
        // By a route to an endpoint of this node, that is the end.
        Some(hop) if !hop.is_loaded() && (!metadata.is_by_route || metadata.is_local) => {
            at_hop(tables, hop, ip.destination)
        }
        Some(_) | None => by_routes(tables, metadata.network),
    }
}
