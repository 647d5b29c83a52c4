//! Memory of our own that the kernel may use, and a choice between two kinds of such memory.

use std::alloc::{Layout, handle_alloc_error};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::{IoMemory, IoVec};

/// Pages of this process, aligned for direct I/O, that no core dump has: they hold guests' data. Its bytes are reached
/// by copies only ([`iovec::copy`](crate::iovec::copy), [`read_at`](Self::read_at), [`write_at`](Self::write_at)), so
/// that the kernel may have it at the same time.
pub struct AlignedBuffer {
    base: NonNull<u8>,
    layout: Layout,
    piece: IoVec,
}

// SAFETY: it owns its memory and hands out no reference to it.
unsafe impl Send for AlignedBuffer {}

impl AlignedBuffer {
    /// Covers the memory and DMA alignment of common disks.
    pub const ALIGN: usize = 4096;

    /// `capacity` zeroed bytes, rounded up to whole [`ALIGN`](Self::ALIGN)s; all of them are its
    /// [pieces](IoMemory::iovecs) at first.
    ///
    /// # Panics
    /// When `capacity` is more than half the address space.
    pub fn new(capacity: usize) -> Self {
        let layout = Layout::from_size_align(capacity.max(1), Self::ALIGN).expect("a sensible length").pad_to_align();
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), layout.size(), protection, flags) };
        let Some(base) = base.ok().and_then(|base| NonNull::new(base.cast::<u8>())) else { handle_alloc_error(layout) };
        // SAFETY: the mapping that was made; the advice changes what core dumps have, not its contents.
        let _ = unsafe { madvise(base.as_ptr().cast(), layout.size(), Advice::LinuxDontDump) };
        AlignedBuffer { base, layout, piece: IoVec::new(base.as_ptr(), layout.size()) }
    }

    /// Bytes allocated.
    pub fn capacity(&self) -> usize {
        self.layout.size()
    }

    /// Makes its first `len` bytes (at most the capacity) the piece others see.
    pub fn set_len(&mut self, len: usize) {
        self.piece = IoVec::new(self.base.as_ptr(), len.min(self.layout.size()));
    }

    /// Copies bytes out; whether all of them are inside the capacity.
    pub fn read_at(&self, offset: usize, to: &mut [u8]) -> bool {
        if !self.inside(offset, to.len()) {
            return false;
        }
        // SAFETY: inside the allocation; `to` is borrowed exclusively, so it is other memory.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), to.as_mut_ptr(), to.len()) };
        true
    }

    /// Copies bytes in; whether all of them are inside the capacity.
    pub fn write_at(&mut self, offset: usize, from: &[u8]) -> bool {
        if !self.inside(offset, from.len()) {
            return false;
        }
        // SAFETY: as in `read_at`.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), self.base.as_ptr().add(offset), from.len()) };
        true
    }

    fn inside(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.layout.size())
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        // SAFETY: mapped with this size in `new`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.layout.size()) };
    }
}

// SAFETY: memory that does not move with the value and is freed only with it; no reference to it is ever made.
unsafe impl IoMemory for AlignedBuffer {
    fn iovecs(&self) -> &[IoVec] {
        std::slice::from_ref(&self.piece)
    }
}

impl std::fmt::Debug for AlignedBuffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "AlignedBuffer({:?})", self.piece)
    }
}

/// One of two kinds of memory.
#[derive(Debug)]
pub enum OneOf<A, B> {
    /// The first kind.
    A(A),
    /// The second kind.
    B(B),
}

// SAFETY: either part keeps the promise.
unsafe impl<A: IoMemory, B: IoMemory> IoMemory for OneOf<A, B> {
    #[inline]
    fn iovecs(&self) -> &[IoVec] {
        match self {
            OneOf::A(memory) => memory.iovecs(),
            OneOf::B(memory) => memory.iovecs(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iovec;

    #[test]
    fn it_is_aligned_zeroed_and_bounded() {
        let mut buffer = AlignedBuffer::new(5000);
        assert_eq!(buffer.capacity(), 8192);
        assert_eq!(buffer.iovecs()[0].base() as usize % AlignedBuffer::ALIGN, 0);
        let mut bytes = [1; 4];
        assert!(buffer.read_at(8188, &mut bytes));
        assert_eq!(bytes, [0; 4]);
        assert!(!buffer.read_at(8189, &mut bytes));
        assert!(!buffer.write_at(usize::MAX, &[1]));
        buffer.set_len(3);
        assert_eq!(buffer.iovecs()[0].len(), 3);
    }

    #[test]
    fn copies_cross_pieces_and_stop_at_the_end() {
        let (mut a, b) = (AlignedBuffer::new(16), AlignedBuffer::new(16));
        a.write_at(0, b"0123456789");
        assert!(iovec::copy(&a, 2, &b, 4090, 6));
        let mut bytes = [0; 6];
        b.read_at(4090, &mut bytes);
        assert_eq!(&bytes, b"234567");
        assert!(!iovec::copy(&a, 0, &b, 4090, 7));
        assert!(iovec::fill(&b, 0, 4096, 9));
        assert!(!iovec::fill(&b, 1, 4096, 9));
    }
}
