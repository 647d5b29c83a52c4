//! What the machine can do with no server in between: the floor under every latency in a report.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::{Duration, Instant};

use softdpu_sys::{affinity, clock};

/// A counter on a cache line of its own (two, as processors fetch pairs).
#[repr(align(128))]
struct CacheLine(AtomicU64);

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// One word to the other CPU and one back, nanoseconds: what a polled request cannot be faster than.
    pub two_hops: f64,
    /// Reading the clock, nanoseconds: the client does it once a batch.
    pub clock: f64,
}

/// Bounces a word between two CPUs for about `duration`.
///
/// # Errors
/// A CPU that this process may not use.
pub fn calibrate(here: usize, there: usize, duration: Duration) -> Result<Calibration, String> {
    let (ping, pong, stop) = (CacheLine(AtomicU64::new(0)), CacheLine(AtomicU64::new(0)), AtomicBool::new(false));
    let pin = |cpu: usize| affinity::pin_to(cpu).map_err(|error| format!("cannot run on CPU {cpu}: {error}"));
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| {
            // Else the other side would wait for an echo for ever.
            pin(there).inspect_err(|_| stop.store(true, Relaxed))?;
            let mut seen = 0;
            while !stop.load(Relaxed) {
                let value = ping.0.load(Acquire);
                if value != seen {
                    seen = value;
                    pong.0.store(value, Release);
                }
            }
            Ok::<(), String>(())
        });
        let bounce = scope.spawn(|| {
            let result = pin(here).map(|()| {
                let start = Instant::now();
                let mut count = 0u64;
                while start.elapsed() < duration && !stop.load(Relaxed) {
                    for _ in 0..1000 {
                        count += 1;
                        ping.0.store(count, Release);
                        while pong.0.load(Acquire) != count && !stop.load(Relaxed) {}
                    }
                }
                start.elapsed().as_nanos() as f64 / count as f64
            });
            stop.store(true, Relaxed);
            result
        });
        let two_hops = bounce.join().map_err(|_| "the calibration loop panicked".to_owned())?;
        echo.join().map_err(|_| "the calibration loop panicked".to_owned())??;
        let two_hops = two_hops?;
        Ok(Calibration { two_hops, clock: clock_cost() })
    })
}

fn clock_cost() -> f64 {
    const READS: u32 = 100_000;
    let start = clock::now();
    for _ in 0..READS {
        std::hint::black_box(clock::now());
    }
    (clock::now() - start) as f64 / f64::from(READS)
}
