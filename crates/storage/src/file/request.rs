//! A request at a file, step by step.
//!
//! ```text
//!  Request ─▶ Move (read, write) ───────────────────────────────▶ Done
//!             Range (discard, zero a range) ─┬─▶ Zeroes (written) ─┬─▶ Sync (durable, flush) ─▶ Done
//!                                            └────────────────────┘
//! ```
//!
//! Each step is one operation of the ring; what comes back short goes again for the rest.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use softdpu_memory::GuestBuffer;
use softdpu_sys::uring::Operation;
use softdpu_sys::{AlignedBuffer, IoMemory, OneOf, iovec};

use super::landings::Landing;
use super::open_file::OpenFile;
use super::{Direct, FileBacking};
use crate::{BlockOp, IoError};

/// The most bytes of one read or write: where they are in the page cache the kernel copies them within the system call
/// that submits, and a core has other tenants.
const MOST: usize = 1 << 20;
/// What the ring works on: the guest's buffer, or one of ours.
pub(super) type Memory = OneOf<GuestBuffer, AlignedBuffer>;

/// What the ring does for a request at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileStep {
    /// Reads or writes.
    Move,
    /// Discards or zeroes the range, as fallocate(2) does.
    Range { mode: FallocateFlags },
    /// Writes zeroes.
    Zeroes,
    /// Flushes.
    Sync,
}

/// A request at a file.
pub(super) struct FileRequest {
    pub(super) token: u64,
    pub(super) op: BlockOp,
    pub(super) file: Arc<OpenFile>,
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Bytes that are behind us.
    pub(super) done: u64,
    /// Where the data starts in the guest's buffer.
    pub(super) skip: u64,
    pub(super) durable: bool,
    pub(super) step: FileStep,
    /// The guest's buffer, where the ring works on one of ours.
    pub(super) guest: Option<GuestBuffer>,
    /// Since when the kernel has begun nothing of it.
    pub(super) refused_since: Option<Instant>,
    /// It was given up, and its end is not reported.
    pub(super) abandoned: bool,
    /// What it may still change then.
    pub(super) landing: Option<Landing>,
}

impl FileStep {
    /// How zeroes are written: by the file system where it can.
    pub(super) fn zeroing(backing: &FileBacking) -> FileStep {
        if backing.zero_range.load(Ordering::Relaxed) {
            FileStep::Range { mode: FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE }
        } else {
            FileStep::Zeroes
        }
    }
}

impl FileRequest {
    /// A step went well: whether there is another.
    pub(super) fn moved(&mut self, bytes: usize, memory: &Memory) -> Result<bool, IoError> {
        let bytes = bytes as u64;
        self.refused_since = None;
        match self.step {
            FileStep::Move => {
                let mut bytes = bytes;
                if self.op == BlockOp::Read
                    && let (OneOf::B(bounce), Some(guest)) = (memory, &self.guest)
                {
                    let lead = self.lead();
                    bytes = bytes.saturating_sub(lead).min(self.len - self.done);
                    iovec::copy(bounce, lead, guest, self.skip + self.done, bytes as usize);
                }
                if bytes == 0 {
                    // The end of a file that was truncated meanwhile; or a device that takes no more.
                    return Err(IoError::Device { errno: Errno::IO.raw_os_error() });
                }
                self.done += bytes;
                Ok(self.done < self.len)
            }
            FileStep::Zeroes => {
                if bytes == 0 {
                    return Err(IoError::Device { errno: Errno::IO.raw_os_error() });
                }
                self.done += bytes;
                Ok(self.done < self.len)
            }
            FileStep::Range { .. } => {
                self.step = FileStep::Sync;
                Ok(self.durable)
            }
            FileStep::Sync => Ok(false),
        }
    }

    /// A step failed: whether there is another way.
    pub(super) fn refused(&mut self, errno: Errno) -> Result<bool, IoError> {
        let Some(backing) = self.file.backing() else { return Err(IoError::Gone) };
        let FileStep::Range { mode } = self.step else { return Err(IoError::from_errno(errno.raw_os_error())) };
        let unsupported = matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV);
        // Block devices answer EINVAL for ranges that are not whole logical blocks.
        if !unsupported && errno != Errno::INVAL {
            return Err(IoError::from_errno(errno.raw_os_error()));
        }
        let punching = mode.contains(FallocateFlags::PUNCH_HOLE);
        if unsupported {
            FileBacking::switch_off(if punching { &backing.punch } else { &backing.zero_range });
        }
        if self.op == BlockOp::Discard {
            // A discard is a hint.
            return Ok(false);
        }
        self.step = if punching { FileStep::zeroing(backing) } else { FileStep::Zeroes };
        Ok(true)
    }

    /// The operation of the ring for the present step.
    pub(super) fn operation(&self, memory: &Memory) -> Operation {
        let FileRequest { offset, len, done, skip, durable, .. } = *self;
        let at = offset + done;
        let left = usize::try_from(len - done).unwrap_or(MOST).min(MOST);
        match (self.step, memory) {
            (FileStep::Move, OneOf::A(_)) if self.op == BlockOp::Read => {
                Operation::Read { at, skip: skip + done, len: left }
            }
            (FileStep::Move, OneOf::A(_)) => Operation::Write { at, skip: skip + done, len: left, durable },
            (FileStep::Move, OneOf::B(bounce)) if self.op == BlockOp::Read => {
                let align = self.file.backing().and_then(|backing| backing.direct).map_or(1, |d| d.offset as usize);
                let lead = self.lead();
                let want = (lead as usize).saturating_add(left).min(bounce.capacity());
                let whole = want.next_multiple_of(align).min(bounce.capacity());
                Operation::Read { at: at - lead, skip: 0, len: whole }
            }
            (FileStep::Move, OneOf::B(bounce)) => {
                let part = left.min(bounce.capacity());
                if let Some(guest) = &self.guest {
                    iovec::copy(guest, skip + done, bounce, 0, part);
                }
                Operation::Write { at, skip: 0, len: part, durable }
            }
            (FileStep::Zeroes, memory) => {
                let have = memory.iovecs().first().map_or(0, |piece| piece.len());
                Operation::Write { at, skip: 0, len: left.min(have), durable }
            }
            (FileStep::Range { mode }, _) => Operation::Allocate { mode: mode.bits(), at: offset, len },
            (FileStep::Sync, _) => Operation::Sync,
        }
    }

    /// Bytes before the request in its first bounced block.
    fn lead(&self) -> u64 {
        let align = self.file.backing().and_then(|backing| backing.direct).map_or(1, |direct| direct.offset);
        (self.offset + self.done) % align
    }

    /// Whether the kernel takes this request as it is around the page cache.
    pub(super) fn is_aligned(&self, direct: Direct, buffer: &GuestBuffer) -> bool {
        if !(self.offset | self.len).is_multiple_of(direct.offset) {
            return false;
        }
        // Where it goes in several operations, each but the first starts within a piece, at a multiple of MOST from the
        // data's start.
        let unit = if self.len > MOST as u64 { direct.offset.max(direct.memory as u64) } else { direct.offset };
        let (mut at, end) = (0, self.skip + self.len);
        buffer.iovecs().iter().all(|piece| {
            let start = at;
            at += piece.len() as u64;
            // Pieces before and after the data do not matter; those of the data are whole, as requests are split there.
            at <= self.skip
                || start >= end
                || (piece.base() as usize).is_multiple_of(direct.memory) && (piece.len() as u64).is_multiple_of(unit)
        })
    }
}
