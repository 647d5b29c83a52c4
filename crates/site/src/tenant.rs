//! `[[tenant]]`: the owner of devices, and its share of a core.

use serde::{Deserialize, Serialize};

use super::diagnostic::Problem;
use super::network::{MeterSettings, given, meter};
use super::read::name;
use super::reader::{Reader, join};
use super::site::Site;
use super::units::{Bytes, BytesPerSecond, Percent};

/// The largest weight: far beyond any useful ratio, small enough that sums of weights never overflow.
const LARGEST_WEIGHT: u32 = 10_000;
/// The largest number of requests or packets a second: far beyond any device, small enough that no product of it
/// overflows.
const MOST_UNITS: u32 = 1_000_000_000;
/// Bursts that are not written are what comes in a tenth of a second …
const BURSTS_PER_SECOND: u64 = 10;
/// … but no fewer requests or packets than a batch,
const SMALLEST_BURST: u64 = 64;
/// and no fewer bytes than a large request.
const SMALLEST_BYTE_BURST: u64 = 1 << 20;
/// What all guarantees may come to: weights are to share something.
const MOST_GUARANTEED: Percent = Percent(900);

/// `[[tenant]]`: the owner of devices, which share one weight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tenant {
    /// Its name, unique among tenants.
    pub name: String,
    /// Its share beside the other tenants', at least 1.
    pub weight: u32,
    /// Which tenant goes first among those that have had less than their share.
    #[serde(default)]
    pub class: LatencyClass,
    /// What it has of all data-plane cores' time while it has work, whatever the weights.
    #[serde(default, skip_serializing_if = "Percent::is_zero")]
    pub guarantee: Percent,
    /// What it may not exceed, all its devices together.
    #[serde(default, skip_serializing_if = "TenantLimits::is_empty")]
    pub limits: TenantLimits,
    /// The meter that all that its devices send to networks passes, after the meters of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub meter: Option<MeterSettings>,
}

/// Which tenant goes first among those that have had less than their share. It gives no more, only earlier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LatencyClass {
    /// Before the others.
    Latency,
    /// In between.
    #[default]
    Normal,
    /// Never before another.
    Background,
}

/// `tenant.limits`: the most that all devices of a tenant do together; a token bucket each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TenantLimits {
    /// Requests of disks a second; unlimited where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops: Option<u64>,
    /// How many may come at once; there where `iops` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub iops_burst: Option<u64>,
    /// Bytes of requests and of packets that are sent, a second; unlimited where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<BytesPerSecond>,
    /// How many may come at once; there where `bandwidth` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_burst: Option<Bytes>,
    /// Packets that are sent, a second; unlimited where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// How many may come at once; there where `packets` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets_burst: Option<u64>,
    /// Bytes of packets that wires bring, a second; unlimited where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bandwidth: Option<BytesPerSecond>,
    /// How many may come at once; there where `received_bandwidth` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bandwidth_burst: Option<Bytes>,
    /// Packets that wires bring, a second; unlimited where absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_packets: Option<u64>,
    /// How many may come at once; there where `received_packets` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_packets_burst: Option<u64>,
}

/// The parameters of `tenant.set`: what is to be different. Limits are replaced as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantChange {
    /// The tenant.
    pub name: String,
    /// Its weight from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// Its class from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<LatencyClass>,
    /// Its guarantee from now on; zero: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guarantee: Option<Percent>,
    /// Its limits from now on; empty: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<TenantLimits>,
    /// Its meter from now on; `Some(None)`, written as null: none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "given")]
    pub meter: Option<Option<MeterSettings>>,
}

impl Tenant {
    /// One that says nothing but its name.
    pub fn called(name: impl Into<String>) -> Tenant {
        Tenant {
            name: name.into(),
            weight: 1,
            class: LatencyClass::default(),
            guarantee: Percent::default(),
            limits: TenantLimits::default(),
            meter: None,
        }
    }

    /// Makes what `change` says different.
    pub fn change(&mut self, change: &TenantChange) {
        self.weight = change.weight.unwrap_or(self.weight);
        self.class = change.class.unwrap_or(self.class);
        self.guarantee = change.guarantee.unwrap_or(self.guarantee);
        self.limits = change.limits.unwrap_or(self.limits);
        self.meter = change.meter.unwrap_or(self.meter);
    }
}

impl TenantChange {
    /// This change and then `next`, as one.
    pub fn then(&mut self, next: TenantChange) {
        self.weight = next.weight.or(self.weight);
        self.class = next.class.or(self.class);
        self.guarantee = next.guarantee.or(self.guarantee);
        self.limits = next.limits.or(self.limits);
        self.meter = next.meter.or(self.meter);
    }
}

impl TenantLimits {
    /// Packets a second that wires bring, and how many at once, where they are limited.
    pub fn received_packet_bucket(&self) -> Option<(u64, u64)> {
        self.received_packets.zip(self.received_packets_burst)
    }

