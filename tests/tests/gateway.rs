//! A softdpu without guests between two sites, each a kernel's VXLAN device that knows the gateway alone.

#![allow(missing_docs)]

use std::convert::identity;
use std::time::Duration;

use softdpu_tests::{Context, Daemon, Failure, Gateway, Wire, wait_until};

const WAIT: Duration = Duration::from_secs(60);
const WIRE: Wire = Wire::ETHERNET;

#[test]
fn two_sites_reach_each_other_through_a_gateway_without_guests() {
    WIRE.run_gateway("gateway", identity, |lab, Gateway { daemon, a, b, .. }| {
        // A hop in each direction: a loop would end.
        let answer = b.exec(&["ping", "-c", "1", "-W", "5", "10.0.1.2"])?;
        assert!(answer.contains("ttl=63"), "{answer}");
        a.exec(&["ping", "-c", "3", "-i", "0.1", "-W", "5", "-M", "do", "-s", "1422", "10.0.2.2"])?;
        explain(daemon)?;
        let mut server = b.iperf_server(lab)?;
        println!("{}", a.exec(&["timeout", "60", "iperf3", "-c", "10.0.2.2", "-n", "4M"])?);

        // Guests of a file come in the place of those of the site file.
        daemon.command(&["network", "endpoint", "remove", "acme-vpc", "10.0.1.2", "10.0.2.2"])?;
        assert!(
            a.exec(&["ping", "-c", "2", "-i", "0.2", "-W", "1", "10.0.2.2"]).is_err(),
            "their endpoints were removed"
        );
        let file = lab.path().join("guests.csv");
        let lines = "endpoint,acme-vpc,10.0.1.2,02:5d:00:00:01:02,192.0.2.1\nroute,acme-vpc,10.0.2.0/25,192.0.2.2\n";
        std::fs::write(&file, lines).context("the file of guests")?;
        daemon.command(&["network", "load", &file.display().to_string()])?;
        let error = asked(daemon, &["--from", "10.0.1.2", "--to", "10.0.2.2"]).expect_err("it is loaded").to_string();
        assert!(error.contains("10.0.1.2 is on host 192.0.2.1"), "{error}");
        let answer = asked(daemon, &["--from", "10.0.1.2", "--host", "192.0.2.1", "--to", "10.0.2.2"])?;
        assert!(answer.contains("loaded entry of acme-vpc on 192.0.2.2"), "{answer}");
        // Frames by a route have the MAC address of the router there, which is the guest's kernel in this test.
        b.ip(&["link", "set", "acme0", "promisc", "on"])?;
        let gateway = daemon.status()?["networks"][0].clone();
        assert_eq!((&gateway["loaded_endpoints"], &gateway["loaded_routes"]), (&1.into(), &1.into()), "{gateway}");
        daemon.kill_data_plane()?;
        wait_until("frames to go on to the second site by the route", WAIT, || {
            let before = frames_out(daemon)?;
            a.reaches("10.0.2.2");
            Ok((frames_out(daemon)? > before).then_some(()))
        })?;
        server.stop().map(drop)
    });
}

/// `softdpu trace explain …`
fn asked(daemon: &Daemon, arguments: &[&str]) -> Result<String, Failure> {
    daemon.command(&[&["trace", "explain"], arguments].concat())
}

/// A node without guests explains what it does with packets of other hosts, and a question sends nothing.
fn explain(daemon: &Daemon) -> Result<(), Failure> {
    let before = frames_out(daemon)?;
    let udp = ["--protocol", "udp", "--port", "53", "--network", "acme-vpc"];
    let ask = |ends: &[&str]| asked(daemon, &[ends, &udp[..]].concat());
    for _ in 0..2 {
        let answer = ask(&["--from", "10.0.1.2", "--host", "192.0.2.1", "--to", "10.0.2.2"])?;
        let lines: Vec<&str> = answer.lines().collect();
        let expected =
            "192.0.2.1 > 192.0.2.3 VXLAN 5001: 10.0.1.2.49152 > 10.0.2.2.53: UDP, data 0, in by underlay, on core 0";
        assert_eq!(lines.first(), Some(&expected), "{answer}");
        assert_eq!(lines.last(), Some(&"leaves by underlay; the core has no flow of it"), "{answer}");
        for step in [
            "VNI 5001 from 192.0.2.1  network acme-vpc",
            "VXLAN 5001 to 192.0.2.2",
            "VXLAN headers 192.0.2.3 > 192.0.2.2",
        ] {
            assert!(answer.contains(step), "{step}: {answer}");
        }
    }
    // From another host's tunnel the address is spoofed, and a host without a tunnel is unknown.
    let answer = ask(&["--from", "10.0.1.2", "--host", "192.0.2.2", "--to", "10.0.2.2"])?;
    assert!(answer.contains("dropped: spoofed-address"), "{answer}");
    let answer = ask(&["--from", "10.0.1.2", "--host", "192.0.2.77", "--to", "10.0.2.2"])?;
    assert!(answer.contains("dropped: unknown-tunnel"), "{answer}");
    let answer = ask(&["--from", "10.0.1.2", "--host", "192.0.2.1", "--to", "10.0.1.2"])?;
    assert!(answer.contains("dropped: unresolved"), "nothing turns round: {answer}");
    assert_eq!(frames_out(daemon)?, before, "nothing left");
    // An error of a wrong question says how to ask.
    let refused = |ends: &[&str]| ask(ends).expect_err("it cannot be answered").to_string();
    let says = "10.0.1.2 is on host 192.0.2.1: ask there, or what becomes here of what comes from there, \
                `softdpu trace explain --from 10.0.1.2 --host 192.0.2.1 --to 10.0.2.2 --network acme-vpc`";
    let error = refused(&["--from", "10.0.1.2", "--to", "10.0.2.2"]);
    assert!(error.contains(says), "{error}");
    let error = refused(&["--from", "underlay", "--to", "10.0.2.2"]);
    assert!(error.contains("`softdpu trace explain --from ADDRESS --host HOST --to 10.0.2.2`"), "{error}");
    let error = refused(&["--from", "2001:db8::2", "--host", "2001:db8::1", "--to", "2001:db8::3"]);
    assert!(error.contains("no address of the family of 2001:db8::1"), "{error}");
    let error = asked(daemon, &["--from", "10.9.9.9", "--host", "192.0.2.1", "--to", "10.0.2.2"]);
    let error = error.expect_err("no network has it").to_string();
    assert!(error.contains("no network here has 10.9.9.9"), "{error}");
    Ok(())
}

fn frames_out(daemon: &Daemon) -> Result<u64, Failure> {
    Ok(daemon.status()?["underlay"]["frames_out"].as_u64().unwrap_or(0))
}
