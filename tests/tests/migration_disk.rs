//! A guest with a disk and an interface moves between two hosts and back, again and again, under verified I/O and with
//! a TCP connection: QEMU's live migration over two softdpus that have a volume on the same file or export.
//!
//! ```text
//!   host 1: softdpu ── guest 10.0.0.5 ⇄ host 2: softdpu        host 3: softdpu ── port 10.0.0.3
//!              └──────── wire, VXLAN ────────┴──────────────────────┘
//! ```
//!
//! `SOFTDPU_MIGRATIONS` is the number of moves (2; `make soak` takes 20).

#![allow(missing_docs)]

mod echo;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;

use echo::Echo;
use serde_json::json;
use softdpu_tests::{
    Context, Daemon, Failure, Guest, GuestDevice, GuestSpec, Host, Lab, Process, Qmp, ServerKind, Site, Wire, skip,
    wait_until,
};

const MIB: u64 = 1 << 20;
/// A step takes seconds, without KVM and on a busy machine some tens of them.
const DEADLINE: Duration = Duration::from_secs(120);
const WIRE: Wire = Wire::ETHERNET;
const GUEST: &str = "10.0.0.5";
const GUEST_MAC: &str = "02:5d:00:00:00:05";
const MEMORY_MIB: u32 = 512;

/// fio in rounds on the disk, and a listener that sends lines back where there is an interface.
const JOB: &str = r"
network() {
    [ -e /sys/class/net/eth0 ] || return 0
    busybox ip link set dev eth0 up && busybox ip address add 10.0.0.5/16 dev eth0 || return
    busybox nc -ll -p 7 -e busybox cat &
}
step network network
rounds_until_stopped /dev/vda 8 2
";

fn moves() -> Result<u32, Failure> {
    std::env::var("SOFTDPU_MIGRATIONS").map_or(Ok(2), |text| text.parse().context("SOFTDPU_MIGRATIONS"))
}

fn site(host: &Host, volume: &str, format: &str) -> Site {
    let interface = format!("network = 'acme', address = '{GUEST}', mac = '{GUEST_MAC}', {format}");
    network(host)
        .endpoint(&["10.0.0.3"], "02:5d:00:00:00:03", &WIRE.address(3))
        .volume("disk", volume)
        .device("vm-disk", &format!("domain = 'vm'\nvirtio-blk = {{ volume = 'disk', queues = 2, {format} }}"))
        .device("vm", &format!("domain = 'vm'\nvirtio-net = {{ {interface} }}"))
}

fn network(host: &Host) -> Site {
    Site::on(&[0]).with(&WIRE.underlay(host)).network("acme", 5001, &["10.0.0.0/16"]).with("gateway = '10.0.255.254'")
}

/// A QEMU with a guest, or one that waits for a guest at NAME.incoming.
struct Vm {
    guest: Guest,
    qmp: Qmp,
    incoming: String,
}

impl Vm {
    fn start(lab: &Lab, name: &str, devices: Vec<GuestDevice>, more: &[&str]) -> Result<Vm, Failure> {
        let monitor = Qmp::argument(&format!("{name}.qmp"));
        let spec = GuestSpec::new(name).cpus(2).memory_mib(MEMORY_MIB).script(JOB);
        let spec = devices.into_iter().fold(spec, GuestSpec::device);
        let spec = spec.device(GuestDevice::new(&[&["-qmp", &monitor], more].concat()));
        let guest = Guest::boot(lab.path(), spec)?;
        let mut qmp = Qmp::connect(&lab.path().join(format!("{name}.qmp")))?;
        // Without a limit that a fast guest's writes would keep it from getting under.
        qmp.execute("migrate-set-parameters", json!({ "max-bandwidth": 8u64 << 30 }))?;
        Ok(Vm { guest, qmp, incoming: format!("{name}.incoming") })
    }

    fn waiting(lab: &Lab, name: &str, devices: Vec<GuestDevice>, more: &[&str]) -> Result<Vm, Failure> {
        let incoming = format!("unix:{name}.incoming");
        Vm::start(lab, name, devices, &[&["-incoming", &incoming], more].concat())
    }

