//! The policies that the MTDA paper measures itself against, and MTDA's own (Huang et al., IEEE TSC 17(6), 2024, §V-A).
//!
//! | policy | paper |
//! |---|---|
//! | [`Mtda`] | Huang et al., IEEE TSC 17(6), 2024: credits (equation 7) and Algorithms 1 and 2 |
//! | [`Ipipe`] | Liu et al., SIGCOMM 2019: first come, first served, and deficit round robin beyond a tail latency |
//! | [`FairNic`] | Grant et al., SIGCOMM 2020: static parts of the cores |
//! | [`LogNic`] | Guo et al., MICRO 2023: static parts by a queueing model |
//!
//! None of them preempts a grant or orders deferred work: they have the default answers of
//! [`Preemption`](crate::Preemption) and [`DeferredWork`](crate::DeferredWork).

mod fairnic;
mod ipipe;
mod lognic;
mod mtda;

pub use fairnic::FairNic;
pub use ipipe::{Ipipe, Thresholds};
pub use lognic::{Expectation, LogNic, Profile};
pub use mtda::{Mtda, Occupancy, System};
