//! The socket: messages with descriptors out, answers in, each within a deadline.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
};
use softdpu_transport::vhost_user::client::{Answer, Client};
use softdpu_transport::vhost_user::{HEADER_SIZE, Header, MAX_FDS, Message};

use super::FrontEndError;

/// A message from the server.
#[derive(Debug)]
pub struct Received {
    /// Its header.
    pub header: Header,
    /// What follows the header.
    pub payload: Vec<u8>,
    /// Descriptors that came with it.
    pub fds: Vec<OwnedFd>,
}

/// The front end's side of a vhost-user connection.
///
/// A well-behaved front end uses [`call`](Self::call). Tests misbehave with [`send_bytes`](Self::send_bytes) and
/// [`receive`](Self::receive).
#[derive(Debug)]
pub struct Connection {
    path: PathBuf,
    socket: UnixStream,
    client: Client,
    timeout: Duration,
}

impl Connection {
    /// Connects to the socket at `path`. Every later wait for the server ends after `timeout`.
    ///
    /// # Errors
    /// [`FrontEndError::Connect`].
    pub fn connect(path: &Path, timeout: Duration) -> Result<Connection, FrontEndError> {
        let refused = |source| FrontEndError::Connect { path: path.to_owned(), source };
        let socket = UnixStream::connect(path).map_err(refused)?;
        socket.set_read_timeout(Some(timeout)).map_err(refused)?;
        socket.set_write_timeout(Some(timeout)).map_err(refused)?;
        Ok(Connection { path: path.to_owned(), socket, client: Client::default(), timeout })
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sends `message` with `fds` and reads the answer, if the message has one, with the descriptor that came with it.
    ///
    /// # Errors
    /// The server refused, did not answer in time, or closed the connection.
    pub fn call(
        &mut self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Option<(Answer, Option<OwnedFd>)>, FrontEndError> {
        let outgoing = self.client.request(message);
        self.send_bytes(&outgoing.bytes, fds)?;
        let Some(request) = outgoing.answer else { return Ok(None) };
        let received = self.receive()?.ok_or_else(|| FrontEndError::NoAnswer {
            path: self.path.clone(),
            request,
            waited: self.timeout,
        })?;
        let answer = self
            .client
            .answer(request, &received.header, &received.payload)
            .map_err(|source| FrontEndError::Answer { path: self.path.clone(), source })?;
        Ok(Some((answer, received.fds.into_iter().next())))
    }

    /// As [`call`](Self::call), for messages whose answer is a number.
    ///
    /// # Errors
    /// As [`call`](Self::call), and [`FrontEndError::Kind`] for an answer of another kind.
    pub fn number(&mut self, message: &Message) -> Result<u64, FrontEndError> {
        match self.call(message, &[])? {
            Some((Answer::Number(number), _)) => Ok(number),
            _ => Err(self.kind(message)),
        }
    }

    /// Sends bytes as they are, with descriptors (at most eight) attached to the first byte.
    ///
    /// # Errors
    /// The server closed the connection, or reads nothing.
    pub fn send_bytes(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), FrontEndError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(FrontEndError::Options(format!("{} descriptors do not fit one message", fds.len())));
        }
        let mut sent = 0;
        while sent < bytes.len() {
            let rest = [IoSlice::new(&bytes[sent..])];
            match rustix::net::sendmsg(&self.socket, &rest, &mut ancillary, SendFlags::NOSIGNAL) {
                Ok(count) => sent += count,
                Err(rustix::io::Errno::INTR) => continue,
                Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => return Err(self.closed("sending")),
                Err(error) => return Err(self.failed("sending", error.into())),
            }
            ancillary.clear();
        }
        Ok(())
    }

    /// Receives the next message; none when the timeout passed without one.
    ///
    /// # Errors
    /// The server closed the connection, sent part of a message, or sent no vhost-user message.
    pub fn receive(&mut self) -> Result<Option<Received>, FrontEndError> {
        let mut fds = Vec::new();
        let mut head = [0; HEADER_SIZE];
        if !self.fill(&mut head, &mut fds, true)? {
            return Ok(None);
        }
        let header = Header::parse(&head)
            .map_err(|error| FrontEndError::Framing { path: self.path.clone(), reason: error.to_string() })?;
        let mut payload = vec![0; header.size as usize];
        self.fill(&mut payload, &mut fds, false)?;
        Ok(Some(Received { header, payload, fds }))
    }

    /// Tells whether the server closes the connection within `wait`. Drops messages that arrive before.
    pub fn closes_within(&mut self, wait: Duration) -> bool {
        let deadline = Instant::now() + wait;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            if self.socket.set_read_timeout(Some(left)).is_err() {
                return false;
            }
            let received = self.receive();
            // Fails only for a zero duration, which no timeout is.
            let _ = self.socket.set_read_timeout(Some(self.timeout));
            match received {
                Err(FrontEndError::Closed { .. }) => return true,
                Err(_) => return false,
                Ok(_) => {}
            }
        }
    }

    /// Fills `to`. False where `may_idle` and no byte arrived in time.
    fn fill(&self, to: &mut [u8], fds: &mut Vec<OwnedFd>, may_idle: bool) -> Result<bool, FrontEndError> {
        let mut got = 0;
        while got < to.len() {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let mut rest = [IoSliceMut::new(&mut to[got..])];
            match rustix::net::recvmsg(&self.socket, &mut rest, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Ok(message) => {
                    for message in ancillary.drain() {
                        if let RecvAncillaryMessage::ScmRights(received) = message {
                            fds.extend(received);
                        }
                    }
                    if message.bytes == 0 {
                        return Err(self.closed("waiting for a message"));
                    }
                    got += message.bytes;
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) if may_idle && got == 0 => return Ok(false),
                Err(rustix::io::Errno::CONNRESET) => return Err(self.closed("waiting for a message")),
                Err(error) => return Err(self.failed("waiting for the rest of a message", error.into())),
            }
        }
        Ok(true)
    }

    pub(super) fn kind(&self, message: &Message) -> FrontEndError {
        FrontEndError::Kind { path: self.path.clone(), request: message.id() }
    }

    fn closed(&self, doing: &str) -> FrontEndError {
        FrontEndError::Closed { path: self.path.clone(), doing: doing.to_owned() }
    }

    fn failed(&self, doing: &str, source: io::Error) -> FrontEndError {
        FrontEndError::Socket { path: self.path.clone(), doing: doing.to_owned(), source }
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
