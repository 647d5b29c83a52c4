//! How often services run for a port: a token bucket, counted in time. A token is worth the time in which one comes in.

/// A port's tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bucket {
    /// When it was last looked at, nanoseconds.
    then: u64,
    /// Worth of the tokens that were taken since the bucket was full, nanoseconds: it starts full.
    spent: u64,
}

/// What a bucket takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limit {
    /// In which time a token comes in, nanoseconds.
    interval: u64,
    /// Worth of a full bucket, nanoseconds.
    burst: u64,
}

impl Limit {
    /// `rate` tokens a second, at most `burst` at once; both at least 1.
    pub const fn new(rate: u32, burst: u32) -> Limit {
        let (rate, burst) = (if rate > 1 { rate } else { 1 }, if burst > 1 { burst } else { 1 });
        let interval = 1_000_000_000 / rate as u64;
        // At most 10^9 ns times 2^32: far from 2^64.
        Limit { interval, burst: interval * burst as u64 }
    }
}

impl Bucket {
    /// Takes a token at `now`, nanoseconds; false if there is none. A clock that goes backwards brings nothing in.
    #[inline]
    pub fn take(&mut self, now: u64, limit: Limit) -> bool {
        self.spent = self.spent.saturating_sub(now.saturating_sub(self.then));
        self.then = self.then.max(now);
        let spent = self.spent.saturating_add(limit.interval);
        let there = spent <= limit.burst;
        if there {
            self.spent = spent;
        }
        there
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_then_the_rate() {
        let limit = Limit::new(10, 3);
        let mut bucket = Bucket::default();
        let taken = |bucket: &mut Bucket, now| (0..10).filter(|_| bucket.take(now, limit)).count();
        assert_eq!(taken(&mut bucket, 1_000_000_000), 3);
        assert_eq!(taken(&mut bucket, 1_099_999_999), 0);
        assert_eq!(taken(&mut bucket, 1_100_000_000), 1);
        assert_eq!(taken(&mut bucket, 0), 0);
        assert_eq!(taken(&mut bucket, u64::MAX), 3);
    }
}
