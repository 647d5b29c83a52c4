//! A vhost-user-blk front end: what a VMM and its guest's driver are to a server, without the VMM and the guest.
//!
//! ```no_run
//! use softdpu_bench::front_end::{FrontEnd, Options, Request};
//! use std::{path::Path, time::Duration};
//!
//! let mut front_end = FrontEnd::connect(Path::new("disk.sock"), &Options::default())?;
//! let queue = front_end.queue_mut(0);
//! let tag = queue.submit(Request::Read { sector: 0, len: 4096 })?;
//! queue.publish();
//! let done = queue.wait(Duration::from_secs(5))?;
//! assert_eq!((done.tag, done.status), (tag, 0));
//! let mut data = [0; 4096];
//! queue.data(tag, 4096)?.read_at(0, &mut data)?;
//! # Ok::<(), softdpu_bench::front_end::FrontEndError>(())
//! ```
//!
//! A front end behaves. Tests that want it otherwise reach below: [`FrontEnd::control`] sends any bytes,
//! [`FrontEnd::memory`] gives the rings' words, [`Queue::driver`] takes any chain.

mod control;
mod error;
mod handshake;
mod memory;
mod queue;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use softdpu_device::block::abi::{config, feature};
use softdpu_ring::driver::Layout;
use softdpu_ring::{Format, MAX_SIZE, Position};
use softdpu_transport::vhost_user::client::Answer;
use softdpu_transport::vhost_user::{ConfigSpace, InflightDescription, Message, ProtocolFeatures, VringState};

pub use control::{Control, Received};
pub use error::FrontEndError;
pub use handshake::Negotiated;
pub(crate) use handshake::{Terms, Vring, negotiate, start};
pub use memory::GuestMemory;
pub(crate) use queue::sleep_until;
pub use queue::{Completion, Queue, Request, Tag, Transfer, wait_for_any};

/// Bytes of the configuration space that are read: up to and with write-zeroes, which every server of the last years has.
const CONFIG_BYTES: usize = 60;

/// How a front end sets itself up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Request queues, at least 1.
    pub queues: u16,
    /// Descriptors of a queue; a power of two for split rings.
    pub queue_size: u16,
    /// Ring layout; packed has to be offered.
    pub format: Format,
    /// Negotiates VIRTIO_F_EVENT_IDX where it is offered.
    pub event_idx: bool,
    /// Negotiates VIRTIO_F_INDIRECT_DESC where it is offered, and sends every request through a table: one descriptor a
    /// request instead of three.
    pub indirect: bool,
    /// Asks for an in-flight region; it has to be offered. Needed to [reconnect](FrontEnd::reconnect) without loss.
    pub inflight: bool,
    /// Feature bits to take as well, where they are offered.
    pub features: u64,
    /// Protocol features to take as well, where they are offered.
    pub protocol: ProtocolFeatures,
    /// Largest transfer of a request, bytes.
    pub max_transfer: u32,
    /// Memory beside rings and buffers, for tests to use, bytes.
    pub spare_memory: u64,
    /// The longest a message waits for its answer.
    pub timeout: Duration,
}

impl Default for Options {
    /// One split queue of 256 with EVENT_IDX, requests of up to 64 KiB, five seconds.
    fn default() -> Self {
        Options {
            queues: 1,
            queue_size: 256,
            format: Format::Split,
            event_idx: true,
            indirect: false,
            inflight: false,
            features: 0,
            protocol: ProtocolFeatures::NONE,
            max_transfer: 0x1_0000,
            spare_memory: 0,
            timeout: Duration::from_secs(5),
        }
    }
}

/// A connected front end with its queues started.
#[derive(Debug)]
pub struct FrontEnd {
    control: Control,
    options: Options,
    negotiated: Negotiated,
    config: Vec<u8>,
    memory: GuestMemory,
    queues: Vec<Queue>,
    inflight: Option<(OwnedFd, InflightDescription)>,
}

