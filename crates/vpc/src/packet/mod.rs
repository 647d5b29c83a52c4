//! Frames: their heads, their offload, and where the rest of them lies.

pub mod checksum;
pub mod fragment;
mod head;
mod mac;
pub mod parse;
pub mod segment;
pub mod vxlan;

pub use head::{HEAD, HEADROOM, Head};
pub use mac::{Mac, MacError};
pub use parse::{Arp, Fragment, Ip, Layer4, Parsed, Payload, parse};
pub use softdpu_virtio::{Checksum, Segmentation, SegmentationKind};

use thiserror::Error;

use crate::id::PortId;

/// A frame on its way. Its first bytes are in `head`, where they are parsed and rewritten; the rest stays where it came
/// from, as a [`Tail`] that the mover of the frame knows of.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The frame's first bytes, a private copy.
    pub head: Head,
    /// Bytes of the frame behind the head.
    pub tail: u32,
    /// Whether the sender vouches for, or left open, the transport checksum.
    pub checksum: Checksum,
    /// The frame stands for several: it is to be cut up before it leaves on a wire.
    pub segmentation: Option<Segmentation>,
    /// Where it came in.
    pub port: PortId,
}

impl Packet {
    /// Bytes of the frame as it is now.
    #[inline]
    pub fn len(&self) -> usize {
        self.head.len() + self.tail as usize
    }

    /// Frames that it stands for.
    #[inline]
    pub fn frames(&self) -> usize {
        self.segmentation.map_or(1, |by| self.len().div_ceil(usize::from(by.size).max(1)))
    }

    /// Keeps the first `len` bytes, where there are more.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        if len < self.len() {
            self.tail = len.saturating_sub(self.head.len()) as u32;
            self.head.truncate(len);
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The bytes of a frame behind its head, wherever they lie. A guest may change its bytes at any time: two reads of the
/// same place may differ, so what is parsed or summed is read once.
pub trait Tail {
    /// Copies `to.len()` bytes from `offset` (0: the first byte behind the head as it was when the frame came in).
    ///
    /// # Errors
    /// [`TailError`] where the tail ends before.
    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), TailError>;
}

/// A read beyond the end of a frame.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("the frame has no {len} bytes at offset {offset} behind its head")]
pub struct TailError {
    /// Where the read began.
    pub offset: usize,
    /// How many bytes were wanted.
    pub len: usize,
}

impl Tail for [u8] {
    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), TailError> {
        let error = TailError { offset, len: to.len() };
        let end = offset.checked_add(to.len()).ok_or(error)?;
        to.copy_from_slice(self.get(offset..end).ok_or(error)?);
        Ok(())
    }
}
