//! One core's I/O on all its files and block devices, through one io_uring.
//!
//! The ring is shared by all files of a core, and a file on a disk or server that hangs gives nothing back: a file may
//! have as many operations in it as there is room left. So there always is some for others, however many hang.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use softdpu_memory::GuestBuffer;
use softdpu_sys::uring::{Completion, Ring, Ticket};
use softdpu_sys::{AlignedBuffer, IoVec, OneOf, cached};

use super::landings;
use super::open_file::{CACHED, CachePredictor, OpenFile};
use super::request::{FileRequest, FileStep, Memory};
use super::{Direct, FileBacking};
use crate::{BlockOp, Done, IoError, Request, Volume, VolumeError};

/// Files one core can have.
const FILES: u32 = 1024;
/// The most bytes that go through one bounce buffer at a time: a hostile request costs us no more memory than this.
const BOUNCE: usize = 1 << 20;
/// The most zeroes written at a time.
const ZEROES: usize = 256 << 10;
/// How long an operation that the kernel cannot begin (EAGAIN: it lacks memory, or a worker) is tried again.
const REFUSED: Duration = Duration::from_secs(5);
/// The pause before it is.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);
/// How often requests that wait for [`Landings`](super::landings::Landings) are tried again.
const HOLD_PAUSE: Duration = Duration::from_millis(5);
/// Bounce buffers kept for the next request.
const SPARE: usize = 8;

/// Requests of one file that wait for room in the ring, in order.
struct Backlog {
    file: Arc<OpenFile>,
    waiting: VecDeque<(Memory, FileRequest)>,
}

/// One core's io_uring and what is outstanding there.
pub(crate) struct FileEngine {
    ring: Ring<Memory, FileRequest>,
    /// One for each file with requests that wait.
    backlogs: Vec<Backlog>,
    /// Requests with bytes that an operation that was given up may still change.
    held: Vec<(Arc<OpenFile>, Request)>,
    /// What had [ended](landings::ended) when those were last tried.
    seen_ended: u64,
    /// What the kernel could not begin, to be tried again with the next [`sweep`](FileEngine::sweep).
    refused: Vec<(Memory, FileRequest)>,
    spare: Vec<AlignedBuffer>,
    /// Room for the pieces of one read.
    vecs: Vec<IoVec>,
    /// Requests that were taken and not answered.
    outstanding: usize,
}

