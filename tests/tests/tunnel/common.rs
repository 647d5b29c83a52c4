//! The two ends of a tunnel, and what goes through it: pings, iperf3, frames under tshark.

use std::time::Duration;

use softdpu_tests::{Capture, Context, Daemon, Failure, Host, Lab, Wire, skip, wait_until};

pub const WAIT: Duration = Duration::from_secs(60);
/// How often something is measured, before what it has to show has failed to: the machine may be busy with something
/// else.
pub const TRIES: usize = 4;

/// The tenant's network at a host, with a TAP in it, at 10.0.0.NUMBER.
pub fn site(host: &Host, wire: &Wire, cores: &str) -> String {
    let (own, other) = (host.number(), host.other());
    format!(
        r#"
[node]
dataplane = {{ cores = {cores} }}
{}
[[network]]
name    = "acme"
vni     = 5001
cidr    = ["10.0.0.0/16", "fd00:5d::/64"]
gateway = ["10.0.255.254", "fd00:5d::ffff"]

[[network.endpoint]]
address = ["10.0.0.{other}", "fd00:5d::{other}"]
mac     = "02:5d:00:00:00:0{other}"
host    = "{}"

[[device]]
name = "port"
tap  = {{ network = "acme", address = ["10.0.0.{own}", "fd00:5d::{own}"], mac = "02:5d:00:00:00:0{own}", interface = "acme0" }}
"#,
        wire.underlay(host),
        wire.address(other),
    )
}

pub fn softdpu(lab: &Lab, host: &Host, wire: &Wire) -> Result<Daemon, Failure> {
    softdpu_on(lab, host, wire, "[0]")
}

pub fn softdpu_on(lab: &Lab, host: &Host, wire: &Wire, cores: &str) -> Result<Daemon, Failure> {
    let daemon = host.softdpu(lab, &site(host, wire, cores))?;
    address(host, "acme0")?;
    Ok(daemon)
}

/// The kernel's own VXLAN device as the tunnel's end.
pub fn kernel(host: &Host, wire: &Wire) -> Result<(), Failure> {
    let (own, other) = (wire.address(host.number()), wire.address(host.other()));
    let mac = format!("02:5d:00:00:00:0{}", host.number());
    let mut arguments = vec!["link", "add", "acme0", "address", &mac, "type", "vxlan", "id", "5001"];
    arguments.extend(["local", &own, "remote", &other, "dstport", "4789"]);
    if wire.v6 {
        arguments.extend(["udp6zerocsumtx", "udp6zerocsumrx"]);
    }
    host.ip(&arguments)?;
    host.ip(&["link", "set", "acme0", "mtu", &wire.inner_mtu().to_string(), "up"])?;
    address(host, "acme0")?;
    // Nobody in the tunnel answers for addresses: what is where, is configured.
    let mac = format!("02:5d:00:00:00:0{}", host.other());
    for address in [v4(host.other()), v6(host.other())] {
        host.ip(&["neigh", "replace", &address, "lladdr", &mac, "dev", "acme0", "nud", "permanent"])?;
    }
    Ok(())
}

pub fn v4(number: u8) -> String {
    format!("10.0.0.{number}")
}

pub fn v6(number: u8) -> String {
    format!("fd00:5d::{number}")
}

pub fn address(host: &Host, interface: &str) -> Result<(), Failure> {
    host.ip(&["addr", "add", &format!("{}/16", v4(host.number())), "dev", interface])?;
    host.ip(&["addr", "add", &format!("{}/64", v6(host.number())), "dev", interface, "nodad"])?;
    Ok(())
}

/// Reaches the other host's end of the network, on both protocols and with packets that are cut up.
pub fn pings(host: &Host, wire: &Wire) -> Result<(), Failure> {
    let size = (3 * wire.mtu).to_string();
    for address in [v4(host.other()), v6(host.other())] {
        wait_until(&format!("{} to reach {address}", host.name()), WAIT, || {
            Ok(host.exec(&["ping", "-c", "1", "-W", "1", &address]).ok())
        })?;
        host.exec(&["ping", "-c", "3", "-i", "0.05", "-W", "5", "-s", &size, &address])?;
    }
    Ok(())
}

