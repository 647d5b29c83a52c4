//! A vhost-user-blk front end: what a VMM and its guest's driver are to a server, without the VMM and the guest.
//!
//! ```no_run
//! use softdpu_frontend::{BlockFrontEnd, BlockOptions, BlockRequest};
//! use std::{path::Path, time::Duration};
//!
//! let mut front_end = BlockFrontEnd::connect(Path::new("disk.sock"), &BlockOptions::default())?;
//! let queue = front_end.queue_mut(0);
//! let tag = queue.submit(BlockRequest::Read { sector: 0, len: 4096 })?;
//! queue.publish();
//! let done = queue.wait(Duration::from_secs(5))?;
//! assert_eq!((done.tag, done.status), (tag, 0));
//! let mut data = [0; 4096];
//! queue.data(tag, 4096)?.read_at(0, &mut data)?;
//! # Ok::<(), softdpu_frontend::FrontEndError>(())
//! ```
//!
//! A front end keeps to the specification. Tests that break it reach below: [`BlockFrontEnd::connection`] sends any
//! bytes, [`BlockFrontEnd::memory`] gives access to the rings, [`BlockQueue::driver`] takes any chain.

mod queue;

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use softdpu_device::block::abi::{config, feature};
use softdpu_ring::{Format, MAX_SIZE, Position};
use softdpu_transport::vhost_user::client::Answer;
use softdpu_transport::vhost_user::{ConfigSpace, InflightDescription, Message, ProtocolFeatures, VringState};

pub use queue::{BlockCompletion, BlockQueue, BlockRequest, Tag, Transfer, wait_for_any};

use crate::handshake::{NegotiatedFeatures, WantedFeatures, negotiate, start};
use crate::wait::retry_until_listening;
use crate::{Connection, FrontEndError, GuestMemory};

/// Bytes of the configuration space that are read: up to and including write-zeroes (virtio 1.3 §5.2.4).
const CONFIG_BYTES: usize = 60;

/// What a block front end negotiates and allocates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockOptions {
    /// Number of request queues, at least 1.
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
    /// Takes an in-flight region (GET_INFLIGHT_FD), which has to be offered: [reconnecting](BlockFrontEnd::reconnect)
    /// then loses no request.
    pub inflight: bool,
    /// More feature bits to acknowledge where they are offered.
    pub features: u64,
    /// More protocol features to acknowledge where they are offered.
    pub protocol: ProtocolFeatures,
    /// Largest transfer of a request, bytes.
    pub max_transfer: u32,
    /// Guest memory beside rings and buffers, bytes.
    pub spare_memory: u64,
    /// The longest a message waits for its answer.
    pub timeout: Duration,
}

