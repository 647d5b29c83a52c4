//! Random operations on every kind of volume, several at a time, against an array of bytes.

mod common;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Core, MIB};
use proptest::prelude::*;
use softdpu_storage::*;

const SIZE: u64 = MIB;
const BLOCK: u64 = 512;

#[derive(Clone, Debug)]
struct Step {
    op: BlockOp,
    start: u64,
    blocks: u64,
    cuts: Vec<u64>,
    skew: u64,
    seed: u8,
    durable: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        4 => Just(BlockOp::Read),
        4 => Just(BlockOp::Write),
        1 => Just(BlockOp::Flush),
        1 => Just(BlockOp::Discard),
        1 => Just(BlockOp::WriteZeroes { unmap: true }),
        1 => Just(BlockOp::WriteZeroes { unmap: false }),
    ];
    let blocks = prop_oneof![Just(1), Just(8), 1..=64u64];
    let cuts = proptest::collection::vec(1..4096u64, 0..4);
    (op, 0..SIZE / BLOCK, blocks, cuts, prop_oneof![Just(0), 0..64u64], any::<u8>(), any::<bool>()).prop_map(
        |(op, start, blocks, cuts, skew, seed, durable)| Step { op, start, blocks, cuts, skew, seed, durable },
    )
}

/// The pieces of `len` bytes cut at `cuts`.
fn pieces(len: u64, cuts: &[u64]) -> Vec<u64> {
    let mut left = len;
    let mut pieces: Vec<u64> = Vec::new();
    for cut in cuts {
        if *cut < left {
            pieces.push(*cut);
            left -= cut;
        }
    }
    pieces.push(left);
    pieces
}

struct Volumes {
    cores: Vec<(String, Core)>,
    _folder: tempfile::TempDir,
    servers: Vec<Child>,
}

