//! Any of the policies, chosen when a node starts.
//!
//! An enum rather than a trait object: each call is a comparison that is always the same, and what it leads to is inlined.

use crate::{
    Account, Cost, Decision, FairNic, Fcfs, Grant, Ipipe, LogNic, Mtda, Nanos, Placement, QueueId, Share, System,
    TenantId, TenantScheduler, Thresholds, Weighted, Work,
};

/// How tenants share a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Fairness {
    /// Weighted fairness in measured cost.
    #[default]
    Weighted,
    /// First come, first served.
    Fcfs,
    /// MTDA's credits, repaired.
    Mtda,
    /// MTDA's credits, as printed.
    MtdaPrinted,
    /// iPipe's hybrid of first come, first served and deficit round robin.
    Ipipe,
    /// FairNIC's static parts.
    FairNic,
    /// Static parts that LogNIC's model plans from what was seen in the first tenth of a second.
    LogNic,
}

impl Fairness {
    /// All there are, the default first.
    pub const ALL: [Fairness; 7] = [
        Fairness::Weighted,
        Fairness::Fcfs,
        Fairness::Mtda,
        Fairness::MtdaPrinted,
        Fairness::Ipipe,
        Fairness::FairNic,
        Fairness::LogNic,
    ];

    /// As a site file calls it.
    pub fn name(self) -> &'static str {
        match self {
            Fairness::Weighted => "weighted",
            Fairness::Fcfs => "fcfs",
            Fairness::Mtda => "mtda",
            Fairness::MtdaPrinted => "mtda-printed",
            Fairness::Ipipe => "ipipe",
            Fairness::FairNic => "fairnic",
            Fairness::LogNic => "lognic",
        }
    }

    /// One core's policy on a node with so many.
    pub fn scheduler(self, cores: usize) -> Scheduler {
        let system = System { cores: u32::try_from(cores).unwrap_or(u32::MAX).max(1), ..System::default() };
        match self {
            Fairness::Weighted => Scheduler::Weighted(Weighted::default()),
            Fairness::Fcfs => Scheduler::Fcfs(Fcfs::new()),
            Fairness::Mtda => Scheduler::Mtda(Mtda::repaired(system)),
            Fairness::MtdaPrinted => Scheduler::Mtda(Mtda::printed(system)),
            Fairness::Ipipe => Scheduler::Ipipe(Ipipe::new(Thresholds::default())),
            Fairness::FairNic => Scheduler::FairNic(FairNic::new()),
            Fairness::LogNic => Scheduler::FairNic(LogNic::learning()),
        }
    }
}

/// One core's scheduler, whichever it is.
#[derive(Debug)]
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
}

/// Calls `$call` on whichever it is.
macro_rules! each {
    ($self:ident, $policy:ident => $call:expr) => {
        match $self {
            Scheduler::Weighted($policy) => $call,
            Scheduler::Fcfs($policy) => $call,
            Scheduler::Mtda($policy) => $call,
            Scheduler::Ipipe($policy) => $call,
            Scheduler::FairNic($policy) => $call,
        }
    };
}

impl TenantScheduler for Scheduler {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        each!(self, policy => policy.configure(tenant, share));
    }

    fn place(&mut self, queue: QueueId, placement: Placement) {
        each!(self, policy => policy.place(queue, placement));
    }

    #[inline]
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        each!(self, policy => policy.ready(now, queue, work));
    }

    #[inline]
    fn decide(&mut self, now: Nanos) -> Decision {
        each!(self, policy => policy.decide(now))
    }

    #[inline]
    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        each!(self, policy => policy.charge(now, grant, cost));
    }

    #[inline]
    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        each!(self, policy => policy.complete(now, grant, cost));
    }

    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        each!(self, policy => policy.cancel(now, queue));
    }

    #[inline]
    fn turn(&self, now: Nanos) -> Nanos {
        each!(self, policy => policy.turn(now))
    }

    fn account(&self, now: Nanos, tenant: TenantId) -> Account {
        each!(self, policy => policy.account(now, tenant))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{Client, Driver};

    #[test]
    fn every_policy_serves_whoever_is_alone_and_names_are_their_own() {
        for fairness in Fairness::ALL {
            // Printed, a single core's credits are more than none.
            let mut policy = fairness.scheduler(1);
            policy.configure(TenantId(0), Share::default());
            let mut driver = Driver::new(policy, &[Client::flood(0, 0, 1_000)]);
            driver.run(200_000_000);
            assert!(driver.units_of(0, 0) > 150_000, "{}: {}", fairness.name(), driver.units_of(0, 0));
            assert_eq!(Fairness::ALL.iter().filter(|other| other.name() == fairness.name()).count(), 1);
        }
    }
}
