//! Volumes: what a disk's bytes are kept in, and how requests reach them.
//!
//! ```text
//!  VolumeSpec ─ open ─▶ Volume (one per process, shared by all cores: state, size, limits, counters, fence)
//!                         │ attach, once activated
//!  engine core ── IoContext (one per core: its io_uring, its NBD connections)
//!                   submit(&mut Vec<Request>) ─▶ … ─▶ poll(&mut Vec<Done>)
//! ```
//!
//! Between an encrypted volume and its back end stands [`cipher`]: the back end has requests for private memory with
//! what is encrypted, whatever kind it is.
//!
//! A volume is `opened` first: it can be looked at, and several processes may hold it so (the target of a migration,
//! the next release during an upgrade). [`Volume::activate`] takes the **fence**, after which no write of a process
//! before us can land any more; only then are queues started and in-flight requests replayed.
//!
//! ```text
//!           activate: Busy (retry)
//!             ┌─────┐              connection lost               back end is there, but not what it was
//!   open ─▶ opened ─┴─▶ active ◀───────────────────▶ recovering ◀────────▶ failed (needs an operator)
//! ```
//!
//! Buffers travel with their requests: a [`Request`] owns its [`GuestBuffer`](softdpu_memory::GuestBuffer), so guest
//! memory stays mapped for as long as anything may touch it, and comes back with the [`Done`].

#![forbid(unsafe_code)]

mod broker;
mod cipher;
mod context;
mod copies;
mod error;
mod file;
mod memory;
mod nbd;
mod request;
mod spec;
mod volume;

pub use softdpu_nbd::NbdUri;

pub use broker::{Broker, PathBroker, open_key, open_path};
pub use context::{Attachment, IoContext};
pub use error::{IoError, VolumeError};
pub use file::disk::Disk;
pub use request::{Done, Request};
pub use softdpu_virtio::BlockOp;
pub use spec::{Encryption, KeySource, VolumeKind, VolumeSpec};
pub use volume::{Activation, ErrorCounts, RangeLimits, Volume, VolumeLimits, VolumeState, VolumeStatus};
