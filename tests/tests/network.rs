//! Guests in tenants' networks: addresses, reachability, transfers in both directions, separation, and kills of the
//! data plane under a TCP connection.
//!
//! Two guests are acme's; the third is globex's and has the addresses of acme's first.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Daemon, Failure, Guest, GuestSpec, Lab, Root, Site, wait_until};

/// A step takes seconds, without KVM and on a busy machine some tens of them.
const DEADLINE: Duration = Duration::from_secs(180);

/// Cores of the data plane: one that has all queues, or two that share them, receive queues of a guest on one, transmit
/// queues on the other.
const ONE: &[u32] = &[0];
const TWO: &[u32] = &[0, 1];

/// What the web servers' file has.
const MIB: u32 = 16;

/// acme has IPv4 and IPv6, globex the same addresses; `packed` and `queues` are those of acme's interfaces.
fn site(packed: bool, queues: u16, cores: &[u32]) -> String {
    let interface = |last: u8| {
        let addresses = format!("['10.0.0.{last}', 'fd00:5d::{last}']");
        let keys = format!("network = 'acme-vpc', address = {addresses}, packed = {packed}, queues = {queues}");
        format!("virtio-net = {{ {keys} }}")
    };
    Site::on(cores)
        .tenants(["acme", "globex"])
        .network("acme-vpc", 5001, &["10.0.0.0/16", "fd00:5d::/64"])
        .of("acme")
        .with("mtu = 1440\ndns = ['10.0.0.53', 'fd00:5d::53']")
        .network("globex-vpc", 5002, &["10.0.0.0/16"])
        .of("globex")
        .with("gateway = '10.0.255.254'")
        .device("globex-vm1", "virtio-net = { network = 'globex-vpc', address = '10.0.0.2' }")
        .of("globex")
        .device("acme-vm1", &interface(2))
        .of("acme")
        .device("acme-vm2", &interface(3))
        .of("acme")
        .to_string()
}

/// Boots the guest of the device `name`, with the address that DHCP gives it.
fn boot(lab: &Lab, daemon: &Daemon, name: &str, cpus: u32) -> Result<Guest, Failure> {
    let spec = GuestSpec::new(name).cpus(cpus).root(Root::NetworkRam).device(daemon.guest_device(name)?).job("network");
    let mut guest = Guest::boot(lab.path(), spec.parameter("NAME", name).parameter("MIB", MIB))?;
    guest.step("ready", DEADLINE)?;
    Ok(guest)
}

/// A step of a guest, and one of its fields.
fn field(guest: &mut Guest, line: &str, key: &str) -> Result<String, Failure> {
    guest.ask(line, DEADLINE)?.get(key)
}

fn finish(guests: Vec<Guest>) -> Result<(), Failure> {
    for mut guest in guests {
        guest.type_line("stop")?;
        guest.finish(DEADLINE)?;
    }
    Ok(())
}

/// acme's guests get their addresses, see each other and the gateway over IPv4 and IPv6, and transfer in both
/// directions.
fn transfer(lab: &Lab, packed: bool, queues: u16, cores: &[u32]) -> Result<(), Failure> {
    let daemon = Daemon::start(lab.path(), &site(packed, queues, cores))?;
    let mut first = boot(lab, &daemon, "acme-vm1", queues.into())?;
    let mut second = boot(lab, &daemon, "acme-vm2", queues.into())?;

    for (guest, last) in [(&mut first, 2), (&mut second, 3)] {
        let lease = guest.ask("dhcp", DEADLINE)?;
        for (key, wanted) in [
            ("address", format!("10.0.0.{last}/16")),
            ("gateway", "10.0.0.1".to_owned()),
            ("mtu", "1440".to_owned()),
            ("dns", "10.0.0.53".to_owned()),
        ] {
            assert_eq!(lease.get::<String>(key)?, wanted, "DHCP's {key}: {:?}", lease.fields);
        }
        let lease = guest.ask("dhcp6", DEADLINE)?;
        assert_eq!(lease.get::<String>("address")?, format!("fd00:5d::{last}"));
        assert_eq!(lease.get::<String>("mtu")?, "1440", "the router advertisement's MTU");
        assert!(lease.get::<String>("gateway")?.starts_with("fe80::"), "the router: {:?}", lease.fields);

        let features = guest.ask("features", DEADLINE)?;
        for offload in ["tx-checksumming", "scatter-gather", "tcp-segmentation-offload", "tx-tcp6-segmentation"] {
            assert_eq!(features.get::<String>(offload)?, "on", "{offload}: {:?}", features.fields);
        }
        assert_eq!(features.get::<u8>("packed")?, u8::from(packed), "the ring's format: {:?}", features.fields);
        assert_eq!(features.get::<u16>("queues")?, queues, "queue pairs: {:?}", features.fields);
        assert_eq!(features.get::<u32>("mtu")?, 1440);
        for gateway in ["10.0.0.1", "fd00:5d::1"] {
            guest.ask(&format!("ping {gateway}"), DEADLINE)?;
        }
    }

    let sum = field(&mut first, "serve", "sum")?;
    for (address, url) in [("10.0.0.2", "10.0.0.2"), ("fd00:5d::2", "[fd00:5d::2]")] {
        second.ask(&format!("ping {address}"), DEADLINE)?;
        assert_eq!(field(&mut second, &format!("fetch {url} file"), "sum")?, sum, "a file of {MIB} MiB from {url}");
        for direction in ["", " -R"] {
            let speed = second.ask(&format!("iperf {address} 4M{direction}"), DEADLINE)?;
            eprintln!("iperf3 {address}{direction}, packed {packed}, {queues} queue pairs: {:?}", speed.fields);
        }
    }
    if queues > 1 {
        fewer_pairs_and_more(&daemon, &mut first, &mut second)?;
    }
    for name in ["acme-vm1", "acme-vm2"] {
        let port = daemon.device(name)?["port"].clone();
        let copied = |key: &str| port[key].as_u64().ok_or_else(|| Failure::new(format!("no {key}: {port}")));
        let (once, again) = (copied("copied_bytes")?, copied("copied_again_bytes")?);
        assert!(once > 1 << 20, "{name}: {once} bytes were copied: {port}");
        // Answers of DHCP and the like, which may come from another core.
        assert!(again < 1 << 16, "{name}: of {once} bytes {again} were copied twice");
    }
    finish(vec![first, second])?;
    daemon.stop()
}

