use std::collections::BTreeMap;

use proptest::prelude::*;
use softdpu_vpc::Packet;

use super::*;
use crate::testing::{VNI, arp, icmp, seen, tcp, udp};

const SECOND: u64 = 1_000_000_000;

fn monitor(flows: usize) -> Monitor {
    Monitor::new(MonitorSpec { active: 60 * SECOND, idle: 15 * SECOND, flows })
}

fn note(monitor: &mut Monitor, now: u64, packet: &Packet) {
    monitor.note(now, &[seen(packet)], 0);
}

#[test]
fn a_flow_is_reported_when_it_is_idle() {
    let mut monitor = monitor(16);
    note(&mut monitor, SECOND, &tcp([10, 0, 0, 1], 1000, [10, 0, 0, 2], 80, 0x02, 0));
    note(&mut monitor, 3 * SECOND, &tcp([10, 0, 0, 1], 1000, [10, 0, 0, 2], 80, 0x18, 100));
    monitor.turn(17 * SECOND);
    assert_eq!(monitor.take(), []);
    monitor.turn(18 * SECOND);
    let [record] = monitor.take()[..] else { panic!("one flow") };
    assert_eq!((record.packets, record.octets, record.tcp_flags), (2, 180, 0x1a));
    assert_eq!((record.first, record.last, record.reason), (SECOND, 3 * SECOND, EndReason::Idle));
    assert_eq!((record.key.source_port, record.key.destination_port, record.key.vni), (1000, 80, VNI));
    assert_eq!(monitor.counts().flows, 0);
}

#[test]
fn a_flow_that_goes_on_is_reported_again_and_again() {
    let mut monitor = monitor(16);
    let packet = udp([10, 0, 0, 1], 1, [10, 0, 0, 2], 2, 72);
    for second in 0..150 {
        note(&mut monitor, second * SECOND, &packet);
        monitor.turn(second * SECOND);
    }
    monitor.flush();
    let records = monitor.take();
    assert_eq!(records.iter().map(|record| record.packets).sum::<u64>(), 150);
    let reasons: Vec<EndReason> = records.iter().map(|record| record.reason).collect();
    assert_eq!(reasons, [EndReason::Active, EndReason::Active, EndReason::Forced]);
    assert!(records.windows(2).all(|two| two[0].last <= two[1].first), "{records:?}");
}

#[test]
fn a_reported_flow_that_stops_is_forgotten_without_another_record() {
    let mut monitor = monitor(16);
    let packet = udp([10, 0, 0, 1], 1, [10, 0, 0, 2], 2, 72);
    (0..=60).for_each(|second| note(&mut monitor, second * SECOND, &packet));
    monitor.turn(60 * SECOND);
    assert_eq!(monitor.take().len(), 1, "at its 61st packet, or at this turn");
    monitor.turn(80 * SECOND);
    let rest: u64 = monitor.take().iter().map(|record| record.packets).sum();
    assert!(rest <= 1);
    assert_eq!(monitor.counts().flows, 0);
}

#[test]
fn a_full_table_reports_the_longest_unseen_early() {
    let mut monitor = monitor(2);
    for (now, port) in [(1, 1), (2, 2), (3, 1), (4, 3)] {
        note(&mut monitor, now * SECOND, &udp([10, 0, 0, 1], port, [10, 0, 0, 2], 53, 10));
    }
    let [record] = monitor.take()[..] else { panic!("one flow") };
    assert_eq!((record.key.source_port, record.reason), (2, EndReason::Resources));
    assert_eq!((monitor.counts().flows, monitor.counts().early), (2, 1));
}

#[test]
fn icmp_has_type_and_code_for_a_port_and_arp_no_flow() {
    let mut monitor = monitor(2);
    note(&mut monitor, SECOND, &icmp([10, 0, 0, 1], [10, 0, 0, 2], 8, 0));
    note(&mut monitor, SECOND, &arp());
    monitor.flush();
    assert_eq!(monitor.take()[0].key.destination_port, 0x800);
    assert_eq!((monitor.counts().others, monitor.counts().packets), (1, 1));
}

#[test]
fn what_was_dropped_before_it_is_not_counted() {
    let mut monitor = monitor(2);
    let packet = udp([10, 0, 0, 1], 1, [10, 0, 0, 2], 2, 72);
    let dropped = Observation { dropped: Some(0), ..seen(&packet) };
    monitor.note(SECOND, &[dropped, seen(&packet)], 1);
    assert_eq!(monitor.counts().packets, 1);
}

proptest! {
    /// Whatever comes when: every packet is in one record, the table keeps to its bound, and records do not overlap.
    #[test]
    fn every_packet_is_in_one_record(
        steps in prop::collection::vec((0u64..40, 0u16..6, 0usize..200), 0..300),
        flows in 1usize..5,
    ) {
        let mut monitor = monitor(flows);
        let (mut now, mut expected, mut records) = (0, BTreeMap::<u16, (u64, u64)>::new(), Vec::new());
        for (pause, port, bytes) in steps {
            now += pause * SECOND / 2;
            if pause % 3 == 0 {
                monitor.turn(now);
            }
            note(&mut monitor, now, &udp([10, 0, 0, 1], port, [10, 0, 0, 2], 53, bytes));
            let sum = expected.entry(port).or_default();
            *sum = (sum.0 + 1, sum.1 + 28 + bytes as u64);
            records.extend(monitor.take());
            prop_assert!(monitor.counts().flows <= flows as u64);
        }
        monitor.flush();
        records.extend(monitor.take());
        let mut found = BTreeMap::<u16, (u64, u64)>::new();
        let mut ends = BTreeMap::<u16, u64>::new();
        for record in &records {
            prop_assert!(record.packets > 0 && record.first <= record.last);
            let sum = found.entry(record.key.source_port).or_default();
            *sum = (sum.0 + record.packets, sum.1 + record.octets);
            let end = ends.entry(record.key.source_port).or_default();
            prop_assert!(*end <= record.first);
            *end = record.last;
        }
        prop_assert_eq!(found, expected);
        prop_assert_eq!(monitor.counts().records, records.len() as u64);
    }
}
