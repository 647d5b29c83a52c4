//! A device queue that a core serves.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use softdpu_device::block::Requests;
use softdpu_memory::View;
use softdpu_ring::{Chains, Queue, Used};
use softdpu_sched::{Nanos, Placement, QueueId, TenantId};
use softdpu_storage::{Attachment, Volume};
use softdpu_sys::clock;

use crate::counters::QueueCounters;
use crate::message::{CoreIndex, QueueKey};
use crate::net::{Receive, Transmit};

/// Everything a core needs to serve a queue.
pub struct QueueSpec {
    /// The device's name, for logs.
    pub device: Arc<str>,
    /// Which of the device's queues it is.
    pub index: u16,
    /// Whose work it carries.
    pub tenant: TenantId,
    /// What it is for.
    pub role: Role,
    /// The ring, at the position from which it goes on.
    pub ring: Queue,
    /// Guest memory as the connection sees it now.
    pub view: Arc<View>,
    /// The driver's notifications; none: the ring is only polled, and the core does not sleep while it is there.
    pub kick: Option<OwnedFd>,
    /// Interrupts.
    pub call: Option<OwnedFd>,
    /// Told when the driver broke the ring (SET_VRING_ERR).
    pub error: Option<OwnedFd>,
    /// Whether the driver may use it yet (SET_VRING_ENABLE).
    pub enabled: bool,
    /// It ran before this process: its driver may have missed an interrupt.
    pub resumed: bool,
    /// Where it counts.
    pub counters: Arc<QueueCounters>,
}

/// What a queue is for.
pub enum Role {
    /// Requests of a virtio-blk device.
    Block {
        /// What they read and write.
        volume: Arc<Volume>,
        /// How they are read.
        requests: Requests,
    },
    /// Frames that a virtio-net driver sends.
    Transmit(Transmit),
    /// Buffers for frames that a virtio-net driver receives.
    Receive(Receive),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    /// Nothing more is taken from the ring; what was taken is finished until then (clock nanoseconds).
    Stopping {
        deadline: u64,
    },
    /// The driver broke it. Inert until it is stopped, from when on what back ends still have is waited for until then.
    Broken {
        deadline: Option<u64>,
    },
}

/// How many chains are taken from a ring before another is looked at. A chain may have one descriptor or thousands, so a look that took long
/// is followed by shorter ones, and those grow again in steps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace(u8);

impl Pace {
    /// The most chains.
    pub(crate) const MOST: usize = 64;
    /// What a look is meant to take, nanoseconds.
    const TIME: u64 = 16_000;

    #[inline]
    pub(crate) fn most(self) -> usize {
        self.0.into()
    }

    /// So many were taken, in so many nanoseconds.
    #[inline]
    pub(crate) fn took(&mut self, chains: usize, time: u64) {
        if time > Self::TIME {
            self.0 = (chains as u64 * Self::TIME / time).clamp(1, Self::MOST as u64) as u8;
        } else if self.most() < Self::MOST {
            self.0 = (2 * self.0).min(Self::MOST as u8);
        }
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace(Pace::MOST as u8)
    }
}

pub(crate) struct RunningQueue {
    pub key: QueueKey,
    pub spec: QueueSpec,
    pub state: State,
    /// In the tenant's channel: taken from the ring and not yet run, in ring order.
    pub waiting: Chains,
    /// Some of them were found in memory that the queue has no more.
    pub outlived_its_view: bool,
    /// Finished in this round, not yet in the used ring.
    pub finished: Vec<Used>,
    /// Taken from the ring and not yet completed, here or on cores it was on before; of a broken one, what back ends have.
    pub taken: u32,
    /// Cores it was on before and left requests with. Some may have ended meanwhile.
    pub former: Vec<CoreIndex>,
    /// On the core that owns it now.
    pub attachment: Option<Attachment>,
    /// In the core's list of queues with something to publish.
    pub touched: bool,
    /// Core time that was spent on it beside its grants, to be charged with what waits: requests taken in, submitted, published;
    /// nanoseconds.
    pub owes: u64,
    /// How many chains are taken from its ring at a time.
    pub pace: Pace,
    /// What each of the requests took that were run together last in a grant that may be ended for who comes, nanoseconds.
    pub each: Option<u64>,
    /// What its core's scheduler is told of it; nothing where it brings no work.
    pub placement: Option<Placement>,
}

impl RunningQueue {
    pub(crate) fn new(key: QueueKey, spec: QueueSpec) -> Self {
        RunningQueue {
            key,
            spec,
            state: State::Running,
            waiting: Chains::new(),
            outlived_its_view: false,
            finished: Vec::new(),
            taken: 0,
            former: Vec::new(),
            attachment: None,
            touched: false,
            owes: 0,
            pace: Pace::default(),
            each: None,
            placement: None,
        }
    }

    pub(crate) fn id(&self) -> QueueId {
        QueueId { tenant: self.spec.tenant, index: self.key.number }
    }

    /// What a grant of `units`, which waited until now, pays of what the queue owes: its part of that, by the requests that wait on.
    #[inline]
    pub(crate) fn pay(&mut self, units: u32) -> u64 {
        let left = self.waiting.len() as u64;
        let pays = match left {
            0 => self.owes,
            _ => self.owes * u64::from(units) / (u64::from(units) + left),
        };
        self.owes -= pays;
        pays
    }

    /// Whether its ring is to be looked at.
    #[inline]
    pub(crate) fn takes_work(&self) -> bool {
        self.state == State::Running && self.spec.enabled
    }

    /// Whether what is in its ring is work to be taken, other than buffers that wait for frames.
    #[inline]
    pub(crate) fn brings_work(&self) -> bool {
        self.takes_work() && !matches!(self.spec.role, Role::Receive(_))
    }

    /// Whether there is a buffer for a frame.
    pub(crate) fn has_room(&self) -> bool {
        matches!(&self.spec.role, Role::Receive(receive) if receive.has_room(&self.spec.ring))
    }

    /// Whether a receiver without room keeps it from sending.
    pub(crate) fn is_held(&self) -> bool {
        matches!(&self.spec.role, Role::Transmit(transmit) if transmit.held.is_some())
    }

    /// Whether its rate limit keeps it from sending at `now`.
    pub(crate) fn is_limited(&self, now: Nanos) -> bool {
        matches!(&self.spec.role, Role::Transmit(transmit) if transmit.room(now) == 0)
    }

    /// Whether everything that was taken is finished or can be taken again: a network queue has nothing at a back end.
    pub(crate) fn can_rewind(&self) -> bool {
        !matches!(self.spec.role, Role::Block { .. })
    }

    /// Whether nothing but this core uses what was taken from its ring.
    pub(crate) fn is_settled(&self) -> bool {
        match &self.spec.role {
            Role::Block { .. } => self.taken == 0,
            Role::Transmit(transmit) => transmit.loans.is_settled(),
            Role::Receive(_) => true,
        }
    }

    pub(crate) fn stop_deadline(&self) -> Option<u64> {
        match self.state {
            State::Stopping { deadline } => Some(deadline),
            State::Broken { deadline } => deadline,
            State::Running => None,
        }
    }

    pub(crate) fn is_broken(&self) -> bool {
        matches!(self.state, State::Broken { .. })
    }

    pub(crate) fn stop(&mut self, patience: std::time::Duration) {
        let patience = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let deadline = clock::now().saturating_add(patience);
        self.state =
            if self.is_broken() { State::Broken { deadline: Some(deadline) } } else { State::Stopping { deadline } };
    }
}
