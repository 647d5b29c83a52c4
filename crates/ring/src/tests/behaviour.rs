//! What a driver and a device may expect of each other.

use proptest::prelude::*;
use softdpu_memory::DirtyBitmap;
use softdpu_sys::IoMemory;

use super::*;

#[test]
fn a_chain_has_the_pieces_of_the_request_in_order_and_direction() {
    for format in FORMATS {
        for indirect in [false, true] {
            let mut rig = Rig::new(format, 8);
            let mut queue = rig.queue();
            let pieces = [
                Piece::readable(GuestAddress(DATA), 16),
                Piece::readable(GuestAddress(DATA + 0x1000), 0x200),
                Piece::writable(GuestAddress(DATA + 0x2000), 0x300),
                Piece::writable(GuestAddress(DATA + 0x3000), 1),
            ];
            let id = if indirect {
                rig.driver.add_indirect(GuestAddress(TABLES + 8), &pieces)
            } else {
                rig.driver.add(&pieces)
            };
            assert!(rig.driver.publish(), "a new ring asks for notifications");
            assert!(queue.has_work());
            let chains = pop(&mut queue);
            let [chain] = &chains[..] else { panic!("{format:?}: one chain, not {chains:?}") };
            assert_eq!(Some(chain.id), id);
            assert_eq!(chain.descriptors, if indirect { 1 } else { 4 });
            assert_eq!(chain.readable, 2);
            let lens: Vec<usize> = chain.buffer.iovecs().iter().map(|piece| piece.len()).collect();
            assert_eq!(lens, [16, 0x200, 0x300, 1]);
            chain.buffer.write_at(0x210, b"device").unwrap();
            let mut seen = [0; 6];
            let data = rig.view.buffer(GuestAddress(DATA + 0x2000), 6).unwrap();
            data.read_at(0, &mut seen).unwrap();
            assert_eq!(&seen, b"device");
        }
    }
}

#[test]
fn a_table_that_crosses_regions_or_lies_at_an_odd_address_is_read_all_the_same() {
    for format in FORMATS {
        let config = Rig::new(format, 8).config;
        let region =
            |at: u64, len: u64| Region::new(GuestAddress(at), UserAddress(at), len, Mapping::heap(len as usize), 0);
        let view = View::new(vec![region(0, 0x2000), region(0x2000, 0x2000)]).unwrap();
        let addresses = Layout::new(format, 8).addresses(UserAddress(0));
        let mut driver = Driver::new(&view, format, 8, true, addresses).unwrap();
        let mut queue = Queue::new(&view, config, addresses, Position::start(format), None).unwrap();
        for table in [0x1fe8, 0x1003] {
            let pieces = [1, 2, 3].map(|len| Piece::readable(GuestAddress(0x3000), len));
            driver.add_indirect(GuestAddress(table), &pieces).unwrap();
            driver.publish();
            let chains = pop(&mut queue);
            let lens: Vec<usize> = chains[0].buffer.iovecs().iter().map(|piece| piece.len()).collect();
            assert_eq!(lens, [1, 2, 3]);
        }
    }
}

#[test]
fn completions_reach_the_driver_in_their_order_with_their_lengths() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 16);
        let mut queue = rig.queue();
        let ids: Vec<u16> = [1, 3, 2, 1].into_iter().map(|pieces| rig.request(pieces).unwrap()).collect();
        rig.driver.publish();
        let chains = pop(&mut queue);
        assert_eq!(chains.iter().map(|chain| chain.id).collect::<Vec<_>>(), ids);
        assert_eq!(queue.in_flight(), 4);
        let order: Vec<Used> = [2, 0, 3, 1].iter().map(|at| chains[*at].used(*at as u32 * 10)).collect();
        queue.complete(&order[..1]).unwrap();
        assert_eq!(rig.taken(), [Completion { id: ids[2], written: 20 }]);
        queue.complete(&order[1..]).unwrap();
        let rest = [(0, 0), (3, 30), (1, 10)].map(|(at, written)| Completion { id: ids[at], written });
        assert_eq!(rig.taken(), rest);
        assert_eq!(queue.in_flight(), 0);
    }
}

#[test]
fn pop_takes_no_more_than_it_is_asked_for() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 64);
        let mut queue = rig.queue();
        let ids: Vec<u16> = (0..40).map(|_| rig.request(1).unwrap()).collect();
        rig.driver.publish();
        let mut chains = Vec::new();
        for (max, count) in [(0, 0), (1, 1), (20, 20), (100, 19), (100, 0)] {
            assert_eq!(queue.pop(&mut chains, max).unwrap(), count);
        }
        assert_eq!(chains.iter().map(|chain| chain.id).collect::<Vec<_>>(), ids);
        assert!(!queue.has_work());
    }
}

#[test]
fn what_is_not_published_is_not_there() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 8);
        let mut queue = rig.queue();
        rig.request(2).unwrap();
        rig.request(3).unwrap();
        assert!(!queue.has_work());
        assert!(pop(&mut queue).is_empty());
        rig.driver.publish();
        assert_eq!(pop(&mut queue).len(), 2);
    }
}

