//! Tokens that a core has of a meter that several cores share.
//!
//! ```text
//!   shared meter ── lease: 10 ms of the committed rate, an eighth of what is there at most ──► a core's tokens
//!        ▲                                                                                    │ packets
//!        └────────────────────────── what is left, when it ends ──────────────────────────────┘
//! ```
//!
//! Tokens that are leased count as held by the meter's buckets, which fill up to their burst less that. So all cores
//! together never pass more than the burst and what the rate earns, over any window. What a core has spent of a lease
//! that has not ended leaves no room for what is earned, so users get less than their rate by the leases at most.

use super::meter::{Measure, Meter};
use crate::Nanos;

/// How long a lease lasts at the committed rate, at most.
const SIZE: Nanos = Nanos(10_000_000);
/// After how long it ends in any case: a guest that sends little asks its meter some 16 times a second.
const ENDS: Nanos = Nanos(64_000_000);
/// A lease is at most one part of so many of the tokens that are there: those that come later find some.
const PARTS: u64 = 8;

/// Tokens of a meter that are taken from its shared state at once, for packets that are green.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Lease {
    /// Bytes or packets that are left.
    left: u64,
    /// As many as there were.
    size: u64,
    counts_packets: bool,
    ends: Nanos,
}

impl Lease {
    /// Takes what `packets` packets of `bytes` bytes in all cost; false, and nothing is taken, where less is left.
    #[inline(always)]
    pub fn take(&mut self, packets: u64, bytes: u64) -> bool {
        let cost = if self.counts_packets { packets } else { bytes };
        let has = self.left >= cost;
        self.left -= if has { cost } else { 0 };
        has
    }

    /// Gives back what packets cost that were [taken](Self::take) and did not come.
    #[inline(always)]
    pub fn give_back(&mut self, packets: u64, bytes: u64) {
        let cost = if self.counts_packets { packets } else { bytes };
        self.left = self.left.saturating_add(cost).min(self.size);
    }

    /// When it is to be [given up](Meter::give_up).
    pub fn ends(&self) -> Nanos {
        self.ends
    }

    /// Whether there is none.
    pub fn is_none(&self) -> bool {
        self.size == 0
    }

    /// The same tokens for a look at what would happen. They are not to be given up.
    pub fn to_rehearse(&self) -> Lease {
        Lease { left: self.left, size: self.size, counts_packets: self.counts_packets, ends: self.ends }
    }
}

impl Meter {
    /// Leases tokens at `now` for packets of which the first `packets`, of `bytes` bytes in all, are waiting. None
    /// where they would be as many as those cost, or fewer: then the meter itself is to be asked.
    pub fn lease(&mut self, now: Nanos, packets: u64, bytes: u64) -> Option<Lease> {
        self.earn(now);
        let counts_packets = self.measure() == Measure::Packets;
        let wanted = if counts_packets { packets } else { bytes };
        let size = self.leasable(SIZE, PARTS);
        if size <= wanted {
            return None;
        }
        self.lend(size);
        Some(Lease { left: size, size, counts_packets, ends: now + ENDS })
    }

