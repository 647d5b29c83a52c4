//! Bytes on their way to a client that takes them when it likes.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// What waits to go out by a stream socket.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// What goes out next, to be appended to.
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// How many bytes wait.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether none does.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sends what the socket takes now.
    ///
    /// # Errors
    /// When nobody is at its other end.
    pub(crate) fn flush(&mut self, socket: impl AsFd) -> Result<(), Errno> {
        while !self.is_empty() {
            match send(&socket, &self.bytes[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}
