//! Security groups and access control lists between the kernels of two hosts, changed while a connection lives.

#![allow(missing_docs)]

use std::fs;
use std::time::Duration;

use softdpu_tests::{Context, Daemon, Failure, Host, Lab, TwoHosts, Wire, wait_until, wait_until_still};

const WAIT: Duration = Duration::from_secs(60);
/// As long as nothing changes, what was under way has arrived; and so much may have been.
const STILL: Duration = Duration::from_millis(500);
const UNDER_WAY: u64 = 64;
const WIRE: Wire = Wire::ETHERNET;

/// Connections that a host may have in this test.
const ROOM: u64 = 64;

/// The second host's port is a server.
fn site(host: &Host) -> String {
    let policy = r#"
[[network.security-group]]
name = "server"
rule = [{ direction = "ingress", protocol = "tcp", ports = 5201 }]

[[network.acl]]
name = "edge"
rule = [{ priority = 1, action = "deny", protocol = "udp", ports = 5201 }]
"#;
    let groups = if host.number() == 2 { ", security-groups = \"server\", acl = \"edge\"" } else { "" };
    let tables = format!("[node]\ntables = {{ connections = {ROOM} }}\n");
    WIRE.site(host, policy, groups).replacen("[node]\n", &tables, 1)
}

/// Puts `rules` in the place of those of group `server`, on a running daemon.
fn policy(lab: &Lab, daemon: &Daemon, rules: &str) -> Result<String, Failure> {
    let file = lab.path().join("policy.toml");
    let text = format!(
        "network = \"acme\"\nsecurity-group = [{{ name = \"server\", rule = [{rules}] }}]\nacl = [{{ name = \"edge\" }}]\n"
    );
    fs::write(&file, text).context("the policy's file")?;
    daemon.command(&["network", "policy", &file.display().to_string()])
}

/// What left for the server's port, and what was dropped on the way to it for `reason`.
fn counts(daemon: &Daemon, reason: &str) -> Result<(u64, u64), Failure> {
    let status = daemon.status()?;
    let dropped = status["underlay"]["dropped_in"][reason].as_u64().unwrap_or(0);
    Ok((status["devices"][0]["port"]["frames_out"].as_u64().unwrap_or(0), dropped))
}

/// Waits until more has left for the server.
fn moves(daemon: &Daemon, what: &str) -> Result<(), Failure> {
    let (before, _) = counts(daemon, "security-group")?;
    wait_until(what, WAIT, || Ok((counts(daemon, "security-group")?.0 > before + 50).then_some(())))
}

