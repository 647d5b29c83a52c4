//! io_uring with owned buffers.
//!
//! An operation takes the memory it works on, keeps it at a fixed place while the kernel may touch it, and gives it
//! back with the completion. Safe code therefore cannot free or reuse memory under the kernel.
//!
//! ```text
//!  push ─▶ slot (memory, payload, iovecs) ─ submit: one io_uring_enter for all ─▶ kernel ─▶ reap: from the ring, no
//!                                                                                        system call
//! ```
//!
//! All slots are made at the start, so nothing is allocated per operation in steady state. Dropping the ring cancels
//! what is in flight and waits a moment; memory of operations that the kernel does not give back is leaked rather than
//! freed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use io_uring::register::Restriction;
use io_uring::{EnterFlags, IoUring, opcode, squeue, types};
use rustix::process::{Resource, getrlimit};

use crate::iovec::Cursor;
use crate::{IoMemory, IoVec};

/// The most pieces of one operation: UIO_MAXIOV. What is beyond is a short transfer.
const MAX_PIECES: usize = 1024;
/// The most bytes of one operation: MAX_RW_COUNT of the kernel. What is beyond is a short transfer.
const MAX_BYTES: usize = 0x7fff_f000;
/// Completions with this user data belong to cancellations.
const CANCELLATION: u64 = u64::MAX;
/// How long a dropped ring waits for the kernel.
const LAST_WAIT: Duration = Duration::from_millis(200);

/// A file registered with one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIndex(u32);

/// What the kernel is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// File to memory.
    Read {
        /// First byte in the file.
        at: u64,
        /// First byte in the memory, counted across its pieces.
        skip: u64,
        /// Bytes.
        len: usize,
    },
    /// Memory to file.
    Write {
        /// First byte in the file.
        at: u64,
        /// First byte in the memory, counted across its pieces.
        skip: u64,
        /// Bytes.
        len: usize,
        /// On stable storage before it completes (RWF_DSYNC).
        durable: bool,
    },
    /// fdatasync.
    Sync,
    /// fallocate with these mode bits.
    Allocate {
        /// FALLOC_FL_…
        mode: u32,
        /// First byte in the file.
        at: u64,
        /// Bytes.
        len: u64,
    },
}

/// Names an operation while it is in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// An operation that has ended.
#[derive(Debug)]
pub struct Completion<M, T> {
    /// Bytes transferred (0 for others), or the error.
    pub result: Result<usize, rustix::io::Errno>,
    /// The memory it was given.
    pub memory: M,
    /// What the caller gave along.
    pub payload: T,
}

struct Slot<M, T> {
    held: Option<(M, T)>,
    /// The file it is on.
    file: FileIndex,
    /// Distinguishes the operations that use this slot one after another.
    generation: u32,
    vecs: Vec<IoVec>,
}

impl<M, T> Slot<M, T> {
    fn ticket(&self, index: u32) -> u64 {
        u64::from(self.generation) << 32 | u64::from(index)
    }
}

/// A place for a registered file.
#[derive(Clone, Copy, Default)]
struct Place {
    /// Registered: not to be given to another file.
    taken: bool,
    /// Removed; its place is free when the last operation on it has ended.
    leaving: bool,
    /// Operations pushed and not yet reaped.
    in_flight: u32,
}

/// An io_uring with operations that own memory of type `M` and carry a `T`.
pub struct Ring<M: IoMemory, T> {
    ring: IoUring,
    /// Never moved while operations are in flight: iovec arrays and inline pieces live in here.
    slots: Box<[Slot<M, T>]>,
    free: Vec<u32>,
    files: Vec<Place>,
    /// Places that were asked for.
    wanted_files: u32,
    /// Cancellations without a completion so far.
    cancellations: usize,
}

