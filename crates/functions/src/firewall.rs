//! Firewall: rules by direction and priority, the first that matches decides; with connections, replies pass by themselves.
//!
//! ```text
//!   packet ─► of a connection of this interface? ─ yes ─► passes
//!                └─ no ─► rules of its direction ─ allow ─► passes, and begins a connection
//!                                               └ deny ──► dropped, counted by rule
//! ```
//!
//! Rules are those of access control lists ([`acl`]), connections those of security groups
//! ([`conntrack`](softdpu_vpc::policy::conntrack)), here for each interface by itself: what one interface opened opens
//! nothing at another. The interfaces of a firewall share its room for connections equally. A packet's later fragments, which have no
//! ports, go the way of its first where that passed a moment ago. What is no IP passes, and on its way in so do neighbour
//! discovery and questions to all DHCP servers: the network itself answers them, and forwards none.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};

use softdpu_vpc::Packet;
use softdpu_vpc::packet::{Ip, Layer4};
use softdpu_vpc::policy::Tuple;
use softdpu_vpc::policy::acl::{Acl, AclError, AclSpec, Action, RuleSpec};
use softdpu_vpc::policy::conntrack::{Config, Conntrack, Ended, Look, Subject, Timeouts};

use crate::fragments::{Datagram, Fragments};
use crate::{Sight, Way};

/// Steps of a turn that looks for connections that are over.
const AGING: usize = 1 << 12;
/// All DHCPv6 relays and servers (RFC 8415 §7.1).
const DHCP6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// A rule of a firewall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirewallRule {
    /// For packets that go this way; None: both.
    pub way: Option<Way>,
    /// What it asks for, and what is done.
    pub rule: RuleSpec,
}

/// A firewall as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallSpec {
    /// In any order.
    pub rules: Vec<FirewallRule>,
    /// What is done with a packet that no rule matches.
    pub default: Action,
    /// Most connections, some 220 bytes each; None: it is stateless, and replies need rules of their own.
    pub connections: Option<usize>,
}

/// A firewall's rules, ready to be asked, and its connections: what all cores share.
#[derive(Debug)]
pub struct Rules {
    /// Of each way.
    lists: [List; 2],
    count: usize,
    connections: Option<Mutex<Connections>>,
}

#[derive(Debug)]
struct List {
    acl: Acl,
    /// Numbers of its rules in the firewall.
    numbers: Vec<u16>,
}

#[derive(Debug)]
struct Connections {
    tracker: Conntrack,
    capacity: u32,
    /// Numbers of the interfaces that have connections.
    ports: Vec<u32>,
    fragments: Fragments,
    ended: Vec<Ended>,
}

impl Connections {
    /// The interface with this number may have connections.
    fn admit(&mut self, port: u32) {
        if !self.ports.contains(&port) {
            self.ports.push(port);
            self.share();
        }
    }

    /// The interface with this number is another from now on, or none.
    fn forget(&mut self, port: u32) {
        self.tracker.forget(port, &mut self.ended);
        self.ports.retain(|known| *known != port);
        self.share();
    }

    /// Deals the room out: nobody can take another's.
    fn share(&mut self) {
        let len = self.ports.iter().max().map_or(0, |most| *most as usize + 1);
        let each = self.capacity / self.ports.len().max(1) as u32;
        let mut shares = vec![0; len];
        for port in &self.ports {
            shares[*port as usize] = each.max(1);
        }
        self.tracker.set_shares(&shares);
    }
}

impl Rules {
    /// Of a firewall as it is written.
    ///
    /// # Errors
    /// [`AclError`] says which rule is wrong, and why.
    pub fn build(spec: &FirewallSpec) -> Result<Rules, AclError> {
        let list = |way: Way| {
            let mine = |rule: &&(usize, &FirewallRule)| rule.1.way.is_none_or(|its| its == way);
            let chosen: Vec<(usize, &FirewallRule)> =
                spec.rules.iter().enumerate().collect::<Vec<_>>().iter().filter(mine).copied().collect();
            let rules = chosen.iter().map(|(_, rule)| rule.rule).collect();
            let acl = Acl::build(&AclSpec { rules, default: spec.default })?;
            Ok::<_, AclError>(List { acl, numbers: chosen.iter().map(|(number, _)| *number as u16).collect() })
        };
        let connections = spec.connections.map(|capacity| {
            let config = Config {
                capacity,
                shares: Vec::new(),
                timeouts: Timeouts::default(),
                // After a restart, connections go on that the rules allow.
                pickup: true,
                any_reset: false,
            };
            let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
            Mutex::new(Connections {
                tracker: Conntrack::new(config),
                capacity,
                ports: Vec::new(),
                fragments: Fragments::new(),
                ended: Vec::new(),
            })
        });
        Ok(Rules { lists: [list(Way::In)?, list(Way::Out)?], count: spec.rules.len(), connections })
    }

