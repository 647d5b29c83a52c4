//! Which datapath packets take, by where they go, and which flows are found to carry most.

mod common;

use common::*;
use softdpu_vpc::policy::acl::{AclSpec, Action};
use softdpu_vpc::spec::NamedAcl;
use softdpu_vpc::{Datapath, Destination, HeavyFlow, Packet, PortId, Stats, Verdict, Vpc};

const SECOND: u64 = 1_000_000_000;

/// Packets that left for a destination: by the switch tier alone, by flows, by software.
fn ways(stats: &Stats, to: Destination) -> [u64; 3] {
    Datapath::ALL.map(|by| stats.paths.get(to, by))
}

/// The frames as they left.
fn send(vpc: &mut Vpc, port: PortId, frame: &[u8], times: usize) -> Vec<Vec<u8>> {
    (0..times).map(|_| forward(vpc, port, frame).1).collect()
}

#[test]
fn each_destination_has_its_datapath() {
    let mut spec = spec(Family::V4, 1);
    spec.networks[0].policy.acls =
        vec![NamedAcl { name: "open".into(), list: AclSpec { rules: Vec::new(), default: Action::Allow } }];
    let listed = spec.endpoints.iter_mut().find(|one| one.network == "red" && one.mac == mac(2)).expect("of the site");
    listed.policy.acl = Some("open".into());
    let (mut node, mut other) = (vpc(&spec), node(Family::V4, 2));
    // A guest beside, without policies at either end: its first packet by the switch tier, then by its flow.
    send(&mut node, RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.4"), 3);
    assert_eq!(ways(node.stats(), Destination::Port), [1, 2, 0]);
    // To one with a list: software is asked first.
    send(&mut node, RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3"), 4);
    assert_eq!(ways(node.stats(), Destination::Port), [1, 5, 1]);
    assert_eq!(node.stats().policy, 1, "and only about that");
    // To another node, and from there.
    let away = send(&mut node, RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", "10.0.1.5"), 5);
    assert_eq!(ways(node.stats(), Destination::Tunnel), [1, 4, 0]);
    away.iter().for_each(|frame| drop(forward(&mut other, UNDERLAY, frame)));
    assert_eq!(ways(other.stats(), Destination::Port), [1, 4, 0]);
    for stats in [node.stats(), other.stats()] {
        let all: u64 = Destination::ALL.iter().flat_map(|to| ways(stats, *to)).sum();
        assert_eq!(all, stats.local + stats.underlay, "what left took one way");
        assert_eq!(ways(stats, Destination::Transit), [0; 3]);
    }
}

/// A datagram of guest 1 to the one beside, of a flow by its source port.
fn datagram(flow: u16, payload: usize) -> Packet {
    let mut frame = udp_of(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3", 64, &vec![0; payload]);
    frame[34..36].copy_from_slice(&flow.to_be_bytes());
    packet(RED_1, &frame)
}

/// Batches for `seconds` from second `from` on, ten thousand packets a second each: half of them of flow 1, large ones,
/// the others of many flows.
fn herd(vpc: &mut Vpc, from: u64, seconds: u64, is_there: bool) {
    let mut mouse = 1000_u16;
    for now in (from * SECOND..(from + seconds) * SECOND).step_by(SECOND as usize / 1000) {
        let mut packets: Vec<Packet> = Vec::new();
        for _ in 0..5 {
            mouse = 1000 + (mouse - 1000 + 7) % 3000;
            packets.push(datagram(mouse, 100));
            packets.push(if is_there { datagram(1, 900) } else { datagram(mouse ^ 1, 100) });
        }
        let mut verdicts = Vec::new();
        vpc.forward(now, &mut packets, &mut verdicts);
        assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Local { .. })));
    }
}

fn told(vpc: &mut Vpc, second: u64) -> Vec<HeavyFlow> {
    vpc.heavy_flows(second * SECOND).1.to_vec()
}

#[test]
fn an_elephant_is_found_among_mice_and_its_rate_is_exact() {
    let mut vpc = node(Family::V4, 1);
    herd(&mut vpc, 1, 4, true);
    let found = told(&mut vpc, 5);
    let elephant = found.first().expect("one was found");
    assert_eq!((elephant.port, elephant.ports[0], elephant.protocol), (RED_1, 1, 17));
    assert_eq!((elephant.source, elephant.destination), (ip("10.0.0.2"), ip("10.0.0.3")));
    assert_eq!(elephant.vni, Some(vni(RED_VNI)));
    // Of its own counters: 5,000 a second, whatever was sampled.
    assert!((4950..=5050).contains(&elephant.packets), "{elephant:?}");
    assert_eq!(elephant.bytes / elephant.packets, 942);
    // 942 of each 942 + 142 bytes, by some 150 samples.
    assert!(elephant.is_elephant && (750..=950).contains(&elephant.share), "{elephant:?}");
    assert!(found.iter().skip(1).all(|mouse| !mouse.is_elephant), "{found:?}");
    assert!(found.len() <= 8);
    // Gone, it is told of no longer than the second after.
    herd(&mut vpc, 5, 3, false);
    assert!(told(&mut vpc, 8).iter().all(|flow| flow.ports[0] != 1 && !flow.is_elephant));
    // What was left of the last second, and one in which nothing was sent.
    told(&mut vpc, 10);
    assert!(told(&mut vpc, 12).is_empty());
}

#[test]
fn many_equal_flows_are_no_elephants() {
    let mut vpc = node(Family::V4, 1);
    herd(&mut vpc, 1, 3, false);
    let found = told(&mut vpc, 4);
    assert!(found.iter().all(|flow| !flow.is_elephant && flow.share < 100), "{found:?}");
}

#[test]
fn flows_of_ipv6_are_told_apart_by_their_whole_addresses() {
    let mut vpc = node(Family::V4, 1);
    let frame = udp(mac(1), GATEWAY, "2001:db8::2", "2001:db8::3");
    for now in 0..3000 {
        vpc.forward(SECOND + now * 1_000_000, &mut [packet(RED_1, &frame)], &mut Vec::new());
    }
    let found = told(&mut vpc, 5);
    assert_eq!((found[0].source, found[0].destination), (ip("2001:db8::2"), ip("2001:db8::3")), "{found:?}");
}
