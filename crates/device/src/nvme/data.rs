//! Data pointers: from PRP entries and SGL descriptors to guest memory.
//!
//! Each entry is read once. What a host can make long is bounded: a PRP list has as many entries as the transfer has
//! pages, an SGL at most [`DESCRIPTORS`] descriptors in [`SEGMENTS`] segments, loops included.

use std::sync::Arc;

use softdpu_memory::{GuestAddress, GuestBuffer, View};

use super::abi::PAGE;
use super::{Command, Status};

/// Descriptors that an SGL has at most.
pub const DESCRIPTORS: usize = 1024;
/// Segments that an SGL has at most.
pub const SEGMENTS: usize = 256;

/// Most pieces of guest memory in one transfer: what the kernel takes in one vectored call (UIO_MAXIOV).
const PIECES: usize = 1024;

/// SGL descriptor types, upper half of byte 15 (Base §4.1.2.1).
mod sgl {
    pub const DATA: u8 = 0;
    pub const SEGMENT: u8 = 2;
    pub const LAST_SEGMENT: u8 = 3;
    /// Bytes of a descriptor.
    pub const DESCRIPTOR: u64 = 16;
}

/// Guest memory that is put together piece by piece, with neighbours joined.
struct Pieces {
    buffer: GuestBuffer,
    run: (u64, u64),
}

impl Pieces {
    fn new(view: &Arc<View>) -> Pieces {
        Pieces { buffer: GuestBuffer::new(view), run: (0, 0) }
    }

    #[inline]
    fn add(&mut self, address: u64, len: u64) -> Result<(), Status> {
        let (start, before) = self.run;
        if before > 0 && start.checked_add(before) == Some(address) {
            self.run.1 += len;
            return Ok(());
        }
        self.flush()?;
        self.run = (address, len);
        Ok(())
    }

    #[inline]
    fn flush(&mut self) -> Result<(), Status> {
        let (start, len) = self.run;
        match self.buffer.append_at_most(GuestAddress(start), len, PIECES) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(Status::DATA_TRANSFER),
        }
    }

    #[inline]
    fn finish(mut self) -> Result<GuestBuffer, Status> {
        self.flush()?;
        Ok(self.buffer)
    }
}

