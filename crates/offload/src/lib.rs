//! Agents on the DPU that decide for the host: Wave's queues and transactions (Humphries et al., ASPLOS '25, §3, §5).
//!
//! ```text
//!  host                                  memory of the DPU                          agent
//!  a thread blocks ── Producer ─────▶ │ messages, host to agent │ ─── Consumer ──▶ policy
//!  commits, enacts ◀── Consumer ───── │ transactions            │ ◀── Producer ─── decision
//!                  ── Producer ─────▶ │ outcomes                │ ─── Consumer ──▶ policy
//!  takes at once   ◀── HostSlot ───── │ a slot for each core    │ ◀── AgentSlot ── prestaged decision
//! ```
//!
//! | Wave's Table 1 | here |
//! |---|---|
//! | START_WAVE_AGENT, KILL_WAVE_AGENT | [`Offload::start_agent`], [`Offload::kill_agent`] |
//! | CREATE_QUEUE, DESTROY_QUEUE | [`Offload::create_queue`], [`Offload::destroy_queue`] |
//! | ASSOC_QUEUE_WITH, SET_QUEUE_TYPE | [`Offload::associate_queue`], [`Offload::set_queue_type`] |
//! | SEND_MESSAGES, POLL_MESSAGES | [`Producer::send`], [`Consumer::poll`] |
//! | TXN_CREATE, TXNS_COMMIT | [`Transaction`], [`Producer::send`] |
//! | PREFETCH_TXNS | [`Consumer::prefetch`], [`HostSlot::prefetch`] |
//! | POLL_TXNS | [`Consumer::poll`], [`HostSlot::take`] |
//! | SET_TXNS_OUTCOMES, POLL_TXNS_OUTCOMES | [`HostThreads::commit`], [`Producer::send`]; [`Consumer::poll`] |
//!
//! Queues are in memory that [`QueueMemory`] reaches: plain shared memory, or the [`link`] model, which has the costs
//! of a host's accesses over PCIe and its stale caches. Ids of threads and cores are those of
//! [`softdpu_sched::threads`].

#![forbid(unsafe_code)]

mod entry;
mod host_threads;
pub mod link;
mod memory;
mod offload;
mod prestage;
mod queue;
mod watchdog;

pub use entry::{Entry, Transaction, TransactionOutcome};
pub use host_threads::{Grouping, HostThreads, ThreadState};
pub use memory::{QueueMemory, SharedMemory, WORDS_PER_LINE};
pub use offload::{
    AgentEnded, AgentId, AgentQueueId, AgentSpec, AgentState, Backing, End, Offload, OffloadError, QueueDirection,
    QueueType,
};
pub use prestage::{AgentSlot, HostSlot, Replaced, SLOT_LINES};
pub use queue::{Consumer, Producer, QueueError, queue_lines};
pub use watchdog::{Watchdog, WatchdogVerdict};
