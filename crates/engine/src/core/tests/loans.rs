//! Chains that are lent to another core, and what becomes of them when their queue stops.

use std::time::Duration;

use softdpu_ring::Position;
use softdpu_vpc::{DropReason, PortId};

use super::frames::{A_TX, BOTH, Two};
use super::*;
use crate::common::nic::{PLAIN, datagram};
use crate::net::{BACKLOG, CreditOwner, CreditPool, EgressFrame};

/// With bytes behind its head.
fn large(mark: u32) -> Vec<u8> {
    datagram((0, 2), (1, 3), mark, 1400)
}

/// Two guests, the receiver on the other core, and `frames` on their way there.
fn sent(format: Format, frames: u32) -> Two {
    let mut two = Two::with_receiver_at(format, CoreIndex(1));
    (0..frames).for_each(|mark| assert!(two.a.send(&PLAIN, &large(mark))));
    two.round();
    two
}

/// What the other core was sent, and the bytes of those frames.
fn handed_off(two: &mut Two) -> (Vec<EgressFrame>, Vec<Vec<u8>>) {
    let mut lent = Vec::new();
    while let Some(message) = two.other.take() {
        let ToCore::EgressFrames(more) = message else { panic!("something else than frames") };
        lent.extend(more);
    }
    let frames = lent.iter().map(|lent| {
        let mut frame = lent.packet.head.bytes().to_vec();
        let mut tail = vec![0; lent.packet.tail as usize];
        softdpu_vpc::Tail::read(&lent.tail(), 0, &mut tail).unwrap();
        frame.extend(tail);
        frame
    });
    let frames = frames.collect();
    (lent, frames)
}

/// The other core is done with these.
fn give_back(two: &mut Two, lent: Vec<EgressFrame>) {
    two.core.frames.give_back(&mut two.core.queues, lent);
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
        let (mut lent, frames) = handed_off(&mut two);
        assert_eq!(frames, [large(0), large(1), large(2)], "{format:?}");
        assert_eq!(two.ports[1].copied_again.get(), 0, "{format:?}");
        assert_eq!(two.a.sent_back(), 0, "{format:?}: given back while it is read");
        // The second one is read before the first.
        let second = lent.remove(1);
        give_back(&mut two, vec![second]);
        two.round();
        assert_eq!(two.a.sent_back(), 0, "{format:?}: out of order");
        give_back(&mut two, lent);
        two.round();
        assert_eq!(two.a.sent_back(), 3, "{format:?}");
    }
}

/// Takes credits for other ports' frames until `left` are left.
fn fill(pool: &CreditPool, left: usize) {
    let mut others = (100..).map(|port| CreditOwner::of(PortId(port)));
    while pool.in_use() < BACKLOG - left {
        others.next().map(|other| pool.take(other, BACKLOG - left - pool.in_use()));
    }
}

#[test]
fn where_credits_are_short_the_first_frames_arrive_and_the_others_are_dropped() {
    for format in BOTH {
        let mut two = Two::with_receiver_at(format, CoreIndex(1));
        fill(two.core.frames.credits(CoreIndex(1)), 2);
        (0..3).for_each(|mark| assert!(two.a.send(&PLAIN, &large(mark))));
        two.round();
        let (lent, frames) = handed_off(&mut two);
        assert_eq!(frames, [large(0)], "{format:?}: as many as are left behind it");
        assert_eq!(two.ports[1].dropped_out[DropReason::NoBuffer as usize].get(), 2, "{format:?}");
        give_back(&mut two, lent);
        two.round();
        assert_eq!(two.a.sent_back(), 3, "{format:?}");
    }
}

#[test]
fn frames_without_credits_are_dropped_and_their_chains_come_back() {
    for format in BOTH {
        let mut two = Two::with_receiver_at(format, CoreIndex(1));
        fill(two.core.frames.credits(CoreIndex(1)), 0);
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
        let (lent, _) = handed_off(&mut two);
        give_back(&mut two, lent);
        two.round();
        assert!(stopped(&mut two).is_some(), "{format:?}: never stopped");
        assert_eq!(two.a.sent_back(), 3, "{format:?}");
    }
}

#[test]
fn a_stop_without_patience_asks_the_other_core_behind_the_frames() {
    for format in BOTH {
        let mut two = sent(format, 3);
        two.core.handle(ToCore::Stop { key: A_TX, patience: Duration::ZERO });
        assert_eq!(stopped(&mut two), None, "{format:?}: its memory is still read");
        let Some(ToCore::EgressFrames(lent)) = two.other.take() else { panic!("no frames") };
        let Some(ToCore::GiveUp { key: A_TX, by: CoreIndex(0) }) = two.other.take() else { panic!("not asked") };
        // They come back to a queue that is gone.
        give_back(&mut two, lent);
        two.round();
        assert_eq!(stopped(&mut two), None, "{format:?}: it has not answered");
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
        let (lent, frames) = handed_off(&mut two);
        assert_eq!(frames.len(), 3, "{format:?}");
        two.core.handle(ToCore::Stop { key: A_TX, patience: Duration::from_secs(100) });
        assert_eq!(stopped(&mut two), None, "{format:?}: its memory is still read");
        let Some(ToCore::GiveUp { key: A_TX, by: CoreIndex(0) }) = two.other.take() else { panic!("not asked") };
        give_back(&mut two, lent);
        two.core.handle(ToCore::GivenUp(A_TX));
        assert!(stopped(&mut two).is_some(), "{format:?}: never stopped");
        two.round();
        assert_eq!(two.a.sent_back(), 0, "{format:?}: a broken queue gives nothing back");
    }
}
