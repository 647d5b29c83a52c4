//! Which packets are followed through the tiers.

mod filter;
mod grammar;

pub use filter::Filter;
pub use grammar::FilterError;
