//! A clock cheap enough to read in every round of a polling loop.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds since the first use of this clock in the process.
///
/// Reads the time-stamp counter where the processor has an invariant one (a few nanoseconds a read), and the kernel's
/// monotonic clock elsewhere. Readings of different threads agree to within what the hardware keeps its counters to.
#[inline(always)]
pub fn now() -> u64 {
    let scale = scale();
    match scale.mult {
        0 => scale.origin.elapsed().as_nanos() as u64,
        // mult is in 2^-32 nanoseconds a tick; 128 bits hold the product for any counter value.
        mult => ((u128::from(ticks().saturating_sub(scale.base)) * u128::from(mult)) >> 32) as u64,
    }
}

/// How often the time-stamp counter ticks in a nanosecond: what people call cycles when they compare. None: the clock
/// is not made of one.
pub fn ticks_per_nanosecond() -> Option<f64> {
    let mult = scale().mult;
    (mult != 0).then(|| (1u64 << 32) as f64 / mult as f64)
}

/// Nanoseconds that this thread has run so far: a system call.
pub fn thread_time() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

/// How often this thread has waited for something so far, other than for a CPU: a system call.
pub fn thread_waits() -> u64 {
    // SAFETY: the call writes one rusage, for which zeroes are a value, to where the pointer shows.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage);
        usage
    };
    usage.ru_nvcsw as u64
}

struct Scale {
    origin: Instant,
    base: u64,
    /// Nanoseconds per tick times 2^32; 0: no usable counter.
    mult: u64,
}

#[inline(always)]
fn scale() -> &'static Scale {
    static SCALE: OnceLock<Scale> = OnceLock::new();
    SCALE.get_or_init(calibrate)
}

#[inline(always)]
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: RDTSC is available to user space on every Linux system that has not disabled it, which would show in
    // `calibrate` as a fault at start, not later.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// How long the rate is measured: two milliseconds against the kernel's clock give it to within some 50 ppm, and a data
/// plane that is started again has guests waiting.
const CALIBRATION: Duration = Duration::from_millis(2);

fn calibrate() -> Scale {
    let (origin, base) = both_clocks();
    if !invariant_counter() {
        return Scale { origin, base, mult: 0 };
    }
    while origin.elapsed() < CALIBRATION {
        std::hint::spin_loop();
    }
    let (end, last) = both_clocks();
    let nanos = end.duration_since(origin).as_nanos();
    let mult = (nanos << 32).checked_div(u128::from(last.wrapping_sub(base))).unwrap_or(0) as u64;
    Scale { origin, base, mult }
}

/// One moment on both clocks: of several tries the one in which the least time passed between the readings, as the
/// thread may lose its processor there.
fn both_clocks() -> (Instant, u64) {
    let read = || {
        let before = ticks();
        let instant = Instant::now();
        let after = ticks();
        (after.wrapping_sub(before), instant, before)
    };
    let (_, instant, ticks) = (0..16).map(|_| read()).min_by_key(|(gap, ..)| *gap).unwrap_or_else(read);
    (instant, ticks)
}

fn invariant_counter() -> bool {
    // The kernel has done the work of deciding whether the counter can be trusted.
    std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .map(|source| source.trim() == "tsc")
        .unwrap_or(false)
        && std::fs::read_to_string("/proc/cpuinfo").is_ok_and(|text| text.contains("constant_tsc"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_sleeps_has_waited() {
        let before = thread_waits();
        std::thread::sleep(Duration::from_millis(1));
        assert!(thread_waits() > before);
    }

    #[test]
    fn it_advances_with_the_kernels_clock() {
        now();
        // Between the two looks of a pair the machine may do something else.
        let mut tries = (0..10).map(|_| {
            let (start, wall) = (now(), Instant::now());
            std::thread::sleep(Duration::from_millis(50));
            (now() - start, wall.elapsed().as_nanos() as u64)
        });
        let agree = |(ours, theirs): &(u64, u64)| ours.abs_diff(*theirs) as f64 / (*theirs as f64) < 0.02;
        assert!(tries.any(|times| agree(&times)), "this clock and the kernel's never agreed on 50 ms");
    }
}
