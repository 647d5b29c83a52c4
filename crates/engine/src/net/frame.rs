//! Where the bytes of a frame lie: its head in a [`Packet`], and what is behind that wherever it came from.

use softdpu_device::net::Part;
use softdpu_memory::GuestBuffer;
use softdpu_vpc::{Checksum, DropReason, Head, Packet, PortId, Tail, TailError};

/// The bytes of a frame behind its head.
#[derive(Clone, Copy)]
pub(crate) enum FrameTail<'a> {
    /// In a guest's memory, from this offset of the chain on.
    Guest(&'a GuestBuffer, u64),
    /// In memory of this process.
    Bytes(&'a [u8]),
}

impl Tail for FrameTail<'_> {
    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), TailError> {
        match self {
            FrameTail::Guest(buffer, start) => {
                let error = TailError { offset, len: to.len() };
                buffer.read_at(start + offset as u64, to).map_err(|_| error)
            }
            FrameTail::Bytes(bytes) => bytes.read(offset, to),
        }
    }
}

impl<'a> FrameTail<'a> {
    /// Reads a head from its start. What is behind that, and whether there was as much.
    pub(crate) fn split(self, head: &mut Head) -> (FrameTail<'a>, bool) {
        let len = head.len();
        let read = self.read(0, head.bytes_mut()).is_ok();
        let rest = match self {
            FrameTail::Guest(buffer, start) => FrameTail::Guest(buffer, start + len as u64),
            FrameTail::Bytes(bytes) => FrameTail::Bytes(bytes.get(len..).unwrap_or_default()),
        };
        (rest, read)
    }

    /// Its first `len` bytes, to be copied into a guest's buffers.
    #[inline]
    pub(crate) fn part(self, len: usize) -> Part<'a> {
        match self {
            FrameTail::Guest(buffer, offset) => Part::Guest { buffer, offset, len },
            FrameTail::Bytes(bytes) => Part::Bytes(&bytes[..len.min(bytes.len())]),
        }
    }
}

/// A finished frame in memory of this process: its packet, and the bytes behind the head.
pub(crate) fn finished_frame(frame: &[u8], port: PortId) -> (Packet, &[u8]) {
    let head = Head::of(frame);
    let rest = &frame[head.len()..];
    (Packet { head, tail: rest.len() as u32, checksum: Checksum::Complete, segmentation: None, port }, rest)
}

/// Writes the frame as a whole into `to`, which is as long.
///
/// # Errors
/// The frame is shorter than its sender said.
pub(crate) fn gather(packet: &Packet, tail: FrameTail<'_>, to: &mut [u8]) -> Result<(), DropReason> {
    let (head, rest) = to.split_at_mut(packet.head.len());
    head.copy_from_slice(packet.head.bytes());
    tail.read(0, rest).map_err(|_| DropReason::Truncated)
}
