//! Back ends, devices and queues; what is cancelled, placed elsewhere or never charged.

use super::*;

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
fn a_late_tenant_has_its_share_though_another_was_alone_with_a_light_one() {
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
fn a_grant_that_is_never_charged_costs_nothing_and_blocks_no_other() {
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
    assert_eq!(policy.tree.pending(RowIndex::from_row(3)), 4);
    policy.cancel(Nanos(6), queue(0));
    for grant in grants {
        for _ in 0..grant.units {
            policy.complete(Nanos(7), grant, Cost { units: 1, ..Cost::default() });
        }
    }
    assert_eq!(policy.tree.pending(RowIndex::from_row(3)), 0);
    while let Decision::Run(grant) = policy.decide(Nanos(8)) {
        assert_eq!(grant.queue, queue(1));
        policy.charge(Nanos(8), grant, Cost { units: grant.units, time: Nanos(1_000), bytes: 0, pending: 0 });
    }
    assert_eq!(policy.tree.queues[RowIndex::from_row(1)].waiting, 0);
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
fn the_last_tenant_at_a_back_end_has_all_of_it() {
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
