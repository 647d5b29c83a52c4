//! The NBD protocol as data (NetworkBlockDevice/nbd, doc/proto.md and doc/uri.md). No sockets: connecting and sending
//! is the storage crate's.
//!
//! - [`NbdUri`]: where an export is. What it accepts, a connection can be tried with: the limits of the protocol and of
//!   the kernel's addresses are checked when it is parsed
//! - [`wire`]: magic numbers, options, flags, and the messages of fixed size

#![forbid(unsafe_code)]

mod uri;
pub mod wire;

pub use uri::{DEFAULT_PORT, MAX_SOCKET_PATH, NbdServer, NbdUri, NbdUriError};
