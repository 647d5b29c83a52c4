//! The in-flight record of a queue pair: the commands that were taken and not completed, in memory that outlives the
//! process.
//!
//! Each command has a slot with a copy of it, the number under which it was taken, and the number under which its
//! completion is posted. Both numbers count from the queue's creation. A batch that is taken counts when `taken` moves;
//! a completion counts when the host can see it, which is one store into the completion queue. The next process finds
//! out which of the last batch it can see by their phase tags, of the entries that the slots name.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::{GuestAddress, View, Window};

use super::COMMAND;
use crate::QueueError;
use crate::sync::publish;

/// Version 1 in the upper half, entries of both queues below; 0: never used.
const SHAPE_AT: usize = 0;
const TAKEN_AT: usize = 8;
const POSTED_AT: usize = 16;
/// Of each slot: the number under which it was taken, plus one (0: free), and that of its completion (0: none yet).
const MARKS_AT: usize = 64;
const MARKS: usize = 16;

const VERSION: u64 = 1;

/// The in-flight record of one queue pair. Zeroed memory is a record that was not used yet.
#[derive(Debug)]
pub struct PairRecords(Window);

impl PairRecords {
    /// The record in `window`.
    pub fn new(window: Window) -> PairRecords {
        PairRecords(window)
    }

    /// Bytes of the record of a pair with queues of these sizes.
    pub const fn bytes(sq_size: u16, cq_size: u16) -> usize {
        let slots = slots(sq_size, cq_size) as usize;
        commands_at(slots) + slots * COMMAND
    }

    /// Makes it a record that was never used: the queue was deleted, or the controller was reset.
    pub fn clear(&self) {
        publish(self.0.u64(SHAPE_AT), 0);
    }
}

/// How many commands can be in flight.
const fn slots(sq_size: u16, cq_size: u16) -> u16 {
    if sq_size < cq_size { sq_size } else { cq_size }
}

const fn commands_at(slots: usize) -> usize {
    (MARKS_AT + slots * MARKS).next_multiple_of(COMMAND)
}

/// A record that is in use.
pub(super) struct Slots {
    window: Window,
    commands: usize,
    free: Vec<u16>,
    busy: Box<[bool]>,
    /// Commands that were taken since the queue was created, those of the batch at hand included.
    pub taken: u64,
    /// Completions that were posted since.
    pub posted: u64,
}

impl Slots {
    /// Takes over the record of a pair with queues of these sizes, if it is `resumed`, or makes it new. Returns the
    /// slots that are in flight in the order in which they were taken. `is_visible` tells of the number of a completion
    /// whether its entry has the phase tag of that number.
    pub fn open(
        records: PairRecords,
        (sq_size, cq_size): (u16, u16),
        resumed: bool,
        is_visible: impl Fn(u64) -> bool,
    ) -> Result<(Slots, Vec<u16>), QueueError> {
        let (found, expected) = (records.0.len(), PairRecords::bytes(sq_size, cq_size));
        if found < expected || !(records.0.base() as usize).is_multiple_of(8) {
            return Err(QueueError::RecordsTooSmall { found, expected });
        }
        let count = slots(sq_size, cq_size);
        let commands = commands_at(count.into());
        let window = records.0;
        let busy = vec![false; count.into()].into_boxed_slice();
        let mut this = Slots { window, commands, free: Vec::new(), busy, taken: 0, posted: 0 };
        let shape = VERSION << 32 | u64::from(sq_size) << 16 | u64::from(cq_size);
        let found = this.window.u64(SHAPE_AT).load(Relaxed);
        let flight = if resumed && found == shape {
            this.recover(count, is_visible)?
        } else if resumed && found != 0 {
            return Err(QueueError::PositionsMismatch { found, expected: shape });
        } else {
            this.start(count, shape);
            Vec::new()
        };
        this.free = (0..count).rev().filter(|slot| !this.busy[usize::from(*slot)]).collect();
        Ok((this, flight))
    }

    fn start(&self, count: u16, shape: u64) {
        publish(self.window.u64(SHAPE_AT), 0);
        publish(self.window.u64(TAKEN_AT), 0);
        publish(self.window.u64(POSTED_AT), 0);
        for slot in 0..count {
            publish(self.window.u64(taken_as(slot)), 0);
            publish(self.window.u64(posted_as(slot)), 0);
        }
        publish(self.window.u64(SHAPE_AT), shape);
    }

