//! A file whose file system is held up (`fsfreeze`): what writes to it hangs in the kernel, where nothing takes it
//! back.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use softdpu_frontend::{BlockFrontEnd, BlockOptions, BlockRequest, Tag};
use softdpu_ring::Format;
use softdpu_tests::{Context, Daemon, Failure, Lab, wait_until};
use softdpu_transport::vhost_user::{Message, ProtocolFeatures};

use crate::common::*;
use crate::loops::{Ext4, NO_EXT4};

/// What the driver writes when the file system hangs, what it writes later, and what it does with memory that is its
/// own again.
const OLD: u8 = 0xaa;
const NEW: u8 = 0xbb;
const POISON: u8 = 0xee;

const LEN: u32 = 4096;
const SECTORS: u64 = LEN as u64 / 512;
/// More writes than the kernel has workers for on a small machine.
const WRITES: u64 = 48;

/// A file system that can be held up, and where the volume's file is on it.
struct Scene {
    ext4: Ext4,
    _other: Ext4,
    file: PathBuf,
    site: String,
}

/// Makes a file system with a volume's file on it.
fn file_system(lab: &Lab, name: &str) -> Result<(Ext4, PathBuf), Failure> {
    let folder = lab.path().join(name);
    let ext4 = Ext4::mount(&lab.image(&format!("{name}.img"), 32 * MIB)?, &folder)?;
    let file = folder.join("disk");
    std::fs::write(&file, vec![0; 4 * MIB as usize]).context("writing a volume's file")?;
    Ok((ext4, file))
}

/// Runs a scenario with three volumes at one core: `held` on a file system of its own, `local` on another, and
/// `memory`.
///
/// `local` goes around the page cache. To a file that is written through it the kernel gives one of 64 places, by the
/// file's address, and makes one file wait for the other where both have the same place.
fn held_up(name: &str, direct: bool, scenario: impl FnOnce(&Lab, &Scene) -> Result<(), Failure>) {
    run(name, &[], |lab| {
        let both = file_system(lab, "small").and_then(|held| Ok((held, file_system(lab, "other")?)));
        let Some(((ext4, file), (other, elsewhere))) = or_skip(name, NO_EXT4, both) else { return Ok(()) };
        let backend = |path: &Path, direct| format!("file = {{ path = \"{}\", direct = {direct} }}", path.display());
        let site = node(&[0])
            + &disk("held", &backend(&file, direct), 1)
            + &disk("local", &backend(&elsewhere, true), 1)
            + &disk("memory", MEMORY, 1);
        scenario(lab, &Scene { ext4, _other: other, file, site })
    });
}

/// Submits [`WRITES`] writes of `OLD` to the first blocks, and waits until all are in flight.
fn hang(daemon: &Daemon, held: &mut BlockFrontEnd) -> Result<Vec<Tag>, Failure> {
    let queue = held.queue_mut(0);
    let write = |block| queue.submit(BlockRequest::Write { sector: block * SECTORS, data: &[OLD; LEN as usize] });
    let tags = (0..WRITES).map(write).collect::<Result<_, _>>().context("adding writes")?;
    queue.publish();
    in_flight(daemon, WRITES)?;
    Ok(tags)
}

fn in_flight(daemon: &Daemon, requests: u64) -> Result<(), Failure> {
    wait_until(&format!("status to show {requests} requests in flight"), WAIT, || {
        Ok((daemon.device("held-disk")?["queues"][0]["inflight"] == requests).then_some(()))
    })
    .map_err(|error| Failure::new(format!("{error}; {:?}", daemon.device("held-disk"))))
}

fn abandoned(daemon: &Daemon) -> Result<u64, Failure> {
    Ok(volume(daemon, "held")?["counters"]["abandoned"].as_u64().unwrap_or(u64::MAX))
}

/// Waits for `requests` completions without an error.
fn finish(held: &mut BlockFrontEnd, requests: u64) -> Result<(), Failure> {
    (0..requests).try_for_each(|_| {
        let done = held.queue_mut(0).wait(WAIT).context("waiting for a write that was held up")?;
        assert_eq!(done.status, OK);
        Ok(())
    })
}

