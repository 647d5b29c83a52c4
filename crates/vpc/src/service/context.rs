//! What a service knows when it answers: the network, and the endpoint it answers to.
//!
//! Every service is a pure function of this, of the parsed headers and of the whole frame (without outer headers; its
//! offsets are those of [`Parsed`]):
//!
//! ```text
//! arp::answer   nd::answer   ra::answer   dhcp4::answer   dhcp6::answer   icmp::echo   icmp::time_exceeded
//!     fn(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8]) -> Answer
//! icmp::too_big
//!     fn(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8], mtu: u16) -> Answer
//! icmp::unreachable
//!     fn(context: &ServiceContext<'_>, parsed: &Parsed, frame: &[u8], why: icmp::Unreachable) -> Answer
//! ```

use std::net::{IpAddr, Ipv6Addr};

use crate::packet::Mac;
use crate::spec::SubnetSpec;
use crate::verdict::DropReason;

/// What a service answers: a whole Ethernet frame for the asker with its checksums complete, nothing, or why it does
/// not.
pub type Answer = Result<Option<Vec<u8>>, DropReason>;

/// What a service knows.
#[derive(Clone, Copy)]
pub struct ServiceContext<'a> {
    /// MAC address of the gateway: the source of every answer that is not given for another endpoint.
    pub gateway_mac: Mac,
    /// The subnets in which the endpoint has an address, with their gateways, in the order of `addresses`.
    pub subnets: &'a [SubnetSpec],
    /// Largest IP packet the endpoint is told to send, bytes.
    pub mtu: u16,
    /// Name servers.
    pub dns: &'a [IpAddr],
    /// How long a DHCP lease is given for, seconds.
    pub lease: u32,
    /// The endpoint's MAC address.
    pub mac: Mac,
    /// The endpoint's own addresses, of both families.
    pub addresses: &'a [IpAddr],
    /// The MAC address behind an address of the endpoint's network: the gateway's MAC for a gateway address (its
    /// link-local one included), an endpoint's for its addresses (the asker's own included: an answer to that would be
    /// taken for a duplicate address), None where no endpoint has it.
    pub neighbor: &'a dyn Fn(IpAddr) -> Option<Mac>,
}

impl ServiceContext<'_> {
    /// The gateway's address in the endpoint's first subnet of the family: where ICMP errors come from.
    pub fn gateway(&self, ipv6: bool) -> Option<IpAddr> {
        self.subnets.iter().map(|subnet| subnet.gateway).find(|gateway| gateway.is_ipv6() == ipv6)
    }

    /// The gateway's link-local address: where router advertisements come from.
    pub fn link_local(&self) -> Ipv6Addr {
        self.gateway_mac.link_local()
    }
}
