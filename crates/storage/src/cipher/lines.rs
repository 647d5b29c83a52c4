//! Who of those that share a core is next to have something encrypted or decrypted: a line each.
//!
//! Lines take turns of [`QUANTUM`] bytes (surplus round robin), unless whoever asks has another order. So what one has
//! waiting, however much, delays nobody else's by more than a turn.

use std::collections::VecDeque;

use softdpu_memory::GuestBuffer;

use super::PIECE;
use super::lender::Lent;
use super::stage::Job;

/// What a line has a turn for, bytes: some 6 µs. A piece is never divided, so a turn may be as long as that.
pub(crate) const QUANTUM: u64 = 16 << 10;

/// A job that the core has something to do for.
pub(super) enum Turn {
    /// Its next piece is to be asked for.
    Begin(Job),
    /// A piece was read, and is still encrypted.
    Open(Job, Lent, GuestBuffer),
}

#[derive(Default)]
struct Line {
    /// Pieces that were read. They go first: that gives memory back.
    read: VecDeque<(Job, Lent, GuestBuffer)>,
    jobs: VecDeque<Job>,
    /// The first of the jobs waits for memory.
    is_short: bool,
    /// It is among those that have something to do at once.
    is_listed: bool,
    /// Bytes beyond its turn.
    owes: u64,
}

impl Line {
    fn is_empty(&self) -> bool {
        self.read.is_empty() && self.jobs.is_empty()
    }

    fn can_run(&self) -> bool {
        !self.read.is_empty() || !self.jobs.is_empty() && !self.is_short
    }

    fn first(&self) -> Option<&Job> {
        self.read.front().map(|(job, ..)| job).or(self.jobs.front())
    }
}

/// All lines of a core, by number.
#[derive(Default)]
pub(super) struct Lines {
    lines: Vec<Line>,
    /// Those with something to do at once, who is next first.
    order: VecDeque<u32>,
    /// Jobs.
    len: usize,
    /// Lines that wait for memory.
    short: usize,
}

impl Lines {
    /// Jobs in all lines.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Whether a line has none.
    pub(super) fn is_empty(&self, line: u32) -> bool {
        self.lines.get(line as usize).is_none_or(Line::is_empty)
    }

    /// Whether there is something to do at once.
    #[inline]
    pub(super) fn can_run(&self) -> bool {
        !self.order.is_empty()
    }

    /// Whether jobs wait for memory.
    pub(super) fn are_short(&self) -> bool {
        self.short > 0
    }

    fn line(&mut self, line: u32) -> &mut Line {
        let index = line as usize;
        if index >= self.lines.len() {
            self.lines.resize_with(index + 1, Line::default);
        }
        &mut self.lines[index]
    }

    fn list(&mut self, line: u32) {
        let record = self.line(line);
        if record.can_run() && !record.is_listed {
            record.is_listed = true;
            self.order.push_back(line);
        }
    }

    /// A job is the last of its line.
    pub(super) fn push(&mut self, job: Job) {
        let line = job.line;
        self.line(line).jobs.push_back(job);
        self.len += 1;
        self.list(line);
    }

    /// A piece of a job was read.
    pub(super) fn push_read(&mut self, job: Job, lent: Lent, buffer: GuestBuffer) {
        let line = job.line;
        self.line(line).read.push_back((job, lent, buffer));
        self.len += 1;
        self.list(line);
    }

    /// The first job of its line waits for memory.
    pub(super) fn hold(&mut self, job: Job) {
        let line = job.line;
        let record = self.line(line);
        record.jobs.push_front(job);
        if !std::mem::replace(&mut record.is_short, true) {
            self.short += 1;
        }
        self.len += 1;
        self.settle(line);
    }

    /// Memory may be there again: those that wait for it go on as it is their turn.
    pub(super) fn release(&mut self) {
        for line in 0..self.lines.len() as u32 {
            if std::mem::take(&mut self.lines[line as usize].is_short) {
                self.short -= 1;
                self.list(line);
            }
        }
    }

    /// Lines that have something to do, who is next first, each with the token of its first job.
    pub(super) fn in_order(&mut self) -> impl Iterator<Item = (u32, u64)> {
        while let Some(&first) = self.order.front()
            && self.order.len() > 1
            && self.lines[first as usize].owes >= QUANTUM
        {
            self.lines[first as usize].owes -= QUANTUM;
            self.order.rotate_left(1);
        }
        let lines = &self.lines;
        self.order.iter().filter_map(|&line| Some((line, lines[line as usize].first()?.request.token)))
    }

    /// Takes out what is first in a line.
    pub(super) fn pop(&mut self, line: u32) -> Option<Turn> {
        let record = self.lines.get_mut(line as usize).filter(|record| record.can_run())?;
        let turn = match record.read.pop_front() {
            Some((job, lent, buffer)) => Turn::Open(job, lent, buffer),
            None => Turn::Begin(record.jobs.pop_front()?),
        };
        self.len -= 1;
        self.settle(line);
        Some(turn)
    }

    /// A line had a turn, of so many bytes: the others are next.
    pub(super) fn had(&mut self, line: u32, bytes: u64) {
        let record = self.line(line);
        if record.is_empty() {
            record.owes = 0;
            return;
        }
        // What it has had of its turn without ending it is not looked at: it is less than a quantum.
        record.owes = (record.owes + bytes.saturating_sub(QUANTUM)).min(PIECE);
        if let Some(at) = self.order.iter().position(|other| *other == line) {
            self.order.remove(at);
            self.order.push_back(line);
        }
    }

    /// A line that may have nothing more to do is in no order.
    fn settle(&mut self, line: u32) {
        let record = &mut self.lines[line as usize];
        if record.is_listed && !record.can_run() {
            record.is_listed = false;
            self.order.retain(|other| *other != line);
        }
    }

    /// Drops jobs, and tells what each had been lent.
    pub(super) fn drop_where(
        &mut self,
        mut gone: impl FnMut(&Job) -> bool,
        mut give_back: impl FnMut(Lent, &GuestBuffer),
    ) {
        for record in &mut self.lines {
            record.read.retain(|(job, lent, buffer)| {
                let gone = gone(job);
                if gone {
                    give_back(*lent, buffer);
                }
                !gone
            });
            record.jobs.retain(|job| !gone(job));
            if record.jobs.is_empty() && std::mem::take(&mut record.is_short) {
                self.short -= 1;
            }
        }
        self.len = self.lines.iter().map(|record| record.read.len() + record.jobs.len()).sum();
        for line in 0..self.lines.len() as u32 {
            self.settle(line);
        }
    }
}
