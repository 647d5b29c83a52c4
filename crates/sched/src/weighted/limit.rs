//! Limits of a tenant, small enough to have three of them in a cache line.

use crate::{Limits, Nanos, Rate, WorkKind};

/// Three rates with their bursts, each as the virtual scheduling algorithm of ITU-T I.371 (GCRA), which is a token
/// bucket of which only one number changes: the time at which the bucket would be full again.
///
/// Units are counted before they run: over any span of time `t` no more than `burst + rate·(t + 1 µs)`. Bytes are known
/// when they went, so the last grant's come on top, and are waited for before the next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limiter {
    /// When each bucket is full again, nanoseconds.
    full: [u64; 3],
    /// What a unit takes of it, in 2^-32 ns.
    period: [u64; 3],
    /// What may be ahead, in 1024 ns.
    burst: [u32; 3],
    /// Bit by bit, which of them there are.
    active: u8,
}

/// One of the three rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bucket {
    Requests,
    Bytes,
    Packets,
}

impl Bucket {
    /// The bucket that units of a kind are counted in, as their bytes are in theirs. None: neither is.
    #[inline]
    fn of(kind: WorkKind) -> Option<Bucket> {
        match kind {
            WorkKind::Requests => Some(Bucket::Requests),
            WorkKind::Packets => Some(Bucket::Packets),
            WorkKind::Received => None,
        }
    }

    /// Its place in the limiter's arrays.
    #[inline(always)]
    fn row(self) -> usize {
        self as usize
    }
}

/// A time that does not come.
const NEVER: u64 = u64::MAX / 4;

impl Limiter {
    pub(super) fn new(limits: Limits) -> Limiter {
        let mut limiter = Limiter { full: [0; 3], period: [0; 3], burst: [0; 3], active: 0 };
        limiter.set(Nanos(0), limits);
        limiter
    }

    /// Changes the rates at `now`. What is left of a bucket is what is left of it after that, if the new one is as
    /// deep: a larger burst has to be saved up. A bucket that was not there is full.
    pub(super) fn set(&mut self, now: Nanos, limits: Limits) {
        let before = *self;
        self.active = 0;
        let Limits { requests, bytes, packets } = limits;
        for (bucket, rate) in [(Bucket::Requests, requests), (Bucket::Bytes, bytes), (Bucket::Packets, packets)] {
            let at = bucket.row();
            self.full[at] = 0;
            let Some(Rate { rate, burst }) = rate else { continue };
            self.active |= 1 << at;
            // The quotient is below 2^62, and rounding it up keeps the limit.
            self.period[at] = ((1_000_000_000_u64 << 32).div_ceil(rate.max(1))).max(1);
            let units = burst.max(1);
            let burst = (u128::from(units) * u128::from(self.period[at])).div_ceil(1 << (32 + 10));
            self.burst[at] = u32::try_from(burst).unwrap_or(u32::MAX);
            if !before.has(bucket) {
                continue;
            }
            if (before.period[at], before.burst[at]) == (self.period[at], self.burst[at]) {
                self.full[at] = before.full[at];
                continue;
            }
            let missing = u128::try_from(i128::from(units) - before.left(bucket, now)).unwrap_or(0);
            if missing > 0 {
                let missing = missing.saturating_mul(self.period[at].into()).div_ceil(1 << 32);
                self.full[at] = now.0.saturating_add(u64::try_from(missing).unwrap_or(NEVER)).min(NEVER);
            }
        }
    }

    /// What is left of a bucket, in its units, below 0 for what is owed.
    fn left(&self, bucket: Bucket, now: Nanos) -> i128 {
        let burst = i128::from(self.burst[bucket.row()]) << 10;
        let left = burst - i128::from(self.full[bucket.row()].saturating_sub(now.0));
        (left << 32).div_euclid(self.period[bucket.row()].max(1).into())
    }

    #[inline]
    pub(super) fn is_limited(&self) -> bool {
        self.active != 0
    }

    #[inline]
    fn has(&self, bucket: Bucket) -> bool {
        self.active & 1 << bucket.row() != 0
    }

    /// The nanoseconds that `n` units take of a bucket.
    #[inline]
    fn takes(&self, bucket: Bucket, n: u64) -> u64 {
        let taken = (u128::from(n) * u128::from(self.period[bucket.row()])).div_ceil(1 << 32);
        u64::try_from(taken).unwrap_or(NEVER).min(NEVER)
    }

