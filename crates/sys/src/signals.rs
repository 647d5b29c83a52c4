//! Signals that a process takes by a descriptor (signalfd(2)), and that wait while it executes another program.
//!
//! A signal that is blocked stays pending across execve(2); one that has a handler ends the process if it comes between
//! that call and the next program's handler.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Signals that are blocked, and are to be had here.
#[derive(Debug)]
pub struct SignalFd(OwnedFd);

impl SignalFd {
    /// Blocks `signals` in this thread, and in those that it starts from now on; so call it before any other thread
    /// runs.
    ///
    /// # Errors
    /// A number is no signal, or the process is out of file descriptors.
    pub fn block(signals: &[i32]) -> io::Result<SignalFd> {
        let set = set_of(signals)?;
        // SAFETY: `set` is initialised; the mask from before is not asked for.
        let blocked = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) };
        if blocked != 0 {
            return Err(io::Error::from_raw_os_error(blocked));
        }
        // SAFETY: `set` is initialised.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_NONBLOCK | libc::SFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, for this call alone.
        Ok(SignalFd(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// The next signal that has come; none if there is no other.
    pub fn next(&self) -> Option<i32> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the kernel writes at most `size` bytes, which is how much room there is.
        let read = unsafe { libc::read(self.0.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        // SAFETY: that many bytes are written, so all of it is initialised.
        (usize::try_from(read) == Ok(size)).then(|| unsafe { info.assume_init() }.ssi_signo as i32)
    }
}

impl AsFd for SignalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks none of the signals that the parent had blocked (a child inherits the mask): each has its usual effect.
pub fn unblock_all() {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initialises the set; the mask from before is not asked for.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
    }
}

fn set_of(signals: &[i32]) -> io::Result<libc::sigset_t> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: it initialises the set and cannot fail for one that can be written.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    for signal in signals {
        // SAFETY: the set is initialised.
        if unsafe { libc::sigaddset(set.as_mut_ptr(), *signal) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    // SAFETY: initialised above.
    Ok(unsafe { set.assume_init() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blocked_signal_is_to_be_had_and_ends_nothing() {
        // A thread of its own: the mask is its alone.
        let thread = std::thread::spawn(|| {
            let signals = SignalFd::block(&[libc::SIGUSR2]).unwrap();
            assert_eq!(signals.next(), None);
            // SAFETY: signals this thread, which has it blocked.
            unsafe { libc::pthread_kill(libc::pthread_self(), libc::SIGUSR2) };
            assert_eq!(signals.next(), Some(libc::SIGUSR2));
            assert_eq!(signals.next(), None);
        });
        thread.join().unwrap();
        assert!(SignalFd::block(&[12345]).is_err());
    }
}
