//! Datapaths, a full flow table and an elephant, between the kernels of two hosts.

#![allow(missing_docs)]

use std::time::Duration;

use serde_json::Value;
use softdpu_tests::{Daemon, Failure, Host, TwoHosts, Wire, datagrams, wait_until};

const WAIT: Duration = Duration::from_secs(60);
const WIRE: Wire = Wire::ETHERNET;
/// Flows that a core may keep in this test, and those that come at once.
const ROOM: u64 = 64;
const CROWD: u64 = 400;

fn site(host: &Host) -> String {
    let site = WIRE.site(host, "", "");
    site.replacen("[node]\n", &format!("[node]\ntables = {{ flows = {ROOM} }}\n"), 1)
}

fn core(daemon: &Daemon) -> Result<Value, Failure> {
    Ok(daemon.status()?["cores"][0].clone())
}

fn count(core: &Value, path: &str) -> u64 {
    core.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("{path} is not in {core}"))
}

/// Datagrams that have reached a host's kernel, at ports without a socket.
fn unheard(host: &Host) -> Result<u64, Failure> {
    host.counter("Udp", "NoPorts")
}

#[test]
fn new_flows_beyond_the_table_are_decided_one_by_one_and_an_elephant_is_shown() {
    WIRE.run_softdpus("datapaths", site, |lab, TwoHosts { at_a, at_b, a, b }| {
        // Room for what comes while the core is held up: the kernel drops what its TAP has none for.
        a.ip(&["link", "set", "acme0", "txqueuelen", "20000"])?;
        let mut elephant = datagrams(lab, [a, b], "acme0", 5301, "20M")?;
        let found = wait_until("the elephant to be shown", WAIT, || {
            let core = core(at_a)?;
            let flows = core["heavy_flows"].as_array().cloned().unwrap_or_default();
            Ok(flows.into_iter().find(|flow| flow["elephant"] == true))
        })?;
        assert_eq!((&found["device"], &found["protocol"]), (&"port".into(), &"udp".into()), "{found}");
        assert_eq!(found["destination"], "10.0.0.2:5301", "{found}");
        let (packets, bytes) = (count(&found, "/packets_per_s"), count(&found, "/bytes_per_s"));
        assert!(packets > 0 && bytes / packets == 1042, "{found}");
        assert!(count(&found, "/share") > 500, "nothing else sends: {found}");
        wait_until("the table to show it", WAIT, || {
            let text = at_a.command(&["status"])?;
            Ok((text.contains("> 10.0.0.2:5301") && text.contains("elephant")).then_some(()))
        })?;

        // Far more flows than there is room for, all new.
        let (before, heard) = (core(at_a)?, unheard(b)?);
        a.knock("10.0.0.2", CROWD)?;
        wait_until("all of them to arrive", WAIT, || Ok((unheard(b)? >= heard + CROWD).then_some(())))?;
        let full = core(at_a)?;
        let grown = |after: &Value, before: &Value, path: &str| count(after, path) - count(before, path);
        assert_eq!(count(&full, "/flows/capacity"), ROOM);
        assert!(count(&full, "/flows/known") <= ROOM, "{full}");
        let unkept = grown(&full, &before, "/flows/unkept");
        assert!((CROWD - ROOM..=CROWD + ROOM).contains(&unkept), "{unkept} of {CROWD}: {full}");
        assert!(grown(&full, &before, "/paths/tunnel/switch") >= CROWD, "one by one: {full}");
        // A flow that was there before goes on as before.
        wait_until("the elephant to go on by its flow", WAIT, || {
            Ok((grown(&core(at_a)?, &full, "/paths/tunnel/fast") > 1000).then_some(()))
        })?;
        // What comes from tunnels goes by flows as well, where there is room for them.
        let other = core(at_b)?;
        assert!(count(&other, "/paths/port/switch") + ROOM >= CROWD, "{other}");
        assert!(count(&other, "/paths/port/fast") > 1000, "{other}");
        assert_eq!(count(&other, "/paths/transit/switch"), 0, "{other}");
        for process in &mut elephant {
            process.stop()?;
        }
        // Silence: no flow is heavy any more.
        wait_until("no flow to be heavy", WAIT, || {
            Ok(core(at_a)?["heavy_flows"].as_array().is_some_and(Vec::is_empty).then_some(()))
        })?;
        Ok(())
    });
}
