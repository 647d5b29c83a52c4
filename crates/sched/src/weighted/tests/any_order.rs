//! All calls, in any order.

use super::*;

/// Everything a caller may do, in any order: nothing panics, nothing is lost, nothing is granted twice.
#[derive(Clone, Debug)]
enum Step {
    Ready(u16, u32, u32),
    Decide(u64, bool),
    Complete,
    Cancel(u16, u32),
    Configure(u16, Share),
    Place(u16, u32, Placement),
}

fn step() -> impl Strategy<Value = Step> {
    let tenant = 0_u16..5;
    let share = (1_u32..20_000, 0_u16..300, 0_usize..3, proptest::option::of((1_u64..1_000_000, 1_u64..100)));
    let share = share.prop_map(|(weight, guarantee, class, limit)| Share {
        weight,
        guarantee,
        class: [LatencyClass::Latency, LatencyClass::Normal, LatencyClass::Background][class],
        limits: Limits { requests: limit.map(|(rate, burst)| Rate { rate, burst }), ..Limits::default() },
        cores: 0,
    });
    let placement = (0_u32..3, any::<bool>(), proptest::option::of((0_u32..2, 1_u32..8)));
    let placement = placement.prop_map(|(device, packets, back_end)| Placement {
        device,
        kind: if packets { Kind::Packets } else { Kind::Requests },
        back_end: back_end.map(|(index, depth)| BackEnd { index, depth }),
    });
    prop_oneof![
        6 => (tenant.clone(), 0_u32..4, 0_u32..80).prop_map(|(tenant, queue, units)| Step::Ready(tenant, queue, units)),
        8 => (0_u64..60_000, any::<bool>()).prop_map(|(time, pending)| Step::Decide(time, pending)),
        3 => Just(Step::Complete),
        1 => (tenant.clone(), 0_u32..4).prop_map(|(tenant, queue)| Step::Cancel(tenant, queue)),
        1 => (tenant.clone(), share).prop_map(|(tenant, share)| Step::Configure(tenant, share)),
        1 => (tenant, 0_u32..4, placement).prop_map(|(tenant, queue, placement)| Step::Place(tenant, queue, placement)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn no_order_of_calls_loses_or_doubles_work(steps in proptest::collection::vec(step(), 1..300)) {
        let mut policy = Weighted::default();
        let id = |tenant: u16, queue: u32| QueueId { tenant: TenantId(tenant), index: u32::from(tenant) * 4 + queue };
        let mut waiting = std::collections::BTreeMap::<QueueId, u32>::new();
        let (mut now, mut at_back_ends) = (1_000_000, Vec::new());
        let run = |policy: &mut Weighted, now: &mut u64, time: u64, pending: bool,
                       waiting: &mut std::collections::BTreeMap<QueueId, u32>, at_back_ends: &mut Vec<Grant>| {
            let decision = policy.decide(Nanos(*now));
            if let Decision::Run(grant) = decision {
                let left = waiting.get_mut(&grant.queue).expect("a queue with work");
                *left = left.checked_sub(grant.units).expect("no more than was ready");
                *now += time;
                let pending = if pending { grant.units } else { 0 };
                at_back_ends.extend(std::iter::repeat_n(grant, pending as usize));
                policy.charge(Nanos(*now), grant, Cost { units: grant.units, time: Nanos(time), bytes: 0, pending });
            }
            decision
        };
        for step in steps {
            match step {
                Step::Ready(tenant, queue, units) => {
                    *waiting.entry(id(tenant, queue)).or_default() += units;
                    policy.ready(Nanos(now), id(tenant, queue), Work { units, bytes: u64::from(units) * 100 });
                }
                Step::Decide(time, pending) => {
                    run(&mut policy, &mut now, time, pending, &mut waiting, &mut at_back_ends);
                }
                Step::Complete => {
                    if let Some(grant) = at_back_ends.pop() {
                        policy.complete(Nanos(now), grant, Cost { units: 1, ..Cost::default() });
                    }
                }
                Step::Cancel(tenant, queue) => {
                    waiting.remove(&id(tenant, queue));
                    policy.cancel(Nanos(now), id(tenant, queue));
                }
                Step::Configure(tenant, share) => policy.configure(TenantId(tenant), share),
                Step::Place(tenant, queue, placement) => {
                    waiting.remove(&id(tenant, queue));
                    policy.place(id(tenant, queue), placement);
                }
            }
        }
        // Now everything ends, and all that waits is had.
        let mut rounds = 0;
        loop {
            while let Some(grant) = at_back_ends.pop() {
                policy.complete(Nanos(now), grant, Cost { units: 1, ..Cost::default() });
            }
            match run(&mut policy, &mut now, 1_000, false, &mut waiting, &mut at_back_ends) {
                Decision::Run(_) => {}
                Decision::IdleUntil(at) => now = now.max(at.0),
                Decision::Idle => break,
            }
            rounds += 1;
            prop_assert!(rounds < 10_000_000);
        }
        prop_assert!(waiting.values().all(|left| *left == 0), "{waiting:?} waits for ever");
        prop_assert_eq!((policy.runnable, policy.calendar.weights), (0, 0));
        for back_end in 0..2 {
            prop_assert_eq!(policy.tree.pending(RowIndex::from_row(back_end)), 0);
        }
    }
}
