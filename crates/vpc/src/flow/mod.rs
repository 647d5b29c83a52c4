//! Flow tier: exact matches (Zephyrus §4.1). What the other tiers decided for a flow's first packet is kept for those that
//! follow, which then cost one look-up and a few writes.
//!
//! ```text
//!   packet ──► key: port, MAC addresses, 5-tuple ──► flow: new MAC addresses, where to, what fits there
//!                 │ not of a common shape               │ not there, or this packet needs a decision of its own
//!                 └──────────────┬──────────────────────┘
//!                   switch tier: parse … route … next hop ──► installs the flow
//! ```
//!
//! A flow never decides what its packets would not have got without it: whatever else the switch tier looks at is either in
//! the key, or is checked on every packet (lengths, path MTU, hop limit, offload), or takes the packet out of the flow's hands
//! (SYN, fragments, options, extension headers, VLAN tags). Flows do not outlive the tables they were made from.

mod cache;
mod hash;
mod key;

pub(crate) use cache::{Action, Flows, Line, To};
pub(crate) use hash::hash;
pub(crate) use key::{Seen, see};
