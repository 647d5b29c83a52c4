//! The values of one figure, round by round.

/// The values of one figure, in the order in which they were measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<f64>);

/// The middle and the ends of [`Samples`]; zeroes of none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Spread {
    /// The value in the middle, or the mean of the two that are.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The largest.
    pub most: f64,
}

impl Samples {
    /// Appends a value.
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The value of the last round.
    pub fn last(&self) -> Option<f64> {
        self.0.last().copied()
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The values, in the order in which they were measured.
    pub fn iter(&self) -> impl Iterator<Item = f64> {
        self.0.iter().copied()
    }

    /// Each value over `other`'s of the same round: what changes on the machine between rounds is not in it.
    pub fn over(&self, other: &Samples) -> Samples {
        self.iter().zip(other.iter()).map(|(one, other)| one / other.max(f64::MIN_POSITIVE)).collect()
    }

    /// The median.
    pub fn median(&self) -> f64 {
        self.spread().median
    }

    /// Median, least and largest.
    pub fn spread(&self) -> Spread {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let (Some(&least), Some(&most)) = (sorted.first(), sorted.last()) else { return Spread::default() };
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Spread { median, least, most }
    }

    /// An interval that holds the true median with a probability of at least 95 %: order statistics, as of the sign
    /// test. From the least to the most of fewer than six values, which have none.
    pub fn interval(&self) -> (f64, f64) {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let count = sorted.len();
        // Of `count` coins, at most `outside` show heads with a probability of less than 2.5 %.
        let (mut outside, mut chance, mut tail) = (0, 0.5_f64.powi(count as i32), 0.0);
        while 2 * outside + 1 < count && tail + chance <= 0.025 {
            tail += chance;
            chance *= (count - outside) as f64 / (outside + 1) as f64;
            outside += 1;
        }
        let from = outside.saturating_sub(1);
        match sorted.get(from..count - from) {
            Some([least, .., most]) => (*least, *most),
            Some([only]) => (*only, *only),
            _ => (0.0, 0.0),
        }
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Samples {
        Samples(values.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_the_mean_of_both() {
        let of = |values: &[f64]| values.iter().copied().collect::<Samples>().spread();
        assert_eq!(of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, least: 1.0, most: 3.0 });
        assert_eq!(of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
        assert_eq!(of(&[]), Spread::default());
    }

    #[test]
    fn intervals_are_those_of_the_tables_for_the_sign_test() {
        let interval = |count: u32| (1..=count).map(f64::from).collect::<Samples>().interval();
        assert_eq!(interval(5), (1.0, 5.0), "no interval has 95 %");
        assert_eq!(interval(8), (1.0, 8.0));
        assert_eq!(interval(15), (4.0, 12.0));
        assert_eq!(interval(20), (6.0, 15.0));
        assert_eq!((interval(1), interval(0)), ((1.0, 1.0), (0.0, 0.0)));
    }

    #[test]
    fn ratios_are_of_values_of_the_same_round() {
        let [ours, theirs] = [[2.0, 9.0], [1.0, 3.0]].map(Samples::from_iter);
        assert_eq!(ours.over(&theirs), Samples::from_iter([2.0, 3.0]));
    }
}
