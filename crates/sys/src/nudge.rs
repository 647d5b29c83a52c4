//! Getting a thread out of a system call that blocks.
//!
//! A front end shares the open file description of the eventfds it passes, so it can make a write to one block whenever it
//! likes: clear O_NONBLOCK, fill the counter. Nothing that this process does to the descriptor prevents that. A signal
//! whose handler does nothing, installed without SA_RESTART, ends the call with EINTR.

use std::sync::Once;

/// A thread of this process, to be nudged from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadId(libc::pid_t);

impl ThreadId {
    /// The calling thread.
    pub fn current() -> ThreadId {
        // SAFETY: gettid has no preconditions.
        ThreadId(unsafe { libc::gettid() })
    }

    /// From [`as_raw`](Self::as_raw); none for 0.
    pub fn from_raw(raw: i32) -> Option<ThreadId> {
        (raw > 0).then_some(ThreadId(raw))
    }

    /// Its number, never 0.
    pub fn as_raw(self) -> i32 {
        self.0
    }

    /// Interrupts the system call it blocks in, if it does. Call [`accept`] once before.
    pub fn nudge(self) {
        // SAFETY: tgkill takes plain numbers; with our own process id it reaches a thread of ours or nobody, and the
        // signal has a handler that does nothing.
        unsafe {
            libc::syscall(libc::SYS_tgkill, libc::getpid(), self.0, libc::SIGURG);
        }
    }
}

/// Installs the handler that makes nudges harmless. SIGURG is ignored by default and used by nobody here.
pub fn accept() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler does nothing, and the action structure is fully initialised. No SA_RESTART: calls are to
        // end.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as *const () as usize;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(libc::SIGURG, &action, std::ptr::null_mut());
        }
    });
}

extern "C" fn nothing(_signal: libc::c_int) {}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{Errno, write};

    use super::*;
    use crate::wake;

    #[test]
    fn a_write_that_blocks_ends_with_an_error() {
        accept();
        let full = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        write(&full, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        let (id, ids) = channel();
        let blocked = std::thread::spawn(move || {
            id.send(ThreadId::current()).unwrap();
            wake::ring(full.as_fd())
        });
        let thread = ids.recv().unwrap();
        for _ in 0..200 {
            if blocked.is_finished() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            thread.nudge();
        }
        assert!(blocked.is_finished(), "still blocked after two seconds of nudges");
        assert_eq!(blocked.join().unwrap(), Err(Errno::INTR));
    }
}
