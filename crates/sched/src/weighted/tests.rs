//! The promises of `docs/scheduling.md`, over random workloads.

use proptest::prelude::*;

use super::*;
use crate::driver::{Arrivals, Client, Driver};
use crate::{BackEnd, Kind, Limits, Rate};

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
fn who_was_alone_with_little_else_is_not_behind() {
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

#[test]
fn a_single_request_now_and_then_finds_room_at_a_full_back_end() {
    let back_end = Some(BackEnd { index: 0, depth: 16 });
    let mut flood = Client { back_end: Some(1_000_000), ..Client::flood(0, 0, 300) };
    let mut light =
        Client { back_end: Some(1_000_000), ..Client::new(1, 1, 300, Arrivals::Closed { depth: 1, think: 700_000 }) };
    (flood.placement.back_end, light.placement.back_end) = (back_end, back_end);
    let mut driver = Driver::new(with(&[share(1), share(1)]), &[flood, light]);
    driver.run(200 * MS);
    assert!(driver.longest_wait(1, 0) <= 32_000, "{}", driver.longest_wait(1, 0));
    // Half of 14 while the light one has something there, as it is entitled to it, and all of them otherwise.
    assert!(driver.units_of(0, 0) > 1_700, "{}", driver.units_of(0, 0));
}

#[test]
fn a_tenant_below_its_share_does_not_wait_for_others_that_are_not_however_low_its_weight() {
    let mut shares = vec![share(1)];
    shares.extend(vec![share(10_000); 20]);
    let mut clients = vec![Client::new(0, 0, 100, Arrivals::Open { units: 1, every: 100_000_000 })];
    clients.extend((1..=20).map(|at| Client::flood(at, at.into(), 1_000)));
    let mut driver = Driver::new(with(&shares), &clients);
    driver.run(2_000 * MS);
    assert!(driver.units_of(0, 0) >= 19);
    assert!(driver.longest_wait(0, 150 * MS) <= 8_000, "{}", driver.longest_wait(0, 150 * MS));
}

#[test]
fn who_comes_later_has_its_share_though_another_was_alone_with_a_light_one() {
    // The light one's work is nobody's turn: virtual time is not to run ahead of the flood's tag by it.
    let light = Client::new(1, 1, 4_000, Arrivals::Open { units: 1, every: 10_000 });
    let late = Client { start: 500 * MS, ..Client::flood(2, 2, 2_000) };
    let mut driver = Driver::new(with(&[share(1), share(4), share(1)]), &[Client::flood(0, 0, 2_000), light, late]);
    driver.run(510 * MS);
    let [early, late] = [0, 2].map(|tenant| driver.time_of(tenant, 500 * MS));
    assert!(late * 10 > early * 9, "{late} ns beside {early} ns");
}

#[test]
fn what_is_at_the_limit_for_packets_still_serves_its_disk() {
    let limits = Limits { packets: Some(Rate { rate: 1_000, burst: 10 }), ..Limits::default() };
    let mut nic = Client::flood(0, 0, 500);
    nic.placement.kind = Kind::Packets;
    let disk = Client::flood(0, 1, 500);
    let mut driver = Driver::new(with(&[Share { limits, ..Share::default() }]), &[nic, disk]);
    driver.run(100 * MS);
    let packets: u32 = driver.log.iter().filter(|ran| ran.grant.queue.index == 0).map(|ran| ran.grant.units).sum();
    assert!((90..=111).contains(&packets), "{packets}");
    assert_eq!(driver.wasted, 0);
}

#[test]
fn devices_share_their_tenants_part_and_queues_their_devices() {
    // One device with three queues, one with one.
    let mut clients: Vec<Client> = (0..4).map(|at| Client::flood(0, at, 1_000 + u64::from(at) * 700)).collect();
    for client in &mut clients[..3] {
        client.placement.device = 7;
    }
    let mut driver = Driver::new(with(&[share(1)]), &clients);
    driver.run(1_000 * MS);
    let of = |index: u32| {
        let grants = driver.log.iter().filter(|ran| ran.grant.queue.index == index);
        grants.map(|ran| ran.end - ran.start).sum::<u64>() as f64 / 1e9
    };
    let parts = [of(0), of(1), of(2), of(3)];
    for (part, due) in parts.into_iter().zip([1.0 / 6.0, 1.0 / 6.0, 1.0 / 6.0, 0.5]) {
        assert!((part / due - 1.0_f64).abs() < 0.02, "{parts:?}");
    }
}

#[test]
fn a_grant_that_is_never_charged_costs_nothing_and_stops_nobody() {
    let mut policy = with(&[share(1), share(1)]);
    let queue = |tenant: u16| QueueId { tenant: TenantId(tenant), index: tenant.into() };
    for tenant in 0..2 {
        policy.ready(Nanos(0), queue(tenant), Work { units: 100, bytes: 0 });
    }
    let mut left = 200;
    while let Decision::Run(grant) = policy.decide(Nanos(5)) {
        left -= grant.units;
    }
    assert_eq!(left, 0);
    assert_eq!(policy.decide(Nanos(6)), Decision::Idle);
}

#[test]
fn cancelled_work_is_never_granted_and_what_a_back_end_has_of_it_still_counts() {
    let mut policy = with(&[share(1), share(1)]);
    let queue = |tenant: u16| QueueId { tenant: TenantId(tenant), index: tenant.into() };
    let placement = Placement { back_end: Some(BackEnd { index: 3, depth: 4 }), ..Placement::default() };
    for tenant in 0..2 {
        policy.place(queue(tenant), placement);
        policy.ready(Nanos(0), queue(tenant), Work { units: 10, bytes: 0 });
    }
    let mut grants = Vec::new();
    while let Decision::Run(grant) = policy.decide(Nanos(5)) {
        grants.push(grant);
        policy.charge(Nanos(5), grant, Cost { units: grant.units, time: Nanos(1_000), bytes: 0, pending: grant.units });
    }
    assert_eq!(grants.iter().map(|grant| grant.units).sum::<u32>(), 4);
    assert_eq!(policy.tree.pending(3), 4);
    policy.cancel(Nanos(6), queue(0));
    for grant in grants {
        for _ in 0..grant.units {
            policy.complete(Nanos(7), grant, Cost { units: 1, ..Cost::default() });
        }
    }
    assert_eq!(policy.tree.pending(3), 0);
    while let Decision::Run(grant) = policy.decide(Nanos(8)) {
        assert_eq!(grant.queue, queue(1));
        policy.charge(Nanos(8), grant, Cost { units: grant.units, time: Nanos(1_000), bytes: 0, pending: 0 });
    }
    assert_eq!(policy.tree.queues[1].waiting, 0);
}

#[test]
fn a_queue_that_is_placed_elsewhere_leaves_room_at_its_back_end() {
    let mut policy = with(&[share(1), share(1)]);
    let queue = |tenant: u16| QueueId { tenant: TenantId(tenant), index: tenant.into() };
    let placement = Placement { back_end: Some(BackEnd { index: 1, depth: 1 }), ..Placement::default() };
    for tenant in 0..2 {
        policy.place(queue(tenant), placement);
        policy.ready(Nanos(0), queue(tenant), Work { units: 1, bytes: 0 });
    }
    let Decision::Run(grant) = policy.decide(Nanos(1)) else { panic!("there is work") };
    policy.charge(Nanos(1), grant, Cost { units: 1, time: Nanos(1_000), bytes: 0, pending: 1 });
    assert_eq!(policy.decide(Nanos(2)), Decision::Idle, "the back end is full");
    policy.place(grant.queue, Placement::default());
    assert!(matches!(policy.decide(Nanos(3)), Decision::Run(next) if next.queue != grant.queue));
}

#[test]
fn who_remains_at_a_back_end_has_all_of_it() {
    let mut policy = with(&[share(1), share(1)]);
    let queue = |tenant: u16| QueueId { tenant: TenantId(tenant), index: tenant.into() };
    let placement = Placement { back_end: Some(BackEnd { index: 0, depth: 16 }), ..Placement::default() };
    policy.place(queue(0), placement);
    policy.place(queue(1), placement);
    let granted = |policy: &mut Weighted| {
        let mut units = 0;
        while let Decision::Run(grant) = policy.decide(Nanos(5)) {
            units += grant.units;
            let cost = Cost { units: grant.units, time: Nanos(1_000), bytes: 0, pending: grant.units };
            policy.charge(Nanos(5), grant, cost);
        }
        units
    };
    policy.ready(Nanos(0), queue(0), Work { units: 100, bytes: 0 });
    assert_eq!(granted(&mut policy), 14, "an eighth is kept for the other");
    policy.cancel(Nanos(6), queue(1));
    policy.complete(Nanos(7), Grant { queue: queue(0), units: 1 }, Cost { units: 1, ..Cost::default() });
    assert_eq!(granted(&mut policy), 3, "nothing is kept for one that has gone");
    policy.place(queue(1), placement);
    for _ in 0..3 {
        policy.complete(Nanos(8), Grant { queue: queue(0), units: 1 }, Cost { units: 1, ..Cost::default() });
    }
    assert_eq!(granted(&mut policy), 1, "and it is kept again when it is back");
}

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
        for pool in 0..2 {
            prop_assert_eq!(policy.tree.pending(pool), 0);
        }
    }
}

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
fn who_pays_for_latency_and_is_below_its_share_cuts_a_grant_short() {
    assert!(in_a_grant(LatencyClass::Latency).0.wakeup_preempt(TenantId(0)));
    assert!(!in_a_grant(LatencyClass::Normal).0.wakeup_preempt(TenantId(0)), "a class that waits for the grant");
    assert!(!in_a_grant(LatencyClass::Latency).0.wakeup_preempt(TenantId(1)), "itself");
    assert!(!in_a_grant(LatencyClass::Latency).0.wakeup_preempt(TenantId(9)), "nobody");
    let mut beyond = in_a_grant(LatencyClass::Latency).0;
    beyond.tenants[0].tag = beyond.calendar.now() + 1;
    assert!(!beyond.wakeup_preempt(TenantId(0)), "one that has had its share");
}

