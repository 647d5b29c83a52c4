//! Grants that end early, their remainders, the lone queue, and clocks.

use super::*;

/// A flood of tenant 1 in a grant of eight, after a millisecond in which it was alone. Tenant 0 is of `class`.
fn in_a_grant(class: LatencyClass) -> (Weighted, Grant) {
    let mut policy = with(&[Share { class, ..share(1) }, share(1)]);
    let flood = QueueId { tenant: TenantId(1), index: 1 };
    let run = |policy: &mut Weighted, now: u64, units: u32| {
        policy.ready(Nanos(now), flood, Work { units, bytes: 0 });
        match policy.decide(Nanos(now)) {
            Decision::Run(grant) => grant,
            other => panic!("work is ready: {other:?}"),
        }
    };
    let mut now = 0;
    while now < MS {
        let grant = run(&mut policy, now, 1);
        now += 1_000;
        policy.charge(Nanos(now), grant, Cost { units: 1, time: Nanos(1_000), ..Cost::default() });
    }
    let grant = run(&mut policy, now, 8);
    assert_eq!((grant.queue, grant.units), (flood, 8));
    (policy, grant)
}

#[test]
fn a_tenant_of_class_latency_below_its_share_preempts_a_grant() {
    assert!(in_a_grant(LatencyClass::Latency).0.wakeup_preempt(TenantId(0)));
    assert!(!in_a_grant(LatencyClass::Normal).0.wakeup_preempt(TenantId(0)), "a class that waits for the grant");
    assert!(!in_a_grant(LatencyClass::Latency).0.wakeup_preempt(TenantId(1)), "itself");
    assert!(!in_a_grant(LatencyClass::Latency).0.wakeup_preempt(TenantId(9)), "no such tenant");
    let mut beyond = in_a_grant(LatencyClass::Latency).0;
    beyond.tenants[RowIndex::from_row(0)].tag = beyond.calendar.now() + 1;
    assert!(!beyond.wakeup_preempt(TenantId(0)), "one that has had its share");
}

#[test]
fn a_long_grant_is_preempted_by_a_tenant_that_goes_first() {
    let mut policy = with(&[share(1), share(1), Share { class: LatencyClass::Background, ..share(1) }]);
    let queue = |tenant: u16| QueueId { tenant: TenantId(tenant), index: tenant.into() };
    let mut now = Nanos(0);
    let run = |policy: &mut Weighted, now: &mut Nanos| {
        let Decision::Run(grant) = policy.decide(*now) else { panic!("work is ready") };
        *now = *now + Nanos(500 * u64::from(grant.units));
        let cost = Cost { units: grant.units, time: Nanos(500 * u64::from(grant.units)), ..Cost::default() };
        (grant, cost)
    };
    for tenant in [0, 2] {
        policy.ready(now, queue(tenant), Work { units: 1_000, bytes: 0 });
    }
    for _ in 0..40 {
        let (grant, cost) = run(&mut policy, &mut now);
        policy.charge(now, grant, cost);
    }
    // Both had their shares lately, and the cost of a unit is known.
    let (grant, _) = run(&mut policy, &mut now);
    assert!(grant.units > 50 && policy.tick() == Some(Nanos(8_000)), "{grant:?}");
    assert!(policy.tick_preempt(TenantId(1)), "one that had nothing yet");
    assert!(!policy.tick_preempt(TenantId(0)) && !policy.tick_preempt(TenantId(2)), "those that always have work");
    assert!(!policy.tick_preempt(TenantId(9)), "no such tenant");
    policy.charge(now, grant, Cost { units: 16, time: Nanos(8_000), ..Cost::default() });
    policy.ready(now, grant.queue, Work { units: grant.units - 16, bytes: 0 });
    policy.ready(now, queue(1), Work { units: 100, bytes: 0 });
    let (grant, _) = run(&mut policy, &mut now);
    assert_eq!((grant.queue, policy.tick()), (queue(1), None), "a tenant that goes first has a short one");
    assert!(!policy.tick_preempt(TenantId(0)));
}

#[test]
fn a_clock_that_goes_back_while_a_grant_runs_gives_no_second_burst() {
    let limits = Limits { requests: Some(Rate { rate: 1_000_000, burst: 10 }), ..Limits::default() };
    let mut policy = with(&[Share { limits, ..share(1) }]);
    let queue = QueueId { tenant: TenantId(0), index: 0 };
    policy.ready(Nanos(100 * MS), queue, Work { units: 100, bytes: 0 });
    let Decision::Run(grant) = policy.decide(Nanos(100 * MS)) else { panic!("a burst is there") };
    assert_eq!(grant.units, 10);
    policy.charge(Nanos(50 * MS), grant, Cost { units: 10, time: Nanos(5_000), ..Cost::default() });
    assert!(matches!(policy.decide(Nanos(100 * MS)), Decision::IdleUntil(_)), "it was had at this time before");
}

