//! What a site file says about networks: `[node] underlay`, `[[network]]`, and the devices that attach to them.
//!
//! A [`Network`] is a set of routed subnets, told apart from all others by its VNI. A [`NetworkPort`] is where one of
//! this node's devices attaches to it; an [`Endpoint`] is a guest of the same network on another host, behind the
//! underlay.

pub(super) mod file;
mod load;
mod mac;
mod membership;
pub(super) mod meter;
mod nat;
mod policy;
pub(super) mod read;
mod routing;
pub(crate) mod rules;
mod tables;

use std::collections::HashSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::site::{Device, DeviceKind, Node, Site, SocketAccess};
use super::units::{BitsPerSecond, Bytes, Span};

pub use softdpu_vpc::Vni;

pub use file::{NetworkChange, NetworkChanges, NetworkPart, Places, networks_file};
pub use load::{LONGEST_LINE, LoadLine, LoadVia, load_line};
pub use mac::{MacAddress, MacError};
pub use membership::DeviceChange;
pub(super) use membership::given;
pub(super) use meter::meter;
pub use meter::{ColourBy, MeterSettings};
pub use nat::{Floating, Forward, ForwardProtocol, Nat, NatChange, SharedAddresses};
pub use policy::{Acl, AclAction, AclRule, Direction, GroupRule, PolicyChange, PortRange, Protocol, SecurityGroup};
pub(super) use policy::{check_firewall, firewall_rule};
pub use routing::{EcmpGroup, EcmpMember, LARGEST_MEMBER_WEIGHT, MemberChange, Route, RouteTable, RoutingChange};
pub use tables::{TableUse, first_beyond, full, hosts};

/// The largest frame's payload that a network without an underlay carries where it does not say: Ethernet's own.
pub const DEFAULT_MTU: u16 = 1500;
/// The UDP port of VXLAN (RFC 7348 §5).
pub const VXLAN_PORT: u16 = 4789;
/// What VXLAN over IPv4 takes of the underlay's MTU: IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14 bytes (RFC 7348 §5).
const OVERHEAD_IPV4: u16 = 20 + 8 + 8 + 14;
/// The same over IPv6, whose header has 40 bytes.
const OVERHEAD_IPV6: u16 = 40 + 8 + 8 + 14;

/// `node.underlay`: how this node reaches the other hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Underlay {
    /// The host's interface that carries tunnelled frames.
    pub interface: String,
    /// This node's tunnel end points, at most one of IPv4 and one of IPv6; the interface's own where empty.
    #[serde(default, rename = "address", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// The UDP port that VXLAN is received on and sent to.
    pub port: u16,
    /// How frames get to the interface and from it.
    pub backend: UnderlayBackend,
    /// The largest IP packet that the hosts can send each other; the interface's own where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// How BFD sessions with other hosts go.
    #[serde(default)]
    pub bfd: Bfd,
}

/// `node.underlay.bfd`: sessions with the hosts of ECMP groups that ask for them (RFC 5880).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Bfd {
    /// The interval at which this host wants to send and can receive packets.
    pub interval: Span,
    /// Packets in a row whose loss takes a session down.
    pub multiplier: u8,
}

impl Default for Bfd {
    fn default() -> Bfd {
        Bfd { interval: Span::from_micros(100_000), multiplier: 3 }
    }
}

impl Underlay {
    /// What tunnelling takes of the MTU between tunnel end points with `addresses`: as much as the largest of their
    /// headers.
    pub fn overhead<'a>(addresses: impl IntoIterator<Item = &'a IpAddr>) -> u16 {
        if addresses.into_iter().any(IpAddr::is_ipv6) { OVERHEAD_IPV6 } else { OVERHEAD_IPV4 }
    }
}

/// `node.tables`: how many entries the tables of networks have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TableSizes {
    /// Guests on other hosts, loaded by file or not.
    pub endpoints: u32,
    /// Routes, those of route tables among them, loaded by file or not.
    pub routes: u32,
    /// Hosts that entries lead to, loaded by file or not.
    pub hosts: u32,
    /// Flows that each data-plane core keeps.
    pub flows: u32,
    /// Connections of interfaces in security groups.
    pub connections: u32,
}

impl Default for TableSizes {
    fn default() -> TableSizes {
        TableSizes { endpoints: 1 << 20, routes: 1 << 18, hosts: 1 << 14, flows: 1 << 16, connections: 1 << 18 }
    }
}

