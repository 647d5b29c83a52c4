//! The contract, call by call; and over random rounds beside a naive model that knows nothing but their history.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;

use super::*;
use crate::{DeferredWork, Precedence, Preemption, Weighted};

const MICRO: u64 = 1_000;

/// A policy that answers as it is told to.
#[derive(Debug, Default)]
struct Scripted {
    decisions: VecDeque<Decision>,
    turn: u64,
    tick: Option<u64>,
    preempting: Vec<TenantId>,
    ranks: BTreeMap<u16, u64>,
    precedence: BTreeMap<u16, Precedence>,
    charges_deferred: bool,
    asked: u32,
    ready: Vec<(QueueId, Work)>,
    charged: Vec<(Grant, Cost)>,
    deferred: Vec<(TenantId, Nanos)>,
    /// Ranks that it was asked for.
    compared: Cell<usize>,
}

impl TenantScheduler for Scripted {
    fn configure(&mut self, _: TenantId, _: Share) {}
    fn ready(&mut self, _: Nanos, queue: QueueId, work: Work) {
        self.ready.push((queue, work));
    }
    fn decide(&mut self, _: Nanos) -> Decision {
        self.asked += 1;
        self.decisions.pop_front().unwrap_or(Decision::Idle)
    }
    fn charge(&mut self, _: Nanos, grant: Grant, cost: Cost) {
        self.charged.push((grant, cost));
    }
    fn cancel(&mut self, _: Nanos, _: QueueId) {}
}

impl Preemption for Scripted {
    fn turn(&self, _: Nanos) -> Nanos {
        Nanos(self.turn)
    }
    fn can_preempt(&self) -> bool {
        !self.preempting.is_empty()
    }
    fn wakeup_preempt(&self, tenant: TenantId) -> bool {
        self.preempting.contains(&tenant)
    }
    fn tick(&self) -> Option<Nanos> {
        self.tick.map(Nanos)
    }
    fn tick_preempt(&self, tenant: TenantId) -> bool {
        self.preempting.contains(&tenant)
    }
}

impl DeferredWork for Scripted {
    fn deferred_rank(&self, tenant: TenantId) -> u64 {
        self.compared.set(self.compared.get() + 1);
        self.ranks.get(&tenant.0).copied().unwrap_or(0)
    }
    fn deferred_precedence(&self, tenant: TenantId) -> Precedence {
        self.precedence.get(&tenant.0).copied().unwrap_or(Precedence::InTurn)
    }
    fn charge_deferred(&mut self, _: Nanos, tenant: TenantId, time: Nanos) -> bool {
        self.deferred.push((tenant, time));
        self.charges_deferred
    }
}

fn grant(tenant: u16, units: u32) -> Grant {
    Grant { queue: QueueId { tenant: TenantId(tenant), index: tenant.into() }, units }
}

fn units(units: u32) -> Cost {
    Cost { units, ..Cost::default() }
}

/// A dispatcher whose policy grants 8 units of tenant 0 each time, in turns of 10 µs.
fn flooded(turn: u64) -> Dispatcher<Scripted> {
    let decisions = std::iter::repeat_n(Decision::Run(grant(0, 8)), 100).collect();
    Dispatcher::new(Scripted { decisions, turn, preempting: vec![TenantId(1)], ..Scripted::default() })
}

fn remainder(units: u32) -> Work {
    Work { units, bytes: u64::from(units) * 100 }
}

#[test]
fn a_turn_goes_on_with_grants_until_its_time_is_over() {
    let mut dispatcher = flooded(10 * MICRO);
    assert_eq!(dispatcher.begin_turn(Nanos(5_000), Nanos(0)), Nanos(10_000));
    for now in [5_000, 9_000, 14_999] {
        assert_eq!(dispatcher.next(Nanos(now), true), Dispatch::Run(grant(0, 8)), "{now}");
        dispatcher.charge(Nanos(now), units(8), remainder);
    }
    assert_eq!(dispatcher.next(Nanos(15_000), true), Dispatch::EndTurn);
    assert_eq!(dispatcher.idle_until(), Nanos(0), "there may be more");
    assert_eq!(dispatcher.policy().asked, 3);
}

