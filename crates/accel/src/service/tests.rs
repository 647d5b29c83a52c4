use proptest::prelude::*;
use softdpu_sched::{DeferredWork, Nanos, Share, TenantId, TenantScheduler, Weighted};

use super::*;

/// Work of so many bytes; the ring is of no matter where it is not said.
type Engine = Service<u64, u64>;

/// A turn of the channel that is first in order: what it had.
fn turn(engine: &mut Engine) -> Option<(u32, u64)> {
    let (channel, _) = engine.in_order().next()?;
    let mut had = 0;
    while had < QUANTUM
        && let Some(work) = engine.dequeue(channel)
    {
        had += work;
    }
    engine.end_turn(channel, had);
    Some((channel, had))
}

#[test]
fn work_of_a_channel_runs_in_order_but_what_is_ahead() {
    let mut engine = Engine::default();
    (1..=3).for_each(|work| engine.enqueue(0, work));
    (11..=12).for_each(|work| engine.enqueue_ahead(0, work));
    let order: Vec<u64> = std::iter::from_fn(|| engine.dequeue(0)).collect();
    assert_eq!(order, [11, 12, 1, 2, 3]);
    assert!(engine.is_empty(0) && engine.waiting() == 0 && !engine.can_run());
}

#[test]
fn channels_have_the_same_turns_in_bytes_whatever_the_length_of_their_work() {
    let mut engine = Engine::default();
    let mut had = [0; 2];
    for _ in 0..1_000 {
        for (channel, len) in [(0, LONGEST), (1, 4 << 10)] {
            (0..8).for_each(|_| engine.enqueue(channel, len));
        }
        let (channel, bytes) = turn(&mut engine).unwrap();
        had[channel as usize] += bytes;
    }
    let ratio = had[0] as f64 / had[1] as f64;
    assert!((ratio - 1.0).abs() < 0.02, "{had:?}");
}

#[test]
fn work_that_comes_waits_for_one_turn_of_each_other_channel() {
    let mut engine = Engine::default();
    for channel in 0..3 {
        (0..100).for_each(|_| engine.enqueue(channel, 4 << 10));
    }
    (0..7).for_each(|_| assert!(turn(&mut engine).is_some()));
    engine.enqueue(3, 512);
    let turns: Vec<u32> = std::iter::from_fn(|| turn(&mut engine)).map(|(channel, _)| channel).take(4).collect();
    assert_eq!(turns, [1, 2, 0, 3]);
}

#[test]
fn a_channel_that_was_empty_owes_no_turns() {
    let mut engine = Engine::default();
    engine.enqueue(0, LONGEST);
    assert_eq!(turn(&mut engine), Some((0, LONGEST)));
    engine.enqueue(0, 1);
    engine.enqueue(1, 1);
    assert_eq!(turn(&mut engine), Some((0, 1)));
}

#[test]
fn a_blocked_channel_keeps_its_order_and_holds_up_only_what_is_not_ahead() {
    let mut engine = Engine::default();
    (1..=2).for_each(|work| engine.enqueue(0, work));
    engine.enqueue(1, 7);
    let first = engine.dequeue(0).unwrap();
    engine.block(0, first);
    assert!(engine.has_blocked() && engine.can_run());
    assert_eq!((engine.dequeue(0), engine.dequeue(1), engine.can_run()), (None, Some(7), false));
    engine.enqueue_ahead(0, 11);
    assert_eq!((engine.dequeue(0), engine.dequeue(0)), (Some(11), None));
    engine.unblock();
    assert_eq!((engine.dequeue(0), engine.dequeue(0)), (Some(1), Some(2)));
    assert!(!engine.has_blocked() && engine.waiting() == 0);
}

#[test]
fn the_ring_has_room_for_its_entries_and_gives_them_back_in_order() {
    let mut engine = Engine::default();
    let mut posted = 0;
    while engine.has_room() {
        engine.post(posted);
        posted += 1;
    }
    assert_eq!(posted, RING as u64);
    assert_eq!(engine.take(), Some(0));
    assert!(engine.has_room());
    assert_eq!(std::iter::from_fn(|| engine.take()).collect::<Vec<_>>(), (1..posted).collect::<Vec<_>>());
}

#[test]
fn what_is_dropped_is_gone_and_the_rest_stays() {
    let mut engine = Engine::default();
    for work in 0..30 {
        engine.enqueue(0, work);
        engine.enqueue_ahead(1, 100 + work);
    }
    let first = engine.dequeue(0).unwrap();
    engine.block(0, first);
    engine.retain(|work| *work >= 100);
    assert!(engine.is_empty(0) && !engine.has_blocked());
    assert_eq!(engine.waiting(), 30);
    assert_eq!(engine.in_order().map(|(channel, work)| (channel, *work)).collect::<Vec<_>>(), [(1, 100)]);
}

