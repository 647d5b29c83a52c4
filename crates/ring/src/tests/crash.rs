//! A device that is killed before any of its stores, and the one that comes after it.

use proptest::prelude::*;

use super::*;
use crate::crash;

/// What the driver knows: what it has made available and not got back, in order.
struct Ledger {
    rig: Rig,
    outstanding: Vec<u16>,
}

impl Ledger {
    fn new(format: Format, size: u16) -> Ledger {
        Ledger { rig: Rig::new(format, size), outstanding: Vec::new() }
    }

    /// Makes requests available until the ring is full or `count` were.
    fn submit(&mut self, count: usize, pieces: impl Fn(usize) -> usize) {
        for at in 0..count {
            let Some(id) = self.rig.request(pieces(at)) else { break };
            self.outstanding.push(id);
        }
        self.rig.driver.publish();
    }

    /// Takes back what is there; each has to be outstanding, so none comes twice.
    fn reap(&mut self) -> usize {
        let taken = self.rig.taken();
        for completion in &taken {
            let at = self.outstanding.iter().position(|id| *id == completion.id);
            self.outstanding.remove(at.unwrap_or_else(|| panic!("{completion:?} came twice")));
            assert_eq!(completion.written, u32::from(completion.id) + 1, "another chain's completion");
        }
        taken.len()
    }
}

/// The device: pops, completes a part of what it has, in an order of its own; again and again.
fn work(queue: &mut Queue, mut flight: Vec<Used>, rounds: &[(usize, usize)]) {
    for (max, complete) in rounds {
        let mut chains = Vec::new();
        queue.pop(&mut chains, *max).unwrap();
        flight.extend(used(&chains));
        flight.reverse();
        let done: Vec<Used> = flight.drain(..flight.len().min(*complete)).collect();
        queue.complete(&done).unwrap();
    }
}

/// Starts a device on what a killed one left and finishes everything.
fn finish(ledger: &mut Ledger) {
    let mut queue = ledger.rig.recorded().unwrap();
    let mut chains = Vec::new();
    let resubmitted = queue.resubmit(&mut chains).unwrap();
    let ids: Vec<u16> = chains.iter().map(|chain| chain.id).collect();
    // What the driver has not got back and the dead device took is a prefix of what is outstanding, but for what it
    // completed out of order: the same order, none missing in between once the rest is popped.
    let order: Vec<u16> = ledger.outstanding.iter().copied().filter(|id| ids.contains(id)).collect();
    assert_eq!(ids, order, "resubmitted in the order of submission");
    queue.pop(&mut chains, usize::MAX).unwrap();
    let all: Vec<u16> = chains.iter().map(|chain| chain.id).collect();
    assert_eq!(all, ledger.outstanding, "each once, {resubmitted} of them resubmitted");
    for chain in &chains {
        assert!(chain.buffer.len() >= 0x100);
    }
    // One at a time, last first, so that the ring takes another shape than the one the dead device was making.
    for chain in chains.iter().rev() {
        queue.complete(&[chain.used(u32::from(chain.id) + 1)]).unwrap();
        assert_eq!(ledger.reap(), 1);
    }
    assert!(ledger.outstanding.is_empty());
    assert_eq!(queue.in_flight(), 0);
}

/// Brings a ring to where it has wrapped `wraps` times, unevenly.
fn age(ledger: &mut Ledger, wraps: usize) {
    let mut queue = ledger.rig.recorded().unwrap();
    for wrap in 0..wraps {
        ledger.submit(3, |at| 1 + (at + wrap) % 3);
        work(&mut queue, Vec::new(), &[(usize::MAX, usize::MAX)]);
        ledger.reap();
    }
}

