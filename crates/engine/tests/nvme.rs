//! NVMe queue pairs on real cores, with a host in this process.

#[allow(dead_code, reason = "each program of tests uses a part of it")]
mod common;

use std::sync::Arc;
use std::time::Duration;

use common::cores::{engine, event};
use common::disk::memory_volume;
use common::nvme::{NvmeHost, SHADOW, op};
use softdpu_engine::{CoreIndex, Engine, FromCore, QueueKey, QueueUpdate};
use softdpu_ring::nvme::Doorbells;
use softdpu_sched::{Share, TenantId};

const COMPARE_FAILURE: u16 = 2 << 8 | 0x85 | 1 << 14;
const LBA_RANGE: u16 = 0x80 | 1 << 14;

/// CDW10 and CDW12 of `blocks` blocks from `lba`.
fn range(lba: u32, blocks: u32) -> [(usize, u32); 2] {
    [(10, lba), (12, blocks - 1)]
}

fn stop(engine: &mut Engine, key: QueueKey) -> u16 {
    engine.stop_queue(key, Duration::from_secs(60)).unwrap();
    event(engine, "the pair stops", |event| match event {
        FromCore::Stopped { key: stopped, abandoned, .. } if stopped == key => Some(abandoned),
        _ => None,
    })
}

#[test]
fn every_command_does_what_it_says() {
    let mut engine = engine(Some(Duration::from_micros(50)));
    let volumes = [memory_volume(1 << 20), memory_volume(2 << 20)];
    let mut host = NvmeHost::new(&volumes);
    engine.start_queue(None, host.spec(0, false)).unwrap();
    for lba in 0..50 {
        assert_eq!(host.run(op::WRITE, 1, &range(lba, 1), &[lba as u8 + 1; 512]).0, 0);
        assert_eq!(host.run(op::WRITE, 2, &range(lba, 1), &[lba as u8 + 101; 512]).0, 0);
    }
    for lba in 0..50 {
        assert_eq!(host.run(op::READ, 1, &range(lba, 1), &[]), (0, vec![lba as u8 + 1; 512]));
        assert_eq!(host.run(op::READ, 2, &range(lba, 1), &[]), (0, vec![lba as u8 + 101; 512]), "its own volume");
    }
    for nsid in [1, 2, !0] {
        assert_eq!(host.run(op::FLUSH, nsid, &[], &[]).0, 0);
    }
    assert_eq!(host.run(op::COMPARE, 1, &range(7, 1), &[8; 512]).0, 0);
    assert_eq!(host.run(op::COMPARE, 1, &range(7, 1), &[9; 512]).0, COMPARE_FAILURE);
    let nearly = [&[8; 511][..], &[9]].concat();
    assert_eq!(host.run(op::COMPARE, 1, &range(7, 1), &nearly).0, COMPARE_FAILURE, "to the last byte");
    assert_eq!(host.run(op::VERIFY, 1, &range(0, 1024), &[]).0, 0);
    assert_eq!(host.run(op::ZEROES, 1, &range(7, 2), &[]).0, 0);
    assert_eq!(host.run(op::READ, 1, &range(7, 1), &[]), (0, vec![0; 512]));
    assert_eq!(host.run(op::READ, 1, &range(9, 1), &[]), (0, vec![10; 512]), "what is beside it stays");
    // Ranges that are not neighbours: several requests, one completion.
    let ranges: Vec<u8> = [(1_u32, 20_u64), (2, 30), (1, 40)]
        .iter()
        .flat_map(|(blocks, lba)| [&[0; 4][..], &blocks.to_le_bytes(), &lba.to_le_bytes()].concat())
        .collect();
    assert_eq!(host.run(op::DATASET, 1, &[(10, 2), (11, 4)], &ranges).0, 0);
    assert_eq!(host.run(op::READ, 1, &range(21, 1), &[]), (0, vec![22; 512]));
    assert_eq!(host.run(op::READ, 1, &range(2048, 1), &[]).0, LBA_RANGE);
    assert_eq!(host.run(0x15, 1, &[], &[]).0, 1 | 1 << 14);
    assert_eq!(host.outstanding(), 0);
}

