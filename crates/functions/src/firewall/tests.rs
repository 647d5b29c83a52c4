//! Packet in, whether it passes, and what is counted.

use softdpu_vpc::policy::conntrack::Timeouts;
use softdpu_vpc::policy::{Ports, Service};

use super::*;
use crate::testing::{VNI, arp, fragments, icmp6, tcp, udp};

const SYN: u8 = 0x02;
const SYN_ACK: u8 = 0x12;
const ACK: u8 = 0x10;
const GUEST: [u8; 4] = [10, 0, 0, 1];
const PEER: [u8; 4] = [10, 0, 0, 2];

fn tcp_to(port: u16) -> Service {
    Service::Tcp { source: Ports::ALL, destination: Ports::new(port, port).unwrap() }
}

fn rule(direction: Option<FrameDirection>, priority: u32, action: Action, service: Service) -> FirewallRule {
    FirewallRule { direction, rule: RuleSpec { priority, action, source: None, destination: None, service } }
}

/// Everything out, SSH in; or without connections.
fn firewall(connections: Option<usize>) -> Firewall {
    let rules = vec![
        rule(Some(FrameDirection::In), 10, Action::Allow, Service::Any),
        rule(Some(FrameDirection::Out), 10, Action::Allow, tcp_to(22)),
    ];
    Firewall::new(Arc::new(Rules::build(&FirewallSpec { rules, default: Action::Deny, connections }).unwrap()))
}

/// Whether a packet passes the interface with this number.
fn passes(firewall: &mut Firewall, now: u64, direction: FrameDirection, port: u32, packet: &Packet) -> bool {
    let mut observations = [Observation { port, ..Observation::of(packet, direction, VNI) }];
    firewall.judge(now, std::slice::from_ref(packet), &mut observations, 0);
    firewall.note(&observations, 0);
    observations[0].dropped.is_none()
}

#[test]
fn a_rule_of_one_direction_says_nothing_about_the_other() {
    let mut firewall = firewall(None);
    assert!(passes(&mut firewall, 1, FrameDirection::In, 0, &tcp(GUEST, 1000, PEER, 80, SYN, 0)));
    assert!(!passes(&mut firewall, 1, FrameDirection::Out, 0, &tcp(PEER, 80, GUEST, 1000, SYN_ACK, 0)));
    assert!(passes(&mut firewall, 1, FrameDirection::Out, 0, &tcp(PEER, 1000, GUEST, 22, SYN, 0)));
    let counts = firewall.counts();
    assert_eq!(counts.rules.iter().map(|rule| rule.packets).collect::<Vec<_>>(), [1, 1]);
    assert_eq!((counts.default.packets, counts.dropped), (1, Tally { packets: 1, octets: 40 }));
}

#[test]
fn replies_of_a_connection_pass_and_nothing_else_does() {
    let mut firewall = firewall(Some(16));
    assert!(passes(&mut firewall, 1, FrameDirection::In, 0, &tcp(GUEST, 1000, PEER, 80, SYN, 0)));
    assert!(passes(&mut firewall, 2, FrameDirection::Out, 0, &tcp(PEER, 80, GUEST, 1000, SYN_ACK, 0)));
    assert!(!passes(&mut firewall, 3, FrameDirection::Out, 0, &tcp(PEER, 81, GUEST, 1000, SYN, 0)));
    assert!(!passes(&mut firewall, 3, FrameDirection::Out, 0, &udp(PEER, 80, GUEST, 1000, 0)));
    let counts = firewall.counts();
    assert_eq!((counts.established.packets, counts.default.packets, counts.dropped.packets), (1, 2, 2));
}

#[test]
fn what_one_interface_opened_opens_nothing_at_another() {
    let mut firewall = firewall(Some(16));
    let packet = udp(GUEST, 1000, PEER, 53, 0);
    assert!(passes(&mut firewall, 1, FrameDirection::In, 0, &packet));
    assert!(!passes(&mut firewall, 1, FrameDirection::Out, 1, &packet), "at its receiver, whose rules do not allow it");
    assert!(!passes(&mut firewall, 1, FrameDirection::Out, 1, &udp(PEER, 53, GUEST, 1000, 0)));
    assert!(passes(&mut firewall, 1, FrameDirection::Out, 0, &udp(PEER, 53, GUEST, 1000, 0)));
}

#[test]
fn a_connection_that_is_over_is_forgotten() {
    let mut firewall = firewall(Some(16));
    let reply = udp(PEER, 53, GUEST, 1000, 0);
    assert!(passes(&mut firewall, 1, FrameDirection::In, 0, &udp(GUEST, 1000, PEER, 53, 0)));
    let later = 1 + Timeouts::default().udp;
    assert!(!passes(&mut firewall, later, FrameDirection::Out, 0, &reply));
}

