//! Lists and routes of networks by file, more than a request of the management protocol holds, on a running daemon.

#![allow(missing_docs)]

use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use softdpu_tests::{Context, Daemon, Failure, Host, Lab, TwoHosts, Wire, wait_until};

const WAIT: Duration = Duration::from_secs(60);
const WIRE: Wire = Wire::ETHERNET;

/// As many as a list may have.
const RULES: u32 = 10_000;
const ROUTES: u32 = 100_000;

/// The second host's port is asked about by a list.
fn site(host: &Host) -> String {
    let list = "\n[[network.acl]]\nname = \"edge\"\n";
    WIRE.site(host, list, if host.number() == 2 { ", acl = \"edge\"" } else { "" })
}

/// Writes `text` to a file, and has `softdpu network COMMAND` read it.
fn change(lab: &Lab, daemon: &Daemon, command: &str, text: &str) -> Result<String, Failure> {
    let file = lab.path().join(format!("{command}.toml"));
    fs::write(&file, text).context("the file")?;
    let began = Instant::now();
    let answer = daemon.command(&["--timeout", "60 s", "network", command, &file.display().to_string()]);
    println!("{command}: {} bytes in {:?}", text.len(), began.elapsed());
    answer
}

/// A list of `RULES` rules, one a line from the fifth on, of which the last one denies the first host's echo requests;
/// the rule at `wrong` is another.
fn policy(wrong: Option<(u32, &str)>) -> String {
    let mut text = "network = \"acme\"\n[[acl]]\nname = \"edge\"\nrule = [\n".to_owned();
    for at in 1..=RULES {
        let source = Ipv4Addr::from_bits(Ipv4Addr::new(172, 16, 0, 0).to_bits() + at);
        let rule = match wrong {
            Some((number, rule)) if number == at => rule.to_owned(),
            _ if at == RULES => {
                format!("{{ priority = {at}, action = \"deny\", protocol = \"icmp\", source = \"10.0.0.1/32\" }}")
            }
            _ => format!(
                "{{ priority = {at}, action = \"deny\", protocol = \"udp\", source = \"{source}/32\", ports = 53 }}"
            ),
        };
        writeln!(text, "  {rule},").expect("a string has room");
    }
    text + "]\n"
}

#[test]
fn a_list_of_ten_thousand_rules_is_changed_on_a_running_daemon_and_kept() {
    WIRE.run_softdpus("policy-file", site, |lab, TwoHosts { at_b, a, b, .. }| {
        a.wait_to_reach("10.0.0.2")?;

        // An error names its line, and nothing is changed: the file's own errors, and what contradicts the site.
        let at = lab.path().join("policy.toml").display().to_string();
        for (rule, why) in [
            ("{ priority = 7000, action = \"dney\" }", "did you mean `deny`?"),
            (
                "{ priority = 7000, action = \"deny\", protocol = \"icmp\", source = \"fd00::/64\" }",
                "no packet can match",
            ),
        ] {
            let error = change(lab, at_b, "policy", &policy(Some((7000, rule))));
            let error = error.err().ok_or_else(|| Failure::new("it was taken"))?.to_string();
            assert!(error.contains(&format!("{at}:7004:")) && error.contains(why), "{error}");
        }
        assert!(a.reaches("10.0.0.2"), "nothing was changed");

        // All of them count when the command has returned: it is the last one that denies.
        change(lab, at_b, "policy", &policy(None))?;
        assert!(!a.reaches("10.0.0.2"), "the last rule denies it");
        let dropped = at_b.status()?["underlay"]["dropped_in"]["acl"].as_u64().unwrap_or(0);
        assert!(dropped >= 1, "{dropped} were dropped by the list");

        // The next data plane, and the next supervisor, go by it.
        at_b.kill_data_plane()?;
        wait_until("the list to be asked by the next data plane", WAIT, || {
            assert!(!a.reaches("10.0.0.2"), "the last rule denies it after a restart of the data plane");
            Ok((at_b.status()?["underlay"]["dropped_in"]["acl"].as_u64() >= Some(1)).then_some(()))
        })?;
        at_b.restart()?;
        b.ip(&["addr", "add", "10.0.0.2/16", "dev", "acme0"])?;
        wait_until("the list to be asked", WAIT, || {
            assert!(!a.reaches("10.0.0.2"), "the last rule denies it after a restart");
            Ok((at_b.status()?["underlay"]["dropped_in"]["acl"].as_u64() >= Some(1)).then_some(()))
        })?;
        change(lab, at_b, "policy", "network = \"acme\"\nacl = [{ name = \"edge\" }]\n")?;
        a.wait_to_reach("10.0.0.2").map(drop)
    });
}

