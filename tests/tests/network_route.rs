//! Single routes among a million come, go and are replaced while packets pass, and outlive every process.

#![allow(missing_docs)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use softdpu_tests::{Context, Daemon, Failure, Host, Lab, Site, Wire, datagrams, wait_until};

const WAIT: Duration = Duration::from_secs(120);
const WIRE: Wire = Wire::ETHERNET;

/// How many are loaded.
const CROWD: u32 = 1_000_000;

/// Of other hosts, which do not answer.
const ELSEWHERE: [&str; 2] = ["203.0.113.1", "203.0.113.2"];

/// A host with a port at 10.0.0.NUMBER, of which the other host knows. More is behind the second one's.
fn site(host: &Host) -> String {
    let (own, other) = (host.number(), host.other());
    let behind = |prefix: &str| format!("[[network.route]]\nprefix = '{prefix}'\naddress = '10.0.0.2'\n");
    let behind = if own == 2 { behind("198.18.0.0/16") + &behind("20.1.2.0/25") } else { String::new() };
    Site::on(&[0])
        .with(&format!("tables = {{ endpoints = {}, routes = {}, hosts = 100 }}", CROWD + 10, CROWD + 1000))
        .with(&WIRE.underlay(host))
        .network("acme", 5001, &["10.0.0.0/8"])
        .with("gateway = '10.255.255.254'")
        .endpoint(&[&format!("10.0.0.{other}")], &format!("02:5d:00:00:00:0{other}"), &WIRE.address(other))
        .with(&behind)
        .tap("port", own, &[&format!("10.0.0.{own}")], ", spoof-check = false")
        .to_string()
}

/// A file of routes of IPv4, nested as the Internet's are.
fn file(lab: &Lab) -> Result<PathBuf, Failure> {
    let path = lab.path().join("routes.csv");
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(fs::File::create(&path)?);
        for at in 0..CROWD {
            let length = 24 - at % 2;
            let bits = (20 << 24) + ((at / 2) << 9) + if length == 24 { 1 << 8 } else { 0 };
            writeln!(
                file,
                "route,acme,{}/{length},{}",
                std::net::Ipv4Addr::from_bits(bits),
                ELSEWHERE[at as usize % 2]
            )?;
        }
        file.flush()
    };
    write().context("the file of routes")?;
    Ok(path)
}

/// A client of the management socket that asks one thing after the other.
struct Client(BufReader<UnixStream>, u64);

impl Client {
    fn new(folder: &Path) -> Result<Client, Failure> {
        let stream = UnixStream::connect(folder.join("run/softdpu/api.sock")).context("the management socket")?;
        stream.set_read_timeout(Some(WAIT)).context("a deadline")?;
        Ok(Client(BufReader::new(stream), 0))
    }

    /// Changes entries; how long that took, and how much of it in the data plane, or why they were not changed.
    fn change(&mut self, changes: &Value) -> Result<Result<[Duration; 2], String>, Failure> {
        self.1 += 1;
        let params = json!({ "network": "acme", "changes": changes });
        let request = json!({ "softdpu": 1, "id": self.1, "method": "network.entries", "params": params });
        let began = Instant::now();
        writeln!(self.0.get_mut(), "{request}").context("the request")?;
        let mut line = String::new();
        self.0.read_line(&mut line).context("the answer")?;
        let took = began.elapsed();
        let answer: Value = serde_json::from_str(&line).context("the answer")?;
        let error = answer["error"]["message"].as_str().map(str::to_owned);
        let inside = Duration::from_micros(answer["result"]["took_us"].as_u64().unwrap_or_default());
        Ok(error.map_or(Ok([took, inside]), Err))
    }
}

fn routes(daemon: &Daemon) -> Result<u64, Failure> {
    let network = &daemon.status()?["networks"][0];
    network["loaded_routes"].as_u64().ok_or_else(|| Failure::new(format!("no count of routes: {network}")))
}

