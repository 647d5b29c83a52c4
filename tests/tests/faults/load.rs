//! Reads and writes that know what they have to find.
//!
//! Each block of 4 KiB has a version, counted up by each write of it. A block has one request in flight at a time, so a
//! read finds exactly the last version that was written; a write that is lost, or done once more after a newer one, is
//! found by the next read of the block, and when all blocks are verified in the end. A request that completes twice is
//! found by its tag.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use softdpu_frontend::{BlockFrontEnd, BlockRequest, Tag};
use softdpu_tests::{Context, Failure};

use crate::common::WAIT;

const BLOCK: usize = 4096;

struct Flight {
    block: usize,
    /// What it writes; none: it reads.
    version: Option<u32>,
    since: Instant,
}

/// The load of one front end, on all its queues.
pub struct Load {
    versions: Vec<u32>,
    busy: Vec<bool>,
    flights: Vec<HashMap<Tag, Flight>>,
    depth: usize,
    state: u64,
    pub completed: u64,
    pub slowest: Duration,
}

fn content(block: usize, version: u32) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    if version > 0 {
        let word = (((block as u64) << 32) | u64::from(version)).to_le_bytes();
        bytes.chunks_exact_mut(8).for_each(|chunk| chunk.copy_from_slice(&word));
    }
    bytes
}

impl Load {
    /// A load over the first `blocks` blocks, which are zero, with `depth` requests in flight on each queue.
    pub fn new(front_end: &BlockFrontEnd, blocks: usize, depth: usize) -> Load {
        let flights = (0..front_end.queue_count()).map(|_| HashMap::new()).collect();
        let (versions, busy) = (vec![0; blocks], vec![false; blocks]);
        Load { versions, busy, flights, depth, state: 1, completed: 0, slowest: Duration::ZERO }
    }

    fn random(&mut self) -> u64 {
        // Knuth's MMIX generator; the low bits are poor.
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state >> 33
    }

    fn in_flight(&self) -> usize {
        self.flights.iter().map(HashMap::len).sum()
    }

    fn submit(&mut self, front_end: &mut BlockFrontEnd) -> Result<(), Failure> {
        for queue in 0..self.flights.len() {
            while self.flights[queue].len() < self.depth {
                let block = self.random() as usize % self.versions.len();
                if std::mem::replace(&mut self.busy[block], true) {
                    break;
                }
                let version = (!self.random().is_multiple_of(4)).then(|| self.versions[block] + 1);
                let sector = (block * BLOCK / 512) as u64;
                let tag = match version {
                    Some(version) => front_end
                        .queue_mut(queue)
                        .submit(BlockRequest::Write { sector, data: &content(block, version) }),
                    None => front_end.queue_mut(queue).submit(BlockRequest::Read { sector, len: BLOCK as u32 }),
                };
                let tag = tag.context("adding a request to the load")?;
                self.flights[queue].insert(tag, Flight { block, version, since: Instant::now() });
            }
            front_end.queue_mut(queue).publish();
        }
        Ok(())
    }

    fn collect(&mut self, front_end: &mut BlockFrontEnd) -> Result<usize, Failure> {
        let mut count = 0;
        for queue in 0..self.flights.len() {
            while let Some(done) = front_end.queue_mut(queue).poll() {
                let Some(flight) = self.flights[queue].remove(&done.tag) else {
                    return Err(Failure::new(format!("queue {queue} completed tag {} twice", done.tag)));
                };
                let block = flight.block;
                assert_eq!(done.status, 0, "queue {queue}, block {block}, version {:?}", flight.version);
                match flight.version {
                    Some(version) => self.versions[block] = version,
                    None => self.check(front_end, queue, done.tag, block)?,
                }
                self.busy[block] = false;
                self.slowest = self.slowest.max(flight.since.elapsed());
                count += 1;
            }
        }
        self.completed += count as u64;
        Ok(count)
    }

    fn check(&self, front_end: &mut BlockFrontEnd, queue: usize, tag: Tag, block: usize) -> Result<(), Failure> {
        let mut bytes = [0; BLOCK];
        let buffer = front_end.queue_mut(queue).data(tag, BLOCK as u32).context("looking at a read")?;
        buffer.read_at(0, &mut bytes).context("copying a read")?;
        if bytes == content(block, self.versions[block]) {
            return Ok(());
        }
        let found: [u8; 8] = bytes[..8].try_into().expect("eight bytes");
        let found = u64::from_le_bytes(found);
        Err(Failure::new(format!(
            "block {block} has version {} of block {}, not {}",
            found as u32,
            found >> 32,
            self.versions[block]
        )))
    }

    /// Runs beside `scenario` until that is through; then waits for all that is in flight and verifies every block.
    /// `scenario` gets the number of completions so far.
    pub fn run(
        &mut self,
        front_end: &mut BlockFrontEnd,
        scenario: impl FnOnce(&AtomicU64) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (over, completed) = (AtomicBool::new(false), AtomicU64::new(self.completed));
        std::thread::scope(|scope| {
            let load = scope.spawn(|| {
                while !over.load(SeqCst) {
                    self.submit(front_end)?;
                    if self.collect(front_end)? == 0 {
                        std::thread::sleep(Duration::from_micros(200));
                    }
                    completed.store(self.completed, SeqCst);
                }
                self.drain(front_end)?;
                self.verify(front_end)
            });
            let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scenario(&completed)));
            over.store(true, SeqCst);
            let loaded = load.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic)).and(loaded)
        })
    }

    fn drain(&mut self, front_end: &mut BlockFrontEnd) -> Result<(), Failure> {
        let start = Instant::now();
        while self.in_flight() > 0 {
            if self.collect(front_end)? == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
            if start.elapsed() > WAIT {
                let left = self.in_flight();
                return Err(Failure::new(format!("waited {WAIT:?} in vain for {left} requests of the load")));
            }
        }
        Ok(())
    }

    /// Reads every block.
    fn verify(&mut self, front_end: &mut BlockFrontEnd) -> Result<(), Failure> {
        for block in 0..self.versions.len() {
            let queue = front_end.queue_mut(0);
            let sector = (block * BLOCK / 512) as u64;
            let tag = queue.submit(BlockRequest::Read { sector, len: BLOCK as u32 }).context("adding a read")?;
            queue.publish();
            let done = queue.wait(WAIT).context("reading a block in the end")?;
            assert_eq!((done.tag, done.status), (tag, 0), "block {block}");
            self.check(front_end, 0, tag, block)?;
        }
        Ok(())
    }
}