/// Asserts that all blocks that were written are full of `byte`.
fn holds(held: &mut BlockFrontEnd, byte: u8) -> Result<(), Failure> {
    (0..WRITES).try_for_each(|block| {
        let content = read(held, block * SECTORS, LEN)?;
        assert!(content == [byte; LEN as usize], "block {block} holds {:#x}, not {byte:#x}", content[0]);
        Ok(())
    })
}

#[test]
fn a_hung_file_system_holds_up_neither_the_stop_of_a_ring_nor_other_devices_and_nothing_late_reaches_the_guest() {
    for (name, direct, options) in [
        ("frozen", false, BlockOptions { inflight: true, ..BlockOptions::default() }),
        ("frozen-direct", true, BlockOptions { inflight: true, ..BlockOptions::default() }),
        ("frozen-packed", true, BlockOptions { format: Format::Packed, ..BlockOptions::default() }),
    ] {
        held_up(name, direct, |lab, scene| stopped(lab, scene, &options));
    }
}

fn stopped(lab: &Lab, scene: &Scene, options: &BlockOptions) -> Result<(), Failure> {
    let daemon = Daemon::start(lab.path(), &scene.site.replace("virtio-blk = { ", "virtio-blk = { packed = true, "))?;
    let (mut held, mut local) =
        (connect(&daemon, "held", options)?, connect(&daemon, "local", &BlockOptions::default())?);
    let frozen = scene.ext4.freeze()?;
    let tags = hang(&daemon, &mut held)?;
    let beyond = WRITES * SECTORS;
    assert!(read(&mut held, beyond, LEN)? == [0; LEN as usize], "reads go on");

    let position = within_a_stop(&mut local, || held.stop(0).context("stopping the ring"))?;
    assert_eq!(abandoned(&daemon)?, WRITES);
    for tag in &tags {
        let buffer = held.queue_mut(0).data(*tag, LEN).context("a buffer")?;
        buffer.fill(0, LEN.into(), POISON).context("poisoning a buffer")?;
    }
    frozen.thaw();
    // What was held up is under way at once; half a second later it is done.
    std::thread::sleep(Duration::from_millis(500));
    assert!(held.queue_mut(0).poll().is_none(), "a request that was given up completed");
    for tag in &tags {
        assert!(data(&mut held, *tag, LEN)? == [POISON; LEN as usize], "something late reached the guest's buffer");
    }

    // The requests are still recorded as in flight: the ring goes on with them.
    held.start(0, position).context("starting the ring again")?;
    held.queue_mut(0).kick();
    finish(&mut held, WRITES)?;
    holds(&mut held, POISON)?;
    drop((held, local));
    daemon.stop()
}

#[test]
fn what_a_hung_file_system_did_not_write_before_a_reset_lands_before_anything_newer() {
    held_up("frozen-reset", true, |lab, scene| {
        let daemon = Daemon::start(lab.path(), &scene.site)?;
        let mut local = connect(&daemon, "local", &BlockOptions::default())?;
        let protocol = ProtocolFeatures::RESET_DEVICE;
        let mut held = connect(&daemon, "held", &BlockOptions { protocol, timeout: WAIT, ..BlockOptions::default() })?;
        let frozen = scene.ext4.freeze()?;
        hang(&daemon, &mut held)?;
        within_a_stop(&mut local, || held.connection().call(&Message::ResetDevice, &[]).context("resetting"))?;
        assert_eq!(abandoned(&daemon)?, WRITES);
        drop(held);

        // Another driver, on a device that was removed and added again.
        left_alone(&daemon, "held")?;
        let socket = daemon.device_socket("held");
        let start = Instant::now();
        daemon.command(&["device", "remove", "held-disk"])?;
        daemon.command(&["device", "add", "held-disk", "--volume", "held", "--device-socket", text(&socket)?])?;
        let took = start.elapsed();
        assert!(took < STOP, "removing the device and adding it took {took:?}");
        let mut held = connect(&daemon, "held", &BlockOptions::default())?;
        let queue = held.queue_mut(0);
        for block in 0..WRITES {
            let write = BlockRequest::Write { sector: block * SECTORS, data: &[NEW; LEN as usize] };
            queue.submit(write).context("adding a write")?;
        }
        queue.publish();
        in_flight(&daemon, WRITES)?;
        frozen.thaw();
        finish(&mut held, WRITES)?;
        holds(&mut held, NEW)?;
        std::thread::sleep(Duration::from_millis(500));
        holds(&mut held, NEW)?;
        drop((held, local));
        daemon.stop()
    });
}

