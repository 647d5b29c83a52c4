//! Meters that endpoints' packets pass: two rates, three colours each (RFC 2698, RFC 4115), counted.
//!
//! ```text
//!   packet ─► its port's meter ─ colour ─► its tenant's meter ─► green, yellow: passes; red: dropped
//! ```
//!
//! A meter is the node's: its packets are met by several cores, so it is behind a lock, which only packets of metered endpoints
//! take. A flow has the number of its endpoint, and what its meters are is looked up for each packet: other rates leave flows as
//! they are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use softdpu_sched::{Colour, Meter, Nanos};

use crate::spec::{MeterAlgorithm, MeterSpec};

/// What a meter counted of one colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeterCount {
    /// Packets.
    pub packets: u64,
    /// Their bytes, Ethernet headers included, padding and outer headers not.
    pub bytes: u64,
}

/// A meter of a node.
#[derive(Debug)]
pub(crate) struct NodeMeter {
    pub spec: MeterSpec,
    state: Mutex<State>,
}

#[derive(Clone, Debug)]
struct State {
    meter: Meter,
    /// Green, yellow, red.
    counts: [MeterCount; 3],
}

impl NodeMeter {
    /// A meter whose buckets are full; it goes on counting where one of its name was `before`, and metering where that was the same.
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
        let counts = before.map(|before| before.counts()).unwrap_or_default();
        Arc::new(NodeMeter { spec: spec.clone(), state: Mutex::new(State { meter, counts }) })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics with the lock held.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The colour of a packet that comes at `now`, nanoseconds, with the colour `before`. With `REHEARSES` nothing is taken from
    /// the meter, and nothing counted.
    pub fn mark<const REHEARSES: bool>(&self, now: u64, bytes: u32, before: Colour) -> Colour {
        let mut state = self.state();
        if REHEARSES {
            return state.meter.clone().mark(Nanos(now), bytes, before);
        }
        let colour = state.meter.mark(Nanos(now), bytes, before);
        let count = &mut state.counts[colour as usize];
        count.packets += 1;
        count.bytes += u64::from(bytes);
        colour
    }

    /// What it counted: green, yellow, red.
    pub fn counts(&self) -> [MeterCount; 3] {
        self.state().counts
    }
}

/// Whether a packet of `bytes` bytes may pass `meters`, one after the other, at `now`, nanoseconds.
pub(crate) fn admit<const REHEARSES: bool>(meters: &[Arc<NodeMeter>], now: u64, bytes: u32) -> bool {
    let mark = |before, meter: &Arc<NodeMeter>| meter.mark::<REHEARSES>(now, bytes, before);
    meters.iter().fold(Colour::Green, mark) != Colour::Red
}
