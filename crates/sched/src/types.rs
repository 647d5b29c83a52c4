//! The words policies and their callers share.

use std::fmt;

use crate::Rate;

/// A point in time or a duration, in nanoseconds of the caller's clock. The origin is the caller's business.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

impl Nanos {
    /// One microsecond.
    pub const MICRO: Nanos = Nanos(1_000);
    /// One millisecond.
    pub const MILLI: Nanos = Nanos(1_000_000);
    /// One second.
    pub const SECOND: Nanos = Nanos(1_000_000_000);

    /// The time from `earlier` to `self`; zero where the clock went backwards.
    pub fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

impl std::ops::Add for Nanos {
    type Output = Nanos;
    fn add(self, rhs: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(rhs.0))
    }
}

/// A tenant, numbered by the configuration in force. Dense from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantId(pub u16);

/// A device queue, numbered by the engine; unique on a node while the queue exists. The policy needs only its identity
/// and its tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueId {
    /// The tenant that it belongs to.
    pub tenant: TenantId,
    /// Which of the node's queues it is.
    pub index: u32,
}

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.tenant.0, self.index)
    }
}

/// Work that became ready, as far as it can be known before it ran.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Requests or packets.
    pub units: u32,
    /// Payload bytes of all of them.
    pub bytes: u64,
}

/// What a tenant may claim of a core, and what it may not exceed there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Relative weight, at least 1.
    pub weight: u32,
    /// The least it gets of this core while it has work, whatever the weights say, in thousandths of the core's time.
    /// All tenants' guarantees together are to leave something for the weights: at most 900.
    pub guarantee: u16,
    /// Its place among tenants that are below their share.
    pub class: LatencyClass,
    /// What it may not exceed.
    pub limits: Limits,
    /// On how many cores of the node it is served, for policies that go by it; 0: unknown.
    pub cores: u16,
}

impl Default for Share {
    fn default() -> Self {
        Share { weight: 1, guarantee: 0, class: LatencyClass::Normal, limits: Limits::default(), cores: 0 }
    }
}

/// The order among tenants that are below their share. A class gives no more work than the weight does, only
/// earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LatencyClass {
    /// Before the others.
    Latency,
    /// In between.
    #[default]
    Normal,
    /// Saves nothing up while it has no work, so never goes before others.
    Background,
}

/// The most a tenant may do on a core, over any span of time. None: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests of disks.
    pub requests: Option<Rate>,
    /// Bytes of requests and packets.
    pub bytes: Option<Rate>,
    /// Packets of interfaces.
    pub packets: Option<Rate>,
}

/// What a queue's work units are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WorkKind {
    /// Requests of a disk.
    #[default]
    Requests,
    /// Packets of an interface.
    Packets,
    /// Packets that a wire brings. No limit holds them: they are here already.
    Received,
}

/// Where a queue stands in its tenant's tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placement {
    /// The device, any number that is its own among its tenant's.
    pub device: u32,
    /// What it counts.
    pub kind: WorkKind,
    /// What its work goes on to, where that is shared and bounded.
    pub back_end: Option<BackEnd>,
}

/// Something that many queues' work goes on to: a disk, a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackEnd {
    /// Which one, dense from 0.
    pub index: u32,
    /// How many requests it may hold at once, of all tenants on this core, at least 1.
    pub depth: u32,
}

/// Permission to run up to `units` of one queue's ready work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The queue that may run.
    pub queue: QueueId,
    /// How many units at the most, at least 1.
    pub units: u32,
}

/// What running something cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Requests or packets that ran.
    pub units: u32,
    /// Core time; for what a back end did, the time from its grant to its end. Nanoseconds.
    pub time: Nanos,
    /// Bytes moved.
    pub bytes: u64,
    /// Of a grant that ran: units that a back end still has. Each is reported by
    /// [`complete`](crate::TenantScheduler::complete) when it ends.
    pub pending: u32,
}

/// The answer of [`TenantScheduler::decide`](crate::TenantScheduler::decide).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Run this now.
    Run(Grant),
    /// Something is ready but may not run before this time.
    IdleUntil(Nanos),
    /// Nothing is ready.
    Idle,
}

/// When work that is no grant's goes on, beside what is ready and may be granted
/// ([`TenantScheduler::precedence`](crate::TenantScheduler::precedence)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// Before all of that.
    First,
    /// In turn with it.
    InTurn,
    /// Only where nothing is granted.
    Last,
}

/// What a policy knows of a tenant on its core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// For how long in all it had work that a limit held.
    pub limited: Nanos,
}
