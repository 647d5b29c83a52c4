//! Frames between the interfaces of two guests on one core.

use std::time::{Duration, Instant};

use rustix::io::Errno;
use softdpu_vpc::{Checksum, DropReason, Head, Packet, PortId};

use super::*;
use crate::common::nic::{Nic, PLAIN, datagram, tables};
use crate::message::QueueUpdate;
use crate::net::{CreditOwner, EgressFrame, EgressTail, Port, PortCounters, Receiver};

pub(super) const BOTH: [Format; 2] = [Format::Split, Format::Packed];
pub(super) const A_TX: QueueKey = QueueKey { number: 1, generation: 1 };
const B_RX: QueueKey = QueueKey { number: 2, generation: 1 };

pub(super) struct Two {
    pub core: Core<Recorder>,
    pub events: Inbox<FromCore>,
    pub a: Nic,
    pub b: Nic,
    /// Of both ports.
    pub ports: [Arc<PortCounters>; 2],
    /// The other core's inbox.
    pub other: Inbox<ToCore>,
}

impl Two {
    fn new(format: Format) -> Two {
        Two::with_receiver_at(format, CoreIndex(0))
    }

    /// Ports have `b`'s receive queue on core `at`; it is on core 0 in any case.
    pub fn with_receiver_at(format: Format, at: CoreIndex) -> Two {
        let (mut core, events, other) = beside_another(tables());
        let [a, b] = [0, 1].map(|port| Nic::new(port, format, u64::MAX));
        core.set_timed(false);
        let ports: [Arc<PortCounters>; 2] = Default::default();
        let mut number = 0;
        for (nic, counters) in [&a, &b].into_iter().zip(&ports) {
            let receiver =
                Receiver { core: if number == 0 { CoreIndex(0) } else { at }, key: QueueKey { number, generation: 1 } };
            let port = Port {
                name: "nic".into(),
                counters: Arc::clone(counters),
                receivers: [receiver].into(),
                owner: None,
                socket: None,
                limit: None,
                receive_limit: None,
                tenant: None,
                patience: Default::default(),
                is_failure_logged: false,
            };
            core.handle(ToCore::Port(nic.port, Some(Box::new(port))));
            for spec in nic.fresh() {
                let key = QueueKey { number, generation: 1 };
                core.handle(ToCore::Start(Box::new(RunningQueue::new(key, spec))));
                number += 1;
            }
        }
        Two { core, events, a, b, ports, other }
    }

    pub fn round(&mut self) {
        self.core.round(softdpu_sys::clock::now());
    }

    /// Goes on until nothing waits.
    fn drain(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.core.work.channels.total() > 0 {
            assert!(Instant::now() < deadline, "{} frames wait after 20 s", self.core.work.channels.total());
            self.round();
        }
    }
}

pub(super) fn frame(mark: u32) -> Vec<u8> {
    datagram((0, 2), (1, 3), mark, 64)
}

#[test]
fn a_tenants_account_is_even_after_a_queue_broke_in_the_middle_of_a_batch() {
    for format in BOTH {
        // In the first burst of a batch, and in a later one.
        for before in [5, 40] {
            let mut two = Two::new(format);
            two.b.give(64);
            (0..before).for_each(|mark| assert!(two.a.send(&PLAIN, &frame(mark))));
            two.a.send_writable();
            (0..10).for_each(|mark| assert!(two.a.send(&PLAIN, &frame(mark))));
            two.round();
            two.events.posted();
            let is_told = matches!(two.events.take(), Some(FromCore::Broken { key: A_TX, .. }));
            assert!(is_told, "{format:?}: the queue is not broken");
            let account = (two.core.work.channels.waiting(TenantId(0)), two.core.work.channels.total());
            assert_eq!(account, (0, 0), "{format:?}, {before} frames before the bad one");
        }
    }
}

/// A frame for `to`, from another core.
fn egress_frame(to: PortId, from: PortId, mark: u32) -> EgressFrame {
    let whole = frame(mark);
    let head = Head::of(&whole);
    let tail = whole[head.len()..].to_vec();
    let packet = Packet { head, tail: tail.len() as u32, checksum: Checksum::Complete, segmentation: None, port: from };
    let owner = CreditOwner::of(from);
    EgressFrame { to, hash: 0, overhead: 0, owner, packet, tail: EgressTail::Copied(tail) }
}