impl Command {
    /// The `len` bytes of guest memory that the command's data pointer names.
    ///
    /// # Errors
    /// The status of a pointer that makes no sense, or of memory that the guest does not have
    /// ([`Status::DATA_TRANSFER`]).
    #[inline]
    pub fn data(&self, view: &Arc<View>, len: u64) -> Result<GuestBuffer, Status> {
        match self.psdt() {
            0 => prp(view, self.qword(6), self.qword(8), len),
            1 | 2 => sgl(view, [self.qword(6), self.qword(8)], len),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

/// `len` bytes from PRP entries 1 and 2 (Base §4.1.1).
///
/// # Errors
/// [`Status::PRP_OFFSET`], [`Status::DATA_TRANSFER`].
#[inline]
pub fn prp(view: &Arc<View>, prp1: u64, prp2: u64, len: u64) -> Result<GuestBuffer, Status> {
    if prp1 & 3 != 0 {
        return Err(Status::PRP_OFFSET);
    }
    let mut pieces = Pieces::new(view);
    let first = (PAGE - prp1 % PAGE).min(len);
    pieces.add(prp1, first)?;
    let left = len - first;
    if left == 0 {
        return pieces.finish();
    }
    if left <= PAGE {
        // A second page, which begins at its start.
        if !prp2.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET);
        }
        pieces.add(prp2, left)?;
        return pieces.finish();
    }
    prp_list(view, pieces, prp2, left)
}

fn prp_list(view: &Arc<View>, mut pieces: Pieces, list: u64, len: u64) -> Result<GuestBuffer, Status> {
    // The pointer to the first list may point into a page, pointers in lists may not.
    if list & 7 != 0 {
        return Err(Status::PRP_OFFSET);
    }
    let (mut at, mut left) = (list, len);
    while left > 0 {
        let entries = (PAGE - at % PAGE) / 8;
        let wanted = left.div_ceil(PAGE);
        // The last entry of a page is a pointer to the next list, where one is needed.
        let (count, goes_on) = if wanted > entries { (entries - 1, true) } else { (wanted, false) };
        let read = count + u64::from(goes_on);
        let mut bytes = [0; PAGE as usize];
        let bytes = &mut bytes[..(read * 8) as usize];
        copy_out(view, at, bytes)?;
        let mut words = bytes.chunks_exact(8).map(word);
        for entry in words.by_ref().take(count as usize) {
            if !entry.is_multiple_of(PAGE) {
                return Err(Status::PRP_OFFSET);
            }
            let part = left.min(PAGE);
            pieces.add(entry, part)?;
            left -= part;
        }
        if let Some(next) = words.next() {
            if !next.is_multiple_of(PAGE) {
                return Err(Status::PRP_OFFSET);
            }
            at = next;
        }
    }
    pieces.finish()
}

/// `len` bytes from an SGL, whose first descriptor has these two words (Base §4.1.2).
///
/// # Errors
/// The statuses of SGLs, [`Status::DATA_TRANSFER`].
pub fn sgl(view: &Arc<View>, first: [u64; 2], len: u64) -> Result<GuestBuffer, Status> {
    let mut pieces = Pieces::new(view);
    let (mut left, mut descriptors) = (len, 0);
    let (kind, address, length) = descriptor(first)?;
    let mut segment = match kind {
        sgl::DATA => {
            left = data_block(&mut pieces, address, length, left)?;
            None
        }
        // The first descriptor may be of any kind; a segment has others.
        _ => Some((kind, address, length)),
    };
    let mut segments = 0;
    while let Some((kind, address, length)) = segment.take() {
        segments += 1;
        if length == 0 || !length.is_multiple_of(sgl::DESCRIPTOR) {
            return Err(Status::SGL_SEGMENT);
        }
        let count = (length / sgl::DESCRIPTOR) as usize;
        descriptors += count;
        if segments > SEGMENTS || descriptors > DESCRIPTORS {
            return Err(Status::SGL_COUNT);
        }
        for index in 0..count {
            let mut bytes = [0; sgl::DESCRIPTOR as usize];
            let at = address.checked_add(index as u64 * sgl::DESCRIPTOR).ok_or(Status::DATA_TRANSFER)?;
            copy_out(view, at, &mut bytes)?;
            let (low, high) = bytes.split_at(8);
            let (found, address, length) = descriptor([word(low), word(high)])?;
            match found {
                sgl::DATA => left = data_block(&mut pieces, address, length, left)?,
                // Only the last descriptor of a segment that is not the last names another one.
                _ if kind == sgl::SEGMENT && index + 1 == count => segment = Some((found, address, length)),
                _ => return Err(Status::SGL_SEGMENT),
            }
        }
        if kind == sgl::SEGMENT && segment.is_none() {
            return Err(Status::SGL_SEGMENT);
        }
    }
    if left > 0 { Err(Status::SGL_DATA_LENGTH) } else { pieces.finish() }
}

/// Type, address and length of a descriptor.
fn descriptor([address, rest]: [u64; 2]) -> Result<(u8, u64, u64), Status> {
    let id = (rest >> 56) as u8;
    // Sub type 0: the address is one (Base §4.1.2.1).
    match (id >> 4, id & 0xf) {
        (kind @ (sgl::DATA | sgl::SEGMENT | sgl::LAST_SEGMENT), 0) => Ok((kind, address, rest & 0xffff_ffff)),
        _ => Err(Status::SGL_TYPE),
    }
}

/// Adds a data block; returns what is left of the transfer.
fn data_block(pieces: &mut Pieces, address: u64, length: u64, left: u64) -> Result<u64, Status> {
    // SGLS bit 18 is 0: an SGL is not longer than its transfer.
    let left = left.checked_sub(length).ok_or(Status::SGL_DATA_LENGTH)?;
    if length > 0 {
        pieces.add(address, length)?;
    }
    Ok(left)
}

fn copy_out(view: &Arc<View>, address: u64, bytes: &mut [u8]) -> Result<(), Status> {
    let mut list = GuestBuffer::new(view);
    match list.append_at_most(GuestAddress(address), bytes.len() as u64, PIECES) {
        Ok(true) => list.read_at(0, bytes).map_err(|_| Status::DATA_TRANSFER),
        Ok(false) | Err(_) => Err(Status::DATA_TRANSFER),
    }
}

pub(super) fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    for (to, from) in word.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_le_bytes(word)
}
