//! The protocol between the supervisor and the data plane.
//!
//! The supervisor holds what must not die, the data plane does the work and may be killed at any instant. One stream
//! socket pair joins them; the data plane finds its end on its standard input. Both ends are [`Link`]s: frames of JSON
//! with file descriptors beside them.
//!
//! ```text
//!  front end ── message ──▶ supervisor ── Message ──▶ data plane
//!                           keeps it                  applies it
//!  front end ◀── reply ──── drops it   ◀── Handled ── {reply, session, changes to the fd table}
//! ```
//!
//! The invariant: **a message that was read from a front end is applied, or still there, after the data plane is
//! killed.** The supervisor reads one message of a connection, keeps it, and reads the next one only after
//! [`Up::Handled`] has brought the session that contains it. A data plane that follows another gets [`Down::Start`]
//! with everything in the vault; when it is [`Up::Ready`], [`Down::Attach`] for each connection with its stored session
//! and its fd table, each followed by the [`Down::Message`] that the one before it has not answered.
//!
//! What was given and not answered is what a data plane may have died of: [`Up::Attached`] and [`Up::Handled`] say what
//! it has survived.
//!
//! What the data plane has to keep to:
//!
//! - [`Up::Attached`], or [`Up::Close`], answers every [`Down::Attach`] exactly once; [`Up::Held`] may come before it.
//! - [`Up::Handled`] answers every [`Down::Message`] exactly once, also when the message is refused.
//! - A session and the fd table it speaks of change together, in one `Handled`.
//! - Nothing that a message asked for may be visible to the guest in a way that applying it a second time would break.
//! - [`Up::Hello`] is its first message. [`Up::Alive`] comes every [`BEAT`]; [`Up::Ready`] once, when the site is up.
//!
//! An upgrade starts a second data plane on standby beside the one that serves:
//!
//! ```text
//!  supervisor   ── Start{standby} ──▶ new: opens, loads ── Prepared ──▶
//!               ── Quiesce ──▶ old: stops queues, lets go of fences ── Quiesced ──▶
//!               ── TakeOver, Attach … ──▶ new: serves                 ── Shutdown ──▶ old
//! ```
//!
//! The rest of what a data plane has to keep to:
//!
//! - When the link is closed (`LinkError::Closed`) the supervisor is gone: exit.

#![forbid(unsafe_code)]

mod error;
mod frame;
pub mod kept;
mod outbox;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use softdpu_api::{ApiError, Change, Id, PacketTrace, PathQuestion, QueuePlacement};
use softdpu_site::Site;
use softdpu_sys::ReapedFd;

pub use error::LinkError;
pub use frame::{Link, MAX_FRAME, MAX_FRAME_FDS, REFS_PAUSE};
pub use outbox::Outbox;

/// The supervisor's end.
pub type SupervisorLink = Link<Down, Up>;

/// The data plane's end.
pub type DataPlaneLink = Link<Up, Down>;

/// A file descriptor in a table or on its way: shared, because the one that waits to be sent is also the one that is
/// kept. It may be any file of a front end's, so its last close may block: the reaper closes it.
pub type SharedFd = Arc<ReapedFd>;

/// Bytes of a vhost-user message's header (vhost-user: Message Specification, Header).
pub const HEADER_SIZE: usize = 12;

/// How often the data plane says that it is alive.
pub const BEAT: Duration = Duration::from_secs(1);

/// The ids of descriptors that came from a front end are below this; those that the data plane made are not.
pub const FIRST_KEPT_FD: u32 = 1 << 31;

/// What the vault calls the file of loaded entries that is in force.
pub const LOADED: &str = "networks.loaded";

/// Whether `key` is one under which a data plane keeps something of the volume `volume` in the vault: `KIND/VOLUME`,
/// and what is below it.
pub fn is_kept_of_volume(volume: &str, key: &str) -> bool {
    /// What a data plane keeps of volumes: the encryption key, the memory, the byte that stands for a shared file's
    /// user, the NBD export, the NBD sockets.
    const KINDS: [&str; 5] = ["key", "memory", "user", "nbd-export", "nbd"];
    let mut parts = key.split('/');
    parts.next().is_some_and(|kind| KINDS.contains(&kind)) && parts.next() == Some(volume)
}

