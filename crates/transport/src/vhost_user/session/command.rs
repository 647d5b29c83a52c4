//! What a session asks of its caller, and how the caller answers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::vhost_user::error::ProtocolError;
use crate::vhost_user::features::ProtocolFeatures;
use crate::vhost_user::layout::{RingFormat, VringBase};

/// The caller's handle for a file descriptor. The caller assigns one to every descriptor it receives, unique among
/// those not yet released, before it hands the message over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FdId(pub u32);

/// A queue of the device, below its queue limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct QueueIndex(pub u16);

impl fmt::Display for QueueIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Names a command until it has been acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId(pub u64);

/// What the caller has to do, in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Carry out the command, then call [`Session::acknowledge`](super::Session::acknowledge). A message gives rise to
    /// one command at most, and no message may follow before it has been acknowledged.
    Command {
        /// To be given back with the acknowledgement.
        id: CommandId,
        /// What to do.
        command: Command,
    },
    /// Send `bytes` on the connection together with `fds`.
    Reply {
        /// Header and payload.
        bytes: Vec<u8>,
        /// Descriptors to attach.
        fds: Vec<FdId>,
    },
    /// Send on the back-end channel.
    Backend(BackendMessage),
    /// Close this descriptor: the session needs it no longer. Replies before it in the list must have been sent.
    Release(FdId),
    /// The message was refused by the reply before this, and the connection goes on. To
    /// be logged and counted.
    Refused(Refused),
}

/// A message that was answered with a failure.
pub type Refused = ProtocolError;

/// A message to the front end on its back-end channel (vhost-user: Back-end communication). No answer is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendMessage {
    /// The channel's socket.
    pub channel: FdId,
    /// Header and payload.
    pub bytes: Vec<u8>,
}

/// A change of the device. It takes effect as a whole or, with [`Ack::Failed`], not at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// `regions` are all of the memory from now on. Answer with [`Ack::Done`], or [`Ack::Broken`] if `broken` names
    /// queues.
    MemoryChange {
        /// The whole new table. Guest addresses do not overlap; nothing is empty or wraps. That the files are as large
        /// as the regions say is for the caller to check.
        regions: Vec<MemoryRegion>,
        /// Running queues with rings outside the new table: stop them with an error to the front end before the old
        /// memory goes.
        broken: Vec<QueueIndex>,
    },
    /// Start a queue. Answer with [`Ack::Done`].
    QueueStart(Box<QueueStart>),
    /// Change something of a running queue. Answer with [`Ack::Done`].
    QueueUpdate {
        /// The queue.
        index: QueueIndex,
        /// The change.
        change: QueueChange,
    },
    /// Stop a running queue: nothing is taken from it, written to it or notified for it afterwards. Answer with
    /// [`Ack::Stopped`].
    ///
    /// Requests are to be completed first, also where they may stay behind as records in the in-flight region
    /// (GET_VRING_BASE_INFLIGHT): what a back end is in the middle of could otherwise take effect after a successor
    /// has repeated it from the records. Only what a back end does not finish within a deadline stays behind.
    QueueStop(QueueIndex),
    /// The dirty log or the wish to log changed. Answer with [`Ack::Done`].
    DirtyLog(DirtyLog),
    /// Make a zero-filled in-flight region of `bytes` in a file that can be mapped. Answer with [`Ack::Memory`].
    CreateInflight {
        /// Queues it is for.
        queues: u16,
        /// Their size.
        queue_size: u16,
        /// Their format.
        format: RingFormat,
        /// Bytes of the whole region, `queues` times [`inflight_layout`](crate::vhost_user::inflight_layout)`.bytes`.
        bytes: u64,
    },
    /// Stop every queue without draining, forget negotiated state and in-flight regions, be as after start-up. Memory,
    /// dirty log and configuration stay. Answer with [`Ack::Done`].
    Reset(ResetCause),
    /// The driver wrote the device status (virtio 1.3 §2.1); never 0, which is a reset. Answer with [`Ack::Done`].
    Status(u8),
    /// Write to the configuration space. Answer with [`Ack::Done`], or [`Ack::Failed`] where a field is read-only.
    SetConfig {
        /// First byte.
        offset: u32,
        /// What to write.
        bytes: Vec<u8>,
        /// Read-only fields are to be accepted, too.
        live_migration: bool,
    },
    /// The host's MTU (NET_SET_MTU). Answer with [`Ack::Done`].
    SetMtu(u16),
    /// Announce the guest's address on its network (SEND_RARP). Answer with [`Ack::Done`].
    SendRarp {
        /// The guest's MAC address.
        mac: [u8; 6],
    },
}

