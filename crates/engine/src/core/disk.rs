//! Requests of disks: from a queue's channel to its volume, and their ends back to the queue.

use softdpu_device::block::{self, BlockOp, Parsed, Status};
use softdpu_memory::GuestBuffer;
use softdpu_ring::Used;
use softdpu_sched::{Cost, Grant, Nanos, TenantScheduler};
use softdpu_storage::{Attachment, Done, IoError, Request};
use softdpu_sys::clock;

use super::Core;
use super::grants::Lookout;
use crate::flight::Flight;
use crate::ids::QueueKey;
use crate::message::Finished;
use crate::queue::{Role, RunningQueue, Unpublished};

/// How often in a grant that may be ended for who comes the clock is looked at, about, where it is not known how long its requests take:
/// at each request where they are few.
const LOOKS: usize = 8;

impl<S: TenantScheduler> Core<S> {
    /// Runs the requests of a disk that the scheduler granted at `started`. Returns what it cost, but the time.
    ///
    /// Where a volume answers each request while it is submitted, one after the other, the driver sees each answer before the
    /// next request is run, so that it can go on meanwhile. Its interrupt comes once, with the last.
    pub(super) fn run_requests(&mut self, number: u32, grant: Grant, started: u64) -> Cost {
        let Some(queue) = self.queues.get(number) else { return Cost::default() };
        let Some(attachment) = queue.attachment else { return Cost::default() };
        let units = (grant.units as usize).min(queue.waiting.len());
        let singly = self.io.answers_singly(attachment);
        let mut lookout = self.lookout(started);
        // Or somebody may come whose work does not wait for all of it.
        let between = (units / LOOKS).max(1);
        let is_single = singly || !self.urgent.is_empty();
        let (mut left, mut did, mut seen) = (units, Cost { units: units as u32, ..Cost::default() }, 0);
        let mut now = started;
        while left > 0 {
            let piece = match (is_single, lookout.is_needed()) {
                (true, _) => 1,
                (false, true) => self.until_look(number, &lookout, now).unwrap_or(between),
                (false, false) => units,
            };
            let piece = piece.min(left);
            let (moved, pending) = self.run_piece(number, attachment, grant, started, piece);
            did.pending += pending;
            let Some(moved) = moved else { break };
            did.bytes += moved;
            left -= piece;
            seen += piece;
            let may_look = lookout.is_needed() && (!is_single || left > 0 && seen >= between);
            if may_look {
                seen = 0;
                let ended = clock::now();
                if let Some(queue) = self.queues.get_mut(number) {
                    queue.request_ns = Some(ended.saturating_sub(now) / piece as u64).filter(|_| !is_single);
                }
                now = ended;
            }
            if left > 0 && self.is_called(grant.queue.tenant)
                || left > 0 && may_look && self.is_awaited(number, grant.queue.tenant, &mut lookout, now)
            {
                did.units = (units - left) as u32;
                break;
            }
            if left > 0 && singly {
                self.complete(number);
            }
        }
        did
    }

    /// How many requests of a queue are done until the next look, by what those took that were done last. None: that is not known.
    #[inline]
    pub(super) fn until_look(&self, number: u32, lookout: &Lookout, now: u64) -> Option<usize> {
        let each = self.queues.get(number)?.request_ns?;
        let time = lookout.next.saturating_sub(now).max(1);
        usize::try_from(time.div_ceil(each.max(1))).ok()
    }

