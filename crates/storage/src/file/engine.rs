//! One core's I/O on all its files and block devices, through one io_uring.
//!
//! ```text
//!  Request ─▶ Flight: Move (read, write) ───────────────────────────────▶ Done
//!                      Range (discard, zero a range) ─┬─▶ Zeroes (written) ─┬─▶ Sync (durable, flush) ─▶ Done
//!                                                     └────────────────────┘
//! ```
//!
//! Each step is one operation of the ring; what comes back short goes again for the rest.
//!
//! The ring is shared by all files of a core, and a file whose disk or server hangs gives nothing back: a file may have
//! as many operations in it as there is room left. So there always is some for others, however many hang.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use softdpu_memory::GuestBuffer;
use softdpu_sys::uring::{Completion, FileIndex, Operation, Ring, Ticket};
use softdpu_sys::{AlignedBuffer, IoMemory, IoVec, OneOf, cached, iovec};

use super::landings::{self, Landing};
use super::{Direct, FileBacking};
use crate::volume::Backing;
use crate::{BlockOp, Done, IoError, Request, Volume, VolumeError};

/// Files one core can have.
const FILES: u32 = 1024;
/// The most bytes that go through one bounce buffer at a time: a hostile request costs us no more memory than this.
const BOUNCE: usize = 1 << 20;
/// The most bytes of one read or write: where they are in the page cache the kernel copies them within the system call
/// that submits, and a core has other tenants.
const MOST: usize = 1 << 20;
/// The most zeroes written at a time.
const ZEROES: usize = 256 << 10;
/// How long an operation that the kernel cannot begin (EAGAIN: it lacks memory, or a worker) is tried again.
const REFUSED: Duration = Duration::from_secs(5);
/// The pause before it is.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// How often requests are looked at that wait for [`Landings`](super::landings::Landings).
const HOLD_PAUSE: Duration = Duration::from_millis(5);
/// Bounce buffers kept for the next request.
const SPARE: usize = 8;

type Memory = OneOf<GuestBuffer, AlignedBuffer>;

/// What the ring does for a request at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Move,
    Range { mode: FallocateFlags },
    Zeroes,
    Sync,
}

struct Flight {
    token: u64,
    op: BlockOp,
    file: Arc<OpenFile>,
    offset: u64,
    len: u64,
    /// Bytes that are behind us.
    done: u64,
    /// Where the data starts in the guest's buffer.
    skip: u64,
    durable: bool,
    step: Step,
    /// The guest's buffer, where the ring works on one of ours.
    guest: Option<GuestBuffer>,
    /// Since when the kernel has begun nothing of it.
    refused_since: Option<Instant>,
    /// Nobody waits for it any more.
    abandoned: bool,
    /// What it may still change then.
    landing: Option<Landing>,
}

/// The most bytes of a read that is looked for in the page cache before the ring is asked.
const CACHED: u64 = 64 << 10;

/// A volume's file in this core's ring.
pub(crate) struct OpenFile {
    index: FileIndex,
    volume: Arc<Volume>,
    /// How often its pages were in the cache lately.
    luck: Luck,
}

/// Whether it is worth a system call to look for a read's pages in the cache: after each miss in a row twice as many
/// reads go to the ring at once.
///
/// One thread's; atomic only so that the file may go to another thread with its context.
#[derive(Debug, Default)]
struct Luck {
    misses: AtomicU32,
    /// Reads that go to the ring before the next attempt.
    pause: AtomicU32,
}

impl Luck {
    /// Doublings: of two thousand reads from a disk one is looked for in the cache in vain.
    const MOST: u32 = 11;

    #[inline]
    fn is_good(&self) -> bool {
        self.misses.load(Ordering::Relaxed) == 0
    }

    #[inline]
    fn tries(&self) -> bool {
        let pause = self.pause.load(Ordering::Relaxed);
        if pause > 0 {
            self.pause.store(pause - 1, Ordering::Relaxed);
        }
        pause == 0
    }

    fn miss(&self) {
        let misses = self.misses.load(Ordering::Relaxed);
        self.pause.store((1 << misses) - 1, Ordering::Relaxed);
        self.misses.store((misses + 1).min(Self::MOST), Ordering::Relaxed);
    }

    #[inline]
    fn hit(&self) {
        if !self.is_good() {
            self.misses.store(0, Ordering::Relaxed);
        }
    }
}

