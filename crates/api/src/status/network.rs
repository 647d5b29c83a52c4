//! Networks, and the ports of interfaces and of the underlay.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use softdpu_site::Network;

/// A network.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkStatus {
    /// Its name.
    pub name: String,
    /// The only tenant whose devices may be in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its VXLAN network identifier.
    pub vni: u32,
    /// Its subnets.
    pub subnets: Vec<String>,
    /// Their gateways, in the same order.
    pub gateways: Vec<String>,
    /// The largest IP packet, bytes.
    pub mtu: u16,
    /// Devices of this node in it.
    pub ports: u32,
    /// Endpoints on other hosts, those not loaded by file.
    pub remote_endpoints: u32,
    /// Endpoints on other hosts that were loaded by file.
    #[serde(default)]
    pub loaded_endpoints: u64,
    /// Routes that were loaded by file.
    #[serde(default)]
    pub loaded_routes: u64,
    /// Networks whose members its own reach.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers: Vec<String>,
    /// Networks that it names as peers and that do not name it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pending_peers: Vec<String>,
    /// Its ECMP groups.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ecmp: Vec<EcmpStatus>,
    /// Its exits with translation that are attached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nat: Vec<NatStatus>,
    /// How its routes are looked up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lookups: Vec<RouteLookup>,
}

impl NetworkStatus {
    /// What is known of a network as it is configured, with `ports` devices of this node in it.
    pub fn new(network: &Network, mtu: u16, ports: usize) -> NetworkStatus {
        NetworkStatus {
            name: network.name.clone(),
            tenant: network.tenant.clone(),
            vni: network.vni.get(),
            subnets: network.cidr.iter().map(ToString::to_string).collect(),
            gateways: network.gateway.iter().map(ToString::to_string).collect(),
            mtu,
            ports: u32::try_from(ports).unwrap_or(u32::MAX),
            remote_endpoints: u32::try_from(network.endpoints.len()).unwrap_or(u32::MAX),
            loaded_endpoints: 0,
            loaded_routes: 0,
            peers: Vec::new(),
            pending_peers: Vec::new(),
            ecmp: Vec::new(),
            nat: Vec::new(),
            lookups: Vec::new(),
        }
    }
}

/// What was counted at an exit with translation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NatStatus {
    /// The exit's address.
    pub exit: String,
    /// Connections that have a port of a shared address. Those that are over count until their guest opens others.
    pub translations: u64,
    /// Packets that were dropped because their guest's ports were taken.
    pub exhausted: u64,
}

/// How routes of one family that are looked up together are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteLookup {
    /// The network that they are of.
    pub of: RoutesOf,
    /// Of a route table: its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// How.
    pub by: LookupBy,
    /// By longest prefix match: why it is not an exact match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
    /// Two prefixes that overlap, the wide one first, where that is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlapping: Option<[String; 2]>,
}

/// Whose routes are looked up together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoutesOf {
    /// The network's, with its subnets and those of its peers.
    #[default]
    Network,
    /// Those that were loaded by file.
    Loaded,
    /// A route table's.
    RouteTable,
}

/// How routes are looked up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LookupBy {
    /// By exact match.
    #[default]
    Exact,
    /// By longest prefix match.
    Lpm,
}

/// An ECMP group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EcmpStatus {
    /// Its name.
    pub name: String,
    /// Its members.
    pub members: Vec<EcmpMemberStatus>,
}

/// A member of an ECMP group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EcmpMemberStatus {
    /// The host's tunnel end point, or the guest's address.
    pub member: String,
    /// Its weight.
    pub weight: u16,
    /// Its availability zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Whether it may get packets.
    pub state: MemberState,
    /// Its BFD session, where the group has BFD and the member is a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bfd: Option<BfdStatus>,
    /// Its share of new flows, in thousandths.
    pub share_permille: u32,
    /// Packets that were sent to it since the data plane began.
    pub packets: u64,
    /// Their bytes, without tunnel headers.
    pub bytes: u64,
}

/// A BFD session with a host (RFC 5880).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BfdStatus {
    /// `admin-down`, `down`, `init` or `up`.
    pub state: String,
    /// Why it went down last: `none`, `detection-time-expired`, `neighbour-down`, or the number that the host gave.
    pub diagnostic: String,
    /// The host is reached over a router, by multihop packets (RFC 5883).
    pub multihop: bool,
}

/// Whether a member of an ECMP group may get packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberState {
    /// It may.
    #[default]
    Up,
    /// It was set down.
    Down,
    /// Its BFD session is not up.
    BfdDown,
    /// The next hop is not resolved: its MAC address is not known, or no guest with the address is attached.
    Unresolved,
}

impl MemberState {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            MemberState::Up => "up",
            MemberState::Down => "down",
            MemberState::BfdDown => "bfd-down",
            MemberState::Unresolved => "unresolved",
        }
    }
}

/// An interface's port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortStatus {
    /// The network it is in.
    pub network: String,
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its MAC address.
    pub mac: String,
    /// The largest IP packet, bytes.
    pub mtu: u16,
    /// What passed through it.
    #[serde(flatten)]
    pub counts: PortCounts,
}

/// What passed through a port: `in` from it into the node, `out` by it out of the node. A frame that stands for several
/// counts once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounts {
    /// Frames that came in. Those whose header or length is wrong, and what is above a limit, count as dropped only.
    pub frames_in: u64,
    /// Their bytes.
    pub bytes_in: u64,
    /// Frames that went out.
    pub frames_out: u64,
    /// Their bytes.
    pub bytes_out: u64,
    /// Frames that services saw.
    pub software: u64,
    /// Times that a sender was held, because this port had no room.
    pub held: u64,
    /// Bytes that were copied on their way out.
    pub copied_bytes: u64,
    /// Bytes of frames' heads that were copied before, to be looked at: 192 of each frame at the most.
    pub copied_heads_bytes: u64,
    /// Bytes behind heads that were copied a second time: cut up, summed, or for another core.
    pub copied_again_bytes: u64,
    /// Frames that came in and were dropped, by reason.
    #[serde(default)]
    pub dropped_in: BTreeMap<String, u64>,
    /// Frames that were to go out and were dropped, by reason.
    #[serde(default)]
    pub dropped_out: BTreeMap<String, u64>,
}

/// The way to other hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderlayStatus {
    /// The interface that carries tunnels.
    #[serde(default)]
    pub interface: String,
    /// How frames get to the interface and from it, while it can be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<UnderlayPath>,
    /// While the interface cannot be used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub absence: Option<UnderlayAbsence>,
    /// What passed through it.
    #[serde(flatten)]
    pub counts: PortCounts,
}

/// How frames get to the underlay's interface and from it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderlayPath {
    /// `af-xdp` or `af-packet`.
    pub backend: String,
    /// On AF_XDP: `zero-copy` where the driver works on the sockets' own memory, else `copy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<String>,
    /// On AF_XDP: receive queues, each with a socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queues: Option<u32>,
}

/// An underlay whose interface cannot be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderlayAbsence {
    /// Why.
    pub reason: String,
    /// For how many seconds.
    pub for_s: u64,
    /// How often it was tried meanwhile.
    pub attempts: u64,
    /// In how many seconds it is tried again.
    pub next_in_s: u64,
}
