//! One core's requests of encrypted volumes.
//!
//! ```text
//!            admit              feed                engine              back end
//!  Request ────────▶ channel ─────────▶ ring (write) ──────▶ under way ────────▶ next piece, or Done
//!                    │ ▲  ▲  └──────────────────(read)─────▶ under way ──┐
//!    no memory left  ▼ │  └──────────── piece read ◀─────────────────────┘
//!                  blocked              ring (read) ────────▶ next piece, or Done
//! ```
//!
//! Channels and ring are the accelerator's [`Service`], the engine is [`Xts`]. The caller carries what is
//! [asked](Next::Ask) to the back ends and what those answer to [`Stage::ended`]. It says which channel is next, of
//! those [in order](Stage::in_order).

use std::collections::HashMap;
use std::sync::Arc;

use softdpu_accel::{Service, Xts};
use zeroize::Zeroizing;

use super::jobs::{Job, JobId, Jobs, Piece, SCRATCH, invalid};
use super::lender::Lender;
use crate::{BlockOp, Done, IoError, Request, Volume};

/// What it takes to ask a back end for a piece, in bytes that are encrypted meanwhile, about.
const ASK: u64 = 1 << 10;

/// What waits in a channel.
#[derive(Clone, Copy)]
enum Waiting {
    /// The next piece of a job. It is to be asked of a back end, encrypted before that if it is to be written.
    Start(JobId),
    /// A piece that was read, and is still encrypted. It goes ahead, as that gives memory back.
    Finish(JobId),
}

impl Waiting {
    fn job(self) -> JobId {
        match self {
            Waiting::Start(id) | Waiting::Finish(id) => id,
        }
    }
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

/// What came of some work.
pub(crate) enum Next {
    /// This is to be asked of the back end of that attachment.
    Ask(u32, Request),
    /// A request has ended.
    Ended(Done),
}

/// What is between the devices and the back ends of encrypted volumes.
#[derive(Default)]
pub(crate) struct Stage {
    /// An entry of its ring is a job with its piece in memory. What is read is decrypted, anything else encrypted.
    accelerator: Service<Waiting, JobId>,
    jobs: Jobs,
    /// Those of which a back end has a piece, by token.
    under_way: HashMap<u64, JobId>,
    /// Private memory came back while channels were blocked for it.
    unblocks: bool,
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
        self.accelerator.waiting()
    }

    /// Whether nothing waits in a channel.
    pub(crate) fn is_empty(&self, channel: u32) -> bool {
        self.accelerator.is_empty(channel)
    }

    /// Whether there is something to do at once.
    #[inline]
    pub(crate) fn has_turns(&self) -> bool {
        self.accelerator.can_run() || self.unblocks && self.accelerator.has_blocked()
    }

    /// Whether requests wait for memory.
    pub(crate) fn is_short(&self) -> bool {
        self.accelerator.has_blocked()
    }

    /// Has blocked channels try again: memory may have come back without a word.
    pub(crate) fn tick(&mut self) {
        self.unblocks |= self.accelerator.has_blocked();
    }

    /// Channels for which there is something to do, the next first, each with the token of its first request.
    pub(crate) fn in_order(&mut self) -> impl Iterator<Item = (u32, u64)> {
        if std::mem::take(&mut self.unblocks) {
            self.accelerator.unblock();
        }
        let Stage { accelerator, jobs, .. } = self;
        accelerator.in_order().filter_map(|(channel, waiting)| Some((channel, jobs.get(waiting.job())?.request.token)))
    }

