//! Drivers that verify everything themselves: no completion may be lost or doubled, no write may be lost or land late,
//! no connection may drop, whatever becomes of the data plane meanwhile.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use softdpu_ring::Format;
use softdpu_ring::driver::Layout;
use softdpu_tests::{Context, Daemon, Failure, wait_until};
use softdpu_transport::vhost_user::Message;

use super::{BLOCK, FrontEnd, MEMORY, Memory, PATIENCE, Settings, pattern, signalled};

/// Requests each driver has outstanding.
const DEPTH: u16 = 32;
/// Blocks each driver works on: few, so that writes to one follow each other closely.
const BLOCKS: u64 = 128;

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
            None if written as usize != BLOCK + 1 => {
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

/// A device, and how its driver uses it.
#[derive(Clone)]
pub struct Device {
    pub name: String,
    /// It is on a file, otherwise in memory.
    file: bool,
    settings: Settings,
}

/// Eight devices: of split and packed format, with the in-flight region at the front end or not, on a memory or a file
/// volume.
pub fn devices() -> Vec<Device> {
    let mut all = Vec::new();
    for file in [false, true] {
        for format in [Format::Split, Format::Packed] {
            for inflight in [false, true] {
                let kind = if file { "file" } else { "memory" };
                let ring = if format == Format::Split { "split" } else { "packed" };
                let records = if inflight { "shared" } else { "own" };
                let settings = Settings { format, size: 128, event_idx: true, inflight, ..Settings::SPLIT };
                all.push(Device { name: format!("{kind}-{ring}-{records}"), file, settings });
            }
        }
    }
    all
}

/// The site that has these devices.
pub fn site(devices: &[Device]) -> String {
    let mut site = String::from("[node]\ndataplane = { cores = [0] }\n");
    for Device { name, file, .. } in devices {
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

/// A driver on each device, at work on a thread of its own.
pub struct Drivers {
    threads: Vec<(String, Arc<Shared>, JoinHandle<Worker>)>,
}

impl Drivers {
    /// Starts them; `seed` is of what they do.
    pub fn start(daemon: &Daemon, devices: &[Device], seed: u64) -> Result<Drivers, Failure> {
        let mut threads = Vec::new();
        for (at, device) in devices.iter().enumerate() {
            let socket = daemon.device_socket(&device.name);
            let mut worker = Worker::new(&socket, device.settings, seed ^ (at as u64) << 32)?;
            let shared = Arc::new(Shared::default());
            let theirs = Arc::clone(&shared);
            let thread = std::thread::spawn(move || {
                if let Err(error) = worker.run(&theirs) {
                    *theirs.error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
                }
                worker
            });
            threads.push((device.name.clone(), shared, thread));
        }
        Ok(Drivers { threads })
    }

    /// That none has found a fault.
    pub fn check(&self) -> Result<(), Failure> {
        for (name, shared, _) in &self.threads {
            if let Some(error) = &*shared.error.lock().unwrap_or_else(PoisonError::into_inner) {
                return Err(Failure::new(format!("{name}: {error}")));
            }
        }
        Ok(())
    }

    /// Measures gaps from now on.
    pub fn forget_gaps(&self) {
        self.threads.iter().for_each(|(_, shared, _)| shared.gap_us.store(0, Relaxed));
    }

    /// The longest time for which a driver had no completion since [`forget_gaps`](Self::forget_gaps).
    pub fn longest_gap(&self) -> Duration {
        let gaps = self.threads.iter().map(|(_, shared, _)| shared.gap_us.load(Relaxed));
        Duration::from_micros(gaps.max().unwrap_or(0))
    }

    /// Waits until each has a completion more.
    pub fn go_on(&self, after: &str) -> Result<(), Failure> {
        let counts: Vec<u64> = self.threads.iter().map(|(_, shared, _)| shared.completions.load(Relaxed)).collect();
        wait_until(&format!("every driver to go on after {after}"), PATIENCE, || {
            self.check()?;
            let mut pairs = self.threads.iter().zip(&counts);
            let on = pairs.all(|((_, shared, _), count)| shared.completions.load(Relaxed) > *count);
            Ok(on.then_some(()))
        })
    }

    /// Stops them and checks every block; how many requests they had.
    pub fn settle(self) -> Result<u64, Failure> {
        self.threads.iter().for_each(|(_, shared, _)| shared.stop.store(true, Relaxed));
        let (mut workers, mut total) = (Vec::new(), 0);
        for (name, shared, thread) in self.threads {
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
        Ok(total)
    }
}
