//! Any of the policies, at work on a core.
//!
//! An enum rather than a trait object: each call is a comparison that always goes the same way, and what it leads to is
//! inlined.

use std::fmt;

use crate::{
    Account, Cost, Decision, DeferredWork, FairNic, Fcfs, Grant, Ipipe, Mtda, Nanos, Placement, Precedence, Preemption,
    QueueId, Share, TenantId, TenantScheduler, Weighted, Work, YieldPolicy, YieldedSlice,
};

/// One core's policy.
#[expect(clippy::large_enum_variant, reason = "there is one a core, and a box would be an indirection more")]
pub enum Scheduler {
    /// Weighted fairness in measured cost.
    Weighted(Weighted),
    /// First come, first served.
    Fcfs(Fcfs),
    /// MTDA, printed or repaired.
    Mtda(Mtda),
    /// iPipe.
    Ipipe(Ipipe),
    /// FairNIC, or LogNIC's plan.
    FairNic(FairNic),
    /// Another policy, or one of these in a [`Recording`](crate::record::Recording).
    Other(Box<dyn TenantScheduler + Send>),
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheduler::Weighted(policy) => policy.fmt(f),
            Scheduler::Fcfs(policy) => policy.fmt(f),
            Scheduler::Mtda(policy) => policy.fmt(f),
            Scheduler::Ipipe(policy) => policy.fmt(f),
            Scheduler::FairNic(policy) => policy.fmt(f),
            Scheduler::Other(_) => f.write_str("Other"),
        }
    }
}

/// Calls `$call` on the policy, whichever it is.
macro_rules! each {
    ($self:ident, $policy:ident => $call:expr) => {
        match $self {
            Scheduler::Weighted($policy) => $call,
            Scheduler::Fcfs($policy) => $call,
            Scheduler::Mtda($policy) => $call,
            Scheduler::Ipipe($policy) => $call,
            Scheduler::FairNic($policy) => $call,
            Scheduler::Other($policy) => $call,
        }
    };
}

impl Scheduler {
    /// How often credits were allocated anew ([`Mtda::reallocations`]); 0 for other policies.
    pub fn credit_reallocations(&self) -> u64 {
        if let Scheduler::Mtda(mtda) = self { mtda.reallocations() } else { 0 }
    }
}

/// Calls to the policies that few cores have, kept out of the way of `Weighted` and `Fcfs`.
impl Scheduler {
    #[inline(never)]
    fn ready_other(&mut self, now: Nanos, queue: QueueId, work: Work) {
        each!(self, policy => policy.ready(now, queue, work));
    }

    #[inline(never)]
    fn decide_other(&mut self, now: Nanos) -> Decision {
        each!(self, policy => policy.decide(now))
    }

    #[inline(never)]
    fn charge_other(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        each!(self, policy => policy.charge(now, grant, cost));
    }
}

impl TenantScheduler for Scheduler {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        each!(self, policy => policy.configure(tenant, share));
    }

    #[inline(always)]
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        match self {
            Scheduler::Weighted(policy) => policy.ready(now, queue, work),
            Scheduler::Fcfs(policy) => policy.ready(now, queue, work),
            other => other.ready_other(now, queue, work),
        }
    }

    #[inline(always)]
    fn decide(&mut self, now: Nanos) -> Decision {
        match self {
            Scheduler::Weighted(policy) => policy.decide(now),
            Scheduler::Fcfs(policy) => policy.decide(now),
            other => other.decide_other(now),
        }
    }

    #[inline(always)]
    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        match self {
            Scheduler::Weighted(policy) => policy.charge(now, grant, cost),
            Scheduler::Fcfs(policy) => policy.charge(now, grant, cost),
            other => other.charge_other(now, grant, cost),
        }
    }

    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        each!(self, policy => policy.cancel(now, queue));
    }

    fn place(&mut self, queue: QueueId, placement: Placement) {
        each!(self, policy => policy.place(queue, placement));
    }

    #[inline]
    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        each!(self, policy => policy.complete(now, grant, cost));
    }

    fn account(&self, now: Nanos, tenant: TenantId) -> Account {
        each!(self, policy => policy.account(now, tenant))
    }

    fn yielding(&mut self, yields: YieldPolicy) {
        each!(self, policy => policy.yielding(yields));
    }

    fn yielded(&mut self, slice: YieldedSlice) {
        each!(self, policy => policy.yielded(slice));
    }
}

impl Preemption for Scheduler {
    #[inline]
    fn turn(&self, now: Nanos) -> Nanos {
        each!(self, policy => policy.turn(now))
    }

    fn can_preempt(&self) -> bool {
        each!(self, policy => policy.can_preempt())
    }

    #[inline]
    fn wakeup_preempt(&self, tenant: TenantId) -> bool {
        each!(self, policy => policy.wakeup_preempt(tenant))
    }

    #[inline]
    fn tick(&self) -> Option<Nanos> {
        each!(self, policy => policy.tick())
    }

    #[inline]
    fn tick_preempt(&self, tenant: TenantId) -> bool {
        each!(self, policy => policy.tick_preempt(tenant))
    }
}

impl DeferredWork for Scheduler {
    #[inline]
    fn deferred_rank(&self, tenant: TenantId) -> u64 {
        each!(self, policy => policy.deferred_rank(tenant))
    }

    #[inline]
    fn deferred_precedence(&self, tenant: TenantId) -> Precedence {
        each!(self, policy => policy.deferred_precedence(tenant))
    }

    #[inline]
    fn charge_deferred(&mut self, now: Nanos, tenant: TenantId, time: Nanos) -> bool {
        each!(self, policy => policy.charge_deferred(now, tenant, time))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Policy;
    use crate::driver::{Client, Driver};

    #[test]
    fn only_weighted_preempts() {
        for name in Policy::NAMES {
            let policy = Policy::named(name).expect("a policy").build();
            assert_eq!(policy.can_preempt(), name == "weighted", "{name}");
            // Nor is it lost on the way.
            let boxed: Box<dyn TenantScheduler + Send> = Box::new(policy);
            assert_eq!(Scheduler::Other(boxed).can_preempt(), name == "weighted", "{name}");
        }
    }

    #[test]
    fn every_policy_serves_a_tenant_that_is_alone() {
        for name in Policy::NAMES {
            // Printed, a single core's credits are more than none.
            let mut policy = Policy::named(name).expect("a policy").build();
            policy.configure(TenantId(0), Share::default());
            let mut driver = Driver::new(policy, &[Client::flood(0, 0, 1_000)]);
            driver.run(200_000_000);
            assert!(driver.units_of(0, 0) > 150_000, "{name}: {}", driver.units_of(0, 0));
        }
    }
}
