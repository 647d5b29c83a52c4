//! Tenants that share a core: what each gets, and how fair that is, scheduler by scheduler.

pub mod comparison;
mod fairness;
pub mod frames;
pub mod load;

pub use fairness::{fair1, fair2, jain};
