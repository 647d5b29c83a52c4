//! What a device asks of a volume, and the answer.

use std::ops::Range;

use softdpu_memory::GuestBuffer;

use crate::{IoError, Volume};

/// What to do with a range of the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Volume to guest memory.
    Read,
    /// Guest memory to volume.
    Write,
    /// All writes that completed before this was submitted are on stable storage when it completes. The range is not looked
    /// at.
    Flush,
    /// The content of the range is no longer needed. What is read from it afterwards is either the old content or zeroes.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Whether the space may be given back.
        unmap: bool,
    },
}

impl Op {
    /// Whether it changes the volume.
    #[inline]
    pub fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::Discard | Op::WriteZeroes { .. })
    }
}

/// One request, owner of the guest memory it needs.
#[derive(Debug)]
pub struct Request {
    /// The caller's name for it, unique among what is outstanding in one `IoContext`.
    pub token: u64,
    /// What to do.
    pub op: Op,
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes on the volume; for reads and writes the bytes in `data`.
    pub len: u64,
    /// Pinned guest memory, given back with the [`Done`].
    pub buffer: GuestBuffer,
    /// Which pieces of `buffer` are the data of a read or a write, by index.
    pub data: Range<usize>,
    /// On stable storage before it completes (FUA, or a guest without a write cache).
    pub durable: bool,
}

impl Request {
    /// Whether there is nothing to do for it on that volume.
    pub(crate) fn is_idle(&self, volume: &Volume) -> bool {
        match self.op {
            Op::Flush => false,
            Op::Discard => self.len == 0 || volume.limits().discard.is_none(),
            Op::Read | Op::Write | Op::WriteZeroes { .. } => self.len == 0,
        }
    }

    /// Whether the data of a read or write is all there.
    pub(crate) fn has_data(&self) -> bool {
        let Range { start, end } = self.data;
        !matches!(self.op, Op::Read | Op::Write)
            || start <= end && end <= self.buffer.pieces() && self.buffer.len_of(start..end) >= self.len
    }

    #[inline]
    pub(crate) fn end(self, result: Result<(), IoError>) -> Done {
        Done { token: self.token, result, buffer: self.buffer }
    }
}

/// The end of a request.
#[derive(Debug)]
pub struct Done {
    /// The request's name.
    pub token: u64,
    /// How it ended.
    pub result: Result<(), IoError>,
    /// The request's buffer.
    pub buffer: GuestBuffer,
}
