//! Meters of an interface and of its tenant, between the kernels of two hosts: what passes is what they let pass, by
//! their own counters, and they change while traffic goes on.

#![allow(missing_docs)]

use std::time::{Duration, Instant};

use serde_json::Value;
use softdpu_tests::{Daemon, Failure, Host, TwoHosts, Wire, datagrams, wait_until};

const WAIT: Duration = Duration::from_secs(60);
const WIRE: Wire = Wire::ETHERNET;
/// What each sender tries, bits a second: far more than any meter of this test allows.
const TRIED: &str = "10M";

/// The first host has two interfaces, of one tenant.
fn site(host: &Host) -> String {
    let meter =
        r#", meter = { committed = "1 Mbit/s", committed-burst = "16 KiB", peak = "2 Mbit/s", peak-burst = "64 KiB" }"#;
    let (own, second) = match host.number() {
        1 => (
            meter,
            r#"
[[device]]
name = "second"
tap = { network = "acme", address = "10.0.0.3", mac = "02:5d:00:00:00:03", interface = "acme1" }
"#,
        ),
        _ => (
            "",
            r#"
[[network.endpoint]]
address = "10.0.0.3"
mac = "02:5d:00:00:00:03"
host = "192.0.2.1"
"#,
        ),
    };
    let (site, network) = if host.number() == 1 { (second, "") } else { ("", second) };
    WIRE.site(host, network, own) + site
}

/// What the daemon counts: packets and bytes by meter and colour, frames of each interface, and what it dropped of them
/// as metered.
struct Counts {
    at: Instant,
    status: Value,
}

impl Counts {
    fn now(daemon: &Daemon) -> Result<Counts, Failure> {
        Ok(Counts { status: daemon.status()?, at: Instant::now() })
    }

    fn meter(&self, name: &str, colour: &str, what: &str) -> u64 {
        let meters = self.status["meters"].as_array().into_iter().flatten();
        let named = meters.filter(|meter| meter["name"] == name);
        named.filter_map(|meter| meter[colour][what].as_u64()).sum()
    }

    fn frames(&self, device: &str) -> u64 {
        self.port(device)["frames_in"].as_u64().unwrap_or(0)
    }

    fn metered(&self, device: &str) -> u64 {
        self.port(device)["dropped_in"]["metered"].as_u64().unwrap_or(0)
    }

    fn port(&self, device: &str) -> &Value {
        let devices = self.status["devices"].as_array().into_iter().flatten();
        devices.filter(|entry| entry["name"] == device).map(|entry| &entry["port"]).next().unwrap_or(&Value::Null)
    }

    fn by_flow(&self) -> u64 {
        self.status["cores"][0]["frames"]["flow"].as_u64().unwrap_or(0)
    }
}

/// What is counted for three seconds, from a moment on when bursts are used up.
fn measure(daemon: &Daemon) -> Result<[Counts; 2], Failure> {
    std::thread::sleep(Duration::from_secs(1));
    let before = Counts::now(daemon)?;
    std::thread::sleep(Duration::from_secs(3));
    Ok([before, Counts::now(daemon)?])
}

/// Megabits a second of a colour.
fn rate([before, after]: &[Counts; 2], meter: &str, colours: &[&str]) -> f64 {
    let bytes = |counts: &Counts| colours.iter().map(|colour| counts.meter(meter, colour, "bytes")).sum::<u64>();
    let grown = bytes(after).checked_sub(bytes(before)).expect("counters only grow");
    grown as f64 * 8e-6 / after.at.duration_since(before.at).as_secs_f64()
}

/// Measures, and holds what is green and what passes of a meter to what is asked, megabits a second: in three seconds
/// never more than that and its bursts, and not much less where senders always have something to send.
fn passes(daemon: &Daemon, meter: &str, [green, all]: [f64; 2], what: &str) -> Result<[Counts; 2], Failure> {
    let counts = measure(daemon)?;
    for (asked, colours) in [(green, &["green"][..]), (all, &["green", "yellow"])] {
        let found = rate(&counts, meter, colours);
        println!("{what}: {found:.2} Mbit/s of {asked} are {}", colours.join(" or "));
        let is_held = (asked * 0.6..=asked * 1.4).contains(&found);
        assert!(is_held, "{what}: {found:.2} Mbit/s, not {asked}, are {}", colours.join(" or "));
    }
    Ok(counts)
}

