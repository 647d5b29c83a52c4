//! The work that waits on a core, and what decides which of it runs next.

use softdpu_sched::{Dispatcher, Nanos, PreemptReason, PreemptionTick, QueueId, TenantId, TenantScheduler, Work};
use softdpu_sys::clock;

use crate::channel::Channels;
use crate::queue::{QueueTable, Role, RunningQueue};

/// The channels of a core's tenants, and the dispatcher of what waits in them.
pub(super) struct WorkScheduler<S> {
    pub(super) dispatcher: Dispatcher<S>,
    pub(super) channels: Channels,
    /// Numbers of the queues on this core that bring work of tenants of class
    /// [`LatencyClass::Latency`](softdpu_sched::LatencyClass), where the policy preempts grants for them.
    urgent: Vec<u32>,
    granted: GrantedTenants,
    recent: RecentTenants,
}

/// The tenants that had grants in the last turn.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) enum GrantedTenants {
    #[default]
    None,
    One(TenantId),
    Several,
}

impl GrantedTenants {
    /// Whether there is another one than this.
    #[inline]
    fn is_beside(self, tenant: TenantId) -> bool {
        match self {
            GrantedTenants::None => false,
            GrantedTenants::One(one) => one != tenant,
            GrantedTenants::Several => true,
        }
    }

    #[inline]
    pub(super) fn add(&mut self, tenant: TenantId) {
        *self = match *self {
            GrantedTenants::None => GrantedTenants::One(tenant),
            GrantedTenants::One(one) if one == tenant => return,
            GrantedTenants::One(_) | GrantedTenants::Several => GrantedTenants::Several,
        }
    }
}

/// The tenants that had grants of late: in this window of time and in the one before it.
#[derive(Debug, Default)]
struct RecentTenants {
    windows: [GrantedTenants; 2],
    /// When the window ends, nanoseconds.
    end: u64,
}

impl RecentTenants {
    /// Length of a window, nanoseconds: many times what a tenant that asks again and again takes between two requests.
    const WINDOW: u64 = 1_000_000;

    /// Those of a turn that is over at `now`.
    #[inline]
    fn add(&mut self, now: u64, turn: GrantedTenants) {
        if now >= self.end {
            let is_next = now - self.end < RecentTenants::WINDOW;
            self.windows = [GrantedTenants::None, if is_next { self.windows[0] } else { GrantedTenants::None }];
            self.end = now + RecentTenants::WINDOW;
        }
        match turn {
            GrantedTenants::None => {}
            GrantedTenants::One(tenant) => self.windows[0].add(tenant),
            GrantedTenants::Several => self.windows[0] = GrantedTenants::Several,
        }
    }
}

/// What there is on a core beside the frames that a wire brings.
pub(crate) struct Contention<'a> {
    channels: &'a Channels,
    granted: [GrantedTenants; 3],
}

impl Contention<'_> {
    /// Whether tenants other than this one have work that waits, or had some granted of late and so may be about to
    /// bring more, which is not to wait for a whole burst of this one's.
    #[inline]
    pub(crate) fn is_beside(&self, tenant: TenantId) -> bool {
        self.granted.iter().any(|granted| granted.is_beside(tenant))
            || self.channels.total() > self.channels.waiting(tenant)
    }
}

impl<S: TenantScheduler> WorkScheduler<S> {
    pub(super) fn new(policy: S) -> WorkScheduler<S> {
        WorkScheduler {
            dispatcher: Dispatcher::new(policy),
            channels: Channels::default(),
            urgent: Vec::new(),
            granted: GrantedTenants::None,
            recent: RecentTenants::default(),
        }
    }

