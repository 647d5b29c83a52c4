//! A guest moves from one host to another while it runs: QEMU's live migration over two softdpus, which log what they
//! write into its memory, and an entry of the network that says where it is from then on. Its TCP connection goes on.
//!
//! ```text
//!   host a: port 10.0.0.1 ── softdpu ── guest 10.0.0.5        host b: softdpu ── (10.0.0.5)
//!                               └──────────── wire, VXLAN ──────────────┘
//! ```

#![allow(missing_docs)]

mod echo;

use std::time::Duration;

use echo::Echo;
use softdpu_tests::{Daemon, Failure, Guest, GuestDevice, GuestSpec, Host, Lab, Qmp, Root, Site, Wire, wait_until};

/// A step takes seconds, without KVM and on a busy machine some tens of them.
const DEADLINE: Duration = Duration::from_secs(120);
const WIRE: Wire = Wire::ETHERNET;

const GUEST: &str = "10.0.0.5";
const GUEST_MAC: &str = "02:5d:00:00:00:05";

fn site(host: &Host, format: &str) -> Site {
    let interface = format!("network = 'acme', address = '{GUEST}', mac = '{GUEST_MAC}', {format}");
    Site::on(&[0])
        .with(&WIRE.underlay(host))
        .network("acme", 5001, &["10.0.0.0/16"])
        .with("gateway = '10.0.255.254'")
        .device("vm", &format!("domain = 'vm'\nvirtio-net = {{ {interface} }}"))
}

/// A guest with that daemon's interface, and a monitor at NAME.qmp.
fn boot(lab: &Lab, daemon: &Daemon, name: &str, more: &[&str]) -> Result<Guest, Failure> {
    let monitor = Qmp::argument(&format!("{name}.qmp"));
    let spec = GuestSpec::new(name)
        .root(Root::NetworkRam)
        .device(daemon.guest_device("vm")?)
        .device(GuestDevice::new(&[&["-qmp", &monitor], more].concat()))
        .job("network")
        .parameter("NAME", "vm")
        .parameter("MIB", 1);
    Guest::boot(lab.path(), spec)
}

fn frames(daemon: &Daemon) -> Result<u64, Failure> {
    Ok(daemon.port("vm")?.count("frames_in"))
}

/// Moves a guest with rings of that format.
fn moves(test: &str, format: &str) {
    WIRE.run(test, |lab, a, b| {
        let at_a = a.softdpu(lab, &site(a, format).tap("port", 1, &["10.0.0.1"], "").to_string())?;
        a.ip(&["addr", "add", "10.0.0.1/16", "dev", "acme0"])?;
        let elsewhere = WIRE.address(a.number());
        let at_b = site(b, format).endpoint(&["10.0.0.1"], "02:5d:00:00:00:01", &elsewhere);
        let at_b = b.softdpu(lab, &at_b.to_string())?;

        let mut guest = boot(lab, &at_a, "vm", &[])?;
        guest.booted()?;
        guest.step("ready", DEADLINE)?;
        guest.ask(&format!("address {GUEST}/16"), DEADLINE)?;
        guest.ask("mirror", DEADLINE)?;
        let mut echo = Echo::to(a, lab, GUEST)?;
        echo.offer()?;
        echo.settle()?;

        let mut moved = boot(lab, &at_b, "moved", &["-incoming", "unix:moved.incoming"])?;
        let mut from = Qmp::connect(&lab.path().join("vm.qmp"))?;
        Qmp::connect(&lab.path().join("moved.qmp"))?;
        assert_eq!(frames(&at_b)?, 0, "the guest was at b before it moved");
        from.migrate("moved.incoming")?;
        // What softdpu writes into memory that was copied already is to be copied again. A line that is sent when the
        // guest has just gone is sent again by TCP.
        from.wait_for_migration(&["completed"], || echo.offer())?;
        let before = echo.sent();

        // The guest is no longer at a: an endpoint says where it is.
        drop(guest);
        wait_until("the source's connection to end", DEADLINE, || {
            Ok((at_a.device("vm")?["state"] != "running").then_some(()))
        })?;
        at_a.command(&["device", "remove", "vm"])?;
        let place = ["--address", GUEST, "--mac", GUEST_MAC, "--host", &WIRE.address(b.number())];
        at_a.command(&[&["network", "endpoint", "add", "acme"], &place[..]].concat())?;
        for _ in 0..20 {
            echo.settle()?;
            echo.offer()?;
        }
        echo.settle()?;
        assert!(frames(&at_b)? >= 20, "what the guest sends does not come from b");
        println!("{before} lines before the guest had moved, {} in all, over one connection", echo.sent());
        moved.ask("ping 10.0.0.1", DEADLINE)?;
        moved.type_line("stop")?;
        moved.finish(DEADLINE)?;
        at_a.stop()?;
        at_b.stop()
    });
}

#[test]
fn a_guest_moves_to_another_host_with_its_connections_packed() {
    moves("move-packed", "packed = true");
}

#[test]
fn a_guest_moves_to_another_host_with_its_connections_split() {
    moves("move-split", "packed = false");
}
