//! NVMe queue pairs: behaviour, hostile hosts, and kills before every store.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use softdpu_memory::{DirtyBitmap, GuestAddress, Mapping, PAGE, Region, UserAddress, View, Window};

use crate::nvme::driver::{Completion, PairDriver};
use crate::nvme::{COMMAND, Doorbells, PairConfig, PairRecords, QueueMemory, QueuePair, Shadow};
use crate::{Chain, Chains, Queue, QueueError, Used, crash};

const MEMORY: u64 = 0x10_0000;
const SQ: u64 = 0x1000;
const CQ: u64 = 0x5_0000;
const SHADOW: Shadow = Shadow { doorbells: GuestAddress(0xa_0000), events: GuestAddress(0xa_1000) };

/// A host, and the means to start a device on its queues, again and again.
struct Rig {
    view: Arc<View>,
    config: PairConfig,
    doorbells: Doorbells,
    records: Arc<Mapping>,
    shadow: Option<Shadow>,
    driver: PairDriver,
    next: u16,
    outstanding: VecDeque<u16>,
}

fn command(id: u16) -> [u8; COMMAND] {
    let mut bytes = [id as u8 ^ 0x5a; COMMAND];
    bytes[2..4].copy_from_slice(&id.to_le_bytes());
    bytes
}

impl Rig {
    fn new(sq: u16, cq: u16) -> Rig {
        let mapping = Mapping::heap(MEMORY as usize);
        let view = View::new(vec![Region::new(GuestAddress(0), UserAddress(0), MEMORY, mapping, 0)]).unwrap();
        let config = PairConfig {
            sq: QueueMemory { id: 3, address: GuestAddress(SQ), size: sq },
            cq: QueueMemory { id: 2, address: GuestAddress(CQ), size: cq },
            interrupts: true,
            resumed: false,
        };
        let doorbells = Doorbells::new(Window::of_mapping(Mapping::heap(Doorbells::BYTES))).unwrap();
        let driver = PairDriver::new(&view, config, doorbells.share()).unwrap();
        let records = Mapping::heap(PairRecords::bytes(sq, cq));
        Rig { view, config, doorbells, records, shadow: None, driver, next: 0, outstanding: VecDeque::new() }
    }

    fn start(&self, resumed: bool) -> Result<QueuePair, QueueError> {
        let records = PairRecords::new(Window::of_mapping(Arc::clone(&self.records)));
        let config = PairConfig { resumed, ..self.config };
        QueuePair::new(&self.view, config, self.doorbells.share(), self.shadow, records)
    }

    fn pair(&self) -> QueuePair {
        self.start(false).unwrap()
    }

    fn use_shadow(&mut self) {
        self.shadow = Some(SHADOW);
        self.driver.set_shadow(&self.view, SHADOW).unwrap();
    }

    /// Submits until the queue is full or `count` were; returns how many.
    fn submit(&mut self, count: usize) -> usize {
        let mut done = 0;
        while done < count && self.driver.submit(&command(self.next)) {
            self.outstanding.push_back(self.next);
            self.next = self.next.wrapping_add(1);
            done += 1;
        }
        self.driver.ring();
        done
    }

    /// Takes what has completed; each has to be outstanding.
    fn reap(&mut self) -> Vec<Completion> {
        let from = self.driver.head();
        let mut taken = Vec::new();
        while let Some(completion) = self.driver.take() {
            let at = self.outstanding.iter().position(|id| *id == completion.command);
            self.outstanding.remove(at.unwrap_or_else(|| panic!("{completion:?} came twice")));
            assert_eq!(completion.status, completion.command & 0x7fff, "another command's completion");
            taken.push(completion);
        }
        self.driver.ring_head(from);
        taken
    }
}

fn pop(pair: &mut QueuePair, max: usize) -> Vec<Chain> {
    let mut chains = Vec::new();
    pair.pop(&mut chains, max).unwrap();
    chains
}

/// The identifier in the copy of a command, all of which is as it was submitted.
fn id(chain: &Chain) -> u16 {
    let mut bytes = [0; COMMAND];
    assert_eq!(chain.buffer.len(), COMMAND as u64);
    chain.buffer.read_at(0, &mut bytes).unwrap();
    let id = u16::from_le_bytes([bytes[2], bytes[3]]);
    assert_eq!(bytes, command(id));
    id
}

/// A completion with the command's identifier as its status.
fn used(chain: &Chain) -> Used {
    Used { id: chain.id, descriptors: 1, written: id(chain).into() }
}

