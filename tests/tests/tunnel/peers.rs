//! The other end of the tunnel: another softdpu, or the kernel's VXLAN device, on AF_PACKET and all queues of AF_XDP.

use softdpu_tests::{Context, Failure, Host, Lab, Wire, skip, wait_until};

use super::common::{TRIES, WAIT, both_ways, iperf, judged, kernel, pings, softdpu, softdpu_on, v4, v6};

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
