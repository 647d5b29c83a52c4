//! Requests per second of one core through `IoContext`, per kind of volume and depth, 4 KiB at random offsets.
//!
//! `cargo run --release -p softdpu-storage --example rates [FOLDER]`: files are made in FOLDER (default: the current
//! one).

use std::time::{Duration, Instant};

use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};
use softdpu_storage::*;

const SIZE: u64 = 64 << 20;
const RUN: Duration = Duration::from_millis(700);

fn main() -> Result<(), VolumeError> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".into());
    let path = std::path::PathBuf::from(folder).join("softdpu-rates.img");
    let file = |direct| VolumeKind::File { path: path.clone(), size: Some(SIZE), create: true, direct, discard: true };
    let kinds = [
        ("null", VolumeKind::Null { size: SIZE }),
        ("memory", VolumeKind::Memory { size: SIZE }),
        ("file, page cache", file(false)),
        ("file, direct", file(true)),
    ];
    println!("{:<18} {:<6} {:>6} {:>12} {:>10}", "volume", "op", "depth", "requests/s", "ns each");
    for (name, kind) in kinds {
        let volume = Volume::open(VolumeSpec::new("rates", kind), &PathBroker::new())?;
        volume.activate()?;
        let mut context = IoContext::new(256)?;
        let to = context.attach(&volume)?;
        // Written once, so that reads find blocks.
        run(&mut context, to, BlockOp::Write, 32, SIZE / 4096, Duration::from_secs(60));
        for op in [BlockOp::Read, BlockOp::Write] {
            for depth in [1, 8, 32, 128] {
                let (requests, time) = run(&mut context, to, op, depth, u64::MAX, RUN);
                let (rate, each) = (requests as f64 / time.as_secs_f64(), time.as_nanos() as f64 / requests as f64);
                println!("{name:<18} {:<6} {depth:>6} {rate:>12.0} {each:>10.0}", format!("{op:?}"));
            }
        }
    }
    let _ = std::fs::remove_file(path);
    Ok(())
}

fn run(
    context: &mut IoContext,
    to: Attachment,
    op: BlockOp,
    depth: u64,
    most: u64,
    limit: Duration,
) -> (u64, Duration) {
    let region = Region::new(GuestAddress(0), UserAddress(0), 1 << 20, Mapping::heap(1 << 20), 0);
    let Ok(view) = View::new(vec![region]) else { return (0, limit) };
    let buffer = |slot: u64| {
        let mut buffer = GuestBuffer::new(&view);
        let parts = [(slot * 64, 16), (0x8000 + slot * 4096, 4096), (0x4000 + slot, 1)];
        for (at, len) in parts {
            buffer.append(GuestAddress(at), len).expect("inside the guest's memory");
        }
        buffer
    };
    let mut free: Vec<(u64, GuestBuffer)> = (0..depth).map(|slot| (slot, buffer(slot))).collect();
    let (mut requests, mut done) = (Vec::new(), Vec::new());
    let (mut started, mut ended, mut random) = (0u64, 0u64, 0x9e37_79b9_7f4a_7c15u64);
    let before = Instant::now();
    let mut rounds = 0u32;
    while ended < most {
        rounds += 1;
        if rounds.is_multiple_of(256) && before.elapsed() > limit {
            break;
        }
        requests.extend(free.drain(..).map(|(token, buffer)| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let block = if most < u64::MAX { started } else { random } % (SIZE / 4096);
            started += 1;
            Request { token, op, offset: block * 4096, len: 4096, buffer, data: 1..2, durable: false }
        }));
        context.submit(to, &mut requests, &mut done);
        context.flush();
        context.poll(&mut done);
        for one in done.drain(..) {
            assert_eq!(one.result, Ok(()));
            ended += 1;
            free.push((one.token, one.buffer));
        }
    }
    let time = before.elapsed();
    while context.outstanding() > 0 {
        context.poll(&mut done);
    }
    (ended, time)
}
