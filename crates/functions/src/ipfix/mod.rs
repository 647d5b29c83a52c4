//! Flow records as IPFIX messages (RFC 7011), in information elements of IANA's registry (RFC 7012).
//!
//! ```text
//!   message: header │ template set (now and then) │ data set of IPv4 flows │ data set of IPv6 flows
//! ```
//!
//! Each VNI is an observation domain of its own unless the exporter is given one: it has its own sequence of records,
//! and is told the templates at its first message and then again whenever [`TEMPLATES`] has passed, as UDP may lose
//! them (RFC 7011 §8.1, §10.3.6).

mod template;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::FrameDirection;
use crate::monitor::{FlowKey, FlowRecord};

use self::template::{Template, V4, V6};

/// Most bytes of a message: with IPv6 and UDP headers it fits the smallest MTU that Ethernet has, even in a tunnel.
pub const MESSAGE: usize = 1400;
/// Templates are told again after so long, nanoseconds.
pub const TEMPLATES: u64 = 60_000_000_000;

/// RFC 7011 §3.1.
const VERSION: u16 = 10;
const HEADER: usize = 16;
/// RFC 7011 §3.3.2.
const SET_HEADER: usize = 4;
const TEMPLATE_SET: u16 = 2;
/// RFC 7133 §3.6: in the upper byte, that the identifier is VXLAN's.
const VXLAN: u64 = 1 << 56;
/// RFC 5102 §5.5.1: flowDirection.
const INGRESS: u8 = 0;
const EGRESS: u8 = 1;

/// An exporter's messages, for one collector.
#[derive(Debug, Default)]
pub struct Exporter {
    /// All records are of this observation domain; of their VNIs where None.
    domain: Option<u32>,
    domains: BTreeMap<u32, Domain>,
}

#[derive(Debug, Default)]
struct Domain {
    /// Data records that went before, modulo 2^32 (RFC 7011 §3.1).
    sequence: u32,
    /// When templates were sent last.
    templates_sent: Option<u64>,
}

/// A message, and what is in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// To be sent as one datagram.
    pub bytes: Vec<u8>,
    /// Flow records in it.
    pub records: u32,
    /// Its observation domain.
    pub domain: u32,
    /// Whether it tells the templates.
    pub tells_templates: bool,
}

/// What time it is, on both clocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instant {
    /// On the clock of the records, nanoseconds.
    pub clock: u64,
    /// Milliseconds since 1970-01-01 00:00 UTC.
    pub unix_ms: u64,
}

impl Instant {
    /// When that was, milliseconds since 1970.
    fn unix_of(&self, clock: u64) -> u64 {
        self.unix_ms.saturating_sub(self.clock.saturating_sub(clock) / 1_000_000)
    }
}

impl Exporter {
    /// Of records that are all of `domain`, or each of its VNI's.
    pub fn new(domain: Option<u32>) -> Exporter {
        Exporter { domain, domains: BTreeMap::new() }
    }

    /// The messages for these records. Their order is kept within a domain and an address family.
    pub fn encode(&mut self, now: Instant, records: &[FlowRecord]) -> Vec<Message> {
        let mut by_domain: BTreeMap<u32, Vec<&FlowRecord>> = BTreeMap::new();
        for record in records {
            by_domain.entry(self.domain.unwrap_or(record.key.vni.get())).or_default().push(record);
        }
        let mut messages = Vec::new();
        for (number, records) in by_domain {
            let domain = self.domains.entry(number).or_default();
            let (v4, v6): (Vec<&FlowRecord>, Vec<&FlowRecord>) =
                records.into_iter().partition(|record| record.key.source.is_ipv4());
            let mut message = Draft::begin(number, domain, now);
            for (template, records) in [(&V4, v4), (&V6, v6)] {
                message = records.into_iter().fold(message, |mut message, record| {
                    if !message.has_room_for(template) {
                        messages.push(message.finish(domain));
                        message = Draft::begin(number, domain, now);
                    }
                    message.add(template, record);
                    message
                });
                message.end_set();
            }
            messages.push(message.finish(domain));
        }
        messages
    }

    /// The message was not sent: the next one has its templates again.
    pub fn was_lost(&mut self, message: &Message) {
        if let Some(domain) = self.domains.get_mut(&message.domain).filter(|_| message.tells_templates) {
            domain.templates_sent = None;
        }
    }
}

