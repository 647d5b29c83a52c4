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

/// The same UDP frame, which may be cut up on the way.
fn fragmentable(mut frame: Vec<u8>) -> Vec<u8> {
    frame[20] &= !0x40;
    frame[24..26].fill(0);
    let sum = softdpu_vpc::packet::checksum::checksum(&frame[14..34]);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// What the fragments' packet carries, once it is put together again.
fn put_together(frames: &[&[u8]]) -> Vec<u8> {
    let mut payload = Vec::new();
    for (number, frame) in frames.iter().enumerate() {
        let parsed = softdpu_vpc::packet::parse(frame, frame.len()).unwrap();
        let part = parsed.ip().unwrap().fragment.expect("a fragment");
        assert_eq!((usize::from(part.offset), part.more), (payload.len(), number + 1 < frames.len()));
        payload.extend_from_slice(&frame[34..]);
    }
    payload
}

#[test]
fn what_may_be_cut_up_goes_on_in_fragments() {
    let mut node = node(Family::V4, 1);
    let frame = fragmentable(udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3", 64, &[0x5a; 4000]));
    let (verdict, replies) = software(&mut node, RED_1, &frame);
    assert_eq!((verdict, replies.len()), (Verdict::Consumed, 3));
    let fragments: Vec<_> = replies.iter().map(|reply| &reply.frame[..]).collect();
    assert!(replies.iter().all(|reply| reply.port == RED_2 && reply.frame.len() <= 1514));
    assert!(fragments.iter().all(|fragment| fragment[..6] == mac(2).0));
    assert_eq!(put_together(&fragments), frame[34..]);
    assert_eq!(node.stats().drops(DropReason::PathMtu), 0);
}

#[test]
fn fragments_leave_no_checksum_open_and_are_one_hop_on() {
    let mut node = node(Family::V4, 1);
    let whole = fragmentable(udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.1.5", 64, &[0x5a; 3000]));
    let mut open = whole.clone();
    let pseudo = softdpu_vpc::packet::checksum::Sum::pseudo_v4([10, 0, 0, 2], [10, 0, 1, 5], 17, 3008).fold();
    open[40..42].copy_from_slice(&pseudo.to_be_bytes());
    let mut replies = Vec::new();
    let verdict = node.software(RED_1, &open, Checksum::Partial { start: 34, offset: 6 }, None, &mut replies);
    assert_eq!((verdict, replies.len()), (Verdict::Consumed, 3));
    // Behind Ethernet, IPv4, UDP and VXLAN of the tunnel to the other node.
    let inner: Vec<_> = replies.iter().map(|reply| &reply.frame[50..]).collect();
    assert!(inner.iter().all(|fragment| fragment[22] == 63), "the hop limit");
    assert_eq!(put_together(&inner), whole[34..]);
}

#[test]
fn fragments_cross_a_tunnel_and_are_made_behind_one() {
    for family in [Family::V4, Family::V6] {
        let (mut a, mut b) = (node(family, 1), node(family, 2));
        let frame = fragmentable(udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.5", 64, &[0x5a; 4000]));
        let (verdict, sent) = software(&mut a, RED_1, &frame);
        assert_eq!(verdict, Verdict::Consumed);
        let mut arrived = Vec::new();
        for reply in &sent {
            assert_eq!(reply.port, UNDERLAY);
            assert_sound(&reply.frame);
            let mut packet = packet(UNDERLAY, &reply.frame);
            assert!(matches!(one(&mut b, &mut packet), Verdict::Local { port: RED_3, .. }));
            let tail = &reply.frame[reply.frame.len() - packet.tail as usize..];
            arrived.push([packet.head.bytes(), tail].concat());
        }
        assert_eq!(put_together(&arrived.iter().map(|frame| &frame[..]).collect::<Vec<_>>()), frame[34..]);

        // One that the first node's path takes and the second's guest does not.
        let mut narrow = spec(family, 2);
        narrow.endpoints[3].mtu = Some(1300);
        let mut b = vpc(&narrow);
        let frame = fragmentable(udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.5", 64, &[0x5a; 1400]));
        let mut sent = packet(RED_1, &frame);
        assert!(matches!(one(&mut a, &mut sent), Verdict::Underlay { .. }));
        let outer = [sent.head.bytes(), &frame[frame.len() - sent.tail as usize..]].concat();
        let (verdict, replies) = software(&mut b, UNDERLAY, &outer);
        assert_eq!((verdict, replies.len()), (Verdict::Consumed, 2));
        assert!(replies.iter().all(|reply| reply.port == RED_3 && reply.frame.len() <= 1314));
        assert_eq!(put_together(&replies.iter().map(|reply| &reply.frame[..]).collect::<Vec<_>>()), frame[34..]);
    }
}

#[test]
fn routers_are_advertised_to_ports_that_are_up_again_and_again() {
    const SECOND: u64 = 1_000_000_000;
    let mut node = node(Family::V4, 1);
    let mut told = Vec::new();
    for now in 0..3600 {
        // The second guest comes after ten minutes; nothing is behind the other ports.
        let is_up = |port| port == RED_1 || (port == RED_2 && now >= 600);
        let mut out = Vec::new();
        // Other tables do not begin anew.
        if now % 7 == 0 {
            let same = node.tables().clone();
            node.replace(same);
        }
        node.advertise(now * SECOND, is_up, &mut out);
        told.extend(out.into_iter().map(|reply| (now, reply)));
    }
    for (port, start) in [(RED_1, 0), (RED_2, 600)] {
        let times: Vec<_> = told.iter().filter(|(_, reply)| reply.port == port).map(|(now, _)| *now).collect();
        assert_eq!(times[..3], [start, start + 16, start + 32]);
        // Far more often than a default route lives.
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= 601), "{times:?}");
        assert!(*times.last().unwrap() >= 3600 - 601);
    }
    assert!(told.iter().all(|(_, reply)| reply.port == RED_1 || reply.port == RED_2));
    for (_, reply) in &told {
        assert_eq!(reply.frame[..12], [&[0x33, 0x33, 0, 0, 0, 1][..], &GATEWAY.0].concat());
        assert_eq!(reply.frame[54], 134, "a router advertisement");
        assert_sound(&reply.frame);
    }
}

#[test]
fn who_gets_a_port_that_another_had_is_told_of_the_router_at_once() {
    const SECOND: u64 = 1_000_000_000;
    let mut node = node(Family::V4, 1);
    let mut told = Vec::new();
    for now in 0..60 {
        if now == 40 {
            // Between two looks: no look has found the port down.
            node.begin_anew(RED_1);
        }
        let mut out = Vec::new();
        node.advertise(now * SECOND, |port| port == RED_1, &mut out);
        told.extend(out.into_iter().map(|_| now));
    }
    assert_eq!(told, [0, 16, 32, 40, 56]);
    node.begin_anew(PortId(u32::MAX));
}
