//! The harness itself, proven against a server that is known to work: qemu-storage-daemon.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Disk, Failure, Guest, GuestDevice, GuestSpec, Lab, Root, Server, ServerKind};

const MIB: u64 = 1 << 20;

#[test]
fn a_guest_in_ram_sees_writes_and_rereads_a_disk_with_four_queues() {
    Lab::run("ram", |lab| {
        let disk = Disk::new("data", lab.image("data.img", 32 * MIB)?).queues(4);
        let server = Server::start(ServerKind::StorageDaemon, lab, &[disk])?;
        let spec = GuestSpec::new("guest").cpus(4).disk(server.guest_disk("data")?);
        let mut guest = Guest::boot(lab.path(), spec.job("disk-basics").parameter("DISK", "vda"))?;
        let seen = guest.step("disk", Duration::from_secs(120))?;
        assert_eq!(seen.get::<u64>("bytes")?, 32 * MIB);
        assert_eq!(seen.get::<u16>("queues")?, 4);
        guest.finish(Duration::from_secs(120))?;
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
            Guest::boot(lab.path(), spec)?.finish(Duration::from_secs(120))?;
        }
        server.stop()
    });
}

#[test]
fn a_job_that_fails_is_an_error_with_the_step_and_its_output() {
    Lab::run("failure", |lab| {
        let spec =
            GuestSpec::new("guest").script("step easy true\nstep hard sh -c 'echo too hard; false'\nstep never true");
        let error = Guest::boot(lab.path(), spec)?.finish(Duration::from_secs(120)).unwrap_err().to_string();
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
        guest.step("round", Duration::from_secs(120))?;
        drop(server);
        guest.type_line("stop")?;
        assert!(guest.finish(Duration::from_secs(4)).is_err(), "a job ended well without its disk");
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
        guest.step("ready", Duration::from_secs(120))?;
        guest.type_line("hello")?;
        assert_eq!(guest.step("heard", Duration::from_secs(120))?.get::<String>("word")?, "hello");
        guest.finish(Duration::from_secs(120))
    });
}

#[test]
fn verification_finds_a_block_of_an_earlier_round() {
    Lab::run("stale", |lab| {
        let disk = Disk::new("data", lab.image("data.img", 64 * MIB)?);
        let server = Server::start(ServerKind::StorageDaemon, lab, &[disk])?;
        let spec = GuestSpec::new("guest").disk(server.guest_disk("data")?).job("stale-block").parameter("DISK", "vda");
        let mut guest = Guest::boot(lab.path(), spec)?;
        guest.step("intact", Duration::from_secs(120))?;
        let error = guest.step("stale", Duration::from_secs(120)).unwrap_err().to_string();
        assert!(error.contains("`stale` failed") && error.contains("verify"), "{error}");
        Ok(())
    });
}

const NETWORK: Duration = Duration::from_secs(120);

/// A guest whose job gets its steps on the console, with an interface that QEMU itself makes.
fn network_guest(lab: &Lab, name: &str, device: &[&str]) -> Result<Guest, Failure> {
    let spec = GuestSpec::new(name).root(Root::NetworkRam).device(GuestDevice::new(device)).job("network");
    let mut guest = Guest::boot(lab.path(), spec.parameter("NAME", name).parameter("MIB", 4))?;
    guest.step("ready", NETWORK)?;
    Ok(guest)
}

#[test]
fn a_guest_takes_what_qemus_own_network_offers() {
    Lab::run("user-network", |lab| {
        let device = ["-netdev", "user,id=user", "-device", "virtio-net-pci,netdev=user,host_mtu=1400"];
        let mut guest = network_guest(lab, "guest", &device)?;
        // QEMU's DHCP server knows no option for the MTU, so the address is taken by hand; the rest is what it offers.
        guest.ask("address 10.0.2.15/24", NETWORK)?;
        guest.ask("ping 10.0.2.2", NETWORK)?;
        assert_eq!(guest.ask("arping 10.0.2.2", NETWORK)?.get::<String>("mac")?, "52:55:0a:00:02:02");
        let features = guest.ask("features", NETWORK)?;
        assert_eq!(features.get::<u32>("mtu")?, 1400);
        // QEMU's own network has no offloads to offer.
        assert_eq!(features.get::<String>("tcp-segmentation-offload")?, "off");
        let error = guest.ask("silence 10.0.2.2", NETWORK).unwrap_err().to_string();
        assert!(error.contains("`silence` failed") && error.contains("0% packet loss"), "{error}");
        Ok(())
    });
}

#[test]
fn two_guests_on_one_cable_measure_and_fetch() {
    Lab::run("cable", |lab| {
        let cable = lab.path().join("cable.sock");
        let device = |netdev: &str, mac: &str| {
            let netdev = format!("stream,id=cable,addr.type=unix,addr.path={},{netdev}", cable.display());
            [String::from("-netdev"), netdev, String::from("-device"), format!("virtio-net-pci,netdev=cable,mac={mac}")]
        };
        let words = |device: &[String; 4]| -> Vec<String> { device.to_vec() };
        let (left, right) = (device("server=on", "02:00:00:00:00:01"), device("server=off", "02:00:00:00:00:02"));
        let (left, right) = (words(&left), words(&right));
        let mut left = network_guest(lab, "left", &left.iter().map(String::as_str).collect::<Vec<_>>())?;
        let mut right = network_guest(lab, "right", &right.iter().map(String::as_str).collect::<Vec<_>>())?;
        left.ask("address 10.0.0.1/24", NETWORK)?;
        right.ask("address 10.0.0.2/24", NETWORK)?;
        let sum = left.ask("serve", NETWORK)?.get::<String>("sum")?;
        right.ask("ping 10.0.0.1", NETWORK)?;
        right.ask("silence 10.0.0.3", NETWORK)?;
        assert_eq!(right.ask("fetch 10.0.0.1 file", NETWORK)?.get::<String>("sum")?, sum);
        for direction in ["", " -R"] {
            let speed = right.ask(&format!("iperf 10.0.0.1 1{direction}"), NETWORK)?;
            assert!(speed.get::<u64>("mbits")? > 0, "iperf3 moved nothing: {:?}", speed.fields);
        }
        for guest in [&mut left, &mut right] {
            guest.type_line("stop")?;
            guest.finish(NETWORK)?;
        }
        Ok(())
    });
}
