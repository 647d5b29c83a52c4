//! Reproducible randomness, for kill times and made-up input: splitmix64 (Steele, Lea, Flood 2014), seeded by a number
//! that a failure prints. It is not a library's: with another version those may give other numbers, and a
//! seed that was printed is to repeat its run.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A stream of numbers that its seed determines.
pub struct Random {
    state: u64,
    /// The seed; `SOFTDPU_SEED` sets it to repeat a run.
    pub seed: u64,
}

impl Random {
    /// From `SOFTDPU_SEED`, or from the clock.
    pub fn from_environment() -> Random {
        let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
        let seed = std::env::var("SOFTDPU_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(clock);
        Random::new(seed)
    }

    /// The stream of `seed`: the same in every run.
    pub fn new(seed: u64) -> Random {
        Random { state: seed, seed }
    }

    /// A number from 0 up to, and without, `end`, which is not 0.
    pub fn below(&mut self, end: u32) -> u32 {
        ((self.next() >> 32) % u64::from(end)) as u32
    }

    /// One of `all`, of which there is one at least.
    pub fn one_of<T: Copy, const N: usize>(&mut self, all: [T; N]) -> T {
        all[self.below(N as u32) as usize]
    }

    /// True one time in `count`.
    pub fn is_one_in(&mut self, count: u32) -> bool {
        self.below(count) == 0
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A duration between `least` and `most`.
    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = most.saturating_sub(least).as_micros() as u64;
        least + Duration::from_micros(self.next() % span.max(1))
    }
}
