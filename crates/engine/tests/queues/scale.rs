//! Cores that join and leave while disks have requests.

use std::time::{Duration, Instant};

use crate::BOTH;
use crate::common::cores::{cpus, engine, event};
use crate::common::disk::{Guest, memory_volume};
use crate::travel::{BLOCKS, Load};
use softdpu_engine::{CoreIndex, EngineError, FromCore};
use softdpu_sched::{Limits, Rate, Share, TenantId};

/// From two cores to one and back.
const SCALINGS: usize = 50;

#[test]
fn cores_leave_and_join_fifty_times_and_no_request_is_lost_doubled_or_reordered() {
    let both = cpus();
    if both[0] == both[1] {
        eprintln!("one CPU: nothing can leave");
        return;
    }
    for format in BOTH {
        let mut engine = engine(Some(Duration::from_micros(20)));
        let mut loads = Vec::new();
        for tenant in 0..4u16 {
            // A volume each: a block has one writer.
            let guest = Guest::new(format);
            let spec = guest.spec(&memory_volume(1 << 20), tenant);
            let key = engine.start_queue(Some(CoreIndex(usize::from(tenant) % 2)), spec).unwrap();
            loads.push((key, Load::new(guest)));
        }
        let deadline = Instant::now() + Duration::from_secs(120);
        let completed = |engine: &softdpu_engine::Engine| -> Vec<u64> {
            engine.cores().map(|(_, counters)| counters.completed.get()).collect()
        };
        for scaling in 0..SCALINGS {
            loads.iter_mut().for_each(|(_, load)| load.fill(scaling as u64));
            // Now the first leaves, now the second.
            let stays = both[scaling % 2];
            assert_eq!(engine.scale(&[stays]).unwrap(), [stays]);
            assert!(loads.iter().all(|(key, _)| engine.core_of(*key) == Some(CoreIndex(0))), "all are on the one left");
            loads.iter_mut().for_each(|(_, load)| (0..BLOCKS / 2).for_each(|_| load.take()));
            loads.iter_mut().for_each(|(_, load)| load.fill(scaling as u64 + 1));
            let joined = engine.scale(&both).unwrap();
            assert_eq!(joined, [stays, both[(scaling + 1) % 2]], "the one that stays keeps its CPU");
            for (place, (key, _)) in loads.iter().enumerate() {
                engine.move_queue(*key, CoreIndex(place % 2)).unwrap();
            }
            let before = completed(&engine);
            loads.iter_mut().for_each(|(_, load)| load.fill(scaling as u64 + 2));
            loads.iter_mut().for_each(|(_, load)| (0..BLOCKS / 2).for_each(|_| load.take()));
            assert_eq!(before.len(), 2);
            assert!(Instant::now() < deadline, "{scaling} of {SCALINGS} scalings within 120 s");
        }
        for (key, load) in &mut loads {
            assert!(load.finish() >= SCALINGS as u64 * BLOCKS);
            load.verify();
            engine.stop_queue(*key, Duration::from_secs(60)).unwrap();
            let abandoned = event(&mut engine, "the queue stops", |event| match event {
                FromCore::Stopped { key: stopped, abandoned, .. } if stopped == *key => Some(abandoned),
                _ => None,
            });
            assert_eq!(abandoned, 0);
        }
    }
}

#[test]
fn what_cannot_be_is_refused_and_nothing_has_changed() {
    let both = cpus();
    let mut engine = engine(Some(Duration::from_micros(20)));
    let cores = |engine: &softdpu_engine::Engine| engine.cores().map(|(cpu, _)| cpu).collect::<Vec<_>>();
    assert!(matches!(engine.scale(&[]), Err(EngineError::NoCores)));
    assert!(matches!(engine.scale(&[both[0], both[0]]), Err(EngineError::Twice(_))));
    assert!(matches!(engine.scale(&[usize::MAX]), Err(EngineError::Pin { .. })));
    let allowed = softdpu_sys::affinity::allowed();
    if let Some(three) = allowed.get(..3) {
        assert!(matches!(engine.scale(three), Err(EngineError::TooManyCores { wanted: 3, most: 2 })));
    }
    assert_eq!(cores(&engine), both);
}

#[test]
fn what_a_tenant_may_have_of_the_node_is_that_of_the_cores_there_are() {
    let both = cpus();
    if both[0] == both[1] {
        eprintln!("one CPU: nothing can leave");
        return;
    }
    let mut engine = engine(Some(Duration::from_micros(20)));
    let tenant = TenantId(0);
    let limits = Limits { requests: Some(Rate { rate: 1_000, burst: 100 }), ..Limits::default() };
    engine.configure_tenant(tenant, Share { guarantee: 300, limits, ..Share::default() });
    let volume = memory_volume(1 << 20);
    let guests: Vec<Guest> = BOTH.into_iter().map(Guest::new).collect();
    for (core, guest) in guests.iter().enumerate() {
        engine.start_queue(Some(CoreIndex(core)), guest.spec(&volume, tenant.0)).unwrap();
    }
    let on = |engine: &softdpu_engine::Engine, core: usize| {
        let share = engine.share_on(tenant, CoreIndex(core)).unwrap();
        (share.limits.requests.unwrap().rate, share.guarantee)
    };
    assert_eq!([0, 1].map(|core| on(&engine, core)), [(500, 300), (500, 300)]);
    engine.scale(&both[..1]).unwrap();
    assert_eq!(on(&engine, 0), (1_000, 300), "all of it on the core that is left");
    assert_eq!(on(&engine, 1).0, 1, "nothing is saved up where it has no queue");
}