    /// The time for which a bucket that is full at `full` has tokens, at `now`.
    #[inline]
    fn room(&self, bucket: Bucket, now: Nanos) -> u64 {
        let burst = u64::from(self.burst[bucket.row()]) << 10;
        burst.saturating_sub(self.full[bucket.row()].saturating_sub(now.0))
    }

    /// The earliest time at which one more unit of a kind may run; in the past where it may now.
    #[inline]
    pub(super) fn opens(&self, kind: WorkKind) -> Nanos {
        let one = |bucket: Bucket| {
            if !self.has(bucket) {
                return 0;
            }
            let takes = self.takes(bucket, 1);
            let burst = (u64::from(self.burst[bucket.row()]) << 10).max(takes);
            (self.full[bucket.row()] + takes).saturating_sub(burst)
        };
        Nanos(Bucket::of(kind).map_or(0, |bucket| one(bucket).max(one(Bucket::Bytes))))
    }

    /// The first time after `now` at which a kind opens that is closed.
    pub(super) fn opens_next(&self, now: Nanos) -> Nanos {
        let [one, other] = [WorkKind::Requests, WorkKind::Packets].map(|kind| self.opens(kind));
        if one <= now || (other > now && other < one) { other } else { one }
    }

    /// How many units of a kind may run now, of so many bytes each; at least one, after
    /// [`opens`](Self::opens).
    #[inline]
    pub(super) fn units(&self, now: Nanos, kind: WorkKind, bytes: u32, most: u32) -> u32 {
        let mut units = most;
        let Some(own) = Bucket::of(kind) else { return most };
        for (bucket, each) in [(own, 1), (Bucket::Bytes, u64::from(bytes))] {
            if !self.has(bucket) || each == 0 {
                continue;
            }
            let room = self.room(bucket, now);
            if self.takes(bucket, each * u64::from(units)) > room {
                let period = self.takes(bucket, each).max(1);
                units = u32::try_from(room / period).unwrap_or(u32::MAX).clamp(1, units);
            }
        }
        units
    }

