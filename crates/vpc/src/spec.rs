//! What the control plane gives: networks, their endpoints and places, and the underlay. Plain data, unchecked;
//! `Tables::build` checks it.

mod nat;
mod routing;

use std::net::IpAddr;

pub use softdpu_lpm::{Prefix, PrefixError};
pub use softdpu_sched::{Measure, Rate, TenantId};

use crate::id::{PortId, Vni};
use crate::kept::Keeping;
use crate::packet::Mac;
use crate::policy::Service;
use crate::policy::acl::AclSpec;
pub use crate::policy::meter::{METERS, MeterAlgorithm, MeterSpec};

pub use nat::{FloatingSpec, ForwardSpec, NatProtocol, NatSpec, SharedSpec};
pub use routing::{EcmpMemberSpec, EcmpSpec, MemberVia, PeeringSpec, RouteSpec, RouteTableSpec, Via};

/// UDP port of VXLAN (RFC 7348 §5).
pub const VXLAN_PORT: u16 = 4789;
/// Smallest MTU with IPv4 alone: every IPv4 host accepts datagrams of this size (RFC 791 §3.1).
pub const MIN_MTU_IPV4: u16 = 576;
/// Smallest MTU with IPv6 (RFC 8200 §5).
pub const MIN_MTU_IPV6: u16 = 1280;

/// Returns the smallest MTU of a network, a port or an underlay, with or without IPv6 addresses.
pub const fn min_mtu(has_ipv6: bool) -> u16 {
    if has_ipv6 { MIN_MTU_IPV6 } else { MIN_MTU_IPV4 }
}

/// Everything a node's tables are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// Networks, each name and each VNI once.
    pub networks: Vec<NetworkSpec>,
    /// The endpoints in them, here and on other nodes.
    pub endpoints: Vec<EndpointSpec>,
    /// Routes beyond the networks' subnets.
    pub routes: Vec<RouteSpec>,
    /// Groups of next hops that routes name.
    pub ecmp: Vec<EcmpSpec>,
    /// Routes of some sources.
    pub route_tables: Vec<RouteTableSpec>,
    /// Networks that reach each other.
    pub peerings: Vec<PeeringSpec>,
    /// What is translated of packets that leave networks, or come into them from outside: each exit once.
    pub nat: Vec<NatSpec>,
    /// The availability zone of this node: members of ECMP groups that are in it are preferred.
    pub zone: Option<String>,
    /// How this node reaches others; None: it does not.
    pub underlay: Option<UnderlaySpec>,
    /// Next hops of the underlay.
    pub neighbors: Vec<NeighborSpec>,
    /// How often services run for one port.
    pub services: ServiceLimit,
    /// How many connections are kept for security groups.
    pub connections: ConnectionLimit,
    /// What keeps them, and their translations, for the processes to come. It is the same as long as there is one.
    pub keeping: Keeping,
    /// What endpoints' packets pass, each name once.
    pub meters: Vec<MeterSpec>,
    /// When those that are new had nothing left, nanoseconds: another process may have given their bursts until then.
    /// None: they are full.
    pub meters_empty_at: Option<u64>,
    /// Every packet is decided by itself: no flows are kept. What the flow tier is measured against.
    pub without_flows: bool,
    /// Entries are being loaded: no guest hears that an address is not there before that has ended.
    pub is_loading: bool,
    /// Networks of which there are entries among them, by name: until then their packets take no route, as another may
    /// be meant.
    pub awaited: Vec<String>,
    /// Hosts that the underlay's addresses do not reach are no error: what is for them is dropped. For addresses that
    /// were not known when the rest was checked.
    pub allows_unreached: bool,
}

/// A tenant's network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkSpec {
    /// What endpoints and routes call it.
    pub name: String,
    /// What tells it from other networks in tunnels.
    pub vni: Vni,
    /// Its subnets; they do not overlap.
    pub subnets: Vec<SubnetSpec>,
    /// The MAC address of the gateway, one for all subnets and on every node.
    pub gateway_mac: Mac,
    /// Largest IP packet, bytes; what guests are told.
    pub mtu: u16,
    /// Name servers that guests are told of.
    pub dns: Vec<IpAddr>,
    /// What its endpoints can be in.
    pub policy: PolicySpec,
    /// What comes from one node may go on to another: this node is a gateway between them.
    pub transit: bool,
    /// The tenant that all of it belongs to, and that is charged for what its tunnels bring; None: that depends on the
    /// endpoint.
    pub tenant: Option<TenantId>,
}

