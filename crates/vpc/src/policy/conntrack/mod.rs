//! Connections: what lets replies pass that no rule allows.
//!
//! ```text
//!   packet ─► Subject ─ Segment ─► look ─ Known ─► passes, with its direction
//!                │                  │ └─ New ────► rules allow it? ─► open
//!                │                  └─── refused: dropped, counted
//!                ├ Error ─► related: of a known connection? ─► passes
//!                └ Untracked ─► stateless rules
//! ```
//!
//! One table serves one core, or is one of several that share connections by their hash. Its memory is taken as
//! connections come; a packet costs one look-up and no more work than that whatever is in the table. Each zone has a
//! share: it cannot have more connections, and one that needs room for a new one loses its own oldest half-open
//! connection, or else its oldest that is over. If it has neither, the new one is refused. So a flood of SYNs displaces
//! itself; with shares that together are no more than the capacity it takes nothing from others. Where the [rest is
//! shared](Config::rest_is_shared), a zone may have more than its share as long as there is room, and gives that back
//! to those with less than theirs.
//!
//! The keeper of flows of a connection removes them when it hears that the connection has [ended](Ended): a flow must
//! not outlive what allowed it. Segments of TCP that flows carry are to be shown by [`Conntrack::follow`], so that
//! resets can be judged; packets of others by [`Conntrack::touch`].

mod config;
mod entry;
mod kept;
mod key;
mod lists;
mod peek;
mod reason;
mod reclaim;
mod subject;
mod table;
mod tcp;
#[cfg(test)]
mod tests;
mod timeouts;
mod wheel;

use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::Range;

pub(crate) use config::ConnectionSlot;
pub use config::{Config, ConnectionId, Ended, Look, Opening, Stats, Tracked, ZoneStats};
use entry::{Entry, Life, Standing};
pub(crate) use kept::Heir;
pub use key::{Direction, Key, Zone};
use lists::Lists;
pub use peek::Peek;
pub use reason::{End, Refused};
pub use subject::{Content, Segment, Subject};
pub use tcp::{TcpHeader, TcpState};
pub use timeouts::Timeouts;
use wheel::{Turn, Wheel};

/// Connections with one bucket at most: a look-up reads no more. With a keyed hash and a bucket for each connection
/// that there is room for, the longest chain of 16 M connections has some ten.
const MAX_CHAIN: usize = 32;

/// The connections of a core.
#[derive(Clone, Debug)]
pub struct Conntrack {
    config: Config,
    /// Those that were ever used.
    entries: Vec<Entry>,
    capacity: usize,
    /// Of them: those that are not used now.
    free: Vec<u32>,
    /// Connections by their hash.
    index: Lists,
    /// Of each zone: those that are half open, and those that are over; the oldest first.
    waiting: Lists,
    /// What is counted of each zone.
    zones: Vec<ZoneStats>,
    wheel: Wheel,
    buckets: usize,
    seed: [u64; 2],
    /// Where the next look begins for a connection that is to give its room.
    hand: usize,
    stats: Stats,
}

impl Conntrack {
    /// An empty table.
    pub fn new(config: Config) -> Conntrack {
        let capacity = config.capacity.clamp(1, u32::MAX as usize / 4);
        let (buckets, shares) = (capacity.next_power_of_two(), config.shares.len());
        Conntrack {
            // Reserved, not touched.
            entries: Vec::with_capacity(capacity),
            capacity,
            free: Vec::new(),
            index: Lists::new(capacity, buckets),
            waiting: Lists::new(capacity, 2 * shares),
            zones: vec![ZoneStats::default(); shares],
            wheel: Wheel::new(capacity),
            buckets,
            seed: [(); 2].map(|()| RandomState::new().build_hasher().finish()),
            hand: 0,
            stats: Stats::default(),
            config,
        }
    }

    /// Other shares, by zone number. A zone that has more connections than its share keeps them and gets no more.
    pub fn set_shares(&mut self, shares: &[u32]) {
        self.config.shares = shares.to_vec();
        self.zones.resize(shares.len().max(self.zones.len()), ZoneStats::default());
        self.waiting.grow(2 * self.zones.len());
    }

    /// What a packet is to the connections there are, at `now`, nanoseconds. Of those that it ends, `ended` is told.
    ///
    /// # Errors
    /// [`Refused`]: the packet is to be dropped.
    pub fn look(&mut self, segment: &Segment, now: u64, ended: &mut Vec<Ended>) -> Result<Look, Refused> {
        let (pair, ascends) = segment.key.pair();
        let bucket = self.bucket(&pair);
        if let Some(at) = self.find(&pair, bucket) {
            if self.entries[at as usize].deadline <= now {
                self.end(at, End::Expired, ended);
            } else if let Some(tracked) = self.step(at, ascends, segment, now, ended)? {
                return Ok(Look::Tracked(tracked));
            }
        }
        match self.life(&segment.content) {
            Ok(life) => Ok(Look::New(Opening { segment: *segment, life, bucket })),
            Err(refused) => Err(self.refuse(refused)),
        }
    }

