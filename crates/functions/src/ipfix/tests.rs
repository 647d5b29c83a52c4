//! The encoder beside a naive decoder that knows nothing of it but RFC 7011.

use std::collections::BTreeMap;

use proptest::prelude::*;

use softdpu_vpc::Vni;

use super::*;
use crate::monitor::EndReason;

/// A data record, by information element.
type Data = BTreeMap<u16, Vec<u8>>;

/// Templates that a collector knows, by domain and number.
#[derive(Default)]
struct Collector {
    templates: BTreeMap<(u32, u16), Vec<(u16, usize)>>,
    sequences: BTreeMap<u32, u32>,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(bytes[at..at + 2].try_into().unwrap())
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

impl Collector {
    /// Domain, export time and data records of a message.
    fn read(&mut self, bytes: &[u8]) -> (u32, u32, Vec<Data>) {
        assert_eq!((u16_at(bytes, 0), usize::from(u16_at(bytes, 2))), (10, bytes.len()));
        let (time, sequence, domain) = (u32_at(bytes, 4), u32_at(bytes, 8), u32_at(bytes, 12));
        assert_eq!(*self.sequences.entry(domain).or_default(), sequence, "of domain {domain}");
        let (mut at, mut records) = (16, Vec::new());
        while at < bytes.len() {
            let (id, len) = (u16_at(bytes, at), usize::from(u16_at(bytes, at + 2)));
            let set = &bytes[at + 4..at + len];
            at += len;
            if id == 2 {
                self.learn(domain, set);
                continue;
            }
            let template = self.templates.get(&(domain, id)).expect("a template before its data");
            let size: usize = template.iter().map(|(_, len)| len).sum();
            assert!(!set.is_empty() && set.len().is_multiple_of(size));
            for record in set.chunks(size) {
                let (mut field, mut data) = (0, Data::new());
                for (element, len) in template {
                    data.insert(*element, record[field..field + len].to_vec());
                    field += len;
                }
                records.push(data);
            }
        }
        *self.sequences.entry(domain).or_default() += records.len() as u32;
        (domain, time, records)
    }

    fn learn(&mut self, domain: u32, set: &[u8]) {
        let mut at = 0;
        while at < set.len() {
            let (id, count) = (u16_at(set, at), usize::from(u16_at(set, at + 2)));
            at += 4;
            let field = |at: usize| (u16_at(set, at), usize::from(u16_at(set, at + 2)));
            let fields = (0..count).map(|index| field(at + 4 * index)).collect();
            self.templates.insert((domain, id), fields);
            at += 4 * count;
        }
    }
}

fn address(bytes: &[u8]) -> IpAddr {
    match <[u8; 4]>::try_from(bytes) {
        Ok(bytes) => bytes.into(),
        Err(_) => <[u8; 16]>::try_from(bytes).unwrap().into(),
    }
}

/// What a data record says, on a clock that began with 1970.
fn record(data: &Data) -> FlowRecord {
    let number = |element: u16| number(&data[&element]);
    let either = |v4: u16, v6: u16| address(data.get(&v4).unwrap_or_else(|| &data[&v6]));
    assert_eq!(number(351) >> 56, 1, "VXLAN");
    FlowRecord {
        key: FlowKey {
            source: either(8, 27),
            destination: either(12, 28),
            source_port: number(7) as u16,
            destination_port: number(11) as u16,
            protocol: number(4) as u8,
            direction: if number(61) == 0 { FrameDirection::In } else { FrameDirection::Out },
            vni: Vni::new(number(351) as u32 & 0xff_ffff).unwrap_or(Vni::NONE),
        },
        packets: number(2),
        octets: number(1),
        first: number(152) * 1_000_000,
        last: number(153) * 1_000_000,
        tcp_flags: number(6) as u8,
        reason: match number(136) {
            1 => EndReason::Idle,
            2 => EndReason::Active,
            4 => EndReason::Forced,
            5 => EndReason::Resources,
            other => panic!("reason {other}"),
        },
    }
}

fn records() -> impl Strategy<Value = Vec<FlowRecord>> {
    let addresses = prop_oneof![
        any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
        any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (IpAddr::from(a), IpAddr::from(b))),
    ];
    let reasons = [EndReason::Idle, EndReason::Active, EndReason::Forced, EndReason::Resources];
    let record = (addresses, any::<(u16, u16, u8, bool, u64, u64, u8)>(), 1u32..4, 0u64..1000, 0usize..4).prop_map(
        move |(
            (source, destination),
            (source_port, destination_port, protocol, is_in, packets, octets, tcp_flags),
            vni,
            at,
            reason,
        )| {
            let direction = if is_in { FrameDirection::In } else { FrameDirection::Out };
            let vni = Vni::new(vni).unwrap_or(Vni::NONE);
            let key = FlowKey { source, destination, source_port, destination_port, protocol, direction, vni };
            let (first, last) = (at * 1_000_000, (at + 7) * 1_000_000);
            FlowRecord { key, packets, octets, first, last, tcp_flags, reason: reasons[reason] }
        },
    );
    prop::collection::vec(record, 1..80)
}

