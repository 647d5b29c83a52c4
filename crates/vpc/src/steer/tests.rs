use proptest::prelude::*;

use super::*;
use crate::packet::Fragment;

fn ip(port: u16, fragment: Option<Fragment>) -> Ip {
    Ip { fragment, ..Ip::datagram(port) }
}

fn vni(number: u32) -> Vni {
    Vni::new(number).unwrap()
}

fn flow(port: u16) -> FiveTuple {
    FiveTuple::of(&ip(port, None)).unwrap()
}

fn rule(number: usize, what: Match, core: usize) -> Rule {
    Rule { number, what, core }
}

#[test]
fn a_table_that_says_nothing_is_idle_and_what_says_something_is_not() {
    let idle = Steering::default();
    assert!(idle.is_idle());
    assert!(!idle.clone().counting(true).is_idle());
    assert!(!idle.clone().with_rules(&[rule(0, Match::Vni(vni(7)), 0)]).unwrap().is_idle());
    let mut moved = idle.clone();
    moved.put(255, Some(3));
    assert!(!moved.is_idle());
    moved.put(255, None);
    moved.put(BUCKETS, Some(1));
    moved.put(0, Some(CORES));
    assert_eq!(moved, idle, "what is no bucket or no core changes nothing");
}

#[test]
fn a_rule_for_a_flow_goes_before_one_for_its_network_and_buckets_come_last() {
    let rules = [
        rule(5, Match::Vni(vni(7)), 1),
        rule(6, Match::Flow(None, flow(1000)), 2),
        rule(63, Match::Flow(Some(vni(8)), flow(2000)), 3),
    ];
    let mut table = Steering::default().with_rules(&rules).unwrap();
    table.spread(&[4]);
    let way = |number, port| table.decide(&SteeringKey::new(vni(number), &ip(port, None)));
    assert_eq!(way(7, 1000), SteeringDecision { by: SteeredBy::Rule(6), core: Some(2) });
    assert_eq!(way(7, 2000), SteeringDecision { by: SteeredBy::Rule(5), core: Some(1) }, "the flow of another network");
    assert_eq!(way(8, 2000), SteeringDecision { by: SteeredBy::Rule(63), core: Some(3) });
    let other = way(9, 2001);
    assert!(matches!(other, SteeringDecision { by: SteeredBy::Bucket(_), core: Some(4) }), "{other:?}");
    let part = Some(Fragment { offset: 0, more: true, id: 1 });
    let piece = table.decide(&SteeringKey::new(vni(9), &ip(1000, part)));
    assert!(
        matches!(piece, SteeringDecision { by: SteeredBy::Bucket(_), .. }),
        "a fragment goes where those behind it go: {piece:?}"
    );
}

#[test]
fn wrong_rules_are_refused() {
    let (one, again) = (rule(0, Match::Vni(vni(7)), 0), rule(1, Match::Vni(vni(7)), 0));
    assert_eq!(Steering::default().with_rules(&[one, again]), Err(SteerError::Twice(one.what)));
    assert_eq!(Steering::default().with_rules(&[one, rule(0, Match::Vni(vni(8)), 0)]), Err(SteerError::Number(0)));
    assert_eq!(Steering::default().with_rules(&[rule(64, one.what, 0)]), Err(SteerError::Number(64)));
    let far = rule(0, Match::Vni(vni(7)), CORES);
    assert_eq!(Steering::default().with_rules(&[far]), Err(SteerError::Core(CORES)));
    let many: Vec<Rule> = (1..=65).map(|number| rule(number as usize, Match::Vni(vni(number)), 0)).collect();
    assert_eq!(Steering::default().with_rules(&many), Err(SteerError::TooMany(65)));
}

#[test]
fn flows_are_spread_over_buckets_and_buckets_over_cores() {
    let mut table = Steering::default();
    table.spread(&[0, 1, 2]);
    let mut cores = [0_u32; 3];
    let mut buckets = BTreeSet::new();
    for port in 0..6000 {
        let key = SteeringKey::new(vni(7), &ip(port, None));
        buckets.insert(key.bucket());
        cores[table.decide(&key).core.unwrap()] += 1;
    }
    assert_eq!(buckets.len(), BUCKETS);
    assert!(cores.iter().all(|flows| (1700..2300).contains(flows)), "{cores:?}");
    table.spread(&[]);
    assert!(table.is_idle());
}

fn table() -> impl Strategy<Value = Steering> {
    let rules = prop::collection::btree_map(
        prop_oneof![
            (1_u32..4).prop_map(|number| Match::Vni(vni(number))),
            (0_u16..6).prop_map(|port| Match::Flow(None, flow(port)))
        ],
        0_usize..4,
        0..3,
    );
    (rules, prop::collection::vec((0..BUCKETS, prop::option::of(0_usize..4)), 0..400)).prop_map(|(rules, puts)| {
        let rules: Vec<Rule> =
            rules.into_iter().enumerate().map(|(number, (what, core))| Rule { number, what, core }).collect();
        let mut table = Steering::default().with_rules(&rules).unwrap();
        puts.into_iter().for_each(|(bucket, core)| table.put(bucket, core));
        table
    })
}

proptest! {
    /// Order rests on this: no flow changes its core without its pair being told.
    #[test]
    fn whatever_moves_is_told(before in table(), after in table(), here in 0_usize..4, ports in prop::collection::vec(0_u16..600, 64)) {
        let moves = before.moves(&after, here);
        for (port, number) in ports.into_iter().zip((1..5).cycle()) {
            let key = SteeringKey::new(vni(number), &ip(port, None));
            let [from, to] = [&before, &after].map(|table| table.decide(&key).core.unwrap_or(here));
            prop_assert!(from == to || moves.contains(&(from, to)), "{from} to {to} is not among {moves:?}");
        }
        prop_assert!(moves.iter().all(|(from, to)| from != to));
        prop_assert!(before.moves(&before, here).is_empty());
    }
}
