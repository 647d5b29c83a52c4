//! Software tier: whole frames, everything that the other tiers do not do.
//!
//! A guest's question is answered by a service. The sender of a packet that cannot go on is told by an ICMP error: by
//! the port it came from, or back through the tunnel. A packet that is too long goes on in fragments where its sender
//! allows it.

mod announce;
mod dispatch;
pub(crate) mod limit;
pub(crate) mod nat;
mod pieces;
pub(crate) mod policy;
pub(crate) mod schedule;

use std::net::IpAddr;

pub(crate) use announce::announce;

use crate::id::{PortId, Vni};
use crate::packet::{Mac, Packet, Parsed, parse};
use crate::service::{ServiceContext, ra};
use crate::switch::{Ask, Frame, Metadata, Stop, after, before, complete_udp6, encapsulate};
use crate::tables::{Attachment, Endpoint, Tables, Tunnel};
use crate::verdict::{DropReason, Reply, Verdict};

/// Deals with a whole frame, the head of which is in `packet`. `id` identifies the outer IPv4 packet of a reply.
pub(crate) fn serve(tables: &Tables, packet: &Packet, frame: &[u8], id: u16, out: &mut Vec<Reply>) -> Verdict {
    match stopped(tables, packet) {
        Stopped::Port(Stop::Drop(reason)) => Verdict::Drop(reason),
        Stopped::Port(Stop::Ask(Ask::Announce)) => {
            announce(tables, packet.port, id, out);
            Verdict::Consumed
        }
        Stopped::Port(Stop::Ask(ask)) => by_port(tables, packet, frame, ask, out),
        Stopped::TooLong(parsed, metadata, mtu) => {
            pieces::send(tables, packet, (&parsed, &metadata), frame, mtu, id, out)
        }
        Stopped::Tunnel(parsed, metadata, ask) => through_tunnel(tables, (&parsed, &metadata), frame, ask, id, out),
    }
}

/// Why a frame is here, and what is needed to tell its sender.
enum Stopped {
    Port(Stop),
    Tunnel(Frame, Metadata, Ask),
    /// It may be cut up into packets of so many bytes.
    TooLong(Frame, Metadata, u16),
}

fn stopped(tables: &Tables, packet: &Packet) -> Stopped {
    let found = before::classify(tables, packet).and_then(|(mut frame, mut metadata, destination)| {
        before::find(tables, &mut frame, packet, &mut metadata, &destination)?;
        Ok((frame, metadata))
    });
    match found {
        Err(stop) => Stopped::Port(stop),
        Ok((frame, metadata)) => match (after::check(tables, packet, &frame, &metadata), metadata.tunnel()) {
            // The tables were replaced in between: now there is a way, which the sender's next frame takes.
            (Ok(_), _) => Stopped::Port(DropReason::Unresolved.into()),
            (Err(Stop::Ask(Ask::Fragment(mtu))), _) => Stopped::TooLong(frame, metadata, mtu),
            (Err(Stop::Ask(ask)), Some(_)) => Stopped::Tunnel(frame, metadata, ask),
            (Err(stop), _) => Stopped::Port(stop),
        },
    }
}

/// Answers the guest at the port that the frame came from.
fn by_port(tables: &Tables, packet: &Packet, frame: &[u8], ask: Ask, out: &mut Vec<Reply>) -> Verdict {
    let endpoint = match tables.attachment(packet.port) {
        Attachment::Endpoint(id) => tables.endpoint(id),
        Attachment::Nothing | Attachment::Underlay => None,
    };
    let Some(endpoint) = endpoint else { return Verdict::Drop(DropReason::PortDown) };
    match parse(frame, frame.len()) {
        Ok(parsed) => {
            let answer = ask_service(tables, endpoint, ask, &parsed, frame);
            answer.deliver(|frame| Some(Reply { port: packet.port, frame }), out)
        }
        Err(reason) => Verdict::Drop(reason),
    }
}

