//! Recordings: every call of a core's policy, and every answer.
//!
//! A policy is pure, so the same calls at the same times give the same decisions. [`Recording`] wraps a policy and
//! writes each call and each answer to an [`EventSink`]. An [`Encoder`] is one: it writes into a buffer that the core's
//! owner carries to a file. A [`Decoder`] reads it back. The same calls to a policy of the same parameters ([`Header`],
//! [`Policy`](crate::Policy)) give the same decisions, or show the first that differs.
//!
//! ```text
//!  file    = magic (8 bytes) version (u16, little endian) core (varint)
//!            name  count (1 byte)  { name value (varint) }          the policy and its parameters
//!            { event }
//!  name    = length (1 byte) UTF-8
//!  event   = opcode (1 byte), then fields: varints (LEB128), each time as the zigzag difference from the time before
//! ```
//!
//! A data plane that is killed leaves a file that ends anywhere: all before its last whole event can be replayed.

mod decode;
mod encode;
#[cfg(test)]
mod tests;

pub use decode::{DecodeError, Decoder, Fault};
pub use encode::Encoder;

use crate::{
    Account, Cost, Decision, DeferredWork, Grant, Nanos, Placement, Preemption, QueueId, Share, TenantId,
    TenantScheduler, Work, YieldPolicy, YieldedSlice,
};

/// What a recording begins with.
const MAGIC: [u8; 8] = *b"SDPUREC\n";
/// The format that is written.
pub const VERSION: u16 = 2;
/// The oldest format that is read: it is the same without yields.
pub const OLDEST_VERSION: u16 = 1;
/// The largest queue number that is read: a recording is a file from anywhere, and policies keep queues in tables.
pub const LARGEST_QUEUE: u32 = (1 << 16) - 1;
/// The largest number of a back end that is read.
pub const LARGEST_BACK_END: u32 = (1 << 12) - 1;

/// The latest time that is read, and the longest duration: some 36 years.
pub const LARGEST_TIME: Nanos = Nanos(1 << 60);

mod opcode {
    pub(super) const CONFIGURE: u8 = 1;
    pub(super) const PLACE: u8 = 2;
    pub(super) const READY: u8 = 3;
    pub(super) const RUN: u8 = 4;
    pub(super) const IDLE_UNTIL: u8 = 5;
    pub(super) const IDLE: u8 = 6;
    pub(super) const AGAIN: u8 = 7;
    pub(super) const CHARGE: u8 = 8;
    pub(super) const COMPLETE: u8 = 9;
    pub(super) const CANCEL: u8 = 10;
    pub(super) const STOPPED: u8 = 11;
    pub(super) const YIELDING: u8 = 12;
    pub(super) const YIELDED: u8 = 13;
}

/// Which core and policy a recording is of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// The core, as its configuration numbers it.
    pub core: u32,
    /// The policy's name, at most 255 bytes; what is longer is cut.
    pub policy: String,
    /// Its parameters, by name; at most 255.
    pub parameters: Vec<(String, u64)>,
}

/// A call of a policy, and its answer where it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// [`TenantScheduler::configure`].
    Configure {
        /// The tenant.
        tenant: TenantId,
        /// The share.
        share: Share,
    },
    /// [`TenantScheduler::place`].
    Place {
        /// The queue.
        queue: QueueId,
        /// Its placement.
        placement: Placement,
    },
    /// [`TenantScheduler::ready`].
    Ready {
        /// When.
        now: Nanos,
        /// The queue.
        queue: QueueId,
        /// The work.
        work: Work,
    },
    /// [`TenantScheduler::decide`].
    Decide {
        /// When.
        now: Nanos,
        /// The answer.
        decision: Decision,
    },
    /// The decision before was asked for again, and was the same, with nothing in between: what a core does that polls.
    /// Asking once, at `now`, is as good.
    Again {
        /// When it was asked for the last time.
        now: Nanos,
        /// How often.
        times: u64,
    },
    /// [`TenantScheduler::charge`].
    Charge {
        /// When.
        now: Nanos,
        /// What ran.
        grant: Grant,
        /// What it cost.
        cost: Cost,
    },
    /// [`TenantScheduler::complete`].
    Complete {
        /// When.
        now: Nanos,
        /// What ended.
        grant: Grant,
        /// What it cost.
        cost: Cost,
    },
    /// [`TenantScheduler::cancel`].
    Cancel {
        /// When.
        now: Nanos,
        /// The queue.
        queue: QueueId,
    },
    /// [`TenantScheduler::yielding`].
    Yielding(YieldPolicy),
    /// [`TenantScheduler::yielded`].
    Yielded(YieldedSlice),
    /// The recording ends here, though the policy went on: the buffer was not emptied in time.
    Stopped,
}

