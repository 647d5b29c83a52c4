//! How a core without work sleeps, and until when.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use softdpu_sched::{Nanos, TenantScheduler};
use softdpu_sys::clock;

use super::{Core, INTAKE};
use crate::queue::{Role, RunningQueue};
use crate::sleep::Waker;

/// The longest sleep, so that time-outs of back ends are noticed.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

/// For how long a core sleeps while frames wait for a socket that took no more: an interface drains in less.
const BACKED_UP_NS: u64 = 100_000;

impl<S: TenantScheduler> Core<S> {
    /// Sleeps until a driver, a back end, a message or a deadline wakes the core.
    pub(super) fn nap(&mut self) {
        self.look_around();
        let now = Nanos(clock::now());
        let mut slipped = !self.net.parcels.is_empty()
            || !self.net.arrived.is_empty()
            || self.net.steer.is_ready()
            || self.queues.is_any_unpublished()
            || !self.interrupts.is_empty();
        let mut armed = 0;
        let mut broken = Vec::new();
        while armed < self.queues.len() && !slipped {
            let Some(number) = self.queues.number_at(armed) else { break };
            armed += 1;
            let Some(queue) = self.queues.get_mut(number) else { continue };
            // What its tenant's channel has no room for stays in the ring, until a time or a back end makes some.
            let is_full = self.channels.room(queue.spec.tenant) == 0 || queue.waiting.len() >= INTAKE;
            if !queue.is_polled() || queue.is_rate_limited(now) || is_full {
                continue;
            }
            if queue.spec.kick.is_none() {
                slipped = true;
                continue;
            }
            match queue.spec.ring.arm() {
                Ok(more) => slipped |= more,
                Err(error) => broken.push((number, error)),
            }
        }
        let rests = self.channels.total() == 0 || self.dispatcher.idle_until().0 > now.0;
        if !slipped && broken.is_empty() && rests && self.inbox.fall_asleep() {
            self.accounting.counters.sleeps.add(1);
            self.accounting.counters.asleep.store(true, Relaxed);
            // By the time at which limits were looked at: a queue that was not armed for one is not forgotten.
            let limit = self.sleep_limit(now.0);
            let queues = &self.queues;
            self.sleep.wait(Some(limit), |waker| {
                if let Waker::Queue(number) = waker
                    && let Some(queue) = queues.get(number)
                {
                    queue.spec.counters.kicks.add(1);
                }
            });
            self.accounting.counters.asleep.store(false, Relaxed);
            self.inbox.wake_up();
        }
        for place in 0..armed {
            if let Some(number) = self.queues.number_at(place)
                && let Some(queue) = self.queues.get_mut(number)
                && queue.is_polled()
            {
                queue.spec.ring.disarm();
            }
        }
        for (number, error) in broken {
            self.break_queue(number, error.to_string());
        }
        self.look_around();
    }

    fn sleep_limit(&self, now: u64) -> u64 {
        let limits = self.queues.iter().filter_map(|queue| match &queue.spec.role {
            Role::Transmit(transmit) if queue.is_rate_limited(Nanos(now)) => Some(transmit.next(Nanos(now)).0),
            _ => None,
        });
        let stops = self.queues.iter().filter_map(RunningQueue::stop_deadline);
        let backend =
            self.disk.next_deadline().map(|at| at.saturating_duration_since(Instant::now()).as_nanos() as u64);
        let grants = (self.channels.total() > 0).then_some(self.dispatcher.idle_until().0);
        // Nothing tells that a full socket takes frames again.
        let sockets = self.net.is_backed_up().then_some(now + BACKED_UP_NS);
        stops
            .chain(limits)
            .chain(grants)
            .chain(sockets)
            .chain(self.net.functions_due())
            .map(|deadline| deadline.saturating_sub(now))
            .chain(backend)
            .chain([LONGEST_SLEEP_NS])
            .min()
            .unwrap_or(LONGEST_SLEEP_NS)
    }
}
