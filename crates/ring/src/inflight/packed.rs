//! `QueueRegionPacked` and `DescStatePacked`.
//!
//! Entries that are not in flight form a list from `free_head`. A chain takes its entries from the front of it; a batch
//! of completions puts its chains back there. `old_free_head`, `old_used_idx` and `old_used_wrap_counter` are what was
//! last committed: a chain that is being recorded commits by moving `old_free_head`, a batch by the one store that
//! hands its first used descriptor to the driver.
//!
//! The index and the wrap counter of a position, old and new, share one 64-bit word and are stored as one: as two
//! stores a kill in between would leave a position with the wrong wrap counter.

use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::Window;

use super::{InflightRecords, Region, in_use};
use crate::layout::{Descriptor, PackedDescriptor};
use crate::sync::publish;
use crate::{Format, PackedIndex, Position, QueueError, Used};

const FREE_HEAD_AT: usize = 12;
const OLD_FREE_HEAD_AT: usize = 14;
/// `used_idx`, `old_used_idx`, `used_wrap_counter`, `old_used_wrap_counter` and two bytes of padding.
const USED_AT: usize = 16;
/// Offset of `desc[0]`: the header has 29 bytes, entries are aligned to 8.
pub(super) const DESC: usize = 32;
/// Bytes of a `DescStatePacked`.
pub(super) const ENTRY: usize = 32;

const INFLIGHT: usize = 0;
const NEXT: usize = 2;
const LAST: usize = 4;
const NUM: usize = 6;
const COUNTER: usize = 8;
/// `id`, `flags`, `len`: in the ring `len` comes first.
const META: usize = 16;
const ADDR: usize = 24;

fn entry(index: u16) -> usize {
    DESC + ENTRY * usize::from(index)
}

/// `used_idx` and the rest as one word.
fn used_word(new: PackedIndex, old: PackedIndex) -> u64 {
    u64::from(new.index) | u64::from(old.index) << 16 | u64::from(new.wrap) << 32 | u64::from(old.wrap) << 40
}

/// Both positions, new and old, of that word.
fn used_positions(word: u64) -> (PackedIndex, PackedIndex) {
    let new = PackedIndex { index: word as u16, wrap: (word >> 32) as u8 != 0 };
    let old = PackedIndex { index: (word >> 16) as u16, wrap: (word >> 40) as u8 != 0 };
    (new, old)
}

/// The position of a queue that was stopped with requests in flight; none where nothing was, or where it was not
/// stopped but killed in the middle of a batch.
pub(super) fn left_at(window: &Window, size: u16) -> Option<Position> {
    let (used, old) = used_positions(window.u64(USED_AT).load(Relaxed));
    let heads = (0..size).filter(|head| window.u8(entry(*head) + INFLIGHT).load(Relaxed) != 0);
    let slots: u64 = heads.map(|head| u64::from(window.u16(entry(head) + NUM).load(Relaxed))).sum();
    let slots = u16::try_from(slots).ok().filter(|slots| (1..=size).contains(slots))?;
    (used == old && used.index < size).then(|| Position::Packed { avail: used.advance(slots, size), used })
}

/// A chain that was in flight when the process before us ended.
#[derive(Debug)]
pub(crate) struct Recovered {
    counter: u64,
    pub id: u16,
    /// As they were in the ring.
    pub descriptors: Vec<PackedDescriptor>,
}

/// Where a region in use left off.
pub(crate) struct Left {
    pub used: PackedIndex,
    /// In the order they were taken.
    pub flight: Vec<Recovered>,
}

/// The records of a packed queue.
///
/// The list is kept privately too: what is in shared memory is written for the next process, not believed.
pub(crate) struct PackedRecords {
    pub region: Region,
    counter: u64,
    free: u16,
    next: Box<[u16]>,
    /// By buffer id: first and last entry of the chain in flight.
    chains: Box<[(u16, u16)]>,
    used: PackedIndex,
}

impl PackedRecords {
    /// Takes over the region; starts it at `used` if it was not in use. `is_used` tells of a slot that the committed
    /// position points to whether the driver has it back, which is the case when its flags are not those of an
    /// available descriptor with that wrap counter.
    pub fn open(
        records: InflightRecords,
        size: u16,
        resumed: bool,
        used: PackedIndex,
        is_used: impl Fn(PackedIndex) -> bool,
    ) -> Result<(Self, Option<Left>), QueueError> {
        let region = records.check(Format::Packed, size)?;
        let mut this = PackedRecords {
            region,
            counter: 0,
            free: 0,
            next: (1..=size).collect(),
            chains: vec![(0, 0); usize::from(size)].into_boxed_slice(),
            used,
        };
        if !in_use(&this.region, size, resumed)? {
            this.start(size);
            return Ok((this, None));
        }
        let flight = this.recover(size, is_used)?;
        this.counter = flight.last().map_or(0, |chain| chain.counter.wrapping_add(1));
        this.region.commit();
        let used = this.used;
        Ok((this, Some(Left { used, flight })))
    }

    fn start(&self, size: u16) {
        self.region.begin(size);
        publish(self.region.u16(FREE_HEAD_AT), 0);
        publish(self.region.u16(OLD_FREE_HEAD_AT), 0);
        publish(self.region.u64(USED_AT), used_word(self.used, self.used));
        for index in 0..size {
            publish(self.region.u8(entry(index) + INFLIGHT), 0);
            publish(self.region.u16(entry(index) + NEXT), index + 1);
        }
        self.region.commit();
    }

