//! Frames: `{len u32, fds u32}` in little-endian, then `len` bytes of JSON, with `fds` descriptors beside them.
//!
//! One `sendmsg` carries at most 253 descriptors (SCM_MAX_FD), so a frame with more is sent in pieces, each but the
//! last one byte long; a payload shorter than the pieces needed is padded with blanks, which JSON ignores. Descriptors
//! arrive in order and never later than the bytes they were sent with, so the receiver queues both and gives each frame
//! its number.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

use softdpu_sys::ReapedFd;

use super::{Attached, LinkError, SharedFd};

/// The longest payload. A start with ten thousand devices is some 5 MiB.
pub const MAX_FRAME: usize = 64 << 20;

/// The most descriptors beside one frame.
pub const MAX_FRAME_FDS: usize = 1 << 16;

/// The most descriptors one `sendmsg` takes (the kernel's SCM_MAX_FD).
const SCM_MAX_FD: usize = 253;

const HEADER: usize = 8;

/// How many bytes are asked of the socket at once.
const READ_SIZE: usize = 64 << 10;

/// How long a sender waits when too many of its user's descriptors are in flight (ETOOMANYREFS; unix(7)). The kernel
/// counts them over all sockets and lets no process wait for that, so it is tried again; the socket itself is writable
/// all the time.
pub const REFS_PAUSE: Duration = Duration::from_millis(5);

/// One end of the link: sends `Out`, receives `In`. Nothing but [`Link::wait`] and [`Link::drain`] blocks.
#[derive(Debug)]
pub struct Link<Out, In> {
    socket: OwnedFd,
    outgoing: VecDeque<Outgoing>,
    held_up: bool,
    incoming: Vec<u8>,
    /// How much of `incoming` has been taken.
    taken: usize,
    incoming_fds: VecDeque<ReapedFd>,
    /// What ended the stream; reported once everything before it was taken.
    ended: Option<LinkError>,
    types: PhantomData<fn(Out) -> In>,
}

/// What a link holds beside its socket.
#[derive(Debug)]
pub struct Unfinished<'a> {
    /// What is to be sent of each message that is not sent yet, with the descriptors that are not.
    pub outgoing: Vec<(&'a [u8], Vec<&'a SharedFd>)>,
    /// What was received of messages that were not taken.
    pub incoming: &'a [u8],
    /// The descriptors that came with it.
    pub incoming_fds: Vec<&'a ReapedFd>,
}

#[derive(Debug)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    fds: VecDeque<SharedFd>,
}

/// A whole frame, of which the payload is still in `incoming`.
struct Frame {
    payload: std::ops::Range<usize>,
    fds: Vec<ReapedFd>,
}

impl<Out, In> Link<Out, In> {
    /// An end on a connected stream socket. Its blocking mode does not matter.
    pub fn new(socket: OwnedFd) -> Self {
        Link {
            socket,
            outgoing: VecDeque::new(),
            held_up: false,
            incoming: Vec::new(),
            taken: 0,
            incoming_fds: VecDeque::new(),
            ended: None,
            types: PhantomData,
        }
    }

