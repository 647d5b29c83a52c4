//! Translation where a network meets the outside: golden packets, what flows decide, and what is refused.

mod common;

use common::*;
use etherparse::PacketBuilder;
use proptest::prelude::*;
use softdpu_vpc::spec::{FloatingSpec, ForwardSpec, NatProtocol, NatSpec, RouteSpec, SharedSpec, Spec, Via};
use softdpu_vpc::tables::Exit;
use softdpu_vpc::trace::{Step, Table};
use softdpu_vpc::{Asked, Checksum, DropReason, Entry, Packet, PortId, Problem, Tables, Verdict, Vpc};

const OUT: &str = "203.0.113.1";
const FLOATING: &str = "203.0.113.9";
const SERVER: &str = "198.18.0.5";
/// An address is 10.0.0.`last`; a block has 16 ports.
const fn block(last: u16) -> u16 {
    2000 + 16 * last
}

/// Node 1, with its router as the exit: guest 2 shares an address and has a forward, guest 3 has one to itself.
fn site() -> Spec {
    let mut spec = spec(Family::V4, 1);
    let prefix = |text: &str| text.parse().expect("prefix");
    let route = |text| RouteSpec { network: "red".into(), prefix: prefix(text), via: Via::Endpoint(ip("10.0.0.4")) };
    spec.routes.extend([route("0.0.0.0/0"), route("::/0")]);
    let v4 = |text: &str| text.parse().expect("address");
    spec.nat = vec![NatSpec {
        network: "red".into(),
        exit: ip("10.0.0.4"),
        floating: vec![
            FloatingSpec { inside: ip("10.0.0.3"), outside: ip(FLOATING) },
            FloatingSpec { inside: ip("2001:db8::3"), outside: ip("2001:db8:9::3") },
        ],
        forwards: vec![ForwardSpec {
            protocol: NatProtocol::Udp,
            outside: (v4(OUT), 53),
            inside: (v4("10.0.0.2"), 5300),
        }],
        shared: vec![SharedSpec {
            sources: vec![prefix("10.0.0.0/25")],
            addresses: vec![v4(OUT)],
            ports: (2000, 2000 + 16 * 128 - 1),
            ports_per_guest: 16,
        }],
    }];
    spec
}

type End<'a> = (&'a str, u16);

fn datagram(last: u8, from: End<'_>, to: End<'_>) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2(mac(last).0, GATEWAY.0);
    let builder = match (ip(from.0), ip(to.0)) {
        (std::net::IpAddr::V4(from), std::net::IpAddr::V4(to)) => builder.ipv4(from.octets(), to.octets(), 64),
        (std::net::IpAddr::V6(from), std::net::IpAddr::V6(to)) => builder.ipv6(from.octets(), to.octets(), 64),
        _ => panic!("two families"),
    };
    let mut frame = Vec::new();
    builder.udp(from.1, to.1).write(&mut frame, &[7; 33]).expect("a vector");
    frame
}

/// The ends of a UDP frame.
fn ends(frame: &[u8]) -> [(String, u16); 2] {
    assert_sound(frame);
    let (at, len) = if frame[12] == 8 { (26, 4) } else { (22, 16) };
    let address = |at: usize| match len {
        4 => std::net::IpAddr::from(<[u8; 4]>::try_from(&frame[at..at + 4]).unwrap()).to_string(),
        _ => std::net::IpAddr::from(<[u8; 16]>::try_from(&frame[at..at + 16]).unwrap()).to_string(),
    };
    let port = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let ports = at + 2 * len;
    [(address(at), port(ports)), (address(at + len), port(ports + 2))]
}

fn sent(vpc: &mut Vpc, port: PortId, frame: &[u8]) -> Result<(PortId, [(String, u16); 2]), DropReason> {
    match forward(vpc, port, frame) {
        (Verdict::Local { port, .. }, frame) => Ok((port, ends(&frame))),
        (Verdict::Drop(reason), _) => Err(reason),
        (other, _) => panic!("{other:?}"),
    }
}

fn is(port: PortId, from: End<'_>, to: End<'_>) -> Result<(PortId, [(String, u16); 2]), DropReason> {
    Ok((port, [(from.0.to_owned(), from.1), (to.0.to_owned(), to.1)]))
}

