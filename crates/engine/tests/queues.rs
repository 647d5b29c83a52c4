//! Real cores, a driver in this process: what a queue may rely on.

#[allow(dead_code, reason = "each program of tests uses a part of it")]
mod common;

#[path = "queues/give_up.rs"]
mod give_up;
#[path = "queues/scale.rs"]
mod scale;
#[path = "queues/travel.rs"]
mod travel;

use std::time::{Duration, Instant};

use common::cores::{engine, engine_that, event};
use common::disk::{Guest, memory_volume};
use softdpu_engine::{CoreIndex, FromCore};
use softdpu_ring::Format;
use softdpu_sched::{Nanos, Share, TenantId, YieldPolicy, YieldTuning};

const BOTH: [Format; 2] = [Format::Split, Format::Packed];

#[test]
fn what_was_written_is_read_back() {
    for format in BOTH {
        let mut engine = engine(Some(Duration::from_micros(50)));
        let volume = memory_volume(1 << 20);
        let mut guest = Guest::new(format);
        engine.start_queue(None, guest.spec(&volume, 0)).unwrap();
        for sector in 0..100u64 {
            assert!(guest.submit(Some(&[sector as u8; 512]), sector));
            guest.publish();
            assert_eq!(guest.wait().0, 0, "write of sector {sector}");
        }
        for sector in 0..100u64 {
            assert!(guest.submit(None, sector));
            guest.publish();
            let (status, data) = guest.wait();
            assert_eq!((status, data), (0, vec![sector as u8; 512]), "read of sector {sector}");
        }
    }
}

#[test]
fn a_sleeping_core_misses_no_kick() {
    // A kick that were missed would be noticed when the slice is over: in the end that is in a minute.
    let longest = Nanos(60_000_000_000);
    let adaptive = YieldTuning { threshold: 1, least: 1, most: 1, slice: longest, longest, spin: longest };
    let expiring = YieldTuning { slice: Nanos(5_000), ..adaptive };
    let policies = [YieldPolicy::After(Nanos(0)), YieldPolicy::Adaptive(adaptive), YieldPolicy::Adaptive(expiring)];
    for (format, policy) in BOTH.into_iter().flat_map(|format| policies.map(|policy| (format, policy))) {
        let mut engine = engine_that(policy);
        let volume = memory_volume(1 << 20);
        let mut guest = Guest::new(format);
        let spec = guest.spec(&volume, 0);
        engine.start_queue(Some(CoreIndex(1)), spec).unwrap();
        let mut pause = Duration::ZERO;
        for round in 0..1_000 {
            assert!(guest.submit(None, round % 100));
            guest.publish();
            assert_eq!(guest.wait().0, 0);
            // Sweep the moment of the next kick over the time the core takes to fall asleep.
            let until = Instant::now() + pause;
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            pause = if pause > Duration::from_micros(60) { Duration::ZERO } else { pause + Duration::from_nanos(137) };
        }
    }
}

#[test]
fn a_queue_moves_a_thousand_times_under_load_and_nothing_is_lost_or_doubled() {
    for format in BOTH {
        let mut engine = engine(Some(Duration::from_micros(20)));
        let volume = memory_volume(1 << 20);
        let mut guest = Guest::new(format);
        let key = engine.start_queue(Some(CoreIndex(0)), guest.spec(&volume, 0)).unwrap();
        let (mut written, mut completed) = (0u64, 0u64);
        let deadline = Instant::now() + Duration::from_secs(120);
        for round in 0..1_000u64 {
            engine.move_queue(key, CoreIndex((round % 2) as usize)).unwrap();
            // The guest checks that no completion comes twice; here that each one comes.
            while guest.submit(Some(&[written as u8; 512]), written % 1024) {
                written += 1;
            }
            guest.publish();
            for _ in 0..8 {
                assert_eq!(guest.wait().0, 0);
                completed += 1;
            }
            assert!(Instant::now() < deadline, "{round} of 1000 moves within 120 s");
        }
        while guest.outstanding() > 0 {
            assert_eq!(guest.wait().0, 0);
            completed += 1;
        }
        assert_eq!(written, completed);
        // The last write to each sector is what is there, so none was run late or out of order.
        for sector in (written - 512..written).map(|n| n % 1024) {
            let last = (0..written).rev().find(|n| n % 1024 == sector).unwrap();
            assert!(guest.submit(None, sector));
            guest.publish();
            assert_eq!(guest.wait(), (0, vec![last as u8; 512]), "sector {sector}");
        }
    }
}