    /// The interface with number `port` passes this firewall from now on: it has no connections yet, whoever had its number before.
    pub fn attach(&self, port: u32) {
        self.with_connections(|connections| {
            connections.forget(port);
            connections.admit(port);
        });
    }

    /// The interface with number `port` is no more.
    pub fn detach(&self, port: u32) {
        self.with_connections(|connections| connections.forget(port));
    }

    /// Connections that there are.
    pub fn connections(&self) -> usize {
        self.with_connections(|connections| connections.tracker.len()).unwrap_or(0)
    }

    fn with_connections<T>(&self, f: impl FnOnce(&mut Connections) -> T) -> Option<T> {
        // Nothing panics with the lock held; a table after one that did is as good as any.
        let mut connections = self.connections.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = f(&mut connections);
        connections.ended.clear();
        Some(answer)
    }

    fn ask(&self, way: Way, tuple: &Tuple) -> (Action, Mark) {
        let list = &self.lists[usize::from(way == Way::Out)];
        let decision = list.acl.decide(tuple);
        let number = decision.rule.and_then(|rule| list.numbers.get(rule as usize));
        (decision.action, number.map_or(Mark::DEFAULT, |number| Mark::rule(*number)))
    }
}

/// Packets and their octets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets.
    pub packets: u64,
    /// Octets.
    pub octets: u64,
}

impl Tally {
    fn add(&mut self, sight: &Sight) {
        self.packets += u64::from(sight.packets);
        self.octets += u64::from(sight.octets);
    }
}

/// What a firewall counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirewallCounts {
    /// By rule, as written: what it decided.
    pub rules: Vec<Tally>,
    /// What no rule decided.
    pub default: Tally,
    /// What passed as part of a connection that is known.
    pub established: Tally,
    /// What was dropped for no rule: it contradicts its connection or itself, or there is no room for its connection.
    pub refused: Tally,
    /// What was dropped, for whatever reason.
    pub dropped: Tally,
}

/// What decided about a frame.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Mark(u16);

impl Mark {
    const NOTHING: Mark = Mark(0);
    const DEFAULT: Mark = Mark(u16::MAX);
    const ESTABLISHED: Mark = Mark(u16::MAX - 1);
    const REFUSED: Mark = Mark(u16::MAX - 2);

    fn rule(number: u16) -> Mark {
        Mark(number + 1)
    }
}

/// A firewall on a core.
#[derive(Debug)]
pub struct Firewall {
    rules: Arc<Rules>,
    counts: FirewallCounts,
}

impl Firewall {
    /// By these rules.
    pub fn new(rules: Arc<Rules>) -> Firewall {
        let counts = FirewallCounts { rules: vec![Tally::default(); rules.count], ..FirewallCounts::default() };
        Firewall { rules, counts }
    }

    /// What it has counted.
    pub fn counts(&self) -> &FirewallCounts {
        &self.counts
    }

    /// Drops what is denied, at `now`, nanoseconds.
    pub fn judge(&mut self, now: u64, packets: &[Packet], sights: &mut [Sight], place: usize) {
        let rules = &*self.rules;
        let tracked = rules.with_connections(|connections| {
            each(packets, sights, place, |packet, sight, tuple| track(rules, connections, now, packet, sight, tuple));
        });
        if tracked.is_none() {
            each(packets, sights, place, |_, sight, tuple| rules.ask(sight.way, tuple));
        }
    }

    /// Counts what was judged.
    pub fn note(&mut self, sights: &[Sight], place: usize) {
        for sight in sights.iter().filter(|sight| sight.reaches(place)) {
            let mark = sight.marks.get(place).map_or(Mark::NOTHING, |mark| Mark(*mark));
            let tally = match mark {
                Mark::NOTHING => continue,
                Mark::DEFAULT => &mut self.counts.default,
                Mark::ESTABLISHED => &mut self.counts.established,
                Mark::REFUSED => &mut self.counts.refused,
                Mark(number) => match self.counts.rules.get_mut(usize::from(number) - 1) {
                    Some(tally) => tally,
                    None => continue,
                },
            };
            tally.add(sight);
            if sight.dropped == Some(place as u8) {
                self.counts.dropped.add(sight);
            }
        }
    }