#[test]
fn a_full_table_refuses_and_cores_share_it() {
    let first = firewall(Some(1));
    let mut cores = [Firewall::new(Arc::clone(&first.rules)), first];
    assert!(passes(&mut cores[0], 1, FrameDirection::In, 0, &udp(GUEST, 1, PEER, 53, 0)));
    assert!(passes(&mut cores[1], 2, FrameDirection::Out, 0, &udp(PEER, 53, GUEST, 1, 0)));
    assert!(passes(&mut cores[1], 3, FrameDirection::In, 0, &udp(GUEST, 1, PEER, 53, 0)));
    assert!(cores[0].rules.connections() <= 1);
}

#[test]
fn one_interface_cannot_take_the_room_of_another() {
    let mut firewall = firewall(Some(8));
    [1, 2].into_iter().for_each(|port| firewall.rules.attach(port));
    for source in 0..100 {
        let (ask, answer) = (udp(GUEST, source, PEER, 53, 0), udp(PEER, 53, GUEST, source, 0));
        passes(&mut firewall, 1, FrameDirection::In, 1, &ask);
        passes(&mut firewall, 1, FrameDirection::Out, 1, &answer);
    }
    assert_eq!(firewall.rules.connections(), 4, "half of the room");
    assert!(passes(&mut firewall, 2, FrameDirection::In, 2, &udp(GUEST, 1000, PEER, 53, 0)));
}

#[test]
fn one_that_comes_later_takes_its_share_from_who_has_more() {
    let mut firewall = firewall(Some(8));
    firewall.rules.attach(1);
    for source in 0..8 {
        assert!(passes(&mut firewall, 1, FrameDirection::In, 1, &udp(GUEST, source, PEER, 53, 0)));
        assert!(passes(&mut firewall, 1, FrameDirection::Out, 1, &udp(PEER, 53, GUEST, source, 0)));
    }
    assert_eq!(firewall.rules.connections(), 8, "all of the room, while nobody else wants any");
    firewall.rules.attach(2);
    for source in 0..6 {
        let is_answered = passes(&mut firewall, 2, FrameDirection::In, 2, &udp(GUEST, source, PEER, 53, 0))
            && passes(&mut firewall, 2, FrameDirection::Out, 2, &udp(PEER, 53, GUEST, source, 0));
        assert_eq!(is_answered, source < 4, "half of the room is its own");
    }
    let left =
        (0..8).filter(|source| passes(&mut firewall, 3, FrameDirection::Out, 1, &udp(PEER, 53, GUEST, *source, 0)));
    assert_eq!(left.count(), 4, "and no more than that was taken");
    assert_eq!((firewall.counts().no_room.packets, firewall.counts().refused.packets), (2, 0));
}

/// The firewall of a core that goes by other rules from now on.
fn replaced(firewall: &Firewall, rules: Vec<FirewallRule>, connections: Option<usize>) -> Firewall {
    let spec = FirewallSpec { rules, default: Action::Deny, connections };
    Firewall::new(Arc::new(firewall.rules.succeed(&spec).unwrap()))
}

#[test]
fn connections_go_on_that_other_rules_allow_and_others_pass_no_more_from_either_side() {
    let mut before = firewall(Some(16));
    let (asked, answered) = (tcp(GUEST, 1000, PEER, 80, ACK, 0), tcp(PEER, 80, GUEST, 1000, ACK, 0));
    let (ssh, ssh_answered) = (tcp(PEER, 1001, GUEST, 22, ACK, 0), tcp(GUEST, 22, PEER, 1001, ACK, 0));
    for (direction, packet) in [
        (FrameDirection::In, &asked),
        (FrameDirection::Out, &answered),
        (FrameDirection::Out, &ssh),
        (FrameDirection::In, &ssh_answered),
    ] {
        assert!(passes(&mut before, 1, direction, 0, packet));
    }
    // No connection may come in any more. What the guest sends of its own is allowed: also what belongs to a connection
    // that is not.
    let out = || vec![rule(Some(FrameDirection::In), 10, Action::Allow, Service::Any)];
    let mut after = replaced(&before, out(), Some(16));
    let of_guest = tcp(GUEST, 1000, PEER, 80, ACK, 100);
    let of_ssh = [tcp(GUEST, 22, PEER, 1001, ACK, 100), tcp(PEER, 1001, GUEST, 22, ACK, 100)];
    for _ in 0..2 {
        assert!(passes(&mut after, 2, FrameDirection::In, 0, &of_guest));
        assert!(passes(&mut after, 2, FrameDirection::Out, 0, &tcp(PEER, 80, GUEST, 1000, ACK, 100)));
        assert!(!passes(&mut after, 2, FrameDirection::In, 0, &of_ssh[0]));
        assert!(!passes(&mut after, 2, FrameDirection::Out, 0, &of_ssh[1]));
        // A core that has not heard of them yet goes by those before.
        assert!(passes(&mut before, 2, FrameDirection::Out, 0, &of_ssh[1]));
    }
    let counts = after.counts();
    assert_eq!((counts.established.packets, counts.default.packets, counts.dropped.packets), (4, 4, 4));
    // It is allowed again before its ends gave it up.
    let mut again = replaced(&after, vec![rule(Some(FrameDirection::Out), 10, Action::Allow, tcp_to(22))], Some(16));
    assert!(passes(&mut again, 3, FrameDirection::Out, 0, &of_ssh[1]));
    assert!(!passes(&mut again, 3, FrameDirection::In, 0, &of_guest));
}