    /// Ends a lease of this meter at `now`: what is left of it is there again.
    pub fn give_up(&mut self, now: Nanos, lease: Lease) {
        // What time has earned until now had no room for what was leased.
        self.earn(now);
        self.end_loan(lease.size, lease.left);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::meter::{BILLION, Colour, Rate};
    use super::*;

    fn rate() -> impl Strategy<Value = Rate> {
        (
            prop_oneof![0_u64..10, 1_000_u64..10_000_000, Just(12_500_000_000)],
            prop_oneof![64_u64..20_000, Just(1 << 24)],
        )
            .prop_map(|(rate, burst)| Rate { rate, burst })
    }

    /// What a core does for a packet: by its lease, by a new one, or by the meter itself, to which it gives up first
    /// what it has.
    fn pass(meter: &mut Meter, lease: &mut Lease, now: Nanos, bytes: u32) -> Colour {
        if lease.take(1, bytes.into()) {
            return Colour::Green;
        }
        meter.give_up(now, std::mem::take(lease));
        match meter.lease(now, 1, bytes.into()) {
            Some(new) => {
                *lease = new;
                assert!(lease.take(1, bytes.into()));
                Colour::Green
            }
            None => meter.mark(now, bytes, Colour::Green),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        /// Over any window, and for all cores together: what is green is at most the committed burst and what its rate
        /// earns, what passes at most that of the peak (RFC 2698), or of both (RFC 4115).
        #[test]
        fn cores_with_leases_never_pass_more_than_one_meter_may(
            (committed, second) in (rate(), rate()),
            is_2698 in any::<bool>(),
            counts_packets in any::<bool>(),
            packets in prop::collection::vec(
                (prop_oneof![0_u64..5, 0_u64..3_000_000, 0_u64..500_000_000], 1_u32..9_000, 0_usize..3, any::<bool>()),
                1..60,
            ),
        ) {
            let measure = if counts_packets { Measure::Packets } else { Measure::Bytes };
            let new = if is_2698 { Meter::rfc2698 } else { Meter::rfc4115 };
            let mut meter = new(committed, second, measure, Nanos(0));
            let mut leases: [Lease; 3] = Default::default();
            let (mut now, mut green, mut all) = (Nanos(0), Vec::new(), Vec::new());
            for (pause, bytes, core, rests) in packets {
                now = now + Nanos(pause);
                let cost = if counts_packets { 1 } else { u128::from(bytes) };
                match pass(&mut meter, &mut leases[core], now, bytes) {
                    Colour::Red => {}
                    colour => {
                        all.push((now, cost));
                        if colour == Colour::Green {
                            green.push((now, cost));
                        }
                    }
                }
                if rests {
                    meter.give_up(now, std::mem::take(&mut leases[core]));
                }
            }
            let within = |passed: &[(Nanos, u128)], rates: &[Rate]| {
                (0..passed.len()).all(|first| {
                    let mut sum = 0;
                    passed[first..].iter().all(|(at, cost)| {
                        sum += cost;
                        let earned: u128 = rates.iter().map(|rate| {
                            let nanos = u128::from(at.since(passed[first].0).0);
                            u128::from(rate.burst) * u128::from(BILLION) + nanos * u128::from(rate.rate)
                        }).sum();
                        sum * u128::from(BILLION) <= earned
                    })
                })
            };
            prop_assert!(within(&green, &[committed]), "green: {green:?}");
            let both = [committed, second];
            prop_assert!(within(&all, if is_2698 { &both[1..] } else { &both }), "all: {all:?}");
        }

        /// A core that gives up its lease before another packet comes leaves the meter as one without leases.
        #[test]
        fn a_lease_that_is_given_up_at_once_was_never_there(
            (committed, second) in (rate(), rate()),
            is_2698 in any::<bool>(),
            packets in prop::collection::vec((0_u64..3_000_000, 1_u32..9_000), 1..40),
        ) {
            let new = if is_2698 { Meter::rfc2698 } else { Meter::rfc4115 };
            let [mut plain, mut shared] = [(); 2].map(|()| new(committed, second, Measure::Bytes, Nanos(0)));
            let mut now = Nanos(0);
            for (pause, bytes) in packets {
                now = now + Nanos(pause);
                let mut lease = Lease::default();
                prop_assert_eq!(pass(&mut shared, &mut lease, now, bytes), plain.mark(now, bytes, Colour::Green));
                shared.give_up(now, lease);
            }
        }
    }

    #[test]
    fn a_busy_core_gets_its_rate_less_one_lease_at_most() {
        // 1 Gbit/s with a burst of 16 ms. A frame of 1,250 bytes each 10 µs is exactly as much.
        let rate = Rate { rate: 125_000_000, burst: 2_000_000 };
        let mut meter = Meter::rfc2698(rate, rate, Measure::Bytes, Nanos(0));
        let mut lease = Lease::default();
        let mut passed = 0;
        for step in 0..100_000_u64 {
            // Twice what it may.
            for _ in 0..2 {
                passed += 1_250 * u64::from(pass(&mut meter, &mut lease, Nanos(step * 10_000), 1_250) != Colour::Red);
            }
        }
        let may = 2_000_000 + 125_000_000;
        assert!((may - 250_000 - 2_500..=may).contains(&passed), "{passed} of {may}");
    }

    #[test]
    fn what_a_core_does_not_use_is_there_for_another_when_it_rests() {
        let rate = Rate { rate: 125_000_000, burst: 1_000_000 };
        let mut meter = Meter::rfc4115(rate, Rate { rate: 0, burst: 0 }, Measure::Bytes, Nanos(0));
        let mut idle = meter.lease(Nanos(0), 1, 64).expect("plenty");
        assert!(idle.take(1, 64));
        assert!(!meter.take(Nanos(0), 1, 999_936), "some is leased");
        assert_eq!(idle.ends(), ENDS);
        meter.give_up(Nanos(0), idle);
        assert!(meter.take(Nanos(0), 1, 999_936));
        assert_eq!(meter.mark(Nanos(0), 1, Colour::Green), Colour::Red);
    }

    #[test]
    fn a_slow_meter_leases_nothing() {
        let rate = Rate { rate: 1_000_000, burst: 1_000_000 };
        let mut meter = Meter::rfc2698(rate, rate, Measure::Bytes, Nanos(0));
        assert_eq!(meter.lease(Nanos(0), 32, 32 * 1_500), None, "10 ms of it are less than a burst of packets");
        assert!(meter.lease(Nanos(0), 1, 64).is_some());
    }
}