impl OpenFile {
    /// Whether reads are answered while they are submitted, one after the other, as far as can be told.
    #[inline]
    pub(crate) fn answers_singly(&self) -> bool {
        self.luck.is_good() && self.backing().is_some_and(|backing| backing.direct.is_none())
    }

    fn backing(&self) -> Option<&FileBacking> {
        match &self.volume.backing {
            Backing::File(backing) => Some(backing),
            _ => None,
        }
    }

    /// Whether something that was given up may still change the request's bytes.
    #[inline]
    pub(crate) fn has_to_wait(&self, request: &Request) -> bool {
        let landings = self.backing().map(|backing| &backing.landings).filter(|landings| landings.count() > 0);
        landings.is_some_and(|landings| {
            request.op != BlockOp::Flush && landings.touch(request.offset..request.offset.saturating_add(request.len))
        })
    }
}

/// What of a file found no room in the ring, in order.
struct Line {
    file: Arc<OpenFile>,
    waiting: VecDeque<(Memory, Flight)>,
}

pub(crate) struct Engine {
    ring: Ring<Memory, Flight>,
    /// One line for each file that has something waiting.
    backlog: Vec<Line>,
    /// Requests whose bytes something that was given up may still change.
    held: Vec<(Arc<OpenFile>, Request)>,
    /// What had [ended](landings::ended) when those were last looked at.
    looked: u64,
    /// What the kernel could not begin, to be tried again with the next [`sweep`](Engine::sweep).
    refused: Vec<(Memory, Flight)>,
    spare: Vec<AlignedBuffer>,
    /// Room for the pieces of one read.
    vecs: Vec<IoVec>,
    /// Requests somebody waits for.
    outstanding: usize,
}

impl Engine {
    pub(crate) fn new(entries: u32) -> Result<Self, VolumeError> {
        let ring = Ring::new(entries, FILES).map_err(VolumeError::Ring)?;
        Ok(Engine {
            ring,
            backlog: Vec::new(),
            held: Vec::new(),
            looked: landings::ended(),
            refused: Vec::new(),
            spare: Vec::new(),
            vecs: Vec::new(),
            outstanding: 0,
        })
    }

