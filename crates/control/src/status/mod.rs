//! What a running node says about itself, and how that is shown: tables, live, JSON (serde), Prometheus.
//!
//! Counters count from the start of the data plane; where it was restarted they begin again at zero, as Prometheus
//! expects of a restarted target.

mod forwarding;
mod function;
mod prometheus;
mod steering;
mod table;
mod top;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::config::{LatencyClass, Network, Percent, Tenant, TenantLimits};

pub use forwarding::{FlowTableStatus, HeavyFlowStatus, PathCounts, WayCounts};
pub use function::{
    AnalyticsStatus, FirewallStatus, FunctionStatus, MonitorStatus, RuleStatus, TopItem, TopStatus, WindowStatus,
};
pub use prometheus::prometheus;
pub use steering::{SteeringRuleStatus, SteeringShare, SteeringStatus};
pub use table::{
    TABLE_WIDTH, device_table, ecmp_table, function_table, lookup_table, network_table, steering_table, table,
    tenant_table, volume_table,
};
pub use top::{Top, run as run_top};

/// Everything about a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// softdpu's version.
    pub version: String,
    /// Seconds since the supervisor started.
    pub uptime_s: u64,
    /// The supervisor's process.
    pub supervisor_pid: u32,
    /// The process that does the work.
    pub data_plane: DataPlaneStatus,
    /// Its cores.
    pub cores: Vec<CoreStatus>,
    /// The devices.
    pub devices: Vec<DeviceStatus>,
    /// The volumes.
    pub volumes: Vec<VolumeStatus>,
    /// The tenants.
    pub tenants: Vec<TenantStatus>,
    /// The networks.
    #[serde(default)]
    pub networks: Vec<NetworkStatus>,
    /// The underlay, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub underlay: Option<UnderlayStatus>,
    /// Why the entries that were loaded by file before the data plane's start are not in force, where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_error: Option<String>,
    /// Why changes that were made are not kept for the next start, where they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unsaved: Option<String>,
    /// Functions that devices may have.
    #[serde(default)]
    pub functions: Vec<FunctionStatus>,
    /// Packet traces that are under way.
    #[serde(default)]
    pub traces: Vec<TraceStatus>,
    /// What meters found.
    #[serde(default)]
    pub meters: Vec<MeterStatus>,
    /// Connections of interfaces in security groups, where there are such interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<ConnectionStatus>,
    /// On which cores packets from tunnels are worked on, where something was said of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steering: Option<SteeringStatus>,
}

/// What a meter found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MeterStatus {
    /// `device` or `tenant`, and its name.
    pub name: String,
    /// Within the committed rate.
    pub green: ColourCount,
    /// Within the second rate.
    pub yellow: ColourCount,
    /// Beyond both: dropped.
    pub red: ColourCount,
}

/// What a meter found of one colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ColourCount {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The node's connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionStatus {
    /// There are now.
    pub known: u64,
    /// There can be.
    pub capacity: u64,
    /// Were opened.
    pub opened: u64,
    /// Have ended.
    pub ended: u64,
    /// Packets that were refused.
    pub refused: u64,
}

/// The data-plane process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataPlaneStatus {
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// What it is doing.
    pub state: DataPlaneState,
    /// How often it was started again.
    pub restarts: u64,
    /// How it ended last, such as `killed by SIGKILL`.
    pub last_exit: Option<String>,
    /// From its last start until it was ready, in microseconds.
    pub time_to_ready_us: Option<u64>,
    /// From its last end until the first request completed again, in microseconds.
    pub first_completion_after_restart_us: Option<u64>,
}

/// What the data plane is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataPlaneState {
    /// It was started and is not ready yet.
    #[default]
    Starting,
    /// It serves.
    Running,
    /// It ended and is started again in a moment.
    Restarting,
    /// It ended too often, or cannot start.
    Failed,
    /// It was told to stop.
    Stopped,
}

/// One data-plane core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CoreStatus {
    /// The CPU it is pinned to.
    pub cpu: u32,
    /// What it is doing.
    pub state: CoreState,
    /// Time with work, in nanoseconds.
    pub busy_ns: u64,
    /// Time without work, spinning or asleep, in nanoseconds.
    pub idle_ns: u64,
    /// How often its loop went round.
    pub loops: u64,
    /// Grants that its scheduler gave: a grant is some work of one queue.
    #[serde(default)]
    pub grants: u64,
    /// How often it was woken.
    pub wakeups: u64,
    /// How many queues it serves.
    pub queues: u32,
    /// Requests that ended here when their queue had moved on to another core, which completed them.
    #[serde(default)]
    pub travelled: u64,
    /// Frames that came to its network, and who decided what becomes of them.
    pub frames: FrameCounts,
    /// Frames that left networks, by where to and by the datapath that they took.
    #[serde(default)]
    pub paths: PathCounts,
    /// Its flows.
    #[serde(default)]
    pub flows: FlowTableStatus,
    /// Those that carried most in the last second, the heaviest first.
    #[serde(default)]
    pub heavy_flows: Vec<HeavyFlowStatus>,
}

