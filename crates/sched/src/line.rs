//! Work in the order in which it became ready.

use std::collections::VecDeque;

use crate::{Grant, Nanos, QueueId};

/// A line of work units: a tenant's channel as a policy sees it, or one line for all.
///
/// Adjacent arrivals of one queue merge into one entry, so memory is bounded by the number of alternations, which the
/// caller's bounded channels bound in turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Line {
    entries: VecDeque<Entry>,
    waiting: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    queue: QueueId,
    units: u32,
    /// When the first of them became ready.
    since: Nanos,
}

impl Line {
    #[inline]
    pub(crate) fn push(&mut self, now: Nanos, queue: QueueId, units: u32) {
        if units == 0 {
            return;
        }
        self.waiting += u64::from(units);
        match self.entries.back_mut() {
            Some(last) if last.queue == queue && last.units <= u32::MAX - units => last.units += units,
            _ => self.entries.push_back(Entry { queue, units, since: now }),
        }
    }

    /// Takes up to `most` units of the first queue, which is at least one. Since when the first of them waited.
    #[inline]
    pub(crate) fn pop(&mut self, most: u32) -> Option<(Grant, Nanos)> {
        self.take(0, most)
    }

    /// The same of the first queue that `may` be served.
    pub(crate) fn pop_of(&mut self, most: u32, may: impl Fn(QueueId) -> bool) -> Option<(Grant, Nanos)> {
        let at = self.entries.iter().position(|entry| may(entry.queue))?;
        self.take(at, most)
    }

    #[inline]
    fn take(&mut self, at: usize, most: u32) -> Option<(Grant, Nanos)> {
        let entry = self.entries.get_mut(at)?;
        let grant = Grant { queue: entry.queue, units: entry.units.min(most.max(1)) };
        let since = entry.since;
        entry.units -= grant.units;
        if entry.units == 0 {
            self.entries.remove(at);
        }
        self.waiting -= u64::from(grant.units);
        Some((grant, since))
    }

    pub(crate) fn cancel(&mut self, queue: QueueId) {
        self.entries.retain(|entry| entry.queue != queue);
        self.waiting = self.entries.iter().map(|entry| u64::from(entry.units)).sum();
    }

    /// Units.
    #[inline]
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }
}
