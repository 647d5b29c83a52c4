//! Files: what is written is read, holes are holes, errors are errors.

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::{Core, MIB};
use softdpu_storage::*;

fn spec(path: &Path, direct: bool) -> VolumeSpec {
    let kind = VolumeKind::File { path: path.into(), size: Some(4 * MIB), create: true, direct, discard: true };
    VolumeSpec::new("f", kind)
}

/// On the disk that holds the build: /tmp may be a tmpfs without direct I/O.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

fn image(folder: &tempfile::TempDir) -> PathBuf {
    folder.path().join("disk.img")
}

#[test]
fn a_created_file_is_sparse_private_and_as_large_as_asked() {
    let folder = folder();
    let core = Core::new(spec(&image(&folder), false));
    let stat = std::fs::metadata(image(&folder)).unwrap();
    assert_eq!((stat.len(), stat.blocks(), stat.mode() & 0o077), (4 * MIB, 0, 0));
    assert_eq!(core.volume.size(), 4 * MIB);
}

#[test]
fn requests_of_all_shapes_buffered_and_direct() {
    for direct in [false, true] {
        let folder = folder();
        let mut core = Core::new(spec(&image(&folder), direct));
        let block = u64::from(core.volume.block_size());
        // Aligned; misaligned memory; many pieces; pieces of odd lengths; longer than a bounce buffer.
        let shapes: &[(&[u64], u64)] = &[
            (&[4096], 0x1000),
            (&[4096], 0x1234),
            (&[4096, 8192, 4096], 0x1000),
            (&[100, block - 100, 3 * block], 0x1001),
            (&[2 * MIB + 4096], 0x1002),
        ];
        for (round, (pieces, base)) in shapes.iter().enumerate() {
            let len: u64 = pieces.iter().sum();
            let data: Vec<u8> = (0..len).map(|i| (i * 13 + i / 4096 + round as u64) as u8).collect();
            let write = core.request_at(BlockOp::Write, block, pieces, *base);
            write.buffer.write_at(16, &data).unwrap();
            assert_eq!(core.run(write).result, Ok(()), "direct {direct}, {pieces:?}");
            let read = core.request_at(BlockOp::Read, block, pieces, *base);
            read.buffer.fill(16, len, 0).unwrap();
            let done = core.run(read);
            assert_eq!(done.result, Ok(()));
            let mut back = vec![0; data.len()];
            done.buffer.read_at(16, &mut back).unwrap();
            assert!(back == data, "direct {direct}, {pieces:?}");
        }
        assert_eq!(core.context.outstanding(), 0);
    }
}

#[test]
fn reads_of_cached_pages_are_answered_at_once_and_others_when_the_disk_has() {
    // Beside what was built, which is on a disk: /tmp is memory on some machines, and nothing is thrown out of that.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = image(&folder);
    let mut core = Core::new(spec(&path, false));
    let data: Vec<u8> = (0..MIB).map(|i| (i * 11 + i / 4096) as u8).collect();
    core.write(0, &data).unwrap();
    let expected = |at: u64| &data[at as usize..][..8192];
    let read = |core: &mut Core, at: u64| {
        let request = core.request_at(BlockOp::Read, at, &[1000, 7192], 0x1234);
        request.buffer.fill(16, 8192, 0).unwrap();
        core.submit(request)
    };
    let check = |done: Done, at: u64| {
        assert_eq!(done.result, Ok(()));
        let mut back = vec![0; 8192];
        done.buffer.read_at(16, &mut back).unwrap();
        assert!(back == expected(at), "at {at}");
    };
    match read(&mut core, 4096) {
        Some(done) => check(done, 4096),
        None => {
            let reason = "the file system here cannot say what is in the page cache (RWF_NOWAIT)";
            return softdpu_testing::skip("reads of cached pages", reason);
        }
    }
    // Pages that were written to the disk and thrown out of the cache, which the kernel does where nothing holds them
    // just then: it is asked again until it has.
    let file = std::fs::File::open(&path).unwrap();
    let throw_out = || {
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    };
    let places = || (0..MIB - 8192).step_by(128 << 10);
    let started = Instant::now();
    let mut later = 0;
    while later == 0 {
        throw_out();
        for at in places() {
            match read(&mut core, at) {
                Some(done) => check(done, at),
                None => {
                    later += 1;
                    check(core.wait(Duration::from_secs(20)).expect("an answer from the disk within 20 s"), at);
                }
            }
        }
        if started.elapsed() > Duration::from_secs(20) {
            break;
        }
    }
    if later == 0 {
        throw_out();
        let in_cache = |at: u64| {
            let mut bytes = [0; 8192];
            let into = &mut [std::io::IoSliceMut::new(&mut bytes)];
            rustix::io::preadv2(&file, into, at, rustix::io::ReadWriteFlags::NOWAIT).is_ok_and(|n| n == 8192)
        };
        assert!(places().all(in_cache), "nothing had to be read from the disk, though pages are not in memory");
        let reason = "the file system of the build folder keeps its pages in memory (POSIX_FADV_DONTNEED)";
        return softdpu_testing::skip("reads of pages that are not cached", reason);
    }
    // Those read now are in the cache again, which is noticed after a while.
    let mut at_once = 0;
    for _ in 0..64 {
        match read(&mut core, 0) {
            Some(_) => at_once += 1,
            None => drop(core.wait(Duration::from_secs(20)).expect("an answer within 20 s")),
        }
    }
    assert!(at_once >= 32, "the cache was looked at for {at_once} of 64 reads");
}

