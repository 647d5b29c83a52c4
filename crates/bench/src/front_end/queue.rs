//! Requests of one queue.
//!
//! Every request in flight has a *slot*: a line of 64 bytes with its header, its status byte and its discard segment, as
//! drivers keep them side by side, and a buffer for its data. A slot's number is the request's [`Tag`].

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use softdpu_device::block::abi::{feature, request};
use softdpu_memory::{GuestAddress, GuestBuffer, View, Window};
use softdpu_ring::RingAddresses;
use softdpu_ring::driver::{Driver, Layout, Piece};
use softdpu_sys::wake::Doorbell;

use super::{FrontEndError, GuestMemory, Options, ring_bytes};

/// Bytes between two slots' lines.
const LINE: usize = 64;
/// Offset of the status byte: right behind the header.
const STATUS: usize = request::HEADER;
/// Offset of the segment of a discard or write-zeroes request.
const SEGMENT: usize = 32;
/// Bytes of a slot's indirect table: up to three descriptors.
const TABLE: u64 = 64;
/// Descriptors of a request: header, data, status.
const CHAIN: u16 = 3;
/// What a status byte holds until the device has written it; no status has this value (virtio 1.3 §5.2.6).
const UNWRITTEN: u8 = 0xff;
/// The largest number of slots: depth beyond is of no use and costs memory.
const MAX_SLOTS: u16 = 1024;

/// A request in flight, and where its data is after it.
pub type Tag = u16;

/// Which way data goes.
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
pub enum Request<'a> {
    Read { sector: u64, len: u32 },
    Write { sector: u64, data: &'a [u8] },
    Flush,
    GetId,
    Discard { sector: u64, sectors: u32 },
    WriteZeroes { sector: u64, sectors: u32, unmap: bool },
}

/// A request that came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which one.
    pub tag: Tag,
    /// Its status byte: 0 OK, 1 I/O error, 2 unsupported (virtio 1.3 §5.2.6); 255: the device wrote none.
    pub status: u8,
    /// Bytes the device says it wrote.
    pub written: u32,
}

/// One queue of a front end.
pub struct Queue {
    index: u16,
    addresses: RingAddresses,
    driver: Driver,
    lines: Window,
    memory: Arc<View>,
    /// First byte of the slots' tables; none: direct descriptors.
    tables: Option<GuestAddress>,
    data: GuestAddress,
    max_transfer: u32,
    /// Slots nobody uses; the one that has been free for the longest comes first, so that data stays readable for long.
    free: VecDeque<Tag>,
    /// By what the ring calls a request.
    tags: Box<[Tag]>,
    /// By tag, for prepared requests: what the ring calls it.
    prepared: Box<[Option<u16>]>,
    outstanding: usize,
    kick: Doorbell,
    call: Doorbell,
    error: Doorbell,
    kicks: u64,
    interrupts: u64,
}

impl Queue {
    fn slots(options: &Options) -> u16 {
        let chain = if options.indirect { 1 } else { CHAIN };
        (options.queue_size / chain).min(MAX_SLOTS)
    }

    fn stride(options: &Options) -> u64 {
        u64::from(options.max_transfer).next_multiple_of(4096)
    }

    /// Guest memory it takes, less what alignment costs.
    pub(super) fn bytes(options: &Options) -> u64 {
        ring_bytes(options) + u64::from(Self::slots(options)) * (LINE as u64 + TABLE + Self::stride(options))
    }

    pub(super) fn new(
        index: u16,
        options: &Options,
        features: u64,
        memory: &mut GuestMemory,
    ) -> Result<Queue, FrontEndError> {
        let Options { format, queue_size, .. } = *options;
        let slots = Self::slots(options);
        let ring = memory.allocate(ring_bytes(options), 4096)?;
        let lines = memory.allocate(u64::from(slots) * LINE as u64, 4096)?;
        let tables = if options.indirect { Some(memory.allocate(u64::from(slots) * TABLE, 4096)?) } else { None };
        let data = memory.allocate(u64::from(slots) * Self::stride(options), 4096)?;
        let addresses = Layout::new(format, queue_size).addresses(memory.user(ring));
        let event_idx = features & feature::RING_EVENT_IDX != 0;
        let bell = || Doorbell::new().map_err(|error| FrontEndError::Doorbell(error.into()));
        Ok(Queue {
            index,
            addresses,
            driver: Driver::new(memory.view(), format, queue_size, event_idx, addresses)?,
            lines: memory.view().guest_window(lines, usize::from(slots) * LINE, LINE)?,
            memory: Arc::clone(memory.view()),
            tables,
            data,
            max_transfer: Self::stride(options) as u32,
            free: (0..slots).collect(),
            tags: vec![0; queue_size.into()].into(),
            prepared: vec![None; slots.into()].into(),
            outstanding: 0,
            kick: bell()?,
            call: bell()?,
            error: bell()?,
            kicks: 0,
            interrupts: 0,
        })
    }

