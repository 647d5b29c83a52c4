//! The other end of the tunnel: another softdpu, or the kernel's VXLAN device, on AF_PACKET and all queues of AF_XDP.

use softdpu_tests::{Failure, Host, Lab, Wire, skip, wait_until};

use super::common::{
    WAIT, against_the_kernel, both_ways, iperf, iperf_report, judged, kernel, make_checksums, pings, site, softdpu,
    softdpu_with, v4, v6,
};

const IPV4: Wire = Wire::ETHERNET;
const IPV6: Wire = Wire { v6: true, ..IPV4 };
const XDP: Wire = Wire { backend: "af-xdp", ..IPV4 };
/// Of jumbo frames.
const JUMBO: u32 = 9000;

fn between_two_daemons(test: &str, wire: Wire) {
    wire.run(test, |lab, a, b| {
        let (at_a, at_b) = (softdpu(lab, a, &wire)?, softdpu(lab, b, &wire)?);
        pings(a, &wire)?;
        judged(lab, &wire, a, b, &[a, b])?;
        both_ways(lab, a, b)?;
        let underlay = at_a.status()?["underlay"].clone();
        assert!(underlay["frames_out"].as_u64() > Some(100), "{underlay}");
        assert_eq!(underlay["path"], serde_json::json!({ "backend": "af-packet" }));
        at_a.stop()?;
        at_b.stop()
    });
}

#[test]
fn two_daemons_are_one_network() {
    between_two_daemons("pair", IPV4);
}

#[test]
fn two_daemons_are_one_network_over_ipv6() {
    between_two_daemons("pair6", IPV6);
}

#[test]
fn two_daemons_are_one_network_of_jumbo_frames() {
    between_two_daemons("pair9k", Wire { mtu: JUMBO, ..IPV4 });
}

#[test]
fn two_daemons_are_one_network_of_jumbo_frames_over_ipv6() {
    between_two_daemons("pair9k6", Wire { mtu: JUMBO, ..IPV6 });
}

/// Frames that AF_XDP takes at the driver are seen by no capture: these are judged by their receiver.
#[test]
fn two_daemons_on_af_xdp_are_one_network() {
    XDP.run("pairxdp", |lab, a, b| {
        let (at_a, at_b) = (softdpu(lab, a, &XDP)?, softdpu(lab, b, &XDP)?);
        pings(a, &XDP)?;
        pings(b, &XDP)?;
        both_ways(lab, a, b)?;
        let datagrams = iperf(lab, a, b, &v6(b.number()), &["-u", "-b", "10M", "-n", "200K", "-l", "8000"])?;
        assert!(datagrams > 1e5, "{datagrams:.0} bit/s");
        for daemon in [&at_a, &at_b] {
            wait_until("the log to name AF_XDP", WAIT, || {
                let names = |line: &String| line.contains("underlay") && line.contains("AF_XDP");
                Ok(daemon.log().iter().any(names).then_some(()))
            })?;
            let path = serde_json::json!({ "backend": "af-xdp", "mode": "copy", "queues": 1 });
            assert_eq!(daemon.status()?["underlay"]["path"], path);
        }
        at_a.stop()?;
        at_b.stop()
    });
}

fn the_kernel_is_the_other_end(test: &str, wire: Wire) {
    against_the_kernel(test, &wire, |lab, _, [a, b]| {
        judged(lab, &wire, a, b, &[a])?;
        let (there, back) = both_ways(lab, a, b)?;
        println!("{test}: {:.0} and {:.0} Mbit/s", there / 1e6, back / 1e6);
        Ok(())
    });
}

const PACKET: Wire = Wire { backend: "af-packet", ..IPV4 };

#[test]
fn the_kernels_vxlan_device_is_the_other_end() {
    the_kernel_is_the_other_end("kernel", PACKET);
}

#[test]
fn the_kernels_vxlan_device_is_the_other_end_of_jumbo_frames() {
    the_kernel_is_the_other_end("jumbo", Wire { mtu: JUMBO, ..PACKET });
}

#[test]
fn the_kernels_vxlan_device_is_the_other_end_over_ipv6() {
    the_kernel_is_the_other_end("kernel6", Wire { v6: true, ..PACKET });
}

#[test]
fn the_kernels_vxlan_device_is_the_other_end_of_jumbo_frames_over_ipv6() {
    the_kernel_is_the_other_end("jumbo6", Wire { mtu: JUMBO, v6: true, ..PACKET });
}

#[test]
fn the_kernels_vxlan_device_is_the_other_end_of_af_xdp() {
    the_kernel_is_the_other_end("xdp", XDP);
}

/// Frames that came by a receive queue of the wire to XDP programs so far.
fn came_by_queue(host: &Host, queue: u32) -> Result<u64, Failure> {
    let counts = host.exec(&["ethtool", "-S", "wire"])?;
    let name = format!("rx_queue_{queue}_xdp_packets:");
    let count = counts.lines().find_map(|line| line.trim().strip_prefix(&name)?.trim().parse().ok());
    count.ok_or_else(|| Failure::new(format!("ethtool counts no {name} {counts}")))
}

/// How many of sixteen connections carried something.
fn carrying(lab: &Lab, a: &Host, b: &Host, direction: &[&str]) -> Result<usize, Failure> {
    let sixteen = [&["-P", "16", "-t", "5"], direction].concat();
    let report = iperf_report(lab, a, b, &v4(b.number()), &sixteen)?;
    let streams = report["end"]["streams"].as_array().map_or(&[][..], Vec::as_slice);
    Ok(streams.iter().filter(|stream| stream["receiver"]["bytes"].as_u64() > Some(0)).count())
}

/// The kernel at the other end spreads connections over the queues of the interface: `queues` of them, dealt out to
/// `cores`.
fn all_queues_are_served(test: &str, queues: u32, cores: &[u32]) {
    XDP.run(test, |lab, a, b| {
        let count = queues.to_string();
        for host in [a, b] {
            if host.exec(&["ethtool", "-L", "wire", "rx", &count, "tx", &count]).is_err() {
                skip(test, &format!("no veth pair of {queues} queues here (Linux 5.16, as many processors)"));
                return Ok(());
            }
        }
        make_checksums(b)?;
        let mut daemon = softdpu_with(lab, a, &site(a, &XDP, cores, ""))?;
        kernel(b, &XDP)?;
        pings(a, &XDP)?;
        for direction in [&[][..], &["-R"]] {
            let carried = carrying(lab, a, b, direction)?;
            assert_eq!(carried, 16, "of 16 connections {direction:?} so many carried something");
        }
        for queue in 0..queues {
            assert!(came_by_queue(a, queue)? > 0, "nothing came by queue {queue}: it was not tried");
        }
        daemon.kill_data_plane()?;
        pings(a, &XDP)?;
        pings(b, &XDP)?;
        daemon.stop()
    });
}

#[test]
fn af_xdp_serves_all_queues_on_one_core() {
    all_queues_are_served("xdpqueues", 2, &[0]);
}

#[test]
fn af_xdp_serves_queues_on_cores_of_their_own() {
    all_queues_are_served("xdpcores", 2, &[0, 1]);
}
