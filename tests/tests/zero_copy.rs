//! An underlay on AF_XDP without copies: softdpu in a guest whose interface's driver has it, the kernel's VXLAN device
//! on the host behind a TAP. Network namespaces have only veth pairs, which copy.

#![allow(missing_docs)]

use std::time::Duration;

use softdpu_tests::netns::run;
use softdpu_tests::{
    Capture, Context, Failure, Guest, GuestDevice, GuestSpec, Host, Lab, Process, Qemu, Report, Root, Site, TAP, Wire,
    no_newer_kernel, skip, softdpu, wait_until,
};

/// For anything that a guest does without KVM on a busy machine.
const WAIT: Duration = Duration::from_secs(120);

/// Chunks of an AF_XDP socket in each direction (`XdpOptions::frames`): after that many frames every one was used, and
/// given back.
const CHUNKS: u64 = 2048;

/// Moved by each transfer: some 9,000 frames.
const TRANSFER: &str = "12M";

const WIRE: Wire = Wire { backend: "af-xdp", ..Wire::ETHERNET };

/// MAC addresses of the guest's interface, and of both ends of the network.
const NIC: &str = "02:00:00:00:00:01";
const MACS: [&str; 2] = ["02:5d:00:00:00:01", "02:5d:00:00:00:02"];

fn possible(test: &str) -> bool {
    if !Host::is_possible(test) {
        return false;
    }
    if let Some(reason) = no_newer_kernel() {
        skip(test, &reason);
        return false;
    }
    true
}

/// The kernel's own VXLAN device on the host.
fn kernel(host: &Host) -> Result<(), Failure> {
    let (own, other) = (WIRE.address(2), WIRE.address(1));
    let device = ["link", "add", "acme0", "address", MACS[1], "type", "vxlan", "id", "5001"];
    host.ip(&[&device[..], &["local", &own, "remote", &other, "dstport", "4789"]].concat())?;
    host.ip(&["link", "set", "acme0", "mtu", &WIRE.inner_mtu().to_string(), "up"])?;
    host.ip(&["addr", "add", "10.0.0.2/16", "dev", "acme0"])?;
    host.ip(&["neigh", "replace", "10.0.0.1", "lladdr", MACS[0], "dev", "acme0", "nud", "permanent"]).map(drop)
}

/// softdpu's site in the guest, a host like any other.
fn site() -> String {
    Site::on(&[0])
        .with(&format!("underlay = {{ interface = 'eth0', address = '{}', backend = 'af-xdp' }}", WIRE.address(1)))
        .network("acme", 5001, &["10.0.0.0/16"])
        .with("gateway = '10.0.9.9'")
        .endpoint(&["10.0.0.2"], MACS[1], &WIRE.address(2))
        .tap("port", 1, &["10.0.0.1"], "")
        .to_string()
}

/// A guest with softdpu in it, and an interface by QEMU's argument on the wire.
fn boot(lab: &Lab, host: &Host, device: &str, qemu: Qemu) -> Result<Guest, Failure> {
    let program = softdpu()?.display().to_string();
    // The guest's packages are of the machine's release; they lack the one library that only Rust's programs want.
    let libraries = run("ldd", &[&program])?;
    let library = libraries.lines().find_map(|line| line.trim().strip_prefix("libgcc_s.so.1 => ")?.split(' ').next());
    let library = library.ok_or_else(|| Failure::new(format!("{program} has no libgcc_s: {libraries}")))?;
    let stripped = lab.path().join("softdpu-stripped");
    run("strip", &["-o", &stripped.to_string_lossy(), &program])?;
    let read = |path: &std::path::Path| std::fs::read(path).context(path.display());
    let spec = GuestSpec::new("guest")
        .cpus(2)
        .memory_mib(768)
        .root(Root::NetworkRam)
        .newer_kernel()
        .file("usr/sbin/softdpu", read(&stripped)?)
        .file("usr/lib/x86_64-linux-gnu/libgcc_s.so.1", read(library.as_ref())?)
        .file("site.toml", site().into_bytes())
        .job("network")
        .parameter("NAME", "guest")
        .parameter("MIB", 1)
        .namespace(host.name())
        .qemu(qemu)
        .device(GuestDevice::new(&[&TAP[..], &["-device", &format!("{device},netdev=wire,mac={NIC}")]].concat()));
    let mut guest = Guest::boot(lab.path(), spec)?;
    guest.booted()?;
    guest.step("ready", WAIT)?;
    Ok(guest)
}

fn is_zero_copy(report: &Report) -> Result<(), Failure> {
    assert_eq!(report.get::<String>("backend")?, "af-xdp");
    assert_eq!(report.get::<String>("mode")?, "zero-copy", "{report:?}");
    Ok(())
}

