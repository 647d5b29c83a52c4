//! Signals to event counters (eventfd) of other processes, which never wait.
//!
//! The process that passes an eventfd keeps its open file description, and with it the flags and the counter: it can
//! clear O_NONBLOCK and fill the counter whenever it likes, and a `write` then waits for as long as it likes. No check
//! before the write changes that, nor does io_uring's, which looks at the same flag and then calls the same function.
//!
//! The kernel's own way of signalling an eventfd does not wait: it leaves a full counter as it is and looks at no flag.
//! It is what happens when an asynchronous request ends that names an eventfd (io_submit(2), IOCB_FLAG_RESFD). So a
//! signal is such a request: to read nothing from an empty file of this process, which ends within the call. One call
//! signals many, and the kernel looks at each descriptor itself: one that is no eventfd is refused.

use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

/// Signals sent with one system call.
const BATCH: usize = 32;
/// Times that a kernel without memory is asked again.
const ATTEMPTS: u32 = 8;

/// linux/aio_abi.h.
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_FLAG_RESFD: u32 = 1;
/// `magic` of `struct aio_ring` (fs/aio.c), which every library for these calls relies on.
const RING_MAGIC: u32 = 0xa10a_10a1;

/// `struct iocb` (linux/aio_abi.h). `key` and `rw_flags` change places with the byte order; both are 0 here.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Request {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event: u32,
}

const _: () = assert!(size_of::<Request>() == 64);

/// `struct aio_ring` (fs/aio.c), up to what is used of it.
#[repr(C)]
struct EventRing {
    id: u32,
    size: u32,
    head: AtomicU32,
    tail: AtomicU32,
    magic: u32,
}

/// Signals other processes' event counters. One thread's.
pub struct Notifier {
    context: libc::c_ulong,
    /// An empty file.
    nothing: OwnedFd,
    requests: [Request; BATCH],
}

impl Notifier {
    /// A new one.
    ///
    /// # Errors
    /// `EAGAIN` where `fs.aio-max-nr` is used up on this machine, `ENOSYS` from a kernel without CONFIG_AIO.
    pub fn new() -> Result<Notifier, Errno> {
        let nothing = memfd_create("softdpu-nothing", MemfdFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the call writes one context to where the pointer shows.
        result(unsafe { libc::syscall(libc::SYS_io_setup, BATCH, &raw mut context) })?;
        // As soon as it is there, so that it is destroyed in any case.
        let notifier = Notifier { context, nothing, requests: [Request::default(); BATCH] };
        // SAFETY: the kernel maps its ring where the context says, until it is destroyed.
        if unsafe { (*notifier.ring()).magic } == RING_MAGIC { Ok(notifier) } else { Err(Errno::NOSYS) }
    }

    /// Adds one to each counter, or leaves it full. Never waits for its other holders. One that is no event counter
    /// is skipped: what is there instead is its peer's loss.
    ///
    /// # Errors
    /// The kernel's, where it has no memory: some were not signalled.
    #[inline]
    pub fn signal<'a>(&mut self, bells: impl IntoIterator<Item = BorrowedFd<'a>>) -> Result<(), Errno> {
        let mut bells = bells.into_iter();
        loop {
            let mut count = 0;
            for bell in bells.by_ref().take(BATCH) {
                self.requests[count] = self.request(bell);
                count += 1;
            }
            if count > 0 {
                self.submit(count)?;
            }
            if count < BATCH {
                return Ok(());
            }
        }
    }

    /// What adds one to a counter when it ends.
    #[inline]
    fn request(&self, bell: BorrowedFd<'_>) -> Request {
        Request {
            opcode: IOCB_CMD_PREAD,
            file: self.nothing.as_raw_fd() as u32,
            flags: IOCB_FLAG_RESFD,
            event: bell.as_raw_fd() as u32,
            ..Request::default()
        }
    }

