//! Saved state: what a host was told, and what it changed.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use softdpu_memory::{GuestAddress, View};
use softdpu_ring::nvme::{PairConfig, QueueMemory, Shadow};

use super::abi::register;
use super::admin::Outcome;
use super::controller::{Phase, Registers, Shutdown};
use super::queues::{CompletionQueue, SubmissionQueue, SubmissionState};
use super::{Action, Controller, Status};
use crate::saved::{self, RestoreError};

/// The state of a controller: plain data. Readers ignore fields they do not know. Version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ControllerState {
    /// Version of the format.
    pub version: u16,
    /// CC.
    pub cc: u32,
    /// INTMS.
    pub interrupt_mask: u32,
    /// AQA.
    pub aqa: u32,
    /// ASQ.
    pub asq: u64,
    /// ACQ.
    pub acq: u64,
    /// Whether CSTS.RDY was set.
    pub ready: bool,
    /// Whether CC.EN was cleared and queues still ran.
    pub disabling: bool,
    /// CSTS.SHST.
    pub shutdown: u8,
    /// Why CSTS.CFS was set.
    pub failed: Option<String>,
    /// I/O queues that were created: those that a core was about to serve are not among them.
    pub queues: Vec<QueueState>,
    /// Shadow doorbells: buffer and event indices.
    pub shadow: Option<(u64, u64)>,
    /// Outcomes that may or may not have been shown to the host.
    pub outcomes: Vec<OutcomeState>,
    /// Volatile write cache enabled.
    pub write_cache: bool,
    /// Asynchronous Event Configuration.
    pub events: u32,
    /// Interrupt coalescing.
    pub coalescing: u32,
    /// Host identifier.
    pub host_id: [u8; 16],
    /// Timestamp: what the host set, and when.
    pub timestamp: Option<(u64, u64)>,
    /// Namespaces that changed since the host read the log page.
    pub changed: Vec<u32>,
    /// Events that wait for a request, by type: (information, log page).
    pub waiting: Vec<Option<(u8, u8)>>,
    /// Event types that are masked.
    pub masked: Vec<bool>,
    /// By namespace: identifier, blocks that the host was told, attached.
    pub namespaces: Vec<(u32, u64, bool)>,
}

/// A completion queue, with its submission queue if it has one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueState {
    /// Completion queue: identifier, address, entries.
    pub cq: (u16, u64, u16),
    /// Interrupt vector, where interrupts are enabled.
    pub vector: Option<u16>,
    /// Submission queue: identifier, address, entries.
    pub sq: Option<(u16, u64, u16)>,
}

/// The outcome of an admin command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeState {
    /// Slot of the admin queue's in-flight record.
    pub slot: u16,
    /// Number under which it was taken.
    pub number: u64,
    /// Dword 0.
    pub result: u32,
    /// Status field.
    pub status: u16,
}

impl ControllerState {
    /// The version written.
    pub const VERSION: u16 = 1;
}

impl Controller {
    /// Its state now.
    pub fn save(&self) -> ControllerState {
        let memory = |queue: &QueueMemory| (queue.id, queue.address.0, queue.size);
        let queue = |cq: &CompletionQueue| {
            let sq = cq.sq.and_then(|sq| self.queues.sq(sq));
            // One whose creation waits is created by its command. One that starts after a kill was there before.
            let is_pending = |id: u16| self.pending.iter().any(|pending| pending.sq == id);
            let sq = sq.filter(|sq| sq.state != SubmissionState::Starting || !is_pending(sq.memory.id));
            QueueState { cq: memory(&cq.memory), vector: cq.vector, sq: sq.map(|sq| memory(&sq.memory)) }
        };
        let outcome = |outcome: &Outcome| OutcomeState {
            slot: outcome.slot,
            number: outcome.number,
            result: outcome.result,
            status: outcome.status.0,
        };
        let Registers { cc, interrupt_mask, aqa, asq, acq } = self.registers;
        ControllerState {
            version: ControllerState::VERSION,
            cc,
            interrupt_mask,
            aqa,
            asq,
            acq,
            ready: self.is_ready(),
            disabling: self.phase == Phase::Disabling,
            shutdown: self.shutdown as u8,
            failed: self.failed.clone(),
            queues: self.queues.cqs.iter().flatten().map(queue).collect(),
            shadow: self.shadow.map(|shadow| (shadow.doorbells.0, shadow.events.0)),
            outcomes: self.outcomes.iter().map(outcome).collect(),
            write_cache: self.shared.write_cache.load(Ordering::Acquire),
            events: self.features.events,
            coalescing: self.features.coalescing,
            host_id: self.features.host_id,
            timestamp: self.features.timestamp,
            changed: self.events.changed.clone(),
            waiting: self.events.waiting.to_vec(),
            masked: self.events.masked.to_vec(),
            namespaces: self
                .shared
                .namespaces
                .iter()
                .map(|ns| (ns.config.nsid, ns.blocks.load(Ordering::Acquire), ns.attached.load(Ordering::Acquire)))
                .collect(),
        }
    }