    /// Which queue it is.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Adds a request; the device sees it after [`publish`](Self::publish).
    ///
    /// # Errors
    /// [`FrontEndError::Full`], or [`FrontEndError::Options`] for data beyond the largest transfer.
    pub fn submit(&mut self, request: Request<'_>) -> Result<Tag, FrontEndError> {
        let len = match request {
            Request::Read { len, .. } => len,
            Request::Write { data, .. } => u32::try_from(data.len()).unwrap_or(u32::MAX),
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
            Request::Read { sector, len } => (request::IN, sector, Some(Piece::writable(data, len))),
            Request::Write { sector, data: bytes } => {
                self.data(tag, len)?.write_at(0, bytes)?;
                (request::OUT, sector, Some(Piece::readable(data, len)))
            }
            Request::Flush => (request::FLUSH, 0, None),
            Request::GetId => (request::GET_ID, 0, Some(Piece::writable(data, request::ID as u32))),
            Request::Discard { sector, sectors } => {
                self.write_segment(line, sector, sectors, 0);
                (request::DISCARD, 0, Some(segment))
            }
            Request::WriteZeroes { sector, sectors, unmap } => {
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

    /// Prepares up to `count` requests of `len` bytes, for [`repeat`](Self::repeat). They keep their slots and descriptors
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
            let Some(id) = self.driver.prepare(&[header, middle, status]) else { return Err(self.full()) };
            self.free.pop_front();
            self.tags[usize::from(id)] = tag;
            self.prepared[usize::from(tag)] = Some(id);
            tags.push(tag);
        }
        Ok(tags)
    }

    /// Adds a prepared request once more, at another sector. Whether it was prepared and there was room.
    #[inline]
    pub fn repeat(&mut self, tag: Tag, sector: u64) -> bool {
        let Some(Some(id)) = self.prepared.get(usize::from(tag)).copied() else { return false };
        let line = self.line(tag);
        self.lines.u64(line + 8).store(sector, Relaxed);
        self.lines.u8(line + STATUS).store(UNWRITTEN, Relaxed);
        let added = self.driver.repeat(id);
        self.outstanding += usize::from(added);
        added
    }

    /// Hands over what was added, and kicks where the device asked for it. Whether it did.
    #[inline]
    pub fn publish(&mut self) -> bool {
        let wanted = self.driver.publish();
        if wanted {
            self.kick();
        }
        wanted
    }

    /// Kicks, wanted or not.
    pub fn kick(&mut self) {
        self.kicks += 1;
        self.kick.ring();
    }

    /// The next request that came back. Its data can be read until its slot is used again, which takes as many submissions
    /// as there are slots.
    #[inline]
    pub fn poll(&mut self) -> Option<Completion> {
        let done = self.driver.take()?;
        let tag = *self.tags.get(usize::from(done.id))?;
        let status = self.lines.u8(self.line(tag) + STATUS).load(Acquire);
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.prepared[usize::from(tag)].is_none() {
            self.free.push_back(tag);
        }
        Some(Completion { tag, status, written: done.written })
    }

    /// Waits for a request to come back, asleep on the call eventfd; notifications are off before and after.
    ///
    /// # Errors
    /// [`FrontEndError::NoCompletion`] after `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> Result<Completion, FrontEndError> {
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

    /// Asks for a notification of the next completion and looks once more: true where one slipped in.
    pub fn arm(&mut self) -> bool {
        self.driver.arm()
    }

    /// Says that notifications are not needed.
    pub fn disarm(&mut self) {
        self.driver.disarm();
    }

    /// The data buffer of `tag`, its first `len` bytes.
    ///
    /// # Errors
    /// [`FrontEndError::Access`] where it is larger than the memory.
    pub fn data(&self, tag: Tag, len: u32) -> Result<GuestBuffer, FrontEndError> {
        Ok(self.memory.buffer(self.data_address(tag), len.into())?)
    }

    /// Where the parts of the ring are.
    pub fn addresses(&self) -> RingAddresses {
        self.addresses
    }

    /// The ring itself, to add any chain. What comes back of such a chain is taken from here as well.
    pub fn driver(&mut self) -> &mut Driver {
        &mut self.driver
    }

    /// Requests in flight.
    pub fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Requests that can be in flight at once.
    pub fn depth(&self) -> usize {
        self.prepared.len()
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

    /// What the server is kicked by.
    pub fn kick_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }

    /// What the server notifies by.
    pub fn call_fd(&self) -> BorrowedFd<'_> {
        self.call.as_fd()
    }

    /// What the server reports errors by.
    pub fn error_fd(&self) -> BorrowedFd<'_> {
        self.error.as_fd()
    }

    /// The error of a wait that was in vain.
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
            Some(tables) => self.driver.add_indirect(GuestAddress(tables.0 + u64::from(tag) * TABLE), pieces),
            None => self.driver.add(pieces),
        }
    }

    fn full(&self) -> FrontEndError {
        FrontEndError::Full { queue: self.index, outstanding: self.outstanding }
    }
}

/// Bytes of a discard segment in a descriptor.
const SEGMENT_BYTES: u32 = request::SEGMENT as u32;

/// Sleeps until one of `queues` is notified, and takes the notifications. The queues have been [armed](Queue::arm).
///
/// # Errors
/// `TimedOut` at `deadline`.
pub fn wait_for_any(queues: &mut [Queue], deadline: Instant) -> io::Result<()> {
    match &*queues {
        // The usual case without an allocation: this is inside a measurement.
        [queue] => sleep_until(&mut [PollFd::new(&queue.call, PollFlags::IN)], deadline)?,
        queues => {
            let mut fds: Vec<_> = queues.iter().map(|queue| PollFd::new(&queue.call, PollFlags::IN)).collect();
            sleep_until(&mut fds, deadline)?;
        }
    }
    for queue in queues.iter_mut() {
        if queue.call.drain() {
            queue.interrupts += 1;
        }
    }
    Ok(())
}

/// Sleeps until one of `fds` is ready.
///
/// # Errors
/// `TimedOut` at `deadline`.
pub(crate) fn sleep_until(fds: &mut [PollFd<'_>], deadline: Instant) -> io::Result<()> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        let timeout = Timespec { tv_sec: left.as_secs() as _, tv_nsec: left.subsec_nanos().into() };
        match poll(fds, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("index", &self.index)
            .field("outstanding", &self.outstanding)
            .field("depth", &self.depth())
            .finish_non_exhaustive()
    }
}
