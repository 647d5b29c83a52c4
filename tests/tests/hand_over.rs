//! A volume that two hosts see goes from one to the other and back, as in a live migration: two daemons, the same file
//! or export, no `shared`. What the one has written the other reads, and requests that come early wait.

#![allow(missing_docs)]

mod client;

use std::path::Path;
use std::sync::Arc;

use client::{FrontEnd, MEMORY, Memory, PATIENCE, Settings, pattern};
use softdpu_tests::{Context, Daemon, Failure, Lab, Process, ServerKind, Site, skip, wait_until};
use softdpu_transport::vhost_user::{Message, VringState};

const MIB: u64 = 1 << 20;
/// Blocks that are written before each move.
const BLOCKS: u64 = 32;

/// Two daemons, each with a folder of its own and a device on the same volume.
fn daemons(lab: &Lab, backend: &str) -> Result<[Daemon; 2], Failure> {
    let start = |name: &str| {
        let folder = lab.path().join(name);
        std::fs::create_dir(&folder).context(format_args!("making {}", folder.display()))?;
        let site = Site::on(&[0]).volume("disk", backend);
        let device = "virtio-blk = { volume = 'disk', packed = true, socket = 'disk-disk.sock' }";
        Daemon::start(&folder, &site.device("disk-disk", device).to_string())
    };
    Ok([start("a")?, start("b")?])
}

fn volume(daemon: &Daemon) -> Result<serde_json::Value, Failure> {
    let volumes = daemon.status()?["volumes"].take();
    let volume = volumes.as_array().into_iter().flatten().find(|volume| volume["name"] == "disk");
    volume.cloned().ok_or_else(|| Failure::new("status shows no volume"))
}

fn wait_for_state(daemon: &Daemon, state: &str) -> Result<(), Failure> {
    let what = format!("the volume to be {state}");
    wait_until(&what, PATIENCE, || Ok((volume(daemon)?["state"] == state).then_some(())))
        .map_err(|error| Failure::new(format!("{error}: {:?}", volume(daemon))))
}

/// Connects a front end that has not started its queue, as QEMU's that waits for a guest.
fn incoming(daemon: &Daemon, settings: Settings) -> Result<FrontEnd, Failure> {
    let memory = Arc::new(Memory::new(MEMORY)?);
    let mut front = FrontEnd::connect(&daemon.device_socket("disk"), memory, settings)?;
    front.share_memory()?;
    Ok(front)
}

/// GET_VRING_BASE, with which a guest's queue stops where its guest leaves, is paused, or resets it.
fn stop(front: &mut FrontEnd) -> Result<(), Failure> {
    front.call(&Message::GetVringBase(VringState { index: 0, num: 0 }), &[]).map(drop).context("stopping the queue")
}

fn write_all(front: &mut FrontEnd, version: u64) -> Result<(), Failure> {
    (0..BLOCKS).try_for_each(|block| front.write_block(block, &pattern(block, version)))
}

fn read_all(front: &mut FrontEnd, version: u64) -> Result<(), Failure> {
    (0..BLOCKS).try_for_each(|block| {
        let read = front.read_block(block).context(format_args!("reading block {block}"))?;
        assert!(read == pattern(block, version), "block {block} is not what was written last");
        Ok(())
    })
}

/// Asks for a block and does not wait.
fn ask(front: &mut FrontEnd, block: u64) -> Result<(), Failure> {
    front.add(0, block, None).ok_or_else(|| Failure::new("the ring has no room for one request"))?;
    front.publish();
    Ok(())
}

/// Waits for the block that was [asked](ask) for.
fn answer(front: &mut FrontEnd, expected: &[u8]) -> Result<(), Failure> {
    front.wait().context("the request that waited for its volume")?;
    assert_eq!(front.status(0), 0, "a request that waited for its volume failed");
    assert!(front.data(0) == expected, "a request that waited has read something else than what was written last");
    Ok(())
}

/// Waits until `status` says what the guest waits for, as a problem and of device and volume.
fn says_that_it_waits(daemon: &Daemon) -> Result<(), Failure> {
    let says = |value: &serde_json::Value| value.to_string().contains("locked");
    wait_until("status to say what the guest waits for", PATIENCE, || {
        let is_problem = daemon.command(&["status"])?.contains("volume disk is not fenced yet");
        let all = is_problem && says(&daemon.device("disk-disk")?["broken_reason"]) && says(&volume(daemon)?["detail"]);
        Ok(all.then_some(()))
    })
    .map_err(|error| Failure::new(format!("{error}: {:?}", daemon.status())))
}

fn file(path: &Path, more: &str) -> String {
    format!("file = {{ path = '{}'{more} }}", path.display())
}

fn run(name: &str, scenario: impl FnOnce(&Lab) -> Result<(), Failure>) {
    if matches!(ServerKind::from_environment(), Ok(ServerKind::Softdpu)) {
        Lab::run(name, scenario);
    } else {
        skip(name, "it is about softdpu alone");
    }
}

/// To and fro, the source's front end connected all the time.
fn to_and_fro(lab: &Lab, backend: &str, settings: Settings) -> Result<(), Failure> {
    let [a, b] = daemons(lab, backend)?;
    let (mut at_a, mut at_b) = (incoming(&a, settings)?, incoming(&b, settings)?);
    at_a.start_queue()?;
    write_all(&mut at_a, 1)?;
    assert_eq!((volume(&a)?["state"].as_str(), volume(&b)?["state"].as_str()), (Some("active"), Some("opened")));
    let (mut source, mut target) = (&mut at_a, &mut at_b);
    for version in 1..=6 {
        target.start_queue()?;
        ask(target, 7)?;
        stop(source)?;
        answer(target, &pattern(7, version))?;
        read_all(target, version)?;
        write_all(target, version + 1)?;
        std::mem::swap(&mut source, &mut target);
    }
    drop((at_a, at_b));
    a.stop()?;
    b.stop()
}

