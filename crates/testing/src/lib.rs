//! What tests of several crates share. It uses no other crate of softdpu.

#![forbid(unsafe_code)]

mod random;
mod site;
mod skip;
mod slow_disk;

pub use random::Random;
pub use site::ONE_DISK;
pub use skip::skip;
pub use slow_disk::SlowDisk;
