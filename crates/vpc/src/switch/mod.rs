//! Switch tier: stateless, before and after the flow tier (Zephyrus §3.2).
//!
//! `before` parses, classifies, finds the network and the next hop's number; `after` knows what the number means,
//! rewrites the head and encapsulates. What goes from the one to the other is in the [`Metadata`].

pub(crate) mod after;
pub(crate) mod before;
mod metadata;
mod nat;
mod offload;
mod outer;
mod rewrite;
mod route;
mod spoof;

pub(crate) use metadata::{Frame, Ingress, Metadata};
pub(crate) use nat::inward;
pub(crate) use outer::{Last, Outer, complete_udp6, encapsulate, outer, outer_at_underlay, outer_plain};
pub(crate) use route::{RouteWalk, walk};

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
    /// A guest says where it is, without being asked.
    Announce,
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
