//! Messages between the control thread and the cores, and among cores.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use softdpu_memory::{GuestAddress, View};
use softdpu_ring::Position;
use softdpu_ring::nvme::Shadow;
use softdpu_sched::{QueueId, Share, TenantId, YieldPolicy};
use softdpu_storage::Volume;
use softdpu_vpc::steer::Steering;
use softdpu_vpc::{Explanation, PortId, Tables};

use crate::counters::TenantCounters;
use crate::flight::CompletedRequest;
use crate::ids::{CoreIndex, QueueKey};
use crate::net::{CaptureStart, EgressFrame, FunctionSwitch, Injection, Port, Receiver, Socket, SteeringItem};
use crate::queue::{RateLimit, RunningQueue};

/// A change to a running queue.
#[derive(Debug)]
pub enum QueueUpdate {
    /// Memory or dirty logging changed: use this view from now on.
    View(Arc<View>),
    /// Another interrupt eventfd, or none.
    Call(Option<OwnedFd>),
    /// Another notification eventfd, or none (the ring is then polled).
    Kick(Option<OwnedFd>),
    /// Another error eventfd, or none.
    Error(Option<OwnedFd>),
    /// The driver may use the ring, or not for now.
    Enabled(bool),
    /// The host of an NVMe controller has configured shadow doorbells.
    Shadow(Shadow),
    /// Log writes to the used ring under this address, or not at all (VHOST_VRING_F_LOG).
    LogUsed(Option<GuestAddress>),
}

/// To a core.
pub(crate) enum ToCore {
    Start(Box<RunningQueue>),
    /// The queue comes from another core.
    Adopt(Box<RunningQueue>),
    Update {
        key: QueueKey,
        update: QueueUpdate,
        token: u64,
    },
    /// Take no more from the ring; report when nothing is in flight, or what is given up when the time is over.
    Stop {
        key: QueueKey,
        patience: Duration,
    },
    Move {
        key: QueueKey,
        to: CoreIndex,
        /// Moves of a queue are counted: one may overtake another between cores, and the last that was asked for is the
        /// one that counts.
        serial: u64,
    },
    /// Requests that other cores have completed, for a queue of this one.
    Completed {
        key: QueueKey,
        done: Vec<CompletedRequest>,
    },
    /// The queue moved on from this core and ends on core `by`: give up what is still in flight for it, then answer.
    GiveUp {
        key: QueueKey,
        by: CoreIndex,
    },
    /// The answer to [`GiveUp`](Self::GiveUp): what is in flight there touches the guest's memory no more.
    GivenUp(QueueKey),
    /// No message comes for this key again.
    Forget(QueueKey),
    /// Nothing uses the volume any more.
    Detach(Arc<Volume>),
    Tenant(TenantId, Share, Arc<TenantCounters>),
    /// A tenant's frames from wires may wait as this queue.
    Ingress(QueueId),
    /// What wires may bring a tenant, or without a limit.
    IngressLimit(TenantId, Option<RateLimit>),
    /// Another configuration of the networks; the one before it goes back to the sender, to be freed there.
    Tables(Arc<Tables>, Sender<Arc<Tables>>),
    /// A port as this core is to have it, or none: it is removed.
    Port(PortId, Option<Box<Port>>),
    /// A port has other sockets, or none.
    Socket {
        port: PortId,
        /// The core with the socket that this core sends by; itself, if it has one.
        owner: Option<CoreIndex>,
        socket: Option<Box<Socket>>,
    },
    /// Give the socket of a port to core `to`, and tell all others.
    HandSocket {
        port: PortId,
        to: CoreIndex,
    },
    /// A port's socket has gone from one core to another. It means nothing to a core that has learned of another since.
    SocketMoved {
        port: PortId,
        from: CoreIndex,
        to: CoreIndex,
        /// For `to`.
        socket: Option<Box<Socket>>,
    },
    /// Other receive queues take a port's frames now.
    Receivers(PortId, Arc<[Receiver]>),
    /// Frames for ports of this core.
    EgressFrames(Vec<EgressFrame>),
    /// Which core forwards which packets from tunnels.
    Steering(Arc<Steering>),
    /// Packets from tunnels that core `from` has read, and what keeps them in order.
    Steered {
        from: CoreIndex,
        items: Vec<SteeringItem>,
    },
    /// What `reader` had handed off before its mark `number` is done on the core that its flows left.
    MarkPassed {
        reader: CoreIndex,
        number: u64,
    },
    /// Chains that were lent with egress frames are not needed any more.
    Returned {
        key: QueueKey,
        numbers: Vec<u64>,
    },
    /// Begin to capture frames.
    Capture(CaptureStart),
    /// Other functions in the path of ports' frames.
    Functions(Box<FunctionSwitch>),
    /// Frames as though they had come in by a port.
    Inject(Injection),
    /// Announce a port's endpoint in its network.
    Announce(PortId),
    /// What would become of a frame.
    Explain(ExplainRequest),
    /// When to give the CPU away.
    Yielding(YieldPolicy),
    /// The CPUs to run on; none: where the core is.
    KeepTo(Vec<usize>),
    Shutdown,
}

