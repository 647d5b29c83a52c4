//! Networks that span hosts: network namespaces stand for hosts, a veth pair for the wire between them. The other end
//! of the tunnel is another softdpu, or the kernel's own VXLAN device. What softdpu sends is captured, and judged by
//! tshark.

#![allow(missing_docs)]

use std::time::{Duration, Instant};

use softdpu_frontend::{Format, NetFrontEnd, NetOptions};
use softdpu_tests::netns::run;
use softdpu_tests::{Capture, Context, Daemon, Failure, Host, Lab, Process, Wire, skip, wait_until};
use softdpu_transport::vhost_user::Message;

const WAIT: Duration = Duration::from_secs(60);
/// How often something is measured, before what it has to show has failed to: the machine may be busy with something
/// else.
const TRIES: usize = 4;

/// The tenant's network at a host, with a TAP in it, at 10.0.0.NUMBER.
fn site(host: &Host, wire: &Wire, cores: &str) -> String {
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

fn softdpu(lab: &Lab, host: &Host, wire: &Wire) -> Result<Daemon, Failure> {
    softdpu_on(lab, host, wire, "[0]")
}

fn softdpu_on(lab: &Lab, host: &Host, wire: &Wire, cores: &str) -> Result<Daemon, Failure> {
    let daemon = host.softdpu(lab, &site(host, wire, cores))?;
    address(host, "acme0")?;
    Ok(daemon)
}

/// The kernel's own VXLAN device as the tunnel's end.
fn kernel(host: &Host, wire: &Wire) -> Result<(), Failure> {
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

fn v4(number: u8) -> String {
    format!("10.0.0.{number}")
}

fn v6(number: u8) -> String {
    format!("fd00:5d::{number}")
}

fn address(host: &Host, interface: &str) -> Result<(), Failure> {
    host.ip(&["addr", "add", &format!("{}/16", v4(host.number())), "dev", interface])?;
    host.ip(&["addr", "add", &format!("{}/64", v6(host.number())), "dev", interface, "nodad"])?;
    Ok(())
}

/// Reaches the other host's end of the network, on both protocols and with packets that are cut up.
fn pings(host: &Host, wire: &Wire) -> Result<(), Failure> {
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
fn iperf(lab: &Lab, from: &Host, to: &Host, address: &str, more: &[&str]) -> Result<f64, Failure> {
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
fn both_ways(lab: &Lab, a: &Host, b: &Host, least: f64) -> Result<(f64, f64), Failure> {
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
fn judged(lab: &Lab, wire: &Wire, a: &Host, b: &Host, senders: &[&Host]) -> Result<(), Failure> {
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

fn between_two_daemons(test: &str, wire: &Wire) {
    if !Host::is_possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let (a, b) = wire.hosts(test)?;
        let (at_a, at_b) = (softdpu(lab, &a, wire)?, softdpu(lab, &b, wire)?);
        pings(&a, wire)?;
        judged(lab, wire, &a, &b, &[&a, &b])?;
        both_ways(lab, &a, &b, 1e6)?;
        let underlay = at_a.status()?["underlay"].clone();
        assert!(underlay["frames_out"].as_u64() > Some(100), "{underlay}");
        assert_eq!(underlay["path"], serde_json::json!({ "backend": "af-packet" }));
        at_a.stop()?;
        at_b.stop()
    });
}

/// Frames that AF_XDP takes at the driver are seen by no capture: these are judged by who receives them.
#[test]
fn two_daemons_on_af_xdp_are_one_network() {
    if !Host::is_possible("pairxdp") {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "af-xdp" };
    Lab::run("pairxdp", |lab| {
        let (a, b) = wire.hosts("pairxdp")?;
        let (at_a, at_b) = (softdpu(lab, &a, &wire)?, softdpu(lab, &b, &wire)?);
        pings(&a, &wire)?;
        pings(&b, &wire)?;
        both_ways(lab, &a, &b, 1e6)?;
        let datagrams = iperf(lab, &a, &b, &v6(b.number()), &["-u", "-b", "10M", "-n", "200K", "-l", "8000"])?;
        assert!(datagrams > 1e5, "{datagrams:.0} bit/s");
        for daemon in [&at_a, &at_b] {
            wait_until("the log to tell of AF_XDP", WAIT, || {
                let tells = |line: &String| line.contains("underlay") && line.contains("AF_XDP");
                Ok(daemon.log().iter().any(tells).then_some(()))
            })?;
            let path = serde_json::json!({ "backend": "af-xdp", "mode": "copy", "queues": 1 });
            assert_eq!(daemon.status()?["underlay"]["path"], path);
        }
        at_a.stop()?;
        at_b.stop()
    });
}

fn against_the_kernel(test: &str, wire: &Wire) {
    if !Host::is_possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let (a, b) = wire.hosts(test)?;
        if wire.backend == "af-xdp" {
            // A veth pair hands frames over before their checksums are made, and AF_XDP has no word for that.
            b.exec(&["ethtool", "-K", "wire", "tx", "off"])?;
        }
        let daemon = softdpu(lab, &a, wire)?;
        kernel(&b, wire)?;
        pings(&a, wire)?;
        judged(lab, wire, &a, &b, &[&a])?;
        let (there, back) = both_ways(lab, &a, &b, 10e6)?;
        println!("{test}: {:.0} and {:.0} Mbit/s", there / 1e6, back / 1e6);
        daemon.stop()
    });
}

#[test]
fn two_daemons_are_one_network() {
    between_two_daemons("pair", &Wire { mtu: 1500, v6: false, backend: "auto" });
}

#[test]
fn two_daemons_are_one_network_over_ipv6() {
    between_two_daemons("pair6", &Wire { mtu: 1500, v6: true, backend: "auto" });
}

#[test]
fn two_daemons_are_one_network_of_jumbo_frames() {
    between_two_daemons("pair9k", &Wire { mtu: 9000, v6: false, backend: "auto" });
}

#[test]
fn two_daemons_are_one_network_of_jumbo_frames_over_ipv6() {
    between_two_daemons("pair9k6", &Wire { mtu: 9000, v6: true, backend: "auto" });
}

#[test]
fn the_kernels_vxlan_device_is_the_other_end() {
    against_the_kernel("kernel", &Wire { mtu: 1500, v6: false, backend: "af-packet" });
}

#[test]
fn the_kernels_vxlan_device_is_the_other_end_of_jumbo_frames() {
    against_the_kernel("jumbo", &Wire { mtu: 9000, v6: false, backend: "af-packet" });
}

#[test]
fn the_kernels_vxlan_device_is_the_other_end_over_ipv6() {
    against_the_kernel("kernel6", &Wire { mtu: 1500, v6: true, backend: "af-packet" });
}

#[test]
fn the_kernels_vxlan_device_is_the_other_end_of_jumbo_frames_over_ipv6() {
    against_the_kernel("jumbo6", &Wire { mtu: 9000, v6: true, backend: "af-packet" });
}

#[test]
fn the_kernels_vxlan_device_is_the_other_end_of_af_xdp() {
    against_the_kernel("xdp", &Wire { mtu: 1500, v6: false, backend: "af-xdp" });
}

/// Frames that came by a receive queue of the wire to XDP programs so far.
fn came_by_queue(host: &Host, queue: u32) -> Result<u64, Failure> {
    let counts = host.exec(&["ethtool", "-S", "wire"])?;
    let name = format!("rx_queue_{queue}_xdp_packets:");
    let count = counts.lines().find_map(|line| line.trim().strip_prefix(&name)?.trim().parse().ok());
    count.ok_or_else(|| Failure::new(format!("ethtool counts no {name} {counts}")))
}

/// How many of sixteen connections carried something.
fn carrying(lab: &Lab, a: &Host, b: &Host, way: &[&str]) -> Result<usize, Failure> {
    let mut server = b.start(lab, "iperf", &["iperf3", "-s", "-1", "--forceflush"])?;
    server.wait_for_line("iperf3's server", 0, WAIT, |line| line.contains("listening").then_some(()))?;
    let client = ["timeout", "60", "iperf3", "-J", "-c", &v4(b.number()), "-P", "16", "-t", "2"];
    let report: serde_json::Value =
        serde_json::from_str(&a.exec(&[&client, way].concat())?).context("iperf3's report")?;
    let streams = report["end"]["streams"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(streams.iter().filter(|stream| stream["receiver"]["bytes"].as_u64() > Some(0)).count())
}

/// The kernel at the other end spreads connections over the queues of the interface: `queues` of them, dealt out to
/// `cores`.
fn all_queues_are_served(test: &str, queues: u32, cores: &str) {
    if !Host::is_possible(test) {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "af-xdp" };
    Lab::run(test, |lab| {
        let (a, b) = wire.hosts(test)?;
        let count = queues.to_string();
        for host in [&a, &b] {
            if host.exec(&["ethtool", "-L", "wire", "rx", &count, "tx", &count]).is_err() {
                skip(test, &format!("no veth pair of {queues} queues here (Linux 5.16, as many processors)"));
                return Ok(());
            }
        }
        b.exec(&["ethtool", "-K", "wire", "tx", "off"])?;
        let mut daemon = softdpu_on(lab, &a, &wire, cores)?;
        kernel(&b, &wire)?;
        pings(&a, &wire)?;
        for way in [&[][..], &["-R"]] {
            let mut seen = Vec::new();
            // Two seconds may be nothing for a connection that has to share a busy machine with fifteen others.
            while seen.last() != Some(&16) {
                assert!(seen.len() < TRIES, "of 16 connections {way:?} so many carried something: {seen:?}");
                seen.push(carrying(lab, &a, &b, way)?);
            }
        }
        for queue in 0..queues {
            assert!(came_by_queue(&a, queue)? > 0, "nothing came by queue {queue}: it was not tried");
        }
        daemon.kill_data_plane()?;
        pings(&a, &wire)?;
        pings(&b, &wire)?;
        daemon.stop()
    });
}

#[test]
fn af_xdp_serves_all_queues_on_one_core() {
    all_queues_are_served("xdpqueues", 2, "[0]");
}

#[test]
fn af_xdp_serves_queues_on_cores_of_their_own() {
    all_queues_are_served("xdpcores", 2, "[0, 1]");
}

/// Between softdpu's port at `a`, whose interface takes larger packets than its network does, and the kernel at `b`.
#[test]
fn packets_that_may_be_cut_up_arrive_in_fragments() {
    if !Host::is_possible("tunnel-fragments") {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    Lab::run("tunnel-fragments", |lab| {
        let (a, b) = wire.hosts("cut")?;
        let site = site(&a, &wire, "[0]").replace("tap  = {", "tap  = { mtu = 1280, ");
        let daemon = a.softdpu(lab, &site)?;
        address(&a, "acme0")?;
        kernel(&b, &wire)?;
        pings(&a, &wire)?;
        // The next advertisement names the network's MTU again, whenever it comes.
        a.exec(&["sysctl", "-w", "net.ipv6.conf.acme0.accept_ra_mtu=0"])?;
        a.ip(&["link", "set", "acme0", "mtu", "9000"])?;
        // To the tunnel, which takes 1,450 bytes; from there what the port, which takes 1,280, does not.
        a.exec(&["ping", "-c", "5", "-i", "0.05", "-W", "5", "-M", "dont", "-s", "8000", "10.0.0.2"])?;
        b.exec(&["ping", "-c", "5", "-i", "0.05", "-W", "5", "-M", "dont", "-s", "1400", "10.0.0.1"])?;
        // Datagrams with checksums, each in six fragments. Linux forbids that unless it is told not to look for path
        // MTUs.
        a.exec(&["sysctl", "-w", "net.ipv4.ip_no_pmtu_disc=1"])?;
        let rate = iperf(lab, &a, &b, "10.0.0.2", &["-u", "-b", "10M", "-n", "200K", "-l", "8000"])?;
        assert!(rate > 1e5, "{rate:.0} bit/s");
        let port = daemon.status()?["devices"][0]["port"].clone();
        assert_eq!(port["dropped_in"]["path-mtu"].as_u64().unwrap_or(0), 0, "{port}");
        // Where it is forbidden, the sender is told.
        a.exec(&["sysctl", "-w", "net.ipv4.ip_no_pmtu_disc=0"])?;
        let error =
            a.exec(&["ping", "-c", "2", "-W", "10", "-M", "do", "-s", "2000", "10.0.0.2"]).unwrap_err().to_string();
        assert!(error.contains("mtu = 1450") || error.contains("mtu=1450"), "{error}");
        // Over IPv6 nobody on the way cuts packets up: the sender is told in any case (RFC 8201 §3), and does it from
        // then on.
        let ping6 = ["ping", "-c", "2", "-W", "10", "-M", "do", "-s", "2000", "fd00:5d::2"];
        let error = a.exec(&ping6).unwrap_err().to_string();
        assert!(error.contains("mtu = 1450") || error.contains("mtu=1450"), "{error}");
        a.exec(&["ping", "-c", "2", "-i", "0.05", "-W", "5", "-s", "2000", "fd00:5d::2"])?;
        let route = a.ip(&["-6", "route", "get", "fd00:5d::2"])?;
        assert!(route.contains("mtu 1450"), "the kernel keeps no path MTU: {route}");
        daemon.stop()
    });
}

#[test]
fn the_router_is_advertised_to_who_has_not_asked() {
    if !Host::is_possible("tunnel-router") {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    Lab::run("tunnel-router", |lab| {
        let (a, _b) = wire.hosts("router")?;
        let mut daemon = softdpu(lab, &a, &wire)?;
        let advertised = || {
            wait_until("a default route from an advertisement", WAIT, || {
                let route = a.ip(&["-6", "route", "show", "default", "dev", "acme0"])?;
                Ok(route.contains("proto ra").then_some(()))
            })
        };
        advertised()?;
        a.exec(&["sysctl", "-w", "net.ipv6.conf.acme0.router_solicitations=0"])?;
        // What starts anew does not know who knows of it.
        a.ip(&["-6", "route", "del", "default", "dev", "acme0"])?;
        daemon.kill_data_plane()?;
        advertised()?;
        daemon.stop()
    });
}

#[test]
fn a_trace_of_the_underlay_looks_into_the_tunnel() {
    if !Host::is_possible("tunnel-trace") {
        return;
    }
    if run("tshark", &["--version"]).is_err() {
        skip("tunnel-trace", "there is no tshark here");
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "af-packet" };
    Lab::run("tunnel-trace", |lab| {
        let (a, b) = wire.hosts("trace")?;
        let daemon = softdpu(lab, &a, &wire)?;
        kernel(&b, &wire)?;
        pings(&a, &wire)?;
        let trace = |name: &str, arguments: &[&str]| {
            let socket = lab.path().join(a.name()).join("run/softdpu/api.sock").display().to_string();
            let arguments = [&["--socket", &socket, "trace", "packet"], arguments].concat();
            let mut process = Process::start(name, lab.path(), &softdpu_tests::softdpu()?, arguments)?;
            process.wait_for_line("that it traces", 0, WAIT, |line| line.contains("Ctrl-C ends").then_some(()))?;
            Ok::<_, Failure>(process)
        };
        let filter = "vni 5001 and outer host 192.0.2.2 and icmp and less 200";
        let mut lines = trace("lines", &["--port", "underlay", "--filter", filter, "--count", "4"])?;
        a.exec(&["ping", "-c", "2", "-i", "0.05", "-W", "10", "10.0.0.2"])?;
        assert!(lines.wait(WAIT)?.success(), "{}", lines.tail());
        let there = "underlay out   148  192.0.2.1 > 192.0.2.2 VXLAN 5001: 10.0.0.1 > 10.0.0.2: ICMP echo request";
        let back = "underlay in    148  192.0.2.2 > 192.0.2.1 VXLAN 5001: 10.0.0.2 > 10.0.0.1: ICMP echo reply";
        for line in [there, back] {
            assert_eq!(lines.lines().iter().filter(|found| found.contains(line)).count(), 2, "{}", lines.tail());
        }
        // What the container leaves to be done is done when it leaves for the other host.
        let file = lab.path().join("tcp.pcapng").display().to_string();
        let mut tcp = trace("tcp", &["--filter", "tcp", "--write", &file, "--buffer", "256 MiB"])?;
        iperf(lab, &a, &b, &v4(b.number()), &["-n", "2M"])?;
        tcp.signal(rustix::process::Signal::INT);
        assert!(tcp.wait(WAIT)?.success(), "{}", tcp.tail());
        assert!(tcp.lines().iter().any(|line| line == "0 frames lost for want of room"), "{}", tcp.tail());
        let checks = ["-o", "ip.check_checksum:TRUE", "-o", "tcp.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];
        let read = |filter: &str| run("tshark", &[&["-r", &file, "-Y", filter], &checks[..]].concat());
        let left = "frame.interface_name == \"port\" && frame.comment contains \"left to do: TCP segments of\"";
        assert!(!read(left)?.is_empty(), "nothing was left to be done");
        let wrong = "frame.interface_name == \"underlay\" && frame.packet_flags_direction == 2 && \
                     (_ws.malformed || ip.checksum.status == 0 || tcp.checksum.status == 0 || frame.len > 1514)";
        assert_eq!(read(wrong)?, "");
        let whole =
            "frame.interface_name == \"underlay\" && frame.packet_flags_direction == 2 && tcp.checksum.status == 1";
        let segments = read(whole)?.lines().count();
        assert!(segments > 100, "{segments} segments of up to 1400 bytes are not what 2 MB make");
        // What came in by the underlay comes in by it once more, from a file.
        let file = lab.path().join("pings.pcapng").display().to_string();
        let incoming = ["--port", "underlay", "--direction", "in", "--filter", "vni 5001 and icmp", "--count", "3"];
        let mut pinged = trace("pings", &[&incoming[..], &["--write", &file]].concat())?;
        a.exec(&["ping", "-c", "3", "-i", "0.05", "-W", "10", "10.0.0.2"])?;
        assert!(pinged.wait(WAIT)?.success(), "{}", pinged.tail());
        let capture = Capture::start(lab.path(), "again", a.name(), "acme0")?;
        let said = daemon.command(&["trace", "replay", "--port", "underlay", &file])?;
        assert_eq!(said, "3 frames came in by underlay\n");
        let recording = capture.stop()?;
        let replies = recording.field("icmp.type == 0 && ip.src == 10.0.0.2 && ip.dst == 10.0.0.1", "icmp.seq")?;
        assert_eq!(replies, ["1", "2", "3"], "what the tunnel carried did not come out of it");
        daemon.stop()
    });
}

/// A guest that has arrived here is announced when its front end asks for it: the other end, which learns where
/// addresses are from the frames that it sees, moves its entry.
#[test]
fn a_kernels_vxlan_device_learns_where_an_announced_guest_is() {
    const MAC: [u8; 6] = [0x02, 0x5d, 0, 0, 0, 0x07];
    if !Host::is_possible("tunnel-announce") {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    Lab::run("tunnel-announce", |lab| {
        let (a, b) = wire.hosts("announce")?;
        let guest = "\n[[device]]\nname = \"guest\"\nvirtio-net = { network = \"acme\", address = \"10.0.0.7\", mac = \"02:5d:00:00:00:07\", socket = \"guest.sock\" }\n";
        let daemon = a.softdpu(lab, &(site(&a, &wire, "[0]") + guest))?;
        address(&a, "acme0")?;
        kernel(&b, &wire)?;
        pings(&a, &wire)?;
        let entry = || {
            let entries = b.exec(&["bridge", "fdb", "show", "dev", "acme0"])?;
            Ok::<_, Failure>(entries.lines().find(|line| line.starts_with("02:5d:00:00:00:07")).map(str::to_owned))
        };
        // Where it was before.
        let old =
            ["bridge", "fdb", "replace", "02:5d:00:00:00:07", "dev", "acme0", "dst", "192.0.2.99", "self", "dynamic"];
        b.exec(&old)?;
        assert!(entry()?.is_some_and(|line| line.contains("dst 192.0.2.99")));
        let options = NetOptions {
            queue_size: 64,
            format: Format::Split,
            required: Vec::new(),
            memory: 1 << 20,
            timeout: WAIT,
            status: false,
        };
        let mut port = NetFrontEnd::connect(&lab.path().join(a.name()).join("guest.sock"), &options)
            .context("the guest's interface")?;
        let mut announce = |mac: [u8; 6]| {
            let [a, b, c, d, e, f] = mac;
            let message = Message::SendRarp(u64::from_ne_bytes([a, b, c, d, e, f, 0, 0]));
            let control = port.connection().ok_or_else(|| Failure::new("the interface has no connection"))?;
            control.call(&message, &[]).context("SEND_RARP").map(drop)
        };
        // Not by another's address.
        announce([0x02, 0x5d, 0, 0, 0, 0x08])?;
        wait_until("the log to say so", WAIT, || {
            let said = |line: &String| line.contains("02:5d:00:00:00:08") && line.contains("to nobody");
            Ok(daemon.log().iter().any(said).then_some(()))
        })?;
        assert!(entry()?.is_some_and(|line| line.contains("dst 192.0.2.99")));
        let replies = || Ok::<_, Failure>(daemon.port("port")?.count("frames_out"));
        let before = replies()?;
        announce(MAC)?;
        wait_until("the entry to move", WAIT, || {
            Ok(entry()?.is_some_and(|line| line.contains("dst 192.0.2.1")).then_some(()))
        })?;
        wait_until("the network's port here to be told", WAIT, || Ok((replies()? > before).then_some(())))?;
        drop(port);
        daemon.stop()
    });
}

/// Ends in two subnets of one network reach each other through the gateway, which each host has for itself. The kernel
/// of one takes packets of 9,000 bytes for possible, and its TCP is told what the tunnel carries.
#[test]
fn two_subnets_meet_at_the_gateway_and_tcp_is_told_of_the_tunnel() {
    if !Host::is_possible("tunnel-subnets") {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    Lab::run("tunnel-subnets", |lab| {
        let (a, b) = wire.hosts("subnets")?;
        let subnet = |text: String| {
            text.replace(
                "cidr    = [\"10.0.0.0/16\", \"fd00:5d::/64\"]",
                "cidr    = [\"10.0.1.0/24\", \"10.0.2.0/24\"]",
            )
            .replace("gateway = [\"10.0.255.254\", \"fd00:5d::ffff\"]", "gateway = [\"10.0.1.254\", \"10.0.2.254\"]")
            .replace("[\"10.0.0.1\", \"fd00:5d::1\"]", "\"10.0.1.1\"")
            .replace("[\"10.0.0.2\", \"fd00:5d::2\"]", "\"10.0.2.1\"")
        };
        let daemons =
            (a.softdpu(lab, &subnet(site(&a, &wire, "[0]")))?, b.softdpu(lab, &subnet(site(&b, &wire, "[0]")))?);
        for host in [&a, &b] {
            let (own, other) = (host.number(), host.other());
            host.ip(&["addr", "add", &format!("10.0.{own}.1/24"), "dev", "acme0"])?;
            host.ip(&["route", "add", &format!("10.0.{other}.0/24"), "via", &format!("10.0.{own}.254")])?;
        }
        let reached = wait_until("a to reach the other subnet", WAIT, || {
            Ok(a.exec(&["ping", "-c", "1", "-W", "1", "10.0.2.1"]).ok())
        })?;
        // One router on the way, there and back.
        assert!(reached.contains("ttl=63"), "{reached}");
        let traced = a.exec(&["ping", "-c", "1", "-W", "10", "-t", "1", "10.0.2.1"]).unwrap_err().to_string();
        assert!(traced.contains("10.0.1.254") && traced.contains("Time to live exceeded"), "{traced}");
        a.ip(&["link", "set", "acme0", "mtu", "9000"])?;
        if Capture::is_possible() {
            let capture = Capture::start(lab.path(), "syn", b.name(), "acme0")?;
            iperf(lab, &a, &b, "10.0.2.1", &["-n", "1M"])?;
            let recording = capture.stop()?;
            let sizes = recording.field("tcp.flags.syn == 1 && ip.src == 10.0.1.1", "tcp.options.mss_val")?;
            // 1,450 bytes less IPv4's 20 and TCP's 20, where a's kernel said 8,960.
            assert!(!sizes.is_empty() && sizes.iter().all(|size| size == "1410"), "{sizes:?}");
        } else {
            skip("the MSS in tunnel-subnets", "tshark is not installed");
        }
        daemons.0.stop()?;
        daemons.1.stop()
    });
}

/// Datagrams that the kernel leaves whole for many (UDP_SEGMENT over a TAP with USO, Linux 6.2) leave for the other
/// host in pieces, each with its checksum.
#[test]
fn datagrams_that_stand_for_many_are_cut_up_for_the_tunnel() {
    const SEND: &str = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.setsockopt(17, 103, 1000)\nfor _ in range(5): s.sendto(bytes(30000), ('10.0.0.2', 9))";
    if !Host::is_possible("tunnel-uso") {
        return;
    }
    if !Capture::is_possible() || run("python3", &["--version"]).is_err() {
        skip("tunnel-uso", "there is no tshark, or no python3");
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    Lab::run("tunnel-uso", |lab| {
        let (a, b) = wire.hosts("uso")?;
        let daemon = softdpu(lab, &a, &wire)?;
        kernel(&b, &wire)?;
        pings(&a, &wire)?;
        if !a.exec(&["ethtool", "-k", "acme0"])?.contains("tx-udp-segmentation: on") {
            skip("tunnel-uso", "the kernel's TAP has no USO (Linux 6.2)");
            return daemon.stop();
        }
        let capture = Capture::start(lab.path(), "uso", b.name(), "wire")?;
        let before = daemon.port("port")?.count("frames_in");
        a.exec(&["python3", "-c", SEND])?;
        let came = wait_until("the datagrams to come in", WAIT, || {
            let came = daemon.port("port")?.count("frames_in") - before;
            Ok((came >= 5).then_some(came))
        })?;
        assert!(came < 50, "{came} frames: the kernel has cut the datagrams up itself");
        let recording = capture.stop()?;
        let findings = recording.judge(&format!("eth.src == {} && udp.dstport == 9", a.mac()?))?;
        assert_eq!((findings.frames, findings.faults.len()), (150, 0), "{findings:?}");
        // Outer and inner headers; the checksum of the inner UDP at least.
        assert!(findings.right[1] >= 150, "{findings:?}");
        assert_eq!(findings.longest, 50 + 14 + 20 + 8 + 1000, "{findings:?}");
        daemon.stop()
    });
}

/// What the kernel sends by a TAP above its rate is dropped and counted: there is nobody who would wait.
#[test]
fn a_taps_rate_drops_what_is_above_it() {
    if !Host::is_possible("tunnel-rate") {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    Lab::run("tunnel-rate", |lab| {
        let (a, b) = wire.hosts("rate")?;
        let limit = "rate = { packets = 1000, packets-burst = 100 }, ";
        let daemon = a.softdpu(lab, &site(&a, &wire, "[0]").replace("tap  = { ", &format!("tap  = {{ {limit}")))?;
        address(&a, "acme0")?;
        kernel(&b, &wire)?;
        pings(&a, &wire)?;
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let (start, before) = (Instant::now(), daemon.port("port")?);
            // 5,000 datagrams a second for 3 s; iperf3 tells how much of it arrived.
            let received = iperf(lab, &a, &b, "10.0.0.2", &["-u", "-b", "40M", "-l", "1000", "-t", "3"])?;
            let (after, took) = (daemon.port("port")?, start.elapsed().as_secs_f64());
            let came = after.count("frames_in") - before.count("frames_in");
            let policed = after.dropped_in("policed") - before.dropped_in("policed");
            // Never more; and as much where nobody was held up: 8 Mbit/s pass.
            assert!((came as f64) < 100.0 + 1000.0 * took, "{came} frames came in within {took:.1} s");
            if came > 2000 && policed > 2000 && (4e6..12e6).contains(&received) {
                return daemon.stop();
            }
            seen.push((came, policed, received));
        }
        Err(Failure::new(format!("frames that came in, that were dropped, bits per second that arrived: {seen:?}")))
    });
}

/// Waits until `status` says of the underlay that it is away with this reason, or that it is not.
fn underlay_is(daemon: &Daemon, reason: Option<&str>) -> Result<(), Failure> {
    let what =
        reason.map_or("the underlay to be back".to_owned(), |reason| format!("the underlay to be away: {reason}"));
    wait_until(&what, WAIT, || {
        let absence = daemon.status()?["underlay"]["absence"].clone();
        let said = absence["reason"].as_str().map(str::to_owned);
        Ok(match (reason, said) {
            (None, None) => Some(()),
            (Some(reason), Some(said)) => {
                (said.contains(reason) && absence["attempts"].as_u64() >= Some(1)).then_some(())
            }
            _ => None,
        })
    })
}

/// The interface is taken away, made anew and set down: what goes through the tunnel goes on when it is there again.
fn comes_back(test: &str, wire: &Wire) {
    if !Host::is_possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let (a, b) = wire.hosts(test)?;
        let join = || {
            wire.join(&a, &b)?;
            // As in `against_the_kernel`.
            b.exec(&["ethtool", "-K", "wire", "tx", "off"])
        };
        b.exec(&["ethtool", "-K", "wire", "tx", "off"])?;
        let daemon = softdpu(lab, &a, wire)?;
        kernel(&b, wire)?;
        pings(&a, wire)?;
        let reaches = || a.exec(&["ping", "-c", "1", "-W", "1", "10.0.0.2"]).is_ok();
        // No host can be reached while there is no wire: it is dropped where it comes in.
        let dropped = || Ok::<_, Failure>(daemon.port("port")?.dropped_in("unresolved"));

        a.ip(&["link", "del", "wire"])?;
        underlay_is(&daemon, Some("wire: no such network interface"))?;
        let before = dropped()?;
        assert!(!reaches(), "there is a way without a wire");
        wait_until("what finds no underlay to be counted", WAIT, || Ok((dropped()? > before).then_some(())))
            .map_err(|error| Failure::new(format!("{error}: {:?}", daemon.port("port"))))?;
        assert_eq!(daemon.device("port")?["state"], "running", "the device goes on");
        let table = daemon.command(&["status"])?;
        assert!(table.contains("! the underlay wire is away for "), "{table}");
        let sent = daemon.status()?["underlay"]["frames_out"].as_u64();

        join()?;
        underlay_is(&daemon, None)?;
        pings(&a, wire)?;
        assert!(daemon.status()?["underlay"]["frames_out"].as_u64() > sent, "counts began anew");
        // It may have been seen between the moment when it was made and the one when it was set up.
        let said = |text: &str| daemon.log().iter().filter(|line| line.contains(text)).count();
        wait_until("the log to tell that it is back", WAIT, || Ok((said("the underlay is open") >= 2).then_some(())))?;
        let down = said("the interface is down");
        assert!(down <= 1, "{:?}", daemon.log());

        a.ip(&["link", "set", "wire", "down"])?;
        underlay_is(&daemon, Some("wire: the interface is down"))?;
        assert!(!reaches(), "there is a way through an interface that is down");
        a.ip(&["link", "set", "wire", "up"])?;
        underlay_is(&daemon, None)?;
        pings(&a, wire)?;
        pings(&b, wire)?;

        // The other end is down: nothing is plugged in.
        b.ip(&["link", "set", "wire", "down"])?;
        underlay_is(&daemon, Some("wire: the interface has no carrier"))?;
        assert!(!reaches(), "there is a way through an interface without a carrier");
        b.ip(&["link", "set", "wire", "up"])?;
        underlay_is(&daemon, None)?;
        pings(&a, wire)?;

        // Each reason once, however often it was tried.
        let lines = [("no such network interface", 1), ("the interface is down", down + 1), ("is lost", 3)];
        for (text, count) in lines.into_iter().chain([("the underlay is open", 4)]) {
            daemon.wait_for_log(text, count, |line| line.contains(text))?;
        }
        assert_eq!(daemon.data_plane()?.1, 0, "the data plane was started again");
        daemon.stop()
    });
}

#[test]
fn an_underlay_that_is_made_anew_or_set_down_is_used_again() {
    comes_back("back", &Wire { mtu: 1500, v6: false, backend: "af-packet" });
}

#[test]
fn an_underlay_on_af_xdp_that_is_made_anew_or_set_down_is_used_again() {
    comes_back("backxdp", &Wire { mtu: 1500, v6: false, backend: "af-xdp" });
}

#[test]
fn af_xdp_refuses_an_mtu_that_its_memory_has_no_room_for() {
    if !Host::is_possible("tunnel-mtu") {
        return;
    }
    let wire = Wire { mtu: 3827, v6: false, backend: "af-xdp" };
    Lab::run("tunnel-mtu", |lab| {
        let (a, _b) = wire.hosts("mtu")?;
        let daemon = softdpu(lab, &a, &wire)?;
        let reason =
            "wire: its MTU is 3827, and af-xdp takes at most 3826: set the underlay's `mtu` to that, or backend";
        underlay_is(&daemon, Some(reason))?;
        assert!(daemon.status()?["underlay"]["path"].is_null(), "it is away");
        daemon.stop()
    });
}

#[test]
fn an_underlay_that_is_missing_at_the_start_is_used_when_it_comes() {
    if !Host::is_possible("tunnel-late") {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    Lab::run("tunnel-late", |lab| {
        let (a, b) = wire.hosts("late")?;
        a.ip(&["link", "del", "wire"])?;
        let daemon = softdpu(lab, &a, &wire)?;
        underlay_is(&daemon, Some("wire: no such network interface"))?;
        // The network's own services are there meanwhile, with the MTU of the wire that is to come.
        wait_until("the gateway to answer", WAIT, || Ok(a.exec(&["ping", "-c", "1", "-W", "1", "10.0.255.254"]).ok()))?;
        assert_eq!(daemon.status()?["networks"][0]["mtu"], 1450);
        wire.join(&a, &b)?;
        kernel(&b, &wire)?;
        underlay_is(&daemon, None)?;
        pings(&a, &wire)?;
        // No veth pair does AF_XDP without copies.
        let fell_back = |line: &str| line.contains("underlay on AF_PACKET") && line.contains("without copies");
        daemon.wait_for_log("that it fell back", 1, fell_back)?;
        daemon.stop()
    });
}

#[test]
fn a_transfer_survives_a_kill_of_the_data_plane() {
    if !Host::is_possible("tunnel-kill") {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    Lab::run("tunnel-kill", |lab| {
        let (a, b) = wire.hosts("kill")?;
        let mut daemon = softdpu(lab, &a, &wire)?;
        kernel(&b, &wire)?;
        pings(&a, &wire)?;
        let rate = std::thread::scope(|scope| {
            let transfer = scope.spawn(|| iperf(lab, &a, &b, &v4(b.number()), &["-t", "4"]));
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(800));
                daemon.kill_data_plane()?;
            }
            transfer.join().unwrap_or_else(|_| Err(Failure::new("the transfer panicked")))
        })?;
        assert!(rate > 1e6, "{rate:.0} bit/s");
        daemon.stop()
    });
}
