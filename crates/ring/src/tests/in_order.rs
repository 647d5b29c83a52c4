//! Queues that complete in order: what a kill, a stop and a hostile driver leave of their position.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use crate::{PackedIndex, Positions, crash};

/// What the driver knows: what it made available and did not get back, in order, with its bytes.
struct Ledger {
    rig: Rig,
    record: Arc<Mapping>,
    outstanding: VecDeque<(u16, u64)>,
    submitted: u64,
}

impl Ledger {
    fn new(format: Format, size: u16) -> Ledger {
        let record = Mapping::heap(Positions::bytes(format, size));
        Ledger { rig: Rig::new(format, size), record, outstanding: VecDeque::new(), submitted: 0 }
    }

    fn positions(&self) -> Positions {
        Positions::new(Window::of_mapping(Arc::clone(&self.record)))
    }

    fn open_at(&self, position: Position, resumed: bool) -> Result<Queue, QueueError> {
        let config = QueueConfig { resumed, ..self.rig.config };
        Queue::in_order(&self.rig.view, config, self.rig.addresses, position, self.positions())
    }

    /// The first start, by the front end.
    fn start(&self) -> Queue {
        self.open_at(Position::start(self.rig.config.format), false).unwrap()
    }

    /// Another process goes on; all it has is where the queue once started.
    fn resume(&self) -> Queue {
        self.open_at(Position::start(self.rig.config.format), true).unwrap()
    }

    /// Makes up to `count` chains of 1 to `pieces` descriptors available, each of another length.
    fn submit(&mut self, count: usize, pieces: usize) {
        for _ in 0..count {
            let mut chain = request(1 + self.submitted as usize % pieces);
            chain[0].len += (self.submitted % 61) as u32;
            let Some(id) = self.rig.driver.add(&chain) else { break };
            self.outstanding.push_back((id, chain.iter().map(|piece| u64::from(piece.len)).sum()));
            self.submitted += 1;
        }
        self.rig.driver.publish();
    }

    /// Takes back what is there: in order, each once, with its own length.
    fn reap(&mut self) -> usize {
        let taken = self.rig.taken();
        for completion in &taken {
            let (id, _) = self.outstanding.pop_front().expect("a chain came back that was not outstanding");
            assert_eq!(*completion, Completion { id, written: u32::from(id) + 1 });
        }
        taken.len()
    }
}

/// The device: pops ahead, completes the first so many of what it has; again and again.
fn work(queue: &mut Queue, rounds: &[(usize, usize)]) {
    let mut held: Vec<Used> = Vec::new();
    for (max, complete) in rounds {
        let mut chains = Vec::new();
        queue.pop(&mut chains, *max).unwrap();
        held.extend(used(&chains));
        let done: Vec<Used> = held.drain(..held.len().min(*complete)).collect();
        queue.complete(&done).unwrap();
    }
}

/// Everything that is outstanding is found, each once, as it was made available; and is completed.
fn finish(ledger: &mut Ledger, queue: &mut Queue) {
    let chains = pop(queue);
    let found: Vec<(u16, u64)> = chains.iter().map(|chain| (chain.id, chain.buffer.len())).collect();
    assert_eq!(found, Vec::from(ledger.outstanding.clone()), "none skipped, none twice, none damaged");
    let (first, rest) = chains.split_at(chains.len() / 3);
    for part in [first, rest] {
        queue.complete(&used(part)).unwrap();
        assert_eq!(ledger.reap(), part.len());
    }
    assert!(ledger.outstanding.is_empty());
    assert_eq!(queue.in_flight(), 0);
}

/// Brings a ring to where it has wrapped, unevenly.
fn age(ledger: &mut Ledger, wraps: usize) {
    let mut queue = ledger.start();
    for _ in 0..wraps {
        ledger.submit(3, 3);
        work(&mut queue, &[(usize::MAX, usize::MAX)]);
        ledger.reap();
    }
}