impl ToCore {
    /// The queue that it is for, if it is for one.
    pub(crate) fn queue(&self) -> Option<QueueKey> {
        match self {
            ToCore::Start(queue) | ToCore::Adopt(queue) => Some(queue.key),
            ToCore::Update { key, .. }
            | ToCore::Stop { key, .. }
            | ToCore::Move { key, .. }
            | ToCore::Completed { key, .. }
            | ToCore::Returned { key, .. }
            | ToCore::GiveUp { key, .. }
            | ToCore::GivenUp(key)
            | ToCore::Forget(key) => Some(*key),
            ToCore::Detach(_)
            | ToCore::Tenant(..)
            | ToCore::Ingress(_)
            | ToCore::IngressLimit(..)
            | ToCore::Tables(..)
            | ToCore::Port(..)
            | ToCore::Socket { .. }
            | ToCore::Receivers(..)
            | ToCore::EgressFrames(_)
            | ToCore::Capture(_)
            | ToCore::Functions(_)
            | ToCore::Inject(_)
            | ToCore::Announce(_)
            | ToCore::Explain(_)
            | ToCore::Steering(_)
            | ToCore::Steered { .. }
            | ToCore::MarkPassed { .. }
            | ToCore::Yielding(_)
            | ToCore::HandSocket { .. }
            | ToCore::SocketMoved { .. }
            | ToCore::KeepTo(_)
            | ToCore::Shutdown => None,
        }
    }
}

/// Asks what would become of a frame that came in by a port.
pub(crate) struct ExplainRequest {
    pub port: PortId,
    /// The port's name: its number may be another's by now.
    pub name: Arc<str>,
    pub frame: Arc<[u8]>,
    /// None: the core has no such port.
    pub answer: Sender<(CoreIndex, Option<Explanation>)>,
}

/// The stop of a queue that has left its last core, while the cores before that one give up what they hold of it.
pub(crate) struct PendingStop {
    pub key: QueueKey,
    pub position: Position,
    pub abandoned: u16,
    /// Cores that have not answered yet.
    pub unanswered: usize,
}

/// From a core to the control thread.
#[derive(Debug)]
pub enum FromCore {
    /// A stopped queue has nothing in flight, or was told to give up.
    Stopped {
        /// Which queue.
        key: QueueKey,
        /// Where the ring stands.
        position: Position,
        /// Requests that a back end still holds. Their completions will be dropped.
        abandoned: u16,
    },
    /// An update took effect; the old view is no longer used for new requests.
    Updated {
        /// Which queue.
        key: QueueKey,
        /// The token given with the update.
        token: u64,
    },
    /// The driver broke its ring. The queue is inert until it is stopped.
    Broken {
        /// Which queue.
        key: QueueKey,
        /// What the driver did.
        reason: String,
    },
    /// A queue made its core wait for longer than there was room for. It is on its way to the slow core, and the rest
    /// of its device is to follow.
    Stalled {
        /// Which queue.
        key: QueueKey,
        /// How long the last stall took.
        time: Duration,
    },
    /// A port's socket is of no use any more: it was put away, and what is to leave by the port is dropped until it is
    /// given [another](crate::Engine::set_sockets).
    SocketLost {
        /// Which port.
        port: PortId,
        /// What the kernel said.
        reason: String,
    },
    /// The first request since the engine started was completed.
    FirstCompletion {
        /// When, in nanoseconds of [`softdpu_sys::clock`].
        at_ns: u64,
    },
}
