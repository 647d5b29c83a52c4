//! Meters that endpoints' packets pass: two rates, three colours each (RFC 2698, RFC 4115), counted.
//!
//! ```text
//!   packet ─► its port's meter ─ colour ─► its tenant's meter ─► green, yellow: passes; red: dropped
//! ```
//!
//! A meter is the node's: its packets are met by several cores, so it is behind a lock, which only packets of metered
//! endpoints take, and those of a burst that belong to one endpoint together. A flow has the number of its endpoint,
//! and what its meters are is looked up for each packet: other rates leave flows as they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softdpu_sched::{Colour, Meter, Nanos};
use softdpu_sys::prefetch;

use softdpu_sched::{Measure, Rate};

/// Meters of an endpoint, at most: its port's and its tenant's.
pub const METERS: usize = 2;

/// A meter: two rates, three colours. What is red is dropped.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MeterSpec {
    /// What endpoints call it.
    pub name: String,
    /// How it colours.
    pub algorithm: MeterAlgorithm,
    /// What it counts.
    pub measure: Measure,
    /// What is green.
    pub committed: Rate,
    /// The peak rate (RFC 2698) or the excess rate (RFC 4115): what is yellow.
    pub second: Rate,
}

/// How a meter colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MeterAlgorithm {
    /// A committed rate, and the peak of all.
    Rfc2698,
    /// A committed rate, and what may come in excess of it.
    Rfc4115,
}

/// What a meter counted of one colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterCount {
    /// Packets.
    pub packets: u64,
    /// Their bytes, Ethernet headers included, padding and outer headers not.
    pub bytes: u64,
}

impl MeterCount {
    /// One packet more, of `bytes` bytes.
    #[inline(always)]
    pub(crate) fn add(&mut self, bytes: u64) {
        (self.packets, self.bytes) = (self.packets + 1, self.bytes + bytes);
    }
}

/// A meter of a node.
#[derive(Debug)]
pub(crate) struct NodeMeter {
    pub spec: MeterSpec,
    meter: Mutex<Meter>,
    /// Green, yellow, red. Shared with the one before it, by which cores go on metering for a moment.
    counts: Arc<[Count; 3]>,
}

