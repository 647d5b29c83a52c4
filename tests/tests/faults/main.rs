//! What goes wrong around a running softdpu, and what its guests and its operator may expect then: storage that hangs,
//! vanishes, is full or fails; a data plane that is killed; changes while everything runs.
//!
//! The front end of `softdpu-bench` stands for a guest; the daemon and the NBD servers are the real programs.

#![allow(missing_docs)]

mod block_device;
mod cache;
mod changes;
mod common;
mod dirty_log;
mod errors;
mod failing;
mod frozen;
mod grow;
mod hung;
mod load;
mod loops;
mod lost;
mod opening;
mod qcow2;
mod queues;
mod resets;
mod sockets;