#[test]
fn a_sleeping_core_misses_no_doorbell_with_and_without_shadows() {
    for is_shadow in [false, true] {
        let mut engine = engine(Some(Duration::ZERO));
        let mut host = NvmeHost::new(&[memory_volume(1 << 20)]);
        if is_shadow {
            host.use_shadow();
        }
        engine.start_queue(Some(CoreIndex(1)), host.spec(0, false)).unwrap();
        for round in 0..1_500 {
            assert_eq!(host.run(op::READ, 1, &range(round % 100, 1), &[]).0, 0, "round {round}");
            // Sweep the moment of the next doorbell over the time that the core takes to fall asleep.
            (0..round % 300 * 20).for_each(|_| std::hint::spin_loop());
        }
    }
}

#[test]
fn a_pair_moves_under_load_and_nothing_is_lost_or_doubled() {
    let mut engine = engine(Some(Duration::from_micros(20)));
    let mut host = NvmeHost::new(&[memory_volume(1 << 20)]);
    host.use_shadow();
    let key = engine.start_queue(Some(CoreIndex(0)), host.spec(0, false)).unwrap();
    let mut written = 0_u32;
    for round in 0..300 {
        engine.move_queue(key, CoreIndex(round % 2)).unwrap();
        while host.submit(op::WRITE, 1, &range(written % 1024, 1), &[written as u8; 512]).is_some() {
            written += 1;
        }
        host.publish();
        for _ in 0..8 {
            assert_eq!(host.wait().1, 0);
        }
    }
    while host.outstanding() > 0 {
        assert_eq!(host.wait().1, 0);
    }
    for lba in 0..100 {
        let last = (0..written).rev().find(|n| n % 1024 == lba).unwrap();
        assert_eq!(host.run(op::READ, 1, &range(lba, 1), &[]), (0, vec![last as u8; 512]), "block {lba}");
    }
}

#[test]
fn a_pair_that_was_stopped_goes_on_from_its_record() {
    for is_shadow in [false, true] {
        let mut engine = engine(Some(Duration::from_micros(50)));
        let mut host = NvmeHost::new(&[memory_volume(1 << 20)]);
        if is_shadow {
            host.use_shadow();
        }
        let mut key = engine.start_queue(None, host.spec(0, false)).unwrap();
        for round in 0..40_u32 {
            for n in 0..7 {
                host.submit(op::WRITE, 1, &range(round * 7 + n, 1), &[round as u8; 512]).unwrap();
            }
            host.publish();
            assert_eq!(stop(&mut engine, key), 0);
            // What was not taken is still in the queue, and what was taken is complete.
            host.submit(op::READ, 1, &range(0, 1), &[]).unwrap();
            host.publish();
            key = engine.start_queue(None, host.spec(0, true)).unwrap();
            while host.outstanding() > 0 {
                assert_eq!(host.wait().1, 0);
            }
        }
        assert_eq!(host.run(op::READ, 1, &range(39 * 7 + 6, 1), &[]), (0, vec![39; 512]));
    }
}

#[test]
fn a_pair_is_served_by_the_next_process_with_what_was_in_flight() {
    let volume = memory_volume(1 << 20);
    let mut host = NvmeHost::new(&[Arc::clone(&volume)]);
    for round in 0..20_u32 {
        let mut engine = engine(Some(Duration::from_micros(50)));
        engine.start_queue(None, host.spec(0, round > 0)).unwrap();
        for n in 0..30 {
            host.submit(op::WRITE, 1, &range(round * 30 + n, 1), &[round as u8 + 1; 512]).unwrap();
        }
        host.publish();
        // The engine ends with whatever is in flight.
        drop(engine);
        while host.take().is_some() {}
    }
    let mut engine = engine(None);
    engine.start_queue(None, host.spec(0, true)).unwrap();
    while host.outstanding() > 0 {
        assert_eq!(host.wait().1, 0);
    }
    for round in 0..20_u32 {
        assert_eq!(host.run(op::READ, 1, &range(round * 30 + 29, 1), &[]), (0, vec![round as u8 + 1; 512]));
    }
}

