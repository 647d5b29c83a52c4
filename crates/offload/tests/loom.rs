//! Every interleaving of queues, prestaged decisions and transactions, over loom's atomics.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p softdpu-offload --test loom`
#![cfg(loom)]

use std::sync::atomic::Ordering;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, fence};
use loom::thread;
use softdpu_offload::{
    AgentSlot, Consumer, Grouping, HostSlot, HostThreads, Producer, QueueMemory, Replaced, SLOT_LINES, ThreadState,
    Transaction, WORDS_PER_LINE, queue_lines,
};
use softdpu_sched::threads::{CoreId, Outcome, Sequence, SloClass, ThreadDecision, ThreadId};

#[derive(Clone)]
struct Memory(Arc<Vec<AtomicU64>>);

impl Memory {
    fn new(lines: usize) -> Self {
        Memory(Arc::new((0..lines * WORDS_PER_LINE).map(|_| AtomicU64::new(0)).collect()))
    }
}

impl QueueMemory for Memory {
    fn words(&self) -> usize {
        self.0.len()
    }
    fn load(&mut self, at: usize) -> u64 {
        self.0[at].load(Ordering::Relaxed)
    }
    fn observe(&mut self, at: usize) -> u64 {
        self.0[at].load(Ordering::Acquire)
    }
    fn store(&mut self, at: usize, value: u64) {
        self.0[at].store(value, Ordering::Relaxed);
    }
    fn publish(&mut self, at: usize, value: u64) {
        self.0[at].store(value, Ordering::Release);
    }
    fn barrier(&mut self) {
        fence(Ordering::SeqCst);
    }
}

fn transaction(number: u32, core: u32, sequence: Sequence) -> Transaction {
    let decision = ThreadDecision { core: CoreId(core), thread: ThreadId(number), sequence };
    Transaction { number, decision, preempts: false }
}

#[test]
fn what_has_its_flag_is_whole_and_in_order_also_in_the_second_round() {
    loom::model(|| {
        let memory = Memory::new(queue_lines(1));
        let mut producer = Producer::<Transaction, _>::new(memory.clone(), 1).unwrap();
        let mut consumer = Consumer::<Transaction, _>::new(memory, 1).unwrap();
        let of = |number| transaction(number, number + 3, Sequence(u64::from(number) + 5));
        let sender = thread::spawn(move || {
            let first = producer.send(&[of(1)]).unwrap();
            first + producer.send(&[of(2)]).unwrap()
        });
        let mut found = Vec::new();
        consumer.poll(&mut found, 2).unwrap();
        let sent = sender.join().unwrap();
        consumer.poll(&mut found, 2).unwrap();
        assert_eq!(found, [of(1), of(2)][..sent]);
    });
}

#[test]
fn a_batch_is_there_whole_or_not_at_all() {
    loom::model(|| {
        let memory = Memory::new(queue_lines(2));
        let mut producer = Producer::<Transaction, _>::new(memory.clone(), 2).unwrap();
        let mut consumer = Consumer::<Transaction, _>::new(memory, 2).unwrap();
        let of = |number| transaction(number, number + 3, Sequence(u64::from(number) + 5));
        let sender = thread::spawn(move || producer.send(&[of(1), of(2)]).unwrap());
        let mut found = Vec::new();
        let count = consumer.poll(&mut found, 2).unwrap();
        assert!(count == 0 || count == 2, "{found:?}");
        assert_eq!(found, [of(1), of(2)][..count]);
        assert_eq!(sender.join().unwrap(), 2);
    });
}

#[test]
fn a_prestaged_decision_is_taken_whole_and_once_and_never_lost() {
    loom::model(|| {
        let memory = Memory::new(SLOT_LINES);
        let mut agent = AgentSlot::<Transaction, _>::new(memory.clone(), 0).unwrap();
        let mut host = HostSlot::<Transaction, _>::new(memory, 0).unwrap();
        let of = |number| transaction(number, number + 3, Sequence(u64::from(number) + 5));
        let agent = thread::spawn(move || {
            assert_eq!(agent.replace(Some(of(1))), Replaced::Nothing);
            (agent.replace(Some(of(2))), agent)
        });
        let first = host.take();
        let (replaced, mut agent) = agent.join().unwrap();
        let second = host.take();
        for found in [first, second].into_iter().flatten() {
            assert!(found == of(1) || found == of(2), "torn: {found:?}");
        }
        assert!(first.is_none() || first != second, "{first:?} was taken twice");
        // The first one was taken, or the agent has it back (or both: then the transaction decides).
        assert!(first == Some(of(1)) || replaced == Replaced::Recalled(of(1)), "{first:?} {replaced:?}");
        assert!(first == Some(of(2)) || second == Some(of(2)));
        assert_eq!(agent.staged(), None);
    });
}

