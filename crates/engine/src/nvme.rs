//! The disk path of NVMe commands: from a queue pair's channel to the volumes of its namespaces, and back.
//!
//! Most commands are one request of a volume. A Dataset Management of several ranges, and a Flush of all namespaces,
//! are several: the command ends with the last of them, with the first failure. Compare and Verify read into memory of
//! this process.

use std::sync::Arc;

use softdpu_device::block::BlockOp;
use softdpu_device::nvme::{BROADCAST, Command, NvmeIo, NvmeOp, NvmeParsed, Status};
use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};
use softdpu_ring::Used;
use softdpu_sched::{Grant, Nanos};
use softdpu_storage::{Attachment, IoError, Request};

use crate::disk::{DiskPath, Submitted, count, finish};
use crate::flight::{CompletionPermit, Flight, FlightKind, Flights};
use crate::queue::{Role, RunningQueue, Unpublished};

/// The end of a command.
pub(crate) struct CommandEnd {
    pub used: Used,
    /// Bytes that may have been written to the guest.
    pub to_guest: u32,
    pub failed: bool,
}

/// Requests of a command, before they have their flights.
struct Part {
    attachment: Attachment,
    op: BlockOp,
    offset: u64,
    len: u64,
}

/// The status of a failed request (NVM §3.1; Base §3.3.3.2.1).
fn failure(op: BlockOp, error: IoError) -> Status {
    match error {
        IoError::Unsupported => Status::INVALID_OPCODE,
        IoError::NoSpace => Status::CAPACITY_EXCEEDED,
        IoError::OutOfRange => Status::LBA_RANGE,
        IoError::ReadOnly => Status::WRITE_PROTECTED,
        IoError::Device { .. } | IoError::Timeout | IoError::Gone if op.is_write() => Status::WRITE_FAULT,
        IoError::Device { .. } | IoError::Timeout | IoError::Gone if op == BlockOp::Read => Status::UNRECOVERED_READ,
        IoError::Device { .. } | IoError::Timeout | IoError::Gone => Status::INTERNAL,
    }
}

/// Bytes that are compared at a time.
const COMPARED: usize = 4096;

/// Compares what was read with guest memory.
fn compare(read: &GuestBuffer, guest: &GuestBuffer) -> Status {
    let (mut ours, mut theirs) = ([0; COMPARED], [0; COMPARED]);
    let (len, mut at) = (guest.len(), 0);
    while at < len {
        let part = (len - at).min(COMPARED as u64) as usize;
        let read = read.read_at(at, &mut ours[..part]).and_then(|()| guest.read_at(at, &mut theirs[..part]));
        if read.is_err() {
            return Status::INTERNAL;
        }
        if ours[..part] != theirs[..part] {
            return Status::COMPARE_FAILURE;
        }
        at += part as u64;
    }
    Status::SUCCESS
}

/// Memory of this process that a volume reads into.
fn bounce(len: u64) -> Option<GuestBuffer> {
    let mapping = Mapping::heap(usize::try_from(len).ok()?);
    let view = View::new(vec![Region::new(GuestAddress(0), UserAddress(0), len, mapping, 0)]).ok()?;
    view.buffer(GuestAddress(0), len).ok()
}

