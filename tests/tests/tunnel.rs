//! Networks that span hosts: network namespaces stand for hosts, a veth pair for the wire between them. The other end of the
//! tunnel is another softdpu, or the kernel's own VXLAN device.

#![allow(missing_docs)]

use std::path::Path;
use std::time::Duration;

use softdpu_tests::netns::{possible, run};
use softdpu_tests::{Context, Daemon, Failure, Lab, Process, skip, softdpu, wait_until};

const WAIT: Duration = Duration::from_secs(20);

/// A host: a network namespace with one end of the wire. Gone when dropped.
struct Host {
    name: String,
    /// 1 or 2: the last part of its addresses.
    number: u8,
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = run("ip", &["netns", "del", &self.name]);
    }
}

impl Host {
    fn ip(&self, arguments: &[&str]) -> Result<String, Failure> {
        run("ip", &[&["-n", &self.name], arguments].concat())
    }

    fn exec(&self, arguments: &[&str]) -> Result<String, Failure> {
        run("ip", &[&["netns", "exec", &self.name], arguments].concat())
    }

    fn other(&self) -> u8 {
        3 - self.number
    }

    /// A daemon with a TAP in the network, at 10.0.0.NUMBER.
    fn softdpu(&self, lab: &Lab, wire: &Wire) -> Result<Daemon, Failure> {
        let folder = lab.path().join(&self.name);
        std::fs::create_dir_all(&folder).context("creating a folder")?;
        let (own, other) = (self.number, self.other());
        let site = format!(
            r#"
[node]
dataplane = {{ cores = [0] }}
underlay  = {{ interface = "wire", address = "{}", backend = "{}" }}

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
            wire.address(own),
            wire.backend,
            wire.address(other),
        );
        let daemon = Daemon::start_in(&self.name, &folder, &site)?;
        self.address("acme0")?;
        Ok(daemon)
    }

    /// The kernel's own VXLAN device as the tunnel's end.
    fn kernel(&self, wire: &Wire) -> Result<(), Failure> {
        let (own, other) = (wire.address(self.number), wire.address(self.other()));
        let mac = format!("02:5d:00:00:00:0{}", self.number);
        let mut arguments = vec!["link", "add", "acme0", "address", &mac, "type", "vxlan", "id", "5001"];
        arguments.extend(["local", &own, "remote", &other, "dstport", "4789"]);
        if wire.v6 {
            arguments.extend(["udp6zerocsumtx", "udp6zerocsumrx"]);
        }
        self.ip(&arguments)?;
        self.ip(&["link", "set", "acme0", "mtu", &wire.inner_mtu().to_string(), "up"])?;
        self.address("acme0")?;
        // Nobody in the tunnel answers for addresses: what is where, is configured.
        let (mac, number) = (format!("02:5d:00:00:00:0{}", self.other()), self.other());
        for address in [format!("10.0.0.{number}"), format!("fd00:5d::{number}")] {
            self.ip(&["neigh", "replace", &address, "lladdr", &mac, "dev", "acme0", "nud", "permanent"])?;
        }
        Ok(())
    }

    fn address(&self, interface: &str) -> Result<(), Failure> {
        self.ip(&["addr", "add", &format!("10.0.0.{}/16", self.number), "dev", interface])?;
        self.ip(&["addr", "add", &format!("fd00:5d::{}/64", self.number), "dev", interface, "nodad"])?;
        Ok(())
    }

    /// Reaches the other host's end of the network, on both protocols and with packets that are cut up.
    fn pings(&self) -> Result<(), Failure> {
        let addresses = [format!("10.0.0.{}", self.other()), format!("fd00:5d::{}", self.other())];
        for address in &addresses {
            wait_until(&format!("{} to reach {address}", self.name), WAIT, || {
                Ok(self.exec(&["ping", "-c", "1", "-W", "1", address]).ok())
            })?;
            self.exec(&["ping", "-c", "3", "-i", "0.05", "-W", "5", "-s", "4000", address])?;
        }
        Ok(())
    }

    /// TCP for a second, to the other host or from it. In bits per second.
    fn iperf(&self, lab: &Lab, to: &Host, more: &[&str]) -> Result<f64, Failure> {
        let server = ["netns", "exec", &to.name, "iperf3", "-s", "-1", "--forceflush"];
        let mut server = Process::start("iperf", lab.path(), Path::new("ip"), server)?;
        server.wait_for_line("iperf3's server", 0, WAIT, |line| line.contains("listening").then_some(()))?;
        let address = format!("10.0.0.{}", to.number);
        let client = ["timeout", "60", "iperf3", "-J", "-c", &address];
        let report = self.exec(&[&client, more].concat())?;
        let report: serde_json::Value = serde_json::from_str(&report).context("iperf3's report")?;
        let received = report["end"]["sum_received"]["bits_per_second"].as_f64();
        received.ok_or_else(|| Failure::new(format!("iperf3 reports nothing received: {report}")))
    }
}

/// What is between two hosts.
struct Wire {
    mtu: u32,
    v6: bool,
    backend: &'static str,
}

