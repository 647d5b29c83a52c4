//! What goes from tier to tier with a frame (Zephyrus §4.3, figure 6).
//!
//! ```text
//!   on the wire        Ethernet │ IP … payload
//!   between the tiers  Ethernet │ Metadata │ IP … payload          the same metadata both ways
//! ```
//!
//! The frame stays as it came, its Ethernet header included, until the tier that it leaves by writes the one that it
//! leaves with. What a tier has found and another one needs is here, by number, so that none looks it up again.
//!
//! | tier | takes | fills in |
//! |---|---|---|
//! | switch, before | the port | network, ingress, hash, next hop, translation, versions of what decided |
//! | flow | hash, versions | of a known flow: [`Action`](crate::flow::Action)'s endpoint, connection, next hop |
//! | software | network, both ends, versions | connection |
//! | switch, after | next hop, flags, connection | nothing: the packet leaves |
//!
//! The [parsed headers](Frame) are beside it, as any tier could parse the frame again.

use crate::id::{EndpointId, HopId, NetworkId, TunnelId};
use crate::nat::Crossing;
use crate::packet::{Checksum, Parsed};
use crate::policy::conntrack::ConnectionId;
use crate::stamp::{SOURCES, Stamp};

/// Where a frame came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ingress {
    /// By the port of an endpoint of this node.
    Endpoint(EndpointId),
    /// By a tunnel from another node.
    Tunnel(TunnelId),
}

/// The private data between the tiers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Metadata {
    /// The network with the tables that decide (Zephyrus: policy-routing identifier).
    pub network: NetworkId,
    /// The hash of the 5-tuple.
    pub hash: u32,
    pub ingress: Ingress,
    pub hop: Option<HopId>,
    /// Of a frame from a tunnel: the next hop towards its source, where that is an endpoint or behind a route.
    pub return_hop: Option<HopId>,
    /// Of a frame from a tunnel: `return_hop` has the source address itself.
    pub is_source_owned: bool,
    /// The endpoint at the meters that the packet passes.
    pub metered: Option<EndpointId>,
    pub connection: Option<ConnectionId>,
    /// The translation that it needs, and which way.
    pub crossing: Option<Crossing>,
    /// Source and destination are in one subnet: no router is between them.
    pub is_same_subnet: bool,
    /// A route decided about the destination, not an entry of its address.
    pub is_by_route: bool,
    /// The next hop is a port of this node.
    pub is_local: bool,
    /// The next hop is a member of an ECMP group: its packets are counted.
    pub is_ecmp_member: bool,
    /// More decides about the packet than a flow can be compared with: no flow is kept.
    pub is_uncacheable: bool,
    /// Versions of what decided, read before it decided (Zephyrus §4.3).
    pub sources: [Stamp; SOURCES],
}

const _: () = assert!(size_of::<Metadata>() == 96, "of one length both ways: a line and a half");

impl Metadata {
    /// Of a frame of `network`.
    pub fn new(network: NetworkId, ingress: Ingress) -> Metadata {
        Metadata {
            network,
            hash: 0,
            ingress,
            hop: None,
            return_hop: None,
            is_source_owned: false,
            metered: None,
            connection: None,
            crossing: None,
            is_same_subnet: false,
            is_by_route: false,
            is_local: false,
            is_ecmp_member: false,
            is_uncacheable: false,
            sources: [Stamp::default(); SOURCES],
        }
    }

    /// The endpoint at the port that it came by.
    #[inline]
    pub fn endpoint(&self) -> Option<EndpointId> {
        match self.ingress {
            Ingress::Endpoint(endpoint) => Some(endpoint),
            Ingress::Tunnel(_) => None,
        }
    }

    /// The tunnel by which it came.
    #[inline]
    pub fn tunnel(&self) -> Option<TunnelId> {
        match self.ingress {
            Ingress::Endpoint(_) => None,
            Ingress::Tunnel(tunnel) => Some(tunnel),
        }
    }

    /// Adds `stamps` to what decided, each once.
    #[inline]
    pub fn decided_by<const N: usize>(&mut self, stamps: [Stamp; N]) {
        for stamp in stamps {
            if stamp == Stamp::default() || self.sources.contains(&stamp) {
                continue;
            }
            match self.sources.iter_mut().find(|source| **source == Stamp::default()) {
                Some(room) => *room = stamp,
                None => self.is_uncacheable = true,
            }
        }
    }
}

/// A frame's headers, parsed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// The inner frame's headers.
    pub parsed: Parsed,
    /// Bytes of outer headers.
    pub outer: u16,
    /// ECN of the outer header.
    pub ecn: u8,
    /// What is left to do of the inner frame's checksum.
    pub checksum: Checksum,
}
