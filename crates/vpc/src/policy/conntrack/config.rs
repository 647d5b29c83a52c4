//! What goes into the tracker and comes out of it.

use super::key::{Direction, Key};
use super::reason::{End, Refused};
use super::subject::Segment;
use super::timeouts::Timeouts;

/// How a core tracks connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most connections, at least 1. Some 200 bytes each, taken at the start.
    pub capacity: usize,
    /// Most connections of each network, by its number. 0: none at all. Where they are together no more than the capacity, no
    /// network can take room from another.
    pub shares: Vec<u32>,
    /// How long connections are kept.
    pub timeouts: Timeouts,
    /// TCP connections whose beginning was not seen are taken up in the middle, if the rules allow their packet: after a
    /// restart they go on.
    pub pickup: bool,
    /// TCP resets are believed wherever they are: for when not all segments of a connection are shown.
    pub any_reset: bool,
}

/// A connection, for as long as it is in the table: another one in the same place has another handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handle {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl Handle {
    /// Its place in the table, below its [capacity](super::Conntrack::capacity).
    pub fn slot(self) -> u32 {
        self.slot
    }

    /// Which of those that were in this place, never 0.
    pub(crate) fn generation(self) -> u32 {
        self.generation
    }
}

/// A packet's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// Which.
    pub handle: Handle,
    /// Which way the packet goes.
    pub direction: Direction,
    /// It is open on both sides and not over: flows of it may be kept, until it ends.
    pub is_lasting: bool,
}

/// What a packet is to the connections there are.
#[derive(Clone, Copy, Debug)]
pub enum Look {
    /// Of one: it passes.
    Known(Tracked),
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
    /// Number of the network that is to have it.
    pub fn network(&self) -> u32 {
        self.segment.key.network
    }
}

/// A connection has ended. It is said once of each; flows of both directions are to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Which.
    pub handle: Handle,
    /// Why.
    pub why: End,
    /// The packets of its original direction, and of the other.
    pub keys: [Key; 2],
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

impl Default for Stats {
    fn default() -> Stats {
        Stats { opened: 0, ended: [0; End::ALL.len()], refused: [0; Refused::ALL.len()] }
    }
}
