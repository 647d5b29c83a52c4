//! Numbers that are the same everywhere for the same seed.
//!
//! xoshiro256** (Blackman and Vigna, 2018), seeded by SplitMix64. Distributions are drawn here, as those of `rand` and
//! `rand_distr` may change with a release, and the exponential one there takes a logarithm, which is not rounded the
//! same way on every platform.

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// A generator of pseudo-random numbers. Not for secrets.
#[derive(Clone, Debug)]
pub struct Random(Xoshiro256StarStar);

impl Random {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Random {
        Random(Xoshiro256StarStar::seed_from_u64(seed))
    }

    /// Another generator, which this one's later numbers do not depend on.
    pub fn fork(&mut self) -> Random {
        Random::new(self.bits())
    }

    /// 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `bound`, which is at least 1. Off from uniform by less than `bound` in 2^64.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `from` to `to`, both possible.
    #[inline]
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below((to - from).saturating_add(1))
    }

    /// Whether something happens that does so many times in a hundred.
    #[inline]
    pub fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// One of several.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// Exponentially distributed around `mean`, in the unit of `mean`: von Neumann's method (1951), by comparisons
    /// alone.
    pub fn exponential(&mut self, mean: u64) -> u64 {
        let mut whole = 0_u64;
        loop {
            let first = self.bits();
            let (mut last, mut length) = (first, 1);
            loop {
                let next = self.bits();
                if next >= last {
                    break;
                }
                last = next;
                length += 1;
            }
            if length % 2 == 1 {
                let part = (u128::from(first) * u128::from(mean)) >> 64;
                return whole.saturating_mul(mean).saturating_add(part as u64);
            }
            whole += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_numbers_on_every_machine() {
        let mut random = Random::new(1);
        let first: Vec<u64> = (0..3).map(|_| random.bits()).collect();
        assert_eq!(first, [0xb3f2_af6d_0fc7_10c5, 0x853b_5596_4736_4cea, 0x92f8_9756_082a_4514]);
    }

    #[test]
    fn the_exponential_distribution_is_one() {
        let mut random = Random::new(7);
        let values: Vec<u64> = (0..200_000).map(|_| random.exponential(1_000_000)).collect();
        let mean = values.iter().sum::<u64>() as f64 / values.len() as f64;
        assert!((mean / 1e6 - 1.0).abs() < 0.01, "{mean}");
        // P(X > 2 mean) = e^-2 = 0.1353.
        let beyond = values.iter().filter(|value| **value > 2_000_000).count() as f64 / values.len() as f64;
        assert!((beyond - 0.1353).abs() < 0.003, "{beyond}");
    }

    #[test]
    fn below_stays_below_and_reaches_both_ends() {
        let mut random = Random::new(3);
        let values: Vec<u64> = (0..1_000).map(|_| random.between(5, 9)).collect();
        assert_eq!((values.iter().min(), values.iter().max()), (Some(&5), Some(&9)));
    }
}
