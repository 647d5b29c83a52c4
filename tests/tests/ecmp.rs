//! Two hosts of two sites, joined by two gateways that are an ECMP group: flows are spread by weight, and a gateway
//! that is set down in the middle of transfers gets nothing from then on, while they go on through the other.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::{Context, Daemon, Failure, Host, Lab, Site, Wire, wait_until, wait_until_still};

const WAIT: Duration = Duration::from_secs(60);
const WIRE: Wire = Wire::ETHERNET;
/// As long as nothing changes, what was under way has arrived.
const STILL: Duration = Duration::from_secs(1);
/// The gateways' numbers.
const FIRST: u8 = 3;
const SECOND: u8 = 4;

/// A host of site NUMBER, with a port at 10.0.NUMBER.2, which knows the gateways only; a second network beside it.
fn site(host: &Host) -> String {
    let (number, other) = (host.number(), host.other());
    let (first, second) = (WIRE.address(FIRST), WIRE.address(SECOND));
    let group = format!(
        r#"
[[network.ecmp]]
name   = "gateways"
member = [{{ host = "{first}" }}, {{ host = "{second}", weight = 3 }}]

[[network.route]]
prefix = "10.0.{other}.0/24"
ecmp   = "gateways"
"#
    );
    let port = format!("network = 'acme', address = '10.0.{number}.2', mac = '02:5d:00:00:0{number}:02'");
    Site::on(&[0])
        .with(&WIRE.underlay(host))
        .network("acme", 5001, &[&format!("10.0.{number}.0/24")])
        .with(&group)
        .network("tools", 5002, &["10.9.0.0/24"])
        .device("port", &format!("tap = {{ {port}, interface = 'acme0' }}"))
        .device("tool", "tap = { network = 'tools', address = '10.9.0.2', interface = 'tools0' }")
        .to_string()
}

/// A gateway, which knows both sites' guests.
fn gateway(host: &Host) -> String {
    Site::on(&[0])
        .with(&WIRE.underlay(host))
        .network("acme", 5001, &["10.0.1.0/24", "10.0.2.0/24"])
        .with("transit = true")
        .endpoint(&["10.0.1.2"], "02:5d:00:00:01:02", &WIRE.address(1))
        .endpoint(&["10.0.2.2"], "02:5d:00:00:02:02", &WIRE.address(2))
        .to_string()
}

fn number(value: &serde_json::Value) -> Result<u64, Failure> {
    value.as_u64().ok_or_else(|| Failure::new(format!("{value} is no number")))
}

/// What a host has sent to both gateways, and whether they are up.
fn members(daemon: &Daemon) -> Result<[(u64, String); 2], Failure> {
    let members = &daemon.status()?["networks"][0]["ecmp"][0]["members"];
    let member = |at: usize| -> Result<_, Failure> {
        Ok((number(&members[at]["packets"])?, members[at]["state"].as_str().unwrap_or_default().to_owned()))
    };
    Ok([member(0)?, member(1)?])
}

/// Frames that came in by a gateway's underlay.
fn frames_in(gateway: &Daemon) -> Result<u64, Failure> {
    number(&gateway.status()?["underlay"]["frames_in"])
}

/// 400 datagrams to as many ports of the other site's guest.
fn spread(host: &Host) -> Result<(), Failure> {
    let send = format!("for port in $(seq 2000 2399); do echo x > /dev/udp/10.0.{}.2/$port; done", host.other());
    host.exec(&["bash", "-c", &send]).map(drop)
}