#[test]
fn a_large_request_goes_a_mebibyte_at_a_time() {
    for direct in [false, true] {
        let folder = folder();
        let mut core = Core::new(spec(&image(&folder), direct));
        let len = 3 * MIB + 4096;
        let data: Vec<u8> = (0..len).map(|i| (i * 7 + i / 4096 + i / MIB) as u8).collect();
        for op in [BlockOp::Write, BlockOp::Read] {
            // Two pieces, none of which ends where an operation does.
            let request = core.request_at(op, 4096, &[MIB + MIB / 2, len - MIB - MIB / 2], 0x1000);
            let fill = if op == BlockOp::Write { &data[..] } else { &vec![0; data.len()] };
            request.buffer.write_at(16, fill).unwrap();
            assert!(core.submit(request).is_none());
            let (mut done, mut looks) = (Vec::new(), 0);
            let deadline = Instant::now() + Duration::from_secs(60);
            while done.is_empty() {
                assert!(Instant::now() < deadline);
                // What a look goes on with is not with the same look, or one request could keep a core.
                std::thread::sleep(Duration::from_millis(5));
                core.context.poll(&mut done);
                looks += 1;
            }
            assert!(looks >= 4, "{op:?}, direct {direct}: {len} bytes after {looks} looks");
            assert_eq!(done[0].result, Ok(()));
            let mut back = vec![0; data.len()];
            done[0].buffer.read_at(16, &mut back).unwrap();
            assert!(back == data, "{op:?}, direct {direct}");
        }
    }
}

