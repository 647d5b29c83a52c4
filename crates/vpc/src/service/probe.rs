//! A made-up packet: what a guest could send, to see what would become of it.

use std::net::IpAddr;

use super::build::{HOP_LIMIT, V4, V6};
use crate::id::Vni;
use crate::packet::checksum::Sum;
use crate::packet::parse::protocol;
use crate::packet::vxlan::{VALID_VNI, VXLAN};
use crate::packet::{Mac, Parsed, Payload};
use crate::spec::UnderlaySpec;

/// Bytes of a TCP header without options.
const TCP: usize = 20;
/// The outer source port, which says nothing: the first dynamic port (RFC 7348 §5, RFC 6335 §6).
const TUNNEL_PORT: u16 = 49_152;
/// The next hop of the underlay on the way to another node.
const NEIGHBOR: Mac = Mac([2, 0, 0, 0, 0, 1]);
/// Echo requests (RFC 792, RFC 4443 §4.1).
const ECHO: u8 = 8;
const ECHO6: u8 = 128;

/// A packet between two addresses of one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Its sender's MAC address.
    pub from_mac: Mac,
    /// The gateway's, or a neighbour's.
    pub to_mac: Mac,
    /// Source and destination, of one family.
    pub addresses: (IpAddr, IpAddr),
    /// What it carries.
    pub service: ProbeService,
    /// Bytes behind the transport header.
    pub payload: usize,
}

/// What a made-up packet carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeService {
    /// A TCP segment.
    Tcp {
        /// Source and destination port.
        ports: (u16, u16),
        /// FIN, SYN, RST, PSH, ACK, … from bit 0 up.
        flags: u8,
    },
    /// A UDP datagram from the first port to the second.
    Udp((u16, u16)),
    /// An echo request.
    Echo,
    /// Another protocol, by its IANA number.
    Other(u8),
}

impl Probe {
    /// The frame; None where the addresses are not of one family.
    pub fn frame(&self) -> Option<Vec<u8>> {
        let Probe { from_mac, to_mac, addresses, service, payload } = *self;
        let untagged = untagged(from_mac, to_mac);
        let payload = vec![0; payload];
        match addresses {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let ends = V4 { to_mac, from_mac, from, to };
                Some(match service {
                    ProbeService::Udp(ports) => ends.udp(&untagged, ports, &payload),
                    ProbeService::Echo => ends.icmp(&untagged, echo(ECHO, &payload)),
                    ProbeService::Other(number) => ends.packet(&untagged, number, &payload),
                    ProbeService::Tcp { ports, flags } => {
                        let len = (TCP + payload.len()) as u16;
                        let sum = Sum::pseudo_v4(from.octets(), to.octets(), protocol::TCP, len);
                        ends.packet(&untagged, protocol::TCP, &tcp(ports, flags, &payload, sum))
                    }
                })
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let ends = V6 { to_mac, from_mac, from, to, hop_limit: HOP_LIMIT };
                Some(match service {
                    ProbeService::Udp(ports) => ends.udp(&untagged, ports, &payload),
                    ProbeService::Echo => ends.icmp(&untagged, echo(ECHO6, &payload)),
                    ProbeService::Other(number) => ends.packet(&untagged, number, &payload),
                    ProbeService::Tcp { ports, flags } => {
                        let len = (TCP + payload.len()) as u32;
                        let sum = Sum::pseudo_v6(from.octets(), to.octets(), protocol::TCP, len);
                        ends.packet(&untagged, protocol::TCP, &tcp(ports, flags, &payload, sum))
                    }
                })
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }
}

/// A frame as the node with the tunnel end point `host` sends it to the one of `underlay`: `inner`, of the network with
/// the VNI `vni`. None where `underlay` has no address of the family of `host`.
pub fn through_tunnel(underlay: &UnderlaySpec, host: IpAddr, vni: Vni, inner: &[u8]) -> Option<Vec<u8>> {
    let (from_mac, to_mac, ports) = (NEIGHBOR, underlay.mac, (TUNNEL_PORT, underlay.udp_port));
    let asked = untagged(from_mac, to_mac);
    let [a, b, c] = vni.to_bytes();
    let header: [u8; VXLAN] = [VALID_VNI, 0, 0, 0, a, b, c, 0];
    let datagram = [&header, inner].concat();
    underlay.addresses.iter().find_map(|own| match (host, *own) {
        (IpAddr::V4(from), IpAddr::V4(to)) => Some(V4 { to_mac, from_mac, from, to }.udp(&asked, ports, &datagram)),
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            Some(V6 { to_mac, from_mac, from, to, hop_limit: HOP_LIMIT }.udp(&asked, ports, &datagram))
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
    })
}

/// The frame that is answered, as services take it: it has no VLAN tag.
fn untagged(source: Mac, destination: Mac) -> Parsed {
    Parsed { destination, source, vlan: None, payload: Payload::Other { ether_type: 0 } }
}

/// An ICMP message without its checksum.
fn echo(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0, 0, 1, 0, 1];
    message.extend_from_slice(payload);
    message
}

