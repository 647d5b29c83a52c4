//! From guest to guest: two vhost-user-net front ends, the frames between them, and comparisons of the servers that carry
//! them.
//!
//! ```text
//!  Sender ── transmitq of A ──▶ ┌────────┐ ──▶ receiveq of B ── Receiver
//!     └ Frames, numbered        │ server │        lengths, numbers ┘
//!                               └────────┘
//!  load::run ── a closed loop, both guests on one CPU ──▶ Outcome
//!  comparison ── NetSubjects × cases × interleaved rounds ──▶ Report: table, JSON lines, plot
//! ```

pub mod comparison;
pub mod frames;
pub mod load;
pub mod port;
pub mod receiver;
pub mod report;
pub mod sender;
pub mod subject;
#[cfg(test)]
mod tests;

pub use frames::{Frames, Station};