/// Frames by the tier that decided what becomes of them; one that stands for several counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameCounts {
    /// Flow tier: as for the packet before.
    pub flow: u64,
    /// Switch tier: the first of a flow, those that no flow can stand for, and what it drops.
    pub switch: u64,
    /// Software tier: for the network's own services.
    pub software: u64,
}

/// What a core is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CoreState {
    /// It polls.
    #[default]
    Spinning,
    /// It waits to be woken.
    Sleeping,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// Whose it is.
    pub tenant: String,
    /// The guest whose memory it shares.
    pub domain: String,
    /// Its kind, such as `virtio-blk`.
    pub kind: String,
    /// What it is doing.
    pub state: DeviceState,
    /// Why it is broken, or what its queues wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_reason: Option<String>,
    /// The volume it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<String>,
    /// Its socket.
    pub socket: PathBuf,
    /// The process that is connected to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
    /// Its queues.
    pub queues: Vec<QueueStatus>,
    /// Its port, where it is an interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<PortStatus>,
    /// Names of the virtio features that were negotiated.
    pub features: Vec<String>,
    /// Messages of front ends that were refused or led to the end of their connection.
    #[serde(default)]
    pub protocol_errors: u64,
    /// Front ends that were closed because data planes died of them; kept until the device is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_front_ends: Option<ClosedFrontEnds>,
}

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
    /// How its routes are looked up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lookups: Vec<RouteLookup>,
}

/// How routes of one family that are looked up together are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteLookup {
    /// Whose they are.
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
    /// Its share of new flows, in thousandths.
    pub share_permille: u32,
    /// Packets that were sent to it since the data plane began.
    pub packets: u64,
    /// Their bytes, without tunnel headers.
    pub bytes: u64,
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
    /// The way there is not known: nobody has told a MAC address, or nobody with the address is attached.
    Unresolved,
}

impl MemberState {
    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            MemberState::Up => "up",
            MemberState::Down => "down",
            MemberState::Unresolved => "unresolved",
        }
    }
}

impl NetworkStatus {
    /// What is known of a network as it is configured, with `ports` devices of this node in it.
    pub(crate) fn new(network: &Network, mtu: u16, ports: usize) -> NetworkStatus {
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
            lookups: Vec::new(),
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

/// A packet trace that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceStatus {
    /// Counts from 1 since the data plane started.
    pub id: u64,
    /// Ports that it watches; none: all.
    pub ports: Vec<String>,
    /// Which frames; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Frames that were wanted, and kept for its client.
    pub captured: u64,
    /// Frames that were wanted, for which there was no room.
    pub lost: u64,
    /// For how many seconds.
    pub for_s: u64,
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

/// The process behind a front end's socket when it connected (SO_PEERCRED).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Process id.
    pub pid: i32,
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
}

/// Front ends of a device that were closed because data planes died of what they sent or share.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClosedFrontEnds {
    /// How many.
    pub count: u32,
    /// Why the last one was.
    pub reason: String,
    /// In how many seconds the device accepts a front end again.
    pub accepts_in_s: u64,
}

/// What a device is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    /// Nobody is connected.
    #[default]
    Listening,
    /// A front end is connected, its driver does not run yet.
    Connected,
    /// A driver uses it.
    Running,
    /// Its volume is being opened, or is not fenced yet: a front end that connects waits, its queues start by themselves.
    Opening,
    /// Its driver broke the rules, and a reset brings it back; or its volume cannot be opened, which is tried again.
    Broken,
}

/// One queue of a device. Counters are cumulative.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Which of the device's queues.
    pub index: u16,
    /// The CPU that serves it.
    pub core: Option<u32>,
    /// How many descriptors it has.
    pub size: u16,
    /// Its layout.
    pub format: QueueFormat,
    /// Whether it runs.
    pub running: bool,
    /// Requests by type.
    pub requests: RequestCounts,
    /// Bytes read from the volume.
    pub read_bytes: u64,
    /// Bytes written to the volume.
    pub written_bytes: u64,
    /// Requests that ended in an error status.
    pub errors: u64,
    /// Notifications from the driver.
    pub kicks: u64,
    /// Interrupts sent to the driver.
    pub interrupts_sent: u64,
    /// Interrupts the driver did not want.
    pub interrupts_suppressed: u64,
    /// Requests that have started and not completed.
    pub inflight: u32,
    /// Frames that went through it, of an interface: to its driver by a receive queue, from it by a transmit queue. One that stands
    /// for several counts once.
    #[serde(default)]
    pub frames: u64,
    /// Their bytes.
    #[serde(default)]
    pub frame_bytes: u64,
    /// Frames that found no buffer in a receive queue, and chains of a transmit queue that are no frames.
    #[serde(default)]
    pub dropped_frames: u64,
    /// Why it is broken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken_reason: Option<String>,
}

