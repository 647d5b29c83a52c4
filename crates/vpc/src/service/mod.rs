//! Service functions: what the network itself answers to a guest.

pub mod arp;
mod build;
mod context;
pub mod dhcp4;
pub mod dhcp6;
pub mod icmp;
pub mod nd;
mod probe;
pub mod ra;
pub mod rarp;
#[cfg(test)]
mod testing;

use std::net::{IpAddr, Ipv6Addr};

pub use context::{Answer, ServiceContext};
pub use probe::{Probe, ProbeService, through_tunnel};

/// The name servers that are reached over IPv6.
fn dns6<'a>(context: &ServiceContext<'a>) -> impl Iterator<Item = Ipv6Addr> + use<'a> {
    context.dns.iter().filter_map(|server| match server {
        IpAddr::V4(_) => None,
        IpAddr::V6(server) => Some(*server),
    })
}
