//! The device side of virtqueues, split and packed, and of NVMe queue pairs ([`nvme`]), behind one interface.
//!
//! ```text
//!            driver                                     Queue
//!   make available ──▶ │ descriptors │ ──▶ pop ───▶ Chain (checked, pinned) ──▶ device
//!                      │             │      └▶ InflightRecords (written before a request starts)
//!   take back      ◀── │ used        │ ◀── complete ◀── Used                ◀── device
//! ```
//!
//! A block queue records what is in flight and completes in any order ([`Queue::new`]); a network queue completes in
//! order and keeps its [`Positions`] ([`Queue::in_order`]).
//!
//! Trust ends here: every index, length and address of the driver is read once and checked once. What is wrong is a
//! [`QueueError`] with all the facts, and breaks this queue alone.
//!
//! # Checks beyond `cargo test -p softdpu-ring`
//!
//! - hand-shakes, every interleaving: `RUSTFLAGS="--cfg loom" cargo test --release -p softdpu-ring --test loom`
//! - unsafe code: `MIRIFLAGS=-Zmiri-disable-weak-memory-emulation cargo +nightly miri test -p softdpu-ring -p
//!   softdpu-memory` (rings are accessed in words of several sizes, which Miri's emulation of weak memory does not
//!   support)
//! - hostile drivers: [`fuzz::split`] and [`fuzz::packed`] are entry points for a fuzzer
//! - what a request costs: `cargo run --release -p softdpu-ring --example ring_cost`
//!
//! # Cost
//!
//! Per request there is no allocation and no lock; per batch there is one acquire load of what the driver made
//! available and one release store of what is used.

#![deny(unsafe_op_in_unsafe_fn)]

// Ring fields are little-endian (virtio 1.3 §1.4) and used as they are.
#[cfg(not(target_endian = "little"))]
compile_error!("softdpu-ring reads ring fields in place and so needs a little-endian processor");

mod area;
mod chain;
mod chains;
mod common;
mod config;
#[cfg(test)]
mod crash;
pub mod driver;
mod error;
pub mod fuzz;
mod inflight;
mod layout;
pub mod nvme;
mod packed;
mod positions;
mod queue;
mod split;
pub mod sync;
#[cfg(test)]
mod tests;

pub use chains::{Chains, Sink};
pub use config::{Chain, Format, MAX_SIZE, PackedIndex, Position, QueueConfig, RingAddresses, Used};
pub use error::{Part, QueueError};
pub use inflight::InflightRecords;
pub use packed::PackedQueue;
pub use positions::Positions;
pub use queue::Queue;
pub use split::SplitQueue;