#[test]
fn frames_from_other_cores_have_a_part_of_a_round_and_messages_behind_them_wait() {
    let mut two = Two::new(Format::Split);
    two.b.give(40);
    two.core.set_timed(true);
    assert_eq!(two.core.frames.credits(CoreIndex(0)).take(CreditOwner::of(two.a.port), 40), 40);
    let frames = (0..40).map(|mark| egress_frame(two.b.port, two.a.port, mark)).collect();
    two.core.handle(ToCore::EgressFrames(frames));
    // The round began long ago.
    for left in [32, 24, 16, 8] {
        assert!(!two.core.take_arrived(0));
        assert_eq!((two.core.frames.arrived(), two.core.frames.credits(CoreIndex(0)).in_use()), (left, left));
    }
    assert!(two.core.take_arrived(0));
    two.round();
    for mark in 0..40 {
        assert_eq!(two.b.receive().map(|(_, frame)| frame), Some(frame(mark)), "in order");
    }
}

#[test]
fn what_was_delivered_reaches_its_guest_though_its_memory_is_told_of_again() {
    for format in BOTH {
        let mut two = Two::new(format);
        two.b.give(4);
        // From another core, behind it the front end's message, before the core has come round.
        two.core.frames.credits(CoreIndex(0)).take(CreditOwner::of(two.a.port), 1);
        two.core.handle(ToCore::EgressFrames(vec![egress_frame(two.b.port, two.a.port, 7)]));
        assert!(two.core.take_arrived(softdpu_sys::clock::now()));
        let update = QueueUpdate::View(two.b.same_memory());
        two.core.handle(ToCore::Update { key: B_RX, update, token: 1 });
        two.round();
        assert_eq!(two.b.receive().map(|(_, frame)| frame), Some(frame(7)), "{format:?}");
        for mark in 8..11 {
            assert!(two.a.send(&PLAIN, &frame(mark)));
            two.round();
            assert_eq!(two.b.receive().map(|(_, frame)| frame), Some(frame(mark)), "{format:?}");
        }
    }
}

#[test]
fn memory_is_let_go_of_when_the_frames_that_waited_in_it_are_gone() {
    // A queue pins its memory by views of its own, each of which pins the mapping.
    let pins = |two: &Two| Arc::strong_count(two.a.view().regions()[0].mapping());
    let update = |two: &mut Two| {
        let update = QueueUpdate::View(two.a.same_memory());
        two.core.handle(ToCore::Update { key: A_TX, update, token: 1 });
    };
    let send = |two: &mut Two| {
        (0..3).for_each(|mark| assert!(two.a.send(&PLAIN, &frame(mark))));
        two.round();
    };
    for format in BOTH {
        let mut idle = Two::new(format);
        idle.b.give(3);
        send(&mut idle);
        assert_eq!(idle.core.work.channels.total(), 0, "{format:?}: frames wait");
        update(&mut idle);
        let mut two = Two::new(format);
        // There is no room for them.
        send(&mut two);
        assert_eq!(two.core.work.channels.total(), 3, "{format:?}: nothing waits");
        update(&mut two);
        assert!(pins(&two) > pins(&idle), "{format:?}: what waits is in no memory");
        two.drain();
        two.round();
        assert_eq!(pins(&two), pins(&idle), "{format:?}: the old memory is still held");
    }
}

#[test]
fn a_frame_refused_behind_one_that_is_backpressured_is_counted_once() {
    for format in BOTH {
        let mut two = Two::new(format);
        let refused = |two: &Two| two.ports[0].dropped_in[DropReason::Truncated as usize].get();
        assert!(two.a.send(&PLAIN, &[0; 5]));
        assert!(two.a.send(&PLAIN, &frame(1)));
        assert!(two.a.send(&PLAIN, &[0; 5]));
        // The whole frame has no room: what is behind it comes again.
        two.round();
        assert_eq!((refused(&two), two.core.work.channels.total()), (1, 2), "{format:?}");
        two.b.give(1);
        two.drain();
        assert_eq!(refused(&two), 2, "{format:?}");
    }
}

#[test]
fn an_interrupt_that_the_kernel_refused_is_sent_in_the_next_round() {
    let mut two = Two::new(Format::Split);
    two.a.was_interrupted();
    two.core.completions.interrupted(&[A_TX.number], Err(Errno::NOMEM));
    assert!(!two.a.was_interrupted());
    two.round();
    assert!(two.a.was_interrupted(), "it was not tried again");
    two.round();
    assert!(!two.a.was_interrupted(), "it is sent for ever");
}