/// `count` routes to the second host, one a line from the third on.
fn routes(count: u32) -> String {
    let mut text = "network = \"acme\"\nroute = [\n".to_owned();
    for at in 0..count {
        let prefix = Ipv4Addr::from_bits(Ipv4Addr::new(20, 0, 0, 0).to_bits() + (at << 8));
        writeln!(text, "  {{ prefix = \"{prefix}/24\", host = \"{}\" }},", WIRE.address(2)).expect("a string has room");
    }
    text + "]\n"
}

#[test]
fn a_hundred_thousand_routes_come_by_one_file_all_or_none() {
    WIRE.run("routing-file", |lab, a, _| {
        let room = format!("[node]\ntables = {{ routes = {ROUTES} }}\n");
        let mut at_a = a.softdpu(lab, &site(a).replacen("[node]\n", &room, 1))?;
        let last = "21.134.159.9";
        let leads = |daemon: &Daemon, to: &str| -> Result<bool, Failure> {
            let path = daemon.command(&["trace", "explain", "--from", "port", "--to", to])?;
            Ok(path.contains(&format!("way of acme to {},", WIRE.address(2))))
        };
        let twice = routes(ROUTES - 1).replace("\n]\n", "\n  { prefix = \"20.0.7.0/24\", host = \"192.0.2.2\" },\n]\n");
        let at = lab.path().join("routing.toml").display().to_string();
        let error = change(lab, &at_a, "routing", &twice).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(&format!("{at}:{}:", ROUTES + 2)) && error.contains("routed already"), "{error}");
        assert!(!leads(&at_a, last)? && !leads(&at_a, "20.0.0.9")?, "none of them");

        let error = change(lab, &at_a, "routing", &routes(ROUTES + 1)).err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        let full = format!("the table of routes is full: it has room for {ROUTES}, and {} are wanted", ROUTES + 1);
        assert!(error.contains(&format!("{at}:{}:", ROUTES + 3)) && error.contains(&full), "{error}");

        change(lab, &at_a, "routing", &routes(ROUTES))?;
        assert!(leads(&at_a, last)? && leads(&at_a, "20.0.0.9")?);
        at_a.kill_data_plane()?;
        // Its interface to other hosts comes a moment later.
        let led = |daemon: &Daemon| Ok(leads(daemon, last)?.then_some(()));
        wait_until("the next data plane to have them", WAIT, || led(&at_a))?;
        at_a.restart()?;
        wait_until("the next supervisor to have them", WAIT, || led(&at_a))?;
        at_a.stop()
    });
}

/// Guests and routes of several networks, whose addresses are the same: (network, host of the guest, host of the
/// route).
fn entries(of: &[(&str, u8, u8)]) -> String {
    let guests = of.iter().map(|(network, guest, _)| {
        format!("endpoint,{network},10.0.0.22,02:5d:00:00:00:22,{}\n", WIRE.address(*guest))
    });
    // The networks' lines take turns.
    let routes =
        of.iter().map(|(network, _, route)| format!("route,{network},172.16.0.0/12,{}\n", WIRE.address(*route)));
    guests.chain(routes).collect()
}

