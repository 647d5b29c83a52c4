//! Socket I/O straight from and to memory the kernel may use. The calls are synchronous and never block: the memory is
//! borrowed for the call and untouched after it.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use crate::iovec::Cursor;
use crate::{IoMemory, IoVec};

/// Pieces per call: enough for common requests; what is beyond goes with the next call.
const PIECES: usize = 64;

struct Message {
    vecs: [libc::iovec; PIECES],
    used: usize,
}

impl Message {
    fn new() -> Self {
        Message { vecs: [libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }; PIECES], used: 0 }
    }

    fn push(&mut self, base: *mut u8, len: usize) {
        self.vecs[self.used] = libc::iovec { iov_base: base.cast(), iov_len: len };
        self.used += 1;
    }

    fn push_memory(&mut self, pieces: &[IoVec], skip: u64, len: usize) {
        let mut cursor = Cursor::new(pieces, skip);
        let mut left = len;
        while left > 0 && self.used < PIECES {
            let Some(piece) = cursor.piece() else { break };
            let part = left.min(piece.len());
            self.push(piece.base(), part);
            cursor.advance(part);
            left -= part;
        }
    }

    fn header(&mut self) -> libc::msghdr {
        // SAFETY: msghdr is plain data for which zeroes mean "none".
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_iov = self.vecs.as_mut_ptr();
        header.msg_iovlen = self.used as _;
        header
    }
}

/// Sends `head`, then up to `len` bytes of `memory` from `skip` on. How many bytes went, `head` included.
///
/// # Errors
/// `WouldBlock` where the socket's buffer is full; what else the kernel says. A broken pipe raises no signal.
pub fn send<M: IoMemory>(fd: BorrowedFd<'_>, head: &[u8], memory: Option<(&M, u64, usize)>) -> io::Result<usize> {
    let mut message = Message::new();
    if !head.is_empty() {
        message.push(head.as_ptr().cast_mut(), head.len());
    }
    if let Some((memory, skip, len)) = memory {
        message.push_memory(memory.iovecs(), skip, len);
    }
    let header = message.header();
    // SAFETY: the header points to `message`, its vectors to `head` and to pieces of `memory`, all borrowed for the
    // call, and sendmsg only reads them.
    let sent = unsafe { libc::sendmsg(fd.as_raw_fd(), &header, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives up to `len` bytes into `memory` from `skip` on. How many came; 0 where the peer has closed (or nothing was
/// asked for).
///
/// # Errors
/// `WouldBlock` where nothing is there; what else the kernel says.
pub fn receive<M: IoMemory>(fd: BorrowedFd<'_>, memory: &M, skip: u64, len: usize) -> io::Result<usize> {
    let mut message = Message::new();
    message.push_memory(memory.iovecs(), skip, len);
    let mut header = message.header();
    // SAFETY: the header points to `message`, its vectors to pieces of `memory`, which is borrowed for the call;
    // no Rust reference to their bytes exists (IoMemory).
    let received = unsafe { libc::recvmsg(fd.as_raw_fd(), &mut header, libc::MSG_DONTWAIT) };
    usize::try_from(received).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::AlignedBuffer;

    #[test]
    fn a_head_and_memory_arrive_in_order() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut from = AlignedBuffer::new(4096);
        from.write_at(0, b"..payload");
        assert_eq!(send(here.as_fd(), b"head:", Some((&from, 2, 7))).unwrap(), 12);
        let to = AlignedBuffer::new(4096);
        assert_eq!(receive(there.as_fd(), &to, 10, 100).unwrap(), 12);
        let mut bytes = [0; 12];
        to.read_at(10, &mut bytes);
        assert_eq!(&bytes, b"head:payload");
        assert_eq!(receive(there.as_fd(), &to, 0, 1).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(here);
        assert_eq!(receive(there.as_fd(), &to, 0, 1).unwrap(), 0);
        assert_eq!(send::<AlignedBuffer>(there.as_fd(), b"x", None).unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    }
}
