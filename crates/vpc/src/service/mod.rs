//! Service functions: what the network itself answers to a guest.

pub mod arp;
mod build;
mod context;
pub mod dhcp4;
#[cfg(test)]
mod testing;

pub use context::{Answer, ServiceContext};
