//! Simulated time: a node made of models, and the very policies that a daemon runs.
//!
//! [`node`] is the machine: sources, queues, cores, stations and links, driven by a discrete-event [`agenda`] in
//! integer nanoseconds. On it stand the experiments of the MTDA paper ([`mtda`]), replays of recorded cores
//! ([`replay`]), and sweeps with injected faults ([`explore`]). Everything is the same each time for the same seed, on
//! every machine.
//!
//! The experiments of the Wave paper ([`wave`]) are on a machine of their own: a host, a link and an agent.

#![forbid(unsafe_code)]

pub mod agenda;
pub mod arrivals;
pub mod explore;
pub mod figure;
pub mod histogram;
pub mod mtda;
pub mod node;
pub mod plan;
pub mod random;
pub mod replay;
pub mod station;
pub mod statistics;
pub mod summary;
pub mod wave;
