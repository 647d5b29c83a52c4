//! Interrupts into an eventfd that blocks its writers.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_setfl};
use softdpu_tests::{Context, Failure};

use crate::client::{FrontEnd, MEMORY, Memory, PATIENCE, Settings};

/// The most that an eventfd holds (eventfd(2)): a write of anything more waits.
const FULL: u64 = u64::MAX - 1;

/// Between two polls of a driver that takes no interrupts.
const LOOK: Duration = Duration::from_micros(20);

/// A front end that reads, one block after the other, while another of its threads makes its call eventfd a wall: full,
/// and blocking, with a moment in between in which it is neither, so that no look at it says what it is a moment later.
///
/// How many reads came back within `time`, and how often the wall was built.
pub fn read_behind_a_wall(socket: &Path, time: Duration) -> Result<(u64, u64), Failure> {
    let mut front = FrontEnd::start(socket, Arc::new(Memory::new(MEMORY)?), Settings::SPLIT)?;
    let call = front.call.try_clone().context("copying an eventfd")?;
    let (over, built) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let builder = scope.spawn(|| {
            while !over.load(Relaxed) {
                build(&call)?;
                built.fetch_add(1, Relaxed);
            }
            Ok::<_, Failure>(())
        });
        let reads = read(&mut front, time);
        over.store(true, Relaxed);
        builder.join().map_err(|_| Failure::new("the builder panicked"))??;
        Ok((reads?, built.load(Relaxed)))
    })
}

fn build(call: &OwnedFd) -> Result<(), Failure> {
    fcntl_setfl(call, OFlags::NONBLOCK).context("fcntl")?;
    // Either may find it otherwise: the daemon rings meanwhile.
    let _ = rustix::io::read(call, &mut [0; 8]);
    let _ = rustix::io::write(call, &FULL.to_ne_bytes());
    fcntl_setfl(call, OFlags::empty()).context("fcntl")?;
    std::thread::sleep(LOOK * 5);
    Ok(())
}

fn read(front: &mut FrontEnd, time: Duration) -> Result<u64, Failure> {
    let start = Instant::now();
    let mut reads = 0;
    while start.elapsed() < time {
        let asked = Instant::now();
        front.add(0, 0, None).ok_or_else(|| Failure::new("the ring has no room for one request"))?;
        front.publish();
        while front.driver.take().is_none() {
            if asked.elapsed() > PATIENCE {
                return Err(Failure::new(format!("a read did not come back; {reads} had")));
            }
            std::thread::sleep(LOOK);
        }
        if front.status(0) != 0 {
            return Err(Failure::new(format!("a read ended with status {}", front.status(0))));
        }
        reads += 1;
    }
    Ok(reads)
}
