//! The two ends of a tunnel, and what goes through it: pings, iperf3, frames under tshark.

use std::time::Duration;

use serde_json::Value;
use softdpu_tests::{Capture, Context, Daemon, Failure, Host, Lab, Site, Wire, skip};

pub const WAIT: Duration = Duration::from_secs(60);

/// The tenant's network at a host, with a TAP in it, at 10.0.0.NUMBER. `port` is what else the TAP has, with a comma
/// before it.
pub fn site(host: &Host, wire: &Wire, cores: &[u32], port: &str) -> Site {
    let (own, other) = (host.number(), host.other());
    Site::on(cores)
        .with(&wire.underlay(host))
        .network("acme", 5001, &["10.0.0.0/16", "fd00:5d::/64"])
        .with("gateway = ['10.0.255.254', 'fd00:5d::ffff']")
        .endpoint(&[&v4(other), &v6(other)], &mac(other), &wire.address(other))
        .tap("port", own, &[&v4(own), &v6(own)], port)
}

/// softdpu on a host, with that network.
pub fn softdpu(lab: &Lab, host: &Host, wire: &Wire) -> Result<Daemon, Failure> {
    softdpu_with(lab, host, &site(host, wire, &[0], ""))
}

/// The same, with another site.
pub fn softdpu_with(lab: &Lab, host: &Host, site: &Site) -> Result<Daemon, Failure> {
    let daemon = host.softdpu(lab, &site.to_string())?;
    address(host, "acme0")?;
    Ok(daemon)
}

/// Runs a scenario on a tunnel between softdpu on the first host and the kernel on the second, once packets pass.
/// softdpu is stopped in good order after it.
pub fn against_the_kernel(
    test: &str,
    wire: &Wire,
    scenario: impl FnOnce(&Lab, &mut Daemon, [&Host; 2]) -> Result<(), Failure>,
) {
    against_the_kernel_with(test, wire, |a| site(a, wire, &[0], ""), scenario);
}

/// The same, with another site.
pub fn against_the_kernel_with(
    test: &str,
    wire: &Wire,
    site: impl Fn(&Host) -> Site,
    scenario: impl FnOnce(&Lab, &mut Daemon, [&Host; 2]) -> Result<(), Failure>,
) {
    wire.run(test, |lab, a, b| {
        if wire.backend == "af-xdp" {
            make_checksums(b)?;
        }
        let mut daemon = softdpu_with(lab, a, &site(a))?;
        kernel(b, wire)?;
        pings(a, wire)?;
        scenario(lab, &mut daemon, [a, b])?;
        daemon.stop()
    });
}

/// A veth pair hands frames over before their checksums are made, which AF_XDP cannot express: this host makes them.
pub fn make_checksums(host: &Host) -> Result<(), Failure> {
    host.exec(&["ethtool", "-K", "wire", "tx", "off"]).map(drop)
}

/// The kernel's own VXLAN device as the tunnel's end.
pub fn kernel(host: &Host, wire: &Wire) -> Result<(), Failure> {
    let (own, other) = (wire.address(host.number()), wire.address(host.other()));
    let address_of = mac(host.number());
    let mut arguments = vec!["link", "add", "acme0", "address", &address_of, "type", "vxlan", "id", "5001"];
    arguments.extend(["local", &own, "remote", &other, "dstport", "4789"]);
    if wire.v6 {
        arguments.extend(["udp6zerocsumtx", "udp6zerocsumrx"]);
    }
    host.ip(&arguments)?;
    host.ip(&["link", "set", "acme0", "mtu", &wire.inner_mtu().to_string(), "up"])?;
    address(host, "acme0")?;
    // The tunnel answers no ARP and no neighbour solicitation: what is where, is configured.
    let other = mac(host.other());
    for address in [v4(host.other()), v6(host.other())] {
        host.ip(&["neigh", "replace", &address, "lladdr", &other, "dev", "acme0", "nud", "permanent"])?;
    }
    Ok(())
}

pub fn v4(number: u8) -> String {
    format!("10.0.0.{number}")
}

pub fn v6(number: u8) -> String {
    format!("fd00:5d::{number}")
}

fn mac(number: u8) -> String {
    format!("02:5d:00:00:00:0{number}")
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
        host.wait_to_reach(&address)?;
        host.exec(&["ping", "-c", "3", "-i", "0.05", "-W", "5", "-s", &size, &address])?;
    }
    Ok(())
}

/// What iperf3 reports of a transfer from a host to an address of the other one.
pub fn iperf_report(lab: &Lab, from: &Host, to: &Host, address: &str, more: &[&str]) -> Result<Value, Failure> {
    let _server = to.iperf_server(lab)?;
    let report = from.exec(&[&["timeout", "60", "iperf3", "-J", "-c", address], more].concat())?;
    serde_json::from_str(&report).context("iperf3's report")
}

/// What such a transfer moved, in bits per second, as they were received.
pub fn iperf(lab: &Lab, from: &Host, to: &Host, address: &str, more: &[&str]) -> Result<f64, Failure> {
    let report = iperf_report(lab, from, to, address, more)?;
    let sums = [&report["end"]["sum_received"]["bits_per_second"], &report["end"]["sum"]["bits_per_second"]];
    let received = sums.into_iter().find_map(Value::as_f64);
    received.ok_or_else(|| Failure::new(format!("iperf3 reports nothing received: {report}")))
}

/// 8 MiB by TCP, there and back, to their ends. How fast, in bits per second.
pub fn both_ways(lab: &Lab, a: &Host, b: &Host) -> Result<(f64, f64), Failure> {
    let to = v4(b.number());
    Ok((iperf(lab, a, b, &to, &["-n", "8M"])?, iperf(lab, a, b, &to, &["-n", "8M", "-R"])?))
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
        for direction in [&[][..], &["-R"]] {
            // Segments that their sender leaves whole; datagrams that it cuts up.
            iperf(lab, a, b, &to, &[&["-n", "4M"], direction].concat())?;
            iperf(lab, a, b, &to, &[&["-u", "-b", "100M", "-n", "500K", "-l", "20000"], direction].concat())?;
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
