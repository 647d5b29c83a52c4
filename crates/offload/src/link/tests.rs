use softdpu_sched::threads::{CoreId, Sequence, SloClass, ThreadDecision, ThreadEvent, ThreadId, ThreadMessage};

use super::*;
use crate::{
    AgentSlot, Consumer, HostSlot, Producer, QueueError, QueueMemory, Replaced, SLOT_LINES, SharedMemory, Transaction,
    queue_lines,
};

const CAPACITY: usize = 16;

fn message(number: u64) -> ThreadMessage {
    let (event, core) = (ThreadEvent::Wakeup, CoreId(0));
    ThreadMessage { thread: ThreadId(1), sequence: Sequence(number), event, core, class: SloClass(0) }
}

fn batch(of: u64) -> Vec<ThreadMessage> {
    (0..of).map(message).collect()
}

fn transaction(number: u32) -> Transaction {
    let decision = ThreadDecision { core: CoreId(1), thread: ThreadId(number), sequence: Sequence(5) };
    Transaction { number, decision, preempts: false }
}

/// A memory in which drains, or flushes, are forgotten.
struct Forgetful<M> {
    inner: M,
    forgets_drains: bool,
    forgets_flushes: bool,
}

impl<M: QueueMemory> QueueMemory for Forgetful<M> {
    fn words(&self) -> usize {
        self.inner.words()
    }
    fn load(&mut self, at: usize) -> u64 {
        self.inner.load(at)
    }
    fn observe(&mut self, at: usize) -> u64 {
        self.inner.observe(at)
    }
    fn store(&mut self, at: usize, value: u64) {
        self.inner.store(at, value);
    }
    fn publish(&mut self, at: usize, value: u64) {
        self.inner.publish(at, value);
    }
    fn barrier(&mut self) {
        self.inner.barrier();
    }
    fn drain(&mut self) {
        if !self.forgets_drains {
            self.inner.drain();
        }
    }
    fn flush(&mut self, at: usize) {
        if !self.forgets_flushes {
            self.inner.flush(at);
        }
    }
    fn prefetch(&mut self, at: usize) {
        self.inner.prefetch(at);
    }
}

fn host(memory: &SharedMemory, pages: PageType) -> HostView {
    HostView::new(memory.clone(), pages, LinkCosts::WAVE, Ledger::default())
}

fn dpu(memory: &SharedMemory, step: LinkStep) -> DpuView {
    DpuView::new(memory.clone(), step.dpu_pages(), LinkCosts::WAVE, Ledger::default())
}

/// Sends 100 entries from the host, three at a time, and says which came.
fn to_dpu(step: LinkStep, forgets_drains: bool) -> Vec<u64> {
    let memory = SharedMemory::heap(queue_lines(CAPACITY));
    let inner = host(&memory, step.pages_to_dpu());
    let mut producer = Producer::new(Forgetful { inner, forgets_drains, forgets_flushes: false }, CAPACITY).unwrap();
    let mut consumer = Consumer::<ThreadMessage, _>::new(dpu(&memory, step), CAPACITY).unwrap();
    let mut found = Vec::new();
    for round in 0..34 {
        let three: Vec<ThreadMessage> = (round * 3..round * 3 + 3).map(message).collect();
        producer.send(&three).unwrap();
        if consumer.poll(&mut found, usize::MAX).is_err() {
            break;
        }
    }
    found.iter().map(|message| message.sequence.0).collect()
}

/// The same from the DPU to the host.
fn to_host(step: LinkStep, forgets_flushes: bool, prefetches: bool) -> Vec<u64> {
    let memory = SharedMemory::heap(queue_lines(CAPACITY));
    let mut producer = Producer::new(dpu(&memory, step), CAPACITY).unwrap();
    let inner = host(&memory, step.pages_to_host());
    let forgetful = Forgetful { inner, forgets_drains: false, forgets_flushes };
    let mut consumer = Consumer::<ThreadMessage, _>::new(forgetful, CAPACITY).unwrap();
    let mut found = Vec::new();
    for round in 0..34 {
        if prefetches {
            consumer.prefetch(2);
        }
        let three: Vec<ThreadMessage> = (round * 3..round * 3 + 3).map(message).collect();
        producer.send(&three).unwrap();
        if consumer.poll(&mut found, usize::MAX).is_err() {
            break;
        }
    }
    found.iter().map(|message| message.sequence.0).collect()
}

