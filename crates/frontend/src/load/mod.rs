//! Closed loops: a number of requests or frames is kept in flight, and what comes back is counted.
//!
//! ```text
//!  Job: what a request is                                    Generator: when, how many, what is recorded
//!    BlockJob   reads or writes at a disk's queue      ┐
//!    FrameJob   frames from a guest to another place   ├──▶ probe ─▶ warm up ─▶ measure ─▶ drain ──▶ Outcome
//!    RoundTrip  a frame and its answer, one at a time  ┘     each queue has answered before any load begins
//! ```
//!
//! One thread drives all jobs in turn: their drivers poll or sleep, take completions in batches, and submit as many
//! requests again. The terms are fio's: a job, its depth, a batch, a ramp before the measured time.

pub mod block;
mod error;
pub mod frames;
mod generator;
mod outcome;
mod pace;
mod round_trip;
mod run;
mod sink;
#[cfg(test)]
mod tests;
mod thread;

pub use block::{BlockClient, BlockJob, Pattern};
pub use error::LoadError;
pub use frames::{FrameClient, FrameJob};
pub use generator::{Generator, GeneratorOptions, Job, PollFds, Signals, Turn, Waiting};
pub use outcome::Outcome;
pub use round_trip::RoundTrip;
pub use run::{RunOptions, fair_batch, run};
pub use sink::{FrameSink, GuestSink};
pub use thread::{Priority, on_cpu};
