//! vhost-user, the back-end side.
//!
//! ```text
//!  socket ── framing ── messages ──▶ Session::message ──▶ Action::Command ──▶ the device
//!                                          │                                      │
//!  socket ◀──────────── Action::Reply ◀────┴────────── Session::acknowledge ◀─────┘
//! ```
//!
//! Every message is applied to a *draft* of the session's state. The draft replaces the state when the command that the
//! message gave rise to has been acknowledged, together with the reply; until then [`Session::save`] gives the state
//! from before the message. A holder that keeps the message until it has stored `save()` and the reply can therefore
//! lose the data plane at any instant: a new one restores the session and gets the message again.
//!
//! Sections cited as "vhost-user: …" are those of QEMU's `docs/interop/vhost-user.rst`.

pub mod client;
mod codec;
mod error;
mod features;
mod framing;
#[cfg(any(test, fuzzing, feature = "fuzz"))]
pub mod fuzz;
mod layout;
mod messages;
mod session;

pub use error::{Fault, FramingError, ProtocolError, RestoreError};
pub use features::{F_LOG_ALL, F_PROTOCOL_FEATURES, F_RING_PACKED, ProtocolFeatures};
pub use framing::{HEADER_SIZE, Header, MAX_FDS, MAX_PAYLOAD};
pub use layout::{InflightLayout, RingFormat, RingLayout, VringBase, inflight_layout};
pub use messages::{
    ConfigSpace, FdPresence, InflightDescription, LogDescription, MAX_CONFIG_SIZE, Message, RegionDescription,
    RequestId, VringAddress, VringState, request,
};
pub use session::{
    Ack, Action, BackendMessage, Command, CommandId, DeviceModel, DirtyLog, FdId, InflightRef, MemoryRegion,
    QueueChange, QueueIndex, QueueStart, Refused, ResetCause, Restored, SESSION_FORMAT, SavedSession, Session,
};
