//! Transactions while threads exit, move and wake: no decision is enacted twice, none is lost.
//!
//! `SOFTDPU_TRANSACTIONS` is how many; a million without it.
#![cfg(not(loom))]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use softdpu_offload::{
    AgentSlot, Consumer, Entry, Grouping, HostSlot, HostThreads, Producer, Replaced, SLOT_LINES, SharedMemory,
    Transaction, TransactionOutcome, queue_lines,
};
use softdpu_sched::Nanos;
use softdpu_sched::threads::{
    CoreId, FifoThreads, Outcome, SLICE, Shinjuku, SloClass, ThreadDecision, ThreadEvent, ThreadId, ThreadMessage,
    ThreadScheduler,
};

const THREADS: u32 = 64;
const CORES: u32 = 4;
const CAPACITY: usize = 256;
const CLASS: SloClass = SloClass(0);

fn transactions() -> u64 {
    std::env::var("SOFTDPU_TRANSACTIONS").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000_000)
}

fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60 + transactions() / 20_000)
}

/// Two committers decide about every thread with the sequence that they have just read, on all cores at once, singly
/// and in groups; two others make threads exit, move, wake and block.
#[test]
fn transactions_race_with_threads_that_exit_move_and_wake() {
    let host = HostThreads::new(THREADS, CORES).unwrap();
    let (committed, refused, evicted, left) =
        (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (each, is_over, deadline) = (transactions() / 2, AtomicBool::new(false), deadline());
    let commit = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut messages = Vec::new();
        let mut number = 0;
        while u64::from(number) < each {
            assert!(Instant::now() < deadline, "{number} of {each} transactions were made in time");
            let size = random.usize(1..=3);
            let batch: Vec<Transaction> = (0..size)
                .map(|_| {
                    number += 1;
                    let thread = ThreadId(random.u32(0..THREADS));
                    let (core, sequence) = (CoreId(random.u32(0..CORES)), host.state(thread).1);
                    let decision = ThreadDecision { core, thread, sequence };
                    Transaction { number, decision, preempts: random.bool() }
                })
                .collect();
            let grouping = if random.bool() { Grouping::Each } else { Grouping::Together };
            messages.clear();
            let outcomes = host.commit(&batch, grouping, &mut messages);
            evicted.fetch_add(messages.len() as u64, Relaxed);
            let good = outcomes.iter().filter(|found| found.outcome == Outcome::Committed).count();
            if grouping == Grouping::Together {
                assert!(good == 0 || good == size, "a group was torn: {outcomes:?}");
            }
            committed.fetch_add(good as u64, Relaxed);
            refused.fetch_add((size - good) as u64, Relaxed);
        }
    };
    let disturb = |seed: u64| {
        let mut random = fastrand::Rng::with_seed(seed);
        while !is_over.load(Relaxed) {
            let thread = ThreadId(random.u32(0..THREADS));
            let was_running = |message: Option<ThreadMessage>| u64::from(message.is_some());
            match random.u32(0..16) {
                0 => {
                    // It may have been on a core: that it has left is counted by what the core has.
                    host.depart(thread);
                }
                1 => {
                    host.bind(thread, CoreId(random.u32(0..CORES)));
                }
                2..=6 => {
                    host.create(thread, CLASS);
                    host.wake(thread, CLASS);
                }
                7..=9 => {
                    host.wake(thread, CLASS);
                }
                10..=11 => {
                    left.fetch_add(was_running(host.yield_core(thread)), Relaxed);
                }
                _ => {
                    left.fetch_add(was_running(host.block(thread)), Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let committers = [scope.spawn(|| commit(1)), scope.spawn(|| commit(2))];
        let disturbers = [scope.spawn(|| disturb(3)), scope.spawn(|| disturb(4))];
        let results = committers.map(std::thread::ScopedJoinHandle::join);
        is_over.store(true, Relaxed);
        let others = disturbers.map(std::thread::ScopedJoinHandle::join);
        results.into_iter().chain(others).for_each(|result| result.unwrap());
    });
    let (committed, refused) = (committed.into_inner(), refused.into_inner());
    assert!(committed > each / 100 && refused > each / 100, "{committed} committed, {refused} refused");
    // Every thread that is on a core knows it, and every core's thread is on it alone.
    let on: Vec<ThreadId> = (0..CORES).filter_map(|core| host.on(CoreId(core))).collect();
    assert_eq!(on.iter().collect::<BTreeSet<_>>().len(), on.len(), "{on:?}");
    for thread in (0..THREADS).map(ThreadId) {
        if let softdpu_offload::ThreadState::Running(core) = host.state(thread).0 {
            assert_eq!(host.on(core), Some(thread));
        }
    }
    for core in (0..CORES).map(CoreId) {
        if let Some(thread) = host.on(core) {
            assert_eq!(host.state(thread).0, softdpu_offload::ThreadState::Running(core));
        }
    }
    assert!(evicted.into_inner() > 0 && left.into_inner() > 0);
}

fn queue<T: Entry>() -> (Producer<T, SharedMemory>, Consumer<T, SharedMemory>) {
    let memory = SharedMemory::heap(queue_lines(CAPACITY));
    (Producer::new(memory.clone(), CAPACITY).unwrap(), Consumer::new(memory, CAPACITY).unwrap())
}

type Slot<S> = Vec<S>;

/// What the agent's thread has.
struct Agent {
    messages: Consumer<ThreadMessage, SharedMemory>,
    transactions: Producer<Transaction, SharedMemory>,
    outcomes: Consumer<TransactionOutcome, SharedMemory>,
    slots: Slot<AgentSlot<Transaction, SharedMemory>>,
}

/// The agent: a policy that prestages a decision for each core, and replaces it now and then; it sends no interrupts.
fn decide(mut agent: Agent, mut policy: impl ThreadScheduler, is_over: &AtomicBool) {
    let (mut told, mut answered, mut number, mut now) = (Vec::new(), Vec::new(), 0_u32, 0);
    let mut random = fastrand::Rng::with_seed(9);
    while !is_over.load(Relaxed) {
        now += 1_000;
        told.clear();
        agent.messages.poll(&mut told, 64).unwrap();
        told.iter().for_each(|message| policy.message(Nanos(now), message));
        answered.clear();
        agent.outcomes.poll(&mut answered, 64).unwrap();
        answered.iter().for_each(|found| policy.outcome(Nanos(now), &found.decision, found.outcome));
        for core in 0..CORES {
            let slot = &mut agent.slots[core as usize];
            if slot.staged().is_some() && random.u32(0..8) > 0 {
                continue;
            }
            if let Replaced::Recalled(old) = slot.recall() {
                policy.recall(Nanos(now), &old.decision);
            }
            if let Some(decision) = policy.pick(Nanos(now), CoreId(core)) {
                number = number.wrapping_add(1);
                let replaced = slot.replace(Some(Transaction { number, decision, preempts: false }));
                assert_eq!(replaced, Replaced::Nothing);
            }
        }
        while let Some(core) = policy.preempt(Nanos(now)) {
            let Some(decision) = policy.pick(Nanos(now), core) else { break };
            number = number.wrapping_add(1);
            if agent.transactions.send(&[Transaction { number, decision, preempts: true }]).unwrap() == 0 {
                policy.recall(Nanos(now), &decision);
            }
        }
        if told.is_empty() && answered.is_empty() {
            std::thread::yield_now();
        }
    }
}

/// The whole path: messages, prestaged decisions that are taken and replaced at once, preemptions, outcomes; the host
/// goes on with whatever is decided, and disturbs it. At the end every thread still gets its turn: none was lost.
fn through_queues(policy: impl ThreadScheduler, count: u64) {
    let host = HostThreads::new(THREADS, CORES).unwrap();
    let (mut messages, messages_out) = queue();
    let (transactions_in, mut transactions) = queue();
    let (mut outcomes, outcomes_out) = queue();
    let memory = SharedMemory::heap(CORES as usize * SLOT_LINES);
    let line = |core: u32| core as usize * SLOT_LINES;
    let mut slots: Vec<HostSlot<Transaction, _>> =
        (0..CORES).map(|core| HostSlot::new(memory.clone(), line(core)).unwrap()).collect();
    let agent = Agent {
        messages: messages_out,
        transactions: transactions_in,
        outcomes: outcomes_out,
        slots: (0..CORES).map(|core| AgentSlot::new(memory.clone(), line(core)).unwrap()).collect(),
    };
    let (is_over, deadline) = (AtomicBool::new(false), deadline());
    let mut random = fastrand::Rng::with_seed(5);
    std::thread::scope(|scope| {
        let deciding = scope.spawn(|| decide(agent, policy, &is_over));
        let mut backlog: Vec<ThreadMessage> = Vec::new();
        let mut answers: Vec<TransactionOutcome> = Vec::new();
        let (mut batch, mut made, mut stale) = (Vec::new(), 0_u64, 0_u64);
        let (mut ran, mut last) = (vec![0_u64; THREADS as usize], vec![None; THREADS as usize]);
        for thread in (0..THREADS).map(ThreadId) {
            backlog.extend(host.create(thread, CLASS));
            backlog.extend(host.wake(thread, CLASS));
        }
        // First `count` transactions with disturbances; then, without, each thread is to run once more.
        let mut is_quiet = false;
        let mut awaited: BTreeSet<u32> = BTreeSet::new();
        while !is_quiet || !awaited.is_empty() {
            assert!(
                Instant::now() < deadline && !deciding.is_finished(),
                "{made} transactions, {awaited:?} did not run"
            );
            let sent = messages.send(&backlog).unwrap();
            backlog.drain(..sent);
            let sent = outcomes.send(&answers).unwrap();
            answers.drain(..sent);
            if !backlog.is_empty() || !answers.is_empty() {
                std::thread::yield_now();
            }
            if !is_quiet && made >= count {
                is_quiet = true;
                awaited = (0..THREADS).collect();
                for thread in (0..THREADS).map(ThreadId) {
                    backlog.extend(host.create(thread, CLASS));
                    backlog.extend(host.wake(thread, CLASS));
                }
            }
            batch.clear();
            transactions.poll(&mut batch, 8).unwrap();
            for core in 0..CORES {
                batch.extend(slots[core as usize].take());
            }
            if batch.is_empty() {
                std::thread::yield_now();
            }
            made += batch.len() as u64;
            for found in host.commit(&batch, Grouping::Each, &mut backlog) {
                let thread = found.decision.thread;
                if found.outcome == Outcome::Committed {
                    ran[thread.0 as usize] += 1;
                    // A thread's number only grows: the same decision again would be enacted twice.
                    let before = last[thread.0 as usize].replace(found.decision.sequence);
                    assert!(before < Some(found.decision.sequence), "{found:?} after {before:?}");
                    awaited.remove(&thread.0);
                }
                stale += u64::from(found.outcome == Outcome::Stale);
                answers.push(found);
            }
            // What runs blocks or yields soon; what is not bound is.
            for core in 0..CORES {
                let Some(thread) = host.on(CoreId(core)) else { continue };
                match random.u32(0..4) {
                    0 => backlog.extend(host.yield_core(thread)),
                    1 | 2 => {
                        backlog.extend(host.block(thread));
                        backlog.extend(host.wake(thread, CLASS));
                    }
                    _ => {}
                }
            }
            if !is_quiet {
                let thread = ThreadId(random.u32(0..THREADS));
                match random.u32(0..8) {
                    0 => {
                        if let Some(message) = host.depart(thread) {
                            assert_eq!(message.event, ThreadEvent::Departed);
                            backlog.push(message);
                        }
                        backlog.extend(host.create(thread, CLASS));
                        backlog.extend(host.wake(thread, CLASS));
                    }
                    1 => {
                        if let Some((bound, left)) = host.bind(thread, CoreId(random.u32(0..CORES))) {
                            backlog.push(bound);
                            backlog.extend(left);
                        }
                    }
                    _ => {}
                }
            }
        }
        is_over.store(true, Relaxed);
        deciding.join().unwrap();
        assert!(stale > 0, "nothing was refused: the disturbances do not reach decisions");
        assert!(ran.iter().all(|times| *times > 0), "{ran:?}");
    });
}

#[test]
fn no_thread_is_lost_under_fifo() {
    through_queues(FifoThreads::run_to_completion(), transactions() / 4);
}

#[test]
fn no_thread_is_lost_under_shinjuku() {
    through_queues(Shinjuku::preemptive(SLICE), transactions() / 4);
}
