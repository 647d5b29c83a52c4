//! The well-behaved tenant: writes, reads back, verifies, and never stops.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use softdpu_tests::{Failure, Worker, wait_until};

use crate::SOON;
use crate::client::{FrontEnd, MEMORY, Memory, Settings, pattern};

/// Blocks it works on.
const BLOCKS: u64 = 512;

/// Between two rounds: it has to leave the machine's cores to the abuses.
const PAUSE: Duration = Duration::from_micros(500);

#[derive(Default)]
struct Counts {
    rounds: AtomicU64,
    worst_us: AtomicU64,
}

/// A tenant at work.
pub struct Bystander(Worker<Counts>);

impl Bystander {
    pub fn start(socket: &Path) -> Result<Bystander, Failure> {
        let settings = Settings { event_idx: true, ..Settings::SPLIT };
        let front = FrontEnd::start(socket, Arc::new(Memory::new(MEMORY)?), settings)?;
        Ok(Bystander(Worker::start("the bystander", Counts::default(), |counts, stop| work(front, counts, stop))))
    }

    /// How many rounds it has made; an error if it was disturbed.
    pub fn progress(&self) -> Result<u64, Failure> {
        Ok(self.0.undisturbed()?.rounds.load(Relaxed))
    }

    /// Fails unless whole rounds were made since `before`, or soon are.
    pub fn goes_on(&self, before: u64) -> Result<(), Failure> {
        wait_until("the bystander to go on", SOON, || Ok((self.progress()? > before + 1).then_some(())))
    }

    /// The slowest round since this was asked last.
    pub fn take_worst(&self) -> Duration {
        Duration::from_micros(self.0.counts().worst_us.swap(0, Relaxed))
    }

    /// Ends it; what it did, in words.
    pub fn stop(&mut self) -> Result<String, Failure> {
        let counts = self.0.stop()?;
        let (rounds, worst) = (counts.rounds.load(Relaxed), counts.worst_us.load(Relaxed) as f64 / 1e3);
        Ok(format!("the bystander verified {rounds} blocks, the slowest in {worst:.1} ms"))
    }
}

fn work(mut front: FrontEnd, counts: &Counts, stop: &AtomicBool) -> Result<(), Failure> {
    let mut versions = vec![0; BLOCKS as usize];
    for round in 1.. {
        if stop.load(Relaxed) {
            return Ok(());
        }
        let (writes, reads) = (round * 7 % BLOCKS, round * 13 % BLOCKS);
        let start = Instant::now();
        front.write_block(writes, &pattern(writes, round))?;
        versions[writes as usize] = round;
        let found = front.read_block(reads)?;
        let version = versions[reads as usize];
        let expected = if version == 0 { vec![0; found.len()] } else { pattern(reads, version) };
        if found != expected {
            return Err(Failure::new(format!("block {reads} is not what write {version} left there")));
        }
        if front.error_signalled(Duration::ZERO) {
            return Err(Failure::new("its ring was declared broken"));
        }
        counts.worst_us.fetch_max(start.elapsed().as_micros() as u64, Relaxed);
        counts.rounds.fetch_add(1, Relaxed);
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
