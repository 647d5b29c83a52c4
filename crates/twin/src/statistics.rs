//! Medians over seeds, with intervals that assume nothing about how values are distributed.

/// The median of some values, and an interval that holds the true median with a probability of at least 95 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The median.
    pub median: f64,
    /// The interval's lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
}

impl Estimate {
    /// Of some values, at least one.
    ///
    /// The ends are order statistics (the sign test's interval): of n values the k-th from either end leaves out the
    /// true median with probability 2 P(Bin(n, ½) < k). The largest k for which that is at most 5 % is taken; of ten
    /// values it is 2 (2.1 %). With fewer than six values no interval has 95 %: then it is from the least to the most.
    pub fn of(values: &[f64]) -> Estimate {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        if count == 0 {
            return Estimate { median: 0.0, low: 0.0, high: 0.0 };
        }
        let median = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0;
        let left_out = left_out(count);
        Estimate { median, low: sorted[left_out], high: sorted[count - 1 - left_out] }
    }
}

/// How many values at either end are outside of the interval.
fn left_out(count: usize) -> usize {
    let (mut term, mut below, mut out) = (0.5_f64.powi(count as i32), 0.0, 0);
    // `below` is P(Bin(count, ½) <= out) after its turn.
    for k in 0..count / 2 {
        below += term;
        if 2.0 * below > 0.05 {
            break;
        }
        out = k + 1;
        term *= (count - k) as f64 / (k + 1) as f64;
    }
    // `out` values may be left out less one: the interval's end is the `out`-th from the end.
    out.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_tables_for_the_sign_test() {
        // From the end, counted from 1 (e.g. Conover 1999, table A3): 6: 1, 10: 2, 15: 4, 20: 6.
        for (count, rank) in [(6, 1), (10, 2), (15, 4), (20, 6)] {
            assert_eq!(left_out(count) + 1, rank, "{count}");
        }
        let values: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        assert_eq!(Estimate::of(&values), Estimate { median: 5.5, low: 2.0, high: 9.0 });
        assert_eq!(Estimate::of(&[3.0, 1.0, 2.0]), Estimate { median: 2.0, low: 1.0, high: 3.0 });
        assert_eq!(Estimate::of(&[7.0]), Estimate { median: 7.0, low: 7.0, high: 7.0 });
    }
}
