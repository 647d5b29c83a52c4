//! Frames between guests of one node, and between two nodes over VXLAN.

mod common;

use common::*;
use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
use softdpu_vpc::{Checksum, DropReason, Mac, Segmentation, SegmentationKind, Verdict};

#[test]
fn the_same_subnet_is_reached_without_a_router() {
    let mut node = node(Family::V4, 1);
    for (source, destination) in [("10.0.0.2", "10.0.0.3"), ("2001:db8::2", "2001:db8::3")] {
        // By address: whatever MAC address the guest believes in, its frame gets the right one.
        let frame = udp(mac(1), GATEWAY, source, destination);
        let (verdict, left) = forward(&mut node, RED_1, &frame);
        assert!(matches!(verdict, Verdict::Local { port: RED_2, .. }), "{verdict:?}");
        assert_eq!(left, udp(mac(1), mac(2), source, destination));
    }
    assert_eq!(node.stats().local, 2);
}

#[test]
fn networks_with_the_same_addresses_do_not_meet() {
    let mut a = node(Family::V4, 1);
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3");
    assert!(matches!(forward(&mut a, RED_1, &frame).0, Verdict::Local { port: RED_2, .. }));
    // In blue no endpoint has this address.
    assert_eq!(forward(&mut a, BLUE_1, &frame).0, Verdict::Software);
    // And 10.0.0.5 is another guest in each.
    let mut b = node(Family::V4, 2);
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.5");
    for (from, to) in [(RED_1, RED_3), (BLUE_1, BLUE_2)] {
        let (verdict, outer) = forward(&mut a, from, &frame);
        assert!(matches!(verdict, Verdict::Underlay { .. }));
        let (verdict, _) = forward(&mut b, UNDERLAY, &outer);
        assert!(matches!(verdict, Verdict::Local { port, .. } if port == to), "{verdict:?}");
    }
}

#[test]
fn a_frame_crosses_the_underlay_and_comes_out_as_it_was() {
    for (family, overhead) in [(Family::V4, 50), (Family::V6, 70)] {
        let (mut a, mut b) = (node(family, 1), node(family, 2));
        let frame = udp(mac(1), mac(4), "10.0.0.2", "10.0.0.5");
        let (verdict, outer) = forward(&mut a, RED_1, &frame);
        let Verdict::Underlay { port: UNDERLAY, hash, overhead: found } = verdict else { panic!("{verdict:?}") };
        assert_eq!(usize::from(found), overhead);
        assert_eq!(&outer[overhead..], frame);
        assert_sound(&outer);
        let sliced = SlicedPacket::from_ethernet(&outer).unwrap();
        let Some(TransportSlice::Udp(header)) = sliced.transport else { panic!("no UDP") };
        assert_eq!(header.destination_port(), 4789);
        assert_eq!(u32::from(header.source_port()), 49_152 | hash & 0x3fff);
        // RFC 7348 §5: flags, reserved, VNI, reserved.
        assert_eq!(header.payload()[..8], [8, 0, 0, 0, 1, 2, 3, 0]);
        let (verdict, inner) = forward(&mut b, UNDERLAY, &outer);
        assert!(matches!(verdict, Verdict::Local { port: RED_3, .. }), "{verdict:?}");
        assert_eq!(inner, frame);
    }
}

#[test]
fn another_subnet_is_a_hop_away() {
    let (mut a, mut b) = (node(Family::V6, 1), node(Family::V6, 2));
    for (source, destination) in [("10.0.0.2", "10.0.1.5"), ("2001:db8::2", "2001:db8:0:1::5")] {
        let frame = udp_of(mac(1), GATEWAY, source, destination, 64, b"payload");
        let (_, outer) = forward(&mut a, RED_1, &frame);
        let (verdict, inner) = forward(&mut b, UNDERLAY, &outer);
        assert!(matches!(verdict, Verdict::Local { port: RED_3, .. }), "{verdict:?}");
        assert_eq!(inner, udp_of(GATEWAY, mac(4), source, destination, 63, b"payload"));
        assert_sound(&inner);
        // Used up: the sender is to hear of it.
        let frame = udp_of(mac(1), GATEWAY, source, destination, 1, b"payload");
        assert_eq!(forward(&mut a, RED_1, &frame).0, Verdict::Software);
    }
}

