//! One core's requests of encrypted volumes.
//!
//! ```text
//!            admit            turn: encrypt            ended                 turn: decrypt
//!  Request ────────▶ turns ─────────────────▶ under way ──────▶ (read) turns ──────────────▶ next piece, or Done
//!                      │ ▲                        │
//!      no memory left  ▼ │ some was given back    └──────────▶ (write) next piece, or Done
//!                     short
//! ```
//!
//! The caller carries what is [asked](Next::Ask) to the back ends and what those answer to [`Stage::ended`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use rustix::io::Errno;
use softdpu_accel::Xts;
use softdpu_memory::{GuestBuffer, View};
use zeroize::Zeroizing;

use super::lender::{Lender, Lent};
use super::{PIECE, STEP};
use crate::{Done, IoError, Op, Request, Volume};

/// Bytes that are copied and worked on at a time: they stay in the fastest cache between their two copies.
const SCRATCH: usize = 8 << 10;

/// A read, a write or a write-zeroes.
struct Job {
    attachment: u32,
    volume: Arc<Volume>,
    /// As its guest asked for it.
    request: Request,
    /// Where the data starts in the guest's buffer.
    skip: u64,
    /// Bytes behind us.
    done: u64,
}

/// A job that the core has something to do for.
struct Turn {
    job: Job,
    /// What was read, still encrypted.
    read: Option<(Lent, GuestBuffer)>,
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
    turns: VecDeque<Turn>,
    /// By token.
    under_way: HashMap<u64, UnderWay>,
    /// By attachment: what waits for memory.
    short: Vec<VecDeque<Job>>,
    waiting: usize,
    /// Some of what waits may go on.
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
        self.turns.len() + self.waiting
    }

    /// Whether there is something to do at once.
    pub(crate) fn has_turns(&self) -> bool {
        !self.turns.is_empty() || self.given_back && self.waiting > 0
    }

    /// Whether requests wait for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.waiting > 0
    }

    /// Has what waits looked at again: memory may have come back without a word.
    pub(crate) fn tick(&mut self) {
        self.given_back |= self.waiting > 0;
    }

    /// Takes a request of an encrypted volume.
    pub(crate) fn admit(&mut self, attachment: u32, volume: &Arc<Volume>, xts: &Xts, request: Request) -> Admitted {
        if let Err(error) = volume.admit(&request) {
            volume.count(error);
            return Admitted::Ended(request.end(Err(error)));
        }
        if request.is_idle(volume) {
            return Admitted::Ended(request.end(Ok(())));
        }
        if matches!(request.op, Op::Flush | Op::Discard) {
            return Admitted::Pass(request);
        }
        let whole = (request.offset | request.len).is_multiple_of(u64::from(xts.sector_size()));
        if !whole || !request.has_data() {
            // Its driver was told the block size, which is at least a sector's.
            return Admitted::Ended(request.end(Err(invalid())));
        }
        let skip = request.buffer.len_of(0..request.data.start);
        let job = Job { attachment, volume: Arc::clone(volume), request, skip, done: 0 };
        match self.short.get_mut(attachment as usize).filter(|short| !short.is_empty()) {
            Some(short) => {
                short.push_back(job);
                self.waiting += 1;
            }
            None => self.turns.push_back(Turn { job, read: None }),
        }
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
        if job.request.op == Op::Read {
            self.turns.push_back(Turn { job, read: Some((lent, done.buffer)) });
            return None;
        }
        job.done += done.buffer.len();
        self.take_back(lent, &done.buffer);
        if job.done >= job.request.len {
            return Some(job.request.end(Ok(())));
        }
        self.turns.push_back(Turn { job, read: None });
        None
    }

    /// Does what is next, if anything is and `room`, bytes, is left; call until it has nothing more to tell.
    pub(crate) fn turn(&mut self, room: &mut u64) -> Option<Next> {
        if self.given_back {
            self.given_back = false;
            for attachment in 0..self.short.len() {
                self.next_in_line(attachment as u32);
            }
        }
        if *room == 0 {
            return None;
        }
        let Turn { mut job, read } = self.turns.pop_front()?;
        if self.scratch.is_empty() {
            self.scratch.resize(SCRATCH, 0);
        }
        if let Some((lent, buffer)) = read {
            *room -= buffer.len().min(*room);
            let decrypted = job.decrypt(&buffer, &mut self.scratch);
            job.done += buffer.len();
            self.take_back(lent, &buffer);
            if decrypted.is_err() || job.done >= job.request.len {
                return Some(Next::Ended(job.request.end(decrypted)));
            }
        }
        let piece = (job.request.len - job.done).min(PIECE);
        let attachment = job.attachment;
        let Some((lent, buffer)) = self.lender.lend(attachment, piece) else {
            let index = attachment as usize;
            if index >= self.short.len() {
                self.short.resize_with(index + 1, VecDeque::new);
            }
            // It was the first of its line, or there was none.
            self.short[index].push_front(job);
            self.waiting += 1;
            return Some(Next::Waits);
        };
        self.next_in_line(attachment);
        if job.request.op != Op::Read {
            *room -= piece.min(*room);
            if let Err(error) = job.encrypt(&buffer, &mut self.scratch) {
                self.take_back(lent, &buffer);
                return Some(Next::Ended(job.request.end(Err(error))));
            }
        }
        let request = Request {
            token: job.request.token,
            op: if job.request.op == Op::Read { Op::Read } else { Op::Write },
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

    /// The first that waits at an attachment has a turn.
    fn next_in_line(&mut self, attachment: u32) {
        if let Some(job) = self.short.get_mut(attachment as usize).and_then(VecDeque::pop_front) {
            self.waiting -= 1;
            self.turns.push_back(Turn { job, read: None });
        }
    }

    fn take_back(&mut self, lent: Lent, buffer: &GuestBuffer) {
        self.lender.take_back(lent, buffer);
        self.given_back |= self.waiting > 0;
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
        let mut stays = |job: &Job| {
            let gone = gone(job);
            if gone {
                job.volume.count_abandoned();
                given_up.push(job.request.token);
            }
            !gone
        };
        for turn in std::mem::take(&mut self.turns) {
            if stays(&turn.job) {
                self.turns.push_back(turn);
            } else if let Some((lent, buffer)) = turn.read {
                self.lender.take_back(lent, &buffer);
                self.given_back = true;
            }
        }
        for short in &mut self.short {
            short.retain(&mut stays);
        }
        self.waiting = self.short.iter().map(VecDeque::len).sum();
    }
}

impl Job {
    /// Copies the next piece of what is to be written, or zeroes, into `to`, encrypted.
    fn encrypt(&self, to: &GuestBuffer, scratch: &mut [u8]) -> Result<(), IoError> {
        let Some(xts) = self.volume.cipher() else { return Err(IoError::Gone) };
        self.steps(to.len(), scratch, |at, from_guest, offset, scratch| {
            match self.request.op {
                Op::Write => self.request.buffer.read_at(from_guest, scratch).map_err(|_| invalid())?,
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
