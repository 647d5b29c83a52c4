//! What is dropped, and why: a table of frames.

mod common;

use std::collections::BTreeSet;

use common::*;
use softdpu_vpc::spec::ServiceLimit;
use softdpu_vpc::{Checksum, DropReason, Mac, Packet, PortId, Segmentation, SegmentationKind, Verdict};

fn arp(from: Mac, operation: u8, sender_mac: Mac, sender: [u8; 4], target: [u8; 4]) -> Vec<u8> {
    let header = [&[0xff; 6][..], &from.0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation]].concat();
    [&header[..], &sender_mac.0, &sender, &[0; 6], &target].concat()
}

fn icmp6(source: &str, destination: &str, kind: u8, hops: u8) -> Vec<u8> {
    let mut frame = udp_of(mac(1), Mac([0x33, 0x33, 0, 0, 0, 1]), source, destination, hops, &[0; 16]);
    frame[20] = 58;
    frame[54] = kind;
    frame[55] = 0;
    frame
}

/// The same with the option that listener reports have (RFC 2711).
fn router_alert(mut frame: Vec<u8>) -> Vec<u8> {
    let length = u16::from_be_bytes([frame[18], frame[19]]) + 8;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    let protocol = std::mem::replace(&mut frame[20], 0);
    frame.splice(54..54, [protocol, 0, 5, 2, 0, 0, 1, 0]);
    frame
}

fn from_to(source: &str, destination: &str) -> Vec<u8> {
    udp(mac(1), GATEWAY, source, destination)
}

fn ports(mut frame: Vec<u8>, source: u16, destination: u16) -> Vec<u8> {
    let at = if frame[12] == 8 { 34 } else { 54 };
    frame[at..at + 2].copy_from_slice(&source.to_be_bytes());
    frame[at + 2..at + 4].copy_from_slice(&destination.to_be_bytes());
    frame
}