/// A driver gives its second queue pair up and takes it again while frames come: none goes to a queue that is not
/// enabled.
fn fewer_pairs_and_more(daemon: &Daemon, first: &mut Guest, second: &mut Guest) -> Result<(), Failure> {
    // Receive queues of the first guest: 0 and 2.
    let frames = || {
        let device = daemon.device("acme-vm1")?;
        let of = |queue: usize| device["queues"][queue]["frames"].as_u64();
        of(0).zip(of(2)).ok_or_else(|| Failure::new(format!("no frames of queues: {device}")))
    };
    let start = frames()?;
    // What goes on meanwhile, to its end; then some more, as it may have ended before the pairs changed.
    let received = |guest: &mut Guest| {
        guest.step("iperf", DEADLINE)?;
        guest.ask("iperf 10.0.0.2 4M -P 16", DEADLINE).map(drop)
    };
    // Sixteen flows, of which the second pair has some while there is one.
    second.type_line("iperf 10.0.0.2 3 -P 16")?;
    wait_until("frames to come by both pairs", DEADLINE, || {
        let now = frames()?;
        Ok((now.0 > start.0 + 16 && now.1 > start.1 + 16).then_some(()))
    })?;
    first.ask("pairs 1", DEADLINE)?;
    let without = frames()?;
    received(second)?;
    let after = frames()?;
    assert_eq!(after.1, without.1, "frames came to a receive queue that is not enabled");
    assert!(after.0 > without.0, "nothing came to the other: {without:?}, {after:?}");
    second.type_line("iperf 10.0.0.2 3 -P 16")?;
    first.ask("pairs 2", DEADLINE)?;
    received(second)?;
    let again = frames()?;
    assert!(again.1 > after.1 && again.0 > after.0, "the pair is not used again: {after:?}, {again:?}");
    Ok(())
}

#[test]
fn frames_between_two_guests_on_two_cores_are_copied_once() {
    Lab::run("net-cores", |lab| transfer(lab, true, 1, TWO));
}

#[test]
fn a_tcp_connection_survives_kills_of_a_data_plane_with_two_cores() {
    Lab::run("net-kill-cores", |lab| survive(lab, Event::Kill, true, TWO));
}

#[test]
fn two_guests_of_a_tenant_reach_each_other_over_split_queues() {
    Lab::run("net-split", |lab| transfer(lab, false, 1, ONE));
}

#[test]
fn two_guests_of_a_tenant_reach_each_other_over_two_queue_pairs() {
    Lab::run("net-pairs", |lab| transfer(lab, true, 2, ONE));
}

#[test]
fn two_guests_of_a_tenant_reach_each_other_over_packed_queues() {
    Lab::run("net-packed", |lab| transfer(lab, true, 1, ONE));
}

