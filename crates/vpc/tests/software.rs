//! What the software tier answers, by the port or through the tunnel that a frame came from.

mod common;

use common::*;
use softdpu_vpc::{Checksum, DropReason, Mac, PortId, Reply, Verdict, Vpc};

/// Forwards a frame and has the software tier deal with it.
fn software(vpc: &mut Vpc, port: PortId, frame: &[u8]) -> (Verdict, Vec<Reply>) {
    assert_eq!(forward(vpc, port, frame).0, Verdict::Software);
    let mut replies = Vec::new();
    let verdict = vpc.software(port, frame, Checksum::Complete, None, &mut replies);
    (verdict, replies)
}

#[test]
fn arp_is_answered_with_the_neighbors_own_address() {
    let mut node = node(Family::V4, 1);
    for (target, answer) in [([10, 0, 0, 3], mac(2)), ([10, 0, 0, 5], mac(4)), ([10, 0, 0, 1], GATEWAY)] {
        let header = [&Mac::BROADCAST.0[..], &mac(1).0, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1]].concat();
        let frame = [&header[..], &mac(1).0, &[10, 0, 0, 2], &[0; 6], &target].concat();
        let (verdict, replies) = software(&mut node, RED_1, &frame);
        assert_eq!((verdict, replies.len(), replies[0].port), (Verdict::Consumed, 1, RED_1));
        // Sender's MAC address (RFC 826).
        assert_eq!(replies[0].frame[22..28], answer.0);
    }
}

#[test]
fn the_sender_of_what_cannot_go_on_is_told() {
    let mut node = node(Family::V4, 1);
    let large = vec![0; 1600];
    for (frame, reason) in [
        (udp(mac(1), GATEWAY, "10.0.0.2", "8.8.8.8"), DropReason::NoRoute),
        (udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.1.5", 1, b""), DropReason::HopLimit),
        (udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3", 64, &large), DropReason::PathMtu),
        (udp_of(mac(1), GATEWAY, "2001:db8::2", "2001:db8::3", 64, &large), DropReason::PathMtu),
    ] {
        let (verdict, replies) = software(&mut node, RED_1, &frame);
        assert_eq!((verdict, replies.len()), (Verdict::Drop(reason), 1));
        assert_eq!(replies[0].frame[..6], mac(1).0);
        assert_sound(&replies[0].frame);
    }
    assert_eq!(node.stats().drops(DropReason::PathMtu), 2);
    assert_eq!(node.stats().replies, 4);
}

#[test]
fn a_sender_behind_a_tunnel_is_told_through_it() {
    for family in [Family::V4, Family::V6] {
        let mut a = node(family, 1);
        let mut narrow = spec(family, 2);
        narrow.endpoints[3].mtu = Some(1300);
        let mut b = vpc(&narrow);
        let frame = udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.5", 64, &[0; 1400]);
        let mut sent = packet(RED_1, &frame);
        assert!(matches!(one(&mut a, &mut sent), Verdict::Underlay { .. }));
        let outer = [sent.head.bytes(), &frame[frame.len() - sent.tail as usize..]].concat();
        let (verdict, replies) = software(&mut b, UNDERLAY, &outer);
        assert_eq!((verdict, replies.len(), replies[0].port), (Verdict::Drop(DropReason::PathMtu), 1, UNDERLAY));
        assert_sound(&replies[0].frame);
        let mut back = packet(UNDERLAY, &replies[0].frame);
        assert!(matches!(one(&mut a, &mut back), Verdict::Local { port: RED_1, .. }));
        // Destination unreachable, fragmentation needed (RFC 1191 §4).
        assert_eq!(back.head.bytes()[34..36], [3, 4]);
    }
}
