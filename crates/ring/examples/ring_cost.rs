//! What a request costs in the ring: nanoseconds per request for pop and complete (and dropping the chain), in batches
//! of 32, driver and device on one core, the driver's part not counted.
//!
//! Then with the driver on another core, which means something only where two cores are idle.
//!
//! `cargo run --release -p softdpu-ring --example ring_cost [-- ROUNDS]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use softdpu_memory::{GuestAddress, Mapping, Region, UserAddress, View, Window};
use softdpu_ring::driver::{Driver, Layout, Piece};
use softdpu_ring::{Chain, Chains, Format, InflightRecords, Position, Positions, Queue, QueueConfig, RingAddresses};

const SIZE: u16 = 256;
const BATCH: usize = 32;
const MEMORY: u64 = 64 << 20;
const PARTS: u32 = 50;

#[derive(Clone, Copy)]
enum Shape {
    /// One descriptor.
    One,
    /// Header, data, status: a block request of one page.
    Block,
    /// The same in an indirect table, as Linux sends it.
    Indirect,
}

/// What the queue writes for a process that comes after it.
#[derive(Clone, Copy, Debug)]
enum Kept {
    /// Nothing.
    Nothing,
    /// What is in flight.
    Records,
    /// Its position; it completes in order.
    Position,
}

impl Kept {
    fn queue(self, view: &Arc<View>, config: QueueConfig, addresses: RingAddresses) -> Queue {
        let start = Position::start(config.format);
        let heap = |bytes| -> Window { Window::of_mapping(Mapping::heap(bytes)) };
        match self {
            Kept::Nothing => Queue::new(view, config, addresses, start, None),
            Kept::Records => {
                let records = InflightRecords::new(heap(InflightRecords::bytes(config.format, config.size)));
                Queue::new(view, config, addresses, start, Some(records))
            }
            Kept::Position => {
                let positions = Positions::new(heap(Positions::bytes(config.format, config.size)));
                Queue::in_order(view, config, addresses, start, positions)
            }
        }
        .expect("inside")
    }
}

struct Cost {
    pop: f64,
    complete: f64,
    /// All of it, driver included.
    round: f64,
}

/// Memory with a ring in it, and its driver.
fn ring(format: Format) -> (Arc<View>, QueueConfig, RingAddresses, Driver) {
    let mapping = Mapping::heap(MEMORY as usize);
    let view = View::new(vec![Region::new(GuestAddress(0), UserAddress(0), MEMORY, mapping, 0)]).expect("one region");
    let addresses = Layout::new(format, SIZE).addresses(UserAddress(0x1000));
    let config = QueueConfig {
        size: SIZE,
        format,
        event_idx: true,
        indirect: true,
        max_pieces: 130,
        log_used: None,
        resumed: false,
    };
    let driver = Driver::new(&view, format, SIZE, true, addresses).expect("inside");
    (view, config, addresses, driver)
}

fn measure(format: Format, shape: Shape, kept: Kept, recycled: bool, rounds: u32) -> Cost {
    let (view, config, addresses, mut driver) = ring(format);
    let mut queue = kept.queue(&view, config, addresses);
    let (mut chains, mut again) = (Vec::with_capacity(SIZE.into()), Chains::new());
    let mut done = Vec::with_capacity(SIZE.into());
    let mut least = Cost { pop: f64::MAX, complete: f64::MAX, round: f64::MAX };
    let mut at = 0u64;
    // Others use the machine, too: what the least disturbed of several parts took.
    for _ in 0..PARTS {
        let (mut pop, mut complete) = (Duration::ZERO, Duration::ZERO);
        let start = Instant::now();
        for _ in 0..rounds / PARTS {
            for _ in 0..BATCH {
                at = (at + 1) % 512;
                add(&mut driver, shape, at).expect("room");
            }
            driver.publish();
            let before = Instant::now();
            let popped = if recycled { queue.pop(&mut again, BATCH) } else { queue.pop(&mut chains, BATCH) };
            let between = Instant::now();
            assert_eq!(popped.expect("a good driver"), BATCH);
            done.clear();
            done.extend(again.iter().chain(&chains).map(|chain: &Chain| chain.used(4097)));
            queue.complete(&done).expect("in flight");
            again.clear();
            chains.clear();
            complete += between.elapsed();
            pop += between - before;
            for _ in 0..BATCH {
                driver.take().expect("all came back");
            }
        }
        let per = |time: Duration| time.as_nanos() as f64 / f64::from(rounds / PARTS) / BATCH as f64;
        least.pop = least.pop.min(per(pop));
        least.complete = least.complete.min(per(complete));
        least.round = least.round.min(per(start.elapsed()));
    }
    least
}