impl FrontEnd {
    /// Connects, negotiates, shares memory, starts the queues.
    ///
    /// # Errors
    /// [`FrontEndError`], also where the server lacks a feature that `options` demand.
    pub fn connect(path: &Path, options: &Options) -> Result<FrontEnd, FrontEndError> {
        check(options)?;
        let mut control = Control::connect(path, options.timeout)?;
        let (negotiated, config) = agree(&mut control, options)?;
        let per_queue = Queue::bytes(options) + 0x1_0000;
        let mut memory = GuestMemory::new(per_queue * u64::from(options.queues) + options.spare_memory)?;
        let queues = (0..options.queues)
            .map(|index| Queue::new(index, options, negotiated.features, &mut memory))
            .collect::<Result<_, _>>()?;
        let mut front_end =
            FrontEnd { control, options: options.clone(), negotiated, config, memory, queues, inflight: None };
        if options.inflight {
            front_end.inflight = Some(front_end.ask_for_inflight()?);
        }
        front_end.share_and_start()?;
        Ok(front_end)
    }

    /// Connects again after the server closed the connection or was replaced: the same memory, the same rings, the same
    /// in-flight region. Requests in flight go on where there is such a region; without one they are lost.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn reconnect(&mut self) -> Result<(), FrontEndError> {
        self.control = Control::connect(self.control.path(), self.options.timeout)?;
        (self.negotiated, self.config) = agree(&mut self.control, &self.options)?;
        self.share_and_start()
    }

    /// The connection.
    pub fn control(&mut self) -> &mut Control {
        &mut self.control
    }

    /// The memory it shares.
    pub fn memory(&mut self) -> &mut GuestMemory {
        &mut self.memory
    }

    /// What was negotiated.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// The device's configuration space as read last, from its first byte (virtio 1.3 §5.2.4).
    pub fn config(&self) -> &[u8] {
        &self.config
    }

    /// Reads the configuration space again.
    ///
    /// # Errors
    /// As [`Control::call`].
    pub fn read_config(&mut self) -> Result<&[u8], FrontEndError> {
        self.config = read_config(&mut self.control)?;
        Ok(&self.config)
    }

    /// Sectors of 512 bytes.
    pub fn capacity(&self) -> u64 {
        self.config
            .get(config::CAPACITY..config::CAPACITY + 8)
            .and_then(|bytes| bytes.try_into().ok())
            .map_or(0, u64::from_le_bytes)
    }

    /// Number of queues.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// The queues.
    pub fn queues_mut(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    /// Queue `index`.
    ///
    /// # Panics
    /// Where there is none.
    pub fn queue_mut(&mut self, index: usize) -> &mut Queue {
        &mut self.queues[index]
    }

    /// Stops queue `index` and gives the position the server ended at (GET_VRING_BASE).
    ///
    /// # Errors
    /// As [`Control::call`].
    pub fn stop(&mut self, index: u16) -> Result<Position, FrontEndError> {
        let message = Message::GetVringBase(VringState { index: index.into(), num: 0 });
        match self.control.call(&message, &[])? {
            Some((Answer::Base { number, .. }, _)) => Ok(Position::from_base(self.options.format, number)),
            _ => Err(self.control.kind(&message)),
        }
    }

    /// Starts queue `index` at `position`.
    ///
    /// # Errors
    /// As [`Control::call`].
    ///
    /// # Panics
    /// Where there is no such queue.
    pub fn start(&mut self, index: u16, position: Position) -> Result<(), FrontEndError> {
        let queue = &self.queues[usize::from(index)];
        let ring = Vring {
            index,
            size: self.options.queue_size,
            addresses: queue.addresses(),
            position,
            kick: queue.kick_fd(),
            call: queue.call_fd(),
            error: queue.error_fd(),
        };
        start(&mut self.control, &ring)
    }

    fn share_and_start(&mut self) -> Result<(), FrontEndError> {
        self.control.call(&Message::SetMemTable(vec![self.memory.region()]), &[self.memory.file()])?;
        if let Some((fd, description)) = &self.inflight {
            self.control.call(&Message::SetInflightFd(*description), &[fd.as_fd()])?;
        }
        for index in 0..self.options.queues {
            let position = self.queues[usize::from(index)].driver().returned();
            self.start(index, position)?;
            // What was handed over before and not noticed is noticed now.
            self.queues[usize::from(index)].kick();
        }
        Ok(())
    }

    fn ask_for_inflight(&mut self) -> Result<(OwnedFd, InflightDescription), FrontEndError> {
        let message = Message::GetInflightFd(InflightDescription {
            mmap_size: 0,
            mmap_offset: 0,
            num_queues: self.options.queues,
            queue_size: self.options.queue_size,
            // As QEMU sends it.
            padded: true,
        });
        match self.control.call(&message, &[])? {
            Some((Answer::Inflight(description), Some(fd))) => Ok((fd, description)),
            _ => Err(self.control.kind(&message)),
        }
    }
}

