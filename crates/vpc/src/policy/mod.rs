//! What a network's owner allows, and which of several ways a flow takes: decisions about a flow's first packet, which
//! the flow tier then keeps for those that follow.
//!
//! ```text
//!   first packet ─► Tuple ─► acl: prefixes, ports, protocol by priority   stateless: asked about each direction
//!                              │
//!                            conntrack: of a known connection? ─ yes ─► passes
//!                              │ no
//!                              ├─► group: what any of the endpoint's groups allows   replies pass by conntrack
//!                              └─► conntrack: a new connection, where there is room for its owner
//! ```
//!
//! Everything here is pure: no clock, no I/O; tables are built from plain data, then looked up without allocating. The
//! software tier asks it (`software/policy.rs`); [`ecmp`] is the switch tier's, where a route leads to a group
//! (`tables/ecmp.rs`).

pub mod acl;
mod classifier;
pub(crate) mod connections;
pub mod conntrack;
pub mod ecmp;
pub mod group;
pub(crate) mod meter;
mod rule;
mod tuple;

use std::sync::Arc;

pub use meter::MeterCount;
pub use rule::{Ports, PortsError, Service};
pub use tuple::{Overlap, Transport, Tuple};

/// What is allowed to and from an endpoint.
#[derive(Clone, Debug)]
pub(crate) struct EndpointPolicy {
    /// The rules of its groups; None: it is in none, and everything passes.
    pub groups: Option<group::EndpointGroups>,
    /// Its list, asked about what it sends and about what is sent to it.
    pub acl: Option<Arc<acl::Acl>>,
}