/// Tells the sender behind a tunnel.
fn through_tunnel(
    tables: &Tables,
    (parsed, metadata): (&Frame, &Metadata),
    frame: &[u8],
    ask: Ask,
    id: u16,
    out: &mut Vec<Reply>,
) -> Verdict {
    let Some(tunnel) = metadata.tunnel() else { return Verdict::Drop(DropReason::Unresolved) };
    let sender = metadata.return_hop.and_then(|back| tables.endpoint_at(back)).map(|(_, sender)| sender);
    let Some((sender, inner)) = sender.zip(frame.get(parsed.outer.into()..)) else {
        return Verdict::Drop(dispatch::reason(ask).unwrap_or(DropReason::Unresolved));
    };
    let answer = ask_service(tables, sender, ask, &parsed.parsed, inner);
    let reply = |inner: Vec<u8>| {
        // A peer's VNI, where the packet came to this network from a peer.
        let vni = tables.network(sender.network)?.vni;
        in_tunnel(tables.tunnel(tunnel)?, vni, metadata.hash, &inner, id)
    };
    answer.deliver(reply, out)
}

/// A whole frame as it goes through a tunnel; None where the way there is not known yet.
fn in_tunnel(tunnel: &Tunnel, vni: Vni, hash: u32, inner: &[u8], id: u16) -> Option<Reply> {
    if !tunnel.resolved {
        return None;
    }
    let mut frame = vec![0; tunnel.headers().len()];
    encapsulate(&mut frame, tunnel, vni, hash, inner.len(), 0, id);
    frame.extend_from_slice(inner);
    if tunnel.host.is_ipv6() {
        complete_udp6(&mut frame);
    }
    Some(Reply { port: tunnel.port, frame })
}

/// What a service said, and why the frame it was asked about is dropped, if it is.
struct Served {
    answer: crate::service::Answer,
    reason: Option<DropReason>,
}

impl Served {
    fn deliver(self, reply: impl FnOnce(Vec<u8>) -> Option<Reply>, out: &mut Vec<Reply>) -> Verdict {
        let refused = match self.answer {
            Ok(frame) => {
                out.extend(frame.and_then(reply));
                None
            }
            Err(reason) => Some(reason),
        };
        self.reason.or(refused).map_or(Verdict::Consumed, Verdict::Drop)
    }
}

fn ask_service(tables: &Tables, endpoint: &Endpoint, ask: Ask, parsed: &Parsed, frame: &[u8]) -> Served {
    let answer = with_context(tables, endpoint, |context| dispatch::answer(ask, context, parsed, frame));
    Served { answer: answer.unwrap_or(Err(DropReason::UnknownNetwork)), reason: dispatch::reason(ask) }
}

/// The advertisement of the router to the endpoint at a port, if there is one.
pub(crate) fn advertisement(tables: &Tables, port: PortId) -> Option<Reply> {
    let Attachment::Endpoint(id) = tables.attachment(port) else { return None };
    let frame = with_context(tables, tables.endpoint(id)?, ra::unsolicited)??;
    Some(Reply { port, frame })
}

/// Calls a service for an endpoint; None where its network is not there.
fn with_context<T>(tables: &Tables, endpoint: &Endpoint, service: impl FnOnce(&ServiceContext<'_>) -> T) -> Option<T> {
    let network = tables.network(endpoint.network)?;
    let neighbor = |address: IpAddr| -> Option<Mac> {
        match tables.resolve(endpoint.network, address)?.hop() {
            Some(hop) => tables.hop(hop).map(|hop| hop.mac),
            None => Some(network.gateway_mac),
        }
    };
    Some(service(&ServiceContext {
        gateway_mac: network.gateway_mac,
        subnets: &endpoint.subnets,
        mtu: endpoint.mtu,
        dns: &network.dns,
        lease: tables.services().lease,
        mac: endpoint.mac,
        addresses: &endpoint.addresses,
        neighbor: &neighbor,
    }))
}
