//! One core's requests of encrypted volumes.
//!
//! ```text
//!            admit            turn: encrypt            ended                 turn: decrypt
//!  Request ────────▶ line ──────────────────▶ under way ──────▶ (read) line ───────────────▶ next piece, or Done
//!                    │ ▲                          │
//!    no memory left  ▼ │ some was given back      └──────────▶ (write) line: next piece, or Done
//!                    short
//! ```
//!
//! The caller carries what is [asked](Next::Ask) to the back ends and what those answer to [`Stage::ended`]. Whose turn it is, is the caller's to
//! say, or that of the [lines](Lines).

use std::collections::HashMap;
use std::sync::Arc;

use rustix::io::Errno;
use softdpu_accel::Xts;
use softdpu_memory::{GuestBuffer, View};
use zeroize::Zeroizing;

use super::lender::{Lender, Lent};
use super::lines::{Lines, Turn};
use super::{PIECE, STEP};
use crate::{BlockOp, Done, IoError, Request, Volume};

/// Bytes that are copied and worked on at a time: they stay in the fastest cache between their two copies.
const SCRATCH: usize = 8 << 10;

/// What it takes to ask a back end for a piece, in bytes that are encrypted meanwhile, about.
const ASK: u64 = 1 << 10;

/// A read, a write or a write-zeroes.
pub(super) struct Job {
    /// Whose it is, by number.
    pub(super) line: u32,
    attachment: u32,
    volume: Arc<Volume>,
    /// As its guest asked for it.
    pub(super) request: Request,
    /// Where the data starts in the guest's buffer.
    skip: u64,
    /// Bytes behind us.
    done: u64,
}

/// A job of which a back end has a piece.
struct UnderWay {
    job: Job,
    lent: Lent,
    view: Arc<View>,
}

/// What became of a request at first.
pub(crate) enum Admitted {
    /// It is for the back end as it is.
    Pass(Request),
    /// It has ended.
    Ended(Done),
    /// It is here.
    Taken,
}

/// What a turn led to.
pub(crate) enum Next {
    /// This is to be asked of the back end of that attachment.
    Ask(u32, Request),
    /// A request has ended.
    Ended(Done),
    /// It waits for memory.
    Waits,
}

/// What is between the devices and the back ends of encrypted volumes.
#[derive(Default)]
pub(crate) struct Stage {
    lines: Lines,
    /// By token.
    under_way: HashMap<u64, UnderWay>,
    /// Some of what waits for memory may go on.
    given_back: bool,
    lender: Lender,
    /// Made when there is an encrypted volume.
    scratch: Zeroizing<Vec<u8>>,
}

