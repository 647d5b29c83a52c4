//! VPC networks: what happens to a frame between the port it came from and the port it leaves by.
//!
//! ```text
//!   guest · TAP · underlay          ports: the engine moves the bytes, this crate never sees a ring or a socket
//!        │ Packet: a private copy of the frame's head, its offload, its length
//!   switch tier, before             parse, classify, network, routes                      stateless
//!        │
//!   flow tier                       exact matches                                         per core
//!        │                                    ╲ what it does not know
//!        │                                     software tier: services, everything else   whole frames
//!   switch tier, after              next hop, encapsulation
//!        │ Verdict
//!   guest · TAP · underlay
//! ```
//!
//! The tiers are those of Zephyrus (§3.2, §4.1). A frame's payload is never touched here: headers are rewritten in the
//! [`Head`], and the mover of the frame copies the rest from where it lies to where it goes, once.
//!
//! No clock and no I/O: time comes in as an argument, frames that are to be sent go out as values.
//!
//! # Modules
//!
//! A module uses only those below it; `tests/modules.rs` reads the order from here and holds it.
//!
//! ```text
//!   vpc             one core: the tiers over a batch of frames
//!   trace           which frames are watched, and the steps they take
//!   steer           on which core packets from tunnels are worked on
//!   ingress         the tenants that packets from the underlay belong to
//!   software        software tier: whole frames
//!   switch          switch tier, before and after the flow tier
//!   flow            flow tier: exact matches
//!   tables          what forwarding looks up, built from a spec
//!   service         ARP, neighbour discovery, DHCP, ICMP: questions and answers
//!   nat             translation of addresses where networks meet the outside
//!   spec            what the control plane gives, as plain data
//!   policy          ACLs, security groups, connections, meters, ECMP
//!   exact, stats    a table of exact matches; what a core counts
//!   kept            what outlives the process
//!   hash, paths     hashes of 5-tuples; which way packets took through the tiers
//!   packet, stamp   frames and their headers; versions of what a flow was computed from
//!   verdict         what becomes of a frame
//!   id              numbers that name things
//! ```

#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as softdpu_vpc;

pub mod exact;
mod flow;
mod hash;
pub mod id;
mod ingress;
pub mod kept;
pub mod nat;
pub mod packet;
mod paths;
pub mod policy;
pub mod service;
mod software;
pub mod spec;
mod stamp;
mod stats;
pub mod steer;
mod switch;
pub mod tables;
pub mod trace;
mod verdict;
mod vpc;

pub use flow::{FlowCounters, HeavyFlow};
pub use id::{PortId, Vni};
pub use ingress::IngressOwner;
pub use packet::{Checksum, HEAD, HEADROOM, Head, Mac, Packet, Segmentation, SegmentationKind, Tail, TailError};
pub use paths::{Datapath, Destination, Paths};
pub use service::{Probe, ProbeService, through_tunnel};
pub use stats::Stats;
pub use tables::{Entry, Problem, RemoteEndpoint, SpecError, Tables};
pub use verdict::{DropReason, Reply, Verdict};
pub use vpc::{Asked, Explanation, FLOWS, Part, Vpc};
