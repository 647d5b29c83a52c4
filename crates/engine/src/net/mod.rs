//! The network side of a core: frames from guests' transmit queues and from the kernel's sockets, through the VPC, into
//! guests' receive queues and sockets.
//!
//! ```text
//!   transmit queue ──▶ channel ──▶ scheduler ──▶ heads copied out ──▶ Vpc::forward ──▶ receive queue of this core
//!   TAP · underlay ──────────────────────────────┘                               ├──▶ another core (a parcel)
//!                                                                                └──▶ TAP · underlay
//! ```
//!
//! A frame's bytes are copied once, from guest memory to guest memory, but for the head that is looked at, which is
//! copied out first: by the core that has the receiver, to which a chain for a port on another core is lent ([`loan`]).
//! A frame that is cut up or whose checksum is completed here, and one of a socket for another core, is copied once
//! more; each copy is counted.

mod capture;
mod credits;
mod deliver;
mod functions;
mod inject;
mod offload;
mod port;
mod socket;
mod source;
mod steer;
mod xdp_queues;

pub use capture::{Batch, Capture, CaptureCounts, CaptureSpec, CaptureTally, Captured, Path, Way};
pub use functions::{FunctionBox, FunctionChange, FunctionId, FunctionOutlet, FunctionReport, NewFunction, Switched};
pub use inject::Injector;
pub use port::{PortCounters, PortSpec};
pub use socket::Socket;
pub use xdp_queues::XdpQueues;

pub(crate) use capture::{CaptureStart, Passing, Shared as CaptureShared, Trace};
pub(crate) use credits::{Room, Whose};
pub(crate) use deliver::{Refused, Run, deliver, deliver_run};
pub(crate) use functions::{Functions, Switch as FunctionSwitch};
pub(crate) use inject::Injection;
pub(crate) use port::{Port, Receiver};
pub(crate) use socket::{header as socket_header, left_to_do};
pub(crate) use source::Source;
pub(crate) use steer::{HANDED, Handed, Item, Next, Steer};

use std::collections::VecDeque;
use std::sync::Arc;

use softdpu_memory::GuestBuffer;
use softdpu_vpc::{Checksum, Head, Packet, PortId, Reply, Tables, Verdict, Vpc};

use crate::core::Captures;
use crate::ids::CoreIndex;
use crate::queue::{BURST, Loan};

/// Frames from other cores that may wait for a core.
pub(crate) const PARCELS: usize = 4096;

/// A frame for a port of another core.
pub(crate) struct Parcel {
    pub to: PortId,
    pub hash: u32,
    /// Bytes of outer headers at the head's start, where the port is the underlay.
    pub overhead: u16,
    /// Whose part of the other core's room it takes.
    pub whose: Whose,
    pub packet: Packet,
    pub tail: ParcelTail,
}

/// The bytes of a frame behind its head, in the chain they were sent in.
pub(crate) struct Lent {
    pub loan: Loan,
    /// Pinned, wherever the queue's memory is by now.
    pub buffer: GuestBuffer,
    /// Where they begin in it.
    pub offset: u64,
}

/// The bytes of a parcel behind its head.
pub(crate) enum ParcelTail {
    /// In the sender's memory.
    Lent(Lent),
    /// Copied, or there are none.
    Copied(Vec<u8>),
}

impl Parcel {
    /// Where its bytes behind the head are.
    pub(crate) fn source(&self) -> Source<'_> {
        match &self.tail {
            ParcelTail::Lent(lent) => Source::Guest(&lent.buffer, lent.offset),
            ParcelTail::Copied(bytes) => Source::Bytes(bytes),
        }
    }
}

/// What a core knows of networks, and what it reuses from burst to burst.
pub(crate) struct Net {
    pub vpc: Vpc,
    /// By port number.
    pub ports: Vec<Option<Port>>,
    /// Ports whose sockets this core has.
    pub sockets: Vec<PortId>,
    /// The burst that is under way.
    pub packets: Vec<Packet>,
    pub verdicts: Vec<Verdict>,
    pub replies: Vec<Reply>,
    /// A frame as a whole, or as it is cut up.
    pub whole: Vec<u8>,
    pub segment: Vec<u8>,
    /// Collected in this round, by core.
    pub parcels: Vec<(CoreIndex, Vec<Parcel>)>,
    /// Frames from other cores that are to be passed on, in order.
    pub arrived: VecDeque<Parcel>,
    /// The chain of the frame that is being dispatched, where another core may have it.
    pub loan: Option<Loan>,
    /// Frames that are shown to somebody.
    pub captures: Option<Box<Captures>>,
    /// What ports' frames pass beside the network.
    pub functions: Option<Box<Functions>>,
    /// Seconds of heavy flows that were told of.
    pub windows: u64,
    /// Where packets from tunnels are worked on.
    pub steer: Steer,
}

impl Net {
    pub(crate) fn new(tables: Arc<Tables>, flows: usize, cores: usize) -> Net {
        let packet = Packet {
            head: Head::with_len(0),
            tail: 0,
            checksum: Checksum::Complete,
            segmentation: None,
            port: PortId(0),
        };
        Net {
            vpc: Vpc::with_flows(tables, flows),
            ports: Vec::new(),
            sockets: Vec::new(),
            packets: vec![packet; BURST],
            verdicts: Vec::with_capacity(BURST),
            replies: Vec::new(),
            whole: Vec::new(),
            segment: Vec::new(),
            parcels: Vec::new(),
            arrived: VecDeque::new(),
            loan: None,
            captures: None,
            functions: None,
            windows: 0,
            steer: Steer::new(cores),
        }
    }

    /// The port, if it is there.
    #[inline]
    pub(crate) fn port(&mut self, PortId(id): PortId) -> Option<&mut Port> {
        self.ports.get_mut(id as usize)?.as_mut()
    }

    /// Whether frames wait for a socket that took no more.
    pub(crate) fn is_backed_up(&self) -> bool {
        let socket = |PortId(id): &PortId| self.ports.get(*id as usize)?.as_ref()?.socket.as_ref();
        self.sockets.iter().filter_map(socket).any(|socket| socket.waiting() > 0)
    }

    /// Adds or replaces a port.
    pub(crate) fn set_port(&mut self, PortId(id): PortId, port: Option<Port>) {
        let id = id as usize;
        if self.ports.len() <= id {
            self.ports.resize_with(id + 1, || None);
        }
        self.ports[id] = port;
    }

    /// Puts a frame on its way to another core.
    pub(crate) fn send_parcel(&mut self, core: CoreIndex, parcel: Parcel) {
        match self.parcels.iter_mut().find(|(other, _)| *other == core) {
            Some((_, batch)) => batch.push(parcel),
            None => self.parcels.push((core, vec![parcel])),
        }
    }
}
