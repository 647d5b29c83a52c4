//! Where the switch tier meets translation: what comes from outside goes on with an inside destination, and so does
//! what an inside address sends to an outside one of inside. The frame's bytes stay as they came until it leaves.

use std::net::IpAddr;

use super::Frame;
use crate::exact::ExactKey;
use crate::id::{EndpointId, HopId};
use crate::nat::{Crossing, End, Nat, NatId, Way};
use crate::packet::{Ip, Layer4, Payload};
use crate::policy::conntrack::{Key, Segment, Subject, Zone};
use crate::stamp::Stamp;
use crate::tables::{Endpoint, Tables, Target};
use crate::verdict::DropReason;

fn with_source(key: Key, end: Option<End>) -> Key {
    match end {
        None => key,
        Some(End { address, port, .. }) => Key { source: address, source_port: port.unwrap_or(key.source_port), ..key },
    }
}

fn with_destination(key: Key, End { address, port, .. }: End) -> Key {
    Key { destination: address, destination_port: port.unwrap_or(key.destination_port), ..key }
}

/// What the destination of a packet becomes that is for an outside address of `nat`, and the packet as connections of
/// inside see it. `ip` and `subject` are as it came, by `way`.
///
/// # Errors
/// Why it is dropped.
pub(crate) fn inward(nat: &Nat, ip: &Ip, subject: &Subject, way: Way) -> Result<(End, Subject), DropReason> {
    // Bindings have remote ends as they are outside.
    let seen = |key: Key| if way == Way::Hairpin { with_source(key, nat.known(&key)) } else { key };
    let (end, subject) = match *subject {
        Subject::Segment(segment) => {
            let end = nat.inward(&seen(segment.key)).ok_or(DropReason::NoTranslation)?;
            (end, Subject::Segment(Segment { key: with_destination(segment.key, end), ..segment }))
        }
        Subject::Error(quoted) => {
            let back = quoted.reversed();
            let end = nat.inward(&seen(back)).ok_or(DropReason::NoTranslation)?;
            (end, Subject::Error(with_destination(back, end).reversed()))
        }
        Subject::Untracked => {
            let why = if ip.fragment.is_some() { DropReason::NatFragment } else { DropReason::NoTranslation };
            (End { address: nat.floated(ip.destination).ok_or(why)?, port: None, is_bound: false }, Subject::Untracked)
        }
    };
    if end.port.is_some() && ip.fragment.is_some() {
        return Err(DropReason::NatFragment);
    }
    Ok((end, subject))
}

/// Lets a frame, which begins with `bytes`, go on with the destination that its own becomes.
pub(super) fn turn_inward(nat: &Nat, frame: &mut Frame, bytes: &[u8], way: Way) -> Result<(), DropReason> {
    let Payload::Ip(ip) = &mut frame.parsed.payload else { return Err(DropReason::EtherType) };
    let subject = Subject::of(Zone::default(), ip, bytes);
    let (end, _) = inward(nat, ip, &subject, way)?;
    ip.destination = end.address;
    if let (Some(port), Subject::Segment(_)) = (end.port, subject)
        && let Layer4::Tcp { destination, .. } | Layer4::Udp { destination, .. } = &mut ip.layer4
    {
        *destination = port;
    }
    Ok(())
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// A frame that came in by the exit `endpoint` with the number `id`: what it needs, and what decides so. None: it is
/// the exit's own, not from outside.
///
/// # Errors
/// Why it is dropped.
#[inline(never)]
pub(super) fn enter(
    tables: &Tables,
    (id, endpoint): (EndpointId, &Endpoint),
    of: NatId,
    frame: &mut Frame,
    bytes: &[u8],
) -> Result<Option<(Crossing, Stamp)>, DropReason> {
    let ip = *frame.parsed.ip().ok_or(DropReason::EtherType)?;
    if endpoint.addresses.contains(&ip.source) || is_link_local(ip.source) {
        return Ok(None);
    }
    let nat = tables.nat(of).ok_or(DropReason::NoTranslation)?;
    let gateway = ExactKey::address(endpoint.network.number(), ip.destination);
    if ip.destination.is_multicast() || tables.addresses().get(&gateway).is_some_and(|entry| entry.hop().is_none()) {
        return Err(DropReason::NoTranslation);
    }
    turn_inward(nat, frame, bytes, Way::Inward)?;
    // What has addresses of inside is not from outside: the way back leads to the exit.
    let inside = frame.parsed.ip().ok_or(DropReason::EtherType)?.destination;
    let back = tables.route_from(endpoint.network, inside, ip.source);
    let exit = HopId::from(id);
    let is_outside = !nat.owns(ip.source)
        && back.entry.is_some_and(|entry| match entry.target() {
            Target::Hop(hop) => hop == exit,
            Target::Ecmp(_) => true,
            Target::Connected | Target::Peer(_) | Target::Blackhole => false,
        });
    if !is_outside {
        return Err(DropReason::SpoofedAddress);
    }
    Ok(Some((Crossing { nat: of, way: Way::Inward }, back.decided_by)))
}

/// The translation of a frame that a route leads to `hop`, if that is an exit; `frame` is as it came.
///
/// # Errors
/// Why it is dropped.
#[inline(never)]
pub(super) fn leave(tables: &Tables, hop: HopId, frame: &Frame) -> Result<Option<Crossing>, DropReason> {
    let Some(of) = tables.endpoint_at(hop).and_then(|(_, endpoint)| endpoint.nat) else { return Ok(None) };
    let nat = tables.nat(of).ok_or(DropReason::NoTranslation)?;
    let ip = frame.parsed.ip().ok_or(DropReason::EtherType)?;
    if !nat.serves(ip.source) {
        return Err(DropReason::NoTranslation);
    }
    let way = if nat.owns(ip.destination) { Way::Hairpin } else { Way::Outward };
    Ok(Some(Crossing { nat: of, way }))
}