    /// So much ran.
    #[inline]
    pub(super) fn took(&mut self, now: Nanos, kind: WorkKind, units: u32, bytes: u64) {
        let Some(own) = Bucket::of(kind) else { return };
        for (bucket, n) in [(own, u64::from(units)), (Bucket::Bytes, bytes)] {
            if self.has(bucket) {
                self.full[bucket.row()] =
                    self.full[bucket.row()].max(now.0).saturating_add(self.takes(bucket, n)).min(NEVER);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn limits(rate: u64, burst: u64) -> Limits {
        Limits { requests: Some(Rate { rate, burst }), ..Limits::default() }
    }

    #[test]
    fn a_full_bucket_gives_its_burst_then_its_rate() {
        let start = Nanos::SECOND;
        let mut limiter = Limiter::new(limits(1_000, 10));
        assert_eq!(limiter.units(start, WorkKind::Requests, 0, 64), 10);
        limiter.took(start, WorkKind::Requests, 10, 0);
        let opens = limiter.opens(WorkKind::Requests);
        assert!(opens > start && opens <= start + Nanos::MILLI, "{opens:?}");
        assert_eq!(limiter.units(opens, WorkKind::Requests, 0, 64), 1);
    }

    #[test]
    fn a_limit_that_is_raised_holds_nobody_for_what_was_used_at_the_old_one() {
        let now = Nanos::SECOND;
        let mut limiter = Limiter::new(limits(1, 1_000));
        limiter.took(now, WorkKind::Requests, 1_000, 0);
        assert!(limiter.opens(WorkKind::Requests) > now);
        limiter.set(now, limits(1_000_000, 100));
        let opens = limiter.opens(WorkKind::Requests);
        assert!(opens > now && opens <= now + Nanos::MILLI, "a thousand are owed at a million a second: {opens:?}");
        // Lifted and set again, nothing is owed.
        limiter.set(now, Limits::default());
        limiter.set(now, limits(1, 1));
        assert!(limiter.opens(WorkKind::Requests) <= now);
    }

    #[test]
    fn a_larger_burst_is_saved_up_and_a_smaller_one_is_all_there_is() {
        let now = Nanos::SECOND;
        let mut limiter = Limiter::new(limits(1_000, 1_000));
        limiter.set(now, limits(1, 1));
        limiter.set(now, limits(1_000, 1_000));
        assert_eq!(limiter.units(now, WorkKind::Requests, 0, 64), 1, "the small bucket had no more");
        assert_eq!(limiter.units(now + Nanos(10 * Nanos::MILLI.0), WorkKind::Requests, 0, 64), 11);
        limiter.took(now, WorkKind::Requests, 1, 0);
        let full = limiter.full;
        limiter.set(now, limits(1_000, 1_000));
        assert_eq!(limiter.full, full, "nothing is rounded where nothing changes");
    }

    #[test]
    fn what_is_not_limited_is_not_held() {
        let mut limiter = Limiter::new(limits(1, 1));
        limiter.took(Nanos(0), WorkKind::Packets, 1_000_000, 1 << 40);
        assert_eq!(limiter.units(Nanos(0), WorkKind::Packets, 9_000, 64), 64);
        assert!(limiter.opens(WorkKind::Packets) <= Nanos(0));
    }

    #[test]
    fn the_largest_and_the_smallest_rates_overflow_nothing() {
        for (rate, burst) in [(0, 0), (1, u64::MAX), (u64::MAX, u64::MAX), (u64::MAX, 0)] {
            let mut limiter = Limiter::new(limits(rate, burst));
            for step in 0..10 {
                let now = Nanos(step * (u64::MAX / 64));
                assert!(limiter.units(now, WorkKind::Requests, u32::MAX, 64) >= 1);
                limiter.took(now, WorkKind::Requests, u32::MAX, u64::MAX);
                let _ = limiter.opens(WorkKind::Requests);
            }
        }
    }

    proptest! {
        /// However often a bucket is made small and large again: that gives nothing.
        #[test]
        fn changes_of_a_limit_give_no_second_burst(
            (rate, burst) in (1_u64..10_000_000, 1_u64..10_000),
            steps in proptest::collection::vec((0_u64..200_000, any::<bool>(), 1_u32..64), 1..150),
        ) {
            let mut limiter = Limiter::new(limits(rate, burst));
            let (mut now, mut ran) = (0_u64, 0_u64);
            for (pause, is_small, most) in steps {
                now += pause;
                limiter.set(Nanos(now), if is_small { limits(1, 1) } else { limits(rate, burst) });
                if limiter.opens(WorkKind::Requests) <= Nanos(now) {
                    let units = limiter.units(Nanos(now), WorkKind::Requests, 0, most);
                    limiter.took(Nanos(now), WorkKind::Requests, units, 0);
                    ran += u64::from(units);
                }
                let earned = u128::from(now + 1_024) * u128::from(rate) / 1_000_000_000;
                prop_assert!(u128::from(ran) <= u128::from(burst) + earned + 1, "{ran} in {now} ns");
            }
        }

        /// Units: never more than the burst and the rate's share. Bytes: and the last grant.
        #[test]
        fn the_limits_hold_over_every_window(
            (rate, burst) in (1_u64..10_000_000, 1_u64..10_000),
            steps in proptest::collection::vec((0_u64..2_000_000, 1_u32..64, 0_u64..3_000), 1..150),
        ) {
            let both = Rate { rate, burst };
            let mut limiter = Limiter::new(Limits { requests: Some(both), bytes: Some(both), packets: None });
            let (mut now, mut ran) = (Nanos(0), Vec::new());
            for (pause, most, each) in steps {
                now = now + Nanos(pause);
                if limiter.opens(WorkKind::Requests) > now {
                    continue;
                }
                let units = limiter.units(now, WorkKind::Requests, each as u32, most);
                limiter.took(now, WorkKind::Requests, units, u64::from(units) * each);
                ran.push((now, u64::from(units), u64::from(units) * each));
            }
            for first in 0..ran.len() {
                let (mut units, mut bytes) = (0, 0);
                for &(at, n, b) in &ran[first..] {
                    let allowed = u128::from(burst)
                        + u128::from(at.since(ran[first].0).0 + 1_024) * u128::from(rate) / 1_000_000_000 + 1;
                    units += n;
                    prop_assert!(u128::from(units) <= allowed, "{units} of {allowed} units");
                    prop_assert!(u128::from(bytes) <= allowed, "{bytes} of {allowed} bytes before the last grant");
                    bytes += b;
                }
            }
        }
    }
}
