//! Volumes.

use serde::{Deserialize, Serialize};

use super::device::RequestCounts;

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
    /// Cipher and bits of the key where it is encrypted, such as `aes-xts-plain64 512`. While it is not open, the
    /// cipher alone.
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
    pub counters: VolumeErrors,
    /// Why it failed, or the last error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Where it is kept, or what it is waiting for.
    pub detail: String,
}

/// Failed requests of a volume by reason, and what became of connections to its back end, since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeErrors {
    /// The back end is full.
    pub no_space: u64,
    /// The back end reports an error.
    pub device: u64,
    /// The back end took too long.
    pub timeout: u64,
    /// The driver asked for what the volume cannot do: out of range, read-only, unsupported.
    pub refused: u64,
    /// The back end is gone for good.
    pub gone: u64,
    /// Connections to the back end that were lost.
    pub disconnects: u64,
    /// Requests that were sent a second time after a connection was lost.
    pub replayed: u64,
    /// Connections that were lost with writes that the back end had answered and not flushed: if the back end lost its
    /// cache, these writes are lost, and no driver learns of it.
    #[serde(default)]
    pub unflushed: u64,
    /// Requests given up while in flight, because their queue was stopped.
    pub abandoned: u64,
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

/// What went wrong with a volume, by kind: requests that failed, whose sum is [`VolumeStatus::errors`].
pub fn failures(counts: &VolumeErrors) -> [(&'static str, u64); 5] {
    [
        ("no-space", counts.no_space),
        ("device", counts.device),
        ("timeout", counts.timeout),
        ("refused", counts.refused),
        ("gone", counts.gone),
    ]
}
