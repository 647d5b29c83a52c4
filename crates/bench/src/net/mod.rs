//! From guest to guest, and from guest to underlay: comparisons of servers that carry frames.
//!
//! ```text
//!  FrameSender ── transmitq1 of A ──▶ ┌────────┐ ──▶ receiveq1 of B ── FrameReceiver
//!                                     │ server │
//!                                     └────────┘ ──▶ veth pair ── Counter, where frames go to another host
//!  a closed loop, both ends on one CPU ──▶ Outcome
//!  comparison ── NetSubjects × cases × interleaved rounds ──▶ Report: table, JSON lines, plot
//! ```

pub mod comparison;
pub mod counter;
pub mod report;
pub mod subject;
pub mod wire;
