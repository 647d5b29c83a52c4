//! Work in the order in which it became ready.

use std::collections::VecDeque;

use crate::{Grant, Nanos, QueueId};

/// Work units, first in, first out: a tenant's channel as a policy sees it, or one for all tenants.
///
/// Adjacent arrivals of one queue merge into one entry, so memory is bounded by the number of alternations, which the
/// caller's bounded channels bound in turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fifo {
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

impl Fifo {
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

    /// Takes up to `most` units, at least 1, of the first queue. Returns also since when the first of them waits.
    #[inline]
    pub(crate) fn pop(&mut self, most: u32) -> Option<(Grant, Nanos)> {
        self.take(0, most)
    }

    /// As [`pop`](Self::pop), of the first queue that `may` be served.
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

    /// Units that wait.
    #[inline]
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting
    }
}
