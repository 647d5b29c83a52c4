//! A device that is reset while its requests are on a slow disk.

use std::path::Path;
use std::time::{Duration, Instant};

use softdpu_frontend::{BlockOptions, BlockRequest, Tag};
use softdpu_tests::{Context, Daemon, Failure, Lab, SlowDisk, skip, wait_until};
use softdpu_transport::vhost_user::{Message, ProtocolFeatures};

use crate::common::*;

/// What the disk has, what is written when the reset comes, what is written after it, and what the driver does with
/// memory that is its own again.
const SERVED: u8 = 0x5a;
const OLD: u8 = 0xaa;
const NEW: u8 = 0xbb;
const POISON: u8 = 0xee;

const LEN: u32 = 128 << 10;
const READ_AT: u64 = 0;
const WRITE_AT: u64 = 2048;
/// A request takes a quarter of a second: much less than a stop's patience of two.
const SLOW: u64 = 4 * LEN as u64;
/// A request takes sixteen: longer than anything waits.
const HANGING: u64 = LEN as u64 / 16;

struct Reset {
    took: Duration,
    /// Requests that were given up for it.
    abandoned: u64,
    /// The read's buffer as it was when the reset was answered.
    read: Vec<u8>,
    /// The same, poisoned then, when the disk had done all it had.
    later: Vec<u8>,
}

/// Resets the device with a read and a write under way; then lifts the limit.
fn reset(daemon: &Daemon, slow: &SlowDisk, rate: u64, message: &Message) -> Result<Reset, Failure> {
    let protocol = ProtocolFeatures::RESET_DEVICE.with(ProtocolFeatures::STATUS);
    let options = BlockOptions { max_transfer: LEN, protocol, timeout: WAIT, ..BlockOptions::default() };
    let mut front_end = connect(daemon, "slow", &options)?;
    let before = abandoned(daemon)?;
    // So slow that they are seen in flight, however late that is; then as slow as they are to be.
    slow.limit(Some(HANGING)).context("slowing the disk")?;
    let queue = front_end.queue_mut(0);
    let tag: Tag = queue.submit(BlockRequest::Read { sector: READ_AT, len: LEN }).context("adding a read")?;
    queue.submit(BlockRequest::Write { sector: WRITE_AT, data: &[OLD; LEN as usize] }).context("adding a write")?;
    queue.publish();
    in_flight(daemon, 2)?;
    if rate != HANGING {
        slow.limit(Some(rate)).context("slowing the disk less")?;
    }
    let start = Instant::now();
    front_end.connection().call(message, &[]).context("resetting")?;
    let took = start.elapsed();
    let read = data(&mut front_end, tag, LEN)?;
    let buffer = front_end.queue_mut(0).data(tag, LEN).context("the buffer")?;
    buffer.fill(0, LEN.into(), POISON).context("poisoning the buffer")?;
    let abandoned = abandoned(daemon)? - before;
    slow.limit(None).context("lifting the limit")?;
    std::thread::sleep(Duration::from_millis(500));
    Ok(Reset { took, abandoned, read, later: data(&mut front_end, tag, LEN)? })
}

/// Requests that were given up so far.
fn abandoned(daemon: &Daemon) -> Result<u64, Failure> {
    let volume = volume(daemon, "slow")?;
    volume["counters"]["abandoned"]
        .as_u64()
        .ok_or_else(|| Failure::new(format!("no counter of what was given up: {volume}")))
}

fn device(daemon: &Daemon) -> Result<serde_json::Value, Failure> {
    Ok(entry(&daemon.status()?, "devices", "slow-disk").unwrap_or_default())
}

#[test]
fn a_reset_is_answered_when_the_kernel_is_done_with_the_requests_and_a_hung_disk_holds_it_up_no_longer_than_a_stop() {
    const TEST: &str = "reset on a slow disk";
    if !possible(TEST, &[]) {
        return;
    }
    // Not in the lab's folder, which may be in memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a temporary folder");
    let slow = match SlowDisk::new(folder.path(), SLOW) {
        Ok(slow) => slow,
        Err(error) => return skip(TEST, &error.to_string()),
    };
    Lab::run("reset", |lab| scenario(lab, folder.path(), &slow));
}

