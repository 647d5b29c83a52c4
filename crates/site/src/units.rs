//! Quantities as an operator writes them: a number, a space if you like, and a unit.
//!
//! Each type reads and writes the same text, so that a configuration, a status and a stored state agree: `"20 GiB"`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Units of size and what they multiply with. Binary prefixes are powers of 1024, decimal ones of 1000 (IEC 80000-13).
const SIZE_UNITS: &[(&str, u64)] = &[
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
    ("PiB", 1 << 50),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
];

/// Units of data rates in bits per second; decimal, as networks are measured.
const BIT_UNITS: &[(&str, u64)] = &[
    ("bit", 1),
    ("kbit", 1_000),
    ("Kbit", 1_000),
    ("Mbit", 1_000_000),
    ("Gbit", 1_000_000_000),
    ("Tbit", 1_000_000_000_000),
];

/// Units of time in nanoseconds.
const TIME_UNITS: &[(&str, u64)] = &[
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("min", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// Why a quantity could not be read. The messages say what was expected; the caller adds where and what was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// a number and a unit are expected, such as {example}
    #[error("a number and a unit are expected, such as {example}")]
    NoNumber {
        /// A correct quantity of this kind.
        example: &'static str,
    },
    /// the unit is missing: write {example}, for instance
    #[error("the unit is missing: write {example}, for instance")]
    NoUnit {
        /// The number with a unit of this kind.
        example: String,
    },
    /// unknown unit
    #[error("unknown unit `{unit}`: expected one of {expected}")]
    UnknownUnit {
        /// The unit that was written.
        unit: String,
        /// The units there are.
        expected: String,
    },
    /// the number is not exact in the base unit, or too large for it
    #[error("the number is too large, or not a whole number of {base}")]
    OutOfRange {
        /// The unit it has to be a whole number of.
        base: &'static str,
    },
    /// more than there can be
    #[error("{most} is the most")]
    TooMuch {
        /// As it is written.
        most: &'static str,
    },
}

/// Splits `"1_000.5 GiB"` into its number and its unit, and multiplies exactly.
fn parse_quantity(
    text: &str,
    units: &[(&str, u64)],
    suffix: &str,
    base: &'static str,
    example: &'static str,
) -> Result<u64, UnitError> {
    let text = text.trim();
    let digits_end = text.find(|c: char| !(c.is_ascii_digit() || c == '_' || c == '.')).unwrap_or(text.len());
    let (number, unit) = (text[..digits_end].replace('_', ""), text[digits_end..].trim());
    if !number.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(UnitError::NoNumber { example });
    }
    if unit.is_empty() {
        let unit = example.trim_matches('"').split_once(' ').map_or("", |(_, unit)| unit);
        return Err(UnitError::NoUnit { example: format!("\"{text} {unit}\"") });
    }
    let factor = unit
        .strip_suffix(suffix)
        .and_then(|name| units.iter().find(|(unit, _)| *unit == name.trim_end()))
        .map(|(_, factor)| *factor)
        .ok_or_else(|| UnitError::UnknownUnit { unit: unit.to_owned(), expected: unit_list(units, suffix) })?;
    exact_product(&number, factor).ok_or(UnitError::OutOfRange { base })
}

fn unit_list(units: &[(&str, u64)], suffix: &str) -> String {
    units.iter().map(|(unit, _)| format!("{unit}{suffix}")).collect::<Vec<_>>().join(", ")
}

/// `number × factor` where `number` is decimal digits with at most one point; `None` unless the product is a whole u64.
fn exact_product(number: &str, factor: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // More digits than this cannot be exact in any unit here, and 10^18 still fits in u64.
    if fraction.len() > 18 || fraction.contains('.') || (fraction.is_empty() && number.contains('.')) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(factor)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let scale = 10u128.pow(fraction.len() as u32);
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(factor);
    if part % scale != 0 {
        return None;
    }
    whole.checked_add(u64::try_from(part / scale).ok()?)
}

/// Writes `value` in the largest of `units` that divides it.
fn write_quantity(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)], suffix: &str) -> fmt::Result {
    let (unit, factor) = units
        .iter()
        .filter(|(_, factor)| value != 0 && value.is_multiple_of(*factor))
        .max_by_key(|(_, factor)| *factor)
        .unwrap_or(&units[0]);
    write!(f, "{} {unit}{suffix}", value / factor)
}

/// A number of bytes, written as `"20 GiB"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A number of bytes per second, written as `"2 GiB/s"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BytesPerSecond(pub u64);

/// A number of bits per second, written as `"1 Gbit/s"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitsPerSecond(pub u64);

/// A part of a whole in thousandths, written as `"20 %"` or `"12.5 %"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Percent(pub u16);

/// A time span with nanosecond resolution, written as `"50 us"`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(pub Duration);

impl Percent {
    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.0 == 0
    }
}

impl Span {
    /// A span of whole microseconds.
    pub const fn from_micros(micros: u64) -> Span {
        Span(Duration::from_micros(micros))
    }

    /// A span of whole seconds.
    pub const fn from_secs(seconds: u64) -> Span {
        Span(Duration::from_secs(seconds))
    }

    /// The span in nanoseconds; the largest u64 where it is longer.
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse_quantity(text, SIZE_UNITS, "", "bytes", "\"20 GiB\"").map(Bytes)
    }
}

impl FromStr for BytesPerSecond {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse_quantity(text, SIZE_UNITS, "/s", "bytes per second", "\"2 GiB/s\"").map(BytesPerSecond)
    }
}

