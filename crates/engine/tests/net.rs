//! Frames between two drivers in this process, over real cores.

#[allow(dead_code, reason = "each program of tests uses a part of it")]
mod common;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::cores::{cpus, engine, event};
use common::nic::{HEADER, Nic, PLAIN, RX_SLOT, datagram, tables};
use softdpu_device::net::abi::feature;
use softdpu_engine::{
    CaptureCounts, CaptureSpec, CoreIndex, Counter, Engine, FrameDirection, FromCore, PortCounters, QueueKey, RateLimit,
};
use softdpu_ring::{Format, Position};
use softdpu_sched::{Nanos, TokenBucket};
use softdpu_sys::clock;
use softdpu_vpc::{DropReason, HEAD};

const BOTH: [Format; 2] = [Format::Split, Format::Packed];
const ALL: u64 = u64::MAX;

/// One at a time: drivers here spin, and there may be no more than two CPUs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Two guests of one network on running cores.
struct Pair {
    /// First, so that it goes last where the others are bound.
    _alone: MutexGuard<'static, ()>,
    engine: Engine,
    a: Nic,
    b: Nic,
    /// Receive and transmit queue of each.
    a_keys: [QueueKey; 2],
    b_keys: [QueueKey; 2],
    /// What `b`'s port counts, core by core.
    b_counters: Vec<Arc<PortCounters>>,
}

impl Pair {
    /// Cores sleep after `idle` microseconds.
    fn new(format: Format, idle: u64) -> Pair {
        Pair::with(format, idle, ALL, None)
    }

    /// With some features of `b`'s driver only, and a limit of what `a` sends.
    fn with(format: Format, idle: u64, b_features: u64, limit: Option<RateLimit>) -> Pair {
        let _alone = alone();
        let mut engine = engine(Some(Duration::from_micros(idle)));
        engine.set_tables(&tables());
        let (a, b) = (Nic::new(0, format, ALL), Nic::new(1, format, b_features));
        let a_keys = a.start(&mut engine, limit);
        let (b_counters, b_keys) = b.start_counted(&mut engine);
        Pair { _alone, engine, a, b, a_keys, b_keys, b_counters }
    }
}

/// Stops a pair of queues, with `patience` for what is in flight. Returns where they stopped.
fn stop(engine: &mut Engine, keys: [QueueKey; 2], patience: Duration) -> [Position; 2] {
    keys.map(|key| {
        engine.stop_queue(key, patience).unwrap();
        event(engine, "the queue stops", |event| match event {
            FromCore::Stopped { key: stopped, position, abandoned: 0 } if stopped == key => Some(position),
            _ => None,
        })
    })
}

#[test]
fn a_frame_reaches_the_other_guest_as_it_was_sent() {
    for format in BOTH {
        let Pair { _alone, mut a, mut b, engine: _engine, .. } = Pair::new(format, 50);
        b.give(64);
        for mark in 0..500u32 {
            // Around the head's length, and over several receive buffers.
            let len = 4 + (mark as usize * 37) % 1460;
            let frame = datagram((0, 2), (1, 3), mark, len);
            assert!(a.send(&PLAIN, &frame));
            let (header, found) = b.wait();
            assert_eq!(found, frame, "frame {mark}");
            assert_eq!(header[10..], [1, 0]);
            b.give(1);
        }
    }
}

#[test]
fn when_the_wait_for_tables_is_over_no_core_has_those_before_them() {
    let _alone = alone();
    for sleeps in [None, Some(Duration::from_micros(50))] {
        let engine = engine(sleeps);
        let mut before = tables();
        assert!(engine.set_tables(&before).wait(Duration::from_secs(60)), "cores do not answer");
        for round in 0..50 {
            let next = tables();
            assert!(engine.set_tables(&next).wait(Duration::from_secs(60)), "cores do not answer");
            assert_eq!(Arc::strong_count(&before), 1, "a core still has the tables before round {round}");
            before = next;
        }
    }
}

