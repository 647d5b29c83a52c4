//! What the owners of a packet's two ends allow: asked about a flow's first packet, before it may go (Zephyrus §4.1: whatever the
//! flow tier does not know, software does).
//!
//! ```text
//!   the sender's ACL ─► the receiver's ACL ─► connections ─ known ─► passes
//!                                                │ new
//!                                                └─► the sender's groups: egress ─► the receiver's: ingress ─► a new connection
//! ```
//!
//! An end has rules only on the node where it is at a port. Who is elsewhere is asked there; here it counts by the groups that it
//! is in.

use crate::packet::{Ip, Packet};
use crate::policy::acl::{Action, Decision};
use crate::policy::connections::{End, Note, Passage, Question};
use crate::policy::conntrack::Subject;
use crate::policy::{EndpointPolicy, Tuple};
use crate::stamp::Stamp;
use crate::switch::{Frame, Metadata};
use crate::tables::{Endpoint, Tables};
use crate::verdict::DropReason;

/// What was found on the way to an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// What the list of an endpoint says.
    Acl { endpoint: u32, decision: Decision },
    /// What the connections and the groups say.
    Connection(Note),
}

/// Whether a packet from one end to the other may go, and its flow after it, at `now`, nanoseconds. With `REHEARSES` nothing
/// is changed by asking. `found` is told what decides.
///
/// # Errors
/// Why it is dropped.
pub(crate) fn ask<const REHEARSES: bool>(
    tables: &Tables,
    packet: &Packet,
    (frame, metadata): (&Frame, &Metadata),
    now: u64,
    mut found: impl FnMut(Found),
) -> Result<Passage, DropReason> {
    let ip = frame.parsed.ip().ok_or(DropReason::EtherType)?;
    let sender = metadata.endpoint().and_then(|number| rules(tables, number));
    let receiver = rules(tables, metadata.hop).filter(|_| metadata.is_here());
    if sender.is_none() && receiver.is_none() {
        return Ok(Passage::Free);
    }
    let tuple = Tuple::of(ip).map_err(|_| DropReason::Malformed)?;
    let ends = [(metadata.endpoint(), sender), (Some(metadata.hop), receiver)];
    for (number, policy) in ends {
        let Some((endpoint, acl)) = number.zip(policy.and_then(|policy| policy.acl.as_deref())) else { continue };
        let decision = acl.decide(&tuple);
        found(Found::Acl { endpoint, decision });
        if decision.action == Action::Deny {
            return Err(DropReason::Acl);
        }
    }
    let [from, to] = [sender, receiver].map(|policy| policy.and_then(|policy| policy.groups.as_ref()));
    if from.is_none() && to.is_none() {
        return Ok(Passage::All);
    }
    let (connections, tracker) =
        tables.connections().zip(tracker(tables, metadata)).ok_or(DropReason::NoConnectionShare)?;
    let (from, to) =
        (End { rules: from, ..source(tables, metadata, ip) }, End { rules: to, ..destination(tables, metadata, ip) });
    let inner = packet.head.bytes().get(frame.outer.into()..).unwrap_or_default();
    let question = Question { now, subject: Subject::of(tracker, ip, inner), tuple, from, to };
    let (current, note) = (|stamp| tables.is_current(stamp), |note| found(Found::Connection(note)));
    if REHEARSES { connections.rehearse(&question, current, note) } else { connections.ask(&question, current, note) }
}

/// The number by which connections know the network of both ends. Of two that are peers it is the same for both directions: the one's
/// with the lower VNI; where one has connections, both do. Their addresses do not overlap, so what they have together is no other
/// connection of either.
fn tracker(tables: &Tables, metadata: &Metadata) -> Option<u32> {
    let of_hop = |number: u32| tables.hop(number).map(|hop| hop.network);
    let from = metadata.back().and_then(of_hop).unwrap_or(metadata.network);
    let to = of_hop(metadata.hop).unwrap_or(metadata.network);
    if from == to {
        return tables.tracker_of(to);
    }
    let vni = |network: u32| tables.network(network).map_or(0, |network| network.vni);
    tables.tracker_of(if vni(from) <= vni(to) { from } else { to })
}

/// The rules of an endpoint, if it has any: only those at a port of this node do.
fn rules(tables: &Tables, number: u32) -> Option<&EndpointPolicy> {
    tables.endpoint(number)?.policy.as_deref()
}

/// The end that `endpoint` is; of its groups only where the address is its own.
fn end<'a>(tables: &'a Tables, number: u32, endpoint: Option<&'a Endpoint>, address: std::net::IpAddr) -> End<'a> {
    let owns = |endpoint: &&Endpoint| endpoint.addresses.contains(&address);
    let member_of = endpoint.filter(owns).map_or(&[][..], |endpoint| &endpoint.groups);
    End { rules: None, member_of, stamp: tables.stamp(number) }
}

/// Loaded guests are in no group; they are told apart by their stamps.
fn source<'a>(tables: &'a Tables, metadata: &Metadata, ip: &Ip) -> End<'a> {
    let owner = metadata.back().filter(|_| metadata.is_owned());
    match (metadata.endpoint(), owner) {
        (None, Some(hop)) if Tables::is_loaded(hop) => loaded(tables, hop, ip.source),
        (endpoint, owner) => {
            let number = endpoint.or(owner).unwrap_or_else(|| routes(tables, metadata.network));
            end(tables, number, tables.endpoint(number), ip.source)
        }
    }
}

/// Where it is found by routes, who is told apart is the one by whom it is reached here, or the routes themselves.
fn destination<'a>(tables: &'a Tables, metadata: &Metadata, ip: &Ip) -> End<'a> {
    if Tables::is_loaded(metadata.hop) && !metadata.is_routed() {
        return loaded(tables, metadata.hop, ip.destination);
    }
    let by_routes = metadata.is_routed() && !metadata.is_here() || Tables::is_loaded(metadata.hop);
    let number = if by_routes { routes(tables, metadata.network) } else { metadata.hop };
    end(tables, number, tables.endpoint(number), ip.destination)
}

/// The end that a loaded guest is, in the network of its next hop.
fn loaded(tables: &Tables, hop: u32, address: std::net::IpAddr) -> End<'_> {
    let stamp = tables.hop(hop).map_or_else(Stamp::default, |hop| tables.guest_stamp(hop.network, address));
    End { rules: None, member_of: &[], stamp }
}

fn routes(tables: &Tables, network: u32) -> u32 {
    tables.network(network).map_or(0, |network| network.routes)
}