#[test]
fn entries_of_several_networks_come_by_one_file_all_or_none() {
    WIRE.run("load-networks", |lab, a, _| {
        let second = r#"
[[network]]
name = "blue"
vni = 5002
cidr = "10.0.0.0/16"
gateway = "10.0.9.9"

[[device]]
name = "blue-port"
tap = { network = "blue", address = "10.0.0.1", mac = "02:5d:00:00:00:01", interface = "blue0" }
"#;
        let mut at_a = a.softdpu(lab, &(WIRE.site(a, "", "") + second))?;
        let file = lab.path().join("entries.csv");
        let load = |daemon: &Daemon, text: &str| -> Result<String, Failure> {
            fs::write(&file, text).context("the file")?;
            daemon.command(&["--timeout", "60 s", "network", "load", &file.display().to_string()])
        };
        // What is in force: of each network the hosts of the guest and of the route, 0 where there is none, and the
        // counts of `status`.
        let is_so = |daemon: &Daemon, expected: [(&str, &str, u8, u8); 2]| -> Result<(), Failure> {
            let status = daemon.status()?;
            for (network, port, guest, route) in expected {
                let of = |name: &str| status["networks"].as_array()?.iter().find(|it| it["name"] == name);
                let counts =
                    ["loaded_endpoints", "loaded_routes"].map(|key| of(network).and_then(|it| it[key].as_u64()));
                let wanted = [guest, route].map(|host| Some(u64::from(host != 0)));
                if counts != wanted {
                    return Err(Failure::new(format!("{network} has {counts:?} entries, not {wanted:?}")));
                }
                for (to, host) in [("10.0.0.22", guest), ("172.16.0.9", route)] {
                    let path = daemon.command(&["trace", "explain", "--from", port, "--to", to])?;
                    let entry = format!("loaded entry of {network} on {}", WIRE.address(host));
                    let is_there = path.contains(&entry);
                    if is_there != (host != 0) || path.matches("loaded entry of").count() != usize::from(is_there) {
                        return Err(Failure::new(format!("from {port} to {to} not by host {host}: {path}")));
                    }
                }
            }
            Ok(())
        };

        load(&at_a, &entries(&[("acme", 2, 3), ("blue", 3, 2)]))?;
        let first = [("acme", "port", 2, 3), ("blue", "blue-port", 3, 2)];
        is_so(&at_a, first)?;

        // One line of one network is wrong, the first, one in the middle or the last: nothing of the other one changes
        // either.
        let good = entries(&[("acme", 4, 5), ("blue", 5, 4)]);
        for (wrong, why) in [
            ("endpoint,blue,10.1.0.1,,192.0.2.4\n", "is in none of the network's subnets"),
            ("endpoint,acme,10.1.0.1,,192.0.2.4\n", "is in none of the network's subnets"),
            ("route,green,172.16.0.0/12,192.0.2.4\n", "green"),
            ("route,blue,10.0.0.0/16,192.0.2.4\n", "is a subnet"),
            ("endpoint,blue,10.0.0.22,,192.0.2.6\n", "10.0.0.22"),
        ] {
            let lines: Vec<&str> = good.split_inclusive('\n').collect();
            for at in [0, 2, lines.len()] {
                let text = [&lines[..at], &[wrong], &lines[at..]].concat().concat();
                let error =
                    load(&at_a, &text).err().ok_or_else(|| Failure::new(format!("it was taken:\n{text}")))?.to_string();
                assert!(error.contains("entries.csv:") && error.contains(why), "{wrong}: {error}");
                is_so(&at_a, first)?;
            }
        }
        is_so(&at_a, first)?;

        // The next one takes the place of both, in whatever order; the next data plane and the next supervisor go by
        // it.
        load(&at_a, &entries(&[("blue", 5, 4), ("acme", 4, 5)]))?;
        let next = [("acme", "port", 4, 5), ("blue", "blue-port", 5, 4)];
        is_so(&at_a, next)?;
        at_a.kill_data_plane()?;
        wait_until("the next data plane to have both", WAIT, || Ok(is_so(&at_a, next).ok()))?;
        load(&at_a, &entries(&[("blue", 3, 2)]))?;
        let last = [("acme", "port", 0, 0), ("blue", "blue-port", 3, 2)];
        is_so(&at_a, last)?;
        at_a.restart()?;
        wait_until("the next supervisor to have what is left", WAIT, || Ok(is_so(&at_a, last).ok()))?;
        at_a.stop()
    });
}
