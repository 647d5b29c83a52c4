//! Where the bytes behind a frame's head lie.

use softdpu_device::net::Part;
use softdpu_memory::GuestBuffer;
use softdpu_vpc::{Tail, TailError};

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
    /// Its first `len` bytes, to be copied into a guest's buffers.
    #[inline]
    pub(crate) fn part(self, len: usize) -> Part<'a> {
        match self {
            Source::Guest(buffer, offset) => Part::Guest { buffer, offset, len },
            Source::Bytes(bytes) => Part::Bytes(&bytes[..len.min(bytes.len())]),
        }
    }
}
