//! What tests of several crates share. It knows nothing of softdpu.

#![forbid(unsafe_code)]

mod random;
mod skip;
mod slow_disk;

pub use random::Random;
pub use skip::skip;
pub use slow_disk::SlowDisk;
