//! What groups and lists of a network let pass, first packets and cached ones, on one core and on two.

mod common;

use std::sync::Arc;

use common::*;
use etherparse::PacketBuilder;
use softdpu_vpc::policy::acl::{AclSpec, Action, RuleSpec};
use softdpu_vpc::policy::{Ports, Service};
use softdpu_vpc::spec::{NamedAcl, RulePeer, SecurityGroupSpec, SecurityRule, Spec, TableCapacity};
use softdpu_vpc::tables::Loading;
use softdpu_vpc::{DropReason, PortId, Tables, Verdict, Vpc};

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn tcp(from: u8, source: (&str, u16), destination: (&str, u16), flags: u8, sequence: u32, ack: u32) -> Vec<u8> {
    let octets = |text: &str| match ip(text) {
        std::net::IpAddr::V4(address) => address.octets(),
        std::net::IpAddr::V6(_) => panic!("IPv4"),
    };
    let builder = PacketBuilder::ethernet2(mac(from).0, GATEWAY.0).ipv4(octets(source.0), octets(destination.0), 64);
    let mut frame = Vec::new();
    builder.tcp(source.1, destination.1, sequence, 1000).write(&mut frame, &[]).expect("a vector");
    frame[14 + 20 + 13] = flags;
    frame[14 + 20 + 8..][..4].copy_from_slice(&ack.to_be_bytes());
    frame
}

const CLIENT: (&str, u16) = ("10.0.0.2", 4000);
const SERVER: (&str, u16) = ("10.0.0.3", 80);

fn group(name: &str, rules: Vec<(RulePeer, Service)>) -> SecurityGroupSpec {
    let ingress = rules.into_iter().map(|(peer, service)| SecurityRule { peer, service }).collect();
    SecurityGroupSpec { name: name.into(), ingress, egress: None }
}

fn http() -> (RulePeer, Service) {
    (RulePeer::Any, Service::tcp(Ports::one(80)))
}

/// Red's guests 1 and 2: the first in group `client`, which takes nothing, the second in `server`, which takes `rules`.
fn grouped(rules: Vec<(RulePeer, Service)>) -> Spec {
    let mut spec = spec(Family::V4, 1);
    spec.networks[0].policy.groups = vec![group("client", Vec::new()), group("server", rules)];
    for endpoint in spec.endpoints.iter_mut().filter(|endpoint| endpoint.network == "red") {
        let groups = [(1, "client"), (2, "server")].into_iter().filter(|(last, _)| endpoint.mac == mac(*last));
        endpoint.policy.groups = groups.map(|(_, name)| name.into()).collect();
    }
    spec
}

