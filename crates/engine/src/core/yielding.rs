//! A core gives its CPU away, and takes it back when there is work ([`Yielding`](softdpu_sched::Yielding)).
//!
//! ```text
//!  empty polls ─▶ notifications armed ─▶ rings and mailbox looked at once more ─▶ slice ─▶ disarmed ─▶ polls
//!                                                 │                                         ▲
//!                                                 └──────────── something came ─────────────┘
//! ```
//!
//! The second look closes the gap in which a wake-up could be lost: what came before notifications were armed is seen,
//! what comes after rings (`tests/loom.rs` of this crate and of `softdpu-ring`).

use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use softdpu_sched::{Nanos, SliceEnd, TenantScheduler, YieldPolicy, YieldedSlice};
use softdpu_sys::clock;

use super::{Core, INTAKE};
use crate::queue::{Role, RunningQueue};
use crate::sleep::Waker;

/// Between two looks of the slow core at a ring that has no notifications.
const SLOW_POLL: Duration = Duration::from_micros(100);

/// For how long a core sleeps while frames wait for a socket that took no more: an interface drains in less.
const BACKED_UP_NS: u64 = 100_000;

/// A core's idle time until now.
#[derive(Clone, Copy, Debug)]
pub(super) struct Idle {
    /// Since when.
    since: u64,
    /// Empty polls in a row.
    pub(super) polls: u64,
}

impl Idle {
    /// It begins.
    #[inline]
    pub(super) fn since(now: u64) -> Idle {
        Idle { since: now, polls: 0 }
    }

    /// How long it is, up to `now`.
    #[inline]
    pub(super) fn spun(self, now: u64) -> Nanos {
        Nanos(now.saturating_sub(self.since))
    }
}

/// Whether a wait of `limit` nanoseconds is over that has taken `took` by this clock, which the kernel's may be a
/// little ahead of. It is not where a signal has ended it.
fn is_over(took: u64, limit: u64) -> bool {
    took.saturating_add(limit >> 10) >= limit
}

impl<S: TenantScheduler> Core<S> {
    /// Sets when the core yields.
    pub(super) fn set_yielding(&mut self, policy: YieldPolicy) {
        self.work.dispatcher.set_yielding(policy);
        self.publish_yielding();
    }

    fn publish_yielding(&self) {
        let (yielding, counters) = (self.work.dispatcher.yielding(), &self.accounting.counters.yields);
        counters.threshold.set(yielding.threshold().unwrap_or(0));
        counters.slice_ns.set(yielding.slice().0);
    }

    /// Gives the CPU away, after `idle` up to `now`, until a driver, a back end, a message or a deadline wakes the
    /// core, at most for `slice`. Returns at once where there is work after all.
    pub(super) fn give_away(&mut self, idle: Idle, now: u64, slice: Nanos) {
        let spun = idle.spun(now);
        self.tick();
        let now = Nanos(clock::now());
        let has_work = self.frames.has_work() || self.queues.is_any_unpublished() || self.completions.has_interrupts();
        if has_work {
            return self.tick();
        }
        let Core { queues, work, .. } = self;
        // What its tenant's channel has no room for stays in the ring, until a time or a back end makes some.
        let is_full =
            |queue: &RunningQueue| work.channels.room(queue.spec.tenant) == 0 || queue.waiting.len() >= INTAKE;
        let armed = queues.arm(|queue| queue.is_rate_limited(now) || queue.is_resting(now) || is_full(queue));
        if self.links.is_slow() && !armed.may_sleep() {
            // It has no CPU of its own.
            std::thread::sleep(SLOW_POLL);
        }
        let mut end = None;
        if armed.may_sleep() && !self.work.is_due(now) && self.inbox.fall_asleep() {
            // By the time at which limits were checked: a queue that was not armed for one is not forgotten.
            let due = self.next_due(now.0).unwrap_or(u64::MAX);
            end = Some(self.sleep_for(slice.0.min(due), slice.0 <= due));
            self.inbox.wake_up();
        }
        self.queues.disarm(armed);
        self.settle_broken();
        if let Some(end) = end {
            let slice = YieldedSlice { now: Nanos(clock::now()), polls: idle.polls, spun, slice, end };
            self.work.dispatcher.yielded(slice);
            self.publish_yielding();
        }
        if end == Some(SliceEnd::Preempted) {
            // Work first: counters wait for the next tick. But the wait that was no queue's is not to become one.
            self.accounting.restart_steal(clock::now());
        } else {
            self.tick();
        }
    }

    /// Sleeps for up to `limit` nanoseconds. `is_slice`: that is all of the slice. Returns what ended it.
    fn sleep_for(&self, limit: u64, is_slice: bool) -> SliceEnd {
        let counters = &self.accounting.counters;
        counters.sleeps.add(1);
        counters.asleep.store(true, Relaxed);
        let began = clock::now();
        let (queues, mut first) = (&self.queues, None);
        self.sleep.wait(limit, |waker| {
            first.get_or_insert(waker);
            if let Waker::Queue(number) = waker
                && let Some(queue) = queues.get(number)
            {
                queue.spec.counters.kicks.add(1);
            }
        });
        counters.asleep.store(false, Relaxed);
        let yields = &counters.yields;
        let (woken, end) = match first {
            Some(Waker::Queue(_)) => (&yields.by_kick, SliceEnd::Preempted),
            Some(Waker::Mailbox) => (&yields.by_message, SliceEnd::Preempted),
            Some(Waker::Backend) => (&yields.by_back_end, SliceEnd::Preempted),
            Some(Waker::Port(_)) => (&yields.by_socket, SliceEnd::Preempted),
            None if is_slice && is_over(clock::now().saturating_sub(began), limit) => {
                (&yields.by_timer, SliceEnd::Expired)
            }
            None => (&yields.by_timer, SliceEnd::Due),
        };
        woken.add(1);
        match end {
            SliceEnd::Expired => yields.expired.add(1),
            SliceEnd::Preempted => yields.preempted.add(1),
            SliceEnd::Due => {}
        }
        end
    }

    /// In how many nanoseconds from `now` something falls due that the core knows of, if anything.
    fn next_due(&self, now: u64) -> Option<u64> {
        let limits = self.queues.iter().filter_map(|queue| match &queue.spec.role {
            Role::Transmit(transmit) if queue.is_rate_limited(Nanos(now)) => Some(transmit.next(Nanos(now)).0),
            _ => None,
        });
        let stops = self.queues.iter().filter_map(RunningQueue::stop_deadline);
        let rests = self.queues.iter().map(|queue| queue.rests_until).filter(|until| *until > now);
        let backend =
            self.disk.next_deadline().map(|at| at.saturating_duration_since(Instant::now()).as_nanos() as u64);
        let grants = self.work.is_waiting().then_some(self.work.dispatcher.idle_until().0);
        // Nothing tells that a full socket takes frames again.
        let sockets = self.frames.is_backed_up().then_some(now + BACKED_UP_NS);
        stops
            .chain(limits)
            .chain(rests)
            .chain(grants)
            .chain(sockets)
            .chain(self.frames.functions_due())
            .map(|deadline| deadline.saturating_sub(now))
            .chain(backend)
            .min()
    }
}