#[test]
fn a_tail_that_makes_no_sense_breaks_its_pair_with_a_reason_and_no_other() {
    let mut engine = engine(Some(Duration::from_micros(50)));
    let volume = memory_volume(1 << 20);
    let (mut good, bad) = (NvmeHost::new(&[Arc::clone(&volume)]), NvmeHost::new(&[volume]));
    engine.start_queue(Some(CoreIndex(0)), good.spec(0, false)).unwrap();
    let key = engine.start_queue(Some(CoreIndex(0)), bad.spec(0, false)).unwrap();
    bad.driver.force(true, 0x1_0003);
    bad.memory.kick.ring();
    let reason = event(&mut engine, "the pair breaks", |event| match event {
        FromCore::Broken { key: broken, reason } if broken == key => Some(reason),
        _ => None,
    });
    assert_eq!(reason, "the submission queue tail of queue 1 went from 0 to 65539; the queue has 256 entries");
    assert_eq!(good.run(op::READ, 1, &range(0, 1), &[]).0, 0);
    assert_eq!(stop(&mut engine, key), 0);
}

#[test]
fn shadow_doorbells_can_be_configured_while_the_pair_runs() {
    let mut engine = engine(Some(Duration::from_micros(20)));
    let mut host = NvmeHost::new(&[memory_volume(1 << 20)]);
    let key = engine.start_queue(None, host.spec(0, false)).unwrap();
    for _ in 0..10 {
        assert_eq!(host.run(op::READ, 1, &range(0, 1), &[]).0, 0);
    }
    let token = engine.update_queue(key, QueueUpdate::Shadow(SHADOW)).unwrap();
    event(&mut engine, "the update took effect", |event| match event {
        FromCore::Updated { token: found, .. } if found == token => Some(()),
        _ => None,
    });
    host.use_shadow();
    for round in 0..600 {
        assert_eq!(host.run(op::READ, 1, &range(0, 1), &[]).0, 0, "round {round}");
    }
    let register = Doorbells::new(softdpu_memory::Window::of_mapping(Arc::clone(&host.doorbells))).unwrap();
    register.store(2, 9999);
    assert_eq!(host.run(op::READ, 1, &range(0, 1), &[]).0, 0, "the register has no say any more");
}

#[test]
fn without_interrupts_a_host_polls() {
    let mut engine = engine(None);
    let mut host = NvmeHost::new(&[memory_volume(1 << 20)]);
    host.interrupts = false;
    let spec = host.spec(0, false);
    let counters = Arc::clone(&spec.counters);
    engine.start_queue(None, spec).unwrap();
    for n in 0..20 {
        host.submit(op::WRITE, 1, &range(n, 1), &[1; 512]).unwrap();
    }
    host.publish();
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let mut done = 0;
    while done < 20 {
        done += usize::from(host.take().is_some());
        assert!(std::time::Instant::now() < deadline, "{done} of 20 completions within 20 s");
    }
    assert_eq!((counters.interrupts.get(), counters.writes.get(), counters.bytes_written.get()), (0, 20, 20 * 512));
}

#[test]
fn pairs_share_a_core_with_tenants_and_are_accounted_by_their_bytes() {
    let mut engine = engine(Some(Duration::from_micros(20)));
    let volume = memory_volume(1 << 20);
    let mut hosts = [NvmeHost::new(&[Arc::clone(&volume)]), NvmeHost::new(&[volume])];
    let mut keys = Vec::new();
    for (tenant, host) in (0..).zip(&hosts) {
        engine.configure_tenant(TenantId(tenant), Share::default());
        keys.push(engine.start_queue(Some(CoreIndex(0)), host.spec(tenant, false)).unwrap());
    }
    for _ in 0..50 {
        for host in &mut hosts {
            assert_eq!(host.run(op::READ, 1, &range(0, 8), &[]).0, 0);
        }
    }
    // A grant is charged after its completions are visible.
    for key in keys {
        assert_eq!(stop(&mut engine, key), 0);
    }
    for tenant in 0..2 {
        let counters = engine.tenant(TenantId(tenant));
        let served: u64 = counters.iter().map(|core| core.served.get()).sum();
        let bytes: u64 = counters.iter().map(|core| core.bytes.get()).sum();
        assert_eq!((served, bytes), (50, 50 * 4096), "tenant {tenant}");
    }
}