    /// A link, and the socket of its other end.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn pair() -> Result<(Self, OwnedFd), Errno> {
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        Ok((Link::new(near), far))
    }

    /// What the link holds of messages that are not whole on either way. An end that another program of this process
    /// goes on with is made of it by [`resume`](Self::resume).
    pub fn unfinished(&self) -> Unfinished<'_> {
        let outgoing = self.outgoing.iter().map(|frame| (&frame.bytes[frame.sent..], frame.fds.iter().collect()));
        Unfinished {
            outgoing: outgoing.collect(),
            incoming: &self.incoming[self.taken..],
            incoming_fds: self.incoming_fds.iter().collect(),
        }
    }

    /// An end on a socket of which another end has made this of the streams so far: what it had still to send, each
    /// with the descriptors that go with it, and what it had received.
    pub fn resume(
        socket: OwnedFd,
        outgoing: Vec<(Vec<u8>, Vec<SharedFd>)>,
        incoming: Vec<u8>,
        incoming_fds: Vec<ReapedFd>,
    ) -> Self {
        let outgoing = outgoing.into_iter().map(|(bytes, fds)| Outgoing { bytes, sent: 0, fds: fds.into() });
        Link { outgoing: outgoing.collect(), incoming, incoming_fds: incoming_fds.into(), ..Link::new(socket) }
    }

    /// Whether there is something to flush when the socket is writable.
    pub fn wants_write(&self) -> bool {
        !self.outgoing.is_empty() && !self.held_up
    }

    /// Whether there is something to flush after [`REFS_PAUSE`], for which there is nothing else to wait for.
    pub fn is_held_up(&self) -> bool {
        self.held_up
    }

    /// Messages that are not sent yet.
    pub fn queued(&self) -> usize {
        self.outgoing.len()
    }

    /// Sends what the socket takes; whether that was everything.
    ///
    /// # Errors
    /// When the link is of no more use.
    pub fn flush(&mut self) -> Result<bool, LinkError> {
        self.held_up = false;
        while let Some(frame) = self.outgoing.front_mut() {
            match frame.send(self.socket.as_fd()) {
                Ok(()) if frame.sent == frame.bytes.len() => {
                    self.outgoing.pop_front();
                }
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::TOOMANYREFS) => {
                    self.held_up = true;
                    return Ok(false);
                }
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(LinkError::Closed),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Sends everything, waiting for the other end as long as it takes.
    ///
    /// # Errors
    /// When the link is of no more use.
    pub fn drain(&mut self) -> Result<(), LinkError> {
        while !self.flush()? {
            if self.held_up {
                std::thread::sleep(REFS_PAUSE);
            } else {
                ready(self.socket.as_fd(), PollFlags::OUT, None)?;
            }
        }
        Ok(())
    }

    /// Reads what is there. Returns after one pass over a busy socket, so that a loop stays fair.
    fn fill(&mut self) {
        if self.ended.is_some() {
            return;
        }
        if self.taken > 0 {
            self.incoming.drain(..self.taken);
            self.taken = 0;
        }
        let at = self.incoming.len();
        self.incoming.resize(at + READ_SIZE, 0);
        let received = self.receive_some(at);
        let (bytes, end) = match received {
            Ok(0) => (0, Some(LinkError::Closed)),
            Ok(bytes) => (bytes, None),
            Err(LinkError::Socket(Errno::AGAIN | Errno::INTR)) => (0, None),
            Err(LinkError::Socket(Errno::CONNRESET)) => (0, Some(LinkError::Closed)),
            Err(error) => (0, Some(error)),
        };
        self.incoming.truncate(at + bytes);
        self.ended = end;
    }

    fn receive_some(&mut self, at: usize) -> Result<usize, LinkError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut into = [IoSliceMut::new(&mut self.incoming[at..])];
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let message = recvmsg(&self.socket, &mut into, &mut control, flags)?;
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = part {
                self.incoming_fds.extend(fds.map(ReapedFd::from));
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(LinkError::FdsLost);
        }
        if self.incoming_fds.len() > 2 * MAX_FRAME_FDS {
            return Err(LinkError::TooManyFds { found: self.incoming_fds.len(), limit: 2 * MAX_FRAME_FDS });
        }
        Ok(message.bytes)
    }

    /// Takes the payload of the next frame, with its descriptors, if it is here completely.
    fn take_frame(&mut self) -> Result<Option<Frame>, LinkError> {
        let waiting = &self.incoming[self.taken..];
        let Some((header, rest)) = waiting.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [a, b, c, d, e, f, g, h] = *header;
        let len = u32::from_le_bytes([a, b, c, d]) as usize;
        let fds = u32::from_le_bytes([e, f, g, h]) as usize;
        if len > MAX_FRAME {
            return Err(LinkError::FrameTooLong { found: len, limit: MAX_FRAME });
        }
        if fds > MAX_FRAME_FDS {
            return Err(LinkError::TooManyFds { found: fds, limit: MAX_FRAME_FDS });
        }
        if rest.len() < len {
            return Ok(None);
        }
        if self.incoming_fds.len() < fds {
            return Err(LinkError::FdsMismatch { expected: fds, found: self.incoming_fds.len() });
        }
        let from = self.taken + HEADER;
        self.taken = from + len;
        Ok(Some(Frame { payload: from..from + len, fds: self.incoming_fds.drain(..fds).collect() }))
    }
}

