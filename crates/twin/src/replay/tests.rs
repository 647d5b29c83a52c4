use softdpu_sched::record::Recording;
use softdpu_sched::{Placement, QueueId, TenantId, WorkKind};

use super::*;
use crate::arrivals::Arrivals;
use crate::node::{Node, Plan, QueuePlan, Service, Source, Tally};
use crate::station::Station;

/// A core with a flood, two light tenants and a disk, recorded.
fn recorded(name: &str) -> (Vec<u8>, Tally) {
    let policy = Policy::named(name).expect("a policy");
    let mut plan =
        Plan { cores: 1, stations: vec![Station { servers: 4, service: 30_000, spread: 30 }], ..Plan::default() };
    let laws = [
        Arrivals::Closed { depth: 100, think: 1 },
        Arrivals::poisson(20_000.0),
        Arrivals::OnOff { on: 100_000, off: 400_000, gap: 5_000 << 10 },
        Arrivals::Closed { depth: 16, think: 5_000 },
    ];
    for (tenant, arrivals) in (0_u16..).zip(laws) {
        let id = QueueId { tenant: TenantId(tenant), index: tenant.into() };
        let back_end = (tenant == 3).then_some(softdpu_sched::BackEnd { index: 0, depth: 8 });
        let placement = Placement { device: 0, kind: WorkKind::Requests, back_end };
        let station = (tenant == 3).then_some(0);
        plan.queues.push(QueuePlan { id, core: 0, placement, capacity: 1_024, station, deferred: None });
        let service = Service { unit: 1_500, byte: 0, spread: 20 };
        plan.sources.push(Source { arrivals, start: 0, bytes: 4_096, service, queues: vec![tenant.into()] });
    }
    let header = Header { core: 1, policy: name.to_owned(), parameters: policy.parameters() };
    let mut node = Node::new(plan, |_| Recording::new(policy.build(), &header, 4 << 20), Tally::new(4, 0), 11);
    node.run(10_000_000);
    let (policies, tally) = node.into_parts();
    let recording = policies.into_iter().next().expect("a core");
    assert!(!recording.is_stopped());
    (recording.finish().1, tally)
}

#[test]
fn every_policy_takes_its_decisions_again() {
    for name in Policy::NAMES {
        let (file, _) = recorded(name);
        let verified = verify(&file).expect("a recording");
        assert_eq!((verified.outcome, verified.ending), (Outcome::Same, Ending::Whole), "{name}");
        assert!(verified.grants > 100, "{name}: {}", verified.grants);
    }
}

#[test]
fn a_decision_that_differs_is_found_and_told() {
    let (file, _) = recorded("weighted");
    let (mut header, decoder) = Decoder::new(&file).expect("a recording");
    let all: Vec<Event> = decoder.collect::<Result<_, _>>().expect("whole");
    // Another grant length is another policy.
    header.parameters[0].1 /= 4;
    let mut encoder = softdpu_sched::record::Encoder::new(&header, 8 << 20);
    all.iter().for_each(|event| encoder.write(event));
    let verified = verify(&encoder.take(Vec::new())).expect("a recording");
    let Outcome::Differs { event, recorded, decided, .. } = verified.outcome else { panic!("the same") };
    assert_ne!(recorded, decided);
    assert!(matches!(all[event as usize], Event::Decide { decision, .. } if decision == recorded));
}

#[test]
fn one_that_was_cut_is_replayed_as_far_as_it_goes() {
    let (file, _) = recorded("mtda");
    let verified = verify(&file[..file.len() - 1]).expect("a recording");
    assert_eq!((verified.outcome, verified.ending), (Outcome::Same, Ending::Truncated(file.len() - 1)));
}

#[test]
fn what_no_core_does_is_refused() {
    let (file, _) = recorded("fcfs");
    let (header, decoder) = Decoder::new(&file).expect("a recording");
    let charge = decoder.flatten().find(|event| matches!(event, Event::Charge { .. })).expect("a charge");
    let mut encoder = softdpu_sched::record::Encoder::new(&header, 4_096);
    encoder.write(&charge);
    let refused = verify(&encoder.take(Vec::new())).expect_err("a charge without a grant");
    assert!(matches!(refused, ReplayError::Inconsistent { event: 0, .. }), "{refused}");
}

