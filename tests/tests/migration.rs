//! A guest moves from one host to another while it runs: QEMU's live migration over two softdpus, which log what they
//! write into its memory, and an entry of the network that says where it is from then on. Its TCP connection goes on.
//!
//! ```text
//!   host a: port 10.0.0.1 ── softdpu ── guest 10.0.0.5        host b: softdpu ── (10.0.0.5)
//!                               └──────────── wire, VXLAN ──────────────┘
//! ```

#![allow(missing_docs)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use softdpu_tests::{
    Context, Daemon, Failure, Guest, GuestDevice, GuestSpec, Host, Lab, Process, Root, Site, Wire, wait_until,
};

/// A step takes seconds, without KVM and on a busy machine some tens of them.
const DEADLINE: Duration = Duration::from_secs(120);
const WIRE: Wire = Wire::ETHERNET;

const GUEST: &str = "10.0.0.5";
const GUEST_MAC: &str = "02:5d:00:00:00:05";
/// Bytes of a line that the guest sends back: a few frames together with others, and more than a frame's head.
const LINE: usize = 700;

fn site(host: &Host, format: &str) -> Site {
    let interface = format!("network = 'acme', address = '{GUEST}', mac = '{GUEST_MAC}', {format}");
    Site::on(&[0])
        .with(&WIRE.underlay(host))
        .network("acme", 5001, &["10.0.0.0/16"])
        .with("gateway = '10.0.255.254'")
        .device("vm", &format!("domain = 'vm'\nvirtio-net = {{ {interface} }}"))
}

/// Says something to QEMU's monitor and gives what it answers.
fn monitor(socket: &Path, command: &str) -> Result<String, Failure> {
    const PROMPT: &str = "(qemu) ";
    let mut stream = UnixStream::connect(socket).context(format_args!("connecting to {}", socket.display()))?;
    stream.set_read_timeout(Some(DEADLINE)).context("a time-out")?;
    let answer = |stream: &mut UnixStream| {
        let mut text = Vec::new();
        let mut byte = [0];
        while !text.ends_with(PROMPT.as_bytes()) {
            match stream.read(&mut byte).context("QEMU's monitor")? {
                0 => break,
                _ => text.push(byte[0]),
            }
        }
        Ok::<String, Failure>(String::from_utf8_lossy(&text).into_owned())
    };
    answer(&mut stream)?;
    stream.write_all(format!("{command}\n").as_bytes()).context("writing to QEMU's monitor")?;
    answer(&mut stream)
}

/// A guest with that daemon's interface, and a monitor at NAME.monitor.
fn boot(lab: &Lab, daemon: &Daemon, name: &str, more: &[&str]) -> Result<Guest, Failure> {
    let monitor = format!("unix:{name}.monitor,server=on,wait=off");
    let spec = GuestSpec::new(name)
        .root(Root::NetworkRam)
        .device(daemon.guest_device("vm")?)
        .device(GuestDevice::new(&[&["-monitor", &monitor], more].concat()))
        .job("network")
        .parameter("NAME", "vm")
        .parameter("MIB", 1);
    Guest::boot(lab.path(), spec)
}

/// A TCP connection whose other end sends every line back.
struct Echo {
    client: Process,
    sent: usize,
}

impl Echo {
    fn text(number: usize) -> String {
        format!("line {number} {}", "0123456789".repeat(LINE / 10))
    }

    /// Sends the next line, if those before have all come back.
    fn offer(&mut self) -> Result<(), Failure> {
        if self.client.lines().len() == self.sent {
            self.client.send_line(&Echo::text(self.sent))?;
            self.sent += 1;
        }
        Ok(())
    }