    pub(crate) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.ring.as_fd()
    }

    pub(crate) fn attach(&mut self, volume: &Arc<Volume>, backing: &FileBacking) -> Result<Arc<OpenFile>, VolumeError> {
        let index = self.ring.add_file(backing.as_fd());
        let index = index.map_err(|e| VolumeError::os(volume.name(), "register its file with io_uring", e))?;
        Ok(Arc::new(OpenFile { index, volume: Arc::clone(volume), luck: Luck::default() }))
    }

    pub(crate) fn detach(&mut self, file: &Arc<OpenFile>, given_up: &mut Vec<u64>) {
        self.abandon_where(|other, _| Arc::ptr_eq(other, file), given_up);
        self.ring.remove_file(file.index);
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// Takes a request that was admitted; what ends at once is returned.
    #[inline]
    pub(crate) fn submit(&mut self, file: &Arc<OpenFile>, request: Request) -> Option<Done> {
        let Some(backing) = file.backing() else { return Some(request.end(Err(IoError::Gone))) };
        let invalid = Err(IoError::Device { errno: Errno::INVAL.raw_os_error() });
        if !request.has_data() {
            return Some(request.end(invalid));
        }
        let Request { token, op, offset, len, mut buffer, data, durable } = request;
        if op == BlockOp::Read && len <= CACHED && backing.direct.is_none() && file.luck.tries() {
            let skip = buffer.len_of(0..data.start);
            match cached::read(backing.as_fd(), offset, &mut buffer, skip, len as usize, &mut self.vecs) {
                Ok(bytes) if bytes as u64 == len => {
                    file.luck.hit();
                    return Some(Done { token, result: Ok(()), buffer });
                }
                // The ring waits for the disk, and says what is wrong where something is.
                Ok(_) | Err(_) => file.luck.miss(),
            }
        }
        let durable = durable || file.volume.spec().write_through;
        let mut flight = Flight {
            token,
            op,
            file: Arc::clone(file),
            offset,
            len,
            done: 0,
            skip: 0,
            durable,
            step: Step::Move,
            guest: None,
            refused_since: None,
            abandoned: false,
            landing: None,
        };
        let memory = match op {
            BlockOp::Read | BlockOp::Write => {
                flight.skip = buffer.len_of(0..data.start);
                match backing.direct {
                    Some(direct) if !is_aligned(direct, &flight, &buffer) => {
                        let unaligned_range = !(offset | len).is_multiple_of(direct.offset);
                        if op == BlockOp::Write && unaligned_range {
                            // Its driver was told the block size; half blocks cannot be written around the page cache.
                            return Some(Done { token, result: invalid, buffer });
                        }
                        let bounce = self.bounce(direct, &flight);
                        flight.guest = Some(buffer);
                        OneOf::B(bounce)
                    }
                    _ => OneOf::A(buffer),
                }
            }
            BlockOp::Flush => {
                flight.step = Step::Sync;
                OneOf::A(buffer)
            }
            BlockOp::Discard => {
                if !backing.punch.load(Ordering::Relaxed) {
                    return Some(Done { token, result: Ok(()), buffer });
                }
                flight.step = Step::Range { mode: FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE };
                OneOf::A(buffer)
            }
            BlockOp::WriteZeroes { unmap } => {
                flight.step = if unmap && backing.punch.load(Ordering::Relaxed) {
                    Step::Range { mode: FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE }
                } else {
                    zero_step(backing)
                };
                OneOf::A(buffer)
            }
        };
        if op != BlockOp::Flush && len == 0 {
            return Some(Done { token, result: Ok(()), buffer: self.guest_buffer(memory, &mut flight)? });
        }
        self.outstanding += 1;
        self.start(memory, flight);
        None
    }

    /// Hands the next operation of a flight to the ring, or to the backlog.
    fn start(&mut self, memory: Memory, mut flight: Flight) {
        let memory = if flight.step == Step::Zeroes && flight.guest.is_none() {
            // The ring works on zeroes of ours from here on.
            let zeroes = AlignedBuffer::new(ZEROES.min(usize::try_from(flight.len).unwrap_or(ZEROES)));
            match memory {
                OneOf::A(guest) => flight.guest = Some(guest),
                OneOf::B(_) => {}
            }
            OneOf::B(zeroes)
        } else {
            memory
        };
        match self.backlog.iter().position(|line| Arc::ptr_eq(&line.file, &flight.file)) {
            Some(at) => self.backlog[at].waiting.push_back((memory, flight)),
            None if self.has_room(&flight.file) => self.push(memory, flight),
            None => {
                let file = Arc::clone(&flight.file);
                self.backlog.push(Line { file, waiting: VecDeque::from([(memory, flight)]) });
            }
        }
    }

    /// Whether a file may have one more operation in the ring.
    #[inline]
    fn has_room(&self, file: &OpenFile) -> bool {
        self.ring.room() > self.ring.in_flight_on(file.index)
    }

    /// For a flight whose file [has room](Self::has_room).
    fn push(&mut self, memory: Memory, flight: Flight) {
        let operation = operation(&memory, &flight);
        if let Err((memory, flight)) = self.ring.push(flight.file.index, operation, memory, flight) {
            let file = Arc::clone(&flight.file);
            self.backlog.push(Line { file, waiting: VecDeque::from([(memory, flight)]) });
        }
    }

    /// Moves what waits into the ring, as far as there is room; whether something was.
    fn refill(&mut self) -> bool {
        let mut more = false;
        for at in (0..self.backlog.len()).rev() {
            while self.has_room(&self.backlog[at].file)
                && let Some((memory, flight)) = self.backlog[at].waiting.pop_front()
            {
                self.push(memory, flight);
                more = true;
            }
            if self.backlog[at].waiting.is_empty() {
                self.backlog.swap_remove(at);
            }
        }
        more
    }

    /// Keeps a request that [has to wait](OpenFile::has_to_wait).
    #[cold]
    pub(crate) fn hold(&mut self, file: &Arc<OpenFile>, request: Request) {
        self.outstanding += 1;
        self.held.push((Arc::clone(file), request));
    }

    /// Begins what has to wait no longer.
    #[cold]
    fn release(&mut self, done: &mut Vec<Done>) {
        // Before the look: what ends during it is a reason for another.
        self.looked = landings::ended();
        for (file, request) in std::mem::take(&mut self.held) {
            if file.has_to_wait(&request) {
                self.held.push((file, request));
            } else {
                self.outstanding -= 1;
                done.extend(self.submit(&file, request));
            }
        }
        self.ring.submit();
    }

    /// Sends what was submitted to the kernel.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.ring.submit();
    }

    /// Collects what has ended.
    #[inline]
    pub(crate) fn poll(&mut self, done: &mut Vec<Done>) {
        if !self.held.is_empty() && self.looked != landings::ended() {
            self.release(done);
        }
        if self.ring.in_flight() == 0 {
            return;
        }
        let mut more = false;
        while let Some(completion) = self.ring.reap() {
            if let Some(ended) = self.advance(completion) {
                done.push(ended);
            } else {
                more = true;
            }
        }
        if !self.backlog.is_empty() {
            more |= self.refill();
        }
        if more {
            self.ring.submit();
        }
    }

    /// When [`sweep`](Self::sweep) or [`poll`](Self::poll) has something to try again.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let pause = match (self.refused.is_empty(), self.held.is_empty()) {
            (false, _) => REFUSED_PAUSE,
            (true, false) => HOLD_PAUSE,
            (true, true) => return None,
        };
        Some(Instant::now() + pause)
    }

    /// Tries again what the kernel could not begin. Lets go of what was abandoned and has ended since: nobody polls for
    /// it, and it keeps its file open, and so locked, and its guest's memory mapped.
    pub(crate) fn sweep(&mut self) {
        if !self.refused.is_empty() {
            for (memory, flight) in std::mem::take(&mut self.refused) {
                self.start(memory, flight);
            }
            self.ring.submit();
        }
        if self.outstanding == 0 && self.ring.in_flight() > 0 {
            let mut none = Vec::new();
            self.poll(&mut none);
            debug_assert!(none.is_empty(), "an answer nobody waits for");
        }
    }

    /// One step has ended: the next one, or the end.
    #[inline]
    fn advance(&mut self, completion: Completion<Memory, Flight>) -> Option<Done> {
        let Completion { result, memory, payload: mut flight } = completion;
        if flight.abandoned {
            self.recycle(memory);
            return None;
        }
        let next = match result {
            Ok(bytes) => self.moved(bytes, &memory, &mut flight),
            // Nothing happened; again.
            Err(Errno::INTR) => Ok(true),
            Err(Errno::AGAIN) => {
                if flight.refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED {
                    self.refused.push((memory, flight));
                    return None;
                }
                Err(IoError::Device { errno: Errno::AGAIN.raw_os_error() })
            }
            Err(errno) => refused(errno, &mut flight),
        };
        match next {
            Ok(true) => {
                self.start(memory, flight);
                None
            }
            Ok(false) => self.finish(memory, flight, Ok(())),
            Err(error) => self.finish(memory, flight, Err(error)),
        }
    }

    /// A step went well: whether there is another.
    fn moved(&mut self, bytes: usize, memory: &Memory, flight: &mut Flight) -> Result<bool, IoError> {
        let bytes = bytes as u64;
        flight.refused_since = None;
        match flight.step {
            Step::Move => {
                let mut bytes = bytes;
                if flight.op == BlockOp::Read
                    && let (OneOf::B(bounce), Some(guest)) = (memory, &flight.guest)
                {
                    let lead = lead(flight);
                    bytes = bytes.saturating_sub(lead).min(flight.len - flight.done);
                    iovec::copy(bounce, lead, guest, flight.skip + flight.done, bytes as usize);
                }
                if bytes == 0 {
                    // The end of a file that was cut behind our back; or a device that takes no more.
                    return Err(IoError::Device { errno: Errno::IO.raw_os_error() });
                }
                flight.done += bytes;
                Ok(flight.done < flight.len)
            }
            Step::Zeroes => {
                if bytes == 0 {
                    return Err(IoError::Device { errno: Errno::IO.raw_os_error() });
                }
                flight.done += bytes;
                Ok(flight.done < flight.len)
            }
            Step::Range { .. } => {
                flight.step = Step::Sync;
                Ok(flight.durable)
            }
            Step::Sync => Ok(false),
        }
    }

    fn finish(&mut self, memory: Memory, mut flight: Flight, result: Result<(), IoError>) -> Option<Done> {
        self.outstanding -= 1;
        if let Err(error) = result {
            flight.file.volume.count(error);
        }
        let buffer = self.guest_buffer(memory, &mut flight)?;
        Some(Done { token: flight.token, result, buffer })
    }

    fn guest_buffer(&mut self, memory: Memory, flight: &mut Flight) -> Option<GuestBuffer> {
        match memory {
            OneOf::A(guest) => Some(guest),
            OneOf::B(bounce) => {
                if flight.op != BlockOp::Flush {
                    self.recycle(OneOf::B(bounce));
                }
                // A flight on a buffer of ours always has the guest's.
                flight.guest.take()
            }
        }
    }

    fn bounce(&mut self, direct: Direct, flight: &Flight) -> AlignedBuffer {
        let mask = direct.offset - 1;
        let whole = flight.len.saturating_add(2 * mask) & !mask;
        let need = usize::try_from(whole).unwrap_or(BOUNCE).min(BOUNCE);
        match self.spare.iter().position(|spare| spare.capacity() >= need) {
            Some(index) => self.spare.swap_remove(index),
            None => AlignedBuffer::new(need),
        }
    }

    fn recycle(&mut self, memory: Memory) {
        if let OneOf::B(buffer) = memory
            && self.spare.len() < SPARE
        {
            self.spare.push(buffer);
        }
    }

    pub(crate) fn abandon(&mut self, matches: &mut dyn FnMut(u64) -> bool, given_up: &mut Vec<u64>) {
        self.abandon_where(|_, token| matches(token), given_up);
    }

    fn abandon_where(&mut self, mut matches: impl FnMut(&Arc<OpenFile>, u64) -> bool, given_up: &mut Vec<u64>) {
        let before = given_up.len();
        let mut cancel: Vec<Ticket> = Vec::new();
        for (ticket, flight) in self.ring.payloads() {
            if !flight.abandoned && matches(&flight.file, flight.token) {
                flight.abandoned = true;
                if let Some(backing) = flight.file.backing().filter(|_| flight.op.is_write()) {
                    flight.landing = Some(backing.landings.add(flight.offset..flight.offset + flight.len));
                }
                flight.file.volume.count_abandoned();
                given_up.push(flight.token);
                cancel.push(ticket);
            }
        }
        for ticket in cancel {
            self.ring.cancel(ticket);
        }
        let mut stays = |file: &Arc<OpenFile>, token: u64| {
            let gone = matches(file, token);
            if gone {
                file.volume.count_abandoned();
                given_up.push(token);
            }
            !gone
        };
        self.backlog.retain_mut(|Line { file, waiting }| {
            waiting.retain(|(_, flight)| stays(file, flight.token));
            !waiting.is_empty()
        });
        self.refused.retain(|(_, flight)| stays(&flight.file, flight.token));
        self.held.retain(|(file, request)| stays(file, request.token));
        self.outstanding -= given_up.len() - before;
        self.ring.submit();
    }
}