#[test]
fn commands_come_in_order_and_completions_carry_identifier_head_and_phase() {
    let mut rig = Rig::new(8, 8);
    let mut pair = rig.pair();
    for _ in 0..20 {
        assert_eq!(rig.submit(5), 5);
        let chains = pop(&mut pair, 3);
        assert_eq!(
            chains.iter().map(id).collect::<Vec<_>>(),
            rig.outstanding.iter().take(3).copied().collect::<Vec<_>>()
        );
        let rest = pop(&mut pair, 64);
        assert_eq!(rest.len(), 2);
        assert!(pair.complete(&rest.iter().chain(&chains).map(used).collect::<Vec<_>>()).unwrap());
        let done = rig.reap();
        assert_eq!(done.len(), 5);
        assert!(done.iter().all(|done| done.sq == 3 && done.result == 0));
        assert_eq!(pair.in_flight(), 0);
        assert!(!pair.has_work() && !pair.arm().unwrap());
    }
}

#[test]
fn sizes_need_not_be_powers_of_two() {
    let mut rig = Rig::new(5, 3);
    let mut pair = rig.pair();
    for round in 0..50 {
        rig.submit(1 + round % 4);
        while !rig.outstanding.is_empty() {
            let chains = pop(&mut pair, 64);
            assert!(!chains.is_empty() && chains.len() <= 2);
            pair.complete(&chains.iter().map(used).collect::<Vec<_>>()).unwrap();
            rig.reap();
        }
    }
}

#[test]
fn no_more_is_taken_than_the_completion_queue_has_room_for() {
    let mut rig = Rig::new(16, 4);
    let mut pair = rig.pair();
    rig.submit(10);
    let chains = pop(&mut pair, 64);
    assert_eq!(chains.len(), 3);
    assert!(!pair.has_work() && pop(&mut pair, 64).is_empty());
    pair.complete(&chains.iter().map(used).collect::<Vec<_>>()).unwrap();
    assert!(!pair.has_work() && !pair.arm().unwrap() && pop(&mut pair, 64).is_empty(), "the host has read nothing");
    assert_eq!(rig.reap().len(), 3);
    assert!(pair.has_work() && pair.arm().unwrap());
    assert_eq!(pop(&mut pair, 64).len(), 3);
}

#[test]
fn a_command_that_changes_after_it_was_taken_changes_nothing() {
    let mut rig = Rig::new(8, 8);
    let mut pair = rig.pair();
    rig.submit(1);
    let chains = pop(&mut pair, 1);
    rig.view.buffer(GuestAddress(SQ), 64).unwrap().write_at(0, &[0xff; 64]).unwrap();
    assert_eq!(id(&chains[0]), 0);
    pair.complete(&[used(&chains[0])]).unwrap();
    assert_eq!(rig.reap().len(), 1);
}

#[test]
fn doorbells_that_make_no_sense_break_the_pair() {
    for (is_tail, value) in [(true, 8), (true, u32::MAX), (false, 8), (false, 0xffff_0000)] {
        for is_shadow in [false, true] {
            let mut rig = Rig::new(8, 8);
            if is_shadow {
                rig.use_shadow();
            }
            let mut pair = rig.pair();
            rig.submit(7);
            let chains = pop(&mut pair, 7);
            pair.complete(&chains.iter().map(used).collect::<Vec<_>>()).unwrap();
            rig.reap();
            rig.submit(7);
            rig.driver.force(is_tail, value);
            let mut chains = Vec::new();
            // The head is looked at where there may be no room.
            let mut error = pair.pop(&mut chains, 64);
            if !is_tail && error.is_ok() {
                pair.complete(&chains.iter().map(used).collect::<Vec<_>>()).unwrap();
                rig.driver.submit(&command(0));
                rig.driver.ring();
                error = pair.pop(&mut chains, 64);
            }
            assert!(
                matches!(error, Err(QueueError::DoorbellValue { value: found, .. }) if found == value),
                "{error:?}"
            );
            assert!(pair.is_broken() && !pair.has_work());
            assert_eq!(pair.pop(&mut chains, 1), Err(QueueError::Broken));
            assert_eq!(pair.arm(), Err(QueueError::Broken));
        }
    }
}

#[test]
fn a_head_that_goes_beyond_what_was_posted_breaks_the_pair() {
    let mut rig = Rig::new(8, 4);
    let mut pair = rig.pair();
    rig.submit(7);
    let chains = pop(&mut pair, 64);
    pair.complete(&[used(&chains[0])]).unwrap();
    rig.driver.force(false, 2);
    pair.complete(&[used(&chains[1])]).unwrap();
    let mut out = Vec::new();
    rig.driver.force(false, 3);
    assert!(matches!(pair.pop(&mut out, 64), Err(QueueError::DoorbellValue { value: 3, last: 0, .. })));
}

