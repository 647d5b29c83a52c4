//! What is wrong with rules of translation, and with which of them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use thiserror::Error;

use crate::spec::Prefix;

/// A rule of a [`NatSpec`](crate::spec::NatSpec), by its place among those of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NatRule {
    /// Of `floating`.
    Floating(usize),
    /// Of `forwards`.
    Forward(usize),
    /// Of `shared`.
    Shared(usize),
}

impl fmt::Display for NatRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NatRule::Floating(at) => write!(f, "floating[{at}]"),
            NatRule::Forward(at) => write!(f, "forward[{at}]"),
            NatRule::Shared(at) => write!(f, "shared[{at}]"),
        }
    }
}

/// What is wrong with a rule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{rule}: {problem}")]
pub struct NatError {
    /// The rule.
    pub rule: NatRule,
    /// What is wrong with it.
    pub problem: NatProblem,
}

/// What can be wrong with a rule.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum NatProblem {
    /// No single host can have the address.
    #[error("{0} is not the address of a single host")]
    NotAHost(IpAddr),
    /// An IPv4 address for an IPv6 address, or the other way round.
    #[error("{0} and {1} are of different families")]
    Families(IpAddr, IpAddr),
    /// A route to the exit would not be asked for it.
    #[error("{0} is in the network's subnet {1}: what is sent to it stays inside")]
    OutsideInSubnet(IpAddr, Prefix),
    /// Two rules have one outside address whole.
    #[error("the outside address {0} has another use already")]
    OutsideTaken(IpAddr),
    /// Two floating addresses are for one inside address.
    #[error("the inside address {0} has a floating address already")]
    InsideTaken(IpAddr),
    /// Two forwards are for one outside port.
    #[error("port {1} of {0} is forwarded already")]
    PortTaken(Ipv4Addr, u16),
    /// Two forwards lead to one inside port: its answers would have two sources.
    #[error("another forward leads to port {1} of {0}: its answers would have two sources")]
    TargetTaken(Ipv4Addr, u16),
    /// Port 0 is none.
    #[error("0 is no port")]
    NoPort,
    /// A forward's outside port is among those that inside addresses share.
    #[error("port {1} of {0} is among the ports that inside addresses share")]
    PortShared(Ipv4Addr, u16),
    /// A prefix that is not IPv4.
    #[error("{0} is not IPv4: IPv6 addresses are translated 1:1 only")]
    NotIpv4(Prefix),
    /// An inside address would have two blocks of ports.
    #[error("the sources {0} and {1} overlap")]
    SourcesOverlap(Prefix, Prefix),
    /// Nothing to translate, or nothing to translate it to.
    #[error("it needs a source and an outside address at the least")]
    Empty,
    /// No ports.
    #[error("{per_guest} ports for each inside address do not fit into ports {first} to {last}")]
    Ports {
        /// The first port.
        first: u16,
        /// The last port.
        last: u16,
        /// The ports of each inside address.
        per_guest: u16,
    },
    /// More inside addresses than blocks of ports.
    #[error(
        "the sources have {sources} addresses, and there are blocks of ports for {blocks}: \
         add outside addresses or give each fewer ports"
    )]
    Room {
        /// Inside addresses.
        sources: u64,
        /// Blocks of ports.
        blocks: u64,
    },
}