#[test]
fn a_frame_that_stands_for_many_arrives_whole_over_several_buffers() {
    for format in BOTH {
        let Pair { _alone, mut a, mut b, engine: _engine, .. } = Pair::new(format, 50);
        b.give(64);
        let frame = datagram((0, 2), (1, 3), 7, 60_000);
        // NEEDS_CSUM, GSO_UDP_L4 of 1,400 bytes, the checksum at offset 6 from byte 34.
        let header = [1, 5, 0, 0, 0x78, 0x05, 34, 0, 6, 0, 0, 0];
        assert!(a.send(&header, &frame));
        let (found_header, found) = b.wait();
        assert_eq!(found, frame);
        let buffers = (HEADER + frame.len()).div_ceil(RX_SLOT as usize) as u16;
        assert_eq!(found_header[..2], [1, 5]);
        assert_eq!(found_header[4..10], header[4..10]);
        assert_eq!(found_header[10..], buffers.to_le_bytes());
    }
}

#[test]
fn a_driver_that_takes_no_offload_gets_finished_frames() {
    let without = !(feature::GUEST_CSUM | feature::GUEST_TSO4 | feature::GUEST_USO4 | feature::GUEST_USO6);
    let Pair { _alone, mut a, mut b, engine: _engine, .. } = Pair::with(Format::Split, 50, without, None);
    b.give(64);
    let frame = datagram((0, 2), (1, 3), 7, 4_000);
    assert!(a.send(&[1, 5, 0, 0, 0x78, 0x05, 34, 0, 6, 0, 0, 0], &frame));
    let mut payload = Vec::new();
    for _ in 0..3 {
        let (header, found) = b.wait();
        assert_eq!(header[..2], [header[0] & 2, 0], "nothing is left to do");
        assert!(found.len() <= 42 + 1_400);
        assert_ne!(found[40..42], [0, 0], "the checksum is complete");
        payload.extend_from_slice(&found[42..]);
    }
    assert_eq!(payload, frame[42..]);
}

#[test]
fn networks_with_the_same_addresses_do_not_meet() {
    let _alone = alone();
    let mut engine = engine(Some(Duration::from_micros(50)));
    engine.set_tables(&tables());
    let mut nics: Vec<Nic> = (0..3).map(|port| Nic::new(port, Format::Split, ALL)).collect();
    for nic in &mut nics {
        nic.start(&mut engine, None);
        nic.give(16);
    }
    // To an address that only the other network has, and to one that both have.
    assert!(nics[2].send(&PLAIN, &datagram((2, 2), (1, 3), 1, 64)));
    assert!(nics[1].send(&PLAIN, &datagram((1, 3), (0, 2), 2, 64)));
    assert_eq!(nics[0].wait().1[42..46], 2u32.to_be_bytes());
    std::thread::sleep(Duration::from_millis(20));
    assert!(nics[1].receive().is_none());
    // All that the third one gets is its own gateway's answer that the address is unreachable (ICMP, RFC 792).
    let (_, frame) = nics[2].wait();
    assert_eq!((frame[23], &frame[26..34], frame[34]), (1, &[10, 0, 0, 1, 10, 0, 0, 2][..], 3));
    assert!(nics[2].receive().is_none());
}

#[test]
fn a_receiver_without_buffers_holds_its_sender_for_a_moment_only() {
    let Pair { _alone, mut a, mut b, engine: _engine, .. } = Pair::new(Format::Split, 50);
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut sent = 0u32;
    while sent < 10_000 {
        assert!(Instant::now() < deadline, "{sent} of 10,000 frames are gone within 60 s");
        if a.send(&PLAIN, &datagram((0, 2), (1, 3), sent, 64)) {
            sent += 1;
        } else {
            std::thread::yield_now();
        }
    }
    b.give(1);
    while !a.send(&PLAIN, &datagram((0, 2), (1, 3), 77_777, 64)) {
        assert!(Instant::now() < deadline);
    }
    // What was sent before the buffer came may take it.
    assert!(b.wait().1.len() > 42);
}