#[test]
fn queues_that_are_not_there_are_refused() {
    let rig = Rig::new(8, 8);
    let with = |change: &dyn Fn(&mut PairConfig)| {
        let mut config = rig.config;
        change(&mut config);
        let records = PairRecords::new(Window::of_mapping(Mapping::heap(PairRecords::bytes(4096, 4096))));
        QueuePair::new(&rig.view, config, rig.doorbells.share(), None, records).err().unwrap()
    };
    for size in [0, 1, 4097] {
        assert_eq!(with(&|config| config.sq.size = size), QueueError::Entries { size, most: 4096 });
        assert_eq!(with(&|config| config.cq.size = size), QueueError::Entries { size, most: 4096 });
    }
    for address in [MEMORY, MEMORY - 64, u64::MAX - 7, 4] {
        let address = GuestAddress(address);
        assert!(matches!(with(&|config| config.sq.address = address), QueueError::GuestUnmapped { .. }));
        assert!(matches!(with(&|config| config.cq.address = address), QueueError::GuestUnmapped { .. }));
    }
    assert!(matches!(with(&|config| config.sq.id = 512), QueueError::QueueIdentifier { id: 512, most: 511 }));
    let records = PairRecords::new(Window::of_mapping(Mapping::heap(4096)));
    let config = PairConfig {
        sq: QueueMemory { size: 4096, ..rig.config.sq },
        cq: QueueMemory { size: 4096, ..rig.config.cq },
        ..rig.config
    };
    let error = QueuePair::new(&rig.view, config, rig.doorbells.share(), None, records).err();
    assert!(matches!(error, Some(QueueError::RecordsTooSmall { .. })));
    let nowhere = Shadow { doorbells: GuestAddress(MEMORY), ..SHADOW };
    let records = PairRecords::new(Window::of_mapping(Arc::clone(&rig.records)));
    let error = QueuePair::new(&rig.view, rig.config, rig.doorbells.share(), Some(nowhere), records).err();
    assert!(matches!(error, Some(QueueError::GuestUnmapped { what: "doorbell buffer", .. })));
}

#[test]
fn a_new_pair_starts_with_doorbells_of_zero() {
    let mut rig = Rig::new(8, 8);
    rig.submit(5);
    // Deleted and created again: the host's counters start anew, the page had the old values.
    let pair = rig.pair();
    assert!(!pair.has_work());
}

#[test]
fn with_shadow_doorbells_a_polling_device_is_not_trapped_and_a_sleeping_one_is() {
    let mut rig = Rig::new(8, 8);
    rig.use_shadow();
    let mut pair = rig.pair();
    let mut woken_by_head = 0;
    for round in 0..30 {
        assert!(!pair.arm().unwrap(), "nothing to do");
        rig.driver.submit(&command(round));
        assert!(rig.driver.ring(), "armed at round {round}: the register is written");
        let chains = pop(&mut pair, 64);
        assert_eq!(chains.len(), 1);
        pair.complete(&[used(&chains[0])]).unwrap();
        let from = rig.driver.head();
        rig.driver.take().unwrap();
        woken_by_head += usize::from(rig.driver.ring_head(from));
        // What comes while the device polls is seen without the register.
        rig.driver.submit(&command(round));
        assert!(!rig.driver.ring());
        assert!(pair.has_work() && pair.arm().unwrap());
        let chains = pop(&mut pair, 64);
        pair.complete(&[used(&chains[0])]).unwrap();
        let from = rig.driver.head();
        rig.driver.take().unwrap();
        woken_by_head += usize::from(rig.driver.ring_head(from));
    }
    // An event index that is not moved is passed once in each lap.
    assert!(woken_by_head <= 60 / 8 + 1, "the head woke {woken_by_head} times though there was room");
}

#[test]
fn a_device_that_waits_for_room_is_woken_by_the_head() {
    let mut rig = Rig::new(8, 3);
    rig.use_shadow();
    let mut pair = rig.pair();
    rig.submit(5);
    let chains = pop(&mut pair, 64);
    pair.complete(&chains.iter().map(used).collect::<Vec<_>>()).unwrap();
    assert!(!pair.arm().unwrap(), "commands wait for room");
    let from = rig.driver.head();
    rig.driver.take().unwrap();
    assert!(rig.driver.ring_head(from), "which the head's register tells");
    assert!(pair.has_work() && pair.arm().unwrap());
}

