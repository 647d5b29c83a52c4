//! The order in which a store to guest memory and its dirty bit become visible.
//!
//! The consumer of a bitmap clears a bit and then copies the page; we store to the page and then look at its bit. A
//! look that finds the bit set may be left at that only if the consumer, when it clears the bit, copies what we stored.
//! So there is a full barrier between our store and our look, as there is in the consumer's atomic exchange between its
//! clearing and its copying: then either our look comes after the clearing and finds the bit clear, or our store comes
//! before the copying. Without the barrier a processor looks while the store still waits in its store buffer, the bit
//! is cleared and the page copied in between, and the store is lost (checked with loom: `tests/loom.rs`). Stores of the
//! kernel and of devices precede the completion that we have seen, and so the barrier, too.

/// A byte of a bitmap.
pub(crate) trait Bits {
    /// An atomic load.
    fn look(&self) -> u8;
    /// An atomic or.
    fn add(&self, bits: u8);
    /// A full barrier: no later load of this thread is done before an earlier store is visible.
    fn barrier();
}

/// Sets the bits, given as byte and mask, of pages that were stored to before. One barrier serves them all.
#[inline]
pub(crate) fn mark<'a, B: Bits + 'a>(bits: impl Iterator<Item = (&'a B, u8)>) {
    B::barrier();
    for (byte, mask) in bits {
        // Most pages of a busy buffer are already dirty: the line is shared then, and stays so.
        if byte.look() & mask != mask {
            byte.add(mask);
        }
    }
}
