use proptest::prelude::*;

use super::*;

const US: u64 = 1_000;

fn adaptive() -> Yielding {
    Yielding::new(YieldPolicy::Adaptive(YieldTuning::default()))
}

/// Threshold and slice after each of these ends.
fn after(ends: &[SliceEnd]) -> Vec<(u64, u64)> {
    let mut yielding = adaptive();
    let state = |yielding: &Yielding| (yielding.threshold().expect("adaptive"), yielding.slice().0 / US);
    let each = ends.iter().map(|end| {
        yielding.ended(*end);
        state(&yielding)
    });
    each.collect()
}

/// §4.1: 50 us at first, 100 us after a slice that expired, 50 us again after one that I/O cut short. §4.3: the
/// threshold falls with the first and rises with the second.
#[test]
fn slices_are_those_of_the_paper() {
    use SliceEnd::{Due, Expired, Preempted};
    assert_eq!((adaptive().threshold(), adaptive().slice()), (Some(512), Nanos(50 * US)));
    assert_eq!(
        after(&[Expired, Expired, Expired, Preempted, Preempted, Due, Expired]),
        [(256, 100), (128, 200), (64, 400), (128, 50), (256, 50), (256, 50), (128, 100)]
    );
}

#[test]
fn a_core_that_stays_idle_ends_with_the_longest_slice_and_the_least_threshold() {
    let states = after(&[SliceEnd::Expired; 20]);
    assert_eq!(states[13], (32, 819_200), "50 us, doubled 14 times");
    assert_eq!(states[19], (32, 819_200));
    let idle: u64 = states[..14].iter().map(|(_, slice)| slice / 2).sum();
    assert_eq!(idle, 819_150, "in less than a second");
}

#[test]
fn a_core_that_is_always_wrong_yields_less_and_less() {
    let states = after(&[SliceEnd::Preempted; 9]);
    assert_eq!(states[3], (8_192, 50));
    assert_eq!(states[8], (8_192, 50));
}

#[test]
fn a_core_yields_after_more_empty_polls_than_the_threshold_or_a_long_time() {
    let mut yielding = adaptive();
    assert_eq!(yielding.yields(512, Nanos(49 * US)), None, "Figure 9: more than the threshold");
    assert_eq!(yielding.yields(513, Nanos(0)), Some(Nanos(50 * US)));
    assert_eq!(yielding.yields(1, Nanos(50 * US)), Some(Nanos(50 * US)), "a thousand rings, each poll of 50 us");
    yielding.ended(SliceEnd::Expired);
    assert_eq!(yielding.yields(257, Nanos(0)), Some(Nanos(100 * US)));
    assert_eq!(yielding.yields(256, Nanos(0)), None);
}

#[test]
fn a_core_without_adaptive_yielding_goes_by_time() {
    let mut after = Yielding::new(YieldPolicy::After(Nanos(50 * US)));
    assert_eq!(after.yields(1 << 40, Nanos(50 * US - 1)), None);
    assert_eq!(after.yields(1, Nanos(50 * US)), Some(Nanos::SECOND));
    after.ended(SliceEnd::Expired);
    after.ended(SliceEnd::Preempted);
    assert_eq!(after, Yielding::new(YieldPolicy::After(Nanos(50 * US))), "it learns nothing");
    assert_eq!(after.threshold(), None);
    let never = Yielding::new(YieldPolicy::Never);
    assert_eq!(never.yields(u64::MAX, Nanos(u64::MAX)), None);
    assert_eq!(Yielding::new(YieldPolicy::After(Nanos(0))).yields(1, Nanos(0)), Some(Nanos::SECOND));
}

#[test]
fn the_dispatcher_tells_its_policy_of_slices() {
    use crate::record::{Decoder, Event, Header, Recording};
    let mut dispatcher = crate::Dispatcher::new(Recording::new(crate::Fcfs::new(), &Header::default(), 4_096));
    let policy = YieldPolicy::Adaptive(YieldTuning::default());
    dispatcher.set_yielding(policy);
    let slice = dispatcher.yielding().yields(513, Nanos(9)).expect("it yields");
    let yielded = YieldedSlice { now: Nanos(77), polls: 513, spun: Nanos(9), slice, end: SliceEnd::Expired };
    dispatcher.yielded(yielded);
    assert_eq!(dispatcher.yielding().slice(), Nanos(100 * US));
    let (_, file) = dispatcher.into_policy().finish();
    let events: Vec<Event> = Decoder::new(&file).expect("a recording").1.flatten().collect();
    assert_eq!(events, [Event::Yielding(policy), Event::Yielded(yielded)]);
}

fn end() -> impl Strategy<Value = SliceEnd> {
    prop_oneof![Just(SliceEnd::Expired), Just(SliceEnd::Preempted), Just(SliceEnd::Due)]
}

proptest! {
    /// Whatever is written in a recording, and whatever happens.
    #[test]
    fn threshold_and_slice_stay_within_their_bounds(
        (threshold, least, most) in (any::<u64>(), any::<u64>(), any::<u64>()),
        (slice, longest, spin) in (any::<u64>(), any::<u64>(), any::<u64>()),
        ends in proptest::collection::vec(end(), 0..200),
    ) {
        let tuning =
            YieldTuning { threshold, least, most, slice: Nanos(slice), longest: Nanos(longest), spin: Nanos(spin) };
        let mut yielding = Yielding::new(YieldPolicy::Adaptive(tuning));
        let YieldPolicy::Adaptive(bounds) = yielding.policy() else { panic!("adaptive") };
        for end in ends {
            let before = yielding;
            yielding.ended(end);
            let now = yielding.threshold().expect("adaptive");
            prop_assert!((bounds.least.max(1)..=bounds.most).contains(&now));
            prop_assert!((bounds.slice..=bounds.longest).contains(&yielding.slice()));
            match end {
                SliceEnd::Expired => prop_assert!(now <= before.threshold && yielding.slice >= before.slice),
                SliceEnd::Preempted => prop_assert!(now >= before.threshold && yielding.slice == bounds.slice),
                SliceEnd::Due => prop_assert_eq!(yielding, before),
            }
        }
    }
}
