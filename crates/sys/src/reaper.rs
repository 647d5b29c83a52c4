//! Values dropped on threads that nothing waits for: closing a descriptor, or unmapping memory, may take as long as
//! another process likes.
//!
//! The last close of a TCP socket with `SO_LINGER` and unsent data waits for its peer, that of a Unix socket closes the
//! descriptors still in its queue, that of an unlinked file frees its blocks, and unmapping 4 GiB takes most of a
//! second. A process that receives descriptors from others cannot know which. (systemd's `asynchronous_close` and the
//! kernel's OOM reaper are the same idea.)
//!
//! One thread more than there are blocked ones runs, up to [`MAX_THREADS`]. A thread that has been blocked for
//! [`PATIENCE`] gets a signal, which ends the kernel's interruptible waits (a lingering socket's is one).

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

/// Threads at most, one of which watches the others. With those blocked in uninterruptible waits (a dead NFS server,
/// say) values wait.
pub const MAX_THREADS: usize = 16;

/// How long a thread is blocked before it is signalled, and between two signals.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// How long an idle thread stays, if it is not the last.
const IDLE: Duration = Duration::from_secs(10);

/// The signal that interrupts a blocked thread. Its default action is to be ignored, so that a stray one ends nothing;
/// here it has a handler that does nothing, without which it would interrupt nothing.
const SIGNAL: libc::c_int = libc::SIGURG;

static REAPER: Reaper = Reaper { state: Mutex::new(State::new()), ready: Condvar::new() };

struct Reaper {
    state: Mutex<State>,
    ready: Condvar,
}

struct State {
    queue: VecDeque<Box<dyn Send>>,
    threads: usize,
    idle: usize,
    /// The threads that drop a value right now.
    busy: Vec<Busy>,
}

struct Busy {
    thread: libc::pthread_t,
    /// When it began, or was last signalled.
    since: Instant,
}

/// Drops `value` on a thread of the reaper's. If no thread can be started it is dropped here.
pub fn reap(value: impl Send + 'static) {
    let mut state = REAPER.lock();
    state.queue.push_back(Box::new(value));
    if state.idle == 0 {
        state.interrupt_blocked();
        state.start_thread();
        if state.threads == 0 {
            let queue = std::mem::take(&mut state.queue);
            drop(state);
            return drop(queue);
        }
    }
    drop(state);
    REAPER.ready.notify_one();
}

/// Values that wait to be dropped or are being dropped.
pub fn pending() -> usize {
    let state = REAPER.lock();
    state.queue.len() + state.busy.len()
}

impl Reaper {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One thread: drops values until it has been idle for [`IDLE`] beside another idle thread.
    fn run(&self) {
        // SAFETY: pthread_self has no preconditions.
        let thread = unsafe { libc::pthread_self() };
        let mut state = self.lock();
        let mut idle_since = Instant::now();
        loop {
            // The last thread only watches the others.
            let may_drop = state.busy.len() + 1 < MAX_THREADS;
            if let Some(value) = may_drop.then(|| state.queue.pop_front()).flatten() {
                state.busy.push(Busy { thread, since: Instant::now() });
                if state.idle == 0 {
                    state.start_thread();
                }
                drop(state);
                drop(value);
                state = self.lock();
                // Under the lock: nothing signals a thread that is not in the list.
                state.busy.retain(|busy| busy.thread != thread);
                idle_since = Instant::now();
                continue;
            }
            if state.idle > 0 && idle_since.elapsed() >= IDLE {
                state.threads -= 1;
                return;
            }
            let wait = if state.busy.is_empty() { IDLE } else { PATIENCE };
            state.idle += 1;
            state = self.ready.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
            state.idle -= 1;
            state.interrupt_blocked();
        }
    }
}

impl State {
    const fn new() -> State {
        State { queue: VecDeque::new(), threads: 0, idle: 0, busy: Vec::new() }
    }