#[test]
fn a_turn_has_a_grant_however_short_it_is() {
    let mut dispatcher = flooded(0);
    dispatcher.begin_turn(Nanos(5_000), Nanos(0));
    assert_eq!(dispatcher.next(Nanos(5_000), true), Dispatch::Run(grant(0, 8)));
    dispatcher.charge(Nanos(5_000), units(8), remainder);
    assert_eq!(dispatcher.next(Nanos(5_000), true), Dispatch::EndTurn);
}

#[test]
fn a_clock_that_goes_back_ends_a_turn_and_a_deferral() {
    let mut dispatcher = flooded(10 * MICRO);
    dispatcher.begin_turn(Nanos(5_000), Nanos(0));
    dispatcher.next(Nanos(5_000), true);
    assert_eq!(dispatcher.next(Nanos(4_999), true), Dispatch::EndTurn);
    dispatcher.policy_mut().precedence.insert(3, Precedence::Last);
    let mut turn = dispatcher.begin_deferred(Nanos(5_000), true);
    let one = || std::iter::once((TenantId(3), ()));
    assert_eq!(dispatcher.next_deferred(&mut turn, Nanos(5_000), one()), None);
    assert_eq!(dispatcher.next_deferred(&mut turn, Nanos(4_000), one()), Some((TenantId(3), ())));
}

#[test]
fn a_turn_ends_where_nothing_is_ready_and_the_policy_is_not_asked() {
    let mut dispatcher = flooded(10 * MICRO);
    dispatcher.begin_turn(Nanos(0), Nanos(0));
    dispatcher.next(Nanos(0), true);
    dispatcher.charge(Nanos(100), units(8), remainder);
    assert_eq!(dispatcher.next(Nanos(100), false), Dispatch::EndTurn);
    assert_eq!((dispatcher.policy().asked, dispatcher.idle_until()), (1, Nanos(u64::MAX)));
    dispatcher.wake();
    assert_eq!(dispatcher.idle_until(), Nanos(0));
}

#[test]
fn a_policy_that_has_nothing_to_run_says_until_when() {
    let policy = Scripted { decisions: [Decision::IdleUntil(Nanos(77)), Decision::Idle].into(), ..Scripted::default() };
    let mut dispatcher = Dispatcher::new(policy);
    for (dispatch, until) in [(Dispatch::Idle(Some(Nanos(77))), Nanos(77)), (Dispatch::Idle(None), Nanos(u64::MAX))] {
        dispatcher.begin_turn(Nanos(0), Nanos(0));
        assert_eq!((dispatcher.next(Nanos(0), true), dispatcher.idle_until()), (dispatch, until));
    }
    // What a back end ends, or a queue that goes, may let something run.
    dispatcher.complete(Nanos(1), grant(0, 1), units(1));
    assert_eq!(dispatcher.idle_until(), Nanos(0));
}

#[test]
fn a_long_poll_makes_a_long_turn_but_not_beyond_a_bound() {
    let mut dispatcher = flooded(10 * MICRO);
    for (polled, length) in [(1_000, 10_000), (5_000, 20_000), (40_000, 160_000), (1_000_000, 200_000)] {
        assert_eq!(dispatcher.begin_turn(Nanos(0), Nanos(polled)), Nanos(length));
    }
    dispatcher.policy_mut().turn = 1_000_000;
    assert_eq!(dispatcher.begin_turn(Nanos(0), Nanos(u64::MAX)), Nanos(1_000_000), "what the policy says");
}

