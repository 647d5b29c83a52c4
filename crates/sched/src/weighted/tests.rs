//! The promises of `docs/scheduling.md`, over random workloads.

use proptest::prelude::*;

use super::index::RowIndex;
use super::*;
use crate::driver::{Arrivals, Client, Driver};
use crate::{
    BackEnd, Decision, DeferredWork, Grant, Kind, Limits, Precedence, Preemption, Rate, TenantScheduler, Work,
};

mod any_order;
mod back_ends;
mod preemption;

const MS: u64 = 1_000_000;

fn share(weight: u32) -> Share {
    Share { weight, ..Share::default() }
}

fn with(shares: &[Share]) -> Weighted {
    let mut policy = Weighted::default();
    for (tenant, share) in shares.iter().enumerate() {
        policy.configure(TenantId(tenant as u16), *share);
    }
    policy
}

/// How far a tenant's part of all time is from its weight's part of all weights, of that.
fn error(driver: &Driver<Weighted>, weights: &[u32], from: u64) -> f64 {
    let times: Vec<f64> = (0..weights.len()).map(|tenant| driver.time_of(tenant as u16, from) as f64).collect();
    let (time, weight) = (times.iter().sum::<f64>(), weights.iter().sum::<u32>() as f64);
    let off = |(&got, &weight_of): (&f64, &u32)| (got / time / (f64::from(weight_of) / weight) - 1.0).abs();
    times.iter().zip(weights).map(off).fold(0.0, f64::max)
}

/// What a grant of others than one tenant takes at the most until it gives way.
fn longest_others(driver: &Driver<Weighted>, tenant: u16) -> u64 {
    let others = driver.log.iter().filter(|ran| ran.grant.queue.tenant.0 != tenant);
    let each = |ran: &crate::driver::Ran| {
        let unit = (ran.end - ran.start) / u64::from(ran.grant.units);
        (ran.end - ran.start).min(Tuning::default().grant.0 + unit)
    };
    others.map(each).max().unwrap_or(0)
}

/// A tenant that asks for `part` of its share beside floods waits for one grant of theirs at the most, and for one of
/// its own, once it has caught up with what it could not have during their first grants: those are long, as nobody
/// knows yet what their work costs.
fn hardly_waits(floods: &[(u32, u64)], weight: u32, cost: u64, part: f64) -> Result<(), TestCaseError> {
    let mut shares = vec![share(weight)];
    shares.extend(floods.iter().map(|(weight, _)| share(*weight)));
    let all: u32 = shares.iter().map(|share| share.weight).sum();
    // So often that it asks for `part` of its share.
    let every = (cost as f64 * f64::from(all) / f64::from(weight) / part) as u64;
    let mut clients = vec![Client::new(0, 0, cost, Arrivals::Open { units: 1, every })];
    for (at, &(_, cost)) in floods.iter().enumerate() {
        clients.push(Client::flood(at as u16 + 1, at as u32 + 1, cost));
    }
    let mut driver = Driver::new(with(&shares), &clients);
    // What is left of its share beside what it asks for makes up for that, and then for what it may save up.
    let first = floods.iter().map(|(_, cost)| 16 * cost).sum::<u64>() + Weighted::CARRY.0;
    let from = 20 * MS + (first as f64 * f64::from(all) / f64::from(weight) / (1.0 - part)) as u64;
    let until = from + (every * 200).clamp(100 * MS, 400 * MS);
    driver.run(until);
    let asked = until / every;
    let got = driver.units_of(0, 0);
    let longest = longest_others(&driver, 0);
    // At the end it may wait as long as it ever does.
    prop_assert!(got + longest / every + 2 >= asked, "{got} of {asked}");
    let own = driver.of(0).map(|ran| ran.end - ran.start).max().unwrap_or(0);
    let waited = driver.longest_wait(0, from);
    prop_assert!(
        waited <= longest + own,
        "{waited} ns, where a grant takes {longest} ns at the most, and one of its own {own} ns"
    );
    Ok(())
}