#[test]
fn with_other_room_connections_begin_anew() {
    let mut before = firewall(Some(16));
    let reply = udp(PEER, 53, GUEST, 1000, 0);
    assert!(passes(&mut before, 1, FrameDirection::In, 0, &udp(GUEST, 1000, PEER, 53, 0)));
    let rules = || vec![rule(Some(FrameDirection::In), 10, Action::Allow, Service::Any)];
    assert!(passes(&mut replaced(&before, rules(), Some(16)), 2, FrameDirection::Out, 0, &reply));
    assert!(!passes(&mut replaced(&before, rules(), Some(8)), 2, FrameDirection::Out, 0, &reply));
    assert!(!passes(&mut replaced(&before, rules(), None), 2, FrameDirection::Out, 0, &reply));
}

#[test]
fn who_gets_the_number_of_another_gets_none_of_its_connections() {
    let mut firewall = firewall(Some(8));
    firewall.rules.attach(1);
    let reply = udp(PEER, 53, GUEST, 1000, 0);
    assert!(passes(&mut firewall, 1, FrameDirection::In, 1, &udp(GUEST, 1000, PEER, 53, 0)));
    assert!(passes(&mut firewall, 1, FrameDirection::Out, 1, &reply));
    firewall.rules.detach(1);
    firewall.rules.attach(1);
    assert!(!passes(&mut firewall, 1, FrameDirection::Out, 1, &reply));
}

#[test]
fn a_reply_in_fragments_arrives_whole_and_other_fragments_do_not() {
    let mut firewall = firewall(Some(8));
    let [first, second] = fragments(PEER, 53, GUEST, 1000, 7);
    let stray = fragments(PEER, 53, GUEST, 1000, 8)[1].clone();
    assert!(!passes(&mut firewall, 1, FrameDirection::Out, 0, &second), "its first was not seen");
    assert!(passes(&mut firewall, 1, FrameDirection::In, 0, &udp(GUEST, 1000, PEER, 53, 0)));
    assert!(passes(&mut firewall, 2, FrameDirection::Out, 0, &first));
    assert!(passes(&mut firewall, 3, FrameDirection::Out, 0, &second));
    assert!(!passes(&mut firewall, 3, FrameDirection::Out, 0, &stray), "of another datagram");
    assert!(!passes(&mut firewall, 3, FrameDirection::Out, 1, &second), "at another interface");
}

#[test]
fn neighbour_discovery_passes_on_its_way_in_only() {
    let mut firewall = Firewall::new(Arc::new(
        Rules::build(&FirewallSpec { rules: Vec::new(), default: Action::Deny, connections: None }).unwrap(),
    ));
    assert!(passes(&mut firewall, 1, FrameDirection::In, 0, &icmp6(1, 2, 135)));
    assert!(!passes(&mut firewall, 1, FrameDirection::Out, 0, &icmp6(1, 2, 135)));
}

#[test]
fn a_packet_that_is_judged_again_is_counted_once() {
    let mut firewall = firewall(Some(16));
    let packet = tcp(GUEST, 1000, PEER, 80, ACK, 0);
    let mut observations = [Observation::of(&packet, FrameDirection::In, VNI)];
    for _ in 0..2 {
        observations = [Observation::of(&packet, FrameDirection::In, VNI)];
        firewall.judge(1, std::slice::from_ref(&packet), &mut observations, 0);
    }
    firewall.note(&observations, 0);
    assert_eq!(firewall.counts().rules[0].packets + firewall.counts().established.packets, 1);
}

#[test]
fn what_asks_all_dhcp_servers_passes_and_what_asks_one_machine_does_not() {
    let mut firewall = Firewall::new(Arc::new(
        Rules::build(&FirewallSpec { rules: Vec::new(), default: Action::Deny, connections: None }).unwrap(),
    ));
    assert!(passes(&mut firewall, 1, FrameDirection::In, 0, &udp([0; 4], 68, [255; 4], 67, 300)));
    assert!(!passes(&mut firewall, 1, FrameDirection::In, 0, &udp(GUEST, 68, PEER, 67, 300)));
}

#[test]
fn arp_passes() {
    assert!(passes(&mut firewall(None), 1, FrameDirection::Out, 0, &arp()));
}

#[test]
fn the_first_rule_by_priority_decides() {
    let rules = vec![rule(None, 20, Action::Allow, Service::Any), rule(None, 10, Action::Deny, tcp_to(25))];
    let rules = Rules::build(&FirewallSpec { rules, default: Action::Deny, connections: None }).unwrap();
    let mut firewall = Firewall::new(Arc::new(rules));
    assert!(!passes(&mut firewall, 1, FrameDirection::In, 0, &tcp(GUEST, 1, PEER, 25, SYN, 0)));
    assert!(passes(&mut firewall, 1, FrameDirection::In, 0, &tcp(GUEST, 1, PEER, 26, SYN, 0)));
    assert_eq!(firewall.counts().rules[1].packets, 1);
}
