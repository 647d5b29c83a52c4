//! Which thread of a host runs on which of its cores: policies of an agent on the DPU (Wave §4.1, §7.2).
//!
//! ```text
//!  host kernel ── ThreadMessage ──▶ policy ── ThreadDecision ──▶ host kernel commits it, or refuses
//!                                      ▲────── Outcome ─────────────────┘
//! ```
//!
//! The host is the source of truth. Each change of a thread gives it a new [`Sequence`], and a decision names the one
//! that it was made for. A decision about a thread that has changed since is refused, and its [`Outcome`] returns the
//! thread to the policy.
//!
//! | policy | order | preempts |
//! |---|---|---|
//! | [`FifoThreads`] | as they became runnable | never |
//! | [`Shinjuku`] | as they became runnable | after a slice (30 µs) |
//! | [`MultiQueueShinjuku`] | by the part of their SLO that they have waited | after a slice (30 µs) |
//! | [`VmThreads`] | least run time first, none waits longer than a bound | after 5 to 10 ms, looked at each 1 ms |

mod fifo;
mod multi_queue;
mod scheduler;
mod types;
mod vm;

pub use fifo::FifoOrder;
pub use multi_queue::MultiQueueOrder;
pub use scheduler::{Order, ThreadPolicy};
pub use types::{CoreId, Outcome, Sequence, SloClass, ThreadDecision, ThreadEvent, ThreadId, ThreadMessage};
pub use vm::{VmOrder, VmTuning};

use crate::Nanos;

/// Run to completion, first come, first served (Wave §7.2.2).
pub type FifoThreads = ThreadPolicy<FifoOrder>;
/// First come, first served, with a time slice (Kaffes et al., NSDI '19; Wave §7.2.3).
pub type Shinjuku = ThreadPolicy<FifoOrder>;
/// A queue for each SLO (Wave §7.3.2).
pub type MultiQueueShinjuku = ThreadPolicy<MultiQueueOrder>;
/// vCPUs of virtual machines (Wave §7.2.4).
pub type VmThreads = ThreadPolicy<VmOrder>;

/// Shinjuku's time slice (Wave §7.2.3).
pub const SLICE: Nanos = Nanos(30_000);

/// A policy that places runnable threads on cores. Pure: time is an argument, the answer is a value.
pub trait ThreadScheduler: Send {
    /// The host tells of a change of a thread.
    fn message(&mut self, now: Nanos, message: &ThreadMessage);
    /// The thread that this core is to run next, for an idle core or to be prestaged. It is no longer queued: its
    /// outcome, or a recall, is to follow.
    fn pick(&mut self, now: Nanos, core: CoreId) -> Option<ThreadDecision>;
    /// What the host made of a decision.
    fn outcome(&mut self, now: Nanos, decision: &ThreadDecision, outcome: Outcome);
    /// A prestaged decision was taken back; the thread waits again, before the others.
    fn recall(&mut self, now: Nanos, decision: &ThreadDecision);
    /// A core with a thread that has had its time while others wait. It is named once: a [`pick`](Self::pick) for it
    /// follows.
    fn preempt(&mut self, now: Nanos) -> Option<CoreId>;
    /// When [`preempt`](Self::preempt) is to be asked next; none: only after another call.
    fn deadline(&self, now: Nanos) -> Option<Nanos>;
    /// Threads that wait for a decision.
    fn waiting(&self) -> usize;
}

#[cfg(test)]
mod tests;
