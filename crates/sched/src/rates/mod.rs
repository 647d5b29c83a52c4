//! Rates and how long to wait: token buckets, two-rate meters (RFC 2698, RFC 4115), and the patience of flow control.

mod bucket;
mod meter;
mod patience;

pub use bucket::TokenBucket;
pub use meter::{Colour, Measure, Meter, Rate};
pub use patience::Patience;
