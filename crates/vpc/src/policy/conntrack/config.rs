//! What goes into the tracker and comes out of it.

use std::num::NonZeroU32;

use super::key::{Direction, Key, Zone};
use super::reason::{End, Refused};
use super::subject::Segment;
use super::timeouts::Timeouts;

/// How a core tracks connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most connections, at least 1. Some 200 bytes each, taken as they come.
    pub capacity: usize,
    /// Most connections of each zone, by its number. 0: none at all. If all shares together are no more than the
    /// capacity, no zone can take room from another.
    pub shares: Vec<u32>,
    /// Shares are what zones have in any case: what no zone needs of its share, and what is in no share, is for all.
    /// One that has fewer connections than its share takes its room back from those that have more than theirs.
    pub rest_is_shared: bool,
    /// How long connections are kept.
    pub timeouts: Timeouts,
    /// TCP connections are taken up in the middle where their beginning was not seen, if the rules allow their packet:
    /// after a restart they go on.
    pub pickup: bool,
    /// TCP resets are believed wherever they are: for when not all segments of a connection are shown.
    pub any_reset: bool,
}

/// A connection, as long as it is in the table: another one in the same slot has another generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// The slot of a connection. Packed with its absence into 32 bits, as an entry of the flow table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionSlot(NonZeroU32);

impl From<ConnectionId> for ConnectionSlot {
    fn from(connection: ConnectionId) -> ConnectionSlot {
        ConnectionSlot::new(connection.slot)
    }
}

impl ConnectionSlot {
    pub fn new(slot: u32) -> ConnectionSlot {
        ConnectionSlot(NonZeroU32::MIN.saturating_add(slot))
    }

    pub fn index(self) -> usize {
        self.0.get() as usize - 1
    }

    #[inline(always)]
    pub fn to_bits(slot: Option<ConnectionSlot>) -> u32 {
        slot.map_or(0, |slot| slot.0.get())
    }

    #[inline(always)]
    pub fn from_bits(bits: u32) -> Option<ConnectionSlot> {
        NonZeroU32::new(bits).map(ConnectionSlot)
    }
}

impl ConnectionId {
    pub(crate) fn new(slot: ConnectionSlot, generation: u32) -> ConnectionId {
        ConnectionId { slot: slot.index() as u32, generation }
    }

    /// Its place in the table, below its [capacity](super::Conntrack::capacity).
    pub fn slot(self) -> u32 {
        self.slot
    }

    pub(crate) fn index(self) -> usize {
        self.slot as usize
    }

    /// Its number among the connections that were in the slot, never 0.
    pub(crate) fn generation(self) -> u32 {
        self.generation
    }
}

/// A packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// The connection.
    pub connection: ConnectionId,
    /// The packet's direction in it.
    pub direction: Direction,
    /// It is open on both sides and not over: flows of it may be kept, until it ends.
    pub is_lasting: bool,
}

/// What a packet is to the connections there are.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// Of one: it passes.
    Tracked(Tracked),
    /// The first of one that is not there: if rules allow it, to be opened.
    New(Opening),
}

/// The first packet of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    pub(super) segment: Segment,
    pub(super) life: super::entry::Life,
    pub(super) bucket: u32,
}

impl Opening {
    /// The zone that it is in.
    pub fn zone(&self) -> Zone {
        self.segment.key.zone
    }
}

/// A connection that has ended. Each is reported once; flows of both directions are to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The connection.
    pub connection: ConnectionId,
    /// Why it has ended.
    pub why: End,
    /// The packets of its original direction, and of the other.
    pub keys: [Key; 2],
}

/// What was counted of a zone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ZoneStats {
    /// Connections that there are.
    pub known: u32,
    /// Packets that were refused as there was no room for their connection.
    pub no_room: u64,
    /// Connections that were ended to make room for others.
    pub evicted: u64,
}

/// What a core's tracker has counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Connections that were opened.
    pub opened: u64,
    /// Connections that have ended, by reason, in the order of [`End::ALL`].
    pub ended: [u64; End::ALL.len()],
    /// Packets that were refused, by reason, in the order of [`Refused::ALL`].
    pub refused: [u64; Refused::ALL.len()],
}

impl ZoneStats {
    /// Counts what another table counted of the zone.
    pub(crate) fn add(&mut self, other: ZoneStats) {
        self.known += other.known;
        self.no_room += other.no_room;
        self.evicted += other.evicted;
    }
}

impl Stats {
    /// Counts what another table counted.
    pub(crate) fn add(&mut self, other: &Stats) {
        self.opened += other.opened;
        self.ended.iter_mut().zip(other.ended).for_each(|(all, one)| *all += one);
        self.refused.iter_mut().zip(other.refused).for_each(|(all, one)| *all += one);
    }
}

impl Default for Stats {
    fn default() -> Stats {
        Stats { opened: 0, ended: [0; End::ALL.len()], refused: [0; Refused::ALL.len()] }
    }
}
