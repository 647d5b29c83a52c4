//! What a job got.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Time slices in which requests are counted, for how steady their rate is.
const SLICES: usize = 20;
/// Longest latency told apart, nanoseconds: beyond, a request counts as this long. More than a load waits.
const LONGEST: u64 = 60_000_000_000;

/// What a job got in a measured time.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Requests completed, or frames received.
    pub requests: u64,
    /// The measured time.
    pub elapsed: Duration,
    /// Latencies, nanoseconds: from publishing a request to the turn that found its completion. Empty of a job that
    /// does not measure them.
    pub latency: Histogram<u64>,
    /// Requests in each twentieth of the time.
    pub slices: [u64; SLICES],
    /// Turns that found completions.
    pub batches: u64,
    /// Kicks sent.
    pub kicks: u64,
    /// Notifications slept for.
    pub interrupts: u64,
    /// From finding completions to having published the requests that follow them; of a profiled load.
    pub busy: Option<Duration>,
    /// Length of a slice, the slice that is counted now, and when it ends; nanoseconds.
    slice: u64,
    slice_at: usize,
    slice_end: u64,
}

impl Default for Outcome {
    fn default() -> Self {
        Outcome {
            requests: 0,
            elapsed: Duration::ZERO,
            latency: Histogram::new_with_bounds(1, LONGEST, 3).expect("constant bounds that are in range"),
            slices: [0; SLICES],
            batches: 0,
            kicks: 0,
            interrupts: 0,
            busy: None,
            slice: u64::MAX,
            slice_at: 0,
            slice_end: u64::MAX,
        }
    }
}

impl Outcome {
    /// Begins to count, at `start`, for `length`.
    pub(super) fn begin(&mut self, start: u64, length: Duration) {
        self.slice = (length.as_nanos() as u64 / SLICES as u64).max(1);
        self.slice_at = 0;
        self.slice_end = start + self.slice;
    }

    /// Counts `count` requests that were found completed at `now`.
    #[inline(always)]
    pub fn completed(&mut self, now: u64, count: usize) {
        while now >= self.slice_end && self.slice_at < SLICES - 1 {
            self.slice_at += 1;
            self.slice_end += self.slice;
        }
        self.slices[self.slice_at] += count as u64;
        self.requests += count as u64;
        self.batches += 1;
    }

    /// Records the latency of a request, nanoseconds.
    #[inline(always)]
    pub fn record(&mut self, latency: u64) {
        self.latency.saturating_record(latency);
    }

    /// Adds time that the client itself took, nanoseconds.
    #[inline(always)]
    pub(super) fn profile(&mut self, nanos: u64) {
        *self.busy.get_or_insert_default() += Duration::from_nanos(nanos);
    }

    /// Requests a second.
    pub fn rate(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64()
    }

    /// The latency that a share `quantile` of the requests did not exceed, nanoseconds.
    pub fn latency_at(&self, quantile: f64) -> u64 {
        self.latency.value_at_quantile(quantile)
    }

    /// Standard deviation over mean of the rate in twentieths of the time: 0 is steady.
    pub fn unsteadiness(&self) -> f64 {
        let count = self.slices.len() as f64;
        let mean = self.slices.iter().sum::<u64>() as f64 / count;
        let variance = self.slices.iter().map(|slice| (*slice as f64 - mean).powi(2)).sum::<f64>() / count;
        if mean > 0.0 { variance.sqrt() / mean } else { 0.0 }
    }

    /// Adds what another job got in the same time.
    pub fn merge(&mut self, other: &Outcome) {
        self.requests += other.requests;
        self.elapsed = self.elapsed.max(other.elapsed);
        // Same bounds throughout, so nothing is out of range.
        let _ = self.latency.add(&other.latency);
        self.slices.iter_mut().zip(other.slices).for_each(|(slice, more)| *slice += more);
        self.batches += other.batches;
        self.kicks += other.kicks;
        self.interrupts += other.interrupts;
        self.busy = match (self.busy, other.busy) {
            (Some(one), Some(other)) => Some(one + other),
            (one, other) => one.or(other),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_in_the_slice_in_which_they_completed() {
        let mut outcome = Outcome::default();
        outcome.begin(1_000, Duration::from_nanos(200));
        for (now, count) in [(1_000, 1), (1_009, 2), (1_010, 4), (1_055, 8), (1_199, 16), (1_300, 32)] {
            outcome.completed(now, count);
        }
        let counted: Vec<_> = outcome.slices.into_iter().enumerate().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(0, 3), (1, 4), (5, 8), (19, 48)], "what completes after the end counts to the last");
        assert_eq!((outcome.requests, outcome.batches), (63, 6));
    }

    #[test]
    fn a_rate_that_does_not_change_is_steady() {
        let of = |slices| Outcome { slices, ..Outcome::default() }.unsteadiness();
        assert_eq!(of([7; SLICES]), 0.0);
        let mut alternating = [0; SLICES];
        alternating.iter_mut().step_by(2).for_each(|slice| *slice = 10);
        assert_eq!(of(alternating), 1.0);
    }

    #[test]
    fn outcomes_of_several_queues_add_up() {
        let mut one = Outcome { requests: 2, kicks: 1, busy: Some(Duration::from_secs(1)), ..Outcome::default() };
        one.record(1_000);
        let mut other = Outcome { requests: 3, interrupts: 4, ..Outcome::default() };
        other.record(3_000);
        one.merge(&other);
        assert_eq!((one.requests, one.kicks, one.interrupts), (5, 1, 4));
        assert_eq!((one.latency.len(), one.busy), (2, Some(Duration::from_secs(1))));
    }
}
