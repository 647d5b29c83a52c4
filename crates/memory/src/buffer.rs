//! The bytes of one request, wherever they lie in guest memory.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;
use softdpu_sys::{IoMemory, IoVec};

use crate::{AccessError, GuestAddress, View};

/// A scatter list over guest memory, pinned: while it lives, what it points to stays mapped.
///
/// Offsets count bytes from the start of the list, across pieces. The guest may change the bytes at any time; what is
/// parsed, hashed or encrypted is copied out first.
#[derive(Clone)]
pub struct GuestBuffer {
    view: Arc<View>,
    pieces: SmallVec<[IoVec; GuestBuffer::INLINE]>,
}

impl GuestBuffer {
    /// Pieces held without an allocation: a block request of one page has three, of two pages four.
    pub const INLINE: usize = 4;

    /// An empty list over `view`.
    #[inline]
    pub fn new(view: &Arc<View>) -> Self {
        GuestBuffer { view: Arc::clone(view), pieces: SmallVec::new() }
    }

    /// Takes all pieces out. It stays pinned to its view, and keeps the room it had for pieces.
    #[inline(always)]
    pub fn clear(&mut self) {
        // SAFETY: no piece is left, and pieces have nothing to drop.
        unsafe { self.pieces.set_len(0) };
    }

    /// Makes it `len` bytes at `address`, where those are in one piece, and returns where that begins, for the
    /// prefetcher. None where they are not, and it may then have any pieces.
    #[inline(always)]
    pub fn set(&mut self, address: GuestAddress, len: u64) -> Option<*const u8> {
        let base = self.view.contiguous(address, len).filter(|_| len != 0)?;
        // SAFETY: room for one piece is always there, in the list itself, and it is written before anything reads it.
        // Pieces have nothing to drop.
        unsafe {
            self.pieces.as_mut_ptr().write(IoVec::new(base.cast_mut(), len as usize));
            self.pieces.set_len(1);
        }
        Some(base)
    }

    /// Adds `len` bytes at `address` to the end.
    ///
    /// # Errors
    /// [`AccessError`] where any byte is outside the view; the list is then as it was.
    #[inline(always)]
    pub fn append(&mut self, address: GuestAddress, len: u64) -> Result<(), AccessError> {
        self.append_at_most(address, len, usize::MAX).map(|_| ())
    }

    /// As [`append`](Self::append), as long as the list then has at most `most` pieces. Otherwise false, and the list
    /// is as it was: a front end chooses its regions, and how many pieces a few bytes are in.
    ///
    /// # Errors
    /// [`AccessError`] where a byte that was looked at is outside the view; the list is then as it was.
    #[inline(always)]
    pub fn append_at_most(&mut self, address: GuestAddress, len: u64, most: usize) -> Result<bool, AccessError> {
        // Nearly all are in one region.
        if len != 0
            && self.pieces.len() < most
            && let Some(base) = self.view.contiguous(address, len)
        {
            self.pieces.push(IoVec::new(base.cast_mut(), len as usize));
            return Ok(true);
        }
        self.append_scattered(address, len, most)
    }

    #[cold]
    fn append_scattered(&mut self, address: GuestAddress, len: u64, most: usize) -> Result<bool, AccessError> {
        let before = self.pieces.len();
        let fits = self.view.translate(address, len, most, &mut self.pieces);
        if !matches!(fits, Ok(true)) {
            self.pieces.truncate(before);
        }
        fits
    }

