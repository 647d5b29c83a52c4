//! What becomes of a frame.

use crate::id::PortId;

/// What becomes of a frame. The head is already as it leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To a port of this node, with its offload as it is.
    Local {
        /// Which.
        port: PortId,
        /// Of its 5-tuple: frames of one flow have one, and stay in order.
        hash: u32,
    },
    /// To the underlay. The head begins with the outer headers, with the lengths of the frame as a whole: code that
    /// cuts it up sets them anew. Over IPv6 the outer UDP checksum is 0 and to be completed by the sender (RFC 8200
    /// §8.1). The offload's offsets are those of the inner frame.
    Underlay {
        /// The port.
        port: PortId,
        /// Of its 5-tuple.
        hash: u32,
        /// Bytes of the outer headers.
        overhead: u16,
    },
    /// The software tier has to see the whole frame. The head is as it came in.
    Software,
    /// The software tier has dealt with it: what leaves are its replies.
    Consumed,
    /// It is dropped.
    Drop(DropReason),
}

/// A frame that the software tier wants sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// By which port.
    pub port: PortId,
    /// The frame, whole, its checksums complete; for an underlay port with its outer headers.
    pub frame: Vec<u8>,
}

/// An enum of reasons, each with its word in `status` and metrics.
macro_rules! reasons {
    ($(#[doc = $about:literal])+ enum $kind:ident; $($(#[doc = $doc:literal])+ $name:ident = $word:literal,)+) => {
        $(#[doc = $about])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $kind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl $kind {
            /// All of them, in the order of their numbers.
            pub const ALL: &[$kind] = &[$($kind::$name),+];

            /// The word for it in `status` and metrics.
            pub const fn word(self) -> &'static str {
                match self {
                    $($kind::$name => $word),+
                }
            }
        }

        impl std::fmt::Display for $kind {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }
    };
}

pub(crate) use reasons;

reasons! {
    /// Why a frame was dropped.
    enum DropReason;
    /// Shorter than its headers say, or than an Ethernet header.
    Truncated = "truncated",
    /// A header contradicts itself.
    Malformed = "malformed",
    /// Its headers go on behind the bytes that are looked at.
    Headers = "headers",
    /// The offload that came with the frame does not fit it.
    BadOffload = "bad-offload",
    /// Longer than the port takes, and not to be cut up.
    TooLong = "too-long",
    /// It has a VLAN tag.
    Vlan = "vlan",
    /// Neither ARP, IPv4 nor IPv6.
    EtherType = "ether-type",
    /// A broadcast or multicast that no service answers: a VPC does not flood.
    Multicast = "multicast",
    /// The source MAC is not the port's.
    SpoofedMac = "spoofed-mac",
    /// The source address is not the port's.
    SpoofedAddress = "spoofed-address",
    /// An ARP or ND message claims what is not the port's.
    SpoofedNeighbor = "spoofed-neighbor",
    /// Neither a guest nor a route has the destination.
    NoRoute = "no-route",
    /// The destination is known, but not where it is now.
    Unresolved = "unresolved",
    /// All members of the ECMP group that its route leads to are down.
    NoNextHop = "no-next-hop",
    /// The hop limit is used up.
    HopLimit = "hop-limit",
    /// Larger than the path takes; the sender was told.
    PathMtu = "path-mtu",
    /// Not for a tunnel end point of this node, or from one that is not known.
    UnknownTunnel = "unknown-tunnel",
    /// Marked as congested on the way between nodes, and its sender does not know ECN (RFC 6040 §4.2).
    Congestion = "congestion",
    /// No network has this VNI here.
    UnknownNetwork = "unknown-network",
    /// A service did not understand the message, or does not serve it.
    Service = "service",
    /// A service was asked too often.
    RateLimited = "rate-limited",
    /// The destination has no free receive buffer.
    NoBuffer = "no-buffer",
    /// The core that it was steered to has as much waiting as it may.
    CoreFull = "core-full",
    /// The tenant that it is for has as much waiting on the core as it may of what wires bring.
    IngressFull = "ingress-full",
    /// The destination's driver is not there, or its queues are not enabled.
    PortDown = "port-down",
    /// The kernel did not take it.
    Backend = "backend",
    /// Above the port's rate limit.
    Policed = "policed",
    /// A meter found it red: beyond both of its rates.
    Metered = "metered",
    /// An access control list denies it.
    Acl = "acl",
    /// A firewall that its interface has for a function denies it.
    Firewall = "firewall",
    /// No rule of a security group allows it.
    SecurityGroup = "security-group",
    /// In the middle of a connection that is not known, or an answer to nothing.
    NoConnection = "no-connection",
    /// TCP flags that no honest segment has together.
    TcpFlags = "tcp-flags",
    /// It contradicts the TCP handshake that is under way.
    TcpHandshake = "tcp-handshake",
    /// A TCP reset out of place.
    TcpReset = "tcp-reset",
    /// The network's share of connections is used up by open ones.
    ConnectionShareFull = "connection-share-full",
    /// There is no room for another connection, and the network has none to give up.
    ConnectionTableFull = "connection-table-full",
    /// The network has no share of connections.
    NoConnectionShare = "no-connection-share",
    /// It leaves by an exit with NAT, or came in by it, and no rule and no connection translates it.
    NoTranslation = "no-translation",
    /// All ports of its source's shared address are in use towards its destination.
    NatPorts = "nat-ports",
    /// A fragment, and its translation needs ports: only the first of a packet has them.
    NatFragment = "nat-fragment",
}
