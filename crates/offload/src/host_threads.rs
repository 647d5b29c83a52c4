//! The host's truth about the threads of a partition, and how decisions about them are committed (Wave §3.2).
//!
//! Cores change it at the same time without a lock: a thread is one word, its number of changes, its state and its
//! core; a core is one word too. A transaction claims the threads and reserves the cores of its group, and then enacts
//! all of it; if it cannot have one of them it gives back the others and nothing has changed.

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64};

use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use softdpu_sched::threads::{CoreId, Outcome, Sequence, SloClass, ThreadEvent, ThreadId, ThreadMessage};

use crate::entry::{Transaction, TransactionOutcome};

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// There is none, or it is not of this partition.
    Absent,
    /// It waits for something.
    Blocked,
    /// It waits for a core.
    Runnable,
    /// It is on a core.
    Running(CoreId),
}

/// Which transactions of a batch depend on each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// Each is committed or refused for itself.
    Each,
    /// All are committed, or none is.
    Together,
}

const ABSENT: u64 = 0;
const BLOCKED: u64 = 1;
const RUNNABLE: u64 = 2;
const RUNNING: u64 = 3;
/// A transaction is about to enact it. Short: a change waits until it is over.
const CLAIMED: u64 = 4;

/// Bits of a thread's word: state, core, and the number of changes above them.
const STATE_BITS: u32 = 3;
const CORE_BITS: u32 = 13;
/// Cores that a partition may have.
const MOST_CORES: usize = 1 << CORE_BITS;

/// A core's word: the thread on it and one, or 0; and this, while a transaction has it reserved.
const RESERVED: u64 = 1 << 63;

/// No core in particular.
const ANY_CORE: u32 = u32::MAX;

#[derive(Clone, Copy, PartialEq, Eq)]
struct Packed(u64);

impl Packed {
    fn new(sequence: u64, state: u64, core: u32) -> Packed {
        Packed(sequence << (STATE_BITS + CORE_BITS) | u64::from(core) << STATE_BITS | state)
    }

    fn state(self) -> u64 {
        self.0 & ((1 << STATE_BITS) - 1)
    }

    fn core(self) -> u32 {
        (self.0 >> STATE_BITS) as u32 & ((1 << CORE_BITS) - 1)
    }

    fn sequence(self) -> u64 {
        self.0 >> (STATE_BITS + CORE_BITS)
    }

    fn with(self, state: u64, core: u32) -> Packed {
        Packed::new(self.sequence(), state, core)
    }

    fn next(self, state: u64, core: u32) -> Packed {
        Packed::new(self.sequence().wrapping_add(1), state, core)
    }
}

struct Thread {
    word: AtomicU64,
    affinity: AtomicU32,
}

/// See the [module](self).
pub struct HostThreads {
    threads: Box<[Thread]>,
    cores: Box<[AtomicU64]>,
}

