//! What the kernel answers about a network that was made for the purpose.

use std::net::IpAddr;

use softdpu_sys::netlink::{Change, Monitor, NeighbourState, Netlink, NetlinkError, OperState};

use crate::lab::{Lab, readable, until};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn lab(test: &str) -> Option<Lab> {
    let lab = Lab::new(test, 2)?;
    lab.veth((0, "veth0"), (1, "veth1"));
    for (index, last) in [(0, 1), (1, 2)] {
        lab.ip(index, &format!("link set veth{index} address 02:00:00:00:00:0{last}"));
        lab.ip(index, &format!("address add 10.9.0.{last}/24 dev veth{index}"));
        lab.ip(index, &format!("address add fd00::{last}/64 dev veth{index} nodad"));
    }
    Some(lab)
}

#[test]
fn interfaces_have_their_settings_and_addresses() {
    let Some(lab) = lab("netlink, interfaces") else { return };
    lab.ip(0, "link set veth0 mtu 1600");
    let mut netlink = lab.within(0, || Netlink::new().unwrap());
    let veth0 = netlink.interface("veth0").unwrap();
    assert_eq!((veth0.name.as_str(), veth0.mtu, veth0.up, veth0.state), ("veth0", 1600, true, OperState::Up));
    assert_eq!(veth0.mac, Some([2, 0, 0, 0, 0, 1]));
    assert_eq!(veth0.addresses, [(ip("10.9.0.1"), 24), (ip("fd00::1"), 64)]);
    let all = netlink.interfaces().unwrap();
    assert!(all.contains(&veth0) && all.iter().any(|interface| interface.name == "lo" && !interface.up), "{all:?}");
    lab.ip(1, "link set veth1 down");
    until("the carrier is lost", || netlink.interface("veth0").unwrap().state == OperState::Down);
    for name in ["veth7", "a-name-beyond-all-bounds"] {
        let error = netlink.interface(name).unwrap_err();
        assert!(matches!(error, NetlinkError::NoInterface { .. }), "{error}");
    }
}

#[test]
fn routes_lead_to_neighbours() {
    let Some(lab) = lab("netlink, routes") else { return };
    lab.ip(0, "route add 10.20.0.0/16 via 10.9.0.2");
    lab.ip(0, "route add 10.30.0.0/16 via inet6 fd00::2");
    lab.ip(0, "route add unreachable 10.40.0.0/16");
    let mut netlink = lab.within(0, || Netlink::new().unwrap());
    let index = netlink.interface("veth0").unwrap().index;
    let mut route = |destination| {
        let route = netlink.route(ip(destination)).map_err(|error| error.to_string())?;
        Ok::<_, String>((route.interface == index, route.gateway, route.source, route.local))
    };
    let (v4, v6) = (Some(ip("10.9.0.1")), Some(ip("fd00::1")));
    assert_eq!(route("10.9.0.2"), Ok((true, None, v4, false)));
    assert_eq!(route("10.20.1.1"), Ok((true, Some(ip("10.9.0.2")), v4, false)));
    assert_eq!(route("10.30.1.1"), Ok((true, Some(ip("fd00::2")), v4, false)));
    assert_eq!(route("fd00::2"), Ok((true, None, v6, false)));
    assert!(route("10.9.0.1").unwrap().3, "our own address");
    for nowhere in ["10.40.1.1", "192.0.2.1", "2001:db8::1"] {
        let error = route(nowhere).unwrap_err();
        assert!(error.starts_with(&format!("no route to {nowhere} (")), "{error}");
    }
}

#[test]
fn neighbours_are_resolved_by_the_kernel_and_changes_are_heard_of() {
    let Some(lab) = lab("netlink, neighbours") else { return };
    // Solicitations of the kernel's own come from a link-local address.
    lab.ip(0, "address add fe80::1/64 dev veth0 nodad");
    lab.ip(1, "address add fe80::2/64 dev veth1 nodad");
    let (mut netlink, mut monitor) = lab.within(0, || (Netlink::new().unwrap(), Monitor::new().unwrap()));
    let index = netlink.interface("veth0").unwrap().index;
    let mut hear = |what: &str, awaited: &dyn Fn(&Change) -> bool| {
        let mut heard = false;
        until(what, || {
            assert!(readable(monitor.fd()), "{what}");
            monitor.receive(|change| heard |= awaited(&change)).unwrap();
            heard
        });
    };
    for address in [ip("10.9.0.2"), ip("fd00::2")] {
        assert_eq!(netlink.neighbour(index, address).unwrap(), None);
        netlink.resolve(index, address).unwrap();
        hear("the neighbour", &|change| {
            matches!(change, Change::Neighbour(neighbour)
                if neighbour.address == address && neighbour.mac == Some([2, 0, 0, 0, 0, 2]))
        });
        let neighbour = netlink.neighbour(index, address).unwrap().unwrap();
        assert_eq!((neighbour.state, neighbour.mac), (NeighbourState::Usable, Some([2, 0, 0, 0, 0, 2])));
    }
    lab.ip(0, "neighbour del 10.9.0.2 dev veth0");
    hear("the neighbour is gone or failed", &|change| match change {
        Change::NeighbourGone(neighbour) | Change::Neighbour(neighbour) => {
            neighbour.address == ip("10.9.0.2") && neighbour.mac.is_none()
        }
        _ => false,
    });
    lab.ip(0, "route add 10.20.0.0/16 via 10.9.0.2");
    hear("the route", &|change| *change == Change::Route);
    lab.ip(0, "address add 10.9.0.7/24 dev veth0");
    hear("the address", &|change| *change == Change::Address(index));
    lab.ip(0, "link set veth0 mtu 1300");
    hear("the MTU", &|change| matches!(change, Change::Link(link) if link.index == index && link.mtu == 1300));
    lab.ip(0, "link del veth0");
    hear("the interface is gone", &|change| *change == Change::LinkGone(index, "veth0".to_owned()));
}
