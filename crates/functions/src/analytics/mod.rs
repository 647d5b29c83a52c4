//! Real-time analytics: of the frames that a filter wants, how many there are, and the keys with the most, window by
//! window.
//!
//! ```text
//!   frame ─► filter ─► window: packets, octets, and a Space-Saving summary for each dimension
//!                         └─ time is over ─► WindowReport
//! ```
//!
//! Windows lie end to end and begin at the same instants on all cores. What is heaviest is known with the error bound
//! of [`SpaceSaving`]: with `entries` counters, less than the window's weight / `entries`.

mod space_saving;

use std::fmt;
use std::net::IpAddr;

use softdpu_vpc::trace::Filter;

pub use space_saving::{Item, SpaceSaving, merge};

use crate::Observation;
use crate::monitor::FlowKey;

/// What is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Dimension {
    /// Source addresses.
    Source,
    /// Destination addresses.
    Destination,
    /// Source ports of TCP and UDP.
    SourcePort,
    /// Destination ports of TCP and UDP.
    DestinationPort,
    /// IP protocols.
    Protocol,
    /// 5-tuples.
    Flow,
}

impl Dimension {
    /// All, with their words in site files, `status` and metrics.
    pub const ALL: [(&'static str, Dimension); 6] = [
        ("source", Dimension::Source),
        ("destination", Dimension::Destination),
        ("source-port", Dimension::SourcePort),
        ("destination-port", Dimension::DestinationPort),
        ("protocol", Dimension::Protocol),
        ("flow", Dimension::Flow),
    ];

    /// Its word.
    pub fn word(self) -> &'static str {
        Self::ALL.iter().find(|(_, dimension)| *dimension == self).map_or("", |(word, _)| word)
    }

    /// What a packet is, in this dimension.
    #[inline]
    fn of(self, key: &FlowKey, has_ports: bool) -> Option<Key> {
        let port = |port: u16| has_ports.then_some(Key::Port(key.protocol, port));
        match self {
            Dimension::Source => Some(Key::Address(key.source)),
            Dimension::Destination => Some(Key::Address(key.destination)),
            Dimension::SourcePort => port(key.source_port),
            Dimension::DestinationPort => port(key.destination_port),
            Dimension::Protocol => Some(Key::Protocol(key.protocol)),
            Dimension::Flow => Some(Key::Flow {
                protocol: key.protocol,
                source: key.source,
                source_port: key.source_port,
                destination: key.destination,
                destination_port: key.destination_port,
            }),
        }
    }
}

/// Something that is told apart from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Key {
    /// An address.
    Address(IpAddr),
    /// A port of a protocol.
    Port(u8, u16),
    /// A protocol.
    Protocol(u8),
    /// A 5-tuple.
    Flow {
        /// IANA protocol number.
        protocol: u8,
        /// Source address.
        source: IpAddr,
        /// Source port, 0 where there is none.
        source_port: u16,
        /// Destination address.
        destination: IpAddr,
        /// Destination port; of ICMP type × 256 + code.
        destination_port: u16,
    },
}

/// The name of a protocol, or its number.
fn protocol(number: u8) -> String {
    match number {
        1 => "icmp".to_owned(),
        6 => "tcp".to_owned(),
        17 => "udp".to_owned(),
        58 => "icmp6".to_owned(),
        132 => "sctp".to_owned(),
        other => format!("proto {other}"),
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Address(address) => address.fmt(f),
            Key::Port(number, port) => write!(f, "{} {port}", protocol(*number)),
            Key::Protocol(number) => f.write_str(&protocol(*number)),
            Key::Flow { protocol: number, source, source_port, destination, destination_port } => {
                let end = |address: &IpAddr, port: u16| match address {
                    IpAddr::V4(address) => format!("{address}:{port}"),
                    IpAddr::V6(address) => format!("[{address}]:{port}"),
                };
                let (from, to) = (end(source, *source_port), end(destination, *destination_port));
                write!(f, "{} {from} > {to}", protocol(*number))
            }
        }
    }
}

/// What is heavy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    /// The keys with the most octets.
    #[default]
    Octets,
    /// The keys with the most packets.
    Packets,
}

