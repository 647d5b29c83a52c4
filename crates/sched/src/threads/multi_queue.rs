//! A queue for each service level objective.

use std::collections::{BTreeMap, VecDeque};

use super::{Order, SloClass, ThreadId, ThreadPolicy};
use crate::Nanos;

/// Threads by the part of their class's SLO that they have waited: the first of the queue with the largest part is the
/// next (Kaffes et al., NSDI '19, §3.2; Wave §7.3.2).
#[derive(Debug)]
pub struct MultiQueueOrder {
    queues: BTreeMap<SloClass, VecDeque<(ThreadId, Nanos)>>,
    slos: BTreeMap<SloClass, Nanos>,
    slice: Nanos,
}

impl ThreadPolicy<MultiQueueOrder> {
    /// The objectives of classes, and the slice after which a thread gives way. A class without an objective has the
    /// longest of them.
    pub fn multi_queue(slos: impl IntoIterator<Item = (SloClass, Nanos)>, slice: Nanos) -> Self {
        ThreadPolicy::with_order(MultiQueueOrder { queues: BTreeMap::new(), slos: slos.into_iter().collect(), slice })
    }
}

impl MultiQueueOrder {
    fn slo(&self, class: SloClass) -> u128 {
        let longest = || self.slos.values().copied().max().unwrap_or(Nanos::MILLI);
        u128::from(self.slos.get(&class).copied().unwrap_or_else(longest).0.max(1))
    }
}

impl Order for MultiQueueOrder {
    fn insert(&mut self, now: Nanos, thread: ThreadId, class: SloClass, first: bool) {
        let queue = self.queues.entry(class).or_default();
        match first {
            // It has waited for at least as long as the one behind it.
            true => queue.push_front((thread, queue.front().map_or(now, |(_, since)| *since))),
            false => queue.push_back((thread, now)),
        }
    }

    fn take(&mut self, now: Nanos, allowed: &dyn Fn(ThreadId) -> bool) -> Option<ThreadId> {
        let mut best: Option<(SloClass, usize, u128, u128)> = None;
        for (class, queue) in &self.queues {
            let Some(at) = queue.iter().position(|(thread, _)| allowed(*thread)) else { continue };
            let (waited, slo) = (u128::from(now.since(queue[at].1).0), self.slo(*class));
            // waited / slo > best waited / best slo; of equals, the shorter objective.
            let is_better = best.is_none_or(|(_, _, most, of)| (waited * of, of) > (most * slo, slo));
            if is_better {
                best = Some((*class, at, waited, slo));
            }
        }
        let (class, at, ..) = best?;
        self.queues.get_mut(&class)?.remove(at).map(|(thread, _)| thread)
    }

    fn remove(&mut self, thread: ThreadId) {
        for queue in self.queues.values_mut() {
            queue.retain(|(waiting, _)| *waiting != thread);
        }
    }

    fn len(&self) -> usize {
        self.queues.values().map(VecDeque::len).sum()
    }

    fn is_over(&self, _now: Nanos, _thread: ThreadId, ran: Nanos) -> bool {
        ran >= self.slice
    }

    fn next_check(&self, now: Nanos, since: Nanos) -> Option<Nanos> {
        Some(now.max(since + self.slice))
    }
}