#[test]
fn every_step_carries_every_entry_in_order() {
    let all: Vec<u64> = (0..102).collect();
    for step in LinkStep::ALL {
        assert_eq!(to_dpu(step, false), all, "{step:?}");
        for prefetches in [false, true] {
            assert_eq!(to_host(step, false, prefetches), all, "{step:?}, prefetches: {prefetches}");
        }
    }
}

#[test]
fn a_forgotten_drain_or_flush_loses_entries() {
    let all: Vec<u64> = (0..102).collect();
    assert_eq!(to_dpu(LinkStep::Baseline, true), all, "uncacheable stores need none");
    assert_ne!(to_dpu(LinkStep::HostPages, true), all);
    assert_eq!(to_host(LinkStep::Baseline, true, true), all, "uncacheable loads need none");
    for prefetches in [false, true] {
        assert_ne!(to_host(LinkStep::HostPages, true, prefetches), all, "prefetches: {prefetches}");
    }
}

/// A write-combining view in which the drain between entries and flags may be forgotten, and in which the one after the
/// flags is late: only one store has left by itself.
struct Late {
    inner: HostView,
    forgets: bool,
    drains: usize,
}

impl QueueMemory for Late {
    fn words(&self) -> usize {
        self.inner.words()
    }
    fn load(&mut self, at: usize) -> u64 {
        self.inner.load(at)
    }
    fn observe(&mut self, at: usize) -> u64 {
        self.inner.observe(at)
    }
    fn store(&mut self, at: usize, value: u64) {
        self.inner.store(at, value);
    }
    fn publish(&mut self, at: usize, value: u64) {
        self.inner.publish(at, value);
    }
    fn barrier(&mut self) {
        self.inner.barrier();
    }
    fn drain(&mut self) {
        self.drains += 1;
        match self.drains {
            1 if self.forgets => {}
            1 => self.inner.drain(),
            _ => self.inner.leak(),
        }
    }
}

#[test]
fn a_flag_overtakes_its_entry_unless_there_is_a_drain_between_them() {
    for forgets in [false, true] {
        let memory = SharedMemory::heap(queue_lines(CAPACITY));
        let late = Late { inner: host(&memory, PageType::WriteCombining), forgets, drains: 0 };
        let mut producer = Producer::new(late, CAPACITY).unwrap();
        let mut consumer = Consumer::<ThreadMessage, _>::new(dpu(&memory, LinkStep::HostPages), CAPACITY).unwrap();
        producer.send(&batch(3)).unwrap();
        let mut found = Vec::new();
        assert_eq!(consumer.poll(&mut found, 9), if forgets { Err(QueueError::BadEntry { number: 0 }) } else { Ok(3) });
        assert_eq!(found, if forgets { vec![] } else { batch(3) });
    }
}

#[test]
fn a_cached_line_is_old_until_it_is_flushed() {
    let mut memory = SharedMemory::heap(4);
    let mut view = host(&memory, PageType::WriteThrough);
    assert_eq!(view.load(8), 0);
    memory.publish(8, 1);
    memory.publish(16, 2);
    assert_eq!((view.load(8), view.load(16)), (0, 2));
    view.flush(9);
    assert_eq!(view.load(8), 1);
}

#[test]
fn accesses_cost_what_table_2_says() {
    let memory = SharedMemory::heap(4);
    let cost = |pages: PageType, work: fn(&mut HostView)| {
        let mut view = host(&memory, pages);
        work(&mut view);
        view.ledger().spent()
    };
    let read_line: fn(&mut HostView) = |view| (8..16).for_each(|at| assert!(view.load(at) < 2));
    let write_line: fn(&mut HostView) = |view| {
        (8..16).for_each(|at| view.store(at, 1));
        view.drain();
    };
    assert_eq!(cost(PageType::Uncacheable, read_line), 8 * 750);
    assert_eq!(cost(PageType::WriteCombining, read_line), 8 * 750);
    assert_eq!(cost(PageType::WriteThrough, read_line), 750 + 7);
    assert_eq!(cost(PageType::Uncacheable, write_line), 8 * 50);
    assert_eq!(cost(PageType::WriteThrough, write_line), 8 * 50);
    assert_eq!(cost(PageType::WriteCombining, write_line), 8 + 50);
}

