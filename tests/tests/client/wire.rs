//! Bytes and descriptors on the socket.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use softdpu_tests::{Context, Failure};
use softdpu_transport::vhost_user::client::{Answer, ClientError};
use softdpu_transport::vhost_user::{HEADER_SIZE, Header, Message, RequestId};

use super::FrontEnd;

/// Most descriptors that these tests send with one message.
const FDS: usize = 64;

/// Why a request has no good answer.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The back end said no, and goes on.
    #[error("{0}")]
    Refused(String),
    /// The back end closed the connection.
    #[error("the back end closed the connection")]
    Closed,
    /// Neither.
    #[error("{0}")]
    Broken(String),
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure::new(refusal.to_string())
    }
}

/// Sends bytes and descriptors on a socket.
pub fn send(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Refusal> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Refusal::Broken(format!("{} descriptors do not fit into a message", fds.len())));
    }
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(sent) => Err(Refusal::Broken(format!("only {sent} of {} bytes were taken", bytes.len()))),
        Err(rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET) => Err(Refusal::Closed),
        Err(error) => Err(Refusal::Broken(format!("sending: {error}"))),
    }
}

impl FrontEnd {
    /// Sends a request and waits for its answer, if there is to be one.
    pub fn call(&mut self, message: &Message, fds: &[BorrowedFd<'_>]) -> Result<Answer, Failure> {
        Ok(self.call_for_fds(message, fds)?.0)
    }

    /// As [`call`](Self::call), with the descriptors that came with the answer, and why there is none.
    pub fn call_for_fds(
        &mut self,
        message: &Message,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        let sent = self.client.request(message);
        self.send(&sent.bytes, fds)?;
        match sent.answer {
            Some(id) => self.answer(id),
            None => Ok((Answer::Done, Vec::new())),
        }
    }

    /// Sends bytes as they are.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Refusal> {
        send(self.socket.as_fd(), bytes, fds)
    }

    /// Reads one answer.
    pub fn answer(&mut self, id: RequestId) -> Result<(Answer, Vec<OwnedFd>), Refusal> {
        let mut fds = Vec::new();
        let mut bytes = [0; HEADER_SIZE];
        let mut at = 0;
        while at < HEADER_SIZE {
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut bytes[at..])];
            match recvmsg(self.socket.as_fd(), &mut into, &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) if got.bytes == 0 => return Err(Refusal::Closed),
                Ok(got) => at += got.bytes,
                Err(rustix::io::Errno::CONNRESET) => return Err(Refusal::Closed),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(Refusal::Broken(format!("waiting for the answer to {id}: {error}"))),
            }
            for part in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = part {
                    fds.extend(rights);
                }
            }
        }
        let header = Header::parse(&bytes).map_err(|error| Refusal::Broken(error.to_string()))?;
        let mut payload = vec![0; header.size as usize];
        self.socket.read_exact(&mut payload).map_err(|error| Refusal::Broken(format!("payload: {error}")))?;
        match self.client.answer(id, &header, &payload) {
            Ok(answer) => Ok((answer, fds)),
            Err(error @ ClientError::Failed { .. }) => Err(Refusal::Refused(error.to_string())),
            Err(error) => Err(Refusal::Broken(error.to_string())),
        }
    }

    /// Waits for the other side to close the connection; what it still says is skipped.
    pub fn closed(&mut self) -> Result<(), Failure> {
        let mut bytes = [0; 4096];
        loop {
            match self.socket.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
                Err(error) => return Err(error).context("waiting for the back end to close the connection"),
            }
        }
    }
}
