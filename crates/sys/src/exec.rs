//! Executing another program in this process (execve(2)), with descriptors that stay open for it, and taking them
//! there.
//!
//! Everything that softdpu opens is closed by execve (FD_CLOEXEC). What is to stay loses that flag at the last moment,
//! and has it again if the call fails: a descriptor without it, of which nothing here has taken possession, is one that
//! the program before left.

use std::collections::BTreeSet;
use std::ffi::{CString, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::sync::{Mutex, PoisonError};

use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};

/// The numbers that were taken. Held also while descriptors of this process are without FD_CLOEXEC.
static TAKEN: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

/// Executes `program` in this process, with `arguments` (the first is the program's name) and this process'
/// environment; `keep` stay open under their numbers. Returns only if that fails: all is as before then.
///
/// All other threads end. One that waits in the kernel and takes no signal delays the call as long as it waits.
pub fn exec(program: BorrowedFd<'_>, arguments: &[OsString], keep: &[BorrowedFd<'_>]) -> io::Error {
    let environment = std::env::vars_os().map(|(key, value)| [key.into_vec(), value.into_vec()].join(&b'='));
    let strings = (
        arguments.iter().map(|argument| CString::new(argument.clone().into_vec())).collect::<Result<Vec<_>, _>>(),
        environment.map(CString::new).collect::<Result<Vec<_>, _>>(),
    );
    let (Ok(arguments), Ok(environment)) = strings else {
        return io::Error::from(Errno::INVAL);
    };
    let pointers = |strings: &[CString]| {
        strings.iter().map(|string| string.as_ptr()).chain([std::ptr::null()]).collect::<Vec<_>>()
    };
    let (arguments, environment) = (pointers(&arguments), pointers(&environment));
    let _alone = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Err(error) = set_flags(keep, FdFlags::empty()) {
        // It cannot fail for one that could be changed before.
        let _ = set_flags(keep, FdFlags::CLOEXEC);
        return error.into();
    }
    // SAFETY: both arrays end with a null pointer, and their strings live until the call returns.
    unsafe { libc::fexecve(program.as_raw_fd(), arguments.as_ptr(), environment.as_ptr()) };
    let error = io::Error::last_os_error();
    let _ = set_flags(keep, FdFlags::CLOEXEC);
    error
}

fn set_flags(fds: &[BorrowedFd<'_>], flags: FdFlags) -> Result<(), Errno> {
    fds.iter().try_for_each(|fd| fcntl_setfd(fd, flags))
}

/// Whether a program before this one has left `number`, and it was not taken.
///
/// # Errors
/// Why it cannot be taken.
pub fn is_left(number: RawFd) -> Result<(), &'static str> {
    look_at(number, &TAKEN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn look_at(number: RawFd, taken: &BTreeSet<RawFd>) -> Result<(), &'static str> {
    if number <= 2 || taken.contains(&number) {
        return Err("it is another's");
    }
    // SAFETY: asks for flags, which does no harm to whatever has the number.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) }).map_err(|_| "it is not open")?;
    if flags.contains(FdFlags::CLOEXEC) { Err("this program has opened it") } else { Ok(()) }
}

/// Takes the descriptor `number` that the program before has left in this process. It is closed by execve from now on.
///
/// # Errors
/// As [`is_left`] says.
pub fn take(number: RawFd) -> Result<OwnedFd, &'static str> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    look_at(number, &taken)?;
    taken.insert(number);
    // SAFETY: it is open, and not one that this program has opened, for those have FD_CLOEXEC outside of `exec`, which
    // holds the lock; and it is given once: nothing else here owns it.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    // It does not fail for one that is open.
    let _ = fcntl_setfd(&fd, FdFlags::CLOEXEC);
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::{AsFd, IntoRawFd};

    use super::*;

    #[test]
    fn only_what_was_left_is_taken_and_only_once() {
        let own = File::open("/dev/null").unwrap();
        assert_eq!(take(own.as_raw_fd()).unwrap_err(), "this program has opened it");
        assert_eq!(take(1).unwrap_err(), "it is another's");
        assert_eq!(take(100_000).unwrap_err(), "it is not open");
        fcntl_setfd(&own, FdFlags::empty()).unwrap();
        let left = own.into_raw_fd();
        is_left(left).unwrap();
        let taken = take(left).unwrap();
        assert!(fcntl_getfd(&taken).unwrap().contains(FdFlags::CLOEXEC));
        assert_eq!(take(left).unwrap_err(), "it is another's");
    }

    #[test]
    fn a_program_that_cannot_be_executed_changes_nothing() {
        let (text, kept) = (tempfile::tempfile().unwrap(), File::open("/dev/null").unwrap());
        let error = exec(text.as_fd(), &["x".into()], &[kept.as_fd()]);
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert!(fcntl_getfd(&kept).unwrap().contains(FdFlags::CLOEXEC));
    }
}