    /// Takes a request of an encrypted volume.
    pub(crate) fn admit(
        &mut self,
        channel: u32,
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
            // Its driver has read the block size, which is at least a sector's.
            return Admitted::Ended(request.end(Err(invalid())));
        }
        let skip = request.buffer.len_of(0..request.data.start);
        let volume = Arc::clone(volume);
        let job = self.jobs.insert(Job { channel, attachment, volume, request, skip, done: 0, piece: Piece::Unlent });
        self.accelerator.enqueue(channel, Waiting::Start(job));
        Admitted::Taken
    }

    /// A back end has answered: the end of a request, if it is one.
    pub(crate) fn ended(&mut self, done: Done) -> Option<Done> {
        let Some(id) = self.under_way.remove(&done.token) else { return Some(done) };
        let job = self.jobs.get_mut(id)?;
        let Piece::UnderWay(lent, _) = job.piece else { return None };
        if done.result.is_ok() && job.request.op == BlockOp::Read {
            job.piece = Piece::Here(lent, done.buffer);
            self.accelerator.enqueue_ahead(job.channel, Waiting::Finish(id));
            return None;
        }
        job.done += done.buffer.len();
        job.piece = Piece::Here(lent, done.buffer);
        if done.result.is_err() || job.done >= job.request.len {
            return self.end(id, done.result);
        }
        let channel = job.channel;
        self.take_back(id);
        self.accelerator.enqueue(channel, Waiting::Start(id));
        None
    }

    /// Goes on with a channel, until `most` bytes are served: adds to `served` what it feeds into the ring. Call until
    /// it has nothing more to tell; the ring is empty then.
    pub(crate) fn step(&mut self, channel: u32, most: u64, served: &mut u64) -> Option<Next> {
        loop {
            let asks = self.feed(channel, most, served);
            if asks.is_some() {
                return asks;
            }
            let id = self.accelerator.take()?;
            let next = self.run(id, served);
            if next.is_some() {
                return next;
            }
        }
    }

    /// Fills the ring, up to a read, which goes to its back end as it is.
    fn feed(&mut self, channel: u32, most: u64, served: &mut u64) -> Option<Next> {
        while *served < most && self.accelerator.has_room() {
            match self.accelerator.dequeue(channel)? {
                Waiting::Finish(id) => {
                    *served += self.jobs.get(id).map_or(0, Job::next_len);
                    self.accelerator.post(id);
                }
                Waiting::Start(id) => {
                    if !self.lend(id) {
                        continue;
                    }
                    *served += ASK;
                    let job = self.jobs.get(id)?;
                    if job.request.op == BlockOp::Read {
                        return self.ask(id);
                    }
                    *served += job.next_len();
                    self.accelerator.post(id);
                }
            }
        }
        None
    }

    /// Lends private memory to the next piece of a job. Without any its channel is blocked.
    fn lend(&mut self, id: JobId) -> bool {
        let Some(job) = self.jobs.get_mut(id) else { return false };
        match self.lender.lend(job.attachment, job.next_len()) {
            Some((lent, buffer)) => {
                job.piece = Piece::Here(lent, buffer);
                true
            }
            None => {
                self.accelerator.block(job.channel, Waiting::Start(id));
                false
            }
        }
    }

    /// Asks a back end for the piece that is here.
    fn ask(&mut self, id: JobId) -> Option<Next> {
        let job = self.jobs.get_mut(id)?;
        let Piece::Here(lent, buffer) = std::mem::replace(&mut job.piece, Piece::Unlent) else { return None };
        job.piece = Piece::UnderWay(lent, Arc::clone(buffer.view()));
        let request = Request {
            token: job.request.token,
            op: if job.request.op == BlockOp::Read { BlockOp::Read } else { BlockOp::Write },
            offset: job.request.offset + job.done,
            len: buffer.len(),
            data: 0..buffer.pieces(),
            durable: job.request.durable,
            buffer,
        };
        self.under_way.insert(request.token, id);
        Some(Next::Ask(job.attachment, request))
    }

    /// The engine: encrypts or decrypts the piece of a job that is here.
    fn run(&mut self, id: JobId, served: &mut u64) -> Option<Next> {
        if self.scratch.is_empty() {
            self.scratch.resize(SCRATCH, 0);
        }
        let job = self.jobs.get_mut(id)?;
        let Piece::Here(_, buffer) = &job.piece else { return None };
        if job.request.op != BlockOp::Read {
            return match job.encrypt(buffer, &mut self.scratch) {
                Ok(()) => self.ask(id),
                Err(error) => self.end(id, Err(error)).map(Next::Ended),
            };
        }
        let decrypted = job.decrypt(buffer, &mut self.scratch);
        job.done += buffer.len();
        if decrypted.is_err() || job.done >= job.request.len {
            return self.end(id, decrypted).map(Next::Ended);
        }
        self.take_back(id);
        if !self.lend(id) {
            return None;
        }
        *served += ASK;
        self.ask(id)
    }

    /// Ends a turn of a channel, in which so many bytes were served.
    pub(crate) fn end_turn(&mut self, channel: u32, bytes: u64) {
        self.accelerator.end_turn(channel, bytes);
    }

    fn end(&mut self, id: JobId, result: Result<(), IoError>) -> Option<Done> {
        self.take_back(id);
        Some(self.jobs.remove(id)?.request.end(result))
    }

    /// Takes back the memory of a piece that is here.
    fn take_back(&mut self, id: JobId) {
        let Some(job) = self.jobs.get_mut(id) else { return };
        if let Piece::Here(lent, buffer) = std::mem::replace(&mut job.piece, Piece::Unlent) {
            self.lender.take_back(lent, &buffer);
            self.unblocks |= self.accelerator.has_blocked();
        }
    }

    /// Forgets what back ends have given up since `from` of `given_up`, then gives up what matches and no back end has.
    pub(crate) fn abandon(&mut self, matches: &mut dyn FnMut(u64) -> bool, given_up: &mut Vec<u64>, from: usize) {
        for token in &given_up[from..] {
            self.forget(*token);
        }
        self.drop_where(|job| matches(job.request.token), given_up);
    }

    /// Ends what belongs to an attachment once its back end has let go of everything.
    pub(crate) fn detach(&mut self, attachment: u32) {
        let is_of = |id: &JobId| self.jobs.get(*id).is_some_and(|job| job.attachment == attachment);
        let tokens: Vec<u64> = self.under_way.iter().filter(|(_, id)| is_of(id)).map(|(token, _)| *token).collect();
        for token in tokens {
            self.forget(token);
        }
        self.drop_where(|job| job.attachment == attachment, &mut Vec::new());
    }

    /// Forgets a request of which a back end served a piece. The kernel may still use its memory.
    fn forget(&mut self, token: u64) {
        let Some(id) = self.under_way.remove(&token) else { return };
        if let Some(Job { piece: Piece::UnderWay(lent, view), .. }) = self.jobs.remove(id) {
            self.lender.take_back_later(lent, view);
        }
    }

    fn drop_where(&mut self, mut gone: impl FnMut(&Job) -> bool, given_up: &mut Vec<u64>) {
        let Stage { accelerator, jobs, lender, unblocks, .. } = self;
        accelerator.retain(|waiting| {
            let id = waiting.job();
            if !jobs.get(id).is_some_and(&mut gone) {
                return true;
            }
            if let Some(job) = jobs.remove(id) {
                job.volume.count_abandoned();
                given_up.push(job.request.token);
                if let Piece::Here(lent, buffer) = &job.piece {
                    lender.take_back(*lent, buffer);
                    *unblocks = true;
                }
            }
            false
        });
    }
}