/// What a tenant that always has work has more of the engine than another, in what the policy is told that it took.
fn ratio(weights: [u32; 2], lens: [u64; 2], turns: u64) -> f64 {
    let mut policy = Weighted::default();
    for (tenant, weight) in (0..).zip(weights) {
        policy.configure(TenantId(tenant), Share { weight, ..Share::default() });
    }
    let mut engine = Engine::default();
    let (mut now, mut had) = (Nanos(0), [0; 2]);
    for _ in 0..turns {
        for (channel, len) in (0..).zip(lens) {
            (0..8).for_each(|_| engine.enqueue(channel, len));
        }
        let ranked = engine.in_order().map(|(channel, _)| (policy.deferred_rank(TenantId(channel as u16)), channel));
        let (_, channel) = ranked.min().unwrap();
        let mut bytes = 0;
        while bytes < QUANTUM
            && let Some(work) = engine.dequeue(channel)
        {
            bytes += work;
        }
        engine.end_turn(channel, bytes);
        // 420 ns for 1 KiB.
        let took = Nanos(bytes * 420 / 1024);
        now = now + took;
        had[channel as usize] += took.0;
        assert!(policy.charge_deferred(now, TenantId(channel as u16), took));
    }
    had[0] as f64 / had[1] as f64
}

#[test]
fn tenants_share_the_engine_by_weight_in_what_their_work_took() {
    for (weights, lens) in
        [([3, 1], [4 << 10, 128 << 10]), ([3, 1], [128 << 10, 4 << 10]), ([1, 1], [512, 16 << 10]), ([1, 8], [4096; 2])]
    {
        let due = f64::from(weights[0]) / f64::from(weights[1]);
        let ratio = ratio(weights, lens, 20_000);
        assert!((ratio / due - 1.0).abs() < 0.02, "{weights:?}, {lens:?} bytes: {ratio:.3} to one");
    }
}

#[derive(Clone, Debug)]
enum Step {
    Enqueue(u32),
    EnqueueAhead(u32),
    Dequeue(u32),
    Block(u32),
    Unblock,
    Turn,
}

fn step() -> impl Strategy<Value = Step> {
    let channel = 0..4u32;
    prop_oneof![
        channel.clone().prop_map(Step::Enqueue),
        channel.clone().prop_map(Step::EnqueueAhead),
        channel.clone().prop_map(Step::Dequeue),
        channel.prop_map(Step::Block),
        Just(Step::Unblock),
        Just(Step::Turn),
    ]
}

proptest! {
    /// Beside a model that is two lists and a flag for each channel.
    #[test]
    fn nothing_is_lost_or_runs_twice_or_out_of_its_order(steps in prop::collection::vec(step(), 1..200)) {
        let mut engine = Engine::default();
        let mut model: [(VecDeque<u64>, VecDeque<u64>, bool); 4] = Default::default();
        for (number, step) in (0..).zip(steps) {
            match step {
                Step::Enqueue(channel) => {
                    engine.enqueue(channel, number);
                    model[channel as usize].1.push_back(number);
                }
                Step::EnqueueAhead(channel) => {
                    engine.enqueue_ahead(channel, number);
                    model[channel as usize].0.push_back(number);
                }
                Step::Dequeue(channel) => {
                    let (ahead, waiting, blocked) = &mut model[channel as usize];
                    let expected = ahead.pop_front().or_else(|| if *blocked { None } else { waiting.pop_front() });
                    prop_assert_eq!(engine.dequeue(channel), expected);
                }
                Step::Block(channel) => {
                    let (ahead, waiting, blocked) = &mut model[channel as usize];
                    if ahead.is_empty() && !*blocked && let Some(&first) = waiting.front() {
                        prop_assert_eq!(engine.dequeue(channel), Some(first));
                        engine.block(channel, first);
                        *blocked = true;
                    }
                }
                Step::Unblock => {
                    engine.unblock();
                    model.iter_mut().for_each(|(_, _, blocked)| *blocked = false);
                }
                Step::Turn => {
                    let first = engine.in_order().next().map(|(channel, _)| channel);
                    if let Some(channel) = first {
                        engine.end_turn(channel, LONGEST);
                    }
                }
            }
            let can_run = |(ahead, waiting, blocked): &(VecDeque<u64>, VecDeque<u64>, bool)| {
                !ahead.is_empty() || !waiting.is_empty() && !blocked
            };
            let mut listed: Vec<u32> = engine.in_order().map(|(channel, _)| channel).collect();
            listed.sort_unstable();
            let expected: Vec<u32> = (0..4).filter(|&channel| can_run(&model[channel as usize])).collect();
            prop_assert_eq!(listed, expected);
            let blocked = model.iter().any(|(_, _, blocked)| *blocked);
            prop_assert_eq!(engine.has_blocked(), blocked);
            prop_assert_eq!(engine.waiting(), model.iter().map(|(ahead, waiting, _)| ahead.len() + waiting.len()).sum::<usize>());
        }
    }
}
