//! How many values there were of each size.
//!
//! Not hdrhistogram: its quantiles are the upper ends of its buckets, these are middles, and the mean here is exact.
//! The twin's recorded figures would change with it.

/// Counts of values, by their first six bits: a quantile is off by less than a thirty-second.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
}

/// Steps within a power of two, as a power of two.
const BITS: u32 = 5;

impl Histogram {
    /// One more value.
    #[inline]
    pub fn add(&mut self, value: u64) {
        let slot = slot(value);
        if self.counts.len() <= slot {
            self.counts.resize(slot + 1, 0);
        }
        self.counts[slot] += 1;
        self.count += 1;
        self.sum += u128::from(value);
    }

    /// All of another one's.
    pub fn merge(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        self.counts.iter_mut().zip(&other.counts).for_each(|(own, others)| *own += others);
        self.count += other.count;
        self.sum += other.sum;
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their mean; 0 where there are none.
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// The value that a share `quantile` of them does not exceed; 0 where there are none.
    pub fn quantile(&self, quantile: f64) -> u64 {
        let rank = ((self.count as f64 * quantile).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        for (slot, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return middle(slot);
            }
        }
        0
    }
}

fn slot(value: u64) -> usize {
    if value < 1 << BITS {
        return value as usize;
    }
    let power = value.ilog2() - BITS;
    (((power as u64) << BITS) + (value >> power)) as usize
}

fn middle(slot: usize) -> u64 {
    let slot = slot as u64;
    if slot < 2 << BITS {
        return slot;
    }
    let power = (slot >> BITS) - 1;
    let first = ((slot & ((1 << BITS) - 1)) | 1 << BITS) << power;
    first + (1 << power) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_near_what_they_are() {
        let mut histogram = Histogram::default();
        for value in 1..=100_000_u64 {
            histogram.add(value);
        }
        for quantile in [0.01, 0.5, 0.99, 1.0] {
            let (found, exact) = (histogram.quantile(quantile) as f64, quantile * 1e5);
            assert!((found / exact - 1.0).abs() < 1.0 / 32.0, "{quantile}: {found}");
        }
        assert_eq!(histogram.mean(), 50_000.5);
    }

    #[test]
    fn slots_follow_one_another_and_hold_what_is_in_them() {
        for value in (0..5_000).chain([u64::MAX - 1, u64::MAX]) {
            let off = middle(slot(value)).abs_diff(value);
            assert!(off <= value / 32, "{value} {off}");
            assert!(slot(value) <= slot(value.saturating_add(1)));
        }
    }
}