#[test]
fn a_packed_ring_need_not_be_a_power_of_two_nor_a_split_ring_large() {
    for (format, size) in [(Format::Packed, 7), (Format::Packed, 1), (Format::Split, 1), (Format::Split, 2)] {
        let mut rig = Rig::new(format, size);
        let mut queue = rig.queue();
        for round in 0..40 {
            let mut added = 0;
            while rig.request(1 + (round + added) % 3).is_some() {
                added += 1;
            }
            rig.driver.publish();
            let chains = pop(&mut queue);
            assert_eq!(chains.len(), added);
            queue.complete(&used(&chains)).unwrap();
            assert_eq!(rig.taken().len(), added);
            assert_eq!(rig.driver.free(), size);
        }
    }
}

#[test]
fn a_device_that_armed_is_notified_once_and_one_that_did_not_is_not() {
    for format in FORMATS {
        for event_idx in [false, true] {
            let mut rig = Rig::with(QueueConfig { event_idx, ..Rig::new(format, 8).config });
            let mut queue = rig.queue();
            queue.disarm();
            rig.request(1);
            assert!(!rig.driver.publish(), "{format:?} event_idx {event_idx}");
            assert!(queue.arm().unwrap(), "something slipped in");
            pop(&mut queue);
            assert!(!queue.arm().unwrap());
            rig.request(1);
            assert!(rig.driver.publish(), "{format:?} event_idx {event_idx}");
            rig.request(1);
            assert_eq!(rig.driver.publish(), !event_idx, "without EVENT_IDX it is on until it is turned off");
            queue.disarm();
            rig.request(1);
            assert!(!rig.driver.publish());
            assert!(queue.arm().unwrap());
            // Armed for a while in which nothing comes.
            pop(&mut queue);
            assert!(!queue.arm().unwrap());
            queue.disarm();
            rig.request(1);
            assert!(!rig.driver.publish(), "{format:?} event_idx {event_idx}: what comes after is polled");
            assert!(queue.arm().unwrap());
        }
    }
}

#[test]
fn a_driver_that_armed_is_notified_and_one_that_disarmed_is_not() {
    for format in FORMATS {
        for event_idx in [false, true] {
            let mut rig = Rig::with(QueueConfig { event_idx, ..Rig::new(format, 8).config });
            let mut queue = rig.queue();
            for _ in 0..6 {
                rig.request(1).unwrap();
            }
            rig.driver.publish();
            let done = used(&pop(&mut queue));
            rig.driver.disarm();
            assert!(queue.complete(&done[..1]).unwrap(), "the first one after a start, whatever the driver missed");
            assert!(!queue.complete(&done[1..2]).unwrap());
            assert!(rig.driver.arm(), "two are there");
            assert_eq!(rig.taken().len(), 2);
            assert!(!rig.driver.arm());
            assert!(queue.complete(&done[2..4]).unwrap(), "{format:?} event_idx {event_idx}");
            assert_eq!(queue.complete(&done[4..5]).unwrap(), !event_idx);
            rig.driver.disarm();
            assert!(!queue.complete(&done[5..]).unwrap());
        }
    }
}

#[test]
fn a_queue_goes_on_where_another_one_stopped() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 8);
        let mut queue = rig.queue();
        for _ in 0..30 {
            rig.request(3).unwrap();
            rig.driver.publish();
            let chains = pop(&mut queue);
            queue.complete(&used(&chains)).unwrap();
            assert_eq!(rig.taken().len(), 1);
            let base = queue.retire().to_base();
            assert_eq!(queue.pop(&mut Vec::new(), 1), Err(QueueError::Broken));
            queue = rig.queue_at(Position::from_base(format, base));
        }
    }
}

#[test]
fn memory_may_move_under_a_running_queue() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 8);
        let mut queue = rig.queue();
        rig.request(1).unwrap();
        rig.driver.publish();
        let chains = pop(&mut queue);
        let moved = rig.view.regions()[0].clone();
        queue.remap(&View::new(vec![moved]).unwrap()).unwrap();
        queue.complete(&used(&chains)).unwrap();
        assert_eq!(rig.taken().len(), 1);
        let error = queue.remap(&View::empty()).unwrap_err();
        assert!(matches!(error, QueueError::Unmapped { .. }));
        assert!(queue.is_broken());
    }
}

#[test]
fn what_is_written_to_the_ring_is_reported_to_the_dirty_log() {
    for format in FORMATS {
        let at = match format {
            Format::Split => RING + Layout::new(format, 8).device as u64,
            Format::Packed => RING,
        };
        for log_used in [None, Some(GuestAddress(at))] {
            let config = QueueConfig { log_used, ..Rig::new(format, 8).config };
            let mut rig = Rig::with(config);
            let log = Arc::new(DirtyBitmap::new(Mapping::heap(4096), 0, 4096).unwrap());
            let mut queue = rig.queue();
            queue.remap(&rig.view.with_dirty([Arc::clone(&log)])).unwrap();
            rig.request(1).unwrap();
            rig.driver.publish();
            let chains = pop(&mut queue);
            assert!(!log.is_marked(GuestAddress(at)), "taking writes nothing");
            queue.complete(&used(&chains)).unwrap();
            assert_eq!(log.is_marked(GuestAddress(at)), log_used.is_some());
        }
    }
}

