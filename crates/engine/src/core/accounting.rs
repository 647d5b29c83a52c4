//! Where a core's time goes: to grants, to work outside of grants that queues are charged with later, and to the
//! kernel.

use std::sync::Arc;

use softdpu_sched::TenantId;
use softdpu_sys::clock;

use crate::counters::{CoreCounters, TenantCounters};
use crate::queue::QueueTable;
use crate::steal::{SUSPICIOUS_NS, Spent, StealTime, ThreadUse};

/// How often a queue is looked at alone that was one of several for which a core has waited.
const SUSPECT_FOR: u8 = 64;

/// A core's accounts of its time.
pub(super) struct Accounting {
    /// The core's own counters.
    pub(super) counters: Arc<CoreCounters>,
    /// By tenant.
    tenants: Vec<Option<Arc<TenantCounters>>>,
    steal: StealTime,
    overhead: Overhead,
}

/// Work outside of grants that is not divided among its queues yet: it is done for several at once.
#[derive(Default)]
struct Overhead {
    /// Queues, and how many of their requests were handed to back ends since the last flush.
    submitted: Vec<(u32, u32)>,
    /// Queues, and how many of their requests were published.
    published: Vec<(u32, u32)>,
    /// What polling back ends took in this round: of those in `published`.
    polling: Spent,
}

impl Accounting {
    pub(super) fn new(counters: Arc<CoreCounters>) -> Accounting {
        Accounting { counters, tenants: Vec::new(), steal: StealTime::default(), overhead: Overhead::default() }
    }

    /// The time between two readings of the clock, less steal time where it is long enough that there may be some.
    #[inline]
    pub(super) fn cpu_time(&mut self, started: u64, ended: u64) -> u64 {
        self.spent(started, ended).time
    }

    /// As [`cpu_time`](Self::cpu_time), and whether the core has waited.
    #[inline]
    pub(super) fn spent(&mut self, started: u64, ended: u64) -> Spent {
        let time = ended.saturating_sub(started);
        if time > SUSPICIOUS_NS {
            self.steal.subtract(time, ended, thread_use())
        } else {
            Spent { time, has_waited: false }
        }
    }

    /// Steal time before `now` is not counted.
    pub(super) fn restart_steal(&mut self, now: u64) {
        self.steal.restart(now, thread_use());
    }

    /// `count` requests of a queue were handed to a back end, and are to be charged with the flush.
    #[inline]
    pub(super) fn submitted(&mut self, number: u32, count: u32) {
        self.overhead.submitted.push((number, count));
    }

    /// Whether anything was handed to back ends since the last [`charge_submitted`](Self::charge_submitted).
    #[inline]
    pub(super) fn has_submitted(&self) -> bool {
        !self.overhead.submitted.is_empty()
    }

    /// Flushing what was submitted took from `started` to `ended`.
    pub(super) fn charge_submitted(&mut self, queues: &mut QueueTable, started: u64, ended: u64) {
        let spent = self.spent(started, ended);
        divide(queues, &mut self.overhead.submitted, spent);
    }

    /// Polling back ends took from `started` until now, and is charged to the queues that are published next.
    pub(super) fn polled_back_ends(&mut self, started: u64) {
        self.overhead.polling = self.spent(started, clock::now());
    }

    /// `count` completions of a queue were published.
    #[inline]
    pub(super) fn published(&mut self, number: u32, count: u32) {
        self.overhead.published.push((number, count));
    }

    /// Publishing took from `started` until now.
    pub(super) fn charge_published(&mut self, queues: &mut QueueTable, started: u64) {
        if self.overhead.published.is_empty() {
            return;
        }
        let spent = self.spent(started, clock::now());
        let polling = std::mem::take(&mut self.overhead.polling);
        let has_waited = spent.has_waited || polling.has_waited;
        divide(queues, &mut self.overhead.published, Spent { time: spent.time + polling.time, has_waited });
    }

    /// Interrupting the drivers of these queues took from `started` until now.
    pub(super) fn charge_interrupts(&mut self, queues: &mut QueueTable, numbers: &[u32], started: u64) {
        self.overhead.published.extend(numbers.iter().map(|number| (*number, 1)));
        let spent = self.spent(started, clock::now());
        // A long one has visited many watches, or has waited for what does.
        let has_waited = spent.time > SUSPICIOUS_NS;
        divide(queues, &mut self.overhead.published, Spent { has_waited, ..spent });
    }

    /// Signalling the error eventfd of a queue took from `started` until now.
    pub(super) fn signalled_error(&mut self, queues: &mut QueueTable, number: u32, started: u64) {
        let Spent { time, .. } = self.spent(started, clock::now());
        if time > SUSPICIOUS_NS {
            queues.stalled(number, time);
        }
    }

    /// Sets the counters of a tenant.
    pub(super) fn set_tenant(&mut self, tenant: TenantId, counters: Arc<TenantCounters>) {
        let index = usize::from(tenant.0);
        if self.tenants.len() <= index {
            self.tenants.resize_with(index + 1, || None);
        }
        self.tenants[index] = Some(counters);
    }

    /// The counters of a tenant.
    #[inline]
    pub(super) fn tenant(&self, tenant: TenantId) -> Option<&TenantCounters> {
        self.tenants.get(usize::from(tenant.0))?.as_deref()
    }

    /// The counters of every tenant.
    pub(super) fn tenants(&self) -> impl Iterator<Item = (TenantId, &TenantCounters)> {
        let numbered = self.tenants.iter().enumerate();
        numbered.filter_map(|(index, counters)| Some((TenantId(index as u16), counters.as_deref()?)))
    }
}

fn thread_use() -> ThreadUse {
    ThreadUse { cpu_time: clock::thread_time(), waits: clock::thread_waits() }
}

/// Divides what was spent among the queues of a list by their counts, to be charged with their next grants. The list is
/// emptied. If the core has waited, the only one of the list made it wait. Of several it is not known which did: they
/// are charged with no more than an ordinary span, and looked at alone for some time.
fn divide(queues: &mut QueueTable, among: &mut Vec<(u32, u32)>, spent: Spent) {
    let Spent { mut time, has_waited } = spent;
    if has_waited {
        match among[..] {
            [(number, _)] => queues.stalled(number, time),
            _ => {
                time = time.min(SUSPICIOUS_NS);
                for (number, _) in among.iter() {
                    if let Some(queue) = queues.get_mut(*number) {
                        queue.suspect = SUSPECT_FOR;
                    }
                }
            }
        }
    }
    let all: u64 = among.iter().map(|(_, count)| u64::from(*count)).sum();
    for (number, count) in among.drain(..) {
        if let Some(queue) = queues.get_mut(number) {
            queue.uncharged += time * u64::from(count) / all.max(1);
        }
    }
}