/// The outcome of a frame: the port it goes to, or why it is dropped.
fn send(vpc: &mut Vpc, port: PortId, frame: &[u8]) -> Result<PortId, DropReason> {
    match forward(vpc, port, frame).0 {
        Verdict::Local { port, .. } => Ok(port),
        Verdict::Drop(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

fn request(flags: u8, sequence: u32, ack: u32) -> Vec<u8> {
    tcp(1, CLIENT, SERVER, flags, sequence, ack)
}

fn answer(flags: u8, sequence: u32, ack: u32) -> Vec<u8> {
    tcp(2, SERVER, CLIENT, flags, sequence, ack)
}

/// Opens a connection from the client, seen by `client` one way and by `server` the other, and makes flows of it.
fn open(client: &mut Vpc, server: Option<&mut Vpc>) {
    assert_eq!(send(client, RED_1, &request(SYN, 100, 0)), Ok(RED_2));
    match server {
        Some(server) => assert_eq!(send(server, RED_2, &answer(SYN | ACK, 500, 101)), Ok(RED_1)),
        None => assert_eq!(send(client, RED_2, &answer(SYN | ACK, 500, 101)), Ok(RED_1)),
    }
    assert_eq!(send(client, RED_1, &request(ACK, 101, 501)), Ok(RED_2));
}

#[test]
fn what_no_rule_allows_is_dropped_and_replies_pass() {
    let mut vpc = vpc(&grouped(vec![http()]));
    open(&mut vpc, None);
    let ssh = tcp(1, CLIENT, ("10.0.0.3", 22), SYN, 1, 0);
    assert_eq!(send(&mut vpc, RED_1, &ssh), Err(DropReason::SecurityGroup));
    let back = tcp(2, ("10.0.0.3", 4001), ("10.0.0.2", 80), SYN, 1, 0);
    assert_eq!(send(&mut vpc, RED_2, &back), Err(DropReason::SecurityGroup), "the client takes nothing");
    let stray = tcp(2, SERVER, ("10.0.0.2", 4001), SYN | ACK, 1, 1);
    assert_eq!(send(&mut vpc, RED_2, &stray), Err(DropReason::NoConnection), "an answer to nothing");
    // From here on flows decide.
    assert_eq!(send(&mut vpc, RED_2, &answer(ACK, 501, 101)), Ok(RED_1));
    let before = vpc.stats().clone();
    for _ in 0..10 {
        assert_eq!(send(&mut vpc, RED_1, &request(ACK, 101, 501)), Ok(RED_2));
        assert_eq!(send(&mut vpc, RED_2, &answer(ACK, 501, 101)), Ok(RED_1));
    }
    assert_eq!((vpc.stats().policy - before.policy, vpc.stats().cached - before.cached), (0, 20));
}

#[test]
fn a_rule_that_is_taken_away_stops_the_connection_that_it_let_begin() {
    let mut vpc = vpc(&grouped(vec![http()]));
    open(&mut vpc, None);
    assert_eq!(send(&mut vpc, RED_2, &answer(ACK, 501, 101)), Ok(RED_1));
    // Red's router talks to no guest of blue; a flow of its own, to the second guest on the other node.
    let other = udp(mac(3), GATEWAY, "10.0.0.4", "172.16.0.9");
    assert!(matches!(forward(&mut vpc, RED_ROUTER, &other).0, Verdict::Underlay { .. } | Verdict::Drop(_)));
    change(&mut vpc, &grouped(Vec::new()));
    assert_eq!(send(&mut vpc, RED_2, &answer(ACK, 501, 101)), Err(DropReason::SecurityGroup));
    assert_eq!(send(&mut vpc, RED_1, &request(ACK, 101, 501)), Err(DropReason::SecurityGroup));
    // With the rule it goes on.
    change(&mut vpc, &grouped(vec![http()]));
    assert_eq!(send(&mut vpc, RED_1, &request(ACK, 101, 501)), Ok(RED_2));
    assert_eq!(send(&mut vpc, RED_2, &answer(ACK, 501, 101)), Ok(RED_1));
    // Another rule's change ends nothing.
    let ssh = (RulePeer::Any, Service::tcp(Ports::one(22)));
    change(&mut vpc, &grouped(vec![http(), ssh]));
    assert_eq!(send(&mut vpc, RED_2, &answer(ACK, 501, 101)), Ok(RED_1));
}

#[test]
fn a_connection_that_ends_ends_its_flows_on_all_cores() {
    for end in [FIN | ACK, RST] {
        let tables = build(&grouped(vec![http()]));
        let (mut client, mut server) = (Vpc::new(Arc::clone(&tables)), Vpc::new(tables));
        open(&mut client, Some(&mut server));
        assert_eq!(send(&mut server, RED_2, &answer(ACK, 501, 101)), Ok(RED_1));
        let before = client.stats().policy;
        assert_eq!(send(&mut client, RED_1, &request(ACK, 101, 501)), Ok(RED_2));
        assert_eq!(client.stats().policy, before, "by its flow");
        // The other core meets the end of it.
        assert_eq!(send(&mut server, RED_2, &answer(end, 501, 101)), Ok(RED_1));
        assert_eq!(send(&mut client, RED_1, &request(ACK, 101, 501)), Ok(RED_2), "its last acknowledgement");
        assert_eq!(client.stats().policy, before + 1, "asked about");
        let (_, stats) = client.tables().connection_stats().expect("groups");
        assert_eq!((stats.opened, stats.ended.iter().sum::<u64>()), (1, u64::from(end == RST)));
    }
}

#[test]
fn both_fins_acknowledged_the_connection_is_over() {
    let mut vpc = vpc(&grouped(vec![http()]));
    open(&mut vpc, None);
    assert_eq!(send(&mut vpc, RED_1, &request(FIN | ACK, 101, 501)), Ok(RED_2));
    assert_eq!(send(&mut vpc, RED_2, &answer(FIN | ACK, 501, 102)), Ok(RED_1));
    assert_eq!(send(&mut vpc, RED_1, &request(ACK, 102, 502)), Ok(RED_2));
    let (_, stats) = vpc.tables().connection_stats().expect("groups");
    assert_eq!(stats.ended.iter().sum::<u64>(), 1);
}

#[test]
fn a_flow_shows_the_connection_a_packet_now_and_then() {
    let mut vpc = vpc(&grouped(vec![(RulePeer::Any, Service::udp(Ports::ALL))]));
    let mut verdicts = Vec::new();
    // One a millisecond, for a second.
    for milli in 0..1000 {
        let mut one = [packet(RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3"))];
        vpc.forward(milli * 1_000_000, &mut one, &mut verdicts);
    }
    assert!(verdicts.iter().all(|verdict| matches!(verdict, Verdict::Local { .. })));
    let asked = vpc.stats().policy;
    assert!((10..=20).contains(&asked), "{asked} of 1000");
}

/// Sends at `now`, nanoseconds.
fn send_at(vpc: &mut Vpc, now: u64, port: PortId, frame: &[u8]) -> Result<PortId, DropReason> {
    let mut verdicts = Vec::new();
    vpc.forward(now, &mut [packet(port, frame)], &mut verdicts);
    match verdicts[0] {
        Verdict::Local { port, .. } => Ok(port),
        Verdict::Drop(reason) => Err(reason),
        other => panic!("{other:?}"),
    }
}

/// A datagram of client `number`, or the answer to it.
fn datagram(number: u16, is_answer: bool) -> (PortId, Vec<u8>) {
    let (from, port, source, destination) = match is_answer {
        false => (1, RED_1, "10.0.0.2", "10.0.0.3"),
        true => (2, RED_2, "10.0.0.3", "10.0.0.2"),
    };
    let mut frame = udp(mac(from), GATEWAY, source, destination);
    let (client, server) = ((4000 + number).to_be_bytes(), 5000_u16.to_be_bytes());
    let (first, second) = if is_answer { (server, client) } else { (client, server) };
    frame[34..36].copy_from_slice(&first);
    frame[36..38].copy_from_slice(&second);
    // None.
    frame[40..42].fill(0);
    (port, frame)
}

#[test]
fn a_connection_that_expired_stops_its_flows_both_ways() {
    const SECOND: u64 = 1_000_000_000;
    let mut vpc = vpc(&grouped(vec![(RulePeer::Any, Service::udp(Ports::ALL))]));
    let ended = |vpc: &Vpc| {
        let (count, counted) = vpc.tables().connection_stats().expect("groups");
        (count, counted.opened, counted.ended.iter().sum::<u64>())
    };
    // There is no answer: 30 seconds later it is over, and its flow, which no minute has passed for, is still there.
    let (to, request) = datagram(1, false);
    for _ in 0..2 {
        assert_eq!(send_at(&mut vpc, SECOND, to, &request), Ok(RED_2));
    }
    assert_eq!((vpc.stats().policy, vpc.stats().cached), (1, 1));
    vpc.advertise(32 * SECOND, |_| false, &mut Vec::new());
    assert_eq!((ended(&vpc), vpc.flows()), ((0, 1, 1), 1));
    assert_eq!(send_at(&mut vpc, 32 * SECOND, to, &request), Ok(RED_2));
    assert_eq!((vpc.stats().policy, vpc.stats().cached, ended(&vpc).1), (2, 1, 2), "not by the flow, and another one");
    // One that was answered, two minutes later: no answer passes any more, and the next request begins another.
    let ((to, request), (back, answer)) = (datagram(2, false), datagram(2, true));
    for _ in 0..2 {
        assert_eq!(send_at(&mut vpc, 40 * SECOND, to, &request), Ok(RED_2));
        assert_eq!(send_at(&mut vpc, 40 * SECOND, back, &answer), Ok(RED_1));
    }
    assert_eq!((vpc.stats().policy, vpc.stats().cached), (4, 3), "by flows, both ways");
    vpc.advertise(161 * SECOND, |_| false, &mut Vec::new());
    assert_eq!(send_at(&mut vpc, 161 * SECOND, back, &answer), Err(DropReason::SecurityGroup));
    assert_eq!(send_at(&mut vpc, 161 * SECOND, to, &request), Ok(RED_2));
    assert_eq!((vpc.stats().policy, vpc.stats().cached), (6, 3), "asked about, both of them");
}

#[test]
fn a_connection_that_gave_its_room_to_another_stops_its_flow() {
    let mut spec = grouped(vec![(RulePeer::Any, Service::udp(Ports::ALL))]);
    spec.connections = softdpu_vpc::spec::ConnectionLimit(2);
    let mut vpc = vpc(&spec);
    let asks = |vpc: &mut Vpc, number, is_answer| {
        let before = (vpc.stats().policy, vpc.stats().cached);
        let (port, frame) = datagram(number, is_answer);
        let outcome = send(vpc, port, &frame);
        (outcome, vpc.stats().policy - before.0, vpc.stats().cached - before.1)
    };
    // These two have no answer: each has a flow all the same.
    for (number, asked) in [(0, 1), (1, 1), (0, 0), (1, 0)] {
        assert_eq!(asks(&mut vpc, number, false), (Ok(RED_2), asked, 1 - asked));
    }
    // A third takes the place of the first, in the same moment: the second goes on by its flow, the first does not, nor
    // is it answered.
    assert_eq!(asks(&mut vpc, 2, false), (Ok(RED_2), 1, 0));
    assert_eq!(asks(&mut vpc, 1, false), (Ok(RED_2), 0, 1));
    assert_eq!(asks(&mut vpc, 0, true), (Err(DropReason::SecurityGroup), 1, 0));
    assert_eq!(asks(&mut vpc, 0, false), (Ok(RED_2), 1, 0));
    let (count, counted) = vpc.tables().connection_stats().expect("groups");
    assert_eq!((count, counted.opened, counted.ended.iter().sum::<u64>()), (2, 4, 2));
}

#[test]
fn flows_of_connections_that_are_over_give_their_places_to_others() {
    let tables = build(&grouped(vec![http()]));
    let mut vpc = Vpc::with_flows(tables, 64);
    let client = |number: u16| ("10.0.0.2", 4000 + number);
    let to = |number, flags, sequence, ack| tcp(1, client(number), SERVER, flags, sequence, ack);
    let back = |number, flags, sequence, ack| tcp(2, SERVER, client(number), flags, sequence, ack);
    let connect = |vpc: &mut Vpc, number| {
        assert_eq!(send(vpc, RED_1, &to(number, SYN, 100, 0)), Ok(RED_2));
        assert_eq!(send(vpc, RED_2, &back(number, SYN | ACK, 500, 101)), Ok(RED_1));
        assert_eq!(send(vpc, RED_1, &to(number, ACK, 101, 501)), Ok(RED_2));
        assert_eq!(send(vpc, RED_2, &back(number, ACK, 501, 101)), Ok(RED_1));
    };
    (0..40).for_each(|number| connect(&mut vpc, number));
    let unkept = vpc.stats().unkept;
    assert!(vpc.flows() > 48 && unkept >= 80 - 64, "{} flows, {unkept} not kept", vpc.flows());
    // All in the same moment: none is idle.
    connect(&mut vpc, 100);
    assert_eq!(vpc.stats().unkept, unkept + 2, "full");
    for number in 0..40 {
        let _ = send(&mut vpc, RED_1, &to(number, RST, 101, 0));
    }
    let unkept = vpc.stats().unkept;
    (200..220).for_each(|number| connect(&mut vpc, number));
    assert!(vpc.stats().unkept - unkept <= 4, "{} of 40 flows find no room", vpc.stats().unkept - unkept);
}

#[test]
fn members_of_a_group_are_known_wherever_they_are() {
    let mut sites = [grouped(vec![(RulePeer::Group("web".into()), Service::udp(Ports::ALL))]), spec(Family::V4, 2)];
    sites[0].networks[0].policy.groups.push(group("web", Vec::new()));
    let [near, far] = &mut sites;
    let remote = near.endpoints.iter_mut().find(|endpoint| endpoint.addresses.contains(&ip("10.0.1.5")));
    let remote = remote.expect("of the site");
    remote.policy.groups = vec!["web".into()];
    let mut other = vpc(far);
    let sent = forward(&mut other, RED_3, &udp(mac(4), GATEWAY, "10.0.1.5", "10.0.0.3"));
    assert!(matches!(sent.0, Verdict::Underlay { .. }));
    let mut this = vpc(near);
    assert_eq!(send(&mut this, UNDERLAY, &sent.1), Ok(RED_2));
    // And an answer needs no rule.
    let back = udp_of(mac(2), GATEWAY, "10.0.0.3", "10.0.1.5", 64, &[0; 8]);
    assert!(matches!(forward(&mut this, RED_2, &back).0, Verdict::Underlay { .. }));
    let remote = near.endpoints.iter_mut().find(|endpoint| endpoint.addresses.contains(&ip("10.0.1.5")));
    remote.expect("of the site").policy.groups.clear();
    change(&mut this, near);
    assert_eq!(send(&mut this, UNDERLAY, &sent.1), Err(DropReason::SecurityGroup), "a member no more");
}

#[test]
fn a_list_is_asked_about_either_direction() {
    let mut spec = spec(Family::V4, 1);
    let rule = |priority, action, destination| RuleSpec {
        priority,
        action,
        source: None,
        destination: None,
        service: Service::Udp { source: Ports::ALL, destination },
    };
    let list = |first| AclSpec {
        rules: vec![rule(20, Action::Deny, Ports::ALL), rule(10, first, Ports::one(5000))],
        default: Action::Allow,
    };
    let with = |spec: &mut Spec, action| {
        spec.networks[0].policy.acls = vec![NamedAcl { name: "edge".into(), list: list(action) }];
        spec.endpoints.iter_mut().find(|one| one.network == "red" && one.mac == mac(2)).expect("one").policy.acl =
            Some("edge".into());
    };
    with(&mut spec, Action::Allow);
    let mut vpc = vpc(&spec);
    let to = udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3");
    for _ in 0..3 {
        assert_eq!(send(&mut vpc, RED_1, &to), Ok(RED_2));
    }
    assert_eq!((vpc.stats().policy, vpc.stats().cached), (1, 2), "without groups there is no connection");
    let mut answer = udp(mac(2), GATEWAY, "10.0.0.3", "10.0.0.2");
    answer[34..38].copy_from_slice(&[0x13, 0x88, 0x0f, 0xa0]);
    assert_eq!(send(&mut vpc, RED_2, &answer), Err(DropReason::Acl), "port 4000 is not 5000");
    with(&mut spec, Action::Deny);
    change(&mut vpc, &spec);
    assert_eq!(send(&mut vpc, RED_1, &to), Err(DropReason::Acl));
}

#[test]
fn without_groups_and_lists_nothing_is_asked() {
    let mut vpc = node(Family::V4, 1);
    for _ in 0..3 {
        assert_eq!(send(&mut vpc, RED_1, &udp(mac(1), GATEWAY, "10.0.0.2", "10.0.0.3")), Ok(RED_2));
    }
    assert_eq!((vpc.stats().policy, vpc.stats().cached), (0, 2));
    assert!(vpc.tables().connection_stats().is_none());
}

#[test]
fn a_group_or_list_that_is_not_there_is_named() {
    let mut spec = grouped(vec![(RulePeer::Group("nobody".into()), Service::Any)]);
    let error = |spec: &Spec| Tables::build(spec, None).expect_err("a wrong name").to_string();
    assert_eq!(error(&spec), "network red: the network has no security group nobody");
    spec.networks[0].policy.groups.truncate(1);
    assert!(error(&spec).ends_with("the network has no security group server"), "{}", error(&spec));
}

#[test]
fn an_error_about_a_connection_is_for_who_had_it_and_for_nobody_who_has_the_address_now() {
    let plain = grouped(vec![http()]);
    let own = plain.underlay.as_ref().expect("an underlay").addresses.clone();
    let mut loading = Loading::new(&plain.networks, &own, TableCapacity { endpoints: 8, routes: 4, hosts: 3 }, 4);
    loading.endpoint(1, "red", ip("10.0.0.77"), mac(77), vtep(Family::V4, 2)).expect("a good entry");
    let loaded = Arc::new(loading.finish().expect("good entries"));
    let mut vpc = vpc(&Site { spec: plain.clone(), loaded: Some(loaded) });
    let (source, far) = ("10.0.0.2", "10.0.0.77");
    assert!(matches!(forward(&mut vpc, RED_1, &udp(mac(1), GATEWAY, source, far)).0, Verdict::Underlay { .. }));
    // Port unreachable, of an answer that came.
    let mut answer = udp(mac(77), GATEWAY, far, source);
    let ports: [u8; 4] = udp(mac(1), GATEWAY, source, far)[34..38].try_into().expect("two ports");
    answer[34..36].copy_from_slice(&ports[2..]);
    answer[36..38].copy_from_slice(&ports[..2]);
    let mut error = Vec::new();
    let builder = PacketBuilder::ethernet2(mac(1).0, GATEWAY.0).ipv4([10, 0, 0, 2], [10, 0, 0, 77], 64);
    builder.icmpv4_raw(3, 3, [0; 4]).write(&mut error, &answer[14..42]).expect("a vector");
    assert!(matches!(forward(&mut vpc, RED_1, &error).0, Verdict::Underlay { .. }));
    // Another guest has the address, and takes HTTP alone.
    let mut other = plain;
    let second = other.endpoints.iter_mut().find(|endpoint| endpoint.network == "red" && endpoint.mac == mac(2));
    second.expect("red's second guest").addresses.push(ip(far));
    change(&mut vpc, &other);
    assert_eq!(send(&mut vpc, RED_1, &error), Err(DropReason::SecurityGroup));
}
