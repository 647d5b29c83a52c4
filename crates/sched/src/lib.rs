//! Everything that decides, and nothing that acts.
//!
//! A policy here is a deterministic state machine: time comes in as an argument, the answer goes out as a value. There is
//! no clock, no thread and no I/O, so the engine drives a policy with real time, the simulator with simulated time, and a
//! test with a literal sequence, and all three see the same decisions.
//!
//! One instance serves one core and is never shared, hence no lock.

#![forbid(unsafe_code)]

mod balancer;
mod bucket;
#[cfg(test)]
mod driver;
mod fairnic;
mod fcfs;
mod here;
mod ipipe;
mod line;
mod list;
mod lognic;
mod meter;
mod mtda;
mod patience;
mod policy;
pub mod record;
mod scheduler;
mod spread;
mod types;
mod weighted;

pub use balancer::{Balancer, Eagerness, Move, QueueLoad};
pub use bucket::TokenBucket;
pub use fairnic::FairNic;
pub use fcfs::Fcfs;
pub use ipipe::{Ipipe, Thresholds};
pub use lognic::{Expectation, LogNic, Profile};
pub use meter::{Colour, Measure, Meter, Rate};
pub use mtda::{Mtda, Occupancy, System};
pub use patience::Patience;
pub use policy::{Policy, UnknownPolicy};
pub use scheduler::Scheduler;
pub use spread::{BucketLoad, Elephant, Keenness, Order, Pinned, Spreader};
pub use types::{
    Account, BackEnd, Cost, Decision, Grant, Kind, LatencyClass, Limits, Nanos, Placement, Precedence, QueueId, Share,
    TenantId, Work,
};
pub use weighted::{Tuning, Weighted};

/// Decides which tenant's work a core runs next. Pure: time is an argument, the answer is a value.
///
/// The caller tells the policy what became ready, asks it to decide, runs what it was granted, and reports what that cost.
/// A policy counts work units; the work itself stays in the caller's channels, in arrival order per queue.
///
/// A core runs one grant at a time: a grant's [`charge`](Self::charge) comes before the next [`decide`](Self::decide). One that
/// never comes is as one of nothing.
pub trait TenantScheduler {
    /// Sets a tenant's share. A tenant that was never configured has [`Share::default`].
    fn configure(&mut self, tenant: TenantId, share: Share);

    /// Says what a queue's work is and where it goes, before any of it is [`ready`](Self::ready), and again where that
    /// changes. Policies that do not care forget it.
    fn place(&mut self, _queue: QueueId, _placement: Placement) {}

    /// `work` became ready at `now` on `queue` and waits in that queue's part of its tenant's channel.
    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work);

    /// What to run next.
    fn decide(&mut self, now: Nanos) -> Decision;

    /// What running `grant` cost on this core. Called once per grant, after it ran; of one that was cut short ([`preempts`](Self::preempts))
    /// with fewer units than were granted.
    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost);

    /// What the asynchronous part of some of `grant`'s work cost (a back end's time and bytes), when it finished.
    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost);

    /// Forgets everything that is ready on `queue`: it stopped or moved to another core.
    fn cancel(&mut self, now: Nanos, queue: QueueId);

    /// For how long the core may go on with grants before it looks for new work: what becomes ready meanwhile is not known to
    /// the policy.
    #[inline]
    fn turn(&self, _now: Nanos) -> Nanos {
        TURN
    }

    /// Whether the grant that runs is to end at its next request, as a queue of this tenant, of which nothing is ready yet, brings
    /// work. What it has left is [`ready`](Self::ready) again after its [`charge`](Self::charge), which has what ran.
    #[inline]
    fn preempts(&self, _tenant: TenantId) -> bool {
        false
    }

    /// Whether [`preempts`](Self::preempts) is ever true: where it is not, nobody need look for those who come while a grant runs.
    fn can_preempt(&self) -> bool {
        false
    }

    /// While the grant that was [decided](Self::decide) last runs: how often the core is to look whether a queue has come that it
    /// [gives way](Self::gives_way) to. None: it runs to its end.
    #[inline]
    fn looks(&self) -> Option<Nanos> {
        None
    }

    /// Whether that grant is to end at such a look, as a queue of this tenant, of which nothing is ready yet, brings work. As with
    /// [`preempts`](Self::preempts), which is for those that do not wait for a look.
    #[inline]
    fn gives_way(&self, _tenant: TenantId) -> bool {
        false
    }

    /// Where a tenant stands whose granted work goes on outside of its grants, as where a core decrypts what a back end has read: whose is least
    /// goes on first. Equal ones take turns.
    #[inline]
    fn rank(&self, _tenant: TenantId) -> u64 {
        0
    }

    /// When such work goes on, where something is ready that may be granted.
    #[inline]
    fn precedence(&self, _tenant: TenantId) -> Precedence {
        Precedence::InTurn
    }

    /// Such work took so much of the core. Whether that is charged: otherwise it is to be in the cost of the tenant's next grants.
    #[inline]
    fn spend(&mut self, _now: Nanos, _tenant: TenantId, _time: Nanos) -> bool {
        false
    }

    /// What the policy knows of a tenant that its caller does not.
    fn account(&self, _now: Nanos, _tenant: TenantId) -> Account {
        Account::default()
    }
}

/// [`turn`](TenantScheduler::turn) of policies that do not care.
const TURN: Nanos = Nanos(8_000);