    fn start_thread(&mut self) {
        if self.threads >= MAX_THREADS {
            return;
        }
        install_handler();
        let started = std::thread::Builder::new().name("reaper".into()).spawn(|| REAPER.run());
        self.threads += usize::from(started.is_ok());
    }

    fn interrupt_blocked(&mut self) {
        let now = Instant::now();
        for busy in self.busy.iter_mut().filter(|busy| now.duration_since(busy.since) >= PATIENCE) {
            busy.since = now;
            // SAFETY: the thread is in the list, from which it removes itself, under the lock held here, before it
            // ends.
            let _ = unsafe { libc::pthread_kill(busy.thread, SIGNAL) };
        }
    }
}

extern "C" fn ignore(_signal: libc::c_int) {}

fn install_handler() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        // SAFETY: a handler that does nothing is async-signal-safe; a zeroed sigaction has an empty mask and, without
        // SA_RESTART, no flags.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = ignore as *const () as libc::sighandler_t;
            libc::sigaction(SIGNAL, &action, std::ptr::null_mut());
        }
    });
}

/// A descriptor that the [reaper](self) closes.
#[derive(Debug)]
pub struct ReapedFd(Option<OwnedFd>);

impl ReapedFd {
    /// The descriptor, to be closed by the caller.
    pub fn into_owned(mut self) -> OwnedFd {
        self.0.take().expect("present until it is dropped")
    }
}

impl From<OwnedFd> for ReapedFd {
    fn from(fd: OwnedFd) -> Self {
        ReapedFd(Some(fd))
    }
}

impl From<File> for ReapedFd {
    fn from(file: File) -> Self {
        OwnedFd::from(file).into()
    }
}

impl AsFd for ReapedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("present until it is dropped").as_fd()
    }
}

impl Drop for ReapedFd {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            reap(fd);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc;

    use super::*;

    /// A value that reports its drop.
    struct ReportsDrop(mpsc::Sender<std::thread::ThreadId>);

    impl Drop for ReportsDrop {
        fn drop(&mut self) {
            self.0.send(std::thread::current().id()).expect("the test waits");
        }
    }

    /// A socket that waits for its peer when it is closed, for 30 s, and that peer.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut near = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let far = listener.accept().expect("a connection").0;
        near.set_nonblocking(true).expect("an option");
        while near.write(&[0; 65536]).is_ok() {}
        rustix::net::sockopt::set_socket_linger(&near, Some(Duration::from_secs(30))).expect("an option");
        near.set_nonblocking(false).expect("an option");
        (near.into(), far)
    }

    #[test]
    fn a_value_is_dropped_on_another_thread() {
        let (dropped, drops) = mpsc::channel();
        reap(ReportsDrop(dropped));
        let thread = drops.recv_timeout(Duration::from_secs(10)).expect("it is dropped");
        assert_ne!(thread, std::thread::current().id());
    }

    #[test]
    fn closes_that_block_hold_up_neither_the_caller_nor_other_values_and_are_interrupted() {
        let sockets: Vec<_> = (0..3 * MAX_THREADS).map(|_| lingering()).collect();
        let (sockets, _peers): (Vec<_>, Vec<_>) = sockets.into_iter().unzip();
        let start = Instant::now();
        sockets.into_iter().for_each(|socket| drop(ReapedFd::from(socket)));
        assert!(start.elapsed() < Duration::from_secs(1), "{:?} to drop", start.elapsed());
        let (dropped, drops) = mpsc::channel();
        reap(ReportsDrop(dropped));
        drops.recv_timeout(Duration::from_secs(20)).expect("what came later is dropped");
    }

    #[test]
    fn a_descriptor_that_is_taken_is_not_closed() {
        let (near, mut far) = std::io::pipe().expect("a pipe");
        let fd = ReapedFd::from(OwnedFd::from(far.try_clone().expect("a copy"))).into_owned();
        far.write_all(b"x").expect("the other end lives");
        drop((fd, near));
    }
}