    /// The downtime of a migration to `target`, milliseconds, as QEMU tells it.
    fn migrate(&mut self, target: &Vm, meanwhile: impl FnMut() -> Result<(), Failure>) -> Result<u64, Failure> {
        self.qmp.migrate(&target.incoming)?;
        let told = self.qmp.wait_for_migration(&["completed"], meanwhile)?;
        told["downtime"].as_u64().ok_or_else(|| Failure::new(format!("QEMU tells no downtime: {told}")))
    }

    /// Waits until the guest has written everything anew and read it back, from begin to end.
    fn whole_round(&mut self) -> Result<u64, Failure> {
        let worst = self.guest.step("round", DEADLINE)?.get("worst_ms")?;
        Ok(self.guest.step("round", DEADLINE)?.get::<u64>("worst_ms")?.max(worst))
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.guest.type_line("stop")?;
        self.guest.finish(DEADLINE)
    }
}

fn devices(daemon: &Daemon) -> Result<Vec<GuestDevice>, Failure> {
    ["vm-disk", "vm"].iter().map(|name| daemon.guest_device(name)).collect()
}

/// How many pages of two stopped guests' memory differ, without the hole below 1 MiB where there is no memory.
fn pages_that_differ(lab: &Lab, source: &mut Vm, target: &mut Vm) -> Result<usize, Failure> {
    let size = u64::from(MEMORY_MIB) * MIB;
    let mut differ = 0;
    for (start, len) in [(0, 640 << 10), (MIB, size - MIB)] {
        let mut saved = Vec::new();
        for (vm, name) in [(&mut *source, "source.memory"), (&mut *target, "target.memory")] {
            let path = lab.path().join(name);
            vm.qmp.execute("pmemsave", json!({ "val": start, "size": len, "filename": path }))?;
            let mut bytes = Vec::new();
            File::open(&path).and_then(|mut file| file.read_to_end(&mut bytes)).context("reading a guest's memory")?;
            assert_eq!(bytes.len() as u64, len);
            saved.push(bytes);
            std::fs::remove_file(&path).context("removing a guest's memory")?;
        }
        differ += saved[0].chunks(4096).zip(saved[1].chunks(4096)).filter(|(a, b)| a != b).count();
    }
    Ok(differ)
}

/// A migration that is cancelled, and one with a target that dies: the guest goes on where it is.
fn in_vain(lab: &Lab, vm: &mut Vm, target: &Daemon, echo: &mut Echo) -> Result<(), Failure> {
    for (name, end) in [("cancelled", "cancelled"), ("killed", "failed")] {
        let other = Vm::waiting(lab, name, devices(target)?, &[])?;
        vm.qmp.execute("migrate-set-parameters", json!({ "max-bandwidth": 4 << 20 }))?;
        vm.qmp.migrate(&other.incoming)?;
        wait_until("some memory to be copied", DEADLINE, || {
            let (_, told) = vm.qmp.migration()?;
            Ok((told["ram"]["transferred"].as_u64() > Some(MIB)).then_some(()))
        })?;
        let other = if end == "cancelled" {
            vm.qmp.execute("migrate_cancel", json!({}))?;
            Some(other)
        } else {
            drop(other);
            None
        };
        vm.qmp.wait_for_migration(&[end], || echo.offer())?;
        vm.qmp.execute("migrate-set-parameters", json!({ "max-bandwidth": 8u64 << 30 }))?;
        vm.whole_round()?;
        echo.settle()?;
        drop(other);
    }
    Ok(())
}

