//! Meters that endpoints' packets pass: two rates, three colours each (RFC 2698, RFC 4115), counted.
//!
//! ```text
//!   packet ─► its port's meter ─ colour ─► its tenant's meter ─► green, yellow: passes; red: dropped
//! ```
//!
//! A meter is the node's: its packets are met by several cores. What is green they spend of tokens that each has
//! leased; what is beyond those is put to the meter itself, under its lock, with all packets of a burst
//! that belong to one endpoint at once. A flow has the number of its endpoint, and what its meters are is looked up for
//! each packet: other rates leave flows as they are.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softdpu_sched::{Colour, Lease, Measure, Meter, Nanos, Rate};

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
    /// How often its lock was taken.
    #[cfg(debug_assertions)]
    pub asked: AtomicU64,
}

#[derive(Debug, Default)]
struct Count {
    packets: AtomicU64,
    bytes: AtomicU64,
}

impl Count {
    fn add(&self, count: MeterCount) {
        self.packets.fetch_add(count.packets, Ordering::Relaxed);
        self.bytes.fetch_add(count.bytes, Ordering::Relaxed);
    }
}

impl NodeMeter {
    /// A meter with full buckets, or with buckets that were empty at `empty_at`, nanoseconds; it goes on counting where
    /// one of its name was `before`, and metering where that was the same.
    pub fn new(spec: &MeterSpec, before: Option<&Arc<NodeMeter>>, empty_at: Option<u64>) -> Arc<NodeMeter> {
        if let Some(same) = before.filter(|before| before.spec == *spec) {
            return Arc::clone(same);
        }
        let MeterSpec { algorithm, measure, committed, second, .. } = *spec;
        let make = match algorithm {
            MeterAlgorithm::Rfc2698 => Meter::rfc2698,
            MeterAlgorithm::Rfc4115 => Meter::rfc4115,
        };
        let meter = match empty_at {
            None => make(committed, second, measure, Nanos(0)),
            Some(at) => make(committed, second, measure, Nanos(at)).emptied(),
        };
        let counts = before.map(|before| Arc::clone(&before.counts)).unwrap_or_default();
        Arc::new(NodeMeter {
            spec: spec.clone(),
            meter: Mutex::new(meter),
            counts,
            #[cfg(debug_assertions)]
            asked: AtomicU64::new(0),
        })
    }

    fn meter(&self) -> MutexGuard<'_, Meter> {
        #[cfg(debug_assertions)]
        self.asked.fetch_add(1, Ordering::Relaxed);
        // Nothing panics with the lock held.
        self.meter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up a core's lease, and takes another for packets of which a `load` is waiting; none where the meter itself
    /// is to be asked.
    pub fn renew(&self, now: u64, lease: Lease, load: MeterCount) -> Option<Lease> {
        let mut meter = self.meter();
        meter.give_up(Nanos(now), lease);
        meter.lease(Nanos(now), load.packets, load.bytes)
    }

    /// Gives up a core's lease.
    pub fn give_up(&self, now: u64, lease: Lease) {
        self.meter().give_up(Nanos(now), lease);
    }

    /// The colour that a packet with the colour `before` would have, of a core with the lease `lease`. Nothing is taken
    /// from the meter, and nothing counted.
    pub fn rehearse(&self, now: u64, lease: Lease, bytes: u32, before: Colour) -> Colour {
        let mut meter = self.meter().clone();
        meter.give_up(Nanos(now), lease);
        meter.mark(Nanos(now), bytes, before)
    }

    /// The colours of packets of `bytes` bytes that come at once, one after the other, at `now`, nanoseconds: `colours`
    /// are those before, and then those after it. The core's lease is given up first. What is shared with other cores
    /// is met once for all packets. True where all were, and are, green.
    pub fn mark_all(&self, now: u64, lease: Lease, bytes: &[u32], colours: &mut [Colour]) -> bool {
        let mut counts = [MeterCount::default(); 3];
        let mut meter = self.meter();
        meter.give_up(Nanos(now), lease);
        let are_green = meter.mark_all(Nanos(now), bytes, colours);
        drop(meter);
        for (bytes, colour) in bytes.iter().zip(colours) {
            counts[*colour as usize].add((*bytes).into());
        }
        for (colour, count) in counts.into_iter().enumerate().filter(|(_, count)| count.packets != 0) {
            self.counts[colour].add(count);
        }
        are_green
    }

    /// Counts what was green.
    pub fn count_green(&self, count: MeterCount) {
        self.counts[Colour::Green as usize].add(count);
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

/// Meters of an endpoint by their numbers, in the order in which its packets pass them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MeterIds([u32; METERS]);

/// No meter's.
const NONE: u32 = u32::MAX;

impl Default for MeterIds {
    fn default() -> MeterIds {
        MeterIds([NONE; METERS])
    }
}

impl MeterIds {
    /// The first [`METERS`] of `numbers`.
    pub fn new(numbers: &[u32]) -> MeterIds {
        let mut ids = MeterIds::default();
        ids.0.iter_mut().zip(numbers).for_each(|(id, number)| *id = *number);
        ids
    }

    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.0[0] == NONE
    }

    #[inline(always)]
    pub fn iter(self) -> impl Iterator<Item = usize> {
        self.0.into_iter().take_while(|id| *id != NONE).map(|id| id as usize)
    }
}

/// The colours that a packet has behind each of its meters, in their order.
pub(crate) type Colours = [Colour; METERS];