#[test]
fn without_time_a_turn_goes_on_while_there_is_work_and_has_no_ticks() {
    let mut dispatcher = flooded(0);
    dispatcher.policy_mut().tick = Some(10);
    dispatcher.set_timed(false);
    dispatcher.begin_turn(Nanos(0), Nanos(0));
    for now in 0..100 {
        assert_eq!(dispatcher.next(Nanos(now * MICRO), true), Dispatch::Run(grant(0, 8)));
        assert!(!dispatcher.tick(Nanos(now)).is_on());
        dispatcher.charge(Nanos(now), units(8), remainder);
    }
    assert_eq!(dispatcher.next(Nanos(0), false), Dispatch::EndTurn);
    let mut turn = dispatcher.begin_deferred(Nanos(0), false);
    let ran = (0..100)
        .filter(|now| dispatcher.next_deferred(&mut turn, Nanos(*now), std::iter::once((TenantId(0), ()))).is_some());
    assert_eq!(ran.count(), 16, "but deferred work has a bound");
}

#[test]
fn a_wakeup_has_urgent_queues_polled_and_then_a_decision_though_the_turn_is_over() {
    let mut dispatcher = flooded(10 * MICRO);
    dispatcher.begin_turn(Nanos(0), Nanos(0));
    dispatcher.next(Nanos(0), true);
    assert!(dispatcher.wakeup_preempts(TenantId(1)));
    dispatcher.preempt(PreemptReason::Wakeup);
    dispatcher.charge(Nanos(20_000), units(3), remainder);
    assert_eq!(dispatcher.policy().ready, [(grant(0, 0).queue, Work { units: 5, bytes: 500 })], "the remainder");
    assert_eq!(dispatcher.next(Nanos(20_000), true), Dispatch::PollUrgent);
    assert_eq!(dispatcher.next(Nanos(20_000), true), Dispatch::Run(grant(0, 8)));
    dispatcher.charge(Nanos(20_100), units(8), remainder);
    assert_eq!(dispatcher.next(Nanos(20_100), true), Dispatch::EndTurn, "only for one grant");
}

#[test]
fn a_tick_ends_the_turn_and_a_slice_does_not() {
    let mut dispatcher = flooded(10 * MICRO);
    for (reason, next) in [(PreemptReason::Tick, Dispatch::EndTurn), (PreemptReason::Slice, Dispatch::Run(grant(0, 8)))]
    {
        dispatcher.begin_turn(Nanos(0), Nanos(0));
        dispatcher.next(Nanos(0), true);
        dispatcher.preempt(reason);
        dispatcher.charge(Nanos(1), units(1), remainder);
        assert_eq!(dispatcher.next(Nanos(1), true), next);
        assert_eq!(dispatcher.policy_mut().ready.pop(), Some((grant(0, 0).queue, remainder(7))));
    }
}

#[test]
fn what_a_grant_did_not_run_is_ready_again_only_where_it_was_preempted() {
    let mut dispatcher = flooded(10 * MICRO);
    dispatcher.begin_turn(Nanos(0), Nanos(0));
    dispatcher.next(Nanos(0), true);
    // A receiver without room keeps the rest: the core says itself when that is ready again.
    dispatcher.charge(Nanos(1), units(3), |_| panic!("it was not preempted"));
    dispatcher.next(Nanos(1), true);
    dispatcher.preempt(PreemptReason::Slice);
    dispatcher.charge(Nanos(2), units(8), |_| panic!("nothing is left"));
    dispatcher.next(Nanos(2), true);
    dispatcher.preempt(PreemptReason::Slice);
    dispatcher.charge(Nanos(3), units(5), |left| {
        assert_eq!(left, 3);
        Work::default()
    });
    assert_eq!(dispatcher.policy().ready, [], "nothing where the queue has gone");
    assert_eq!(dispatcher.policy().charged.len(), 3);
}

#[test]
fn a_grant_is_charged_once_and_one_that_never_is_counts_as_nothing() {
    let mut dispatcher = flooded(10 * MICRO);
    dispatcher.begin_turn(Nanos(0), Nanos(0));
    dispatcher.charge(Nanos(0), units(1), remainder);
    dispatcher.next(Nanos(0), true);
    dispatcher.next(Nanos(1), true);
    dispatcher.charge(Nanos(2), units(8), remainder);
    dispatcher.charge(Nanos(3), units(8), remainder);
    assert_eq!(dispatcher.policy().charged, [(grant(0, 8), units(8))]);
}

