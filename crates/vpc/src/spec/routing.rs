//! Where packets go that are for no endpoint of their network: routes, ECMP groups, route tables of sources, peerings.

use std::net::IpAddr;

use super::Prefix;

/// A static route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    /// Name of the network.
    pub network: String,
    /// The destinations.
    pub prefix: Prefix,
    /// Where they are reached.
    pub via: Via,
}

/// The next hop of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// The endpoint of the same network that has this address.
    Endpoint(IpAddr),
    /// The tunnel end point of another node, which knows more.
    Host(IpAddr),
    /// One of the members of this ECMP group of the same network.
    Ecmp(String),
    /// It is not known how it is reached at present: packets are dropped as unresolved.
    Nowhere,
}

/// Several next hops, of which each flow takes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EcmpSpec {
    /// Name of its network.
    pub network: String,
    /// What routes call it; once in its network.
    pub name: String,
    /// Its members, each next hop once.
    pub members: Vec<EcmpMemberSpec>,
}

/// A member of an ECMP group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EcmpMemberSpec {
    /// The next hop.
    pub via: MemberVia,
    /// How many flows it gets relative to the others, 1 to [`WEIGHT`](crate::policy::ecmp::WEIGHT); 0: none.
    pub weight: u16,
    /// Its availability zone.
    pub zone: Option<String>,
    /// Whether it may get packets.
    pub is_up: bool,
}

/// The next hop of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemberVia {
    /// The endpoint of the same network that has this address.
    Endpoint(IpAddr),
    /// The tunnel end point of another node.
    Host(IpAddr),
}

impl std::fmt::Display for MemberVia {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MemberVia::Endpoint(address) => write!(f, "endpoint {address}"),
            MemberVia::Host(host) => write!(f, "host {host}"),
        }
    }
}

/// Routes that what comes from some sources is put to before those of the network (Zephyrus §4.2: policy routes by
/// inner source).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteTableSpec {
    /// Name of its network.
    pub network: String,
    /// Its name, once in its network.
    pub name: String,
    /// The sources of packets that are looked up in it; of several prefixes that have a source, the longest counts.
    pub sources: Vec<Prefix>,
    /// Destinations, each prefix once, and where they are reached.
    pub routes: Vec<(Prefix, Via)>,
}

/// Two networks with members that reach each other. Their subnets do not overlap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeeringSpec {
    /// Their names.
    pub networks: [String; 2],
}
