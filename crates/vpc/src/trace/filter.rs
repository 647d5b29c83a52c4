//! Whether a packet is one of those that are wanted.

use std::net::IpAddr;
use std::str::FromStr;

use super::grammar::{self, FilterError};
use crate::packet::parse::protocol;
use crate::packet::{Mac, Parsed, Payload};
use crate::spec::Prefix;

/// A choice of packets, written as for tcpdump:
///
/// ```text
/// host 10.0.0.2 and tcp port 80          not (arp or icmp6)          src net 10.0.0.0/8 or vni 5001
/// ```
///
/// `arp`, `ip`, `ip6`, `icmp`, `icmp6`, `tcp`, `udp`; `host ADDRESS`, `net PREFIX`, `port NUMBER`, each with `src` or `dst`
/// before it to mean one side only; `ether host MAC`; `vni NUMBER`. `not` binds closest, then `and`, then `or`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(pub(super) Term);

/// What a filter is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
    Not(Box<Term>),
    All(Vec<Term>),
    Any(Vec<Term>),
    Kind(Kind),
    Net(Side, Prefix),
    Port(Side, u16),
    Ether(Side, Mac),
    Vni(u32),
}

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Arp,
    Ip,
    Ip6,
    Icmp,
    Icmp6,
    Tcp,
    Udp,
}

/// Which of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Either,
    Source,
    Destination,
}

impl Side {
    fn of<T>(self, source: T, destination: T, is: impl Fn(T) -> bool) -> bool {
        match self {
            Side::Either => is(source) || is(destination),
            Side::Source => is(source),
            Side::Destination => is(destination),
        }
    }
}

impl Filter {
    /// Whether `packet`, of the network with this VNI if it is in one, is wanted.
    pub fn matches(&self, packet: &Parsed, vni: Option<u32>) -> bool {
        self.0.matches(packet, vni)
    }
}

impl Term {
    fn matches(&self, packet: &Parsed, vni: Option<u32>) -> bool {
        match self {
            Term::Not(term) => !term.matches(packet, vni),
            Term::All(terms) => terms.iter().all(|term| term.matches(packet, vni)),
            Term::Any(terms) => terms.iter().any(|term| term.matches(packet, vni)),
            Term::Kind(kind) => kind.matches(packet),
            Term::Net(side, prefix) => addresses(packet)
                .is_some_and(|(source, destination)| side.of(source, destination, |address| prefix.contains(address))),
            Term::Port(side, port) => packet
                .ip()
                .and_then(|ip| ip.ports())
                .is_some_and(|(source, destination)| side.of(source, destination, |found| found == *port)),
            Term::Ether(side, mac) => side.of(packet.source, packet.destination, |found| found == *mac),
            Term::Vni(wanted) => vni == Some(*wanted),
        }
    }
}

/// Source and destination; an ARP message's are its sender and target.
fn addresses(packet: &Parsed) -> Option<(IpAddr, IpAddr)> {
    match &packet.payload {
        Payload::Ip(ip) => Some((ip.source, ip.destination)),
        Payload::Arp(arp) => Some((arp.sender.into(), arp.target.into())),
        Payload::Other { .. } => None,
    }
}

impl Kind {
    fn matches(self, packet: &Parsed) -> bool {
        let carries = |ipv6: Option<bool>, number: Option<u8>| {
            packet.ip().is_some_and(|ip| {
                ipv6.is_none_or(|ipv6| ip.is_ipv6() == ipv6) && number.is_none_or(|number| ip.protocol == number)
            })
        };
        match self {
            Kind::Arp => matches!(packet.payload, Payload::Arp(_)),
            Kind::Ip => carries(Some(false), None),
            Kind::Ip6 => carries(Some(true), None),
            Kind::Icmp => carries(Some(false), Some(protocol::ICMP)),
            Kind::Icmp6 => carries(Some(true), Some(protocol::ICMPV6)),
            Kind::Tcp => carries(None, Some(protocol::TCP)),
            Kind::Udp => carries(None, Some(protocol::UDP)),
        }
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        grammar::parse(text).map(Filter)
    }
}
