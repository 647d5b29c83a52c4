//! What a node reports while it runs.

use softdpu_sched::{Cost, Decision, Grant, Nanos, QueueId, TenantId};

use super::Queue;
use crate::histogram::Histogram;

/// A grant that ran.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// On which core.
    pub core: usize,
    /// What was granted. The remainder of a preempted grant is ready again.
    pub grant: Grant,
    /// What ran of it, and what that cost.
    pub cost: Cost,
    /// When it began, nanoseconds of simulated time.
    pub start: u64,
    /// When it ended.
    pub end: u64,
    /// When it ended by the policy's clock.
    pub policy_end: Nanos,
    /// Since when its first unit was there.
    pub since: u64,
    /// And since when the policy knew of it.
    pub known: u64,
    /// What deciding on it took, before it began.
    pub decision: u64,
}

/// Watches what happens, and changes nothing. Times are nanoseconds of simulated time.
pub trait Watch<S> {
    /// A unit was sent.
    fn arrived(&mut self, _now: u64, _tenant: TenantId, _bytes: u32) {}
    /// It was lost: its queue, or a link's buffer, was full.
    fn dropped(&mut self, _now: u64, _tenant: TenantId) {}
    /// Units were given up.
    fn cancelled(&mut self, _now: u64, _tenant: TenantId, _units: usize) {}
    /// A core has polled, and runs grants for a turn of this length before it polls again.
    fn polled(&mut self, _now: u64, _core: usize, _turn: Nanos) {}
    /// A policy decided, at `policy_now` by its clock.
    fn decided(
        &mut self,
        _now: u64,
        _policy_now: Nanos,
        _core: usize,
        _policy: &S,
        _decision: Decision,
        _queues: &[Queue],
    ) {
    }
    /// A grant ran.
    fn ran(&mut self, _ran: &Ran) {}
    /// Deferred work of a tenant ran for `time` nanoseconds. Otherwise than `is_charged` it is in the cost of the
    /// tenant's next grants.
    fn deferred(&mut self, _now: u64, _core: usize, _tenant: TenantId, _time: u64, _is_charged: bool) {}
    /// A station ended a unit that this core submitted.
    fn completed(&mut self, _now: u64, _core: usize, _queue: QueueId) {}
    /// A unit is done, so long after it came.
    fn finished(&mut self, _now: u64, _tenant: TenantId, _latency: u64, _bytes: u32) {}
    /// A queue went to another core.
    fn moved(&mut self, _now: u64, _queue: QueueId) {}
    /// A policy did what no policy may.
    fn broke(&mut self, _now: u64, _what: String) {}
}

/// Counts.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Nothing before this counts, nanoseconds.
    pub from: u64,
    /// By tenant.
    pub tenants: Vec<TenantTally>,
    /// The length of a window, nanoseconds; 0: there are none.
    pub window: u64,
    /// Core time that decisions took, nanoseconds.
    pub decisions: u64,
    /// Core time of each queue, nanoseconds, from the beginning on.
    pub queues: Vec<u64>,
}

/// What there was of a tenant.
#[derive(Clone, Debug, Default)]
pub struct TenantTally {
    /// Units that were sent, lost, and done.
    pub arrived: u64,
    /// Units that were lost.
    pub dropped: u64,
    /// Bytes of units that were done.
    pub bytes: u64,
    /// Core time, nanoseconds.
    pub time: u64,
    /// From coming to being done, nanoseconds.
    pub latency: Histogram,
    /// By window of time.
    pub windows: Vec<Window>,
}

/// What was done of a tenant in a window of time.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// Bytes.
    pub bytes: u64,
    /// Latencies.
    pub latency: Histogram,
}

impl Tally {
    /// Counts of so many tenants from a time on.
    pub fn new(tenants: usize, from: u64) -> Tally {
        Tally { from, tenants: vec![TenantTally::default(); tenants], window: 0, decisions: 0, queues: Vec::new() }
    }

    fn of(&mut self, now: u64, tenant: TenantId) -> Option<&mut TenantTally> {
        if now < self.from { None } else { self.tenants.get_mut(usize::from(tenant.0)) }
    }
}

impl<S> Watch<S> for Tally {
    fn arrived(&mut self, now: u64, tenant: TenantId, _bytes: u32) {
        if let Some(tally) = self.of(now, tenant) {
            tally.arrived += 1;
        }
    }

    fn dropped(&mut self, now: u64, tenant: TenantId) {
        if let Some(tally) = self.of(now, tenant) {
            tally.dropped += 1;
        }
    }

    fn ran(&mut self, ran: &Ran) {
        let queue = ran.grant.queue.index as usize;
        if self.queues.len() <= queue {
            self.queues.resize(queue + 1, 0);
        }
        self.queues[queue] += ran.end - ran.start;
        if ran.start >= self.from {
            self.decisions += ran.decision;
        }
        if let Some(tally) = self.of(ran.start, ran.grant.queue.tenant) {
            tally.time += ran.end - ran.start;
        }
    }

    fn deferred(&mut self, now: u64, _core: usize, tenant: TenantId, time: u64, _is_charged: bool) {
        if let Some(tally) = self.of(now.saturating_sub(time), tenant) {
            tally.time += time;
        }
    }

    fn finished(&mut self, now: u64, tenant: TenantId, latency: u64, bytes: u32) {
        let (from, window) = (self.from, self.window);
        let Some(tally) = self.of(now, tenant) else { return };
        tally.bytes += u64::from(bytes);
        tally.latency.add(latency);
        if let Some(index) = (now - from).checked_div(window) {
            let index = index as usize;
            if tally.windows.len() <= index {
                tally.windows.resize_with(index + 1, Window::default);
            }
            tally.windows[index].bytes += u64::from(bytes);
            tally.windows[index].latency.add(latency);
        }
    }
}