/// One accepted connection of a front end. Never used twice while a supervisor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "connection {}", self.0)
    }
}

/// A descriptor in a connection's table: below [`FIRST_KEPT_FD`] when the front end passed it, in which case the
/// supervisor chose the id; from there on when the data plane made it and chose the id. Ids of one connection are never
/// used twice by the supervisor.
pub type FdId = u32;

/// How the data plane before this one ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Death {
    /// When the supervisor learned of it, [`monotonic_ns`].
    pub at_ns: u64,
    /// Signal or status, for people.
    pub reason: String,
}

/// From the supervisor to the data plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Down {
    /// The first message: what to be. One descriptor is attached for each of `kept`, in that order.
    Start {
        /// Desired state: the site file and what was changed since.
        site: Box<Site>,
        /// 1 for the first data plane of this supervisor, one more for each that follows.
        incarnation: u64,
        /// Keys of the vault.
        kept: Vec<String>,
        /// Queues that were moved.
        placements: Vec<QueuePlacement>,
        /// The death that this data plane is to make good.
        death: Option<Death>,
        /// Networks that have loaded entries.
        #[serde(default)]
        loaded: Vec<String>,
        /// Another data plane serves: open and load what takes time, disturb nothing that it uses, say
        /// [`Up::Prepared`], and wait for [`TakeOver`](Down::TakeOver).
        #[serde(default)]
        standby: bool,
    },
    /// To a data plane on standby: serve, in the place of the one that did. [`Attach`](Down::Attach) follows for each
    /// connection. One descriptor is attached for each of `kept`, in that order.
    TakeOver {
        /// When the other was told to [quiesce](Down::Quiesce), [`monotonic_ns`].
        since_ns: u64,
        /// Keys of the vault that are new, or have another descriptor than `Start` brought.
        kept: Vec<String>,
        /// Keys that are no longer in the vault.
        forgotten: Vec<String>,
    },
    /// Another data plane takes over: stop every queue, give requests in flight `patience_ms` to finish, let go of
    /// interfaces and fences, then say [`Up::Quiesced`]. No message of a front end follows. A request that is not
    /// finished stays recorded as in flight, as after a kill.
    Quiesce {
        /// Milliseconds.
        patience_ms: u64,
    },
    /// A front end has connected to a device, or was connected when the last data plane died; wants [`Up::Attached`] or
    /// [`Up::Close`]. One descriptor is attached for each of `fds`, in that order.
    Attach {
        /// The device's name.
        device: String,
        /// Its connection from now on.
        connection: ConnectionId,
        /// What the last `Handled` said; none for a new connection.
        session: Option<String>,
        /// Its fd table.
        fds: Vec<FdId>,
        /// Others follow at once: their queues are to start together, those that take frames before those that send
        /// some.
        #[serde(default)]
        more: bool,
    },
    /// One whole message of a front end; wants [`Up::Handled`]. One descriptor is attached for each of `fds`, in the
    /// order in which the front end passed them; they are in the connection's table until `released`.
    Message {
        /// The front end's connection.
        connection: ConnectionId,
        /// As it was read; the version and size are checked.
        header: [u8; HEADER_SIZE],
        /// As many bytes as the header says.
        payload: Vec<u8>,
        /// Ids of the descriptors it came with.
        fds: Vec<FdId>,
    },
    /// The front end is gone, or its device was removed, or the data plane asked for it. Stop its queues; what is
    /// answered for it from now on is ignored.
    Closed {
        /// Which.
        connection: ConnectionId,
    },
    /// A request of the management API; wants [`Up::Answer`] with the same `id`. The client's connection is attached
    /// where the call takes it over.
    Call {
        /// Chosen by the supervisor.
        id: u64,
        /// What is asked.
        call: Call,
    },
    /// Answers [`Up::Open`], [`Up::Connect`] and [`Up::OpenTap`]; the descriptor is attached if `result` is `Ok`.
    Opened {
        /// The `call` of what was asked.
        call: u64,
        /// Whether it worked.
        result: Result<(), OpenFailure>,
    },
    /// Leave the process with status 0. Requests in flight stay recorded, as after a kill.
    Shutdown,
}

