//! Which frames are looked at, and what is said of them.

mod describe;
mod filter;
mod grammar;
mod subject;
#[cfg(test)]
mod tests;

pub use describe::Description;
pub use filter::Filter;
pub use grammar::{FilterError, HELP};
pub use subject::Subject;
