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
use crate::policy::acl::Action;
use crate::policy::connections::{End, Passage};
use crate::policy::conntrack::Subject;
use crate::policy::{EndpointPolicy, Tuple};
use crate::switch::{Metadata, Next, Origin};
use crate::tables::{Endpoint, Tables, Way};
use crate::verdict::DropReason;

/// Whether a packet from one end to the other may go, and its flow after it, at `now`, nanoseconds.
///
/// # Errors
/// Why it is dropped.
pub(crate) fn ask(
    tables: &Tables,
    packet: &Packet,
    metadata: &Metadata,
    next: &Next,
    now: u64,
) -> Result<Passage, DropReason> {
    let ip = metadata.parsed.ip().ok_or(DropReason::EtherType)?;
    let (sender, receiver) = (sender(metadata).and_then(|number| here(tables, number)), here(tables, next.hop));
    if sender.is_none() && receiver.is_none() {
        return Ok(Passage::All);
    }
    let tuple = Tuple::of(ip).map_err(|_| DropReason::Malformed)?;
    let lists = [sender, receiver].into_iter().flatten().filter_map(|policy| policy.acl.as_deref());
    if lists.map(|acl| acl.decide(&tuple)).any(|decision| decision.action == Action::Deny) {
        return Err(DropReason::Acl);
    }
    let [from, to] = [sender, receiver].map(|policy| policy.and_then(|policy| policy.groups.as_ref()));
    if from.is_none() && to.is_none() {
        return Ok(Passage::All);
    }
    let (connections, tracker) =
        tables.connections().zip(tables.tracker_of(metadata.network)).ok_or(DropReason::NoConnectionShare)?;
    let (from, to) = (
        End { rules: from, ..source(tables, metadata, ip) },
        End { rules: to, ..destination(tables, metadata, next, ip) },
    );
    let subject = Subject::of(tracker, ip, inner(packet, metadata));
    connections.ask(now, &subject, &tuple, (&from, &to), |stamp| tables.is_current(stamp))
}

/// The frame's first bytes, without outer headers.
fn inner<'a>(packet: &'a Packet, metadata: &Metadata) -> &'a [u8] {
    let bytes = packet.head.bytes();
    match metadata.from {
        Origin::Endpoint { .. } => bytes,
        Origin::Tunnel { outer, .. } => bytes.get(outer.into()..).unwrap_or_default(),
    }
}

/// The endpoint by whose port a packet came in.
fn sender(metadata: &Metadata) -> Option<u32> {
    match metadata.from {
        Origin::Endpoint { number, .. } => Some(number),
        Origin::Tunnel { .. } => None,
    }
}

/// The rules of an endpoint at a port of this node, if it has any.
fn here(tables: &Tables, number: u32) -> Option<&EndpointPolicy> {
    let is_here = tables.hop(number).is_some_and(|hop| matches!(hop.way, Way::Port(_)));
    tables.endpoint(number).filter(|_| is_here)?.policy.as_deref()
}

/// The end that `endpoint` is; of its groups only where the address is its own.
fn end<'a>(tables: &'a Tables, number: u32, endpoint: Option<&'a Endpoint>, address: std::net::IpAddr) -> End<'a> {
    let owns = |endpoint: &&Endpoint| endpoint.addresses.contains(&address);
    let member_of = endpoint.filter(owns).map_or(&[][..], |endpoint| &endpoint.groups);
    End { rules: None, member_of, stamp: tables.stamp(number) }
}

fn source<'a>(tables: &'a Tables, metadata: &Metadata, ip: &Ip) -> End<'a> {
    let number = match metadata.from {
        Origin::Endpoint { number, .. } => Some(number),
        Origin::Tunnel { .. } => {
            let owner = tables.owner(metadata.network, ip.source).and_then(|it| it.hop());
            owner.filter(|hop| !Tables::is_loaded(*hop))
        }
    };
    let number = number.unwrap_or_else(|| routes(tables, metadata.network));
    end(tables, number, tables.endpoint(number), ip.source)
}

/// Where it is found by routes, who is told apart is the one by whom it is reached here, or the routes themselves.
fn destination<'a>(tables: &'a Tables, metadata: &Metadata, next: &Next, ip: &Ip) -> End<'a> {
    let routes = routes(tables, metadata.network);
    let is_here = tables.hop(next.hop).is_some_and(|hop| matches!(hop.way, Way::Port(_)));
    let number = if next.said_by == routes && !is_here { routes } else { next.hop };
    end(tables, number, tables.endpoint(number), ip.destination)
}

fn routes(tables: &Tables, network: u32) -> u32 {
    tables.network(network).map_or(0, |network| network.routes)
}
