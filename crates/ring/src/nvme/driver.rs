//! The host's side of a queue pair, over the same shared memory: for tests, load generators and tools.
//!
//! A [`PairDriver`] is well behaved; tests that want it otherwise write to the queues behind its back.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::{View, Window};

use super::doorbell::needs_register;
use super::{COMMAND, COMPLETION, Doorbells, PairConfig, Shadow};
use crate::QueueError;
use crate::sync::{observe, publish, publish_then_read};

/// A completion queue entry (Base 2.0 §3.3.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Dword 0: what the command returns.
    pub result: u32,
    /// SQ Head Pointer.
    pub sq_head: u16,
    /// SQ Identifier.
    pub sq: u16,
    /// Command Identifier.
    pub command: u16,
    /// Status field, without the phase tag: code in bits 0 to 7, type in 8 to 10, Do Not Retry in 14.
    pub status: u16,
}

/// The host's side of one pair.
pub struct PairDriver {
    config: PairConfig,
    sq: Window,
    cq: Window,
    doorbells: Doorbells,
    shadow: Option<(Window, Window)>,
    /// The next free submission queue entry, and what the doorbell has.
    tail: u16,
    rung: u16,
    /// What the device has taken, as completions said last.
    sq_head: u16,
    head: u16,
    phase: bool,
}

impl PairDriver {
    /// The driver of a new pair, whose queues are filled with zeroes.
    ///
    /// # Errors
    /// [`QueueError::GuestUnmapped`].
    pub fn new(view: &Arc<View>, config: PairConfig, doorbells: Doorbells) -> Result<PairDriver, QueueError> {
        let find = |what, queue: super::QueueMemory, entry: usize| {
            let (address, len, align) = (queue.address, usize::from(queue.size) * entry, 8);
            let unmapped = |_| QueueError::GuestUnmapped { what, address, len, align };
            view.guest_window(address, len, align).map_err(unmapped)
        };
        let sq = find("submission queue", config.sq, COMMAND)?;
        let cq = find("completion queue", config.cq, COMPLETION)?;
        for at in (0..cq.len()).step_by(8) {
            cq.u64(at).store(0, Relaxed);
        }
        let driver =
            PairDriver { config, sq, cq, doorbells, shadow: None, tail: 0, rung: 0, sq_head: 0, head: 0, phase: true };
        Ok(driver)
    }

    /// Uses shadow doorbells from now on.
    ///
    /// # Errors
    /// [`QueueError::GuestUnmapped`].
    pub fn set_shadow(&mut self, view: &Arc<View>, shadow: Shadow) -> Result<(), QueueError> {
        let find = |address| {
            let unmapped = |_| QueueError::GuestUnmapped { what: "doorbell buffer", address, len: 4096, align: 4 };
            view.guest_window(address, 4096, 4).map_err(unmapped)
        };
        self.shadow = Some((find(shadow.doorbells)?, find(shadow.events)?));
        Ok(())
    }

    /// Puts a command into the queue; [`ring`](Self::ring) hands it over. False: the queue is full.
    pub fn submit(&mut self, command: &[u8; COMMAND]) -> bool {
        let next = (self.tail + 1) % self.config.sq.size;
        if next == self.sq_head {
            return false;
        }
        let at = usize::from(self.tail) * COMMAND;
        for (index, word) in command.chunks_exact(8).enumerate() {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(word);
            self.sq.u64(at + index * 8).store(u64::from_le_bytes(bytes), Relaxed);
        }
        self.tail = next;
        true
    }

    /// Rings the tail doorbell. Returns whether the register was written, which traps.
    pub fn ring(&mut self) -> bool {
        let index = 2 * usize::from(self.config.sq.id);
        let old = std::mem::replace(&mut self.rung, self.tail);
        self.store(index, old, self.tail)
    }

    fn store(&self, index: usize, old: u16, new: u16) -> bool {
        if let Some((doorbells, events)) = &self.shadow {
            let event = publish_then_read(doorbells.u32(index * 4), u32::from(new), events.u32(index * 4));
            if !needs_register(event, new.into(), old.into()) {
                return false;
            }
        }
        self.doorbells.store(index, new.into());
        true
    }

    /// The next completion, if there is one. [`ring_head`](Self::ring_head) gives the entries back.
    pub fn take(&mut self) -> Option<Completion> {
        let at = usize::from(self.head) * COMPLETION;
        let word = observe(self.cq.u64(at + 8));
        if (word >> 48) & 1 != u64::from(self.phase) {
            return None;
        }
        self.head += 1;
        if self.head == self.config.cq.size {
            (self.head, self.phase) = (0, !self.phase);
        }
        let completion = Completion {
            result: self.cq.u64(at).load(Relaxed) as u32,
            sq_head: word as u16,
            sq: (word >> 16) as u16,
            command: (word >> 32) as u16,
            status: (word >> 49) as u16,
        };
        self.sq_head = completion.sq_head;
        Some(completion)
    }

    /// Gives the completion queue entries back that were taken since `from`, the head then. Returns whether the
    /// register was written.
    pub fn ring_head(&mut self, from: u16) -> bool {
        self.store(2 * usize::from(self.config.cq.id) + 1, from, self.head)
    }

    /// The completion queue's head.
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Writes any value to a doorbell of this pair, as no driver would: the tail's, or the head's.
    pub fn force(&self, is_tail: bool, value: u32) {
        let index = if is_tail { 2 * usize::from(self.config.sq.id) } else { 2 * usize::from(self.config.cq.id) + 1 };
        match &self.shadow {
            Some((doorbells, _)) => publish(doorbells.u32(index * 4), value),
            None => self.doorbells.store(index, value),
        }
    }
}
