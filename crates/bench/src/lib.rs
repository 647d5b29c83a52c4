//! Comparisons of servers under load, and measurements of softdpu's parts.
//!
//! ```text
//!  Subject: softdpu or a peer, started for a measurement and ended after it
//!     ▲
//!  softdpu_frontend ── a closed loop of requests or frames ──▶ Outcome
//!  side_by_side ── Subjects × cases × interleaved rounds ──▶ Report: table, JSON lines, plots
//! ```
//!
//! [`comparison`] measures disks, [`net`] frames from guest to guest, [`tenants`] how a core is shared, [`cosched`]
//! what its idle time gives to other threads, [`vpc`] the gateway's tables in memory, [`wave`] the queues of agents.

#![forbid(unsafe_code)]

pub mod accel;
pub mod calibration;
pub mod comparison;
pub mod cosched;
mod error;
pub mod figures;
pub mod gateway;
pub mod idle;
pub mod interrupt;
pub mod net;
pub mod outage;
pub mod plot;
pub mod process;
pub mod report;
pub mod samples;
pub mod scratch;
pub mod side_by_side;
pub mod subject;
pub mod tenants;
mod turns;
pub mod vpc;
pub mod wave;

pub use error::SetupError;