#[test]
fn a_bypassed_queue_is_charged_when_another_has_work() {
    let mut policy = with(&[share(1), share(1)]);
    let queue = |tenant: u16| QueueId { tenant: TenantId(tenant), index: tenant.into() };
    let (mut now, mut charged) = (Nanos(20 * MS), 0);
    let mut short = |policy: &mut Weighted, now: &mut Nanos| {
        policy.ready(*now, queue(0), Work { units: 2, bytes: 8_192 });
        let Decision::Run(grant) = policy.decide(*now) else { panic!("work is ready") };
        *now = *now + Nanos(3_000);
        policy.charge(*now, grant, Cost { units: grant.units, time: Nanos(3_000), ..Cost::default() });
        charged += 3_000;
        assert_eq!(policy.decide(*now), Decision::Idle);
    };
    (0..105).for_each(|_| short(&mut policy, &mut now));
    assert!(policy.bypass.is_some());
    // What waits when the other comes is not lost, and what was had counts.
    policy.ready(now, queue(0), Work { units: 7, bytes: 0 });
    policy.ready(now, queue(1), Work { units: 7, bytes: 0 });
    assert!(policy.bypass.is_none());
    let tag = policy.tenants[RowIndex::from_row(0)].tag;
    assert!(tag >= charged * SCALE - SLOT * SCALE, "{tag} of {}", charged * SCALE);
    let mut left = [7, 7];
    while let Decision::Run(grant) = policy.decide(now) {
        left[usize::from(grant.queue.tenant.0)] -= grant.units;
        policy.charge(now, grant, Cost { units: grant.units, time: Nanos(1_000), ..Cost::default() });
    }
    assert_eq!(left, [0, 0]);
}

#[test]
fn the_remainder_of_a_preempted_grant_is_granted_again() {
    let (mut policy, grant) = in_a_grant(LatencyClass::Latency);
    let cost = |units: u32| Cost { units, time: Nanos(1_000 * u64::from(units)), ..Cost::default() };
    let (mut now, urgent) = (Nanos(2 * MS), QueueId { tenant: TenantId(0), index: 0 });
    policy.charge(now, grant, cost(1));
    policy.ready(now, grant.queue, Work { units: grant.units - 1, bytes: 0 });
    policy.ready(now, urgent, Work { units: 1, bytes: 0 });
    let mut ran = Vec::new();
    while let Decision::Run(next) = policy.decide(now) {
        now = now + Nanos(1_000);
        policy.charge(now, next, cost(next.units));
        ran.push((next.queue.tenant.0, next.units));
    }
    assert_eq!(ran[0], (0, 1), "what came goes first");
    let rest: u32 = ran[1..].iter().map(|(_, units)| units).sum();
    assert_eq!(rest, 7, "of eight: {ran:?}");
}

/// Among others that take turns, as far behind the clock as turns can be where lanes have had something.
#[test]
fn the_remainder_of_a_preempted_grant_is_behind_what_preempted_it() {
    let mut policy = with(&[share(1), share(1), share(1)]);
    let queue = |tenant: u16| QueueId { tenant: TenantId(tenant), index: tenant.into() };
    let work = |units: u32| Work { units, bytes: 0 };
    let cost = |units: u32| Cost { units, time: Nanos(1_000 * u64::from(units)), ..Cost::default() };
    let mut now = Nanos(0);
    for tenant in [0, 2] {
        policy.ready(now, queue(tenant), work(8));
    }
    let ended = loop {
        let Decision::Run(grant) = policy.decide(now) else { panic!("work is ready") };
        if now >= Nanos(MS) && grant.queue == queue(0) && grant.units == 8 {
            break grant;
        }
        now = now + cost(grant.units).time;
        policy.charge(now, grant, cost(grant.units));
        policy.ready(now, grant.queue, work(grant.units));
    };
    assert!(policy.tick_preempt(TenantId(1)), "it had nothing yet");
    now = now + cost(1).time;
    policy.charge(now, ended, cost(1));
    // So far that it would go first if this were work that comes.
    policy.tenants[RowIndex::from_row(0)].tag = policy.calendar.now() - Weighted::CARRY.0 * SCALE;
    policy.ready(now, queue(0), work(7));
    policy.ready(now, queue(1), work(1));
    let Decision::Run(grant) = policy.decide(now) else { panic!("work is ready") };
    assert_eq!(grant.queue, queue(1));
}

#[test]
fn the_clock_is_not_far_ahead_of_turns_that_do_not_come() {
    let mut policy = with(&[share(1), share(1)]);
    for tenant in 0..2 {
        policy.ready(Nanos(0), QueueId { tenant: TenantId(tenant), index: tenant.into() }, Work { units: 1, bytes: 0 });
    }
    // Time that no tenant has.
    (0..1_000).for_each(|_| policy.calendar.tick(8_000));
    let ahead = policy.calendar.now() - policy.calendar.virtual_time();
    assert_eq!(ahead, calendar::FURTHEST);
}
