//! Which core serves which work: the slow path above the schedulers.
//!
//! [`Balancer`] moves device queues between cores, [`Spreader`] moves flows of tunnelled packets. Both are asked now
//! and then and answer with moves; [`Hysteresis`] keeps either from moving work back and forth.

mod balancer;
mod division;
mod entitlement;
mod hysteresis;
mod spread;
mod whole_cores;

pub use balancer::{Balancer, Move, QueueLoad};
pub use division::{WeightPart, weights_on_core};
pub use hysteresis::Hysteresis;
pub use spread::{BucketLoad, Elephant, Order, Pinned, SpreadTuning, Spreader};
pub use whole_cores::whole_cores;
