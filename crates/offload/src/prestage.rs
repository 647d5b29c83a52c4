//! Decisions that wait in the DPU's memory until the host wants them (Wave §5.4): one for each core of the host.
//!
//! ```text
//!  line 0, the agent writes   word 0: the stage, begun; words 1 to 6: the decision; word 7: the stage, finished
//!  line 1, the host writes    word 0: the stage that it took last
//! ```
//!
//! A *stage* counts the agent's writes, doubled; its lowest bit says whether there is a decision. The host takes
//! without
//! asking the agent, over a link that has no atomic exchange. So a decision can be taken and replaced at once. Then the
//! agent and the host both have it, and the transaction decides: of two that name the same sequence of a thread, one is
//! committed.
//!
//! A host that finds nothing has sent its message before it looked. An agent that stages something and then reads
//! that message finds its decision not taken, and interrupts the core. So no decision waits unseen.

use std::marker::PhantomData;

use crate::entry::{Entry, PAYLOAD};
use crate::memory::{QueueMemory, WORDS_PER_LINE};

/// Lines of memory that a slot takes.
pub const SLOT_LINES: usize = 2;

const BEGUN: usize = 0;
const FINISHED: usize = WORDS_PER_LINE - 1;
const TAKEN: usize = WORDS_PER_LINE;

/// What was in a slot that the agent wrote anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced<T> {
    /// There was no decision.
    Nothing,
    /// The host had taken it; its outcome comes, or has come.
    Taken,
    /// The host has not said that it took it. If it does take it in this moment, an outcome says so.
    Recalled(T),
}

/// The agent's side of a slot.
pub struct AgentSlot<T, M> {
    memory: M,
    /// The first word of the slot.
    base: usize,
    stage: u64,
    staged: Option<T>,
}

impl<T: Entry + Clone, M: QueueMemory> AgentSlot<T, M> {
    /// The slot that begins with this line, in memory that is zero. None where it is not inside.
    pub fn new(memory: M, line: usize) -> Option<Self> {
        let base = base(&memory, line)?;
        Some(AgentSlot { memory, base, stage: 0, staged: None })
    }

    /// The decision that is staged, unless the host has said that it took it.
    pub fn staged(&mut self) -> Option<&T> {
        if self.memory.observe(self.base + TAKEN) == self.stage {
            self.staged = None;
        }
        self.staged.as_ref()
    }

    /// Puts another decision, or none, in the place of the one that is there, in one step: the host finds the old one
    /// or
    /// the new one.
    pub fn replace(&mut self, decision: Option<T>) -> Replaced<T> {
        let had = self.staged.is_some();
        let old = self.staged().cloned();
        self.stage = (self.stage & !1) + 2 + u64::from(decision.is_some());
        self.memory.store(self.base + BEGUN, self.stage);
        self.memory.barrier();
        if let Some(decision) = &decision {
            let words = decision.encode();
            for (word, value) in words[..T::WORDS.min(PAYLOAD - 1)].iter().enumerate() {
                self.memory.store(self.base + 1 + word, *value);
            }
        }
        self.memory.drain();
        self.memory.publish(self.base + FINISHED, self.stage);
        self.memory.drain();
        self.staged = decision;
        match old {
            Some(old) => Replaced::Recalled(old),
            None if had => Replaced::Taken,
            None => Replaced::Nothing,
        }
    }

    /// Takes the decision back.
    pub fn recall(&mut self) -> Replaced<T> {
        self.replace(None)
    }

    /// The memory, for what is measured of it.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }
}

/// The host's side of a slot.
pub struct HostSlot<T, M> {
    memory: M,
    base: usize,
    taken: u64,
    is_cached: bool,
    carries: PhantomData<fn() -> T>,
}

impl<T: Entry, M: QueueMemory> HostSlot<T, M> {
    /// The slot that begins with this line, in memory that is zero. None where it is not inside.
    pub fn new(memory: M, line: usize) -> Option<Self> {
        let base = base(&memory, line)?;
        Some(HostSlot { memory, base, taken: 0, is_cached: false, carries: PhantomData })
    }

    /// Begins to load the slot, before the host updates its state and sends its message.
    pub fn prefetch(&mut self) {
        self.memory.prefetch(self.base);
        self.is_cached = true;
    }

    /// Takes the decision that is staged. None: there is none, or the agent writes it at this moment, or what is there
    /// is none; the agent's interrupt is to be waited for.
    pub fn take(&mut self) -> Option<T> {
        if std::mem::take(&mut self.is_cached) {
            // What was prefetched may be older than what the agent did since. An older decision is as good as any: the
            // transaction tells.
            let found = self.look();
            self.memory.flush(self.base);
            if found.is_some() {
                return found;
            }
        }
        let found = self.look();
        self.memory.flush(self.base);
        found
    }

    fn look(&mut self) -> Option<T> {
        let stage = self.memory.observe(self.base + FINISHED);
        if stage & 1 == 0 || stage == self.taken {
            return None;
        }
        let mut words = [0; PAYLOAD];
        for (word, value) in words[..T::WORDS.min(PAYLOAD - 1)].iter_mut().enumerate() {
            *value = self.memory.load(self.base + 1 + word);
        }
        self.memory.barrier();
        if self.memory.load(self.base + BEGUN) != stage {
            return None;
        }
        self.taken = stage;
        self.memory.publish(self.base + TAKEN, stage);
        self.memory.drain();
        T::decode(&words)
    }

    /// The memory, for what is measured of it.
    pub fn memory(&mut self) -> &mut M {
        &mut self.memory
    }
}

fn base<M: QueueMemory>(memory: &M, line: usize) -> Option<usize> {
    let end = line.checked_add(SLOT_LINES)?.checked_mul(WORDS_PER_LINE)?;
    (end <= memory.words()).then_some(line * WORDS_PER_LINE)
}

#[cfg(test)]
mod tests;
