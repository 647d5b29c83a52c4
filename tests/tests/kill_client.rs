//! kill -9 of the data plane under drivers that verify everything themselves: eight devices, each of split or packed
//! format, with the in-flight region at the front end or not, on a memory or a file volume, 32 requests deep each.
//!
//! No completion may be lost or doubled, no write may be lost or land late, no connection may drop.
//! `SOFTDPU_KILLS` is the number of kills (20), `SOFTDPU_SEED` repeats a run's moments.

#![allow(missing_docs)]

mod client;

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use client::{FrontEnd, MEMORY, Memory, PATIENCE, Settings, pattern, signalled};
use softdpu_ring::Format;
use softdpu_ring::driver::Layout;
use softdpu_tests::{Context, Daemon, Failure, Lab, Random, wait_until};
use softdpu_transport::vhost_user::Message;

/// Requests each driver has outstanding.
const DEPTH: u16 = 32;
/// Blocks each driver works on: few, so that writes to one follow each other closely.
const BLOCKS: u64 = 128;

/// Between two kills, once requests complete again.
const LEAST_PAUSE: Duration = Duration::from_millis(20);
const MOST_PAUSE: Duration = Duration::from_millis(400);

/// A request that was submitted.
#[derive(Clone, Copy)]
struct Outstanding {
    id: u16,
    block: u64,
    /// The version it writes; none: it reads.
    writes: Option<u64>,
}

/// What a driver at work tells.
#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    completions: AtomicU64,
    /// The longest time without a completion since this was last taken.
    gap_us: AtomicU64,
    error: Mutex<Option<String>>,
}

/// A driver and its model of the disk.
struct Worker {
    front: FrontEnd,
    /// By block: the version it holds, and whether a request for it is outstanding.
    versions: Vec<u64>,
    busy: Vec<bool>,
    slots: Vec<Option<Outstanding>>,
    completions: u64,
    writes: u64,
    random: u64,
}

impl Worker {
    fn new(socket: &Path, settings: Settings, seed: u64) -> Result<Worker, Failure> {
        let front = FrontEnd::start(socket, Arc::new(Memory::new(MEMORY)?), settings)?;
        Ok(Worker {
            front,
            versions: vec![0; BLOCKS as usize],
            busy: vec![false; BLOCKS as usize],
            slots: vec![None; DEPTH.into()],
            completions: 0,
            writes: 0,
            random: seed | 1,
        })
    }