/// Where a recording's events go.
pub trait EventSink {
    /// Writes an event.
    fn write(&mut self, event: &Event);
}

impl EventSink for Encoder {
    #[inline]
    fn write(&mut self, event: &Event) {
        Encoder::write(self, event);
    }
}

/// A policy that records its calls and decisions.
///
/// With an [`Encoder`], no call allocates: where the buffer is full, the recording stops for good, and says so.
#[derive(Debug)]
pub struct Recording<S, W = Encoder> {
    policy: S,
    sink: W,
}

impl<S: TenantScheduler> Recording<S> {
    /// Records `policy`, which was not called yet, in a buffer of `capacity` bytes. It is to be [taken](Self::take)
    /// before it is full: a busy core writes some 30 bytes for each grant.
    pub fn new(policy: S, header: &Header, capacity: usize) -> Recording<S> {
        Recording::with_sink(policy, Encoder::new(header, capacity))
    }

    /// Bytes to be taken.
    pub fn pending(&self) -> usize {
        self.sink.pending()
    }

    /// Whether it stopped because its buffer was full.
    pub fn is_stopped(&self) -> bool {
        self.sink.is_stopped()
    }

    /// What was written since the last time, to be appended to the file. `next` is emptied and written to from now on;
    /// to lose nothing it needs as much room as the first had.
    pub fn take(&mut self, next: Vec<u8>) -> Vec<u8> {
        self.sink.take(next)
    }

    /// The policy, and what was not taken.
    pub fn finish(mut self) -> (S, Vec<u8>) {
        let rest = self.sink.take(Vec::new());
        (self.policy, rest)
    }
}

impl<S: TenantScheduler, W: EventSink> Recording<S, W> {
    /// Records `policy`, which was not called yet, into `sink`.
    pub fn with_sink(policy: S, sink: W) -> Recording<S, W> {
        Recording { policy, sink }
    }

    /// The policy.
    pub fn policy(&self) -> &S {
        &self.policy
    }
}

impl<S: TenantScheduler, W: EventSink> TenantScheduler for Recording<S, W> {
    fn configure(&mut self, tenant: TenantId, share: Share) {
        self.sink.write(&Event::Configure { tenant, share });
        self.policy.configure(tenant, share);
    }

    fn ready(&mut self, now: Nanos, queue: QueueId, work: Work) {
        self.sink.write(&Event::Ready { now, queue, work });
        self.policy.ready(now, queue, work);
    }

    fn decide(&mut self, now: Nanos) -> Decision {
        let decision = self.policy.decide(now);
        self.sink.write(&Event::Decide { now, decision });
        decision
    }

    fn charge(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.sink.write(&Event::Charge { now, grant, cost });
        self.policy.charge(now, grant, cost);
    }

    fn cancel(&mut self, now: Nanos, queue: QueueId) {
        self.sink.write(&Event::Cancel { now, queue });
        self.policy.cancel(now, queue);
    }

    fn place(&mut self, queue: QueueId, placement: Placement) {
        self.sink.write(&Event::Place { queue, placement });
        self.policy.place(queue, placement);
    }

    fn complete(&mut self, now: Nanos, grant: Grant, cost: Cost) {
        self.sink.write(&Event::Complete { now, grant, cost });
        self.policy.complete(now, grant, cost);
    }

    fn account(&self, now: Nanos, tenant: TenantId) -> Account {
        self.policy.account(now, tenant)
    }

    fn yielding(&mut self, policy: YieldPolicy) {
        self.sink.write(&Event::Yielding(policy));
        self.policy.yielding(policy);
    }

    fn yielded(&mut self, slice: YieldedSlice) {
        self.sink.write(&Event::Yielded(slice));
        self.policy.yielded(slice);
    }
}

impl<S: TenantScheduler, W> Preemption for Recording<S, W> {
    fn turn(&self, now: Nanos) -> Nanos {
        self.policy.turn(now)
    }

    fn can_preempt(&self) -> bool {
        self.policy.can_preempt()
    }

    fn wakeup_preempt(&self, tenant: TenantId) -> bool {
        self.policy.wakeup_preempt(tenant)
    }

    fn tick(&self) -> Option<Nanos> {
        self.policy.tick()
    }

    fn tick_preempt(&self, tenant: TenantId) -> bool {
        self.policy.tick_preempt(tenant)
    }
}

/// A recording has no event for deferred work. It has the default answers, so that deferred work is charged with the
/// next grants, and that cost is recorded: a replay then takes the same decisions.
impl<S, W> DeferredWork for Recording<S, W> {}
