//! The table that this process writes.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use softdpu_sys::words::OwnWords;

use super::layout::{CHAIN, FIXED, FIXED_CHECK, Format, LINKS, Layout, NONE};
use super::{NotMade, check};

/// Records of a shard, at least.
const SHARD: usize = 1 << 10;
/// Most shards, each of which has a lock.
const SHARDS: usize = 1 << 6;

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(u32);

/// Records by hash, of `FIXED` words that stay the same and `TAIL` that change.
#[derive(Debug)]
pub struct Table<const FIXED: usize, const TAIL: usize> {
    words: OwnWords,
    layout: Layout,
    shards: Box<[Mutex<Room>]>,
}

/// What is free in a shard.
#[derive(Debug, Default)]
struct Room {
    free: Vec<u32>,
    /// Records of the shard that were ever used.
    used: u32,
}

fn links(word: u64) -> [u32; 2] {
    [(word >> 32) as u32, word as u32]
}

impl<const F: usize, const T: usize> Table<F, T> {
    /// A table with room for so many records of a kind, and a little more; the file is for the processes to come.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn new(name: &str, kind: u64, records: usize) -> Result<(OwnedFd, Table<F, T>), NotMade> {
        let shards = (records / SHARD).clamp(1, SHARDS).next_power_of_two();
        // A hash fills shards unevenly: by far less than an eighth and a few.
        let slots = records.div_ceil(shards);
        let slots = slots + slots / 8 + 64;
        let seed = [(); 2].map(|()| RandomState::new().build_hasher().finish());
        let format = Format { kind, fixed: F, tail: T };
        let layout = Layout { format, shards, slots, chains: slots.next_power_of_two(), seed };
        let count = layout.words().ok_or(std::io::Error::from(std::io::ErrorKind::OutOfMemory))?;
        let (file, words) = OwnWords::create(name, count)?;
        layout.header().into_iter().enumerate().for_each(|(at, word)| words.store(at, word));
        let shards = (0..shards).map(|_| Mutex::default()).collect();
        Ok((file, Table { words, layout, shards }))
    }

    /// The secret by which records are hashed.
    pub fn seed(&self) -> [u64; 2] {
        self.layout.seed
    }

    fn room(&self, shard: usize) -> MutexGuard<'_, Room> {
        // Nothing panics with the lock held.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a record. None: there is no room, and it is not kept.
    pub fn insert(&self, hash: u64, fixed: &[u64; F], tail: &[u64; T]) -> Option<Place> {
        let (chain, shard) = self.layout.chain_of(hash);
        let mut room = self.room(shard);
        let slot = match room.free.pop() {
            Some(slot) => slot,
            None if (room.used as usize) < self.layout.slots => {
                room.used += 1;
                self.words.store(self.layout.used(shard), room.used.into());
                room.used - 1
            }
            None => return None,
        };
        let number = shard * self.layout.slots + slot as usize;
        let (record, head) = (self.layout.record(number), self.layout.chain(chain));
        let next = self.words.load(head) as u32;
        self.words.store(record + FIXED_CHECK, 0);
        self.words.store(record + LINKS, u64::from(next) << 32 | u64::from(NONE));
        self.words.store(record + CHAIN, chain as u64);
        for (at, word) in fixed.iter().enumerate() {
            self.words.store(record + FIXED + at, *word);
        }
        let place = Place(number as u32);
        self.update(place, tail);
        self.words.store(record + FIXED_CHECK, check(fixed));
        if next != NONE {
            self.set_link(next, 1, number as u32 + 1);
        }
        // From here on it is found.
        self.words.store(head, number as u64 + 1);
        Some(place)
    }

    /// Writes what changes of a record. Updates of one record come one after the other.
    pub fn update(&self, place: Place, tail: &[u64; T]) {
        let at = self.layout.record(place.0 as usize) + self.layout.tail_check();
        self.words.store(at, 0);
        for (word, to) in tail.iter().zip(at + 1..) {
            self.words.store(to, *word);
        }
        self.words.store(at, check(tail));
    }

    /// Removes a record, which is not used any more.
    pub fn remove(&self, place: Place) {
        let record = self.layout.record(place.0 as usize);
        let mut room = self.room(place.0 as usize / self.layout.slots);
        // A reader that is on its way goes on from here, to what follows.
        self.words.store(record + FIXED_CHECK, 0);
        let [next, before] = links(self.words.load(record + LINKS));
        if before == NONE {
            self.words.store(self.layout.chain(self.words.load(record + CHAIN) as usize), next.into());
        } else {
            self.set_link(before, 0, next);
        }
        if next != NONE {
            self.set_link(next, 1, before);
        }
        room.free.push((place.0 as usize % self.layout.slots) as u32);
    }

    /// Sets the link of a record to the one behind it (0) or before it (1).
    fn set_link(&self, of: u32, which: usize, to: u32) {
        let at = self.layout.record(of as usize - 1) + LINKS;
        let mut both = links(self.words.load(at));
        both[which] = to;
        self.words.store(at, u64::from(both[0]) << 32 | u64::from(both[1]));
    }
}
