//! What became of the requests of encrypted volumes so far.

use std::sync::Arc;

use rustix::io::Errno;
use softdpu_memory::{GuestBuffer, View};

use super::lender::Loan;
use super::{PIECE, STEP};
use crate::{BlockOp, IoError, Request, Volume};

/// Bytes that are copied and worked on at a time: they stay in the fastest cache between their two copies.
pub(super) const SCRATCH: usize = 8 << 10;

/// A read, a write or a write-zeroes, done a piece at a time.
pub(super) struct Job {
    pub channel: u32,
    pub attachment: u32,
    pub volume: Arc<Volume>,
    /// As its guest asked for it.
    pub request: Request,
    /// Where the data starts in the guest's buffer.
    pub skip: u64,
    /// Bytes behind us.
    pub done: u64,
    /// The piece that comes next.
    pub piece: Piece,
}

/// Private memory for a piece of a job.
pub(super) enum Piece {
    /// It has none.
    Unlent,
    /// It is here: to be encrypted, or decrypted.
    Here(Loan, GuestBuffer),
    /// A back end has it.
    UnderWay(Loan, Arc<View>),
}

/// Which job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct JobId(u32);

/// A slab of jobs. Grows to the most that there ever were, then allocates no more.
#[derive(Default)]
pub(super) struct Jobs {
    slots: Vec<Option<Job>>,
    free: Vec<JobId>,
}

impl Jobs {
    #[inline]
    pub(super) fn insert(&mut self, job: Job) -> JobId {
        let id = self.free.pop().unwrap_or_else(|| self.grow());
        // In one place, so that it is written there and not first somewhere else.
        self.slots[id.0 as usize] = Some(job);
        id
    }

    /// One more slot.
    #[cold]
    fn grow(&mut self) -> JobId {
        self.slots.push(None);
        JobId(self.slots.len() as u32 - 1)
    }

    #[inline]
    pub(super) fn get(&self, id: JobId) -> Option<&Job> {
        self.slots.get(id.0 as usize)?.as_ref()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, id: JobId) -> Option<&mut Job> {
        self.slots.get_mut(id.0 as usize)?.as_mut()
    }

    #[inline]
    pub(super) fn remove(&mut self, id: JobId) -> Option<Job> {
        let job = self.slots.get_mut(id.0 as usize)?.take()?;
        self.free.push(id);
        Some(job)
    }
}

impl Job {
    /// Bytes of the piece that comes next.
    #[inline]
    pub(super) fn next_len(&self) -> u64 {
        (self.request.len - self.done).min(PIECE)
    }

    /// Copies the next piece of what is to be written, or zeroes, into `to`, encrypted.
    pub(super) fn encrypt(&self, to: &GuestBuffer, scratch: &mut [u8]) -> Result<(), IoError> {
        let Some(xts) = self.volume.cipher() else { return Err(IoError::Gone) };
        self.steps(to.len(), scratch, |at, from_guest, offset, scratch| {
            match self.request.op {
                BlockOp::Write => self.request.buffer.read_at(from_guest, scratch).map_err(|_| invalid())?,
                _ => scratch.fill(0),
            }
            xts.encrypt(offset, scratch);
            to.write_at(at, scratch).map_err(|_| invalid())
        })
    }

    /// Copies the next piece of what was read out of `from` to the guest, decrypted.
    pub(super) fn decrypt(&self, from: &GuestBuffer, scratch: &mut [u8]) -> Result<(), IoError> {
        let Some(xts) = self.volume.cipher() else { return Err(IoError::Gone) };
        self.steps(from.len(), scratch, |at, to_guest, offset, scratch| {
            from.read_at(at, scratch).map_err(|_| invalid())?;
            xts.decrypt(offset, scratch);
            self.request.buffer.write_at(to_guest, scratch).map_err(|_| invalid())
        })
    }

    /// Goes through a piece of `len` bytes: where in the piece, where in the guest's buffer, where on the volume, and
    /// the scratch for it.
    fn steps(
        &self,
        len: u64,
        scratch: &mut [u8],
        mut each: impl FnMut(u64, u64, u64, &mut [u8]) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let mut at = 0;
        while at < len {
            let part = (len - at).min(scratch.len() as u64);
            let offset = self.request.offset + self.done + at;
            each(at, self.skip + self.done + at, offset, &mut scratch[..part as usize])?;
            at += part;
        }
        Ok(())
    }
}

pub(super) fn invalid() -> IoError {
    IoError::Device { errno: Errno::INVAL.raw_os_error() }
}

const _: () =
    assert!(PIECE <= STEP && SCRATCH.is_multiple_of(4096), "pieces are worked on whole, and in whole sectors");