impl FileEngine {
    pub(crate) fn new(entries: u32) -> Result<Self, VolumeError> {
        let ring = Ring::new(entries, FILES).map_err(VolumeError::ring)?;
        Ok(FileEngine {
            ring,
            backlogs: Vec::new(),
            held: Vec::new(),
            seen_ended: landings::ended(),
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
        Ok(Arc::new(OpenFile { index, volume: Arc::clone(volume), cache: CachePredictor::default() }))
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
        if op == BlockOp::Read && len <= CACHED && backing.direct.is_none() && file.cache.tries() {
            let skip = buffer.len_of(0..data.start);
            match cached::read(backing.as_fd(), offset, &mut buffer, skip, len as usize, &mut self.vecs) {
                Ok(bytes) if bytes as u64 == len => {
                    file.cache.hit();
                    return Some(Done { token, result: Ok(()), buffer });
                }
                // The ring waits for the disk, and says what is wrong where something is.
                Ok(_) | Err(_) => file.cache.miss(),
            }
        }
        let durable = durable || file.volume.spec().write_through;
        let mut pending = FileRequest {
            token,
            op,
            file: Arc::clone(file),
            offset,
            len,
            done: 0,
            skip: 0,
            durable,
            step: FileStep::Move,
            guest: None,
            refused_since: None,
            abandoned: false,
            landing: None,
        };
        let memory = match op {
            BlockOp::Read | BlockOp::Write => {
                pending.skip = buffer.len_of(0..data.start);
                match backing.direct {
                    Some(direct) if !pending.is_aligned(direct, &buffer) => {
                        let unaligned_range = !(offset | len).is_multiple_of(direct.offset);
                        if op == BlockOp::Write && unaligned_range {
                            // Its driver has read the block size; half blocks cannot be written around the page cache.
                            return Some(Done { token, result: invalid, buffer });
                        }
                        let bounce = self.bounce(direct, &pending);
                        pending.guest = Some(buffer);
                        OneOf::B(bounce)
                    }
                    _ => OneOf::A(buffer),
                }
            }
            BlockOp::Flush => {
                pending.step = FileStep::Sync;
                OneOf::A(buffer)
            }
            BlockOp::Discard => {
                if !backing.punch.load(Ordering::Relaxed) {
                    return Some(Done { token, result: Ok(()), buffer });
                }
                pending.step = FileStep::Range { mode: FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE };
                OneOf::A(buffer)
            }
            BlockOp::WriteZeroes { unmap } => {
                pending.step = if unmap && backing.punch.load(Ordering::Relaxed) {
                    FileStep::Range { mode: FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE }
                } else {
                    FileStep::zeroing(backing)
                };
                OneOf::A(buffer)
            }
        };
        if op != BlockOp::Flush && len == 0 {
            return Some(Done { token, result: Ok(()), buffer: self.guest_buffer(memory, &mut pending)? });
        }
        self.outstanding += 1;
        self.start(memory, pending);
        None
    }

    /// Hands the next operation of a pending to the ring, or to the backlog.
    fn start(&mut self, memory: Memory, mut pending: FileRequest) {
        let memory = if pending.step == FileStep::Zeroes && pending.guest.is_none() {
            // The ring works on zeroes of ours from here on.
            let zeroes = AlignedBuffer::new(ZEROES.min(usize::try_from(pending.len).unwrap_or(ZEROES)));
            match memory {
                OneOf::A(guest) => pending.guest = Some(guest),
                OneOf::B(_) => {}
            }
            OneOf::B(zeroes)
        } else {
            memory
        };
        match self.backlogs.iter().position(|backlog| Arc::ptr_eq(&backlog.file, &pending.file)) {
            Some(at) => self.backlogs[at].waiting.push_back((memory, pending)),
            None if self.has_room(&pending.file) => self.push(memory, pending),
            None => {
                let file = Arc::clone(&pending.file);
                self.backlogs.push(Backlog { file, waiting: VecDeque::from([(memory, pending)]) });
            }
        }
    }

    /// Whether a file may have one more operation in the ring.
    #[inline]
    fn has_room(&self, file: &OpenFile) -> bool {
        self.ring.room() > self.ring.in_flight_on(file.index)
    }

    /// For a pending request of a file that [has room](Self::has_room).
    fn push(&mut self, memory: Memory, pending: FileRequest) {
        let operation = pending.operation(&memory);
        if let Err((memory, pending)) = self.ring.push(pending.file.index, operation, memory, pending) {
            let file = Arc::clone(&pending.file);
            self.backlogs.push(Backlog { file, waiting: VecDeque::from([(memory, pending)]) });
        }
    }

    /// Moves what waits into the ring, as far as there is room; whether something was.
    fn refill(&mut self) -> bool {
        let mut more = false;
        for at in (0..self.backlogs.len()).rev() {
            while self.has_room(&self.backlogs[at].file)
                && let Some((memory, pending)) = self.backlogs[at].waiting.pop_front()
            {
                self.push(memory, pending);
                more = true;
            }
            if self.backlogs[at].waiting.is_empty() {
                self.backlogs.swap_remove(at);
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
        // Before they are tried: what ends meanwhile is a reason to try again.
        self.seen_ended = landings::ended();
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
        if !self.held.is_empty() && self.seen_ended != landings::ended() {
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
        if !self.backlogs.is_empty() {
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

    /// Tries again what the kernel could not begin. Releases what was abandoned and has ended since: no poll collects
    /// it, and it keeps its file open, and so locked, and its guest's memory mapped.
    pub(crate) fn sweep(&mut self) {
        if !self.refused.is_empty() {
            for (memory, pending) in std::mem::take(&mut self.refused) {
                self.start(memory, pending);
            }
            self.ring.submit();
        }
        if self.outstanding == 0 && self.ring.in_flight() > 0 {
            let mut none = Vec::new();
            self.poll(&mut none);
            debug_assert!(none.is_empty(), "an answer to no request");
        }
    }

    /// One step has ended: the next one, or the end.
    #[inline]
    fn advance(&mut self, completion: Completion<Memory, FileRequest>) -> Option<Done> {
        let Completion { result, memory, payload: mut pending } = completion;
        if pending.abandoned {
            self.recycle(memory);
            return None;
        }
        let next = match result {
            Ok(bytes) => pending.moved(bytes, &memory),
            // Nothing happened; again.
            Err(Errno::INTR) => Ok(true),
            Err(Errno::AGAIN) => {
                if pending.refused_since.get_or_insert_with(Instant::now).elapsed() < REFUSED {
                    self.refused.push((memory, pending));
                    return None;
                }
                Err(IoError::Device { errno: Errno::AGAIN.raw_os_error() })
            }
            Err(errno) => pending.refused(errno),
        };
        match next {
            Ok(true) => {
                self.start(memory, pending);
                None
            }
            Ok(false) => self.finish(memory, pending, Ok(())),
            Err(error) => self.finish(memory, pending, Err(error)),
        }
    }

    fn finish(&mut self, memory: Memory, mut pending: FileRequest, result: Result<(), IoError>) -> Option<Done> {
        self.outstanding -= 1;
        if let Err(error) = result {
            pending.file.volume.count(error);
        }
        let buffer = self.guest_buffer(memory, &mut pending)?;
        Some(Done { token: pending.token, result, buffer })
    }

    fn guest_buffer(&mut self, memory: Memory, pending: &mut FileRequest) -> Option<GuestBuffer> {
        match memory {
            OneOf::A(guest) => Some(guest),
            OneOf::B(bounce) => {
                if pending.op != BlockOp::Flush {
                    self.recycle(OneOf::B(bounce));
                }
                // A pending on a buffer of ours always has the guest's.
                pending.guest.take()
            }
        }
    }

    fn bounce(&mut self, direct: Direct, pending: &FileRequest) -> AlignedBuffer {
        let mask = direct.offset - 1;
        let whole = pending.len.saturating_add(2 * mask) & !mask;
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
        for (ticket, pending) in self.ring.payloads() {
            if !pending.abandoned && matches(&pending.file, pending.token) {
                pending.abandoned = true;
                if let Some(backing) = pending.file.backing().filter(|_| pending.op.is_write()) {
                    pending.landing = Some(backing.landings.add(pending.offset..pending.offset + pending.len));
                }
                pending.file.volume.count_abandoned();
                given_up.push(pending.token);
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
        self.backlogs.retain_mut(|Backlog { file, waiting }| {
            waiting.retain(|(_, pending)| stays(file, pending.token));
            !waiting.is_empty()
        });
        self.refused.retain(|(_, pending)| stays(&pending.file, pending.token));
        self.held.retain(|(file, request)| stays(file, request.token));
        self.outstanding -= given_up.len() - before;
        self.ring.submit();
    }
}

#[cfg(test)]
mod tests {
    use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View};

    use super::*;
    use crate::volume::Backing;
    use crate::{PathBroker, VolumeKind, VolumeSpec};

    #[test]
    fn what_the_kernel_cannot_begin_is_tried_again_after_a_pause_and_not_for_ever() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        let kind = VolumeKind::File { path, size: Some(4096), create: true, direct: false, discard: false };
        let volume = Volume::open(VolumeSpec::new("v", kind), &PathBroker::new()).unwrap();
        volume.activate().unwrap();
        let Backing::File(backing) = &volume.backing else { panic!("a file") };
        let mut engine = FileEngine::new(8).unwrap();
        let file = engine.attach(&volume, backing).unwrap();
        let region = Region::new(GuestAddress(0), UserAddress(0), 4096, Mapping::heap(4096), 0);
        let view = View::new(vec![region]).unwrap();
        let refused = |token, refused_since| {
            let buffer = view.buffer(GuestAddress(0), 512).unwrap();
            let pending = FileRequest {
                token,
                op: BlockOp::Read,
                file: Arc::clone(&file),
                offset: 0,
                len: 512,
                done: 0,
                skip: 0,
                durable: false,
                step: FileStep::Move,
                guest: None,
                refused_since,
                abandoned: false,
                landing: None,
            };
            Completion { result: Err(Errno::AGAIN), memory: OneOf::A(buffer), payload: pending }
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
