//! A node's connections, for all its cores, and what lets flows go by without asking for them.
//!
//! A guest's interface is served by several cores, so the two directions of a connection are met by different ones. The
//! table is in shards by a hash that both directions have. A shard has a lock of its own, which only packets take that
//! no flow carries: the first ones of a connection, those that open and close it, and now and then one of a flow, so
//! that the shard knows that it lives. How many shards there are depends on the capacity, not on the number of cores.
//!
//! ```text
//!   zone, both ends ─ hash ─► shard: lock, connections, room
//!
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
//!
//! **Processes.** Each connection is written to memory that the processes to come read, and one that a process before
//! this one has left is taken up by the first packet that is of it (`keeping`).
//!
//! **Room.** Half of each shard is in equal shares of the networks, which they have in any case; the rest is for
//! whichever comes first. A network that has less than its share in a full shard takes the place of a connection of one
//! that has more: a half-open or closed one if there is any. As a hash spreads connections, a network's share of the
//! node is its shares of the shards.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use self::keeping::Written;
use super::conntrack::{
    Config, ConnectionId, ConnectionSlot, Conntrack, Content, Direction, Ended, Key, Look, Peek, Refused, Stats,
    Subject, TcpState, Timeouts, Tracked, Zone, ZoneStats,
};
use super::group::{Admission, EndpointGroups, RuleDirection, SecurityGroupId};
use super::tuple::Tuple;
use crate::kept::Keeper;
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
/// Steps of aging of all shards together without a question.
const AGING_ALL: usize = 1 << 12;
/// Connections of a shard, at least: of so few the shares of a hundred networks are some twenty each.
const SHARD: usize = 1 << 12;
/// Most shards: four for each of 64 cores, so that two that ask at once seldom meet.
const SHARDS: usize = 1 << 8;

/// The connections of a node.
#[derive(Debug)]
pub(crate) struct Connections {
    /// By slot: the generation of the connection there, and until when its flows need not ask.
    gates: Box<[AtomicU64]>,
    /// A power of two of them. Those of the same number have the same connections' slots: one after the other.
    shards: Box<[Shard]>,
    /// Slots of a shard.
    size: usize,
    /// For the choice of a shard: guests choose what is in a key.
    seed: [u64; 2],
    /// By name of the network.
    zones: Mutex<HashMap<String, Zone>>,
    /// For the processes to come, and from those before.
    keeper: Option<Arc<Keeper>>,
}

/// Connections with the same hash. The lock of one is in no cache line of another's.
#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    /// Its first slot among those of all shards.
    first: u32,
    table: Mutex<Table>,
    /// How often the lock was taken.
    #[cfg(debug_assertions)]
    asked: AtomicU64,
}

