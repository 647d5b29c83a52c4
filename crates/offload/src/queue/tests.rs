use softdpu_sched::threads::{CoreId, Sequence, SloClass, ThreadEvent, ThreadId, ThreadMessage};

use super::*;
use crate::SharedMemory;

fn message(number: u64) -> ThreadMessage {
    let (event, core) = (ThreadEvent::Wakeup, CoreId(0));
    ThreadMessage { thread: ThreadId(1), sequence: Sequence(number), event, core, class: SloClass(0) }
}

type Ends = (Producer<ThreadMessage, SharedMemory>, Consumer<ThreadMessage, SharedMemory>);

fn queue(capacity: usize) -> (SharedMemory, Ends) {
    let memory = SharedMemory::heap(queue_lines(capacity));
    let ends = (Producer::new(memory.clone(), capacity).unwrap(), Consumer::new(memory.clone(), capacity).unwrap());
    (memory, ends)
}

fn taken(consumer: &mut Consumer<ThreadMessage, SharedMemory>) -> Vec<u64> {
    let mut found = Vec::new();
    consumer.poll(&mut found, usize::MAX).unwrap();
    found.iter().map(|message| message.sequence.0).collect()
}

#[test]
fn entries_come_out_in_order_over_many_rounds() {
    let (_, (mut producer, mut consumer)) = queue(5);
    let (mut sent, mut expected) = (0, Vec::new());
    let mut found = Vec::new();
    for batch in (1..=7).cycle().take(100) {
        let batch: Vec<ThreadMessage> = (sent..sent + batch).map(message).collect();
        let count = producer.send(&batch).unwrap();
        assert!(count <= 5);
        expected.extend(sent..sent + count as u64);
        sent += count as u64;
        found.extend(taken(&mut consumer));
    }
    assert_eq!(found, expected);
}

#[test]
fn a_full_queue_takes_nothing_more_and_goes_on_when_it_is_read() {
    let (_, (mut producer, mut consumer)) = queue(4);
    let batch: Vec<ThreadMessage> = (0..6).map(message).collect();
    assert_eq!(producer.send(&batch), Ok(4));
    assert_eq!(producer.send(&batch[4..]), Ok(0));
    assert_eq!(taken(&mut consumer), [0, 1, 2, 3]);
    assert_eq!(producer.send(&batch[4..]), Ok(2));
    assert_eq!(taken(&mut consumer), [4, 5]);
}

#[test]
fn an_entry_without_its_flag_is_not_there() {
    let (mut memory, (_, mut consumer)) = queue(4);
    for word in 0..FLAG {
        memory.store(WORDS_PER_LINE + word, 1);
    }
    assert_eq!(taken(&mut consumer), []);
    // The flag of another round is none.
    memory.publish(WORDS_PER_LINE + FLAG, 2);
    assert_eq!(taken(&mut consumer), []);
}

#[test]
fn the_other_side_can_break_its_queue_and_no_more() {
    let (mut memory, (mut producer, mut consumer)) = queue(2);
    memory.publish(WORDS_PER_LINE + FLAG, 1);
    assert_eq!(consumer.poll(&mut Vec::new(), 9), Err(QueueError::BadEntry { number: 0 }));
    producer.send(&[message(0), message(1)]).unwrap();
    memory.publish(TAKEN, 3);
    let claimed = QueueError::BadPosition { taken: 3, before: 0, sent: 2 };
    assert_eq!(producer.send(&[message(2)]), Err(claimed));
    assert!(claimed.to_string().contains("claims to have taken 3 entries of 2"));
}

#[test]
fn a_size_that_does_not_fit_is_refused() {
    for capacity in [0, 64, (1 << 16) + 1, usize::MAX - 1] {
        // The heap is in pages: 64 lines.
        let memory = SharedMemory::heap(2);
        let made = Producer::<ThreadMessage, _>::new(memory, capacity).err();
        assert_eq!(made, Some(QueueError::Size { capacity, lines: 64 }));
    }
}
