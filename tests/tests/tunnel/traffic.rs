//! What happens to packets on their way into the tunnel and out of it, and to a transfer whose data plane is killed.

use std::time::{Duration, Instant};

use softdpu_frontend::{Format, NetFrontEnd, NetOptions};
use softdpu_tests::netns::run;
use softdpu_tests::{Capture, Context, Failure, Host, Site, Wire, skip, wait_until};
use softdpu_transport::vhost_user::Message;

use super::common::{WAIT, against_the_kernel, against_the_kernel_with, iperf, site, softdpu, v4};

const WIRE: Wire = Wire::ETHERNET;

/// Between softdpu's port at `a`, whose interface takes larger packets than its network does, and the kernel at `b`.
#[test]
fn packets_that_may_be_cut_up_arrive_in_fragments() {
    let small = |a: &Host| site(a, &WIRE, &[0], ", mtu = 1280");
    against_the_kernel_with("tunnel-cut", &WIRE, small, |lab, daemon, [a, b]| {
        // The next advertisement names the network's MTU again, whenever it comes.
        a.exec(&["sysctl", "-w", "net.ipv6.conf.acme0.accept_ra_mtu=0"])?;
        a.ip(&["link", "set", "acme0", "mtu", "9000"])?;
        // To the tunnel, which takes 1,450 bytes; from there what the port, which takes 1,280, does not.
        a.exec(&["ping", "-c", "5", "-i", "0.05", "-W", "5", "-M", "dont", "-s", "8000", "10.0.0.2"])?;
        b.exec(&["ping", "-c", "5", "-i", "0.05", "-W", "5", "-M", "dont", "-s", "1400", "10.0.0.1"])?;
        // Datagrams with checksums, each in six fragments. Linux forbids that unless path MTU
        // discovery is off.
        a.exec(&["sysctl", "-w", "net.ipv4.ip_no_pmtu_disc=1"])?;
        let rate = iperf(lab, a, b, "10.0.0.2", &["-u", "-b", "10M", "-n", "200K", "-l", "8000"])?;
        assert!(rate > 1e5, "{rate:.0} bit/s");
        let port = daemon.status()?["devices"][0]["port"].clone();
        assert_eq!(port["dropped_in"]["path-mtu"].as_u64().unwrap_or(0), 0, "{port}");
        // Where it is forbidden, the sender gets an error with the MTU.
        a.exec(&["sysctl", "-w", "net.ipv4.ip_no_pmtu_disc=0"])?;
        let error =
            a.exec(&["ping", "-c", "2", "-W", "10", "-M", "do", "-s", "2000", "10.0.0.2"]).unwrap_err().to_string();
        assert!(error.contains("mtu = 1450") || error.contains("mtu=1450"), "{error}");
        // Over IPv6 no router cuts packets up: the sender always gets an error (RFC 8201 §3), and cuts from then on.
        let ping6 = ["ping", "-c", "2", "-W", "10", "-M", "do", "-s", "2000", "fd00:5d::2"];
        let error = a.exec(&ping6).unwrap_err().to_string();
        assert!(error.contains("mtu = 1450") || error.contains("mtu=1450"), "{error}");
        a.exec(&["ping", "-c", "2", "-i", "0.05", "-W", "5", "-s", "2000", "fd00:5d::2"])?;
        let route = a.ip(&["-6", "route", "get", "fd00:5d::2"])?;
        assert!(route.contains("mtu 1450"), "the kernel keeps no path MTU: {route}");
        Ok(())
    });
}

#[test]
fn the_router_is_advertised_to_a_host_that_has_not_asked() {
    WIRE.run("tunnel-router", |lab, a, _| {
        let mut daemon = softdpu(lab, a, &WIRE)?;
        let advertised = || {
            wait_until("a default route from an advertisement", WAIT, || {
                let route = a.ip(&["-6", "route", "show", "default", "dev", "acme0"])?;
                Ok(route.contains("proto ra").then_some(()))
            })
        };
        advertised()?;
        a.exec(&["sysctl", "-w", "net.ipv6.conf.acme0.router_solicitations=0"])?;
        // A data plane that starts anew does not know which guests have heard of the router.
        a.ip(&["-6", "route", "del", "default", "dev", "acme0"])?;
        daemon.kill_data_plane()?;
        advertised()?;
        daemon.stop()
    });
}

