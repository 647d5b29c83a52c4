//! A vhost-user-net front end: what a VMM and its guest's virtio-net driver are to a server, with one queue pair.
//!
//! The configuration space and the control queue of a NIC belong to its front end: nothing is read from the server but
//! feature bits.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use softdpu_device::net::abi::feature;
use softdpu_ring::driver::{Driver, Layout};
use softdpu_ring::{Format, Position, RingAddresses};
use softdpu_sys::wake::Doorbell;
use softdpu_transport::vhost_user::{Message, ProtocolFeatures};

use crate::front_end::{Control, FrontEndError, GuestMemory, Negotiated, Terms, Vring, negotiate, start};

/// Index of receiveq1 (virtio 1.3 §5.1.2).
const RECEIVE: u16 = 0;
/// Index of transmitq1.
const TRANSMIT: u16 = 1;

/// How a port sets itself up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Descriptors of a queue; a power of two for split rings.
    pub queue_size: u16,
    /// Ring layout; packed has to be offered.
    pub format: Format,
    /// Feature bits that have to be offered, with their names.
    pub required: Vec<(u64, &'static str)>,
    /// Bytes for buffers.
    pub memory: u64,
    /// The longest a message waits for its answer.
    pub timeout: Duration,
    /// Take part in the device's status where that is offered. A server may then wait for a driver that says DRIVER_OK before it
    /// runs queues (DPDK's does); this one never says so.
    pub status: bool,
}

/// A queue's driver side with what it rings and is rung by.
pub struct Ring {
    /// The ring.
    pub driver: Driver,
    addresses: RingAddresses,
    kick: Doorbell,
    call: Doorbell,
    error: Doorbell,
    kicks: u64,
    interrupts: u64,
}

impl Ring {
    fn new(options: &Options, features: u64, memory: &mut GuestMemory) -> Result<Ring, FrontEndError> {
        let Options { format, queue_size, .. } = *options;
        let layout = Layout::new(format, queue_size);
        let base = memory.allocate(layout.bytes as u64, 4096)?;
        let addresses = layout.addresses(memory.user(base));
        let event_idx = features & feature::RING_EVENT_IDX != 0;
        let bell = || Doorbell::new().map_err(|error| FrontEndError::Doorbell(error.into()));
        Ok(Ring {
            driver: Driver::new(memory.view(), format, queue_size, event_idx, addresses)?,
            addresses,
            kick: bell()?,
            call: bell()?,
            error: bell()?,
            kicks: 0,
            interrupts: 0,
        })
    }

    /// Hands over what was added, and kicks where the device asked for it.
    #[inline]
    pub fn publish(&mut self) {
        if self.driver.publish() {
            self.kick();
        }
    }

    /// Kicks, wanted or not.
    pub fn kick(&mut self) {
        self.kicks += 1;
        self.kick.ring();
    }

    /// Kicks sent so far.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Notifications slept for and received so far.
    pub fn interrupts(&self) -> u64 {
        self.interrupts
    }

    /// Whether the server said that the queue is broken (SET_VRING_ERR) since this was asked last.
    pub fn error_signalled(&self) -> bool {
        self.error.drain()
    }

    /// Where the parts of the ring are.
    pub fn addresses(&self) -> RingAddresses {
        self.addresses
    }

    /// What the server notifies by.
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// What to sleep on.
    pub(super) fn poll_fd(&self) -> PollFd<'_> {
        PollFd::new(&self.call, PollFlags::IN)
    }

    /// Takes a notification, if there is one.
    pub(super) fn drain(&mut self) {
        if self.call.drain() {
            self.interrupts += 1;
        }
    }

    fn fds(&self) -> [BorrowedFd<'_>; 3] {
        [self.kick.as_fd(), self.call.as_fd(), self.error.as_fd()]
    }
}

/// A guest's interface with both queues started.
pub struct Port {
    /// Frames to the guest.
    pub receive: Ring,
    /// Frames from the guest.
    pub transmit: Ring,
    /// What it shares.
    pub memory: GuestMemory,
    negotiated: Negotiated,
    // The server stops the queues when it closes.
    control: Option<Control>,
}

impl Port {
    /// The connection, for messages of one's own; a port over memory alone has none.
    pub fn control(&mut self) -> Option<&mut Control> {
        self.control.as_mut()
    }

    /// Connects, negotiates, shares memory, starts both queues.
    ///
    /// # Errors
    /// [`FrontEndError`], also where the server lacks a feature that `options` demand.
    pub fn connect(path: &Path, options: &Options) -> Result<Port, FrontEndError> {
        let mut control = Control::connect(path, options.timeout)?;
        let mut required = options.required.clone();
        if options.format == Format::Packed {
            required.push((feature::RING_PACKED, "VIRTIO_F_RING_PACKED"));
        }
        // Logging begins when a log is there.
        let protocol = ProtocolFeatures::MQ.with(ProtocolFeatures::LOG_SHMFD);
        let negotiated = negotiate(
            &mut control,
            &Terms {
                required: &required,
                wanted: feature::RING_EVENT_IDX | feature::MRG_RXBUF,
                protocol: ProtocolFeatures::NONE,
                wanted_protocol: if options.status { protocol.with(ProtocolFeatures::STATUS) } else { protocol },
            },
        )?;
        control.call(&Message::SetFeatures(negotiated.features), &[])?;
        let mut port = Port::over_memory(options, negotiated)?;
        control.call(&Message::SetMemTable(vec![port.memory.region()]), &[port.memory.file()])?;
        for (index, ring) in [(RECEIVE, &port.receive), (TRANSMIT, &port.transmit)] {
            let [kick, call, error] = ring.fds();
            let vring = Vring {
                index,
                size: options.queue_size,
                addresses: ring.addresses,
                position: Position::start(options.format),
                kick,
                call,
                error,
            };
            start(&mut control, &vring)?;
        }
        port.control = Some(control);
        Ok(port)
    }

    /// A port that nobody serves yet.
    pub(super) fn over_memory(options: &Options, negotiated: Negotiated) -> Result<Port, FrontEndError> {
        let rings = 2 * (Layout::new(options.format, options.queue_size).bytes as u64 + 4096);
        let mut memory = GuestMemory::new(rings + options.memory + 4096)?;
        let mut ring = || Ring::new(options, negotiated.features, &mut memory);
        Ok(Port { receive: ring()?, transmit: ring()?, memory, negotiated, control: None })
    }

    /// What was negotiated.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }
}