    /// Bytes a second that wires bring, and how many at once, where they are limited.
    pub fn received_byte_bucket(&self) -> Option<(u64, u64)> {
        let (rate, burst) = self.received_bandwidth.zip(self.received_bandwidth_burst)?;
        Some((rate.0, burst.0))
    }

    /// Whether nothing is limited.
    pub fn is_empty(&self) -> bool {
        *self == TenantLimits::default()
    }
}

/// Guarantees that leave nothing to be shared by weight.
pub(super) fn check_guarantees(site: &Site, problems: &mut Vec<Problem>) {
    let mut sum = 0_u32;
    for (index, tenant) in site.tenants.iter().enumerate() {
        let before = sum;
        sum += u32::from(tenant.guarantee.0);
        if before <= MOST_GUARANTEED.0.into() && sum > MOST_GUARANTEED.0.into() {
            let all = u16::try_from(sum).unwrap_or(u16::MAX);
            problems.push(
                Problem::error(format!("tenant[{index}].guarantee"), "tenants are guaranteed more than there is")
                    .found(format!("{} for this tenant and those before it", Percent(all)))
                    .expected(format!("{MOST_GUARANTEED} at the most, so that weights have something to share")),
            );
        }
    }
}

pub(super) fn tenant(reader: &Reader<'_>) -> Tenant {
    let change = change(reader);
    let mut tenant = Tenant::called(change.name.clone());
    tenant.change(&change);
    tenant
}

/// What a `[[tenant]]` says, or the parameters of `tenant.set`.
pub(super) fn change(reader: &Reader<'_>) -> TenantChange {
    TenantChange {
        name: name(reader, "acme"),
        weight: reader.integer("weight", 1..=LARGEST_WEIGHT),
        class: reader.choice(
            "class",
            &[
                ("latency", LatencyClass::Latency),
                ("normal", LatencyClass::Normal),
                ("background", LatencyClass::Background),
            ],
            &[],
        ),
        guarantee: reader.parsed("guarantee", "a part of all cores' time such as \"20 %\""),
        limits: reader.table("limits", "tenant.limits", limits),
        // One that is wrong was reported.
        meter: reader.table_or_null("meter", "meter", meter).map(Option::flatten),
    }
}

fn limits(reader: &Reader<'_>) -> TenantLimits {
    let units = |key| reader.integer(key, 1..=MOST_UNITS).map(u64::from);
    let burst = |rate: u64, least: u64| (rate / BURSTS_PER_SECOND).max(least);
    let counted = |key, burst_key| {
        let rate = units(key);
        (rate, units(burst_key).or_else(|| rate.map(|rate| burst(rate, SMALLEST_BURST))))
    };
    let bytes = |key, burst_key| {
        let rate: Option<BytesPerSecond> = reader.parsed(key, "a rate with a unit such as \"2 GiB/s\"");
        let written: Option<Bytes> = reader.parsed(burst_key, "a size with a unit such as \"64 MiB\"");
        if rate == Some(BytesPerSecond(0))
            && let Some(value) = reader.value(key)
        {
            reader.report(reader.wrong(key, value, "more than nothing"));
        }
        (rate, written.or_else(|| rate.map(|rate| Bytes(burst(rate.0, SMALLEST_BYTE_BURST)))))
    };
    let (iops, iops_burst) = counted("iops", "iops-burst");
    let (bandwidth, bandwidth_burst) = bytes("bandwidth", "bandwidth-burst");
    let (packets, packets_burst) = counted("packets", "packets-burst");
    let (received_bandwidth, received_bandwidth_burst) = bytes("received-bandwidth", "received-bandwidth-burst");
    let (received_packets, received_packets_burst) = counted("received-packets", "received-packets-burst");
    let limits = TenantLimits {
        iops,
        iops_burst,
        bandwidth,
        bandwidth_burst,
        packets,
        packets_burst,
        received_bandwidth,
        received_bandwidth_burst,
        received_packets,
        received_packets_burst,
    };
    burst_needs_rate(reader, "iops-burst", "iops", "iops = 50_000");
    burst_needs_rate(reader, "bandwidth-burst", "bandwidth", "bandwidth = \"2 GiB/s\"");
    burst_needs_rate(reader, "packets-burst", "packets", "packets = 1_000_000");
    burst_needs_rate(reader, "received-bandwidth-burst", "received-bandwidth", "received-bandwidth = \"2 GiB/s\"");
    burst_needs_rate(reader, "received-packets-burst", "received-packets", "received-packets = 1_000_000");
    limits
}

pub(super) fn burst_needs_rate(reader: &Reader<'_>, burst: &'static str, rate: &'static str, example: &str) {
    if let Some(value) = reader.value(burst)
        && reader.value(rate).is_none()
    {
        let message = format!("`{burst}` does nothing without `{rate}`");
        let problem = Problem::error(join(&reader.path, burst), message).at(value.span.clone());
        reader.report(problem.help(format!("add `{rate}`, such as {example}")));
    }
}
