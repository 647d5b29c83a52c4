//! The disk path of a core: requests from a queue's channel to its volume, and back to the queue when they end.
//!
//! ```text
//!   waiting chains ─▶ parse ─▶ Flight, Request ─▶ IoContext ─▶ Done ─▶ status byte ─▶ used entry of the queue
//!                         └─ answered at once, or broken                      └─▶ the core that has the queue now
//! ```

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use softdpu_device::block::{self, BlockError, BlockOp, Parsed, Status};
use softdpu_memory::GuestBuffer;
use softdpu_ring::Used;
use softdpu_sched::{Grant, Nanos, TenantId};
use softdpu_storage::{Attachment, Done, IoContext, IoError, Request, Volume, VolumeError};

use crate::counters::QueueCounters;
use crate::flight::{CompletedRequest, CompletionPermit, Flight, FlightKind, Flights};
use crate::ids::QueueKey;
use crate::queue::QueueTable;
use crate::queue::{Role, RunningQueue, Unpublished};

/// A core's attachments to volumes, and its requests at them.
pub(crate) struct DiskPath {
    pub(crate) io: IoContext,
    pub(crate) flights: Flights,
    attached: Vec<(Arc<Volume>, Attachment)>,
    // Reused in every round.
    pub(crate) requests: Vec<Request>,
    pub(crate) done: Vec<Done>,
}

/// The outcome of a piece of a grant.
pub(crate) struct Submitted {
    /// Bytes that its requests move.
    pub bytes: u64,
    /// How many of them the back end still has.
    pub pending: u32,
}

/// A request with something left to encrypt or decrypt outside of its grant.
pub(crate) struct DeferredRequest {
    /// The channel of the accelerator that it waits in.
    pub channel: u32,
    pub tenant: TenantId,
    pub key: QueueKey,
}

impl DiskPath {
    pub(crate) fn new(io: IoContext) -> DiskPath {
        DiskPath { io, flights: Flights::default(), attached: Vec::new(), requests: Vec::new(), done: Vec::new() }
    }