proptest! {
    #[test]
    fn what_is_encoded_is_what_a_collector_reads(batches in prop::collection::vec(records(), 1..4), domain in any::<Option<u32>>()) {
        let (mut exporter, mut collector) = (Exporter::new(domain), Collector::default());
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        for (turn, batch) in batches.iter().enumerate() {
            let clock = 2_000_000_000 + turn as u64 * 45_000_000_000;
            let now = Instant { clock, unix_ms: clock / 1_000_000 };
            expected.extend(batch.iter().copied());
            for message in exporter.encode(now, batch) {
                prop_assert!(message.bytes.len() <= MESSAGE);
                let (of, time, data) = collector.read(&message.bytes);
                prop_assert_eq!(u64::from(time), clock / 1_000_000_000);
                prop_assert_eq!(data.len(), message.records as usize);
                for data in &data {
                    let record = record(data);
                    prop_assert_eq!(of, domain.unwrap_or(record.key.vni.get()));
                    found.push(record);
                }
            }
        }
        let order = |record: &FlowRecord| (record.key, record.packets, record.octets, record.first, record.tcp_flags, record.reason as u8);
        expected.sort_by_key(order);
        found.sort_by_key(order);
        prop_assert_eq!(found, expected);
    }
}

fn flow(number: u32) -> FlowRecord {
    let vni = Vni::new(number).unwrap();
    FlowRecord {
        key: FlowKey {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            source_port: 1,
            destination_port: 2,
            protocol: 17,
            direction: FrameDirection::In,
            vni,
        },
        packets: 1,
        octets: 28,
        first: 0,
        last: 0,
        tcp_flags: 0,
        reason: EndReason::Idle,
    }
}

fn tells_templates(message: &Message) -> bool {
    u16_at(&message.bytes, HEADER) == TEMPLATE_SET
}

#[test]
fn templates_are_told_first_and_again_every_minute_to_each_domain() {
    let mut exporter = Exporter::new(None);
    let mut told = |clock, vni| {
        let messages = exporter.encode(Instant { clock, unix_ms: clock / 1_000_000 }, &[flow(vni)]);
        assert_eq!(messages.len(), 1);
        tells_templates(&messages[0])
    };
    assert!(told(0, 1));
    assert!(!told(TEMPLATES - 1, 1));
    assert!(told(TEMPLATES - 1, 2));
    assert!(told(TEMPLATES, 1));
    assert!(!told(TEMPLATES, 2));
}

#[test]
fn a_sequence_counts_the_records_of_its_domain_and_begins_again_at_2_to_the_32() {
    let mut exporter = Exporter::new(None);
    exporter.encode(Instant::default(), &[flow(1); 3]);
    exporter.domains.get_mut(&1).unwrap().sequence = u32::MAX - 1;
    let mut sequence = |vni| u32_at(&exporter.encode(Instant::default(), &[flow(vni); 3])[0].bytes, 8);
    assert_eq!([sequence(1), sequence(1), sequence(2)], [u32::MAX - 1, 1, 0]);
}

#[test]
fn records_before_the_clocks_began_are_as_old_as_they_can_be() {
    let now = Instant { clock: 10_000_000_000, unix_ms: 5_000 };
    assert_eq!((now.unix_of(10_000_000_000), now.unix_of(9_000_000_000), now.unix_of(0)), (5_000, 4_000, 0));
}