#[test]
fn a_volume_in_a_file_goes_to_another_host_when_its_last_queue_has_stopped_and_comes_back() {
    for (name, more, settings) in [
        ("hand-over", "", Settings::SPLIT),
        ("hand-over-direct", ", direct = true", Settings { inflight: true, ..Settings::PACKED }),
    ] {
        run(name, |lab| to_and_fro(lab, &file(&lab.image("disk.img", 4 * MIB)?, more), settings));
    }
}

#[test]
fn a_front_end_that_comes_early_waits_and_status_says_for_what_and_a_move_that_is_cancelled_leaves_all_as_it_was() {
    run("hand-over-early", |lab| {
        let [mut a, b] = daemons(lab, &file(&lab.image("disk.img", 4 * MIB)?, ""))?;
        let (mut at_a, mut at_b) = (incoming(&a, Settings::SPLIT)?, incoming(&b, Settings::SPLIT)?);
        at_a.start_queue()?;
        write_all(&mut at_a, 1)?;

        // Cancelled: the source's queue goes on, and has the fence.
        stop(&mut at_a)?;
        wait_for_state(&a, "opened")?;
        at_a.start_queue()?;
        read_all(&mut at_a, 1)?;
        assert_eq!(volume(&a)?["state"], "active");

        at_b.start_queue()?;
        ask(&mut at_b, 3)?;
        says_that_it_waits(&b)?;
        write_all(&mut at_a, 2)?;
        assert!(at_b.driver.take().is_none(), "a request was done on a volume that another host has");

        // It is larger when the other host gets it, which has opened it as it was.
        a.grow("disk", "8 MiB")?;
        at_a.write_block(8 * MIB / 4096 - 1, &pattern(99, 2))?;
        stop(&mut at_a)?;
        answer(&mut at_b, &pattern(3, 2))?;
        assert!(at_b.read_block(8 * MIB / 4096 - 1)? == pattern(99, 2), "the volume has not grown with its file");
        assert_eq!(volume(&b)?["size"], 8 * MIB);
        assert!(!b.command(&["status"])?.contains("not fenced"), "what is over is no problem any more");

        // A data plane that is started again beside a stopped front end does not take it back.
        a.kill_data_plane()?;
        write_all(&mut at_b, 3)?;
        assert_eq!(volume(&a)?["state"], "opened");
        stop(&mut at_b)?;
        at_a.start_queue()?;
        read_all(&mut at_a, 3)?;
        drop((at_a, at_b));
        a.stop()?;
        b.stop()
    });
}

#[test]
fn a_volume_at_an_nbd_server_that_serves_one_client_goes_to_another_host() {
    let name = "hand-over-nbd";
    let found = std::process::Command::new("nbdkit").arg("--version").output();
    if !found.is_ok_and(|output| output.status.success()) {
        return skip(name, "nbdkit is not installed");
    }
    run(name, |lab| {
        let socket = lab.path().join("nbd.sock");
        let path = socket.display().to_string();
        let arguments = ["-f", "-U", &path, "--filter=limit", "memory", "4M", "limit=1"];
        let _nbdkit = Process::start("nbdkit", lab.path(), Path::new("nbdkit"), arguments)?;
        wait_until("nbdkit's socket", PATIENCE, || Ok(socket.exists().then_some(())))?;
        let backend = format!("nbd = {{ uri = 'nbd+unix:///?socket={path}' }}");
        let [a, b] = daemons(lab, &backend)?;
        wait_for_state(&a, "opened")?;
        let mut at_a = incoming(&a, Settings::SPLIT)?;
        at_a.start_queue()?;
        write_all(&mut at_a, 1)?;
        stop(&mut at_a)?;
        // Its server refused the second client as long as the first was there.
        wait_for_state(&b, "opened")?;
        let mut at_b = incoming(&b, Settings::SPLIT)?;
        at_b.start_queue()?;
        read_all(&mut at_b, 1)?;
        write_all(&mut at_b, 2)?;
        stop(&mut at_b)?;
        at_a.start_queue()?;
        read_all(&mut at_a, 2)?;
        drop((at_a, at_b));
        a.stop()?;
        b.stop()
    });
}

#[test]
fn a_queue_that_stops_and_starts_at_once_keeps_its_volume() {
    run("hand-over-restart", |lab| {
        let [a, b] = daemons(lab, &file(&lab.image("disk.img", 4 * MIB)?, ""))?;
        let mut at_a = incoming(&a, Settings::SPLIT)?;
        at_a.start_queue()?;
        write_all(&mut at_a, 1)?;
        for version in 1..50 {
            at_a.restart_queue()?;
            read_all(&mut at_a, version)?;
            write_all(&mut at_a, version + 1)?;
        }
        // Whatever came in between, it has the fence now.
        assert_eq!(volume(&a)?["state"], "active");
        let mut at_b = incoming(&b, Settings::SPLIT)?;
        at_b.start_queue()?;
        ask(&mut at_b, 0)?;
        says_that_it_waits(&b)?;
        assert!(at_b.driver.take().is_none());
        // A front end that goes away leaves it too.
        drop(at_a);
        answer(&mut at_b, &pattern(0, 50))?;
        drop(at_b);
        a.stop()?;
        b.stop()
    });
}
