//! What another process wrote, before it ended or while it ends.

use std::os::fd::BorrowedFd;

use softdpu_sys::words::OthersWords;

use super::check;
use super::layout::{FIXED, FIXED_CHECK, Format, LINKS, Layout, MOST_WORDS, NONE, NotRead};

/// A record as it was written by what may not have meant well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<const F: usize, const T: usize> {
    /// What stays the same.
    pub fixed: [u64; F],
    /// What changes; None: it was being changed.
    pub tail: Option<[u64; T]>,
}

/// The table of a process before this one.
#[derive(Debug)]
pub struct Predecessor<const F: usize, const T: usize> {
    words: OthersWords,
    layout: Layout,
}

impl<const F: usize, const T: usize> Predecessor<F, T> {
    /// Opens the file of a table with records of a kind.
    ///
    /// # Errors
    /// [`NotRead`].
    pub fn open(file: BorrowedFd<'_>, kind: u64) -> Result<Predecessor<F, T>, NotRead> {
        let words = OthersWords::open(file, MOST_WORDS)?;
        let layout = Layout::read(&words, Format { kind, fixed: F, tail: T })?;
        Ok(Predecessor { words, layout })
    }

    /// What its records are hashed by.
    pub fn seed(&self) -> [u64; 2] {
        self.layout.seed
    }

    /// The number of the first record from `number` on that was ever used.
    pub fn next(&self, number: usize) -> Option<usize> {
        let slots = self.layout.slots;
        let first = number / slots.max(1);
        (first..self.layout.shards).find_map(|shard| {
            let slot = if shard == first { number % slots } else { 0 };
            (slot < slots && (slot as u64) < self.words.load(self.layout.used(shard))).then_some(shard * slots + slot)
        })
    }

    /// The part of a record behind its check at `at`, if that is whole.
    fn part<const N: usize>(&self, at: usize) -> Option<[u64; N]> {
        let expected = self.words.load(at);
        if expected == 0 {
            return None;
        }
        let words: [u64; N] = std::array::from_fn(|word| self.words.load(at + 1 + word));
        (check(&words) == expected).then_some(words)
    }

    /// A record by its number, if it is whole.
    pub fn record(&self, number: usize) -> Option<Record<F, T>> {
        if number >= self.layout.records() {
            return None;
        }
        let at = self.layout.record(number);
        let fixed = self.part(at + FIXED_CHECK)?;
        debug_assert_eq!(FIXED_CHECK + 1, FIXED);
        Some(Record { fixed, tail: self.part(at + self.layout.tail_check()) })
    }

    /// The records in the chain of a hash: at most so many are looked at.
    pub fn chain(&self, hash: u64, most: usize) -> impl Iterator<Item = Record<F, T>> {
        let (chain, _) = self.layout.chain_of(hash);
        let first = self.words.load(self.layout.chain(chain)) as u32;
        let number = |stands: u32| {
            (stands != NONE).then(|| stands as usize - 1).filter(|number| *number < self.layout.records())
        };
        let next = move |at: &usize| number((self.words.load(self.layout.record(*at) + LINKS) >> 32) as u32);
        std::iter::successors(number(first), next).take(most).filter_map(|at| self.record(at))
    }
}
