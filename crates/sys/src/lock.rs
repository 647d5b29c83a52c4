//! Locks on open file descriptions (fcntl(2), "Open file description locks").
//!
//! Such a lock belongs to the description, not to the process: it ends when the last reference to the description does,
//! and the kernel holds one for every I/O in flight. So a lock on the description that carries a process's I/O outlives
//! even a killed process until its last write has landed.

use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Tries to lock the whole file behind `fd`, for itself alone or shared with other shared locks. Whether it is locked
/// now; asking again for what one has is fine.
///
/// # Errors
/// What the kernel says, other than that a conflicting lock is held.
pub fn try_lock(fd: BorrowedFd<'_>, exclusive: bool) -> io::Result<bool> {
    try_lock_part(fd, exclusive, 0, None)
}

/// The same for the bytes from `start` on, `len` of them or all there ever will be. They need not exist.
///
/// # Errors
/// As [`try_lock`].
pub fn try_lock_part(fd: BorrowedFd<'_>, exclusive: bool, start: u64, len: Option<NonZeroU64>) -> io::Result<bool> {
    let kind = if exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
    match set(fd, kind, start, len) {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Gives up every lock on the file behind `fd` that its description has.
///
/// # Errors
/// What the kernel says.
pub fn unlock(fd: BorrowedFd<'_>) -> io::Result<()> {
    set(fd, libc::F_UNLCK, 0, None)
}

fn set(fd: BorrowedFd<'_>, kind: libc::c_int, start: u64, len: Option<NonZeroU64>) -> io::Result<()> {
    let offset = |at: u64| i64::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: offset(start)?,
        // 0 bytes: to the end of the file, whatever size it will have.
        l_len: offset(len.map_or(0, NonZeroU64::get))?,
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads one flock structure, which lives across the call.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_lock_belongs_to_the_description_and_ends_with_its_last_reference() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || std::fs::OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        let (first, second) = (open(), open());
        assert!(try_lock(first.as_fd(), true).unwrap());
        assert!(try_lock(first.as_fd(), true).unwrap(), "asking again is fine");
        assert!(!try_lock(second.as_fd(), true).unwrap());
        assert!(!try_lock(second.as_fd(), false).unwrap());
        let copy = first.try_clone().unwrap();
        drop(first);
        assert!(!try_lock(second.as_fd(), true).unwrap(), "a copy of the descriptor keeps it");
        drop(copy);
        assert!(try_lock(second.as_fd(), true).unwrap());
    }

    #[test]
    fn shared_locks_go_together() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || std::fs::OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        let (first, second) = (open(), open());
        assert!(try_lock(first.as_fd(), false).unwrap());
        assert!(try_lock(second.as_fd(), false).unwrap());
        assert!(!try_lock(second.as_fd(), true).unwrap());
    }

    #[test]
    fn parts_are_locked_one_by_one_and_stand_in_the_way_of_the_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || std::fs::OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        let (first, second, third) = (open(), open(), open());
        let half = NonZeroU64::new(1 << 62);
        for one in [&first, &second] {
            assert!(try_lock_part(one.as_fd(), false, 0, half).unwrap());
        }
        assert!(try_lock_part(first.as_fd(), true, 1 << 62, NonZeroU64::new(1)).unwrap());
        assert!(!try_lock_part(second.as_fd(), true, 1 << 62, NonZeroU64::new(1)).unwrap());
        assert!(try_lock_part(second.as_fd(), true, (1 << 62) + 1, NonZeroU64::new(1)).unwrap());
        assert!(!try_lock(third.as_fd(), true).unwrap());
        drop((first, second));
        assert!(try_lock(third.as_fd(), true).unwrap());
        assert!(try_lock_part(third.as_fd(), true, u64::MAX, None).is_err(), "beyond what a file can have");
    }
}
