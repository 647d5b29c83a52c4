//! Meters that colour packets by two rates.

use crate::Nanos;

/// What a meter found: how far a packet is within its rates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Colour {
    /// Within the committed rate.
    #[default]
    Green,
    /// Beyond it, within the peak or excess rate.
    Yellow,
    /// Beyond both.
    Red,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// Bytes of packets.
    Bytes,
    /// Packets.
    Packets,
}

/// A rate and how much of it may come at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Bytes or packets a second; 0: none but the burst.
    pub rate: u64,
    /// Bytes or packets at once. More than [`Rate::BURST`] counts as that.
    pub burst: u64,
}

impl Rate {
    /// The largest burst, some 18 thousand million bytes or packets.
    pub const BURST: u64 = u64::MAX / BILLION;
}

pub(super) const BILLION: u64 = 1_000_000_000;

/// Colours packets by two rates: by RFC 2698, where the second is the peak of all, or by RFC 4115, where it is what may
/// come in excess of the first. Exact: in billionths of a token, time adds whole numbers.
///
/// A packet comes with a colour that it was given before, which a meter makes no better (colour-aware);
/// [`Colour::Green`] for all is colour-blind. So a packet goes through a port's meter and then, with the colour it got
/// there, through its tenant's. A packet may have as many bytes as there are tokens, in both (RFC 2698 §3; RFC 4115 §3
/// asks for one more).
#[derive(Clone, Debug)]
pub struct Meter {
    algorithm: Algorithm,
    measure: Measure,
    committed: Bucket,
    second: Bucket,
    last: Nanos,
}

#[derive(Clone, Copy, Debug)]
enum Algorithm {
    Rfc2698,
    Rfc4115,
}

/// Tokens, in billionths.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u64,
    /// The most that it may have: its burst, less what is leased.
    burst: u64,
    /// Tokens a second: billionths a nanosecond.
    rate: u64,
}

impl Bucket {
    fn full(rate: Rate) -> Bucket {
        let burst = rate.burst.min(Rate::BURST) * BILLION;
        Bucket { tokens: burst, burst, rate: rate.rate }
    }

    #[inline]
    fn fill(&mut self, passed: Nanos) {
        let earned = u128::from(self.rate) * u128::from(passed.0);
        self.add(u64::try_from(earned).unwrap_or(u64::MAX));
    }

    #[inline]
    fn add(&mut self, tokens: u64) {
        // What is less than the room fits.
        self.tokens += tokens.min(self.burst - self.tokens);
    }

    /// Takes so many tokens out, and the room for them. There are as many.
    fn lend(&mut self, tokens: u64) {
        (self.tokens, self.burst) = (self.tokens - tokens, self.burst - tokens);
    }

    /// Room for so many tokens is there again, and of them those that are `left`.
    fn end_loan(&mut self, tokens: u64, left: u64) {
        self.burst += tokens;
        self.add(left);
    }
}

impl Meter {
    /// A Two Rate Three Color Marker (RFC 2698), its buckets full at `now`: green within `committed`, yellow within
    /// `peak`.
    pub fn rfc2698(committed: Rate, peak: Rate, measure: Measure, now: Nanos) -> Meter {
        Meter::new(Algorithm::Rfc2698, committed, peak, measure, now)
    }

    /// A Differentiated Service Two-Rate, Three-Color Marker (RFC 4115), its buckets full at `now`: green within
    /// `committed`, yellow within `excess`. What is yellow before it comes takes nothing from the committed rate.
    pub fn rfc4115(committed: Rate, excess: Rate, measure: Measure, now: Nanos) -> Meter {
        Meter::new(Algorithm::Rfc4115, committed, excess, measure, now)
    }

    fn new(algorithm: Algorithm, committed: Rate, second: Rate, measure: Measure, now: Nanos) -> Meter {
        let [committed, second] = [committed, second].map(Bucket::full);
        Meter { algorithm, measure, committed, second, last: now }
    }

    /// The same with empty buckets, for what may have given its bursts just before.
    pub fn emptied(mut self) -> Meter {
        (self.committed.tokens, self.second.tokens) = (0, 0);
        self
    }

    /// The colour of a packet of `bytes` bytes that comes at `now` with the colour `before`. A clock that goes back
    /// earns nothing.
    #[inline]
    pub fn mark(&mut self, now: Nanos, bytes: u32, before: Colour) -> Colour {
        self.earn(now);
        let cost = self.cost(1, bytes.into());
        self.spend(cost, before)
    }

