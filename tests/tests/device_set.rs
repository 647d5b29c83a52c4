//! An interface is put into other groups and under other lists while traffic goes on; and no data plane, however the
//! one before it ended, lets a packet pass by what was before.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Daemon, Failure, Host, TwoHosts, Wire, wait_until, wait_until_still};

const WAIT: Duration = Duration::from_secs(60);
/// As long as nothing changes, what was under way has arrived; and so much may have been.
const STILL: Duration = Duration::from_millis(500);
const UNDER_WAY: u64 = 32;
const WIRE: Wire = Wire::ETHERNET;

/// No device is in a group or has a list.
fn site(host: &Host) -> String {
    let policy = r#"
[[network.security-group]]
name = "quiet"
rule = [{ direction = "ingress", protocol = "tcp", ports = 22 }]

[[network.security-group]]
name = "echo"
rule = [{ direction = "ingress", protocol = "icmp" }]

[[network.acl]]
name = "closed"
rule = [{ priority = 1, action = "deny", protocol = "icmp" }]
"#;
    WIRE.site(host, policy, "")
}

/// Echo requests that have reached a host's kernel.
fn echoes(host: &Host) -> Result<u64, Failure> {
    host.counter("Icmp", "InEchos")
}

/// From a moment after now on nothing reaches the host, while what is refused is counted for `reason`.
fn refused(daemon: &Daemon, host: &Host, reason: &str) -> Result<(), Failure> {
    let before = nothing_passes(host)?;
    let counted = drops(daemon, reason)?;
    wait_until(&format!("packets to be refused: {reason}"), WAIT, || {
        Ok((drops(daemon, reason)? > counted + 20).then_some(()))
    })?;
    assert_eq!(echoes(host)?, before, "a packet passed that {reason} refuses");
    Ok(())
}

/// What was decided before is on its way: some of it arrives, then nothing more. How many have arrived.
fn nothing_passes(host: &Host) -> Result<u64, Failure> {
    let returned = echoes(host)?;
    let passed = wait_until_still("nothing more to arrive", STILL, WAIT, || echoes(host))?;
    assert!(passed - returned <= UNDER_WAY, "{} packets passed by what was before", passed - returned);
    Ok(passed)
}

fn drops(daemon: &Daemon, reason: &str) -> Result<u64, Failure> {
    Ok(daemon.status()?["underlay"]["dropped_in"][reason].as_u64().unwrap_or(0))
}

fn arrive(host: &Host, what: &str) -> Result<(), Failure> {
    let before = echoes(host)?;
    wait_until(what, WAIT, || Ok((echoes(host)? > before + 20).then_some(())))
}

#[test]
fn groups_and_lists_of_an_interface_change_and_no_packet_passes_by_those_before() {
    WIRE.run_softdpus("device-set", site, |lab, TwoHosts { at_b, a, b, .. }| {
        let mut ping = a.start(lab, "ping", &["ping", "-q", "-i", "0.01", "10.0.0.2"])?;
        arrive(b, "echo requests without groups")?;
        at_b.command(&["device", "set", "port", "--security-group", "quiet"])?;
        refused(at_b, b, "security-group")?;
        at_b.command(&["device", "set", "port", "--security-group", "quiet,echo"])?;
        arrive(b, "echo requests that a second group allows")?;
        at_b.command(&["device", "set", "port", "--acl", "closed"])?;
        refused(at_b, b, "acl")?;
        at_b.command(&["device", "set", "port", "--no-acl"])?;
        arrive(b, "echo requests without the list")?;

        // What is not there is refused, and nothing changes.
        for wrong in [
            &["device", "set", "port", "--security-group", "loud"][..],
            &["device", "set", "port", "--acl", "none"],
            &["device", "set", "prot", "--no-acl"],
        ] {
            let error = at_b.command(wrong).err().ok_or_else(|| Failure::new(format!("{wrong:?} was not refused")))?;
            println!("{wrong:?}: {error}");
        }
        arrive(b, "echo requests after what was refused")?;

        // A change, and the data plane dies at once: its successor has flows of no one, and goes by the change.
        for _ in 0..3 {
            at_b.command(&["device", "set", "port", "--no-security-group"])?;
            arrive(b, "echo requests without groups again")?;
            at_b.command(&["device", "set", "port", "--security-group", "quiet"])?;
            let before = nothing_passes(b)?;
            at_b.kill_data_plane()?;
            refused(at_b, b, "security-group")?;
            assert_eq!(echoes(b)?, before, "a packet passed by what was before the change");
        }
        at_b.restart()?;
        b.ip(&["addr", "add", "10.0.0.2/16", "dev", "acme0"])?;
        refused(at_b, b, "security-group")?;
        ping.stop()?;
        Ok(())
    });
}