    /// Readable when a back end has something.
    pub(crate) fn wait_fd(&self) -> BorrowedFd<'_> {
        self.io.wait_fd()
    }

    /// This core's attachment to a volume, made on first use.
    pub(crate) fn attach(&mut self, volume: &Arc<Volume>) -> Result<Attachment, VolumeError> {
        if let Some((_, attachment)) = self.attached.iter().find(|(other, _)| Arc::ptr_eq(other, volume)) {
            return Ok(*attachment);
        }
        let attachment = self.io.attach(volume)?;
        self.attached.push((Arc::clone(volume), attachment));
        Ok(attachment)
    }

    /// No queue uses the volume any more.
    pub(crate) fn detach(&mut self, volume: &Arc<Volume>) {
        if let Some(at) = self.attached.iter().position(|(other, _)| Arc::ptr_eq(other, volume)) {
            self.io.detach(self.attached.swap_remove(at).1);
        }
    }

    /// Whether requests are to be submitted one by one: [`IoContext::answers_singly`].
    #[inline]
    pub(crate) fn answers_singly(&self, attachment: Attachment) -> bool {
        self.io.answers_singly(attachment)
    }

    /// Submits the first `units` waiting requests of a queue to its volume, by a grant that began at `started`. Those
    /// that ended at once are to be [given back](Self::give_back) next, also after an error.
    ///
    /// # Errors
    /// The driver broke the queue. Only the requests before the bad one were submitted.
    #[inline]
    pub(crate) fn submit(
        &mut self,
        queue: &mut RunningQueue,
        unpublished: &mut Unpublished,
        attachment: Attachment,
        (grant, started): (Grant, u64),
        units: usize,
    ) -> Result<Submitted, BlockError> {
        let (mut bytes, mut run, mut broken) = (0, 0, None);
        let mut waiting = std::mem::take(&mut queue.waiting);
        for mut chain in waiting.drain(units) {
            let Role::Block { requests, .. } = &queue.spec.role else { break };
            let permit = CompletionPermit::new(&chain);
            run += 1;
            match requests.parse(&mut chain.buffer, chain.readable) {
                Parsed::Io(io) => {
                    count(&queue.spec.counters, io.op, io.len);
                    bytes += io.len;
                    let (op, offset, len, data, durable) = (io.op, io.offset, io.len, io.data.clone(), io.durable);
                    let token = self.flights.insert(Flight {
                        permit,
                        key: queue.key,
                        kind: FlightKind::Block { to_guest: io.to_guest() },
                        grant,
                        since: Nanos(started),
                        bytes: io.len,
                    });
                    self.requests.push(Request { token, op, offset, len, buffer: chain.buffer, data, durable });
                }
                Parsed::Finished { status, written } => {
                    queue.spec.counters.immediate.add(1);
                    let used = permit.complete(written);
                    finish(queue, unpublished, used, &chain.buffer, written - 1, status != Status::Ok);
                }
                Parsed::Broken(error) => {
                    permit.abandon();
                    // Neither this one nor those after it are at a back end.
                    queue.in_flight = queue.in_flight.saturating_sub((units + 1 - run) as u32);
                    broken = Some(error);
                    break;
                }
            }
        }
        queue.waiting = waiting;
        queue.release_old_view();
        let submitted = self.requests.len();
        self.io.submit_from(queue.key.number, attachment, &mut self.requests, &mut self.done);
        match broken {
            // Its requests may be given up before the grant is charged, and would count as pending for ever.
            Some(error) => Err(error),
            None => Ok(Submitted { bytes, pending: submitted.saturating_sub(self.done.len()) as u32 }),
        }
    }

    /// Flushes what was submitted to the kernel.
    #[inline]
    pub(crate) fn flush(&mut self) {
        self.io.flush();
    }

    /// Collects the requests that back ends have completed, to be [given back](Self::give_back). Whether there are any.
    #[inline]
    pub(crate) fn poll(&mut self) -> bool {
        self.io.collect(&mut self.done);
        !self.done.is_empty()
    }

    /// Whether there are requests to be [given back](Self::give_back).
    #[inline]
    pub(crate) fn has_completed(&self) -> bool {
        !self.done.is_empty()
    }

    /// Gives completed requests back to their queues, and those of queues on other cores to `forward`. `ended` is
    /// called with each first.
    #[inline]
    pub(crate) fn give_back(
        &mut self,
        queues: &mut QueueTable,
        mut ended: impl FnMut(&Flight),
        mut forward: impl FnMut(QueueKey, CompletedRequest),
    ) {
        for Done { token, result, buffer } in self.done.drain(..) {
            let Some(flight) = self.flights.remove(token) else { continue };
            ended(&flight);
            let Flight { permit, key, kind, .. } = flight;
            let FlightKind::Block { to_guest } = kind else {
                let flight = Flight { permit, kind, ..flight };
                let Some(done) = self.flights.command_ended(flight, result, &buffer) else { continue };
                let (used, to_guest, failed) = (done.used, done.to_guest, done.failed);
                match queues.find_to_finish(key) {
                    Some((queue, unpublished)) => finish(queue, unpublished, used, &buffer, to_guest, failed),
                    None => forward(key, CompletedRequest { used, buffer, to_guest, failed }),
                }
                continue;
            };
            let status = match result {
                Ok(()) => Status::Ok,
                Err(IoError::Unsupported) => Status::Unsupp,
                Err(_) => Status::IoErr,
            };
            let used = permit.complete(block::finish(&buffer, to_guest, status));
            let failed = status != Status::Ok;
            // Mostly the queue is on this core, and then no `CompletedRequest` is made. Built from parts and read as a
            // whole right away, it would wait until the status before it is in memory, in a line that the driver had
            // last.
            match queues.find_to_finish(key) {
                Some((queue, unpublished)) => finish(queue, unpublished, used, &buffer, to_guest, failed),
                None => forward(key, CompletedRequest { used, buffer, to_guest, failed }),
            }
        }
    }

    /// Whether any request has something left to encrypt or decrypt.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        self.io.has_turns()
    }

    /// The next request of each channel that has something left to encrypt or decrypt, in the order of their turns.
    pub(crate) fn deferred(&mut self) -> impl Iterator<Item = DeferredRequest> {
        let DiskPath { io, flights, .. } = self;
        io.next_turns().filter_map(|(channel, token)| {
            let flight = flights.get(token)?;
            Some(DeferredRequest { channel, tenant: flight.grant.queue.tenant, key: flight.key })
        })
    }

    /// Encrypts or decrypts a piece of a channel's next request.
    pub(crate) fn run_deferred(&mut self, channel: u32) {
        self.io.take_turn(channel, &mut self.done);
    }

    /// How many requests back ends hold.
    #[inline]
    pub(crate) fn outstanding(&self) -> usize {
        self.io.outstanding()
    }

    /// Checks time-outs, and collects what is left of requests that were given up.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.io.tick(now);
        if self.io.outstanding() == 0 {
            // Their buffers pin guest memory, and their readable descriptor would keep the core awake.
            self.io.poll(&mut self.done);
        }
    }

    /// When [`tick`](Self::tick) is due next, if ever.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.io.next_deadline()
    }

    /// Whether any request of a queue is at a back end of this core.
    pub(crate) fn holds_any_of(&self, key: QueueKey) -> bool {
        self.flights.any_of(key)
    }

    /// Abandons the requests of a queue that ended: no back end touches its guest's memory any more, and their
    /// completions are dropped. `ended` is called with each.
    pub(crate) fn abandon(&mut self, key: QueueKey, mut ended: impl FnMut(&Flight)) {
        let tokens = self.flights.of(key);
        if tokens.is_empty() {
            return;
        }
        let abandoned: HashSet<u64> = tokens.iter().copied().collect();
        self.io.abandon(&mut |token| abandoned.contains(&token), &mut Vec::new());
        for token in tokens {
            if let Some(flight) = self.flights.remove(token) {
                if flight.kind.is_at_back_end() {
                    ended(&flight);
                }
                flight.permit.abandon();
            }
        }
    }
}

