//! I/O queues: creation and deletion (Base §5.4 to §5.7).

use softdpu_memory::GuestAddress;
use softdpu_ring::nvme::{PairConfig, QueueMemory};

use super::abi::{PAGE, admin};
use super::admin::{Done, Pending};
use super::{Action, Command, Controller, Status};

/// A completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompletionQueue {
    pub memory: QueueMemory,
    /// Its interrupt vector, where interrupts are enabled.
    pub vector: Option<u16>,
    /// The submission queue that it is for.
    pub sq: Option<u16>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SubmissionState {
    /// A core is to serve it, and has not said so.
    Starting,
    Running,
    Stopping,
}

/// A submission queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubmissionQueue {
    pub memory: QueueMemory,
    pub cq: u16,
    pub state: SubmissionState,
}

/// The I/O queues of a controller, by identifier, from 1.
#[derive(Debug)]
pub(super) struct Queues {
    pub cqs: Vec<Option<CompletionQueue>>,
    pub sqs: Vec<Option<SubmissionQueue>>,
}

impl Queues {
    pub fn new(count: u16) -> Queues {
        let count = usize::from(count) + 1;
        Queues { cqs: vec![None; count], sqs: vec![None; count] }
    }

    pub fn cq(&self, id: u16) -> Option<&CompletionQueue> {
        self.cqs.get(usize::from(id))?.as_ref()
    }

    pub fn sq(&self, id: u16) -> Option<&SubmissionQueue> {
        self.sqs.get(usize::from(id))?.as_ref()
    }

    pub fn sq_size(&self, id: u16) -> Option<u16> {
        Some(self.sq(id)?.memory.size)
    }

    pub fn cq_size(&self, id: u16) -> Option<u16> {
        Some(self.cq(id)?.memory.size)
    }

    /// The pair that a doorbell is of, if one runs.
    pub fn served_by(&self, id: u16, is_tail: bool) -> Option<u16> {
        let sq = if is_tail { id } else { self.cq(id)?.sq? };
        self.sq(sq).map(|_| sq)
    }

    /// The pair of a submission queue.
    pub fn pair(&self, id: u16) -> Option<(PairConfig, Option<u16>)> {
        let sq = self.sq(id)?;
        let cq = self.cq(sq.cq)?;
        let config = PairConfig { sq: sq.memory, cq: cq.memory, interrupts: cq.vector.is_some(), resumed: false };
        Some((config, cq.vector))
    }

    /// Submission queues that a core serves, or is about to.
    pub fn is_any_running(&self) -> bool {
        self.sqs.iter().flatten().next().is_some()
    }

    /// Marks all to be stopped; returns those that were not.
    pub fn stop_all(&mut self) -> Vec<u16> {
        let mut stopped = Vec::new();
        for sq in self.sqs.iter_mut().flatten() {
            if sq.state != SubmissionState::Stopping {
                sq.state = SubmissionState::Stopping;
                stopped.push(sq.memory.id);
            }
        }
        stopped
    }

    /// A submission queue is not served any more.
    pub fn remove_sq(&mut self, id: u16) {
        let Some(sq) = self.sqs.get_mut(usize::from(id)).and_then(Option::take) else { return };
        if let Some(cq) = self.cqs.get_mut(usize::from(sq.cq)).and_then(Option::as_mut) {
            cq.sq = None;
        }
    }
}

impl Controller {
    /// What both Create commands say of a queue (CDW10, CDW11, PRP1), and CDW11.
    fn new_queue(&self, command: &Command, entry_size: u32) -> Result<(QueueMemory, u32), Status> {
        let (cdw10, cdw11) = (command.dword(10), command.dword(11));
        let (id, size) = (cdw10 as u16, cdw10 >> 16);
        let is_sq = command.opcode() == admin::CREATE_SQ;
        let taken = if is_sq { self.queues.sq(id).is_some() } else { self.queues.cq(id).is_some() };
        if id == 0 || id > self.features.queues_granted(&self.config) || taken {
            return Err(Status::QUEUE_IDENTIFIER);
        }
        // 0's based; a queue has two entries at least (Base §3.3.1.1).
        if size == 0 || size >= self.config.entries.into() {
            return Err(Status::QUEUE_SIZE);
        }
        // CC.IOSQES 6, CC.IOCQES 4: the sizes of Identify, SQES and CQES. PC: CAP.CQR demands it.
        let entries = self.registers.cc >> if is_sq { 16 } else { 20 } & 15;
        if entries != entry_size || cdw11 & 1 == 0 {
            return Err(Status::INVALID_FIELD);
        }
        let address = command.qword(6);
        if !address.is_multiple_of(PAGE) {
            return Err(Status::PRP_OFFSET);
        }
        let memory = QueueMemory { id, address: GuestAddress(address), size: size as u16 + 1 };
        let bytes = usize::from(memory.size) << entry_size;
        // In one piece here, too.
        self.view.guest_window(memory.address, bytes, 8).map_err(|_| Status::DATA_TRANSFER)?;
        Ok((memory, cdw11))
    }