const GUEST: End<'static> = ("10.0.0.2", 4001);
const REMOTE: End<'static> = (SERVER, 53);

fn from_guest(last: u8, from: End<'_>, to: End<'_>) -> Vec<u8> {
    datagram(last, from, to)
}

fn from_outside(from: End<'_>, to: End<'_>) -> Vec<u8> {
    datagram(3, from, to)
}

#[test]
fn a_shared_address_is_used_both_ways_and_by_flows() {
    let mut vpc = vpc(&site());
    let outside = (OUT, block(2) + 1);
    for round in 0..3 {
        assert_eq!(sent(&mut vpc, RED_1, &from_guest(1, GUEST, REMOTE)), is(RED_ROUTER, outside, REMOTE), "{round}");
        assert_eq!(sent(&mut vpc, RED_ROUTER, &from_outside(REMOTE, outside)), is(RED_1, REMOTE, GUEST), "{round}");
    }
    assert_eq!(vpc.stats().cached, 4, "all but the first of each direction are by flows");
    let exit = Exit { network: "red", address: ip("10.0.0.4"), translations: 1, exhausted: 0 };
    assert_eq!(vpc.tables().exits().collect::<Vec<_>>(), [exit]);
}

#[test]
fn floating_addresses_and_forwards_lead_in_and_out() {
    let mut vpc = vpc(&site());
    let (inside, outside) = (("10.0.0.3", 80), (FLOATING, 80));
    assert_eq!(sent(&mut vpc, RED_ROUTER, &from_outside(REMOTE, outside)), is(RED_2, REMOTE, inside));
    assert_eq!(sent(&mut vpc, RED_2, &from_guest(2, inside, REMOTE)), is(RED_ROUTER, outside, REMOTE));
    let (inside, outside) = (("10.0.0.2", 5300), (OUT, 53));
    assert_eq!(sent(&mut vpc, RED_ROUTER, &from_outside(REMOTE, outside)), is(RED_1, REMOTE, inside));
    assert_eq!(sent(&mut vpc, RED_1, &from_guest(1, inside, REMOTE)), is(RED_ROUTER, outside, REMOTE));
    let (inside, outside) = (("2001:db8::3", 80), ("2001:db8:9::3", 80));
    let far = ("2001:db8:77::1", 9);
    for _ in 0..2 {
        assert_eq!(sent(&mut vpc, RED_ROUTER, &from_outside(far, outside)), is(RED_2, far, inside));
        assert_eq!(sent(&mut vpc, RED_2, &from_guest(2, inside, far)), is(RED_ROUTER, outside, far));
    }
}

#[test]
fn what_was_not_asked_for_does_not_come_in() {
    let mut vpc = vpc(&site());
    let outside = (OUT, block(2) + 1);
    let mut refused = |from, to| sent(&mut vpc, RED_ROUTER, &from_outside(from, to)).unwrap_err();
    assert_eq!(refused(REMOTE, outside), DropReason::NoTranslation, "no connection");
    assert_eq!(refused(REMOTE, ("10.0.0.2", 4001)), DropReason::NoTranslation, "an inside address");
    assert_eq!(refused(("10.0.0.2", 9), (FLOATING, 80)), DropReason::SpoofedAddress, "a guest's address");
    assert_eq!(refused((OUT, 9), (FLOATING, 80)), DropReason::SpoofedAddress, "an outside address of inside");
    sent(&mut vpc, RED_1, &from_guest(1, GUEST, REMOTE)).expect("out");
    let mut refused = |from, to| sent(&mut vpc, RED_ROUTER, &from_outside(from, to)).unwrap_err();
    assert_eq!(refused((SERVER, 54), outside), DropReason::NoTranslation, "another port than was asked");
    assert_eq!(refused(REMOTE, (OUT, outside.1 + 1)), DropReason::NoTranslation);
    // Out without a rule.
    let mut spec = site();
    spec.nat[0].shared.clear();
    change(&mut vpc, &spec);
    assert_eq!(sent(&mut vpc, RED_1, &from_guest(1, GUEST, REMOTE)), Err(DropReason::NoTranslation), "flow and all");
}