#[test]
fn an_in_flight_region_has_the_size_that_vhost_user_back_ends_agree_on() {
    assert_eq!(InflightRecords::bytes(Format::Split, 128), 16 + 128 * 16 + 48);
    assert_eq!(InflightRecords::bytes(Format::Split, 1), 64);
    assert_eq!(InflightRecords::bytes(Format::Packed, 128), 32 + 128 * 32 + 32);
    assert_eq!(InflightRecords::bytes(Format::Packed, 3), 128);
}

#[derive(Clone, Debug)]
enum Step {
    Add { pieces: usize, indirect: bool },
    Publish,
    Pop(usize),
    Complete(Vec<prop::sample::Index>),
    Take,
    Move,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..5usize, any::<bool>()).prop_map(|(pieces, indirect)| Step::Add { pieces, indirect }),
        2 => Just(Step::Publish),
        2 => (1..20usize).prop_map(Step::Pop),
        3 => prop::collection::vec(any::<prop::sample::Index>(), 0..6).prop_map(Step::Complete),
        2 => Just(Step::Take),
        1 => Just(Step::Move),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 128 }, failure_persistence: None, ..ProptestConfig::default() })]

    /// Against the simplest model there is: requests come out in the order they went in, completions likewise.
    #[test]
    fn nothing_is_lost_doubled_or_reordered(
        packed in any::<bool>(),
        size in prop::sample::select(vec![1u16, 4, 8, 32]),
        steps in prop::collection::vec(step(), 1..200),
    ) {
        let format = if packed { Format::Packed } else { Format::Split };
        let mut rig = Rig::new(format, size);
        let mut queue = rig.recorded().unwrap();
        let (mut added, mut published, mut flight, mut returned) = (vec![], vec![], vec![], vec![]);
        for step in steps {
            match step {
                Step::Add { pieces, indirect } => {
                    let id =
                        if indirect { rig.indirect_request(pieces) } else { rig.request(pieces) };
                    added.extend(id.map(|id| (id, pieces)));
                }
                Step::Publish => {
                    rig.driver.publish();
                    published.append(&mut added);
                }
                Step::Pop(max) => {
                    let mut chains = Vec::new();
                    let count = queue.pop(&mut chains, max).unwrap();
                    prop_assert_eq!(count, max.min(published.len()));
                    for (chain, (id, pieces)) in chains.into_iter().zip(published.drain(..count)) {
                        prop_assert_eq!((chain.id, chain.buffer.pieces()), (id, pieces));
                        flight.push(chain.used(u32::from(id) + 7));
                    }
                }
                Step::Complete(picks) => {
                    let mut done = Vec::new();
                    for pick in picks {
                        if !flight.is_empty() {
                            done.push(flight.remove(pick.index(flight.len())));
                        }
                    }
                    queue.complete(&done).unwrap();
                    returned.extend(done.iter().map(|used| Completion { id: used.id, written: used.written }));
                }
                Step::Take => prop_assert_eq!(rig.taken(), std::mem::take(&mut returned)),
                Step::Move => {
                    // Another process takes over; it is handed what is in flight, in order.
                    drop(queue);
                    queue = rig.recorded().unwrap();
                    let mut chains = Vec::new();
                    prop_assert_eq!(queue.resubmit(&mut chains).unwrap(), flight.len());
                    let ids: Vec<u16> = chains.iter().map(|chain| chain.id).collect();
                    let mut again: Vec<u16> = flight.iter().map(|used| used.id).collect();
                    again.sort_by_key(|id| ids.iter().position(|other| other == id));
                    prop_assert_eq!(ids, again);
                }
            }
            prop_assert_eq!(usize::from(queue.in_flight()), flight.len());
        }
    }
}

#[test]
fn a_prepared_request_comes_back_as_often_as_it_is_repeated_beside_others() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 8);
        let mut queue = rig.queue();
        let id = rig.driver.prepare(&request(3)).unwrap();
        for _ in 0..40 {
            assert!(rig.driver.repeat(id));
            let other = rig.request(2).unwrap();
            rig.driver.publish();
            let chains = pop(&mut queue);
            assert_eq!(chains.iter().map(|chain| chain.id).collect::<Vec<_>>(), [id, other], "{format:?}");
            assert_eq!(chains[0].readable, 2);
            queue.complete(&used(&chains)).unwrap();
            assert_eq!(rig.taken().iter().map(|done| done.id).collect::<Vec<_>>(), [id, other], "{format:?}");
        }
        let elsewhere = rig.driver.returned();
        assert_eq!(elsewhere, queue.position(), "a back end that starts anew goes on where this one is");
    }
}

#[test]
fn what_was_not_prepared_is_not_repeated() {
    for format in FORMATS {
        let mut rig = Rig::new(format, 8);
        let id = rig.request(1).unwrap();
        assert!(!rig.driver.repeat(id));
        assert!(!rig.driver.repeat(u16::MAX));
    }
}
