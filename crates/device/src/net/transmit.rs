//! Frames from a driver: what is in a transmit chain.

use softdpu_memory::{AccessError, GuestBuffer};
use thiserror::Error;

use super::abi::header;
use super::{TxDrop, TxHeader};

/// Where the frame begins in the buffer of a transmit chain: behind the header. How the driver cut its descriptors does
/// not matter (virtio 1.3 §2.7.4).
pub const FRAME_OFFSET: u64 = header::SIZE as u64;

/// Takes frames from the driver of one transmit queue. Cheap to make and to copy; holds what was negotiated.
#[derive(Clone, Copy, Debug)]
pub struct Transmit {
    negotiated: u64,
}

/// A frame in a transmit chain. Its bytes lie in the chain's buffer from [`FRAME_OFFSET`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxFrame {
    /// Its virtio-net header, checked.
    pub header: TxHeader,
    /// Its bytes: [`ETHERNET`](super::abi::ETHERNET) to [`MAX_FRAME`](super::abi::MAX_FRAME).
    pub len: u32,
}

/// What is wrong with a transmit chain.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum TxError {
    /// The frame cannot be sent: count it, and complete the chain with used length 0.
    #[error(transparent)]
    Drop(#[from] TxDrop),
    /// The driver takes the queue for something else: break the queue.
    #[error("a transmit chain has {0} device-writable bytes (virtio 1.3 §5.1.6.2: all are device-readable)")]
    Writable(u64),
}

impl Transmit {
    pub(super) fn new(negotiated: u64) -> Self {
        Transmit { negotiated }
    }

    /// Reads the header of a popped chain: once, so what the driver changes afterwards changes nothing.
    ///
    /// `readable` is the chain's number of device-readable pieces.
    ///
    /// # Errors
    /// [`TxError`] says whether the frame is dropped or the queue breaks.
    #[inline]
    pub fn parse(&self, buffer: &GuestBuffer, readable: usize) -> Result<TxFrame, TxError> {
        if readable < buffer.pieces() {
            return Err(TxError::Writable(buffer.len_of(readable..buffer.pieces())));
        }
        let mut bytes = [0; header::SIZE];
        // A chain has less than 2^32 bytes (§2.7.5): the ring sees to that.
        let chain = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        buffer.read_at(0, &mut bytes).map_err(|_| TxDrop::Header(chain))?;
        let len = chain - header::SIZE as u32;
        Ok(TxFrame { header: TxHeader::parse(&bytes, len, self.negotiated)?, len })
    }

    /// As [`parse`](Self::parse), of a chain that lies in one piece, as those of small frames do; copies the header and
    /// the first bytes of the frame at once to the memory that `room` gives for so many of the frame, behind
    /// [`FRAME_OFFSET`] bytes for the header. None, and `room` was not asked, for any other chain.
    ///
    /// # Errors
    /// [`TxDrop`]: the frame is dropped.
    #[inline(always)]
    pub fn parse_whole<'a>(
        &self,
        buffer: &GuestBuffer,
        readable: usize,
        room: impl FnOnce(usize) -> Option<&'a mut [u8]>,
    ) -> Option<Result<TxFrame, TxDrop>> {
        let span = buffer.span().filter(|_| readable == 1)?;
        let len = span.len().checked_sub(header::SIZE).and_then(|len| u32::try_from(len).ok())?;
        let to = room(len as usize)?;
        span.read(0, to)?;
        let header = TxHeader::parse(to.first_chunk()?, len, self.negotiated);
        Some(header.map(|header| TxFrame { header, len }))
    }
}

impl TxFrame {
    /// Copies the first bytes of the frame to `to`, as many as there is room for; returns how many.
    ///
    /// # Errors
    /// [`AccessError`] where `buffer` is not the one this was parsed from.
    #[inline]
    pub fn copy_head(&self, buffer: &GuestBuffer, to: &mut [u8]) -> Result<usize, AccessError> {
        let len = to.len().min(self.len as usize);
        buffer.read_at(FRAME_OFFSET, &mut to[..len])?;
        Ok(len)
    }

    /// Copies `to.len()` bytes of the frame from `offset` (0: the first byte of the frame).
    ///
    /// # Errors
    /// [`AccessError`] where the frame ends before.
    #[inline]
    pub fn read(&self, buffer: &GuestBuffer, offset: u32, to: &mut [u8]) -> Result<(), AccessError> {
        buffer.read_at(FRAME_OFFSET + u64::from(offset), to)
    }
}