#[test]
fn a_guest_that_uses_up_its_ports_leaves_those_of_others() {
    let mut spec = site();
    spec.nat[0].floating.clear();
    let mut vpc = vpc(&spec);
    let mut used: Vec<u16> = Vec::new();
    for port in 0..40 {
        match sent(&mut vpc, RED_1, &from_guest(1, ("10.0.0.2", 3000 + port), REMOTE)) {
            Ok((_, [(_, outside), _])) => used.push(outside),
            Err(reason) => assert_eq!(reason, DropReason::NatPorts),
        }
    }
    used.sort_unstable();
    assert_eq!(used, (block(2)..block(3)).collect::<Vec<_>>(), "each of its ports once, and no other's");
    let counted: Vec<_> = vpc.tables().exits().map(|exit| (exit.translations, exit.exhausted)).collect();
    assert_eq!(counted, [(16, 40 - 16)]);
    assert_eq!(
        sent(&mut vpc, RED_2, &from_guest(2, ("10.0.0.3", 3), REMOTE)),
        is(RED_ROUTER, (OUT, block(3) + 3), REMOTE)
    );
    // Towards another end they are all free.
    let other = ("198.18.0.6", 53);
    assert!(sent(&mut vpc, RED_1, &from_guest(1, ("10.0.0.2", 3039), other)).is_ok());
}

#[test]
fn inside_reaches_inside_by_outside_addresses() {
    let mut vpc = vpc(&site());
    let (to, server) = ((FLOATING, 80), ("10.0.0.3", 80));
    let client = (OUT, block(2) + 1);
    for _ in 0..3 {
        assert_eq!(sent(&mut vpc, RED_1, &from_guest(1, GUEST, to)), is(RED_2, client, server));
        assert_eq!(sent(&mut vpc, RED_2, &from_guest(2, server, client)), is(RED_1, to, GUEST));
    }
    assert_eq!(vpc.stats().cached, 4);
    let looped = sent(&mut vpc, RED_2, &from_guest(2, server, to));
    assert_eq!(looped, Err(DropReason::NoRoute), "nothing goes back to where it came from");
}

/// An ICMP error about `sent`, as it was seen by its sender, from `from` to `to`.
fn error(last: u8, from: &str, to: &str, sent: &[u8]) -> Vec<u8> {
    let octets = |text: &str| match ip(text) {
        std::net::IpAddr::V4(address) => address.octets(),
        std::net::IpAddr::V6(_) => panic!("IPv4"),
    };
    let mut frame = Vec::new();
    PacketBuilder::ethernet2(mac(last).0, GATEWAY.0)
        .ipv4(octets(from), octets(to), 64)
        .icmpv4_raw(3, 4, [0, 0, 5, 0])
        .write(&mut frame, &sent[14..14 + 28])
        .expect("a vector");
    frame
}

#[test]
fn an_error_about_a_translated_packet_is_translated_inside_too() {
    let mut vpc = vpc(&site());
    let out = forward(&mut vpc, RED_1, &from_guest(1, GUEST, REMOTE)).1;
    let (verdict, inside) = forward(&mut vpc, RED_ROUTER, &error(3, "192.0.2.77", OUT, &out));
    assert!(matches!(verdict, Verdict::Local { port: RED_1, .. }), "{verdict:?}");
    assert_eq!(inside[26..34], [192, 0, 2, 77, 10, 0, 0, 2]);
    // What the guest had sent, with a hop less.
    let mut quoted = from_guest(1, GUEST, REMOTE);
    (quoted[22], quoted[24], quoted[25]) = (inside[42 + 8], inside[42 + 10], inside[42 + 11]);
    assert_eq!(inside[42..42 + 28], quoted[14..14 + 28]);
    assert!(softdpu_vpc::packet::checksum::Sum::ZERO.bytes(&inside[34..]).is_right(), "ICMP's checksum");
    assert!(softdpu_vpc::packet::checksum::Sum::ZERO.bytes(&inside[42..62]).is_right(), "the quoted header's");
    // And back: the guest's own error about an answer.
    let answer = forward(&mut vpc, RED_ROUTER, &from_outside(REMOTE, (OUT, block(2) + 1))).1;
    let (verdict, back) = forward(&mut vpc, RED_1, &error(1, "10.0.0.2", SERVER, &answer));
    assert!(matches!(verdict, Verdict::Local { port: RED_ROUTER, .. }), "{verdict:?}");
    assert_eq!((&back[26..30], &back[42 + 16..42 + 20]), (&[203, 0, 113, 1][..], &[203, 0, 113, 1][..]));
    assert_eq!(back[42 + 22..42 + 24], (block(2) + 1).to_be_bytes());
    // One that lies about what was sent is of no connection.
    let mut lie = out.clone();
    lie[14 + 20 + 1] ^= 4;
    assert_eq!(dropped(&mut vpc, RED_ROUTER, &error(3, SERVER, OUT, &lie)), Some(DropReason::NoTranslation));
    let inner = from_guest(1, GUEST, REMOTE);
    assert_eq!(dropped(&mut vpc, RED_ROUTER, &error(3, SERVER, OUT, &inner)), Some(DropReason::NoTranslation));
}

