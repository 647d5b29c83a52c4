//! The driver's side of virtio devices: what a VMM and its guest's drivers are to a server, without the VMM and the
//! guest.
//!
//! ```text
//!  BlockFrontEnd ┐
//!                ├─ Connection: vhost-user messages over the socket ──▶ any vhost-user server
//!  NetFrontEnd   ┘
//!       │
//!       ├─ GuestMemory: one memfd, shared with the server
//!       └─ Virtqueue: the driver side of a ring, and its eventfds
//!
//!  load ── closed loops: requests or frames are kept in flight and counted
//! ```
//!
//! Benches load servers with it. Tests are drivers with it, well-behaved ones or hostile ones.

#![forbid(unsafe_code)]

pub mod block;
mod connection;
mod error;
mod handshake;
pub mod load;
mod memory;
pub mod net;
mod virtqueue;
mod wait;

pub use block::{BlockFrontEnd, BlockOptions, BlockQueue, BlockRequest, Tag, Transfer};
pub use connection::{Connection, Received};
pub use error::FrontEndError;
pub use handshake::NegotiatedFeatures;
pub use memory::GuestMemory;
pub use net::{Frames, NetFrontEnd, NetOptions, Station};
pub use softdpu_ring::Format;
pub use virtqueue::Virtqueue;
pub use wait::sleep_until;
