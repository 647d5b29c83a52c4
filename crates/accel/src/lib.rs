//! What a DPU has engines for, done by the core that needs it: pure functions over buffers of the caller, no I/O, no clock.
//!
//! Guest memory never comes here: a guest can change its bytes while they are looked at, so the caller copies them out first.

#![forbid(unsafe_code)]

mod xts;

pub use xts::{KeyError, SECTOR, Xts};
