//! Virtio's words that several crates speak, so that a request or a frame needs no translation on its way.
//!
//! - [`BlockOp`]: what a disk is asked to do: by a device, of a volume (virtio 1.3 §5.2.6)
//! - [`Checksum`], [`Segmentation`]: what a frame's sender left to do: at guests' interfaces, in networks and at the
//!   kernel's sockets (§5.1.6)
//! - [`feature`]: feature bits of rings, whatever the device (§6)
//! - [`net_header`]: the layout that says so on the ring and at those sockets
//!
//! Feature bits of device types, configuration spaces and the parsing of requests are the device crate's; rings are the
//! ring crate's.

#![forbid(unsafe_code)]

mod block;
pub mod feature;
mod net;
pub mod net_header;

pub use block::BlockOp;
pub use net::{Checksum, Segmentation, SegmentationKind};