    /// Waits until all lines have come back, each as it was and in order.
    fn settle(&mut self) -> Result<(), Failure> {
        wait_until("the guest to send all lines back", DEADLINE, || {
            Ok((self.client.lines().len() >= self.sent).then_some(()))
        })?;
        let wrong = self.client.lines().into_iter().enumerate().find(|(number, line)| *line != Echo::text(*number));
        wrong.map_or(Ok(()), |(number, line)| Err(Failure::new(format!("line {number} came back as `{line}`"))))
    }
}

fn frames(daemon: &Daemon) -> Result<u64, Failure> {
    Ok(daemon.port("vm")?.count("frames_in"))
}

/// Moves a guest with rings of that format.
fn moves(test: &str, format: &str) {
    WIRE.run(test, |lab, a, b| {
        let at_a = a.softdpu(lab, &site(a, format).tap("port", 1, &["10.0.0.1"], "").to_string())?;
        a.ip(&["addr", "add", "10.0.0.1/16", "dev", "acme0"])?;
        let elsewhere = WIRE.address(a.number());
        let at_b = site(b, format).endpoint(&["10.0.0.1"], "02:5d:00:00:00:01", &elsewhere);
        let at_b = b.softdpu(lab, &at_b.to_string())?;

        let mut guest = boot(lab, &at_a, "vm", &[])?;
        guest.booted()?;
        guest.step("ready", DEADLINE)?;
        guest.ask(&format!("address {GUEST}/16"), DEADLINE)?;
        guest.ask("mirror", DEADLINE)?;
        let client = a.start(lab, "client", &["busybox", "nc", GUEST, "7"])?;
        let mut echo = Echo { client, sent: 0 };
        echo.offer()?;
        echo.settle()?;

        let mut moved = boot(lab, &at_b, "moved", &["-incoming", "unix:moved.incoming"])?;
        let [from, to] = ["vm.monitor", "moved.monitor"].map(|name| lab.path().join(name));
        wait_until("QEMU to wait for the guest", DEADLINE, || {
            Ok((lab.path().join("moved.incoming").exists() && to.exists()).then_some(()))
        })?;
        assert_eq!(frames(&at_b)?, 0, "the guest was at b before it moved");
        monitor(&from, "migrate -d unix:moved.incoming")?;
        let deadline = Instant::now() + DEADLINE;
        let mut status = monitor(&from, "info migrate")?;
        while !status.contains("status: completed") {
            if status.contains("status: failed") || Instant::now() > deadline {
                return Err(Failure::new(format!("the guest has not moved: {status}")));
            }
            // What softdpu writes into memory that was copied already is to be copied again. A line that is sent when
            // the guest has just gone is sent again by TCP.
            echo.offer()?;
            std::thread::sleep(Duration::from_millis(20));
            status = monitor(&from, "info migrate")?;
        }
        let before = echo.sent;

        // The guest is no longer at a: an endpoint says where it is.
        drop(guest);
        wait_until("the source's connection to end", DEADLINE, || {
            Ok((at_a.device("vm")?["state"] != "running").then_some(()))
        })?;
        at_a.command(&["device", "remove", "vm"])?;
        let place = ["--address", GUEST, "--mac", GUEST_MAC, "--host", &WIRE.address(b.number())];
        at_a.command(&[&["network", "endpoint", "add", "acme"], &place[..]].concat())?;
        for _ in 0..20 {
            echo.settle()?;
            echo.offer()?;
        }
        echo.settle()?;
        assert!(frames(&at_b)? >= 20, "what the guest sends does not come from b");
        println!("{before} lines before the guest had moved, {} in all, over one connection", echo.sent);
        moved.ask("ping 10.0.0.1", DEADLINE)?;
        moved.type_line("stop")?;
        moved.finish(DEADLINE)?;
        at_a.stop()?;
        at_b.stop()
    });
}

#[test]
fn a_guest_moves_to_another_host_with_its_connections_packed() {
    moves("move-packed", "packed = true");
}

#[test]
fn a_guest_moves_to_another_host_with_its_connections_split() {
    moves("move-split", "packed = false");
}
