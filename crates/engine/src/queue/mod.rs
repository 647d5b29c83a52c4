//! Device queues that cores serve: what a queue is for, what a core keeps of it, and the table of a core's queues.

mod loan;
mod nvme;
mod receive;
mod table;
mod transmit;

pub use nvme::NvmeQueue;
pub use receive::Receive;
pub use transmit::{RateLimit, Transmit};

pub(crate) use loan::{Loan, Loans};
pub(crate) use table::{QueueTable, Unpublished};
pub(crate) use transmit::{BURST, Backpressure, NoFrame, prefetch, tail_offset};

use std::os::fd::OwnedFd;
use std::sync::Arc;

use softdpu_device::block::Requests;
use softdpu_memory::View;
use softdpu_ring::{Chain, Chains, Queue, Used};
use softdpu_sched::{Nanos, Placement, QueueId, Stalls, TenantId, instalment};
use softdpu_storage::{Attachment, Volume};
use softdpu_sys::clock;

use crate::counters::QueueCounters;
use crate::ids::{CoreIndex, QueueKey};

/// Everything a core needs to serve a queue.
pub struct QueueSpec {
    /// The device's name, for logs.
    pub device: Arc<str>,
    /// Which of the device's queues it is.
    pub index: u16,
    /// The tenant that its work is charged to.
    pub tenant: TenantId,
    /// What it is for.
    pub role: Role,
    /// The ring, at the position from which it goes on.
    pub ring: Queue,
    /// Guest memory as the connection sees it now.
    pub view: Arc<View>,
    /// The driver's notifications. None: the ring is only polled, and its core does not sleep.
    pub kick: Option<OwnedFd>,
    /// Interrupts.
    pub call: Option<OwnedFd>,
    /// Told when the driver broke the ring (SET_VRING_ERR).
    pub error: Option<OwnedFd>,
    /// Whether the driver may use it yet (SET_VRING_ENABLE).
    pub enabled: bool,
    /// It ran in a process before this one, so that its driver may have missed an interrupt.
    pub resumed: bool,
    /// What it counts.
    pub counters: Arc<QueueCounters>,
}

/// What a queue is for.
pub enum Role {
    /// Requests of a virtio-blk device.
    Block {
        /// The volume that they read and write.
        volume: Arc<Volume>,
        /// Parses them.
        requests: Requests,
    },
    /// Commands of an I/O queue pair of an NVMe controller.
    Nvme(NvmeQueue),
    /// Frames that a virtio-net driver sends.
    Transmit(Transmit),
    /// Buffers for frames that a virtio-net driver receives.
    Receive(Receive),
}

impl Role {
    /// Whether its requests go to volumes.
    #[inline]
    pub(crate) fn is_disk(&self) -> bool {
        matches!(self, Role::Block { .. } | Role::Nvme(_))
    }