/// Threads 0 and 1, runnable.
fn threads() -> (Arc<HostThreads>, [Sequence; 2]) {
    let host = HostThreads::new(2, 2).unwrap();
    let sequences = [0, 1].map(|thread| {
        host.create(ThreadId(thread), SloClass(0)).unwrap();
        host.wake(ThreadId(thread), SloClass(0)).unwrap().sequence
    });
    (Arc::new(host), sequences)
}

fn is_consistent(host: &HostThreads) {
    for core in [CoreId(0), CoreId(1)] {
        if let Some(thread) = host.on(core) {
            assert_eq!(host.state(thread).0, ThreadState::Running(core));
        }
    }
    for thread in [ThreadId(0), ThreadId(1)] {
        if let ThreadState::Running(core) = host.state(thread).0 {
            assert_eq!(host.on(core), Some(thread));
        }
    }
}

#[test]
fn of_two_decisions_about_a_thread_one_is_enacted() {
    loom::model(|| {
        let (host, sequences) = threads();
        let other = Arc::clone(&host);
        let commit = move |host: &HostThreads, core| {
            let batch = [transaction(0, core, sequences[0])];
            host.commit(&batch, Grouping::Each, &mut Vec::new())[0].outcome
        };
        let committing = thread::spawn(move || commit(&other, 1));
        let own = commit(&host, 0);
        let found = [own, committing.join().unwrap()];
        assert_eq!(found.iter().filter(|outcome| **outcome == Outcome::Committed).count(), 1, "{found:?}");
        is_consistent(&host);
    });
}

#[test]
fn a_thread_that_moves_during_its_decision_is_not_left_on_the_wrong_core() {
    loom::model(|| {
        let (host, sequences) = threads();
        let other = Arc::clone(&host);
        let moving = thread::spawn(move || {
            other.bind(ThreadId(0), CoreId(1));
        });
        host.commit(&[transaction(0, 0, sequences[0])], Grouping::Each, &mut Vec::new());
        moving.join().unwrap();
        assert_eq!(host.on(CoreId(0)), None);
        is_consistent(&host);
    });
}

#[test]
fn a_group_is_whole_while_one_of_its_threads_exits() {
    loom::model(|| {
        let (host, sequences) = threads();
        let other = Arc::clone(&host);
        let leaving = thread::spawn(move || {
            other.depart(ThreadId(1));
        });
        let batch = [transaction(0, 0, sequences[0]), transaction(1, 1, sequences[1])];
        let found = host.commit(&batch, Grouping::Together, &mut Vec::new());
        leaving.join().unwrap();
        let committed = found.iter().filter(|found| found.outcome == Outcome::Committed).count();
        assert!(committed == 0 || committed == 2, "{found:?}");
        assert_eq!(host.on(CoreId(0)).is_some(), committed == 2);
        assert_eq!(host.state(ThreadId(1)).0, ThreadState::Absent);
        is_consistent(&host);
    });
}

#[test]
fn a_preemption_and_a_thread_that_blocks_do_not_lose_the_core() {
    loom::model(|| {
        let (host, sequences) = threads();
        host.commit(&[transaction(0, 0, sequences[0])], Grouping::Each, &mut Vec::new());
        let other = Arc::clone(&host);
        let blocking = thread::spawn(move || other.block(ThreadId(0)).is_some());
        let preempting = Transaction { preempts: true, ..transaction(1, 0, sequences[1]) };
        let mut messages = Vec::new();
        let found = host.commit(&[preempting], Grouping::Each, &mut messages);
        let blocked = blocking.join().unwrap();
        assert_eq!(found[0].outcome, Outcome::Committed);
        // It left by itself or was evicted, one of both.
        assert_ne!(blocked, messages.len() == 1);
        assert_eq!(host.on(CoreId(0)), Some(ThreadId(1)));
        is_consistent(&host);
    });
}
