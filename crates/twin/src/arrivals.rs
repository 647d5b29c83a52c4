//! When work comes.

use std::sync::Arc;

use crate::random::Random;

/// A law of arrivals. Times are nanoseconds of simulated time.
#[derive(Clone, Debug)]
pub enum Arrivals {
    /// One every so often, exactly. In 2^-10 ns.
    Paced(u64),
    /// Independently of one another, so far apart on average. In 2^-10 ns.
    Poisson(u64),
    /// As Poisson, and from each time on with another mean; before the first there are none.
    Steps(Arc<[(u64, u64)]>),
    /// Bursts: as Poisson for about `on` nanoseconds, nothing for about `off`; both exponentially distributed.
    OnOff {
        /// Mean length of a burst.
        on: u64,
        /// Mean length of a pause.
        off: u64,
        /// Mean distance within a burst, in 2^-10 ns.
        gap: u64,
    },
    /// So many at once; each is followed by another, so many nanoseconds after it ended.
    Closed {
        /// How many.
        depth: u32,
        /// After which time.
        think: u64,
    },
    /// At these times.
    Trace(Arc<[u64]>),
}

/// The fraction of a nanosecond in which gaps are given, as a power of two.
pub const FRACTION: u32 = 10;

impl Arrivals {
    /// Poisson, so many a second.
    pub fn poisson(rate: f64) -> Arrivals {
        Arrivals::Poisson(gap(rate))
    }
}

/// The gap between so many a second, in 2^-10 ns.
pub fn gap(rate: f64) -> u64 {
    ((1e9 * f64::from(1 << FRACTION) / rate.max(1e-6)) as u64).max(1)
}

/// Arrivals under way.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    law: Arrivals,
    random: Random,
    /// The last arrival, in 2^-10 ns.
    at: u64,
    /// The end of the burst, nanoseconds.
    ends: u64,
    /// Entries of a trace that were had.
    had: usize,
    /// Gaps are divided by this: a flood.
    factor: u64,
}

impl Stream {
    pub(crate) fn new(law: Arrivals, start: u64, random: Random) -> Stream {
        Stream { law, random, at: start << FRACTION, ends: start, had: 0, factor: 1 }
    }

    /// From now on so many times as often.
    pub(crate) fn set_factor(&mut self, factor: u64) {
        self.factor = factor.max(1);
    }

    pub(crate) fn law(&self) -> &Arrivals {
        &self.law
    }

    /// When the next one comes, nanoseconds. None: never, or when another one has ended.
    pub(crate) fn next(&mut self) -> Option<u64> {
        let factor = self.factor;
        match &self.law {
            Arrivals::Paced(gap) => self.at += (gap / factor).max(1),
            Arrivals::Poisson(mean) => self.at += self.random.exponential(mean / factor),
            Arrivals::Steps(steps) => {
                let now = self.at >> FRACTION;
                let current = steps.iter().rev().find(|(from, _)| *from <= now);
                let Some((_, mean)) = current else {
                    let (first, _) = steps.first()?;
                    self.at = first << FRACTION;
                    return Some(*first);
                };
                self.at += self.random.exponential(mean / factor);
            }
            Arrivals::OnOff { on, off, gap } => {
                self.at += self.random.exponential(gap / factor);
                while self.at >> FRACTION >= self.ends {
                    let begins = self.ends + self.random.exponential(*off);
                    self.ends = begins + self.random.exponential(*on);
                    self.at = self.at.max((begins << FRACTION) + self.random.exponential(gap / factor));
                }
            }
            Arrivals::Closed { .. } => return None,
            Arrivals::Trace(times) => {
                self.had += 1;
                return times.get(self.had - 1).copied();
            }
        }
        Some(self.at >> FRACTION)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(law: Arrivals, until: u64) -> usize {
        let mut stream = Stream::new(law, 0, Random::new(5));
        std::iter::from_fn(|| stream.next()).take_while(|at| *at < until).count()
    }

    #[test]
    fn laws_give_the_rates_that_they_say() {
        let second = 100_000_000;
        assert_eq!(count(Arrivals::Paced(gap(1e6)), second), 99_999);
        let poisson = count(Arrivals::poisson(1e6), second) as f64;
        assert!((poisson / 1e5 - 1.0).abs() < 0.02, "{poisson}");
        let bursts = count(Arrivals::OnOff { on: 100_000, off: 300_000, gap: gap(4e6) }, second) as f64;
        assert!((bursts / 1e5 - 1.0).abs() < 0.2, "a quarter of the time, four times as often: {bursts}");
        let steps: Arc<[(u64, u64)]> = [(50_000_000, gap(1e6)), (75_000_000, gap(3e6))].into();
        let stepped = count(Arrivals::Steps(steps), second) as f64;
        assert!((stepped / 1e5 - 1.0).abs() < 0.02, "{stepped}");
        assert_eq!(count(Arrivals::Trace([3, 5, 7].into()), 6), 2);
    }
}