impl DiskPath {
    /// As [`submit`](Self::submit), for the commands of an NVMe queue pair. None breaks the queue.
    pub(crate) fn submit_commands(
        &mut self,
        queue: &mut RunningQueue,
        unpublished: &mut Unpublished,
        (grant, started): (Grant, u64),
        units: usize,
    ) -> Submitted {
        let mut batch = CommandBatch { grant, since: Nanos(started), bytes: 0, submitted: 0, to: None };
        let mut waiting = std::mem::take(&mut queue.waiting);
        let view = queue.spec.ring.pair().map_or(&queue.spec.view, |pair| pair.view());
        let view = Arc::clone(view);
        for chain in waiting.take(units) {
            let permit = CompletionPermit::new(chain);
            let Role::Nvme(role) = &queue.spec.role else {
                permit.abandon();
                continue;
            };
            let command = Command::read(&chain.buffer);
            let over = match role.commands.parse(&command, &view) {
                NvmeParsed::Io(io) => self.submit_command(queue, &mut batch, permit, io, &view),
                NvmeParsed::Finished(status) => Some((permit, status)),
            };
            if let Some((permit, status)) = over {
                queue.spec.counters.immediate.add(1);
                let used = permit.complete(status.0.into());
                finish(queue, unpublished, used, &GuestBuffer::new(&view), 0, !status.is_success());
            }
        }
        queue.waiting = waiting;
        queue.release_old_view();
        self.send(queue.key.number, &mut batch);
        let pending = batch.submitted.saturating_sub(self.done.len()) as u32;
        Submitted { bytes: batch.bytes, pending }
    }

    /// Submits one command. Some: it is over at once.
    fn submit_command(
        &mut self,
        queue: &RunningQueue,
        batch: &mut CommandBatch,
        permit: CompletionPermit,
        io: NvmeIo,
        view: &Arc<View>,
    ) -> Option<(CompletionPermit, Status)> {
        let NvmeIo { nsid, op, offset, len, durable } = io;
        let all = (nsid == BROADCAST).then_some(&queue.namespaces[..]);
        let attached = queue.namespaces.iter().find(|(id, _)| *id == nsid).map(|(_, attachment)| *attachment);
        let Some(attachment) = attached.or_else(|| Some(all?.first()?.1)) else {
            // Attached to the controller, and this queue does not know of it yet.
            return Some((permit, Status::INTERNAL));
        };
        let (block_op, counted) = match &op {
            NvmeOp::Read(_) | NvmeOp::Compare(_) | NvmeOp::Verify => (BlockOp::Read, len),
            NvmeOp::Write(_) => (BlockOp::Write, len),
            NvmeOp::Flush => (BlockOp::Flush, 0),
            NvmeOp::WriteZeroes { unmap } => (BlockOp::WriteZeroes { unmap: *unmap }, len),
            NvmeOp::Discard(_) => (BlockOp::Discard, len),
        };
        count(&queue.spec.counters, block_op, counted);
        batch.bytes += counted;
        let part = |attachment, offset, len| Part { attachment, op: block_op, offset, len };
        let (kind, buffer) = match op {
            NvmeOp::Discard(ranges) if ranges.len() > 1 => {
                let parts: Vec<Part> = ranges.iter().map(|(at, len)| part(attachment, *at, *len)).collect();
                self.submit_parts(queue, batch, permit, &parts, durable, view);
                return None;
            }
            NvmeOp::Discard(ranges) => {
                let (at, len) = ranges.first().copied().unwrap_or((0, 0));
                let kind = FlightKind::Command { op: block_op, to_guest: 0 };
                let data = (part(attachment, at, len), GuestBuffer::new(view));
                self.submit_one(queue, batch, permit, kind, data, durable);
                return None;
            }
            NvmeOp::Flush if all.is_some_and(|all| all.len() > 1) => {
                let parts: Vec<Part> =
                    all.unwrap_or_default().iter().map(|(_, attachment)| part(*attachment, 0, 0)).collect();
                self.submit_parts(queue, batch, permit, &parts, durable, view);
                return None;
            }
            NvmeOp::Flush | NvmeOp::WriteZeroes { .. } => {
                (FlightKind::Command { op: block_op, to_guest: 0 }, GuestBuffer::new(view))
            }
            NvmeOp::Read(buffer) => (FlightKind::Command { op: block_op, to_guest: len as u32 }, buffer),
            NvmeOp::Write(buffer) => (FlightKind::Command { op: block_op, to_guest: 0 }, buffer),
            NvmeOp::Compare(guest) => match bounce(len) {
                Some(buffer) => (FlightKind::Compare(Box::new(guest)), buffer),
                None => return Some((permit, Status::INTERNAL)),
            },
            NvmeOp::Verify => match bounce(len) {
                Some(buffer) => (FlightKind::Command { op: block_op, to_guest: 0 }, buffer),
                None => return Some((permit, Status::INTERNAL)),
            },
        };
        self.submit_one(queue, batch, permit, kind, (part(attachment, offset, len), buffer), durable);
        None
    }