#[test]
fn two_busy_tenants_on_one_core_are_given_a_core_each() {
    let mut engine = engine(Some(Duration::from_micros(20)));
    let volume = memory_volume(1 << 20);
    let mut guests = [Guest::new(Format::Split), Guest::new(Format::Packed)];
    let keys: Vec<_> = guests
        .iter()
        .enumerate()
        .map(|(tenant, guest)| {
            engine.configure_tenant(TenantId(tenant as u16), Share::default());
            engine.start_queue(Some(CoreIndex(0)), guest.spec(&volume, tenant as u16)).unwrap()
        })
        .collect();
    let start = Instant::now();
    let mut busy = || {
        for guest in &mut guests {
            for round in 0..200 {
                assert!(guest.submit(None, round % 100));
                guest.publish();
                assert_eq!(guest.wait().0, 0);
            }
        }
        Nanos(start.elapsed().as_nanos() as u64)
    };
    assert_eq!(engine.balance(busy(), |_, _| true), [], "queues that are pinned stay");
    let moved = engine.balance(busy(), |_, _| false);
    assert!(matches!(moved[..], [(key, CoreIndex(1))] if keys.contains(&key)), "{moved:?}");
    let mut cores: Vec<_> = keys.iter().map(|key| engine.core_of(*key).unwrap().0).collect();
    cores.sort_unstable();
    assert_eq!(cores, [0, 1]);
    // Both are served where they are now, and stay there.
    assert_eq!(engine.balance(busy(), |_, _| false), []);
}

#[test]
fn a_stopped_queue_tells_where_it_stands_and_goes_on_from_there() {
    for format in BOTH {
        let mut engine = engine(None);
        let volume = memory_volume(1 << 20);
        let mut guest = Guest::new(format);
        let mut spec = guest.spec(&volume, 0);
        for round in 0..20u64 {
            let key = engine.start_queue(None, spec).unwrap();
            for n in 0..7 {
                assert!(guest.submit(Some(&[n as u8; 512]), round * 7 + n));
            }
            guest.publish();
            for _ in 0..7 {
                assert_eq!(guest.wait().0, 0);
            }
            engine.stop_queue(key, Duration::from_secs(60)).unwrap();
            let (position, abandoned) = event(&mut engine, "the queue stops", |event| match event {
                FromCore::Stopped { key: stopped, position, abandoned } if stopped == key => {
                    Some((position, abandoned))
                }
                _ => None,
            });
            assert_eq!(abandoned, 0);
            // Nothing is taken while it is stopped.
            assert!(guest.submit(None, 0));
            guest.publish();
            std::thread::sleep(Duration::from_millis(2));
            assert!(guest.take().is_none());
            spec = guest.spec_at(&volume, 0, position, None);
            let key = engine.start_queue(None, spec).unwrap();
            assert_eq!(guest.wait().0, 0);
            engine.stop_queue(key, Duration::from_secs(60)).unwrap();
            let position = event(&mut engine, "the queue stops again", |event| match event {
                FromCore::Stopped { position, .. } => Some(position),
                _ => None,
            });
            spec = guest.spec_at(&volume, 0, position, None);
        }
    }
}

#[test]
fn a_request_outside_the_disk_fails_alone() {
    let mut engine = engine(None);
    let volume = memory_volume(1 << 20);
    let mut guest = Guest::new(Format::Split);
    let spec = guest.spec(&volume, 0);
    let counters = spec.counters.clone();
    engine.start_queue(None, spec).unwrap();
    assert!(guest.submit(None, 1 << 40));
    assert!(guest.submit(None, 1));
    guest.publish();
    let statuses = [guest.wait().0, guest.wait().0];
    assert_eq!(statuses, [1, 0], "VIRTIO_BLK_S_IOERR, then VIRTIO_BLK_S_OK");
    // Counted a moment after the guest was told.
    let deadline = Instant::now() + Duration::from_secs(20);
    while counters.errors.get() < 1 {
        assert!(Instant::now() < deadline, "the error is not counted");
        std::thread::yield_now();
    }
    assert_eq!(counters.errors.get(), 1);
}
