//! Many frames from memory in pieces to one system call.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::{MAX_BATCH, Outgoing};
use crate::IoMemory;
use crate::iovec::Cursor;

/// Pieces of all frames of a call: enough for 64 frames of a few pieces, or for a dozen large ones in 4 KiB pieces.
const PIECES: usize = 256;
const NO_PIECE: libc::iovec = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };

/// The pieces of some frames. It points into what its filler borrowed, so it lives shorter than that.
pub(super) struct Scatter {
    pieces: [libc::iovec; PIECES],
    used: usize,
}

/// A frame's place in a [`Scatter`]: first piece and number of pieces.
type Span = (usize, usize);

/// Why a frame was not added.
pub(super) enum NotAdded {
    /// No room behind the frames that are there.
    Full,
    /// It has too many pieces, or its memory is shorter than it claims.
    Impossible,
}

impl Scatter {
    pub(super) fn new() -> Self {
        Scatter { pieces: [NO_PIECE; PIECES], used: 0 }
    }

    fn push(&mut self, base: *mut u8, len: usize) -> bool {
        if self.used == PIECES {
            return false;
        }
        self.pieces[self.used] = libc::iovec { iov_base: base.cast(), iov_len: len };
        self.used += 1;
        true
    }

    /// Adds a frame: `header`, its head, its body.
    pub(super) fn add<M: IoMemory>(&mut self, header: &[u8], frame: &Outgoing<'_, M>) -> Result<Span, NotAdded> {
        let start = self.used;
        let full = |scatter: &mut Self| {
            scatter.used = start;
            Err(if start == 0 { NotAdded::Impossible } else { NotAdded::Full })
        };
        for part in [header, frame.head] {
            if !part.is_empty() && !self.push(part.as_ptr().cast_mut(), part.len()) {
                return full(self);
            }
        }
        if let Some((memory, skip, len)) = frame.body {
            let mut cursor = Cursor::new(memory.iovecs(), skip);
            let mut left = len;
            while left > 0 {
                let Some(piece) = cursor.piece() else {
                    self.used = start;
                    return Err(NotAdded::Impossible);
                };
                let part = left.min(piece.len());
                if !self.push(piece.base(), part) {
                    return full(self);
                }
                cursor.advance(part);
                left -= part;
            }
        }
        Ok((start, self.used - start))
    }

    /// Adds a frame that is in one piece, its header in front.
    pub(super) fn add_whole(&mut self, frame: &[u8]) -> Option<Span> {
        let start = self.used;
        self.push(frame.as_ptr().cast_mut(), frame.len()).then_some((start, 1))
    }

    /// Writes one frame to a TAP.
    ///
    /// # Safety
    /// Everything added since the start is still borrowed or owned by the caller.
    pub(super) unsafe fn write(&self, fd: BorrowedFd<'_>, (start, count): Span) -> Result<usize, Errno> {
        let pieces = &self.pieces[start..start + count];
        // SAFETY: the pieces are readable (caller), writev only reads them.
        let written = unsafe { libc::writev(fd.as_raw_fd(), pieces.as_ptr(), count as libc::c_int) };
        usize::try_from(written).map_err(|_| last_error())
    }

    /// Sends up to [`MAX_BATCH`] frames in one call. How many of the first went.
    ///
    /// # Safety
    /// Everything added since the start is still borrowed or owned by the caller.
    pub(super) unsafe fn send(&mut self, fd: BorrowedFd<'_>, spans: &[Span]) -> Result<usize, Errno> {
        // SAFETY: mmsghdr is plain data for which zeroes mean "none".
        let mut messages: [libc::mmsghdr; MAX_BATCH] = unsafe { std::mem::zeroed() };
        let count = spans.len().min(MAX_BATCH);
        for (message, &(start, count)) in messages.iter_mut().zip(spans) {
            message.msg_hdr.msg_iov = self.pieces[start..start + count].as_mut_ptr();
            message.msg_hdr.msg_iovlen = count as _;
        }
        // SAFETY: `count` messages, their vectors in `self.pieces`, the pieces readable (caller); sendmmsg only reads
        // the pieces and writes the lengths in `messages`.
        let sent =
            unsafe { libc::sendmmsg(fd.as_raw_fd(), messages.as_mut_ptr(), count as libc::c_uint, libc::MSG_DONTWAIT) };
        usize::try_from(sent).map_err(|_| last_error())
    }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
