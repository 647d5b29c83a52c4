//! Whether a frame is one of those that are wanted.

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::Subject;
use super::grammar::{self, FilterError};
use crate::id::Vni;
use crate::packet::parse::protocol;
use crate::packet::{Layer4, Mac, Parsed, Payload};
use crate::spec::Prefix;

/// A choice of frames, written as for tcpdump:
///
/// ```text
/// host 10.0.0.2 and tcp port 80          not (arp or icmp6)          src net 10.0.0.0/8 or vni 5001
/// ```
///
/// [`HELP`](super::HELP) has all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter(pub(super) Term);

/// What a filter is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Term {
    Not(Box<Term>),
    All(Vec<Term>),
    Any(Vec<Term>),
    /// Of the tunnel's headers.
    Outer(Box<Term>),
    Protocol(Protocol),
    ProtocolNumber(u8),
    Net(Side, Prefix),
    Ports(Side, RangeInclusive<u16>),
    Ether(Side, Mac),
    /// To a multicast group or to all stations.
    Group {
        all: bool,
    },
    /// All TCP flags of a mask are set.
    TcpFlags(u8),
    Fragment,
    Vlan(Option<u16>),
    Vni(Vni),
    /// Frames of so many bytes.
    Length(RangeInclusive<usize>),
}

/// A protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
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
    /// Whether the frame is wanted.
    pub fn matches(&self, subject: &Subject) -> bool {
        self.0.matches(subject, subject.packet.as_ref())
    }
}

impl Term {
    /// Of the headers that a frame has `packet` are those that the term is about.
    fn matches(&self, subject: &Subject, packet: Option<&Parsed>) -> bool {
        let of = |is: &dyn Fn(&Parsed) -> bool| packet.is_some_and(is);
        match self {
            Term::Not(term) => !term.matches(subject, packet),
            Term::All(terms) => terms.iter().all(|term| term.matches(subject, packet)),
            Term::Any(terms) => terms.iter().any(|term| term.matches(subject, packet)),
            Term::Outer(term) => subject.outer.is_some() && term.matches(subject, subject.outer.as_ref()),
            Term::Protocol(protocol) => of(&|packet| protocol.matches(packet)),
            Term::ProtocolNumber(number) => of(&|packet| packet.ip().is_some_and(|ip| ip.protocol == *number)),
            Term::Net(side, prefix) => of(&|packet| {
                addresses(packet).is_some_and(|(source, destination)| {
                    side.of(source, destination, |address| prefix.contains(address))
                })
            }),
            Term::Ports(side, wanted) => of(&|packet| {
                packet
                    .ip()
                    .and_then(|ip| ip.ports())
                    .is_some_and(|(source, destination)| side.of(source, destination, |found| wanted.contains(&found)))
            }),
            Term::Ether(side, mac) => of(&|packet| side.of(packet.source, packet.destination, |found| found == *mac)),
            Term::Group { all } => of(&|packet| {
                if *all { packet.destination == Mac::BROADCAST } else { packet.destination.is_group() }
            }),
            Term::TcpFlags(mask) => of(&|packet| {
                packet.ip().is_some_and(|ip| matches!(ip.layer4, Layer4::Tcp { flags, .. } if flags & mask == *mask))
            }),
            Term::Fragment => of(&|packet| packet.ip().is_some_and(|ip| ip.fragment.is_some())),
            Term::Vlan(wanted) => {
                of(&|packet| packet.vlan.is_some_and(|vlan| wanted.is_none_or(|wanted| vlan == wanted)))
            }
            Term::Vni(wanted) => subject.vni == Some(*wanted),
            Term::Length(wanted) => wanted.contains(&subject.len),
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

impl Protocol {
    fn matches(self, packet: &Parsed) -> bool {
        let carries = |ipv6: Option<bool>, number: Option<u8>| {
            packet.ip().is_some_and(|ip| {
                ipv6.is_none_or(|ipv6| ip.is_ipv6() == ipv6) && number.is_none_or(|number| ip.protocol == number)
            })
        };
        match self {
            Protocol::Arp => matches!(packet.payload, Payload::Arp(_)),
            Protocol::Ip => carries(Some(false), None),
            Protocol::Ip6 => carries(Some(true), None),
            Protocol::Icmp => carries(Some(false), Some(protocol::ICMP)),
            Protocol::Icmp6 => carries(Some(true), Some(protocol::ICMPV6)),
            Protocol::Tcp => carries(None, Some(protocol::TCP)),
            Protocol::Udp => carries(None, Some(protocol::UDP)),
        }
    }
}

impl FromStr for Filter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Filter, FilterError> {
        grammar::parse(text).map(Filter)
    }
}
