use std::collections::HashMap;

use proptest::prelude::*;

use super::super::acl::tests::Chance;
use super::*;

fn member(id: u64, weight: u16) -> Member {
    Member { id, weight, zone: 0, is_healthy: true }
}

fn shares(group: &Ecmp, members: usize) -> Vec<f64> {
    let mut count = vec![0; members];
    (0..60_000_u32).filter_map(|flow| group.select(flow.wrapping_mul(0x9e37_79b1))).for_each(|at| count[at] += 1);
    count.iter().map(|flows| f64::from(*flows) / 60_000.0).collect()
}

#[test]
fn flows_are_shared_by_weight() {
    let members = [member(11, 1), member(12, 2), member(13, 5), member(14, 0)];
    let shares = shares(&Ecmp::build(&members, None, 3).unwrap(), 4);
    for (share, expected) in shares.iter().zip([0.125, 0.25, 0.625, 0.0]) {
        assert!((share - expected).abs() < 0.03, "{shares:?}");
    }
}

#[test]
fn the_own_zone_is_preferred_and_others_take_over_when_nobody_is_left_there() {
    let mut members = [1, 2, 3, 4].map(|id| Member { zone: (id / 3) as u32, ..member(id, 1) });
    let near = |members: &[Member]| shares(&Ecmp::build(members, Some(1), 0).unwrap(), 4);
    assert_eq!(near(&members)[..2], [0.0, 0.0]);
    members[3].is_healthy = false;
    assert_eq!(near(&members), [0.0, 0.0, 1.0, 0.0]);
    members[2].weight = 0;
    let spilled = near(&members);
    assert!(spilled[0] > 0.4 && spilled[1] > 0.4 && spilled[2] + spilled[3] == 0.0, "{spilled:?}");
    members.iter_mut().for_each(|member| member.is_healthy = false);
    assert_eq!(Ecmp::build(&members, Some(1), 0).unwrap().select(5), None);
}

#[test]
fn wrong_groups_are_refused() {
    let error = |members: &[Member]| Ecmp::build(members, None, 0).map(drop).unwrap_err();
    assert_eq!(error(&[member(1, 1), member(2, 1), member(1, 3)]).to_string(), "members 0 and 2 have one identifier");
    assert_eq!(error(&[member(1, 1001)]), EcmpError::Weight { member: 0, weight: 1001 });
    assert_eq!(error(&[member(1, 1); 257]), EcmpError::TooMany(257));
}

#[test]
fn logarithms_are_right() {
    for value in [1, 2, 3, 1 << 20, 0x1234_5678_9abc_def0, u64::MAX / 3, u64::MAX] {
        let exact = 64.0 - (value as f64).log2();
        let found = negative_log2(value) as f64 / f64::from(2u32.pow(16)).powi(2);
        assert!((exact - found).abs() < 1e-6, "{value}: {found}, expected {exact}");
    }
}

const FEW: usize = 32;

fn places(members: &[Member], zone: Option<u32>, seed: u64) -> Vec<Option<u64>> {
    let group = Ecmp::with_buckets(members, zone, seed, FEW);
    group.buckets.iter().map(|at| members.get(usize::from(*at)).map(|member| member.id)).collect()
}

#[test]
fn who_is_estimated_out_would_not_have_won() {
    let weight = |at: u64| if at.is_multiple_of(3) { 1 } else { (splitmix64(at) % 1000) as u16 + 1 };
    let members: Vec<Member> = (0..64).map(|at| member(splitmix64(at + 1000), weight(at))).collect();
    for seed in 0..16 {
        let group = Ecmp::with_buckets(&members, None, seed, 256);
        let bidders: Vec<Bidder> = (0..).zip(&members).map(|(at, member)| Bidder::new(at, member, seed)).collect();
        for bucket in 0..256 {
            let least =
                bidders.iter().min_by_key(|bidder| (bidder.bid(bucket), bidder.id)).map(|least| least.at.into());
            assert_eq!(group.member(bucket as usize), least, "seed {seed}, bucket {bucket}");
        }
    }
}

/// The highest bidder in floating point, and whether it is so by more than rounding.
fn naive(members: &[Member], zone: Option<u32>, seed: u64, bucket: usize) -> (Option<u64>, bool) {
    let may: Vec<_> = members.iter().filter(|member| member.is_healthy && member.weight > 0).collect();
    let near: Vec<_> = may.iter().copied().filter(|member| Some(member.zone) == zone).collect();
    let bidders = if near.is_empty() { may } else { near };
    let mut bids: Vec<_> = bidders
        .iter()
        .map(|member| {
            let chance = splitmix64(splitmix64(member.id ^ seed) ^ bucket as u64).max(1) as f64 / 2f64.powi(64);
            (-chance.ln() / f64::from(member.weight), member.id)
        })
        .collect();
    bids.sort_by(|a, b| a.0.total_cmp(&b.0));
    let is_clear = bids.len() < 2 || bids[1].0 - bids[0].0 > 1e-7;
    (bids.first().map(|(_, id)| *id), is_clear)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn a_change_of_one_member_moves_only_what_it_has_or_gets(seed in any::<u64>()) {
        let mut chance = Chance(seed);
        let zone = (chance.below(2) == 0).then_some(0);
        let mut members: Vec<Member> = (0..1 + chance.below(7))
            .map(|id| Member {
                id: id * 77 + chance.below(70),
                weight: [0, 1, 1, 2, 5, 1000][chance.below(6) as usize],
                zone: chance.below(3) as u32,
                is_healthy: chance.below(5) != 0,
            })
            .collect();
        let before = places(&members, zone, seed);
        for (bucket, place) in before.iter().enumerate() {
            let (expected, is_clear) = naive(&members, zone, seed, bucket);
            prop_assert!(!is_clear || *place == expected, "bucket {} of {:?}", bucket, members);
        }
        let stays = |members: &[Member]| members.iter().any(|m| m.is_healthy && m.weight > 0 && Some(m.zone) == zone);
        let was_near = stays(&members);
        let at = chance.below(members.len() as u64) as usize;
        let changed = members[at].id;
        match chance.below(4) {
            0 => {
                members.remove(at);
            }
            1 => members[at].is_healthy ^= true,
            2 => members[at].weight = chance.below(1001) as u16,
            _ => members.rotate_left(at),
        }
        if stays(&members) == was_near {
            for (old, new) in before.iter().zip(places(&members, zone, seed)) {
                let its_own = *old == Some(changed) || new == Some(changed);
                prop_assert!(*old == new || its_own, "{:?} became {:?}, {} was changed", old, new, changed);
            }
        }
    }
}

#[test]
fn what_one_group_decided_says_nothing_about_the_next() {
    let members = [member(1, 1), member(2, 1)];
    let [first, second] = [1, 2].map(|seed| Ecmp::build(&members, None, seed).unwrap());
    let mut both = HashMap::new();
    for flow in 0..40_000_u32 {
        *both.entry((first.select(flow), second.select(flow))).or_insert(0) += 1;
    }
    assert!(both.len() == 4 && both.values().all(|flows| (8_000..12_000).contains(flows)), "{both:?}");
}
