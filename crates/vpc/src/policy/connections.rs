//! A node's connections, one table for all its cores, and what lets flows go by without asking it.
//!
//! A guest's interface is served by several cores, so the two directions of a connection are met by different ones. The
//! table is behind a lock, which only packets take that no flow carries: the first ones of a connection, those that
//! open and close it, and now and then one of a flow, so that the table knows that it lives.
//!
//! ```text
//!   flow ─ slot, generation ─► gate of the slot: generation │ until    open: the flow decides, the table is not asked
//!                                 ▲ opened by a packet that asks: the flow may go on without asking, for a while
//!                                 ▲ closed by the end of the connection, and by a FIN or RST, before all else
//! ```
//!
//! So the flows of both directions end with their connection on all cores at once, whichever core met the end of it.
//! They are not looked for; they find out.
//!
//! **Changes.** A connection has the versions of its two ends by which it was admitted. Where these are others now, its
//! first packet is put to the rules once more, as it was; if they do not allow it any longer, no packet passes, either
//! way.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::conntrack::{
    Config, ConnectionId, ConnectionSlot, Conntrack, Content, Direction, Ended, Key, Look, Peek, Refused, Stats,
    Subject, TcpState, Timeouts, Tracked, Zone,
};
use super::group::{Admission, EndpointGroups, RuleDirection, SecurityGroupId};
use super::tuple::Tuple;
use crate::stamp::Stamp;
use crate::verdict::DropReason;

/// The clock of gates, as a power of two of nanoseconds: about a millisecond.
const TICK: u32 = 20;
/// How long flows go on without the table being asked, ticks: 67 ms. Far less than any timeout, and than it takes to
/// send as much of a TCP connection as sequence numbers can tell apart.
const OPEN: u32 = 64;
/// So many slots are looked at between two packets when connections are forgotten.
const PIECE: usize = 1 << 12;
/// Steps of aging with each question.
const AGING: usize = 4;

/// The connections of a node.
#[derive(Debug)]
pub(crate) struct Connections {
    /// By slot: the generation of the connection there, and until when its flows need not ask.
    gates: Box<[AtomicU64]>,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    tracker: Conntrack,
    /// By slot: the versions of both ends, of the one that opened it first, when it was last admitted.
    admitted: Box<[[Stamp; 2]]>,
    /// By name of the network.
    zones: HashMap<String, Zone>,
    /// Empty between questions, kept for its room.
    ended: Vec<Ended>,
}

/// One end of a packet's path, as the rules see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End<'a> {
    /// Its own rules, where it is at a port of this node and in groups.
    pub rules: Option<&'a EndpointGroups>,
    /// The groups that its address is in.
    pub member_of: &'a [SecurityGroupId],
    /// The version of all this.
    pub stamp: Stamp,
}

/// What is asked about a packet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question<'a> {
    /// Nanoseconds.
    pub now: u64,
    pub subject: Subject,
    pub tuple: Tuple,
    pub from: End<'a>,
    pub to: End<'a>,
}

/// What was found before the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    /// Its connection is known; `is_admitted`: by rules that are in force.
    Tracked { is_reply: bool, is_admitted: bool },
    /// It begins one, if the rules allow it.
    New,
    /// It belongs to none; an ICMP error is `related` to one that is known or not.
    Untracked { is_related: bool },
    /// What the groups of the end with this version say.
    Group { of: Stamp, direction: RuleDirection, admission: Admission },
}

/// What the rules and the connections say about a packet that passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Passage {
    /// No rule is about the packet's ends.
    Free,
    /// All packets of its flow pass.
    All,
    /// All packets of its flow pass, as long as the connection's gate is open.
    Connected(ConnectionId),
    /// This packet passes.
    Once,
}

impl Passage {
    /// Whether a flow is kept.
    pub fn keeps_flow(self) -> bool {
        self != Passage::Once
    }

