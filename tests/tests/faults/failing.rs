//! A disk that fails: its backing is cut off under it, and comes back.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use softdpu_frontend::{BlockOptions, BlockRequest};
use softdpu_tests::{Context, Daemon, Failure, Lab};

use crate::common::*;
use crate::loops::{Ext4, Loop, NO_EXT4, NO_LOOP};

const LEN: u32 = 4096;
/// Sectors: what the cut leaves, and what it takes.
const KEPT: u64 = 0;
const LOST: u64 = 3 * MIB / 512;

/// Takes away everything of a file beyond `left` while `act` runs; then it is as before.
fn cut<T>(image: &Path, left: u64, act: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    let whole = std::fs::read(image).context("reading the backing")?;
    let file = OpenOptions::new().write(true).open(image).context("opening the backing")?;
    file.set_len(left).context("cutting the backing off")?;
    let acted = act();
    file.write_all_at(&whole[left as usize..], left).context("restoring the backing")?;
    acted
}

/// A volume whose disk fails beyond `left` bytes of `image`: reads there fail, and nothing else does.
fn scenario(lab: &Lab, backend: &str, image: &Path, left: u64, kept: bool) -> Result<(), Failure> {
    let site = node(&[0]) + &disk("data", backend, 1) + &disk("local", MEMORY, 1);
    let daemon = Daemon::start(lab.path(), &site)?;
    let mut front_end = connect(&daemon, "data", &BlockOptions::default())?;
    let mut local = connect(&daemon, "local", &BlockOptions::default())?;
    write(&mut front_end, KEPT, &[1; LEN as usize])?;
    assert_eq!(ask(&mut front_end, BlockRequest::Flush)?.1, OK);
    let pid = daemon.data_plane()?;

    cut(image, left, || {
        let (statuses, beside) = beside(&mut local, || {
            let ask = |_| Ok(ask(&mut front_end, BlockRequest::Read { sector: LOST, len: LEN })?.1);
            let statuses: Result<Vec<u8>, Failure> = (0..3).map(ask).collect();
            std::thread::sleep(std::time::Duration::from_millis(500));
            statuses
        });
        assert_eq!(statuses?, [IOERR; 3]);
        beside?.are_undisturbed();
        let failing = counted(&daemon, "data", 3)?;
        assert_eq!((&failing["counters"]["device"], &failing["errors"]), (&3.into(), &3.into()), "{failing}");
        assert_eq!(failing["state"], "active", "{failing}");
        assert!(
            failing["error"].as_str().is_some_and(|error| !error.is_empty()),
            "status has no words for it: {failing}"
        );
        let device = daemon.device("data-disk")?;
        assert_eq!((&device["queues"][0]["errors"], &device["state"]), (&3.into(), &"running".into()), "{device}");
        if kept {
            assert!(read(&mut front_end, KEPT, LEN)? == [1; LEN as usize], "what is still there can be read");
        }
        Ok(())
    })?;

    assert!(read(&mut front_end, LOST, LEN)? == [0; LEN as usize], "the disk works again");
    write(&mut front_end, LOST, &[2; LEN as usize])?;
    assert!(read(&mut front_end, LOST, LEN)? == [2; LEN as usize]);
    assert!(read(&mut front_end, KEPT, LEN)? == [1; LEN as usize]);
    assert_eq!(volume(&daemon, "data")?["errors"], 3);
    assert_eq!(daemon.data_plane()?, pid, "a disk's errors ended the data plane");
    drop((front_end, local));
    daemon.stop()
}

#[test]
fn reads_of_a_block_device_whose_disk_is_cut_off_fail_until_it_is_whole_again() {
    const TEST: &str = "a block device with I/O errors";
    for direct in [false, true] {
        run("failing-device", &[], |lab| {
            let image = lab.image("image", 4 * MIB)?;
            let Some(device) = or_skip(TEST, NO_LOOP, Loop::new(&image)) else { return Ok(()) };
            let backend = format!("device = {{ path = \"{}\", direct = {direct} }}", device.path().display());
            scenario(lab, &backend, &image, MIB, true)
        });
    }
}

#[test]
fn reads_of_a_file_whose_file_systems_disk_is_cut_off_fail_until_it_is_whole_again() {
    const TEST: &str = "a file on a disk with I/O errors";
    run("failing-file", &[], |lab| {
        let (image, folder) = (lab.image("image", 16 * MIB)?, lab.path().join("small"));
        let Some(mounted) = or_skip(TEST, NO_EXT4, Ext4::mount(&image, &folder)) else { return Ok(()) };
        let file = folder.join("disk");
        std::fs::write(&file, vec![0; 4 * MIB as usize]).context("writing the volume's file")?;
        std::fs::File::open(&file).and_then(|file| file.sync_all()).context("syncing the volume's file")?;
        // Around the page cache, which has all of it. What the file system itself has to know it has read by now.
        let backend = format!("file = {{ path = \"{}\", direct = true }}", file.display());
        let done = scenario(lab, &backend, &image, 0, false);
        drop(mounted);
        done
    });
}