#[test]
fn echoes_have_identifiers_for_ports() {
    let mut vpc = vpc(&site());
    let echo = |last: u8, from: [u8; 4], to: [u8; 4], id, is_reply| {
        let mut frame = Vec::new();
        let link = PacketBuilder::ethernet2(mac(last).0, GATEWAY.0).ipv4(from, to, 64);
        let icmp = if is_reply { link.icmpv4_echo_reply(id, 1) } else { link.icmpv4_echo_request(id, 1) };
        icmp.write(&mut frame, &[9; 20]).expect("a vector");
        frame
    };
    let (guest, server, out) = ([10, 0, 0, 2], [198, 18, 0, 5], [203, 0, 113, 1]);
    let (_, sent) = forward(&mut vpc, RED_1, &echo(1, guest, server, 77, false));
    let id = u16::from_be_bytes([sent[38], sent[39]]);
    assert!((block(2)..block(3)).contains(&id) && sent[26..30] == out);
    assert!(softdpu_vpc::packet::checksum::Sum::ZERO.bytes(&sent[34..]).is_right());
    let (verdict, reply) = forward(&mut vpc, RED_ROUTER, &echo(3, server, out, id, true));
    assert!(matches!(verdict, Verdict::Local { port: RED_1, .. }), "{verdict:?}");
    assert_eq!((&reply[30..34], &reply[38..40]), (&guest[..], &77u16.to_be_bytes()[..]));
    assert_eq!(dropped(&mut vpc, RED_ROUTER, &echo(3, server, out, id, false)), Some(DropReason::NoTranslation));
}

#[test]
fn fragments_pass_by_floating_addresses_alone() {
    let mut vpc = vpc(&site());
    let fragment = |last: u8, from: End<'_>, offset: u8| {
        let mut frame = datagram(last, from, REMOTE);
        (frame[20], frame[21]) = (0x20, offset);
        let sum = softdpu_vpc::packet::checksum::checksum(&{
            let mut header: [u8; 20] = frame[14..34].try_into().unwrap();
            header[10..12].fill(0);
            header
        });
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        frame
    };
    for offset in [0, 5] {
        let (verdict, frame) = forward(&mut vpc, RED_2, &fragment(2, ("10.0.0.3", 9), offset));
        assert!(matches!(verdict, Verdict::Local { .. }), "{verdict:?}");
        assert_eq!(frame[26..30], [203, 0, 113, 9]);
        assert_eq!(dropped(&mut vpc, RED_1, &fragment(1, GUEST, offset)), Some(DropReason::NatFragment));
    }
}

#[test]
fn an_unfinished_checksum_stays_one() {
    let mut vpc = vpc(&site());
    let frame = from_guest(1, GUEST, REMOTE);
    let mut left = packet(RED_1, &frame);
    left.checksum = Checksum::Partial { start: 34, offset: 6 };
    let seed = softdpu_vpc::packet::checksum::Sum::pseudo_v4([10, 0, 0, 2], [198, 18, 0, 5], 17, 41).fold();
    left.head.bytes_mut()[40..42].copy_from_slice(&seed.to_be_bytes());
    assert!(matches!(one(&mut vpc, &mut left), Verdict::Local { .. }));
    let mut frame = left.head.bytes().to_vec();
    softdpu_vpc::packet::checksum::complete(&mut frame, 34, 6).expect("in the frame");
    assert_eq!(ends(&frame)[0], (OUT.to_owned(), block(2) + 1));
}