impl Drop for Volumes {
    fn drop(&mut self) {
        self.cores.clear();
        for server in &mut self.servers {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

fn volumes() -> Volumes {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = |name: &str, direct| VolumeKind::File {
        path: folder.path().join(name),
        size: Some(SIZE),
        create: true,
        direct,
        discard: true,
    };
    let mut kinds = vec![
        ("memory", VolumeKind::Memory { size: SIZE }),
        ("buffered file", file("buffered.img", false)),
        ("direct file", file("direct.img", true)),
    ];
    let sockets = tempfile::tempdir().unwrap().keep();
    let socket = sockets.join("nbd.sock");
    let server = Command::new("nbdkit")
        .args(["-f", "--exit-with-parent", "-U", socket.to_str().unwrap(), "memory", "1M"])
        .stdout(Stdio::null())
        .spawn();
    match &server {
        Ok(_) => {
            let uri = format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap();
            let (timeout, reconnect) = (Duration::from_secs(10), Duration::from_millis(100));
            kinds.push(("nbd", VolumeKind::Nbd { uri, answer: timeout, timeout, reconnect }));
        }
        Err(_) => softdpu_testing::skip("nbd in the property test", "nbdkit is not installed"),
    }
    let key = folder.path().join("key");
    common::write_key(&key, 1..65);
    let open = |kind: &VolumeKind, encrypted: Option<(u32, u32)>| {
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut spec = VolumeSpec::new("v", kind.clone());
        if let Some((sector_size, block_size)) = encrypted {
            let key = KeySource::File(key.clone());
            spec.encryption = Some(Encryption { key, sector_size, discard: false });
            spec.block_size = block_size;
        }
        loop {
            match Volume::open(spec.clone(), &PathBroker::new()) {
                Ok(volume) => return Core::with(volume),
                // The server is on its way.
                Err(error) => assert!(Instant::now() < deadline, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let mut cores: Vec<_> = kinds.iter().map(|(name, kind)| ((*name).to_owned(), open(kind, None))).collect();
    let encrypted = [
        ("memory, encrypted", VolumeKind::Memory { size: SIZE }, 512, 512),
        ("buffered file, encrypted", file("encrypted.img", false), 512, 4096),
        ("direct file, encrypted", file("encrypted-direct.img", true), 4096, 4096),
    ];
    for (name, kind, sector, block) in encrypted {
        cores.push((name.to_owned(), open(&kind, Some((sector, block)))));
    }
    let server_2 = server.is_ok().then(|| {
        let socket = sockets.join("nbd-2.sock");
        let server = Command::new("nbdkit")
            .args(["-f", "--exit-with-parent", "-U", socket.to_str().unwrap(), "memory", "1M"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let uri = format!("nbd+unix:///?socket={}", socket.display()).parse().unwrap();
        let (timeout, reconnect) = (Duration::from_secs(10), Duration::from_millis(100));
        let kind = VolumeKind::Nbd { uri, answer: timeout, timeout, reconnect };
        cores.push(("nbd, encrypted".to_owned(), open(&kind, Some((512, 512)))));
        server
    });
    let _ = std::fs::remove_dir_all(sockets);
    Volumes { cores, _folder: folder, servers: server.ok().into_iter().chain(server_2).collect() }
}

fn run(name: &str, core: &mut Core, steps: &[Step]) -> Result<(), TestCaseError> {
    let mut model = vec![0u8; SIZE as usize];
    core.op(BlockOp::WriteZeroes { unmap: true }, 0, SIZE).unwrap();
    let block = u64::from(core.volume.block_size()).max(BLOCK);
    for step in steps {
        let start = step.start * BLOCK / block * block;
        let len = (step.blocks * BLOCK).next_multiple_of(block);
        let fits = start + len <= SIZE;
        let mut request = match step.op {
            BlockOp::Read | BlockOp::Write => {
                core.request_at(step.op, start, &pieces(len, &step.cuts), 0x1000 + step.skew)
            }
            op => core.request(op, start, len),
        };
        request.durable = step.durable;
        let range = start as usize..(start + len) as usize;
        let data: Vec<u8> = (0..len).map(|i| (i as u8) ^ (i >> 8) as u8 ^ step.seed).collect();
        match step.op {
            BlockOp::Write => request.buffer.write_at(16, &data).unwrap(),
            BlockOp::Read => request.buffer.fill(16, len, 0xee).unwrap(),
            _ => {}
        }
        let done = core.run(request);
        if !fits && step.op != BlockOp::Flush {
            prop_assert_eq!(done.result, Err(IoError::OutOfRange));
            continue;
        }
        prop_assert_eq!(done.result, Ok(()), "{}: {:?}", name, step);
        match step.op {
            BlockOp::Read => {
                let mut read = vec![0; len as usize];
                done.buffer.read_at(16, &mut read).unwrap();
                prop_assert!(read == model[range], "{}: {:?} read something else", name, step);
            }
            BlockOp::Write => model[range].copy_from_slice(&data),
            // All kinds here make zeroes of what they discard, or keep it; so does the model, by looking.
            BlockOp::Discard => {
                let now = core.read(start, len as usize).unwrap();
                let kept = now == model[range.clone()];
                prop_assert!(kept || now.iter().all(|byte| *byte == 0), "{}: neither old nor zero", name);
                model[range].copy_from_slice(&now);
            }
            BlockOp::WriteZeroes { .. } => model[range].fill(0),
            BlockOp::Flush => {}
        }
    }
    for offset in (0..SIZE).step_by(MIB as usize / 4) {
        let read = core.read(offset, MIB as usize / 4).unwrap();
        prop_assert!(read == model[offset as usize..][..read.len()], "{}: differs at the end", name);
    }
    prop_assert_eq!(core.context.outstanding(), 0);
    Ok(())
}

#[test]
fn every_kind_of_volume_behaves_like_an_array_of_bytes() {
    let mut volumes = volumes();
    let config = ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let volumes = std::cell::RefCell::new(&mut volumes);
    let result = runner.run(&proptest::collection::vec(step(), 1..60), |steps| {
        for (name, core) in &mut volumes.borrow_mut().cores {
            run(name, core, &steps)?;
        }
        Ok(())
    });
    result.unwrap();
}

#[test]
fn many_requests_at_once_to_separate_places_all_land() {
    let mut volumes = volumes();
    for (name, core) in &mut volumes.cores {
        let mut requests: Vec<Request> = (0..200u64)
            .map(|i| {
                let request = core.request_at(BlockOp::Write, i * 4096, &[4096], 0x1000 + i * 4096);
                request.buffer.fill(16, 4096, i as u8 + 1).unwrap();
                request
            })
            .collect();
        let mut done = Vec::new();
        core.context.submit(core.to, &mut requests, &mut done);
        core.context.flush();
        let deadline = Instant::now() + Duration::from_secs(60);
        while done.len() < 200 && Instant::now() < deadline {
            core.context.poll(&mut done);
        }
        assert!(done.len() == 200 && done.iter().all(|done| done.result.is_ok()), "{name}: {}", done.len());
        for i in 0..200u64 {
            assert!(core.read(i * 4096, 4096).unwrap().iter().all(|byte| *byte == i as u8 + 1), "{name} {i}");
        }
    }
}