#[test]
fn shadow_doorbells_that_are_configured_later_go_on_from_the_registers() {
    let mut rig = Rig::new(8, 8);
    let mut pair = rig.pair();
    rig.submit(3);
    let chains = pop(&mut pair, 2);
    pair.set_shadow(SHADOW).unwrap();
    rig.use_shadow();
    assert_eq!(pop(&mut pair, 64).len(), 1);
    pair.complete(&chains.iter().map(used).collect::<Vec<_>>()).unwrap();
    assert_eq!(rig.reap().len(), 2);
    rig.submit(2);
    // The register is not looked at any more.
    rig.doorbells.store(6, 77);
    assert_eq!(pop(&mut pair, 64).len(), 2);
}

#[test]
fn completions_are_in_the_dirty_log() {
    let mut rig = Rig::new(8, 8);
    let log = Arc::new(DirtyBitmap::new(Mapping::heap(4096), 0, 4096).unwrap());
    let mut pair = rig.pair();
    pair.remap(&rig.view.with_dirty([Arc::clone(&log)])).unwrap();
    rig.submit(2);
    let chains = pop(&mut pair, 64);
    pair.complete(&chains.iter().map(used).collect::<Vec<_>>()).unwrap();
    let marked: Vec<u64> = (0..MEMORY / PAGE).filter(|page| log.is_marked(GuestAddress(page * PAGE))).collect();
    assert_eq!(marked, [CQ / PAGE]);
}

#[test]
fn what_was_not_handed_out_cannot_be_completed() {
    let mut rig = Rig::new(8, 8);
    let mut pair = rig.pair();
    rig.submit(1);
    let chains = pop(&mut pair, 1);
    let other = Used { id: chains[0].id ^ 1, descriptors: 1, written: 0 };
    assert!(matches!(pair.complete(&[other]), Err(QueueError::NotInFlight { .. })));
    assert!(pair.is_broken());
}

#[test]
fn a_pair_behind_the_interface_of_queues_is_the_same() {
    let mut rig = Rig::new(8, 8);
    let mut queue = Queue::Pair(rig.pair());
    rig.submit(4);
    let mut chains = Chains::new();
    assert!(queue.has_work());
    queue.pop(&mut chains, 64).unwrap();
    let done: Vec<Used> = chains.iter().map(used).collect();
    assert!(queue.complete(&done).unwrap());
    assert_eq!(rig.reap().len(), 4);
    assert!(queue.rewind().is_err() && queue.config().is_none());
    queue.retire();
    assert!(queue.is_broken());
}

/// The device: pops, completes a part of what it has, newest first; again and again.
fn work(pair: &mut QueuePair, mut flight: Vec<Used>, rounds: &[(usize, usize)]) {
    for (max, complete) in rounds {
        let mut chains = Vec::new();
        pair.pop(&mut chains, *max).unwrap();
        flight.extend(chains.iter().map(used));
        flight.reverse();
        let done: Vec<Used> = flight.drain(..flight.len().min(*complete)).collect();
        pair.complete(&done).unwrap();
    }
}

/// Starts a device on what a killed one left, and finishes everything.
fn finish(rig: &mut Rig) {
    let mut pair = rig.start(true).unwrap();
    let mut seen = Vec::new();
    let recovered = pair.in_flight();
    while !rig.outstanding.is_empty() {
        let chains = pop(&mut pair, usize::MAX);
        assert!(!chains.is_empty(), "{:?} are lost, {recovered} were recovered, {seen:?} came", rig.outstanding);
        let expected: Vec<u16> = rig.outstanding.iter().take(chains.len()).copied().collect();
        assert_eq!(chains.iter().map(id).collect::<Vec<_>>(), expected, "in the order of submission, each once");
        seen.extend(expected);
        for chain in chains.iter().rev() {
            pair.complete(&[used(chain)]).unwrap();
            assert_eq!(rig.reap().len(), 1);
        }
    }
    assert_eq!(pair.in_flight(), 0);
    assert!(!pair.has_work());
}