    /// Forgets connections that are over at `now`, a bounded number.
    pub fn turn(&mut self, now: u64) {
        self.rules.with_connections(|connections| {
            let Connections { tracker, ended, .. } = connections;
            tracker.age(now, AGING, ended);
        });
    }
}

/// Neighbour and router discovery (RFC 4861 §4), and what asks all DHCP servers (RFC 2131 §4.1, RFC 8415 §7.1): a network
/// answers these itself and forwards none of them.
fn is_for_the_network(ip: &Ip) -> bool {
    match ip.layer4 {
        Layer4::Icmp { kind, .. } => ip.is_ipv6() && (133..=137).contains(&kind),
        Layer4::Udp { source: 68, destination: 67 } => ip.destination == IpAddr::V4(Ipv4Addr::BROADCAST),
        Layer4::Udp { destination: 547, .. } => ip.destination == IpAddr::V6(DHCP6_SERVERS),
        Layer4::Tcp { .. } | Layer4::Udp { .. } | Layer4::Other => false,
    }
}

/// Decides about each IP packet that reaches `place`.
fn each(
    packets: &[Packet],
    sights: &mut [Sight],
    place: usize,
    mut decide: impl FnMut(&Packet, &Sight, &Tuple) -> (Action, Mark),
) {
    for (packet, sight) in packets.iter().zip(sights).filter(|(_, sight)| sight.dropped.is_none()) {
        // On its way out there is none of the network's own: what is there was sent by somebody.
        let is_exempt = |ip: &Ip| sight.way == Way::In && is_for_the_network(ip);
        let Some(ip) = sight.ip().filter(|ip| !is_exempt(ip)) else { continue };
        let (action, mark) = match Tuple::of(ip) {
            Ok(tuple) => decide(packet, sight, &tuple),
            Err(_) => (Action::Deny, Mark::REFUSED),
        };
        if let Some(slot) = sight.marks.get_mut(place) {
            *slot = mark.0;
        }
        if action == Action::Deny {
            sight.dropped = Some(place as u8);
        }
    }
}

/// Decides about a packet by its connection, or else by the rules.
fn track(
    rules: &Rules,
    connections: &mut Connections,
    now: u64,
    packet: &Packet,
    sight: &Sight,
    tuple: &Tuple,
) -> (Action, Mark) {
    let Some(ip) = sight.ip() else { return (Action::Allow, Mark::NOTHING) };
    connections.admit(sight.port);
    let Connections { tracker, ended, fragments, .. } = connections;
    let part = ip.fragment.map(|part| Datagram::of(sight.port, ip, part.id));
    match Subject::of(sight.port, ip, packet.head.bytes()) {
        Subject::Segment(segment) => match tracker.look(&segment, now, ended) {
            Ok(Look::Known(_)) => {
                if let Some(datagram) = part {
                    fragments.pass(datagram, now);
                }
                (Action::Allow, Mark::ESTABLISHED)
            }
            Ok(Look::New(opening)) => match rules.ask(sight.way, tuple) {
                (Action::Allow, mark) => match tracker.open(&opening, now, ended) {
                    Ok(_) => (Action::Allow, mark),
                    Err(_) => (Action::Deny, Mark::REFUSED),
                },
                denied => denied,
            },
            Err(_) => (Action::Deny, Mark::REFUSED),
        },
        Subject::Error(quoted) if tracker.related(&quoted, now).is_some() => (Action::Allow, Mark::ESTABLISHED),
        Subject::Untracked if part.is_some_and(|datagram| fragments.passed(datagram, now)) => {
            (Action::Allow, Mark::ESTABLISHED)
        }
        Subject::Error(_) | Subject::Untracked => rules.ask(sight.way, tuple),
    }
}

#[cfg(test)]
mod tests {
    use softdpu_vpc::policy::{Ports, Service};

    use super::*;
    use crate::testing::{arp, fragments, icmp6, tcp, udp};

    const SYN: u8 = 0x02;
    const SYN_ACK: u8 = 0x12;
    const ACK: u8 = 0x10;
    const GUEST: [u8; 4] = [10, 0, 0, 1];
    const PEER: [u8; 4] = [10, 0, 0, 2];

    fn tcp_to(port: u16) -> Service {
        Service::Tcp { source: Ports::ALL, destination: Ports::new(port, port).unwrap() }
    }

    fn rule(way: Option<Way>, priority: u32, action: Action, service: Service) -> FirewallRule {
        FirewallRule { way, rule: RuleSpec { priority, action, source: None, destination: None, service } }
    }

