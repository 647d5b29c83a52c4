//! Device models: what a driver sees of a device, and what its requests mean.
//!
//! ```text
//!  ring::Chain ─► parse ─► Io ─► (engine, storage) ─► finish ─► used length
//!                   └────► Finished: answered at once, status already written
//!
//!  ring::Chain ─► net::Transmit ─► TxFrame ─► (engine, vpc) ─► net::Receive ─► used lengths
//! ```
//!
//! A model turns descriptors and registers into typed requests. It does no I/O, starts no thread and reads no clock.
//! All it is given may come from a hostile driver; all it hands on has been checked. The bytes of a header are read
//! once, so a guest that changes them afterwards changes nothing.

#![forbid(unsafe_code)]

pub mod block;
#[cfg(any(test, fuzzing, feature = "fuzz"))]
pub mod fuzz;
pub mod net;
pub mod nvme;
mod saved;

pub use saved::RestoreError;
