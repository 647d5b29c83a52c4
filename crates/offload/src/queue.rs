//! A unidirectional queue, after Floem's (Wave §5.3): entries of a line each, with a flag that is written last.
//!
//! ```text
//!  line 0        word 0: how many entries the consumer has taken; written now and then, read when the queue looks full
//!  line 1 + n    words 0 to 6: the entry; word 7: the flag, which is the round of the queue that wrote it, from 1
//! ```

use std::marker::PhantomData;

use thiserror::Error;

use crate::entry::{Entry, PAYLOAD};
use crate::memory::{QueueMemory, WORDS_PER_LINE};

/// The word of a line that is its flag.
const FLAG: usize = WORDS_PER_LINE - 1;
/// The word with the number of entries taken.
const TAKEN: usize = 0;

/// Why a queue is of no use any more. The other side broke it; nothing else is affected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum QueueError {
    /// The memory is too small or the capacity out of range.
    #[error(
        "a queue of {capacity} entries needs {} lines of memory and 1 to 65536 entries; there are {lines} lines",
        queue_lines(*.capacity)
    )]
    Size {
        /// Entries.
        capacity: usize,
        /// Lines.
        lines: usize,
    },
    /// An entry is nothing that this queue carries.
    #[error("entry {number} of the queue is none that it carries; the other side is to be restarted")]
    BadEntry {
        /// Counted from 0, over all rounds.
        number: u64,
    },
    /// The other side says that it has taken more than there was, or less than before.
    #[error("the consumer claims to have taken {taken} entries of {sent}, after {before}; it is to be restarted")]
    BadPosition {
        /// What it says.
        taken: u64,
        /// What it said before.
        before: u64,
        /// What was sent.
        sent: u64,
    },
}

/// Lines of memory that a queue of so many entries takes.
pub const fn queue_lines(capacity: usize) -> usize {
    capacity.saturating_add(1)
}

fn check<M: QueueMemory>(memory: &M, capacity: usize) -> Result<(), QueueError> {
    let lines = memory.words() / WORDS_PER_LINE;
    let fits = (1..=1 << 16).contains(&capacity) && queue_lines(capacity) <= lines;
    if fits { Ok(()) } else { Err(QueueError::Size { capacity, lines }) }
}

/// The first word of the line of an entry, and the flag of its round.
fn place(number: u64, capacity: usize) -> (usize, u64) {
    let line = 1 + (number % capacity as u64) as usize;
    (line * WORDS_PER_LINE, number / capacity as u64 + 1)
}

/// The side that sends.
pub struct Producer<T, M> {
    memory: M,
    capacity: usize,
    sent: u64,
    taken: u64,
    carries: PhantomData<fn(T)>,
}

impl<T: Entry, M: QueueMemory> Producer<T, M> {
    /// For memory that is zero: of a queue that was not used before.
    ///
    /// # Errors
    /// [`QueueError::Size`].
    pub fn new(memory: M, capacity: usize) -> Result<Self, QueueError> {
        check(&memory, capacity)?;
        Ok(Producer { memory, capacity, sent: 0, taken: 0, carries: PhantomData })
    }

    /// The memory, for what is measured of it.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Entries that fit now.
    fn room(&mut self, wanted: usize) -> Result<usize, QueueError> {
        let free = |producer: &Self| producer.capacity - (producer.sent - producer.taken) as usize;
        if free(self) < wanted {
            // A read over the link: only where it looks full.
            self.memory.flush(TAKEN);
            let taken = self.memory.observe(TAKEN);
            if taken > self.sent || taken < self.taken {
                return Err(QueueError::BadPosition { taken, before: self.taken, sent: self.sent });
            }
            self.taken = taken;
        }
        Ok(free(self))
    }

    /// Sends as many of these as fit, in order, and says how many. One batch costs two drains, however many it has.
    ///
    /// # Errors
    /// [`QueueError::BadPosition`].
    pub fn send(&mut self, entries: &[T]) -> Result<usize, QueueError> {
        let count = entries.len().min(self.room(entries.len())?);
        if count == 0 {
            return Ok(0);
        }
        for (at, entry) in entries[..count].iter().enumerate() {
            let (line, flag) = place(self.sent + at as u64, self.capacity);
            let words = entry.encode();
            for (word, value) in words[..T::WORDS.min(PAYLOAD)].iter().enumerate() {
                self.memory.store(line + word, *value);
            }
            if at > 0 {
                self.memory.publish(line + FLAG, flag);
            }
        }
        // Nothing keeps order among what leaves a write-combining buffer. The consumer takes entries in order, so the
        // flag of the first one, which is written last, is the flag of the batch.
        self.memory.drain();
        let (line, flag) = place(self.sent, self.capacity);
        self.memory.publish(line + FLAG, flag);
        self.memory.drain();
        self.sent += count as u64;
        Ok(count)
    }
}

/// The side that takes.
pub struct Consumer<T, M> {
    memory: M,
    capacity: usize,
    taken: u64,
    /// What the producer was told.
    told: u64,
    /// Lines of entries before this one may be in the cache, and old.
    cached: u64,
    carries: PhantomData<fn() -> T>,
}

impl<T: Entry, M: QueueMemory> Consumer<T, M> {
    /// For memory that is zero: of a queue that was not used before.
    ///
    /// # Errors
    /// [`QueueError::Size`].
    pub fn new(memory: M, capacity: usize) -> Result<Self, QueueError> {
        check(&memory, capacity)?;
        Ok(Consumer { memory, capacity, taken: 0, told: 0, cached: 0, carries: PhantomData })
    }

    /// The memory, for what is measured of it.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }

    /// Begins to load the next entries, up to `most`: before other work, which then hides the load (Wave §5.4).
    pub fn prefetch(&mut self, most: usize) {
        let last = self.taken + most.min(self.capacity) as u64;
        for number in self.taken.max(self.cached)..last {
            let (line, _) = place(number, self.capacity);
            self.memory.prefetch(line);
        }
        self.cached = self.cached.max(last);
    }

    /// Appends up to `most` entries to `to`, in order, and says how many.
    ///
    /// # Errors
    /// [`QueueError::BadEntry`]; what came before it is in `to`.
    pub fn poll(&mut self, to: &mut Vec<T>, most: usize) -> Result<usize, QueueError> {
        let mut count = 0;
        while count < most && self.has_next() {
            let (line, _) = place(self.taken, self.capacity);
            let mut words = [0; PAYLOAD];
            for (word, value) in words[..T::WORDS.min(PAYLOAD)].iter_mut().enumerate() {
                *value = self.memory.load(line + word);
            }
            // In the next round the line has something else.
            self.memory.flush(line);
            let number = self.taken;
            to.push(T::decode(&words).ok_or(QueueError::BadEntry { number })?);
            self.taken += 1;
            count += 1;
        }
        // The producer looks only when the queue seems full: a quarter is soon enough.
        if self.taken - self.told >= (self.capacity as u64 / 4).max(1) {
            self.told = self.taken;
            self.memory.publish(TAKEN, self.taken);
            self.memory.drain();
        }
        Ok(count)
    }

    /// Whether the next entry's flag is set. A cached line that says no is looked at again in the memory.
    fn has_next(&mut self) -> bool {
        let (line, flag) = place(self.taken, self.capacity);
        if self.memory.observe(line + FLAG) == flag {
            return true;
        }
        if self.cached > self.taken {
            self.memory.flush(line);
            if self.memory.observe(line + FLAG) == flag {
                return true;
            }
        }
        // That answer may stay in the cache, and grows old there.
        self.cached = self.cached.max(self.taken + 1);
        false
    }
}

#[cfg(test)]
mod tests;