impl Wire {
    fn address(&self, number: u8) -> String {
        if self.v6 { format!("2001:db8::{number}") } else { format!("192.0.2.{number}") }
    }

    fn inner_mtu(&self) -> u32 {
        self.mtu - if self.v6 { 70 } else { 50 }
    }

    /// Two hosts joined by it.
    fn hosts(&self, test: &str) -> Result<(Host, Host), Failure> {
        let host = |number| {
            let name = format!("sd-{test}-{number}-{}", std::process::id());
            run("ip", &["netns", "add", &name]).map(|_| Host { name, number })
        };
        let (a, b) = (host(1)?, host(2)?);
        let peer = ["peer", "name", "wire", "netns", &b.name];
        run("ip", &[&["link", "add", "wire", "netns", &a.name, "type", "veth"], &peer[..]].concat())?;
        for host in [&a, &b] {
            let prefix = if self.v6 { 64 } else { 24 };
            let address = format!("{}/{prefix}", self.address(host.number));
            let nodad: &[&str] = if self.v6 { &["nodad"] } else { &[] };
            host.ip(&[&["addr", "add", &address, "dev", "wire"], nodad].concat())?;
            host.ip(&["link", "set", "wire", "mtu", &self.mtu.to_string(), "up"])?;
            host.ip(&["link", "set", "lo", "up"])?;
        }
        Ok((a, b))
    }
}

fn between_two_daemons(test: &str, wire: &Wire) {
    if !possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let (a, b) = wire.hosts(test)?;
        let (at_a, at_b) = (a.softdpu(lab, wire)?, b.softdpu(lab, wire)?);
        a.pings()?;
        b.pings()?;
        let there = a.iperf(lab, &b, &["-t", "1"])?;
        let back = a.iperf(lab, &b, &["-t", "1", "-R"])?;
        assert!(there > 1e6 && back > 1e6, "{there:.0} and {back:.0} bit/s");
        let underlay = serde_json::from_str::<serde_json::Value>(&at_a.command(&["status", "--json"])?)
            .context("status")?["underlay"]
            .clone();
        assert!(underlay["frames_out"].as_u64() > Some(100), "{underlay}");
        at_a.stop()?;
        at_b.stop()
    });
}

fn against_the_kernel(test: &str, wire: &Wire) {
    if !possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let (a, b) = wire.hosts(test)?;
        if wire.backend == "af-xdp" {
            // A veth pair hands frames over before their checksums are made, and AF_XDP has no word for that.
            b.exec(&["ethtool", "-K", "wire", "tx", "off"])?;
        }
        let daemon = a.softdpu(lab, wire)?;
        b.kernel(wire)?;
        a.pings()?;
        b.pings()?;
        let there = a.iperf(lab, &b, &["-t", "1"])?;
        let back = a.iperf(lab, &b, &["-t", "1", "-R"])?;
        println!("{test}: {:.0} and {:.0} Mbit/s", there / 1e6, back / 1e6);
        assert!(there > 10e6 && back > 10e6, "{there:.0} and {back:.0} bit/s");
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
fn the_kernels_vxlan_device_is_the_other_end_of_af_xdp() {
    against_the_kernel("xdp", &Wire { mtu: 1500, v6: false, backend: "af-xdp" });
}

#[test]
fn a_trace_of_the_underlay_looks_into_the_tunnel() {
    if !possible("tunnel-trace") {
        return;
    }
    if run("tshark", &["--version"]).is_err() {
        skip("tunnel-trace", "there is no tshark here");
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "af-packet" };
    Lab::run("tunnel-trace", |lab| {
        let (a, b) = wire.hosts("trace")?;
        let daemon = a.softdpu(lab, &wire)?;
        b.kernel(&wire)?;
        a.pings()?;
        let trace = |name: &str, arguments: &[&str]| {
            let socket = lab.path().join(&a.name).join("run/softdpu/api.sock").display().to_string();
            let arguments = [&["--socket", &socket, "trace", "packet"], arguments].concat();
            let mut process = Process::start(name, lab.path(), &softdpu()?, arguments)?;
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
        let mut trace = trace("tcp", &["--filter", "tcp", "--write", &file, "--buffer", "256 MiB"])?;
        a.iperf(lab, &b, &["-n", "2M"])?;
        trace.signal(rustix::process::Signal::INT);
        assert!(trace.wait(WAIT)?.success(), "{}", trace.tail());
        assert!(trace.lines().iter().any(|line| line == "0 frames lost for want of room"), "{}", trace.tail());
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
        daemon.stop()
    });
}

#[test]
fn a_transfer_survives_a_kill_of_the_data_plane() {
    if !possible("tunnel-kill") {
        return;
    }
    let wire = Wire { mtu: 1500, v6: false, backend: "auto" };
    Lab::run("tunnel-kill", |lab| {
        let (a, b) = wire.hosts("kill")?;
        let mut daemon = a.softdpu(lab, &wire)?;
        b.kernel(&wire)?;
        a.pings()?;
        let rate = std::thread::scope(|scope| {
            let transfer = scope.spawn(|| a.iperf(lab, &b, &["-t", "4"]));
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
