use softdpu_sched::threads::{CoreId, Sequence, ThreadDecision, ThreadId};

use super::*;
use crate::{SharedMemory, Transaction};

fn transaction(number: u32) -> Transaction {
    let decision = ThreadDecision { core: CoreId(1), thread: ThreadId(number), sequence: Sequence(5) };
    Transaction { number, decision, preempts: false }
}

type Slots = (AgentSlot<Transaction, SharedMemory>, HostSlot<Transaction, SharedMemory>);

fn slots() -> (SharedMemory, Slots) {
    let memory = SharedMemory::heap(2 * SLOT_LINES);
    let slots = (AgentSlot::new(memory.clone(), SLOT_LINES), HostSlot::new(memory.clone(), SLOT_LINES));
    (memory, (slots.0.unwrap(), slots.1.unwrap()))
}

#[test]
fn a_staged_decision_is_taken_once() {
    let (_, (mut agent, mut host)) = slots();
    assert_eq!(host.take(), None);
    assert_eq!(agent.replace(Some(transaction(1))), Replaced::Nothing);
    assert_eq!(agent.staged(), Some(&transaction(1)));
    host.prefetch();
    assert_eq!((host.take(), host.take()), (Some(transaction(1)), None));
    assert_eq!(agent.replace(Some(transaction(2))), Replaced::Taken);
    assert_eq!(host.take(), Some(transaction(2)));
    assert_eq!(agent.staged(), None);
}

#[test]
fn a_decision_that_is_replaced_or_recalled_is_not_taken() {
    let (_, (mut agent, mut host)) = slots();
    agent.replace(Some(transaction(1)));
    assert_eq!(agent.replace(Some(transaction(2))), Replaced::Recalled(transaction(1)));
    assert_eq!(host.take(), Some(transaction(2)));
    agent.replace(Some(transaction(3)));
    assert_eq!(agent.recall(), Replaced::Recalled(transaction(3)));
    assert_eq!(host.take(), None);
    assert_eq!(agent.recall(), Replaced::Nothing);
}

#[test]
fn what_is_being_written_and_what_is_none_is_not_taken() {
    let (mut memory, (mut agent, mut host)) = slots();
    agent.replace(Some(transaction(1)));
    let base = SLOT_LINES * WORDS_PER_LINE;
    memory.store(base + BEGUN, 5);
    assert_eq!(host.take(), None, "the next one is begun");
    memory.store(base + BEGUN, 3);
    memory.store(base + 3, u64::MAX);
    assert_eq!(host.take(), None, "no transaction");
}

#[test]
fn a_slot_outside_of_the_memory_is_none() {
    let memory = SharedMemory::heap(64);
    assert!(AgentSlot::<Transaction, _>::new(memory.clone(), 62).is_some());
    assert!(AgentSlot::<Transaction, _>::new(memory.clone(), 63).is_none());
    assert!(HostSlot::<Transaction, _>::new(memory, usize::MAX).is_none());
}