#[test]
fn a_group_lets_in_what_it_allows_and_a_rule_that_goes_ends_what_it_let_in() {
    WIRE.run_softdpus("policy", site, |lab, TwoHosts { at_b, a, b, .. }| {
        // Replies pass, and unsolicited packets do not.
        b.wait_to_reach("10.0.0.1")?;
        assert!(a.exec(&["ping", "-c", "2", "-i", "0.2", "-W", "1", "10.0.0.2"]).is_err(), "no rule allows it");
        wait_until("what no rule allows to be counted", WAIT, || {
            Ok((counts(at_b, "security-group")?.1 >= 2).then_some(()))
        })?;

        // A connection that a rule allows.
        let mut server = b.iperf_server(lab)?;
        let mut client = a.start(lab, "client", &["iperf3", "-c", "10.0.0.2", "-t", "600", "-b", "2M", "-l", "1K"])?;
        moves(at_b, "the connection to carry something")?;

        // Far more connections than there is room for: it is not the one that is open that makes room.
        // Its TAP has room for them while the core is held up: what it has no room for, the kernel drops.
        b.ip(&["link", "set", "acme0", "txqueuelen", "20000"])?;
        b.knock("10.0.0.1", 4 * ROOM)?;
        let of = |connections: &serde_json::Value, name: &str| {
            connections[name].as_u64().unwrap_or_else(|| panic!("{name}: {connections}"))
        };
        // More than there is room for, of which those without an answer have ended.
        let connections = wait_until("all of them to be opened", WAIT, || {
            let connections = at_b.status()?["connections"].clone();
            let opened = of(&connections, "opened") > 4 * ROOM && of(&connections, "ended") >= 3 * ROOM;
            Ok(opened.then_some(connections))
        })
        .map_err(|error| Failure::new(format!("{error}: {:?}", at_b.status())))?;
        assert!(of(&connections, "capacity") == ROOM && of(&connections, "known") <= ROOM, "{connections}");
        moves(at_b, "the connection to go on among many")?;

        // Without its rule nothing of it passes, from the moment that the command has returned, and with it again, all
        // does.
        policy(lab, at_b, r#"{ direction = "ingress", protocol = "tcp", ports = 22 }"#)?;
        // What was decided before is on its way.
        let (returned, dropped) = counts(at_b, "security-group")?;
        let passed =
            wait_until_still("nothing to go to the server", STILL, WAIT, || Ok(counts(at_b, "security-group")?.0))?;
        assert!(passed - returned <= UNDER_WAY, "{} went to the server without a rule", passed - returned);
        wait_until("segments to be dropped", WAIT, || Ok((counts(at_b, "security-group")?.1 > dropped).then_some(())))?;
        assert_eq!(counts(at_b, "security-group")?.0, passed, "none went to the server");
        policy(lab, at_b, r#"{ direction = "ingress", protocol = "tcp", ports = "5200-5210" }"#)?;
        moves(at_b, "the connection to go on")?;

        // What is refused changes nothing.
        let gone = lab.path().join("gone.toml");
        fs::write(&gone, "network = \"acme\"\n").context("the policy's file")?;
        let error = at_b.command(&["network", "policy", &gone.display().to_string()]);
        let error = error.err().ok_or_else(|| Failure::new("a group in use was taken away"))?.to_string();
        assert!(error.contains("there is no network.security-group `server`"), "{error}");
        moves(at_b, "the connection to go on after that")?;

        // The next data plane goes by what was changed, and takes the connection up.
        at_b.kill_data_plane()?;
        moves(at_b, "the connection to survive a restart")?;
        client.stop()?;
        server.stop()?;
        Ok(())
    });
}

#[test]
fn a_list_is_asked_about_what_has_no_connection() {
    WIRE.run_softdpus("policy-acl", site, |_, TwoHosts { at_b, a, .. }| {
        // A datagram to a port that the list denies, one to a port about which only the groups have something to say.
        wait_until("both to be dropped, each for its reason", WAIT, || {
            a.exec(&["bash", "-c", "echo >/dev/udp/10.0.0.2/5201; echo >/dev/udp/10.0.0.2/5202"])?;
            let (list, group) = (counts(at_b, "acl")?.1, counts(at_b, "security-group")?.1);
            Ok((list > 0 && group > 0).then_some(()))
        })?;
        Ok(())
    });
}

/// Connections that the data plane of `daemon` has taken over, once it has looked at all.
fn taken_over(daemon: &Daemon) -> Result<u64, Failure> {
    wait_until("all connections to be taken over", WAIT, || {
        let status = daemon.status()?["taken_over"].clone();
        Ok((status["done"] == true).then(|| status["connections"].as_u64().unwrap_or(0)))
    })
}

/// No rule lets the other host in, and its connections here are replies to what began here. It sends, and this host
/// says nothing until it hears from it: only a data plane that knows the connection lets it go on.
#[test]
fn a_reply_goes_on_when_the_data_plane_is_killed_or_upgraded_and_nothing_else_comes_in() {
    WIRE.run_softdpus("policy-kept", site, |lab, TwoHosts { at_b, a, b, .. }| {
        b.wait_to_reach("10.0.0.1")?;
        policy(lab, at_b, "")?;
        let mut server = a.iperf_server(lab)?;
        let download = ["iperf3", "-c", "10.0.0.1", "-R", "-t", "600", "-b", "2M", "-l", "1K"];
        let mut client = b.start(lab, "client", &download)?;
        moves(at_b, "the connection to carry something")?;
        let refused = |at_b: &Daemon| -> Result<(), Failure> {
            let knock = "exec 3<>/dev/tcp/10.0.0.2/5201";
            assert!(a.exec(&["timeout", "2", "bash", "-c", knock]).is_err(), "no rule allows it");
            wait_until("a connection from outside to be refused", WAIT, || {
                Ok((counts(at_b, "security-group")?.1 >= 1).then_some(()))
            })
        };
        for round in 1..=3 {
            at_b.kill_data_plane()?;
            moves(at_b, &format!("the connection to go on after kill {round}"))?;
            assert!(taken_over(at_b)? >= 2, "iperf3 has two connections");
            refused(at_b)?;
            at_b.upgrade()?;
            moves(at_b, &format!("the connection to go on after upgrade {round}"))?;
            assert!(taken_over(at_b)? >= 2, "iperf3 has two connections");
            refused(at_b)?;
        }
        assert_eq!(at_b.status()?["taken_over"]["unread"], 0);
        client.stop()?;
        server.stop()?;
        Ok(())
    });
}
