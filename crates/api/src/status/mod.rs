//! What a running node says about itself, as JSON (serde) and for Prometheus.
//!
//! Counters count from the start of the data plane; where it was restarted they begin again at zero, as Prometheus
//! expects of a restarted target.

mod control_plane;
mod device;
mod forwarding;
mod function;
mod network;
mod prometheus;
mod steering;
mod tenant;
mod volume;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use control_plane::{ControlPlaneStatus, ControlPlaneTaskStatus, TaskState};
pub use device::{ClosedFrontEnds, DeviceState, DeviceStatus, Peer, QueueFormat, QueueStatus, RequestCounts};
pub use forwarding::{FlowTableStatus, HeavyFlowStatus, PathCounts, WayCounts};
pub use function::{
    AnalyticsStatus, FirewallStatus, FunctionStatus, MonitorStatus, RuleStatus, TopItem, TopStatus, WindowStatus,
};
pub use network::{
    BfdStatus, EcmpMemberStatus, EcmpStatus, LookupBy, MemberState, NatStatus, NetworkStatus, PortCounts, PortStatus,
    RouteLookup, RoutesOf, UnderlayAbsence, UnderlayPath, UnderlayStatus,
};
pub use prometheus::prometheus;
pub use steering::{SteeringRuleStatus, SteeringShare, SteeringStatus};
pub use tenant::{TenantOnCore, TenantStatus};
pub(crate) use volume::failures;
pub use volume::{VolumeErrors, VolumeState, VolumeStatus};

/// Everything about a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// softdpu's version.
    pub version: String,
    /// Seconds since the supervisor started.
    pub uptime_s: u64,
    /// The supervisor's process.
    pub supervisor_pid: u32,
    /// The upgrade of the supervisor that is under way, or the last one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor_upgrade: Option<UpgradeStatus>,
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
    /// What the data plane has taken over from those before it; absent for the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_over: Option<TakenOverStatus>,
    /// On which cores packets from tunnels are worked on, where something was said of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steering: Option<SteeringStatus>,
    /// What the data plane gave up of what it may ask of the kernel; absent without a data plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub isolation: Option<IsolationStatus>,
    /// Control-plane tasks, where there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane: Option<ControlPlaneStatus>,
}

/// The walls around the data plane.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IsolationStatus {
    /// `on`, `required` or `off`: `node.isolation` of the site file.
    pub setting: String,
    /// The number of the user that it runs as.
    #[serde(default)]
    pub user: u32,
    /// The capabilities that it has, such as `CAP_NET_RAW`; those of its control thread.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// A filter of system calls is in force on all its threads.
    pub calls: bool,
    /// What could not be set up, in words.
    pub missing: Vec<String>,
    /// System calls that the filter refused, by name.
    pub refused: BTreeMap<String, u64>,
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

/// What a data plane has of those before it: after an upgrade, or after the one before has died.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenOverStatus {
    /// Connections that go on.
    pub connections: u64,
    /// Translations of shared addresses that go on.
    pub translations: u64,
    /// Connections and translations that do not: there was no room for them, or no network, exit or port that they are
    /// of.
    pub left: u64,
    /// Parts of what was left that could not be read: another release wrote them, or they were damaged.
    pub unread: u64,
    /// All that was left was looked at. Until then packets find it where they need it.
    pub done: bool,
}

/// The data-plane process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataPlaneStatus {
    /// Its process, while there is one.
    pub pid: Option<u32>,
    /// What it is doing.
    pub state: DataPlaneState,
    /// Its release.
    #[serde(default)]
    pub version: Option<String>,
    /// How often it was started again after it had ended.
    pub restarts: u64,
    /// How it ended last, such as `killed by SIGKILL`.
    pub last_exit: Option<String>,
    /// From its last start until it was ready, in microseconds.
    pub time_to_ready_us: Option<u64>,
    /// From its last end until the first request completed again, in microseconds.
    pub first_completion_after_restart_us: Option<u64>,
    /// The upgrade that is under way, or the last one.
    #[serde(default)]
    pub upgrade: Option<UpgradeStatus>,
}

/// An upgrade of the data plane, or of the supervisor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct UpgradeStatus {
    /// How far it has come.
    pub stage: UpgradeStage,
    /// The program that takes over.
    pub program: String,
    /// The release before.
    pub from: String,
    /// The program's release, once it has said so.
    pub to: Option<String>,
    /// Why it failed.
    pub error: Option<String>,
    /// From the start of the new process until it was ready to take over, in microseconds.
    pub prepared_us: Option<u64>,
    /// From the moment at which queues were stopped until every connected device was taken over, in microseconds. Of
    /// the supervisor: for how long it listened to nothing, while devices were served.
    pub switched_us: Option<u64>,
    /// From the moment at which queues were stopped until the first request completed again, in microseconds.
    pub first_completion_us: Option<u64>,
}

/// How far an upgrade has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpgradeStage {
    /// The new process opens and loads what it needs; the one before serves.
    #[default]
    Preparing,
    /// The devices go from one process to the other.
    Switching,
    /// The new process serves.
    Done,
    /// The process before serves on, or was started again.
    Failed,
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
    /// How often it was woken: as often as it gave its CPU away.
    pub wakeups: u64,
    /// What became of those times.
    #[serde(default)]
    pub yields: YieldStatus,
    /// How many queues it serves.
    pub queues: u32,
    /// Requests that ended here when their queue had moved on to another core, which completed them.
    #[serde(default)]
    pub travelled: u64,
    /// Frames that came to its network, by the tier that gave the verdict.
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

/// What became of the times for which a core gave its CPU away (Tai Chi §4.1, §4.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct YieldStatus {
    /// Their slice was over, and nothing had come.
    pub expired: u64,
    /// Work ended them.
    pub preempted: u64,
    /// What woke the core.
    pub wakeups: WakeupCounts,
    /// Empty polls in a row beyond which it yields now; 0 where that is a fixed time.
    pub threshold: u64,
    /// How long its next slice is at the most, in nanoseconds.
    pub slice_ns: u64,
}

/// What woke a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WakeupCounts {
    /// A driver's kick.
    pub kick: u64,
    /// A message of another core or of the control thread.
    pub message: u64,
    /// A back end.
    pub back_end: u64,
    /// The socket of a TAP or of the underlay.
    pub socket: u64,
    /// The clock: the slice was over, or something was due.
    pub timer: u64,
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
    TaskState { Idle = "idle", Guaranteed = "guaranteed" }
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
                elapsed(*for_s)
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

/// A time in at most two units: `45s`, `2m05s`, `26h03m` becomes `1d02h`.
pub fn elapsed(seconds: u64) -> String {
    let (days, hours, minutes, seconds) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, _) => format!("{minutes}m{seconds:02}s"),
        (0, ..) => format!("{hours}h{minutes:02}m"),
        _ => format!("{days}d{hours:02}h"),
    }
}

#[cfg(test)]
mod sample;
#[cfg(test)]
mod tests;
