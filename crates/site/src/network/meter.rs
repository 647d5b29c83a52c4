//! Meters of ports and of tenants: two rates, three colours.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use softdpu_vpc::spec::{Measure, MeterAlgorithm, MeterSpec, Rate};

use crate::diagnostic::Problem;
use crate::from_json;
use crate::reader::{Reader, join};
use crate::units::{BitsPerSecond, Bytes};

use super::rules::SMALLEST_BYTE_BURST;

/// Bursts that are not written are what comes in a hundredth of a second, and no fewer bytes than two frames that still
/// have to be cut into segments.
const BURSTS_PER_SECOND: u64 = 100;
const DEFAULT_BURST: u64 = 128 << 10;

/// `meter` of a port or a tenant: what is beyond both rates is dropped. As JSON it is read as in the site file, so that
/// what is left out means the same, and what contradicts itself is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", try_from = "Value")]
pub struct MeterSettings {
    /// How it colours.
    pub algorithm: ColourBy,
    /// What is green, bits of Ethernet frames per second.
    pub committed: BitsPerSecond,
    /// How many bytes of it may come at once.
    pub committed_burst: Bytes,
    /// RFC 2698: what is yellow, the peak of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<BitsPerSecond>,
    /// How many bytes of that may come at once; there where `peak` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_burst: Option<Bytes>,
    /// RFC 4115: what is yellow, in excess of `committed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess: Option<BitsPerSecond>,
    /// How many bytes of that may come at once; there where `excess` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub excess_burst: Option<Bytes>,
}

/// How a meter colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ColourBy {
    /// RFC 2698.
    #[default]
    Rfc2698,
    /// RFC 4115.
    Rfc4115,
}

impl TryFrom<Value> for MeterSettings {
    type Error = String;

    fn try_from(value: Value) -> Result<Self, String> {
        let text = |problems: Vec<Problem>| problems.iter().map(Problem::to_string).collect::<Vec<_>>().join("; ");
        // None comes with a problem.
        from_json(&value, "meter", meter).map_err(text)?.ok_or_else(|| "no meter".to_owned())
    }
}

impl MeterSettings {
    /// As the tables take it.
    pub fn spec(&self, name: String) -> MeterSpec {
        let rate = |bits: BitsPerSecond, burst: Bytes| Rate { rate: bits.0 / 8, burst: burst.0 };
        let second = match self.algorithm {
            ColourBy::Rfc2698 => self.peak.zip(self.peak_burst),
            ColourBy::Rfc4115 => self.excess.zip(self.excess_burst),
        };
        let (second, second_burst) = second.unwrap_or_default();
        MeterSpec {
            name,
            algorithm: match self.algorithm {
                ColourBy::Rfc2698 => MeterAlgorithm::Rfc2698,
                ColourBy::Rfc4115 => MeterAlgorithm::Rfc4115,
            },
            measure: Measure::Bytes,
            committed: rate(self.committed, self.committed_burst),
            second: rate(second, second_burst),
        }
    }
}

const WHAT_BITS: &str = "a rate with a unit such as \"1 Gbit/s\"";
const WHAT_BYTES: &str = "a size with a unit such as \"256 KiB\"";

/// `meter`. None: it was wrong, and that was reported.
pub(crate) fn meter(reader: &Reader<'_>) -> Option<MeterSettings> {
    let kinds = [("rfc2698", ColourBy::Rfc2698), ("rfc4115", ColourBy::Rfc4115)];
    let algorithm = reader.choice("algorithm", &kinds, &[]).unwrap_or_default();
    let (key, other, example) = match algorithm {
        ColourBy::Rfc2698 => ("peak", "excess", "peak = \"2 Gbit/s\""),
        ColourBy::Rfc4115 => ("excess", "peak", "excess = \"1 Gbit/s\""),
    };
    for (key, example) in [("committed", "committed = \"1 Gbit/s\""), (key, example)] {
        if reader.value(key).is_none() {
            reader.missing(key, example);
        }
    }
    let rate = |key| reader.parsed::<BitsPerSecond>(key, WHAT_BITS);
    let burst = |key, rate: Option<BitsPerSecond>| {
        let written: Option<Bytes> = reader.parsed(key, WHAT_BYTES);
        written.or_else(|| rate.map(|rate| Bytes((rate.0 / 8 / BURSTS_PER_SECOND).max(DEFAULT_BURST))))
    };
    let committed = rate("committed");
    let committed_burst = burst("committed-burst", committed);
    let [peak, excess] = ["peak", "excess"].map(rate);
    let [peak_burst, excess_burst] = [burst("peak-burst", peak), burst("excess-burst", excess)];
    if let Some(value) = reader.value(other) {
        let message = format!("`{other}` means nothing to this algorithm");
        let problem = Problem::error(join(&reader.path, other), message).at(value.span.clone());
        reader.report(problem.help(format!("write `{key}`, or the other algorithm")));
    }
    if let (ColourBy::Rfc2698, Some(committed), Some(peak), Some(value)) =
        (algorithm, committed, peak, reader.value("peak"))
        && peak < committed
    {
        let problem = Problem::error(join(&reader.path, "peak"), "the peak rate is below the committed rate");
        reader.report(problem.at(value.span.clone()).help("the peak is of all packets: write at least `committed`"));
    }
    let meter = committed.zip(committed_burst).map(|(committed, committed_burst)| MeterSettings {
        algorithm,
        committed,
        committed_burst,
        peak,
        peak_burst,
        excess,
        excess_burst,
    });
    if let Some(meter) = &meter {
        meter.check(reader);
    }
    meter
}

impl MeterSettings {
    /// Reports a meter that some frames never pass, however slowly they come.
    fn check(&self, reader: &Reader<'_>) {
        let committed = ("committed", "committed-burst", self.committed, self.committed_burst);
        let second = |rate, burst, given: (Option<BitsPerSecond>, Option<Bytes>)| {
            given.0.zip(given.1).map(|(bits, bytes)| (rate, burst, bits, bytes))
        };
        // RFC 2698: what is beyond the peak is red. RFC 4115: what is beyond both.
        let passes = match self.algorithm {
            ColourBy::Rfc2698 => [second("peak", "peak-burst", (self.peak, self.peak_burst)), None],
            ColourBy::Rfc4115 => [Some(committed), second("excess", "excess-burst", (self.excess, self.excess_burst))],
        };
        let lets_pass = |bits: BitsPerSecond, bytes: Bytes| bits.0 > 0 && bytes >= SMALLEST_BYTE_BURST;
        if passes.iter().flatten().any(|(_, _, bits, bytes)| lets_pass(*bits, *bytes)) {
            return;
        }
        let (key, found, expected) = match passes.iter().flatten().find(|(_, _, bits, _)| bits.0 > 0) {
            Some((_, burst, _, bytes)) => (
                *burst,
                bytes.to_string(),
                format!("at least {SMALLEST_BYTE_BURST}: the largest frame a guest may send"),
            ),
            None => {
                let Some((rate, ..)) = passes.iter().flatten().last() else { return };
                (*rate, "zero".to_owned(), "at least 1 bit/s: a meter that lets nothing pass is of no use".to_owned())
            }
        };
        let problem =
            Problem::error(join(&reader.path, key), format!("`{key}` in meter")).found(found).expected(expected);
        reader.report(match reader.value(key) {
            Some(value) => problem.at(value.span.clone()),
            None => problem,
        });
    }
}