#[test]
fn a_tenant_near_its_share_waits_for_a_grant_and_one_of_its_own() {
    // Virtual time by slots stood still while the tenant of weight 1 had its turns, and this one fell out of its lane.
    hardly_waits(&[(1, 200), (3, 200)], 8, 500, 0.765_601_925_476_060_8).expect("the bound");
    // It had a tenth of its share left and waited for ten grants, while virtual time was held back to the flood's slot.
    hardly_waits(&[(3, 18_000)], 10, 5_600, 0.9).expect("the bound");
}

#[test]
fn a_tenant_next_to_its_share_waits_for_a_grant_and_one_of_its_own() {
    // Of what it could not have during the first grant, 238 us, each of these still had some after 20 ms, and so had
    // not come to its lane.
    hardly_waits(&[(1, 14_868)], 15, 501, 0.98927).expect("the bound");
    hardly_waits(&[(1, 15_582)], 14, 1_781, 0.988_586_671_751_634_7).expect("the bound");
    hardly_waits(&[(1, 14_391)], 6, 552, 0.989_938_146_957_742_3).expect("the bound");
}

/// Who goes first stays there no longer than until it has had its share of what is not guaranteed, though others'
/// guarantees keep it below its weight's part: whoever is owed something in the lane after it has that.
#[test]
fn a_guarantee_is_had_beside_a_flood_of_a_class_before_it() {
    let guaranteed = |guarantee| Share { guarantee, ..share(1) };
    let urgent = Share { class: LatencyClass::Latency, ..share(16) };
    let also = Share { class: LatencyClass::Latency, ..guaranteed(600) };
    let flood = |tenant, start| Client { start, ..Client::flood(tenant, tenant.into(), 1_500) };
    // Who comes later comes to its lane, and the one that asks for what it is guaranteed is always in it.
    let asks = Client::new(2, 2, 1_500, Arrivals::Open { units: 1, every: 2_600 });
    let mut driver = Driver::new(with(&[guaranteed(100), urgent, also]), &[flood(0, 2 * MS), flood(1, MS), asks]);
    driver.run(40 * MS);
    for until in (4..40).step_by(4) {
        let had = driver.time_of(0, 0) - driver.time_of(0, until * MS);
        let due = (until - 2) * MS / 10;
        assert!(had + 2 * Weighted::CARRY.0 >= due, "{had} ns of {due} after {until} ms");
    }
}

/// The same where what is guaranteed to the other goes on beside grants.
#[test]
fn a_guarantee_is_had_beside_a_flood_and_work_beside_grants() {
    let [owed, flood, beside] = [0_u16, 1, 2].map(TenantId);
    let queue = |tenant: TenantId| QueueId { tenant, index: tenant.0.into() };
    let shares = [
        Share { guarantee: 100, ..share(1) },
        Share { class: LatencyClass::Latency, ..share(16) },
        Share { class: LatencyClass::Latency, guarantee: 600, ..share(1) },
    ];
    let mut policy = with(&shares);
    for tenant in [owed, flood, beside] {
        policy.place(queue(tenant), Placement { device: tenant.0.into(), ..Placement::default() });
    }
    let ready =
        |policy: &mut Weighted, now, tenant, units| policy.ready(Nanos(now), queue(tenant), Work { units, bytes: 0 });
    let (mut now, mut had, mut spent) = (0, [0_u64; 3], 0);
    let mut began = [false; 2];
    while now < 40 * MS {
        // What is beside grants has work for its guarantee: 600 of 1,000.
        if spent < now * 6 / 10 && policy.deferred_precedence(beside) != Precedence::Last {
            now += 2_000;
            spent += 2_000;
            policy.charge_deferred(Nanos(now), beside, Nanos(2_000));
            continue;
        }
        for (tenant, at) in [(flood, MS), (owed, 2 * MS)] {
            if now >= at && !std::mem::replace(&mut began[usize::from(tenant.0)], true) {
                ready(&mut policy, now, tenant, 128);
            }
        }
        let Decision::Run(grant) = policy.decide(Nanos(now)) else {
            now += 500;
            continue;
        };
        let time = 1_500 * u64::from(grant.units);
        now += time;
        had[usize::from(grant.queue.tenant.0)] += time;
        ready(&mut policy, now, grant.queue.tenant, grant.units);
        policy.charge(Nanos(now), grant, Cost { units: grant.units, time: Nanos(time), bytes: 0, pending: 0 });
    }
    assert!(had[0] + 2 * Weighted::CARRY.0 >= 38 * MS / 10, "{had:?} ns, {spent} beside grants");
}