    /// Everything out, SSH in; or without connections.
    fn firewall(connections: Option<usize>) -> Firewall {
        let rules = vec![
            rule(Some(Way::In), 10, Action::Allow, Service::Any),
            rule(Some(Way::Out), 10, Action::Allow, tcp_to(22)),
        ];
        Firewall::new(Arc::new(Rules::build(&FirewallSpec { rules, default: Action::Deny, connections }).unwrap()))
    }

    /// Whether a packet passes the interface with this number.
    fn passes(firewall: &mut Firewall, now: u64, way: Way, port: u32, packet: &Packet) -> bool {
        let mut sights = [Sight { port, ..Sight::of(packet, way, 5001) }];
        firewall.judge(now, std::slice::from_ref(packet), &mut sights, 0);
        firewall.note(&sights, 0);
        sights[0].dropped.is_none()
    }

    #[test]
    fn a_rule_of_one_direction_says_nothing_about_the_other() {
        let mut firewall = firewall(None);
        assert!(passes(&mut firewall, 1, Way::In, 0, &tcp(GUEST, 1000, PEER, 80, SYN, 0)));
        assert!(!passes(&mut firewall, 1, Way::Out, 0, &tcp(PEER, 80, GUEST, 1000, SYN_ACK, 0)));
        assert!(passes(&mut firewall, 1, Way::Out, 0, &tcp(PEER, 1000, GUEST, 22, SYN, 0)));
        let counts = firewall.counts();
        assert_eq!(counts.rules.iter().map(|rule| rule.packets).collect::<Vec<_>>(), [1, 1]);
        assert_eq!((counts.default.packets, counts.dropped), (1, Tally { packets: 1, octets: 40 }));
    }

    #[test]
    fn replies_of_a_connection_pass_and_nothing_else_does() {
        let mut firewall = firewall(Some(16));
        assert!(passes(&mut firewall, 1, Way::In, 0, &tcp(GUEST, 1000, PEER, 80, SYN, 0)));
        assert!(passes(&mut firewall, 2, Way::Out, 0, &tcp(PEER, 80, GUEST, 1000, SYN_ACK, 0)));
        assert!(!passes(&mut firewall, 3, Way::Out, 0, &tcp(PEER, 81, GUEST, 1000, SYN, 0)));
        assert!(!passes(&mut firewall, 3, Way::Out, 0, &udp(PEER, 80, GUEST, 1000, 0)));
        let counts = firewall.counts();
        assert_eq!((counts.established.packets, counts.default.packets, counts.dropped.packets), (1, 2, 2));
    }

    #[test]
    fn what_one_interface_opened_opens_nothing_at_another() {
        let mut firewall = firewall(Some(16));
        let packet = udp(GUEST, 1000, PEER, 53, 0);
        assert!(passes(&mut firewall, 1, Way::In, 0, &packet));
        assert!(!passes(&mut firewall, 1, Way::Out, 1, &packet), "at its receiver, whose rules do not allow it");
        assert!(!passes(&mut firewall, 1, Way::Out, 1, &udp(PEER, 53, GUEST, 1000, 0)));
        assert!(passes(&mut firewall, 1, Way::Out, 0, &udp(PEER, 53, GUEST, 1000, 0)));
    }

    #[test]
    fn a_connection_that_is_over_is_forgotten() {
        let mut firewall = firewall(Some(16));
        let reply = udp(PEER, 53, GUEST, 1000, 0);
        assert!(passes(&mut firewall, 1, Way::In, 0, &udp(GUEST, 1000, PEER, 53, 0)));
        let later = 1 + Timeouts::default().udp;
        assert!(!passes(&mut firewall, later, Way::Out, 0, &reply));
    }

    #[test]
    fn a_full_table_refuses_and_cores_share_it() {
        let first = firewall(Some(1));
        let mut cores = [Firewall::new(Arc::clone(&first.rules)), first];
        assert!(passes(&mut cores[0], 1, Way::In, 0, &udp(GUEST, 1, PEER, 53, 0)));
        assert!(passes(&mut cores[1], 2, Way::Out, 0, &udp(PEER, 53, GUEST, 1, 0)));
        assert!(passes(&mut cores[1], 3, Way::In, 0, &udp(GUEST, 1, PEER, 53, 0)));
        assert!(cores[0].rules.connections() <= 1);
    }