    /// xorshift64 (Marsaglia 2003): which block, and what to do.
    fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random
    }

    fn run(&mut self, shared: &Shared) -> Result<(), Failure> {
        let mut last = Instant::now();
        loop {
            let stop = shared.stop.load(Relaxed);
            if !stop {
                self.fill();
            }
            if self.slots.iter().all(Option::is_none) {
                return Ok(());
            }
            let before = self.completions;
            while let Some(done) = self.front.driver.take() {
                self.complete(done.id, done.written)?;
            }
            if self.completions > before {
                shared.gap_us.fetch_max(last.elapsed().as_micros() as u64, Relaxed);
                shared.completions.store(self.completions, Relaxed);
                last = Instant::now();
            } else if !self.front.driver.arm() && !signalled(self.front.call.as_fd(), PATIENCE) {
                let lost = self.slots.iter().flatten().count();
                let why = match self.front.driver.take() {
                    Some(_) => "are back without an interrupt",
                    None => "did not come back",
                };
                return Err(Failure::new(format!("{lost} requests {why} within {PATIENCE:?}")));
            }
        }
    }

    /// Submits until the ring is as deep as it is to be. No two requests for one block at once: their order would be
    /// undefined.
    fn fill(&mut self) {
        for slot in 0..DEPTH {
            if self.slots[usize::from(slot)].is_some() {
                continue;
            }
            let random = self.next();
            let block = random >> 8 & (BLOCKS - 1);
            if self.busy[block as usize] {
                continue;
            }
            let writes = (random & 3 != 0).then(|| {
                self.writes += 1;
                self.writes
            });
            let data = writes.map(|version| pattern(block, version));
            let Some(id) = self.front.add(slot, block, data.as_deref()) else { continue };
            self.busy[block as usize] = true;
            self.slots[usize::from(slot)] = Some(Outstanding { id, block, writes });
        }
        self.front.publish();
    }

    fn complete(&mut self, id: u16, written: u32) -> Result<(), Failure> {
        self.completions += 1;
        let slot = self.slots.iter().position(|slot| slot.is_some_and(|slot| slot.id == id));
        let slot = slot.ok_or_else(|| Failure::new(format!("request {id} came back twice")))?;
        let Some(request) = self.slots[slot].take() else { return Ok(()) };
        self.busy[request.block as usize] = false;
        let status = self.front.status(slot as u16);
        if status != 0 {
            return Err(Failure::new(format!("block {}: status {status}", request.block)));
        }
        match request.writes {
            Some(version) => self.versions[request.block as usize] = version,
            None if written as usize != client::BLOCK + 1 => {
                return Err(Failure::new(format!("a read of block {} wrote {written} bytes", request.block)));
            }
            None => self.check(request.block, &self.front.data(slot as u16))?,
        }
        Ok(())
    }

    fn check(&self, block: u64, found: &[u8]) -> Result<(), Failure> {
        let version = self.versions[block as usize];
        let expected = if version == 0 { vec![0; found.len()] } else { pattern(block, version) };
        if found == expected {
            return Ok(());
        }
        let (found, expected) = (&found[..8], &expected[..8]);
        Err(Failure::new(format!("block {block} is not what write {version} left: {found:02x?}, not {expected:02x?}")))
    }

    /// After the last completion: nothing more came, everything is where the model says, the connection stands.
    fn settle(&mut self) -> Result<(), Failure> {
        if self.front.settings.format == Format::Split {
            // A completion the driver cannot place is dropped by it; the ring's own count tells.
            let layout = Layout::new(Format::Split, self.front.settings.size);
            let bytes = self.front.memory.read(layout.device as u64 + 2, 2);
            let used = u16::from_le_bytes([bytes[0], bytes[1]]);
            if used != self.completions as u16 {
                return Err(Failure::new(format!(
                    "the used ring counts {used} completions, the driver had {} (modulo 2^16)",
                    self.completions as u16
                )));
            }
        }
        for block in 0..BLOCKS {
            let found = self.front.read_block(block)?;
            self.check(block, &found)?;
        }
        self.front.call(&Message::GetFeatures, &[]).context("the connection")?;
        if self.front.error_signalled(Duration::ZERO) {
            return Err(Failure::new("the ring was declared broken"));
        }
        Ok(())
    }
}

/// Devices by name, and how their drivers use them.
fn devices() -> Vec<(String, bool, Settings)> {
    let mut all = Vec::new();
    for file in [false, true] {
        for format in [Format::Split, Format::Packed] {
            for inflight in [false, true] {
                let kind = if file { "file" } else { "memory" };
                let ring = if format == Format::Split { "split" } else { "packed" };
                let whose = if inflight { "shared" } else { "own" };
                let settings = Settings { format, size: 128, event_idx: true, inflight, ..Settings::SPLIT };
                all.push((format!("{kind}-{ring}-{whose}"), file, settings));
            }
        }
    }
    all
}

fn site(devices: &[(String, bool, Settings)]) -> String {
    let mut site = String::from("[node]\ndataplane = { cores = [0] }\n");
    for (name, file, _) in devices {
        let kept = if *file {
            format!("file = {{ path = \"{name}.img\", size = \"1 MiB\" }}")
        } else {
            "memory = { size = \"1 MiB\" }".to_owned()
        };
        site += &format!("\n[[volume]]\nname = \"{name}\"\n{kept}\n\n[[device]]\nname = \"{name}-disk\"\n");
        site += &format!("virtio-blk = {{ volume = \"{name}\", packed = true, socket = \"{name}-disk.sock\" }}\n");
    }
    site
}

