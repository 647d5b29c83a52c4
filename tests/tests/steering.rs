//! On which core a gateway works on what comes by tunnels: rules and the hash, on the running daemon, over a kill and a
//! restart.

#![allow(missing_docs)]

use std::time::Duration;

use serde_json::Value;
use softdpu_tests::{Daemon, Failure, Gateway, Host, Wire, wait_until};

const WAIT: Duration = Duration::from_secs(60);
const WIRE: Wire = Wire::ETHERNET;

/// What each core has sent on from one node to another.
fn transit(status: &Value) -> [u64; 2] {
    let of = |core: usize| {
        let packets = &status["cores"][core]["paths"]["transit"];
        ["switch", "fast", "software"].iter().map(|tier| packets[tier].as_u64().unwrap_or(0)).sum()
    };
    [of(0), of(1)]
}

/// Packets of the only rule, and its CPU.
fn rule(daemon: &Daemon) -> Result<(u64, u64), Failure> {
    let status = daemon.status()?;
    let rules = status["steering"]["rules"].as_array().cloned().unwrap_or_default();
    assert_eq!(rules.len(), 1, "{}", status["steering"]);
    assert_eq!((&rules[0]["what"], &rules[0]["automatic"]), (&"vni 5001".into(), &false.into()));
    Ok((rules[0]["cpu"].as_u64().unwrap_or(9), rules[0]["packets"].as_u64().unwrap_or(0)))
}

/// Echoes go from site to site, and it is core `core` that sends them on, and no other.
fn goes_by(core: usize, daemon: &Daemon, a: &Host) -> Result<(), Failure> {
    let before = transit(&daemon.status()?);
    a.exec(&["ping", "-c", "20", "-i", "0.01", "-W", "5", "10.0.2.2"])?;
    wait_until("the core to tell of 20 echoes and answers", WAIT, || {
        let now = transit(&daemon.status()?);
        Ok((now[core] - before[core] >= 40).then_some(()))
    })?;
    let now = transit(&daemon.status()?);
    assert_eq!(now[1 - core], before[1 - core], "the other core has sent some on: {before:?} {now:?}");
    Ok(())
}

#[test]
fn a_networks_packets_are_worked_on_by_the_core_that_a_rule_names() {
    let two_cores = |site: String| site.replace("cores = [0]", "cores = [0, 1]");
    WIRE.run_gateway("steering", two_cores, |_, Gateway { daemon, a, .. }| {
        assert!(daemon.status()?["steering"].is_null(), "no rule was added");

        // Whichever core reads: each of them can leave the work to the other.
        for core in [1, 0, 1] {
            daemon.command(&["network", "steer", "add", "--vni", "5001", "--core", &core.to_string()])?;
            goes_by(core, daemon, a)?;
            let (cpu, packets) = rule(daemon)?;
            assert!(cpu == core as u64 && packets >= 40, "CPU {cpu}, {packets} packets");
        }
        // The cores count by themselves: what one has just handed over another has yet to take.
        wait_until("what was handed over to be taken", WAIT, || {
            let steering = &daemon.status()?["steering"];
            let sum = |name: &str| -> u64 {
                let cores = steering["cores"].as_array().cloned().unwrap_or_default();
                cores.iter().map(|core| core[name].as_u64().unwrap_or(0)).sum()
            };
            Ok((sum("handed") >= 40 && sum("handed") == sum("taken")).then_some(()))
        })?;
        let table = daemon.command(&["network", "steer", "list"])?;
        assert!(table.contains("vni 5001") && table.contains("0/256"), "{table}");

        daemon.kill_data_plane()?;
        a.wait_to_reach("10.0.2.2")?;
        goes_by(1, daemon, a)?;
        daemon.restart()?;
        a.wait_to_reach("10.0.2.2")?;
        goes_by(1, daemon, a)?;
        assert_eq!(rule(daemon)?.0, 1);

        // What cannot be is refused, with what to do.
        let refused = |arguments: &[&str]| daemon.command(&[&["network", "steer"], arguments].concat()).unwrap_err();
        let error = refused(&["add", "--vni", "5001", "--core", "7"]).to_string();
        assert!(error.contains("CPU 7 is not one of the data plane's") && error.contains("[0, 1]"), "{error}");
        let error = refused(&["remove", "--vni", "5002"]).to_string();
        assert!(error.contains("there is no rule for vni 5002"), "{error}");
        let error = refused(&["add", "--core", "1"]).to_string();
        assert!(error.contains("takes no packets"), "{error}");

        // By hash, and as it was without any.
        daemon.command(&["network", "steer", "remove", "--vni", "5001"])?;
        daemon.command(&["network", "steer", "set", "--cores", "0"])?;
        goes_by(0, daemon, a)?;
        assert_eq!(daemon.status()?["steering"]["cores"][0]["buckets"], 256);
        daemon.command(&["network", "steer", "set", "--no-cores"])?;
        assert!(daemon.status()?["steering"].is_null());
        a.exec(&["ping", "-c", "3", "-i", "0.1", "-W", "5", "10.0.2.2"]).map(drop)
    });
}