fn changed(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

/// A frame that crossed from node 1 to node 2.
fn outer(frame: &[u8]) -> Vec<u8> {
    let (verdict, outer) = forward(&mut node(Family::V4, 1), RED_1, frame);
    assert!(matches!(verdict, Verdict::Underlay { .. }), "{verdict:?}");
    outer
}

#[test]
fn what_a_guest_may_not_send() {
    use DropReason::*;
    let good = from_to("10.0.0.2", "10.0.0.3");
    let cases = [
        (Truncated, good[..13].to_vec()),
        (Truncated, good[..good.len() - 1].to_vec()),
        (Malformed, changed(good.clone(), 14, &[0x44])),
        (Vlan, [&good[..12], &[0x81, 0, 0, 5], &good[12..]].concat()),
        (EtherType, changed(good.clone(), 12, &[0x88, 0xcc])),
        (Multicast, changed(good.clone(), 0, &[0xff; 6])),
        (Multicast, from_to("10.0.0.2", "224.0.0.251")),
        (Multicast, from_to("10.0.0.2", "255.255.255.255")),
        (Multicast, from_to("2001:db8::2", "ff02::fb")),
        // Every guest tells which groups it listens to, before it has an address and after.
        (Multicast, icmp6("fe80::1", "ff02::16", 143, 1)),
        (Multicast, icmp6("::", "ff02::16", 143, 1)),
        (Multicast, router_alert(icmp6("::", "ff02::16", 143, 1))),
        (Multicast, icmp6("::", "ff02::1:ff00:2", 131, 1)),
        (Multicast, from_to("fe80::1", "ff02::fb")),
        (SpoofedAddress, icmp6("::", "2001:db8::3", 143, 1)),
        (SpoofedAddress, icmp6("::", "ff02::16", 128, 1)),
        (SpoofedAddress, icmp6("2001:db8::3", "ff02::16", 143, 1)),
        (SpoofedAddress, icmp6("fe80::ff:ff:fe00:1", "ff02::16", 143, 1)),
        (SpoofedMac, udp(mac(2), GATEWAY, "10.0.0.2", "10.0.0.3")),
        (SpoofedMac, udp(Mac::BROADCAST, GATEWAY, "10.0.0.2", "10.0.0.3")),
        (SpoofedAddress, from_to("10.0.0.3", "10.0.0.2")),
        (SpoofedAddress, from_to("10.0.0.1", "10.0.0.3")),
        (SpoofedAddress, from_to("0.0.0.0", "10.0.0.3")),
        (SpoofedAddress, from_to("2001:db8::3", "2001:db8::2")),
        (SpoofedAddress, from_to("::ffff:10.0.0.2", "2001:db8::3")),
        // A link-local source goes to the gateway only, and the gateway's is its own.
        (SpoofedAddress, from_to("fe80::1", "2001:db8::3")),
        (SpoofedAddress, from_to("fe80::ff:ff:fe00:1", "2001:db8::1")),
        // DHCP with another guest's address.
        (SpoofedAddress, ports(udp(mac(1), Mac::BROADCAST, "10.0.0.3", "255.255.255.255"), 68, 67)),
        (SpoofedNeighbor, arp(mac(1), 1, mac(1), [10, 0, 0, 3], [10, 0, 0, 4])),
        (SpoofedNeighbor, arp(mac(1), 1, mac(2), [10, 0, 0, 2], [10, 0, 0, 4])),
        (SpoofedNeighbor, icmp6("fe80::1", "ff02::1", 134, 255)),
        (SpoofedNeighbor, icmp6("2001:db8::2", "ff02::1", 137, 255)),
        (SpoofedNeighbor, icmp6("2001:db8::3", "ff02::1:ff00:2", 135, 255)),
        (SpoofedNeighbor, icmp6("fe80::ff:ff:fe00:1", "ff02::1:ff00:2", 135, 255)),
        (Service, arp(mac(1), 2, mac(1), [10, 0, 0, 2], [10, 0, 0, 3])),
        (Service, icmp6("2001:db8::2", "ff02::1", 136, 255)),
        (NoRoute, from_to("10.0.0.2", "10.0.0.2")),
    ];
    let mut node = node(Family::V4, 1);
    for (reason, frame) in cases {
        assert_eq!(forward(&mut node, RED_1, &frame).0, Verdict::Drop(reason), "{frame:02x?}");
    }
    assert_eq!(node.stats().drops(Truncated), 2);
    assert_eq!(node.stats().received, 37);
}

#[test]
fn what_a_guest_asks_goes_to_software_and_is_as_it_came() {
    let broadcast = Mac::BROADCAST;
    let mut node = node(Family::V4, 1);
    for frame in [
        arp(mac(1), 1, mac(1), [10, 0, 0, 2], [10, 0, 0, 3]),
        arp(mac(1), 1, mac(1), [0; 4], [10, 0, 0, 2]),
        ports(udp(mac(1), broadcast, "0.0.0.0", "255.255.255.255"), 68, 67),
        ports(udp(mac(1), broadcast, "10.0.0.2", "255.255.255.255"), 68, 67),
        ports(from_to("10.0.0.2", "10.0.0.1"), 68, 67),
        ports(udp(mac(1), Mac([0x33, 0x33, 0, 1, 0, 2]), "fe80::1", "ff02::1:2"), 546, 547),
        icmp6("::", "ff02::2", 133, 255),
        icmp6("fe80::1", "ff02::2", 133, 255),
        icmp6("::", "ff02::1:ff00:2", 135, 255),
        icmp6("fe80::1", "ff02::1:ff00:3", 135, 255),
        changed(from_to("10.0.0.2", "10.0.0.1"), 23, &[1, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1, 8, 0]),
        from_to("10.0.0.2", "10.0.1.1"),
        from_to("10.0.0.2", "10.0.0.77"),
        from_to("10.0.0.2", "8.8.8.8"),
    ] {
        let (verdict, left) = forward(&mut node, RED_1, &frame);
        assert_eq!(verdict, Verdict::Software, "{frame:02x?}");
        assert_eq!(left, frame);
    }
}

#[test]
fn what_does_not_come_through_a_tunnel() {
    use DropReason::*;
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.5");
    let good = outer(&frame);
    let again = |inner: &[u8]| [&good[..50], inner].concat();
    let cases = [
        (UnknownTunnel, changed(good.clone(), 0, &[2, 9, 9, 9, 9, 9])),
        (UnknownTunnel, changed(good.clone(), 29, &[3])), // the source: 192.0.2.3
        (UnknownTunnel, changed(good.clone(), 33, &[9])),
        (UnknownTunnel, changed(good.clone(), 36, &[0, 80])),
        (UnknownTunnel, changed(good.clone(), 20, &[0x20, 0])),
        (UnknownTunnel, udp(Mac([2, 0, 0, 0, 0, 1]), Mac([2, 0, 0, 0, 0, 2]), "192.0.2.1", "192.0.2.2")),
        (UnknownNetwork, changed(good.clone(), 46, &[0, 0, 99])),
        (Malformed, changed(good.clone(), 42, &[0])),
        (Truncated, changed(good.clone(), 16, &[0, 50])),
        (Multicast, again(&[&arp(mac(1), 1, mac(1), [10, 0, 0, 2], [10, 0, 0, 5])[..], &[0; 32]].concat())),
        (Multicast, again(&changed(frame.clone(), 0, &[0xff; 6]))),
        // The inner source is no endpoint's, this node's own guest's, or known to be elsewhere.
        (SpoofedAddress, again(&udp(mac(1), GATEWAY, "8.8.8.8", "10.0.0.5"))),
        (SpoofedAddress, again(&udp(mac(1), GATEWAY, "10.0.1.5", "10.0.0.5"))),
        (SpoofedAddress, again(&udp(mac(1), GATEWAY, "10.0.0.99", "10.0.0.5"))),
        (NoRoute, again(&udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.99"))),
        (NoRoute, again(&udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.1"))),
        // On the node that sent it, or behind it: it does not turn round.
        (Unresolved, again(&udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3"))),
        (Unresolved, again(&udp(mac(1), GATEWAY, "10.0.0.2", "203.0.113.9"))),
    ];
    let mut node = node(Family::V4, 2);
    for (reason, frame) in cases {
        assert_eq!(forward(&mut node, UNDERLAY, &frame).0, Verdict::Drop(reason), "{frame:02x?}");
    }
    // Whatever a router sends for hosts that it routes, and the gateway there, is believed.
    for inner in ["172.16.0.1", "10.0.0.1"].map(|source| again(&udp(mac(1), GATEWAY, source, "10.0.0.5"))) {
        assert!(matches!(forward(&mut node, UNDERLAY, &inner).0, Verdict::Local { port: RED_3, .. }));
    }
}

#[test]
fn offloads_that_do_not_fit() {
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3");
    let partial = |start, offset| Checksum::Partial { start, offset };
    let cut = |kind, size| Some(Segmentation { kind, size, ecn: false });
    let udp_cut = |size| cut(SegmentationKind::Udp, size);
    let mut node = node(Family::V4, 1);
    for (checksum, segmentation, good) in [
        (partial(34, 6), None, true),
        (partial(34, 6), udp_cut(8), true),
        // Inside what the guest encapsulated itself.
        (partial(50, 16), None, true),
        (partial(14, 10), None, false), // the IP header's
        (partial(34, 0), None, false),  // a port
        (partial(34, 16), None, false),
        (partial(50, 60), None, false), // behind the end
        (partial(u16::MAX, u16::MAX), None, false),
        (partial(34, 6), udp_cut(0), false),
        (partial(34, 6), cut(SegmentationKind::TcpV4, 1000), false),
        (partial(34, 6), cut(SegmentationKind::TcpV6, 1000), false),
        (partial(50, 6), udp_cut(8), false),
        (Checksum::Complete, udp_cut(8), false),
    ] {
        let mut packet = Packet { checksum, segmentation, ..packet(RED_1, &frame) };
        let verdict = one(&mut node, &mut packet);
        let expected = if good { None } else { Some(Verdict::Drop(DropReason::BadOffload)) };
        assert_eq!(Some(verdict).filter(|verdict| !matches!(verdict, Verdict::Local { .. })), expected, "{packet:?}");
    }
    let large = udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3", 64, &[0; 1290]);
    let mut packet = Packet { checksum: partial(34, 6), segmentation: udp_cut(10), ..packet(RED_1, &large) };
    assert_eq!(one(&mut node, &mut packet), Verdict::Drop(DropReason::BadOffload), "129 datagrams");
}

#[test]
fn what_is_known_but_cannot_be_reached() {
    let mut nowhere = spec(Family::V4, 1);
    nowhere.neighbors.clear();
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.5");
    assert_eq!(dropped(&mut vpc(&nowhere), RED_1, &frame), Some(DropReason::Unresolved));
    for port in [PortId(9), PortId(u32::MAX)] {
        assert_eq!(dropped(&mut vpc(&nowhere), port, &frame), Some(DropReason::PortDown));
    }
}

#[test]
fn services_run_as_often_as_the_limit_says_for_each_port() {
    let mut spec = spec(Family::V4, 1);
    spec.services = ServiceLimit { rate: 1000, burst: 2, lease: 60 };
    let mut node = vpc(&spec);
    let question = arp(mac(1), 1, mac(1), [10, 0, 0, 2], [10, 0, 0, 3]);
    let mut ask = |now, port| {
        let mut verdicts = Vec::new();
        node.forward(now, &mut [packet(port, &question)], &mut verdicts);
        verdicts[0]
    };
    let limited = Verdict::Drop(DropReason::RateLimited);
    assert_eq!([(); 3].map(|()| ask(0, RED_1)), [Verdict::Software, Verdict::Software, limited]);
    assert_eq!(ask(0, BLUE_1), Verdict::Software);
    assert_eq!([(); 2].map(|()| ask(1_000_000, RED_1)), [Verdict::Software, limited]);
}

#[test]
fn every_reason_has_a_word_of_its_own() {
    let words: BTreeSet<_> = DropReason::ALL.iter().map(|reason| reason.word()).collect();
    assert_eq!(words.len(), DropReason::ALL.len());
    for (at, reason) in DropReason::ALL.iter().enumerate() {
        assert_eq!(at, *reason as usize);
    }
}
