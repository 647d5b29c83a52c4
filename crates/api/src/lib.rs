//! The management protocol: JSON lines over a Unix stream socket (`docs/management-protocol.md`).
//!
//! ```text
//!  client                                                       daemon
//!    {"softdpu":1,"id":7,"method":"volume.grow","params":{…}} ──▶  LineBuffer ─ decode_request
//!    ◀── {"softdpu":1,"id":7,"result":{}}                          encode_response
//! ```
//!
//! The daemon's side does no I/O here: it feeds what it read into a [`LineBuffer`], decodes whole lines, and writes
//! what it encoded, from whatever loop it has. [`Client`] is the blocking other side, used by the command line.

#![forbid(unsafe_code)]

// The sample of a status names this crate from outside: the command line's tests have it, too.
#[cfg(test)]
extern crate self as softdpu_api;

mod change;
mod client;
mod control_plane;
mod device_args;
mod endpoints;
mod entries;
mod error;
mod explain;
mod line;
mod load;
mod message;
mod methods;
mod request;
pub mod status;
mod trace;

pub use change::{Change, LoadFile, QueuePlacement};
pub use client::{Client, ClientError, SOCKET_VARIABLE, find_socket};
pub use control_plane::{ControlPlaneCpus, ControlPlaneTask};
pub use device_args::{DeviceArgs, device_args};
pub use endpoints::EndpointChange;
pub use entries::{EntryChanges, EntryEdit, EntryOp};
pub use error::{ApiError, ErrorCode};
pub use explain::{FUNCTIONS, PathAnswer, PathOutcome, PathQuestion, PathStep, PathVersion, Protocol};
pub use line::{LineBuffer, LineTooLong};
pub use load::{LoadResult, NetworkEntries, Unload};
pub use message::{Id, Rejected, Response, decode_request, decode_response, encode_request, encode_response};
pub use methods::Empty;
pub use request::{Query, Request, SupervisorUpgradeResult, Upgrade, UpgradePart, UpgradeResult, methods};
pub use trace::{Directions, IDENTIFIER, PacketTrace, Replayed, UNDERLAY};

/// The version of the protocol, the value of the key `softdpu` in every message.
pub const VERSION: u64 = 1;

/// The longest request, in bytes without its newline: a request names one thing and needs a few hundred.
pub const LONGEST_REQUEST: usize = 64 << 10;

/// The longest response: the status of thousands of devices.
pub const LONGEST_RESPONSE: usize = 64 << 20;

#[cfg(test)]
mod tests;
