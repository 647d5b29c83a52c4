//! Chains that are lent: frames that another core copies straight out of the sender's memory.
//!
//! ```text
//!   core of the transmit queue                       core of the receiving port
//!   chain ──▶ Loans, in ring order ──▶ frame ──▶ copied into the receiver's buffer
//!   used ring ◀── those at the front ◀───────── its number comes back
//! ```
//!
//! The queue completes in ring order, so what is done with behind a chain that is away waits for it: a queue never
//! lends more than it has descriptors. A queue ends when nothing is away ([`Loans::is_settled`]), or
//! after all other cores were asked, which answer when they are done with the frames they were sent before.

use std::collections::VecDeque;

use softdpu_ring::Used;

use crate::ids::{CoreIndex, QueueKey};

/// A chain that is lent, and the core and queue that it goes back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loan {
    /// The core that lent it.
    pub core: CoreIndex,
    pub key: QueueKey,
    pub number: u64,
}

/// What a transmit queue has lent, and what waits behind that.
#[derive(Debug, Default)]
pub(crate) struct Loans {
    /// The number of the first of `chains`.
    first: u64,
    /// Done with on this core, in ring order, from the first on that is away; whether each is.
    chains: VecDeque<(Used, bool)>,
    /// Lent in the batch that is under way, in ring order.
    fresh: Vec<u64>,
}

impl Loans {
    /// The number of the first chain of the batch that begins.
    #[inline]
    pub(crate) fn next(&self) -> u64 {
        self.first + self.chains.len() as u64
    }

    /// Whether no chain is away.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.chains.is_empty() && self.fresh.is_empty()
    }

    /// A chain of the batch that is under way is away.
    pub(crate) fn lend(&mut self, number: u64) {
        self.fresh.push(number);
    }

    /// The batch is done with, the first of its chains being [`next`](Self::next): those that nothing keeps are
    /// finished.
    pub(crate) fn settle(&mut self, batch: impl Iterator<Item = Used>, finished: &mut Vec<Used>) {
        let mut fresh = self.fresh.drain(..).peekable();
        for (number, used) in (self.first + self.chains.len() as u64..).zip(batch) {
            let is_away = fresh.next_if_eq(&number).is_some();
            self.chains.push_back((used, is_away));
        }
        drop(fresh);
        self.finish(finished);
    }

    /// A chain came back. One that is not known was lent by a batch that broke its queue.
    pub(crate) fn take_back(&mut self, number: u64, finished: &mut Vec<Used>) {
        let at = number.checked_sub(self.first).and_then(|at| usize::try_from(at).ok());
        if let Some((_, is_away)) = at.and_then(|at| self.chains.get_mut(at)) {
            *is_away = false;
        }
        self.finish(finished);
    }

    fn finish(&mut self, finished: &mut Vec<Used>) {
        while let Some(&(used, false)) = self.chains.front() {
            self.chains.pop_front();
            self.first += 1;
            finished.push(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(id: u16) -> Used {
        Used { id, descriptors: 1, written: 0 }
    }

    fn ids(finished: &mut Vec<Used>) -> Vec<u16> {
        finished.drain(..).map(|used| used.id).collect()
    }

    #[test]
    fn what_is_done_with_behind_a_loan_waits_for_it() {
        let (mut loans, mut finished) = (Loans::default(), Vec::new());
        let first = loans.next();
        loans.lend(first + 1);
        loans.lend(first + 3);
        loans.settle((0..5).map(used), &mut finished);
        assert_eq!(ids(&mut finished), [0]);
        loans.settle((5..7).map(used), &mut finished);
        assert_eq!(ids(&mut finished), [0; 0]);
        // From two cores, in whatever order.
        loans.take_back(first + 3, &mut finished);
        assert_eq!((ids(&mut finished), loans.is_settled()), (vec![], false));
        loans.take_back(first + 1, &mut finished);
        assert_eq!((ids(&mut finished), loans.is_settled()), (vec![1, 2, 3, 4, 5, 6], true));
        assert_eq!(loans.next(), first + 7);
    }

    #[test]
    fn a_number_that_is_not_away_changes_nothing() {
        let (mut loans, mut finished) = (Loans::default(), Vec::new());
        loans.lend(loans.next());
        loans.settle([used(0)].into_iter(), &mut finished);
        loans.take_back(7, &mut finished);
        assert!(!loans.is_settled());
        loans.take_back(0, &mut finished);
        loans.take_back(0, &mut finished);
        assert_eq!((ids(&mut finished), loans.is_settled()), (vec![0], true));
    }
}
