//! Announcements of a guest to switches that learn its place from frames.

mod common;

use common::*;
use etherparse::{SlicedPacket, TransportSlice};
use softdpu_vpc::{DropReason, PortId, Reply, Verdict, Vpc};

const SECOND: u64 = 1_000_000_000;

fn announced(vpc: &mut Vpc, now: u64, port: PortId) -> Vec<Reply> {
    let mut replies = Vec::new();
    vpc.announce(now, port, &mut replies);
    replies
}

/// What QEMU sends for mac(1) after a migration.
fn rarp() -> Vec<u8> {
    let mac = mac(1).0;
    let mut frame = [&[0xff; 6][..], &mac, &[0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3]].concat();
    frame.extend([&mac[..], &[0; 4], &mac, &[0; 4]].concat());
    frame.resize(60, 0);
    frame
}

#[test]
fn a_network_hears_where_its_endpoint_is_and_no_other_network_does() {
    for (family, overhead) in [(Family::V4, 50), (Family::V6, 70)] {
        let replies = announced(&mut node(family, 1), SECOND, RED_1);
        let ports: Vec<PortId> = replies.iter().map(|reply| reply.port).collect();
        assert_eq!(ports, [RED_2, RED_ROUTER, UNDERLAY]);
        assert!(replies[..2].iter().all(|reply| reply.frame == rarp()));
        let outer = &replies[2].frame;
        assert_eq!(outer[overhead..], rarp());
        assert_sound(outer);
        let Some(TransportSlice::Udp(udp)) = SlicedPacket::from_ethernet(outer).unwrap().transport else { panic!() };
        assert_eq!(udp.payload()[4..7], RED_VNI.to_be_bytes()[1..]);
    }
}

#[test]
fn a_host_whose_mac_address_is_not_known_yet_is_left_out() {
    let mut spec = spec(Family::V4, 1);
    spec.neighbors.clear();
    let ports: Vec<PortId> = announced(&mut vpc(&spec), 0, RED_1).iter().map(|reply| reply.port).collect();
    assert_eq!(ports, [RED_2, RED_ROUTER]);
}

#[test]
fn once_a_second_for_each_port_and_only_endpoints() {
    let mut node = node(Family::V4, 1);
    assert_eq!(announced(&mut node, SECOND, RED_1).len(), 3);
    assert!(announced(&mut node, 2 * SECOND - 1, RED_1).is_empty(), "again within a second");
    assert_eq!(announced(&mut node, SECOND, RED_2).len(), 3, "another port's turn is its own");
    assert_eq!(announced(&mut node, 2 * SECOND, RED_1).len(), 3);
    assert!(announced(&mut node, 9 * SECOND, UNDERLAY).is_empty());
    assert!(announced(&mut node, 9 * SECOND, PortId(99)).is_empty());
}

#[test]
fn a_guest_that_says_where_it_is_is_announced() {
    let mut node = node(Family::V4, 1);
    let gratuitous = |address: [u8; 4]| {
        let mac = mac(1).0;
        let mut frame = [&[0xff; 6][..], &mac, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        frame.extend([&mac[..], &address, &[0; 6], &address].concat());
        frame
    };
    let frame = gratuitous([10, 0, 0, 2]);
    assert_eq!(forward(&mut node, RED_1, &frame).0, Verdict::Software);
    let mut replies = Vec::new();
    let said = packet(RED_1, &frame);
    let verdict = node.software(RED_1, &frame, said.checksum, None, &mut replies);
    assert_eq!((verdict, replies.len()), (Verdict::Consumed, 3));
    assert!(replies[..2].iter().all(|reply| reply.frame == rarp()), "the network's own words, not the guest's");
    assert_eq!(dropped(&mut node, RED_1, &frame), Some(DropReason::RateLimited));
    assert_eq!(dropped(&mut node, RED_1, &gratuitous([10, 0, 0, 3])), Some(DropReason::SpoofedNeighbor));
}
