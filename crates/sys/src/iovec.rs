//! Buffers the kernel may read or write on our behalf.

/// One contiguous piece of memory, laid out as the kernel's `struct iovec`.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct IoVec(libc::iovec);

// SAFETY: an IoVec is an address and a length; the code that dereferences it answers for what is there.
unsafe impl Send for IoVec {}
// SAFETY: as above; it has no interior mutability.
unsafe impl Sync for IoVec {}

impl IoVec {
    /// `len` bytes at `base`.
    pub const fn new(base: *mut u8, len: usize) -> Self {
        IoVec(libc::iovec { iov_base: base.cast(), iov_len: len })
    }

    /// Where it starts.
    pub const fn base(&self) -> *mut u8 {
        self.0.iov_base.cast()
    }

    /// How many bytes it has.
    pub const fn len(&self) -> usize {
        self.0.iov_len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.0.iov_len == 0
    }
}

impl std::fmt::Debug for IoVec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:p}+{:#x}", self.base(), self.len())
    }
}

/// Memory that may be handed to the kernel for the duration of an operation.
///
/// # Safety
///
/// Every piece that [`iovecs`](IoMemory::iovecs) returns stays mapped, readable and writable for as long as the value
/// lives, also when the value is moved to another place or thread; no code of this process holds a Rust reference to
/// those bytes.
pub unsafe trait IoMemory: Send {
    /// The pieces, in the order of the data.
    fn iovecs(&self) -> &[IoVec];
}

/// Copies `len` bytes from `from_offset` of one memory to `to_offset` of another, offsets counted across pieces.
/// Whether both were long enough; if not, some bytes may have been copied.
#[inline]
pub fn copy(from: &impl IoMemory, from_offset: u64, to: &impl IoMemory, to_offset: u64, len: usize) -> bool {
    let (mut source, mut target) = (Cursor::new(from.iovecs(), from_offset), Cursor::new(to.iovecs(), to_offset));
    let mut left = len;
    while left > 0 {
        let (Some(a), Some(b)) = (source.piece(), target.piece()) else { return false };
        let part = left.min(a.len()).min(b.len());
        // SAFETY: both pieces are mapped while their owners live (IoMemory), which are borrowed here, and have at least
        // `part` bytes; `copy` allows overlap; no Rust reference to either exists (IoMemory).
        unsafe { std::ptr::copy(a.base().cast_const(), b.base(), part) };
        source.advance(part);
        target.advance(part);
        left -= part;
    }
    true
}

/// Writes `len` bytes of `value` from `offset` on. Whether the memory was long enough; if not, some may be written.
pub fn fill(to: &impl IoMemory, offset: u64, len: usize, value: u8) -> bool {
    let mut target = Cursor::new(to.iovecs(), offset);
    let mut left = len;
    while left > 0 {
        let Some(piece) = target.piece() else { return false };
        let part = left.min(piece.len());
        // SAFETY: as in `copy`.
        unsafe { std::ptr::write_bytes(piece.base(), value, part) };
        target.advance(part);
        left -= part;
    }
    true
}

/// A place in a list of pieces.
pub(crate) struct Cursor<'a> {
    pieces: &'a [IoVec],
    /// Bytes of the first piece that are behind us; less than its length.
    skip: usize,
}

impl<'a> Cursor<'a> {
    /// The place `offset` bytes in, or the end where there are fewer.
    #[inline]
    pub(crate) fn new(pieces: &'a [IoVec], offset: u64) -> Self {
        let mut left = offset;
        for (index, piece) in pieces.iter().enumerate() {
            if left < piece.len() as u64 {
                return Cursor { pieces: &pieces[index..], skip: left as usize };
            }
            left -= piece.len() as u64;
        }
        Cursor { pieces: &[], skip: 0 }
    }

    /// What is left of the piece here; none at the end.
    #[inline]
    pub(crate) fn piece(&self) -> Option<IoVec> {
        let first = self.pieces.first()?;
        Some(IoVec::new(first.base().wrapping_add(self.skip), first.len() - self.skip))
    }

    /// Moves on by at most the rest of this piece, and past empty ones.
    #[inline]
    pub(crate) fn advance(&mut self, by: usize) {
        self.skip += by;
        while let Some(first) = self.pieces.first() {
            if self.skip < first.len() {
                break;
            }
            self.skip -= first.len();
            self.pieces = &self.pieces[1..];
        }
    }
}