    fn recover(&mut self, count: u16, is_visible: impl Fn(u64) -> bool) -> Result<Vec<u16>, QueueError> {
        self.taken = self.window.u64(TAKEN_AT).load(Relaxed);
        self.posted = self.window.u64(POSTED_AT).load(Relaxed);
        let was_taken = |this: &Slots, slot: u16| this.window.u64(taken_as(slot)).load(Relaxed);
        let damaged = |field, value: u64| QueueError::RecordsDamaged { field, value: value as u32, size: count };
        // At most as many as there are slots: each names one.
        for _ in 0..count {
            let next = self.posted.wrapping_add(1);
            let of = |slot: &u16| self.window.u64(posted_as(*slot)).load(Relaxed) == next;
            let Some(slot) = (0..count).find(of) else { break };
            if was_taken(self, slot) != 0 && !is_visible(self.posted) {
                break;
            }
            publish(self.window.u64(taken_as(slot)), 0);
            self.posted = next;
        }
        publish(self.window.u64(POSTED_AT), self.posted);
        let mut flight = Vec::new();
        for slot in 0..count {
            let number = was_taken(self, slot);
            publish(self.window.u64(posted_as(slot)), 0);
            if number > self.taken {
                // Of a batch that did not count: the queue has it still.
                publish(self.window.u64(taken_as(slot)), 0);
            } else if number != 0 {
                self.busy[usize::from(slot)] = true;
                flight.push((number, slot));
            }
        }
        flight.sort_unstable();
        if let Some(twice) = flight.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(damaged("the number of a command", twice[0].0));
        }
        if self.posted > self.taken {
            return Err(damaged("the number of completions", self.posted));
        }
        Ok(flight.into_iter().map(|(_, slot)| slot).collect())
    }

    /// How many more commands can be taken.
    #[inline]
    pub fn room(&self) -> usize {
        self.free.len()
    }

    /// Whether a command is in flight.
    #[inline]
    pub fn is_busy(&self, slot: u16) -> bool {
        self.busy.get(usize::from(slot)).copied().unwrap_or(false)
    }

    /// The number under which the command in a slot was taken.
    pub fn number(&self, slot: u16) -> u64 {
        if !self.is_busy(slot) {
            return 0;
        }
        self.window.u64(taken_as(slot)).load(Relaxed)
    }

    /// Takes a command, which `word` has by its eight words. It counts with the next [`commit`](Self::commit_taken).
    /// None: no slot is free.
    #[inline]
    pub fn take(&mut self, word: impl Fn(usize) -> u64) -> Option<u16> {
        let slot = self.free.pop()?;
        let at = self.commands + usize::from(slot) * COMMAND;
        for index in 0..COMMAND / 8 {
            publish(self.window.u64(at + index * 8), word(index));
        }
        publish(self.window.u64(posted_as(slot)), 0);
        self.taken += 1;
        publish(self.window.u64(taken_as(slot)), self.taken);
        self.busy[usize::from(slot)] = true;
        Some(slot)
    }

    /// What was taken counts from now on.
    #[inline]
    pub fn commit_taken(&self) {
        publish(self.window.u64(TAKEN_AT), self.taken);
    }

    /// A slot's completion is about to become visible, as the next.
    #[inline]
    pub fn posting(&mut self, slot: u16) {
        self.posted += 1;
        publish(self.window.u64(posted_as(slot)), self.posted);
    }

    /// The completions of these slots are visible.
    #[inline]
    pub fn completed(&mut self, slots: impl Iterator<Item = u16>) {
        for slot in slots {
            publish(self.window.u64(taken_as(slot)), 0);
            self.busy[usize::from(slot)] = false;
            self.free.push(slot);
        }
        publish(self.window.u64(POSTED_AT), self.posted);
    }

    /// What is in it does not count any more.
    pub fn retire(&self) {
        publish(self.window.u64(SHAPE_AT), 0);
    }

    /// The command in a slot: dword 0, with opcode and command identifier.
    #[inline]
    pub fn first_word(&self, slot: u16) -> u64 {
        self.window.u64(self.commands + usize::from(slot) * COMMAND).load(Relaxed)
    }

    /// What commands are pinned to.
    #[inline]
    pub fn view(&self) -> &Arc<View> {
        self.window.view()
    }

    /// Where the copy of a command lies in [`view`](Self::view).
    #[inline]
    pub fn command(&self, slot: u16) -> GuestAddress {
        GuestAddress(self.window.guest().0 + (self.commands + usize::from(slot) * COMMAND) as u64)
    }

    /// Whether the record's file was truncated.
    pub fn is_faulted(&self) -> bool {
        self.window.is_faulted()
    }
}

fn taken_as(slot: u16) -> usize {
    MARKS_AT + usize::from(slot) * MARKS
}

fn posted_as(slot: u16) -> usize {
    taken_as(slot) + 8
}
