use proptest::prelude::*;

use super::*;

/// A fraction, reduced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ratio {
    above: i128,
    below: i128,
}

impl Ratio {
    fn new(above: i128, below: i128) -> Ratio {
        let (mut a, mut b) = (above.unsigned_abs(), below.unsigned_abs());
        while b != 0 {
            (a, b) = (b, a % b);
        }
        let common = a.max(1) as i128;
        Ratio { above: above / common, below: below / common }
    }

    fn plus(self, other: Ratio) -> Ratio {
        Ratio::new(self.above * other.below + other.above * self.below, self.below * other.below)
    }

    fn minus(self, whole: i128) -> Ratio {
        self.plus(Ratio::new(-whole, 1))
    }

    fn is_negative(self) -> bool {
        self.above < 0
    }

    fn at_most(self, other: Ratio) -> Ratio {
        if self.above * other.below <= other.above * self.below { self } else { other }
    }
}

/// Tp and Tc of RFC 2698, Tc and Te of RFC 4115: time in seconds, tokens as fractions.
struct Counts {
    c: Ratio,
    other: Ratio,
    at: i128,
}

impl Counts {
    /// "incremented by one … times per second up to …"
    fn until(&mut self, now: i128, committed: Rate, other: Rate) {
        let seconds = |rate: u64| Ratio::new((now - self.at) * i128::from(rate), 1_000_000_000);
        self.c = self.c.plus(seconds(committed.rate)).at_most(Ratio::new(committed.burst.into(), 1));
        self.other = self.other.plus(seconds(other.rate)).at_most(Ratio::new(other.burst.into(), 1));
        self.at = now;
    }

    /// RFC 2698 §3: both modes, word for word.
    fn rfc2698(&mut self, b: i128, aware: Option<Colour>) -> Colour {
        if aware == Some(Colour::Red) || self.other.minus(b).is_negative() {
            Colour::Red
        } else if aware == Some(Colour::Yellow) || self.c.minus(b).is_negative() {
            self.other = self.other.minus(b);
            Colour::Yellow
        } else {
            (self.other, self.c) = (self.other.minus(b), self.c.minus(b));
            Colour::Green
        }
    }

    /// RFC 4115 §3: both modes.
    fn rfc4115(&mut self, b: i128, aware: Option<Colour>) -> Colour {
        if matches!(aware, None | Some(Colour::Green)) && !self.c.minus(b).is_negative() {
            self.c = self.c.minus(b);
            Colour::Green
        } else if aware != Some(Colour::Red) && !self.other.minus(b).is_negative() {
            self.other = self.other.minus(b);
            Colour::Yellow
        } else {
            Colour::Red
        }
    }
}

const COLOURS: [Colour; 3] = [Colour::Green, Colour::Yellow, Colour::Red];

fn rate() -> impl Strategy<Value = Rate> {
    (prop_oneof![0_u64..10, 1_000_u64..10_000_000, Just(12_500_000_000)], prop_oneof![0_u64..3, 64_u64..20_000])
        .prop_map(|(rate, burst)| Rate { rate, burst })
}

