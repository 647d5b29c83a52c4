//! Which flows are heavy: elephants, found by sample and hold (Estan and Varghese, "New Directions in Traffic
//! Measurement and Accounting", 2002).
//!
//! ```text
//!   one packet in 64 ─► its flow is held ─► after a second: what it has carried since, by its entry's counters
//! ```
//!
//! One packet of [`SAMPLE`] is looked at, at uneven distances, so that no pattern of packets keeps step; the others
//! cost nothing. Where [`HELD`] flows are held already, one more takes a sample off each, and those without any go
//! (Misra and Gries): a flow with more than one sample of 33 is held. What a flow carried is not estimated, but what
//! all did is, by the samples.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::key::Key;
use super::table::{FlowIndex, Flows};
use crate::id::{PortId, Vni};
use crate::tables::{Attachment, Tables};

/// A packet of so many is looked at, on average: a power of two.
const SAMPLE: u32 = 64;
/// Flows that are held.
const HELD: usize = 32;
/// Flows of a report.
const REPORTED: usize = 8;
/// For how long they are looked at, nanoseconds.
const WINDOW: u64 = 1_000_000_000;
/// Samples that a flow has to have for its share to mean something.
const FEWEST: u32 = 10;
/// Of the bytes that came to the core, the least that an elephant has, in thousandths.
const ELEPHANT: u16 = 100;

/// A flow that carried much in the last window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeavyFlow {
    /// The port that it came in by.
    pub port: PortId,
    /// The VNI of the network that it came in; None: that is no more.
    pub vni: Option<Vni>,
    /// Source address.
    pub source: IpAddr,
    /// Destination address. Of the same family.
    pub destination: IpAddr,
    /// IANA protocol number: TCP or UDP.
    pub protocol: u8,
    /// Source and destination port.
    pub ports: [u16; 2],
    /// Packets a second.
    pub packets: u64,
    /// Bytes a second, Ethernet headers included, padding and outer headers not.
    pub bytes: u64,
    /// Of the bytes of all packets that came to the core, by sampling, in thousandths.
    pub share: u16,
    /// It has a tenth of them at the least.
    pub is_elephant: bool,
}

/// What is known of the flows of a core.
#[derive(Debug)]
pub(crate) struct Heavy {
    /// Packets until the next that is looked at.
    until: u32,
    /// Where chance has got to.
    chance: u32,
    held: Vec<Held>,
    /// Bytes of the window's samples, of all flows and of none.
    sampled: u64,
    /// When the window began, nanoseconds.
    began: u64,
    /// Windows that have ended.
    windows: u64,
    reported: Vec<HeavyFlow>,
}

/// A flow that is held.
#[derive(Clone, Copy, Debug)]
struct Held {
    entry: FlowIndex,
    key: Key,
    /// What it had counted when the window began, or when it was held.
    packets: u64,
    bytes: u64,
    /// Samples of it, less those that others took off.
    weight: u32,
    /// Samples of it in this window, and their bytes.
    samples: u32,
    sampled: u64,
}

impl Heavy {
    pub fn new() -> Heavy {
        let (held, reported) = (Vec::with_capacity(HELD), Vec::with_capacity(REPORTED));
        Heavy { until: SAMPLE, chance: 1, held, sampled: 0, began: 0, windows: 0, reported }
    }

    /// Counts a batch of `packets`: which of them is to be looked at, if one is.
    #[inline(always)]
    pub fn next(&mut self, packets: usize) -> Option<usize> {
        let packets = packets as u32;
        if self.until > packets {
            self.until -= packets;
            return None;
        }
        let at = self.until - 1;
        // xorshift32 (Marsaglia): never 0.
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 17;
        self.chance ^= self.chance << 5;
        let distance = SAMPLE / 2 + self.chance % SAMPLE;
        // Batches are no larger than half of a sample; of a larger one, one packet.
        self.until = distance.saturating_sub(packets - self.until).max(1);
        Some(at as usize)
    }

