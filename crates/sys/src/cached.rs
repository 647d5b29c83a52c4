//! Reads of what the kernel has in its page cache.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use crate::uring::gather;
use crate::{IoMemory, IoVec};

/// Reads up to `len` bytes at `at` of a file into `memory`, from the `skip`th byte of its pieces on, where they are in
/// the page cache: preadv2(2) with `RWF_NOWAIT`. Never waits for a disk. `vecs` is room for the pieces.
///
/// Returns the bytes read, which may be fewer: the rest is not in the cache, or beyond the end of the file, or in more
/// pieces than one call takes.
///
/// # Errors
/// `AGAIN` where the first byte is not in the cache, `OPNOTSUPP` where the file system cannot tell, others as preadv2.
#[inline]
pub fn read<M: IoMemory>(
    file: BorrowedFd<'_>,
    at: u64,
    memory: &mut M,
    skip: u64,
    len: usize,
    vecs: &mut Vec<IoVec>,
) -> Result<usize, Errno> {
    let at = libc::off_t::try_from(at).map_err(|_| Errno::INVAL)?;
    let one;
    let pieces = match gather(memory, skip, len, vecs) {
        Some(piece) => {
            one = [piece];
            &one[..]
        }
        None => &vecs[..],
    };
    // SAFETY: IoVec is laid out as iovec; the pieces are mapped and writable while `memory` lives, which is borrowed
    // until the call has returned, and no reference to their bytes exists (IoMemory).
    let got = unsafe {
        libc::preadv2(file.as_raw_fd(), pieces.as_ptr().cast(), pieces.len() as libc::c_int, at, libc::RWF_NOWAIT)
    };
    usize::try_from(got).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsFd;

    use super::*;
    use crate::AlignedBuffer;

    #[test]
    fn bytes_in_the_cache_arrive_and_the_end_of_the_file_is_short() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 5000]).unwrap();
        let mut memory = AlignedBuffer::new(8192);
        memory.set_len(8192);
        let mut vecs = Vec::new();
        match read(file.as_fd(), 1000, &mut memory, 96, 6000, &mut vecs) {
            Ok(bytes) => assert_eq!(bytes, 4000),
            // A file system that cannot tell; there is nothing to see then.
            Err(error) => return assert_eq!(error, Errno::OPNOTSUPP),
        }
        let mut bytes = [0; 4097];
        assert!(memory.read_at(95, &mut bytes));
        assert_eq!((bytes[0], &bytes[1..4001], &bytes[4001..]), (0, &[7; 4000][..], &[0; 96][..]));
        assert_eq!(read(file.as_fd(), 1 << 63, &mut memory, 0, 1, &mut vecs), Err(Errno::INVAL));
    }
}
