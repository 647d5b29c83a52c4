//! Chains that are lent to another core, and what becomes of them when their queue stops.

use std::time::Duration;

use softdpu_ring::Position;
use softdpu_vpc::{DropReason, PortId};

use super::frames::{A_TX, BOTH, Two};
use super::*;
use crate::common_nic::{PLAIN, datagram};
use crate::net::{PARCELS, Parcel, Room, Whose};

/// With bytes behind its head.
fn large(mark: u32) -> Vec<u8> {
    datagram((0, 2), (1, 3), mark, 1400)
}

/// Two guests whose receiver is on the other core, and `frames` on their way there.
fn sent(format: Format, frames: u32) -> Two {
    let mut two = Two::with_receiver_at(format, CoreIndex(1));
    (0..frames).for_each(|mark| assert!(two.a.send(&PLAIN, &large(mark))));
    two.round();
    two
}

/// The parcels that the other core was told of, and the frames in them.
fn parcels(two: &mut Two) -> (Vec<Parcel>, Vec<Vec<u8>>) {
    let mut parcels = Vec::new();
    while let Some(message) = two.other.take() {
        let ToCore::Parcels(more) = message else { panic!("something else than parcels") };
        parcels.extend(more);
    }
    let frames = parcels.iter().map(|parcel| {
        let mut frame = parcel.packet.head.bytes().to_vec();
        let mut tail = vec![0; parcel.packet.tail as usize];
        softdpu_vpc::Tail::read(&parcel.source(), 0, &mut tail).unwrap();
        frame.extend(tail);
        frame
    });
    let frames = frames.collect();
    (parcels, frames)
}

/// The other core is done with these.
fn give_back(two: &mut Two, parcels: Vec<Parcel>) {
    two.core.give_back(parcels);
}

fn stopped(two: &mut Two) -> Option<Position> {
    while let Some(event) = two.events.take() {
        if let FromCore::Stopped { key: A_TX, position, .. } = event {
            return Some(position);
        }
    }
    None
}

#[test]
fn a_chain_is_the_drivers_again_when_the_other_core_has_read_it() {
    for format in BOTH {
        let mut two = sent(format, 3);
        let (mut parcels, frames) = parcels(&mut two);
        assert_eq!(frames, [large(0), large(1), large(2)], "{format:?}");
        assert_eq!(two.ports[1].copied_again.get(), 0, "{format:?}");
        assert_eq!(two.a.sent_back(), 0, "{format:?}: given back while it is read");
        // The second one is read before the first.
        let second = parcels.remove(1);
        give_back(&mut two, vec![second]);
        two.round();
        assert_eq!(two.a.sent_back(), 0, "{format:?}: out of order");
        give_back(&mut two, parcels);
        two.round();
        assert_eq!(two.a.sent_back(), 3, "{format:?}");
    }
}

/// Other ports' frames wait for a core, and room for `left` more is left.
fn fill(room: &Room, left: usize) {
    let mut others = (100..).map(|port| Whose::of(PortId(port)));
    while room.waiting() < PARCELS - left {
        others.next().map(|other| room.take(other, PARCELS - left - room.waiting()));
    }
}

#[test]
fn of_frames_that_find_room_for_some_the_first_arrive_and_the_others_are_dropped() {
    for format in BOTH {
        let mut two = Two::with_receiver_at(format, CoreIndex(1));
        fill(&two.core.rooms[1], 2);
        (0..3).for_each(|mark| assert!(two.a.send(&PLAIN, &large(mark))));
        two.round();
        let (parcels, frames) = parcels(&mut two);
        assert_eq!(frames, [large(0)], "{format:?}: as many as are left behind it");
        assert_eq!(two.ports[1].dropped_out[DropReason::NoBuffer as usize].get(), 2, "{format:?}");
        give_back(&mut two, parcels);
        two.round();
        assert_eq!(two.a.sent_back(), 3, "{format:?}");
    }
}

#[test]
fn frames_that_find_no_room_on_their_way_are_dropped_and_their_chains_come_back() {
    for format in BOTH {
        let mut two = Two::with_receiver_at(format, CoreIndex(1));
        fill(&two.core.rooms[1], 0);
        (0..3).for_each(|mark| assert!(two.a.send(&PLAIN, &large(mark))));
        two.round();
        two.round();
        assert_eq!(two.ports[1].dropped_out[DropReason::NoBuffer as usize].get(), 3, "{format:?}");
        assert_eq!(two.a.sent_back(), 3, "{format:?}");
    }
}

#[test]
fn a_stop_waits_for_what_the_other_core_reads() {
    for format in BOTH {
        let mut two = sent(format, 3);
        two.core.handle(ToCore::Stop { key: A_TX, patience: Duration::from_secs(100) });
        two.round();
        assert_eq!(stopped(&mut two), None, "{format:?}: its memory is still read");
        let (parcels, _) = parcels(&mut two);
        give_back(&mut two, parcels);
        two.round();
        assert!(stopped(&mut two).is_some(), "{format:?}: never stopped");
        assert_eq!(two.a.sent_back(), 3, "{format:?}");
    }
}

#[test]
fn a_stop_without_patience_asks_the_other_core_behind_the_parcels() {
    for format in BOTH {
        let mut two = sent(format, 3);
        two.core.handle(ToCore::Stop { key: A_TX, patience: Duration::ZERO });
        assert_eq!(stopped(&mut two), None, "{format:?}: its memory is still read");
        let Some(ToCore::Parcels(parcels)) = two.other.take() else { panic!("no parcels") };
        let Some(ToCore::GiveUp { key: A_TX, by: CoreIndex(0) }) = two.other.take() else { panic!("not asked") };
        // They come back to a queue that is gone.
        give_back(&mut two, parcels);
        two.round();
        assert_eq!(stopped(&mut two), None, "{format:?}: nobody has answered");
        two.core.handle(ToCore::GivenUp(A_TX));
        let position = stopped(&mut two).expect("never stopped");
        assert_eq!(position, Position::start(format), "{format:?}: what was not given back is sent again");
        assert_eq!(two.a.sent_back(), 0, "{format:?}");
    }
}

#[test]
fn a_broken_queue_asks_the_other_core_too() {
    for format in BOTH {
        let mut two = sent(format, 2);
        // One more is lent by the batch that breaks the queue.
        assert!(two.a.send(&PLAIN, &large(2)));
        two.a.send_writable();
        two.round();
        let (parcels, frames) = parcels(&mut two);
        assert_eq!(frames.len(), 3, "{format:?}");
        two.core.handle(ToCore::Stop { key: A_TX, patience: Duration::from_secs(100) });
        assert_eq!(stopped(&mut two), None, "{format:?}: its memory is still read");
        let Some(ToCore::GiveUp { key: A_TX, by: CoreIndex(0) }) = two.other.take() else { panic!("not asked") };
        give_back(&mut two, parcels);
        two.core.handle(ToCore::GivenUp(A_TX));
        assert!(stopped(&mut two).is_some(), "{format:?}: never stopped");
        two.round();
        assert_eq!(two.a.sent_back(), 0, "{format:?}: a broken queue gives nothing back");
    }
}
