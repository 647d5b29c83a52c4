//! A request queue.
//!
//! Every request in flight has a *slot*: a line of 64 bytes with its header, status byte and discard segment, and a
//! buffer for its data. The slot's number is the request's [`Tag`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use rustix::event::PollFd;
use softdpu_device::block::abi::{feature, request};
use softdpu_memory::{GuestAddress, GuestBuffer, View, Window};
use softdpu_ring::driver::{Driver, Piece};
use softdpu_ring::{Position, RingAddresses};

use super::BlockOptions;
use crate::handshake::Vring;
use crate::{FrontEndError, GuestMemory, Virtqueue, sleep_until};

/// Bytes between the lines of two slots.
const LINE: usize = 64;
/// Offset of the status byte in a line: behind the header.
const STATUS: usize = request::HEADER;
/// Offset of the segment of a discard or write-zeroes request in a line.
const SEGMENT: usize = 32;
/// Bytes of a slot's indirect table: up to three descriptors.
const TABLE: u64 = 64;
/// Descriptors of a request: header, data, status.
const CHAIN: u16 = 3;
/// Value of a status byte that the device has not written. No status has this value (virtio 1.3 §5.2.6).
const UNWRITTEN: u8 = 0xff;
/// Largest number of slots of a queue.
const MAX_SLOTS: u16 = 1024;

