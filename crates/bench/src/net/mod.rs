//! From guest to guest, and from guest to underlay: vhost-user-net front ends, the frames that they send, and comparisons of
//! the servers that carry them.
//!
//! ```text
//!  Sender ── transmitq of A ──▶ ┌────────┐ ──▶ receiveq of B ── Receiver
//!     └ Frames, numbered        │ server │        lengths, numbers ┘
//!                               └────────┘
//!                                    └──▶ veth pair ── Counter, where frames go to another host
//!  load::run ── a closed loop, both ends on one CPU ──▶ Outcome
//!  comparison ── NetSubjects × cases × interleaved rounds ──▶ Report: table, JSON lines, plot
//! ```

pub mod comparison;
pub mod frames;
pub mod load;
pub mod port;
pub mod receiver;
pub mod report;
pub mod sender;
pub mod sink;
pub mod subject;
#[cfg(test)]
mod tests;
pub mod wire;

pub use frames::{Frames, Station};
