//! Scheduling policies, and the dispatcher that drives them: everything that decides, and nothing that acts.
//!
//! A policy here is a deterministic state machine: time comes in as an argument, the answer goes out as a value. There
//! is no clock, no thread and no I/O, so the engine drives a policy with real time, the simulator with simulated time,
//! and a test with a literal sequence, and all three see the same decisions.
//!
//! | module | holds |
//! |---|---|
//! | [`dispatcher`](Dispatcher) | the contract between a core and its policy |
//! | [`weighted`](Weighted), [`fcfs`](Fcfs) | the default policy, and the baseline |
//! | `papers` | MTDA and the policies it is compared with: [`Mtda`], [`Ipipe`], [`FairNic`], [`LogNic`] |
//! | `placement` | which core serves what: [`Balancer`], [`Spreader`] |
//! | `fairness` | by which a sharing is judged: [`fair1`], [`fair2`], [`jain`] |
//! | `rates` | [`TokenBucket`], [`Meter`] with [`Lease`]s, [`Patience`] |
//! | `stalls` | front ends that make a core wait: [`Stalls`], [`Demotions`] |
//! | `yielding` | when a core gives its CPU away: [`Yielding`] |
//! | `control_plane` | tasks on idle time, with a minimum: [`MinimumShare`] |
//! | [`record`] | recordings of a policy's calls and answers |
//!
//! One instance of a policy serves one core and is never shared, hence no lock.

#![forbid(unsafe_code)]

mod attached;
mod control_plane;
mod dispatcher;
#[cfg(test)]
mod driver;
mod fairness;
mod fcfs;
mod fifo;
mod papers;
mod placement;
mod policy;
mod rates;
pub mod record;
mod scheduler;
mod stalls;
mod tenant_scheduler;
mod types;
mod weighted;
mod yielding;

pub use control_plane::{MinimumShare, TaskClass, TaskUse};
pub use dispatcher::{DeferredTurn, Dispatch, Dispatcher, LONGEST_DEFERRAL, PreemptReason, PreemptionTick, instalment};
pub use fairness::{fair1, fair2, jain};
pub use fcfs::Fcfs;
pub use papers::{Expectation, FairNic, Ipipe, LogNic, Mtda, Occupancy, Profile, System, Thresholds};
pub use placement::{
    Balancer, BucketLoad, Elephant, Hysteresis, Move, Order, Pinned, QueueLoad, SpreadTuning, Spreader, WeightPart,
    weights_on_core, whole_cores,
};
pub use policy::{Policy, UnknownPolicy};
pub use rates::{Colour, Lease, Measure, Meter, Patience, Rate, TokenBucket};
pub use scheduler::Scheduler;
pub use stalls::{Demotions, Stalls};
pub use tenant_scheduler::{DeferredWork, Preemption, TenantScheduler};
pub use types::{
    Account, BackEnd, Cost, Decision, Grant, LatencyClass, Limits, Nanos, Placement, Precedence, QueueId, Share,
    TenantId, Work, WorkKind,
};
pub use weighted::{Tuning, Weighted};
pub use yielding::{SliceEnd, YieldPolicy, YieldTuning, YieldedSlice, Yielding};
