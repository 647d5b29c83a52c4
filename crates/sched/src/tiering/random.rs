//! Draws from Beta distributions, the same on every machine.

/// SplitMix64 (Steele et al., OOPSLA '14). Not for secrets.
#[derive(Clone, Debug)]
pub(super) struct Draws(u64);

impl Draws {
    pub fn new(seed: u64) -> Draws {
        Draws(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A draw from Beta(a, b) in 2^-32, for a and b of at least 1 and at most [`MOST`] together: of a + b - 1 uniform
    /// numbers the a-th smallest is distributed so. No logarithm, which machines round differently.
    pub fn beta(&mut self, a: u32, b: u32) -> u32 {
        let count = ((a + b - 1) as usize).clamp(1, MOST);
        let mut uniform = [0_u32; MOST];
        let uniform = &mut uniform[..count];
        uniform.fill_with(|| (self.bits() >> 32) as u32);
        let at = (a as usize - 1).min(count - 1);
        *uniform.select_nth_unstable(at).1
    }
}

/// The most that both parameters may be together.
pub(super) const MOST: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_have_the_mean_and_the_spread_of_the_distribution() {
        for (a, b) in [(1, 1), (2, 6), (20, 4)] {
            let mut draws = Draws::new(9);
            let values: Vec<f64> = (0..20_000).map(|_| f64::from(draws.beta(a, b)) / 2_f64.powi(32)).collect();
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            let spread = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
            let (a, b) = (f64::from(a), f64::from(b));
            let expected = a * b / ((a + b).powi(2) * (a + b + 1.0));
            assert!((mean - a / (a + b)).abs() < 0.01, "{a} {b}: {mean}");
            assert!((spread / expected - 1.0).abs() < 0.05, "{a} {b}: {spread} {expected}");
        }
    }
}
