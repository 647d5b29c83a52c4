//! What one request costs a core: parse and finish of an ordinary 4 KiB read and write, memory and cache warm.
//!
//! `cargo run --release -p softdpu-device --example parse_cost`

use std::hint::black_box;
use std::time::Instant;

use softdpu_device::block::{Block, BlockConfig, Parsed, Status, abi::request};
use softdpu_memory::{GuestAddress, GuestBuffer, Mapping, Region, UserAddress, View};

const REQUESTS: u32 = 10_000_000;

fn main() {
    let mapping = Mapping::heap(0x20000);
    let view = View::new(vec![Region::new(GuestAddress(0), UserAddress(0), 0x20000, mapping, 0)]).expect("one region");
    let block = Block::new(BlockConfig::new(1 << 20)).expect("a plain disk");
    let requests = block.requests(block.features());
    for (name, kind, readable) in [("read", request::IN, 1), ("write", request::OUT, 2)] {
        let mut buffer = GuestBuffer::new(&view);
        for (address, len) in [(0x1000, 16), (0x4000, 4096), (0x2000, 1)] {
            buffer.append(GuestAddress(address), len).expect("inside the region");
        }
        buffer.write_at(0, &kind.to_le_bytes()).expect("inside the buffer");
        let mut rounds: Vec<f64> = (0..7)
            .map(|_| {
                let start = Instant::now();
                for _ in 0..REQUESTS {
                    let parsed = requests.parse(black_box(&mut buffer), black_box(readable));
                    let Parsed::Io(io) = parsed else { unreachable!("a well-formed request") };
                    black_box(io.offset);
                    black_box(io.finish(&buffer, Status::Ok));
                }
                start.elapsed().as_secs_f64() * 1e9 / f64::from(REQUESTS)
            })
            .collect();
        rounds.sort_by(f64::total_cmp);
        println!("{name} of 4 KiB, parse and finish: {:.1} ns (median of 7 rounds)", rounds[3]);
    }
}
