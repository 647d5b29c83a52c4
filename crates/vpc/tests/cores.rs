//! What packets of flows do without: cores that forward at once take no lock that they share.
//!
//! Locks are counted where they are taken, in builds with debug assertions. What cores share beside them is written by
//! whoever has taken one, or belongs to one core of several (counts of ECMP members).
#![cfg(debug_assertions)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use softdpu_vpc::policy::{Ports, Service};
use softdpu_vpc::spec::{Measure, MeterAlgorithm, MeterSpec, Rate, RulePeer, SecurityGroupSpec, SecurityRule, Spec};
use softdpu_vpc::{PortId, Tables, Verdict, Vpc};

const BURST: usize = 32;
const MILLI: u64 = 1_000_000;

/// Red's guests 1 and 2 are in a group that takes datagrams from all, and share a meter of so many bytes a second.
fn site(rate: u64) -> Spec {
    let mut spec = spec(Family::V4, 1);
    let service = SecurityRule { peer: RulePeer::Any, service: Service::udp(Ports::ALL) };
    spec.networks[0].policy.groups =
        vec![SecurityGroupSpec { name: "all".into(), ingress: vec![service], egress: None }];
    let limit = Rate { rate, burst: rate / 100 };
    let (name, measure) = ("tenant".to_owned(), Measure::Bytes);
    spec.meters =
        vec![MeterSpec { name, algorithm: MeterAlgorithm::Rfc2698, measure, committed: limit, second: limit }];
    for one in spec.endpoints.iter_mut().filter(|one| one.network == "red" && [mac(1), mac(2)].contains(&one.mac)) {
        (one.policy.groups, one.policy.meters) = (vec!["all".into()], vec!["tenant".into()]);
    }
    spec
}

/// Which way packets of the connection go.
#[derive(Clone, Copy)]
enum Way {
    Forth,
    Back,
}

impl Way {
    fn burst(self) -> Vec<softdpu_vpc::Packet> {
        let (port, from, source, destination): (PortId, _, _, _) = match self {
            Way::Forth => (RED_1, mac(1), "10.0.0.2", "10.0.0.3"),
            Way::Back => (RED_2, mac(2), "10.0.0.3", "10.0.0.2"),
        };
        // The same port at both ends: the two ways are one connection.
        let mut frame = udp(from, GATEWAY, source, destination);
        frame[34..38].copy_from_slice(&[0x12, 0x34, 0x12, 0x34]);
        vec![packet(port, &frame); BURST]
    }
}

/// How many of a burst pass.
fn passed(vpc: &mut Vpc, now: u64, way: Way) -> usize {
    let mut verdicts = Vec::new();
    vpc.forward(now, &mut way.burst(), &mut verdicts);
    verdicts.iter().filter(|verdict| matches!(verdict, Verdict::Local { .. })).count()
}

/// Two cores that know a connection of two guests, one each way, and have tokens of their meter.
fn cores(tables: &Arc<Tables>) -> [Vpc; 2] {
    let mut cores = [(); 2].map(|()| Vpc::new(Arc::clone(tables)));
    for _ in 0..2 {
        for (core, way) in cores.iter_mut().zip([Way::Forth, Way::Back]) {
            assert_eq!(passed(core, MILLI, way), BURST);
        }
    }
    cores
}

#[test]
fn packets_of_a_metered_connection_take_no_lock_on_either_core() {
    let tables = build(&site(12_500_000_000));
    let mut cores = cores(&tables);
    let (stats, policy) = tables.connection_stats().expect("groups");
    assert_eq!((stats, policy.opened), (1, 1), "both ways are one connection");
    let before = tables.locks_taken();
    std::thread::scope(|scope| {
        for (core, way) in cores.iter_mut().zip([Way::Forth, Way::Back]) {
            scope.spawn(move || {
                // 19,200 packets in 60 ms, by when neither the lease nor what the connection lets pass has ended.
                for at in 0..600 {
                    assert_eq!(passed(core, MILLI + at * MILLI / 10, way), BURST);
                }
            });
        }
    });
    assert_eq!(tables.locks_taken() - before, 0);
}

#[test]
fn over_a_second_locks_are_taken_some_times_for_each_connection_and_meter() {
    let tables = build(&site(12_500_000_000));
    let mut cores = cores(&tables);
    let before = tables.locks_taken();
    for at in 0..20_000 {
        for (core, way) in cores.iter_mut().zip([Way::Forth, Way::Back]) {
            assert_eq!(passed(core, MILLI + at * MILLI / 20, way), BURST);
        }
    }
    // Each core: a lease ends and begins some 16 times, and a flow asks for its connection some 16 times, a burst of
    // packets together or one by one. That is for 1,280,000 packets.
    let taken = tables.locks_taken() - before;
    assert!((30..2_000).contains(&taken), "{taken}");
}

#[test]
fn packets_beyond_a_rate_take_the_meters_lock() {
    // That it is counted: a meter so slow that it leases nothing.
    let tables = build(&site(1_000_000));
    let mut core = Vpc::new(Arc::clone(&tables));
    passed(&mut core, MILLI, Way::Forth);
    let before = tables.locks_taken();
    for at in 0..100 {
        passed(&mut core, MILLI + at, Way::Forth);
    }
    assert!(tables.locks_taken() - before >= 100);
}

#[test]
fn cores_at_once_pass_what_one_meter_may() {
    let rate = 125_000_000;
    let tables = build(&site(rate));
    let (clock, all) = (AtomicU64::new(0), AtomicU64::new(0));
    let bytes = Way::Forth.burst()[0].len() as u64;
    let end = 500 * MILLI;
    std::thread::scope(|scope| {
        for way in [Way::Forth, Way::Back] {
            let (clock, all, tables) = (&clock, &all, Arc::clone(&tables));
            scope.spawn(move || {
                let mut core = Vpc::new(tables);
                loop {
                    // Together some twice what the meter may.
                    let now = clock.fetch_add(BURST as u64 * bytes * 4, Ordering::Relaxed);
                    if now >= end {
                        return core.rest();
                    }
                    all.fetch_add(passed(&mut core, now, way) as u64 * bytes, Ordering::Relaxed);
                }
            });
        }
    });
    let (all, most) = (all.into_inner(), rate / 100 + rate / 2);
    // Less by no more than the leases: an eighth of the burst each.
    assert!(all <= most && all >= most - rate / 100 / 4 - 2 * BURST as u64 * bytes, "{all} of {most}");
}
