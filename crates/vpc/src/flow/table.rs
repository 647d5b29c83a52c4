//! A core's flows: an index of cache lines with sixteen slots each, and entries of two cache lines.
//!
//! ```text
//!   key ─ hash ─► line of the index: 16 × (tag │ number) ─► hot line: key, action, counters ─► cold line, where needed
//!                 ├ no slot has the tag: the line beside it
//! ```
//!
//! A slot's upper bits are the tag, a part of the hash, its lower ones the entry's number; how many depends on the
//! capacity, so that the index takes 8 bytes a flow: at 4 M flows it is 32 MiB, a third-level cache. A flow is in one
//! of two lines; where both are full, which happens to a few in 100,000 of a full table, it is not kept.
//!
//! The memory is reserved when the table is made and taken when it is used: entries are given out from the first one
//! up.

use std::hash::{BuildHasher, Hasher, RandomState};

use softdpu_sys::lines::{Halves, Lines, Words};
use softdpu_sys::prefetch;

use super::entry::{Action, Cold, FlowCounters, Hot};
use super::key::Key;
use crate::id::ids;
use crate::nat::Rewrite;
use crate::policy::connections::Connections;
use crate::policy::conntrack::{ConnectionId, ConnectionSlot};
use crate::stamp::{SOURCES, Stamp};
use crate::tables::Tables;

/// Most flows of a table.
const MOST: usize = 1 << 24;
/// Flows for each line of the index, of 16 slots.
const PER_LINE: usize = 8;
/// The clock's unit, as a power of two of nanoseconds: about a millisecond.
const TICK: u32 = 20;
/// Flows that were not seen for so long are forgotten: a minute.
const IDLE: u32 = (60_000_000_000u64 >> TICK) as u32;
/// In a full table: a second.
const IDLE_FULL: u32 = (1_000_000_000u64 >> TICK) as u32;
/// Entries that are looked at to make room for a new flow in a full table.
const LOOK_FULL: u32 = 8;
/// Entries that one tick looks at: at least, and at most.
const SWEEP: (u32, u32) = (32, 512);

/// Flows of a [sample](Flows::sample).
const SAMPLE: usize = 16;

ids! {
    /// A flow, by its entry in the table.
    FlowIndex;
}

/// The flows that a core knows.
#[derive(Debug)]
pub(crate) struct Flows {
    index: Lines<Halves>,
    hot: Lines<Words>,
    cold: Lines<Words>,
    /// Bits of a slot that are the tag; the others are the entry's number.
    tag: u32,
    seed: [u64; 2],
    /// Entries from here on were never used.
    used: u32,
    /// The first of those that were and are not any more.
    free: Option<FlowIndex>,
    count: u32,
    /// Of the tables that flows were last compared with; never 0.
    generation: u32,
    clock: u32,
    /// The entry that the next sweep begins with.
    hand: u32,
    #[cfg(test)]
    is_unchecked: bool,
}

/// An entry with the tag of a hash, if there is one: to be compared with the key before the table changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidate(FlowIndex);

impl Candidate {
    /// No entry has the tag.
    pub const NONE: Candidate = Candidate(FlowIndex::new(u32::MAX));

    #[inline(always)]
    pub fn entry(self) -> FlowIndex {
        self.0
    }
}

/// A flow that was found at first sight.
pub(crate) struct Hit<'a>(&'a Words);

impl Hit<'_> {
    /// What is done to its packets.
    #[inline(always)]
    pub fn action(&self) -> Action {
        self.0.action()
    }
}

/// Where a flow is looked for: its line of the index, or the one beside it, and its tag there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Home {
    line: u32,
    tag: u32,
}

/// Why a flow was not kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// A flow that was looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// Computed from what is in force.
    Fresh(FlowIndex),
    /// Computed from something that has changed.
    Stale(FlowIndex),
    None,
}

impl Flows {
    /// A table for `capacity` flows, at most 16 M; where there is no room for it in the address space, for none.
    pub fn new(capacity: usize) -> Flows {
        let capacity = capacity.min(MOST);
        let lines = (capacity / PER_LINE).next_power_of_two().max(2);
        // Every packet reads a line of the index and a hot one.
        match (Lines::<Halves>::pair(lines, capacity), Lines::zeroed(capacity)) {
            (Ok((index, hot)), Ok(cold)) => Flows::over(index, hot, cold),
            _ => Flows::new_empty(),
        }
    }

    fn new_empty() -> Flows {
        let none = || Lines::zeroed(0).expect("a page of address space");
        Flows::over(Lines::zeroed(2).expect("a page of address space"), none(), none())
    }