#[test]
fn routes_lead_to_a_router_and_its_packets_back() {
    let (mut a, mut b) = (node(Family::V4, 1), node(Family::V4, 2));
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "172.16.9.9");
    let (verdict, left) = forward(&mut a, RED_1, &frame);
    assert!(matches!(verdict, Verdict::Local { port: RED_ROUTER, .. }), "{verdict:?}");
    assert_eq!(left, udp_of(GATEWAY, mac(3), "10.0.0.2", "172.16.9.9", 63, &[0x5a; 32]));
    // The router sends with others' addresses; a guest may not.
    let frame = udp(mac(3), GATEWAY, "172.16.9.9", "10.0.0.5");
    let (_, outer) = forward(&mut a, RED_ROUTER, &frame);
    let (verdict, _) = forward(&mut b, UNDERLAY, &outer);
    assert!(matches!(verdict, Verdict::Local { port: RED_3, .. }), "{verdict:?}");
    let frame = udp(mac(1), GATEWAY, "172.16.9.9", "10.0.0.5");
    assert_eq!(dropped(&mut a, RED_1, &frame), Some(DropReason::SpoofedAddress));
}

#[test]
fn congestion_marks_cross_the_tunnel_both_ways() {
    let (mut a, mut b) = (node(Family::V4, 1), node(Family::V4, 2));
    let inner = |tos: u8| {
        let mut frame = udp(mac(1), mac(4), "10.0.0.2", "10.0.0.5");
        let mut header = etherparse::Ipv4Header::from_slice(&frame[14..]).unwrap().0;
        header.dscp = (tos >> 2).try_into().unwrap();
        header.ecn = (tos & 3).try_into().unwrap();
        header.header_checksum = header.calc_header_checksum();
        frame[14..34].copy_from_slice(&header.to_bytes());
        frame
    };
    let marked = |outer: &mut [u8], ecn: u8| outer[15] = outer[15] & 0xfc | ecn;
    // RFC 6040 figure 4: inner, outer, what comes out.
    for (arriving, on_the_way, leaving) in [
        (0, 0, Some(0)),
        (0, 1, Some(0)),
        (0, 3, None),
        (2, 3, Some(3)),
        (2, 1, Some(1)),
        (1, 2, Some(1)),
        (3, 0, Some(3)),
    ] {
        let frame = inner(0xb8 | arriving);
        let (_, mut outer) = forward(&mut a, RED_1, &frame);
        assert_eq!(outer[15], 0xb8 | arriving);
        marked(&mut outer, on_the_way);
        let (verdict, left) = forward(&mut b, UNDERLAY, &outer);
        match leaving {
            Some(ecn) => {
                assert_eq!(left, inner(0xb8 | ecn), "{arriving} {on_the_way}");
                assert_sound(&left);
            }
            None => assert_eq!(verdict, Verdict::Drop(DropReason::Congestion)),
        }
    }
}

fn syn(source: &str, destination: &str, to: Mac, options: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac(1).0, to.0);
    let builder = match (ip(source), ip(destination)) {
        (std::net::IpAddr::V4(s), std::net::IpAddr::V4(d)) => builder.ipv4(s.octets(), d.octets(), 64),
        (std::net::IpAddr::V6(s), std::net::IpAddr::V6(d)) => builder.ipv6(s.octets(), d.octets(), 64),
        _ => panic!("two families"),
    };
    let builder = builder.tcp(1000, 2000, 1, 1024).syn().options_raw(options).unwrap();
    let mut frame = Vec::new();
    builder.write(&mut frame, &[]).unwrap();
    frame
}

