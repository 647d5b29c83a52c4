//! The two hand-shakes between driver and device, over any atomics: the rings use the processor's, the loom tests use
//! loom's.
//!
//! *Publish and consume:* one side stores entries, then [`publish`]es the index (or the flags) that hands them over;
//! the other side [`observe`]s it and may then read the entries.
//!
//! *Sleep and wake:* one side asks to be woken and checks once more whether something came; the other publishes
//! something and checks whether it is to wake the first. Both are [`publish_then_read`]: with a full barrier between
//! the store and the load on both sides, at least one of them sees the other's store, so no wake-up is lost (virtio 1.3
//! §2.7.13.4.1, §2.8.21.4).

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// A word of shared memory.
pub trait Word {
    /// What it holds.
    type Value: Copy;
    /// An atomic load.
    fn get(&self, ordering: Ordering) -> Self::Value;
    /// An atomic store.
    fn set(&self, value: Self::Value, ordering: Ordering);
    /// A full barrier: no later load of this thread is done before an earlier store is visible.
    fn barrier();
}

macro_rules! word {
    ($($atomic:ty: $value:ty),*) => {$(
        impl Word for $atomic {
            type Value = $value;
            #[inline(always)]
            fn get(&self, ordering: Ordering) -> $value {
                self.load(ordering)
            }
            #[inline(always)]
            fn set(&self, value: $value, ordering: Ordering) {
                #[cfg(test)]
                crate::crash::point();
                self.store(value, ordering);
            }
            #[inline(always)]
            fn barrier() {
                fence(Ordering::SeqCst);
            }
        }
    )*};
}
word!(AtomicU8: u8, AtomicU16: u16, AtomicU32: u32, AtomicU64: u64);

/// Hands over everything stored before.
#[inline(always)]
pub fn publish<W: Word>(word: &W, value: W::Value) {
    word.set(value, Ordering::Release);
}

/// Acquires everything that was stored before the value it returns was published.
#[inline(always)]
pub fn observe<W: Word>(word: &W) -> W::Value {
    word.get(Ordering::Acquire)
}

/// Publishes `value` and then reads what the other side published: when both sides do this on the same two words,
/// at least one of them sees the other's value.
#[inline(always)]
pub fn publish_then_read<S: Word, L: Word>(word: &S, value: S::Value, other: &L) -> L::Value {
    publish(word, value);
    S::barrier();
    observe(other)
}
