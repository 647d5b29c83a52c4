//! Memory that both sides of a queue reach, word by word.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use softdpu_memory::{Mapping, Window, Words};
use softdpu_ring::sync::{Word, observe, publish};

/// Words of 64 bits in a line: 64 bytes.
pub const WORDS_PER_LINE: usize = 8;

/// One side's access to the memory of a queue. Indexes are of 64-bit words, and inside: the queue checks them.
///
/// A side may see the memory through buffers and caches that the other side does not know of ([`link`](crate::link)).
/// What it stores is visible to the other side after [`drain`](Self::drain) at the latest, in any order. What it loads
/// may be old unless the line was [flushed](Self::flush) since.
///
/// A line is written with its last word last, and a load that brings a whole line reads the last word first.
pub trait QueueMemory: Send {
    /// Words that there are.
    fn words(&self) -> usize;
    /// Loads a word; as [`observe`](Self::observe), where nothing less costs less.
    fn load(&mut self, at: usize) -> u64 {
        self.observe(at)
    }
    /// Loads a word; loads after it are not older than it.
    fn observe(&mut self, at: usize) -> u64;
    /// Stores a word.
    fn store(&mut self, at: usize, value: u64);
    /// Stores a word after everything that was stored before and drained.
    fn publish(&mut self, at: usize, value: u64);
    /// A full barrier between this side's stores and its later loads, and between its loads.
    fn barrier(&mut self);
    /// Has everything that was stored reach the memory (`sfence`; for DMA: the transfer).
    fn drain(&mut self) {}
    /// Forgets a cached line, so that the next load of it reads the memory (`clflush`).
    fn flush(&mut self, _at: usize) {}
    /// Begins to load the line of a word.
    fn prefetch(&mut self, _at: usize) {}
}

/// Plain coherent memory: of one machine, or between machines that share it coherently.
#[derive(Clone)]
pub struct SharedMemory {
    words: Arc<Words>,
}

impl SharedMemory {
    /// New memory of this process, zeroed.
    pub fn heap(lines: usize) -> SharedMemory {
        let mapping = Mapping::heap(lines.max(1) * WORDS_PER_LINE * 8);
        match Words::new(Window::of_mapping(mapping)) {
            Some(words) => SharedMemory { words: Arc::new(words) },
            None => unreachable!("heap mappings are aligned"),
        }
    }

    /// A mapping that another process has too: the same file, mapped from a page's boundary. None where it is not
    /// aligned to words.
    pub fn of_mapping(mapping: Arc<Mapping>) -> Option<SharedMemory> {
        Words::new(Window::of_mapping(mapping)).map(|words| SharedMemory { words: Arc::new(words) })
    }

    pub(crate) fn word(&self, at: usize) -> &AtomicU64 {
        &self.words.all()[at]
    }
}

impl QueueMemory for SharedMemory {
    fn words(&self) -> usize {
        self.words.all().len()
    }

    #[inline]
    fn load(&mut self, at: usize) -> u64 {
        self.word(at).get(Relaxed)
    }

    #[inline]
    fn observe(&mut self, at: usize) -> u64 {
        observe(self.word(at))
    }

    #[inline]
    fn store(&mut self, at: usize, value: u64) {
        self.word(at).set(value, Relaxed);
    }

    #[inline]
    fn publish(&mut self, at: usize, value: u64) {
        publish(self.word(at), value);
    }

    #[inline]
    fn barrier(&mut self) {
        AtomicU64::barrier();
    }
}