    /// Create I/O Completion Queue.
    pub(super) fn create_cq(&mut self, command: &Command) -> Result<Done, Status> {
        let (memory, cdw11) = self.new_queue(command, 4)?;
        let vector = (cdw11 >> 16) as u16;
        let is_enabled = cdw11 & 2 != 0;
        if is_enabled && vector >= self.config.vectors {
            return Err(Status::INTERRUPT_VECTOR);
        }
        let cq = CompletionQueue { memory, vector: is_enabled.then_some(vector), sq: None };
        if let Some(slot) = self.queues.cqs.get_mut(usize::from(memory.id)) {
            *slot = Some(cq);
        }
        Ok(Done::Now(0))
    }

    /// Create I/O Submission Queue: over when a core serves it.
    pub(super) fn create_sq(&mut self, command: &Command, slot: u16) -> Result<Done, Status> {
        let (memory, cdw11) = self.new_queue(command, 6)?;
        let cq = (cdw11 >> 16) as u16;
        let sq = SubmissionQueue { memory, cq, state: SubmissionState::Starting };
        match self.queues.cqs.get_mut(usize::from(cq)).and_then(Option::as_mut) {
            // One submission queue for a completion queue.
            Some(CompletionQueue { sq: Some(_), .. }) | None => return Err(Status::CQ_INVALID),
            Some(completion) => completion.sq = Some(memory.id),
        }
        if let Some(slot) = self.queues.sqs.get_mut(usize::from(memory.id)) {
            *slot = Some(sq);
        }
        let Some((pair, vector)) = self.queues.pair(memory.id) else { return Err(Status::CQ_INVALID) };
        self.actions.push_back(Action::Start { pair, vector, shadow: self.shadow });
        self.pending.push(Pending { slot, sq: memory.id });
        Ok(Done::Later)
    }

    /// Delete I/O Submission Queue: over when no core serves it.
    pub(super) fn delete_sq(&mut self, command: &Command, slot: u16) -> Result<Done, Status> {
        let id = command.dword(10) as u16;
        // One that ran before this process did may be starting.
        let is_pending = self.pending.iter().any(|pending| pending.sq == id);
        let sq = self.queues.sqs.get_mut(usize::from(id)).and_then(Option::as_mut);
        let Some(sq) = sq.filter(|sq| sq.state != SubmissionState::Stopping && !is_pending) else {
            return Err(Status::QUEUE_IDENTIFIER);
        };
        sq.state = SubmissionState::Stopping;
        self.actions.push_back(Action::Stop { sq: id });
        self.pending.push(Pending { slot, sq: id });
        Ok(Done::Later)
    }

    /// Delete I/O Completion Queue.
    pub(super) fn delete_cq(&mut self, command: &Command) -> Result<Done, Status> {
        let id = command.dword(10) as u16;
        match self.queues.cq(id) {
            None => Err(Status::QUEUE_IDENTIFIER),
            Some(CompletionQueue { sq: Some(_), .. }) => Err(Status::QUEUE_DELETION),
            Some(_) => {
                self.queues.cqs[usize::from(id)] = None;
                Ok(Done::Now(0))
            }
        }
    }

    /// The answer to [`Action::Start`]: a core serves the pair, or why none does.
    pub fn started(&mut self, sq: u16, result: Result<(), String>) {
        if self.queues.sq(sq).is_none_or(|queue| queue.state != SubmissionState::Starting) {
            return;
        }
        match (result, self.take_pending(sq)) {
            (Ok(()), pending) => {
                if let Some(queue) = self.queues.sqs[usize::from(sq)].as_mut() {
                    queue.state = SubmissionState::Running;
                }
                if let Some(Pending { slot, .. }) = pending {
                    self.finish(slot, Ok(0));
                }
            }
            (Err(_), Some(Pending { slot, .. })) => {
                self.queues.remove_sq(sq);
                self.finish(slot, Err(Status::INTERNAL));
            }
            (Err(reason), None) => {
                // It ran before this process did.
                self.queue_broken(sq, &reason);
                self.queues.remove_sq(sq);
            }
        }
    }

    /// The answer to [`Action::Stop`]: no core serves the pair any more.
    pub fn stopped(&mut self, sq: u16) {
        let is_stopping = self.queues.sq(sq).is_some_and(|queue| queue.state == SubmissionState::Stopping);
        if !is_stopping {
            return;
        }
        self.queues.remove_sq(sq);
        if let Some(Pending { slot, .. }) = self.take_pending(sq) {
            self.finish(slot, Ok(0));
        }
        self.finish_disabling();
    }

    fn take_pending(&mut self, sq: u16) -> Option<Pending> {
        let at = self.pending.iter().position(|pending| pending.sq == sq)?;
        Some(self.pending.swap_remove(at))
    }
}