    /// Number of pieces.
    #[inline]
    pub fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Bytes in all pieces.
    #[inline]
    pub fn len(&self) -> u64 {
        match &self.pieces[..] {
            [piece] => piece.len() as u64,
            pieces => pieces.iter().map(|piece| piece.len() as u64).sum(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.pieces.iter().all(IoVec::is_empty)
    }

    /// Bytes in the pieces of `range` (piece indexes).
    ///
    /// # Panics
    /// When the range is not within the pieces; ranges come from [`split`](Self::split), not from guests.
    #[inline]
    pub fn len_of(&self, range: Range<usize>) -> u64 {
        self.pieces[range].iter().map(|piece| piece.len() as u64).sum()
    }

    /// Makes `offset` a boundary between two pieces and returns the index of the piece that starts there (the number of
    /// pieces where `offset` is the end).
    ///
    /// # Errors
    /// [`AccessError`] where the list is shorter than `offset`.
    #[inline]
    pub fn split(&mut self, offset: u64) -> Result<usize, AccessError> {
        let mut left = offset;
        for index in 0..self.pieces.len() {
            if left == 0 {
                return Ok(index);
            }
            let piece = self.pieces[index];
            let len = piece.len() as u64;
            if left < len {
                let cut = left as usize;
                self.pieces[index] = IoVec::new(piece.base(), cut);
                // wrapping: the sum is inside the piece, as cut < len.
                self.pieces.insert(index + 1, IoVec::new(piece.base().wrapping_add(cut), piece.len() - cut));
                return Ok(index + 1);
            }
            left -= len;
        }
        if left == 0 { Ok(self.pieces.len()) } else { Err(AccessError { address: offset, len: 0 }) }
    }

    /// Copies `to.len()` bytes from `offset` out of guest memory.
    ///
    /// # Errors
    /// [`AccessError`] where the list is too short; `to` may then be partly written.
    #[inline]
    pub fn read_at(&self, offset: u64, to: &mut [u8]) -> Result<(), AccessError> {
        let mut done = 0;
        self.each(offset, to.len(), |base, len| {
            // SAFETY: `each` yields ranges inside pinned pieces, of at most `to.len()` bytes in all, so the target
            // is inside `to`; guest memory and `to` cannot overlap, as `to` is an exclusive borrow of other memory.
            // Guest memory is only ever accessed through raw copies and atomics.
            unsafe { std::ptr::copy_nonoverlapping(base.cast_const(), to.as_mut_ptr().add(done), len) };
            done += len;
        })
    }

    /// Copies `from` into guest memory at `offset`. Dirty tracking is the caller's
    /// ([`mark_dirty_in`](Self::mark_dirty_in)), as it is done once per request.
    ///
    /// # Errors
    /// [`AccessError`] where the list is too short; guest memory may then be partly written.
    #[inline]
    pub fn write_at(&self, offset: u64, from: &[u8]) -> Result<(), AccessError> {
        let mut done = 0;
        self.each(offset, from.len(), |base, len| {
            // SAFETY: as in `read_at`, in the other direction.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr().add(done), base, len) };
            done += len;
        })
    }

    /// Copies `len` bytes at `from_offset` of `from` to `offset` here: one copy, from guest to guest, or within one
    /// guest.
    ///
    /// What overlaps is copied as if through a buffer in between, piece by piece; a guest that wants the bytes of a
    /// frame in several places at once gets some of them.
    ///
    /// # Errors
    /// [`AccessError`] where one of the two is too short; guest memory may then be partly written.
    #[inline]
    pub fn copy_from(&self, offset: u64, from: &GuestBuffer, from_offset: u64, len: u64) -> Result<(), AccessError> {
        let refused = AccessError { address: offset, len };
        let len = usize::try_from(len).map_err(|_| refused)?;
        let mut at = from_offset;
        let mut found = Ok(());
        self.each(offset, len, |to, room| {
            if found.is_err() {
                return;
            }
            let mut done = 0;
            found = from.each(at, room, |base, part| {
                // SAFETY: `each` yields ranges inside pieces that are pinned, the source's by `from`, the target's by
                // `self`; the parts of one target range sum to at most `room`, so `to + done` and the `part` bytes from
                // there are inside it. The two may overlap, which `copy` allows; guest memory is only ever accessed
                // through raw copies and atomics, never through references.
                unsafe { std::ptr::copy(base.cast_const(), to.add(done), part) };
                done += part;
            });
            // Cannot overflow: the source has these bytes, or that was an error.
            at = at.saturating_add(room as u64);
        })?;
        found
    }

    /// Writes `len` bytes of `value` at `offset`.
    ///
    /// # Errors
    /// [`AccessError`] where the list is too short.
    pub fn fill(&self, offset: u64, len: u64, value: u8) -> Result<(), AccessError> {
        let len = usize::try_from(len).map_err(|_| AccessError { address: offset, len })?;
        self.each(offset, len, |base, len| {
            // SAFETY: `each` yields ranges inside pinned, writable pieces.
            unsafe { std::ptr::write_bytes(base, value, len) };
        })
    }

    /// Calls `f` with each contiguous range of `len` bytes from `offset`.
    #[inline]
    fn each(&self, offset: u64, len: usize, mut f: impl FnMut(*mut u8, usize)) -> Result<(), AccessError> {
        let mut skip = offset;
        let mut left = len;
        for piece in &self.pieces {
            if left == 0 {
                break;
            }
            let here = piece.len() as u64;
            if skip >= here {
                skip -= here;
                continue;
            }
            let part = left.min((here - skip) as usize);
            f(piece.base().wrapping_add(skip as usize), part);
            left -= part;
            skip = 0;
        }
        if left == 0 { Ok(()) } else { Err(AccessError { address: offset, len: len as u64 }) }
    }

    /// Reports `len` written bytes from `offset` to the bitmaps of `current`, which may be a newer view of the same
    /// guest than the one this buffer is pinned to.
    pub fn mark_dirty_in(&self, current: &View, offset: u64, len: u64) {
        let Ok(len) = usize::try_from(len) else { return };
        let _ = self.each(offset, len, |base, len| {
            if let Some(address) = self.view.guest_address(base) {
                current.mark_dirty(address, len as u64);
            }
        });
    }

    /// The view it is pinned to.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }
}

// SAFETY: the pieces lie inside mappings that the view, and so this value, keeps alive; they are addresses, so moving
// the value changes nothing; guest memory is never behind a Rust reference.
unsafe impl IoMemory for GuestBuffer {
    #[inline]
    fn iovecs(&self) -> &[IoVec] {
        &self.pieces
    }
}

impl std::fmt::Debug for GuestBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.pieces).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mapping, Region, UserAddress};

    fn view() -> Arc<View> {
        View::new(vec![Region::new(GuestAddress(0), UserAddress(0), 0x4000, Mapping::heap(0x4000), 0)]).unwrap()
    }

    fn scattered() -> GuestBuffer {
        let mut buffer = GuestBuffer::new(&view());
        for (address, len) in [(0x3000, 3), (0x1000, 5), (0x2000, 8)] {
            buffer.append(GuestAddress(address), len).unwrap();
        }
        buffer
    }

    #[test]
    fn bytes_are_in_list_order_whatever_their_addresses() {
        let buffer = scattered();
        let data: Vec<u8> = (0..16).collect();
        buffer.write_at(0, &data).unwrap();
        for offset in 0..16 {
            let mut rest = vec![0; 16 - offset];
            buffer.read_at(offset as u64, &mut rest).unwrap();
            assert_eq!(rest, data[offset..]);
        }
    }

    #[test]
    fn an_access_beyond_the_end_is_refused() {
        let buffer = scattered();
        assert!(buffer.read_at(15, &mut [0; 2]).is_err());
        assert!(buffer.write_at(17, &[0; 1]).is_err());
        assert!(buffer.fill(u64::MAX, 1, 0).is_err());
        assert!(buffer.read_at(16, &mut []).is_ok());
    }

    #[test]
    fn a_copy_between_buffers_is_a_copy_of_bytes_however_both_are_cut() {
        let to = scattered();
        let mut from = GuestBuffer::new(&view());
        for (address, len) in [(0x3100, 1), (0x1100, 7), (0x2100, 2), (0x100, 9)] {
            from.append(GuestAddress(address), len).unwrap();
        }
        let data: Vec<u8> = (1..20).collect();
        from.write_at(0, &data).unwrap();
        for (offset, from_offset) in [(0, 0), (0, 3), (2, 0), (4, 9), (15, 18), (16, 19)] {
            for len in 0..=(16 - offset).min(19 - from_offset) {
                to.fill(0, 16, 0xee).unwrap();
                to.copy_from(offset, &from, from_offset, len).unwrap();
                let mut seen = [0; 16];
                to.read_at(0, &mut seen).unwrap();
                let (at, from_at, len) = (offset as usize, from_offset as usize, len as usize);
                assert_eq!(seen[at..at + len], data[from_at..from_at + len]);
                assert!(seen[..at].iter().chain(&seen[at + len..]).all(|byte| *byte == 0xee), "and nothing else");
            }
        }
    }

    #[test]
    fn a_copy_that_either_side_is_too_short_for_is_refused() {
        let (to, from) = (scattered(), scattered());
        assert!(to.copy_from(1, &from, 0, 16).is_err());
        assert!(to.copy_from(0, &from, 1, 16).is_err());
        assert!(to.copy_from(0, &from, u64::MAX, 1).is_err());
        assert!(to.copy_from(u64::MAX, &from, 0, 1).is_err());
        assert!(to.copy_from(0, &from, 0, u64::MAX).is_err());
        assert!(to.copy_from(16, &from, 16, 0).is_ok());
    }

    #[test]
    fn a_copy_within_one_guest_may_overlap() {
        let view = view();
        let whole = view.buffer(GuestAddress(0x1000), 32).unwrap();
        for (from, to) in [(0, 5), (5, 0), (3, 3)] {
            let data: Vec<u8> = (0..32).collect();
            whole.write_at(0, &data).unwrap();
            view.buffer(GuestAddress(0x1000 + to), 20)
                .unwrap()
                .copy_from(0, &view.buffer(GuestAddress(0x1000 + from), 20).unwrap(), 0, 20)
                .unwrap();
            let mut seen = [0; 20];
            whole.read_at(to, &mut seen).unwrap();
            assert_eq!(seen[..], data[from as usize..from as usize + 20]);
        }
    }

    #[test]
    fn a_split_moves_no_byte_and_is_idempotent() {
        let mut buffer = scattered();
        let data: Vec<u8> = (100..116).collect();
        buffer.write_at(0, &data).unwrap();
        assert_eq!(buffer.split(0).unwrap(), 0);
        assert_eq!(buffer.split(3).unwrap(), 1);
        assert_eq!(buffer.pieces(), 3);
        assert_eq!(buffer.split(5).unwrap(), 2);
        assert_eq!(buffer.split(5).unwrap(), 2);
        assert_eq!(buffer.pieces(), 4);
        assert_eq!(buffer.split(16).unwrap(), 4);
        assert!(buffer.split(17).is_err());
        let mut all = [0; 16];
        buffer.read_at(0, &mut all).unwrap();
        assert_eq!(all[..], data);
        assert_eq!(buffer.len_of(0..2), 5);
    }

    #[test]
    fn a_refused_append_leaves_the_list_as_it_was() {
        let mut buffer = scattered();
        assert!(buffer.append(GuestAddress(0x3fff), 2).is_err());
        assert_eq!(buffer.len(), 16);
    }
}