    fn submit_one(
        &mut self,
        queue: &RunningQueue,
        batch: &mut CommandBatch,
        permit: CompletionPermit,
        kind: FlightKind,
        (part, buffer): (Part, GuestBuffer),
        durable: bool,
    ) -> u64 {
        let Part { attachment, op, offset, len } = part;
        if batch.to != Some(attachment) {
            self.send(queue.key.number, batch);
            batch.to = Some(attachment);
        }
        let CommandBatch { grant, since, .. } = *batch;
        let token = self.flights.insert(Flight { permit, key: queue.key, kind, grant, since, bytes: len });
        let data = if matches!(op, BlockOp::Read | BlockOp::Write) { 0..buffer.pieces() } else { 0..0 };
        self.requests.push(Request { token, op, offset, len, buffer, data, durable });
        token
    }

    /// Submits a command that is several requests.
    fn submit_parts(
        &mut self,
        queue: &RunningQueue,
        batch: &mut CommandBatch,
        permit: CompletionPermit,
        parts: &[Part],
        durable: bool,
        view: &Arc<View>,
    ) {
        let kind = FlightKind::Whole { left: parts.len() as u32, status: Status::SUCCESS };
        let CommandBatch { grant, since, .. } = *batch;
        let whole = self.flights.insert(Flight { permit, key: queue.key, kind, grant, since, bytes: 0 });
        for &Part { attachment, op, offset, len } in parts {
            let (kind, part) = (FlightKind::Part { whole, op }, Part { attachment, op, offset, len });
            let buffer = GuestBuffer::new(view);
            self.submit_one(queue, batch, CompletionPermit::none(), kind, (part, buffer), durable);
        }
    }

    /// Hands what was collected to its volume.
    fn send(&mut self, number: u32, batch: &mut CommandBatch) {
        if let Some(to) = batch.to
            && !self.requests.is_empty()
        {
            batch.submitted += self.requests.len();
            self.io.submit_from(number, to, &mut self.requests, &mut self.done);
        }
    }
}

/// Commands of a grant on their way to volumes.
struct CommandBatch {
    grant: Grant,
    since: Nanos,
    bytes: u64,
    submitted: usize,
    /// The volume that the collected requests are for.
    to: Option<Attachment>,
}

impl Flights {
    /// A request of an NVMe command ended, with what was read in `buffer`. Some: the command has.
    pub(crate) fn command_ended(
        &mut self,
        flight: Flight,
        result: Result<(), IoError>,
        buffer: &GuestBuffer,
    ) -> Option<CommandEnd> {
        let status_of = |op| result.map_or_else(|error| failure(op, error), |()| Status::SUCCESS);
        let Flight { permit, kind, .. } = flight;
        let (permit, status, to_guest) = match kind {
            FlightKind::Command { op, to_guest } => (permit, status_of(op), to_guest),
            FlightKind::Compare(guest) if result.is_ok() => (permit, compare(buffer, &guest), 0),
            FlightKind::Compare(_) => (permit, status_of(BlockOp::Read), 0),
            FlightKind::Part { whole, op } => {
                permit.abandon();
                let Some(Flight { kind: FlightKind::Whole { left, status }, .. }) = self.get_mut(whole) else {
                    return None;
                };
                if status.is_success() {
                    *status = status_of(op);
                }
                *left = left.saturating_sub(1);
                if *left > 0 {
                    return None;
                }
                let status = *status;
                (self.remove(whole)?.permit, status, 0)
            }
            // Neither comes from a back end as a command.
            FlightKind::Block { .. } | FlightKind::Whole { .. } => {
                permit.abandon();
                return None;
            }
        };
        let used = permit.complete(status.0.into());
        Some(CommandEnd { used, to_guest, failed: !status.is_success() })
    }
}