fn check(options: &Options) -> Result<(), FrontEndError> {
    let Options { queues, queue_size, format, max_transfer, .. } = *options;
    let wrong = |what: String| Err(FrontEndError::Options(what));
    if queues == 0 || queues > 256 {
        return wrong(format!("{queues} queues; a front end has 1 to 256"));
    }
    let power = format == Format::Packed || queue_size.is_power_of_two();
    if !(4..=MAX_SIZE).contains(&queue_size) || !power {
        return wrong(format!("queue size {queue_size} is not from 4 to {MAX_SIZE}, for split rings a power of two"));
    }
    if max_transfer == 0 || !max_transfer.is_multiple_of(512) {
        return wrong(format!("largest transfer {max_transfer} is not a positive multiple of 512"));
    }
    Ok(())
}

fn agree(control: &mut Control, options: &Options) -> Result<(Negotiated, Vec<u8>), FrontEndError> {
    let required: Vec<_> = [
        (options.format == Format::Packed, feature::RING_PACKED, "VIRTIO_F_RING_PACKED"),
        (options.indirect, feature::RING_INDIRECT_DESC, "VIRTIO_F_INDIRECT_DESC"),
        (options.queues > 1, feature::MQ, "VIRTIO_BLK_F_MQ"),
    ]
    .into_iter()
    .filter_map(|(needed, bit, name)| needed.then_some((bit, name)))
    .collect();
    // Read-only has to be taken where it is offered: not to take it is to claim the right to write (virtio 1.3 §5.2.5).
    let mut wanted = feature::SEG_MAX
        | feature::SIZE_MAX
        | feature::RO
        | feature::BLK_SIZE
        | feature::FLUSH
        | feature::DISCARD
        | feature::WRITE_ZEROES
        | options.features;
    if options.event_idx {
        wanted |= feature::RING_EVENT_IDX;
    }
    let mut protocol = ProtocolFeatures::CONFIG;
    if options.queues > 1 {
        protocol = protocol.with(ProtocolFeatures::MQ);
    }
    if options.inflight {
        protocol = protocol.with(ProtocolFeatures::INFLIGHT_SHMFD);
    }
    let wanted_protocol = ProtocolFeatures::MQ.with(options.protocol);
    let negotiated = negotiate(control, &Terms { required: &required, wanted, protocol, wanted_protocol })?;
    if negotiated.protocol.contains(ProtocolFeatures::MQ) {
        let queues = control.number(&Message::GetQueueNum)?;
        if queues < options.queues.into() {
            return Err(FrontEndError::Missing {
                path: control.path().to_owned(),
                feature: format!("{} queues", options.queues),
                offered: queues.to_string(),
            });
        }
    }
    control.call(&Message::SetFeatures(negotiated.features), &[])?;
    let config = read_config(control)?;
    Ok((negotiated, config))
}

fn read_config(control: &mut Control) -> Result<Vec<u8>, FrontEndError> {
    let message = Message::GetConfig(ConfigSpace { offset: 0, flags: 0, bytes: vec![0; CONFIG_BYTES] });
    match control.call(&message, &[])? {
        Some((Answer::Config(config), _)) => Ok(config.bytes),
        _ => Err(control.kind(&message)),
    }
}

/// Bytes of a ring.
fn ring_bytes(options: &Options) -> u64 {
    Layout::new(options.format, options.queue_size).bytes as u64
}
