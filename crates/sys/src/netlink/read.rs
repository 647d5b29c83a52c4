//! The kernel's messages as plain values.

use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, State};
use netlink_packet_route::neighbour::{self, NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia};

use super::{Interface, Neighbour, NeighbourState, OperState, Route};

pub(super) fn interface(link: &LinkMessage) -> Interface {
    let mut interface =
        Interface { index: link.header.index, up: link.header.flags.contains(LinkFlags::Up), ..Interface::default() };
    for attribute in &link.attributes {
        match attribute {
            LinkAttribute::IfName(name) => interface.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => interface.mtu = *mtu,
            LinkAttribute::Address(bytes) => interface.mac = bytes.as_slice().try_into().ok(),
            LinkAttribute::OperState(state) => {
                interface.state = match state {
                    State::Up => OperState::Up,
                    State::Down => OperState::Down,
                    State::LowerLayerDown => OperState::LowerLayerDown,
                    State::Dormant | State::Testing | State::NotPresent => OperState::NotReady,
                    _ => OperState::Unknown,
                }
            }
            _ => {}
        }
    }
    interface
}

/// The interface's own address: on a point-to-point link the other attribute is the peer's.
pub(super) fn address(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

pub(super) fn route(message: &RouteMessage) -> Option<Route> {
    let local = message.header.kind == RouteType::Local;
    let mut route = Route { interface: 0, gateway: None, source: None, local };
    let ip = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(interface) => route.interface = *interface,
            RouteAttribute::Gateway(address) => route.gateway = ip(address),
            RouteAttribute::PrefSource(address) => route.source = ip(address),
            // An IPv4 route by way of an IPv6 router (RFC 5549).
            RouteAttribute::Via(RouteVia::Inet(address)) => route.gateway = Some(IpAddr::V4(*address)),
            RouteAttribute::Via(RouteVia::Inet6(address)) => route.gateway = Some(IpAddr::V6(*address)),
            _ => {}
        }
    }
    (route.interface != 0).then_some(route)
}

pub(super) fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    use neighbour::NeighbourState as Kernel;
    let state = match message.header.state {
        Kernel::Reachable | Kernel::Stale | Kernel::Delay | Kernel::Probe | Kernel::Permanent | Kernel::Noarp => {
            NeighbourState::Usable
        }
        Kernel::Failed => NeighbourState::Failed,
        _ => NeighbourState::Incomplete,
    };
    let mut address = None;
    let mut mac = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => address = Some(IpAddr::V4(*v4)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => address = Some(IpAddr::V6(*v6)),
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            _ => {}
        }
    }
    let mac = mac.filter(|_| state == NeighbourState::Usable);
    Some(Neighbour { interface: message.header.ifindex, address: address?, mac, state })
}