/// Wall-clock nanoseconds per request with the driver on another core, 32 requests in flight: the slower side's cost,
/// with the cache misses of a real ring.
fn measure_across(format: Format, shape: Shape, requests: u64) -> f64 {
    let (view, config, addresses, mut driver) = ring(format);
    let mut queue = Queue::new(&view, config, addresses, Position::start(format), None).expect("inside");
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let (mut added, mut back) = (0, 0);
            driver.disarm();
            while back < requests {
                while added < requests && added - back < BATCH as u64 {
                    add(&mut driver, shape, added % 512).expect("room");
                    added += 1;
                }
                driver.publish();
                while driver.take().is_some() {
                    back += 1;
                }
            }
        });
        let mut chains = Vec::with_capacity(SIZE.into());
        let mut done = Vec::with_capacity(SIZE.into());
        let mut served = 0;
        while served < requests {
            served += queue.pop(&mut chains, BATCH).expect("a good driver") as u64;
            done.clear();
            done.extend(chains.drain(..).map(|chain| chain.used(4097)));
            queue.complete(&done).expect("in flight");
        }
    });
    start.elapsed().as_nanos() as f64 / requests as f64
}

/// Adds a request with the memory of `place`.
fn add(driver: &mut Driver, shape: Shape, place: u64) -> Option<u16> {
    let base = 0x10_0000 + place * 0x3000;
    let pieces = [
        Piece::readable(GuestAddress(base), 16),
        Piece::writable(GuestAddress(base + 0x1000), 4096),
        Piece::writable(GuestAddress(base + 16), 1),
    ];
    match shape {
        Shape::One => driver.add(&pieces[1..2]),
        Shape::Block => driver.add(&pieces),
        Shape::Indirect => driver.add_indirect(GuestAddress(base + 0x800), &pieces),
    }
}

fn main() {
    let rounds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(100_000);
    println!("ns per request, batches of {BATCH}, queue size {SIZE}; total = pop + complete + drop of the chain");
    for format in [Format::Split, Format::Packed] {
        for (name, shape) in
            [("one descriptor", Shape::One), ("block, direct", Shape::Block), ("block, indirect", Shape::Indirect)]
        {
            for (kept, recycled) in
                [(Kept::Nothing, false), (Kept::Records, false), (Kept::Position, false), (Kept::Position, true)]
            {
                measure(format, shape, kept, recycled, rounds.max(PARTS));
                let cost = measure(format, shape, kept, recycled, rounds.max(PARTS));
                let kept = format!("{kept:?}");
                let chains = if recycled { "recycled" } else { "new" };
                println!(
                    "{format:?} {name:16} keeps {kept:8} chains {chains:8}: pop {:5.1} complete {:5.1} total {:5.1}   (with driver {:5.1})",
                    cost.pop,
                    cost.complete,
                    cost.pop + cost.complete,
                    cost.round
                );
            }
            let across = measure_across(format, shape, u64::from(rounds) * 10);
            println!("{format:?} {name:16} driver on another core: {across:5.1} ns per request, wall clock");
        }
    }
}