    /// The volumes that its requests go to, by the number that requests have for them.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = (u32, &Arc<Volume>)> {
        let (one, several) = match self {
            Role::Block { volume, .. } => (Some((0, volume)), &[][..]),
            Role::Nvme(queue) => (None, &queue.namespaces[..]),
            Role::Transmit(_) | Role::Receive(_) => (None, &[][..]),
        };
        one.into_iter().chain(several.iter().map(|(nsid, volume)| (*nsid, volume)))
    }

    /// Bytes of work in chains that were taken.
    #[inline]
    pub(crate) fn bytes(&self, chains: &[Chain]) -> u64 {
        match self {
            Role::Nvme(queue) => queue.bytes(chains),
            _ => chains.iter().map(|chain| chain.buffer.len()).sum(),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueueState {
    Running,
    /// Nothing more is taken from the ring. What was taken has until the deadline (clock nanoseconds) to finish.
    Stopping {
        deadline: u64,
    },
    /// The driver broke it. It is inert until it is stopped; from then on, back ends have until the deadline to give
    /// back what they hold.
    Broken {
        deadline: Option<u64>,
    },
}

/// How many chains one poll takes from a ring at the most (NAPI's budget). A chain may have one descriptor or
/// thousands, so a poll that took long is followed by shorter ones, which grow again in steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollBudget(u8);

impl PollBudget {
    /// The largest budget, chains.
    const MOST: usize = 64;
    /// What a poll is meant to take, nanoseconds.
    const TIME: u64 = 16_000;

    #[inline]
    pub(crate) fn chains(self) -> usize {
        self.0.into()
    }

    /// A poll took `chains` in `time` nanoseconds.
    #[inline]
    pub(crate) fn polled(&mut self, chains: usize, time: u64) {
        if time > Self::TIME {
            self.0 = (chains as u64 * Self::TIME / time).clamp(1, Self::MOST as u64) as u8;
        } else if self.chains() < Self::MOST {
            self.0 = (2 * self.0).min(Self::MOST as u8);
        }
    }
}

impl Default for PollBudget {
    fn default() -> PollBudget {
        PollBudget(PollBudget::MOST as u8)
    }
}

/// A queue as its core has it.
pub(crate) struct RunningQueue {
    pub key: QueueKey,
    pub spec: QueueSpec,
    pub state: QueueState,
    /// The last move that was asked for.
    pub last_move: u64,
    /// Chains that were taken from the ring and have not run, in ring order. They count in the tenant's channel.
    pub waiting: Chains,
    /// Some of `waiting` lie in a view that was replaced since.
    pub waits_in_old_view: bool,
    /// Used entries that are not in the ring yet.
    pub finished: Vec<Used>,
    /// Chains that were taken from the ring and are not completed, on this core or on former ones; of a broken
    /// queue, those at back ends.
    pub in_flight: u32,
    /// Cores that it was on before and that had requests of it then. They may have completed them meanwhile.
    pub former_cores: Vec<CoreIndex>,
    /// Its volume, on the core that has it; of several, the first.
    pub attachment: Option<Attachment>,
    /// The volumes of its namespaces, on that core.
    pub namespaces: Vec<(u32, Attachment)>,
    /// It is in its core's list of queues with used entries to publish.
    pub is_unpublished: bool,
    /// Core time that was spent on it outside of grants and is not charged yet, nanoseconds: polling, submitting,
    /// publishing.
    pub uncharged: u64,
    /// How many chains the next poll takes at the most.
    pub poll_budget: PollBudget,
    /// Core time of each request in the piece of a grant that ran last, nanoseconds. None: not known.
    pub request_ns: Option<u64>,
    /// The time for which it made its cores wait of late.
    pub stalls: Stalls,
    /// How often more it is looked at alone: it is one of several for which its core has waited.
    pub suspect: u8,
    /// On the slow core: nothing is taken from its ring until then, clock nanoseconds.
    pub rests_until: u64,
    /// Its placement, for the core's scheduler. None: it brings no work.
    pub placement: Option<Placement>,
}

impl RunningQueue {
    pub(crate) fn new(key: QueueKey, spec: QueueSpec) -> Self {
        RunningQueue {
            key,
            spec,
            state: QueueState::Running,
            last_move: 0,
            waiting: Chains::new(),
            waits_in_old_view: false,
            finished: Vec::new(),
            in_flight: 0,
            former_cores: Vec::new(),
            attachment: None,
            namespaces: Vec::new(),
            is_unpublished: false,
            uncharged: 0,
            poll_budget: PollBudget::default(),
            request_ns: None,
            stalls: Stalls::default(),
            suspect: 0,
            rests_until: 0,
            placement: None,
        }
    }

    #[inline]
    pub(crate) fn id(&self) -> QueueId {
        QueueId { tenant: self.spec.tenant, index: self.key.number }
    }

    /// The part of its uncharged time that a grant of which `units` ran, which no longer count as waiting, is charged
    /// with: by the requests that still wait.
    #[inline]
    pub(crate) fn take_instalment(&mut self, units: u32) -> u64 {
        let instalment = instalment(Nanos(self.uncharged), units, self.waiting.len() as u64).0;
        self.uncharged -= instalment;
        instalment
    }

    /// Whether it runs and its driver may use it.
    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.state == QueueState::Running && self.spec.enabled
    }

    /// Whether it rests at `now`, after a stall.
    #[inline]
    pub(crate) fn is_resting(&self, now: Nanos) -> bool {
        self.rests_until > now.0
    }

    /// Whether its ring is polled for work: it is active, and has more than buffers for frames.
    #[inline]
    pub(crate) fn is_polled(&self) -> bool {
        self.is_active() && !matches!(self.spec.role, Role::Receive(_))
    }

    /// Whether there is a buffer for a frame.
    pub(crate) fn has_buffer(&self) -> bool {
        matches!(&self.spec.role, Role::Receive(receive) if receive.has_buffer(&self.spec.ring))
    }

    /// Whether a receiver without buffers keeps it from sending.
    pub(crate) fn is_backpressured(&self) -> bool {
        matches!(&self.spec.role, Role::Transmit(transmit) if transmit.backpressure.is_some())
    }

    /// Whether its rate limit keeps it from sending at `now`.
    pub(crate) fn is_rate_limited(&self, now: Nanos) -> bool {
        matches!(&self.spec.role, Role::Transmit(transmit) if transmit.budget(now) == 0)
    }

    /// Whether everything that was taken is finished or can be taken again: a network queue has nothing at a back end.
    pub(crate) fn can_rewind(&self) -> bool {
        !self.spec.role.is_disk()
    }

    /// Whether no back end and no other core uses what was taken from its ring.
    pub(crate) fn is_quiescent(&self) -> bool {
        match &self.spec.role {
            Role::Block { .. } | Role::Nvme(_) => self.in_flight == 0,
            Role::Transmit(transmit) => transmit.loans.is_settled(),
            Role::Receive(_) => true,
        }
    }

    /// The clock time by which a stop is over. None: it is not being stopped.
    pub(crate) fn stop_deadline(&self) -> Option<u64> {
        match self.state {
            QueueState::Stopping { deadline } => Some(deadline),
            QueueState::Broken { deadline } => deadline,
            QueueState::Running => None,
        }
    }

    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.state, QueueState::Broken { .. })
    }

    /// Its driver has broken it: it is inert from now on. False: it was already.
    pub(crate) fn set_broken(&mut self) -> bool {
        if self.is_broken() {
            return false;
        }
        self.state = QueueState::Broken { deadline: self.stop_deadline() };
        true
    }

    /// Begins a stop that is over after `patience`.
    pub(crate) fn stop(&mut self, patience: std::time::Duration) {
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let deadline = clock::now().saturating_add(patience);
        self.state = if self.is_broken() {
            QueueState::Broken { deadline: Some(deadline) }
        } else {
            QueueState::Stopping { deadline }
        };
    }

    /// How many of its requests run in `time` nanoseconds, by what the last ones took; one at least. None: that is not
    /// known.
    #[inline]
    pub(crate) fn requests_in(&self, time: u64) -> Option<usize> {
        usize::try_from(time.max(1).div_ceil(self.request_ns?.max(1))).ok()
    }

    /// What `waiting` has pinned of a view that was replaced is let go of once those chains have run.
    #[inline]
    pub(crate) fn release_old_view(&mut self) {
        if self.waits_in_old_view && self.waiting.is_empty() {
            self.waits_in_old_view = false;
            self.waiting.release();
        }
    }

    /// Why it cannot go on, if a file behind its memory was truncated.
    pub(crate) fn truncated_file(&self) -> Option<&'static str> {
        if self.spec.view.is_faulted() {
            Some("the front end cut short the file that holds its guest's memory")
        } else if self.spec.ring.records_are_faulted() {
            Some("the front end cut short the file that holds its in-flight region")
        } else {
            None
        }
    }
}
