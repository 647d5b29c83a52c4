//! What a policy answers: what every one has to, and what only some do.

use crate::{
    Account, Cost, Decision, Grant, Nanos, Placement, Precedence, QueueId, Share, TenantId, Work, YieldPolicy,
    YieldedSlice,
};

/// Decides which tenant's work a core runs next. Pure: time is an argument, the answer is a value.
///
/// A [`Dispatcher`](crate::Dispatcher) tells the policy what became ready, asks it to decide, and reports what each
/// grant cost. A policy counts work units; the work itself stays in the caller's channels, in arrival order per queue.
///
/// A core runs one grant at a time: a grant's [`charge`](Self::charge) comes before the next [`decide`](Self::decide).
/// A grant that is never charged counts as one that cost nothing.
pub trait TenantScheduler: Preemption + DeferredWork {
    /// Sets a tenant's share. A tenant that was never configured has [`Share::default`].
    fn configure(&mut self, tenant: TenantId, share: Share);

    /// `work` became ready at `now` on `queue` and waits in that queue's part of its tenant's channel.
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work);

    /// What to run next.
    fn decide(&mut self, now: Nanos) -> Decision;

    /// What running `grant` cost on this core. Called once per grant, after it ran. A preempted grant is charged with
    /// fewer units than were granted; its remainder is then [`ready`](Self::ready) again.
    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost);

    /// Forgets everything that is ready on `queue`: it stopped or moved to another core.
    fn cancel(&mut self, now: Nanos, queue: QueueId);

    /// Sets what a queue's work is and which back end it goes to. Called before any of it is [`ready`](Self::ready),
    /// and again where that changes. A policy that does not use it ignores it.
    fn place(&mut self, _queue: QueueId, _placement: Placement) {}

    /// What the asynchronous part of some of `grant`'s work cost (a back end's time and bytes), when it finished.
    #[inline]
    fn complete(&mut self, _now: Nanos, _grant: Grant, _cost: Cost) {}

    /// What the policy knows of a tenant that its caller does not.
    fn account(&self, _now: Nanos, _tenant: TenantId) -> Account {
        Account::default()
    }

    /// The core yields by this policy from now on. No scheduler goes by it; a recording has it.
    fn yielding(&mut self, _policy: YieldPolicy) {}

    /// The core gave its CPU away for a slice. No scheduler goes by it; a recording has it.
    fn yielded(&mut self, _slice: YieldedSlice) {}
}

/// How soon work that arrives while a grant runs is seen, and whether it ends that grant. The default answers are those
/// of a policy that never preempts.
///
/// The names are Linux': a wakeup preempts at once, as `wakeup_preempt` decides; otherwise preemption waits for a tick,
/// as in `task_tick`.
pub trait Preemption {
    /// The length of a turn: for how long the core runs grants before it polls for new work, which the policy does not
    /// know of until then.
    #[inline]
    fn turn(&self, _now: Nanos) -> Nanos {
        TURN
    }

    /// Whether [`wakeup_preempt`](Self::wakeup_preempt) is ever true. Where it is not, a core does not poll for
    /// arrivals while a grant runs.
    fn can_preempt(&self) -> bool {
        false
    }

    /// Whether the running grant ends after its current unit, as work arrives for `tenant`, which has none ready yet.
    #[inline]
    fn wakeup_preempt(&self, _tenant: TenantId) -> bool {
        false
    }

    /// The interval of preemption checks while the grant that was [decided](TenantScheduler::decide) last runs. None:
    /// it runs to its end.
    #[inline]
    fn tick(&self) -> Option<Nanos> {
        None
    }

    /// Whether that grant ends at a tick, as work has arrived for `tenant`, which has none ready yet.
    #[inline]
    fn tick_preempt(&self, _tenant: TenantId) -> bool {
        false
    }
}

/// The order of deferred work: what of a granted request is left to do outside its grant, as where a core decrypts what
/// a back end has read. The default answers are those of a policy that does not know of it.
pub trait DeferredWork {
    /// The place of a tenant's deferred work among that of others. The least goes first; equal ones take turns.
    #[inline]
    fn deferred_rank(&self, _tenant: TenantId) -> u64 {
        0
    }

    /// When a tenant's deferred work runs, where grants are to be had as well.
    #[inline]
    fn deferred_precedence(&self, _tenant: TenantId) -> Precedence {
        Precedence::InTurn
    }

    /// Deferred work of `tenant` took `time` of the core. Whether the policy has charged it. Where it has not, the
    /// caller adds it to the cost of the tenant's next grants.
    #[inline]
    fn charge_deferred(&mut self, _now: Nanos, _tenant: TenantId, _time: Nanos) -> bool {
        false
    }
}

/// [`turn`](Preemption::turn) of policies that give none of their own.
const TURN: Nanos = Nanos(8_000);