#[test]
fn only_tenants_of_the_latency_class_are_urgent_and_only_where_the_policy_preempts() {
    let mut dispatcher = flooded(10 * MICRO);
    let class = |class| Share { class, ..Share::default() };
    dispatcher.configure(TenantId(2), class(LatencyClass::Latency));
    dispatcher.configure(TenantId(1), class(LatencyClass::Normal));
    let urgent = |dispatcher: &Dispatcher<Scripted>| [1, 2, 9].map(|tenant| dispatcher.is_urgent(TenantId(tenant)));
    assert_eq!(urgent(&dispatcher), [false, true, false]);
    dispatcher.configure(TenantId(2), class(LatencyClass::Background));
    assert_eq!(urgent(&dispatcher), [false; 3]);
    dispatcher.configure(TenantId(2), class(LatencyClass::Latency));
    dispatcher.policy_mut().preempting.clear();
    assert_eq!(urgent(&dispatcher), [false; 3]);
}

#[test]
fn no_tenant_preempts_itself_nor_a_core_that_runs_nothing() {
    let mut dispatcher = flooded(10 * MICRO);
    dispatcher.policy_mut().preempting = vec![TenantId(0), TenantId(1)];
    let preempts = |dispatcher: &Dispatcher<Scripted>| {
        [0, 1, 2].map(|tenant| {
            let tenant = TenantId(tenant);
            (dispatcher.wakeup_preempts(tenant), dispatcher.tick_preempts(tenant))
        })
    };
    assert_eq!(preempts(&dispatcher), [(false, false); 3]);
    dispatcher.begin_turn(Nanos(0), Nanos(0));
    dispatcher.next(Nanos(0), true);
    assert_eq!(preempts(&dispatcher), [(false, false), (true, true), (false, false)]);
}

#[test]
fn ticks_are_an_interval_apart_or_as_far_as_they_take_long() {
    let mut dispatcher = flooded(10 * MICRO);
    assert!(!dispatcher.tick(Nanos(0)).is_on() && !dispatcher.tick(Nanos(0)).is_due(Nanos(u64::MAX)));
    dispatcher.policy_mut().tick = Some(8_000);
    let mut tick = dispatcher.tick(Nanos(1_000));
    assert!(tick.is_on() && !tick.is_due(Nanos(8_999)) && tick.is_due(Nanos(9_000)));
    tick.restart(Nanos(9_100), Nanos(9_200));
    assert_eq!(tick.next(), Nanos(17_200));
    tick.restart(Nanos(20_000), Nanos(30_000));
    assert_eq!(tick.next(), Nanos(70_000), "four times as long as the tick took");
}

#[test]
fn the_least_rank_is_first_and_equal_ones_take_turns() {
    let mut dispatcher = flooded(10 * MICRO);
    dispatcher.policy_mut().ranks = [(0, 5), (1, 3), (2, 3)].into();
    let mut turn = dispatcher.begin_deferred(Nanos(0), false);
    let tenants = |all: &[u16]| all.iter().map(|tenant| (TenantId(*tenant), *tenant)).collect::<Vec<_>>();
    let mut first = |all: &[u16]| dispatcher.next_deferred(&mut turn, Nanos(0), tenants(all).into_iter());
    assert_eq!(first(&[0, 1, 2]), Some((TenantId(1), 1)));
    assert_eq!(first(&[0, 2, 1]), Some((TenantId(2), 2)), "the order is the core's");
    assert_eq!(first(&[]), None);
}

#[test]
fn of_many_candidates_only_some_are_compared() {
    let mut dispatcher = flooded(10 * MICRO);
    let mut turn = dispatcher.begin_deferred(Nanos(0), false);
    let many = (0..1_000).map(|at| (TenantId(0), at));
    assert_eq!(dispatcher.next_deferred(&mut turn, Nanos(0), many), Some((TenantId(0), 0)));
    assert_eq!(dispatcher.policy().compared.get(), 64);
}