fn kills() -> Result<u32, Failure> {
    std::env::var("SOFTDPU_KILLS").map_or(Ok(20), |text| text.parse().context("SOFTDPU_KILLS"))
}

fn survive(lab: &Lab) -> Result<(), Failure> {
    let mut random = Random::from_environment();
    eprintln!("SOFTDPU_SEED={}", random.seed);
    let devices = devices();
    let mut daemon = Daemon::start(lab.path(), &site(&devices))?;
    let mut threads = Vec::new();
    for (at, (name, _, settings)) in devices.iter().enumerate() {
        let mut worker = Worker::new(&daemon.device_socket(name), *settings, random.seed ^ (at as u64) << 32)?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            if let Err(error) = worker.run(&theirs) {
                *theirs.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
            }
            worker
        });
        threads.push((name.as_str(), shared, thread));
    }
    let check = |threads: &[(&str, Arc<Shared>, std::thread::JoinHandle<Worker>)]| {
        for (name, shared, _) in threads {
            if let Some(error) = &*shared.error.lock().unwrap_or_else(PoisonError::into_inner) {
                return Err(Failure::new(format!("{name}: {error}")));
            }
        }
        Ok(())
    };
    let kills = kills()?;
    let mut firsts = Vec::new();
    for kill in 1..=kills {
        std::thread::sleep(random.between(LEAST_PAUSE, MOST_PAUSE));
        check(&threads)?;
        threads.iter().for_each(|(_, shared, _)| shared.gap_us.store(0, Relaxed));
        let restarted = daemon.kill_data_plane()?;
        let first = wait_until("the first completion after a kill", PATIENCE, || {
            check(&threads)?;
            Ok(daemon.first_completion_after_restart().ok())
        })?;
        let counts: Vec<u64> = threads.iter().map(|(_, shared, _)| shared.completions.load(Relaxed)).collect();
        wait_until("every driver to go on after a kill", PATIENCE, || {
            check(&threads)?;
            let on =
                threads.iter().zip(&counts).all(|((_, shared, _), count)| shared.completions.load(Relaxed) > *count);
            Ok(on.then_some(()))
        })?;
        let gap = threads.iter().map(|(_, shared, _)| shared.gap_us.load(Relaxed)).max().unwrap_or(0);
        eprintln!(
            "kill {kill:3}: status shows the next after {:6.1} ms, first completion {:6.1} ms, longest gap of a driver {:6.1} ms",
            restarted.as_secs_f64() * 1e3,
            first.as_secs_f64() * 1e3,
            gap as f64 / 1e3
        );
        firsts.push(first);
    }
    threads.iter().for_each(|(_, shared, _)| shared.stop.store(true, Relaxed));
    let (mut workers, mut total) = (Vec::new(), 0);
    for (name, shared, thread) in threads {
        let worker = thread.join().map_err(|_| Failure::new(format!("{name}: its driver panicked")))?;
        if let Some(error) = shared.error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(Failure::new(format!("{name}: {error}")));
        }
        total += worker.completions;
        workers.push((name, worker));
    }
    // Old writes and late completions get the time to show.
    std::thread::sleep(Duration::from_millis(300));
    for (name, worker) in &mut workers {
        worker.settle().map_err(|error| Failure::new(format!("{name}: {error}")))?;
    }
    assert_eq!(daemon.data_plane()?.1, u64::from(kills), "status counts other restarts than there were kills");
    firsts.sort();
    let millis = |time: Option<&Duration>| time.map_or(0.0, |time| time.as_secs_f64() * 1e3);
    eprintln!(
        "{kills} kills, {} drivers, {total} requests: first completion after {:.1} ms (median), {:.1} ms (worst)",
        workers.len(),
        millis(firsts.get(firsts.len() / 2)),
        millis(firsts.last())
    );
    daemon.stop()
}

#[test]
fn drivers_lose_nothing_and_get_nothing_twice_when_the_data_plane_is_killed() {
    Lab::run("kill-client", survive);
}