/// The steps of a frame's way that are about translations, and what is done to it in the end.
fn told(vpc: &Vpc, port: PortId, frame: &[u8]) -> (Vec<String>, String) {
    let asked = Asked { names: &|port| format!("port {}", port.0), clock: &|| 0 };
    let steps = vpc.explain(0, port, frame, asked).steps;
    let translations = steps.iter().filter(|(_, step)| step.table == Table::Translations);
    let word = |step: &Step| format!("{}: {}: {}", step.key, step.outcome, step.found);
    let last = steps.last().map(|(_, step)| step.found.clone()).unwrap_or_default();
    (translations.map(|(_, step)| word(step)).collect(), last)
}

#[test]
fn a_packets_steps_tell_its_translation() {
    let mut vpc = vpc(&site());
    let (frame, outside) = (from_guest(1, GUEST, REMOTE), (OUT, block(2) + 1));
    let rewritten = "10.0.0.2.4001 > 198.18.0.5.53 to 203.0.113.1.2033 > 198.18.0.5.53, hop limit 64 to 63";
    let (steps, last) = told(&vpc, RED_1, &frame);
    assert_eq!(steps, ["exit 10.0.0.4 of red, outward: pass: 203.0.113.1.2033 > 198.18.0.5.53"]);
    assert!(last.ends_with(rewritten), "{last}");
    assert_eq!(vpc.tables().exits().next().map(|exit| exit.translations), Some(0), "nothing was given");
    sent(&mut vpc, RED_1, &frame).expect("out");
    // By its flow now.
    let (steps, last) = told(&vpc, RED_1, &frame);
    assert!(steps.is_empty() && last.ends_with(rewritten), "{steps:?} {last}");
    let (steps, last) = told(&vpc, RED_ROUTER, &from_outside(REMOTE, outside));
    assert_eq!(steps, ["exit 10.0.0.4 of red, inward: pass: 198.18.0.5.53 > 10.0.0.2.4001"]);
    assert!(!last.contains("MSS"), "{last}");
    (0..40).for_each(|port| drop(sent(&mut vpc, RED_1, &from_guest(1, ("10.0.0.2", 3000 + port), REMOTE))));
    let (steps, _) = told(&vpc, RED_1, &from_guest(1, ("10.0.0.2", 3999), REMOTE));
    assert_eq!(steps, ["exit 10.0.0.4 of red, outward: drop: nat-ports"]);
}

#[test]
fn a_gateway_without_guests_translates_what_tunnels_bring() {
    // Guest 4 of red is on node 2.
    let mut far = spec(Family::V4, 2);
    far.routes.push(RouteSpec {
        network: "red".into(),
        prefix: "0.0.0.0/0".parse().unwrap(),
        via: Via::Host(vtep(Family::V4, 1)),
    });
    let (mut far, mut gateway) = (vpc(&far), vpc(&site()));
    let (guest, outside) = (("10.0.0.5", 4001), (OUT, block(5) + 1));
    for _ in 0..3 {
        let (_, tunnelled) = forward(&mut far, RED_3, &from_guest(4, guest, REMOTE));
        assert_eq!(sent(&mut gateway, UNDERLAY, &tunnelled), is(RED_ROUTER, outside, REMOTE));
        let (verdict, back) = forward(&mut gateway, RED_ROUTER, &from_outside(REMOTE, outside));
        assert!(matches!(verdict, Verdict::Underlay { overhead: 50, .. }), "{verdict:?}");
        assert_eq!(ends(&back[50..]), [(REMOTE.0.to_owned(), REMOTE.1), (guest.0.to_owned(), guest.1)]);
        assert_eq!(sent(&mut far, UNDERLAY, &back), is(RED_3, REMOTE, guest));
    }
    assert_eq!(gateway.stats().cached, 4);
}