#[derive(Debug)]
struct Table {
    tracker: Conntrack,
    /// By slot: the versions of both ends, of the one that opened it first, when it was last admitted.
    admitted: Vec<[Stamp; 2]>,
    /// Empty between questions, kept for its room.
    ended: Vec<Ended>,
    /// By slot: where connections are written.
    written: Written,
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
        table: Option<&Table>,
        is_current: impl Fn(Stamp) -> bool,
        note: &mut impl FnMut(Note),
    ) -> Result<Passage, DropReason> {
        let is_related = match (&self.subject, table) {
            (Subject::Error(quoted), Some(table)) => table.tracker.related(quoted, self.now).is_some_and(|known| {
                let admitted = table.admitted.get(known.connection.index());
                admitted.is_some_and(|ends| ends.iter().all(|one| is_current(*one)))
            }),
            _ => false,
        };
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

impl Shard {
    fn new(first: u32, size: usize) -> Shard {
        let config = Config {
            capacity: size,
            shares: Vec::new(),
            rest_is_shared: true,
            timeouts: Timeouts::default(),
            // After a restart, or on the node that a guest has moved to, connections go on that the rules allow.
            pickup: true,
            // Most segments are carried by flows, and not shown.
            any_reset: true,
        };
        let table = Table {
            tracker: Conntrack::new(config),
            admitted: Vec::with_capacity(size),
            ended: Vec::new(),
            written: Written::default(),
        };
        Shard {
            first,
            table: Mutex::new(table),
            #[cfg(debug_assertions)]
            asked: AtomicU64::new(0),
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        #[cfg(debug_assertions)]
        self.asked.fetch_add(1, Ordering::Relaxed);
        // Nothing panics with the lock held; a table after one that did is as good as any.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of this shard, by its slot among those of all shards.
    fn of_node(&self, connection: ConnectionId) -> ConnectionId {
        ConnectionId::new(ConnectionSlot::new(self.first + connection.slot()), connection.generation())
    }
}

impl Table {
    fn admit(&mut self, connection: ConnectionId, stamps: [Stamp; 2]) {
        let slot = connection.index();
        if self.admitted.len() <= slot {
            self.admitted.resize(slot + 1, [Stamp::default(); 2]);
        }
        self.admitted[slot] = stamps;
    }
}

impl Connections {
    /// Room for at least so many connections. Each takes some 230 bytes when it is there first, and 8 at once; the
    /// keeper's memory comes on top.
    pub fn new(capacity: u32, keeper: Option<Arc<Keeper>>) -> Connections {
        let capacity = capacity.max(1) as usize;
        let shards = (capacity / SHARD).clamp(1, SHARDS);
        // Half as many where that is no power of two.
        let shards = if shards.is_power_of_two() { shards } else { shards.next_power_of_two() / 2 };
        let size = capacity.div_ceil(shards);
        Connections {
            gates: (0..shards * size).map(|_| AtomicU64::new(0)).collect(),
            shards: (0..shards).map(|shard| Shard::new((shard * size) as u32, size)).collect(),
            size,
            seed: [(); 2].map(|()| RandomState::new().build_hasher().finish()),
            zones: Mutex::new(HashMap::new()),
            keeper,
        }
    }

    fn zones(&self) -> MutexGuard<'_, HashMap<String, Zone>> {
        self.zones.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shard of a connection: the same for both directions.
    #[inline]
    fn shard(&self, key: &Key) -> &Shard {
        &self.shards[key.hash_of_both(self.seed) as usize & (self.shards.len() - 1)]
    }

    /// From now on these networks have connections, and half of the table in equal shares. Returns their zones, in
    /// their order.
    pub fn set_networks(&self, names: &[&str]) -> Vec<Zone> {
        let stay: HashSet<&str> = names.iter().copied().collect();
        let mut known = self.zones();
        self.forget(&known, |name| !stay.contains(name));
        known.retain(|name, _| stay.contains(name.as_str()));
        let taken: HashSet<Zone> = known.values().copied().collect();
        let mut free = (0..).map(Zone).filter(|zone| !taken.contains(zone));
        let mut new = Vec::new();
        for name in names {
            if !known.contains_key(*name) {
                let zone = free.next().unwrap_or_default();
                new.push(zone);
                known.insert((*name).to_owned(), zone);
            }
        }
        let zones: Vec<Zone> = names.iter().filter_map(|name| known.get(*name).copied()).collect();
        let share = (self.size / 2 / names.len().max(1)).max(1) as u32;
        let mut shares = vec![0; zones.iter().max().map_or(0, |most| most.index() + 1)];
        zones.iter().for_each(|zone| shares[zone.index()] = share);
        let names = keeping::names(&known);
        for shard in &self.shards {
            let Table { tracker, written, .. } = &mut *shard.table();
            tracker.set_shares(&shares);
            written.set_names(&names);
            new.iter().for_each(|zone| tracker.begin_zone(*zone));
        }
        zones
    }

    /// Forgets all connections of networks, by name. Packets are not kept waiting for all of a shard to be looked at.
    fn forget(&self, zones: &HashMap<String, Zone>, is_over: impl Fn(&str) -> bool) {
        let over: HashSet<Zone> = zones.iter().filter(|(name, _)| is_over(name)).map(|(_, zone)| *zone).collect();
        if over.is_empty() {
            return;
        }
        for shard in &self.shards {
            over.iter().for_each(|zone| shard.table().tracker.stop(*zone));
            for first in (0..self.size).step_by(PIECE) {
                let mut table = shard.table();
                let Table { tracker, ended, .. } = &mut *table;
                tracker.forget_in(first..first + PIECE, |zone| over.contains(&zone), ended);
                self.close_ended(shard, &mut table);
            }
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
        let Subject::Segment(segment) = &question.subject else {
            return self.ask_alone(question, is_current, &mut note);
        };
        let shard = self.shard(&segment.key);
        let mut guard = shard.table();
        let table = &mut *guard;
        self.take_up(shard, table, &segment.key, now);
        table.tracker.age(now, AGING, &mut table.ended);
        let found = match table.tracker.look(segment, now, &mut table.ended) {
            Ok(Look::Tracked(tracked)) => {
                let admitted = &mut table.admitted[tracked.connection.index()];
                question.goes_on(&tracked, admitted, &mut note).map(|stamps| {
                    *admitted = stamps;
                    tracked
                })
            }
            Ok(Look::New(opening)) => {
                note(Note::New);
                question.begins(&mut note).and_then(|()| {
                    let tracked = table.tracker.open(&opening, now, &mut table.ended).map_err(refused)?;
                    table.admit(tracked.connection, [question.from.stamp, question.to.stamp]);
                    Ok(tracked)
                })
            }
            Err(why) => Err(refused(why)),
        };
        let answer = found.map(|tracked| {
            self.write(table, tracked.connection);
            self.gate(shard, &table.tracker, tracked, segment.content, now)
        });
        self.close_ended(shard, table);
        answer
    }

    /// Decides about a packet that belongs to no connection.
    fn ask_alone(
        &self,
        question: &Question<'_>,
        is_current: impl Fn(Stamp) -> bool,
        note: &mut impl FnMut(Note),
    ) -> Result<Passage, DropReason> {
        match &question.subject {
            Subject::Error(quoted) => {
                question.goes_alone(Some(&self.table_with(quoted, question.now)), is_current, note)
            }
            Subject::Segment(_) | Subject::Untracked => question.goes_alone(None, is_current, note),
        }
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
        let Subject::Segment(segment) = &question.subject else {
            return self.ask_alone(question, is_current, &mut note);
        };
        let shard = self.shard(&segment.key);
        let table = self.table_with(&segment.key, question.now);
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
        Ok(if goes_on { Passage::Connected(shard.of_node(tracked.connection)) } else { Passage::Once })
    }

    /// Whether there is a connection at `now`, nanoseconds, that packets with `key` are of.
    pub fn has(&self, key: &Key, now: u64) -> bool {
        self.table_with(key, now).tracker.related(key, now).is_some()
    }

    /// Opens or closes the gate for flows of a connection.
    fn gate(&self, shard: &Shard, tracker: &Conntrack, tracked: Tracked, content: Content, now: u64) -> Passage {
        let goes_on = goes_unasked(tracker.tcp_state(tracked.connection), &tracked, content);
        let connection = shard.of_node(tracked.connection);
        let until = if goes_on { tick(now).wrapping_add(OPEN) } else { 0 };
        let gate = if goes_on { u64::from(connection.generation()) << 32 | u64::from(until) } else { 0 };
        self.gates[connection.index()].store(gate, Ordering::Relaxed);
        if goes_on { Passage::Connected(connection) } else { Passage::Once }
    }

    fn close_ended(&self, shard: &Shard, table: &mut Table) {
        let Table { tracker, ended, written, .. } = table;
        for ended in ended.drain(..) {
            self.gates[shard.of_node(ended.connection).index()].store(0, Ordering::Relaxed);
            if let Some(keeper) = &self.keeper {
                written.end(keeper, tracker, ended.connection);
            }
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
        for shard in &self.shards {
            let mut table = shard.table();
            let Table { tracker, ended, .. } = &mut *table;
            tracker.age(now, AGING_ALL / self.shards.len(), ended);
            self.close_ended(shard, &mut table);
        }
    }

    /// How many there can be.
    pub fn capacity(&self) -> usize {
        self.gates.len()
    }

    /// How many connections there are, and what was counted.
    pub fn stats(&self) -> (usize, Stats) {
        let mut all = (0, Stats::default());
        for shard in &self.shards {
            let table = shard.table();
            all.0 += table.tracker.len();
            all.1.add(table.tracker.stats());
        }
        all
    }

    /// How often locks were taken.
    #[cfg(debug_assertions)]
    pub fn locks_taken(&self) -> u64 {
        self.shards.iter().map(|shard| shard.asked.load(Ordering::Relaxed)).sum()
    }

    /// What was counted of each network, by name.
    pub fn networks(&self) -> Vec<(String, ZoneStats)> {
        let of = |zone| {
            let mut all = ZoneStats::default();
            self.shards.iter().for_each(|shard| all.add(shard.table().tracker.zone_stats(zone)));
            all
        };
        let mut networks: Vec<_> = self.zones().iter().map(|(name, zone)| (name.clone(), of(*zone))).collect();
        networks.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        networks
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

mod keeping;
#[cfg(test)]
mod tests;
