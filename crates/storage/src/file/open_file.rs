//! A volume's file in a core's ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use softdpu_sys::uring::FileIndex;

use super::FileBacking;
use crate::volume::Backing;
use crate::{BlockOp, Request, Volume};

/// The most bytes of a read that is tried from the page cache before it is given to the ring.
pub(super) const CACHED: u64 = 64 << 10;

/// A volume's file in this core's ring.
pub(crate) struct OpenFile {
    pub(super) index: FileIndex,
    pub(super) volume: Arc<Volume>,
    pub(super) cache: CachePredictor,
}

/// Predicts whether a read's pages are in the page cache, and a system call to find them there is worth it: after each
/// miss in a row twice as many reads go to the ring without one.
///
/// Used by one thread; atomic only so that the file can go to another thread with its context.
#[derive(Debug, Default)]
pub(super) struct CachePredictor {
    misses: AtomicU32,
    /// Reads that go to the ring before the next attempt.
    pause: AtomicU32,
}

impl CachePredictor {
    /// Doublings: of two thousand reads from a disk one is tried from the cache in vain.
    const MOST: u32 = 11;

    #[inline]
    pub(super) fn is_good(&self) -> bool {
        self.misses.load(Ordering::Relaxed) == 0
    }

    #[inline]
    pub(super) fn tries(&self) -> bool {
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Ordering::Relaxed);
        }
        pause == 0
    }

    pub(super) fn miss(&self) {
        let misses = self.misses.load(Ordering::Relaxed);
        self.pause.store((1 << misses) - 1, Ordering::Relaxed);
        self.misses.store((misses + 1).min(Self::MOST), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn hit(&self) {
        if !self.is_good() {
            self.misses.store(0, Ordering::Relaxed);
        }
    }
}

impl OpenFile {
    /// Whether reads probably end while they are submitted, one after the other.
    #[inline]
    pub(crate) fn answers_singly(&self) -> bool {
        self.cache.is_good() && self.backing().is_some_and(|backing| backing.direct.is_none())
    }

    pub(super) fn backing(&self) -> Option<&FileBacking> {
        match &self.volume.backing {
            Backing::File(backing) => Some(backing),
            _ => None,
        }
    }

    /// Whether a write that was given up may still change the request's bytes.
    #[inline]
    pub(crate) fn has_to_wait(&self, request: &Request) -> bool {
        let landings = self.backing().map(|backing| &backing.landings).filter(|landings| landings.count() > 0);
        landings.is_some_and(|landings| {
            request.op != BlockOp::Flush && landings.touch(request.offset..request.offset.saturating_add(request.len))
        })
    }
}
