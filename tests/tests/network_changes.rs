//! Networks, their ports, and guests on other hosts come, go and move while a daemon runs.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Context, Daemon, Failure, Host, Site, Wire, wait_until};

const WAIT: Duration = Duration::from_secs(60);
const WIRE: Wire = Wire::ETHERNET;

fn site(host: &Host) -> String {
    Site::on(&[0]).with(&WIRE.underlay(host)).to_string()
}

/// A port in the network, at 10.0.0.NUMBER, and its interface with that address.
fn port(daemon: &Daemon, host: &Host) -> Result<(), Failure> {
    let address = format!("10.0.0.{}", host.number());
    let mac = format!("02:5d:00:00:00:0{}", host.number());
    let place = ["--network", "acme", "--address", &address, "--mac", &mac, "--interface", "acme0"];
    daemon.command(&[&["device", "add", "port"], &place[..]].concat())?;
    host.ip(&["addr", "add", &format!("{address}/16"), "dev", "acme0"])?;
    Ok(())
}

/// Tells `daemon` that the other one's port is at `host`.
fn endpoint(daemon: &Daemon, other: u8, host: &str, more: &[&str]) -> Result<String, Failure> {
    let (address, mac) = (format!("10.0.0.{other}"), format!("02:5d:00:00:00:0{other}"));
    let place = ["network", "endpoint", "add", "acme", "--address", &address, "--mac", &mac, "--host", host];
    daemon.command(&[&place, more].concat())
}

#[test]
fn networks_ports_and_guests_elsewhere_come_and_go_while_it_runs() {
    WIRE.run("changes", |lab, a, b| {
        let mut at_a = a.softdpu(lab, &site(a))?;
        let at_b = b.softdpu(lab, &site(b))?;
        for (daemon, host) in [(&at_a, a), (&at_b, b)] {
            daemon.command(&[
                "network",
                "add",
                "acme",
                "--vni",
                "5001",
                "--cidr",
                "10.0.0.0/16",
                "--gateway",
                "10.0.9.9",
            ])?;
            port(daemon, host)?;
            endpoint(daemon, host.other(), &WIRE.address(host.other()), &[])?;
        }
        a.wait_to_reach("10.0.0.2")?;
        let list = at_a.command(&["network", "list", "--json"])?;
        assert!(list.contains(r#""remote_endpoints":1"#) && list.contains(r#""ports":1"#), "{list}");

        // What contradicts the rest is refused, and nothing changes.
        for (refused, why) in [
            (endpoint(&at_a, 2, &WIRE.address(2), &[]), "a second endpoint with the address of the first"),
            (at_a.command(&["network", "remove", "acme"]), "a network in use"),
            (
                at_a.command(&["network", "endpoint", "remove", "acme", "10.0.0.2", "10.0.0.7"]),
                "an endpoint that is none",
            ),
            (at_a.command(&["network", "add", "other", "--vni", "5001", "--cidr", "10.0.0.0/16"]), "the same VNI"),
        ] {
            let error = refused.err().ok_or_else(|| Failure::new(format!("{why} was not refused")))?;
            println!("{why}: {error}");
        }
        a.wait_to_reach("10.0.0.2")?;

        // To a host that does not exist, and back.
        endpoint(&at_a, 2, "192.0.2.77", &["--replace"])?;
        assert!(
            a.exec(&["ping", "-c", "3", "-i", "0.2", "-W", "1", "10.0.0.2"]).is_err(),
            "it still goes to the old host"
        );
        endpoint(&at_a, 2, &WIRE.address(2), &["--replace"])?;
        a.wait_to_reach("10.0.0.2")?;

        // The next data plane, and the next daemon, know it all.
        at_a.kill_data_plane()?;
        a.wait_to_reach("10.0.0.2")?;
        at_a.stop()?;
        let at_a = a.softdpu(lab, &site(a))?;
        a.ip(&["addr", "add", "10.0.0.1/16", "dev", "acme0"])?;
        a.wait_to_reach("10.0.0.2")?;

        at_a.command(&["device", "remove", "port"])?;
        at_a.command(&["network", "endpoint", "remove", "acme", "10.0.0.2"])?;
        at_a.command(&["network", "remove", "acme"])?;
        let list = at_a.command(&["network", "list", "--json"])?;
        assert_eq!(list.trim(), "[]");
        at_a.stop()?;
        at_b.stop()
    });
}

/// The interface of that name in the host's namespace, if it is a TAP that is up.
fn is_tap(host: &Host, name: &str) -> bool {
    host.ip(&["-details", "link", "show", "dev", name])
        .is_ok_and(|shown| shown.contains("tun type tap") && shown.contains("UP"))
}

#[test]
fn a_tap_whose_name_is_taken_or_that_is_deleted_is_made_when_it_can_be() {
    WIRE.run("taps-again", |lab, host, _| {
        host.ip(&["link", "add", "acme0", "type", "veth", "peer", "name", "taken"])?;
        let site = format!(
            "{}\n[[network]]\nname = \"acme\"\nvni = 5001\ncidr = [\"10.0.0.0/16\"]\n\n[[device]]\nname = \"port\"\n\
             tap = {{ network = \"acme\", address = \"10.0.0.2\", interface = \"acme0\", rate = {{ packets = 100_000 }} }}\n",
            site(host)
        );
        let mut daemon = host.softdpu(lab, &site)?;
        let broken = daemon.device("port")?;
        assert_eq!(broken["state"], "broken", "{broken}");
        assert!(broken["broken_reason"].as_str().is_some_and(|why| why.contains("acme0")), "{broken}");
        let works = |daemon: &Daemon, when: &str| {
            wait_until(&format!("a TAP that answers {when}"), WAIT, || {
                let state = daemon.device("port")?["state"].clone();
                Ok((is_tap(host, "acme0") && state != "broken").then_some(()))
            })?;
            host.ip(&["addr", "add", "10.0.0.2/16", "dev", "acme0"])?;
            host.wait_to_reach("10.0.0.1").context(when)
        };
        host.ip(&["link", "del", "acme0"])?;
        works(&daemon, "when its name is free")?;
        host.ip(&["link", "del", "acme0"])?;
        works(&daemon, "after it was deleted")?;
        // The next data plane finds it after a kill.
        daemon.kill_data_plane()?;
        host.exec(&["ping", "-c", "3", "-W", "5", "10.0.0.1"])?;
        daemon.stop()
    });
}
