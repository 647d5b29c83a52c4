//! A process is killed with a write in flight. The write lands long after its death; the fence keeps its successor
//! waiting until then.
//!
//! The disk is made slow by a limit on a cgroup that only the child is in, which needs root, and a disk under the
//! folder of the tests' files.

mod common;

use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Core, MIB};
use softdpu_storage::*;
use softdpu_sys::AlignedBuffer;
use softdpu_sys::uring::{Operation, Ring};
use softdpu_testing::{SlowDisk, skip};

const IMAGE: &str = "SOFTDPU_TEST_FENCE_IMAGE";
const OLD: u8 = 0xaa;
const NEW: u8 = 0xbb;

fn spec(path: &Path) -> VolumeSpec {
    let kind = VolumeKind::File { path: path.into(), size: Some(4 * MIB), create: true, direct: true, discard: true };
    VolumeSpec::new("fenced", kind)
}

/// The process that is killed: not a test of its own.
#[test]
#[ignore = "started by the other test"]
fn writer() {
    let Ok(path) = std::env::var(IMAGE) else { return };
    let mut core = Core::new(spec(Path::new(&path)));
    let request = core.request_at(BlockOp::Write, 0, &[MIB], 0x1000);
    request.buffer.fill(16, MIB, OLD).unwrap();
    assert!(core.submit(request).is_none());
    println!("submitted");
    std::thread::sleep(Duration::from_secs(60));
}

/// Leaves a killed process's write in flight.
fn kill_a_writer(image: &Path, slow: &SlowDisk) {
    let members = slow.members();
    let join = format!("echo $$ > '{}' && exec \"$0\" --ignored --exact writer --nocapture", members.display());
    let mut child = Command::new("sh")
        .args(["-c", &join])
        .arg(std::env::current_exe().unwrap())
        .env(IMAGE, image)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let submitted = output.lines().map_while(Result::ok).any(|line| line.contains("submitted"));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(submitted, "the writer got no write under way");
}

/// What a successor without a fence does: it opens the file and replays.
fn write_without_fence(image: &Path) {
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::DIRECT.bits() as i32)
        .open(image)
        .unwrap();
    let mut ring = Ring::new(1, 1).unwrap();
    let index = ring.add_file(file.as_fd()).unwrap();
    let data = AlignedBuffer::new(MIB as usize);
    softdpu_sys::iovec::fill(&data, 0, MIB as usize, NEW);
    let write = Operation::Write { at: 0, skip: 0, len: MIB as usize, durable: false };
    ring.push(index, write, data, ()).unwrap();
    ring.submit();
    while ring.reap().is_none_or(|done| done.result != Ok(MIB as usize)) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_dead_processes_write_lands_after_its_replay_without_the_fence_and_not_with_it() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let slow = match SlowDisk::new(folder.path(), MIB / 2) {
        Ok(slow) => slow,
        Err(error) => return skip("the fence on a slow disk", &error.to_string()),
    };

    let image = folder.path().join("unfenced.img");
    // Tried again where the machine was busy with something else for as long as the write was under way.
    let hazard = || {
        Core::new(spec(&image)).write(0, &vec![0; MIB as usize]).unwrap();
        kill_a_writer(&image, &slow);
        write_without_fence(&image);
        let content = Core::new(spec(&image)).read(0, MIB as usize).unwrap();
        content.iter().filter(|byte| **byte == OLD).count()
    };
    let old = (0..4).map(|_| hazard()).find(|old| *old > 0).expect("the disk was not slow enough to show the hazard");
    eprintln!("without the fence {old} of {MIB} replayed bytes were overwritten by the dead process");

    let image = folder.path().join("fenced.img");
    Core::new(spec(&image)).write(0, &vec![0; MIB as usize]).unwrap();
    kill_a_writer(&image, &slow);
    let died = Instant::now();
    let volume = Volume::open(spec(&image), &PathBroker::new()).unwrap();
    let Activation::Busy { why } = volume.activate().unwrap() else {
        panic!("the lock did not survive its process while a write was in flight")
    };
    assert!(why.contains("in flight"), "{why}");
    let mut core = Core::with(volume);
    eprintln!("with the fence the successor waited {:?}", died.elapsed());
    core.write(0, &vec![NEW; MIB as usize]).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(core.read(0, MIB as usize).unwrap().iter().all(|byte| *byte == NEW));
}

#[test]
fn a_writer_excludes_others_and_readers_share() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("disk.img");
    let open = |spec| Volume::open(spec, &PathBroker::new()).unwrap();
    let writer = open(spec(&image));
    assert_eq!(writer.activate().unwrap(), Activation::Active);
    assert_eq!(writer.activate().unwrap(), Activation::Active, "asking again is harmless");
    let second = open(spec(&image));
    assert!(matches!(second.activate().unwrap(), Activation::Busy { .. }));
    assert_eq!(second.status().state, VolumeState::Opened);
    assert!(second.status().detail.contains("locked"));
    drop(writer);
    let read_only = || {
        let kind = VolumeKind::File { path: image.clone(), size: None, create: false, direct: true, discard: true };
        open(VolumeSpec { read_only: true, ..VolumeSpec::new("r", kind) })
    };
    let readers = [read_only(), read_only()];
    assert!(readers.iter().all(|reader| reader.activate().unwrap() == Activation::Active));
    assert!(matches!(second.activate().unwrap(), Activation::Busy { .. }));
    drop(readers);
    assert_eq!(second.activate().unwrap(), Activation::Active);
    drop(second);
    let shared = || open(VolumeSpec { shared: true, ..spec(&image) });
    let both = [shared(), shared()];
    assert!(both.iter().all(|one| one.activate().unwrap() == Activation::Active));
}

#[test]
fn a_shared_volume_keeps_out_our_own_dead_process_and_nobody_elses() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("disk.img");
    let shared = || VolumeSpec { shared: true, ..spec(&image) };
    let (ours, others) = (PathBroker::new(), PathBroker::new());
    // What still refers to the description of a process that was killed: its I/O in flight.
    let dead = Volume::open(shared(), &ours).unwrap();
    assert_eq!(dead.activate().unwrap(), Activation::Active);
    let successor = Volume::open(shared(), &ours).unwrap();
    assert!(matches!(successor.activate().unwrap(), Activation::Busy { .. }), "the same daemon's volume");
    let other = Volume::open(shared(), &others).unwrap();
    assert_eq!(other.activate().unwrap(), Activation::Active, "another daemon's or host's");
    let alone = Volume::open(spec(&image), &others).unwrap();
    assert!(matches!(alone.activate().unwrap(), Activation::Busy { .. }), "one that wants it alone");
    drop(dead);
    assert_eq!(successor.activate().unwrap(), Activation::Active);
    drop((successor, other));
    assert_eq!(alone.activate().unwrap(), Activation::Active);
    let late = Volume::open(shared(), &ours).unwrap();
    assert!(matches!(late.activate().unwrap(), Activation::Busy { .. }), "one that has it alone");
}
