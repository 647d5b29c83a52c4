//! What was finished becomes visible to drivers: used rings and interrupts.

use std::os::fd::AsFd;

use rustix::io::Errno;
use softdpu_sys::clock;
use softdpu_sys::notify::Notifier;

use super::accounting::Accounting;
use crate::links::CoreLinks;
use crate::message::FromCore;
use crate::queue::{QueueTable, RunningQueue};

/// Publishes used entries of a core's queues, and interrupts their drivers.
pub(super) struct Completions {
    notifier: Notifier,
    /// Numbers of queues with drivers that are to be interrupted.
    interrupts: Vec<u32>,
    /// The kernel did not take the interrupts the last time.
    is_failing: bool,
    /// The first completion was reported.
    is_announced: bool,
}

impl Completions {
    pub(super) fn new(notifier: Notifier) -> Completions {
        Completions { notifier, interrupts: Vec::new(), is_failing: false, is_announced: false }
    }

    /// Whether drivers are to be interrupted.
    #[inline]
    pub(super) fn has_interrupts(&self) -> bool {
        !self.interrupts.is_empty()
    }

    /// Whether drivers of other queues than `number` are to be interrupted.
    #[inline]
    pub(super) fn has_interrupts_besides(&self, number: u32) -> bool {
        self.interrupts.iter().any(|other| *other != number)
    }

    /// Publishes the used entries of all queues, and interrupts drivers. Returns the queues, some of which may have
    /// broken, as the list that is to be [returned](QueueTable::return_unpublished).
    pub(super) fn publish(
        &mut self,
        queues: &mut QueueTable,
        accounting: &mut Accounting,
        links: &CoreLinks,
    ) -> Vec<u32> {
        let mut started = clock::now();
        let numbers = queues.take_unpublished();
        for &number in &numbers {
            if let Some(queue) = queues.get_mut(number) {
                queue.is_unpublished = false;
                if queue.suspect > 0 {
                    // What was published before it, and it alone.
                    accounting.charge_published(queues, started);
                    started = clock::now();
                }
                let count = self.complete(queues, number, accounting, links);
                if count > 0 {
                    accounting.published(number, count);
                }
                if let Some(queue) = queues.get_mut(number).filter(|queue| queue.suspect > 0) {
                    queue.suspect -= 1;
                    accounting.charge_published(queues, started);
                    started = clock::now();
                }
            }
        }
        accounting.charge_published(queues, started);
        if self.has_interrupts() {
            let mut interrupts = std::mem::take(&mut self.interrupts);
            let is_alone = |number: &u32| queues.get(*number).is_some_and(|queue| queue.suspect > 0);
            if interrupts.iter().any(is_alone) {
                let alone: Vec<u32> = interrupts.extract_if(.., |number| is_alone(number)).collect();
                for number in &alone {
                    self.interrupt_and_charge(queues, std::slice::from_ref(number), accounting);
                }
            }
            self.interrupt_and_charge(queues, &interrupts, accounting);
            if self.interrupts.is_empty() {
                interrupts.clear();
                self.interrupts = interrupts;
            }
        }
        numbers
    }

    /// Interrupts the drivers of these queues, which are charged with it.
    #[inline]
    pub(super) fn interrupt_and_charge(
        &mut self,
        queues: &mut QueueTable,
        numbers: &[u32],
        accounting: &mut Accounting,
    ) {
        if !numbers.is_empty() {
            let started = clock::now();
            self.interrupt(queues, numbers);
            accounting.charge_interrupts(queues, numbers, started);
        }
    }

    /// Publishes what a grant has finished, of whatever queue. Interrupts wait for [`publish`](Self::publish).
    pub(super) fn complete_touched(&mut self, queues: &mut QueueTable, accounting: &Accounting, links: &CoreLinks) {
        let (mut place, mut kept) = (0, 0);
        while let Some(number) = queues.unpublished_at(place) {
            place += 1;
            self.complete(queues, number, accounting, links);
            let Some(queue) = queues.get_mut(number) else { continue };
            // One that is to end is visited again when its driver was interrupted.
            queue.is_unpublished = queue.stop_deadline().is_some();
            if queue.is_unpublished {
                queues.keep_unpublished(kept, number);
                kept += 1;
            }
        }
        queues.truncate_unpublished(kept);
    }

    /// Publishes the used entries of a queue. An interrupt that its driver wants waits for [`publish`](Self::publish),
    /// behind those that the kernel did not take before. Returns how many entries those were.
    #[inline]
    pub(super) fn complete(
        &mut self,
        queues: &mut QueueTable,
        number: u32,
        accounting: &Accounting,
        links: &CoreLinks,
    ) -> u32 {
        let Some(queue) = queues.get_mut(number) else { return 0 };
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
                accounting.counters.completed.add(u64::from(count));
                if !self.is_announced {
                    self.is_announced = true;
                    links.report(FromCore::FirstCompletion { at_ns: clock::now() });
                }
            }
            Err(error) => {
                queues.break_queue(number, error.to_string());
                return 0;
            }
        }
        count
    }

    /// Interrupts the drivers of these queues, with one system call.
    #[inline]
    fn interrupt(&mut self, queues: &QueueTable, numbers: &[u32]) {
        let queues = numbers.iter().filter_map(|&number| queues.get(number));
        let calls = queues.filter_map(|queue| Some(queue.spec.call.as_ref()?.as_fd()));
        let sent = self.notifier.signal(calls);
        self.interrupted(numbers, sent);
    }

    /// The interrupts of these queues were sent, or are to be tried again.
    #[inline]
    pub(super) fn interrupted(&mut self, numbers: &[u32], sent: Result<(), Errno>) {
        match sent {
            Ok(()) => self.is_failing = false,
            Err(error) => {
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::error!(%error, "interrupts could not be sent; they are tried again");
                }
                self.interrupts.extend_from_slice(numbers);
            }
        }
    }

    /// Signals a queue's error eventfd: its driver has broken it (SET_VRING_ERR).
    pub(super) fn signal_error(&mut self, queue: &RunningQueue) {
        if let Err(error) = self.notifier.signal(queue.spec.error.as_ref().map(AsFd::as_fd)) {
            tracing::error!(%error, "the error eventfd of a broken queue could not be signalled");
        }
    }
}
