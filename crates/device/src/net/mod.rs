//! virtio-net (virtio 1.3 §5.1).
//!
//! [`Net`] is the control side's: features offered, configuration space, saved state. [`Transmit`] and [`Receive`] are
//! a core's: one per queue, made when the queue starts. The one finds the frame in a chain of a driver, the other fills
//! chains with a frame. Neither looks into frames.

pub mod abi;
mod config;
mod device;
mod header;
mod receive;
mod state;
mod transmit;

pub use config::{MAX_QUEUE_PAIRS, Mac, NetConfig, NetConfigError};
pub use device::{ConfigSpaceError, FeatureError, MtuError, Net, QueueRole};
pub use header::{Lacking, RxHeader, TxDrop, TxHeader};
pub use receive::{Fit, Misfit, Part, Receive, RxError};
pub use softdpu_virtio::{Checksum, Segmentation, SegmentationKind};
pub use state::NetState;

pub use transmit::{FRAME_OFFSET, Transmit, TxError, TxFrame};
