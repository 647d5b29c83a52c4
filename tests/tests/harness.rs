//! The harness itself, proven against a server that is known to work: qemu-storage-daemon.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Disk, Guest, GuestSpec, Lab, Root, Server, ServerKind};

const MIB: u64 = 1 << 20;

#[test]
fn a_guest_in_ram_sees_writes_and_rereads_a_disk_with_four_queues() {
    Lab::run("ram", |lab| {
        let disk = Disk::new("data", lab.image("data.img", 32 * MIB)?).queues(4);
        let server = Server::start(ServerKind::StorageDaemon, lab, &[disk])?;
        let spec = GuestSpec::new("guest").cpus(4).disk(server.guest_disk("data")?);
        let mut guest = Guest::boot(lab.path(), spec.job("disk-basics").parameter("DISK", "vda"))?;
        let seen = guest.step("disk", Duration::from_secs(60))?;
        assert_eq!(seen.get::<u64>("bytes")?, 32 * MIB);
        assert_eq!(seen.get::<u16>("queues")?, 4);
        guest.finish(Duration::from_secs(60))?;
        server.stop()
    });
}

#[test]
fn a_guest_boots_from_its_first_disk_and_a_second_boot_finds_what_was_written() {
    Lab::run("root", |lab| {
        let disk = Disk::new("root", lab.root_image("root.img")?);
        let server = Server::start(ServerKind::StorageDaemon, lab, &[disk])?;
        for (boot, script) in
            [("first", "step write sh -c 'echo here >/root/mark'"), ("second", "step find cat /root/mark")]
        {
            let spec = GuestSpec::new(boot).root(Root::FirstDisk).disk(server.guest_disk("root")?).script(script);
            Guest::boot(lab.path(), spec)?.finish(Duration::from_secs(60))?;
        }
        server.stop()
    });
}

#[test]
fn a_job_that_fails_is_an_error_with_the_step_and_its_output() {
    Lab::run("failure", |lab| {
        let spec =
            GuestSpec::new("guest").script("step easy true\nstep hard sh -c 'echo too hard; false'\nstep never true");
        let error = Guest::boot(lab.path(), spec)?.finish(Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("`hard` failed") && error.contains("too hard"), "{error}");
        Ok(())
    });
}

#[test]
fn a_guest_whose_disk_dies_does_not_finish_well() {
    Lab::run("dead-disk", |lab| {
        let disk = Disk::new("data", lab.image("data.img", 64 * MIB)?);
        let server = Server::start(ServerKind::StorageDaemon, lab, &[disk])?;
        let spec = GuestSpec::new("guest").disk(server.guest_disk("data")?).job("kill-loop");
        let spec = spec.parameter("DISK", "vda").parameter("MIB", 8).parameter("JOBS", 1);
        let mut guest = Guest::boot(lab.path(), spec)?;
        guest.step("round", Duration::from_secs(60))?;
        drop(server);
        guest.type_line("stop")?;
        assert!(guest.finish(Duration::from_secs(8)).is_err(), "a job ended well without its disk");
        Ok(())
    });
}

#[test]
fn a_typed_line_reaches_the_job() {
    Lab::run("typed", |lab| {
        let mut guest = Guest::boot(
            lab.path(),
            GuestSpec::new("guest").script("report ready ok\nread -r word </dev/console\nreport heard ok word=$word"),
        )?;
        guest.step("ready", Duration::from_secs(60))?;
        guest.type_line("hello")?;
        assert_eq!(guest.step("heard", Duration::from_secs(10))?.get::<String>("word")?, "hello");
        guest.finish(Duration::from_secs(30))
    });
}

#[test]
fn verification_finds_a_block_of_an_earlier_round() {
    Lab::run("stale", |lab| {
        let disk = Disk::new("data", lab.image("data.img", 64 * MIB)?);
        let server = Server::start(ServerKind::StorageDaemon, lab, &[disk])?;
        let spec = GuestSpec::new("guest").disk(server.guest_disk("data")?).job("stale-block").parameter("DISK", "vda");
        let mut guest = Guest::boot(lab.path(), spec)?;
        guest.step("intact", Duration::from_secs(60))?;
        let error = guest.step("stale", Duration::from_secs(60)).unwrap_err().to_string();
        assert!(error.contains("`stale` failed") && error.contains("verify"), "{error}");
        Ok(())
    });
}