    /// Goes on where a controller with this state stood, whose memory this one has. The pairs that ran are asked to be
    /// started again, resumed; a shutdown or a reset that was under way goes on. `view` is guest memory.
    ///
    /// # Errors
    /// Where this controller cannot keep what the host was promised; it is to be thrown away then.
    pub fn restore(&mut self, state: &ControllerState, view: &Arc<View>) -> Result<(), RestoreError> {
        saved::check(state.version, ControllerState::VERSION, 0, 0)?;
        for (nsid, blocks, attached) in &state.namespaces {
            let Some(namespace) = self.shared.find(*nsid) else { continue };
            saved::check_promises([("blocks", *blocks, namespace.blocks.load(Ordering::Acquire))])?;
            namespace.blocks.store(*blocks, Ordering::Release);
            namespace.attached.store(*attached, Ordering::Release);
        }
        let queues = self.queues.cqs.len() as u64 - 1;
        for queue in &state.queues {
            let last = queue.sq.map_or(0, |sq| sq.0).max(queue.cq.0);
            saved::check_promises([("queues", last.into(), queues)])?;
        }
        self.view = Arc::clone(view);
        let ControllerState { cc, interrupt_mask, aqa, asq, acq, .. } = *state;
        self.registers = Registers { cc, interrupt_mask, aqa, asq, acq };
        self.failed = state.failed.clone();
        self.shared.write_cache.store(state.write_cache, Ordering::Release);
        self.features.events = state.events;
        self.features.coalescing = state.coalescing;
        self.features.host_id = state.host_id;
        self.features.timestamp = state.timestamp;
        self.events.changed = state.changed.clone();
        self.events.waiting.iter_mut().zip(&state.waiting).for_each(|(to, from)| *to = *from);
        self.events.masked.iter_mut().zip(&state.masked).for_each(|(to, from)| *to = *from);
        self.shadow = state
            .shadow
            .map(|(doorbells, events)| Shadow { doorbells: GuestAddress(doorbells), events: GuestAddress(events) });
        self.restore_queues(state);
        self.phase = match (state.ready, state.disabling) {
            (true, true) => Phase::Disabling,
            (true, false) => Phase::Ready,
            (false, _) if cc & register::CC_EN != 0 => Phase::Refused,
            (false, _) => Phase::Disabled,
        };
        self.shutdown = match state.shutdown {
            1 => Shutdown::Occurring,
            2 => Shutdown::Complete,
            _ => Shutdown::None,
        };
        if self.shutdown == Shutdown::Occurring && self.phase != Phase::Disabling {
            self.actions.push_back(Action::Flush);
        }
        match self.phase {
            Phase::Ready => self.resume_admin(state),
            Phase::Disabling => self.finish_disabling(),
            Phase::Disabled | Phase::Refused => {}
        }
        Ok(())
    }

    fn restore_queues(&mut self, state: &ControllerState) {
        let memory = |(id, address, size): (u16, u64, u16)| QueueMemory { id, address: GuestAddress(address), size };
        for queue in &state.queues {
            let cq =
                CompletionQueue { memory: memory(queue.cq), vector: queue.vector, sq: queue.sq.map(|(id, ..)| id) };
            self.queues.cqs[usize::from(cq.memory.id)] = Some(cq);
            let Some(sq) = queue.sq else { continue };
            let state = if state.disabling { SubmissionState::Stopping } else { SubmissionState::Starting };
            let sq = SubmissionQueue { memory: memory(sq), cq: cq.memory.id, state };
            self.queues.sqs[usize::from(sq.memory.id)] = Some(sq);
            if state == SubmissionState::Stopping {
                // None serves it: the process that did is gone.
                self.queues.remove_sq(sq.memory.id);
            } else if let Some((pair, vector)) = self.queues.pair(sq.memory.id) {
                let pair = PairConfig { resumed: true, ..pair };
                self.actions.push_back(Action::Start { pair, vector, shadow: self.shadow });
            }
        }
    }

    fn resume_admin(&mut self, state: &ControllerState) {
        match self.admin_pair(true) {
            Ok(pair) => self.admin = Some(pair),
            Err(reason) => return self.fail(reason),
        }
        let outcome = |outcome: &OutcomeState| Outcome {
            slot: outcome.slot,
            number: outcome.number,
            result: outcome.result,
            status: Status(outcome.status),
        };
        // Those that the host has seen are no longer in flight.
        let pair = self.admin.as_ref();
        let is_due = |outcome: &Outcome| pair.is_some_and(|pair| pair.number(outcome.slot) == outcome.number);
        self.outcomes = state.outcomes.iter().map(outcome).filter(is_due).collect();
        self.run_admin();
    }
}
