//! First come, first served, with a time slice or without one.

use std::collections::VecDeque;

use super::{Order, SloClass, ThreadId, ThreadPolicy};
use crate::Nanos;

/// Threads in the order in which they became runnable.
#[derive(Debug, Default)]
pub struct FifoOrder {
    queue: VecDeque<ThreadId>,
    slice: Option<Nanos>,
}

impl ThreadPolicy<FifoOrder> {
    /// Threads run until they block (Wave §7.2.2).
    pub fn run_to_completion() -> Self {
        ThreadPolicy::with_order(FifoOrder::default())
    }

    /// Threads give way after a slice, where others wait (Wave §7.2.3: 30 µs, [`SLICE`](super::SLICE)).
    pub fn preemptive(slice: Nanos) -> Self {
        ThreadPolicy::with_order(FifoOrder { queue: VecDeque::new(), slice: Some(slice) })
    }
}

impl Order for FifoOrder {
    fn insert(&mut self, _now: Nanos, thread: ThreadId, _class: SloClass, first: bool) {
        match first {
            true => self.queue.push_front(thread),
            false => self.queue.push_back(thread),
        }
    }

    fn take(&mut self, _now: Nanos, allowed: &dyn Fn(ThreadId) -> bool) -> Option<ThreadId> {
        let at = self.queue.iter().position(|thread| allowed(*thread))?;
        self.queue.remove(at)
    }

    fn remove(&mut self, thread: ThreadId) {
        if let Some(at) = self.queue.iter().position(|waiting| *waiting == thread) {
            self.queue.remove(at);
        }
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn is_over(&self, _now: Nanos, _thread: ThreadId, ran: Nanos) -> bool {
        self.slice.is_some_and(|slice| ran >= slice)
    }

    fn next_check(&self, now: Nanos, since: Nanos) -> Option<Nanos> {
        self.slice.map(|slice| now.max(since + slice))
    }
}
