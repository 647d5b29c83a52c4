//! Translation of addresses where a network meets the outside.

use std::net::{IpAddr, Ipv4Addr};

use super::Prefix;

/// What is translated of packets that leave a network by one of its endpoints, the exit, or come in by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NatSpec {
    /// Name of the network.
    pub network: String,
    /// An address of the exit: an endpoint of the network at a port of this node. What a route leads there is outside.
    pub exit: IpAddr,
    /// One inside address each has one outside address to itself.
    pub floating: Vec<FloatingSpec>,
    /// One port of an outside address each is one of an inside address.
    pub forwards: Vec<ForwardSpec>,
    /// Many inside addresses have ports of few outside addresses.
    pub shared: Vec<SharedSpec>,
}

/// A floating address: source and destination, 1:1, all protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FloatingSpec {
    /// The inside address.
    pub inside: IpAddr,
    /// The outside address, of the same family.
    pub outside: IpAddr,
}

/// A port of an outside address that leads to a port inside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ForwardSpec {
    /// TCP or UDP.
    pub protocol: NatProtocol,
    /// The outside address and port.
    pub outside: (Ipv4Addr, u16),
    /// The inside address and port.
    pub inside: (Ipv4Addr, u16),
}

/// A protocol with ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NatProtocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

/// Outside addresses that inside addresses share: each inside address has a block of ports of one of them, which
/// follows from its place among the sources (RFC 7422).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SharedSpec {
    /// The inside addresses, IPv4.
    pub sources: Vec<Prefix>,
    /// The outside addresses.
    pub addresses: Vec<Ipv4Addr>,
    /// The first and the last port of each of them that may be used.
    pub ports: (u16, u16),
    /// The ports of each inside address.
    pub ports_per_guest: u16,
}