impl<M: IoMemory, T> Ring<M, T> {
    /// A ring for up to `entries` operations in flight on up to `files` files, fewer where this process may have fewer
    /// open.
    ///
    /// # Errors
    /// What the kernel says; Linux 5.19 is needed.
    pub fn new(entries: u32, files: u32) -> io::Result<Self> {
        let entries = entries.clamp(1, 16384).next_power_of_two();
        // Completions wait in the kernel until this thread enters it for whatever reason, and the ring says so: no
        // interruption of a thread that is polling. CQ: one per operation, and as many cancellations.
        let ring = IoUring::builder()
            .dontfork()
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .setup_cqsize(entries * 2)
            .setup_r_disabled()
            .build(entries)?;
        // The kernel refuses a larger table (EMFILE).
        let limit = getrlimit(Resource::Nofile).current.and_then(|limit| u32::try_from(limit).ok());
        let (wanted_files, files) = (files, limit.map_or(files, |limit| files.min(limit)));
        ring.submitter().register_files_sparse(files)?;
        // Operations that cannot be begun without blocking each take one of the kernel's workers for as long as they
        // block. By default these are a few per CPU for all regular files: one file system that hangs would have them
        // all. An older kernel (before 5.15) keeps its default.
        let _ = ring.submitter().register_iowq_max_workers(&mut [entries, 0]);
        restrict(&ring)?;
        let slot = || Slot { held: None, file: FileIndex(0), generation: 0, vecs: Vec::new() };
        Ok(Ring {
            ring,
            slots: (0..entries).map(|_| slot()).collect(),
            free: (0..entries).rev().collect(),
            files: vec![Place::default(); files as usize],
            wanted_files,
            cancellations: 0,
        })
    }

    /// Registers a file; the ring refers to its open file description until [`remove_file`](Self::remove_file) and the
    /// end of what is in flight on it.
    ///
    /// # Errors
    /// All places are taken, by files or by what is still in flight on removed ones; what else the kernel says.
    pub fn add_file(&mut self, file: BorrowedFd<'_>) -> io::Result<FileIndex> {
        let free = self.files.iter().position(|place| !place.taken).ok_or_else(|| self.full())?;
        self.ring.submitter().register_files_update(free as u32, &[file.as_raw_fd()])?;
        self.files[free].taken = true;
        Ok(FileIndex(free as u32))
    }

    /// Why there is no place for another file.
    fn full(&self) -> io::Error {
        let (places, wanted) = (self.files.len(), self.wanted_files);
        io::Error::other(format!(
            "the ring has places for {places} files, which are taken; it has as many as the limit of open files \
             (LimitNOFILE, ulimit -Hn), up to {wanted}"
        ))
    }

    /// Gives a file's place back. What is in flight on it goes on, and keeps the place until its end: the kernel looks
    /// a file up when it starts an operation, which may be later than this, and must not find another one there.
    pub fn remove_file(&mut self, file: FileIndex) {
        let Some(place) = self.files.get_mut(file.0 as usize).filter(|place| place.taken) else { return };
        place.leaving = true;
        self.leave(file);
    }

    /// Frees the place of a removed file on which nothing is in flight.
    fn leave(&mut self, file: FileIndex) {
        let place = &mut self.files[file.0 as usize];
        if place.leaving && place.in_flight == 0 {
            *place = Place::default();
            let _ = self.ring.submitter().register_files_update(file.0, &[-1]);
        }
    }

    /// How many operations could be pushed now.
    #[inline]
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Operations pushed and not yet returned by [`reap`](Self::reap).
    #[inline]
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Of those, the ones on this file.
    #[inline]
    pub fn in_flight_on(&self, file: FileIndex) -> usize {
        self.files.get(file.0 as usize).map_or(0, |place| place.in_flight as usize)
    }