#[test]
fn a_trace_of_the_underlay_looks_into_the_tunnel() {
    if !Capture::is_possible() {
        skip("tunnel-trace", "there is no tshark here");
        return;
    }
    let wire = Wire { backend: "af-packet", ..WIRE };
    against_the_kernel("tunnel-trace", &wire, |lab, daemon, [a, b]| {
        let filter = "vni 5001 and outer host 192.0.2.2 and icmp and less 200";
        let mut lines = daemon.trace("lines", &["--port", "underlay", "--filter", filter, "--count", "4"])?;
        a.exec(&["ping", "-c", "2", "-i", "0.05", "-W", "10", "10.0.0.2"])?;
        assert!(lines.wait(WAIT)?.success(), "{}", lines.tail());
        let there = "underlay out   148  192.0.2.1 > 192.0.2.2 VXLAN 5001: 10.0.0.1 > 10.0.0.2: ICMP echo request";
        let back = "underlay in    148  192.0.2.2 > 192.0.2.1 VXLAN 5001: 10.0.0.2 > 10.0.0.1: ICMP echo reply";
        for line in [there, back] {
            assert_eq!(lines.lines().iter().filter(|found| found.contains(line)).count(), 2, "{}", lines.tail());
        }
        // What the container leaves to be done is done when it leaves for the other host.
        let file = lab.path().join("tcp.pcapng").display().to_string();
        let mut tcp = daemon.trace("tcp", &["--filter", "tcp", "--write", &file, "--buffer", "256 MiB"])?;
        iperf(lab, a, b, &v4(b.number()), &["-n", "2M"])?;
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
        let mut pinged = daemon.trace("pings", &[&incoming[..], &["--write", &file]].concat())?;
        a.exec(&["ping", "-c", "3", "-i", "0.05", "-W", "10", "10.0.0.2"])?;
        assert!(pinged.wait(WAIT)?.success(), "{}", pinged.tail());
        let capture = Capture::start(lab.path(), "again", a.name(), "acme0")?;
        let said = daemon.command(&["trace", "replay", "--port", "underlay", &file])?;
        assert_eq!(said, "3 frames came in by underlay\n");
        let recording = capture.stop()?;
        let replies = recording.field("icmp.type == 0 && ip.src == 10.0.0.2 && ip.dst == 10.0.0.1", "icmp.seq")?;
        assert_eq!(replies, ["1", "2", "3"], "what the tunnel carried did not come out of it");
        Ok(())
    });
}

/// A guest that has arrived at `a` is announced when its front end asks for it: the other end, which learns where
/// addresses are from the frames that it sees, moves its entry.
#[test]
fn a_kernels_vxlan_device_learns_where_an_announced_guest_is() {
    const MAC: [u8; 6] = [0x02, 0x5d, 0, 0, 0, 0x07];
    let guest = "network = 'acme', address = '10.0.0.7', mac = '02:5d:00:00:00:07', socket = 'guest.sock'";
    let with_guest = |a: &Host| site(a, &WIRE, &[0], "").device("guest", &format!("virtio-net = {{ {guest} }}"));
    against_the_kernel_with("tunnel-announce", &WIRE, with_guest, |lab, daemon, [a, b]| {
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
        wait_until("a frame to leave by the network's other port", WAIT, || Ok((replies()? > before).then_some(())))?;
        drop(port);
        Ok(())
    });
}

