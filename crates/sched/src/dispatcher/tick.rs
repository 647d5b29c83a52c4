//! When a running grant is checked for preemption.

use super::WORK_PER_POLL;
use crate::Nanos;

/// The ticks of a grant: none, or one after each interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PreemptionTick {
    /// 0: there are none.
    interval: Nanos,
    next: Nanos,
}

impl PreemptionTick {
    #[inline]
    pub(super) fn new(started: Nanos, interval: Option<Nanos>) -> PreemptionTick {
        let interval = interval.unwrap_or_default();
        PreemptionTick { interval, next: started + interval }
    }

    /// Whether the grant has ticks.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.interval > Nanos(0)
    }

    /// When the next tick is.
    #[inline]
    pub fn next(&self) -> Nanos {
        self.next
    }

    /// Whether it is time for a tick.
    #[inline]
    pub fn is_due(&self, now: Nanos) -> bool {
        self.is_on() && now >= self.next
    }

    /// A tick from `began` to `ended` has preempted nothing. The next one is an interval later, or as many times as
    /// long as it took if that is longer: a core with a thousand idle rings does not spend its time on ticks.
    #[inline]
    pub fn restart(&mut self, began: Nanos, ended: Nanos) {
        let pause = ended.since(began).0.saturating_mul(WORK_PER_POLL);
        self.next = ended + self.interval.max(Nanos(pause));
    }
}