#[test]
fn meters_of_an_interface_and_of_its_tenant_hold_and_change_while_traffic_goes_on() {
    WIRE.run_softdpus("meters", site, |lab, TwoHosts { at_a, a, b, .. }| {
        a.ip(&["addr", "add", "10.0.0.3/16", "dev", "acme1"])?;
        let send = |interface, port| datagrams(lab, [a, b], interface, port, TRIED);
        let mut senders = [send("acme0", 5301)?, send("acme1", 5302)?];
        wait_until("datagrams of both interfaces", WAIT, || {
            let counts = Counts::now(at_a)?;
            Ok((counts.frames("port") > 1000 && counts.frames("second") > 1000).then_some(()))
        })?;

        // The interface's own: what is green, what is yellow, and the rest is dropped and says why.
        let counts = passes(at_a, "device port", [1.0, 2.0], "the interface")?;
        let [before, after] = &counts;
        let red = after.meter("device port", "red", "packets") - before.meter("device port", "red", "packets");
        let dropped = after.metered("port") - before.metered("port");
        assert!(red > 100 && dropped.abs_diff(red) < red / 4, "{red} red, {dropped} dropped");
        assert_eq!(after.metered("second"), 0, "the other interface has no meter");
        wait_until("flows to be metered", WAIT, || {
            Ok((Counts::now(at_a)?.by_flow() > before.by_flow() + 1000).then_some(()))
        })?;

        // Their tenant's, from the moment that the command returns, and for both together; it is the same after a
        // crash.
        let set = ["tenant", "set", "default", "--meter-committed", "1 Mbit/s", "--meter-committed-burst", "16 KiB"];
        at_a.command(&[&set[..], &["--meter-peak", "1500 kbit/s", "--meter-peak-burst", "64 KiB"]].concat())?;
        for what in ["the tenant's two interfaces", "the same with another data plane"] {
            let counts = passes(at_a, "tenant default", [1.0, 1.5], what)?;
            assert!(counts[1].metered("second") > counts[0].metered("second") + 100, "it counts for both");
            at_a.kill_data_plane()?;
            wait_until("datagrams again", WAIT, || Ok((Counts::now(at_a)?.frames("second") > 1000).then_some(())))?;
        }

        // Another of the interface, by the other algorithm.
        at_a.command(&["tenant", "set", "default", "--no-meter"])?;
        let set = ["device", "set", "port", "--meter-committed", "3 Mbit/s", "--meter-committed-burst", "16 KiB"];
        at_a.command(&[&set[..], &["--meter-excess", "1 Mbit/s", "--meter-excess-burst", "64 KiB"]].concat())?;
        passes(at_a, "device port", [3.0, 4.0], "the interface's new meter")?;
        let error =
            at_a.command(&["device", "set", "port", "--meter-committed", "3 Mbit/s", "--meter-peak", "1 Mbit/s"]);
        let error = error.err().ok_or_else(|| Failure::new("a peak below the committed rate was taken"))?.to_string();
        assert!(error.contains("the peak rate is below the committed rate"), "{error}");
        at_a.command(&["device", "set", "port", "--no-meter"])?;
        let [before, after] = measure(at_a)?;
        assert_eq!(after.metered("port"), before.metered("port"), "it has no meter");
        assert_eq!(after.status["meters"], Value::Array(vec![]), "there are no meters");
        wait_until("it to go on", WAIT, || {
            Ok((Counts::now(at_a)?.frames("port") > before.frames("port") + 1000).then_some(()))
        })?;
        for process in senders.iter_mut().flatten() {
            process.stop()?;
        }
        Ok(())
    });
}
