//! Tunnels: the outer headers to another node, all but what differs from frame to frame (RFC 7348 §5).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::id::PortId;
use crate::packet::Mac;
use crate::packet::checksum::Sum;
use crate::packet::parse::{ETHERNET, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4, IPV6, UDP, protocol};
use crate::packet::vxlan::{OVERHEAD_V6, VALID_VNI, VXLAN};
use crate::spec::UnderlaySpec;

/// Hop limit of outer packets.
const HOP_LIMIT: u8 = 64;

/// The way to another node.
#[derive(Clone, Debug)]
pub struct Tunnel {
    /// Its tunnel end point.
    pub host: IpAddr,
    /// The port by which it is reached.
    pub port: PortId,
    /// Whether the next hop's MAC address is known.
    pub resolved: bool,
    headers: [u8; OVERHEAD_V6],
    len: u8,
    /// Of the IPv4 header.
    sum: Sum,
}

impl Tunnel {
    /// One to a host that is not reached: nothing leaves by it.
    pub(super) fn nowhere(underlay: &UnderlaySpec, host: IpAddr) -> Option<Tunnel> {
        let local = if host.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        Tunnel::between(underlay, &local, host, None)
    }

    /// The tunnel to `host` from the address that the underlay has in its family.
    pub(super) fn new(underlay: &UnderlaySpec, host: IpAddr, mac: Option<Mac>) -> Option<Tunnel> {
        let local = underlay.addresses.iter().find(|local| local.is_ipv4() == host.is_ipv4())?;
        Tunnel::between(underlay, local, host, mac)
    }

    fn between(underlay: &UnderlaySpec, local: &IpAddr, host: IpAddr, mac: Option<Mac>) -> Option<Tunnel> {
        let mut headers = [0; OVERHEAD_V6];
        headers[..6].copy_from_slice(&mac.unwrap_or_default().0);
        headers[6..12].copy_from_slice(&underlay.mac.0);
        let udp = match (local, host) {
            (IpAddr::V4(local), IpAddr::V4(host)) => {
                headers[12..14].copy_from_slice(&ETHERTYPE_IPV4.to_be_bytes());
                headers[ETHERNET] = 0x45;
                headers[ETHERNET + 6] = if underlay.dont_fragment { 0x40 } else { 0 };
                headers[ETHERNET + 8] = HOP_LIMIT;
                headers[ETHERNET + 9] = protocol::UDP;
                headers[ETHERNET + 12..ETHERNET + 16].copy_from_slice(&local.octets());
                headers[ETHERNET + 16..ETHERNET + 20].copy_from_slice(&host.octets());
                ETHERNET + IPV4
            }
            (IpAddr::V6(local), IpAddr::V6(host)) => {
                headers[12..14].copy_from_slice(&ETHERTYPE_IPV6.to_be_bytes());
                headers[ETHERNET] = 0x60;
                headers[ETHERNET + 6] = protocol::UDP;
                headers[ETHERNET + 7] = HOP_LIMIT;
                headers[ETHERNET + 8..ETHERNET + 24].copy_from_slice(&local.octets());
                headers[ETHERNET + 24..ETHERNET + 40].copy_from_slice(&host.octets());
                ETHERNET + IPV6
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
        };
        headers[udp + 2..udp + 4].copy_from_slice(&underlay.udp_port.to_be_bytes());
        headers[udp + UDP] = VALID_VNI;
        let len = (udp + UDP + VXLAN) as u8;
        let sum = Sum::ZERO.bytes(&headers[ETHERNET..udp]);
        Some(Tunnel { host, port: underlay.port, resolved: mac.is_some(), headers, len, sum })
    }

    /// The outer headers without lengths, checksum, source port, traffic class and VNI.
    #[inline]
    pub fn headers(&self) -> &[u8] {
        &self.headers[..usize::from(self.len)]
    }

    /// The first of [`headers`](Self::headers): arrays are copied without a call.
    #[inline(always)]
    pub fn begin<const N: usize>(&self) -> [u8; N] {
        self.headers.first_chunk().copied().unwrap_or([0; N])
    }

    /// The last of them: UDP's and VXLAN's.
    #[inline(always)]
    pub fn end(&self) -> [u8; UDP + VXLAN] {
        let from = usize::from(self.len).saturating_sub(UDP + VXLAN);
        self.headers.get(from..).and_then(|end| end.first_chunk()).copied().unwrap_or_default()
    }

    /// The sum of the IPv4 header among them, without what differs from frame to frame.
    #[inline]
    pub fn sum(&self) -> Sum {
        self.sum
    }

    /// Largest inner IP packet, bytes, where outer packets have at most `mtu`.
    pub(super) fn mtu(&self, mtu: u16) -> u16 {
        // The outer Ethernet header is not in the MTU, the inner one is.
        mtu.saturating_sub(u16::from(self.len))
    }
}