/// iperf3 from a host to an address of the other one. In bits per second, as they were received.
pub fn iperf(lab: &Lab, from: &Host, to: &Host, address: &str, more: &[&str]) -> Result<f64, Failure> {
    let mut server = to.start(lab, "iperf", &["iperf3", "-s", "-1", "--forceflush"])?;
    server.wait_for_line("iperf3's server", 0, WAIT, |line| line.contains("listening").then_some(()))?;
    let client = ["timeout", "60", "iperf3", "-J", "-c", address];
    let report = from.exec(&[&client, more].concat())?;
    let report: serde_json::Value = serde_json::from_str(&report).context("iperf3's report")?;
    let sums = [&report["end"]["sum_received"]["bits_per_second"], &report["end"]["sum"]["bits_per_second"]];
    let received = sums.into_iter().find_map(serde_json::Value::as_f64);
    received.ok_or_else(|| Failure::new(format!("iperf3 reports nothing received: {report}")))
}

/// TCP for a second, there and back, until each has moved more than `least` bits per second. What the last ones did, in
/// bits per second.
pub fn both_ways(lab: &Lab, a: &Host, b: &Host, least: f64) -> Result<(f64, f64), Failure> {
    let to = v4(b.number());
    let mut seen = Vec::new();
    for _ in 0..TRIES {
        let (there, back) = (iperf(lab, a, b, &to, &["-t", "1"])?, iperf(lab, a, b, &to, &["-t", "1", "-R"])?);
        if there > least && back > least {
            return Ok((there, back));
        }
        seen.push((there, back));
    }
    Err(Failure::new(format!("bits per second, there and back, of which {least} were to be moved: {seen:?}")))
}

/// Some of everything between two hosts, while what each of the `senders` sends is captured where it arrives: a socket
/// that goes around the queueing of its interface is not seen there.
pub fn judged(lab: &Lab, wire: &Wire, a: &Host, b: &Host, senders: &[&Host]) -> Result<(), Failure> {
    if !Capture::is_possible() {
        skip(&format!("the frames of {} under tshark", a.name()), "tshark is not installed");
        return Ok(());
    }
    let mut captures = Vec::new();
    for sender in senders {
        let receiver = if sender.number() == a.number() { b } else { a };
        captures.push((*sender, Capture::start(lab.path(), sender.name(), receiver.name(), "wire")?));
    }
    pings(a, wire)?;
    pings(b, wire)?;
    for to in [v4(b.number()), v6(b.number())] {
        for way in [&[][..], &["-R"]] {
            // Segments that their sender leaves whole; datagrams that it cuts up.
            iperf(lab, a, b, &to, &[&["-n", "4M"], way].concat())?;
            iperf(lab, a, b, &to, &[&["-u", "-b", "100M", "-n", "500K", "-l", "20000"], way].concat())?;
        }
    }
    for (sender, capture) in captures {
        let recording = capture.stop()?;
        let theirs = format!("eth.src == {} && udp.dstport == 4789", sender.mac()?);
        let findings = recording.judge(&theirs)?;
        println!("{}: {} frames, {:?} right checksums", sender.name(), findings.frames, findings.right);
        assert!(findings.faults.is_empty(), "{:?}", &findings.faults[..findings.faults.len().min(5)]);
        // The largest packets fill the wire, and no frame is larger.
        assert_eq!(findings.longest, u64::from(wire.mtu) + 14, "{findings:?}");
        // IPv4, UDP, TCP, ICMP, ICMPv6, in whatever header.
        let least = [100, 10, 100, 3, 3];
        assert!(findings.right.iter().zip(least).all(|(right, least)| *right >= least), "{findings:?}");
        let spoilt = recording.spoil(&sender.mac()?)?.judge(&theirs)?;
        assert!(!spoilt.faults.is_empty(), "tshark does not look at checksums");
    }
    Ok(())
}