    /// Prepares an operation; [`submit`](Self::submit) sends it. Of a memory shorter than the operation, or of one in
    /// too many pieces, what can be is transferred.
    ///
    /// # Errors
    /// The memory and payload, where the ring is full.
    #[inline]
    pub fn push(&mut self, file: FileIndex, operation: Operation, memory: M, payload: T) -> Result<Ticket, (M, T)> {
        let Some(index) = self.free.pop() else { return Err((memory, payload)) };
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1) & 0x7fff_ffff;
        let ticket = slot.ticket(index);
        slot.file = file;
        if let Some(place) = self.files.get_mut(file.0 as usize) {
            place.in_flight += 1;
        }
        let (memory, _) = slot.held.insert((memory, payload));
        let entry = prepare(types::Fixed(file.0), operation, memory, &mut slot.vecs).user_data(ticket);
        // SAFETY: the memory and the vectors the entry points to stay in the slot until its completion was seen.
        let mut sent = unsafe { self.ring.submission().push(&entry) };
        while sent.is_err() {
            // As many entries as slots, but cancellations take some too.
            self.submit();
            // SAFETY: as above.
            sent = unsafe { self.ring.submission().push(&entry) };
        }
        Ok(Ticket(ticket))
    }

    /// Sends what was pushed, with one system call; none where there is nothing to send. What the kernel cannot take
    /// now goes with the next call.
    #[inline]
    pub fn submit(&mut self) {
        if self.ring.submission().is_empty() {
            return;
        }
        // EBUSY, EAGAIN, EINTR: still in the queue. The ring was set up correctly, so there are no others.
        let _ = self.ring.submit();
    }

    /// The next operation that has ended. No system call, except where the kernel has completions that wait for one.
    #[inline]
    pub fn reap(&mut self) -> Option<Completion<M, T>> {
        if self.in_flight() == 0 && self.cancellations == 0 {
            return None;
        }
        loop {
            let Some(entry) = self.ring.completion().next() else {
                if !self.ring.submission().taskrun() && !self.ring.submission().cq_overflow() {
                    return None;
                }
                self.enter();
                if self.ring.completion().is_empty() {
                    return None;
                }
                continue;
            };
            if entry.user_data() == CANCELLATION {
                self.cancellations = self.cancellations.saturating_sub(1);
                continue;
            }
            if let Some(completion) = self.complete(entry.user_data(), entry.result()) {
                return Some(completion);
            }
        }
    }

    fn complete(&mut self, ticket: u64, result: i32) -> Option<Completion<M, T>> {
        let index = ticket as u32;
        let slot = self.slots.get_mut(index as usize)?;
        if slot.ticket(index) != ticket {
            return None;
        }
        let (memory, payload) = slot.held.take()?;
        let file = slot.file;
        self.free.push(index);
        if let Some(place) = self.files.get_mut(file.0 as usize) {
            place.in_flight -= 1;
            if place.leaving {
                self.leave(file);
            }
        }
        let result = usize::try_from(result).map_err(|_| rustix::io::Errno::from_raw_os_error(-result));
        Some(Completion { result, memory, payload })
    }

    /// Lets the kernel post what it has.
    fn enter(&mut self) {
        // SAFETY: no argument is a pointer.
        let _ = unsafe { self.ring.submitter().enter::<()>(0, 0, EnterFlags::GETEVENTS.bits(), None) };
    }

    /// Asks the kernel to end an operation early. It completes in any case: as it would have, or with ECANCELED or
    /// EINTR. An operation that a disk or a worker is in the middle of is not ended.
    pub fn cancel(&mut self, ticket: Ticket) {
        let entry = opcode::AsyncCancel::new(ticket.0).build().user_data(CANCELLATION);
        // A cancellation that finds no room is not made: it is an optimisation only. The CQ has room for as many as
        // there are slots.
        if self.cancellations >= self.slots.len() {
            return;
        }
        // SAFETY: the entry has no pointers to memory.
        let mut sent = unsafe { self.ring.submission().push(&entry) };
        if sent.is_err() {
            self.submit();
            // SAFETY: as above.
            sent = unsafe { self.ring.submission().push(&entry) };
        }
        if sent.is_ok() {
            self.cancellations += 1;
        }
    }

    /// What is in flight: each operation's payload, with its ticket.
    pub fn payloads(&mut self) -> impl Iterator<Item = (Ticket, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| {
            let ticket = Ticket(slot.ticket(index as u32));
            slot.held.as_mut().map(|(_, payload)| (ticket, payload))
        })
    }
}

/// Lets a ring that is not enabled yet do what is done here, and nothing else for as long as it is there: code that got
/// hold of this process can have it open, connect or send nothing (IORING_REGISTER_RESTRICTIONS). Enables it.
fn restrict(ring: &IoUring) -> io::Result<()> {
    // linux/io_uring.h: IORING_REGISTER_FILES_UPDATE, IOSQE_FIXED_FILE.
    const FILES_UPDATE: u8 = 6;
    const FIXED_FILE: u8 = 1;
    const OPERATIONS: [u8; 7] = [
        opcode::Read::CODE,
        opcode::Readv::CODE,
        opcode::Write::CODE,
        opcode::Writev::CODE,
        opcode::Fsync::CODE,
        opcode::Fallocate::CODE,
        opcode::AsyncCancel::CODE,
    ];
    let mut restrictions = vec![Restriction::register_op(FILES_UPDATE), Restriction::sqe_flags_allowed(FIXED_FILE)];
    restrictions.extend(OPERATIONS.map(Restriction::sqe_op));
    ring.submitter().register_restrictions(&mut restrictions)?;
    ring.submitter().register_enable_rings()
}

