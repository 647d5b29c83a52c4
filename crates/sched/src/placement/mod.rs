//! Which core serves which work: the slow path above the schedulers.
//!
//! [`Balancer`] moves device queues between cores, [`Spreader`] moves flows of tunnelled packets. Both are asked now
//! and then and answer with moves; [`Hysteresis`] keeps either from moving work back and forth.

mod balancer;
mod hysteresis;
mod spread;

pub use balancer::{Balancer, Move, QueueLoad};
pub use hysteresis::Hysteresis;
pub use spread::{BucketLoad, Elephant, Order, Pinned, SpreadTuning, Spreader};
