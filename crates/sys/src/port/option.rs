//! Socket options with a C structure or an int as value.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Values the kernel reads and writes as bytes.
///
/// # Safety
/// Plain data without padding, valid for all bit patterns.
pub(crate) unsafe trait Plain: Sized {}
// SAFETY: an int.
unsafe impl Plain for i32 {}
// SAFETY: an int.
unsafe impl Plain for u32 {}
// SAFETY: four ints.
unsafe impl Plain for libc::tpacket_req {}
// SAFETY: two long ints and four ints.
unsafe impl Plain for libc::xdp_umem_reg {}
// SAFETY: long ints.
unsafe impl Plain for libc::xdp_mmap_offsets {}
// SAFETY: long ints.
unsafe impl Plain for libc::xdp_statistics {}
// SAFETY: an int.
unsafe impl Plain for libc::xdp_options {}
// SAFETY: two ints.
unsafe impl Plain for libc::tpacket_stats {}

/// setsockopt.
pub(crate) fn set<T: Plain>(fd: BorrowedFd<'_>, level: i32, option: i32, value: &T) -> Result<(), Errno> {
    let (value, len) = ((&raw const *value).cast(), size_of::<T>() as libc::socklen_t);
    // SAFETY: `value` points to `len` bytes that are borrowed for the call and only read.
    let answer = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value, len) };
    if answer < 0 { Err(last_error()) } else { Ok(()) }
}

/// getsockopt of a value that has this size exactly.
pub(super) fn get<T: Plain>(fd: BorrowedFd<'_>, level: i32, option: i32) -> Result<T, Errno> {
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` has `len` bytes, which the kernel may write; `len` may be written too.
    let answer = unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &mut len) };
    if answer < 0 {
        return Err(last_error());
    }
    // SAFETY: zeroed at first, and valid for all bit patterns (Plain).
    Ok(unsafe { value.assume_init() })
}

/// The calling thread's last error.
pub(super) fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