#[test]
fn a_long_grant_gives_way_to_whoever_would_go_before_it() {
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
    assert!(!policy.tick_preempt(TenantId(9)), "nobody");
    policy.charge(now, grant, Cost { units: 16, time: Nanos(8_000), ..Cost::default() });
    policy.ready(now, grant.queue, Work { units: grant.units - 16, bytes: 0 });
    policy.ready(now, queue(1), Work { units: 100, bytes: 0 });
    let (grant, _) = run(&mut policy, &mut now);
    assert_eq!((grant.queue, policy.tick()), (queue(1), None), "who goes first has a short one");
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
fn a_queue_that_was_alone_is_charged_for_it_when_another_comes() {
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
    assert!(policy.alone.is_some());
    // What waits when the other comes is not lost, and what was had counts.
    policy.ready(now, queue(0), Work { units: 7, bytes: 0 });
    policy.ready(now, queue(1), Work { units: 7, bytes: 0 });
    assert!(policy.alone.is_none());
    let tag = policy.tenants[0].tag;
    assert!(tag >= charged * SCALE - SLOT * SCALE, "{tag} of {}", charged * SCALE);
    let mut left = [7, 7];
    while let Decision::Run(grant) = policy.decide(now) {
        left[usize::from(grant.queue.tenant.0)] -= grant.units;
        policy.charge(now, grant, Cost { units: grant.units, time: Nanos(1_000), ..Cost::default() });
    }
    assert_eq!(left, [0, 0]);
}

#[test]
fn what_a_short_grant_did_not_come_to_is_granted_again() {
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
    assert_eq!(ran[0], (0, 1), "who came goes first");
    let rest: u32 = ran[1..].iter().map(|(_, units)| units).sum();
    assert_eq!(rest, 7, "of eight: {ran:?}");
}

/// Among others that take turns, as far behind the clock as turns can be where lanes have had something.
#[test]
fn the_rest_of_an_ended_grant_is_behind_whom_it_was_ended_for() {
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
    assert!(policy.tick_preempt(TenantId(1)), "who had nothing yet");
    now = now + cost(1).time;
    policy.charge(now, ended, cost(1));
    // So far that it would go first if this were work that comes.
    policy.tenants[0].tag = policy.calendar.now() - Weighted::CARRY.0 * SCALE;
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
    // Time that is nobody's.
    (0..1_000).for_each(|_| policy.calendar.tick(8_000));
    let ahead = policy.calendar.now() - policy.calendar.virtual_time();
    assert_eq!(ahead, calendar::FURTHEST);
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
fn who_was_at_its_limit_is_behind_as_before() {
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
