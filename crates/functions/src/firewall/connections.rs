//! The connections of a firewall's interfaces, by whichever of its rules the core goes that asks.

use softdpu_vpc::Packet;
use softdpu_vpc::packet::parse::protocol;
use softdpu_vpc::policy::acl::Action;
use softdpu_vpc::policy::conntrack::{
    Config, Conntrack, Ended, Key, Look, Opening, Refused, Subject, Timeouts, Tracked, Zone,
};
use softdpu_vpc::policy::{Transport, Tuple};

use super::{Mark, Rules};
use crate::fragments::{Datagram, Fragments};
use crate::{FrameDirection, Observation};

/// Steps of a turn that looks for connections that are over.
const AGING: usize = 1 << 12;
/// Echo requests, which are what begins a connection of ICMP and ICMPv6 (RFC 792, RFC 4443 §4.1).
const ECHO: u8 = 8;
const ECHO6: u8 = 128;

#[derive(Debug)]
pub(super) struct Connections {
    tracker: Conntrack,
    capacity: u32,
    /// Numbers of the interfaces that have connections.
    ports: Vec<u32>,
    fragments: Fragments,
    ended: Vec<Ended>,
    /// Of each place in the table.
    notes: Box<[Note]>,
    /// The rules are not those that they were made with.
    is_changed: bool,
}

/// What is kept of a connection beside what the tracker knows.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// The direction of its first packet.
    direction: FrameDirection,
    /// The rules that were last known to allow it.
    generation: u32,
}

impl Connections {
    /// Room for so many.
    pub(super) fn new(capacity: usize) -> Connections {
        let config = Config {
            capacity,
            shares: Vec::new(),
            rest_is_shared: false,
            timeouts: Timeouts::default(),
            // After a restart, connections go on that the rules allow.
            pickup: true,
            any_reset: false,
        };
        let tracker = Conntrack::new(config);
        Connections {
            notes: vec![Note { direction: FrameDirection::In, generation: 0 }; tracker.capacity()].into(),
            tracker,
            capacity: u32::try_from(capacity).unwrap_or(u32::MAX),
            ports: Vec::new(),
            fragments: Fragments::new(),
            ended: Vec::new(),
            is_changed: false,
        }
    }

    /// Other rules may ask, if they want room for so many; whether they do.
    pub(super) fn follow(&mut self, capacity: Option<usize>) -> bool {
        let is_same = capacity.is_some_and(|capacity| u32::try_from(capacity) == Ok(self.capacity));
        self.is_changed |= is_same;
        is_same
    }

    /// The interface with this number may have connections.
    pub(super) fn admit(&mut self, port: u32) {
        if !self.ports.contains(&port) {
            self.ports.push(port);
            self.share();
        }
    }

    /// The interface with this number is another from now on, or none.
    pub(super) fn forget(&mut self, port: u32) {
        if self.tracker.used(Zone(port)) > 0 {
            self.tracker.forget(Zone(port), &mut self.ended);
        }
        self.ports.retain(|known| *known != port);
        self.share();
    }

    /// Deals the room out: no interface can take another's.
    fn share(&mut self) {
        let len = self.ports.iter().max().map_or(0, |most| *most as usize + 1);
        let each = self.capacity / self.ports.len().max(1) as u32;
        let mut shares = vec![0; len];
        for port in &self.ports {
            shares[*port as usize] = each.max(1);
        }
        self.tracker.set_shares(&shares);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.tracker.len()
    }

    /// Forgets those that are over at `now`, a bounded number.
    pub(super) fn age(&mut self, now: u64) {
        self.tracker.age(now, AGING, &mut self.ended);
    }

    /// No flows of connections are kept here.
    pub(super) fn settle(&mut self) {
        self.ended.clear();
    }

    /// Decides about a packet by its connection, or else by the rules.
    pub(super) fn decide(
        &mut self,
        rules: &Rules,
        now: u64,
        packet: &Packet,
        observation: &Observation,
        tuple: &Tuple,
    ) -> (Action, Mark) {
        let Some(ip) = observation.ip() else { return (Action::Allow, Mark::NOTHING) };
        self.admit(observation.port);
        let part = ip.fragment.map(|part| Datagram::of(observation.port, ip, part.id));
        match Subject::of(Zone(observation.port), ip, packet.head.bytes()) {
            Subject::Segment(segment) => match self.tracker.look(&segment, now, &mut self.ended) {
                Ok(Look::Tracked(tracked)) => {
                    let decided = self.known(rules, &tracked);
                    if let (Action::Allow, Some(datagram)) = (decided.0, part) {
                        self.fragments.pass(datagram, now);
                    }
                    decided
                }
                Ok(Look::New(opening)) => match rules.ask(observation.direction, tuple) {
                    (Action::Allow, mark) => match self.open(rules, observation.direction, &opening, now) {
                        Ok(()) => (Action::Allow, mark),
                        Err(_) => (Action::Deny, Mark::NO_ROOM),
                    },
                    denied => denied,
                },
                Err(_) => (Action::Deny, Mark::REFUSED),
            },
            Subject::Error(quoted) => match self.tracker.related(&quoted, now) {
                Some(tracked) => self.known(rules, &tracked),
                None => rules.ask(observation.direction, tuple),
            },
            Subject::Untracked if part.is_some_and(|datagram| self.fragments.passed(datagram, now)) => {
                (Action::Allow, Mark::ESTABLISHED)
            }
            Subject::Untracked => rules.ask(observation.direction, tuple),
        }
    }

    /// Makes a connection, in the room of an interface that has more than its share, if need be.
    fn open(&mut self, rules: &Rules, direction: FrameDirection, opening: &Opening, now: u64) -> Result<(), Refused> {
        let Connections { tracker, ended, .. } = self;
        let opened = match tracker.open(opening, now, ended) {
            Err(Refused::TableFull) if tracker.reclaim(opening.zone(), ended) => tracker.open(opening, now, ended),
            opened => opened,
        };
        if let Some(note) = self.notes.get_mut(opened?.connection.slot() as usize) {
            *note = Note { direction, generation: rules.generation };
        }
        Ok(())
    }

    /// Decides about a packet of a connection: it was allowed once, perhaps by other rules. One that is not allowed any
    /// more stays known until it is over: forgotten, the next packet of it might open it from its other end.
    fn known(&mut self, rules: &Rules, tracked: &Tracked) -> (Action, Mark) {
        const PASSES: (Action, Mark) = (Action::Allow, Mark::ESTABLISHED);
        if !self.is_changed {
            return PASSES;
        }
        let Some(note) = self.notes.get_mut(tracked.connection.slot() as usize) else { return PASSES };
        if note.generation == rules.generation {
            return PASSES;
        }
        let Some(key) = self.tracker.original(tracked.connection) else { return PASSES };
        match rules.ask(note.direction, &tuple(&key)) {
            (Action::Allow, _) => {
                note.generation = rules.generation;
                PASSES
            }
            denied => denied,
        }
    }
}

/// The first packet of a connection, as rules see it.
fn tuple(key: &Key) -> Tuple {
    let transport = match key.protocol {
        protocol::TCP | protocol::UDP => {
            Transport::Ports { source: key.source_port, destination: key.destination_port }
        }
        protocol::ICMP => Transport::Icmp { kind: ECHO, code: 0 },
        protocol::ICMPV6 => Transport::Icmp { kind: ECHO6, code: 0 },
        _ => Transport::Other,
    };
    Tuple { source: key.source, destination: key.destination, protocol: key.protocol, transport }
}
