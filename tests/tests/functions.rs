//! Functions in the path of interfaces' frames, with two containers for guests: flow records are read by nfdump's
//! collector, nfcapd, and compared with what was sent, packet by packet and byte by byte.

#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use softdpu_tests::netns::{Namespace, possible, run};
use softdpu_tests::{Containers, Context, Failure, Lab, Process, Site, skip, wait_until};

const WAIT: Duration = Duration::from_secs(60);

/// Two windows of analytics, and a look at what the first one shows.
const WINDOWS: Duration = Duration::from_millis(2500);

/// Where nfcapd listens, in a namespace of its own.
const COLLECTOR: u16 = 4739;

/// Source port, destination port, bytes of data, and how often.
type Flow = (u16, u16, usize, usize);

/// What is sent from `a` to `b`; the last is what the firewall at `b` denies.
const FLOWS: [Flow; 4] = [(1000, 53, 100, 3), (1001, 53, 10, 7), (2000, 443, 1200, 50), (3000, 25, 5, 4)];
const DENIED: Flow = FLOWS[3];

/// A site of containers `a` and `b` in one network, with functions.
fn site(functions: &str, of: [&str; 2]) -> String {
    let place = |last: u8, interface: &str, functions: &str| {
        let keys = format!("network = 'acme', address = '10.0.0.{last}', mac = '02:5d:00:00:00:0{last}'");
        format!("tap = {{ {keys}, interface = '{interface}'{functions} }}")
    };
    Site::on(&[0])
        .tenants(["acme"])
        .network("acme", 5001, &["10.0.0.0/16"])
        .with(functions)
        .device("a", &place(2, "sda", of[0]))
        .of("acme")
        .device("b", &place(3, "sdb", of[1]))
        .of("acme")
        .to_string()
}

