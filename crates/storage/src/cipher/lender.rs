//! Private memory that requests of encrypted volumes borrow.

use std::sync::Arc;

use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};

use super::PIECE;

/// Private memory of one core that may be lent at a time, bytes.
const BUDGET: u64 = 64 << 20;
/// What is lent, bytes; the largest is a piece.
const SIZES: [u64; 3] = [4 << 10, 16 << 10, PIECE];
/// Of each size so much is kept for the next, bytes.
const KEPT: u64 = 2 << 20;

/// Lends pieces of private memory. An attachment may have as much as there is left for others, so that a back end that
/// hangs leaves memory for the rest.
#[derive(Default)]
pub(super) struct Lender {
    free: [Vec<Arc<View>>; SIZES.len()],
    lent: u64,
    /// By attachment, bytes.
    by: Vec<u64>,
    /// What was lent to requests that were given up: the kernel may still write there. Free when there is no other
    /// reference.
    orphans: Vec<(Loan, Arc<View>)>,
}

/// Private memory that was lent, to be given back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loan {
    attachment: u32,
    size: usize,
}

impl Lender {
    /// `len` bytes, at most [`PIECE`], for an attachment; none where it has to wait.
    pub(super) fn lend(&mut self, attachment: u32, len: u64) -> Option<(Loan, GuestBuffer)> {
        if !self.orphans.is_empty() {
            self.take_orphans_back();
        }
        let size = SIZES.iter().position(|size| len <= *size)?;
        let index = attachment as usize;
        if index >= self.by.len() {
            self.by.resize(index + 1, 0);
        }
        if self.by[index] + SIZES[size] > BUDGET.saturating_sub(self.lent) {
            return None;
        }
        let view = match self.free[size].pop() {
            Some(view) => view,
            None => private(SIZES[size])?,
        };
        let buffer = view.buffer(GuestAddress(0), len).ok()?;
        self.lent += SIZES[size];
        self.by[index] += SIZES[size];
        Some((Loan { attachment, size }, buffer))
    }

    /// Takes back what is not in use any more.
    pub(super) fn take_back(&mut self, lent: Loan, buffer: &GuestBuffer) {
        self.settle(lent, Arc::clone(buffer.view()));
    }

    /// Takes back what the kernel may still be using: the caller has given up the request that `view` was lent to.
    pub(super) fn take_back_later(&mut self, lent: Loan, view: Arc<View>) {
        self.orphans.push((lent, view));
    }

    fn settle(&mut self, lent: Loan, view: Arc<View>) {
        let bytes = SIZES[lent.size];
        self.lent = self.lent.saturating_sub(bytes);
        if let Some(by) = self.by.get_mut(lent.attachment as usize) {
            *by = by.saturating_sub(bytes);
        }
        if (self.free[lent.size].len() as u64) < KEPT / bytes {
            self.free[lent.size].push(view);
        }
    }

    fn take_orphans_back(&mut self) {
        for (lent, view) in std::mem::take(&mut self.orphans) {
            if Arc::strong_count(&view) == 1 {
                self.settle(lent, view);
            } else {
                self.orphans.push((lent, view));
            }
        }
    }
}

fn private(len: u64) -> Option<Arc<View>> {
    let memory = Mapping::heap(usize::try_from(len).ok()?);
    View::new(vec![Region::new(GuestAddress(0), UserAddress(0), len, memory, 0)]).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_who_gives_nothing_back_leaves_memory_for_others() {
        let mut lender = Lender::default();
        let mut taken = Vec::new();
        while let Some(lent) = lender.lend(0, PIECE) {
            taken.push(lent);
        }
        let pieces = |bytes| (bytes / PIECE) as usize;
        assert_eq!(taken.len(), pieces(BUDGET / 2));
        let mut others = 0;
        while lender.lend(1, PIECE).is_some() {
            others += 1;
        }
        assert_eq!(others, pieces(BUDGET / 4));
        let (lent, buffer) = taken.pop().unwrap();
        lender.take_back(lent, &buffer);
        assert!(lender.lend(2, 512).is_some());
        assert!(lender.lend(0, PIECE + 1).is_none(), "more than a piece is never lent");
    }

    #[test]
    fn what_was_given_up_is_lent_again_only_when_nobody_can_write_there() {
        let mut lender = Lender::default();
        let (lent, at_the_kernel) = lender.lend(0, PIECE).unwrap();
        lender.take_back_later(lent, Arc::clone(at_the_kernel.view()));
        let (_, other) = lender.lend(0, PIECE).unwrap();
        assert!(!Arc::ptr_eq(other.view(), at_the_kernel.view()));
        assert_eq!(lender.lent, 2 * PIECE);
        let view = Arc::clone(at_the_kernel.view());
        drop(at_the_kernel);
        let address = Arc::as_ptr(&view);
        drop(view);
        let (_, again) = lender.lend(0, PIECE).unwrap();
        assert_eq!(Arc::as_ptr(again.view()), address);
    }
}