/// Ends in two subnets of one network reach each other through the gateway, which each host has for itself. The kernel
/// of one takes packets of 9,000 bytes for possible, and its TCP learns what the tunnel carries.
#[test]
fn two_subnets_meet_at_the_gateway_and_tcp_learns_the_tunnels_mss() {
    let site = |host: &Host| {
        let (own, other) = (host.number(), host.other());
        Site::on(&[0])
            .with(&WIRE.underlay(host))
            .network("acme", 5001, &["10.0.1.0/24", "10.0.2.0/24"])
            .with("gateway = ['10.0.1.254', '10.0.2.254']")
            .endpoint(&[&format!("10.0.{other}.1")], &format!("02:5d:00:00:00:0{other}"), &WIRE.address(other))
            .tap("port", own, &[&format!("10.0.{own}.1")], "")
            .to_string()
    };
    WIRE.run("tunnel-subnets", |lab, a, b| {
        let (at_a, at_b) = (a.softdpu(lab, &site(a))?, b.softdpu(lab, &site(b))?);
        for host in [a, b] {
            let (own, other) = (host.number(), host.other());
            host.ip(&["addr", "add", &format!("10.0.{own}.1/24"), "dev", "acme0"])?;
            host.ip(&["route", "add", &format!("10.0.{other}.0/24"), "via", &format!("10.0.{own}.254")])?;
        }
        let reached = a.wait_to_reach("10.0.2.1")?;
        // One router on the way, there and back.
        assert!(reached.contains("ttl=63"), "{reached}");
        let traced = a.exec(&["ping", "-c", "1", "-W", "10", "-t", "1", "10.0.2.1"]).unwrap_err().to_string();
        assert!(traced.contains("10.0.1.254") && traced.contains("Time to live exceeded"), "{traced}");
        a.ip(&["link", "set", "acme0", "mtu", "9000"])?;
        if Capture::is_possible() {
            let capture = Capture::start(lab.path(), "syn", b.name(), "acme0")?;
            iperf(lab, a, b, "10.0.2.1", &["-n", "1M"])?;
            let recording = capture.stop()?;
            let sizes = recording.field("tcp.flags.syn == 1 && ip.src == 10.0.1.1", "tcp.options.mss_val")?;
            // 1,450 bytes less IPv4's 20 and TCP's 20, where a's kernel said 8,960.
            assert!(!sizes.is_empty() && sizes.iter().all(|size| size == "1410"), "{sizes:?}");
        } else {
            skip("the MSS in tunnel-subnets", "tshark is not installed");
        }
        at_a.stop()?;
        at_b.stop()
    });
}

/// Datagrams that the kernel leaves whole for many (UDP_SEGMENT over a TAP with USO, Linux 6.2) leave for the other
/// host in pieces, each with its checksum.
#[test]
fn datagrams_that_stand_for_many_are_cut_up_for_the_tunnel() {
    const SEND: &str = "import socket\ns = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.setsockopt(17, 103, 1000)\nfor _ in range(5): s.sendto(bytes(30000), ('10.0.0.2', 9))";
    if !Capture::is_possible() || run("python3", &["--version"]).is_err() {
        skip("tunnel-uso", "there is no tshark, or no python3");
        return;
    }
    against_the_kernel("tunnel-uso", &WIRE, |lab, daemon, [a, b]| {
        if !a.exec(&["ethtool", "-k", "acme0"])?.contains("tx-udp-segmentation: on") {
            skip("tunnel-uso", "the kernel's TAP has no USO (Linux 6.2)");
            return Ok(());
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
        Ok(())
    });
}

/// What the kernel sends by a TAP above its rate is dropped and counted: nothing would wait for room.
#[test]
fn a_taps_rate_drops_what_is_above_it() {
    let limited = |a: &Host| site(a, &WIRE, &[0], ", rate = { packets = 1000, packets-burst = 100 }");
    against_the_kernel_with("tunnel-rate", &WIRE, limited, |lab, daemon, [a, b]| {
        let (start, before) = (Instant::now(), daemon.port("port")?);
        // 5,000 datagrams a second for 3 s; iperf3 tells how much of it arrived.
        let received = iperf(lab, a, b, "10.0.0.2", &["-u", "-b", "40M", "-l", "1000", "-t", "3"])?;
        let (after, took) = (daemon.port("port")?, start.elapsed().as_secs_f64());
        let came = after.count("frames_in") - before.count("frames_in");
        let policed = after.dropped_in("policed") - before.dropped_in("policed");
        // Never more; and all that did not come in was counted. A sender that is held up for a while sends less.
        assert!((came as f64) < 100.0 + 1000.0 * took, "{came} frames came in within {took:.1} s");
        assert!(came > 1000 && policed > 1000, "{came} frames came in, {policed} were dropped");
        assert!(received < 8e6 * 1.3, "{received:.0} bit/s arrived of 8 Mbit/s");
        Ok(())
    });
}

#[test]
fn a_transfer_survives_a_kill_of_the_data_plane() {
    against_the_kernel("tunnel-kill", &WIRE, |lab, daemon, [a, b]| {
        let rate = std::thread::scope(|scope| {
            let transfer = scope.spawn(|| iperf(lab, a, b, &v4(b.number()), &["-t", "4"]));
            for _ in 0..3 {
                std::thread::sleep(Duration::from_millis(800));
                daemon.kill_data_plane()?;
            }
            transfer.join().unwrap_or_else(|_| Err(Failure::new("the transfer panicked")))
        })?;
        assert!(rate > 1e6, "{rate:.0} bit/s");
        Ok(())
    });
}