#[test]
fn what_was_in_flight_on_a_detached_volume_does_not_keep_its_file_locked() {
    let folder = folder();
    let mut core = Core::new(spec(&image(&folder), false));
    let request = core.request(BlockOp::Write, 0, 4096);
    assert!(core.submit(request).is_none());
    core.context.detach(core.to);
    assert_eq!(core.context.outstanding(), 0);
    // Nothing is outstanding, so its core does not poll any more; it ticks.
    let Core { mut context, volume, .. } = core;
    drop(volume);
    let next = Volume::open(spec(&image(&folder), false), &PathBroker::new()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while next.activate().unwrap() != Activation::Active {
        assert!(Instant::now() < deadline, "still locked");
        context.tick(Instant::now());
    }
}

#[test]
fn discards_punch_holes_and_zeroed_ranges_read_as_zeroes() {
    for direct in [false, true] {
        let folder = folder();
        let mut core = Core::new(spec(&image(&folder), direct));
        core.write(0, &vec![7; MIB as usize]).unwrap();
        core.op(BlockOp::Flush, 0, 0).unwrap();
        let before = std::fs::metadata(image(&folder)).unwrap().blocks();
        core.op(BlockOp::Discard, 0, MIB / 2).unwrap();
        let after = std::fs::metadata(image(&folder)).unwrap().blocks();
        assert!(after * 512 <= before * 512 - MIB / 2, "{before} {after}");
        assert_eq!(core.read(MIB / 2 - 4096, 8192).unwrap(), [vec![0; 4096], vec![7; 4096]].concat());
        for unmap in [true, false] {
            core.write(0, &vec![7; 65536]).unwrap();
            core.op(BlockOp::WriteZeroes { unmap }, 4096, 8192).unwrap();
            assert_eq!(core.read(0, 16384).unwrap(), [vec![7; 4096], vec![0; 8192], vec![7; 4096]].concat());
        }
    }
}

#[test]
fn without_discard_the_file_keeps_its_space() {
    let folder = folder();
    let path = image(&folder);
    let kind =
        VolumeKind::File { path: path.clone(), size: Some(4 * MIB), create: true, direct: false, discard: false };
    let mut core = Core::new(VolumeSpec::new("f", kind));
    assert_eq!(core.volume.limits().discard, None);
    core.write(0, &vec![7; MIB as usize]).unwrap();
    core.op(BlockOp::Flush, 0, 0).unwrap();
    let before = std::fs::metadata(&path).unwrap().blocks();
    core.op(BlockOp::WriteZeroes { unmap: true }, 0, MIB).unwrap();
    core.op(BlockOp::Flush, 0, 0).unwrap();
    assert!(std::fs::metadata(&path).unwrap().blocks() >= before);
    assert_eq!(core.read(0, 4096).unwrap(), vec![0; 4096]);
}

#[test]
fn durable_and_write_through_requests_succeed() {
    let folder = folder();
    let mut core = Core::new(VolumeSpec { write_through: true, ..spec(&image(&folder), false) });
    core.write(0, &[1; 512]).unwrap();
    core.op(BlockOp::WriteZeroes { unmap: false }, 0, 512).unwrap();
    core.op(BlockOp::Discard, 0, 4096).unwrap();
    let durable = core.request(BlockOp::Write, 0, 512);
    assert_eq!(core.run(Request { durable: true, ..durable }).result, Ok(()));
}

#[test]
fn a_read_only_file_is_opened_so_and_refuses_writes() {
    let folder = folder();
    std::fs::write(image(&folder), vec![9; 8192]).unwrap();
    let kind = VolumeKind::File { path: image(&folder), size: None, create: false, direct: false, discard: true };
    let mut core = Core::new(VolumeSpec { read_only: true, ..VolumeSpec::new("r", kind) });
    assert_eq!(core.read(4096, 4096).unwrap(), vec![9; 4096]);
    assert_eq!(core.write(0, &[0; 512]), Err(IoError::ReadOnly));
    assert_eq!(core.read(8192, 512), Err(IoError::OutOfRange));
}

#[test]
fn a_file_grows_and_does_not_shrink() {
    let folder = folder();
    let mut core = Core::new(spec(&image(&folder), false));
    assert_eq!(core.write(4 * MIB, &[1; 512]), Err(IoError::OutOfRange));
    core.volume.grow(8 * MIB).unwrap();
    assert_eq!(core.write(4 * MIB, &[1; 512]), Ok(()));
    let refused = core.volume.grow(4 * MIB).unwrap_err().to_string();
    assert!(refused.contains("cannot shrink"), "{refused}");
    drop(core);
    let core = Core::new(spec(&image(&folder), false));
    assert_eq!(core.volume.size(), 8 * MIB, "what was grown stays grown, whatever the configuration says");
}

#[test]
fn bytes_that_make_no_whole_block_are_not_served_and_said_to_be_so() {
    let folder = folder();
    let path = folder.path().join("odd.img");
    std::fs::write(&path, [7; 1000]).unwrap();
    let kind = VolumeKind::File { path, size: None, create: false, direct: false, discard: true };
    let core = Core::new(VolumeSpec::new("f", kind));
    assert_eq!(core.volume.size(), 512);
    assert_eq!(core.volume.status().detail, "the last 488 bytes are not served: they make no whole block");
    core.volume.grow(4096).unwrap();
    assert_eq!((core.volume.size(), core.volume.status().detail.as_str()), (4096, ""));
}

#[test]
fn a_file_cut_behind_our_back_is_an_error_not_old_data() {
    let folder = folder();
    let mut core = Core::new(spec(&image(&folder), false));
    std::fs::OpenOptions::new().write(true).open(image(&folder)).unwrap().set_len(4096).unwrap();
    assert!(matches!(core.read(0, 8192), Err(IoError::Device { .. })));
    assert_eq!(core.volume.status().errors.device, 1);
    assert!(core.volume.status().last_error.is_some());
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = folder();
    let open = |spec| Volume::open(spec, &PathBroker::new()).unwrap_err().to_string();
    let file = |path: PathBuf, size| VolumeKind::File { path, size, create: false, direct: false, discard: true };
    let missing = open(VolumeSpec::new("v", file(image(&folder), None)));
    assert!(missing.contains("disk.img") && missing.contains("No such file"), "{missing}");
    std::fs::write(image(&folder), vec![0; 8192]).unwrap();
    let short = open(VolumeSpec::new("v", file(image(&folder), Some(MIB))));
    assert!(short.contains("has 8192 bytes, less than the 1048576"), "{short}");
    let folder_itself = open(VolumeSpec { read_only: true, ..VolumeSpec::new("v", file(folder.path().into(), None)) });
    assert!(folder_itself.contains("neither file nor disk"), "{folder_itself}");
    let device = open(VolumeSpec::new("v", VolumeKind::Device { path: image(&folder), direct: false }));
    assert!(device.contains("say file"), "{device}");
    std::fs::write(image(&folder), vec![0; 100]).unwrap();
    let tiny = open(VolumeSpec::new("v", file(image(&folder), None)));
    assert!(tiny.contains("less than one block"), "{tiny}");
}

#[test]
fn more_requests_than_the_ring_has_entries_all_end() {
    let folder = folder();
    let mut core = Core::new(spec(&image(&folder), false));
    let mut requests: Vec<Request> = (0..500).map(|i| core.request(BlockOp::Write, (i % 1000) * 4096, 4096)).collect();
    let mut done = Vec::new();
    core.context.submit(core.to, &mut requests, &mut done);
    core.context.flush();
    assert!(requests.is_empty());
    let deadline = Instant::now() + Duration::from_secs(60);
    while done.len() < 500 && Instant::now() < deadline {
        core.context.poll(&mut done);
    }
    let mut tokens: Vec<u64> = done.iter().map(|done| done.token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, (1..=500).collect::<Vec<_>>());
    assert!(done.iter().all(|done| done.result.is_ok()));
}

#[test]
fn abandoned_requests_are_named_once_and_never_answered() {
    let folder = folder();
    let mut core = Core::new(spec(&image(&folder), false));
    let mut requests: Vec<Request> = (0..200).map(|i| core.request(BlockOp::Write, i * 4096, 4096)).collect();
    let mut done = Vec::new();
    core.context.submit(core.to, &mut requests, &mut done);
    core.context.flush();
    let mut given_up = Vec::new();
    core.context.abandon(&mut |token| token % 2 == 0, &mut given_up);
    let deadline = Instant::now() + Duration::from_secs(60);
    while core.context.outstanding() > 0 && Instant::now() < deadline {
        core.context.poll(&mut done);
    }
    let mut all: Vec<u64> = done.iter().map(|done| done.token).chain(given_up.iter().copied()).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=200).collect::<Vec<_>>());
    assert_eq!(core.volume.status().errors.abandoned, given_up.len() as u64);
    assert!(!given_up.is_empty() && given_up.iter().all(|token| token % 2 == 0), "{given_up:?}");
    assert_eq!(core.write(0, &[1; 512]), Ok(()), "the volume goes on");
}

