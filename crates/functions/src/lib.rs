//! Functions that a tenant puts in the path of its interfaces' frames: flow monitor, analytics, firewall.
//!
//! ```text
//!   guest ─► frames of a burst ─► Observation of each, parsed once
//!                                   │
//!                                   ├─► judge: every function of the chain in turn; the next do not see what one drops
//!                                   │      … the network does its work …
//!                                   └─► note: frames that went are counted
//!   now and then ─► turn ─► Output: flow records, windows, counts ─► export and status
//! ```
//!
//! An instance belongs to one core, as the tables of the network's tiers do; what several cores say of one function is
//! put together by the reader of their outputs. No clock and no I/O: time comes in as an argument, and what is to be
//! sent goes out as values. So the same code runs behind a port, in a simulation and in a test with a literal sequence.
//!
//! A frame may be judged more than once: one that finds no room at its receiver comes again. It is noted once.

#![forbid(unsafe_code)]

pub mod analytics;
mod chain;
pub mod firewall;
mod fragments;
pub mod ipfix;
pub mod monitor;
mod observation;
#[cfg(test)]
mod testing;

pub use chain::{Counts, Function, FunctionSpec, Output};
pub use observation::{CHAIN, FrameDirection, Observation};