/// A virtqueue's layout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueueFormat {
    /// Split (virtio 1.3 §2.7).
    #[default]
    Split,
    /// Packed (virtio 1.3 §2.8).
    Packed,
}

/// Requests by type (virtio 1.3 §5.2.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestCounts {
    /// VIRTIO_BLK_T_IN
    pub reads: u64,
    /// VIRTIO_BLK_T_OUT
    pub writes: u64,
    /// VIRTIO_BLK_T_FLUSH
    pub flushes: u64,
    /// VIRTIO_BLK_T_DISCARD
    pub discards: u64,
    /// VIRTIO_BLK_T_WRITE_ZEROES
    pub write_zeroes: u64,
    /// VIRTIO_BLK_T_GET_ID and what is not known
    pub others: u64,
}

/// What went wrong with a volume, by kind: requests that failed, whose sum is [`VolumeStatus::errors`].
pub(crate) fn failures(counts: &softdpu_storage::ErrorCounts) -> [(&'static str, u64); 5] {
    [
        ("no-space", counts.no_space),
        ("device", counts.device),
        ("timeout", counts.timeout),
        ("refused", counts.refused),
        ("gone", counts.gone),
    ]
}

impl RequestCounts {
    /// Counts what `more` counted as well.
    pub(crate) fn add(&mut self, more: &RequestCounts) {
        self.reads += more.reads;
        self.writes += more.writes;
        self.flushes += more.flushes;
        self.discards += more.discards;
        self.write_zeroes += more.write_zeroes;
        self.others += more.others;
    }

    /// The counts with their names, as metrics and tables call them.
    pub fn by_type(&self) -> [(&'static str, u64); 6] {
        [
            ("read", self.reads),
            ("write", self.writes),
            ("flush", self.flushes),
            ("discard", self.discards),
            ("write-zeroes", self.write_zeroes),
            ("other", self.others),
        ]
    }

    /// All of them.
    pub fn total(&self) -> u64 {
        self.by_type().iter().map(|(_, count)| count).sum()
    }
}

/// One volume. Counters are cumulative, over all its devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct VolumeStatus {
    /// Its name.
    pub name: String,
    /// What it is kept in: `null`, `memory`, `file`, `device` or `nbd`.
    pub kind: String,
    /// What it is doing.
    pub state: VolumeState,
    /// Its size in bytes.
    pub size: u64,
    /// Its logical block size in bytes.
    pub block_size: u32,
    /// No device may write it.
    pub read_only: bool,
    /// Cipher and bits of the key where it is encrypted, such as `aes-xts-plain64 512`. While it is not open, the cipher alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<String>,
    /// Several devices may write it.
    pub shared: bool,
    /// How many devices use it.
    pub users: u32,
    /// Requests by type.
    pub requests: RequestCounts,
    /// Requests that failed.
    pub errors: u64,
    /// The same by reason, and what became of connections to the back end.
    #[serde(default)]
    pub counters: softdpu_storage::ErrorCounts,
    /// Why it failed, or the last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where it is kept, or what it is waiting for.
    pub detail: String,
}

/// What a volume is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VolumeState {
    /// It is being opened for the first time.
    Opening,
    /// Readable, not fenced: no queue uses it.
    #[default]
    Opened,
    /// In use, and fenced against other writers.
    Active,
    /// Its back end went away; requests wait.
    Recovering,
    /// Requests fail, or it cannot be opened and is tried again.
    Failed,
}

/// One tenant. Counters are cumulative.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantStatus {
    /// Its name.
    pub name: String,
    /// Its share.
    pub weight: u32,
    /// Requests that wait for a core now.
    pub queued: u64,
    /// Requests that were served.
    pub served: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Core time it used, in nanoseconds.
    pub core_time_ns: u64,
    /// Who goes first among tenants below their share.
    #[serde(default)]
    pub class: LatencyClass,
    /// What it has of all cores' time while it has work.
    #[serde(default)]
    pub guarantee: Percent,
    /// What it may not exceed.
    #[serde(default)]
    pub limits: TenantLimits,
    /// What all its requests have waited for a core, together, in nanoseconds.
    #[serde(default)]
    pub waited_ns: u64,
    /// For how long a limit held some of them, on all cores together, in nanoseconds.
    #[serde(default)]
    pub limited_ns: u64,
    /// Core by core, where it ever had work.
    #[serde(default)]
    pub cores: Vec<TenantOnCore>,
}

