//! What policies know of a packet.

use std::net::IpAddr;

use thiserror::Error;

use crate::packet::parse::protocol;
use crate::packet::{Ip, Layer4};

/// A packet as policies see it: addresses, protocol, and what the transport header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address. Of the same family.
    pub destination: IpAddr,
    /// IANA protocol number.
    pub protocol: u8,
    /// The transport header.
    pub transport: Transport,
}

/// What the transport header says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Of TCP and UDP.
    Ports {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// Of ICMP and ICMPv6.
    Icmp {
        /// Type.
        kind: u8,
        /// Code.
        code: u8,
    },
    /// Of other protocols: nothing that policies know.
    Other,
    /// It was in the packet's first fragment: this is a later one.
    Later,
}

/// A TCP fragment that would be written over the header in the first one, which is how a forbidden connection is passed
/// off as an allowed one (RFC 1858 §4, RFC 3128).
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("a fragment begins inside the TCP header, at byte {0}")]
pub struct Overlap(pub u16);

/// Bytes of a TCP header without options: no honest fragment but the first begins before.
const TCP: u16 = 20;
/// ICMP and ICMPv6 types (RFC 792, RFC 4443 §4). Those of the one family mean nothing in the other.
const ECHO_REPLY: u8 = 0;
const ECHO_REQUEST: u8 = 8;
const ECHO6_REPLY: u8 = 129;
const ECHO6_REQUEST: u8 = 128;

impl Tuple {
    /// Of a packet.
    ///
    /// # Errors
    /// [`Overlap`]: the packet is to be dropped.
    #[inline]
    pub fn of(ip: &Ip) -> Result<Tuple, Overlap> {
        let transport = match ip.fragment {
            Some(part) if part.offset != 0 => {
                if ip.protocol == protocol::TCP && part.offset < TCP {
                    return Err(Overlap(part.offset));
                }
                Transport::Later
            }
            _ => match (ip.ports(), ip.layer4) {
                (Some((source, destination)), _) => Transport::Ports { source, destination },
                (None, Layer4::Icmp { kind, code }) => Transport::Icmp { kind, code },
                _ => Transport::Other,
            },
        };
        Ok(Tuple { source: ip.source, destination: ip.destination, protocol: ip.protocol, transport })
    }

    /// Of the first packet of a connection of which this is an answer.
    pub(crate) fn reversed(&self) -> Tuple {
        let transport = match self.transport {
            Transport::Ports { source, destination } => Transport::Ports { source: destination, destination: source },
            Transport::Icmp { kind: ECHO_REPLY, code } => Transport::Icmp { kind: ECHO_REQUEST, code },
            Transport::Icmp { kind: ECHO6_REPLY, code } => Transport::Icmp { kind: ECHO6_REQUEST, code },
            other => other,
        };
        Tuple { source: self.destination, destination: self.source, protocol: self.protocol, transport }
    }

    /// The two numbers that rules have ranges for: ports, or type and code; 0 where there are none. None for a later
    /// fragment.
    #[inline]
    pub(crate) fn numbers(&self) -> Option<[u16; 2]> {
        match self.transport {
            Transport::Ports { source, destination } => Some([source, destination]),
            Transport::Icmp { kind, code } => Some([kind.into(), code.into()]),
            Transport::Other => Some([0, 0]),
            Transport::Later => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Fragment;

    fn tcp(offset: u16) -> Ip {
        Ip {
            end: 90,
            protocol: protocol::TCP,
            fragment: Some(Fragment { offset, more: true, id: 1 }),
            layer4: if offset == 0 {
                Layer4::Tcp { source: 1, destination: 2, flags: 2, header: 20 }
            } else {
                Layer4::Other
            },
            ..Ip::datagram(1)
        }
    }

    #[test]
    fn a_first_fragment_has_ports_and_a_later_one_has_not() {
        assert_eq!(Tuple::of(&tcp(0)).unwrap().transport, Transport::Ports { source: 1, destination: 2 });
        assert_eq!(Tuple::of(&tcp(24)).unwrap().transport, Transport::Later);
    }

    #[test]
    fn a_fragment_over_the_header_is_refused() {
        assert_eq!(Tuple::of(&tcp(8)), Err(Overlap(8)));
        assert_eq!(Tuple::of(&tcp(16)), Err(Overlap(16)));
        let udp = Ip { protocol: protocol::UDP, ..tcp(8) };
        assert_eq!(Tuple::of(&udp).unwrap().transport, Transport::Later, "UDP's header is 8 bytes");
    }
}
