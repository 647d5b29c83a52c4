//! A range of guest memory in one piece.

use std::marker::PhantomData;

use softdpu_sys::IoMemory;

use crate::GuestBuffer;

/// The bytes of a [`GuestBuffer`] that lie in one piece: what a small frame or request is nearly always in. Copies in
/// and out cost a comparison and, for lengths up to a header's, no call.
///
/// The guest may change the bytes at any time, as with the buffer itself.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    base: *mut u8,
    len: usize,
    pinned: PhantomData<&'a GuestBuffer>,
}

impl GuestBuffer {
    /// All its bytes, where they are in one piece.
    #[inline]
    pub fn span(&self) -> Option<Span<'_>> {
        match self.iovecs() {
            [piece] => Some(Span { base: piece.base(), len: piece.len(), pinned: PhantomData }),
            _ => None,
        }
    }
}

impl Span<'_> {
    /// Number of bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where `len` bytes from `offset` lie. None where they are not all inside.
    #[inline(always)]
    fn part(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let fits = offset <= self.len && len <= self.len - offset;
        fits.then(|| self.base.wrapping_add(offset))
    }

    /// Copies `to.len()` bytes from `offset` out. None, and nothing is copied, where they are not all inside.
    #[inline]
    pub fn read(&self, offset: usize, to: &mut [u8]) -> Option<()> {
        let from = self.part(offset, to.len())?;
        // SAFETY: `part` found `to.len()` bytes inside the piece, which the borrowed buffer keeps mapped; `to` is an
        // exclusive borrow of as many other bytes. Guest memory is only ever accessed through raw copies and atomics.
        unsafe { copy(from, to.as_mut_ptr(), to.len()) };
        Some(())
    }

    /// Copies `from` in at `offset`. None, and nothing is copied, where it does not fit. Dirty tracking is the
    /// caller's.
    #[inline]
    pub fn write(&self, offset: usize, from: &[u8]) -> Option<()> {
        let to = self.part(offset, from.len())?;
        // SAFETY: as in `read`, in the other direction.
        unsafe { copy(from.as_ptr(), to, from.len()) };
        Some(())
    }

    /// Copies `len` bytes at `from_offset` of `from` to `offset` here; they may overlap. None, and nothing is copied,
    /// where one of the two ends before.
    #[inline]
    pub fn copy_from(&self, offset: usize, from: &Span<'_>, from_offset: usize, len: usize) -> Option<()> {
        let (to, from) = (self.part(offset, len)?, from.part(from_offset, len)?);
        // SAFETY: `part` found `len` bytes inside both pieces, which the borrowed buffers keep mapped; `copy` allows
        // that they overlap. Guest memory is only ever accessed through raw copies and atomics.
        unsafe { copy(from, to, len) };
        Some(())
    }
}

/// Copies `len` bytes that may overlap. A short range is copied as its first and its last bytes, which overlap in the
/// middle: each is read before any is written.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `len` bytes, as raw memory that others may write meanwhile.
#[inline(always)]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    /// # Safety
    /// As for `copy`, for `N <= len <= 2 * N`.
    #[inline(always)]
    unsafe fn ends<const N: usize>(from: *const u8, to: *mut u8, len: usize) {
        let last = len - N;
        // SAFETY: `N` bytes from the start, and `N` up to the end, are inside `len` bytes, as `N <= len`.
        unsafe {
            let (first_bytes, last_bytes) =
                (from.cast::<[u8; N]>().read_unaligned(), from.add(last).cast::<[u8; N]>().read_unaligned());
            to.cast::<[u8; N]>().write_unaligned(first_bytes);
            to.add(last).cast::<[u8; N]>().write_unaligned(last_bytes);
        }
    }
    // SAFETY: as the caller promises; each arm's lengths are those that `ends` wants.
    unsafe {
        match len {
            0 => {}
            8..=16 => ends::<8>(from, to, len),
            17..=32 => ends::<16>(from, to, len),
            33..=64 => ends::<32>(from, to, len),
            65..=128 => ends::<64>(from, to, len),
            _ => std::ptr::copy(from, to, len),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{GuestAddress, Mapping, Region, UserAddress, View};

    fn view() -> Arc<View> {
        View::new(vec![Region::new(GuestAddress(0), UserAddress(0), 0x4000, Mapping::heap(0x4000), 0)]).unwrap()
    }

    #[test]
    fn copies_of_every_length_are_copies_of_those_bytes_and_no_others() {
        let view = view();
        let (a, b) = (view.buffer(GuestAddress(0x100), 300).unwrap(), view.buffer(GuestAddress(0x1003), 300).unwrap());
        let (a, b) = (a.span().unwrap(), b.span().unwrap());
        let data: Vec<u8> = (0..300).map(|at| at as u8 ^ 0x5a).collect();
        for len in 0..=280 {
            for span in [&a, &b] {
                span.write(0, &[0xee; 300]).unwrap();
            }
            a.write(7, &data[..len]).unwrap();
            b.copy_from(9, &a, 7, len).unwrap();
            let mut seen = vec![0; 300];
            b.read(0, &mut seen).unwrap();
            assert_eq!(seen[9..9 + len], data[..len], "{len} bytes");
            assert!(seen[..9].iter().chain(&seen[9 + len..]).all(|byte| *byte == 0xee), "{len} bytes");
            let mut some = vec![0; len];
            a.read(7, &mut some).unwrap();
            assert_eq!(some, data[..len]);
        }
    }

    #[test]
    fn a_copy_may_overlap() {
        let view = view();
        let buffer = view.buffer(GuestAddress(0x100), 400).unwrap();
        let span = buffer.span().unwrap();
        let data: Vec<u8> = (0..400).map(|at| at as u8).collect();
        for len in [3, 8, 15, 16, 31, 40, 64, 65, 128, 200] {
            for (from, to) in [(0, 1), (1, 0), (5, 40), (40, 5), (3, 3)] {
                span.write(0, &data).unwrap();
                span.copy_from(to, &span, from, len).unwrap();
                let mut seen = vec![0; len];
                span.read(to, &mut seen).unwrap();
                assert_eq!(seen, data[from..from + len], "{len} bytes from {from} to {to}");
            }
        }
    }

    #[test]
    fn nothing_is_copied_beyond_an_end() {
        let view = view();
        let buffer = view.buffer(GuestAddress(0x100), 32).unwrap();
        let span = buffer.span().unwrap();
        assert_eq!(span.len(), 32);
        for (offset, len) in [(0, 33), (1, 32), (32, 1), (33, 0), (usize::MAX, 1), (1, usize::MAX)] {
            assert!(span.part(offset, len).is_none(), "{len} bytes at {offset}");
            assert!(span.copy_from(0, &span, offset, len).is_none());
            assert!(span.copy_from(offset, &span, 0, len).is_none());
        }
        assert!(span.part(32, 0).is_some());
    }

    #[test]
    fn what_lies_in_several_pieces_has_none() {
        let view = view();
        let mut buffer = GuestBuffer::new(&view);
        assert!(buffer.span().is_none());
        buffer.append(GuestAddress(0), 8).unwrap();
        assert!(buffer.span().is_some());
        buffer.append(GuestAddress(0x100), 8).unwrap();
        assert!(buffer.span().is_none());
    }
}