/// A packet's path, without the time that each step took.
fn explain(daemon: &Daemon, to: &str) -> Result<String, Failure> {
    let text =
        daemon.command(&["trace", "explain", "--from", "port", "--to", to, "--protocol", "udp", "--port", "53"])?;
    let lines = text.lines().map(|line| line.split_once(" ns ").map_or(line, |(_, step)| step));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

#[test]
fn flows_are_spread_over_gateways_and_go_on_when_one_is_set_down() {
    let test = "ecmp";
    if !Host::is_possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let (hosts, _hub) = WIRE.many_hosts(test, 4)?;
        let [a, b, first, second] = <[Host; 4]>::try_from(hosts).map_err(|_| Failure::new("four hosts"))?;
        let at_first = first.softdpu(lab, &gateway(&first))?;
        let at_second = second.softdpu(lab, &gateway(&second))?;
        let (at_a, at_b) = (a.softdpu(lab, &site(&a))?, b.softdpu(lab, &site(&b))?);
        for host in [&a, &b] {
            host.ip(&["addr", "add", &format!("10.0.{}.2/24", host.number()), "dev", "acme0"])?;
            let (prefix, router) = (format!("10.0.{}.0/24", host.other()), format!("10.0.{}.1", host.number()));
            host.ip(&["route", "add", &prefix, "via", &router])?;
        }
        a.wait_to_reach("10.0.2.2")?;
        wait_until("both gateways to be up", WAIT, || {
            Ok(members(&at_a)?.iter().all(|(_, state)| state == "up").then_some(()))
        })?;

        // By weight, 1 to 3.
        let before = members(&at_a)?;
        spread(&a)?;
        let sent = |at: usize, now: &[(u64, String); 2]| now[at].0 - before[at].0;
        let now = wait_until("400 datagrams to leave", WAIT, || {
            let now = members(&at_a)?;
            Ok((sent(0, &now) + sent(1, &now) >= 400).then_some(now))
        })?;
        println!("{} by the first gateway, {} by the second", sent(0, &now), sent(1, &now));
        assert!((60..=140).contains(&sent(0, &now)), "a quarter of 400 goes by the first: {now:?}");

        // The first is set down in the middle of transfers.
        let mut server = b.iperf_server(lab)?;
        let transfer = ["iperf3", "-c", "10.0.2.2", "-t", "15", "-P", "32", "-b", "500K", "--forceflush"];
        let mut client = a.start(lab, "client", &transfer)?;
        let both = members(&at_a)?;
        wait_until("transfers through both gateways", WAIT, || {
            let now = members(&at_a)?;
            Ok((0..2).all(|at| now[at].0 > both[at].0 + 20).then_some(()))
        })?;
        let down = WIRE.address(FIRST);
        for daemon in [&at_a, &at_b] {
            daemon.command(&["network", "member", "acme", "gateways", &down, "--down"])?;
        }
        let set = [members(&at_a)?, members(&at_b)?];
        assert!(set.iter().all(|[(_, state), _]| state == "down"), "{set:?}");
        assert!(client.exited()?.is_none(), "the transfers ended before the gateway was set down");
        // What was under way when the commands returned arrives.
        let arrived =
            wait_until_still("the gateway that is down to get nothing more", STILL, WAIT, || frames_in(&at_first))?;
        assert!(client.wait(WAIT)?.success(), "a connection did not go on");
        server.wait(WAIT)?;
        let after = [members(&at_a)?, members(&at_b)?];
        for (set, after) in set.iter().zip(&after) {
            assert_eq!(after[0].0, set[0].0, "nothing goes to the gateway that is down");
        }
        assert!(after[0][1].0 > set[0][1].0 + 50, "the transfers went on through the other");
        assert_eq!(frames_in(&at_first)?, arrived, "nothing came to the gateway that is down");

        // It may be stopped now, and it is known after a restart that it is down.
        at_first.stop()?;
        let mut at_a = at_a;
        at_a.kill_data_plane()?;
        a.wait_to_reach("10.0.2.2")?;
        let [(packets, state), _] = members(&at_a)?;
        assert_eq!((packets, state.as_str()), (0, "down"));
        let list = at_a.command(&["network", "list"])?;
        assert!(list.contains("192.0.2.3") && list.contains("down"), "{list}");
        // One that is gone and was not set down: its neighbours notice, in this test sooner than by default.
        for (parameter, value) in [("base_reachable_time_ms", "1000"), ("delay_first_probe_time", "1")] {
            a.exec(&["bash", "-c", &format!("echo {value} > /proc/sys/net/ipv4/neigh/wire/{parameter}")])?;
        }
        let becomes = |what: &str| {
            wait_until(&format!("the second gateway to be {what}"), Duration::from_secs(90), || {
                Ok((members(&at_a)?[1].1 == what).then_some(()))
            })
        };
        second.ip(&["link", "set", "wire", "down"])?;
        becomes("unresolved")?;
        second.ip(&["link", "set", "wire", "up"])?;
        becomes("up")?;

        // All down: a reason of its own.
        at_a.command(&["network", "member", "acme", "gateways", &WIRE.address(SECOND), "--down"])?;
        let answer = explain(&at_a, "10.0.2.2")?;
        assert!(answer.contains("dropped: no-next-hop"), "{answer}");
        at_a.command(&["network", "member", "acme", "gateways", &WIRE.address(SECOND), "--up"])?;
        routing(lab, &at_a)?;
        for daemon in [at_second, at_b, at_a] {
            daemon.stop()?;
        }
        Ok(())
    });
}

