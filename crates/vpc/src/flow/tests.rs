//! The table beside a model, and what the version check is for.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::collections::HashMap;
use std::sync::Arc;

use common::Family;
use common::streams::{Step, compare, site, steps, steps_from_afar};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use super::entry::{Action, Origin};
use super::key::Key;
use super::table::{Flows, Found};
use crate::id::HopId;
use crate::policy::conntrack::ConnectionSlot;
use crate::spec;
use crate::stamp::{SOURCES, Stamp};
use crate::tables::Tables;
use crate::vpc::Vpc;

#[test]
fn without_the_version_check_flows_forward_by_old_rules() {
    without_the_version_check(&steps());
}

#[test]
fn without_the_version_check_flows_from_tunnels_go_by_old_rules() {
    without_the_version_check(&steps_from_afar());
}

/// Streams differ from what is decided without flows if the check is left out, and with it not.
fn without_the_version_check(steps: &impl Strategy<Value = Vec<Step>>) {
    let mut runner = TestRunner::deterministic();
    let streams: Vec<_> = (0..96).map(|_| steps.new_tree(&mut runner).expect("a stream").current()).collect();
    let differing = |checks: bool| {
        let differs = |steps: &&Vec<_>| {
            let tables = Tables::build(&site(Family::V4, 0), None).expect("a good spec");
            let mut vpc = Vpc::new(Arc::new(tables));
            vpc.check_versions(checks);
            compare(&mut vpc, Family::V4, steps).is_err()
        };
        streams.iter().filter(differs).count()
    };
    assert_eq!(differing(true), 0);
    assert!(differing(false) > 0, "a test that cannot fail");
}

fn key(number: u64, is_ipv6: bool) -> Key {
    let family = if is_ipv6 { 1 << 63 } else { 0 };
    Key { first: [number, 7, 9 | family], more: if is_ipv6 { [number / 3, 1, 2] } else { [0; 3] } }
}

fn action(number: u64) -> Action {
    Action {
        is_translated: false,
        hash: number as u32,
        hop: HopId::new(number as u32 % 1000),
        is_ecmp_member: number.is_multiple_of(3),
        is_routed: number.is_multiple_of(2),
        is_same_subnet: number.is_multiple_of(5),
        origin: Origin::port(None),
        connection: Some(ConnectionSlot::new(5)),
    }
}

fn tables() -> Tables {
    Tables::build(&spec::Spec::default(), None).expect("an empty spec")
}

proptest! {
    #[test]
    fn the_table_is_a_map(
        operations in prop::collection::vec((0u64..400, any::<bool>(), any::<bool>()), 1..600),
        capacity in 1usize..300,
    ) {
        let (tables, mut flows, mut model) = (tables(), Flows::new(capacity), HashMap::new());
        for (number, is_ipv6, removes) in operations {
            let key = key(number, is_ipv6);
            let home = flows.home(&key);
            let candidate = flows.approach(home);
            let found = flows.find(home, &key, &tables, &mut 0);
            if flows.hit(candidate, &key).is_some() {
                prop_assert_eq!(found, Found::Fresh(candidate.entry()));
            }
            match (found, model.get(&(number, is_ipv6))) {
                (Found::Fresh(entry), Some(there)) => prop_assert_eq!(&flows.action(entry), there),
                (Found::None, None) => {}
                (found, there) => prop_assert!(false, "{:?} where {:?} is", found, there),
            }
            match found {
                Found::Fresh(entry) if removes => {
                    flows.remove(entry);
                    model.remove(&(number, is_ipv6));
                }
                _ => {
                    let action = action(number);
                    if flows.install(home, &key, &action, &[Stamp::default(); SOURCES], (None, None)).is_ok() {
                        model.insert((number, is_ipv6), action);
                    } else {
                        prop_assert!(model.len() * 4 > capacity * 3, "full with {} of {}", model.len(), capacity);
                    }
                }
            }
            prop_assert_eq!(flows.len(), model.len());
            prop_assert!(flows.len() <= capacity);
        }
    }
}

#[test]
fn nearly_all_of_a_large_table_can_be_used() {
    let (tables, count) = (tables(), 200_000);
    let mut flows = Flows::new(count);
    let kept = (0..count as u64).filter(|&number| {
        let key = key(number, number % 4 == 0);
        let home = flows.home(&key);
        flows.install(home, &key, &action(number), &[Stamp::default(); SOURCES], (None, None)).is_ok()
    });
    let kept = kept.count();
    assert!(kept as f64 > count as f64 * 0.999, "{kept} of {count}");
    let known = (0..count as u64).filter(|&number| {
        let key = key(number, number % 4 == 0);
        let home = flows.home(&key);
        matches!(flows.find(home, &key, &tables, &mut 0), Found::Fresh(entry) if flows.action(entry) == action(number))
    });
    assert_eq!(known.count(), kept);
}

#[test]
fn a_generation_that_comes_again_finds_no_flows() {
    let (tables, mut flows) = (tables(), Flows::new(16));
    let home = flows.home(&key(1, false));
    flows.install(home, &key(1, false), &action(1), &[Stamp::default(); SOURCES], (None, None)).expect("room");
    flows.set_generation(u32::MAX);
    flows.tables_changed();
    let candidate = flows.approach(home);
    assert!(flows.hit(candidate, &key(1, false)).is_none());
    assert_eq!((flows.find(home, &key(1, false), &tables, &mut 0), flows.len()), (Found::None, 0));
}

#[test]
fn the_memory_of_16_m_flows_is_less_than_two_and_a_half_gib() {
    let flows = Flows::new(1 << 24);
    assert_eq!(flows.capacity(), 1 << 24);
    let (entries, index) = flows.reserved();
    assert!(entries + index <= 5 << 29, "{entries} and {index} bytes");
    assert_eq!([entries >> 24, index >> 24], [128, 8], "bytes a flow");
}