impl TenantStatus {
    /// What a tenant may do, and nothing done.
    pub fn declared(tenant: &Tenant) -> TenantStatus {
        TenantStatus {
            name: tenant.name.clone(),
            weight: tenant.weight,
            class: tenant.class,
            guarantee: tenant.guarantee,
            limits: tenant.limits,
            ..TenantStatus::default()
        }
    }
}

/// A tenant on one core. Counters are cumulative.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TenantOnCore {
    /// The core's CPU.
    pub cpu: u32,
    /// Requests that wait now.
    pub queued: u64,
    /// Requests that were served.
    pub served: u64,
    /// Bytes that were moved.
    pub bytes: u64,
    /// Core time it used, in nanoseconds.
    pub core_time_ns: u64,
    /// Of what all tenants used of this core, in thousandths.
    pub share: u16,
    /// What all its requests have waited, together, in nanoseconds.
    pub waited_ns: u64,
    /// For how long a limit held some of them, in nanoseconds.
    pub limited_ns: u64,
    /// The part of its limit of requests that this core has, a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_limit: Option<u64>,
}

macro_rules! display_as_written {
    ($($kind:ty { $($variant:ident = $text:literal),* $(,)? })*) => {$(
        impl $kind {
            /// Every value, in the order of the declaration.
            pub const ALL: &'static [$kind] = &[$(<$kind>::$variant),*];
        }

        impl std::fmt::Display for $kind {
            /// As in JSON and in metric labels.
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(match self { $(<$kind>::$variant => $text),* })
            }
        }
    )*};
}

display_as_written! {
    DataPlaneState {
        Starting = "starting", Running = "running", Restarting = "restarting", Failed = "failed", Stopped = "stopped",
    }
    CoreState { Spinning = "spinning", Sleeping = "sleeping" }
    DeviceState {
        Listening = "listening", Connected = "connected", Running = "running", Opening = "opening", Broken = "broken",
    }
    QueueFormat { Split = "split", Packed = "packed" }
    VolumeState { Opening = "opening", Opened = "opened", Active = "active", Recovering = "recovering", Failed = "failed" }
}

impl NodeStatus {
    /// What is broken, worst first, a line each.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !matches!(self.data_plane.state, DataPlaneState::Running) {
            let exit = self.data_plane.last_exit.as_ref().map(|exit| format!(": last {exit}")).unwrap_or_default();
            problems.push(format!("the data plane is {}{exit}", self.data_plane.state));
        }
        for volume in &self.volumes {
            if matches!(volume.state, VolumeState::Failed | VolumeState::Recovering) {
                let why = volume.error.as_deref().unwrap_or(&volume.detail);
                problems.push(format!("volume {} is {}: {why}", volume.name, volume.state));
            }
            if volume.state == VolumeState::Opened && !volume.detail.is_empty() {
                problems.push(format!("volume {} is not fenced yet: {}", volume.name, volume.detail));
            }
        }
        problems.extend(self.unsaved.clone());
        if let Some(error) = &self.load_error {
            problems.push(format!("the entries that were loaded by file are not in force: {error}"));
        }
        let absence =
            self.underlay.as_ref().and_then(|underlay| Some((&underlay.interface, underlay.absence.as_ref()?)));
        if let Some((interface, UnderlayAbsence { reason, for_s, attempts, next_in_s })) = absence {
            problems.push(format!(
                "the underlay {interface} is away for {}: {reason}; tried {attempts} times, again in {next_in_s} s",
                table::elapsed(*for_s)
            ));
        }
        for device in &self.devices {
            if device.state == DeviceState::Broken {
                let why = device.broken_reason.as_deref().unwrap_or("no reason was given");
                problems.push(format!("device {} is broken: {why}", device.name));
            }
            if let Some(closed) = device.closed_front_ends.as_ref().filter(|_| device.state != DeviceState::Running) {
                let again = match closed.accepts_in_s {
                    0 => String::new(),
                    seconds => format!("; another is accepted in {seconds} s"),
                };
                problems.push(format!("the front end of device {} was closed: {}{again}", device.name, closed.reason));
            }
            for queue in &device.queues {
                if let Some(why) = &queue.broken_reason {
                    problems.push(format!("device {} queue {} is broken: {why}", device.name, queue.index));
                }
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests;