    fn over(index: Lines<Halves>, hot: Lines<Words>, cold: Lines<Words>) -> Flows {
        let seed = || RandomState::new().build_hasher().finish();
        let tag = !((hot.len().max(2).next_power_of_two() - 1) as u32);
        let seed = [seed(), seed()];
        Flows {
            index,
            hot,
            cold,
            tag,
            seed,
            used: 0,
            free: None,
            count: 0,
            generation: 1,
            clock: 0,
            hand: 0,
            #[cfg(test)]
            is_unchecked: false,
        }
    }

    /// How many it can have.
    pub fn capacity(&self) -> usize {
        self.hot.len()
    }

    /// How many it has.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Bytes that are reserved: for entries, and for the index.
    pub fn reserved(&self) -> (usize, usize) {
        (size_of_val(&*self.hot) + size_of_val(&*self.cold), size_of_val(&*self.index))
    }

    #[cfg(test)]
    pub fn set_generation(&mut self, generation: u32) {
        self.generation = generation;
    }

    /// Leaves the version check out: what flows would do without it.
    #[cfg(test)]
    pub fn check_versions(&mut self, checks: bool) {
        self.is_unchecked = !checks;
    }

    /// The tables are others now: each flow is compared with them before it decides again.
    pub fn tables_changed(&mut self) {
        match self.generation.checked_add(1) {
            Some(next) => self.generation = next,
            None => self.clear(),
        }
    }

    fn clear(&mut self) {
        for entry in 0..self.used {
            self.hot[entry as usize].set_generation(0);
        }
        self.index.fill(Halves::default());
        (self.used, self.free, self.count, self.generation, self.hand) = (0, None, 0, 1, 0);
    }

    /// Where `key` is looked for: its line of the index is on its way into the cache.
    #[inline(always)]
    pub fn home(&self, key: &Key) -> Home {
        let hash = key.hash(self.seed);
        // The number of lines is a power of two, and no more than MOST / PER_LINE.
        let line = hash as u32 & (self.index.len() as u32).wrapping_sub(1);
        prefetch::read(self.index.as_ptr().wrapping_add(line as usize));
        let tag = (hash >> 32) as u32 & self.tag;
        // 0 is an empty slot's.
        Home { line, tag: if tag == 0 { self.tag & self.tag.wrapping_neg() } else { tag } }
    }

    /// The slots of a line that may have the flow.
    #[inline(always)]
    fn matching(&self, line: u32, tag: u32) -> u32 {
        self.index[line as usize].find(self.tag, tag)
    }

    #[inline(always)]
    fn entry_at(&self, line: u32, slot: u32) -> FlowIndex {
        FlowIndex::new(self.index[line as usize].0[slot as usize % 16] & !self.tag)
    }

    /// The entry that is probably the one of `home`, on its way into the cache. To be called when its line of the index
    /// is there.
    #[inline(always)]
    pub fn approach(&self, home: Home) -> Candidate {
        let matching = self.matching(home.line, home.tag);
        if matching == 0 {
            // It is in the line beside, or new.
            prefetch::read(self.index.as_ptr().wrapping_add(home.line as usize ^ 1));
            return Candidate::NONE;
        }
        let entry = self.entry_at(home.line, matching.trailing_zeros());
        prefetch::write(self.hot.as_ptr().wrapping_add(entry.index()));
        Candidate(entry)
    }

