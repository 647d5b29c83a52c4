//! The host's view of the DPU's memory, over the link.

use std::collections::BTreeMap;

use super::{Ledger, LinkCosts, PageType};
use crate::memory::{QueueMemory, SharedMemory, WORDS_PER_LINE};

/// Lines that the write-combining buffer holds; a processor has about as many.
const BUFFER_LINES: usize = 12;
/// Lines of queues that the cache keeps at most.
const CACHE_LINES: usize = 4_096;

struct CachedLine {
    words: [u64; WORDS_PER_LINE],
    /// A prefetch has arrived at this time of the host.
    arrives: u64,
}

/// See the [module](self).
pub struct HostView {
    memory: SharedMemory,
    pages: PageType,
    costs: LinkCosts,
    ledger: Ledger,
    /// Stores that have not left, the oldest first.
    buffer: Vec<(usize, u64)>,
    cache: BTreeMap<usize, CachedLine>,
}

impl HostView {
    /// Mapped with such pages. The time goes into the ledger.
    pub fn new(memory: SharedMemory, pages: PageType, costs: LinkCosts, ledger: Ledger) -> HostView {
        HostView { memory, pages, costs, ledger, buffer: Vec::new(), cache: BTreeMap::new() }
    }

    /// The host's time.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// A line as it is in the memory, its last word first.
    fn fetch(&mut self, line: usize) -> [u64; WORDS_PER_LINE] {
        let mut words = [0; WORDS_PER_LINE];
        for (word, value) in words.iter_mut().enumerate().rev() {
            let at = line * WORDS_PER_LINE + word;
            *value = if at < self.memory.words() { self.memory.observe(at) } else { 0 };
        }
        words
    }

    fn cached(&mut self, at: usize) -> u64 {
        let line = at / WORDS_PER_LINE;
        if !self.cache.contains_key(&line) {
            self.ledger.spend(self.costs.host_read);
            self.fill(line, self.ledger.spent());
        } else {
            self.ledger.spend(self.costs.hit);
        }
        let Some(cached) = self.cache.get(&line) else { return self.memory.observe(at) };
        // A prefetch is waited for.
        self.ledger.spend(cached.arrives.saturating_sub(self.ledger.spent()));
        cached.words[at % WORDS_PER_LINE]
    }

    fn fill(&mut self, line: usize, arrives: u64) {
        if self.cache.len() >= CACHE_LINES {
            self.cache.pop_first();
        }
        let words = self.fetch(line);
        self.cache.insert(line, CachedLine { words, arrives });
    }

    /// A store leaves the processor.
    fn write(&mut self, at: usize, value: u64) {
        self.memory.publish(at, value);
    }

    /// One store leaves the buffer unasked, as a processor may have it at any time; here the newest.
    #[cfg(test)]
    pub(crate) fn leak(&mut self) {
        if let Some((at, value)) = self.buffer.pop() {
            self.write(at, value);
        }
    }

    fn lines_in_buffer(&self) -> usize {
        let mut lines: Vec<usize> = self.buffer.iter().map(|(at, _)| at / WORDS_PER_LINE).collect();
        lines.sort_unstable();
        lines.dedup();
        lines.len()
    }
}

impl QueueMemory for HostView {
    fn words(&self) -> usize {
        self.memory.words()
    }

    fn observe(&mut self, at: usize) -> u64 {
        match self.pages {
            PageType::WriteThrough => self.cached(at),
            PageType::Uncacheable | PageType::WriteCombining => {
                self.ledger.spend(self.costs.host_read);
                self.memory.observe(at)
            }
        }
    }

    fn store(&mut self, at: usize, value: u64) {
        match self.pages {
            PageType::WriteCombining => {
                self.ledger.spend(self.costs.hit);
                self.buffer.push((at, value));
                if self.lines_in_buffer() > BUFFER_LINES {
                    self.drain();
                }
            }
            PageType::Uncacheable | PageType::WriteThrough => {
                self.ledger.spend(self.costs.host_write);
                if let Some(cached) = self.cache.get_mut(&(at / WORDS_PER_LINE)) {
                    cached.words[at % WORDS_PER_LINE] = value;
                }
                self.write(at, value);
            }
        }
    }

    fn publish(&mut self, at: usize, value: u64) {
        self.store(at, value);
    }

    fn barrier(&mut self) {
        self.memory.barrier();
    }

    /// What is in the buffer leaves it, a write for each line. Nothing says in which order; here it is the last first,
    /// which finds what relies on another.
    fn drain(&mut self) {
        self.ledger.spend(self.lines_in_buffer() as u64 * self.costs.host_write);
        while let Some((at, value)) = self.buffer.pop() {
            // Of several stores to one word, the last one counts.
            self.buffer.retain(|(other, _)| *other != at);
            self.write(at, value);
        }
    }

    fn flush(&mut self, at: usize) {
        if self.cache.remove(&(at / WORDS_PER_LINE)).is_some() {
            self.ledger.spend(self.costs.hit);
        }
    }

    fn prefetch(&mut self, at: usize) {
        let line = at / WORDS_PER_LINE;
        if self.pages == PageType::WriteThrough && !self.cache.contains_key(&line) {
            self.ledger.spend(self.costs.hit);
            self.fill(line, self.ledger.spent() + self.costs.host_read);
        }
    }
}
