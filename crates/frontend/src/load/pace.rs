//! When a polling client looks again.

use softdpu_sys::clock;

/// The batch that a client with many requests in flight aims at.
const GATHER: usize = 16;
/// The longest it stays away from the ring to let completions gather, nanoseconds.
const AWAY: u64 = 1000;

/// Keeps a client from taking completions one by one as they appear.
///
/// An eager client makes both sides slower: each look at the used index takes the cache line from the device that is
/// about to write it, and each request handed over alone costs the device a transfer of its own. With a quarter of the
/// depth (at most [`GATHER`]) as the aim, the client stays away from the ring a little longer when it found less, and a
/// little shorter when it found enough. At depths below 8 it never stays away.
pub(crate) struct Pace {
    /// Completions aimed at.
    batch: usize,
    /// How long to stay away after a batch was found.
    nanos: u64,
}

impl Pace {
    /// For a client with `depth` requests in flight.
    pub(crate) fn new(depth: usize) -> Pace {
        Pace { batch: (depth / 4).clamp(1, GATHER), nanos: 0 }
    }

    /// What it aims at.
    pub(crate) fn batch(&self) -> usize {
        self.batch
    }

    /// Stays away from the ring after `taken` were found at `since` (nanoseconds).
    #[inline(always)]
    pub(crate) fn wait(&mut self, since: u64, taken: usize) {
        if self.batch == 1 {
            return;
        }
        if taken < self.batch {
            self.nanos = (self.nanos + 16).min(AWAY);
        } else {
            self.nanos -= self.nanos / 8;
        }
        while clock::now().saturating_sub(since) < self.nanos {
            std::hint::spin_loop();
        }
    }
}