impl Stage {
    /// Whether nothing is here or under way.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding() == 0 && self.under_way.is_empty()
    }

    /// Requests that no back end has.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.lines.len()
    }

    /// Whether a line has nothing here that no back end has.
    pub(crate) fn is_quiet(&self, line: u32) -> bool {
        self.lines.is_empty(line)
    }

    /// Whether there is something to do at once.
    #[inline]
    pub(crate) fn has_turns(&self) -> bool {
        self.lines.can_run() || self.given_back && self.lines.are_short()
    }

    /// Whether requests wait for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.lines.are_short()
    }

    /// Has what waits looked at again: memory may have come back without a word.
    pub(crate) fn tick(&mut self) {
        self.given_back |= self.lines.are_short();
    }

    /// Lines for which there is something to do, in the order of their turns, each with the token of the request that is next there.
    pub(crate) fn in_order(&mut self) -> impl Iterator<Item = (u32, u64)> {
        if std::mem::take(&mut self.given_back) {
            self.lines.release();
        }
        self.lines.in_order()
    }

    /// Takes a request of an encrypted volume.
    pub(crate) fn admit(
        &mut self,
        line: u32,
        attachment: u32,
        volume: &Arc<Volume>,
        xts: &Xts,
        request: Request,
    ) -> Admitted {
        if let Err(error) = volume.admit(&request) {
            volume.count(error);
            return Admitted::Ended(request.end(Err(error)));
        }
        if request.is_idle(volume) {
            return Admitted::Ended(request.end(Ok(())));
        }
        if matches!(request.op, BlockOp::Flush | BlockOp::Discard) {
            return Admitted::Pass(request);
        }
        let whole = (request.offset | request.len).is_multiple_of(u64::from(xts.sector_size()));
        if !whole || !request.has_data() {
            // Its driver was told the block size, which is at least a sector's.
            return Admitted::Ended(request.end(Err(invalid())));
        }
        let skip = request.buffer.len_of(0..request.data.start);
        self.lines.push(Job { line, attachment, volume: Arc::clone(volume), request, skip, done: 0 });
        Admitted::Taken
    }

    /// A back end has answered: the end of a request, if it is one.
    pub(crate) fn ended(&mut self, done: Done) -> Option<Done> {
        let Some(UnderWay { mut job, lent, view }) = self.under_way.remove(&done.token) else { return Some(done) };
        drop(view);
        if let Err(error) = done.result {
            self.take_back(lent, &done.buffer);
            return Some(job.request.end(Err(error)));
        }
        if job.request.op == BlockOp::Read {
            self.lines.push_read(job, lent, done.buffer);
            return None;
        }
        job.done += done.buffer.len();
        self.take_back(lent, &done.buffer);
        if job.done >= job.request.len {
            return Some(job.request.end(Ok(())));
        }
        self.lines.push(job);
        None
    }

    /// Does what is first in a line, unless it has [had](Self::had) `most` bytes. Call until it has nothing more to tell.
    pub(crate) fn turn(&mut self, line: u32, most: u64, had: &mut u64) -> Option<Next> {
        if *had >= most {
            return None;
        }
        if self.scratch.is_empty() {
            self.scratch.resize(SCRATCH, 0);
        }
        let job = match self.lines.pop(line)? {
            Turn::Begin(job) => job,
            Turn::Open(mut job, lent, buffer) => {
                *had += buffer.len();
                let decrypted = job.decrypt(&buffer, &mut self.scratch);
                job.done += buffer.len();
                self.take_back(lent, &buffer);
                if decrypted.is_err() || job.done >= job.request.len {
                    return Some(Next::Ended(job.request.end(decrypted)));
                }
                job
            }
        };
        let piece = (job.request.len - job.done).min(PIECE);
        let attachment = job.attachment;
        let Some((lent, buffer)) = self.lender.lend(attachment, piece) else {
            self.lines.hold(job);
            return Some(Next::Waits);
        };
        if job.request.op != BlockOp::Read {
            *had += piece;
            if let Err(error) = job.encrypt(&buffer, &mut self.scratch) {
                self.take_back(lent, &buffer);
                return Some(Next::Ended(job.request.end(Err(error))));
            }
        }
        *had += ASK;
        let request = Request {
            token: job.request.token,
            op: if job.request.op == BlockOp::Read { BlockOp::Read } else { BlockOp::Write },
            offset: job.request.offset + job.done,
            len: piece,
            data: 0..buffer.pieces(),
            durable: job.request.durable,
            buffer,
        };
        let view = Arc::clone(request.buffer.view());
        self.under_way.insert(request.token, UnderWay { job, lent, view });
        Some(Next::Ask(attachment, request))
    }

    /// A turn of a line is over, in which it had so many bytes.
    pub(crate) fn had(&mut self, line: u32, bytes: u64) {
        self.lines.had(line, bytes);
    }

    fn take_back(&mut self, lent: Lent, buffer: &GuestBuffer) {
        self.lender.take_back(lent, buffer);
        self.given_back |= self.lines.are_short();
    }

    /// Forgets what back ends have given up since `from` of `given_up`, then gives up what matches and no back end has.
    pub(crate) fn abandon(&mut self, matches: &mut dyn FnMut(u64) -> bool, given_up: &mut Vec<u64>, from: usize) {
        for token in &given_up[from..] {
            if let Some(UnderWay { lent, view, .. }) = self.under_way.remove(token) {
                self.lender.take_back_later(lent, view);
            }
        }
        self.drop_where(|job| matches(job.request.token), given_up);
    }

    /// Ends what belongs to an attachment whose back end has let go of everything.
    pub(crate) fn detach(&mut self, attachment: u32) {
        let tokens: Vec<u64> =
            self.under_way.iter().filter(|(_, it)| it.job.attachment == attachment).map(|(token, _)| *token).collect();
        for token in tokens {
            if let Some(UnderWay { lent, view, .. }) = self.under_way.remove(&token) {
                self.lender.take_back_later(lent, view);
            }
        }
        self.drop_where(|job| job.attachment == attachment, &mut Vec::new());
    }

    fn drop_where(&mut self, mut gone: impl FnMut(&Job) -> bool, given_up: &mut Vec<u64>) {
        let Stage { lines, lender, given_back, .. } = self;
        let gone = |job: &Job| {
            let gone = gone(job);
            if gone {
                job.volume.count_abandoned();
                given_up.push(job.request.token);
            }
            gone
        };
        lines.drop_where(gone, |lent, buffer| {
            lender.take_back(lent, buffer);
            *given_back = true;
        });
    }
}

impl Job {
    /// Copies the next piece of what is to be written, or zeroes, into `to`, encrypted.
    fn encrypt(&self, to: &GuestBuffer, scratch: &mut [u8]) -> Result<(), IoError> {
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
    fn decrypt(&self, from: &GuestBuffer, scratch: &mut [u8]) -> Result<(), IoError> {
        let Some(xts) = self.volume.cipher() else { return Err(IoError::Gone) };
        self.steps(from.len(), scratch, |at, to_guest, offset, scratch| {
            from.read_at(at, scratch).map_err(|_| invalid())?;
            xts.decrypt(offset, scratch);
            self.request.buffer.write_at(to_guest, scratch).map_err(|_| invalid())
        })
    }

    /// Goes through a piece of `len` bytes: where in the piece, where in the guest's buffer, where on the volume, and the
    /// scratch for it.
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

fn invalid() -> IoError {
    IoError::Device { errno: Errno::INVAL.raw_os_error() }
}

const _: () =
    assert!(PIECE <= STEP && SCRATCH.is_multiple_of(4096), "pieces are worked on whole, and in whole sectors");
