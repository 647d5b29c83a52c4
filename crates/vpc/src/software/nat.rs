//! What becomes of the addresses and ports of a packet that crosses an exit with NAT. Asked for a flow's first packets;
//! the flow has it from then on.

use crate::nat::{Binding, Crossing, End, Layout, Nat, Rewrite, Untranslated, Way};
use crate::packet::parse::protocol;
use crate::packet::{Checksum, Ip, Packet, parse};
use crate::policy::connections::Connections;
use crate::policy::conntrack::{Content, Key, Segment, Subject, Zone};
use crate::switch::{Frame, Metadata, inward};
use crate::tables::Tables;
use crate::verdict::DropReason;

use super::policy::zone;

/// What is done to a packet before it leaves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Translation {
    rewrite: Rewrite,
    /// Of an ICMP error: what is done to the packet that it is about.
    quoted: Option<Rewrite>,
    layout: Layout,
}

impl Translation {
    /// What a flow does to its packets, the first of which it is of.
    pub fn rewrite(&self) -> &Rewrite {
        &self.rewrite
    }

    /// Changes a frame that begins with `bytes`; None where it is not to be sent.
    pub fn apply(&self, bytes: &mut [u8], sum: Checksum) -> Option<()> {
        if let Some(quoted) = &self.quoted {
            quoted.apply_quoted(bytes, &self.layout)?;
        }
        self.rewrite.apply(bytes, &self.layout, sum)
    }
}

/// What decides about translations.
struct Rules<'a> {
    nat: &'a Nat,
    connections: &'a Connections,
    zone: Zone,
    now: u64,
}

impl<'a> Rules<'a> {
    fn of(tables: &'a Tables, metadata: &Metadata, crossing: Crossing, now: u64) -> Result<Rules<'a>, DropReason> {
        let nat = tables.nat(crossing.nat).ok_or(DropReason::NoTranslation)?;
        let found = tables.connections().zip(zone(tables, metadata));
        let (connections, zone) = found.ok_or(DropReason::NoConnectionShare)?;
        Ok(Rules { nat, connections, zone, now })
    }

    /// Whether there is the connection of which packets have `key` as inside sends them.
    fn lives(&self, key: &Key) -> bool {
        match self.nat.owns(key.destination) {
            false => self.connections.has(key, self.now),
            // Connections between inside addresses are known by these.
            true => self.nat.inward_by_rule(key).is_some_and(|End { address, port, .. }| {
                let destination_port = port.unwrap_or(key.destination_port);
                self.connections.has(&Key { destination: address, destination_port, ..*key }, self.now)
            }),
        }
    }

    /// What the source of a packet becomes, and of an ICMP error the destination of what it is about.
    fn outward(&self, ip: &Ip, subject: &Subject, binding: Binding) -> Result<End, DropReason> {
        let end = match subject {
            Subject::Segment(Segment { key, content }) => {
                let opens = match content {
                    Content::Tcp(_) | Content::Udp => true,
                    Content::Echo { is_request } => *is_request,
                    Content::Other => false,
                };
                let end = self.nat.outward(key, opens, binding, |key| self.lives(key));
                end.map_err(|why| match why {
                    Untranslated::NoRule => DropReason::NoTranslation,
                    Untranslated::Exhausted => DropReason::NatPorts,
                })
            }
            Subject::Error(quoted) => self.nat.known(&quoted.reversed()).ok_or(DropReason::NoTranslation),
            Subject::Untracked => {
                let why = if ip.fragment.is_some() { DropReason::NatFragment } else { DropReason::NoTranslation };
                let floating = self.nat.floating(ip.source);
                floating.map(|address| End { address, port: None, is_bound: false }).ok_or(why)
            }
        }?;
        if end.port.is_some() && ip.fragment.is_some() { Err(DropReason::NatFragment) } else { Ok(end) }
    }
}

/// The headers of a packet as it came, and its first bytes without outer headers.
fn as_it_came<'a>(packet: &'a Packet, frame: &Frame) -> Result<(Ip, &'a [u8]), DropReason> {
    let bytes = packet.head.bytes().get(frame.outer.into()..).ok_or(DropReason::Headers)?;
    let parsed = parse(bytes, packet.len() - usize::from(frame.outer))?;
    Ok((*parsed.ip().ok_or(DropReason::EtherType)?, bytes))
}

