//! Where the bytes behind a frame's head lie.

use softdpu_device::net::Part;
use softdpu_memory::GuestBuffer;
use softdpu_vpc::{Head, Tail, TailError};

/// The bytes of a frame behind its head.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// In a guest's memory, from this offset of the chain on.
    Guest(&'a GuestBuffer, u64),
    /// In memory of this process.
    Bytes(&'a [u8]),
}

impl Tail for Source<'_> {
    fn read(&self, offset: usize, to: &mut [u8]) -> Result<(), TailError> {
        match self {
            Source::Guest(buffer, start) => {
                let error = TailError { offset, len: to.len() };
                buffer.read_at(start + offset as u64, to).map_err(|_| error)
            }
            Source::Bytes(bytes) => bytes.read(offset, to),
        }
    }
}

impl<'a> Source<'a> {
    /// Reads a head from its start. What is behind that, and whether there was as much.
    pub(crate) fn split(self, head: &mut Head) -> (Source<'a>, bool) {
        let len = head.len();
        let read = self.read(0, head.bytes_mut()).is_ok();
        let rest = match self {
            Source::Guest(buffer, start) => Source::Guest(buffer, start + len as u64),
            Source::Bytes(bytes) => Source::Bytes(bytes.get(len..).unwrap_or_default()),
        };
        (rest, read)
    }

    /// Its first `len` bytes, to be copied into a guest's buffers.
    #[inline]
    pub(crate) fn part(self, len: usize) -> Part<'a> {
        match self {
            Source::Guest(buffer, offset) => Part::Guest { buffer, offset, len },
            Source::Bytes(bytes) => Part::Bytes(&bytes[..len.min(bytes.len())]),
        }
    }
}