#[test]
fn frames_cross_from_core_to_core_while_queues_move() {
    for format in BOTH {
        let Pair { _alone, mut engine, mut a, mut b, a_keys: [_, tx], b_keys: [rx, _], .. } = Pair::new(format, 20);
        b.give(128);
        let (mut sent, mut last, mut got) = (0u32, None, 0u32);
        let deadline = Instant::now() + Duration::from_secs(100);
        for round in 0..200usize {
            engine.move_queue(tx, CoreIndex(round % cpus().len())).unwrap();
            engine.move_queue(rx, CoreIndex(round / 2 % cpus().len())).unwrap();
            // A frame that meets a queue on its way may be lost, as on a wire: more are sent until some have arrived.
            let wanted = got + 8;
            while got < wanted {
                assert!(Instant::now() < deadline, "{got} of {sent} frames arrived within 100 s, in round {round}");
                if a.send(&PLAIN, &datagram((0, 2), (1, 3), sent, 700)) {
                    sent += 1;
                }
                while let Some((_, frame)) = b.receive() {
                    let mark = u32::from_be_bytes(frame[42..46].try_into().unwrap());
                    assert_eq!(frame, datagram((0, 2), (1, 3), mark, 700));
                    assert!(last != Some(mark), "frame {mark} twice");
                    last = Some(mark);
                    got += 1;
                    b.give(1);
                }
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn frames_arrive_once_while_cores_leave_and_join() {
    let both = cpus();
    if both[0] == both[1] {
        eprintln!("one CPU: nothing can leave");
        return;
    }
    for format in BOTH {
        let Pair { _alone, mut engine, mut a, mut b, a_keys: [_, tx], b_keys: [rx, _], .. } = Pair::new(format, 20);
        b.give(128);
        let (mut sent, mut arrived, mut got) = (0u32, HashSet::new(), 0u32);
        let deadline = Instant::now() + Duration::from_secs(100);
        for round in 0..50usize {
            engine.scale(&both[round % 2..][..1]).unwrap();
            let wanted = got + 8;
            while got < wanted + 8 {
                assert!(Instant::now() < deadline, "{got} of {sent} frames arrived within 100 s, in round {round}");
                if got == wanted && engine.cores().count() == 1 {
                    engine.scale(&both).unwrap();
                    engine.move_queue(tx, CoreIndex(round % 2)).unwrap();
                    engine.move_queue(rx, CoreIndex((round + 1) % 2)).unwrap();
                }
                if a.send(&PLAIN, &datagram((0, 2), (1, 3), sent, 700)) {
                    sent += 1;
                }
                if let Some((_, frame)) = b.receive() {
                    let mark = u32::from_be_bytes(frame[42..46].try_into().unwrap());
                    assert_eq!(frame, datagram((0, 2), (1, 3), mark, 700));
                    // Those that meet both queues on their way may be lost, or overtake one another.
                    assert!(arrived.insert(mark), "frame {mark} twice, in round {round}");
                    got += 1;
                    b.give(1);
                }
                std::thread::yield_now();
            }
        }
    }
}

#[test]
fn a_frame_for_another_core_is_copied_once() {
    for format in BOTH {
        let Pair { _alone, mut engine, mut a, mut b, a_keys: [_, tx], b_keys: [rx, _], b_counters: counters } =
            Pair::new(format, 20);
        engine.move_queue(tx, CoreIndex(0)).unwrap();
        engine.move_queue(rx, CoreIndex(1)).unwrap();
        b.give(128);
        let (mut bytes, mut heads) = (0, 0);
        for mark in 0..500u32 {
            let frame = datagram((0, 2), (1, 3), mark, 4 + (mark as usize * 37) % 1460);
            // Of 64 slots, all come back again and again.
            assert!(a.send(&PLAIN, &frame), "{format:?}: chains do not come back");
            assert_eq!(b.wait().1, frame, "{format:?}: frame {mark}");
            b.give(1);
            bytes += frame.len() as u64;
            heads += frame.len().min(HEAD) as u64;
        }
        let sum = |of: fn(&PortCounters) -> &Counter| counters.iter().map(|core| of(core).get()).sum::<u64>();
        // The last frame's counts may be on their way still.
        let deadline = Instant::now() + Duration::from_secs(20);
        while sum(|port| &port.copied_heads) < 2 * heads || sum(|port| &port.copied) < bytes {
            assert!(Instant::now() < deadline, "{format:?}: not all copies are counted");
            std::thread::yield_now();
        }
        let copies = (sum(|port| &port.copied), sum(|port| &port.copied_again));
        assert_eq!(copies, (bytes, 0), "{format:?}");
        // Out of the sender's memory, and with the frame for the other core.
        assert_eq!(sum(|port| &port.copied_heads), 2 * heads, "{format:?}");
    }
}

#[test]
fn a_pair_across_cores_is_stopped_again_and_again_under_load() {
    for format in BOTH {
        let Pair { _alone, mut engine, mut a, mut b, a_keys: mut keys, b_keys: [rx, _], .. } = Pair::new(format, 20);
        engine.move_queue(rx, CoreIndex(1)).unwrap();
        b.give(128);
        let (mut sent, mut next) = (0u32, 0u32);
        for round in 0..100 {
            for key in keys {
                engine.move_queue(key, CoreIndex(0)).unwrap();
            }
            for _ in 0..40 {
                if a.send(&PLAIN, &datagram((0, 2), (1, 3), sent, 1400)) {
                    sent += 1;
                }
            }
            // Every third time those that are away are not waited for, but asked for.
            let patience = if round % 3 == 0 { Duration::ZERO } else { Duration::from_secs(60) };
            let positions = stop(&mut engine, keys, patience);
            keys = a.restart(&mut engine, positions);
            // None is lost, as there is room for all; those that were away may come twice.
            let deadline = Instant::now() + Duration::from_secs(20);
            while next < sent {
                assert!(Instant::now() < deadline, "{format:?}: frame {next} of {sent} not within 20 s, round {round}");
                let Some((_, frame)) = b.receive() else {
                    std::thread::yield_now();
                    continue;
                };
                let mark = u32::from_be_bytes(frame[42..46].try_into().unwrap());
                assert_eq!(frame, datagram((0, 2), (1, 3), mark, 1400), "{format:?}: frame {mark}");
                assert!(mark <= next, "{format:?}: frame {next} is missing");
                next = next.max(mark + 1);
                b.give(1);
            }
        }
        assert!(sent > 1000, "{format:?}: only {sent} frames were sent");
    }
}

#[test]
fn a_rate_limit_holds() {
    let limit = RateLimit::new(Some(TokenBucket::new(2_000, 100, Nanos(clock::now()))), None);
    let Pair { _alone, mut a, mut b, engine: _engine, .. } = Pair::with(Format::Split, 20, ALL, Some(limit));
    b.give(128);
    let start = Instant::now();
    let (mut sent, mut got) = (0u32, 0u32);
    while got < 600 {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{got} of 600 frames within 20 s of a limit of 2,000 a second"
        );
        if a.send(&PLAIN, &datagram((0, 2), (1, 3), sent, 64)) {
            sent += 1;
        }
        while b.receive().is_some() {
            got += 1;
            b.give(1);
        }
    }
    let most = 100 + (2_000.0 * start.elapsed().as_secs_f64()) as u32 + 64;
    assert!(got <= most, "{got} frames in {:?}: the limit is {most}", start.elapsed());
    assert!(start.elapsed() >= Duration::from_millis(200), "600 frames in {:?}", start.elapsed());
}

#[test]
fn what_a_guest_receives_beyond_its_limit_is_dropped_and_no_sender_waits() {
    const SENT: u64 = 500;
    let _alone = alone();
    let mut engine = engine(Some(Duration::from_micros(50)));
    engine.set_tables(&tables());
    let (mut a, mut b) = (Nic::new(0, Format::Split, ALL), Nic::new(1, Format::Split, ALL));
    let start = Instant::now();
    b.receive_limit = Some(RateLimit::new(Some(TokenBucket::new(1, 20, Nanos(clock::now()))), None));
    a.start(&mut engine, None);
    let (counters, _) = b.start_counted(&mut engine);
    b.give(128);
    let count = |of: fn(&PortCounters) -> u64| counters.iter().map(|core| of(core)).sum::<u64>();
    let (mut sent, mut went, mut policed) = (0, 0, 0);
    while sent < SENT || went + policed < SENT {
        assert!(start.elapsed() < Duration::from_secs(20), "{sent} sent, {went} received, {policed} dropped in 20 s");
        if sent < SENT && a.send(&PLAIN, &datagram((0, 2), (1, 3), sent as u32, 64)) {
            sent += 1;
        }
        (went, policed) =
            (count(|port| port.frames_out.get()), count(|port| port.dropped_out[DropReason::Policed as usize].get()));
    }
    let most = 21 + start.elapsed().as_secs();
    assert!((20..=most).contains(&went), "{went} of {SENT} frames");
    assert_eq!(count(|port| port.held.get()), 0);
    for mark in 0..20u32 {
        assert_eq!(b.wait().1[42..46], mark.to_be_bytes(), "those that came first");
    }
}

#[test]
fn a_stopped_pair_goes_on_with_the_buffers_it_had() {
    for format in BOTH {
        let Pair { _alone, mut engine, mut a, mut b, b_keys: mut keys, .. } = Pair::new(format, 50);
        b.give(100);
        for mark in 0..90u32 {
            assert!(a.send(&PLAIN, &datagram((0, 2), (1, 3), mark, 64)));
            assert_eq!(b.wait().1[42..46], mark.to_be_bytes());
            let positions = stop(&mut engine, keys, Duration::from_secs(60));
            keys = b.restart(&mut engine, positions);
            // Behind it in the cores' mailboxes: what comes for queues that are not there yet is dropped.
            assert!(engine.set_tables(&tables()).wait(Duration::from_secs(60)), "a core does not answer");
        }
    }
}

/// Everything at both guests' ports, with room for `buffer` bytes.
fn everything(buffer: usize) -> CaptureSpec {
    let ports = vec!["nic0".to_owned(), "nic1".to_owned()];
    CaptureSpec {
        ports,
        filter: None,
        inward: true,
        outward: true,
        drops: false,
        tiers: false,
        snaplen: 1 << 18,
        buffer,
    }
}

#[test]
fn frames_are_captured_as_they_come_in_and_as_they_leave() {
    for format in BOTH {
        let Pair { _alone, mut a, mut b, engine, .. } = Pair::new(format, 50);
        b.give(64);
        let capture = engine.capture(everything(1 << 20)).unwrap();
        let mut found = Vec::new();
        let mut sent = Vec::new();
        for mark in 0..20u32 {
            let frame = datagram((0, 2), (1, 3), mark, 4 + mark as usize * 70);
            assert!(a.send(&PLAIN, &frame));
            b.wait();
            b.give(1);
            sent.extend([
                ("nic0".to_owned(), FrameDirection::In, frame.clone()),
                ("nic1".to_owned(), FrameDirection::Out, frame),
            ]);
        }
        let deadline = Instant::now() + Duration::from_secs(20);
        while found.len() < sent.len() {
            assert!(Instant::now() < deadline, "{} of {} captured", found.len(), sent.len());
            while let Some(batch) = capture.take() {
                for frame in &batch.frames {
                    assert_eq!((frame.dropped, frame.len as usize), (None, batch.bytes(frame).len()));
                    found.push((frame.port.to_string(), frame.direction, batch.bytes(frame).to_vec()));
                }
            }
        }
        assert!(found == sent, "not what was sent");
        let counts = capture.counts();
        assert_eq!(counts["nic1"], CaptureCounts { seen: 20, matched: 20, lost: 0 });
    }
}

#[test]
fn cores_do_not_wait_for_the_reader_of_a_capture() {
    let Pair { _alone, mut a, mut b, engine, .. } = Pair::new(Format::Split, 50);
    b.give(64);
    let capture = engine.capture(everything(20_000)).unwrap();
    let mut pass = |mark| {
        assert!(a.send(&PLAIN, &datagram((0, 2), (1, 3), mark, 1000)));
        b.wait();
        b.give(1);
    };
    (0..100).for_each(&mut pass);
    // The last frame's counts may be on their way still.
    let deadline = Instant::now() + Duration::from_secs(20);
    while capture.counts()["nic1"].seen < 100 {
        assert!(Instant::now() < deadline, "{:?}", capture.counts());
    }
    let frames: usize = std::iter::from_fn(|| capture.take()).map(|batch| batch.frames.len()).sum();
    let sum = |count: fn(&CaptureCounts) -> u64| capture.counts().values().map(count).sum::<u64>();
    assert!(frames > 0 && sum(|count| count.lost) > 0, "{:?}", capture.counts());
    assert_eq!(sum(|count| count.matched), 200);
    assert_eq!(sum(|count| count.lost) + frames as u64, 200);
    // There is room again; and when the reader has gone, frames go on too.
    (0..10).for_each(&mut pass);
    drop(capture);
    (0..10).for_each(&mut pass);
}