/// What a packet that is translated is to connections: both ends as they are inside.
///
/// # Errors
/// Why it is dropped.
pub(super) fn subject(
    tables: &Tables,
    packet: &Packet,
    (frame, metadata): (&Frame, &Metadata),
    crossing: Crossing,
    now: u64,
) -> Result<Subject, DropReason> {
    let rules = Rules::of(tables, metadata, crossing, now)?;
    let (ip, bytes) = as_it_came(packet, frame)?;
    let came = Subject::of(rules.zone, &ip, bytes);
    if crossing.way == Way::Outward {
        return Ok(came);
    }
    let (end, subject) = inward(rules.nat, &ip, &came, crossing.way)?;
    let key = match &subject {
        Subject::Segment(segment) => Some(&segment.key),
        Subject::Error(quoted) => Some(quoted),
        Subject::Untracked => None,
    };
    // A binding may be there for longer than its connection: nothing comes in by it then.
    if end.is_bound && !key.is_some_and(|key| rules.connections.has(key, now)) {
        return Err(DropReason::NoConnection);
    }
    Ok(subject)
}

/// Ports, or the identifier of an echo, with those that become others.
fn ports(protocol: u8, ports: (u16, u16), source: Option<u16>, destination: Option<u16>) -> Option<[u16; 2]> {
    match protocol {
        protocol::TCP | protocol::UDP => Some([source.unwrap_or(ports.0), destination.unwrap_or(ports.1)]),
        _ => source.or(destination).map(|identifier| [identifier; 2]),
    }
}

/// What is done to a packet that may go.
///
/// # Errors
/// Why it is dropped.
pub(crate) fn translate(
    tables: &Tables,
    packet: &Packet,
    (frame, metadata): (&Frame, &Metadata),
    crossing: Crossing,
    now: u64,
    binding: Binding,
) -> Result<Translation, DropReason> {
    let rules = Rules::of(tables, metadata, crossing, now)?;
    let (ip, bytes) = as_it_came(packet, frame)?;
    let came = Subject::of(rules.zone, &ip, bytes);
    let source = match crossing.way {
        Way::Inward => None,
        Way::Outward | Way::Hairpin => Some(rules.outward(&ip, &came, binding)?),
    };
    let destination = match crossing.way {
        Way::Outward => None,
        Way::Inward | Way::Hairpin => Some(inward(rules.nat, &ip, &came, crossing.way)?.0),
    };
    let address = |end: Option<End>, same| end.map_or(same, |end| end.address);
    let port = |end: Option<End>| end.and_then(|end| end.port);
    let rewrite = Rewrite {
        source: address(source, ip.source),
        destination: address(destination, ip.destination),
        ports: match &came {
            Subject::Segment(Segment { key, .. }) if ip.fragment.is_none() => {
                ports(key.protocol, (key.source_port, key.destination_port), port(source), port(destination))
            }
            _ => None,
        },
    };
    let quoted = match &came {
        // It went the other way: its source is the error's destination.
        Subject::Error(quoted) => Some(Rewrite {
            source: address(destination, quoted.source),
            destination: address(source, quoted.destination),
            ports: ports(
                quoted.protocol,
                (quoted.source_port, quoted.destination_port),
                port(destination),
                port(source),
            ),
        }),
        Subject::Segment(_) | Subject::Untracked => None,
    };
    Ok(Translation { rewrite, quoted, layout: Layout::of(&ip) })
}