/// The guest is reached, with the largest packets, too, and with some that are cut up.
fn pings(host: &Host) -> Result<(), Failure> {
    wait_until("the guest's softdpu to pass an echo request", WAIT, || {
        Ok(host.exec(&["ping", "-c", "1", "-W", "2", "10.0.0.1"]).ok())
    })?;
    let largest = (WIRE.inner_mtu() - 28).to_string();
    host.exec(&["ping", "-c", "3", "-i", "0.2", "-W", "20", "-M", "do", "-s", &largest, "10.0.0.1"])?;
    host.exec(&["ping", "-c", "3", "-i", "0.2", "-W", "20", "-s", "4000", "10.0.0.1"]).map(drop)
}

/// TCP into the guest and out of it.
fn transfers(host: &Host) -> Result<(), Failure> {
    let seconds = WAIT.as_secs().to_string();
    for direction in [&[][..], &["-R"]] {
        // The server ends with one client a little later than that client.
        wait_until("iperf3 to take a client", WAIT, || {
            let client = ["timeout", &seconds, "iperf3", "-c", "10.0.0.1", "-n", TRANSFER];
            Ok(host.exec(&[&client[..], direction].concat()).ok())
        })?;
    }
    Ok(())
}

/// Datagrams into the guest or, with `-R`, out of it, until what is returned is dropped.
fn datagrams(lab: &Lab, host: &Host, direction: &[&str]) -> Result<Process, Failure> {
    let client = ["iperf3", "-c", "10.0.0.1", "-u", "-b", "20M", "-l", "1300", "-t", "600", "--forceflush"];
    wait_until("iperf3 to take a client", WAIT, || {
        let mut load = host.start(lab, "load", &[&client, direction].concat())?;
        let under_way = |line: &str| line.contains("sec").then_some(());
        Ok(load.wait_for_line("datagrams under way", 0, WAIT, under_way).ok().map(|_| load))
    })
}

fn without_copies(test: &str, device: &str, qemu: Qemu, queues: u32) {
    Lab::run(test, |lab| {
        let host = WIRE.host_of_guest(test)?;
        kernel(&host)?;
        let mut guest = boot(lab, &host, device, qemu)?;
        guest.ask(&format!("address {}/24", WIRE.address(1)), WAIT)?;
        let opened = guest.ask("daemon", WAIT)?;
        is_zero_copy(&opened)?;
        assert_eq!(opened.get::<u32>("queues")?, queues);
        guest.ask(&format!("interface {} 10.0.0.1/16", MACS[0]), WAIT)?;
        guest.ask("serve", WAIT)?;

        let capture =
            Capture::is_possible().then(|| Capture::start(lab.path(), "wire", host.name(), "wire")).transpose()?;
        pings(&host)?;
        guest.ask("ping 10.0.0.2", WAIT)?;
        transfers(&host)?;
        match capture {
            Some(capture) => {
                let findings = capture.stop()?.judge(&format!("eth.src == {NIC} && udp.dstport == 4789"))?;
                assert!(findings.faults.is_empty(), "{:?}", &findings.faults[..findings.faults.len().min(5)]);
                assert_eq!(findings.longest, u64::from(WIRE.mtu) + 14, "{findings:?}");
                assert!(findings.right[2] > 2 * CHUNKS && findings.right[3] >= 3, "{findings:?}");
            }
            None => skip(&format!("the frames of {test} under tshark"), "tshark is not installed"),
        }
        let passed = guest.ask("underlay", WAIT)?;
        for direction in ["frames_in", "frames_out"] {
            assert!(passed.get::<u64>(direction)? > 2 * CHUNKS, "not every chunk was used twice: {passed:?}");
        }

        // Frames are with the driver when the data plane is killed: it gives the queue and its memory back.
        for number in 1..=3 {
            let load = datagrams(lab, &host, if number % 2 == 0 { &["-R"] } else { &[] })?;
            let opened = guest.ask("crash", WAIT)?;
            is_zero_copy(&opened)?;
            assert_eq!(opened.get::<u32>("restarts")?, number);
            drop(load);
            pings(&host)?;
        }
        transfers(&host)?;
        guest.type_line("stop")?;
        guest.finish(WAIT)
    });
}

/// virtio-net: the driver maps the sockets' memory itself, for which the device has to go by an IOMMU's addresses.
#[test]
fn virtio_net_works_on_the_sockets_memory() {
    let test = "zerovirtio";
    if !possible(test) {
        return;
    }
    let qemu = Qemu::of_machine().unwrap_or_else(|error| panic!("{error}"));
    without_copies(test, "virtio-net-pci,disable-legacy=on,iommu_platform=on", qemu, 1);
}

/// igb: descriptor rings of a real NIC, two queues.
#[test]
fn igb_works_on_the_sockets_memory() {
    let test = "zeroigb";
    if !possible(test) {
        return;
    }
    match Qemu::with_msix() {
        Ok(qemu) => without_copies(test, "igb", qemu, 2),
        Err(error) => skip(test, &format!("the machine's QEMU has no igb: {error}")),
    }
}
