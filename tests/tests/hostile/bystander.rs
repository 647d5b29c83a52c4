//! The well-behaved tenant: writes, reads back, verifies, and never stops.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softdpu_tests::{Failure, wait_until};

use crate::SOON;
use crate::client::{FrontEnd, MEMORY, Memory, Settings, pattern};

/// Blocks it works on.
const BLOCKS: u64 = 512;

/// Between two rounds: it has to leave the machine's cores to those who abuse.
const PAUSE: Duration = Duration::from_micros(500);

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    rounds: AtomicU64,
    worst_us: AtomicU64,
    error: Mutex<Option<String>>,
}

/// A tenant at work.
pub struct Bystander {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

impl Bystander {
    pub fn start(socket: &Path) -> Result<Bystander, Failure> {
        let settings = Settings { event_idx: true, ..Settings::SPLIT };
        let front = FrontEnd::start(socket, Arc::new(Memory::new(MEMORY)?), settings)?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            if let Err(error) = work(front, &theirs) {
                *theirs.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
        });
        Ok(Bystander { shared, thread })
    }

    /// How many rounds it has made; an error if it was disturbed.
    pub fn progress(&self) -> Result<u64, Failure> {
        match &*self.shared.error.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(Failure::new(format!("the bystander was disturbed: {error}"))),
            None => Ok(self.shared.rounds.load(Relaxed)),
        }
    }

    /// Fails unless whole rounds were made since `before`, or soon are.
    pub fn goes_on(&self, before: u64) -> Result<(), Failure> {
        wait_until("the bystander to go on", SOON, || Ok((self.progress()? > before + 1).then_some(())))
    }

    /// The slowest round since this was asked last.
    pub fn take_worst(&self) -> Duration {
        Duration::from_micros(self.shared.worst_us.swap(0, Relaxed))
    }

    /// Ends it; what it did, in words.
    pub fn stop(self) -> Result<String, Failure> {
        self.shared.stop.store(true, Relaxed);
        let progress = self.progress();
        self.thread.join().map_err(|_| Failure::new("the bystander panicked"))?;
        let worst = self.shared.worst_us.load(Relaxed) as f64 / 1e3;
        Ok(format!("the bystander verified {} blocks, the slowest in {worst:.1} ms", progress?))
    }
}

fn work(mut front: FrontEnd, shared: &Shared) -> Result<(), Failure> {
    let mut versions = vec![0; BLOCKS as usize];
    for round in 1.. {
        if shared.stop.load(Relaxed) {
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
        shared.worst_us.fetch_max(start.elapsed().as_micros() as u64, Relaxed);
        shared.rounds.fetch_add(1, Relaxed);
        std::thread::sleep(PAUSE);
    }
    Ok(())
}