    fn recover(&mut self, size: u16, is_used: impl Fn(PackedIndex) -> bool) -> Result<Vec<Recovered>, QueueError> {
        let (new, old) = used_positions(self.region.u64(USED_AT).load(Relaxed));
        for (field, value) in [("used_idx", new.index), ("old_used_idx", old.index)] {
            if value >= size {
                return Err(QueueError::RecordsDamaged { field, value: value.into(), size });
            }
        }
        if new != old && is_used(old) {
            // The last batch became visible: commit it.
            self.used = new;
            self.free = self.region.u16(FREE_HEAD_AT).load(Relaxed);
            publish(self.region.u16(OLD_FREE_HEAD_AT), self.free);
        } else {
            self.used = old;
            self.free = self.region.u16(OLD_FREE_HEAD_AT).load(Relaxed);
            publish(self.region.u16(FREE_HEAD_AT), self.free);
        }
        publish(self.region.u64(USED_AT), used_word(self.used, self.used));

        // What the list holds is not in flight, whatever its mark says.
        let mut seen = vec![false; usize::from(size)];
        let mut at = self.free;
        while at < size {
            if std::mem::replace(&mut seen[usize::from(at)], true) {
                return Err(QueueError::RecordsDamaged { field: "next in the free list", value: at.into(), size });
            }
            publish(self.region.u8(entry(at) + INFLIGHT), 0);
            self.next[usize::from(at)] = self.region.u16(entry(at) + NEXT).load(Relaxed);
            at = self.next[usize::from(at)];
        }
        let mut flight: Vec<Recovered> = Vec::new();
        let mut taken = vec![false; usize::from(size)];
        for head in 0..size {
            if self.region.u8(entry(head) + INFLIGHT).load(Relaxed) == 0 {
                continue;
            }
            let chain = self.recover_chain(head, size, &mut seen)?;
            if std::mem::replace(&mut taken[usize::from(chain.id)], true) {
                return Err(QueueError::RecordsDamaged { field: "id", value: chain.id.into(), size });
            }
            flight.push(chain);
        }
        // An entry that is nowhere would be missing when the ring is full.
        if let Some(lost) = seen.iter().position(|seen| !seen) {
            return Err(QueueError::RecordsDamaged { field: "an entry in no list", value: lost as u32, size });
        }
        flight.sort_by_key(|chain| chain.counter);
        Ok(flight)
    }

    fn recover_chain(&mut self, head: u16, size: u16, seen: &mut [bool]) -> Result<Recovered, QueueError> {
        let num = self.region.u16(entry(head) + NUM).load(Relaxed);
        if num == 0 || num > size {
            return Err(QueueError::RecordsDamaged { field: "num", value: num.into(), size });
        }
        let mut descriptors = Vec::with_capacity(usize::from(num));
        let mut at = head;
        let mut last = head;
        for _ in 0..num {
            if at >= size || std::mem::replace(&mut seen[usize::from(at)], true) {
                return Err(QueueError::RecordsDamaged { field: "next", value: at.into(), size });
            }
            descriptors.push(PackedDescriptor::from_words(
                self.region.u64(entry(at) + ADDR).load(Relaxed),
                self.region.u64(entry(at) + META).load(Relaxed).rotate_left(32),
            ));
            self.next[usize::from(at)] = self.region.u16(entry(at) + NEXT).load(Relaxed);
            last = at;
            at = self.next[usize::from(at)];
        }
        // The id of a chain is that of its last descriptor (virtio 1.3 §2.8.6).
        let id = descriptors.last().map_or(size, |descriptor| descriptor.id);
        if id >= size {
            return Err(QueueError::RecordsDamaged { field: "id", value: id.into(), size });
        }
        self.chains[usize::from(id)] = (head, last);
        let counter = self.region.u64(entry(head) + COUNTER).load(Relaxed);
        Ok(Recovered { counter, id, descriptors })
    }

    /// Before the request is handed out: the descriptors of its chain as they are in the ring.
    #[inline]
    pub fn taken(&mut self, id: u16, descriptors: &[PackedDescriptor]) {
        let head = self.free;
        // A chain is never longer than the slots that are free, and the list has an entry for each of those.
        publish(self.region.u16(entry(head) + NUM), descriptors.len() as u16);
        publish(self.region.u64(entry(head) + COUNTER), self.counter);
        self.counter = self.counter.wrapping_add(1);
        publish(self.region.u8(entry(head) + INFLIGHT), 1);
        let mut at = head;
        let mut last = head;
        for descriptor in descriptors {
            publish(self.region.u64(entry(at) + META), descriptor.meta().rotate_left(32));
            publish(self.region.u64(entry(at) + ADDR), descriptor.addr);
            last = at;
            at = self.next[usize::from(at)];
        }
        publish(self.region.u16(entry(head) + LAST), last);
        self.chains[usize::from(id)] = (head, last);
        self.free = at;
        publish(self.region.u16(FREE_HEAD_AT), at);
        publish(self.region.u16(OLD_FREE_HEAD_AT), at);
    }

    /// Before the completions become visible; `new` is the used position after them.
    #[inline]
    pub fn completing(&mut self, done: &[Used], new: PackedIndex) {
        for used in done {
            let (head, last) = self.chains[usize::from(used.id)];
            self.next[usize::from(last)] = self.free;
            publish(self.region.u16(entry(last) + NEXT), self.free);
            self.free = head;
        }
        publish(self.region.u16(FREE_HEAD_AT), self.free);
        publish(self.region.u64(USED_AT), used_word(new, self.used));
    }

    /// After they did.
    #[inline]
    pub fn completed(&mut self, done: &[Used], new: PackedIndex) {
        for used in done {
            publish(self.region.u8(entry(self.chains[usize::from(used.id)].0) + INFLIGHT), 0);
        }
        publish(self.region.u16(OLD_FREE_HEAD_AT), self.free);
        publish(self.region.u64(USED_AT), used_word(new, new));
        self.used = new;
    }
}