    fn submit(&mut self, count: usize) -> Result<(), Errno> {
        let mut pointers = [std::ptr::null_mut(); BATCH];
        for (pointer, request) in pointers.iter_mut().zip(&mut self.requests[..count]) {
            *pointer = &raw mut *request;
        }
        let (mut done, mut attempts) = (0, 0);
        while done < count {
            // SAFETY: the pointers are to requests that live through the call. They carry no memory of ours, read
            // nothing, and have ended when it returns; they name descriptors that their borrowers keep open meanwhile.
            let sent = result(unsafe {
                libc::syscall(libc::SYS_io_submit, self.context, count - done, pointers[done..].as_mut_ptr())
            });
            self.forget_ended();
            match sent {
                Ok(sent) if sent > 0 => done += sent,
                // The first of them is not an event counter.
                Err(Errno::INVAL | Errno::BADF) => done += 1,
                _ if attempts < ATTEMPTS => attempts += 1,
                Ok(_) => return Err(Errno::AGAIN),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes room in the ring of ended requests: their results are not used.
    fn forget_ended(&self) {
        // SAFETY: mapped until the context is destroyed. The kernel writes the tail, and reads the head that is written
        // here.
        let ring = unsafe { &*self.ring() };
        ring.head.store(ring.tail.load(Ordering::Acquire), Ordering::Release);
    }

    fn ring(&self) -> *const EventRing {
        self.context as *const EventRing
    }
}

fn result(returned: libc::c_long) -> Result<usize, Errno> {
    usize::try_from(returned).map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}

impl Drop for Notifier {
    fn drop(&mut self) {
        // SAFETY: the context is ours and not used after this. Nothing is in flight.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.context) };
    }
}

impl fmt::Debug for Notifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notifier").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::{read, write};

    use super::*;

    /// The largest count an eventfd holds by writes (eventfd(2)).
    const FULL: u64 = u64::MAX - 1;

    fn bell(flags: EventfdFlags) -> OwnedFd {
        eventfd(0, flags | EventfdFlags::CLOEXEC).unwrap()
    }

    fn count(bell: &OwnedFd) -> u64 {
        let mut bytes = [0; 8];
        read(bell, &mut bytes).unwrap();
        u64::from_ne_bytes(bytes)
    }

    #[test]
    fn a_full_counter_that_blocks_is_not_waited_for() {
        let (done, wait) = channel();
        std::thread::spawn(move || {
            let mut notifier = Notifier::new().unwrap();
            let full = bell(EventfdFlags::empty());
            write(&full, &FULL.to_ne_bytes()).unwrap();
            let other = bell(EventfdFlags::NONBLOCK);
            for _ in 0..3 {
                notifier.signal([full.as_fd(), other.as_fd()]).unwrap();
            }
            done.send((count(&full), count(&other))).unwrap();
        });
        let (full, other) = wait.recv_timeout(Duration::from_secs(20)).expect("a signal waits");
        assert!(full >= FULL, "{full:#x}");
        assert_eq!(other, 3);
    }

    #[test]
    fn any_number_is_signalled_each_once_and_for_ever() {
        let mut notifier = Notifier::new().unwrap();
        let bells: Vec<_> = (0..2 * BATCH + 1).map(|_| bell(EventfdFlags::NONBLOCK)).collect();
        for round in 0..100 {
            for many in [0, 1, BATCH - 1, BATCH, BATCH + 1, bells.len()] {
                notifier.signal(bells[..many].iter().map(AsFd::as_fd)).unwrap();
                for (index, bell) in bells.iter().enumerate() {
                    let mut bytes = [0; 8];
                    let rung = read(bell, &mut bytes).is_ok().then(|| u64::from_ne_bytes(bytes));
                    assert_eq!(rung, (index < many).then_some(1), "round {round}, {index} of {many}");
                }
            }
        }
    }

    #[test]
    fn what_is_no_event_counter_is_skipped() {
        let mut notifier = Notifier::new().unwrap();
        let [first, last] = [(); 2].map(|()| bell(EventfdFlags::NONBLOCK));
        let (_reader, full) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
        while write(&full, &[0; 4096]).is_ok() {}
        let file = tempfile::tempfile().unwrap();
        let bells = [first.as_fd(), full.as_fd(), file.as_fd(), last.as_fd(), full.as_fd()];
        notifier.signal(bells).unwrap();
        assert_eq!((count(&first), count(&last)), (1, 1));
        assert_eq!(file.metadata().unwrap().len(), 0, "nothing is written to a file");
    }
    /// Fills the kernel's ring of ended requests, so that it takes no more.
    fn fill(notifier: &Notifier) {
        let bell = bell(EventfdFlags::NONBLOCK);
        for _ in 0..1 << 20 {
            let mut request = notifier.request(bell.as_fd());
            let mut pointer = &raw mut request;
            // SAFETY: as in `submit`: the request has ended when the call returns.
            let sent = result(unsafe { libc::syscall(libc::SYS_io_submit, notifier.context, 1, &raw mut pointer) });
            match sent {
                Ok(_) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => panic!("{error}"),
            }
        }
        panic!("the kernel's ring has no end");
    }

    #[test]
    fn a_kernel_that_refuses_for_want_of_room_is_asked_again() {
        let mut notifier = Notifier::new().unwrap();
        let bells: Vec<_> = (0..BATCH + 1).map(|_| bell(EventfdFlags::NONBLOCK)).collect();
        for _ in 0..3 {
            fill(&notifier);
            notifier.signal(bells.iter().map(AsFd::as_fd)).unwrap();
            assert!(bells.iter().all(|bell| count(bell) == 1));
        }
    }
}
