//! The dispatcher: the contract between a core and its policy.
//!
//! A core works in rounds. In each it polls for new work, runs grants for a turn, and then deferred work for a turn.
//! The dispatcher owns the policy and answers what comes next; the core does it, and says what it did and how long that
//! took. The engine's cores, the twin's and those of the tests drive the same dispatcher, so they agree on turns,
//! preemption, remainders and deferred work.
//!
//! ```text
//!         poll: configure, place, ready, complete, cancel
//!           │
//!           ▼   deferred_goes_first ──────────────────────────────┐
//!      begin_turn                                                 │
//!           │    ┌───────────────────────────────────┐            │
//!           ▼    ▼                                   │            │
//!          next ─┬─ Run(grant) ── units run ── charge┤            │
//!                │       wakeup_preempts ─┐          │            │
//!                │       tick_preempts ───┴─ preempt │            │
//!                ├─ PollUrgent ── poll of urgent ────┘            │
//!                └─ EndTurn, Idle ──▶ begin_deferred ◀────────────┘
//!                                     next_deferred ── piece runs ── charge_deferred
//! ```
//!
//! - **Turns.** Grants run until nothing may run or the turn is over ([`Preemption::turn`]). Work that arrives is not
//!   known to the policy before the next poll. Where polling took long, the turn is longer, so that a core with a
//!   thousand idle rings does not spend its time on them.
//! - **Preemption.** Work that arrives for an urgent tenant ends the running grant after its current unit, and only the
//!   urgent tenants' queues are polled before the next decision. Work of other tenants ends a long grant at a tick, and
//!   the turn with it.
//! - **Remainders.** What a preempted grant has not run is ready again after its charge.
//! - **Yielding.** A core that polls in vain asks whether to give its CPU away ([`Yielding`]), and tells what became of
//!   the slice.
//! - **Deferred work** runs before, in turn with or after the grants, as the policy says, but is never put off for
//!   longer than [`LONGEST_DEFERRAL`].
//!
//! No clock, no allocation, and no dynamic dispatch: everything is inlined into the core's loop for its policy.

mod deferred;
mod tick;

pub use deferred::{DeferredTurn, LONGEST_DEFERRAL, instalment};
pub use tick::PreemptionTick;

use crate::{
    Account, Cost, Decision, Grant, LatencyClass, Nanos, Placement, QueueId, Share, TenantId, TenantScheduler, Work,
    YieldPolicy, YieldedSlice, Yielding,
};

/// Where polling took long, the turn after it takes so many times as long.
const WORK_PER_POLL: u64 = 4;

/// The longest turn that polling makes, beside what [`Preemption::turn`](crate::Preemption::turn) gives.
const LONGEST_TURN: Nanos = Nanos(200_000);

/// What a core does next, in a turn of grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dispatch {
    /// Run this grant, then [`charge`](Dispatcher::charge) it.
    Run(Grant),
    /// Poll the queues of [urgent](Dispatcher::is_urgent) tenants, then ask again.
    PollUrgent,
    /// The turn is over: its time, all work, or a tick has ended it.
    EndTurn,
    /// The policy has nothing that may run before this time. None: it has nothing ready.
    Idle(Option<Nanos>),
}

/// Why a grant ends before its last unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreemptReason {
    /// Work has arrived for an urgent tenant.
    Wakeup,
    /// A tick has found that the turn has to end, for work of another tenant or for what a core does once a round.
    Tick,
    /// The grant's time slice is over, whatever the policy. The turn goes on.
    Slice,
}

/// Drives a core's policy, see the [module](self).
#[derive(Debug)]
pub struct Dispatcher<S> {
    policy: S,
    /// By tenant, whether it is of [`LatencyClass::Latency`].
    is_latency: Vec<bool>,
    /// Turns and ticks end by time.
    is_timed: bool,
    running: Option<Grant>,
    /// Linux' flag of the same name, with its reason.
    need_resched: Option<PreemptReason>,
    /// A grant was given since the turn began, or since urgent tenants were polled.
    has_run: bool,
    turn_began: Nanos,
    turn_length: Nanos,
    /// Before this time the policy grants nothing, unless something happens.
    idle_until: Nanos,
    /// Since when the next deferred work is put off for grants.
    deferred_since: Option<Nanos>,
    yielding: Yielding,
}

