//! What was finished becomes visible to drivers.

use std::os::fd::AsFd;

use rustix::io::Errno;
use softdpu_sched::TenantScheduler;
use softdpu_sys::clock;

use super::Core;
use crate::message::{FromCore, ToCore};

impl<S: TenantScheduler> Core<S> {
    /// Makes what was finished visible to the drivers, and tells those who want to know.
    pub(super) fn publish(&mut self) {
        for (key, core, done) in self.travelling.drain(..) {
            self.accounting.counters.travelled.add(done.len() as u64);
            self.peers[core.0].send(ToCore::Completed { key, done });
        }
        if !self.queues.is_any_unpublished() && self.interrupts.is_empty() {
            return;
        }
        let started = clock::now();
        let numbers = self.queues.take_unpublished();
        for &number in &numbers {
            if let Some(queue) = self.queues.get_mut(number) {
                queue.is_unpublished = false;
                let count = self.complete(number);
                if count > 0 {
                    self.accounting.published(number, count);
                }
            }
        }
        self.accounting.charge_published(&mut self.queues, started);
        if !self.interrupts.is_empty() {
            let started = clock::now();
            let mut interrupts = std::mem::take(&mut self.interrupts);
            self.interrupt(&interrupts);
            self.accounting.charge_interrupts(&mut self.queues, &interrupts, started);
            if self.interrupts.is_empty() {
                interrupts.clear();
                self.interrupts = interrupts;
            }
        }
        for &number in &numbers {
            let queue = self.queues.get(number);
            if queue.is_some_and(|queue| queue.is_quiescent() && queue.stop_deadline().is_some()) {
                self.end_queue(number);
            }
        }
        self.queues.return_unpublished(numbers);
    }

    /// Makes visible what a grant has finished, of whatever queue.
    pub(super) fn complete_touched(&mut self) {
        let (mut place, mut kept) = (0, 0);
        while let Some(number) = self.queues.unpublished_at(place) {
            place += 1;
            self.complete(number);
            let Some(queue) = self.queues.get_mut(number) else { continue };
            // One that is to end is looked at again when its driver was told.
            queue.is_unpublished = queue.stop_deadline().is_some();
            if queue.is_unpublished {
                self.queues.keep_unpublished(kept, number);
                kept += 1;
            }
        }
        self.queues.truncate_unpublished(kept);
    }

    /// Makes visible to a queue's driver what was finished of it. That it wants to know is noted, behind those who
    /// could not be told before, for [`publish`](Self::publish). Returns how many those were.
    #[inline]
    pub(super) fn complete(&mut self, number: u32) -> u32 {
        let Some(queue) = self.queues.get_mut(number) else { return 0 };
        let count = queue.finished.len() as u32;
        if count == 0 {
            return 0;
        }
        let counters = &queue.spec.counters;
        if queue.is_broken() {
            queue.in_flight = queue.in_flight.saturating_sub(count);
            counters.in_flight.set(u64::from(queue.in_flight));
            queue.finished.clear();
            return 0;
        }
        match queue.spec.ring.complete(&queue.finished) {
            Ok(notify) => {
                if !notify {
                    counters.suppressed.add(1);
                } else if self.interrupts.last() != Some(&number) {
                    self.interrupts.push(number);
                    counters.interrupts.add(1);
                }
                queue.finished.clear();
                queue.in_flight = queue.in_flight.saturating_sub(count);
                counters.completed.add(u64::from(count));
                counters.in_flight.set(u64::from(queue.in_flight));
                self.accounting.counters.completed.add(u64::from(count));
                if !self.announced {
                    self.announced = true;
                    self.control.send(FromCore::FirstCompletion { at_ns: clock::now() });
                }
            }
            Err(error) => {
                self.break_queue(number, error.to_string());
                return 0;
            }
        }
        count
    }

    /// Sends the interrupts of these queues, with one system call.
    #[inline]
    pub(super) fn interrupt(&mut self, numbers: &[u32]) {
        let queues = numbers.iter().filter_map(|&number| self.queues.get(number));
        let calls = queues.filter_map(|queue| Some(queue.spec.call.as_ref()?.as_fd()));
        let sent = self.notifier.signal(calls);
        self.interrupted(numbers, sent);
    }

    /// The interrupts of these queues were sent, or are to be tried again.
    #[inline]
    pub(super) fn interrupted(&mut self, numbers: &[u32], sent: Result<(), Errno>) {
        match sent {
            Ok(()) => self.interrupts_fail = false,
            Err(error) => {
                if !std::mem::replace(&mut self.interrupts_fail, true) {
                    tracing::error!(%error, "interrupts could not be sent; they are tried again");
                }
                self.interrupts.extend_from_slice(numbers);
            }
        }
    }
}
