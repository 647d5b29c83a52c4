//! Frames to a driver: filling receive buffers.
//!
//! ```text
//!   header (12) | frame                    one buffer
//!   header (12) | frame ──▶ frame ──▶ …    several, with MRG_RXBUF: each filled before the next is begun
//! ```

use softdpu_memory::{GuestBuffer, Span};
use thiserror::Error;

use super::abi::{feature, header};

/// Gives frames to the driver of one receive queue. Cheap to make and to copy; holds what was negotiated.
#[derive(Clone, Copy, Debug)]
pub struct Receive {
    negotiated: u64,
}

/// A receive chain that is of no use: break the queue.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RxError {
    /// Device-readable bytes.
    #[error("a receive chain has {0} device-readable bytes (virtio 1.3 §5.1.6.3: all are device-writable)")]
    Readable(u64),
    /// Not even the header fits.
    #[error(
        "a receive chain of {0} bytes has no room for the header of {size} bytes (virtio 1.3 §5.1.6.3.1)", size = header::SIZE)]
    Header(u32),
}

/// How a frame fits into the receive buffers at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// It takes the first so many.
    Buffers(u16),
    /// More buffers are needed than there are: drop the frame, or wait for the driver to add some.
    More,
    /// No number of buffers helps: drop the frame. Only without MRG_RXBUF, where it has to fit into one, and the
    /// driver's are too small; the buffer stays for the next frame.
    Never,
}

/// A part of a frame, wherever it lies.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Private bytes.
    Bytes(&'a [u8]),
    /// Bytes of a guest.
    Guest {
        /// The buffer they lie in.
        buffer: &'a GuestBuffer,
        /// Where they begin in it.
        offset: u64,
        /// How many.
        len: usize,
    },
}

impl Part<'_> {
    /// Bytes of it.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Part::Bytes(bytes) => bytes.len(),
            Part::Guest { len, .. } => *len,
        }
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies all of it to `at` in `to`. None, and nothing is copied, where it lies in several pieces or does not fit.
    #[inline(always)]
    fn copy_whole(&self, to: &Span<'_>, at: usize) -> Option<()> {
        match *self {
            Part::Bytes(bytes) => to.write(at, bytes),
            Part::Guest { len: 0, .. } => Some(()),
            Part::Guest { buffer, offset, len } => {
                to.copy_from(at, &buffer.span()?, usize::try_from(offset).ok()?, len)
            }
        }
    }

    /// Copies `len` of its bytes from `from` to `at` in `to`; false where one of the two ends before.
    #[inline]
    fn copy(&self, from: usize, to: &GuestBuffer, at: u64, len: usize) -> bool {
        match self {
            Part::Bytes(bytes) => bytes.get(from..from + len).is_some_and(|bytes| to.write_at(at, bytes).is_ok()),
            Part::Guest { buffer, offset, .. } => to.copy_from(at, buffer, offset + from as u64, len as u64).is_ok(),
        }
    }
}

/// The frame was not delivered: the buffers given are smaller than [`Receive::fit`] was told, or a part of the frame is
/// not where it was said to be.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the frame and the receive buffers do not fit each other: a bug in softdpu")]
pub struct Misfit;

impl Receive {
    pub(super) fn new(negotiated: u64) -> Self {
        Receive { negotiated }
    }

    /// Whether a frame may lie in several buffers.
    #[inline]
    pub fn is_mergeable(&self) -> bool {
        self.negotiated & feature::MRG_RXBUF != 0
    }

    /// What the driver accepted: for [`RxHeader::build`](super::RxHeader::build).
    #[inline]
    pub fn negotiated(&self) -> u64 {
        self.negotiated
    }

    /// Bytes a popped chain offers, room for the header included. `readable` is its number of device-readable pieces.
    ///
    /// # Errors
    /// Where nothing can ever be put into it.
    #[inline]
    pub fn offer(&self, buffer: &GuestBuffer, readable: usize) -> Result<u32, RxError> {
        if readable != 0 {
            return Err(RxError::Readable(buffer.len_of(0..readable.min(buffer.pieces()))));
        }
        // A chain has less than 2^32 bytes (§2.7.5): the ring sees to that.
        let len = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        if len < header::SIZE as u32 { Err(RxError::Header(len)) } else { Ok(len) }
    }

    /// How a frame of `len` bytes fits into buffers that [offer](Self::offer) so many bytes each, in their order.
    #[inline]
    pub fn fit(&self, len: usize, offers: impl IntoIterator<Item = u32>) -> Fit {
        let mut left = len + header::SIZE;
        for (index, offer) in offers.into_iter().enumerate() {
            let Ok(buffers) = u16::try_from(index + 1) else { return Fit::Never };
            left = left.saturating_sub(offer as usize);
            if left == 0 {
                return Fit::Buffers(buffers);
            }
            if !self.is_mergeable() {
                return Fit::Never;
            }
        }
        Fit::More
    }

    /// The header of a finished frame in one buffer.
    pub const FINISHED: [u8; header::SIZE] = {
        let mut header = [0; header::SIZE];
        header[header::NUM_BUFFERS] = 1;
        header
    };

    /// Writes `head`, a header and the first bytes of a frame behind it, and the frame's other bytes to one buffer,
    /// where that and each of the two lie in one piece: what nearly all frames do. Returns the bytes written; None
    /// where it is not so, and [`deliver`](Self::deliver) is to do it.
    #[inline(always)]
    pub fn deliver_whole(&self, head: &[u8], tail: Part<'_>, buffer: &GuestBuffer) -> Option<u32> {
        let span = buffer.span()?;
        tail.copy_whole(&span, head.len())?;
        span.write(0, head)?;
        u32::try_from(head.len() + tail.len()).ok()
    }

    /// Writes a header and a frame, given in `parts`, to the first `count` of `buffers`, as [`fit`](Self::fit) found;
    /// calls `used` with the bytes written to each of them, in order.
    ///
    /// Dirty tracking is the caller's: the first so many bytes of each buffer.
    ///
    /// # Errors
    /// [`Misfit`]: nothing may then be completed. Bytes may have been written.
    #[inline]
    pub fn deliver<'a>(
        &self,
        mut header: [u8; header::SIZE],
        parts: &[Part<'_>],
        buffers: impl IntoIterator<Item = &'a GuestBuffer>,
        count: u16,
        mut used: impl FnMut(u32),
    ) -> Result<(), Misfit> {
        header[header::NUM_BUFFERS..].copy_from_slice(&count.to_le_bytes());
        let mut left: usize = parts.iter().map(Part::len).sum();
        let mut parts = parts.iter();
        let mut part = Part::Bytes(&[]);
        let mut from = 0;
        for (index, buffer) in buffers.into_iter().take(count.into()).enumerate() {
            let room = usize::try_from(buffer.len()).unwrap_or(usize::MAX);
            let mut at = 0;
            if index == 0 {
                buffer.write_at(0, &header).map_err(|_| Misfit)?;
                at = header::SIZE;
            }
            while left > 0 && at < room {
                if from == part.len() {
                    part = *parts.next().ok_or(Misfit)?;
                    from = 0;
                    continue;
                }
                let len = (part.len() - from).min(room - at);
                if !part.copy(from, buffer, at as u64, len) {
                    return Err(Misfit);
                }
                from += len;
                at += len;
                left -= len;
            }
            used(at as u32);
        }
        if left == 0 { Ok(()) } else { Err(Misfit) }
    }
}