/// All routes of a network are changed at once, or nothing is; `trace explain` shows what is in force.
fn routing(lab: &Lab, daemon: &Daemon) -> Result<(), Failure> {
    let answer = explain(daemon, "10.0.2.2")?;
    assert!(answer.contains("ECMP group gateways") && answer.contains("host 192.0.2.4, weight 3"), "{answer}");
    let file = |name: &str, text: &str| {
        let path = lab.path().join(name);
        std::fs::write(&path, text).context("a file of routes")?;
        daemon.command(&["network", "routing", &path.display().to_string()])
    };
    let wrong = "network = \"acme\"\n[[route]]\nprefix = \"172.16.0.0/12\"\nhost = \"192.0.2.4\"\n\
                 [[route]]\nprefix = \"10.8.0.0/16\"\necmp = \"gateways\"\n";
    let error = file("wrong.toml", wrong).expect_err("there is no such group").to_string();
    assert!(error.contains("wrong.toml:7:8: there is no network.ecmp `gateways`"), "{error}");
    assert_eq!(explain(daemon, "10.0.2.2")?, answer, "nothing was changed");
    let acme = "network = \"acme\"\npeer = \"tools\"\n[[route]]\nprefix = \"10.0.2.0/24\"\nhost = \"192.0.2.3\"\n\
                [[route-table]]\nname = \"audited\"\nsource = \"10.0.1.2/32\"\n\
                route = [{ prefix = \"10.0.2.0/24\", host = \"192.0.2.4\" }]\n";
    file("acme.toml", acme)?;
    let answer = explain(daemon, "10.0.2.2")?;
    assert!(answer.contains("route table audited") && answer.contains("VXLAN 5001 to 192.0.2.4"), "{answer}");
    // A peer's consent.
    let answer = explain(daemon, "10.9.0.2")?;
    assert!(answer.contains("no-route"), "{answer}");
    assert_eq!(daemon.status()?["networks"][0]["pending_peers"][0], "tools");
    file("tools.toml", "network = \"tools\"\npeer = \"acme\"\n")?;
    let answer = explain(daemon, "10.9.0.2")?;
    assert!(answer.contains("peer tools") && answer.contains("leaves by tool"), "{answer}");
    // Networks may overlap while they are no peers.
    daemon.command(&["network", "add", "more", "--vni", "9", "--cidr", "10.9.0.0/16"])?;
    let error = file("more.toml", "network = \"more\"\npeer = \"tools\"\n").expect_err("it overlaps").to_string();
    assert!(error.contains("overlaps"), "{error}");
    Ok(())
}
