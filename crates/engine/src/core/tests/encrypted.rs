//! Deferred work of encrypted requests: in which turn it runs, and which tenant is charged.

use std::os::unix::fs::OpenOptionsExt;

use softdpu_storage::{Encryption, KeySource};

use super::*;

/// What a long request has, bytes: pieces of 128 KiB, the first of which is encrypted in its grant.
const LONG: u32 = 6 * (128 << 10);

fn encrypted_volume() -> Arc<Volume> {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("key");
    let mut options = std::fs::OpenOptions::new();
    let mut file = options.write(true).create_new(true).mode(0o600).open(&key).unwrap();
    std::io::Write::write_all(&mut file, &std::array::from_fn::<u8, 64, _>(|at| at as u8)).unwrap();
    let encryption = Some(Encryption { key: KeySource::File(key), sector_size: 512, discard: false });
    let spec = VolumeSpec { encryption, ..VolumeSpec::new("disk", VolumeKind::Memory { size: 1 << 20 }) };
    let volume = Volume::open(spec, &PathBroker::new()).unwrap();
    volume.activate().unwrap();
    volume
}

/// A core with an encrypted disk of tenant 3 and another of tenant 5, both with a long write.
fn two() -> (Core<Recorder>, [Guest; 2]) {
    let mut guests = [Guest::new(Format::Split), Guest::new(Format::Split)];
    let mut core = core_with(&guests[0], &encrypted_volume());
    let key = QueueKey { number: 1, generation: 1 };
    core.handle(ToCore::Start(Box::new(RunningQueue::new(key, guests[1].spec(&encrypted_volume(), 5)))));
    for guest in &mut guests {
        assert!(guest.submit_long(true, 0, LONG));
        guest.publish();
    }
    (core, guests)
}

/// Rounds until a driver has its answer.
fn rounds_until_done(core: &mut Core<Recorder>, guest: &mut Guest) -> usize {
    for round in 1..1_000 {
        core.round(softdpu_sys::clock::now());
        if let Some((status, _)) = guest.take() {
            assert_eq!(status, 0);
            return round;
        }
    }
    panic!("no answer");
}

#[test]
fn deferred_work_is_charged_to_its_tenant() {
    let (mut core, [mut three, mut five]) = two();
    core.work.dispatcher.policy_mut().spends = true;
    rounds_until_done(&mut core, &mut five);
    rounds_until_done(&mut core, &mut three);
    let of = |tenant| core.work.dispatcher.policy().spent.iter().filter(move |(other, _)| other.0 == tenant);
    for tenant in [3, 5] {
        assert_eq!(of(tenant).count(), 5, "each piece but the first");
        assert!(of(tenant).all(|(_, time)| time.0 > 0));
    }
    assert!(core.queues.iter().all(|queue| queue.uncharged < 5_000_000), "and not once more with the next grant");
}

#[test]
fn a_policy_that_does_not_charge_it_has_it_in_the_next_grants_cost() {
    let (mut core, [mut three, mut five]) = two();
    rounds_until_done(&mut core, &mut five);
    rounds_until_done(&mut core, &mut three);
    for (number, tenant) in [(0, 3), (1, 5)] {
        let spent: u64 = core
            .work
            .dispatcher
            .policy()
            .spent
            .iter()
            .filter(|(other, _)| other.0 == tenant)
            .map(|(_, time)| time.0)
            .sum();
        let owes = core.queues.get(number).unwrap().uncharged;
        assert!(owes >= spent && spent > 0, "{owes} of {spent}");
    }
}

#[test]
fn deferred_work_of_the_first_rank_runs_first() {
    let (mut core, [mut three, mut five]) = two();
    core.work.dispatcher.policy_mut().spends = true;
    rounds_until_done(&mut core, &mut five);
    rounds_until_done(&mut core, &mut three);
    let order: Vec<u16> = core.work.dispatcher.policy().spent.iter().map(|(tenant, _)| tenant.0).collect();
    assert_eq!(order, [5, 5, 5, 5, 5, 3, 3, 3, 3, 3]);
}

#[test]
fn who_is_not_to_go_on_does_where_nobody_else_has_work() {
    let (mut core, [mut three, mut five]) = two();
    core.work.dispatcher.policy_mut().held = Some(TenantId(3));
    rounds_until_done(&mut core, &mut five);
    let left = rounds_until_done(&mut core, &mut three);
    assert!(left < 100, "{left} rounds");
}

/// Tenant 5's write is granted, and to go on only where no other tenant's may be granted; 3's is put off for good.
#[test]
fn who_is_never_to_go_on_does_after_a_millisecond() {
    let (mut core, [mut three, mut five]) = two();
    core.work.dispatcher.policy_mut().held = Some(TenantId(5));
    core.work.dispatcher.policy_mut().grants_left = Some(1);
    let began = std::time::Instant::now();
    let waited = loop {
        core.round(softdpu_sys::clock::now());
        let waited = began.elapsed();
        if let Some((status, _)) = five.take() {
            assert_eq!(status, 0);
            break waited;
        }
        assert!(waited.as_secs() < 10, "its pieces wait for ever: {:?}", core.work.dispatcher.policy().charged);
    };
    assert!(three.take().is_none(), "another tenant waits all the while");
    // Five pieces, each of which was put off.
    assert!(waited.as_micros() >= 5_000, "{waited:?}");
}