#[test]
fn another_tenants_guest_with_the_same_address_reaches_only_itself() {
    Lab::run("net-tenants", |lab| {
        let daemon = Daemon::start(lab.path(), &site(true, 1, ONE))?;
        let mut first = boot(lab, &daemon, "acme-vm1", 1)?;
        let mut second = boot(lab, &daemon, "acme-vm2", 1)?;
        let mut other = boot(lab, &daemon, "globex-vm1", 1)?;
        assert_eq!(field(&mut first, "dhcp", "gateway")?, "10.0.0.1");
        second.ask("dhcp", DEADLINE)?;
        let lease = other.ask("dhcp", DEADLINE)?;
        assert_eq!(lease.get::<String>("address")?, "10.0.0.2/16", "the address of acme's first guest");
        assert_eq!(lease.get::<String>("gateway")?, "10.0.255.254", "the gateway of its own network");

        let ours = field(&mut first, "serve", "sum")?;
        let theirs = field(&mut other, "serve", "sum")?;
        assert_ne!(ours, theirs);
        assert_eq!(field(&mut second, "fetch 10.0.0.2 file", "sum")?, ours, "acme's second reaches acme's first");
        assert_eq!(field(&mut other, "fetch 10.0.0.2 file", "sum")?, theirs, "globex's guest reaches itself");
        other.ask("silence 10.0.0.3", DEADLINE)?;
        other.ask("silence 10.0.0.1", DEADLINE)?;
        other.ask("ping 10.0.255.254", DEADLINE)?;
        second.ask("silence 10.0.255.254", DEADLINE)?;

        // The counters show what each port moved: a file crossed acme's network, and none globex's.
        let file = u64::from(MIB) << 20;
        let moved = [("acme-vm1", "bytes_in"), ("acme-vm2", "bytes_out"), ("globex-vm1", "bytes_in")];
        let moved = moved.map(|(port, counter)| daemon.port(port).map(|port| port.count(counter)));
        let [sent, received, others] = moved;
        let (sent, received, others) = (sent?, received?, others?);
        assert!(
            sent >= file && received >= file && others < file,
            "{sent} sent, {received} received, {others} globex's"
        );
        let spoofed = |port: &str| {
            let port = daemon.port(port)?;
            Ok::<_, Failure>(port.dropped_in("spoofed-address") + port.dropped_in("spoofed-neighbor"))
        };
        let before = spoofed("acme-vm2")?;

        // An address that is not its own, even a free one of its own network, gets a guest nowhere.
        second.ask("address 10.0.0.77/16", DEADLINE)?;
        second.ask("silence 10.0.0.1 -I 10.0.0.77", DEADLINE)?;
        assert!(
            spoofed("acme-vm2")? > before,
            "what was dropped is not counted as spoofed: {}",
            daemon.port("acme-vm2")?
        );
        second.ask("ping 10.0.0.2", DEADLINE)?;
        finish(vec![first, second, other])?;
        daemon.stop()
    });
}

/// What happens to a data plane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Event {
    Kill,
    Upgrade,
}

/// Kills or upgrades the data plane in the middle of transfers, each one TCP connection. Every byte arrives once and in
/// its place.
fn survive(lab: &Lab, event: Event, packed: bool, cores: &[u32]) -> Result<(), Failure> {
    const EVENTS: u64 = 5;
    const REPEATS: u32 = 4;
    let mut daemon = Daemon::start(lab.path(), &site(packed, 1, cores))?;
    let mut first = boot(lab, &daemon, "acme-vm1", 1)?;
    let mut second = boot(lab, &daemon, "acme-vm2", 1)?;
    first.ask("dhcp", DEADLINE)?;
    second.ask("dhcp", DEADLINE)?;
    first.ask("serve", DEADLINE)?;
    let fetch = format!("fetch 10.0.0.2 cgi-bin/stream?{REPEATS}");
    // From the server itself, where it passes no interface.
    let sum = field(&mut first, &fetch, "sum")?;
    let events = second.fetch_through((&fetch, &sum), EVENTS, Duration::from_millis(500), DEADLINE, |during| {
        match event {
            Event::Kill => {
                let time = daemon.kill_data_plane()?;
                eprintln!(
                    "a kill after {during} in transfers: data plane back after {:.0} ms",
                    time.as_secs_f64() * 1e3
                );
            }
            Event::Upgrade => {
                let switched = daemon.upgrade()?["switched_us"].as_f64().unwrap_or(0.0) / 1e3;
                eprintln!("an upgrade after {during} in transfers: switched in {switched:.1} ms");
            }
        }
        Ok(())
    })?;
    let restarts = if event == Event::Kill { events } else { 0 };
    assert_eq!(daemon.data_plane()?.1, restarts, "status counts other restarts than there were kills");
    finish(vec![first, second])?;
    daemon.stop()
}

#[test]
fn a_tcp_connection_survives_kills_of_the_data_plane_over_split_queues() {
    Lab::run("net-kill-split", |lab| survive(lab, Event::Kill, false, ONE));
}

#[test]
fn a_tcp_connection_survives_upgrades_of_the_data_plane() {
    Lab::run("net-upgrade", |lab| survive(lab, Event::Upgrade, false, ONE));
}

#[test]
fn a_tcp_connection_survives_kills_of_the_data_plane_over_packed_queues() {
    Lab::run("net-kill-packed", |lab| survive(lab, Event::Kill, true, ONE));
}
