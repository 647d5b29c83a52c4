//! An NVMe controller without I/O (Base 2.0, NVM Command Set 1.0, PCIe Transport 1.0).
//!
//! ```text
//!   register access ─▶ Controller ─▶ Action: start and stop queue pairs, flush, kick
//!     doorbell 0  ─▶ admin commands ─▶ outcomes ─▶ (saved) ─▶ publish ─▶ completions, interrupt 0
//!
//!   ring::nvme::QueuePair ─▶ Command ─▶ Commands::parse ─▶ NvmeIo ─▶ (engine, storage) ─▶ Status
//! ```
//!
//! [`Controller`] is the registers, the admin queue and what its commands change. It belongs to the thread that
//! answers register accesses. [`Commands`] parses the commands of I/O queues, on whichever cores these are.
//!
//! After each call that may change the controller, the program around takes all [actions](Controller::next_action),
//! does them, and answers Start, Stop and Flush when they are done; a Stop also of a pair whose start failed. Then, for
//! as long as there are [outcomes](Controller::has_outcomes), it saves the state and publishes them.
//!
//! **After a kill.** Each admin command is executed once and completed once: [`Controller::save`] has its outcome
//! before [`Controller::publish`] shows it to the host. The program around calls `save` in between, whenever
//! [`Controller::has_outcomes`] says so.

mod abi;
mod action;
mod admin;
mod command;
mod config;
mod controller;
mod data;
mod events;
mod features;
#[cfg(any(test, fuzzing, feature = "fuzz"))]
pub(crate) mod fuzz;
mod identify;
mod io;
mod logs;
mod queues;
mod state;
mod status;

pub use abi::{VERSION, register};
pub use action::Action;
pub use command::{BROADCAST, Command};
pub use config::{ControllerConfig, ControllerConfigError, MAX_ENTRIES, MAX_NAMESPACES, MAX_QUEUES, NamespaceConfig};
pub use controller::{Controller, ControllerMemory};
pub use data::{DESCRIPTORS, SEGMENTS, prp, sgl};
pub use io::{Commands, NvmeIo, NvmeOp, NvmeParsed};
pub use state::{ControllerState, OutcomeState, QueueState};
pub use status::Status;