    /// Makes the connection that a packet is the first of, at `now`, nanoseconds: the rules allow it.
    ///
    /// # Errors
    /// [`Refused`] where there is no room for it: the packet is to be dropped.
    pub fn open(&mut self, opening: &Opening, now: u64, ended: &mut Vec<Ended>) -> Result<Tracked, Refused> {
        let (pair, ascends) = opening.segment.key.pair();
        if let Some(at) = self.find(&pair, opening.bucket) {
            // Opened since it was looked for.
            return Ok(self.tracked(at, ascends));
        }
        let entry = Entry {
            pair,
            generation: 0,
            bucket: opening.bucket,
            ascends,
            answered: false,
            ended: false,
            standing: None,
            life: opening.life,
            deadline: 0,
        };
        let entry = Entry { deadline: now.saturating_add(entry.timeout(&self.config.timeouts)), ..entry };
        let at = self.insert(entry, Some(Standing::HalfOpen), ended)?;
        self.stats.opened += 1;
        Ok(self.tracked(at, ascends))
    }

    /// The next packet of a connection that is known from before, at `now`, nanoseconds; None where that connection is
    /// no more, and the packet is to be looked at as any other.
    ///
    /// # Errors
    /// [`Refused`]: the packet is to be dropped.
    pub fn follow(
        &mut self,
        connection: ConnectionId,
        segment: &Segment,
        now: u64,
        ended: &mut Vec<Ended>,
    ) -> Result<Option<Tracked>, Refused> {
        let (pair, ascends) = segment.key.pair();
        match self.entry(connection, now) {
            Some(entry) if entry.pair == pair => self.step(connection.slot, ascends, segment, now, ended),
            _ => Ok(None),
        }
    }

    /// Keeps a connection alive at `now`, nanoseconds; false where it is no more, or is over.
    #[inline]
    pub fn touch(&mut self, connection: ConnectionId, now: u64) -> bool {
        let timeouts = self.config.timeouts;
        let Some(entry) = self.entry(connection, now).filter(|entry| !entry.ended) else { return false };
        entry.deadline = now.saturating_add(entry.timeout(&timeouts));
        true
    }

    /// The connection that an ICMP error is about, and the direction in which the error goes: against the packet that
    /// it quotes. None: it is to be dropped, or stateless rules decide. It keeps nothing alive.
    pub fn related(&self, quoted: &Key, now: u64) -> Option<Tracked> {
        let (pair, ascends) = quoted.pair();

        let at = self.find(&pair, self.bucket(&pair)).filter(|at| self.entries[*at as usize].deadline > now)?;
        let tracked = self.tracked(at, ascends);
        Some(Tracked { direction: tracked.direction.other(), is_lasting: false, ..tracked })
    }

    /// Forgets connections that time out by `now`, nanoseconds, in at most `budget` steps; whether there is more
    /// to do.
    pub fn age(&mut self, now: u64, budget: usize, ended: &mut Vec<Ended>) -> bool {
        for _ in 0..budget {
            match self.wheel.next(now) {
                Turn::Done => return false,
                Turn::Tick => {}
                Turn::Element(at) => match self.entries[at as usize].deadline {
                    deadline if deadline <= now => self.end(at, End::Expired, ended),
                    deadline => self.wheel.again(at, deadline),
                },
            }
        }
        true
    }

    /// A zone gets no more connections, until it has another [share](Self::set_shares).
    pub fn stop(&mut self, zone: Zone) {
        if let Some(share) = self.config.shares.get_mut(zone.index()) {
            *share = 0;
        }
    }

    /// Forgets all connections of a zone. Looks at the whole table.
    pub fn forget(&mut self, zone: Zone, ended: &mut Vec<Ended>) {
        self.forget_in(0..self.entries.len(), |of| of == zone, ended);
    }

    /// Forgets all connections of some zones that are in `slots` of the table.
    pub fn forget_in(&mut self, slots: Range<usize>, is_over: impl Fn(Zone) -> bool, ended: &mut Vec<Ended>) {
        for at in slots.start..slots.end.min(self.entries.len()) {
            let entry = &self.entries[at];
            if entry.is_there() && is_over(entry.pair.zone()) {
                self.end(at as u32, End::Forgotten, ended);
            }
        }
    }

    /// How many connections there are.
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many connections there can be.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Whether there is no room without an end of a connection.
    fn is_full(&self) -> bool {
        self.free.is_empty() && self.entries.len() >= self.capacity
    }

    /// The packets of the original direction of a connection that is there.
    pub fn original(&self, connection: ConnectionId) -> Option<Key> {
        let entry =
            self.entries.get(connection.slot as usize).filter(|entry| entry.generation == connection.generation)?;
        Some(entry.pair.key(entry.ascends))
    }

    /// How many connections a zone has.
    pub fn used(&self, zone: Zone) -> u32 {
        self.zone_stats(zone).known
    }

    /// What was counted of a zone.
    pub fn zone_stats(&self, zone: Zone) -> ZoneStats {
        self.zones.get(zone.index()).copied().unwrap_or_default()
    }

    /// A number is another zone's from now on: it has no connections, and nothing was counted.
    pub fn begin_zone(&mut self, zone: Zone) {
        if let Some(stats) = self.zones.get_mut(zone.index()) {
            *stats = ZoneStats { known: stats.known, ..ZoneStats::default() };
        }
    }

    /// What was counted.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The TCP state of a connection that is there.
    pub fn tcp_state(&self, connection: ConnectionId) -> Option<TcpState> {
        match self.entries.get(connection.slot as usize).filter(|entry| entry.generation == connection.generation)?.life
        {
            Life::Tcp(tcp) => Some(tcp.state),
            Life::Udp | Life::Echo | Life::Other => None,
        }
    }
}