    /// Looks at a packet of `bytes` bytes, and at its flow, if it is in one.
    #[cold]
    pub fn look(&mut self, flows: &Flows, found: Option<(FlowIndex, &Key)>, bytes: u64) {
        self.sampled += bytes;
        let Some((entry, key)) = found else { return };
        if let Some(known) = self.held.iter_mut().find(|held| held.entry == entry && held.key == *key) {
            (known.weight, known.samples, known.sampled) = (known.weight + 1, known.samples + 1, known.sampled + bytes);
            return;
        }
        if self.held.len() == HELD {
            self.held.iter_mut().for_each(|held| held.weight -= 1);
            self.held.retain(|held| held.weight > 0);
            return;
        }
        let counted = flows.counters_of(entry);
        let (packets, before) = (counted.packets, counted.bytes);
        self.held.push(Held { entry, key: *key, packets, bytes: before, weight: 1, samples: 1, sampled: bytes });
    }

    /// Ends a window that is over at `now`, nanoseconds.
    #[inline]
    pub fn turn(&mut self, tables: &Tables, flows: &Flows, now: u64) {
        if now.saturating_sub(self.began) >= WINDOW {
            self.end(tables, flows, now);
        }
    }

    #[cold]
    fn end(&mut self, tables: &Tables, flows: &Flows, now: u64) {
        let passed = u128::from(now.saturating_sub(self.began));
        let per_second = |count: u64| (u128::from(count) * 1_000_000_000 / passed.max(1)) as u64;
        let all = self.sampled;
        self.reported.clear();
        self.held.retain_mut(|held| {
            // Another flow may be there, or none.
            let Some(counted) = flows.counters_if(held.entry, &held.key) else { return false };
            let grown = |now: u64, before: &mut u64| now.saturating_sub(std::mem::replace(before, now));
            let (packets, bytes) = (grown(counted.packets, &mut held.packets), grown(counted.bytes, &mut held.bytes));
            let (samples, sampled) = (std::mem::take(&mut held.samples), std::mem::take(&mut held.sampled));
            let share = (sampled * 1000).checked_div(all).unwrap_or(0) as u16;
            let is_elephant = samples >= FEWEST && share >= ELEPHANT;
            if packets > 0 {
                let (packets, bytes) = (per_second(packets), per_second(bytes));
                self.reported.push(HeavyFlow { packets, bytes, share, is_elephant, ..describe(tables, &held.key) });
            }
            // A window's samples count half in the next.
            held.weight = (held.weight / 2).max(1);
            samples > 0
        });
        self.reported.sort_by_key(|flow| std::cmp::Reverse(flow.bytes));
        self.reported.truncate(REPORTED);
        (self.sampled, self.began, self.windows) = (0, now, self.windows + 1);
    }

    /// Those of the last window, the heaviest first, and how many windows there were.
    pub fn report(&self) -> (u64, &[HeavyFlow]) {
        (self.windows, &self.reported)
    }
}

/// The VNI of the network that packets with a key come in.
fn vni(tables: &Tables, key: &Key) -> Option<Vni> {
    let network = match (key.tunnelled(), tables.attachment(key.port())) {
        (Some(routes), _) => tables.network_with(routes)?,
        (None, Attachment::Endpoint(endpoint)) => tables.network(tables.endpoint(endpoint)?.network)?,
        (None, Attachment::Underlay | Attachment::Nothing) => return None,
    };
    Some(network.vni)
}

/// The flow with a key.
fn describe(tables: &Tables, key: &Key) -> HeavyFlow {
    let [addresses, ports, sender] = key.first;
    let bytes = |word: u64| word.to_le_bytes();
    let address = |high: u64, low: u64| {
        let mut octets = [0; 16];
        octets[..8].copy_from_slice(&bytes(high));
        octets[8..].copy_from_slice(&bytes(low));
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let (source, destination) = if key.is_ipv6() {
        let [a, b, c] = key.more;
        (address(a, b), address(c, addresses))
    } else {
        let [a, b, c, d, e, f, g, h] = bytes(addresses);
        (IpAddr::V4(Ipv4Addr::new(a, b, c, d)), IpAddr::V4(Ipv4Addr::new(e, f, g, h)))
    };
    let [a, b, c, d, ..] = bytes(ports);
    HeavyFlow {
        port: key.port(),
        vni: vni(tables, key),
        source,
        destination,
        protocol: bytes(sender)[6],
        ports: [u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])],
        packets: 0,
        bytes: 0,
        share: 0,
        is_elephant: false,
    }
}
