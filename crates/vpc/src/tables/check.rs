//! Checks of single values of a spec.

use std::net::IpAddr;

use super::error::Problem;
use crate::packet::Mac;
use crate::spec::{NetworkSpec, UnderlaySpec, min_mtu};

pub(super) fn check_underlay(underlay: &UnderlaySpec) -> Result<(), Problem> {
    station(underlay.mac)?;
    check_mtu(underlay.mtu, underlay.addresses.iter().any(IpAddr::is_ipv6))?;
    if underlay.addresses.is_empty() {
        return Err(Problem::NoAddress);
    }
    for (at, address) in underlay.addresses.iter().enumerate() {
        host(*address)?;
        if underlay.addresses[..at].iter().any(|other| other.is_ipv4() == address.is_ipv4()) {
            return Err(Problem::SecondAddress(*address));
        }
    }
    Ok(())
}

pub(super) fn check_mtu(mtu: u16, ipv6: bool) -> Result<(), Problem> {
    let least = min_mtu(ipv6);
    if mtu < least { Err(Problem::Mtu { mtu, least }) } else { Ok(()) }
}

pub(super) fn station(mac: Mac) -> Result<(), Problem> {
    if mac.is_station() { Ok(()) } else { Err(Problem::NotAStation(mac)) }
}

/// An address that one host can have: no group's, not unspecified, no loopback, none that only stands for an IPv4 one.
pub(super) fn host(address: IpAddr) -> Result<(), Problem> {
    let no_host = match address {
        IpAddr::V4(address) => address.is_broadcast(),
        IpAddr::V6(address) => address.to_ipv4_mapped().is_some() || address.is_unicast_link_local(),
    };
    if no_host || address.is_multicast() || address.is_unspecified() || address.is_loopback() {
        return Err(Problem::NotAHost(address));
    }
    Ok(())
}

/// The tunnel end point of another node than this one, which has the end points `own`: none while they are not known.
pub(super) fn other_host(address: IpAddr, own: &[IpAddr]) -> Result<(), Problem> {
    host(address)?;
    if own.contains(&address) {
        return Err(Problem::OwnHost(address));
    }
    let is_reached = own.is_empty() || own.iter().any(|own| own.is_ipv4() == address.is_ipv4());
    if is_reached { Ok(()) } else { Err(Problem::NoUnderlay(address)) }
}

/// The subnet that a guest's address is in, by its place among its network's.
pub(super) fn guest_subnet(address: IpAddr, network: &NetworkSpec) -> Result<u32, Problem> {
    host(address)?;
    let at = network.subnets.iter().position(|subnet| subnet.prefix.contains(address));
    let at = at.ok_or(Problem::AddressOutside(address))?;
    if network.subnets[at].gateway == address { Err(Problem::AddressTaken(address)) } else { Ok(at as u32) }
}