/// What an analysis goes by.
#[derive(Clone, Debug, PartialEq)]
pub struct AnalyticsSpec {
    /// Which frames; None: all.
    pub filter: Option<Filter>,
    /// What is told apart, each once.
    pub by: Vec<Dimension>,
    /// What is heavy.
    pub weight: Weight,
    /// How long a window is, nanoseconds, not 0.
    pub window: u64,
    /// Counters of a summary.
    pub entries: usize,
}

/// What was seen in a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowReport {
    /// Windows are numbered from the beginning of the clock.
    pub window: u64,
    /// Packets that the filter wanted.
    pub packets: u64,
    /// Their octets.
    pub octets: u64,
    /// In the order of the dimensions: the keys that were counted, in no order, and the most that any other can have.
    pub summaries: Vec<(Vec<Item<Key>>, u64)>,
}

/// What an analysis counts, over all windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AnalyticsCounts {
    /// Packets that came.
    pub packets: u64,
    /// Their octets.
    pub octets: u64,
    /// Packets that the filter wanted.
    pub matched: u64,
    /// Their octets.
    pub matched_octets: u64,
}

/// A core's analysis.
#[derive(Debug)]
pub struct Analytics {
    spec: AnalyticsSpec,
    window: u64,
    packets: u64,
    octets: u64,
    summaries: Vec<SpaceSaving<Key>>,
    reports: Vec<WindowReport>,
    counts: AnalyticsCounts,
}

impl Analytics {
    /// That has seen nothing.
    pub fn new(spec: AnalyticsSpec) -> Analytics {
        let summaries = spec.by.iter().map(|_| SpaceSaving::new(spec.entries)).collect();
        let (reports, counts) = (Vec::new(), AnalyticsCounts::default());
        Analytics { spec, window: 0, packets: 0, octets: 0, summaries, reports, counts }
    }

    /// What it has counted.
    pub fn counts(&self) -> AnalyticsCounts {
        self.counts
    }

    /// Frames went, at `now`, nanoseconds on a clock that does not go backwards; those that reach this `place` of their
    /// chain are counted.
    pub fn note(&mut self, now: u64, observations: &[Observation], place: usize) {
        self.turn(now);
        for observation in observations.iter().filter(|observation| observation.reaches(place)) {
            let (packets, octets) = (u64::from(observation.packets), u64::from(observation.octets));
            self.counts.packets += packets;
            self.counts.octets += octets;
            if !self.spec.filter.as_ref().is_none_or(|filter| filter.matches(&observation.subject)) {
                continue;
            }
            self.counts.matched += packets;
            self.counts.matched_octets += octets;
            self.packets += packets;
            self.octets += octets;
            let Some((key, _)) = FlowKey::of(observation) else { continue };
            let has_ports = observation.ip().is_some_and(|ip| ip.ports().is_some());
            let weight = if self.spec.weight == Weight::Octets { octets } else { packets };
            for (dimension, summary) in self.spec.by.iter().zip(&mut self.summaries) {
                if let Some(key) = dimension.of(&key, has_ports) {
                    summary.add(key, weight);
                }
            }
        }
    }

    /// Ends the window that is over at `now`. To be called every second or more often.
    pub fn turn(&mut self, now: u64) {
        let window = now / self.spec.window.max(1);
        if window == self.window {
            return;
        }
        if self.packets > 0 {
            let summary = |summary: &SpaceSaving<Key>| (summary.items().to_vec(), summary.bound());
            self.reports.push(WindowReport {
                window: self.window,
                packets: self.packets,
                octets: self.octets,
                summaries: self.summaries.iter().map(summary).collect(),
            });
            self.summaries.iter_mut().for_each(SpaceSaving::clear);
            (self.packets, self.octets) = (0, 0);
        }
        self.window = window;
    }

    /// When there is something to do without another frame: a window in which there is something ends, or waits to be
    /// taken.
    pub fn due(&self) -> Option<u64> {
        if !self.reports.is_empty() {
            return Some(0);
        }
        (self.packets > 0).then(|| (self.window + 1).saturating_mul(self.spec.window.max(1)))
    }