/// Containers `a` and `b` in one network, each behind functions.
fn start(lab: &Lab, test: &str) -> Result<Containers, Failure> {
    let functions = format!(
        r#"
[[function]]
name    = "flows"
tenant  = "acme"
monitor = {{ collector = "127.0.0.1:{COLLECTOR}", idle-timeout = "1 s" }}

[[function]]
name      = "talkers"
tenant    = "acme"
analytics = {{ filter = "udp", by = ["source", "destination-port", "flow"], top = 3, window = "1 s" }}

[[function]]
name     = "guard"
tenant   = "acme"
firewall = {{ default = "allow", stateful = false, rule = [
    {{ direction = "ingress", priority = 10, action = "deny", protocol = "udp", ports = 25 }},
] }}
"#
    );
    let of = [r#", functions = ["flows", "talkers"]"#, r#", functions = ["guard"]"#];
    start_with(lab, test, &site(&functions, of))
}

fn start_with(lab: &Lab, test: &str, site: &str) -> Result<Containers, Failure> {
    Containers::start(lab, test, site, ["10.0.0.2/16", "10.0.0.3/16"])
}

/// Brings the datagrams of these flows in by port `a`, one of each flow after the other, so that bursts hold several.
fn send(containers: &Containers, flows: &[Flow]) -> Result<(), Failure> {
    let most = flows.iter().map(|flow| flow.3).max().unwrap_or(0);
    let round = |turn: usize| flows.iter().filter(move |flow| turn < flow.3);
    let frames: Vec<Vec<u8>> = (0..most).flat_map(round).map(|flow| datagram(*flow)).collect();
    let said = containers.replay(&frames, &[])?;
    assert_eq!(said, format!("{} frames came in by a\n", frames.len()));
    Ok(())
}

/// What `status` shows for a function.
fn function(containers: &Containers, name: &str) -> Result<Value, Failure> {
    let status = containers.daemon.status()?;
    let found = status["functions"].as_array().into_iter().flatten().find(|function| function["name"] == name);
    found.cloned().ok_or_else(|| Failure::new(format!("no function {name}: {status}")))
}

/// A UDP datagram from `a` to `b`; its checksum is not computed, which is fine over IPv4 (RFC 768).
fn datagram((source, destination, bytes, _): Flow) -> Vec<u8> {
    let udp = (8 + bytes) as u16;
    let mut ip =
        [&[0x45, 0][..], &(20 + udp).to_be_bytes(), &[0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 2, 10, 0, 0, 3]].concat();
    let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
    ip[10..12].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
    let header = [&source.to_be_bytes()[..], &destination.to_be_bytes(), &udp.to_be_bytes(), &[0, 0]].concat();
    let ethernet = [2, 0x5d, 0, 0, 0, 3, 2, 0x5d, 0, 0, 0, 2, 8, 0];
    [&ethernet[..], &ip, &header, &vec![0; bytes]].concat()
}

/// Bytes of a flow, from the IP header on.
fn octets((_, _, bytes, count): Flow) -> u64 {
    ((28 + bytes) * count) as u64
}

/// Bytes that wait to be read at the collector's socket (proc_net_udp's rx_queue).
fn waiting(namespace: &Namespace) -> Result<Option<u64>, Failure> {
    let table = namespace.exec(&["cat", "/proc/net/udp"])?;
    let socket = format!("0100007F:{COLLECTOR:04X}");
    let line = table.lines().find(|line| line.split_whitespace().nth(1) == Some(&socket));
    let queue = line.and_then(|line| line.split_whitespace().nth(4)?.split_once(':'));
    Ok(queue.and_then(|(_, queue)| u64::from_str_radix(queue, 16).ok()))
}

/// Packets and bytes of flows, by their ports.
type Flows = BTreeMap<(u64, u64), (u64, u64)>;

/// What nfdump reads from its files.
fn collected(folder: &str) -> Result<Flows, Failure> {
    let text = run("nfdump", &["-q", "-R", folder, "-o", "json", "proto udp and src host 10.0.0.2"])?;
    let text = text.trim().trim_start_matches('[').trim_end_matches([']', ',', '\n']);
    let flows: Vec<Value> =
        serde_json::from_str(&format!("[{text}]")).context(format_args!("nfdump's JSON: {text}"))?;
    let mut found = Flows::new();
    for flow in &flows {
        let ends = [&flow["src4_addr"], &flow["dst4_addr"]].map(Value::as_str);
        assert_eq!(ends, [Some("10.0.0.2"), Some("10.0.0.3")], "{flow}");
        assert_eq!(flow["direction"], 0, "{flow}");
        let number = |key: &str| flow[key].as_u64().unwrap_or_default();
        let sum = found.entry((number("src_port"), number("dst_port"))).or_default();
        *sum = (sum.0 + number("in_packets"), sum.1 + number("in_bytes"));
    }
    Ok(found)
}

/// Whether namespaces, the programs that make frames, and those of nfdump are to be had.
fn can(test: &str) -> bool {
    if run("text2pcap", &["--version"]).is_err() {
        skip(test, "there is no text2pcap here");
        return false;
    }
    if run("nfdump", &["-V"]).is_err() {
        skip(test, "there is no nfdump here");
        return false;
    }
    possible(test)
}

/// nfdump's collector, which listens beside the daemon and writes into a folder.
fn collector(lab: &Lab, containers: &Containers, folder: &str) -> Result<Process, Failure> {
    std::fs::create_dir(folder).context("a folder for flows")?;
    let port = COLLECTOR.to_string();
    let arguments = ["-p", &port, "-b", "127.0.0.1", "-w", folder, "-t", "3600"];
    let namespace = Some(containers.a.name.as_str());
    let mut collector = Process::start_in(namespace, "nfcapd", lab.path(), "nfcapd".as_ref(), arguments)?;
    collector.wait_for_line("nfcapd to listen", 0, WAIT, |line| line.contains("Startup").then_some(()))?;
    Ok(collector)
}

#[test]
fn nfcapd_collects_the_flows_that_a_monitor_exports() {
    if !can("functions-monitor") {
        return;
    }
    Lab::run("functions-monitor", |lab| {
        let containers = start(lab, "mon")?;
        let flows = containers.path("flows");
        let mut collector = collector(lab, &containers, &flows)?;

        send(&containers, &FLOWS)?;
        let records = FLOWS.len() as u64;
        let monitor = wait_until("the flows to be exported", WAIT, || {
            let monitor = function(&containers, "flows")?["monitor"].clone();
            let all = monitor["exported"].as_u64() >= Some(records) && monitor["flows"] == 0;
            Ok(all.then_some(monitor))
        })?;
        assert_eq!([&monitor["dropped"], &monitor["early"]].map(Value::as_u64), [Some(0); 2], "{monitor}");
        // What is not due yet is exported when the daemon ends.
        let last: Flow = (4000, 123, 48, 2);
        send(&containers, &[last])?;
        let Containers { daemon, a, b: _b, .. } = containers;
        daemon.stop()?;
        wait_until("nfcapd to have read everything", WAIT, || Ok((waiting(&a)? == Some(0)).then_some(())))?;
        collector.signal(Signal::TERM);
        collector.wait(WAIT)?;
        let log = collector.lines().join("\n");
        assert!(log.contains("Sequence Errors: 0, Bad Packets: 0"), "{log}");
        assert!(log.contains("Observation domain 5001"), "{log}");
        let found = collected(&flows)?;
        let sent = FLOWS.iter().chain([&last]);
        let expected: Flows =
            sent.map(|flow| ((flow.0.into(), flow.1.into()), (flow.3 as u64, octets(*flow)))).collect();
        assert_eq!(found, expected, "{log}");
        Ok(())
    });
}

#[test]
fn analytics_show_the_heaviest_flow_and_a_firewall_what_it_dropped() {
    if !can("functions-top") {
        return;
    }
    Lab::run("functions-top", |lab| {
        let containers = start(lab, "top")?;
        let packets: u64 = FLOWS.iter().map(|flow| flow.3 as u64).sum();
        // Sent again where this test did not look before the next window was over, or where one ended in the middle.
        let mut times = 0;
        let talkers = wait_until("a window with all of them to be over", WAIT, || {
            send(&containers, &FLOWS)?;
            times += 1;
            let end = Instant::now() + WINDOWS;
            while Instant::now() < end {
                let talkers = function(&containers, "talkers")?["analytics"].clone();
                let heaviest = &talkers["last"]["top"][2]["items"][0]["key"];
                if talkers["matched"] == packets * times && heaviest == "udp 10.0.0.2:2000 > 10.0.0.3:443" {
                    return Ok(Some(talkers));
                }
            }
            Ok(None)
        })
        .map_err(|error| Failure::new(format!("{error}: {:?}", function(&containers, "talkers"))))?;
        let top = &talkers["last"]["top"];
        let by = [0, 1, 2].map(|at: usize| top[at]["by"].as_str());
        assert_eq!(by, [Some("source"), Some("destination-port"), Some("flow")], "{talkers}");
        assert_eq!(top[2]["items"][0]["key"], "udp 10.0.0.2:2000 > 10.0.0.3:443", "{talkers}");
        assert_eq!(top[1]["items"][0]["key"], "udp 443", "{talkers}");
        assert_eq!(top[0]["items"][0]["key"], "10.0.0.2", "{talkers}");

        let guard = wait_until("the firewall's counts", WAIT, || {
            let guard = function(&containers, "guard")?["firewall"].clone();
            Ok((guard["dropped"]["packets"].as_u64() >= Some(DENIED.3 as u64 * times)).then_some(guard))
        })?;
        assert_eq!(guard["rules"][0]["packets"], DENIED.3 as u64 * times, "{guard}");
        assert_eq!(guard["rules"][0]["bytes"], octets(DENIED) * times, "{guard}");
        let passed = (packets - DENIED.3 as u64) * times;
        assert!(guard["default"]["packets"].as_u64() >= Some(passed), "{guard}");
        // The port says so too, and what was allowed arrived.
        let port = containers.daemon.device("a")?["port"].clone();
        assert_eq!(port["dropped_in"]["firewall"], DENIED.3 as u64 * times, "{port}");
        assert!(containers.daemon.device("b")?["port"]["frames_out"].as_u64() >= Some(passed));

        let table = containers.daemon.command(&["status"])?;
        assert!(table.contains("udp 10.0.0.2:2000 > 10.0.0.3:443"), "{table}");
        assert!(table.contains("ingress 10 deny udp to port 25"), "{table}");
        containers.daemon.stop()
    });
}

/// What is said when the daemon does not do what is asked.
fn refused(containers: &Containers, arguments: &[&str]) -> Result<String, Failure> {
    match containers.daemon.command(arguments) {
        Ok(said) => Err(Failure::new(format!("{arguments:?} was done: {said}"))),
        Err(error) => Ok(error.to_string()),
    }
}

#[test]
fn a_monitor_comes_and_goes_while_frames_pass_and_outlives_a_kill_and_a_restart() {
    if !can("functions-change") {
        return;
    }
    Lab::run("functions-change", |lab| {
        let mut containers = start_with(lab, "fch", &site("", ["", ""]))?;
        let flows = containers.path("flows");
        let mut collector = collector(lab, &containers, &flows)?;
        let to = format!("127.0.0.1:{COLLECTOR}");
        // So long that nothing is exported but because of a change.
        let add = ["function", "add", "flows", "--tenant", "acme", "--monitor", &to, "--idle-timeout", "1 h"];
        containers.daemon.command(&[&add[..], &["--active-timeout", "1 h"]].concat())?;

        // Not of what came before an interface had it.
        send(&containers, &FLOWS[..1])?;
        containers.daemon.command(&["device", "set", "a", "--functions", "flows"])?;
        send(&containers, &FLOWS)?;
        // What changes of it is exported at once, by the settings before.
        let set = ["function", "set", "flows", "--monitor", &to, "--idle-timeout", "2 h", "--active-timeout", "2 h"];
        containers.daemon.command(&set)?;
        let exported = |containers: &Containers| {
            Ok::<_, Failure>(function(containers, "flows")?["monitor"]["exported"].as_u64().unwrap_or_default())
        };
        // The kernel at `b` may have answered that no socket listens: that is a flow, too.
        assert!(exported(&containers)? >= FLOWS.len() as u64, "when the change is answered");
        let mut expected = FLOWS.to_vec();

        for (port, kills) in [(4000, true), (4001, false)] {
            let last: Flow = (port, 123, 48, 2);
            if kills {
                containers.daemon.kill_data_plane()?;
            } else {
                containers.daemon.restart()?;
                containers.a.ip(&["link", "set", "sda", "up"])?;
            }
            assert_eq!(function(&containers, "flows")?["devices"][0], "a");
            send(&containers, &[last])?;
            expected.push(last);
            // It goes, with what it has not exported yet, and comes again.
            containers.daemon.command(&["device", "set", "a", "--no-functions"])?;
            assert!(exported(&containers)? >= 1);
            send(&containers, &FLOWS[..1])?;
            containers.daemon.command(&["device", "set", "a", "--functions", "flows"])?;
        }

        for (arguments, words) in [
            (&["function", "add", "flows", "--analytics"][..], "there is a function called \"flows\" already"),
            (&["function", "set", "flows", "--analytics"], "is of kind `monitor`"),
            (&["function", "set", "flaws", "--analytics"], "there is no function called \"flaws\""),
            (&["function", "remove", "flows"], "in use by a"),
            (&["function", "add", "x", "--monitor", "nobody"], "an address and a port"),
            (&["function", "add", "x", "--analytics", "--tenant", "acne"], "there is no tenant `acne`"),
            (&["device", "set", "a", "--functions", "flaws"], "did you mean `flows`?"),
            (&["device", "set", "c", "--functions", "flows"], "there is no device called \"c\""),
        ] {
            let said = refused(&containers, arguments)?;
            assert!(said.contains(words), "{arguments:?}: {said}");
        }
        let many: Vec<String> = (0..9).map(|number| format!("t{number}")).collect();
        for name in &many {
            containers.daemon.command(&["function", "add", name, "--analytics"])?;
        }
        let said = refused(&containers, &["device", "set", "a", "--functions", &many.join(",")])?;
        assert!(said.contains("at most 8"), "{said}");
        let listed = containers.daemon.command(&["function", "list"])?;
        assert!(listed.contains("flows") && listed.contains("t8"), "{listed}");

        containers.daemon.command(&["device", "set", "a", "--no-functions"])?;
        containers.daemon.command(&["function", "remove", "flows"])?;
        assert!(function(&containers, "flows").is_err());
        wait_until("nfcapd to have read everything", WAIT, || Ok((waiting(&containers.a)? == Some(0)).then_some(())))?;
        collector.signal(Signal::TERM);
        collector.wait(WAIT)?;
        let expected: Flows =
            expected.iter().map(|flow| ((flow.0.into(), flow.1.into()), (flow.3 as u64, octets(*flow)))).collect();
        assert_eq!(collected(&flows)?, expected, "{}", collector.lines().join("\n"));
        containers.daemon.stop()
    });
}

/// Ports of two TCP transfers to `b`: one that the rules always allow, and one that they do not after a change.
const TRANSFERS: [u16; 2] = [5001, 5002];

/// Rules by which `b` may be asked at these ports, and may send what it likes.
fn rules(folder: &str, ports: &[u16]) -> Result<String, Failure> {
    let rule = |port: &u16| {
        let keys = "direction = \"ingress\", priority = 10, action = \"allow\", protocol = \"tcp\"";
        format!("    {{ {keys}, ports = {port} }},\n")
    };
    let all: String = ports.iter().map(rule).collect();
    let text = format!("rule = [\n{all}    {{ direction = \"egress\", priority = 20, action = \"allow\" }},\n]\n");
    std::fs::write(folder, text).context("a file of rules")?;
    Ok(folder.to_owned())
}

/// Bytes that have come in at `b` from a transfer, as the server there tells them every now and then: its last
/// interval.
fn comes_in(server: &Process) -> Option<bool> {
    let last = server.lines().into_iter().rev().find(|line| line.contains("sec") && line.contains("bits/sec"))?;
    Some(!last.contains(" 0.00 bits/sec"))
}

#[test]
fn connections_live_through_other_rules_that_allow_them_and_the_others_end() {
    let test = "functions-rules";
    if !can(test) {
        return;
    }
    if run("iperf3", &["--version"]).is_err() {
        skip(test, "there is no iperf3 here");
        return;
    }
    Lab::run(test, |lab| {
        let mut containers = start_with(lab, "frl", &site("", ["", ""]))?;
        let file = containers.path("rules.toml");
        let ports = TRANSFERS.map(|port| port.to_string());
        containers.daemon.command(&["function", "add", "guard", "--firewall", &rules(&file, &TRANSFERS)?])?;
        containers.daemon.command(&["device", "set", "b", "--functions", "guard"])?;
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for port in &ports {
            let arguments = ["-s", "-p", port, "-i", "0.5", "--forceflush"];
            let name = Some(containers.b.name.as_str());
            let mut server = Process::start_in(name, "server", lab.path(), "iperf3".as_ref(), arguments)?;
            server.wait_for_line("iperf3 to listen", 0, WAIT, |line| line.contains("listening").then_some(()))?;
            // Little enough that the machine has time for everything else.
            let arguments = ["-c", "10.0.0.3", "-p", port, "-t", "600", "-b", "20M"];
            let name = Some(containers.a.name.as_str());
            clients.push(Process::start_in(name, "client", lab.path(), "iperf3".as_ref(), arguments)?);
            servers.push(server);
        }
        let moves = |servers: &[Process], expected: [bool; 2]| {
            // What was under way when the rules changed is in an interval that is over by then.
            std::thread::sleep(Duration::from_millis(1200));
            wait_until(&format!("transfers to go on or not: {expected:?}"), WAIT, || {
                let found = [0, 1].map(|at: usize| comes_in(&servers[at]));
                Ok((found == expected.map(Some)).then_some(()))
            })
        };
        moves(&servers, [true, true])?;
        let before = function(&containers, "guard")?["firewall"].clone();
        assert!(before["connections"].as_u64() >= Some(2), "{before}");

        containers.daemon.command(&["function", "set", "guard", "--firewall", &rules(&file, &TRANSFERS[..1])?])?;
        moves(&servers, [true, false])?;
        let after = function(&containers, "guard")?["firewall"].clone();
        assert!(after["connections"].as_u64() >= before["connections"].as_u64(), "{before} and then {after}");
        assert!(after["default"]["packets"].as_u64() > before["default"]["packets"].as_u64(), "{after}");
        assert_eq!(after["rules"][0]["rule"], before["rules"][0]["rule"]);
        assert!(after["rules"][0]["packets"].as_u64() >= before["rules"][0]["packets"].as_u64(), "{after}");

        // Allowed again, before its ends have given it up.
        containers.daemon.command(&["function", "set", "guard", "--firewall", &rules(&file, &TRANSFERS)?])?;
        moves(&servers, [true, true])?;

        // A kill between the change and whatever comes next: the new data plane goes by the change, and knows no
        // connection.
        containers.daemon.command(&["function", "set", "guard", "--firewall", &rules(&file, &TRANSFERS[..1])?])?;
        containers.daemon.kill_data_plane()?;
        let guard = function(&containers, "guard")?;
        assert_eq!(
            (guard["devices"][0].as_str(), guard["firewall"]["rules"].as_array().map(Vec::len)),
            (Some("b"), Some(2))
        );
        wait_until("the transfer that is allowed to go on", WAIT, || {
            Ok((comes_in(&servers[0]) == Some(true)).then_some(()))
        })?;
        containers.daemon.command(&["device", "set", "b", "--no-functions"])?;
        containers.daemon.command(&["function", "remove", "guard"])?;
        for mut process in clients.into_iter().chain(servers) {
            process.signal(Signal::KILL);
            process.wait(WAIT)?;
        }
        containers.daemon.stop()
    });
}