/// Number of a request's slot. It identifies the request while it is in flight, and its data afterwards.
pub type Tag = u16;

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transfer {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// A request of a well-behaved driver. Sectors have 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the specification")]
pub enum BlockRequest<'a> {
    Read { sector: u64, len: u32 },
    Write { sector: u64, data: &'a [u8] },
    Flush,
    GetId,
    Discard { sector: u64, sectors: u32 },
    WriteZeroes { sector: u64, sectors: u32, unmap: bool },
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockCompletion {
    /// Tag of the request.
    pub tag: Tag,
    /// Its status byte: 0 OK, 1 I/O error, 2 unsupported (virtio 1.3 §5.2.6); 255: the device wrote none.
    pub status: u8,
    /// Number of bytes the device reports as written.
    pub written: u32,
}

/// A request queue of a block front end.
pub struct BlockQueue {
    index: u16,
    queue: Virtqueue,
    lines: Window,
    memory: Arc<View>,
    /// Address of the slots' indirect tables. None: requests have direct descriptors.
    tables: Option<GuestAddress>,
    data: GuestAddress,
    max_transfer: u32,
    /// Free slots, least recently used first, so that data stays readable for as long as possible.
    free: VecDeque<Tag>,
    /// Tag of each request, by the ring's identifier of its chain.
    tags: Box<[Tag]>,
    /// The ring's identifier of each prepared chain, by tag.
    prepared: Box<[Option<u16>]>,
    outstanding: usize,
}

impl BlockQueue {
    fn slots(options: &BlockOptions) -> u16 {
        let chain = if options.indirect { 1 } else { CHAIN };
        (options.queue_size / chain).min(MAX_SLOTS)
    }

    fn stride(options: &BlockOptions) -> u64 {
        u64::from(options.max_transfer).next_multiple_of(4096)
    }

    /// Guest memory that a queue takes, bytes, alignment not included.
    pub(super) fn bytes(options: &BlockOptions) -> u64 {
        Virtqueue::bytes(options.format, options.queue_size)
            + u64::from(Self::slots(options)) * (LINE as u64 + TABLE + Self::stride(options))
    }

    pub(super) fn new(
        index: u16,
        options: &BlockOptions,
        features: u64,
        memory: &mut GuestMemory,
    ) -> Result<BlockQueue, FrontEndError> {
        let BlockOptions { format, queue_size, .. } = *options;
        let slots = Self::slots(options);
        let event_idx = features & feature::RING_EVENT_IDX != 0;
        let queue = Virtqueue::new(format, queue_size, event_idx, memory)?;
        let lines = memory.allocate(u64::from(slots) * LINE as u64, 4096)?;
        let tables = if options.indirect { Some(memory.allocate(u64::from(slots) * TABLE, 4096)?) } else { None };
        let data = memory.allocate(u64::from(slots) * Self::stride(options), 4096)?;
        Ok(BlockQueue {
            index,
            queue,
            lines: memory.view().guest_window(lines, usize::from(slots) * LINE, LINE)?,
            memory: Arc::clone(memory.view()),
            tables,
            data,
            max_transfer: Self::stride(options) as u32,
            free: (0..slots).collect(),
            tags: vec![0; queue_size.into()].into(),
            prepared: vec![None; slots.into()].into(),
            outstanding: 0,
        })
    }

    /// Describes this queue, to be started at `position`.
    pub(super) fn vring(&self, position: Position) -> Vring<'_> {
        self.queue.vring(self.index, position)
    }

    /// Index of the queue.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Adds a request. The device sees it after [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`FrontEndError::Full`], or [`FrontEndError::Options`] for data beyond the largest transfer.
    pub fn submit(&mut self, request: BlockRequest<'_>) -> Result<Tag, FrontEndError> {
        let len = match request {
            BlockRequest::Read { len, .. } => len,
            BlockRequest::Write { data, .. } => u32::try_from(data.len()).unwrap_or(u32::MAX),
            _ => 0,
        };
        if len > self.max_transfer {
            return Err(FrontEndError::Options(format!(
                "{len} bytes in a request; the most are {}",
                self.max_transfer
            )));
        }
        let Some(&tag) = self.free.front() else { return Err(self.full()) };
        let data = self.data_address(tag);
        let line = self.line(tag);
        let segment = Piece::readable(GuestAddress(self.lines.guest().0 + (line + SEGMENT) as u64), SEGMENT_BYTES);
        let (kind, sector, middle) = match request {
            BlockRequest::Read { sector, len } => (request::IN, sector, Some(Piece::writable(data, len))),
            BlockRequest::Write { sector, data: bytes } => {
                self.data(tag, len)?.write_at(0, bytes)?;
                (request::OUT, sector, Some(Piece::readable(data, len)))
            }
            BlockRequest::Flush => (request::FLUSH, 0, None),
            BlockRequest::GetId => (request::GET_ID, 0, Some(Piece::writable(data, request::ID as u32))),
            BlockRequest::Discard { sector, sectors } => {
                self.write_segment(line, sector, sectors, 0);
                (request::DISCARD, 0, Some(segment))
            }
            BlockRequest::WriteZeroes { sector, sectors, unmap } => {
                self.write_segment(line, sector, sectors, if unmap { request::SEGMENT_UNMAP } else { 0 });
                (request::WRITE_ZEROES, 0, Some(segment))
            }
        };
        self.write_header(line, kind, sector);
        let (header, status) = self.frame(line);
        let added = match middle {
            Some(middle) if middle.len > 0 => self.add(tag, &[header, middle, status]),
            _ => self.add(tag, &[header, status]),
        };
        let Some(id) = added else { return Err(self.full()) };
        self.free.pop_front();
        self.tags[usize::from(id)] = tag;
        self.outstanding += 1;
        Ok(tag)
    }

    /// Prepares `count` requests of `len` bytes, for [`repeat`](Self::repeat). They keep their slots and descriptors
    /// for as long as the queue lives.
    ///
    /// # Errors
    /// [`FrontEndError::Full`] where there are fewer slots, [`FrontEndError::Options`] for a length beyond the largest
    /// transfer.
    pub fn prepare(&mut self, transfer: Transfer, len: u32, count: usize) -> Result<Vec<Tag>, FrontEndError> {
        if len > self.max_transfer || len == 0 {
            return Err(FrontEndError::Options(format!(
                "{len} bytes in a request; the most are {}",
                self.max_transfer
            )));
        }
        let mut tags = Vec::with_capacity(count);
        for _ in 0..count {
            let Some(&tag) = self.free.front() else { return Err(self.full()) };
            let line = self.line(tag);
            let data = self.data_address(tag);
            let (kind, middle) = match transfer {
                Transfer::Read => (request::IN, Piece::writable(data, len)),
                Transfer::Write => (request::OUT, Piece::readable(data, len)),
            };
            self.write_header(line, kind, 0);
            let (header, status) = self.frame(line);
            let Some(id) = self.queue.driver.prepare(&[header, middle, status]) else { return Err(self.full()) };
            self.free.pop_front();
            self.tags[usize::from(id)] = tag;
            self.prepared[usize::from(tag)] = Some(id);
            tags.push(tag);
        }
        Ok(tags)
    }

    /// Adds a prepared request once more, at another sector. False where `tag` was not prepared or the ring is full.
    #[inline]
    pub fn repeat(&mut self, tag: Tag, sector: u64) -> bool {
        let Some(Some(id)) = self.prepared.get(usize::from(tag)).copied() else { return false };
        let line = self.line(tag);
        self.lines.u64(line + 8).store(sector, Relaxed);
        self.lines.u8(line + STATUS).store(UNWRITTEN, Relaxed);
        let added = self.queue.driver.repeat(id);
        self.outstanding += usize::from(added);
        added
    }

    /// Publishes the requests that were added, and kicks where the device asked for it. Tells whether it kicked.
    #[inline]
    pub fn publish(&mut self) -> bool {
        self.queue.publish()
    }

    /// Kicks, whether the device asked for it or not.
    pub fn kick(&mut self) {
        self.queue.kick();
    }

    /// Takes the next completion. The request's data can be read until its slot is used again, which takes as many
    /// submissions as there are slots.
    #[inline]
    pub fn poll(&mut self) -> Option<BlockCompletion> {
        let done = self.queue.driver.take()?;
        let tag = *self.tags.get(usize::from(done.id))?;
        let status = self.lines.u8(self.line(tag) + STATUS).load(Acquire);
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.prepared[usize::from(tag)].is_none() {
            self.free.push_back(tag);
        }
        Some(BlockCompletion { tag, status, written: done.written })
    }

    /// Waits for a completion, asleep on the call eventfd. Notifications are disabled before and afterwards.
    ///
    /// # Errors
    /// [`FrontEndError::NoCompletion`] after `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Result<BlockCompletion, FrontEndError> {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(done) = self.poll() {
                return Ok(done);
            }
            if !self.arm() {
                let asleep = wait_for_any(std::slice::from_mut(self), deadline);
                self.disarm();
                asleep.map_err(|_| self.overdue(timeout))?;
            }
        }
    }

    /// Enables notifications. True where a completion arrived in the meantime: the driver polls once more instead of
    /// sleeping.
    pub fn arm(&mut self) -> bool {
        self.queue.driver.arm()
    }

    /// Disables notifications.
    pub fn disarm(&mut self) {
        self.queue.driver.disarm();
    }

    /// Accounts for `completed` requests and keeps notifications disabled, for a driver that polls.
    #[inline]
    pub fn keep_quiet(&mut self, completed: usize) {
        self.queue.keep_quiet(completed);
    }

    /// Takes a pending notification and counts it.
    pub fn take_notification(&mut self) {
        self.queue.take_notification();
    }

    /// The entry for poll(2) that waits for a notification.
    pub fn poll_fd(&self) -> PollFd<'_> {
        self.queue.poll_fd()
    }

    /// The first `len` bytes of the data buffer of `tag`.
    ///
    /// # Errors
    /// [`FrontEndError::Access`] where they are not all in the memory.
    pub fn data(&self, tag: Tag, len: u32) -> Result<GuestBuffer, FrontEndError> {
        Ok(self.memory.buffer(self.data_address(tag), len.into())?)
    }

    /// Front-end addresses of the ring's three parts.
    pub fn addresses(&self) -> RingAddresses {
        self.queue.addresses()
    }

    /// The ring, to add any chain. Completions of such a chain are taken from it as well.
    pub fn driver(&mut self) -> &mut Driver {
        &mut self.queue.driver
    }

    /// Number of requests in flight.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Number of requests that can be in flight at once.
    pub fn depth(&self) -> usize {
        self.prepared.len()
    }

    /// Number of kicks sent.
    pub fn kicks(&self) -> u64 {
        self.queue.kicks()
    }

    /// Number of notifications taken.
    pub fn interrupts(&self) -> u64 {
        self.queue.interrupts()
    }

    /// Tells whether the server has reported a broken queue (SET_VRING_ERR) since the last call.
    pub fn error_signalled(&self) -> bool {
        self.queue.error_signalled()
    }

    /// The eventfd that kicks the server.
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.queue.kick_fd()
    }

    /// The eventfd that the server notifies with.
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.queue.call_fd()
    }

    /// The eventfd that the server reports a broken queue with.
    pub fn error_fd(&self) -> BorrowedFd<'_> {
        self.queue.error_fd()
    }

    /// The error of a wait of `waited` without a completion.
    pub fn overdue(&self, waited: Duration) -> FrontEndError {
        FrontEndError::NoCompletion { queue: self.index, outstanding: self.outstanding, waited }
    }

    #[inline(always)]
    fn line(&self, tag: Tag) -> usize {
        usize::from(tag) * LINE
    }

    fn data_address(&self, tag: Tag) -> GuestAddress {
        GuestAddress(self.data.0 + u64::from(tag) * u64::from(self.max_transfer))
    }

    fn frame(&self, line: usize) -> (Piece, Piece) {
        let at = |offset: usize| GuestAddress(self.lines.guest().0 + (line + offset) as u64);
        (Piece::readable(at(0), request::HEADER as u32), Piece::writable(at(STATUS), 1))
    }

    fn write_header(&self, line: usize, kind: u32, sector: u64) {
        self.lines.u32(line).store(kind, Relaxed);
        self.lines.u32(line + 4).store(0, Relaxed);
        self.lines.u64(line + 8).store(sector, Relaxed);
        self.lines.u8(line + STATUS).store(UNWRITTEN, Relaxed);
    }

    fn write_segment(&self, line: usize, sector: u64, sectors: u32, flags: u32) {
        self.lines.u64(line + SEGMENT).store(sector, Relaxed);
        self.lines.u32(line + SEGMENT + 8).store(sectors, Relaxed);
        self.lines.u32(line + SEGMENT + 12).store(flags, Relaxed);
    }

    fn add(&mut self, tag: Tag, pieces: &[Piece]) -> Option<u16> {
        match self.tables {
            Some(tables) => self.queue.driver.add_indirect(GuestAddress(tables.0 + u64::from(tag) * TABLE), pieces),
            None => self.queue.driver.add(pieces),
        }
    }

    fn full(&self) -> FrontEndError {
        FrontEndError::Full { queue: self.index, outstanding: self.outstanding }
    }
}

/// Bytes of a discard segment in a descriptor.
const SEGMENT_BYTES: u32 = request::SEGMENT as u32;

/// Sleeps until the server notifies one of `queues`, and takes the notifications. The queues have been
/// [armed](BlockQueue::arm).
///
/// # Errors
/// `TimedOut` at `deadline`.
pub fn wait_for_any(queues: &mut [BlockQueue], deadline: Instant) -> io::Result<()> {
    match &*queues {
        // The usual case without an allocation: this is inside a measurement.
        [queue] => sleep_until(&mut [queue.queue.poll_fd()], deadline)?,
        queues => {
            let mut fds: Vec<_> = queues.iter().map(|queue| queue.queue.poll_fd()).collect();
            sleep_until(&mut fds, deadline)?;
        }
    }
    for queue in queues.iter_mut() {
        queue.queue.take_notification();
    }
    Ok(())
}

impl std::fmt::Debug for BlockQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockQueue")
            .field("index", &self.index)
            .field("outstanding", &self.outstanding)
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