impl HostThreads {
    /// For threads and cores with ids below these numbers. None where there are more than 8192 cores or 2^31 threads.
    pub fn new(threads: u32, cores: u32) -> Option<HostThreads> {
        if cores as usize > MOST_CORES || threads > 1 << 31 {
            return None;
        }
        let absent = || Thread { word: AtomicU64::new(ABSENT), affinity: AtomicU32::new(ANY_CORE) };
        Some(HostThreads {
            threads: (0..threads).map(|_| absent()).collect(),
            cores: (0..cores).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    fn thread(&self, thread: ThreadId) -> Option<&Thread> {
        self.threads.get(thread.0 as usize)
    }

    /// A thread's state and number of changes.
    pub fn state(&self, thread: ThreadId) -> (ThreadState, Sequence) {
        let word = Packed(self.thread(thread).map_or(ABSENT, |thread| thread.word.load(Acquire)));
        let state = match word.state() {
            BLOCKED => ThreadState::Blocked,
            // A claimed one is runnable until its transaction is over.
            RUNNABLE | CLAIMED => ThreadState::Runnable,
            RUNNING => ThreadState::Running(CoreId(word.core())),
            _ => ThreadState::Absent,
        };
        (state, Sequence(word.sequence()))
    }

    /// What a core runs.
    pub fn on(&self, core: CoreId) -> Option<ThreadId> {
        let word = self.cores.get(core.0 as usize)?.load(Acquire) & !RESERVED;
        word.checked_sub(1).map(|thread| ThreadId(thread as u32))
    }

    /// Changes a thread if it is in one of these states, and says what it was and is. Waits while it is claimed.
    fn change(&self, thread: ThreadId, from: &[u64], to: u64) -> Option<(Packed, Packed)> {
        let word = &self.thread(thread)?.word;
        loop {
            let old = Packed(word.load(Acquire));
            if old.state() == CLAIMED {
                pause();
                continue;
            }
            if !from.contains(&old.state()) {
                return None;
            }
            let new = old.next(to, 0);
            if word.compare_exchange(old.0, new.0, AcqRel, Acquire).is_ok() {
                return Some((old, new));
            }
        }
    }

    fn message(thread: ThreadId, (old, new): (Packed, Packed), event: ThreadEvent, class: SloClass) -> ThreadMessage {
        ThreadMessage { thread, sequence: Sequence(new.sequence()), event, core: CoreId(old.core()), class }
    }

    /// A thread of this partition begins, blocked. None, and no change, where there is one of that id already.
    pub fn create(&self, thread: ThreadId, class: SloClass) -> Option<ThreadMessage> {
        let changed = self.change(thread, &[ABSENT], BLOCKED)?;
        self.thread(thread)?.affinity.store(ANY_CORE, Release);
        Some(Self::message(thread, changed, ThreadEvent::Created, class))
    }

    /// A blocked thread becomes runnable.
    pub fn wake(&self, thread: ThreadId, class: SloClass) -> Option<ThreadMessage> {
        let changed = self.change(thread, &[BLOCKED], RUNNABLE)?;
        Some(Self::message(thread, changed, ThreadEvent::Wakeup, class))
    }

    /// A running thread waits for something; its core is idle.
    pub fn block(&self, thread: ThreadId) -> Option<ThreadMessage> {
        self.leave(thread, BLOCKED, ThreadEvent::Blocked)
    }

    /// A running thread gives up its core, and stays runnable.
    pub fn yield_core(&self, thread: ThreadId) -> Option<ThreadMessage> {
        self.leave(thread, RUNNABLE, ThreadEvent::Yield)
    }

    fn leave(&self, thread: ThreadId, to: u64, event: ThreadEvent) -> Option<ThreadMessage> {
        let changed = self.change(thread, &[RUNNING], to)?;
        self.release(changed.0.core(), thread);
        Some(Self::message(thread, changed, event, SloClass::default()))
    }

    /// A thread ends, whatever it does.
    pub fn depart(&self, thread: ThreadId) -> Option<ThreadMessage> {
        let changed = self.change(thread, &[BLOCKED, RUNNABLE, RUNNING], ABSENT)?;
        if changed.0.state() == RUNNING {
            self.release(changed.0.core(), thread);
        }
        Some(Self::message(thread, changed, ThreadEvent::Departed, SloClass::default()))
    }

    /// A thread may run on this core alone from now on. One that runs elsewhere leaves its core: then there are two
    /// messages, of which the second says so.
    pub fn bind(&self, thread: ThreadId, core: CoreId) -> Option<(ThreadMessage, Option<ThreadMessage>)> {
        let entry = self.thread(thread)?;
        entry.affinity.store(core.0, Release);
        // A change of its number: what was decided before is refused.
        let (event, none) = (ThreadEvent::Affinity, SloClass::default());
        let bound = |changed: (Packed, Packed)| ThreadMessage { core, ..Self::message(thread, changed, event, none) };
        loop {
            let old = Packed(entry.word.load(Acquire));
            match old.state() {
                ABSENT => return None,
                CLAIMED => pause(),
                RUNNING => {
                    let new = old.next(RUNNABLE, 0);
                    if entry.word.compare_exchange(old.0, new.0, AcqRel, Acquire).is_ok() {
                        self.release(old.core(), thread);
                        let left = Self::message(thread, (old, new), ThreadEvent::Preempted, none);
                        return Some((bound((old, new)), Some(left)));
                    }
                }
                state => {
                    let new = old.next(state, 0);
                    if entry.word.compare_exchange(old.0, new.0, AcqRel, Acquire).is_ok() {
                        return Some((bound((old, new)), None));
                    }
                }
            }
        }
    }

    /// A core is idle, if it ran this thread.
    fn release(&self, core: u32, thread: ThreadId) {
        let Some(word) = self.cores.get(core as usize) else { return };
        let mine = u64::from(thread.0) + 1;
        let mut old = word.load(Acquire);
        while old & !RESERVED == mine {
            match word.compare_exchange(old, old & RESERVED, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => old = now,
            }
        }
    }

    /// Commits a batch: atomically for each transaction, or for all of them. Outcomes are in the order of the batch;
    /// `messages` gets what the host has to tell of threads that were preempted.
    pub fn commit(
        &self,
        batch: &[Transaction],
        grouping: Grouping,
        messages: &mut Vec<ThreadMessage>,
    ) -> Vec<TransactionOutcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        let group = match grouping {
            Grouping::Each => 1,
            Grouping::Together => batch.len().max(1),
        };
        for group in batch.chunks(group) {
            let refused = self.commit_group(group, messages);
            let outcome = |(at, Transaction { number, decision, .. }): (usize, &Transaction)| {
                let outcome = match refused {
                    None => Outcome::Committed,
                    Some((wrong, why)) if wrong == at => why,
                    Some(_) => Outcome::GroupRefused,
                };
                TransactionOutcome { number: *number, decision: *decision, outcome }
            };
            outcomes.extend(group.iter().enumerate().map(outcome));
        }
        outcomes
    }

    /// Commits all of it; or nothing, and says which one could not be, and why.
    fn commit_group(&self, group: &[Transaction], messages: &mut Vec<ThreadMessage>) -> Option<(usize, Outcome)> {
        for (at, transaction) in group.iter().enumerate() {
            if let Err(why) = self.claim(transaction) {
                for claimed in &group[..at] {
                    self.give_back(claimed);
                }
                return Some((at, why));
            }
        }
        for transaction in group {
            self.enact(transaction, messages);
        }
        None
    }

    /// Has the thread and the core of a transaction for itself, or neither.
    fn claim(&self, transaction: &Transaction) -> Result<(), Outcome> {
        let Transaction { decision, preempts, .. } = transaction;
        let (Some(thread), Some(core)) = (self.thread(decision.thread), self.cores.get(decision.core.0 as usize))
        else {
            return Err(Outcome::NotOwned);
        };
        let old = Packed(thread.word.load(Acquire));
        let is_current = old.state() == RUNNABLE && old.sequence() == decision.sequence.0;
        let claimed = old.with(CLAIMED, 0);
        if !is_current || thread.word.compare_exchange(old.0, claimed.0, AcqRel, Acquire).is_err() {
            return Err(Outcome::Stale);
        }
        let refuse = |why| {
            thread.word.store(old.0, Release);
            Err(why)
        };
        // Read after the claim: whoever binds the thread stores the core first and then changes its number.
        let affinity = thread.affinity.load(Acquire);
        if affinity != ANY_CORE && affinity != decision.core.0 {
            return refuse(Outcome::Stale);
        }
        let mut occupied = core.load(Acquire);
        loop {
            if occupied & RESERVED != 0 || occupied != 0 && !preempts {
                return refuse(Outcome::CoreBusy);
            }
            match core.compare_exchange(occupied, occupied | RESERVED, AcqRel, Acquire) {
                Ok(_) => return Ok(()),
                Err(now) => occupied = now,
            }
        }
    }

    /// Undoes a claim.
    fn give_back(&self, transaction: &Transaction) {
        let decision = transaction.decision;
        if let Some(core) = self.cores.get(decision.core.0 as usize) {
            core.fetch_and(!RESERVED, AcqRel);
        }
        if let Some(thread) = self.thread(decision.thread) {
            thread.word.store(Packed::new(decision.sequence.0, RUNNABLE, 0).0, Release);
        }
    }

    /// Enacts what was claimed.
    fn enact(&self, transaction: &Transaction, messages: &mut Vec<ThreadMessage>) {
        let decision = transaction.decision;
        let (Some(thread), Some(core)) = (self.thread(decision.thread), self.cores.get(decision.core.0 as usize))
        else {
            return;
        };
        if let Some(on) = self.on(decision.core) {
            messages.extend(self.evict(on, decision.core));
        }
        // An exchange, as the old thread may be leaving: what is written last is this.
        core.swap(u64::from(decision.thread.0) + 1, AcqRel);
        thread.word.store(Packed::new(decision.sequence.0.wrapping_add(1), RUNNING, decision.core.0).0, Release);
    }

    /// Takes a thread off a core, unless it has left by itself.
    fn evict(&self, thread: ThreadId, core: CoreId) -> Option<ThreadMessage> {
        let word = &self.thread(thread)?.word;
        loop {
            let old = Packed(word.load(Acquire));
            if old.state() != RUNNING || old.core() != core.0 {
                return None;
            }
            let new = old.next(RUNNABLE, 0);
            if word.compare_exchange(old.0, new.0, AcqRel, Acquire).is_ok() {
                let event = ThreadEvent::Preempted;
                return Some(Self::message(thread, (old, new), event, SloClass::default()));
            }
        }
    }
}

/// Another core finishes what it is about.
fn pause() {
    #[cfg(loom)]
    loom::thread::yield_now();
    #[cfg(not(loom))]
    std::thread::yield_now();
}

#[cfg(all(test, not(loom)))]
mod tests;
