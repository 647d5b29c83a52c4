//! Tenants that share a core: what each gets, and how fair that is, scheduler by scheduler.

pub mod comparison;
pub mod decision;
mod fairness;
pub mod frames;
pub mod load;
mod report;
mod site;
pub mod stream;

pub use fairness::{fair1, fair2, jain};