#[test]
fn a_core_may_sleep_until_a_request_ends() {
    let folder = folder();
    let mut core = Core::new(spec(&image(&folder), true));
    let request = core.request(BlockOp::Write, 0, 4096);
    assert!(core.submit(request).is_none());
    let mut set = [rustix::event::PollFd::from_borrowed_fd(core.context.wait_fd(), rustix::event::PollFlags::IN)];
    let limit = rustix::event::Timespec { tv_sec: 20, tv_nsec: 0 };
    let woken = rustix::event::poll(&mut set, Some(&limit));
    assert!(matches!(woken, Ok(1) | Err(rustix::io::Errno::INTR)), "{woken:?}");
    assert!(core.wait(Duration::from_secs(20)).is_some());
}

/// A tmpfs of 1 MiB that is unmounted at the end; none without the privilege.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(at: &Path) -> Option<SmallDisk> {
        let mounted = std::process::Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
            .arg(at)
            .status()
            .is_ok_and(|status| status.success());
        mounted.then(|| SmallDisk(at.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: the kernel closes the files of a dropped ring a moment later.
        let _ = std::process::Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_fails_writes_with_no_space_and_recovers() {
    let folder = folder();
    let Some(disk) = SmallDisk::new(folder.path()) else {
        return softdpu_testing::skip(
            "a_full_disk_fails_writes_with_no_space_and_recovers",
            "mounting a tmpfs needs root",
        );
    };
    let mut core = Core::new(spec(&disk.0.join("disk.img"), false));
    let outcome: Vec<_> = (0..32).map(|i| core.write(i * 65536, &[1; 65536])).collect();
    assert!(outcome.iter().all(|result| matches!(result, Ok(()) | Err(IoError::NoSpace))), "{outcome:?}");
    assert!(outcome.contains(&Err(IoError::NoSpace)));
    assert!(core.volume.status().errors.no_space > 0);
    core.op(BlockOp::Discard, 0, 4 * MIB).unwrap();
    assert_eq!(core.write(0, &[1; 65536]), Ok(()));
    drop(core);
    drop(disk);
}