#[test]
fn rules_that_overlap_and_exits_that_are_not_there_are_refused() {
    let problem = |change: fn(&mut Spec)| {
        let mut spec = site();
        change(&mut spec);
        let error = Tables::build(&spec, None).expect_err("refused");
        (matches!(error.entry, Entry::Nat { .. } | Entry::Endpoint { .. }), error.problem)
    };
    assert!(matches!(problem(|spec| spec.nat[0].forwards[0].outside.1 = 2000), (true, Problem::Nat(_))));
    assert_eq!(problem(|spec| spec.nat[0].exit = ip("10.0.0.77")), (true, Problem::NoExit(ip("10.0.0.77"))));
    assert_eq!(problem(|spec| spec.nat.push(spec.nat[0].clone())), (true, Problem::NoExit(ip("10.0.0.4"))));
}

/// A frame of a stream: from a guest, or an answer to what went out last.
#[derive(Clone, Debug)]
struct Sent {
    guest: usize,
    port: u16,
    remote: usize,
    is_inward: bool,
    outside_port: u16,
}

const GUESTS: [(PortId, u8, &str); 2] = [(RED_1, 1, "10.0.0.2"), (RED_2, 2, "10.0.0.3")];
const REMOTES: [End<'static>; 4] = [REMOTE, ("198.18.0.6", 54), (FLOATING, 4000), (OUT, 53)];

fn stream() -> impl Strategy<Value = Vec<(Sent, u8)>> {
    let sent = (0..2usize, 4000u16..4020, 0..4usize, any::<bool>(), 0u16..20).prop_map(
        |(guest, port, remote, is_inward, outside_port)| Sent { guest, port, remote, is_inward, outside_port },
    );
    prop::collection::vec((sent, 0u8..40), 1..200)
}

impl Sent {
    fn packet(&self) -> Packet {
        let (port, last, address) = GUESTS[self.guest];
        match self.is_inward {
            false => packet(port, &from_guest(last, (address, self.port), REMOTES[self.remote])),
            true => {
                let to = if self.guest == 0 { (OUT, block(2) + self.outside_port) } else { (FLOATING, self.port) };
                packet(RED_ROUTER, &from_outside(REMOTES[self.remote % 2], to))
            }
        }
    }
}

/// The site of a moment: rules come and go.
fn changed(changes: u8) -> Spec {
    let mut spec = site();
    if changes & 1 != 0 {
        spec.nat[0].forwards.clear();
    }
    if changes & 2 != 0 {
        spec.nat[0].shared[0].ports = (3000, 3000 + 16 * 128 - 1);
    }
    if changes & 4 != 0 {
        spec.nat[0].floating.clear();
    }
    spec
}

/// What leaves of a packet, or why it does not.
fn outcome(vpc: &mut Vpc, now: u64, sent: &Sent) -> (Verdict, Vec<u8>) {
    let (mut packets, mut verdicts) = ([sent.packet()], Vec::new());
    vpc.forward(now, &mut packets, &mut verdicts);
    let left = matches!(verdicts[0], Verdict::Local { .. });
    (verdicts[0], if left { packets[0].head.bytes().to_vec() } else { Vec::new() })
}

proptest! {
    #[test]
    fn flows_translate_as_the_software_tier_does(stream in stream()) {
        let (mut vpc, mut plain) = (vpc(&site()), Vpc::with_flows(build(&site()), 0));
        let (mut now, mut changes) = (0, 0u8);
        for (sent, event) in stream {
            now += 10_000_000;
            if event < 3 {
                changes ^= 1 << event;
                change(&mut vpc, &changed(changes));
                change(&mut plain, &changed(changes));
            }
            if event == 3 {
                // Long enough for connections to end.
                now += 400_000_000_000;
            }
            let (fast, slow) = (outcome(&mut vpc, now, &sent), outcome(&mut plain, now, &sent));
            prop_assert_eq!(&fast, &slow, "{:?}", sent);
            // A port outside is one guest's.
            if let (Verdict::Local { port: RED_ROUTER, .. }, frame) = fast {
                let (from, port) = &ends(&frame)[0];
                let first = if changes & 2 != 0 { 3000 } else { 2000 };
                let last = if sent.guest == 0 { 2 } else { 3 };
                let is_its = from == FLOATING || *port == 53 || (first + 16 * last..first + 16 * (last + 1)).contains(port);
                prop_assert!(is_its, "{} {}", from, port);
            }
        }
    }
}
