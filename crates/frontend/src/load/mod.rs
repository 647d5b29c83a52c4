//! Closed loops: so many requests or frames are kept in flight.

pub mod frames;
mod pace;
pub mod requests;
mod sink;
pub mod stream;
pub mod talk;
pub mod tenants;
#[cfg(test)]
mod tests;

pub use requests::Waiting;
pub use sink::{FrameSink, GuestSink};
