//! Firewall: rules by direction and priority, the first that matches decides; with connections, replies pass by
//! themselves.
//!
//! ```text
//!   packet ─► of a connection of this interface? ─ yes ─► passes
//!                └─ no ─► rules of its direction ─ allow ─► passes, and begins a connection
//!                                               └ deny ──► dropped, counted by rule
//! ```
//!
//! Rules are those of access control lists ([`acl`]), connections those of security groups
//! ([`conntrack`](softdpu_vpc::policy::conntrack)), here for each interface by itself: what one interface opened opens
//! nothing at another. The interfaces of a firewall share its room for connections equally: one that comes later takes
//! what the others have beyond their shares as it needs it. Rules may be [replaced](Rules::succeed) while packets pass:
//! what the new ones would not let be opened passes no more, whichever side sends it. A packet's later fragments, which
//! have no ports, go the way of its first where that passed a moment ago. What is no IP passes, and on its way in so do
//! neighbour discovery and questions to all DHCP servers: the network itself answers them, and forwards none.

mod connections;
#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::AddAssign;
use std::sync::{Arc, Mutex, PoisonError};

use softdpu_vpc::Packet;
use softdpu_vpc::packet::{Ip, Layer4};
use softdpu_vpc::policy::Tuple;
use softdpu_vpc::policy::acl::{Acl, AclError, AclSpec, Action, RuleSpec};

use self::connections::Connections;
use crate::{FrameDirection, Observation};

/// All DHCPv6 relays and servers (RFC 8415 §7.1).
const DHCP6_SERVERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 1, 2);

/// A rule of a firewall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirewallRule {
    /// For packets of this direction; None: of both.
    pub direction: Option<FrameDirection>,
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
    /// Of each direction.
    lists: [List; 2],
    count: usize,
    /// How many there were before them.
    generation: u32,
    /// Shared with those that [take their place](Rules::succeed).
    connections: Option<Arc<Mutex<Connections>>>,
}

#[derive(Debug)]
struct List {
    acl: Acl,
    /// Numbers of its rules in the firewall.
    numbers: Vec<u16>,
}

/// The rules of each direction.
fn lists(spec: &FirewallSpec) -> Result<[List; 2], AclError> {
    let list = |direction: FrameDirection| {
        let mine = spec.rules.iter().enumerate().filter(|(_, rule)| rule.direction.is_none_or(|its| its == direction));
        let (numbers, rules) = mine.map(|(number, rule)| (number as u16, rule.rule)).unzip();
        Ok::<_, AclError>(List { acl: Acl::build(&AclSpec { rules, default: spec.default })?, numbers })
    };
    Ok([list(FrameDirection::In)?, list(FrameDirection::Out)?])
}

impl Rules {
    /// Of a firewall as it is written.
    ///
    /// # Errors
    /// [`AclError`] says which rule is wrong, and why.
    pub fn build(spec: &FirewallSpec) -> Result<Rules, AclError> {
        let connections = spec.connections.map(|capacity| Arc::new(Mutex::new(Connections::new(capacity))));
        Ok(Rules { lists: lists(spec)?, count: spec.rules.len(), generation: 0, connections })
    }

    /// Of a firewall as it is written, in the place of these. Where it has room for as many connections as this one, it
    /// has this one's: each goes on for as long as the rules by which its packet is judged would let it be opened.
    /// Otherwise it begins with none.
    ///
    /// # Errors
    /// [`AclError`] says which rule is wrong, and why.
    pub fn succeed(&self, spec: &FirewallSpec) -> Result<Rules, AclError> {
        let mut rules = Rules::build(spec)?;
        rules.generation = self.generation.wrapping_add(1);
        let has_room = |connections: &mut Connections| connections.follow(spec.connections);
        if self.with_connections(has_room) == Some(true) {
            rules.connections.clone_from(&self.connections);
        }
        Ok(rules)
    }

    /// The interface with number `port` passes this firewall from now on: it has no connections yet, whichever had its
    /// number before.
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
        self.with_connections(|connections| connections.len()).unwrap_or(0)
    }

    fn with_connections<T>(&self, f: impl FnOnce(&mut Connections) -> T) -> Option<T> {
        // Nothing panics with the lock held; a table after one that did is as good as any.
        let mut connections = self.connections.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = f(&mut connections);
        connections.settle();
        Some(answer)
    }

    fn ask(&self, direction: FrameDirection, tuple: &Tuple) -> (Action, Mark) {
        let list = &self.lists[usize::from(direction == FrameDirection::Out)];
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
    fn add(&mut self, observation: &Observation) {
        self.packets += u64::from(observation.packets);
        self.octets += u64::from(observation.octets);
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.packets += other.packets;
        self.octets += other.octets;
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
    /// What was dropped for no rule: it contradicts its connection or itself.
    pub refused: Tally,
    /// What was dropped although a rule allows it, as there was no room for its connection.
    pub no_room: Tally,
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
    const NO_ROOM: Mark = Mark(u16::MAX - 3);

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
    pub fn judge(&mut self, now: u64, packets: &[Packet], observations: &mut [Observation], place: usize) {
        let rules = &*self.rules;
        let tracked = rules.with_connections(|connections| {
            each(packets, observations, place, |packet, observation, tuple| {
                connections.decide(rules, now, packet, observation, tuple)
            });
        });
        if tracked.is_none() {
            each(packets, observations, place, |_, observation, tuple| rules.ask(observation.direction, tuple));
        }
    }

    /// Counts what was judged.
    pub fn note(&mut self, observations: &[Observation], place: usize) {
        for observation in observations.iter().filter(|observation| observation.reaches(place)) {
            let mark = observation.marks.get(place).map_or(Mark::NOTHING, |mark| Mark(*mark));
            let tally = match mark {
                Mark::NOTHING => continue,
                Mark::DEFAULT => &mut self.counts.default,
                Mark::ESTABLISHED => &mut self.counts.established,
                Mark::REFUSED => &mut self.counts.refused,
                Mark::NO_ROOM => &mut self.counts.no_room,
                Mark(number) => match self.counts.rules.get_mut(usize::from(number) - 1) {
                    Some(tally) => tally,
                    None => continue,
                },
            };
            tally.add(observation);
            if observation.dropped == Some(place as u8) {
                self.counts.dropped.add(observation);
            }
        }
    }

    /// Forgets connections that are over at `now`, a bounded number.
    pub fn turn(&mut self, now: u64) {
        self.rules.with_connections(|connections| connections.age(now));
    }
}

/// Neighbour and router discovery (RFC 4861 §4), and what asks all DHCP servers (RFC 2131 §4.1, RFC 8415 §7.1): a
/// network answers these itself and forwards none of them.
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
    observations: &mut [Observation],
    place: usize,
    mut decide: impl FnMut(&Packet, &Observation, &Tuple) -> (Action, Mark),
) {
    for (packet, observation) in
        packets.iter().zip(observations).filter(|(_, observation)| observation.dropped.is_none())
    {
        // On its way out there is none of the network's own: what is there was sent by a guest or host.
        let is_exempt = |ip: &Ip| observation.direction == FrameDirection::In && is_for_the_network(ip);
        let Some(ip) = observation.ip().filter(|ip| !is_exempt(ip)) else { continue };
        let (action, mark) = match Tuple::of(ip) {
            Ok(tuple) => decide(packet, observation, &tuple),
            Err(_) => (Action::Deny, Mark::REFUSED),
        };
        if let Some(slot) = observation.marks.get_mut(place) {
            *slot = mark.0;
        }
        if action == Action::Deny {
            observation.dropped = Some(place as u8);
        }
    }
}