#[inline]
pub(crate) fn count(counters: &QueueCounters, op: BlockOp, len: u64) {
    match op {
        BlockOp::Read => {
            counters.reads.add(1);
            counters.bytes_read.add(len);
        }
        BlockOp::Write => {
            counters.writes.add(1);
            counters.bytes_written.add(len);
        }
        BlockOp::Flush => counters.flushes.add(1),
        BlockOp::Discard => counters.discards.add(1),
        BlockOp::WriteZeroes { .. } => counters.write_zeroes.add(1),
    }
}

/// A request of a queue ended: adds its used entry, and logs what may have been written to the guest.
#[inline]
pub(crate) fn finish(
    queue: &mut RunningQueue,
    unpublished: &mut Unpublished,
    used: Used,
    buffer: &GuestBuffer,
    to_guest: u32,
    failed: bool,
) {
    if failed {
        queue.spec.counters.errors.add(1);
    }
    if queue.spec.view.is_tracked() {
        match queue.spec.role {
            Role::Nvme(_) => buffer.mark_dirty_in(&queue.spec.view, 0, to_guest.into()),
            _ => block::mark_dirty(buffer, &queue.spec.view, to_guest),
        }
    }
    queue.finished.push(used);
    unpublished.add(queue);
}

impl CompletedRequest {
    /// Adds it to its queue.
    pub(crate) fn finish(self, queue: &mut RunningQueue, unpublished: &mut Unpublished) {
        finish(queue, unpublished, self.used, &self.buffer, self.to_guest, self.failed);
    }
}