    /// The flow of `key`, if it is `candidate` and was compared with the tables in force.
    #[inline(always)]
    pub fn hit(&self, Candidate(candidate): Candidate, key: &Key) -> Option<Hit<'_>> {
        let hot = self.hot.get(candidate.index())?;
        (hot.is(key) && hot.generation() == self.generation && self.rest_is(candidate, key)).then_some(Hit(hot))
    }

    /// The flow of `key`, which is looked for at `home`: compared with `tables`, which are in force, unless it was
    /// before. `revalidated` counts the comparisons that found nothing changed.
    pub fn find(&mut self, home: Home, key: &Key, tables: &Tables, revalidated: &mut u64) -> Found {
        let Some(entry) = self.lookup(home, key) else { return Found::None };
        match self.hot[entry.index()].generation() {
            generation if generation == self.generation => Found::Fresh(entry),
            0 => Found::None,
            _ => self.revalidate(entry, tables, revalidated),
        }
    }

    #[inline(always)]
    fn rest_is(&self, entry: FlowIndex, key: &Key) -> bool {
        !key.is_ipv6() || self.cold[entry.index()].has(key)
    }

    #[cold]
    fn revalidate(&mut self, entry: FlowIndex, tables: &Tables, revalidated: &mut u64) -> Found {
        let sources = self.cold[entry.index()].sources();
        let is_current = sources.iter().all(|source| tables.is_current(*source));
        #[cfg(test)]
        let is_current = is_current || self.is_unchecked;
        if !is_current {
            return Found::Stale(entry);
        }
        *revalidated += 1;
        self.hot[entry.index()].set_generation(self.generation);
        Found::Fresh(entry)
    }

    fn lookup(&self, home: Home, key: &Key) -> Option<FlowIndex> {
        self.lookup_in(home.line, home.tag, key).or_else(|| self.lookup_in(home.line ^ 1, home.tag, key))
    }

    #[inline(always)]
    fn lookup_in(&self, line: u32, tag: u32, key: &Key) -> Option<FlowIndex> {
        let mut matching = self.matching(line, tag);
        while matching != 0 {
            let entry = self.entry_at(line, matching.trailing_zeros());
            if self.hot[entry.index()].is(key) && self.rest_is(entry, key) {
                return Some(entry);
            }
            matching &= matching - 1;
        }
        None
    }

    /// What is done to an entry's packets.
    #[inline(always)]
    pub fn action(&self, entry: FlowIndex) -> Action {
        self.hot[entry.index()].action()
    }

    /// Counts a packet of a flow.
    #[inline(always)]
    pub fn count(&mut self, entry: FlowIndex, bytes: u64) {
        let clock = self.clock;
        self.hot[entry.index()].count(clock, bytes);
    }

    /// The connection of a flow that has one in `slot`.
    pub fn connection(&self, entry: FlowIndex, slot: ConnectionSlot) -> ConnectionId {
        ConnectionId::new(slot, self.cold[entry.index()].connection())
    }

    /// What the packets of a translated flow become.
    pub fn rewrite(&self, entry: FlowIndex) -> Rewrite {
        self.cold[entry.index()].rewrite()
    }

    /// Keeps what the packets of a translated flow over IPv4 become.
    pub fn set_rewrite(&mut self, entry: FlowIndex, rewrite: &Rewrite) {
        self.cold[entry.index()].set_rewrite(rewrite);
    }

    /// What a flow was computed from.
    pub fn sources(&self, entry: FlowIndex) -> [Stamp; SOURCES] {
        self.cold[entry.index()].sources()
    }

    /// A small table as it is now, of which at most the flow of `key` is there: to see what would become of its
    /// packets.
    pub fn sample(&self, key: Option<&Key>) -> Flows {
        let mut sample = Flows::new(SAMPLE);
        (sample.generation, sample.clock) = (self.generation, self.clock);
        let found = key.and_then(|key| Some((key, self.lookup(self.home(key), key)?)));
        if let Some((key, entry)) = found
            && let Ok(copy) = sample.insert(sample.home(key), None)
        {
            sample.hot[copy.index()] = self.hot[entry.index()];
            sample.cold[copy.index()] = self.cold[entry.index()];
        }
        #[cfg(test)]
        sample.check_versions(!self.is_unchecked);
        sample
    }

    /// Whether a flow that was stale still is.
    pub fn is_stale(&self, entry: FlowIndex) -> bool {
        let generation = self.hot[entry.index()].generation();
        generation != 0 && generation != self.generation
    }

    /// Keeps a flow, or gives a known one another action; what it counted stays. `sources` were read before the action
    /// was computed; `connection` is the one that it belongs to. In a full table it replaces a flow that was not seen
    /// for a second, or one with a connection that is over by `connections`.
    ///
    /// # Errors
    /// [`Full`]: there is no room.
    pub fn install(
        &mut self,
        home: Home,
        key: &Key,
        action: &Action,
        sources: &[Stamp; SOURCES],
        (connection, connections): (Option<ConnectionId>, Option<&Connections>),
    ) -> Result<FlowIndex, Full> {
        let entry = match self.lookup(home, key) {
            Some(entry) => entry,
            None => self.insert(home, connections)?,
        };
        let (generation, clock) = (self.generation, self.clock);
        let hot = &mut self.hot[entry.index()];
        hot.write(key, action);
        hot.set_generation(generation);
        hot.see(clock);
        self.cold[entry.index()].keep(key, sources, connection.map_or(0, ConnectionId::generation));
        Ok(entry)
    }

    /// An entry that the index leads to.
    fn insert(&mut self, home: Home, connections: Option<&Connections>) -> Result<FlowIndex, Full> {
        if self.free.is_none() && self.used as usize >= self.capacity() {
            self.sweep(LOOK_FULL, IDLE_FULL, connections);
        }
        let empty = |line: u32| {
            let empty = self.index[line as usize].find(!0, 0);
            (empty != 0).then(|| (line as usize, empty.trailing_zeros() as usize))
        };
        let (line, slot) = empty(home.line).or_else(|| empty(home.line ^ 1)).ok_or(Full)?;
        let entry = if let Some(entry) = self.free {
            self.free = self.hot[entry.index()].next_free();
            entry
        } else if (self.used as usize) < self.capacity() {
            self.used += 1;
            FlowIndex::new(self.used - 1)
        } else {
            return Err(Full);
        };
        self.index[line].0[slot] = home.tag | entry.number();
        self.hot[entry.index()].reset_counters();
        self.count += 1;
        Ok(entry)
    }

    /// Forgets the flow in `entry`.
    pub fn remove(&mut self, entry: FlowIndex) {
        if self.hot[entry.index()].generation() != 0 {
            self.remove_from(self.home_of(entry), entry);
        }
    }

    /// Where the flow in `entry` is looked for: its line of the index is on its way into the cache.
    fn home_of(&self, entry: FlowIndex) -> Home {
        let mut key = Key { first: self.hot[entry.index()].first(), more: [0; 3] };
        if key.is_ipv6() {
            key.more = self.cold[entry.index()].more();
        }
        self.home(&key)
    }

    fn remove_from(&mut self, Home { line, tag }: Home, entry: FlowIndex) {
        let hot = &mut self.hot[entry.index()];
        hot.set_generation(0);
        hot.set_next_free(self.free);
        self.free = Some(entry);
        self.count -= 1;
        for line in [line as usize, line as usize ^ 1] {
            let found = self.index[line].find(!0, tag | entry.number());
            if found != 0 {
                self.index[line].0[found.trailing_zeros() as usize] = 0;
                return;
            }
        }
    }

    /// Goes on to `now`, nanoseconds. Once a tick some entries are looked at, and forgotten where no packet has hit
    /// them for a minute: few for a small table, more for a large one, never more than [`SWEEP`] says.
    #[inline]
    pub fn turn(&mut self, now: u64) {
        let clock = (now >> TICK) as u32;
        if clock != self.clock {
            self.clock = clock;
            // Each entry is looked at about twice a minute.
            self.sweep((self.used / (IDLE / 2)).clamp(SWEEP.0, SWEEP.1), IDLE, None);
        }
    }

    /// Whether the connection of a flow is over.
    fn is_over(&self, entry: FlowIndex, connections: &Connections) -> bool {
        self.action(entry).connection.is_some_and(|slot| connections.is_over(self.connection(entry, slot)))
    }

    /// Forgets flows among the next `entries` that were not seen for `idle` ticks; with `connections`, those with
    /// connections that are over, too.
    #[cold]
    fn sweep(&mut self, entries: u32, idle: u32, connections: Option<&Connections>) {
        let mut left = entries.min(self.used);
        while left > 0 {
            let together = left.min(LOOK_FULL);
            left -= together;
            // Lines of the index, of all of them at once.
            let mut old = [None; LOOK_FULL as usize];
            for (_, old) in (0..together).zip(&mut old) {
                if self.hand >= self.used {
                    self.hand = 0;
                }
                let entry = FlowIndex::new(self.hand);
                self.hand += 1;
                prefetch::read(self.hot.as_ptr().wrapping_add(self.hand as usize + LOOK_FULL as usize));
                let hot = &self.hot[entry.index()];
                let is_idle = self.clock.wrapping_sub(hot.seen()) > idle;
                let is_over = || connections.is_some_and(|connections| self.is_over(entry, connections));
                if hot.generation() != 0 && (is_idle || is_over()) {
                    *old = Some((self.home_of(entry), entry));
                    // The next flow is written there.
                    prefetch::write(self.cold.as_ptr().wrapping_add(entry.index()));
                }
            }
            for (home, entry) in old.into_iter().flatten() {
                self.remove_from(home, entry);
            }
        }
    }

    /// What an entry counted.
    pub fn counters_of(&self, entry: FlowIndex) -> FlowCounters {
        self.hot[entry.index()].counters()
    }

    /// What the flow of `key` counted, if it is in `entry`.
    pub fn counters_if(&self, entry: FlowIndex, key: &Key) -> Option<FlowCounters> {
        let hot = self.hot.get(entry.index())?;
        (hot.is(key) && hot.generation() != 0 && self.rest_is(entry, key)).then(|| hot.counters())
    }

    /// What the flow of `key` counted.
    pub fn counters(&self, key: &Key) -> Option<FlowCounters> {
        Some(self.hot[self.lookup(self.home(key), key)?.index()].counters())
    }
}