#[test]
fn a_volume_that_is_made_anew_waits_for_what_is_still_to_be_written_to_its_file() {
    held_up("frozen-anew", false, |lab, scene| {
        let daemon = Daemon::start(lab.path(), &node(&[0]))?;
        let (file, socket) = (text(&scene.file)?, daemon.device_socket("held"));
        let add = || {
            daemon.command(&["volume", "create", "held", "--file", file, "--size", "4 MiB"])?;
            daemon.command(&["device", "add", "held-disk", "--volume", "held", "--device-socket", text(&socket)?])
        };
        add()?;
        let mut held = connect(&daemon, "held", &BlockOptions::default())?;
        let frozen = scene.ext4.freeze()?;
        hang(&daemon, &mut held)?;
        drop(held);
        left_alone(&daemon, "held")?;
        let start = Instant::now();
        daemon.command(&["device", "remove", "held-disk"])?;
        daemon.command(&["volume", "delete", "held"])?;
        add()?;
        let took = start.elapsed();
        assert!(took < STOP, "removing all and adding it took {took:?}");

        let mut held = connect(&daemon, "held", &BlockOptions::default())?;
        held.queue_mut(0)
            .submit(BlockRequest::Write { sector: 0, data: &[NEW; LEN as usize] })
            .context("adding a write")?;
        held.queue_mut(0).publish();
        waits_for_its_fence(&daemon)?;
        frozen.thaw();
        finish(&mut held, 1)?;
        assert!(read(&mut held, 0, LEN)? == [NEW; LEN as usize], "an old write landed after a newer one");
        drop(held);
        daemon.stop()
    });
}

/// Waits until `status` says of volume and device what they wait for.
fn waits_for_its_fence(daemon: &Daemon) -> Result<(), Failure> {
    wait_until("status to show that the volume waits for its fence", WAIT, || {
        let volume = volume(daemon, "held")?;
        let says = |value: &serde_json::Value| value.as_str().is_some_and(|text| text.contains("locked"));
        let waits = volume["state"] == "opened" && says(&volume["detail"]);
        let device = daemon.device("held-disk")?;
        Ok((waits && device["state"] == "opening" && says(&device["broken_reason"])).then_some(()))
    })
    .map_err(|error| Failure::new(format!("{error}; {:?}, {:?}", volume(daemon, "held"), daemon.device("held-disk"))))
}

#[test]
fn a_data_plane_that_is_killed_over_a_hung_file_system_is_replaced_and_its_writes_land_before_their_replay() {
    for direct in [false, true] {
        held_up("frozen-kill", direct, |lab, scene| {
            let mut daemon = Daemon::start(lab.path(), &scene.site)?;
            let mut held = connect(&daemon, "held", &BlockOptions { inflight: true, ..BlockOptions::default() })?;
            let mut local = connect(&daemon, "memory", &BlockOptions { inflight: true, ..BlockOptions::default() })?;
            let frozen = scene.ext4.freeze()?;
            let tags = hang(&daemon, &mut held)?;
            let took = daemon.kill_data_plane()?;
            println!("frozen-kill: the next data plane was ready after {took:?}");
            write(&mut local, 0, &[NEW; LEN as usize])?;
            assert!(read(&mut local, 0, LEN)? == [NEW; LEN as usize], "other devices go on");
            waits_for_its_fence(&daemon)?;
            assert!(held.queue_mut(0).poll().is_none(), "a write completed that was not done");
            // What the driver has in its buffers when the writes are done again.
            for tag in tags {
                let buffer = held.queue_mut(0).data(tag, LEN).context("a buffer")?;
                buffer.fill(0, LEN.into(), NEW).context("filling a buffer")?;
            }
            frozen.thaw();
            finish(&mut held, WRITES)?;
            holds(&mut held, NEW)?;
            assert_eq!(volume(&daemon, "held")?["state"], "active");
            drop((held, local));
            daemon.stop()
        });
    }
}