impl NetworkSpec {
    /// A network of packets of 1500 bytes, without name servers and policies, and without transit.
    pub fn new(name: impl Into<String>, vni: Vni, gateway_mac: Mac, subnets: Vec<SubnetSpec>) -> NetworkSpec {
        NetworkSpec {
            name: name.into(),
            vni,
            subnets,
            gateway_mac,
            mtu: 1500,
            dns: Vec::new(),
            policy: PolicySpec::default(),
            transit: false,
            tenant: None,
        }
    }
}

/// The groups and lists of a network.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PolicySpec {
    /// Security groups, each name once.
    pub groups: Vec<SecurityGroupSpec>,
    /// Access control lists, likewise.
    pub acls: Vec<NamedAcl>,
}

/// A security group: rules only allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecurityGroupSpec {
    /// What endpoints and rules call it.
    pub name: String,
    /// What peers may send to members.
    pub ingress: Vec<SecurityRule>,
    /// What members may send; None: the group does not say.
    pub egress: Option<Vec<SecurityRule>>,
}

/// Something that a group allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecurityRule {
    /// The other end.
    pub peer: RulePeer,
    /// Protocol, ports, ICMP type.
    pub service: Service,
}

/// The other end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulePeer {
    /// Any address.
    Any,
    /// The addresses of a prefix.
    Prefix(Prefix),
    /// Any member of this group of the same network.
    Group(String),
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedAcl {
    /// What endpoints call it.
    pub name: String,
    /// Its rules.
    pub list: AclSpec,
}

/// What an endpoint is in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MembershipSpec {
    /// Security groups of its network; without one, everything passes.
    pub groups: Vec<String>,
    /// The access control list that is asked about what it sends and what is sent to it. Of endpoints elsewhere it
    /// counts for nothing here.
    pub acl: Option<String>,
    /// The meters that what it sends passes, one after the other, each with the colour from the one before: at most
    /// [`METERS`].
    pub meters: Vec<String>,
}

/// A subnet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SubnetSpec {
    /// Its addresses.
    pub prefix: Prefix,
    /// The address of the gateway, inside the prefix.
    pub gateway: IpAddr,
}

/// A guest's interface, a TAP, or one of another node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointSpec {
    /// Name of its network.
    pub network: String,
    /// Its MAC address.
    pub mac: Mac,
    /// Its addresses, inside the network's subnets.
    pub addresses: Vec<IpAddr>,
    /// Where it is.
    pub place: Place,
    /// Largest IP packet it takes, bytes; None: its network's.
    pub mtu: Option<u16>,
    /// Frames with other source addresses than its own are dropped. Off for routers and NAT appliances.
    pub spoof_check: bool,
    /// Its groups and its list.
    pub policy: MembershipSpec,
}

/// Where an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// At a port of this node.
    Port(PortId),
    /// On another node: the address of its tunnel end point.
    Host(IpAddr),
}

/// The port by which this node reaches others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnderlaySpec {
    /// The port.
    pub port: PortId,
    /// Addresses of this node's tunnel end point: at most one IPv4 and one IPv6.
    pub addresses: Vec<IpAddr>,
    /// The port's MAC address.
    pub mac: Mac,
    /// UDP port of the tunnels, [`VXLAN_PORT`] unless there is a reason.
    pub udp_port: u16,
    /// Largest outer IP packet, bytes.
    pub mtu: u16,
    /// Outer IPv4 headers have DF set: no router may fragment the packet.
    pub dont_fragment: bool,
}

/// The MAC address to which frames for a tunnel end point go: its own, or a router's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborSpec {
    /// The tunnel end point.
    pub host: IpAddr,
    /// The MAC address.
    pub mac: Mac,
}

/// How often services run for one port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceLimit {
    /// Answers a second.
    pub rate: u32,
    /// Answers at once.
    pub burst: u32,
    /// How long a DHCP lease is given for, seconds.
    pub lease: u32,
}

impl Default for ServiceLimit {
    fn default() -> ServiceLimit {
        ServiceLimit { rate: 1000, burst: 256, lease: 86_400 }
    }
}

/// How many connections a node keeps for endpoints in security groups. Half of them are in equal shares of the networks
/// that have such endpoints; the rest is for any of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionLimit(pub u32);

impl Default for ConnectionLimit {
    /// 262,144, in some 60 MB, which are taken as connections come.
    fn default() -> ConnectionLimit {
        ConnectionLimit(1 << 18)
    }
}

/// How many entries the tables that are loaded by file have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableCapacity {
    /// Guests on other nodes, those that are not loaded included.
    pub endpoints: usize,
    /// Routes, likewise.
    pub routes: usize,
    /// Nodes that entries lead to, likewise.
    pub hosts: usize,
}