fn zero_step(backing: &FileBacking) -> Step {
    if backing.zero_range.load(Ordering::Relaxed) {
        Step::Range { mode: FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE }
    } else {
        Step::Zeroes
    }
}

/// A step failed: whether there is another way.
fn refused(errno: Errno, flight: &mut Flight) -> Result<bool, IoError> {
    let Some(backing) = flight.file.backing() else { return Err(IoError::Gone) };
    let Step::Range { mode } = flight.step else { return Err(IoError::from_errno(errno.raw_os_error())) };
    let unsupported = matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV);
    // Block devices answer EINVAL for ranges that are not whole logical blocks.
    if !unsupported && errno != Errno::INVAL {
        return Err(IoError::from_errno(errno.raw_os_error()));
    }
    let punching = mode.contains(FallocateFlags::PUNCH_HOLE);
    if unsupported {
        FileBacking::switch_off(if punching { &backing.punch } else { &backing.zero_range });
    }
    if flight.op == BlockOp::Discard {
        // A discard is a hint.
        return Ok(false);
    }
    flight.step = if punching { zero_step(backing) } else { Step::Zeroes };
    Ok(true)
}

/// Bytes before the request in its first bounced block.
fn lead(flight: &Flight) -> u64 {
    let align = flight.file.backing().and_then(|backing| backing.direct).map_or(1, |direct| direct.offset);
    (flight.offset + flight.done) % align
}

