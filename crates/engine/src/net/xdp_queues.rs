//! AF_XDP sockets of several queues of an interface, as one.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use softdpu_sys::port::xdp::{XdpProgram, XdpSocket};
use softdpu_sys::port::{Frame, PortError, VnetHeader};

/// A core's share of an interface's queues. Frames come in by all of them in turn, and go out by the first.
pub struct XdpQueues {
    first: Box<XdpSocket>,
    others: Vec<XdpSocket>,
    /// The one that is asked first next time; 0 is `first`.
    next: usize,
    /// Sends frames to the sockets of all cores, for as long as one of them has sockets.
    _program: Arc<XdpProgram>,
}

impl XdpQueues {
    /// Deals the sockets of an interface's queues out to `cores` cores at most; as many shares as there are for.
    pub fn deal(sockets: Vec<XdpSocket>, program: XdpProgram, cores: usize) -> Vec<XdpQueues> {
        let program = Arc::new(program);
        let mut shares: Vec<XdpQueues> = Vec::new();
        for (index, socket) in sockets.into_iter().enumerate() {
            if shares.len() < cores.max(1) {
                let (first, others) = (Box::new(socket), Vec::new());
                shares.push(XdpQueues { first, others, next: 0, _program: Arc::clone(&program) });
            } else {
                let share = index % shares.len();
                shares[share].others.push(socket);
            }
        }
        shares
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.first.fd()).chain(self.others.iter().map(XdpSocket::fd))
    }

    /// Gives frames of the next queue that has some to `batch`; how many there were. A queue that fails is as one
    /// without.
    ///
    /// # Errors
    /// Why a queue failed, where no other had frames.
    pub(super) fn receive(&mut self, max: usize, batch: impl FnOnce(&mut [Frame<'_>])) -> Result<usize, PortError> {
        let count = self.others.len() + 1;
        let mut batch = Some(batch);
        let mut failed = Ok(0);
        for _ in 0..count {
            let at = self.next;
            self.next = (at + 1) % count;
            let socket = match at.checked_sub(1) {
                None => &mut *self.first,
                Some(other) => &mut self.others[other],
            };
            let received = socket.receive(max, |frames| {
                if let Some(batch) = batch.take() {
                    batch(frames);
                }
            });
            match received {
                Ok(0) => {}
                Ok(count) => return Ok(count),
                Err(error) => failed = Err(error),
            }
        }
        failed
    }

    pub(super) fn waiting(&self) -> usize {
        self.first.waiting()
    }

    pub(super) fn reserve(&mut self, len: usize) -> Option<&mut [u8]> {
        self.first.reserve(len)
    }

    pub(super) fn commit(&mut self, header: VnetHeader, len: usize) -> bool {
        self.first.commit(header, len)
    }

    pub(super) fn flush(&mut self) -> Result<usize, PortError> {
        self.first.flush()
    }
}