/// A message that is being written.
struct Draft {
    number: u32,
    tells_templates: bool,
    bytes: Vec<u8>,
    now: Instant,
    records: u32,
    /// The template of the set that is open, and where that begins.
    set: Option<(u16, usize)>,
}

impl Draft {
    /// Begins a message, with the templates if it is time.
    fn begin(number: u32, domain: &mut Domain, now: Instant) -> Draft {
        let mut bytes = Vec::with_capacity(MESSAGE);
        put(&mut bytes, VERSION.to_be_bytes());
        put(&mut bytes, 0u16.to_be_bytes());
        put(&mut bytes, ((now.unix_ms / 1000) as u32).to_be_bytes());
        put(&mut bytes, domain.sequence.to_be_bytes());
        put(&mut bytes, number.to_be_bytes());
        let mut draft = Draft { number, tells_templates: false, bytes, now, records: 0, set: None };
        if domain.templates_sent.is_none_or(|sent| now.clock.saturating_sub(sent) >= TEMPLATES) {
            domain.templates_sent = Some(now.clock);
            draft.tells_templates = true;
            draft.open(TEMPLATE_SET);
            for template in [&V4, &V6] {
                template.write(&mut draft.bytes);
            }
            draft.end_set();
        }
        draft
    }

    fn has_room_for(&self, template: &Template) -> bool {
        let header = if self.is_open(template.id) { 0 } else { SET_HEADER };
        self.bytes.len() + header + template.len() <= MESSAGE
    }

    fn is_open(&self, id: u16) -> bool {
        self.set.is_some_and(|(open, _)| open == id)
    }

    fn open(&mut self, id: u16) {
        self.end_set();
        self.set = Some((id, self.bytes.len()));
        put(&mut self.bytes, id.to_be_bytes());
        put(&mut self.bytes, 0u16.to_be_bytes());
    }

    fn end_set(&mut self) {
        if let Some((_, start)) = self.set.take() {
            let len = (self.bytes.len() - start) as u16;
            self.bytes[start + 2..start + 4].copy_from_slice(&len.to_be_bytes());
        }
    }

    fn add(&mut self, template: &Template, record: &FlowRecord) {
        if !self.is_open(template.id) {
            self.open(template.id);
        }
        self.records += 1;
        let (start, end) = (self.now.unix_of(record.first), self.now.unix_of(record.last));
        write_record(&mut self.bytes, record, start, end);
    }

    fn finish(mut self, domain: &mut Domain) -> Message {
        self.end_set();
        let len = self.bytes.len() as u16;
        self.bytes[2..4].copy_from_slice(&len.to_be_bytes());
        domain.sequence = domain.sequence.wrapping_add(self.records);
        Message { bytes: self.bytes, records: self.records, domain: self.number, tells_templates: self.tells_templates }
    }
}

/// The fields of a template's record, in its order.
fn write_record(bytes: &mut Vec<u8>, record: &FlowRecord, start_ms: u64, end_ms: u64) {
    let FlowKey { source, destination, source_port, destination_port, protocol, direction, vni } = record.key;
    for address in [source, destination] {
        match address {
            IpAddr::V4(address) => put(bytes, address.octets()),
            IpAddr::V6(address) => put(bytes, address.octets()),
        }
    }
    put(bytes, source_port.to_be_bytes());
    put(bytes, destination_port.to_be_bytes());
    put(bytes, [protocol]);
    put(bytes, u16::from(record.tcp_flags).to_be_bytes());
    put(bytes, [if direction == FrameDirection::In { INGRESS } else { EGRESS }]);
    put(bytes, (VXLAN | u64::from(vni.get())).to_be_bytes());
    put(bytes, record.octets.to_be_bytes());
    put(bytes, record.packets.to_be_bytes());
    put(bytes, start_ms.to_be_bytes());
    put(bytes, end_ms.to_be_bytes());
    put(bytes, [record.reason as u8]);
}

fn put<const N: usize>(to: &mut Vec<u8>, bytes: [u8; N]) {
    to.extend_from_slice(&bytes);
}

// The templates fit a message with room for records: a draft that begins always takes one.
const _: () = assert!(HEADER + SET_HEADER + V4.size() + V6.size() + SET_HEADER + V6.len() <= MESSAGE);