fn operation(memory: &Memory, flight: &Flight) -> Operation {
    let Flight { offset, len, done, skip, durable, .. } = *flight;
    let at = offset + done;
    let left = usize::try_from(len - done).unwrap_or(MOST).min(MOST);
    match (flight.step, memory) {
        (Step::Move, OneOf::A(_)) if flight.op == BlockOp::Read => Operation::Read { at, skip: skip + done, len: left },
        (Step::Move, OneOf::A(_)) => Operation::Write { at, skip: skip + done, len: left, durable },
        (Step::Move, OneOf::B(bounce)) if flight.op == BlockOp::Read => {
            let align = flight.file.backing().and_then(|backing| backing.direct).map_or(1, |d| d.offset as usize);
            let lead = lead(flight);
            let want = (lead as usize).saturating_add(left).min(bounce.capacity());
            let whole = want.next_multiple_of(align).min(bounce.capacity());
            Operation::Read { at: at - lead, skip: 0, len: whole }
        }
        (Step::Move, OneOf::B(bounce)) => {
            let part = left.min(bounce.capacity());
            if let Some(guest) = &flight.guest {
                iovec::copy(guest, skip + done, bounce, 0, part);
            }
            Operation::Write { at, skip: 0, len: part, durable }
        }
        (Step::Zeroes, memory) => {
            let have = memory.iovecs().first().map_or(0, |piece| piece.len());
            Operation::Write { at, skip: 0, len: left.min(have), durable }
        }
        (Step::Range { mode }, _) => Operation::Allocate { mode: mode.bits(), at: offset, len },
        (Step::Sync, _) => Operation::Sync,
    }
}

