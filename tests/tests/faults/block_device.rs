//! A volume on a block device of the host: a loop device.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::SeqCst;

use softdpu_frontend::{BlockOptions, BlockRequest};
use softdpu_tests::{Context, Daemon, Failure, Lab, wait_until};

use crate::common::*;
use crate::load::Load;
use crate::loops::{Loop, NO_LOOP};

const KILLS: u64 = 3;
const HOLE: u32 = 1 << 20;

#[test]
fn a_block_device_is_read_written_discarded_grown_and_outlives_killed_data_planes() {
    const TEST: &str = "a volume on a block device";
    run("device", &[], |lab| {
        let image = lab.image("image", 16 * MIB)?;
        let Some(device) = or_skip(TEST, NO_LOOP, Loop::new(&image)) else { return Ok(()) };
        scenario(lab, &image, &device)
    });
}

fn scenario(lab: &Lab, image: &Path, device: &Loop) -> Result<(), Failure> {
    let backend = format!("device = {{ path = \"{}\" }}", device.path().display());
    let mut daemon = Daemon::start(lab.path(), &(node(&[0]) + &disk("data", &backend, 2)))?;
    assert_eq!(volume(&daemon, "data")?["kind"], "device");
    let options = BlockOptions { queues: 2, inflight: true, ..BlockOptions::default() };
    let mut front_end = connect(&daemon, "data", &options)?;
    assert_eq!(front_end.capacity() * 512, 16 * MIB);

    // What is flushed is on the device, and through it in the file. Flushed by us as well: the loop driver has a cache
    // of its own.
    let at = 8 * MIB / 512;
    (0..u64::from(HOLE) / 0x1_0000).try_for_each(|part| write(&mut front_end, at + part * 128, &[0x5a; 0x1_0000]))?;
    assert_eq!(ask(&mut front_end, BlockRequest::Flush)?.1, OK);
    assert!(read(&mut front_end, at, 4096)? == [0x5a; 4096]);
    let content = std::fs::read(image).context("reading the image")?;
    let hole = (8 * MIB) as usize..(8 * MIB) as usize + HOLE as usize;
    assert!(content[hole].iter().all(|byte| *byte == 0x5a), "what was flushed is not in the file");

    let blocks = || Ok::<_, Failure>(std::fs::metadata(image).context("looking at the image")?.blocks());
    let before = blocks()?;
    let discard = BlockRequest::Discard { sector: at, sectors: HOLE / 512 };
    assert_eq!(ask(&mut front_end, discard)?.1, OK);
    assert_eq!(ask(&mut front_end, BlockRequest::Flush)?.1, OK);
    assert!(read(&mut front_end, at, 4096)? == [0; 4096], "what was discarded is still there");
    wait_until("the discarded range to be a hole in the file", WAIT, || Ok((blocks()? < before).then_some(())))?;

    let mut load = Load::new(&front_end, 256, 16);
    load.run(&mut front_end, |completed| {
        (0..KILLS).try_for_each(|_| {
            let goal = completed.load(SeqCst) + 100;
            wait_until("100 requests", WAIT, || Ok((completed.load(SeqCst) >= goal).then_some(())))?;
            daemon.kill_data_plane().map(|_| ())
        })
    })?;

    let grown = std::fs::OpenOptions::new().write(true).open(image).context("opening the image")?;
    grown.set_len(24 * MIB).context("growing the image")?;
    device.resize()?;
    daemon.grow("data", "24 MiB")?;
    front_end.read_config().context("reading the configuration space")?;
    assert_eq!(front_end.capacity() * 512, 24 * MIB);
    let beyond = 20 * MIB / 512;
    write(&mut front_end, beyond, &[7; 4096])?;
    daemon.kill_data_plane()?;
    assert!(read(&mut front_end, beyond, 4096)? == [7; 4096]);
    drop(front_end);
    daemon.stop()
}