/// What is passed on to the policy.
impl<S: TenantScheduler> Dispatcher<S> {
    /// A dispatcher for a core that has no work yet.
    pub fn new(policy: S) -> Dispatcher<S> {
        Dispatcher {
            policy,
            is_latency: Vec::new(),
            is_timed: true,
            running: None,
            need_resched: None,
            has_run: false,
            turn_began: Nanos(0),
            turn_length: Nanos(0),
            idle_until: Nanos(0),
            deferred_since: None,
            yielding: Yielding::new(YieldPolicy::Never),
        }
    }

    /// Sets whether turns and ticks end by time, as they do at first. Otherwise turns go on while there is work, and
    /// there are no ticks: for cores that are to run alike on every machine.
    pub fn set_timed(&mut self, is_timed: bool) {
        self.is_timed = is_timed;
    }

    /// Whether turns and ticks end by time.
    #[inline]
    pub fn is_timed(&self) -> bool {
        self.is_timed
    }

    /// The policy.
    #[inline]
    pub fn policy(&self) -> &S {
        &self.policy
    }

    /// The policy, to change what no call of the dispatcher does.
    pub fn policy_mut(&mut self) -> &mut S {
        &mut self.policy
    }

    /// Ends the dispatcher.
    pub fn into_policy(self) -> S {
        self.policy
    }

    /// Sets a tenant's share.
    pub fn configure(&mut self, tenant: TenantId, share: Share) {
        let index = usize::from(tenant.0);
        if self.is_latency.len() <= index {
            self.is_latency.resize(index + 1, false);
        }
        self.is_latency[index] = share.class == LatencyClass::Latency;
        self.policy.configure(tenant, share);
    }

    /// Sets what a queue's work is and which back end it goes to.
    pub fn place(&mut self, queue: QueueId, placement: Placement) {
        self.policy.place(queue, placement);
    }

    /// Work became ready.
    #[inline]
    pub fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        self.policy.ready(now, queue, work);
    }

    /// A back end has ended some of a grant's work.
    #[inline]
    pub fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.idle_until = Nanos(0);
        self.policy.complete(now, grant, cost);
    }

    /// A queue stopped or moved to another core: nothing of it is ready any more.
    pub fn cancel(&mut self, now: Nanos, queue: QueueId) {
        self.idle_until = Nanos(0);
        self.policy.cancel(now, queue);
    }

    /// What the policy knows of a tenant.
    pub fn account(&self, now: Nanos, tenant: TenantId) -> Account {
        self.policy.account(now, tenant)
    }
}

/// Grants.
impl<S: TenantScheduler> Dispatcher<S> {
    /// Begins a turn of grants at `now`, after a poll that spent `polled` on queues that brought nothing. Returns the
    /// turn's length.
    #[inline]
    pub fn begin_turn(&mut self, now: Nanos, polled: Nanos) -> Nanos {
        let polled = Nanos(polled.0.saturating_mul(WORK_PER_POLL)).min(LONGEST_TURN);
        self.turn_began = now;
        self.turn_length = self.policy.turn(now).max(polled);
        self.has_run = false;
        self.need_resched = None;
        self.turn_length
    }

    /// What to do next at `now`. `is_backlogged`: work is ready, of any queue on the core. Otherwise the policy is not
    /// asked, once a grant has run.
    #[inline]
    pub fn next(&mut self, now: Nanos, is_backlogged: bool) -> Dispatch {
        if self.has_run {
            match self.need_resched.take() {
                Some(PreemptReason::Wakeup) => {
                    self.has_run = false;
                    return Dispatch::PollUrgent;
                }
                Some(PreemptReason::Tick) => return self.end_turn(Nanos(0)),
                Some(PreemptReason::Slice) | None => {}
            }
            if !is_backlogged {
                return self.end_turn(Nanos(u64::MAX));
            }
            // A clock that went back ends the turn, too.
            if self.is_timed && now.0.wrapping_sub(self.turn_began.0) >= self.turn_length.0 {
                return self.end_turn(Nanos(0));
            }
        }
        match self.policy.decide(now) {
            Decision::Run(grant) => {
                self.has_run = true;
                self.running = Some(grant);
                Dispatch::Run(grant)
            }
            Decision::IdleUntil(at) => {
                self.idle_until = at;
                Dispatch::Idle(Some(at))
            }
            Decision::Idle => {
                self.idle_until = Nanos(u64::MAX);
                Dispatch::Idle(None)
            }
        }
    }

