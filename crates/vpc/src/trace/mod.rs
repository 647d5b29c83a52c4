//! Which frames are looked at, and what is said of them and of their way through the tiers.

mod describe;
mod filter;
mod grammar;
pub(crate) mod narrate;
mod path;
mod subject;
#[cfg(test)]
mod tests;

pub use describe::Description;
pub use filter::Filter;
pub use grammar::{FilterError, HELP};
pub use narrate::served;
pub use path::{Names, NotAStep, Outcome, Step, Table, Tier, Version, Watch};
pub(crate) use path::{TraceTo, Tracer, Untraced};
pub use subject::Subject;