/// Whether the kernel takes this request as it is around the page cache.
fn is_aligned(direct: Direct, flight: &Flight, buffer: &GuestBuffer) -> bool {
    if !(flight.offset | flight.len).is_multiple_of(direct.offset) {
        return false;
    }
    // Where it goes in several operations, each but the first starts within a piece, at a multiple of MOST from the
    // data's start.
    let unit = if flight.len > MOST as u64 { direct.offset.max(direct.memory as u64) } else { direct.offset };
    let (mut at, end) = (0, flight.skip + flight.len);
    buffer.iovecs().iter().all(|piece| {
        let start = at;
        at += piece.len() as u64;
        // Pieces before and after the data do not matter; those of the data are whole, as requests are split there.
        at <= flight.skip
            || start >= end
            || (piece.base() as usize).is_multiple_of(direct.memory) && (piece.len() as u64).is_multiple_of(unit)
    })
}

#[cfg(test)]
mod tests {
    use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View};

    use super::*;
    use crate::{Kind, PathBroker, VolumeSpec};

    #[test]
    fn what_the_kernel_cannot_begin_is_tried_again_after_a_pause_and_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let kind = Kind::File { path, size: Some(4096), create: true, direct: false, discard: false };
        let volume = Volume::open(VolumeSpec::new("v", kind), &PathBroker::new()).unwrap();
        volume.activate().unwrap();
        let Backing::File(backing) = &volume.backing else { panic!("a file") };
        let mut engine = Engine::new(8).unwrap();
        let file = engine.attach(&volume, backing).unwrap();
        let region = Region::new(GuestAddress(0), UserAddress(0), 4096, Mapping::heap(4096), 0);
        let view = View::new(vec![region]).unwrap();
        let refused = |token, refused_since| {
            let buffer = view.buffer(GuestAddress(0), 512).unwrap();
            let flight = Flight {
                token,
                op: BlockOp::Read,
                file: Arc::clone(&file),
                offset: 0,
                len: 512,
                done: 0,
                skip: 0,
                durable: false,
                step: Step::Move,
                guest: None,
                refused_since,
                abandoned: false,
                landing: None,
            };
            Completion { result: Err(Errno::AGAIN), memory: OneOf::A(buffer), payload: flight }
        };
        engine.outstanding = 2;
        assert!(engine.advance(refused(1, None)).is_none());
        assert!(engine.advance(refused(2, None)).is_none());
        assert_eq!(engine.ring.in_flight(), 0, "not at once");
        assert!(engine.next_deadline().is_some());
        let mut given_up = Vec::new();
        engine.abandon(&mut |token| token == 2, &mut given_up);
        assert_eq!((given_up.as_slice(), engine.outstanding()), (&[2][..], 1));
        engine.sweep();
        let mut done = Vec::new();
        while done.is_empty() {
            engine.poll(&mut done);
        }
        assert_eq!((done[0].token, done[0].result, engine.outstanding()), (1, Ok(()), 0));
        assert_eq!(engine.next_deadline(), None);

        engine.outstanding = 1;
        let ended = engine.advance(refused(3, Instant::now().checked_sub(REFUSED))).expect("an end");
        assert_eq!(ended.result, Err(IoError::Device { errno: Errno::AGAIN.raw_os_error() }));
    }
}