/// Why what a data plane asked for could not be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFailure {
    /// The operating system's error number, where it is one.
    pub errno: Option<i32>,
    /// What was tried and what came of it.
    pub message: String,
}

impl From<OpenFailure> for std::io::Error {
    fn from(failure: OpenFailure) -> Self {
        match failure.errno {
            Some(errno) => std::io::Error::from_raw_os_error(errno),
            None => std::io::Error::other(failure.message),
        }
    }
}

/// What the management API asks of the data plane.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Call {
    /// The state of everything, with all counters.
    Status,
    /// Change what runs. The supervisor has checked it against the desired state, and changes that when the answer is
    /// good. With [`Change::NetworkLoad`] the file is attached.
    Change(Change),
    /// Show frames to a client, whose connection is attached. From a good answer on it is the data plane's.
    TracePacket {
        /// Which frames.
        trace: PacketTrace,
        /// What the client is to read first: the answer to its request.
        greeting: String,
    },
    /// Tell what would become of a packet.
    TraceExplain(PathQuestion),
    /// Take frames from a client, whose connection is attached. From a good answer on it is the data plane's.
    TraceReplay {
        /// The device by whose port they come in.
        port: String,
        /// The client's name for its request: what it is answered with.
        id: Id,
    },
}

/// How to open a volume's backing file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// The volume: of the desired state, or one that a [`Change::VolumeCreate`] in progress brings. Its path and
    /// whether it is created, and at which size, are in the site.
    pub volume: String,
    /// Open it for reading only.
    pub read_only: bool,
    /// With O_DIRECT.
    pub direct: bool,
    /// Not its backing file, but its key: the key file, for reading only whatever the rest says, or a file with what
    /// the kernel's keyring has.
    #[serde(default)]
    pub key: bool,
}

/// The format of this link's frames. It changes when one side's frames would be misread by the other of a release
/// before; members that may be left out do not change it.
pub const LINK_FORMAT: u32 = 2;

/// What a data plane can go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Formats {
    /// [`LINK_FORMAT`].
    pub link: u32,
    /// The oldest format of sessions that it reads.
    pub oldest_session: u32,
    /// The newest, which is the one it writes.
    pub session: u32,
}

impl Formats {
    /// Why a data plane with formats `self` cannot follow one with those of `other`.
    pub fn refusal(&self, other: &Formats) -> Option<String> {
        if self.link != other.link {
            return Some(format!("it speaks link format {}, the supervisor {}", self.link, other.link));
        }
        let reads = self.oldest_session..=self.session;
        (!reads.contains(&other.session)).then(|| {
            let (oldest, newest) = reads.into_inner();
            format!("it reads sessions of formats {oldest} to {newest}, and those that run have {}", other.session)
        })
    }
}

