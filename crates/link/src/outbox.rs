//! Bytes on their way to a client that takes them when it likes.

use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

/// What waits to go out by a stream socket.
#[derive(Debug, Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
}

impl Outbox {
    /// What goes out next, to be appended to.
    pub fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// What waits.
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    /// How many bytes wait.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A client that never takes everything would otherwise have all that it ever took kept for it.
    fn forget_sent(&mut self) {
        if self.sent >= self.bytes.len() / 2 {
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Sends what the socket takes now.
    ///
    /// # Errors
    /// When its other end is closed.
    pub fn flush(&mut self, socket: impl AsFd) -> Result<(), Errno> {
        while !self.is_empty() {
            match send(&socket, &self.bytes[self.sent..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.forget_sent();
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        self.bytes.clear();
        self.sent = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_a_slow_client_has_taken_is_not_kept() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut outbox = Outbox::default();
        let (mut most, mut taken, mut put) = (0, Vec::<u8>::new(), Vec::<u8>::new());
        for round in 0..2000u32 {
            while outbox.len() < 1 << 20 {
                let piece = round.to_le_bytes().repeat(4096);
                put.extend(&piece[..4]);
                outbox.bytes().extend(piece);
            }
            outbox.flush(&ours).unwrap();
            assert!(!outbox.is_empty(), "it never takes everything");
            most = most.max(outbox.bytes.len());
            let mut some = vec![0; 1 << 16];
            theirs.read_exact(&mut some).unwrap();
            taken.extend(some.chunks(4 * 4096).flat_map(|piece| piece[..4].to_vec()));
        }
        assert!(most < 4 << 20, "{most} bytes are kept");
        assert_eq!(taken[..], put[..taken.len()], "in order, none lost");
    }
}
