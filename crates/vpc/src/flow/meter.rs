//! What a flow's packets pass before they go: two rates, for each meter its own (after RFC 2698, without colours: what is above the
//! peak rate, or above the committed rate once its burst is used up, is dropped).

/// Two token buckets. Tokens are bytes times [`UNIT`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Meter {
    /// Bytes a second, committed and peak.
    rates: [u64; 2],
    bursts: [u64; 2],
    tokens: [u64; 2],
    /// When tokens were last added, nanoseconds.
    filled: u64,
}

/// Tokens of a byte: a rate in bytes a second is then tokens a nanosecond.
const UNIT: u64 = 1_000_000_000;

impl Meter {
    /// A meter of `committed` and `peak` bytes a second, each with a burst of a second's worth, full.
    pub fn new(committed: u64, peak: u64) -> Meter {
        let bursts = [committed, peak].map(|rate| rate.saturating_mul(UNIT));
        Meter { rates: [committed, peak], bursts, tokens: bursts, filled: 0 }
    }

    /// Whether a packet of `bytes` may pass at `now`, nanoseconds.
    #[inline]
    pub(crate) fn pass(&mut self, now: u64, bytes: u32) -> bool {
        if now != self.filled {
            let elapsed = now.saturating_sub(self.filled);
            self.filled = now;
            for ((tokens, burst), rate) in self.tokens.iter_mut().zip(self.bursts).zip(self.rates) {
                *tokens = tokens.saturating_add(rate.saturating_mul(elapsed)).min(burst);
            }
        }
        let need = u64::from(bytes) * UNIT;
        let [committed, peak] = self.tokens;
        let passes = committed >= need && peak >= need;
        if passes {
            self.tokens = [committed - need, peak - need];
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_two_rates_holds_in_the_long_run() {
        let mut meter = Meter::new(1_000, 2_000);
        assert!((0..10).all(|_| meter.pass(0, 100)), "the burst");
        assert!(!meter.pass(0, 100));
        assert!(!meter.pass(99_999_999, 100));
        assert!(meter.pass(100_000_000, 100), "a tenth of a second's worth");
        assert!(!meter.pass(100_000_000, 1));
    }
}