#[derive(Debug, Default)]
struct Count {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    fn add(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl NodeMeter {
    /// A meter with full buckets; it goes on counting where one of its name was `before`, and metering where that
    /// was the same.
    pub fn new(spec: &MeterSpec, before: Option<&Arc<NodeMeter>>) -> Arc<NodeMeter> {
        if let Some(same) = before.filter(|before| before.spec == *spec) {
            return Arc::clone(same);
        }
        let MeterSpec { algorithm, measure, committed, second, .. } = *spec;
        let make = match algorithm {
            MeterAlgorithm::Rfc2698 => Meter::rfc2698,
            MeterAlgorithm::Rfc4115 => Meter::rfc4115,
        };
        let meter = make(committed, second, measure, Nanos(0));
        let counts = before.map(|before| Arc::clone(&before.counts)).unwrap_or_default();
        Arc::new(NodeMeter { spec: spec.clone(), meter: Mutex::new(meter), counts })
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        // Nothing panics with the lock held.
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The colour of a packet that comes at `now`, nanoseconds, with the colour `before`. With `REHEARSES` nothing is
    /// taken from the meter, and nothing counted.
    pub fn mark<const REHEARSES: bool>(&self, now: u64, bytes: u32, before: Colour) -> Colour {
        if REHEARSES {
            return self.meter().clone().mark(Nanos(now), bytes, before);
        }
        let mut colour = before;
        self.mark_all(now, std::slice::from_ref(&bytes), std::slice::from_mut(&mut colour));
        colour
    }

    /// Does the same for packets of `bytes` bytes that come at once, one after the other: `colours` are those before,
    /// and then those after it. What is shared with other cores is met once for all of them. True where all were, and
    /// are, green.
    fn mark_all(&self, now: u64, bytes: &[u32], colours: &mut [Colour]) -> bool {
        let mut counts = [(0, 0); 3];
        let are_green = self.meter().mark_all(Nanos(now), bytes, colours);
        if are_green {
            counts[Colour::Green as usize] = (bytes.len() as u64, bytes.iter().map(|bytes| u64::from(*bytes)).sum());
        } else {
            for (bytes, colour) in bytes.iter().zip(colours) {
                let (packets, sum) = &mut counts[*colour as usize];
                (*packets, *sum) = (*packets + 1, *sum + u64::from(*bytes));
            }
        }
        for (count, (packets, bytes)) in self.counts.iter().zip(counts).filter(|(_, (packets, _))| *packets != 0) {
            count.add(packets, bytes);
        }
        are_green
    }

    /// On its way into the cache.
    #[inline(always)]
    pub fn prefetch(self: &Arc<NodeMeter>) {
        let meter = Arc::as_ptr(self);
        prefetch::write(&raw const self.meter);
        prefetch::write(meter.wrapping_add(1).cast::<u8>().wrapping_sub(1));
    }

    /// Where it counts what is green, on its way into the cache.
    #[inline(always)]
    pub fn prefetch_counts(self: &Arc<NodeMeter>) {
        prefetch::write(&raw const self.counts[Colour::Green as usize]);
    }

    /// What it counted: green, yellow, red.
    pub fn counts(&self) -> [MeterCount; 3] {
        let read = |count: &Count| MeterCount {
            packets: count.packets.load(Ordering::Relaxed),
            bytes: count.bytes.load(Ordering::Relaxed),
        };
        [0, 1, 2].map(|colour| read(&self.counts[colour]))
    }
}

/// The colours that a packet has behind each of its meters, in their order.
pub(crate) type Colours = [Colour; METERS];

/// Whether a packet of `bytes` bytes may pass `meters`, one after the other, at `now`, nanoseconds; its colours go into
/// `colours`.
pub(crate) fn admit<const REHEARSES: bool>(
    meters: &[Arc<NodeMeter>],
    now: u64,
    bytes: u32,
    colours: &mut Colours,
) -> bool {
    let mut colour = Colour::Green;
    for (meter, behind) in meters.iter().zip(colours) {
        colour = meter.mark::<REHEARSES>(now, bytes, colour);
        *behind = colour;
    }
    colour != Colour::Red
}

/// Takes `load` from all of `meters` at `now`, nanoseconds, if it is green by each of them; otherwise nothing. Whether
/// it was. Nothing is counted before it is [settled](settle).
pub(crate) fn take(meters: &[Arc<NodeMeter>], now: u64, load: MeterCount) -> bool {
    let MeterCount { packets, bytes } = load;
    for (at, meter) in meters.iter().enumerate() {
        if !meter.meter().take(Nanos(now), packets, bytes) {
            meters[..at].iter().for_each(|before| before.meter().give_back(packets, bytes));
            return false;
        }
    }
    true
}

/// Of what was `taken`, `used` was used, and is counted; the rest is given back.
pub(crate) fn settle(meters: &[Arc<NodeMeter>], taken: MeterCount, used: MeterCount) {
    let (packets, bytes) = (taken.packets - used.packets, taken.bytes - used.bytes);
    for meter in meters {
        if packets != 0 {
            meter.meter().give_back(packets, bytes);
        }
        meter.counts[Colour::Green as usize].add(used.packets, used.bytes);
    }
}

/// Most packets that [`admit_all`] is asked about.
pub(crate) const AT_ONCE: usize = 64;

/// As [`admit`], of at most [`AT_ONCE`] packets of `bytes` bytes that come at once, one after the other: a bit for
/// each, the first the lowest.
pub(crate) fn admit_all(meters: &[Arc<NodeMeter>], now: u64, bytes: &[u32]) -> u64 {
    let mut colours = [Colour::Green; AT_ONCE];
    let bytes = &bytes[..bytes.len().min(AT_ONCE)];
    let colours = &mut colours[..bytes.len()];
    let mut are_green = true;
    for meter in meters {
        // Each of them counts, whatever the one before said.
        are_green &= meter.mark_all(now, bytes, colours);
    }
    if are_green {
        return u64::MAX;
    }
    colours.iter().rev().fold(0, |passes, colour| passes << 1 | u64::from(*colour != Colour::Red))
}