fn scenario(lab: &Lab, folder: &Path, slow: &SlowDisk) -> Result<(), Failure> {
    let image = folder.join("image");
    std::fs::write(&image, vec![SERVED; 4 * MIB as usize]).context("writing the image")?;
    // What is still in the page cache would be written, slowly, before it can be read around it.
    std::fs::File::open(&image).and_then(|file| file.sync_all()).context("syncing the image")?;
    let backend = format!("file = {{ path = \"{}\", direct = true }}", image.display());
    let daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("slow", &backend, 1)))?;
    std::fs::write(slow.members(), daemon.data_plane()?.0.to_string()).context("slowing the data plane")?;
    slow.limit(None).context("lifting the limit")?;

    for message in [Message::ResetDevice, Message::SetStatus(0)] {
        let reset = reset(&daemon, slow, SLOW, &message)?;
        assert_eq!(reset.abandoned, 0, "{message:?} gave requests up within {:?}", reset.took);
        assert!(reset.read == [SERVED; LEN as usize], "{message:?} was answered before the read had ended");
        assert!(reset.later == [POISON; LEN as usize], "the read ended after the answer to {message:?}");
        // The driver that comes next writes to the same blocks.
        let mut next = connect(&daemon, "slow", &BlockOptions { max_transfer: LEN, ..BlockOptions::default() })?;
        assert!(read(&mut next, WRITE_AT, LEN)? == [OLD; LEN as usize], "the write had not ended");
        write(&mut next, WRITE_AT, &[NEW; LEN as usize])?;
        assert!(read(&mut next, WRITE_AT, LEN)? == [NEW; LEN as usize]);
    }

    let hung = reset(&daemon, slow, HANGING, &Message::ResetDevice)?;
    assert!(hung.took < STOP, "the reset took {:?}", hung.took);
    assert_eq!(hung.abandoned, 2, "what the disk had not done in time is given up");
    let mut next = connect(&daemon, "slow", &BlockOptions { max_transfer: LEN, ..BlockOptions::default() })?;
    write(&mut next, WRITE_AT, &[NEW; LEN as usize])?;
    assert!(read(&mut next, WRITE_AT, LEN)? == [NEW; LEN as usize]);
    drop(next);
    overtaking(&daemon, slow)?;
    daemon.stop()
}

/// A write that was given up is held up by the kernel; what is written after it is not.
fn overtaking(daemon: &Daemon, slow: &SlowDisk) -> Result<(), Failure> {
    let protocol = ProtocolFeatures::RESET_DEVICE;
    let options = BlockOptions { max_transfer: LEN, protocol, timeout: WAIT, ..BlockOptions::default() };
    let mut front_end = connect(daemon, "slow", &options)?;
    slow.limit(Some(HANGING)).context("slowing the disk")?;
    let old = BlockRequest::Write { sector: WRITE_AT, data: &[OLD; LEN as usize] };
    front_end.queue_mut(0).submit(old).context("adding a write")?;
    front_end.queue_mut(0).publish();
    in_flight(daemon, 1)?;
    front_end.connection().call(&Message::ResetDevice, &[]).context("resetting")?;
    drop(front_end);
    // The disk is slow for what has been begun, and as fast as ever for what is begun from now on.
    slow.release(daemon.data_plane()?.0).context("taking the data plane out of the cgroup")?;

    let mut next = connect(daemon, "slow", &BlockOptions { max_transfer: LEN, ..BlockOptions::default() })?;
    write(&mut next, WRITE_AT + 1024, &[NEW; 4096])?;
    let queue = next.queue_mut(0);
    let new = BlockRequest::Write { sector: WRITE_AT, data: &[NEW; LEN as usize] };
    queue.submit(new).context("adding a newer write")?;
    queue.publish();
    in_flight(daemon, 1)?;
    wait_until("status to say what requests wait for", WAIT, || {
        let volume = volume(daemon, "slow")?;
        Ok(volume["detail"].as_str().is_some_and(|detail| detail.contains("1 write")).then_some(()))
    })
    .map_err(|error| Failure::new(format!("{error}: {:?}", volume(daemon, "slow"))))?;
    slow.limit(None).context("lifting the limit")?;
    let done = next.queue_mut(0).wait(WAIT).context("waiting for the newer write")?;
    assert_eq!(done.status, OK);
    std::thread::sleep(Duration::from_millis(500));
    assert!(read(&mut next, WRITE_AT, LEN)? == [NEW; LEN as usize], "an old write landed after a newer one");
    Ok(())
}

fn in_flight(daemon: &Daemon, requests: u64) -> Result<(), Failure> {
    wait_until(&format!("status to show {requests} requests in flight"), WAIT, || {
        Ok((device(daemon)?["queues"][0]["inflight"] == requests).then_some(()))
    })
}
