//! Two things measured in turn, many times in one run, and what their ratios say: an interval of the median, which
//! assumes nothing of how they are spread.
//!
//! A machine that does something else for a moment disturbs single pairs. It does not move the interval, as long as
//! fewer pairs are disturbed than lie outside of it: 3 on either side of 15.

use std::fmt;

use crate::Failure;

/// How often the interval may miss the true median.
const MISSES: f64 = 0.05;

/// Values of many pairs, or of many windows, of one run.
#[derive(Clone, Debug)]
pub struct Interval {
    sorted: Vec<f64>,
    /// Values outside of the interval, on either side.
    outside: usize,
}

impl Interval {
    /// Of at least six values: of fewer no interval misses the median rarely enough.
    ///
    /// # Errors
    /// Says how many there are, if they are too few.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Result<Interval, Failure> {
        let mut sorted: Vec<f64> = values.into_iter().collect();
        sorted.sort_by(f64::total_cmp);
        match outside(sorted.len()) {
            Some(outside) => Ok(Interval { sorted, outside }),
            None => Err(Failure::new(format!("{} values have no interval", sorted.len()))),
        }
    }

    /// Measures `count` pairs, the second before the first in every other one, and takes the ratio of the first over
    /// the second of each.
    ///
    /// # Errors
    /// Those of the measurements.
    pub fn of_ratios(
        count: usize,
        mut first: impl FnMut() -> Result<f64, Failure>,
        mut second: impl FnMut() -> Result<f64, Failure>,
    ) -> Result<Interval, Failure> {
        let mut ratios = Vec::with_capacity(count);
        for pair in 0..count {
            let (over, under) = if pair % 2 == 0 {
                let over = first()?;
                (over, second()?)
            } else {
                let under = second()?;
                (first()?, under)
            };
            ratios.push(over / under);
        }
        Interval::new(ratios)
    }

    /// The value in the middle.
    pub fn median(&self) -> f64 {
        self.sorted[self.sorted.len() / 2]
    }

    /// The median is at least this.
    pub fn least(&self) -> f64 {
        self.sorted[self.outside]
    }

    /// The median is at most this.
    pub fn most(&self) -> f64 {
        self.sorted[self.sorted.len() - 1 - self.outside]
    }

    /// Holds the whole interval to a lower bound.
    ///
    /// # Errors
    /// Says what all values were.
    pub fn is_at_least(&self, bound: f64, what: &str) -> Result<(), Failure> {
        println!("{what}: {self}, to be at least {bound}");
        if self.least() >= bound {
            return Ok(());
        }
        Err(Failure::new(format!("{what}: {self} is not at least {bound}: {:.3?}", self.sorted)))
    }

    /// Holds the whole interval to an upper bound.
    ///
    /// # Errors
    /// Says what all values were.
    pub fn is_at_most(&self, bound: f64, what: &str) -> Result<(), Failure> {
        println!("{what}: {self}, to be at most {bound}");
        if self.most() <= bound {
            return Ok(());
        }
        Err(Failure::new(format!("{what}: {self} is not at most {bound}: {:.3?}", self.sorted)))
    }
}

impl fmt::Display for Interval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (median, least, most, count) = (self.median(), self.least(), self.most(), self.sorted.len());
        write!(f, "{median:.3} ({least:.3} to {most:.3}, {count} values)")
    }
}

/// Values to leave out on either side so that the rest holds the median often enough: the sign test, whose counts are
/// binomial.
fn outside(count: usize) -> Option<usize> {
    let mut ways = 1.0;
    let mut below = 0.0;
    let mut outside = None;
    for left_out in 0..count.div_ceil(2) {
        // At most so many of all values are on one side of the median, on either side.
        below += ways * 0.5_f64.powi(count as i32);
        if 2.0 * below > MISSES {
            break;
        }
        outside = Some(left_out);
        ways *= (count - left_out) as f64 / (left_out + 1) as f64;
    }
    outside
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_is_that_of_the_tables_of_the_sign_test() {
        // Order statistics for 95 %, as tables have them: the first and last of 6, the 2nd of 9, the 4th of 15.
        assert_eq!(
            [5, 6, 8, 9, 12, 15, 20, 25].map(outside),
            [None, Some(0), Some(0), Some(1), Some(2), Some(3), Some(5), Some(7)]
        );
    }

    #[test]
    fn a_few_disturbed_pairs_do_not_move_it() {
        let values = (0..15).map(|at| if at < 3 { 1000.0 } else { 1.0 + f64::from(at) / 100.0 });
        let interval = Interval::new(values).unwrap();
        assert!(interval.most() < 1.2 && interval.is_at_most(1.2, "values").is_ok());
        assert!(interval.is_at_least(1.2, "values").is_err());
        assert!(Interval::new([1.0; 5]).is_err());
    }

    #[test]
    fn pairs_change_their_order() {
        let order = std::cell::RefCell::new(String::new());
        let measure = |name, value| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                Ok(value)
            }
        };
        let interval = Interval::of_ratios(6, measure('a', 3.0), measure('b', 2.0)).unwrap();
        assert_eq!(*order.borrow(), "abbaabbaabba");
        assert_eq!((interval.least(), interval.most()), (1.5, 1.5));
    }
}
