//! The small corners of softdpu that must be unsafe and are not rings.
//!
//! Each module wraps one kernel or processor facility in an interface that safe code cannot misuse.

pub mod affinity;
pub mod buffer;
pub mod cached;
pub mod clock;
pub mod cpu;
pub mod dial;
pub mod exec;
pub mod files;
pub mod hops;
pub mod iovec;
pub mod keyring;
pub mod lines;
pub mod lock;
pub mod namespace;
pub mod net;
pub mod netlink;
pub mod notify;
pub mod pages;
pub mod peer;
pub mod port;
pub mod prefetch;
pub mod reaper;
pub mod refused;
pub mod secret;
pub mod signals;
pub mod threads;
pub mod uring;
pub mod wake;
pub mod words;

pub use buffer::{AlignedBuffer, OneOf};
pub use iovec::{IoMemory, IoVec};
pub use reaper::ReapedFd;
