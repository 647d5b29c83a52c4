//! The harness of softdpu's end-to-end tests and of its demonstration.
//!
//! This crate does not link softdpu. It starts, asks and kills it from outside, as an operator would.
//!
//! ```text
//!   Lab ── temporary folder, one test at a time, shows every process's last words when a test fails
//!    ├── Server ── serves disks over vhost-user-blk
//!    │     ├── Daemon         `softdpu run site.toml`
//!    │     └── StorageDaemon  `qemu-storage-daemon`, the peer that also proves the harness itself
//!    ├── Testpmd ── DPDK's driver in a process of its own, on a vhost-user-net socket
//!    ├── Host ── a network namespace at one end of a Wire, with its own softdpu; a Capture of what passes the wire
//!    └── Guest ── QEMU with a stock Debian kernel; a job from lab/guest/jobs reports over the serial console
//! ```
//!
//! Every process is a [`Process`]: it ends when its value is dropped, and when the test dies without dropping it.

#![forbid(unsafe_code)]

pub mod abuses;
mod accel;
mod capture;
mod containers;
mod cpio;
mod daemon;
pub mod descriptor;
mod device;
mod failure;
mod guest;
mod hosts;
mod lab;
pub mod netns;
mod paired;
mod paths;
mod process;
mod qemu;
mod qmp;
mod report;
mod server;
mod site;
mod storage_daemon;
mod testpmd;
mod wait;
mod worker;

pub use accel::Accel;
pub use capture::{Capture, Findings, Recording};
pub use containers::{Containers, text2pcap};
pub use daemon::{Daemon, PortCounts};
pub use device::GuestDevice;
pub use failure::{Context, Failure};
pub use guest::{Guest, GuestDisk, GuestSpec, Root};
pub use hosts::{Gateway, Host, TAP, TwoHosts, Wire, datagrams};
pub use lab::Lab;
pub use paired::Interval;
pub use paths::{blkio_tool, frr_program, job, no_newer_kernel, repository, softdpu};
pub use process::Process;
pub use qemu::Qemu;
pub use qmp::Qmp;
pub use report::Report;
pub use server::{Disk, Server, ServerKind, has_two_cpus};
pub use site::Site;
pub use softdpu_testing::{Random, SlowDisk, skip};
pub use storage_daemon::StorageDaemon;
pub use testpmd::{Counts, Testpmd, TestpmdPort};
pub use wait::{wait_until, wait_until_still};
pub use worker::Worker;