    #[inline]
    fn end_turn(&mut self, idle_until: Nanos) -> Dispatch {
        self.idle_until = idle_until;
        Dispatch::EndTurn
    }

    /// The running grant ran, and cost so much on this core: `cost.units` is what ran of it. If it was preempted,
    /// `remainder` is asked for the work that is left of it, given how many units that is at the most, and that is
    /// ready again.
    #[inline]
    pub fn charge(&mut self, now: Nanos, cost: Cost, remainder: impl FnOnce(u32) -> Work) {
        let Some(grant) = self.running.take() else { return };
        self.policy.charge(now, grant, cost);
        if self.need_resched.is_some() && cost.units < grant.units {
            let work = remainder(grant.units - cost.units);
            if work.units > 0 {
                self.policy.ready(now, grant.queue, work);
            }
        }
    }

    /// Until when the policy has nothing to run, if nothing happens: the latest time where nothing is ready, and 0
    /// where it may have something.
    #[inline]
    pub fn idle_until(&self) -> Nanos {
        self.idle_until
    }

    /// Something has happened that may let work run.
    #[inline]
    pub fn wake(&mut self) {
        self.idle_until = Nanos(0);
    }
}

/// Yielding.
impl<S: TenantScheduler> Dispatcher<S> {
    /// Sets when the core yields. At first it never does.
    pub fn set_yielding(&mut self, policy: YieldPolicy) {
        self.yielding = Yielding::new(policy);
        self.policy.yielding(self.yielding.policy());
    }

    /// When the core yields, and for how long.
    #[inline]
    pub fn yielding(&self) -> &Yielding {
        &self.yielding
    }

    /// The core gave its CPU away for a slice.
    pub fn yielded(&mut self, slice: YieldedSlice) {
        self.yielding.ended(slice.end);
        self.policy.yielded(slice);
    }
}

/// Preemption.
impl<S: TenantScheduler> Dispatcher<S> {
    /// Whether work of a tenant may preempt the running grant at once, so that its queues are polled while a grant
    /// runs: its class is [`LatencyClass::Latency`] and the policy preempts.
    #[inline]
    pub fn is_urgent(&self, tenant: TenantId) -> bool {
        self.is_latency.get(usize::from(tenant.0)).is_some_and(|is| *is) && self.policy.can_preempt()
    }

    /// Whether work that arrives for an urgent tenant preempts the running grant.
    #[inline]
    pub fn wakeup_preempts(&self, tenant: TenantId) -> bool {
        self.is_other(tenant) && self.policy.wakeup_preempt(tenant)
    }

    /// Whether work that has arrived for a tenant preempts the running grant at a tick.
    #[inline]
    pub fn tick_preempts(&self, tenant: TenantId) -> bool {
        self.is_other(tenant) && self.policy.tick_preempt(tenant)
    }

    #[inline]
    fn is_other(&self, tenant: TenantId) -> bool {
        self.running.is_some_and(|grant| grant.queue.tenant != tenant)
    }

    /// Ends the running grant after its current unit. It is not called for a grant that runs its last one.
    #[inline]
    pub fn preempt(&mut self, reason: PreemptReason) {
        self.need_resched = Some(reason);
    }

    /// The ticks of the running grant, which began at `started` by the clock that they are to be checked by.
    #[inline]
    pub fn tick(&self, started: Nanos) -> PreemptionTick {
        let interval = if self.is_timed { self.policy.tick() } else { None };
        PreemptionTick::new(started, interval)
    }
}

#[cfg(test)]
mod tests;