fn told(what: &str, times: Vec<[Duration; 2]>) {
    for (at, part) in ["end to end", "in the data plane"].into_iter().enumerate() {
        let mut times: Vec<u128> = times.iter().map(|both| both[at].as_micros()).collect();
        times.sort_unstable();
        let of = |part: usize| times[(times.len() - 1) * part / 1000];
        let (all, p50, p99, p999, most) = (times.len(), of(500), of(990), of(999), of(1000));
        println!("{what} {part}: {all} times, p50 {p50} µs, p99 {p99} µs, p99.9 {p999} µs, at most {most} µs");
    }
}

/// Makes many changes of single routes, which packets do not go by, and of one that they do go by.
fn churn(client: &mut Client, count: u32) -> Result<(), Failure> {
    let (mut adds, mut replaces, mut deletes) = (Vec::new(), Vec::new(), Vec::new());
    let make = |client: &mut Client, times: &mut Vec<[Duration; 2]>, change: Value| {
        let took = client.change(&json!([change]))?.map_err(|error| Failure::new(format!("{change}: {error}")))?;
        times.push(took);
        Ok::<_, Failure>(())
    };
    for at in 0..count {
        let prefix = format!("20.{}.{}.{}/29", at >> 8 & 255, at & 255, at % 32 * 8);
        make(client, &mut adds, json!({"op": "add", "prefix": prefix, "host": ELSEWHERE[0]}))?;
        make(client, &mut replaces, json!({"op": "replace", "prefix": prefix, "host": ELSEWHERE[1]}))?;
        make(
            client,
            &mut replaces,
            json!({"op": "replace", "prefix": "20.0.0.0/23", "host": ELSEWHERE[at as usize % 2]}),
        )?;
        make(client, &mut deletes, json!({"op": "delete", "prefix": prefix}))?;
    }
    told("add", adds);
    told("replace", replaces);
    told("delete", deletes);
    Ok(())
}