    /// The connection that the flow belongs to.
    pub fn connection(self) -> Option<ConnectionId> {
        match self {
            Passage::Connected(connection) => Some(connection),
            Passage::Free | Passage::All | Passage::Once => None,
        }
    }
}

/// Whether two ends allow a packet from one to the other.
fn allow(from: &End<'_>, to: &End<'_>, tuple: &Tuple, note: &mut impl FnMut(Note)) -> Result<(), DropReason> {
    let mut denies = |of: &End<'_>, direction, peer| {
        of.rules.is_some_and(|rules| {
            let admission = rules.admit(direction, tuple, peer);
            note(Note::Group { of: of.stamp, direction, admission });
            admission == Admission::Denied
        })
    };
    if denies(from, RuleDirection::Egress, to.member_of) || denies(to, RuleDirection::Ingress, from.member_of) {
        return Err(DropReason::SecurityGroup);
    }
    Ok(())
}

impl Question<'_> {
    /// Whether a connection that is known goes on, and the versions of its ends: it does where it was
    /// admitted by them.
    fn goes_on(
        &self,
        tracked: &Tracked,
        admitted: &[Stamp; 2],
        note: &mut impl FnMut(Note),
    ) -> Result<[Stamp; 2], DropReason> {
        let (first, second, tuple) = match tracked.direction {
            Direction::Original => (&self.from, &self.to, self.tuple),
            Direction::Reply => (&self.to, &self.from, self.tuple.reversed()),
        };
        let stamps = [first.stamp, second.stamp];
        let is_admitted = *admitted == stamps;
        note(Note::Tracked { is_reply: tracked.direction == Direction::Reply, is_admitted });
        if !is_admitted {
            allow(first, second, &tuple, note)?;
        }
        Ok(stamps)
    }

    /// Whether the rules allow it to begin a connection, or to go without one.
    fn begins(&self, note: &mut impl FnMut(Note)) -> Result<(), DropReason> {
        allow(&self.from, &self.to, &self.tuple, note)
    }

    /// Whether it may go although it belongs to no connection.
    fn goes_alone(
        &self,
        table: &Table,
        is_current: impl Fn(Stamp) -> bool,
        note: &mut impl FnMut(Note),
    ) -> Result<Passage, DropReason> {
        let known = match &self.subject {
            Subject::Error(quoted) => table.tracker.related(quoted, self.now),
            Subject::Segment(_) | Subject::Untracked => None,
        };
        let is_admitted = |known: Tracked| table.admitted[known.connection.index()].iter().all(|one| is_current(*one));
        let is_related = known.is_some_and(is_admitted);
        note(Note::Untracked { is_related });
        if is_related { Ok(()) } else { self.begins(note) }.map(|()| Passage::Once)
    }
}

/// Whether flows of a connection need not ask for a while.
fn goes_unasked(state: Option<TcpState>, tracked: &Tracked, content: Content) -> bool {
    match content {
        Content::Tcp(_) => tracked.is_lasting && state == Some(TcpState::Established),
        Content::Udp => true,
        Content::Echo { .. } | Content::Other => false,
    }
}

fn tick(now: u64) -> u32 {
    (now >> TICK) as u32
}

