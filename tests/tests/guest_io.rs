//! A guest's own fio against a served disk: nothing lost, misplaced or stale.
//!
//! `SOFTDPU_TEST_SERVER=qsd` runs these against qemu-storage-daemon, to tell a fault of softdpu from one of the lab.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Disk, Failure, Guest, GuestSpec, Lab, Server, ServerKind};

const MIB: u64 = 1 << 20;
const DEADLINE: Duration = Duration::from_secs(240);
const ROUNDS: u32 = 2;

/// Four jobs on four processors and four queues write and verify 16 MiB each, twice: what is left of the first time is
/// stale in the second.
fn verify(lab: &Lab, disk: Disk) -> Result<(), Failure> {
    let queues = disk.queues;
    let server = Server::start(ServerKind::from_environment()?, lab, &[disk])?;
    let spec = GuestSpec::new("guest").cpus(4).memory_mib(768).disk(server.guest_disk("data")?).job("fio-verify");
    let spec = spec.parameter("DISK", "vda").parameter("MIB", 16).parameter("JOBS", 4).parameter("ROUNDS", ROUNDS);
    let mut guest = Guest::boot(lab.path(), spec)?;
    let seen = guest.step("disk", DEADLINE)?;
    assert_eq!(seen.get::<u64>("bytes")?, 128 * MIB);
    assert_eq!(seen.get::<u16>("queues")?, queues, "the guest does not use all queues");
    for _ in 0..ROUNDS {
        let round = guest.step("round", DEADLINE)?;
        assert!(round.get::<u64>("requests")? > 1000, "fio did next to nothing: {:?}", round.fields);
    }
    guest.finish(DEADLINE)?;
    server.stop()
}

#[test]
fn fio_verifies_random_writes_of_mixed_sizes_over_four_split_queues() {
    Lab::run("fio-split", |lab| verify(lab, Disk::new("data", lab.image("data.img", 128 * MIB)?).queues(4)));
}

#[test]
fn fio_verifies_random_writes_of_mixed_sizes_over_four_packed_queues() {
    if matches!(ServerKind::from_environment(), Ok(ServerKind::StorageDaemon)) {
        softdpu_tests::skip("packed queues", "qemu-storage-daemon offers no packed ring");
        return;
    }
    Lab::run("fio-packed", |lab| verify(lab, Disk::new("data", lab.image("data.img", 128 * MIB)?).queues(4).packed()));
}
