//! Rates and how long to wait: token buckets, two-rate meters (RFC 2698, RFC 4115) with leases for cores, and the
//! patience of flow control.

mod bucket;
mod lease;
mod meter;
mod patience;

pub use bucket::TokenBucket;
pub use lease::Lease;
pub use meter::{Colour, Measure, Meter, Rate};
pub use patience::Patience;