#[test]
fn another_policy_shows_what_it_would_have_done() {
    let (file, tally) = recorded("fcfs");
    let compared = compare(&file, &Policy::named("weighted").expect("a policy")).expect("a recording");
    // What was recorded is what happened.
    assert!(compared.recorded[&1].units.abs_diff(tally.tenants[1].latency.count()) <= 2);
    // Deciding anew by the same policy gives nearly what was recorded.
    let p99 = |fared: &again::Fared, tenant: u16| fared[&tenant].waits.quantile(0.99) as f64;
    let ratio = p99(&compared.modelled, 1) / p99(&compared.recorded, 1);
    assert!((ratio - 1.0).abs() < 0.1, "{ratio}");
    // Beside a flood of 100 that is served in order, a light tenant waits for all of it; weighted lets it go first.
    assert!(p99(&compared.recorded, 1) > 5.0 * p99(&compared.other, 1), "{:?}", p99(&compared.other, 1));
}

/// A recording of these events, by a core that serves first come, first served.
fn by_hand(events: &[Event]) -> Vec<u8> {
    let header = Header { core: 0, policy: "fcfs".to_owned(), parameters: Vec::new() };
    let mut encoder = softdpu_sched::record::Encoder::new(&header, 1 << 16);
    events.iter().for_each(|event| encoder.write(event));
    encoder.take(Vec::new())
}

#[test]
fn the_rest_of_a_grant_that_was_cut_short_has_waited_since_it_came() {
    let queue = QueueId { tenant: TenantId(0), index: 0 };
    let ready = |now, units| Event::Ready { now: Nanos(now), queue, work: softdpu_sched::Work { units, bytes: 0 } };
    let run = |now, units| Event::Decide { now: Nanos(now), decision: Decision::Run(Grant { queue, units }) };
    let ran = |now, granted, units, time| Event::Charge {
        now: Nanos(now),
        grant: Grant { queue, units: granted },
        cost: softdpu_sched::Cost { units, time: Nanos(time), bytes: 0, pending: 0 },
    };
    let file = by_hand(&[
        ready(1_000, 64),
        run(1_000, 64),
        // Ten of them, and the rest is ready again.
        ran(2_000, 64, 10, 1_000),
        ready(2_000, 54),
        ready(2_500, 1),
        run(3_000, 55),
        // Nothing: a receiver has no room, and the rest is ready when it has.
        ran(3_100, 55, 0, 100),
        ready(4_000, 55),
        run(4_000, 55),
        ran(9_500, 55, 55, 5_500),
        ready(10_000, 1),
    ]);
    let compared = compare(&file, &Policy::Fcfs).expect("a recording");
    let recorded = &compared.recorded[&0];
    assert_eq!((recorded.units, recorded.left, recorded.longest, recorded.time), (65, 1, 3_000, 6_600));
    for fared in [&compared.modelled, &compared.other] {
        assert_eq!(fared[&0].units + fared[&0].left, 66, "what came, and no more");
        assert!(fared[&0].time.abs_diff(6_600) < 66, "each unit costs what it cost: {} ns", fared[&0].time);
    }
}

#[test]
fn a_core_that_cuts_grants_short_is_modelled_with_what_came_to_it() {
    let (file, tally) = recorded("weighted");
    let (_, decoder) = Decoder::new(&file).expect("a recording");
    let cut = decoder
        .flatten()
        .filter(|event| matches!(event, Event::Charge { grant, cost, .. } if cost.units < grant.units));
    assert!(cut.count() > 20, "a back end is looked at, and a light tenant does not wait");
    let compared = compare(&file, &Policy::Fcfs).expect("a recording");
    for tenant in 0..4 {
        let all = |fared: &again::Fared| fared[&tenant].units + fared[&tenant].left;
        let came = tally.tenants[usize::from(tenant)].arrived;
        assert!(all(&compared.recorded) <= came, "tenant {tenant}: {} of {came}", all(&compared.recorded));
        assert_eq!(all(&compared.recorded), all(&compared.modelled), "tenant {tenant}");
        assert_eq!(all(&compared.recorded), all(&compared.other), "tenant {tenant}");
    }
    // The same policy on the same work is near what was recorded: work that came at a look of the recorded core may
    // have to wait for one of the model's, which are 8 us apart.
    let mean = |fared: &again::Fared| fared[&1].waits.mean();
    assert!(mean(&compared.modelled) < mean(&compared.recorded) + 9_500.0, "{} ns", mean(&compared.modelled));
    assert!(mean(&compared.other) > 4.0 * mean(&compared.modelled), "{} ns", mean(&compared.other));
}