    /// Whether any work waits.
    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        self.channels.total() > 0
    }

    /// Whether any work waits that may run at `now`, by what the policy said last.
    pub(super) fn is_due(&self, now: Nanos) -> bool {
        self.is_waiting() && self.dispatcher.idle_until() <= now
    }

    /// Work of a queue has come in.
    #[inline]
    pub(super) fn enqueue(&mut self, queue: QueueId, work: Work, now: Nanos) {
        self.channels.enter(queue.tenant, work.units, now);
        self.dispatcher.ready(now, queue, work);
    }

    /// A turn begins at `now`, or there is none as nothing waits.
    #[inline]
    pub(super) fn forget_granted(&mut self, now: u64) {
        // Where nothing is to depend on time, only the last turn counts.
        if self.dispatcher.is_timed() {
            self.recent.add(now, self.granted);
        }
        self.granted = GrantedTenants::None;
    }

    /// A tenant has a grant.
    #[inline]
    pub(super) fn granted_to(&mut self, tenant: TenantId) {
        self.granted.add(tenant);
    }

    /// What frames from wires would compete with.
    #[inline]
    pub(super) fn contention(&self) -> Contention<'_> {
        let [now, before] = self.recent.windows;
        Contention { channels: &self.channels, granted: [self.granted, now, before] }
    }

    /// `units` of a tenant's work have run, or are dropped.
    #[inline]
    pub(super) fn leave(&mut self, tenant: TenantId, units: usize) {
        self.channels.leave(tenant, units as u32);
    }

    /// A queue leaves or broke: what of it waits will not run on this core.
    pub(super) fn cancel(&mut self, queue: &RunningQueue) {
        self.dispatcher.cancel(Nanos(clock::now()), queue.id());
        self.leave(queue.spec.tenant, queue.waiting.len());
    }

    /// Finds the urgent queues: a queue came or went, or a tenant has another share.
    pub(super) fn find_urgent(&mut self, queues: &QueueTable) {
        let WorkScheduler { urgent, dispatcher, .. } = self;
        let is_urgent = |queue: &&RunningQueue| {
            dispatcher.is_urgent(queue.spec.tenant) && !matches!(queue.spec.role, Role::Receive(_))
        };
        urgent.clear();
        urgent.extend(queues.iter().filter(is_urgent).map(|queue| queue.key.number));
    }

    /// Whether any queue is urgent.
    #[inline]
    pub(super) fn has_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    /// The urgent queue at this place, from 0.
    #[inline]
    pub(super) fn urgent_at(&self, place: usize) -> Option<u32> {
        self.urgent.get(place).copied()
    }

    /// Preempts the running grant if work has arrived for an urgent queue that may. Returns whether it did.
    #[inline]
    pub(super) fn preempt_at_wakeup(&mut self, queues: &QueueTable) -> bool {
        let WorkScheduler { urgent, dispatcher, .. } = self;
        let preempts = urgent.iter().any(|&number| {
            queues.get(number).is_some_and(|queue| {
                queue.is_active()
                    && queue.spec.ring.has_work()
                    && dispatcher.wakeup_preempts(queue.spec.tenant)
                    && !queue.is_backpressured()
                    && !queue.is_rate_limited(Nanos(clock::now()))
            })
        });
        if preempts {
            dispatcher.preempt(PreemptReason::Wakeup);
        }
        preempts
    }

    /// At a tick, which is due at `now`: preempts the running grant if work has arrived that may, or if
    /// `is_round_due`: something waits that the core does once a round. Returns whether it did.
    pub(super) fn preempt_at_tick(
        &mut self,
        queues: &QueueTable,
        is_round_due: bool,
        tick: &mut PreemptionTick,
        now: u64,
    ) -> bool {
        let dispatcher = &mut self.dispatcher;
        let preempts = is_round_due
            || queues.iter().any(|queue| {
                dispatcher.tick_preempts(queue.spec.tenant)
                    && queue.is_polled()
                    && queue.spec.ring.has_work()
                    && !queue.is_backpressured()
                    && !queue.is_rate_limited(Nanos(now))
            });
        if preempts {
            dispatcher.preempt(PreemptReason::Tick);
        } else {
            tick.restart(Nanos(now), Nanos(clock::now()));
        }
        preempts
    }
}
