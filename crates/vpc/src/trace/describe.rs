//! A frame in a few words.

use std::fmt::{self, Display};
use std::net::IpAddr;

use super::Subject;
use crate::packet::parse::UDP;
use crate::packet::{Arp, Ip, Layer4, Parsed, Payload};

/// TCP's flags from bit 0 up, as tcpdump writes them.
const FLAGS: [char; 8] = ['F', 'S', 'R', 'P', '.', 'U', 'E', 'W'];

/// What a frame is: addresses, ports, protocol.
#[derive(Clone, Copy, Debug)]
pub struct Description(pub Subject);

impl Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Subject { packet, outer, vni, .. } = &self.0;
        if let (Some(outer), Some(vni)) = (outer, vni) {
            if let Some(ip) = outer.ip() {
                write!(f, "{} > {} ", ip.source, ip.destination)?;
            }
            write!(f, "VXLAN {vni}: ")?;
        }
        match packet {
            Some(packet) => payload(f, packet),
            None => f.write_str("headers that cannot be read"),
        }
    }
}

fn payload(f: &mut fmt::Formatter<'_>, packet: &Parsed) -> fmt::Result {
    if let Some(vlan) = packet.vlan {
        write!(f, "VLAN {vlan}, ")?;
    }
    match &packet.payload {
        Payload::Arp(message) => arp(f, message),
        Payload::Ip(packet) => ip(f, packet),
        Payload::Other { ether_type } => {
            write!(f, "{} > {} EtherType {ether_type:#06x}", packet.source, packet.destination)
        }
    }
}

fn arp(f: &mut fmt::Formatter<'_>, message: &Arp) -> fmt::Result {
    match message.operation {
        1 => write!(f, "ARP who has {}? tell {}", message.target, message.sender),
        2 => write!(f, "ARP {} is at {}", message.sender, message.sender_mac),
        operation => write!(f, "ARP operation {operation}, {} to {}", message.sender, message.target),
    }
}

fn ip(f: &mut fmt::Formatter<'_>, ip: &Ip) -> fmt::Result {
    write!(f, "{}: ", Ends(ip.source, ip.destination, ip.ports()))?;
    match ip.layer4 {
        Layer4::Tcp { flags, header, .. } => {
            f.write_str("TCP [")?;
            let mut set = FLAGS.iter().enumerate().filter(|(bit, _)| flags >> bit & 1 != 0);
            set.try_for_each(|(_, letter)| write!(f, "{letter}"))?;
            write!(f, "], data {}", transport(ip).saturating_sub(header.into()))?;
        }
        Layer4::Udp { .. } => write!(f, "UDP, data {}", transport(ip).saturating_sub(UDP))?,
        Layer4::Icmp { kind, code } => icmp(f, ip.is_ipv6(), kind, code)?,
        Layer4::Other => write!(f, "protocol {}, data {}", ip.protocol, transport(ip))?,
    }
    if let Some(fragment) = ip.fragment {
        write!(f, ", fragment {:#x} at {}", fragment.id, fragment.offset)?;
        if fragment.more {
            f.write_str("+")?;
        }
    }
    Ok(())
}

/// Source, destination and ports.
pub(super) struct Ends(pub IpAddr, pub IpAddr, pub Option<(u16, u16)>);

impl Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ends(source, destination, ports) = self;
        match ports {
            // As tcpdump: the port behind a dot.
            Some((from, to)) => write!(f, "{source}.{from} > {destination}.{to}"),
            None => write!(f, "{source} > {destination}"),
        }
    }
}

/// Bytes from the transport header on.
fn transport(ip: &Ip) -> usize {
    ip.end as usize - usize::from(ip.transport)
}

/// The messages that a network has to do with (RFC 792, RFC 4443, RFC 4861).
fn icmp(f: &mut fmt::Formatter<'_>, ipv6: bool, kind: u8, code: u8) -> fmt::Result {
    let name = match (ipv6, kind, code) {
        (false, 0, _) | (true, 129, _) => "echo reply",
        (false, 8, _) | (true, 128, _) => "echo request",
        (false, 3, 4) | (true, 2, _) => "packet too big",
        (false, 3, 3) | (true, 1, 4) => "port unreachable",
        (false, 3, _) | (true, 1, _) => "unreachable",
        (false, 11, _) | (true, 3, _) => "time exceeded",
        (true, 133, _) => "router solicitation",
        (true, 134, _) => "router advertisement",
        (true, 135, _) => "neighbor solicitation",
        (true, 136, _) => "neighbor advertisement",
        _ => return write!(f, "ICMP{} type {kind} code {code}", if ipv6 { "v6" } else { "" }),
    };
    write!(f, "ICMP{} {name}", if ipv6 { "v6" } else { "" })
}