#[test]
fn a_prefetch_hides_a_read_as_far_as_there_is_other_work() {
    for (work, waits) in [(0, 750), (500, 250), (1_000, 0)] {
        let memory = SharedMemory::heap(queue_lines(CAPACITY).max(SLOT_LINES));
        let mut agent = AgentSlot::new(dpu(&memory, LinkStep::Prestaged), 0).unwrap();
        let mut slot = HostSlot::new(host(&memory, PageType::WriteThrough), 0).unwrap();
        assert_eq!(agent.replace(Some(transaction(1))), Replaced::Nothing);
        slot.prefetch();
        let ledger = slot.memory().ledger().clone();
        ledger.spend(work);
        let before = ledger.spent();
        assert_eq!(slot.take(), Some(transaction(1)));
        // Beside the wait: hits, and the write that says that it was taken.
        assert!((waits..waits + 60).contains(&(ledger.spent() - before)), "{work}: {}", ledger.spent() - before);
    }
}

#[test]
fn a_prefetched_slot_that_has_changed_since_gives_the_old_decision_or_the_new_one() {
    let memory = SharedMemory::heap(SLOT_LINES);
    let mut agent = AgentSlot::new(dpu(&memory, LinkStep::Prestaged), 0).unwrap();
    let mut slot = HostSlot::new(host(&memory, PageType::WriteThrough), 0).unwrap();
    // Nothing was there when it was prefetched.
    slot.prefetch();
    agent.replace(Some(transaction(1)));
    assert_eq!(slot.take(), Some(transaction(1)));
    // The old one was there; the host takes it, and the agent has it back: the transaction will tell.
    agent.replace(Some(transaction(2)));
    slot.prefetch();
    assert_eq!(agent.replace(Some(transaction(3))), Replaced::Recalled(transaction(2)));
    assert_eq!(slot.take(), Some(transaction(2)));
    assert_eq!(slot.take(), Some(transaction(3)));
}

#[test]
fn dma_waits_or_goes_on_and_costs_a_batch_once() {
    let times = |is_synchronous: bool| {
        let memory = SharedMemory::heap(queue_lines(CAPACITY));
        let (engine, ledger) = (DmaEngine::default(), Ledger::default());
        let producing =
            DmaProducer::new(memory.clone(), engine.clone(), is_synchronous, LinkCosts::WAVE, ledger.clone());
        let consuming = DmaConsumer::new(memory, engine.clone(), LinkCosts::WAVE, ledger.clone(), Ledger::default());
        let mut producer = Producer::new(producing, CAPACITY).unwrap();
        let mut consumer = Consumer::<ThreadMessage, _>::new(consuming, CAPACITY).unwrap();
        producer.send(&batch(10)).unwrap();
        let spent = ledger.spent();
        let mut found = Vec::new();
        let at_once = consumer.poll(&mut found, 99).unwrap();
        ledger.spend(10_000);
        consumer.poll(&mut found, 99).unwrap();
        assert_eq!((found, engine.under_way()), (batch(10), 0));
        (spent, at_once)
    };
    let (waited, at_once) = times(true);
    assert!(waited > 2_000 && at_once == 10, "{waited} {at_once}");
    let (went_on, at_once) = times(false);
    assert!(went_on < 400 && at_once == 0, "{went_on} {at_once}");
}

#[test]
fn each_step_makes_messages_and_decisions_cheaper_for_one_side_and_dearer_for_none() {
    let of = |step| {
        let charges = Charges::over_link(LinkCosts::WAVE, step);
        let Charges { host_send, host_send_batched, host_poll, host_take, .. } = charges;
        let Charges { agent_poll, agent_send, agent_stage, .. } = charges;
        [host_send, host_send_batched, host_poll, host_take, agent_poll, agent_send, agent_stage]
    };
    for steps in LinkStep::ALL[..3].windows(2) {
        let (before, after) = (of(steps[0]), of(steps[1]));
        assert!(after.iter().zip(&before).all(|(after, before)| after <= before), "{steps:?}: {after:?} {before:?}");
        assert!(after != before, "{steps:?}: {after:?}");
    }
    // One write for a line, and one for the batch.
    let Charges { host_send, host_send_batched, .. } = Charges::over_link(LinkCosts::WAVE, LinkStep::HostPages);
    assert!(host_send_batched * 3 < host_send * 2, "{host_send_batched} {host_send}");
    // Prestaging is another way, which the pages are there for.
    let Charges { host_take, host_poll, .. } = Charges::over_link(LinkCosts::WAVE, LinkStep::Prestaged);
    assert!(host_take < 100 && host_poll > 750, "{host_take} {host_poll}");
}