/// From the data plane to the supervisor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Up {
    /// The first message: which program it is.
    Hello {
        /// Its release, as `softdpu --version` prints it.
        version: String,
        /// What it understands.
        formats: Formats,
    },
    /// On standby: everything is ready for [`Down::TakeOver`].
    Prepared {
        /// What cannot be served as it is now, such as volumes that could not be opened, for people.
        problems: Vec<String>,
    },
    /// The answer to [`Down::Quiesce`]: no queue runs, no fence is held of a volume without unfinished writes.
    Quiesced {
        /// Requests that were not finished in time.
        abandoned: u64,
    },
    /// The site is up: devices can be attached, and volumes are open but for those that fail or take long. No
    /// connection is given to it before.
    Ready,
    /// The watchdog's beat.
    Alive,
    /// The answer to [`Down::Attach`]: what the session asks for is set up.
    Attached {
        /// Which.
        connection: ConnectionId,
    },
    /// A connection has to wait, for instance for its volume: nothing of it is looked at. [`Up::Attached`] or
    /// [`Up::Close`] follows, unless [`Down::Closed`] takes it back.
    Held {
        /// Which.
        connection: ConnectionId,
    },
    /// The answer to [`Down::Message`]. Attached: the `reply_fds` descriptors that go with the reply, then one for each
    /// of `kept`.
    Handled {
        /// The connection that the message came by.
        connection: ConnectionId,
        /// What to send to the front end, header included; may be empty.
        reply: Vec<u8>,
        /// How many descriptors go with it.
        reply_fds: u32,
        /// The session after the message.
        session: String,
        /// New descriptors for the connection's table; ids from [`FIRST_KEPT_FD`] on.
        kept: Vec<FdId>,
        /// Ids that leave the table.
        released: Vec<FdId>,
        /// Close the connection after the reply, for this reason.
        close: Option<String>,
    },
    /// Close a connection. [`Down::Closed`] follows.
    Close {
        /// Which.
        connection: ConnectionId,
        /// Why, for the log and for status.
        reason: String,
    },
    /// The answer to [`Down::Call`].
    Answer {
        /// The call's id.
        id: u64,
        /// [`Call::Status`] answers with the status document; the others with an object of what they have to tell.
        result: Result<serde_json::Value, ApiError>,
    },
    /// Open a volume's backing file; wants [`Down::Opened`]. Each is a fresh open file description of which the
    /// supervisor keeps no copy: a lock on it ends when the data plane and its I/O have ended.
    Open {
        /// Chosen by the data plane.
        call: u64,
        /// What and how.
        open: Open,
    },
    /// Connect to the server of a volume, which is what its backing is; wants [`Down::Opened`], with the connected
    /// socket. The supervisor dials where the site says, and nowhere else.
    Connect {
        /// Chosen by the data plane.
        call: u64,
        /// The volume's name.
        volume: String,
        /// How long the server may take to answer, in milliseconds; at most ten seconds.
        patience_ms: u64,
    },
    /// Make the TAP interface of a device, set up as the site says; wants [`Down::Opened`].
    OpenTap {
        /// Chosen by the data plane.
        call: u64,
        /// The device's name.
        device: String,
        /// The interface's MTU, where the device says none, in bytes.
        mtu: u16,
    },
    /// Keep the attached descriptor in the vault for the data planes to come; an older one of that key is replaced.
    Keep {
        /// Its key.
        key: String,
    },
    /// Take a descriptor out of the vault.
    Forget {
        /// Its key.
        key: String,
    },
    /// The first request has completed since the start.
    FirstCompletion {
        /// Nanoseconds since [`Death::at_ns`].
        ns: u64,
    },
}

/// How many descriptors a message has to come with.
pub trait Attached {
    /// That many.
    fn attached(&self) -> usize;
}

impl Attached for Down {
    fn attached(&self) -> usize {
        match self {
            Down::Start { kept, .. } | Down::TakeOver { kept, .. } => kept.len(),
            Down::Attach { fds, .. } | Down::Message { fds, .. } => fds.len(),
            Down::Opened { result, .. } => usize::from(result.is_ok()),
            Down::Call { call, .. } => call.attached(),
            Down::Closed { .. } | Down::Quiesce { .. } | Down::Shutdown => 0,
        }
    }
}

impl Attached for Call {
    fn attached(&self) -> usize {
        match self {
            Call::TracePacket { .. } | Call::TraceReplay { .. } | Call::Change(Change::NetworkLoad(_)) => 1,
            Call::Status | Call::Change(_) | Call::TraceExplain(_) => 0,
        }
    }
}

impl Attached for Up {
    fn attached(&self) -> usize {
        match self {
            Up::Handled { reply_fds, kept, .. } => (*reply_fds as usize).saturating_add(kept.len()),
            Up::Keep { .. } => 1,
            Up::Hello { .. }
            | Up::Prepared { .. }
            | Up::Quiesced { .. }
            | Up::Ready
            | Up::Alive
            | Up::Attached { .. }
            | Up::Held { .. }
            | Up::Close { .. }
            | Up::Answer { .. }
            | Up::Open { .. }
            | Up::Connect { .. }
            | Up::OpenTap { .. }
            | Up::Forget { .. }
            | Up::FirstCompletion { .. } => 0,
        }
    }
}

/// The clock that both processes share (CLOCK_MONOTONIC), in nanoseconds.
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    (now.tv_sec as u64) * 1_000_000_000 + now.tv_nsec as u64
}
