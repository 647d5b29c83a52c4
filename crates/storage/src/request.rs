//! What a device asks of a volume, and the answer.

use std::ops::Range;

use softdpu_memory::GuestBuffer;
use softdpu_virtio::BlockOp;

use crate::{IoError, Volume};

/// One request, owner of the guest memory it needs.
#[derive(Debug)]
pub struct Request {
    /// The caller's name for it, unique among what is outstanding in one `IoContext`.
    pub token: u64,
    /// What to do.
    pub op: BlockOp,
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
            BlockOp::Flush => false,
            BlockOp::Discard => self.len == 0 || volume.limits().discard.is_none(),
            BlockOp::Read | BlockOp::Write | BlockOp::WriteZeroes { .. } => self.len == 0,
        }
    }

    /// Whether the data of a read or write is all there.
    pub(crate) fn has_data(&self) -> bool {
        let Range { start, end } = self.data;
        !matches!(self.op, BlockOp::Read | BlockOp::Write)
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
