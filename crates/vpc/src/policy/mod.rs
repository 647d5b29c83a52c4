//! What a network's owner allows, and which of several ways a flow takes: decisions about a flow's first packet, which the
//! flow tier then keeps for those that follow.
//!
//! ```text
//!   first packet ─► Tuple ─► conntrack: of a known connection? ─ yes ─► passes
//!                              │ no
//!                              ├─► acl:   prefixes, ports, protocol by priority     stateless
//!                              ├─► group: what any of the endpoint's groups allows  replies pass by conntrack
//!                              ├─► conntrack: a new connection, where there is room for its owner
//!                              └─► ecmp:  which member of a next hop's group
//! ```
//!
//! Everything here is pure: no clock, no I/O; tables are built from plain data, then looked up without allocating. Nothing
//! calls it yet but tests and `softdpu bench vpc`: the site file has no keys for it.

pub mod acl;
mod classifier;
pub mod conntrack;
pub mod ecmp;
pub mod group;
mod rule;
mod tuple;

pub use rule::{Ports, PortsError, Service};
pub use tuple::{Overlap, Transport, Tuple};
