//! A client's connection: bytes that wait to go out, and what comes in. Nothing here blocks but [`Connection::wait`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};

use softdpu_link::Outbox;

/// What is read at once.
const READ_SIZE: usize = 64 << 10;

/// What was there to be read.
pub(super) enum Received {
    Bytes(Vec<u8>),
    /// Nothing now.
    Nothing,
    /// The client sends no more.
    End,
}

pub(super) struct Connection {
    socket: OwnedFd,
    out: Outbox,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd) -> Connection {
        Connection { socket, out: Outbox::default() }
    }

    /// What goes out next, to be appended to.
    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        self.out.bytes()
    }

    /// Bytes that wait to go out.
    pub(super) fn waiting(&self) -> usize {
        self.out.len()
    }

    /// Sends what the client takes.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        self.out.flush(&self.socket)
    }

    /// Sends everything, as long as the client takes some of it within each `patience`.
    pub(super) fn drain(&mut self, patience: Duration) -> Result<(), Errno> {
        let (mut before, mut deadline) = (self.waiting(), Instant::now() + patience);
        loop {
            self.flush()?;
            if self.waiting() == 0 {
                return Ok(());
            }
            if self.waiting() < before {
                (before, deadline) = (self.waiting(), Instant::now() + patience);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Errno::TIMEDOUT);
            }
            self.wait(false, None, left);
        }
    }

    pub(super) fn receive(&mut self) -> Result<Received, Errno> {
        let mut bytes = vec![0; READ_SIZE];
        match recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => Ok(Received::End),
            Ok((_, count)) => {
                bytes.truncate(count);
                Ok(Received::Bytes(bytes))
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Waits until there is something to read (if `reads`), room for what waits to go out, `bell` rings, or the time is
    /// over.
    pub(super) fn wait(&self, reads: bool, bell: Option<BorrowedFd<'_>>, timeout: Duration) {
        let mut events = if reads { PollFlags::IN } else { PollFlags::empty() };
        if self.waiting() > 0 {
            events |= PollFlags::OUT;
        }
        let mut fds = vec![PollFd::new(&self.socket, events)];
        fds.extend(bell.map(|bell| PollFd::from_borrowed_fd(bell, PollFlags::IN)));
        let timeout = Timespec { tv_sec: timeout.as_secs() as i64, tv_nsec: timeout.subsec_nanos().into() };
        // EINTR is a wake-up like any other.
        let _ = poll(&mut fds, Some(&timeout));
    }
}