/// A region of guest memory and the file it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryRegion {
    /// First guest-physical address.
    pub guest_address: u64,
    /// Bytes, at least 1.
    pub size: u64,
    /// First address in the front end's address space.
    pub user_address: u64,
    /// Where the region starts in the file. Not always a multiple of the page size; congruent to `user_address` modulo
    /// it.
    pub mmap_offset: u64,
    /// The file.
    pub fd: FdId,
}

/// Everything that is needed to run a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueStart {
    /// The queue.
    pub index: QueueIndex,
    /// Entries: a power of two if split, at most 32768.
    pub size: u16,
    /// Split or packed.
    pub format: RingFormat,
    /// Negotiated virtio feature bits.
    pub features: u64,
    /// Negotiated protocol features.
    pub protocol_features: ProtocolFeatures,
    /// User address of the descriptor table or ring. This and the next two are aligned and each inside one region.
    pub descriptor: u64,
    /// User address of the available ring or driver event suppression structure.
    pub driver: u64,
    /// User address of the used ring or device event suppression structure.
    pub device: u64,
    /// Guest address under which writes to the used ring are logged; nothing where they are not.
    pub log: Option<u64>,
    /// Where to begin. See [`VringBase::may_be_fresh`].
    pub base: VringBase,
    /// The queue ran before the data plane was lost: `base` is where it began *then*. Continue at the position that the
    /// ring, the in-flight region and the caller's own records tell.
    pub resumed: bool,
    /// Signalled by the driver; without it the queue is to be polled.
    pub kick: Option<FdId>,
    /// To be signalled when buffers were used; without it the driver polls.
    pub call: Option<FdId>,
    /// To be signalled when the queue breaks.
    pub err: Option<FdId>,
    /// Where requests in flight are recorded for the front end.
    pub inflight: Option<InflightRef>,
    /// A disabled queue must not have effects beyond its ring (vhost-user: Ring states).
    pub enabled: bool,
}

/// One queue's part of an in-flight region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightRef {
    /// The file.
    pub fd: FdId,
    /// Where this queue's part starts in the file, a multiple of 64.
    pub offset: u64,
    /// Bytes of this queue's part.
    pub bytes: u64,
    /// Entries it has records for, at least the queue's size: `desc_num` in the region.
    pub queue_size: u16,
}

/// A change of a running queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueChange {
    /// Another kick descriptor, or polling.
    Kick(Option<FdId>),
    /// Another call descriptor, or none.
    Call(Option<FdId>),
    /// Another error descriptor, or none.
    Err(Option<FdId>),
    /// Enabled or disabled.
    Enabled(bool),
    /// Log writes to the used ring under this guest address, or do not.
    Log(Option<u64>),
}

/// The state of dirty logging (vhost-user: Migration).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLog {
    /// The log's memory, once the front end has sent it: file, offset, bytes.
    pub memory: Option<(FdId, u64, u64)>,
    /// To be signalled when something was logged (SET_LOG_FD).
    pub event: Option<FdId>,
    /// Whether VHOST_F_LOG_ALL is in force: log writes to guest memory.
    pub logging: bool,
}

/// Why the device is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetCause {
    /// RESET_DEVICE.
    FrontEnd,
    /// The driver wrote 0 to the device status.
    Status,
    /// The connection is gone. Memory and logs go, too; requests in flight stay recorded for the next connection.
    Disconnect,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ack {
    /// Done.
    Done,
    /// [`Command::QueueStop`]: stopped, at this position.
    Stopped {
        /// Position for GET_VRING_BASE.
        base: VringBase,
    },
    /// [`Command::MemoryChange`] with broken queues: changed, and those queues stopped where this says, in the same
    /// order.
    Broken(Vec<VringBase>),
    /// [`Command::Reset`] by the status: done, and queues that ran stood here. For [`Ack::Done`] none is known.
    Reset(Vec<(QueueIndex, VringBase)>),
    /// [`Command::CreateInflight`]: the file. It is released once the front end has it.
    Memory(FdId),
    /// Nothing was changed; the reason is for the log and, as a failure, for the front end.
    Failed(String),
}

impl Ack {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Ack::Done => "Done",
            Ack::Stopped { .. } => "Stopped",
            Ack::Broken(_) => "Broken",
            Ack::Reset(_) => "Reset",
            Ack::Memory(_) => "Memory",
            Ack::Failed(_) => "Failed",
        }
    }
}