/// Kills the device before each store of `rounds` in turn, then the recovery before each of its stores.
fn kill_everywhere(sq: u16, cq: u16, wraps: usize, rounds: &[(usize, usize)], busy: bool, is_shadow: bool) {
    for stores in 0.. {
        let mut rig = Rig::new(sq, cq);
        if is_shadow {
            rig.use_shadow();
        }
        let mut pair = rig.pair();
        for _ in 0..wraps {
            rig.submit(3);
            work(&mut pair, Vec::new(), &[(usize::MAX, usize::MAX), (usize::MAX, usize::MAX)]);
            rig.reap();
        }
        drop(pair);
        finish(&mut rig);
        rig.submit(sq.into());
        let mut pair = rig.start(true).unwrap();
        let finished = crash::after(stores, || work(&mut pair, Vec::new(), rounds)).is_some();
        drop(pair);
        rig.reap();
        if busy {
            rig.submit(usize::from(sq) / 2);
        }
        for again in (0..60).step_by(3) {
            if crash::after(again, || rig.start(true).unwrap()).is_some() {
                break;
            }
        }
        finish(&mut rig);
        rig.submit(3);
        finish(&mut rig);
        if finished {
            assert!(stores > 10, "it was killed somewhere");
            return;
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of devices; the property below has some of them")]
fn a_device_killed_before_any_store_loses_and_doubles_nothing() {
    for busy in [false, true] {
        for is_shadow in [false, true] {
            kill_everywhere(8, 8, 5, &[(2, 1), (8, 2), (8, 8)], busy, is_shadow);
            kill_everywhere(4, 16, 3, &[(3, 3), (8, 8)], busy, is_shadow);
            kill_everywhere(9, 5, 4, &[(4, 4), (8, 2)], busy, is_shadow);
        }
    }
}

#[test]
fn a_record_of_other_queues_is_refused_and_a_cleared_one_is_new() {
    let mut rig = Rig::new(8, 8);
    let mut pair = rig.pair();
    rig.submit(3);
    pop(&mut pair, 2);
    rig.config.sq.size = 7;
    assert!(matches!(rig.start(true).err(), Some(QueueError::PositionsMismatch { .. })));
    rig.config.sq.size = 8;
    assert_eq!(rig.start(true).unwrap().in_flight(), 2);
    pair.delete();
    assert_eq!(rig.start(true).unwrap().in_flight(), 0);
}

#[test]
fn a_head_that_goes_back_across_a_restart_breaks_the_pair_and_nothing_else() {
    let mut rig = Rig::new(8, 4);
    let mut pair = rig.pair();
    rig.submit(7);
    let chains = pop(&mut pair, 64);
    pair.complete(&chains.iter().map(used).collect::<Vec<_>>()).unwrap();
    rig.reap();
    assert_eq!(pop(&mut pair, 64).len(), 3);
    rig.driver.force(false, 0);
    let mut next = rig.start(true).unwrap();
    let chains = pop(&mut next, 64);
    let error = next.complete(&chains.iter().map(used).collect::<Vec<_>>());
    assert_eq!(error, Err(QueueError::CompletionQueueFull { id: 2 }));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several generations of devices, each killed somewhere, while the host goes on.
    #[test]
    fn generations_of_killed_devices_complete_everything_once(
        (sq, cq) in (2..17u16, 2..17u16),
        is_shadow in any::<bool>(),
        lives in prop::collection::vec(
            (0..160u64, prop::collection::vec((0..9usize, 0..9usize), 1..6), 1..8usize),
            1..12,
        ),
    ) {
        let mut rig = Rig::new(sq, cq);
        if is_shadow {
            rig.use_shadow();
        }
        drop(rig.pair());
        for (stores, rounds, count) in lives {
            rig.submit(count);
            crash::after(stores, || {
                let mut pair = rig.start(true).unwrap();
                work(&mut pair, Vec::new(), &rounds);
            });
            rig.reap();
        }
        finish(&mut rig);
    }

    /// Whatever is in the record, a start is refused or hands out each slot once.
    #[test]
    fn a_record_of_any_bytes_is_refused_or_read(bytes in prop::collection::vec((0..320usize, any::<u8>()), 0..40)) {
        let mut rig = Rig::new(8, 8);
        let mut pair = rig.pair();
        rig.submit(7);
        pop(&mut pair, 3);
        let window = Window::of_mapping(Arc::clone(&rig.records));
        for (at, value) in bytes {
            if at >= 8 && at < window.len() {
                window.u8(at).store(value, Relaxed);
            }
        }
        if let Ok(mut pair) = rig.start(true) {
            let mut chains = Vec::new();
            if pair.pop(&mut chains, 64).is_ok() {
                let mut slots: Vec<u16> = chains.iter().map(|chain| chain.id).collect();
                slots.sort_unstable();
                slots.dedup();
                prop_assert_eq!(slots.len(), chains.len());
                let _ = pair.complete(&chains.iter().map(|chain| chain.used(0)).collect::<Vec<_>>());
            }
        }
    }
}