impl Default for BlockOptions {
    /// One split queue of 256 with EVENT_IDX, requests of up to 64 KiB, five seconds.
    fn default() -> Self {
        BlockOptions {
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
pub struct BlockFrontEnd {
    connection: Connection,
    options: BlockOptions,
    negotiated: NegotiatedFeatures,
    config: Vec<u8>,
    memory: GuestMemory,
    queues: Vec<BlockQueue>,
    inflight: Option<(OwnedFd, InflightDescription)>,
}

impl BlockFrontEnd {
    /// Connects, negotiates, shares memory, starts the queues.
    ///
    /// # Errors
    /// [`FrontEndError`], also where the server lacks a feature that `options` demand.
    pub fn connect(path: &Path, options: &BlockOptions) -> Result<BlockFrontEnd, FrontEndError> {
        check(options)?;
        let mut connection = Connection::connect(path, options.timeout)?;
        let (negotiated, config) = agree(&mut connection, options)?;
        let per_queue = BlockQueue::bytes(options) + 0x1_0000;
        let mut memory = GuestMemory::new(per_queue * u64::from(options.queues) + options.spare_memory)?;
        let queues = (0..options.queues)
            .map(|index| BlockQueue::new(index, options, negotiated.features, &mut memory))
            .collect::<Result<_, _>>()?;
        let mut front_end =
            BlockFrontEnd { connection, options: options.clone(), negotiated, config, memory, queues, inflight: None };
        if options.inflight {
            front_end.inflight = Some(front_end.ask_for_inflight()?);
        }
        front_end.share_and_start()?;
        Ok(front_end)
    }

    /// As [`connect`](Self::connect), to a server that may have bound its socket and not listened yet.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn connect_when_listening(path: &Path, options: &BlockOptions) -> Result<BlockFrontEnd, FrontEndError> {
        retry_until_listening(|| BlockFrontEnd::connect(path, options))
    }

    /// Connects again after the server closed the connection or was replaced, with the same memory, rings and in-flight
    /// region. Requests in flight are resumed where there is such a region; without one they are lost.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn reconnect(&mut self) -> Result<(), FrontEndError> {
        self.connection = Connection::connect(self.connection.path(), self.options.timeout)?;
        (self.negotiated, self.config) = agree(&mut self.connection, &self.options)?;
        self.share_and_start()
    }

    /// The connection.
    pub fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// The memory shared with the server.
    pub fn memory(&mut self) -> &mut GuestMemory {
        &mut self.memory
    }

    /// The outcome of feature negotiation.
    pub fn negotiated(&self) -> NegotiatedFeatures {
        self.negotiated
    }

    /// The device's configuration space as read last, from its first byte (virtio 1.3 §5.2.4).
    pub fn config(&self) -> &[u8] {
        &self.config
    }

    /// Reads the configuration space again.
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn read_config(&mut self) -> Result<&[u8], FrontEndError> {
        self.config = read_config(&mut self.connection)?;
        Ok(&self.config)
    }

    /// Capacity of the disk in sectors of 512 bytes.
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
    pub fn queues_mut(&mut self) -> &mut [BlockQueue] {
        &mut self.queues
    }

    /// Queue `index`.
    ///
    /// # Panics
    /// Where there is no such queue.
    pub fn queue(&self, index: usize) -> &BlockQueue {
        &self.queues[index]
    }

    /// Queue `index`, to be used.
    ///
    /// # Panics
    /// Where there is no such queue.
    pub fn queue_mut(&mut self, index: usize) -> &mut BlockQueue {
        &mut self.queues[index]
    }

    /// Stops queue `index` and returns its position (GET_VRING_BASE).
    ///
    /// # Errors
    /// As [`Connection::call`].
    pub fn stop(&mut self, index: u16) -> Result<Position, FrontEndError> {
        let message = Message::GetVringBase(VringState { index: index.into(), num: 0 });
        match self.connection.call(&message, &[])? {
            Some((Answer::Base { number, .. }, _)) => Ok(Position::from_base(self.options.format, number)),
            _ => Err(self.connection.kind(&message)),
        }
    }

    /// Starts queue `index` at `position`.
    ///
    /// # Errors
    /// As [`Connection::call`].
    ///
    /// # Panics
    /// Where there is no such queue.
    pub fn start(&mut self, index: u16, position: Position) -> Result<(), FrontEndError> {
        start(&mut self.connection, &self.queues[usize::from(index)].vring(position))
    }

    fn share_and_start(&mut self) -> Result<(), FrontEndError> {
        self.connection.call(&Message::SetMemTable(vec![self.memory.region()]), &[self.memory.file()])?;
        if let Some((fd, description)) = &self.inflight {
            self.connection.call(&Message::SetInflightFd(*description), &[fd.as_fd()])?;
        }
        for index in 0..self.options.queues {
            let position = self.queues[usize::from(index)].driver().returned();
            self.start(index, position)?;
            // The server sees what was published while there was none.
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
        match self.connection.call(&message, &[])? {
            Some((Answer::Inflight(description), Some(fd))) => Ok((fd, description)),
            _ => Err(self.connection.kind(&message)),
        }
    }
}

fn check(options: &BlockOptions) -> Result<(), FrontEndError> {
    let BlockOptions { queues, queue_size, format, max_transfer, .. } = *options;
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

fn agree(connection: &mut Connection, options: &BlockOptions) -> Result<(NegotiatedFeatures, Vec<u8>), FrontEndError> {
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
    let negotiated = negotiate(connection, &WantedFeatures { required: &required, wanted, protocol, wanted_protocol })?;
    if negotiated.protocol.contains(ProtocolFeatures::MQ) {
        let queues = connection.number(&Message::GetQueueNum)?;
        if queues < options.queues.into() {
            return Err(FrontEndError::Missing {
                path: connection.path().to_owned(),
                feature: format!("{} queues", options.queues),
                offered: queues.to_string(),
            });
        }
    }
    connection.call(&Message::SetFeatures(negotiated.features), &[])?;
    let config = read_config(connection)?;
    Ok((negotiated, config))
}

fn read_config(connection: &mut Connection) -> Result<Vec<u8>, FrontEndError> {
    let message = Message::GetConfig(ConfigSpace { offset: 0, flags: 0, bytes: vec![0; CONFIG_BYTES] });
    match connection.call(&message, &[])? {
        Some((Answer::Config(config), _)) => Ok(config.bytes),
        _ => Err(connection.kind(&message)),
    }
}