/// A TCP segment (RFC 9293 §3.1).
fn tcp(ports: (u16, u16), flags: u8, payload: &[u8], pseudo: Sum) -> Vec<u8> {
    let mut segment = vec![0; TCP];
    segment[..2].copy_from_slice(&ports.0.to_be_bytes());
    segment[2..4].copy_from_slice(&ports.1.to_be_bytes());
    // Sequence number 1; of an answer, acknowledging byte 1.
    (segment[7], segment[11]) = (1, 1);
    (segment[12], segment[13]) = ((TCP as u8 / 4) << 4, flags);
    segment[14..16].copy_from_slice(&u16::MAX.to_be_bytes());
    segment.extend_from_slice(payload);
    let sum = pseudo.bytes(&segment).checksum();
    segment[16..18].copy_from_slice(&sum.to_be_bytes());
    segment
}

#[cfg(test)]
mod tests {
    use etherparse::SlicedPacket;

    use super::*;
    use crate::packet::parse;

    #[test]
    fn frames_are_what_others_take_for_them() {
        let ends = [("10.0.0.2", "10.0.0.3"), ("2001:db8::2", "2001:db8::3")];
        let services =
            [ProbeService::Tcp { ports: (40_000, 80), flags: 2 }, ProbeService::Udp((40_000, 53)), ProbeService::Echo];
        for ((from, to), service) in ends.into_iter().flat_map(|ends| services.map(|service| (ends, service))) {
            let addresses = (from.parse().unwrap(), to.parse().unwrap());
            let probe = Probe { from_mac: Mac([2; 6]), to_mac: Mac([4; 6]), addresses, service, payload: 7 };
            let frame = probe.frame().unwrap();
            SlicedPacket::from_ethernet(&frame).unwrap();
            let parsed = parse(&frame, frame.len()).unwrap();
            let ip = *parsed.ip().unwrap();
            assert_eq!((ip.source, ip.destination, ip.end as usize), (addresses.0, addresses.1, frame.len()));
            let segment = &frame[usize::from(ip.transport)..];
            let pseudo = match addresses {
                (IpAddr::V4(from), IpAddr::V4(to)) if ip.protocol != protocol::ICMP => {
                    Sum::pseudo_v4(from.octets(), to.octets(), ip.protocol, segment.len() as u16)
                }
                (IpAddr::V6(from), IpAddr::V6(to)) => {
                    Sum::pseudo_v6(from.octets(), to.octets(), ip.protocol, segment.len() as u32)
                }
                _ => Sum::ZERO,
            };
            assert!(pseudo.bytes(segment).is_right(), "{service:?} {from}");
        }
        let addresses = ("10.0.0.2".parse().unwrap(), "::1".parse().unwrap());
        let mixed =
            Probe { from_mac: Mac([2; 6]), to_mac: Mac([4; 6]), addresses, service: ProbeService::Echo, payload: 0 };
        assert_eq!(mixed.frame(), None);
    }
}
