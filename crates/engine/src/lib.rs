//! The data plane's cores and what runs on them.
//!
//! ```text
//!             control thread (slow path)
//!   Engine ──────────────┬─ ToCore messages ─┬──────────────►  FromCore events
//!                        ▼                   ▼
//!   ┌──────────────── core 0 ───────┐ ┌── core 1 ──┐
//!   │ intake: rings → channels      │ │            │
//!   │ decide: the tenant scheduler  │ │   moves,   │
//!   │ run:    parse → volume        │◄┤completions ├►
//!   │ finish: status → used ring    │ │            │
//!   │ idle:   spin, then sleep      │ │            │
//!   └───────────────────────────────┘ └────────────┘
//! ```
//!
//! A queue belongs to one core, which alone reads its available ring and writes its used ring. Moving it is a message.
//! Requests in flight stay with the core that submitted them; their results travel to the queue's new core as a
//! message. On the path of a request a core allocates nothing and makes no system call that a batch does not share; it
//! takes no lock but that of an NBD connection, which the cores that use the volume share.

#![forbid(unsafe_code)]

mod back_ends;
mod by_hand;
mod channel;
mod core;
mod counters;
mod disk;
mod engine;
mod flight;
mod frames;
mod handshake;
mod ids;
mod injector;
mod links;
mod mailbox;
mod message;
mod net;
mod network;
mod nvme;
mod queue;
mod recorder;
mod role;
mod scale;
mod shares;
mod sleep;
mod steal;
mod steering;

// The driver of the tests in `tests/` names this crate from outside.
#[cfg(test)]
extern crate self as softdpu_engine;
#[cfg(test)]
#[allow(dead_code, missing_docs, unreachable_pub, reason = "each program of tests uses a part of it")]
#[path = "../tests/common/mod.rs"]
mod common;

pub use by_hand::ByHand;
pub use counters::{
    CoreCounters, Counter, ForwardingCounters, QueueCounters, SteeringCounters, TenantCounters, YieldCounters,
};
pub use engine::{Engine, EngineConfig, EngineError};
pub use ids::{CoreIndex, QueueKey};
pub use injector::Injector;
pub use message::{FromCore, QueueUpdate};
pub use net::{
    Capture, CaptureBatch, CaptureCounts, CaptureSpec, CaptureTally, CapturedFrame, FrameDirection, FramePath,
};
pub use net::{
    FunctionBox, FunctionChange, FunctionId, FunctionOutlet, FunctionReport, FunctionSwitchover, NewFunction,
};
pub use net::{PortCounters, PortSpec, Socket, XdpQueues};
pub use network::Replacement;
pub use queue::{NvmeQueue, QueueSpec, RateLimit, Receive, Role, Transmit};
pub use steering::{RuleReport, SteeringError, SteeringMode, SteeringReport, SteeringSpec};
