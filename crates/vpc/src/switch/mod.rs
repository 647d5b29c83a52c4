//! Switch tier: stateless, before and after the flow tier (Zephyrus §3.2).
//!
//! `before` parses, classifies, finds the network and the next hop's number; `after` knows what the number means, rewrites
//! the head and encapsulates.

pub(crate) mod after;
pub(crate) mod before;
mod offload;
mod outer;
mod rewrite;
mod spoof;

pub(crate) use outer::{complete_udp6, encapsulate};

use crate::packet::{Checksum, Parsed};
use crate::tables::{Key, Owner};
use crate::verdict::DropReason;

/// Why a frame does not go on through the tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Drop(DropReason),
    /// The software tier is to do something.
    Ask(Ask),
}

impl From<DropReason> for Stop {
    fn from(reason: DropReason) -> Stop {
        Stop::Drop(reason)
    }
}

/// What the software tier is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Arp,
    Neighbor,
    Router,
    Dhcp4,
    Dhcp6,
    Echo,
    /// Nothing listens at the gateway's ports.
    NoPort,
    NoRoute,
    HopLimit,
    /// The path takes so many bytes, and the sender is to be told.
    PathMtu(u16),
    /// The path takes so many bytes, and the packet may be cut up.
    Fragment(u16),
}

/// What is known of a frame between the tiers (Zephyrus §4.3: metadata).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metadata {
    /// The inner frame's headers.
    pub parsed: Parsed,
    pub network: u32,
    pub from: Origin,
    /// Of the 5-tuple.
    pub hash: u32,
    /// The destination, as the tables know it, and where its look-up begins.
    pub key: Key,
    pub place: crate::tables::Place,
}

/// Where a frame came in.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Origin {
    /// By an endpoint's port.
    Endpoint {
        number: u32,
        /// Of the source address; None where that is not the endpoint's.
        owner: Option<Owner>,
    },
    /// By a tunnel.
    Tunnel {
        number: u32,
        /// Bytes of the outer headers.
        outer: u16,
        /// ECN of the outer header.
        ecn: u8,
        /// What is left to do of the inner frame's checksum.
        checksum: Checksum,
    },
}

/// Where a frame goes, by numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub hop: u32,
    /// Number of the object that says so: the destination, or its network's routes.
    pub said_by: u32,
    /// The source's next hop, of a frame from a tunnel whose source is an endpoint.
    pub back: Option<u32>,
    /// Source and destination are in one subnet: no router between them.
    pub beside: bool,
}