#[test]
fn deferred_work_goes_before_grants_where_the_next_of_it_does() {
    let mut dispatcher = flooded(10 * MICRO);
    dispatcher.policy_mut().precedence = [(1, Precedence::First), (2, Precedence::Last)].into();
    dispatcher.policy_mut().ranks = [(0, 9), (1, 1), (2, 0)].into();
    let first = |all: &[u16]| dispatcher.deferred_goes_first(all.iter().map(|tenant| TenantId(*tenant)));
    assert_eq!([first(&[0, 1]), first(&[1, 2]), first(&[0]), first(&[])], [true, false, false, false]);
}

#[test]
fn deferred_work_is_put_off_for_grants_for_a_bounded_time() {
    let mut dispatcher = flooded(10 * MICRO);
    dispatcher.policy_mut().precedence.insert(2, Precedence::Last);
    let one = || std::iter::once((TenantId(2), ()));
    let mut ran = Vec::new();
    for round in 0..300 {
        let now = Nanos(round * 10_000);
        let mut turn = dispatcher.begin_deferred(now, true);
        if dispatcher.next_deferred(&mut turn, now, one()).is_some() {
            ran.push(now.0);
        }
    }
    assert_eq!(ran, [1_000_000, 2_010_000], "a millisecond from when it was first put off");
    let mut turn = dispatcher.begin_deferred(Nanos(2_020_000), false);
    assert!(dispatcher.next_deferred(&mut turn, Nanos(2_020_000), one()).is_some(), "there are no grants");
}

#[test]
fn deferred_work_of_a_policy_that_does_not_charge_it_is_for_the_next_grants() {
    let mut dispatcher = flooded(10 * MICRO);
    assert!(!dispatcher.charge_deferred(Nanos(5), TenantId(1), Nanos(70)));
    dispatcher.policy_mut().charges_deferred = true;
    assert!(dispatcher.charge_deferred(Nanos(6), TenantId(1), Nanos(71)));
    assert_eq!(dispatcher.policy().deferred, [(TenantId(1), Nanos(70)), (TenantId(1), Nanos(71))]);
}

/// Part of a random round.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A turn begins, after a poll that took so long.
    Turn(u64),
    /// The core asks what is next, and then does that: so many units of what is granted, each of so many nanoseconds,
    /// unless it is preempted before that is over for some reason after so many.
    Next { is_backlogged: bool, unit: u64, preempted: Option<(u32, PreemptReason)> },
    /// A turn of deferred work, with a number of pieces of so many nanoseconds, of tenants from one on.
    Deferred { is_contended: bool, first: u16, pieces: usize, each: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let reason = prop_oneof![Just(PreemptReason::Wakeup), Just(PreemptReason::Tick), Just(PreemptReason::Slice)];
    let preempted = proptest::option::of((0_u32..8, reason));
    prop_oneof![
        2 => (0_u64..20_000).prop_map(Step::Turn),
        6 => (prop::bool::weighted(0.9), 1_u64..3_000, preempted)
            .prop_map(|(is_backlogged, unit, preempted)| Step::Next { is_backlogged, unit, preempted }),
        2 => (any::<bool>(), 0_u16..4, 0_usize..30, 1_u64..200_000)
            .prop_map(|(is_contended, first, pieces, each)| Step::Deferred { is_contended, first, pieces, each }),
    ]
}

fn decision() -> impl Strategy<Value = Decision> {
    prop_oneof![
        6 => (0_u16..3, 1_u32..9).prop_map(|(tenant, units)| Decision::Run(grant(tenant, units))),
        1 => (0_u64..1_000_000).prop_map(|at| Decision::IdleUntil(Nanos(at))),
        1 => Just(Decision::Idle),
    ]
}

/// What has happened since the turn began, the last at the end. The naive model reads it anew for each answer.
#[derive(Clone, Copy, Debug)]
enum Happened {
    Began { at: u64, length: u64 },
    Ran { preempted: Option<PreemptReason> },
    Polled,
}

