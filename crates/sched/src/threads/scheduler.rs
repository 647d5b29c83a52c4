//! What all thread policies have in common: what each thread does, and what each core runs.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    CoreId, Outcome, Sequence, SloClass, ThreadDecision, ThreadEvent, ThreadId, ThreadMessage, ThreadScheduler,
};
use crate::Nanos;

/// In which order threads run, and for how long.
pub trait Order: Send {
    /// A thread waits from now on; `first`: it had its turn and lost it by no fault of its own.
    fn insert(&mut self, now: Nanos, thread: ThreadId, class: SloClass, first: bool);
    /// Takes out the next one of those that are `allowed`.
    fn take(&mut self, now: Nanos, allowed: &dyn Fn(ThreadId) -> bool) -> Option<ThreadId>;
    /// Takes out this one, if it waits.
    fn remove(&mut self, thread: ThreadId);
    /// How many wait.
    fn len(&self) -> usize;
    /// Whether none waits.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// A thread runs from now on.
    fn started(&mut self, _now: Nanos, _thread: ThreadId) {}
    /// A thread left its core, on which it was for so long.
    fn ran(&mut self, _thread: ThreadId, _time: Nanos) {}
    /// A thread is gone.
    fn departed(&mut self, _thread: ThreadId) {}
    /// Whether a thread that has run for so long is to give way.
    fn is_over(&self, now: Nanos, thread: ThreadId, ran: Nanos) -> bool;
    /// The first time after `now` at which [`is_over`](Self::is_over) may say otherwise of a thread that runs since
    /// `since`.
    fn next_check(&self, now: Nanos, since: Nanos) -> Option<Nanos>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ThreadState {
    Blocked,
    Queued,
    /// Decided, and the host has not said what became of it.
    Staged,
    Running,
}

#[derive(Clone, Copy, Debug)]
struct Thread {
    sequence: Sequence,
    state: ThreadState,
    class: SloClass,
    affinity: Option<CoreId>,
}

/// A thread policy: an [`Order`], and the state of threads and cores as messages and outcomes tell it.
#[derive(Debug)]
pub struct ThreadPolicy<O> {
    order: O,
    threads: BTreeMap<ThreadId, Thread>,
    running: BTreeMap<CoreId, (ThreadId, Nanos)>,
    /// Cores that [`ThreadScheduler::preempt`] has named.
    kicked: BTreeSet<CoreId>,
}

impl<O: Order> ThreadPolicy<O> {
    /// One without threads.
    pub fn with_order(order: O) -> Self {
        ThreadPolicy { order, threads: BTreeMap::new(), running: BTreeMap::new(), kicked: BTreeSet::new() }
    }

    /// Its order.
    pub fn order(&self) -> &O {
        &self.order
    }

    fn queue(&mut self, now: Nanos, thread: ThreadId, first: bool) {
        if let Some(entry) = self.threads.get_mut(&thread) {
            entry.state = ThreadState::Queued;
            self.order.insert(now, thread, entry.class, first);
        }
    }