    /// The same for packets of `bytes` bytes that come at once, one after the other: `colours` are those before, and
    /// then those after it. True where all of them were, and are, green: then a look at the sum of them is all that it
    /// takes.
    pub fn mark_all(&mut self, now: Nanos, bytes: &[u32], colours: &mut [Colour]) -> bool {
        let count = bytes.len().min(colours.len());
        let (bytes, colours) = (&bytes[..count], &mut colours[..count]);
        self.earn(now);
        let cost = self.cost(count as u64, bytes.iter().map(|bytes| u64::from(*bytes)).sum());
        if self.has(cost) && colours.iter().all(|colour| *colour == Colour::Green) {
            self.spend(cost, Colour::Green);
            return true;
        }
        for (bytes, colour) in bytes.iter().zip(colours) {
            let cost = self.cost(1, (*bytes).into());
            *colour = self.spend(cost, *colour);
        }
        false
    }

    /// Takes what `packets` packets of `bytes` bytes in all cost, if that is green at `now`; otherwise nothing. Whether
    /// it was: then each of them is green that comes at `now`, and what those cost that do not come is to be
    /// [given back](Self::give_back).
    pub fn take(&mut self, now: Nanos, packets: u64, bytes: u64) -> bool {
        self.earn(now);
        let cost = self.cost(packets, bytes);
        let is_green = self.has(cost);
        if is_green {
            self.spend(cost, Colour::Green);
        }
        is_green
    }

    /// Gives back what `packets` packets of `bytes` bytes in all have cost, which were green. What has been earned
    /// since may leave less room.
    pub fn give_back(&mut self, packets: u64, bytes: u64) {
        let cost = self.cost(packets, bytes);
        self.committed.add(cost);
        if matches!(self.algorithm, Algorithm::Rfc2698) {
            self.second.add(cost);
        }
    }

    /// Whether what costs so much is green.
    #[inline]
    fn has(&self, cost: u64) -> bool {
        self.committed.tokens >= cost && (matches!(self.algorithm, Algorithm::Rfc4115) || self.second.tokens >= cost)
    }

    /// What it counts.
    pub(super) fn measure(&self) -> Measure {
        self.measure
    }

    /// Whole tokens that may be leased: as many as the committed rate earns in `time`, and one part of `parts` of those
    /// that are there.
    pub(super) fn leasable(&self, time: Nanos, parts: u64) -> u64 {
        let earned = u128::from(self.committed.rate) * u128::from(time.0);
        let green = match self.algorithm {
            Algorithm::Rfc2698 => self.committed.tokens.min(self.second.tokens),
            Algorithm::Rfc4115 => self.committed.tokens,
        };
        u64::try_from(earned).unwrap_or(u64::MAX).min(green / parts) / BILLION
    }

    /// Takes `size` tokens of those that are [leasable](Self::leasable) out.
    pub(super) fn lend(&mut self, size: u64) {
        self.committed.lend(size * BILLION);
        if matches!(self.algorithm, Algorithm::Rfc2698) {
            self.second.lend(size * BILLION);
        }
    }

    /// Of `size` tokens that were taken out, `left` come back.
    pub(super) fn end_loan(&mut self, size: u64, left: u64) {
        self.committed.end_loan(size * BILLION, left * BILLION);
        if matches!(self.algorithm, Algorithm::Rfc2698) {
            self.second.end_loan(size * BILLION, left * BILLION);
        }
    }

    #[inline]
    pub(super) fn earn(&mut self, now: Nanos) {
        let passed = now.since(self.last);
        // Packets of a burst come at one time.
        if passed != Nanos(0) {
            self.last = now;
            self.committed.fill(passed);
            self.second.fill(passed);
        }
    }

    /// Of so many packets with so many bytes; of one, below 2^62.
    #[inline]
    fn cost(&self, packets: u64, bytes: u64) -> u64 {
        let tokens = match self.measure {
            Measure::Bytes => bytes,
            Measure::Packets => packets,
        };
        tokens.saturating_mul(BILLION)
    }

    #[inline]
    fn spend(&mut self, cost: u64, before: Colour) -> Colour {
        let (committed, second) = (&mut self.committed.tokens, &mut self.second.tokens);
        match self.algorithm {
            Algorithm::Rfc2698 if before == Colour::Red || *second < cost => Colour::Red,
            Algorithm::Rfc2698 => {
                *second -= cost;
                if before == Colour::Yellow || *committed < cost {
                    return Colour::Yellow;
                }
                *committed -= cost;
                Colour::Green
            }
            Algorithm::Rfc4115 if before == Colour::Green && *committed >= cost => {
                *committed -= cost;
                Colour::Green
            }
            Algorithm::Rfc4115 if before != Colour::Red && *second >= cost => {
                *second -= cost;
                Colour::Yellow
            }
            Algorithm::Rfc4115 => Colour::Red,
        }
    }
}

#[cfg(test)]
mod tests;