impl FromStr for BitsPerSecond {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse_quantity(text, BIT_UNITS, "/s", "bits per second", "\"1 Gbit/s\"").map(BitsPerSecond)
    }
}

impl FromStr for Percent {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let thousandths = parse_quantity(text, &[("%", 10)], "", "thousandths", "\"20 %\"")?;
        let thousandths = u16::try_from(thousandths).ok().filter(|part| *part <= 1_000);
        thousandths.map(Percent).ok_or(UnitError::TooMuch { most: "100 %" })
    }
}

impl FromStr for Span {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        parse_quantity(text, TIME_UNITS, "", "nanoseconds", "\"5 s\"").map(|ns| Span(Duration::from_nanos(ns)))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_quantity(f, self.0, &SIZE_UNITS[..6], "")
    }
}

impl fmt::Display for BytesPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_quantity(f, self.0, &SIZE_UNITS[..6], "/s")
    }
}

impl fmt::Display for BitsPerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The last of equal units would be written: "Kbit" is read but not written.
        const WRITTEN: &[(&str, u64)] = &[BIT_UNITS[0], BIT_UNITS[1], BIT_UNITS[3], BIT_UNITS[4], BIT_UNITS[5]];
        write_quantity(f, self.0, WRITTEN, "/s")
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0 / 10, self.0 % 10) {
            (whole, 0) => write!(f, "{whole} %"),
            (whole, tenths) => write!(f, "{whole}.{tenths} %"),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // "us" rather than "µs", and whole minutes as seconds: what most people write.
        const WRITTEN: &[(&str, u64)] = &[("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
        write_quantity(f, self.nanos(), WRITTEN, "")
    }
}

macro_rules! serde_as_text {
    ($($kind:ty),*) => {$(
        impl Serialize for $kind {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $kind {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
    )*};
}

serde_as_text!(Bytes, BytesPerSecond, BitsPerSecond, Percent, Span);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_are_read_with_every_unit_and_nothing_else() {
        let good = [
            ("20 GiB", 20 << 30),
            ("20GiB", 20 << 30),
            ("512 MiB", 512 << 20),
            ("1_024 B", 1024),
            ("1.5 KiB", 1536),
            ("1.5 GB", 1_500_000_000),
            ("0 B", 0),
        ];
        for (text, bytes) in good {
            assert_eq!(text.parse::<Bytes>(), Ok(Bytes(bytes)), "{text}");
        }
        let bad =
            ["", "GiB", "20", "20 gib", "20 GiB/s", "-1 B", "1.5 B", "1. KiB", "1.2.3 KiB", "20000000 TiB", "_ B"];
        for text in bad {
            assert!(text.parse::<Bytes>().is_err(), "{text} was taken");
        }
    }

    #[test]
    fn a_number_without_a_unit_is_shown_with_one() {
        let error = |error: UnitError| error.to_string();
        let written = |quantity: &str| format!("the unit is missing: write \"{quantity}\", for instance");
        assert_eq!(error("5".parse::<Span>().unwrap_err()), written("5 s"));
        assert_eq!(error("20".parse::<Bytes>().unwrap_err()), written("20 GiB"));
        assert_eq!(error("100".parse::<BitsPerSecond>().unwrap_err()), written("100 Gbit/s"));
    }

    #[test]
    fn parts_are_thousandths_up_to_all() {
        for (text, part) in [("20 %", 200), ("12.5%", 125), ("0 %", 0), ("100 %", 1_000)] {
            assert_eq!(text.parse(), Ok(Percent(part)), "{text}");
            assert_eq!(Percent(part).to_string().parse(), Ok(Percent(part)));
        }
        for text in ["20", "0.05 %", "100.1 %", "-1 %", "% 20"] {
            assert!(text.parse::<Percent>().is_err(), "{text} was taken");
        }
    }

    #[test]
    fn rates_need_their_per_second() {
        assert_eq!("2 GiB/s".parse(), Ok(BytesPerSecond(2 << 30)));
        assert!("2 GiB".parse::<BytesPerSecond>().is_err());
        assert!("1 Gbit".parse::<BitsPerSecond>().is_err());
    }

    #[test]
    fn bit_rates_are_decimal_and_no_byte_rates() {
        for (text, bits) in [("1 Gbit/s", 1_000_000_000), ("2.5 Mbit/s", 2_500_000), ("64 Kbit/s", 64_000)] {
            assert_eq!(text.parse(), Ok(BitsPerSecond(bits)), "{text}");
        }
        assert_eq!(BitsPerSecond(64_000).to_string(), "64 kbit/s");
        for text in ["1 GiB/s", "1 Gb/s", "1 gbit/s", "0.5 bit/s"] {
            assert!(text.parse::<BitsPerSecond>().is_err(), "{text} was taken");
        }
    }

    #[test]
    fn spans_are_written_in_the_largest_unit_that_is_exact() {
        for (text, written) in
            [("50 us", "50 us"), ("50 µs", "50 us"), ("1500 us", "1500 us"), ("2000 ms", "2 s"), ("1 min", "60 s")]
        {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), written);
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(value in any::<u64>(), shift in 0u32..64) {
            let value = value >> shift;
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            prop_assert_eq!(BytesPerSecond(value).to_string().parse(), Ok(BytesPerSecond(value)));
            prop_assert_eq!(BitsPerSecond(value).to_string().parse(), Ok(BitsPerSecond(value)));
            let span = Span(Duration::from_nanos(value));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }

        #[test]
        fn arbitrary_text_never_panics(text in ".*") {
            let _ = (text.parse::<Bytes>(), text.parse::<BytesPerSecond>(), text.parse::<Span>());
        }
    }
}
