//! What a DPU has engines for, done by cores: encryption, compression, hashes, patterns.
//!
//! ```text
//!   tenant's channel ─┐
//!   tenant's channel ─┼─ TenantScheduler ─▶ ring ─▶ engine ─▶ Done       Service: one per kind and core
//!   tenant's channel ─┘                   (bounded)
//! ```
//!
//! Two ways to use it. Who is already running a tenant's grant and needs the answer at once calls the operation itself, as
//! encrypted volumes do with [`Xts`]: its cost is then in the grant's. Who hands work over and goes on with something else
//! uses a [`Service`], before which each tenant has a bounded channel, and which takes from them as a policy says (MTDA
//! §III-B: "the requests of each tenant are sequentially sent to the ring buffer", from which the accelerator takes them).
//!
//! Pure: no I/O, no clock, no thread. Requests own their bytes; guest memory never comes here, as a guest can change it while
//! it is looked at.

#![forbid(unsafe_code)]

mod operation;
mod service;
mod xts;

pub use operation::{Algorithm, Digest, Failure, Found, Kind, Operation, Output, Patterns};
pub use service::{CHANNEL, Done, RING, Refused, Request, Service};
pub use xts::{KeyError, SECTOR, Xts};
