//! A rate limit.

use crate::Nanos;

/// A token bucket: `rate` tokens a second, of which up to `burst` are saved up (RFC 2697 §3's committed bucket).
/// The last item taken may exceed what is there; its debt is paid before the next.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: u64,
    burst: u64,
    tokens: i64,
    /// Part of a token that time has earned, in billionths.
    fraction: u64,
    last: Nanos,
}

const BILLION: u128 = 1_000_000_000;

impl TokenBucket {
    /// A full bucket. A `rate` or `burst` of 0 counts as 1.
    pub fn new(rate: u64, burst: u64, now: Nanos) -> TokenBucket {
        let burst = burst.clamp(1, i64::MAX as u64 / 2);
        TokenBucket { rate: rate.max(1), burst, tokens: burst as i64, fraction: 0, last: now }
    }

    /// An empty one, for what may have given its burst just before.
    pub fn empty(rate: u64, burst: u64, now: Nanos) -> TokenBucket {
        TokenBucket { tokens: 0, ..TokenBucket::new(rate, burst, now) }
    }

    /// Tokens that are there at `now`; 0 where there is a debt.
    pub fn available(&mut self, now: Nanos) -> u64 {
        let passed = now.since(self.last);
        self.last = self.last.max(now);
        let earned = u128::from(passed.0) * u128::from(self.rate) + u128::from(self.fraction);
        let whole = u64::try_from(earned / BILLION).unwrap_or(u64::MAX);
        let room = (self.burst as i64 - self.tokens) as u64;
        if whole >= room {
            self.tokens = self.burst as i64;
            self.fraction = 0;
        } else {
            self.tokens += whole as i64;
            self.fraction = (earned % BILLION) as u64;
        }
        self.tokens.max(0) as u64
    }

    /// Takes tokens, on credit where there are not so many.
    pub fn take(&mut self, tokens: u64) {
        let tokens = i64::try_from(tokens).unwrap_or(i64::MAX);
        self.tokens = self.tokens.saturating_sub(tokens).max(i64::MIN / 2);
    }

    /// When there will be a token again, if none is taken meanwhile; `now` where there is one.
    pub fn next(&mut self, now: Nanos) -> Nanos {
        if self.available(now) > 0 {
            return now;
        }
        let missing = (1 - self.tokens) as u128 * BILLION - u128::from(self.fraction);
        Nanos(now.0.saturating_add(u64::try_from(missing.div_ceil(self.rate.into())).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_bucket_gives_its_burst_then_its_rate() {
        let mut bucket = TokenBucket::new(1_000, 10, Nanos(0));
        assert_eq!(bucket.available(Nanos(0)), 10);
        bucket.take(10);
        assert_eq!(bucket.available(Nanos(0)), 0);
        assert_eq!(bucket.next(Nanos(0)), Nanos::MILLI);
        assert_eq!(bucket.available(Nanos::MILLI), 1);
        assert_eq!(bucket.available(Nanos::SECOND), 10);
    }

    #[test]
    fn an_empty_bucket_gives_its_rate_and_no_burst() {
        let mut bucket = TokenBucket::empty(1_000, 10, Nanos::SECOND);
        assert_eq!(bucket.available(Nanos::SECOND), 0);
        assert_eq!(bucket.available(Nanos::SECOND + Nanos::MILLI), 1);
        assert_eq!(bucket.available(Nanos(3 * Nanos::SECOND.0)), 10);
    }

    #[test]
    fn a_debt_is_paid_before_the_next() {
        let mut bucket = TokenBucket::new(1_000, 1, Nanos(0));
        bucket.take(100);
        assert_eq!(bucket.next(Nanos(0)), Nanos(100 * 1_000_000));
        assert_eq!(bucket.available(Nanos(99 * 1_000_000)), 0);
        assert_eq!(bucket.available(Nanos(100 * 1_000_000)), 1);
    }

    #[test]
    fn a_clock_that_goes_back_earns_nothing_twice() {
        let mut bucket = TokenBucket::new(1_000, 10, Nanos::SECOND);
        bucket.take(10);
        bucket.available(Nanos(1_005_000_000));
        bucket.available(Nanos(0));
        assert_eq!(bucket.available(Nanos(1_005_000_000)), 5);
    }

    proptest! {
        /// Over any window, no more than the burst and the rate's share, and the last item.
        #[test]
        fn the_limit_holds_over_every_window(
            rate in 1u64..10_000_000,
            burst in 1u64..10_000,
            steps in proptest::collection::vec((0u64..2_000_000, 1u64..3_000), 1..200),
        ) {
            let mut bucket = TokenBucket::new(rate, burst, Nanos(0));
            let (mut now, mut taken) = (0, Vec::new());
            for (pause, size) in steps {
                now += pause;
                if bucket.available(Nanos(now)) > 0 {
                    bucket.take(size);
                    taken.push((now, size));
                }
            }
            for first in 0..taken.len() {
                let mut sum = 0;
                for &(at, size) in &taken[first..] {
                    sum += size;
                    let earned = u128::from(at - taken[first].0) * u128::from(rate) / BILLION;
                    prop_assert!(u128::from(sum) <= u128::from(burst) + earned + 1 + u128::from(size));
                }
            }
        }
    }
}