/// What the rules of the [module](super) say of a history; none: the policy is asked.
fn by_the_rules(history: &[Happened], now: u64, is_backlogged: bool) -> Option<Dispatch> {
    let (Some(Happened::Ran { preempted }), Some(Happened::Began { at, length })) = (history.last(), history.first())
    else {
        return None;
    };
    match preempted {
        Some(PreemptReason::Wakeup) => Some(Dispatch::PollUrgent),
        Some(PreemptReason::Tick) => Some(Dispatch::EndTurn),
        _ if !is_backlogged || now >= at + length => Some(Dispatch::EndTurn),
        _ => None,
    }
}

proptest! {
    #[test]
    fn every_answer_follows_from_the_history_of_the_turn(
        steps in proptest::collection::vec(step(), 1..120),
        decisions in proptest::collection::vec(decision(), 120),
        turn in 0_u64..30_000,
        precedence in proptest::collection::vec(0_usize..3, 4),
        ranks in proptest::collection::vec(0_u64..3, 4),
    ) {
        let orders = [Precedence::First, Precedence::InTurn, Precedence::Last];
        let policy = Scripted {
            decisions: decisions.clone().into(),
            turn,
            precedence: (0..).zip(precedence.iter().map(|at| orders[*at])).collect(),
            ranks: (0..).zip(ranks.iter().copied()).collect(),
            ..Scripted::default()
        };
        let mut dispatcher = Dispatcher::new(policy);
        let mut expected = decisions.into_iter();
        let (mut now, mut history) = (1_000_000_u64, Vec::new());
        // Units that were granted, and those of them that ran or are ready again.
        let (mut granted, mut accounted) = (0_u64, 0_u64);
        // When each tenant's deferred work was refused since it ran last.
        let mut refused: Option<u64> = None;
        for step in steps {
            match step {
                Step::Turn(polled) => {
                    let length = turn.max((polled * 4).min(200_000));
                    prop_assert_eq!(dispatcher.begin_turn(Nanos(now), Nanos(polled)), Nanos(length));
                    history = vec![Happened::Began { at: now, length }];
                }
                Step::Next { .. } if history.is_empty() => {}
                Step::Next { is_backlogged, unit, preempted } => {
                    let asked = dispatcher.policy().asked;
                    let next = dispatcher.next(Nanos(now), is_backlogged);
                    if let Some(ruled) = by_the_rules(&history, now, is_backlogged) {
                        prop_assert_eq!((next, dispatcher.policy().asked), (ruled, asked));
                    } else {
                        let dispatch = match expected.next().expect("as many as steps") {
                            Decision::Run(grant) => Dispatch::Run(grant),
                            Decision::IdleUntil(at) => Dispatch::Idle(Some(at)),
                            Decision::Idle => Dispatch::Idle(None),
                        };
                        prop_assert_eq!((next, dispatcher.policy().asked), (dispatch, asked + 1));
                    }
                    match next {
                        Dispatch::Run(grant) => {
                            let preempted = preempted.filter(|(units, _)| *units < grant.units);
                            let ran = preempted.map_or(grant.units, |(units, _)| units);
                            let reason = preempted.map(|(_, reason)| reason);
                            reason.into_iter().for_each(|reason| dispatcher.preempt(reason));
                            now += u64::from(ran) * unit;
                            let before = dispatcher.policy().ready.len();
                            dispatcher.charge(Nanos(now), units(ran), remainder);
                            granted += u64::from(grant.units);
                            accounted += u64::from(ran);
                            for (queue, work) in &dispatcher.policy().ready[before..] {
                                prop_assert_eq!(*queue, grant.queue);
                                accounted += u64::from(work.units);
                            }
                            prop_assert_eq!(granted, accounted, "no unit is lost or doubled");
                            history.push(Happened::Ran { preempted: reason });
                        }
                        Dispatch::PollUrgent => history.push(Happened::Polled),
                        Dispatch::EndTurn | Dispatch::Idle(_) => history.clear(),
                    }
                }
                Step::Deferred { is_contended, first, pieces, each } => {
                    let tenants: Vec<u16> = (0..pieces as u16).map(|at| (first + at) % 4).collect();
                    let mut turn_of = dispatcher.begin_deferred(Nanos(now), is_contended);
                    let began = now;
                    let mut left = tenants;
                    for piece in 0.. {
                        let candidates = left.iter().enumerate().map(|(at, tenant)| (TenantId(*tenant), at));
                        let next = dispatcher.next_deferred(&mut turn_of, Nanos(now), candidates);
                        let least = left.iter().map(|tenant| ranks[usize::from(*tenant)]).min();
                        let best = left.iter().position(|tenant| Some(ranks[usize::from(*tenant)]) == least);
                        let may = |at: usize| {
                            let is_last = orders[precedence[usize::from(left[at])]] == Precedence::Last;
                            !(is_contended && is_last) || refused.is_some_and(|since| now - since >= 1_000_000)
                        };
                        let is_over = piece == 16 || piece > 0 && now - began >= turn;
                        let ruled = best.filter(|at| !is_over && may(*at));
                        prop_assert_eq!(next.map(|(_, at)| at), ruled);
                        let Some((tenant, at)) = next else {
                            if !is_over && best.is_some() {
                                refused.get_or_insert(now);
                            }
                            break;
                        };
                        prop_assert_eq!(tenant, TenantId(left.remove(at)));
                        refused = None;
                        now += each;
                        dispatcher.charge_deferred(Nanos(now), tenant, Nanos(each));
                    }
                }
            }
        }
    }
}