fn to_and_fro(test: &str, volume: impl FnOnce(&Lab) -> Result<(String, Option<Process>), Failure>, format: &str) {
    if !Host::is_possible(test) {
        return;
    }
    Lab::run(test, |lab| {
        let (volume, _server) = volume(lab)?;
        let ([a, b, c], _hub) = WIRE.three_hosts(test)?;
        let at = [
            a.softdpu(lab, &site(&a, &volume, format).to_string())?,
            b.softdpu(lab, &site(&b, &volume, format).to_string())?,
        ];
        let hosts = [&a, &b];
        let third = network(&c).endpoint(&[GUEST], GUEST_MAC, &WIRE.address(1)).tap("port", 3, &["10.0.0.3"], "");
        let third = c.softdpu(lab, &third.to_string())?;
        c.ip(&["addr", "add", "10.0.0.3/16", "dev", "acme0"])?;

        let mut vm = Vm::start(lab, "vm", devices(&at[0])?, &[])?;
        vm.guest.booted()?;
        vm.guest.step("network", DEADLINE)?;
        let mut echo = Echo::to(&c, lab, GUEST)?;
        echo.offer()?;
        echo.settle()?;
        in_vain(lab, &mut vm, &at[1], &mut echo)?;

        let (mut downtimes, mut worst) = (Vec::new(), 0);
        for number in 1..=moves()? {
            let here = number as usize % 2;
            // The first time the guest stands still at the target until its memory was compared.
            let still: &[&str] = if number == 1 { &["-S"] } else { &[] };
            let mut next = Vm::waiting(lab, &format!("moved-{number}"), devices(&at[here])?, still)?;
            downtimes.push(vm.migrate(&next, || echo.offer())?);
            if number == 1 {
                let differ = pages_that_differ(lab, &mut vm, &mut next)?;
                assert_eq!(differ, 0, "pages of the guest's memory differ between source and target");
                next.qmp.execute("cont", json!({}))?;
            }
            let place =
                ["--address", GUEST, "--mac", GUEST_MAC, "--host", &WIRE.address(hosts[here].number()), "--replace"];
            third.command(&[&["network", "endpoint", "add", "acme"], &place[..]].concat())?;
            // The source's front ends are there until its QEMU ends: they hold up nothing.
            worst = next.whole_round()?.max(worst);
            echo.settle()?;
            echo.offer()?;
            vm = next;
        }
        echo.settle()?;
        vm.whole_round()?;
        println!(
            "{test}: {} moves, downtime by QEMU {downtimes:?} ms, slowest request {worst} ms, {} lines over one connection",
            downtimes.len(),
            echo.sent()
        );
        vm.finish()?;
        at.into_iter().chain([third]).try_for_each(Daemon::stop)
    });
}

fn only_softdpu(test: &str) -> bool {
    let softdpu = matches!(ServerKind::from_environment(), Ok(ServerKind::Softdpu));
    if !softdpu {
        skip(test, "it is about softdpu alone");
    }
    softdpu
}

#[test]
fn a_guest_with_a_disk_in_a_file_moves_between_two_hosts_under_verified_io() {
    if only_softdpu("move-file") {
        let file =
            |lab: &Lab| Ok((format!("file = {{ path = '{}' }}", lab.image("disk.img", 32 * MIB)?.display()), None));
        to_and_fro("move-file", file, "packed = false");
    }
}

#[test]
fn a_guest_with_a_disk_at_an_nbd_server_moves_between_two_hosts_under_verified_io() {
    if only_softdpu("move-nbd") {
        let nbd = |lab: &Lab| {
            let (image, socket) = (lab.image("disk.img", 32 * MIB)?, lab.path().join("nbd.sock"));
            let (image, path) = (image.display().to_string(), socket.display().to_string());
            let arguments = ["--format=raw", "--persistent", "--shared=0", "--socket", &path, &image];
            let server = Process::start("qemu-nbd", lab.path(), Path::new("qemu-nbd"), arguments)?;
            wait_until("qemu-nbd's socket", DEADLINE, || Ok(socket.exists().then_some(())))?;
            Ok((format!("nbd = {{ uri = 'nbd+unix:///?socket={path}' }}"), Some(server)))
        };
        to_and_fro("move-nbd", nbd, "packed = true");
    }
}

/// The same guest on a disk of QEMU's own: what a move takes without softdpu.
#[test]
fn a_guest_without_softdpu_moves_for_comparison() {
    Lab::run("move-alone", |lab| {
        let image = lab.image("disk.img", 32 * MIB)?;
        let disk = || {
            let drive = format!("file={},if=none,id=disk,format=raw", image.display());
            vec![GuestDevice::new(&["-drive", &drive, "-device", "virtio-blk-pci,drive=disk,num-queues=2"])]
        };
        let mut vm = Vm::start(lab, "vm", disk(), &[])?;
        vm.guest.booted()?;
        vm.guest.step("network", DEADLINE)?;
        let (mut downtimes, mut worst) = (Vec::new(), 0);
        for number in 1..=moves()? {
            let mut next = Vm::waiting(lab, &format!("moved-{number}"), disk(), &[])?;
            downtimes.push(vm.migrate(&next, || Ok(()))?);
            worst = next.whole_round()?.max(worst);
            vm = next;
        }
        println!(
            "without softdpu: {} moves, downtime by QEMU {downtimes:?} ms, slowest request {worst} ms",
            downtimes.len()
        );
        vm.finish()
    });
}