impl<M: IoMemory, T> AsFd for Ring<M, T> {
    /// Readable when there are completions.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the ring.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

fn prepare<M: IoMemory>(file: types::Fixed, operation: Operation, memory: &M, vecs: &mut Vec<IoVec>) -> squeue::Entry {
    const DSYNC: i32 = libc::RWF_DSYNC;
    match operation {
        Operation::Read { at, skip, len } => match gather(memory, skip, len, vecs) {
            Some(piece) => opcode::Read::new(file, piece.base(), piece.len() as u32).offset(at).build(),
            None => opcode::Readv::new(file, vecs.as_ptr().cast(), vecs.len() as u32).offset(at).build(),
        },
        Operation::Write { at, skip, len, durable } => {
            let flags = if durable { DSYNC } else { 0 };
            match gather(memory, skip, len, vecs) {
                Some(piece) => opcode::Write::new(file, piece.base().cast_const(), piece.len() as u32)
                    .offset(at)
                    .rw_flags(flags as _)
                    .build(),
                None => opcode::Writev::new(file, vecs.as_ptr().cast(), vecs.len() as u32)
                    .offset(at)
                    .rw_flags(flags as _)
                    .build(),
            }
        }
        Operation::Sync => opcode::Fsync::new(file).flags(types::FsyncFlags::DATASYNC).build(),
        Operation::Allocate { mode, at, len } => opcode::Fallocate::new(file, len).offset(at).mode(mode as i32).build(),
    }
}

/// The bytes of a transfer: as one piece where they are, else in `vecs`.
#[inline]
pub(crate) fn gather<M: IoMemory>(memory: &M, skip: u64, len: usize, vecs: &mut Vec<IoVec>) -> Option<IoVec> {
    let mut cursor = Cursor::new(memory.iovecs(), skip);
    let mut left = len.min(MAX_BYTES);
    if let Some(first) = cursor.piece().filter(|first| first.len() >= left) {
        return Some(IoVec::new(first.base(), left));
    }
    vecs.clear();
    while left > 0 && vecs.len() < MAX_PIECES {
        let Some(piece) = cursor.piece() else { break };
        let part = left.min(piece.len());
        vecs.push(IoVec::new(piece.base(), part));
        cursor.advance(part);
        left -= part;
    }
    None
}

impl<M: IoMemory, T> Drop for Ring<M, T> {
    fn drop(&mut self) {
        let deadline = Instant::now() + LAST_WAIT;
        self.submit();
        let tickets: Vec<Ticket> = self.payloads().map(|(ticket, _)| ticket).collect();
        for ticket in tickets {
            self.cancel(ticket);
        }
        self.submit();
        loop {
            while self.reap().is_some() {}
            let left = deadline.saturating_duration_since(Instant::now());
            if self.in_flight() == 0 || left.is_zero() {
                break;
            }
            let time = types::Timespec::from(left);
            let _ = self.ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&time));
        }
        if self.in_flight() > 0 {
            // The kernel is in the middle of them and may write there for as long as it likes.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

impl<M: IoMemory, T> std::fmt::Debug for Ring<M, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("slots", &self.slots.len()).field("in_flight", &self.in_flight()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What became of an operation in a ring with or without restrictions.
    fn outcome(is_restricted: bool, entry: &squeue::Entry) -> i32 {
        let mut ring = IoUring::builder().setup_r_disabled().build(4).unwrap();
        if is_restricted { restrict(&ring) } else { ring.submitter().register_enable_rings() }.unwrap();
        // SAFETY: the entry points to nothing, or to a static name.
        unsafe { ring.submission().push(entry) }.unwrap();
        let _ = ring.submit_and_wait(1);
        ring.completion().next().unwrap().result()
    }

    #[test]
    fn a_ring_opens_connects_and_sends_nothing() {
        let nothing = opcode::Nop::new().build();
        assert_eq!((outcome(false, &nothing), outcome(true, &nothing)), (0, -libc::EACCES));
        let open = opcode::OpenAt::new(types::Fd(libc::AT_FDCWD), c"/dev/null".as_ptr()).build();
        assert!(outcome(false, &open) >= 0);
        assert_eq!(outcome(true, &open), -libc::EACCES);
        let socket = opcode::Socket::new(libc::AF_INET, libc::SOCK_STREAM, 0).build();
        assert!(outcome(false, &socket) >= 0);
        assert_eq!(outcome(true, &socket), -libc::EACCES);
    }

    #[test]
    fn a_ring_that_is_in_use_registers_files_and_nothing_else() {
        let ring = Ring::<crate::AlignedBuffer, ()>::new(4, 4).unwrap();
        let error = ring.ring.submitter().register_iowq_max_workers(&mut [1, 1]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    }
}
