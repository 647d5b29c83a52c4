//! The words of thread scheduling. The queues of `offload` carry these very types.

/// A thread of the host, by its TID; a vCPU is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadId(pub u32);

/// A core of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CoreId(pub u32);

/// The number of changes that something of the host has had: of a thread, or of a batch of pages. A decision carries
/// the one that it was made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The one after it.
    pub fn next(self) -> Sequence {
        Sequence(self.0.wrapping_add(1))
    }
}

/// A class of requests with the same service level objective, as the RPC stack tells it (Wave §7.3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SloClass(pub u8);

/// What happened to a thread, after ghOSt's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadEvent {
    /// It is the policy's from now on, and blocked.
    Created,
    /// It became runnable.
    Wakeup,
    /// It waits for something, and left its core.
    Blocked,
    /// It gave up its core and is runnable.
    Yield,
    /// Its core was taken away; it is runnable.
    Preempted,
    /// It may run on the message's core alone from now on.
    Affinity,
    /// It has ended, or is no longer the policy's.
    Departed,
}

/// A message about a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadMessage {
    /// The thread.
    pub thread: ThreadId,
    /// Its number of changes, with this one.
    pub sequence: Sequence,
    /// What happened.
    pub event: ThreadEvent,
    /// The core that it was on; for [`ThreadEvent::Affinity`] the one that it may run on.
    pub core: CoreId,
    /// The class of what it does next.
    pub class: SloClass,
}

/// A core is to run a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadDecision {
    /// The core.
    pub core: CoreId,
    /// The thread.
    pub thread: ThreadId,
    /// The state of the thread that it was decided for.
    pub sequence: Sequence,
}

/// What the host made of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It is enacted.
    Committed,
    /// What it is about has changed since: the thread exited, moved, woke or ran.
    Stale,
    /// The core is not idle, and the decision did not ask for a preemption.
    CoreBusy,
    /// It is about something outside of the agent's partition.
    NotOwned,
    /// Another decision of its group was refused.
    GroupRefused,
}