    /// The windows that ended since they were taken last, but for those in which nothing was seen.
    pub fn take(&mut self) -> Vec<WindowReport> {
        std::mem::take(&mut self.reports)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{arp, icmp, seen, tcp, udp, udp6};

    const SECOND: u64 = 1_000_000_000;

    fn analytics(filter: Option<&str>, by: &[Dimension], weight: Weight) -> Analytics {
        let filter = filter.map(|filter| filter.parse().unwrap());
        Analytics::new(AnalyticsSpec { filter, by: by.to_vec(), weight, window: 10 * SECOND, entries: 64 })
    }

    /// The heaviest in a dimension of a report.
    fn top(report: &WindowReport, dimension: usize) -> Vec<(String, u64)> {
        let (items, bound) = &report.summaries[dimension];
        merge(&[(items, *bound)], 10).iter().map(|item| (item.key.to_string(), item.weight)).collect()
    }

    #[test]
    fn a_window_tells_who_has_the_most() {
        let mut analytics =
            analytics(None, &[Dimension::Source, Dimension::DestinationPort, Dimension::Flow], Weight::Octets);
        for _ in 0..3 {
            analytics.note(11 * SECOND, &[seen(&udp([10, 0, 0, 1], 1000, [10, 0, 0, 9], 53, 972))], 0);
        }
        analytics.note(12 * SECOND, &[seen(&tcp([10, 0, 0, 2], 1001, [10, 0, 0, 9], 80, 0x10, 460))], 0);
        analytics.turn(19 * SECOND);
        assert_eq!(analytics.take(), []);
        analytics.turn(20 * SECOND);
        let report = &analytics.take()[0];
        assert_eq!((report.window, report.packets, report.octets), (1, 4, 3500));
        assert_eq!(top(report, 0), [("10.0.0.1".to_owned(), 3000), ("10.0.0.2".to_owned(), 500)]);
        assert_eq!(top(report, 1), [("udp 53".to_owned(), 3000), ("tcp 80".to_owned(), 500)]);
        assert_eq!(top(report, 2)[0].0, "udp 10.0.0.1:1000 > 10.0.0.9:53");
    }

    #[test]
    fn packets_weigh_one_each_where_that_is_wanted() {
        let mut analytics = analytics(None, &[Dimension::Protocol], Weight::Packets);
        let small = seen(&icmp([10, 0, 0, 1], [10, 0, 0, 2], 8, 0));
        analytics.note(0, &[small, small, seen(&udp6(1, 5, 2, 6, 1000))], 0);
        analytics.turn(10 * SECOND);
        assert_eq!(top(&analytics.take()[0], 0), [("icmp".to_owned(), 2), ("udp".to_owned(), 1)]);
    }

    #[test]
    fn only_what_the_filter_wants_is_counted() {
        let mut analytics = analytics(Some("tcp port 80"), &[Dimension::Source], Weight::Octets);
        let wanted = seen(&tcp([10, 0, 0, 1], 9, [10, 0, 0, 2], 80, 2, 0));
        let other = seen(&udp([10, 0, 0, 1], 9, [10, 0, 0, 2], 80, 0));
        analytics.note(0, &[wanted, other, seen(&arp())], 0);
        let counts = analytics.counts();
        assert_eq!((counts.packets, counts.matched, counts.matched_octets), (3, 1, 40));
    }

    #[test]
    fn what_has_no_ports_is_in_no_table_of_ports_and_arp_in_none() {
        let mut analytics = analytics(None, &[Dimension::SourcePort, Dimension::Source], Weight::Packets);
        analytics.note(0, &[seen(&icmp([10, 0, 0, 1], [10, 0, 0, 2], 8, 0)), seen(&arp())], 0);
        analytics.turn(10 * SECOND);
        let report = &analytics.take()[0];
        assert_eq!((report.packets, top(report, 0).len(), top(report, 1).len()), (2, 0, 1));
    }

    #[test]
    fn a_window_with_frames_is_due_when_it_is_over() {
        let mut analytics = analytics(None, &[], Weight::Octets);
        assert_eq!(analytics.due(), None);
        analytics.note(11 * SECOND, &[seen(&arp())], 0);
        assert_eq!(analytics.due(), Some(20 * SECOND));
        analytics.turn(20 * SECOND);
        assert_eq!(analytics.due(), Some(0), "the report waits");
        analytics.take();
        assert_eq!(analytics.due(), None);
    }

    #[test]
    fn a_window_without_frames_is_not_reported() {
        let mut analytics = analytics(None, &[], Weight::Octets);
        analytics.turn(100 * SECOND);
        analytics.turn(200 * SECOND);
        assert_eq!(analytics.take(), []);
    }
}
