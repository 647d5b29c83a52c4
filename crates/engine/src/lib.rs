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
//! Requests in flight stay with the core that submitted them; what they come to travels to the queue's new core as a
//! message. Nothing on the path of a request takes a lock, allocates, or makes a system call that a batch does not share.

#![forbid(unsafe_code)]

mod channel;
mod core;
mod counters;
mod engine;
mod flight;
mod handshake;
mod mailbox;
mod message;
mod net;
mod network;
mod queue;
mod sleep;

pub use counters::{CoreCounters, Counter, QueueCounters, TenantCounters};
pub use engine::{Engine, EngineConfig, EngineError};
pub use message::{CoreIndex, FromCore, QueueKey, QueueUpdate};
pub use net::{PortCounters, PortSpec, RateLimit, Receive, Socket, Transmit};
pub use queue::{QueueSpec, Role};