#[test]
fn a_route_among_a_million_changes_while_packets_pass_and_outlives_every_process() {
    WIRE.run("route", |lab, a, b| {
        let (mut at_a, at_b) = (a.softdpu(lab, &site(a))?, b.softdpu(lab, &site(b))?);
        for host in [a, b] {
            host.ip(&["addr", "add", &format!("10.0.0.{}/8", host.number()), "dev", "acme0"])?;
            host.ip(&["link", "set", "acme0", "txqueuelen", "20000"])?;
        }
        // What is behind the second host: its own addresses, which no site names.
        for address in ["198.18.0.1/32", "20.1.2.3/32"] {
            b.ip(&["addr", "add", address, "dev", "acme0"])?;
        }
        a.ip(&["route", "add", "default", "via", "10.255.255.254", "dev", "acme0"])?;
        a.wait_to_reach("10.0.0.2")?;
        let route = |daemon: &Daemon, arguments: &[&str]| {
            daemon.command(&[&["--timeout", "60 s", "network", "route"], arguments].concat())
        };
        let (behind_a, behind_b) = (WIRE.address(1), WIRE.address(2));
        // Before anything is loaded.
        route(&at_a, &["add", "acme", "198.18.0.0/16", "--host", &behind_b])?;
        a.wait_to_reach("198.18.0.1")?;
        at_a.command(&["--timeout", "180 s", "network", "load", &file(lab)?.display().to_string()])?;
        assert!(!a.reaches("198.18.0.1"), "the file has taken the place of all there was");
        assert_eq!(routes(&at_a)?, u64::from(CROWD));
        route(&at_a, &["add", "acme", "198.18.0.0/16", "--host", &behind_b])?;
        a.wait_to_reach("198.18.0.1")?;

        // Errors say what is wrong, and nothing changes.
        for (arguments, why) in [
            (vec!["add", "none", "1.0.0.0/8", "--host", &behind_b], "no network called \"none\""),
            (vec!["add", "acme", "198.18.0.0/16", "--host", &behind_b], "there is a route to 198.18.0.0/16 already"),
            (vec!["add", "acme", "10.0.0.0/8", "--host", &behind_b], "is a subnet"),
            (vec!["add", "acme", "1.0.0.0/8", "--host", &behind_a], "this node"),
            (vec!["add", "acme", "1.0.0.0/8", "--host", "2001:db8::1"], "2001:db8::1"),
            (vec!["add", "acme", "1.0.0.0/8", "--ecmp", "far"], "no ECMP group far"),
            (vec!["add", "acme", "1.0.0.1/8", "--host", &behind_b], "the prefix is 1.0.0.0/8"),
            (vec!["del", "acme", "20.0.0.0/23", "1.0.0.0/8"], "1.0.0.0/8 is not loaded"),
        ] {
            let error = route(&at_a, &arguments).expect_err("a wrong change").to_string();
            assert!(error.contains(why), "{arguments:?}: {error}");
        }
        assert_eq!(routes(&at_a)?, u64::from(CROWD) + 1);

        // A longer prefix than one that was loaded, and back.
        assert!(!a.reaches("20.1.2.3"), "it is elsewhere");
        route(&at_a, &["add", "acme", "20.1.2.0/25", "--host", &behind_b])?;
        a.wait_to_reach("20.1.2.3")?;
        route(&at_a, &["replace", "acme", "20.1.2.0/25", "--host", ELSEWHERE[0]])?;
        assert!(!a.reaches("20.1.2.3"), "it is elsewhere again");
        route(&at_a, &["replace", "acme", "20.1.2.0/25", "--host", &behind_b])?;
        a.wait_to_reach("20.1.2.3")?;

        // While packets pass, by a route and to a guest, none is lost.
        let echoes = || Ok::<_, Failure>((a.counter("Icmp", "OutEchos")?, a.counter("Icmp", "InEchoReps")?));
        let (asked, answered) = echoes()?;
        let mut pings = Vec::new();
        for (name, address) in [("guest", "10.0.0.2"), ("route", "198.18.0.1"), ("longer", "20.1.2.3")] {
            pings.push(a.start(lab, name, &["ping", "-q", "-i", "0.02", address])?);
        }
        // At shorter intervals `ping` spins.
        let mut load = datagrams(lab, [a, b], "acme0", 5201, "20M")?;
        let mut client = Client::new(&lab.path().join(a.name()))?;
        churn(&mut client, 1000)?;
        let (_, during) = echoes()?;
        assert!(during > answered + 100, "packets have passed: {during} from {answered}");
        for process in pings.iter_mut().chain(&mut load) {
            process.stop()?;
        }
        wait_until("every request to be answered: changes cost no packet", WAIT, || {
            let (now_asked, now_answered) = echoes()?;
            Ok((now_asked - asked == now_answered - answered).then_some(()))
        })?;

        // What was answered is in force in the processes that follow.
        let before = routes(&at_a)?;
        at_a.kill_data_plane()?;
        wait_until("the routes to be back", WAIT, || Ok((routes(&at_a)? == before).then_some(())))?;
        a.wait_to_reach("20.1.2.3")?;
        route(&at_a, &["del", "acme", "20.1.2.0/25", "20.0.0.0/23"])?;
        assert!(!a.reaches("20.1.2.3"), "its route has gone");
        at_a.restart()?;
        a.ip(&["addr", "add", "10.0.0.1/8", "dev", "acme0"])?;
        a.ip(&["route", "add", "default", "via", "10.255.255.254", "dev", "acme0"])?;
        a.wait_to_reach("198.18.0.1")?;
        assert_eq!(routes(&at_a)?, before - 2);
        assert!(!a.reaches("20.1.2.3"), "its route has gone");
        at_a.stop()?;
        at_b.stop()
    });
}
