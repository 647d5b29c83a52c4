//! Flow tier: exact matches (Zephyrus §4.1). What the other tiers decided for a flow's first packet is kept for those
//! that follow, which then cost one look-up and a few writes.
//!
//! ```text
//!   packet ──► key: port, source MAC address, 5-tuple ──► flow: next hop's number, meter, connection
//!              or, by a tunnel: network, inner 5-tuple                    and the next hop towards the source
//!                 │ not of a common shape        │ not there   │ stale      │ this packet needs a decision of its own
//!                 └──────────────┬───────────────┴────────────┴─────────────┘
//!                   switch tier: parse … route … next hop ──► keeps the flow
//! ```
//!
//! A flow never decides what its packets would not have got without it: whatever else the switch tier looks at is
//! either in the key, or is checked on every packet (lengths, path MTU, hop limit, offload), or takes the packet out of
//! the flow's hands (SYN, fragments, options, extension headers, VLAN tags, group addresses), or is looked up for every
//! packet (the next hop by its number), or is an object whose version the flow has.
//!
//! **From tunnels.** Outer headers are checked on every packet, and that its sender's node is one of the network. A
//! flow of what they carry has the number of the next hop towards its source: a packet that came by another tunnel than
//! this leads to is none of the flow's. The key has a network by the number of the object that is its routes, which
//! stays the same from build to build; where that number is another network's, all that the flow was computed from is
//! no more. Where more than [`SOURCES`](crate::stamp::SOURCES) objects decide, or it depends on which of two ways there
//! is at the moment, no flow is made.
//!
//! **Versions** (Zephyrus §4.3). A flow has numbers and versions of the objects that it was computed from, and the
//! generation of the tables with which it was last compared. While they are the same tables one comparison of a word
//! tells that it is fresh; after a change the first packet compares all, and a flow that used nothing that changed goes
//! on as it is.
//!
//! **Storms.** A change can make very many flows stale at once. A packet of a stale flow is decided like the first of a
//! new one, and renews the flow: none is dropped for it. A batch of packets of stale flows takes as long as one of new
//! flows, and the engine bounds both alike: a batch is at most 32 packets of one queue, the tenant of a transmit queue
//! is charged with the time of its batches, and a grant that has run for long ends with the batch.

mod entry;
mod heavy;
mod key;
mod table;
#[cfg(test)]
mod tests;

pub use entry::FlowCounters;
pub(crate) use entry::{Action, Origin};
pub(crate) use heavy::Heavy;
pub use heavy::HeavyFlow;
pub(crate) use key::{Bytes, Key, Seen, may_end, see, see_bytes, see_ipv4, see_ipv6};
pub(crate) use table::{Candidate, FlowIndex, Flows, Found, Home};
