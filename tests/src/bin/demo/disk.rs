//! The demonstration's disks: kill, upgrade, discard, growth and a second boot.

use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

use softdpu_tests::{
    Accel, Context, Disk, Failure, Guest, GuestSpec, Lab, Root, Server, ServerKind, repository, wait_until,
};

use crate::table::Table;
use crate::{DEADLINE, expect};

const MIB: u64 = 1 << 20;

/// What `lab/sites/demo.toml` gives the data disk, and what it grows to.
const DATA_MIB: u64 = 512;
const GROWN_MIB: u64 = 1024;

/// Boots a guest from one disk, works on another through a kill and an upgrade of the data plane, grows it, and boots
/// again.
pub fn demonstrate(kind: ServerKind, accel: Accel, lab: &Lab, table: &mut Table) -> Result<(), Failure> {
    let softdpu = kind == ServerKind::Softdpu;
    let mut server = table.row("start the server of the disks", || Ok((start(kind, lab)?, format!("{kind:?}"))))?;

    let mut guest = boot(lab, &server, accel, "first", softdpu)?;
    table.step(&mut guest, "boot", "boot Debian from the first disk")?;
    let disks = guest.step("disks", DEADLINE)?;
    expect("the data disk's size in MiB", disks.get("data_mib")?, DATA_MIB)?;
    expect("the data disk's queues", disks.get("queues")?, 2)?;
    table.step(&mut guest, "partition", "partition the second disk")?;
    table.step(&mut guest, "ext4", "make ext4 on it")?;
    table.step(&mut guest, "write", "write files, sync")?;
    table.step(&mut guest, "reread", "reread past the cache, verify checksums")?;
    table.step(&mut guest, "round", "fio: random writes of mixed sizes, verified")?;
    if softdpu {
        table.row("kill -9 the data plane under this I/O", || {
            wait_for_write(lab)?;
            let time = server.daemon()?.kill_data_plane()?;
            guest.check()?;
            Ok(((), format!("back after {:.0} ms", time.as_secs_f64() * 1e3)))
        })?;
    }
    table.step(&mut guest, "round", "fio: the round under way, verified")?;
    if softdpu {
        table.row("softdpu upgrade under this I/O", || {
            wait_for_write(lab)?;
            let answer = server.daemon()?.upgrade()?;
            guest.check()?;
            let switched = answer["switched_us"].as_f64().unwrap_or_default() / 1e3;
            Ok(((), format!("switched in {switched:.1} ms")))
        })?;
        table.step(&mut guest, "round", "fio: the round under way, verified again")?;
    }
    let before = allocated(lab)?;
    guest.type_line("stop")?;
    guest.step("rounds", DEADLINE)?;
    table.step(&mut guest, "reread", "reread the files, verify checksums")?;
    table.step(&mut guest, "discard", "discard the second partition")?;
    table.row("the volume's file gave the space back", || {
        let after = allocated(lab)?;
        let freed = before.saturating_sub(after) / MIB;
        // fio wrote 32 MiB there.
        if freed >= 30 {
            Ok(((), format!("{freed} MiB")))
        } else {
            Err(Failure::new(format!("only {freed} MiB were freed")))
        }
    })?;
    if softdpu {
        guest.step("growable", DEADLINE)?;
        table
            .row("softdpu volume grow data '1 GiB'", || Ok((server.daemon()?.grow("data", "1 GiB")?, String::new())))?;
        let grown = table.step(&mut guest, "grown", "the guest sees its disk grow")?;
        expect("the grown disk's size in MiB", grown.get("mib")?, GROWN_MIB)?;
        table.step(&mut guest, "use-growth", "grow the partition, write and reread its end")?;
    } else {
        table.skipped("kill the data plane, grow the disk", "only softdpu can");
    }
    table.step(&mut guest, "mark", "leave a mark on the root disk, unmount")?;
    table.row("power off without a single I/O error", || Ok((guest.finish(DEADLINE)?, String::new())))?;
    if softdpu {
        table.row("status counts one restart", || {
            let (_, restarts) = server.daemon()?.data_plane()?;
            expect("restarts of the data plane", restarts, 1)?;
            Ok(((), String::new()))
        })?;
    }

    let server = table.row("stop the server and start it again", || {
        server.stop()?;
        Ok((start(kind, lab)?, String::new()))
    })?;
    let mut guest = boot(lab, &server, accel, "second", softdpu)?;
    table.step(&mut guest, "boot", "boot a second time")?;
    table.step(&mut guest, "mark", "find the mark on the root disk")?;
    table.step(&mut guest, "ext4", "check ext4: clean")?;
    table.step(&mut guest, "reread", "verify the first boot's checksums")?;
    if softdpu {
        let grown = table.step(&mut guest, "use-growth", "find what was written to the grown part")?;
        expect("the disk's size in MiB", grown.get("mib")?, GROWN_MIB)?;
    }
    table.row("power off without a single I/O error", || Ok((guest.finish(DEADLINE)?, String::new())))?;
    table.row("stop the server", || Ok((server.stop()?, String::new())))
}

/// Between two rounds nothing is under way. A write that has just reached the volume's file is followed by others: each
/// of fio's two jobs keeps sixteen requests in flight.
fn wait_for_write(lab: &Lab) -> Result<(), Failure> {
    let before = modified(lab)?;
    wait_until("the guest's next write", DEADLINE, || Ok((modified(lab)? != before).then_some(())))
}

/// Starts the server on images that are made where they do not exist yet.
fn start(kind: ServerKind, lab: &Lab) -> Result<Server, Failure> {
    let (root, data) = (lab.path().join("root.img"), lab.path().join("data.img"));
    if !root.exists() {
        lab.root_image("root.img")?;
    }
    match kind {
        // The site file names and makes the images.
        ServerKind::Softdpu => {
            let site = repository().join("lab/sites/demo.toml");
            let site = std::fs::read_to_string(&site).context(format_args!("reading {}", site.display()))?;
            let disks = [Disk::new("root", root).queues(2), Disk::new("data", data).queues(2)];
            Server::start_softdpu(lab, &site, &disks)
        }
        ServerKind::StorageDaemon => {
            if !data.exists() {
                lab.image("data.img", DATA_MIB * MIB)?;
            }
            Server::start(kind, lab, &[Disk::new("root", root).queues(2), Disk::new("data", data).queues(2)])
        }
    }
}

fn boot(lab: &Lab, server: &Server, accel: Accel, job: &str, grow: bool) -> Result<Guest, Failure> {
    let spec = GuestSpec::new(&format!("{job}-boot")).cpus(2).memory_mib(768).accel(accel).root(Root::FirstDisk);
    let spec = spec.disk(server.guest_disk("root")?).disk(server.guest_disk("data")?);
    let spec = spec.job(&format!("demo-{job}")).parameter("GROW", if grow { "yes" } else { "no" });
    Guest::boot(lab.path(), spec)
}

/// Bytes of the host's disk that the data volume's file takes.
fn allocated(lab: &Lab) -> Result<u64, Failure> {
    let path = lab.path().join("data.img");
    // st_blocks counts units of 512 bytes (stat(2)).
    Ok(std::fs::metadata(&path).context(path.display())?.blocks() * 512)
}

/// When the data volume's file was last written.
fn modified(lab: &Lab) -> Result<SystemTime, Failure> {
    let path = lab.path().join("data.img");
    std::fs::metadata(&path).and_then(|metadata| metadata.modified()).context(path.display())
}