/// A core that polls `Weighted` now and then, with a flood and an urgent tenant: whatever the flood's grants are, the
/// urgent one waits for a unit of them.
#[test]
fn an_urgent_tenant_waits_for_one_unit_of_a_flood() {
    let mut dispatcher = Dispatcher::new(Weighted::default());
    let [flood, urgent] = [0, 1].map(|tenant| grant(tenant, 0).queue);
    dispatcher.configure(urgent.tenant, Share { class: LatencyClass::Latency, ..Share::default() });
    let (unit, mut now, mut came, mut waits) = (1_000, 0_u64, None, Vec::new());
    let mut waiting = [0_u32; 2];
    while now < 20_000_000 {
        let mut take_in = |dispatcher: &mut Dispatcher<Weighted>, queue: QueueId, units: u32, now: u64| {
            if units > 0 {
                dispatcher.ready(Nanos(now), queue, Work { units, bytes: 0 });
                waiting[queue.index as usize] += units;
            }
        };
        take_in(&mut dispatcher, flood, 32, now);
        take_in(&mut dispatcher, urgent, came.is_some().into(), now);
        dispatcher.begin_turn(Nanos(now), Nanos(0));
        loop {
            match dispatcher.next(Nanos(now), waiting.iter().any(|units| *units > 0)) {
                Dispatch::Run(grant) => {
                    let mut ran = 0;
                    while ran < grant.units {
                        (ran, now) = (ran + 1, now + unit);
                        if grant.queue == urgent {
                            waits.extend(came.take().map(|came: u64| now - unit - came));
                        } else if came.is_none() && now % 97_000 == 0 {
                            came = Some(now - unit / 2);
                        }
                        if came.is_some() && ran < grant.units && dispatcher.wakeup_preempts(urgent.tenant) {
                            dispatcher.preempt(PreemptReason::Wakeup);
                            break;
                        }
                    }
                    waiting[grant.queue.index as usize] -= ran;
                    let cost = Cost { units: ran, time: Nanos(u64::from(ran) * unit), ..Cost::default() };
                    dispatcher.charge(Nanos(now), cost, |units| Work { units, bytes: 0 });
                }
                Dispatch::PollUrgent => {
                    dispatcher.ready(Nanos(now), urgent, Work { units: 1, bytes: 0 });
                    waiting[1] += 1;
                }
                Dispatch::EndTurn | Dispatch::Idle(_) => break,
            }
        }
    }
    assert!(waits.len() > 150, "{}", waits.len());
    assert!(waits.iter().all(|wait| *wait <= 2 * unit), "{:?}", waits.iter().max());
}
