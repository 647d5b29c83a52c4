//! virtio-blk (virtio 1.3 §5.2).
//!
//! [`Block`] is the control side's: features offered, configuration space, growing, saved state. [`Requests`] is a
//! core's: one per queue, made when the queue starts, it turns a descriptor chain into an [`Io`]. Both share the
//! capacity and the cache mode, which can change while requests run.

pub mod abi;
mod config;
mod device;
mod request;
mod state;

pub use config::{
    BlockConfig, BlockConfigError, Cache, DiscardLimits, Serial, SerialError, Topology, WriteZeroesLimits,
};
pub use device::{Block, ConfigSpaceError, GrowError};
pub use request::{BlockError, DATA_OFFSET, Io, Parsed, Requests, Status, finish, mark_dirty};
pub use softdpu_virtio::BlockOp;
pub use state::BlockState;