/// One that came to its lane and then was alone has had more than its share: it is in its turn when somebody comes.
#[test]
fn a_tenant_that_was_alone_with_a_light_one_does_not_go_first() {
    let cost = 3_000;
    // Now and then, and light.
    let light = Client::new(1, 1, cost, Arrivals::Open { units: 1, every: 100 * cost });
    let flood = Client { start: MS, ..Client::flood(0, 0, 2_000) };
    let mut driver = Driver::new(with(&[share(14), share(3)]), &[flood, light]);
    driver.run(100 * MS);
    let (longest, own) = (longest_others(&driver, 1), cost);
    let waited = driver.longest_wait(1, 10 * MS);
    assert!(waited <= longest + own, "{waited} ns beside grants of {longest} ns");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// One that asks for less than its share has all it asks for, and waits for no more than the bound says.
    #[test]
    fn a_light_tenant_has_all_it_asks_for_and_hardly_waits(
        floods in proptest::collection::vec((1_u32..=64, 200_u64..20_000), 1..8),
        weight in 1_u32..=64,
        cost in 500_u64..6_000,
        part in prop_oneof![0.05_f64..0.5, 0.5_f64..0.95, 0.95_f64..0.99],
    ) {
        hardly_waits(&floods, weight, cost, part)?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Whatever a request costs, and in however many queues and devices it comes.
    #[test]
    fn shares_of_backlogged_tenants_are_their_weights(
        tenants in proptest::collection::vec((1_u32..=32, 1_000_u64..20_000, 1_u32..4), 2..7),
    ) {
        let weights: Vec<u32> = tenants.iter().map(|tenant| tenant.0).collect();
        let shares: Vec<Share> = weights.iter().map(|weight| share(*weight)).collect();
        let mut clients = Vec::new();
        for (tenant, &(_, cost, queues)) in tenants.iter().enumerate() {
            for _ in 0..queues {
                clients.push(Client::flood(tenant as u16, clients.len() as u32, cost));
            }
        }
        let mut driver = Driver::new(with(&shares), &clients);
        // The least share is to be many grants.
        driver.run(1_000 * MS);
        prop_assert!(error(&driver, &weights, 100 * MS) < 0.02, "{}", error(&driver, &weights, 100 * MS));
        prop_assert_eq!(driver.wasted, 0);
    }

    /// The bound among several light tenants: one grant that runs, and one each of those that were before it.
    #[test]
    fn light_tenants_wait_for_one_grant_each_however_many_flood(
        lights in 1_u16..12,
        floods in 1_u16..40,
        cost in 500_u64..4_000,
    ) {
        let mut clients = Vec::new();
        let all = u64::from(lights + floods);
        for tenant in 0..lights {
            let every = cost * all * 3 / 2;
            let start = u64::from(tenant) * 777;
            clients.push(Client { start, ..Client::new(tenant, tenant.into(), cost, Arrivals::Open { units: 1, every }) });
        }
        for tenant in lights..lights + floods {
            clients.push(Client::flood(tenant, tenant.into(), 1_000));
        }
        let mut driver = Driver::new(with(&vec![share(1); all as usize]), &clients);
        driver.run(120 * MS);
        // Once grants are as long as they are meant to be.
        let from = 50 * MS;
        let longest = driver.log.iter().filter(|ran| ran.start >= from).map(|ran| ran.end - ran.start).max().unwrap_or(0);
        for tenant in 0..lights {
            let waited = driver.longest_wait(tenant, from);
            let bound = longest * u64::from(lights);
            prop_assert!(waited <= bound, "{waited} ns of {bound} ns");
        }
    }

    /// Several that ask for nearly their shares: a request waits for the grant that runs, and for what its tenant and
    /// the other light ones asked for before it. What floods have to do is not in it.
    #[test]
    fn light_tenants_near_their_shares_wait_for_each_other_only(
        lights in proptest::collection::vec((1_u32..=16, 500_u64..4_000), 1..6),
        floods in proptest::collection::vec((1_u32..=16, 500_u64..8_000), 1..12),
        part in 0.8_f64..0.99,
    ) {
        let shares: Vec<Share> = lights.iter().chain(&floods).map(|(weight, _)| share(*weight)).collect();
        let all: u32 = shares.iter().map(|share| share.weight).sum();
        let mut clients = Vec::new();
        for (at, &(weight, cost)) in lights.iter().enumerate() {
            let every = (cost as f64 * f64::from(all) / f64::from(weight) / part) as u64;
            let start = at as u64 * 777;
            clients.push(Client { start, ..Client::new(at as u16, at as u32, cost, Arrivals::Open { units: 1, every }) });
        }
        for (at, &(_, cost)) in floods.iter().enumerate() {
            let at = lights.len() + at;
            clients.push(Client::flood(at as u16, at as u32, cost));
        }
        let mut driver = Driver::new(with(&shares), &clients);
        driver.run(300 * MS);
        // Once they have saved up what may be.
        let from = 200 * MS;
        let longest = driver.log.iter().filter(|ran| ran.start >= from).map(|ran| ran.end - ran.start).max().unwrap_or(0);
        for tenant in 0..lights.len() as u16 {
            let waits = driver.of(tenant).filter(|ran| ran.since >= from);
            for ran in waits {
                // What ran while it waited: grants are in the order of their times.
                let first = driver.log.partition_point(|other| other.end <= ran.since);
                let meanwhile = driver.log[first..].iter().take_while(|other| other.start < ran.start);
                let floods = meanwhile.filter(|other| usize::from(other.grant.queue.tenant.0) >= lights.len());
                let flooded: u64 = floods.map(|other| other.end - other.start).sum();
                prop_assert!(flooded <= longest, "{flooded} ns of floods while tenant {tenant} waited; a grant has {longest}");
            }
        }
    }

    /// More requests at once, more queues, more devices, smaller requests: none of it gets more of the core.
    #[test]
    fn nobody_gains_by_flooding_splitting_or_more_queues(
        depth in 1_u32..2_000,
        queues in 1_u32..16,
        is_one_device in any::<bool>(),
        pieces in 1_u64..16,
    ) {
        let honest = Client::flood(0, 0, 8_000);
        let greedy = |index: u32| {
            let mut client = Client::new(1, index + 1, 8_000 / pieces, Arrivals::Closed { depth, think: 0 });
            client.placement.device = if is_one_device { 0 } else { index };
            client
        };
        let mut clients = vec![honest];
        clients.extend((0..queues).map(greedy));
        let mut driver = Driver::new(with(&[share(1), share(1)]), &clients);
        driver.run(200 * MS);
        let (honest, greedy) = (driver.time_of(0, 10 * MS) as f64, driver.time_of(1, 10 * MS) as f64);
        prop_assert!(greedy / honest < 1.02, "{}", greedy / honest);
    }

    /// Nor by having work now and then: what is saved up is bounded.
    #[test]
    fn nobody_gains_by_coming_and_going(units in 1_u32..200, every in 50_000_u64..20_000_000, cost in 1_000_u64..4_000) {
        let clients = [Client::flood(0, 0, 2_000), Client::new(1, 1, cost, Arrivals::Open { units, every })];
        let mut driver = Driver::new(with(&[share(1), share(1)]), &clients);
        driver.run(60 * MS);
        // Over any span in which it has work without a break it gets half, and what it had saved up, and a grant: of
        // each it has the other does not.
        let ran: Vec<_> = driver.of(1).copied().collect();
        let longest = driver.log.iter().map(|ran| ran.end - ran.start).max().unwrap_or(0);
        let slack = 2 * (Weighted::CARRY.0 + longest);
        let spans = ran.iter().step_by(ran.len().div_ceil(20).max(1));
        for first in spans {
            let mut sum = 0;
            for last in ran.iter().filter(|ran| ran.start >= first.start) {
                sum += last.end - last.start;
                let others: u64 = driver.of(0).filter(|r| r.start >= first.start && r.end <= last.end).map(|r| r.end - r.start).sum();
                if sum > others + slack {
                    prop_assert!(false, "{sum} ns beside {others} ns since {}, grants of {longest} ns", first.start);
                }
                if last.end > first.start + 20 * MS {
                    break;
                }
            }
        }
    }

    /// Of each kind, over every span of time, and up to there it has what it asks for.
    #[test]
    fn limits_hold_over_every_window(
        rate in 5_000_u64..400_000,
        burst in 50_u64..2_000,
        which in 0_usize..3,
        bytes in 64_u64..8_000,
    ) {
        let is_bytes = which == 1;
        let limit = Rate { rate: if is_bytes { rate * bytes } else { rate }, burst: if is_bytes { burst * bytes } else { burst } };
        let mut limits = Limits::default();
        *[&mut limits.requests, &mut limits.bytes, &mut limits.packets][which] = Some(limit);
        let kind = if which == 2 { Kind::Packets } else { Kind::Requests };
        let mut client = Client { bytes, ..Client::flood(0, 0, 500) };
        client.placement.kind = kind;
        let mut driver = Driver::new(with(&[Share { limits, ..Share::default() }]), &[client]);
        driver.run(100 * MS);
        let ran: Vec<_> = driver.of(0).copied().collect();
        for first in (0..ran.len()).step_by(ran.len().div_ceil(50)) {
            let mut sum = 0;
            for last in &ran[first..] {
                let span = u128::from(last.end - ran[first].end + 1_024);
                let allowed = u128::from(limit.burst) + span * u128::from(limit.rate) / 1_000_000_000 + 1;
                sum += if is_bytes { last.bytes } else { last.grant.units.into() };
                let last_grant = if is_bytes { last.bytes } else { 0 };
                prop_assert!(u128::from(sum) <= allowed + u128::from(last_grant), "{sum} of {allowed}");
            }
        }
        let most = 2_000_000_000 / 1_000; // What the core could do of 500 ns units.
        let due = (rate * 9 / 10).min(most) as f64 * 0.1 * 0.95;
        let got = driver.units_of(0, 0) as f64;
        prop_assert!(got >= due, "{got} of {due}");
    }

    /// The core does not idle while anything may run.
    #[test]
    fn work_is_conserved(
        clients in proptest::collection::vec((0_u16..6, 1_u32..64, 1_000_u64..3_000_000, 100_u64..30_000), 1..20),
        weights in proptest::collection::vec(1_u32..10_000, 6),
    ) {
        let clients: Vec<Client> = clients.into_iter().enumerate().map(|(at, (tenant, units, every, cost))| {
            Client::new(tenant, at as u32, cost, Arrivals::Open { units, every })
        }).collect();
        let shares: Vec<Share> = weights.iter().map(|weight| share(*weight)).collect();
        let mut driver = Driver::new(with(&shares), &clients);
        driver.run(50 * MS);
        prop_assert_eq!(driver.wasted, 0);
    }

    /// A guarantee holds beside any weights.
    #[test]
    fn a_guarantee_is_had(guarantee in 50_u16..700, weight in 100_u32..10_000, floods in 1_u16..6) {
        let mut shares = vec![Share { guarantee, ..share(1) }];
        shares.extend((0..floods).map(|_| share(weight)));
        let clients: Vec<Client> = (0..=floods).map(|at| Client::flood(at, at.into(), 1_500)).collect();
        let mut driver = Driver::new(with(&shares), &clients);
        driver.run(500 * MS);
        let part = driver.time_of(0, 20 * MS) as f64 / (480 * MS) as f64;
        prop_assert!(part > f64::from(guarantee) / 1_000.0 * 0.95, "{part} of {guarantee} thousandths");
        prop_assert!(part < f64::from(guarantee) / 1_000.0 + 0.05, "{part} of {guarantee} thousandths");
        prop_assert_eq!(driver.wasted, 0);
    }

    /// What a back end has at once is bounded, shared by weight, and no tenant is shut out by the others.
    #[test]
    fn a_back_end_is_shared_and_never_too_full(depth in 12_u32..64, weight in 1_u32..8, others in 1_u16..4) {
        let back_end = Some(BackEnd { index: 0, depth });
        let mut clients = Vec::new();
        for tenant in 0..=others {
            let mut client = Client { back_end: Some(100_000), ..Client::flood(tenant, tenant.into(), 300) };
            client.placement.back_end = back_end;
            clients.push(client);
        }
        let mut shares = vec![share(weight)];
        shares.extend((0..others).map(|_| share(1)));
        let mut driver = Driver::new(with(&shares), &clients);
        driver.run(200 * MS);
        prop_assert!(driver.most_pending <= depth as usize, "{} of {depth}", driver.most_pending);
        let units: Vec<f64> = (0..=others).map(|tenant| driver.units_of(tenant, 10 * MS) as f64).collect();
        for (tenant, got) in units.iter().enumerate() {
            let weight = if tenant == 0 { weight } else { 1 };
            let kept = depth / 8;
            let own = ((depth - kept) * weight / (shares.iter().map(|share| share.weight).sum::<u32>())).max(1);
            // What `own` at once give in the time, unless the core is what there is too little of.
            let due = f64::from(own) * 190.0 * 10.0;
            let all = 190_000_000.0 / 300.0 * f64::from(weight) / f64::from(shares.iter().map(|s| s.weight).sum::<u32>());
            prop_assert!(*got >= due.min(all) * 0.9, "tenant {tenant}: {got} of {due}");
        }
    }
}

/// A flood that has no more at once than a grant takes has nothing while that runs: it comes back to its turns, not to
/// a lane.
#[test]
fn floods_without_more_than_a_grant_do_not_go_first() {
    let cost = 500;
    for think in [1, 3_000] {
        let light = Client::new(0, 0, cost, Arrivals::Open { units: 1, every: 20 * cost });
        let flood = |tenant: u16| Client::new(tenant, tenant.into(), cost, Arrivals::Closed { depth: 16, think });
        let mut clients = vec![light];
        clients.extend((1..8).map(flood));
        let mut driver = Driver::new(with(&[share(1); 8]), &clients);
        driver.run(200 * MS);
        let (longest, waited) = (longest_others(&driver, 0), driver.longest_wait(0, 20 * MS));
        assert!(waited <= longest, "{waited} ns beside grants of {longest} ns, answered after {think} ns");
    }
}

/// It is not as if it had had its turn when its limit let go of it.
#[test]
fn a_throttled_tenant_keeps_its_lag() {
    let limits = Limits { requests: Some(Rate { rate: 50_000, burst: 16 }), ..Limits::default() };
    let mut clients: Vec<Client> = (1..8).map(|tenant| Client::flood(tenant, tenant.into(), 500)).collect();
    clients.push(Client::new(0, 0, 1_000, Arrivals::Open { units: 18, every: 600_000 }));
    let mut shares = vec![share(1); 8];
    shares[0].limits = limits;
    let mut driver = Driver::new(with(&shares), &clients);
    driver.run(200 * MS);
    let longest = driver.log.iter().map(|ran| ran.end - ran.start).max().unwrap_or(0);
    // Two requests more than the burst.
    let (waited, opens) = (driver.longest_wait(0, 20 * MS), 2 * 20_000);
    assert!(
        waited <= opens + longest + 18_000,
        "{waited} ns, {opens} of them for the limit, beside grants of {longest} ns"
    );
}