fn two_alike(committed: Rate, second: Rate, is_2698: bool, counts_packets: bool) -> [Meter; 2] {
    let measure = if counts_packets { Measure::Packets } else { Measure::Bytes };
    let new = if is_2698 { Meter::rfc2698 } else { Meter::rfc4115 };
    let meter = new(committed, second, measure, Nanos(0));
    [meter.clone(), meter]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn colours_are_those_of_the_rfcs(
        (committed, second) in (rate(), rate()),
        is_2698 in any::<bool>(),
        is_aware in any::<bool>(),
        counts_packets in any::<bool>(),
        packets in prop::collection::vec((prop_oneof![0_u64..5, 0_u64..3_000_000, 0_u64..5_000_000_000], 0_u32..9_000, 0_usize..3), 1..30),
    ) {
        let start = Nanos(77);
        let measure = if counts_packets { Measure::Packets } else { Measure::Bytes };
        let new = if is_2698 { Meter::rfc2698 } else { Meter::rfc4115 };
        let mut meter = new(committed, second, measure, start);
        let full = |rate: Rate| Ratio::new(rate.burst.into(), 1);
        let mut counts = Counts { c: full(committed), other: full(second), at: start.0.into() };
        let mut now = start;
        for (pause, bytes, colour) in packets {
            now = now + Nanos(pause);
            let before = COLOURS[colour];
            let (given, aware) = if is_aware { (before, Some(before)) } else { (Colour::Green, None) };
            let b = if counts_packets { 1 } else { i128::from(bytes) };
            counts.until(now.0.into(), committed, second);
            let expected = if is_2698 { counts.rfc2698(b, aware) } else { counts.rfc4115(b, aware) };
            prop_assert_eq!(meter.mark(now, bytes, given), expected);
        }
    }

    #[test]
    fn what_comes_at_once_is_marked_as_one_after_the_other(
        (committed, second) in (rate(), rate()),
        is_2698 in any::<bool>(),
        counts_packets in any::<bool>(),
        bursts in prop::collection::vec((0_u64..5_000_000, prop::collection::vec((0_u32..9_000, prop_oneof![3 => Just(0_usize), 1 => 0_usize..3]), 0..8)), 1..8),
    ) {
        let [mut one_by_one, mut at_once] = two_alike(committed, second, is_2698, counts_packets);
        let mut now = Nanos(0);
        for (pause, packets) in bursts {
            now = now + Nanos(pause);
            let (bytes, mut colours): (Vec<_>, Vec<_>) =
                packets.iter().map(|(bytes, colour)| (*bytes, COLOURS[*colour])).unzip();
            let expected: Vec<_> =
                bytes.iter().zip(&colours).map(|(bytes, before)| one_by_one.mark(now, *bytes, *before)).collect();
            let are_green = at_once.mark_all(now, &bytes, &mut colours);
            prop_assert_eq!(&colours, &expected);
            prop_assert!(!are_green || expected.iter().all(|colour| *colour == Colour::Green));
        }
    }

    #[test]
    fn what_is_taken_at_once_and_partly_given_back_is_as_if_it_had_come_one_by_one(
        (committed, second) in (rate(), rate()),
        is_2698 in any::<bool>(),
        counts_packets in any::<bool>(),
        bursts in prop::collection::vec((0_u64..5_000_000, prop::collection::vec((0_u32..9_000, any::<bool>()), 0..8)), 1..8),
    ) {
        let [mut one_by_one, mut at_once] = two_alike(committed, second, is_2698, counts_packets);
        let mut now = Nanos(0);
        for (pause, packets) in bursts {
            now = now + Nanos(pause);
            let sum = |wanted: fn(&bool) -> bool| {
                let sums = packets.iter().filter(|(_, comes)| wanted(comes)).map(|(bytes, _)| (1, u64::from(*bytes)));
                sums.fold((0, 0), |(packets, sum), (packet, bytes)| (packets + packet, sum + bytes))
            };
            let (all, missing) = (sum(|_| true), sum(|comes| !comes));
            let is_taken = at_once.take(now, all.0, all.1);
            if is_taken {
                at_once.give_back(missing.0, missing.1);
            }
            for (bytes, _) in packets.iter().filter(|(_, comes)| *comes) {
                let colour = one_by_one.mark(now, *bytes, Colour::Green);
                if is_taken {
                    prop_assert_eq!(colour, Colour::Green);
                } else {
                    prop_assert_eq!(at_once.mark(now, *bytes, Colour::Green), colour);
                }
            }
            // What either has left is the same.
            for bytes in [0, 1, 100, 1_000, 9_000] {
                let [a, b] = [&at_once, &one_by_one].map(|meter| meter.clone().mark(now, bytes, Colour::Green));
                prop_assert_eq!(a, b, "{} bytes", bytes);
            }
        }
    }
}

#[test]
fn in_profile_traffic_keeps_its_rate_beside_what_is_yellow_already() {
    let (committed, second) = (Rate { rate: 1_000, burst: 1_000 }, Rate { rate: 1_000, burst: 1_000 });
    let colours = [Meter::rfc2698, Meter::rfc4115].map(|new| {
        let mut meter = new(committed, second, Measure::Bytes, Nanos(0));
        (meter.mark(Nanos(0), 1_000, Colour::Yellow), meter.mark(Nanos(0), 1_000, Colour::Green))
    });
    assert_eq!(colours[0], (Colour::Yellow, Colour::Red), "RFC 2698: the peak is for both");
    assert_eq!(colours[1], (Colour::Yellow, Colour::Green), "RFC 4115: the excess is not the committed rate's");
}

#[test]
fn a_port_and_its_tenant_meter_one_after_the_other() {
    let rate = |rate| Rate { rate, burst: rate };
    let mut port = Meter::rfc2698(rate(2), rate(3), Measure::Packets, Nanos(0));
    let mut tenant = Meter::rfc2698(rate(1), rate(10), Measure::Packets, Nanos(0));
    let mut both = || tenant.mark(Nanos(0), 64, port.mark(Nanos(0), 64, Colour::Green));
    assert_eq!([both(), both(), both(), both()], [Colour::Green, Colour::Yellow, Colour::Yellow, Colour::Red]);
}

#[test]
fn time_that_goes_back_or_goes_on_for_ever_is_harmless() {
    let huge = Rate { rate: u64::MAX, burst: u64::MAX };
    let mut meter = Meter::rfc2698(huge, huge, Measure::Bytes, Nanos(5));
    assert_eq!(meter.mark(Nanos(u64::MAX), u32::MAX, Colour::Green), Colour::Green);
    let small = Rate { rate: 1, burst: 1 };
    let mut meter = Meter::rfc4115(small, small, Measure::Packets, Nanos::SECOND);
    let colours = [Nanos::SECOND, Nanos(0), Nanos::SECOND, Nanos::SECOND + Nanos::SECOND];
    let colours = colours.map(|now| meter.mark(now, 1, Colour::Green));
    assert_eq!(colours, [Colour::Green, Colour::Yellow, Colour::Red, Colour::Green]);
}
