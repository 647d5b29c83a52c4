//! Lists that chains are taken into.

use std::ops::Deref;
use std::sync::Arc;

use softdpu_memory::{GuestBuffer, View};

use crate::Chain;

mod sealed {
    pub trait Sealed {}
    impl Sealed for Vec<super::Chain> {}
    impl Sealed for super::Chains {}
}

/// What [`Queue::pop`](crate::Queue::pop) appends to: a `Vec<Chain>`, from which chains can be taken one by one,
/// or [`Chains`], which uses theirs again.
pub trait Sink: sealed::Sealed + Deref<Target = [Chain]> {
    /// One more chain, pinned to `view`, with whatever was in it before.
    #[doc(hidden)]
    fn add(&mut self, view: &Arc<View>) -> &mut Chain;

    /// Keeps the first `len`.
    #[doc(hidden)]
    fn cut(&mut self, len: usize);

    /// Takes the last one off.
    #[doc(hidden)]
    fn cut_last(&mut self);
}

fn empty(view: &Arc<View>) -> Chain {
    Chain { id: 0, descriptors: 0, buffer: GuestBuffer::new(view), readable: 0 }
}

impl Sink for Vec<Chain> {
    #[inline]
    fn add(&mut self, view: &Arc<View>) -> &mut Chain {
        let at = self.len();
        self.push(empty(view));
        &mut self[at]
    }

    #[inline]
    fn cut(&mut self, len: usize) {
        self.truncate(len);
    }

    #[inline]
    fn cut_last(&mut self) {
        self.pop();
    }
}

/// Chains that are here are moved to the front where at least so many times as many are done with.
const MOVED: usize = 2;

/// Chains in the order they were taken. One that is done with stays pinned to the memory it was found in, and is used
/// again by a later [`pop`](crate::Queue::pop) from the same memory: that saves two atomic operations on a count that
/// all chains of a queue share, and moves no chain about. [`release`](Self::release) gives up those pins.
#[derive(Debug, Default)]
pub struct Chains {
    /// Done with, then those that are here, then done with.
    slots: Vec<Chain>,
    first: usize,
    end: usize,
}

impl Chains {
    /// An empty list.
    pub const fn new() -> Chains {
        Chains { slots: Vec::new(), first: 0, end: 0 }
    }

    /// The first `count` (or all there are) are done with; returns them a last time.
    #[inline]
    pub fn take(&mut self, count: usize) -> &[Chain] {
        let taken = self.done_with(count);
        &self.slots[taken]
    }

    /// The slots of the first `count` (or all there are), which are done with from now on.
    #[inline]
    fn done_with(&mut self, count: usize) -> std::ops::Range<usize> {
        let (first, end) = (self.first, self.end);
        let taken = first..end.min(first.saturating_add(count));
        if taken.end == end {
            self.clear();
        } else {
            self.first = taken.end;
        }
        taken
    }

    /// All are done with.
    #[inline]
    pub fn clear(&mut self) {
        (self.first, self.end) = (0, 0);
    }

    /// Takes the first `count` (or all there are) out, pins and all. What stays behind is pinned as well, and used
    /// again; nothing is moved up, however many wait.
    pub fn drain(&mut self, count: usize) -> impl ExactSizeIterator<Item = Chain> + '_ {
        let taken = self.done_with(count);
        self.slots[taken].iter_mut().map(|slot| {
            let hollow = empty(slot.buffer.view());
            std::mem::replace(slot, hollow)
        })
    }

    /// One more chain where no slot is left behind the last one.
    #[inline(never)]
    fn add_slot(&mut self, view: &Arc<View>) -> &mut Chain {
        // Worth it where it gains several for each that it moves.
        if self.first > MOVED * (self.end - self.first) {
            self.close_ranks();
            return self.add(view);
        }
        self.slots.push(empty(view));
        self.end += 1;
        &mut self.slots[self.end - 1]
    }

    /// Those that are here change places with the first, which are done with, and are fewer.
    #[cold]
    fn close_ranks(&mut self) {
        let len = self.end - self.first;
        if let Some((done, here)) = self.slots[..self.end].split_at_mut_checked(self.first) {
            done[..len].swap_with_slice(here);
        }
        (self.first, self.end) = (0, len);
    }

    /// The chain is used again with other memory than before.
    #[cold]
    fn pin_anew(chain: &mut Chain, view: &Arc<View>) {
        *chain = empty(view);
    }

    /// Gives up the pins of all that are done with: their memory can be unmapped.
    pub fn release(&mut self) {
        self.slots.truncate(self.end);
        self.slots.drain(..self.first);
        (self.first, self.end) = (0, self.slots.len());
    }
}

impl Deref for Chains {
    type Target = [Chain];

    #[inline]
    fn deref(&self) -> &[Chain] {
        &self.slots[self.first..self.end]
    }
}

impl Sink for Chains {
    #[inline(always)]
    fn add(&mut self, view: &Arc<View>) -> &mut Chain {
        if self.end >= self.slots.len() {
            return self.add_slot(view);
        }
        let chain = &mut self.slots[self.end];
        self.end += 1;
        if !Arc::ptr_eq(chain.buffer.view(), view) {
            Chains::pin_anew(chain, view);
        }
        chain
    }

    #[inline]
    fn cut(&mut self, len: usize) {
        self.end = self.end.min(self.first + len);
    }

    #[inline]
    fn cut_last(&mut self) {
        // No more than there are.
        self.end = self.end.saturating_sub(1).max(self.first);
    }
}
