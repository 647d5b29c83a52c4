//! What a rule asks for beside addresses.

use std::fmt;

use thiserror::Error;

use crate::packet::parse::protocol;

/// Ports from a first to a last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    first: u16,
    last: u16,
}

/// A range without a port in it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("ports {first} to {last}: the first is after the last")]
pub struct PortsError {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

impl Ports {
    /// All of them.
    pub const ALL: Ports = Ports { first: 0, last: u16::MAX };

    /// From `first` to `last`, both included.
    ///
    /// # Errors
    /// [`PortsError`] where the first is after the last.
    pub const fn new(first: u16, last: u16) -> Result<Ports, PortsError> {
        if first > last { Err(PortsError { first, last }) } else { Ok(Ports { first, last }) }
    }

    /// One port.
    pub const fn one(port: u16) -> Ports {
        Ports { first: port, last: port }
    }

    /// The first.
    pub const fn first(self) -> u16 {
        self.first
    }

    /// The last.
    pub const fn last(self) -> u16 {
        self.last
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last { write!(f, "{}", self.first) } else { write!(f, "{}-{}", self.first, self.last) }
    }
}

/// What a rule asks of the protocol and the transport header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Service {
    /// Nothing.
    Any,
    /// TCP.
    Tcp {
        /// Source ports.
        source: Ports,
        /// Destination ports.
        destination: Ports,
    },
    /// UDP.
    Udp {
        /// Source ports.
        source: Ports,
        /// Destination ports.
        destination: Ports,
    },
    /// ICMP, over IPv4 only.
    Icmp {
        /// Type; None: any.
        kind: Option<u8>,
        /// Code; None: any.
        code: Option<u8>,
    },
    /// ICMPv6, over IPv6 only.
    Icmpv6 {
        /// Type; None: any.
        kind: Option<u8>,
        /// Code; None: any.
        code: Option<u8>,
    },
    /// A protocol by its IANA number, whatever its header says.
    Protocol(u8),
}

/// A range, both ends included.
pub(crate) type Range<T> = (T, T);

impl Service {
    /// TCP to these ports.
    pub const fn tcp(destination: Ports) -> Service {
        Service::Tcp { source: Ports::ALL, destination }
    }

    /// UDP to these ports.
    pub const fn udp(destination: Ports) -> Service {
        Service::Udp { source: Ports::ALL, destination }
    }

    /// The one family that has it; None: both do.
    pub(crate) fn is_ipv6(&self) -> Option<bool> {
        match self {
            Service::Icmp { .. } => Some(false),
            Service::Icmpv6 { .. } => Some(true),
            Service::Any | Service::Tcp { .. } | Service::Udp { .. } | Service::Protocol(_) => None,
        }
    }

    pub(crate) fn protocols(&self) -> Range<u8> {
        let one = |number| (number, number);
        match self {
            Service::Any => (0, u8::MAX),
            Service::Tcp { .. } => one(protocol::TCP),
            Service::Udp { .. } => one(protocol::UDP),
            Service::Icmp { .. } => one(protocol::ICMP),
            Service::Icmpv6 { .. } => one(protocol::ICMPV6),
            Service::Protocol(number) => one(*number),
        }
    }

    /// Ranges of source and destination port, or of type and code.
    pub(crate) fn numbers(&self) -> [Range<u16>; 2] {
        let range = |ports: &Ports| (ports.first, ports.last);
        let exactly = |number: &Option<u8>| number.map_or((0, u16::MAX), |number| (number.into(), number.into()));
        match self {
            Service::Any | Service::Protocol(_) => [range(&Ports::ALL); 2],
            Service::Tcp { source, destination } | Service::Udp { source, destination } => {
                [range(source), range(destination)]
            }
            Service::Icmp { kind, code } | Service::Icmpv6 { kind, code } => [exactly(kind), exactly(code)],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_that_are_none_are_refused_and_shown_as_they_were() {
        assert_eq!(Ports::new(5, 4).unwrap_err().to_string(), "ports 5 to 4: the first is after the last");
        assert_eq!((Ports::one(80).to_string(), Ports::ALL.to_string()), ("80".into(), "0-65535".into()));
    }
}