/// How frames get to the underlay's interface and from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UnderlayBackend {
    /// AF_XDP where the interface does it without copies, AF_PACKET otherwise.
    #[default]
    Auto,
    /// AF_XDP, or not at all: a socket for each receive queue.
    AfXdp,
    /// AF_PACKET: works with every interface.
    AfPacket,
}

/// `[[network]]`: one tenant's network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Its name, unique among networks.
    pub name: String,
    /// The only tenant whose devices may attach; any where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// What tells it from other networks on the underlay; unique among networks.
    pub vni: Vni,
    /// The prefixes of its subnets, at least one; they do not overlap. [`subnets`](Network::subnets) has them with
    /// their gateways.
    pub cidr: Vec<IpNet>,
    /// The subnets' gateways, in the order of `cidr`.
    pub gateway: Vec<IpAddr>,
    /// The largest IP packet it carries; [`Site::network_mtu`] where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Frames from one host may go on to another: this node is a gateway between them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub transit: bool,
    /// The name servers that DHCP and router advertisements name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dns: Vec<IpAddr>,
    /// Its guests on other hosts.
    #[serde(default, rename = "endpoint", skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// Networks whose guests its own reach, where these name it, too.
    #[serde(default, rename = "peer", skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Where packets go whose destination is not in it.
    #[serde(default, rename = "route", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Next hops of routes, of which each flow takes one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ecmp: Vec<EcmpGroup>,
    /// Routes of some sources, before those of all.
    #[serde(default, rename = "route-table", skip_serializing_if = "Vec::is_empty")]
    pub route_tables: Vec<RouteTable>,
    /// What is translated at its exits.
    #[serde(default, rename = "nat", skip_serializing_if = "Vec::is_empty")]
    pub nats: Vec<Nat>,
    /// What its guests may be allowed: groups that they are in,
    #[serde(default, rename = "security-group", skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<SecurityGroup>,
    /// and lists that they name.
    #[serde(default, rename = "acl", skip_serializing_if = "Vec::is_empty")]
    pub acls: Vec<Acl>,
}

/// A subnet of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Its addresses.
    pub prefix: IpNet,
    /// Where its guests send what is for other subnets.
    pub gateway: IpAddr,
}

impl Network {
    /// Its subnets with their gateways.
    pub fn subnets(&self) -> impl Iterator<Item = Subnet> {
        self.cidr.iter().zip(&self.gateway).map(|(prefix, gateway)| Subnet { prefix: *prefix, gateway: *gateway })
    }

    /// The subnet that `address` belongs to.
    pub fn subnet_of(&self, address: IpAddr) -> Option<Subnet> {
        self.subnets().find(|subnet| subnet.prefix.contains(&address))
    }

    /// Whether one of its subnets is IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.cidr.iter().any(|prefix| matches!(prefix, IpNet::V6(_)))
    }

    /// Takes those endpoints out that have one of the addresses `remove`, then puts `add` in.
    pub fn change_endpoints(&mut self, add: &[Endpoint], remove: &[IpAddr]) {
        let gone: HashSet<&IpAddr> = remove.iter().collect();
        self.endpoints.retain(|endpoint| !endpoint.addresses.iter().any(|address| gone.contains(address)));
        self.endpoints.extend_from_slice(add);
    }

    /// The MAC address of its gateways: one for all, and the same on every host, so that a guest that moves keeps it.
    pub fn gateway_mac(&self) -> MacAddress {
        let address = self.gateway.first().copied().unwrap_or(IpAddr::V4(0.into()));
        MacAddress::derived(&self.name, address)
    }

    /// The MTU where `underlay` is that between hosts and `overhead` what tunnelling takes of it
    /// ([`Underlay::overhead`]); without an underlay, Ethernet's own.
    pub fn mtu_over(&self, underlay: Option<(u16, u16)>) -> u16 {
        self.mtu.unwrap_or_else(|| underlay.map_or(DEFAULT_MTU, |(mtu, overhead)| mtu.saturating_sub(overhead)))
    }
}

/// `network.endpoint`: a guest of the network on another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Endpoint {
    /// Its addresses in the network, at least one.
    #[serde(rename = "address")]
    pub addresses: Vec<IpAddr>,
    /// Its MAC address.
    pub mac: MacAddress,
    /// The tunnel end point of the host it is on.
    pub host: IpAddr,
    /// The security groups of the network that it is in; their rules for it are its own host's.
    #[serde(default, rename = "security-groups", skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
}