    /// Hands the first `units` waiting requests to the volume. Returns their bytes, none where the queue has ended or is
    /// broken, and how many of them the back end still has.
    fn run_piece(
        &mut self,
        number: u32,
        attachment: Attachment,
        grant: Grant,
        started: u64,
        units: usize,
    ) -> (Option<u64>, u32) {
        let Some((queue, unpublished)) = self.queues.get_to_finish(number) else { return (None, 0) };
        if queue.waiting.len() < units {
            return (None, 0);
        }
        self.channels.leave(queue.spec.tenant, units as u32);
        let mut bytes = 0;
        let (mut broken, mut run) = (None, 0);
        std::mem::swap(&mut self.batch, &mut queue.waiting);
        for mut chain in self.batch.drain(units) {
            let Role::Block { requests, .. } = &queue.spec.role else { break };
            run += 1;
            match requests.parse(&mut chain.buffer, chain.readable) {
                Parsed::Io(io) => {
                    let counters = &queue.spec.counters;
                    bytes += io.len;
                    match io.op {
                        BlockOp::Read => {
                            counters.reads.add(1);
                            counters.bytes_read.add(io.len);
                        }
                        BlockOp::Write => {
                            counters.writes.add(1);
                            counters.bytes_written.add(io.len);
                        }
                        BlockOp::Flush => counters.flushes.add(1),
                        BlockOp::Discard => counters.discards.add(1),
                        BlockOp::WriteZeroes { .. } => counters.write_zeroes.add(1),
                    }
                    let (op, offset, len, data, durable) = (io.op, io.offset, io.len, io.data.clone(), io.durable);
                    let token = self.flights.insert(Flight {
                        key: queue.key,
                        id: chain.id,
                        descriptors: chain.descriptors,
                        to_guest: io.to_guest(),
                        grant,
                        since: Nanos(started),
                        bytes: io.len,
                    });
                    self.requests.push(Request { token, op, offset, len, buffer: chain.buffer, data, durable });
                }
                Parsed::Finished { status, written } => {
                    queue.spec.counters.immediate.add(1);
                    let used = Used { id: chain.id, descriptors: chain.descriptors, written };
                    finish_here(queue, used, &chain.buffer, written - 1, status != Status::Ok, unpublished);
                }
                Parsed::Broken(error) => {
                    // Neither this one nor those after it are at a back end.
                    queue.in_flight = queue.in_flight.saturating_sub((units + 1 - run) as u32);
                    broken = Some(error.to_string());
                    break;
                }
            }
        }
        std::mem::swap(&mut self.batch, &mut queue.waiting);
        queue.release_old_view();
        let submitted = self.requests.len();
        self.io.submit_from(number, attachment, &mut self.requests, &mut self.done);
        let whole = broken.is_none();
        // Those of a broken queue may be given up before the grant is charged, and would count for ever.
        let pending = if whole { submitted.saturating_sub(self.done.len()) as u32 } else { 0 };
        if let Some(reason) = broken {
            self.break_queue(number, reason);
        }
        self.finish_done(None);
        (whole.then_some(bytes), pending)
    }

    /// Gives back what back ends have ended since they were last looked at, and tells the scheduler what that cost them.
    pub(super) fn finish_ended(&mut self) {
        if !self.done.is_empty() {
            self.resume = 0;
            self.finish_done(Some(Nanos(clock::now())));
        }
    }

    /// Gives finished requests back to their queues, wherever those are now. What ended by `back_ends` has a cost of its
    /// own; the others ended within their grant, which is charged for them.
    fn finish_done(&mut self, back_ends: Option<Nanos>) {
        let mut done = std::mem::take(&mut self.done);
        for Done { token, result, buffer } in done.drain(..) {
            let Some(flight) = self.flights.remove(token) else { continue };
            if let Some(now) = back_ends {
                self.scheduler.complete(now, flight.grant, flight.cost(now));
            }
            let status = match result {
                Ok(()) => Status::Ok,
                Err(IoError::Unsupported) => Status::Unsupp,
                Err(_) => Status::IoErr,
            };
            let written = block::finish(&buffer, flight.to_guest, status);
            let used = Used { id: flight.id, descriptors: flight.descriptors, written };
            let failed = status != Status::Ok;
            // Here, mostly: then nothing is put together of what is known. Put together from parts and read as a whole right away, it would
            // wait until the status before it is in memory, from a line that the driver had last.
            match self.queues.find_to_finish(flight.key) {
                Some((queue, unpublished)) => finish_here(queue, used, &buffer, flight.to_guest, failed, unpublished),
                None => self.send_on(flight.key, Finished { used, buffer, to_guest: flight.to_guest, failed }),
            }
        }
        self.done = done;
    }

    /// To the core that the queue is on now, if any.
    #[cold]
    fn send_on(&mut self, key: QueueKey, finished: Finished) {
        // Otherwise the queue was stopped and gave this request up: nobody waits for it.
        let Some(&core) = self.moved.get(&key) else { return };
        match self.travelling.iter_mut().find(|(other, ..)| *other == key) {
            Some((_, _, batch)) => batch.push(finished),
            None => self.travelling.push((key, core, vec![finished])),
        }
    }
}

#[inline]
pub(super) fn finish_here(
    queue: &mut RunningQueue,
    used: Used,
    buffer: &GuestBuffer,
    to_guest: u32,
    failed: bool,
    unpublished: &mut Unpublished,
) {
    if failed {
        queue.spec.counters.errors.add(1);
    }
    if queue.spec.view.is_tracked() {
        block::mark_dirty(buffer, &queue.spec.view, to_guest);
    }
    queue.finished.push(used);
    unpublished.add(queue);
}