    #[test]
    fn one_interface_cannot_take_the_room_of_another() {
        let mut firewall = firewall(Some(8));
        [1, 2].into_iter().for_each(|port| firewall.rules.attach(port));
        for source in 0..100 {
            let (ask, answer) = (udp(GUEST, source, PEER, 53, 0), udp(PEER, 53, GUEST, source, 0));
            passes(&mut firewall, 1, Way::In, 1, &ask);
            passes(&mut firewall, 1, Way::Out, 1, &answer);
        }
        assert_eq!(firewall.rules.connections(), 4, "half of the room");
        assert!(passes(&mut firewall, 2, Way::In, 2, &udp(GUEST, 1000, PEER, 53, 0)));
    }

    #[test]
    fn who_gets_the_number_of_another_gets_none_of_its_connections() {
        let mut firewall = firewall(Some(8));
        firewall.rules.attach(1);
        let reply = udp(PEER, 53, GUEST, 1000, 0);
        assert!(passes(&mut firewall, 1, Way::In, 1, &udp(GUEST, 1000, PEER, 53, 0)));
        assert!(passes(&mut firewall, 1, Way::Out, 1, &reply));
        firewall.rules.detach(1);
        firewall.rules.attach(1);
        assert!(!passes(&mut firewall, 1, Way::Out, 1, &reply));
    }

    #[test]
    fn a_reply_in_fragments_arrives_whole_and_other_fragments_do_not() {
        let mut firewall = firewall(Some(8));
        let [first, second] = fragments(PEER, 53, GUEST, 1000, 7);
        let stray = fragments(PEER, 53, GUEST, 1000, 8)[1].clone();
        assert!(!passes(&mut firewall, 1, Way::Out, 0, &second), "its first was not seen");
        assert!(passes(&mut firewall, 1, Way::In, 0, &udp(GUEST, 1000, PEER, 53, 0)));
        assert!(passes(&mut firewall, 2, Way::Out, 0, &first));
        assert!(passes(&mut firewall, 3, Way::Out, 0, &second));
        assert!(!passes(&mut firewall, 3, Way::Out, 0, &stray), "of another datagram");
        assert!(!passes(&mut firewall, 3, Way::Out, 1, &second), "at another interface");
    }

    #[test]
    fn neighbour_discovery_passes_on_its_way_in_only() {
        let mut firewall = Firewall::new(Arc::new(
            Rules::build(&FirewallSpec { rules: Vec::new(), default: Action::Deny, connections: None }).unwrap(),
        ));
        assert!(passes(&mut firewall, 1, Way::In, 0, &icmp6(1, 2, 135)));
        assert!(!passes(&mut firewall, 1, Way::Out, 0, &icmp6(1, 2, 135)));
    }

    #[test]
    fn a_packet_that_is_judged_again_is_counted_once() {
        let mut firewall = firewall(Some(16));
        let packet = tcp(GUEST, 1000, PEER, 80, ACK, 0);
        let mut sights = [Sight::of(&packet, Way::In, 1)];
        for _ in 0..2 {
            sights = [Sight::of(&packet, Way::In, 1)];
            firewall.judge(1, std::slice::from_ref(&packet), &mut sights, 0);
        }
        firewall.note(&sights, 0);
        assert_eq!(firewall.counts().rules[0].packets + firewall.counts().established.packets, 1);
    }

    #[test]
    fn what_asks_all_dhcp_servers_passes_and_what_asks_one_machine_does_not() {
        let mut firewall = Firewall::new(Arc::new(
            Rules::build(&FirewallSpec { rules: Vec::new(), default: Action::Deny, connections: None }).unwrap(),
        ));
        assert!(passes(&mut firewall, 1, Way::In, 0, &udp([0; 4], 68, [255; 4], 67, 300)));
        assert!(!passes(&mut firewall, 1, Way::In, 0, &udp(GUEST, 68, PEER, 67, 300)));
    }

    #[test]
    fn arp_passes() {
        assert!(passes(&mut firewall(None), 1, Way::Out, 0, &arp()));
    }

    #[test]
    fn the_first_rule_by_priority_decides() {
        let rules = vec![rule(None, 20, Action::Allow, Service::Any), rule(None, 10, Action::Deny, tcp_to(25))];
        let rules = Rules::build(&FirewallSpec { rules, default: Action::Deny, connections: None }).unwrap();
        let mut firewall = Firewall::new(Arc::new(rules));
        assert!(!passes(&mut firewall, 1, Way::In, 0, &tcp(GUEST, 1, PEER, 25, SYN, 0)));
        assert!(passes(&mut firewall, 1, Way::In, 0, &tcp(GUEST, 1, PEER, 26, SYN, 0)));
        assert_eq!(firewall.counts().rules[1].packets, 1);
    }
}