/// Kills the device before each store of `rounds` in turn, then the one that comes after it before each of its stores.
fn kill_everywhere(format: Format, size: u16, wraps: usize, pieces: usize, rounds: &[(usize, usize)], busy: bool) {
    for stores in 0.. {
        let mut ledger = Ledger::new(format, size);
        age(&mut ledger, wraps);
        ledger.submit(size.into(), pieces);
        let mut queue = ledger.resume();
        let finished = crash::after(stores, || work(&mut queue, rounds)).is_some();
        drop(queue);
        ledger.reap();
        if busy {
            ledger.submit(usize::from(size) / 2, 2);
        }
        for again in 0.. {
            if crash::after(again, || ledger.resume()).is_some() {
                break;
            }
        }
        let mut queue = ledger.resume();
        finish(&mut ledger, &mut queue);
        drop(queue);
        // And the ring goes on from there.
        let mut queue = ledger.resume();
        for _ in 0..3 {
            ledger.submit(size.into(), 2);
            finish(&mut ledger, &mut queue);
        }
        if finished {
            assert!(stores > 3, "it was killed somewhere");
            return;
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of devices; the property below has some of them")]
fn a_device_killed_before_any_store_skips_and_repeats_nothing() {
    for format in FORMATS {
        for busy in [false, true] {
            for wraps in [0, 1, 2, 3, 5] {
                kill_everywhere(format, 8, wraps, 1, &[(3, 1), (8, 3), (8, 8)], busy);
                kill_everywhere(format, 8, wraps, 3, &[(2, 1), (8, 2), (8, 8)], busy);
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of devices; the property below has some of them")]
fn a_batch_that_fills_the_ring_is_no_exception() {
    // A packed position has the same index before and after it.
    full_batches(kill_everywhere);
    kill_everywhere(Format::Packed, 5, 2, 1, &[(5, 5)], false);
}

#[test]
#[cfg_attr(miri, ignore = "65,536 requests")]
fn a_split_position_crosses_the_end_of_its_16_bits() {
    let mut ledger = Ledger::new(Format::Split, 8);
    let mut queue = ledger.start();
    for _ in 0..(1 << 16) / 8 - 1 {
        ledger.submit(8, 1);
        work(&mut queue, &[(8, 8)]);
        ledger.reap();
    }
    ledger.submit(5, 1);
    finish(&mut ledger, &mut queue);
    assert_eq!(queue.position(), Position::Split { last_avail: 0xfffd });
    for stores in 0..30 {
        ledger.submit(8, 1);
        let mut queue = ledger.resume();
        crash::after(stores, || work(&mut queue, &[(8, 6)]));
        ledger.reap();
        let mut queue = ledger.resume();
        finish(&mut ledger, &mut queue);
    }
}

#[test]
fn what_is_not_completed_is_available_again() {
    for format in FORMATS {
        let mut ledger = Ledger::new(format, 8);
        age(&mut ledger, 3);
        let mut queue = ledger.resume();
        ledger.submit(5, 1);
        let chains = pop(&mut queue);
        queue.complete(&used(&chains[..2])).unwrap();
        assert_eq!(queue.in_flight(), 3);
        queue.rewind().unwrap();
        assert_eq!(queue.in_flight(), 0);
        assert!(queue.has_work());
        ledger.reap();
        finish(&mut ledger, &mut queue);

        ledger.submit(2, 1);
        let void = pop(&mut queue);
        queue.rewind().unwrap();
        let error = queue.complete(&used(&void)).unwrap_err();
        assert!(matches!(error, QueueError::NotInFlight { .. }), "{error}");
        assert!(queue.is_broken());
    }
}

#[test]
fn a_stopped_queue_tells_how_far_it_completed() {
    for format in FORMATS {
        let mut ledger = Ledger::new(format, 8);
        let mut queue = ledger.start();
        ledger.submit(5, 1);
        let chains = pop(&mut queue);
        queue.complete(&used(&chains[..2])).unwrap();
        let position = queue.retire();
        let used = PackedIndex { index: 2, wrap: true };
        let expected = match format {
            Format::Split => Position::Split { last_avail: 2 },
            Format::Packed => Position::Packed { avail: used, used },
        };
        assert_eq!(position, expected);
        assert_eq!(queue.complete(&[chains[2].used(1)]), Err(QueueError::Broken));
        ledger.reap();
        ledger.positions().clear();
        for resumed in [false, true] {
            // A process that was killed before it opened the record leaves it cleared.
            let queue = ledger.open_at(position, resumed).unwrap();
            assert_eq!(queue.position(), position);
        }
        let mut queue = ledger.resume();
        finish(&mut ledger, &mut queue);
    }
}

#[test]
fn a_start_takes_over_what_another_back_end_took_and_did_not_complete() {
    for format in FORMATS {
        let mut ledger = Ledger::new(format, 8);
        let mut other = ledger.rig.queue();
        ledger.submit(5, 1);
        let chains = pop(&mut other);
        other.complete(&used(&chains[..1])).unwrap();
        let position = other.retire();
        ledger.reap();
        let mut queue = ledger.open_at(position, false).unwrap();
        finish(&mut ledger, &mut queue);
    }
    let ledger = Ledger::new(Format::Split, 8);
    let position = Position::Split { last_avail: 9 };
    let error = QueueError::Position { position, format: Format::Split, size: 8 };
    assert_eq!(ledger.open_at(position, false).err(), Some(error), "more than the ring holds");
}

#[test]
fn completing_in_another_order_breaks_the_queue() {
    for format in FORMATS {
        for order in [[1, 0, 2], [0, 2, 1], [2, 1, 0]] {
            let mut ledger = Ledger::new(format, 8);
            let mut queue = ledger.start();
            ledger.submit(3, 1);
            let done = used(&pop(&mut queue));
            let done: Vec<Used> = order.iter().map(|at| done[*at]).collect();
            let error = queue.complete(&done).unwrap_err();
            assert!(matches!(error, QueueError::OutOfOrder { .. }), "{error}");
            assert_eq!(ledger.reap(), 0, "nothing became visible");
            queue.retire();
        }
        let mut queue = Ledger::new(format, 8).rig.queue();
        assert_eq!(queue.rewind(), Err(QueueError::NotInOrder));
    }
}

#[test]
fn a_driver_cannot_make_the_position_jump() {
    for forged in [0, 3, 7, 0x8000, 0xffff] {
        let mut ledger = Ledger::new(Format::Split, 8);
        age(&mut ledger, 4);
        let ring = ledger.rig.ring();
        ring.u16(ledger.rig.layout.device + 2).store(forged, Relaxed);
        // 12 were completed, 3 of them in the last batch, of which only the ring says that it became visible.
        let position = ledger.resume().position();
        assert_eq!(position, Position::Split { last_avail: 9 }, "{forged:#x}");
    }
    for flags in [0u16, 0x80, 0x8000, 0x8080, 0xffff] {
        let mut ledger = Ledger::new(Format::Packed, 8);
        let mut queue = ledger.start();
        ledger.submit(8, 1);
        work(&mut queue, &[(8, 2), (8, 3)]);
        drop(queue);
        for slot in 0..8 {
            ledger.rig.ring().u16(slot * 16 + 14).store(flags, Relaxed);
        }
        let at = |index| Position::Packed {
            avail: PackedIndex { index, wrap: true },
            used: PackedIndex { index, wrap: true },
        };
        let position = ledger.resume().position();
        assert!(position == at(2) || position == at(5), "{position:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several generations of devices, each killed somewhere or stopped, while the driver goes on.
    #[test]
    fn generations_of_killed_devices_complete_everything_once_and_in_order(
        packed in any::<bool>(),
        size in prop::sample::select(vec![1u16, 2, 4, 8, 16]),
        lives in prop::collection::vec(
            (0..60u64, prop::collection::vec((0..9usize, 0..9usize), 1..6), 1..8usize, 1..4usize, any::<bool>()),
            1..12,
        ),
    ) {
        let format = if packed { Format::Packed } else { Format::Split };
        let mut ledger = Ledger::new(format, size);
        drop(ledger.start());
        for (stores, rounds, count, pieces, stops) in lives {
            ledger.submit(count, pieces);
            let stopped = crash::after(stores, || {
                let mut queue = ledger.resume();
                work(&mut queue, &rounds);
                stops.then(|| queue.retire())
            });
            ledger.reap();
            if let Some(Some(position)) = stopped {
                ledger.positions().clear();
                prop_assert_eq!(ledger.open_at(position, false).unwrap().position(), position);
            }
        }
        let mut queue = ledger.resume();
        finish(&mut ledger, &mut queue);
    }
}