/// Where a device attaches to a network: what `device.virtio-net` and `device.tap` have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct NetworkPort {
    /// The network.
    pub network: String,
    /// Its addresses in the network, at least one; the first of each family is what DHCP gives out.
    #[serde(rename = "address")]
    pub addresses: Vec<IpAddr>,
    /// Its MAC address, unique in the network.
    pub mac: MacAddress,
    /// How many queue pairs it has.
    pub queues: u16,
    /// The largest IP packet, where it is smaller than the network's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u16>,
    /// Drop what it sends with a MAC or IP address that is not its own.
    pub spoof_check: bool,
    /// The most it may send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<RateLimit>,
    /// The most it receives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_rate: Option<RateLimit>,
    /// The meter that what it sends passes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<MeterSettings>,
    /// The security groups of the network that it is in; without one, everything passes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub security_groups: Vec<String>,
    /// The access control list of the network that is asked about what it sends and what is sent to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acl: Option<String>,
    /// The functions that its frames pass, in this order both ways.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub functions: Vec<String>,
}

/// `rate` or `receive-rate` of a port: the most it may send, or receives, in packets, in bits, or both; a token bucket
/// each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RateLimit {
    /// Packets per second; unlimited where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// How many packets may come at once; there where `packets` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_burst: Option<u64>,
    /// Bits of Ethernet frames per second; unlimited where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BitsPerSecond>,
    /// How many bytes may come at once; there where `bandwidth` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_burst: Option<Bytes>,
}

impl RateLimit {
    /// Packets per second and packets at once, where packets are limited.
    pub fn packet_bucket(&self) -> Option<(u64, u64)> {
        self.packets.zip(self.packets_burst)
    }

    /// Bits per second and bytes at once, where bandwidth is limited.
    pub fn bandwidth_bucket(&self) -> Option<(BitsPerSecond, Bytes)> {
        self.bandwidth.zip(self.bandwidth_burst)
    }
}

/// `device.virtio-net`: a virtio network device over vhost-user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct VirtioNet {
    /// Where it attaches.
    #[serde(flatten)]
    pub port: NetworkPort,
    /// How many descriptors a queue may have at the most: a power of two.
    pub queue_size: u16,
    /// Offer packed virtqueues beside split ones (virtio 1.3 §2.8).
    pub packed: bool,
    /// Its socket.
    #[serde(flatten)]
    pub access: SocketAccess,
}

/// `device.tap`: a port for the host itself, or for a container.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Tap {
    /// Where it attaches.
    #[serde(flatten)]
    pub port: NetworkPort,
    /// The TAP interface of the host.
    pub interface: String,
}

/// What a site file says of the way to other hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnderlayPath {
    /// There is none.
    None,
    /// Its MTU is written down.
    Known { mtu: u16, overhead: u16 },
    /// Its MTU is its interface's.
    Unknown,
}

impl Node {
    pub(crate) fn underlay_path(&self) -> UnderlayPath {
        match &self.underlay {
            None => UnderlayPath::None,
            // Without addresses in the site file these are the interface's, and may be IPv6 too.
            Some(Underlay { mtu: Some(mtu), addresses, .. }) if !addresses.is_empty() => {
                UnderlayPath::Known { mtu: *mtu, overhead: Underlay::overhead(addresses) }
            }
            Some(_) => UnderlayPath::Unknown,
        }
    }
}

impl Device {
    /// Where it attaches to a network, where it is a network device.
    pub fn port(&self) -> Option<&NetworkPort> {
        match &self.kind {
            DeviceKind::VirtioBlk(_) => None,
            DeviceKind::VirtioNet(net) => Some(&net.port),
            DeviceKind::Tap(tap) => Some(&tap.port),
        }
    }

    /// The same, to be changed.
    pub fn port_mut(&mut self) -> Option<&mut NetworkPort> {
        match &mut self.kind {
            DeviceKind::VirtioBlk(_) => None,
            DeviceKind::VirtioNet(net) => Some(&mut net.port),
            DeviceKind::Tap(tap) => Some(&mut tap.port),
        }
    }
}

#[cfg(test)]
mod tests;