    /// A thread is on no core any more.
    fn leave_core(&mut self, now: Nanos, thread: ThreadId) {
        let core = self.running.iter().find(|(_, (running, _))| *running == thread).map(|(core, _)| *core);
        if let Some((core, (_, since))) = core.and_then(|core| Some((core, self.running.remove(&core)?))) {
            self.kicked.remove(&core);
            self.order.ran(thread, now.since(since));
        }
    }
}

impl<O: Order> ThreadScheduler for ThreadPolicy<O> {
    fn message(&mut self, now: Nanos, message: &ThreadMessage) {
        let ThreadMessage { thread, sequence, event, core, class } = *message;
        if event == ThreadEvent::Created {
            let new = Thread { sequence, state: ThreadState::Blocked, class, affinity: None };
            // A TID is used again: what was known of it is of another thread.
            if self.threads.insert(thread, new).is_some() {
                self.order.remove(thread);
                self.leave_core(now, thread);
            }
            return;
        }
        let Some(known) = self.threads.get_mut(&thread) else { return };
        // An outcome may have told of a later state already. What a message says of the thread's class, or of its end,
        // is true nevertheless.
        let is_late = sequence < known.sequence;
        known.sequence = known.sequence.max(sequence);
        let state = known.state;
        match event {
            ThreadEvent::Created => {}
            ThreadEvent::Departed => {
                self.threads.remove(&thread);
                self.order.remove(thread);
                self.leave_core(now, thread);
                self.order.departed(thread);
            }
            ThreadEvent::Affinity => {
                known.affinity = Some(core);
            }
            _ if is_late => {}
            ThreadEvent::Wakeup => {
                known.class = class;
                // One that wakes up was blocked, whatever has not been told yet: messages of other cores and outcomes
                // may come later.
                if state != ThreadState::Queued {
                    self.leave_core(now, thread);
                    self.queue(now, thread, false);
                }
            }
            ThreadEvent::Blocked => {
                known.state = ThreadState::Blocked;
                self.order.remove(thread);
                self.leave_core(now, thread);
            }
            ThreadEvent::Yield | ThreadEvent::Preempted => {
                self.leave_core(now, thread);
                if state != ThreadState::Queued {
                    self.queue(now, thread, false);
                }
            }
        }
    }

    fn pick(&mut self, now: Nanos, core: CoreId) -> Option<ThreadDecision> {
        let threads = &self.threads;
        let allowed =
            |thread: ThreadId| threads.get(&thread).is_some_and(|known| known.affinity.is_none_or(|only| only == core));
        let Some(thread) = self.order.take(now, &allowed) else {
            self.kicked.remove(&core);
            return None;
        };
        let known = self.threads.get_mut(&thread)?;
        known.state = ThreadState::Staged;
        Some(ThreadDecision { core, thread, sequence: known.sequence })
    }

    fn outcome(&mut self, now: Nanos, decision: &ThreadDecision, outcome: Outcome) {
        let ThreadDecision { core, thread, sequence } = *decision;
        self.kicked.remove(&core);
        let Some(known) = self.threads.get_mut(&thread) else { return };
        if outcome != Outcome::Committed {
            // Only a decision that is still awaited gives its thread back.
            if known.state == ThreadState::Staged {
                self.queue(now, thread, true);
            }
            return;
        }
        if known.sequence > sequence {
            // It has left the core again, as a message said.
            return;
        }
        known.sequence = sequence.next();
        if known.state == ThreadState::Queued {
            // It was recalled too late.
            self.order.remove(thread);
        }
        known.state = ThreadState::Running;
        self.leave_core(now, thread);
        if let Some((old, since)) = self.running.insert(core, (thread, now)) {
            // Preempted; the message that says so comes later.
            self.order.ran(old, now.since(since));
        }
        self.order.started(now, thread);
    }

    fn recall(&mut self, now: Nanos, decision: &ThreadDecision) {
        let known = self.threads.get(&decision.thread);
        if known.is_some_and(|known| known.state == ThreadState::Staged && known.sequence == decision.sequence) {
            self.queue(now, decision.thread, true);
        }
    }

    fn preempt(&mut self, now: Nanos) -> Option<CoreId> {
        if self.order.is_empty() {
            return None;
        }
        let is_over = |(core, (thread, since)): &(&CoreId, &(ThreadId, Nanos))| {
            !self.kicked.contains(core) && self.order.is_over(now, *thread, now.since(*since))
        };
        // The one that has run longest gives way first.
        let core = self.running.iter().filter(is_over).min_by_key(|(_, (_, since))| *since).map(|(core, _)| *core)?;
        self.kicked.insert(core);
        Some(core)
    }

    fn deadline(&self, now: Nanos) -> Option<Nanos> {
        if self.order.is_empty() {
            return None;
        }
        let left = self.running.iter().filter(|(core, _)| !self.kicked.contains(core));
        left.filter_map(|(_, (_, since))| self.order.next_check(now, *since)).min()
    }

    fn waiting(&self) -> usize {
        self.order.len()
    }
}
