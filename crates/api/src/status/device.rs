//! Devices, their queues and front ends.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::network::PortStatus;

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// The tenant that it belongs to.
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
    /// Whether it is served by the slow core, beside the data plane's, because its queues made those wait (`stalls`).
    #[serde(default)]
    pub demoted: bool,
    /// How long its queues stood still when this data plane took them up from the one before, in microseconds.
    #[serde(default)]
    pub pause_us: Option<u64>,
    /// Front ends that were closed because data planes died of them; kept until the device is removed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub closed_front_ends: Option<ClosedFrontEnds>,
}

/// What a device is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    /// No front end is connected.
    #[default]
    Listening,
    /// A front end is connected, its driver does not run yet.
    Connected,
    /// A driver uses it.
    Running,
    /// Its volume is being opened, or is not fenced yet: a front end that connects waits, its queues start by
    /// themselves.
    Opening,
    /// Its driver broke the rules, and a reset brings it back; or its volume cannot be opened, which is tried again.
    Broken,
}

/// The process behind a front end's socket when it connected (SO_PEERCRED).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Process id; 0 where the process is in a PID namespace that is not visible from softdpu's.
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

/// One queue of a device. Counters are cumulative.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct QueueStatus {
    /// Which of the device's queues.
    pub index: u16,
    /// The CPU that serves it; none while its device is demoted.
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
    /// Times that it made its core wait: a page fault on its memory, a signal to its eventfd or its volume took long.
    #[serde(default)]
    pub stalls: u64,
    /// For how long together, in nanoseconds.
    #[serde(default)]
    pub stalled_ns: u64,
    /// Requests that have started and not completed.
    pub inflight: u32,
    /// Frames that went through it, of an interface: to its driver by a receive queue, from it by a transmit queue. One
    /// that stands for several counts once.
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

impl RequestCounts {
    /// Counts what `more` counted as well.
    pub fn add(&mut self, more: &RequestCounts) {
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
