//! The driver's side: a vhost-user-blk front end, the load it makes, and comparisons of servers under that load.
//!
//! ```text
//!  FrontEnd ── Control: messages over the socket            ┐
//!     │                                                      ├─ any vhost-user-blk server: a Subject
//!     └────── Queue ×N: requests over shared memory         ┘
//!  load::run ── keeps queues at a depth, polling or blocking ──▶ Outcome
//!  side_by_side ── Subjects × cases × interleaved rounds ──▶ Report: table, JSON lines, plots
//! ```
//!
//! [`net`] is the same for vhost-user-net: frames from guest to guest. [`vpc`] measures the gateway's tables in memory.
//!
//! [`front_end`] is also what tests use to be a driver, a restless one or a hostile one.

#![forbid(unsafe_code)]

pub mod accel;
pub mod calibration;
pub mod comparison;
mod error;
pub mod front_end;
pub mod idle;
pub mod interrupt;
pub mod load;
pub mod net;
mod pace;
pub mod plot;
pub mod process;
pub mod report;
pub mod scratch;
pub mod side_by_side;
pub mod subject;
mod turns;
pub mod vpc;

pub use error::SetupError;
pub use softdpu_ring::Format;