impl<Out: Serialize + Attached, In> Link<Out, In> {
    /// Queues a message and sends what the socket takes; [`flush`](Self::flush) sends the rest.
    ///
    /// # Errors
    /// When the link is of no more use, or the message cannot be sent over any.
    pub fn send(&mut self, message: &Out, fds: Vec<SharedFd>) -> Result<(), LinkError> {
        if fds.len() != message.attached() {
            return Err(LinkError::FdsMismatch { expected: message.attached(), found: fds.len() });
        }
        if fds.len() > MAX_FRAME_FDS {
            return Err(LinkError::TooManyFds { found: fds.len(), limit: MAX_FRAME_FDS });
        }
        let mut bytes = vec![0; HEADER];
        serde_json::to_writer(&mut bytes, message)?;
        let pieces = fds.len().div_ceil(SCM_MAX_FD);
        while bytes.len() < pieces {
            bytes.push(b' ');
        }
        let len = bytes.len() - HEADER;
        if len > MAX_FRAME {
            return Err(LinkError::FrameTooLong { found: len, limit: MAX_FRAME });
        }
        bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
        bytes[4..HEADER].copy_from_slice(&(fds.len() as u32).to_le_bytes());
        self.outgoing.push_back(Outgoing { bytes, sent: 0, fds: fds.into() });
        self.flush().map(drop)
    }
}

impl<Out, In: DeserializeOwned + Attached> Link<Out, In> {
    /// The next message with its descriptors; none if no whole message is here yet.
    ///
    /// # Errors
    /// When the link is of no more use. Messages that came before its end are returned first.
    pub fn receive(&mut self) -> Result<Option<(In, Vec<ReapedFd>)>, LinkError> {
        loop {
            if let Some(Frame { payload, fds }) = self.take_frame()? {
                let message: In = serde_json::from_slice(&self.incoming[payload])?;
                if message.attached() != fds.len() {
                    return Err(LinkError::FdsMismatch { expected: message.attached(), found: fds.len() });
                }
                return Ok(Some((message, fds)));
            }
            if let Some(error) = self.ended.take() {
                // A stream that ended stays ended.
                self.ended = Some(LinkError::Closed);
                return Err(error);
            }
            let before = self.incoming.len() - self.taken;
            self.fill();
            if self.incoming.len() - self.taken == before && self.ended.is_none() {
                return Ok(None);
            }
        }
    }

    /// Waits for the next message, at most `timeout`; sends what is queued meanwhile.
    ///
    /// # Errors
    /// When the link is of no more use.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Option<(In, Vec<ReapedFd>)>, LinkError> {
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            if let Some(received) = self.receive()? {
                return Ok(Some(received));
            }
            let mut events = PollFlags::IN;
            self.flush()?;
            if self.wants_write() {
                events |= PollFlags::OUT;
            }
            let mut left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
            if self.held_up {
                left = Some(left.map_or(REFS_PAUSE, |left| left.min(REFS_PAUSE)));
            }
            ready(self.socket.as_fd(), events, left)?;
        }
    }
}

impl<Out, In> AsFd for Link<Out, In> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Outgoing {
    /// One `sendmsg`.
    fn send(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let now = self.fds.len().min(SCM_MAX_FD);
        let pieces_after = (self.fds.len() - now).div_ceil(SCM_MAX_FD);
        let end = if pieces_after == 0 { self.bytes.len() } else { self.sent + 1 };
        let bytes = [IoSlice::new(&self.bytes[self.sent..end])];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let fds: Vec<BorrowedFd<'_>> = self.fds.iter().take(now).map(|fd| fd.as_fd()).collect();
        if !fds.is_empty() {
            // The space was made for as many.
            control.push(SendAncillaryMessage::ScmRights(&fds));
        }
        let sent = sendmsg(socket, &bytes, &mut control, flags)?;
        // The kernel attaches descriptors to the first byte it takes.
        self.fds.drain(..now);
        self.sent += sent;
        Ok(())
    }
}

fn ready(fd: BorrowedFd<'_>, events: PollFlags, timeout: Option<Duration>) -> Result<bool, Errno> {
    let timeout = timeout.map(|left| Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() });
    match poll(&mut [PollFd::new(&fd, events)], timeout.as_ref()) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error),
    }
}