/// Kills the device before each store of `rounds` in turn; the driver reaps and submits more before the next start if
/// `busy`. Then kills the recovery as well, before each of its stores.
fn kill_everywhere(format: Format, size: u16, wraps: usize, pieces: usize, rounds: &[(usize, usize)], busy: bool) {
    for stores in 0.. {
        let mut ledger = Ledger::new(format, size);
        age(&mut ledger, wraps);
        ledger.submit(usize::from(size), |at| 1 + at % pieces);
        let mut queue = ledger.rig.recorded().unwrap();
        let finished = crash::after(stores, || work(&mut queue, Vec::new(), rounds)).is_some();
        drop(queue);
        ledger.reap();
        if busy {
            ledger.submit(usize::from(size) / 2, |at| 1 + at % 2);
        }
        for again in (0..40).step_by(3) {
            if crash::after(again, || ledger.rig.recorded().unwrap()).is_some() {
                break;
            }
        }
        finish(&mut ledger);
        // And the ring goes on from there.
        age(&mut ledger, 3);
        if finished {
            assert!(stores > 10, "it was killed somewhere");
            return;
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of devices; the property below has some of them")]
fn a_device_killed_before_any_store_loses_and_doubles_nothing() {
    for format in FORMATS {
        for busy in [false, true] {
            kill_everywhere(format, 8, 5, 3, &[(2, 1), (8, 2), (8, 8)], busy);
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of devices; the property below has some of them")]
fn a_batch_that_fills_the_ring_is_no_exception() {
    // The used index is the same before and after it.
    full_batches(kill_everywhere);
    kill_everywhere(Format::Packed, 1, 3, 1, &[(1, 1)], true);
}

#[test]
fn after_a_migration_a_restart_keeps_entry_0() {
    // The region is new, the ring is not: its used index is far from zero.
    for format in FORMATS {
        let mut ledger = Ledger::new(format, 8);
        let mut source = ledger.rig.queue();
        for _ in 0..5 {
            ledger.submit(3, |_| 1);
            work(&mut source, Vec::new(), &[(8, 8)]);
            ledger.reap();
        }
        let position = source.retire();
        let rig = &ledger.rig;
        let mut target = Queue::new(&rig.view, rig.config, rig.addresses, position, Some(rig.records())).unwrap();
        ledger.submit(8, |_| 1);
        assert!(ledger.outstanding.contains(&0));
        assert_eq!(pop(&mut target).len(), 8);
        drop(target);
        finish(&mut ledger);
    }
}

#[test]
fn a_migration_with_requests_in_flight_carries_them_in_the_region() {
    for format in FORMATS {
        let mut ledger = Ledger::new(format, 8);
        let mut source = ledger.rig.recorded().unwrap();
        ledger.submit(5, |_| 1);
        let chains = pop(&mut source);
        source.retire();
        assert_eq!(source.complete(&used(&chains)), Err(QueueError::Broken), "too late: the rings are stopped");
        finish(&mut ledger);
    }
}

#[test]
fn a_region_that_was_retired_empty_leaves_the_position_to_the_front_end() {
    for format in FORMATS {
        let mut ledger = Ledger::new(format, 8);
        let mut queue = ledger.rig.recorded().unwrap();
        ledger.submit(3, |_| 1);
        work(&mut queue, Vec::new(), &[(8, 8)]);
        queue.retire();
        // The guest reset the device: ring and driver start anew, the region is the same.
        let region = Arc::clone(&ledger.rig.region);
        let mut ledger = Ledger::new(format, 8);
        ledger.rig.region = region;
        ledger.submit(8, |_| 1);
        finish(&mut ledger);
    }
}

#[test]
fn a_cleared_region_forgets_what_was_in_flight() {
    for format in FORMATS {
        let mut ledger = Ledger::new(format, 8);
        let mut queue = ledger.rig.recorded().unwrap();
        ledger.submit(3, |_| 1);
        pop(&mut queue);
        ledger.rig.records().clear();
        let region = Arc::clone(&ledger.rig.region);
        let mut ledger = Ledger::new(format, 8);
        ledger.rig.region = region;
        ledger.submit(8, |_| 1);
        finish(&mut ledger);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several generations of devices, each killed somewhere, while the driver goes on.
    #[test]
    fn generations_of_killed_devices_complete_everything_once(
        packed in any::<bool>(),
        size in prop::sample::select(vec![1u16, 2, 4, 8, 16]),
        lives in prop::collection::vec(
            (0..120u64, prop::collection::vec((0..9usize, 0..9usize), 1..6), 1..8usize, 1..4usize),
            1..12,
        ),
    ) {
        let format = if packed { Format::Packed } else { Format::Split };
        let mut ledger = Ledger::new(format, size);
        for (stores, rounds, count, pieces) in lives {
            ledger.submit(count, |at| 1 + at % pieces);
            crash::after(stores, || {
                let mut queue = ledger.rig.recorded().unwrap();
                let mut chains = Vec::new();
                queue.resubmit(&mut chains).unwrap();
                work(&mut queue, used(&chains), &rounds);
            });
            ledger.reap();
        }
        finish(&mut ledger);
    }
}
