//! Network ports: frames in and out of the kernel, in batches, without blocking.
//!
//! | port | other side | offloads |
//! |---|---|---|
//! | [`tap::Tap`] | the host's own network stack | all that virtio-net has |
//! | [`packet::PacketSocket`] | any interface, a copy of its traffic (AF_PACKET) | all that virtio-net has |
//! | [`xdp::XdpSocket`] | a NIC's queue (AF_XDP) | none: whole frames, finished checksums |
//!
//! Nothing here knows what a frame means; a [`VnetHeader`] travels beside it where the port has offloads. All ports are
//! used in the same way:
//!
//! ```text
//!  receive(max, |frames| …)            the frames of one batch, in memory that only the kernel and this port can
//!                                      write; theirs until the closure returns
//!  reserve(len) → write → commit(…)    a frame built in the port's own memory …
//!  flush()                             … and handed to the kernel with all that were committed before it
//!  send(&[Outgoing { … }])             frames with their payload in memory of others (guests)
//! ```
//!
//! No call blocks. `fd()` becomes readable when a frame has come (poll, epoll, io_uring's poll).

mod error;
mod frame;
pub mod link;
mod mapping;
pub(crate) mod option;
mod outbox;
pub mod packet;
mod scatter;
pub mod tap;
mod vnet;
pub mod xdp;

pub use error::PortError;
pub use frame::{Counters, Frame, MAX_BATCH, MAX_FRAME, Outgoing};
pub use link::InterfaceName;
pub use vnet::VnetHeader;