#[test]
fn a_syn_announces_what_the_tunnel_carries() {
    let mut spec = spec(Family::V4, 1);
    spec.underlay.as_mut().unwrap().mtu = 1500;
    let mut node = vpc(&spec);
    // 1500 less 50 of overhead less IP and TCP headers. At an even and at an odd place in the header.
    for (options, at) in [([2, 4, 0x05, 0xb4, 0, 0, 0, 0], 2), ([1, 2, 4, 0x05, 0xb4, 0, 0, 0], 3)] {
        for (source, destination, mss) in [("10.0.0.2", "10.0.0.5", 1410u16), ("2001:db8::2", "2001:db8:0:1::5", 1390)]
        {
            let frame = syn(source, destination, GATEWAY, &options);
            let (verdict, left) = forward(&mut node, RED_1, &frame);
            assert!(matches!(verdict, Verdict::Underlay { .. }));
            let inner = &left[50..];
            assert_sound(inner);
            let options = inner.len() - 8;
            assert_eq!(inner[options + at..options + at + 2], mss.to_be_bytes());
            // What is still to be summed up is not changed: the field has the pseudo header only.
            let transport = inner.len() - 28;
            let mut partial = packet(RED_1, &frame);
            partial.checksum = Checksum::Partial { start: transport as u16, offset: 16 };
            assert!(matches!(one(&mut node, &mut partial), Verdict::Underlay { .. }));
            let left = &partial.head.bytes()[50..];
            assert_eq!(left[options + at..options + at + 2], mss.to_be_bytes());
            assert_eq!(left[transport + 16..transport + 18], frame[transport + 16..transport + 18]);
        }
    }
    // Between two guests of the node there is no tunnel.
    let frame = syn("10.0.0.2", "10.0.0.3", mac(2), &[2, 4, 0x05, 0xb4]);
    assert_eq!(forward(&mut node, RED_1, &frame).1, frame);
}

#[test]
fn what_does_not_fit_the_path_goes_to_software() {
    let mut spec = spec(Family::V4, 1);
    spec.underlay.as_mut().unwrap().mtu = 1500;
    let mut node = vpc(&spec);
    let mut send = |destination: &str, len: usize| {
        let frame = udp_of(mac(1), GATEWAY, "10.0.0.2", destination, 64, &vec![0; len - 28]);
        forward(&mut node, RED_1, &frame).0
    };
    assert!(matches!(send("10.0.0.5", 1450), Verdict::Underlay { .. }));
    assert_eq!(send("10.0.0.5", 1451), Verdict::Software);
    assert!(matches!(send("10.0.0.3", 1500), Verdict::Local { .. }));
    assert_eq!(send("10.0.0.3", 1501), Verdict::Software);
    // One that is cut up is measured by its pieces: 40 bytes of headers and the size.
    let builder = PacketBuilder::ethernet2(mac(1).0, GATEWAY.0).ipv4([10, 0, 0, 2], [10, 0, 0, 5], 64);
    let builder = builder.tcp(1, 2, 3, 4).ack(1);
    let mut frame = Vec::new();
    builder.write(&mut frame, &[7; 20_000]).unwrap();
    for (size, fits) in [(1410, true), (1411, false)] {
        let mut large = packet(RED_1, &frame);
        large.checksum = Checksum::Partial { start: 34, offset: 16 };
        large.segmentation = Some(Segmentation { kind: SegmentationKind::TcpV4, size, ecn: false });
        let verdict = one(&mut node, &mut large);
        assert_eq!(matches!(verdict, Verdict::Underlay { .. }), fits, "{verdict:?}");
    }
}

#[test]
fn padding_is_left_behind() {
    let mut node = node(Family::V4, 1);
    let frame = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3");
    let padded = [&frame[..], &[0xee; 400]].concat();
    let mut packet = packet(RED_1, &padded);
    assert!(matches!(one(&mut node, &mut packet), Verdict::Local { .. }));
    assert_eq!((packet.head.len(), packet.tail), (frame.len(), 0));
}