impl Connections {
    /// A table of so many connections; some 220 bytes each.
    pub fn new(capacity: u32) -> Connections {
        let capacity = capacity.max(1) as usize;
        let config = Config {
            capacity,
            shares: Vec::new(),
            timeouts: Timeouts::default(),
            // After a restart, or on the node that a guest has moved to, connections go on that the rules allow.
            pickup: true,
            // Most segments are carried by flows, and not shown.
            any_reset: true,
        };
        let table = Table {
            tracker: Conntrack::new(config),
            admitted: vec![[Stamp::default(); 2]; capacity].into(),
            zones: HashMap::new(),
            ended: Vec::new(),
        };
        Connections { gates: (0..capacity).map(|_| AtomicU64::new(0)).collect(), table: Mutex::new(table) }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing panics with the lock held; a table after one that did is as good as any.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on these networks have connections, and an equal share of the table each. Returns their zones, in their
    /// order.
    pub fn set_networks(&self, names: &[&str]) -> Vec<Zone> {
        let stay: HashSet<&str> = names.iter().copied().collect();
        self.forget(|name| !stay.contains(name));
        let mut table = self.table();
        let Table { tracker, zones: known, .. } = &mut *table;
        known.retain(|name, _| stay.contains(name.as_str()));
        let taken: HashSet<Zone> = known.values().copied().collect();
        let mut free = (0..).map(Zone).filter(|zone| !taken.contains(zone));
        for name in names {
            if !known.contains_key(*name) {
                known.insert((*name).to_owned(), free.next().unwrap_or_default());
            }
        }
        let zones: Vec<Zone> = names.iter().filter_map(|name| known.get(*name).copied()).collect();
        let share = (self.gates.len() / names.len().max(1)) as u32;
        let mut shares = vec![0; zones.iter().max().map_or(0, |most| most.index() + 1)];
        zones.iter().for_each(|zone| shares[zone.index()] = share);
        tracker.set_shares(&shares);
        zones
    }

    /// Forgets all connections of networks, by name. Packets are not kept waiting for all of the table to be looked at.
    fn forget(&self, is_over: impl Fn(&str) -> bool) {
        let mut table = self.table();
        let Table { tracker, zones, .. } = &mut *table;
        let over = zones.iter().filter(|(name, _)| is_over(name)).map(|(_, zone)| *zone);
        let over: HashSet<Zone> = over.inspect(|zone| tracker.stop(*zone)).collect();
        drop(table);
        if over.is_empty() {
            return;
        }
        for first in (0..self.gates.len()).step_by(PIECE) {
            let mut table = self.table();
            let Table { tracker, ended, .. } = &mut *table;
            tracker.forget_in(first..first + PIECE, |zone| over.contains(&zone), ended);
            self.close_ended(&mut table);
        }
    }

    /// Decides about a packet. `is_current` tells whether a version is in force; `note` is told what decides.
    ///
    /// # Errors
    /// Why it is dropped.
    pub fn ask(
        &self,
        question: &Question<'_>,
        is_current: impl Fn(Stamp) -> bool,
        mut note: impl FnMut(Note),
    ) -> Result<Passage, DropReason> {
        let now = question.now;
        let mut table = self.table();
        let answer = match &question.subject {
            Subject::Segment(segment) => {
                let Table { tracker, admitted, ended, .. } = &mut *table;
                tracker.age(now, AGING, ended);
                let found = match tracker.look(segment, now, ended) {
                    Ok(Look::Tracked(tracked)) => {
                        let slot = tracked.connection.index();
                        question.goes_on(&tracked, &admitted[slot], &mut note).map(|stamps| {
                            admitted[slot] = stamps;
                            tracked
                        })
                    }
                    Ok(Look::New(opening)) => {
                        note(Note::New);
                        question.begins(&mut note).and_then(|()| {
                            let tracked = tracker.open(&opening, now, ended).map_err(refused)?;
                            admitted[tracked.connection.index()] = [question.from.stamp, question.to.stamp];
                            Ok(tracked)
                        })
                    }
                    Err(why) => Err(refused(why)),
                };
                found.map(|tracked| self.gate(tracker, tracked, segment.content, now))
            }
            Subject::Error(_) | Subject::Untracked => question.goes_alone(&table, is_current, &mut note),
        };
        self.close_ended(&mut table);
        answer
    }

    /// What [`ask`](Self::ask) would answer. Nothing is changed or counted. A table that is full is judged as it is:
    /// aging, which might make room while it is asked, does not happen.
    ///
    /// # Errors
    /// Why it would be dropped.
    pub fn rehearse(
        &self,
        question: &Question<'_>,
        is_current: impl Fn(Stamp) -> bool,
        mut note: impl FnMut(Note),
    ) -> Result<Passage, DropReason> {
        let table = self.table();
        let Subject::Segment(segment) = &question.subject else {
            return question.goes_alone(&table, is_current, &mut note);
        };
        let (tracked, state) = match table.tracker.peek(segment, question.now).map_err(refused)? {
            Peek::Tracked(tracked, state) => {
                question.goes_on(&tracked, &table.admitted[tracked.connection.index()], &mut note)?;
                (tracked, state)
            }
            Peek::New(opening, room) => {
                note(Note::New);
                question.begins(&mut note)?;
                room.map_err(refused)?;
                opening
            }
        };
        let goes_on = goes_unasked(state, &tracked, segment.content);
        Ok(if goes_on { Passage::Connected(tracked.connection) } else { Passage::Once })
    }

    /// Whether there is a connection at `now`, nanoseconds, that packets with `key` are of.
    pub fn has(&self, key: &Key, now: u64) -> bool {
        self.table().tracker.related(key, now).is_some()
    }

    /// Opens or closes the gate for flows of a connection.
    fn gate(&self, tracker: &Conntrack, tracked: Tracked, content: Content, now: u64) -> Passage {
        let connection = tracked.connection;
        let goes_on = goes_unasked(tracker.tcp_state(connection), &tracked, content);
        let until = if goes_on { tick(now).wrapping_add(OPEN) } else { 0 };
        let gate = if goes_on { u64::from(connection.generation()) << 32 | u64::from(until) } else { 0 };
        self.gates[connection.index()].store(gate, Ordering::Relaxed);
        if goes_on { Passage::Connected(connection) } else { Passage::Once }
    }

    fn close_ended(&self, table: &mut Table) {
        for ended in table.ended.drain(..) {
            self.gates[ended.connection.index()].store(0, Ordering::Relaxed);
        }
    }

    /// Whether packets of a flow go on at `now`, nanoseconds, without a question.
    #[inline]
    pub fn is_open(&self, connection: ConnectionId, now: u64) -> bool {
        let Some(gate) = self.gates.get(connection.index()) else { return false };
        let gate = gate.load(Ordering::Relaxed);
        let (generation, until) = ((gate >> 32) as u32, gate as u32);
        generation == connection.generation() && (until.wrapping_sub(tick(now)) as i32) > 0
    }

    /// Whether a flow is of a connection that has ended, or is about to: no packet goes by it.
    #[inline]
    pub fn is_over(&self, connection: ConnectionId) -> bool {
        self.gates
            .get(connection.index())
            .is_none_or(|gate| (gate.load(Ordering::Relaxed) >> 32) as u32 != connection.generation())
    }

    /// Flows of a connection ask, from now on: something was seen that may end it.
    pub fn close(&self, slot: ConnectionSlot) {
        if let Some(gate) = self.gates.get(slot.index()) {
            gate.store(0, Ordering::Relaxed);
        }
    }

    /// Forgets connections that time out by `now`, nanoseconds: a bounded number.
    pub fn age(&self, now: u64) {
        let mut table = self.table();
        let Table { tracker, ended, .. } = &mut *table;
        tracker.age(now, 1 << 12, ended);
        self.close_ended(&mut table);
    }

    /// How many there can be.
    pub fn capacity(&self) -> usize {
        self.gates.len()
    }

    /// How many connections there are, and what was counted.
    pub fn stats(&self) -> (usize, Stats) {
        let table = self.table();
        (table.tracker.len(), table.tracker.stats().clone())
    }
}

fn refused(why: Refused) -> DropReason {
    match why {
        Refused::NoConnection => DropReason::NoConnection,
        Refused::TcpFlags => DropReason::TcpFlags,
        Refused::Handshake => DropReason::TcpHandshake,
        Refused::Reset => DropReason::TcpReset,
        Refused::ShareFull => DropReason::ConnectionShareFull,
        Refused::TableFull => DropReason::ConnectionTableFull,
        Refused::NoShare => DropReason::NoConnectionShare,
    }
}
