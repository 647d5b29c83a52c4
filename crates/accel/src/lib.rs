//! Encryption in software, shared as a DPU's accelerator is (MTDA §III-B).
//!
//! ```text
//!   channel of a queue ─┐
//!   channel of a queue ─┼─ the policy's order ─▶ ring ─▶ engine ([`Xts`])       [`Service`]: one for each core
//!   channel of a queue ─┘                        (16)
//! ```
//!
//! Encrypted volumes use both: the storage crate's `cipher` module makes entries of the ring out of requests.
//!
//! Pure: no I/O, no clock, no thread. The engine works on private bytes in place; guest memory never comes here, as a
//! guest can change it meanwhile.

#![forbid(unsafe_code)]

mod service;
mod xts;

pub use service::{LONGEST, QUANTUM, RING, Service};
pub use xts::{KeyError, SECTOR, Xts};
