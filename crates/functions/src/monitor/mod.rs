//! Flow monitor: what passed, flow by flow, as records that a collector understands (RFC 7011 §2, RFC 3917 §4).
//!
//! ```text
//!   frame ─► key ─► entry: packets, octets, first, last, flags
//!                     ├─ by last seen:  idle for long enough     ─► record, forgotten
//!                     ├─ by beginning:  active for long enough   ─► record, counts begin anew
//!                     └─ table is full: the longest unseen       ─► record, forgotten, for the new one
//! ```
//!
//! Every packet is in exactly one record. The table never grows over its capacity: a tenant that makes more flows has
//! its longest unseen ones reported early, which is counted, and disturbs no other.

mod list;
mod record;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

pub use record::{EndReason, FlowKey, FlowRecord};

use self::list::List;
use crate::Observation;

/// Records that one turn makes at most: the rest is due at the next.
const TURN: usize = 2048;

/// What a monitor goes by. Times in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MonitorSpec {
    /// A flow that goes on is reported after so long.
    pub active: u64,
    /// A flow of which nothing was seen for so long is over.
    pub idle: u64,
    /// Most flows that each core keeps, at least 1.
    pub flows: usize,
}

/// What a monitor counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MonitorCounts {
    /// Flows that are kept now.
    pub flows: u64,
    /// Packets of flows.
    pub packets: u64,
    /// Their octets.
    pub octets: u64,
    /// Frames that are no IP packets: in no flow.
    pub others: u64,
    /// Records that were made.
    pub records: u64,
    /// Of those: early, as the table was full.
    pub early: u64,
}

/// A flow as it is kept.
#[derive(Clone, Debug)]
struct Entry {
    key: FlowKey,
    packets: u64,
    octets: u64,
    /// Of what is not reported yet, nanoseconds.
    first: u64,
    last: u64,
    tcp_flags: u8,
}

/// A core's flows.
#[derive(Debug)]
pub struct Monitor {
    spec: MonitorSpec,
    index: HashMap<FlowKey, u32>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// The longest unseen first.
    seen: List,
    /// The longest unreported first.
    begun: List,
    /// To be taken.
    records: Vec<FlowRecord>,
    counts: MonitorCounts,
}

impl Monitor {
    /// Without flows.
    pub fn new(spec: MonitorSpec) -> Monitor {
        let flows = spec.flows.max(1);
        Monitor {
            index: HashMap::with_capacity(flows),
            entries: Vec::with_capacity(flows),
            free: Vec::new(),
            seen: List::new(flows),
            begun: List::new(flows),
            records: Vec::new(),
            counts: MonitorCounts::default(),
            spec,
        }
    }

    /// What it has counted.
    pub fn counts(&self) -> MonitorCounts {
        MonitorCounts { flows: self.index.len() as u64, ..self.counts }
    }

    /// Frames went, at `now`, nanoseconds on a clock that does not go backwards; those that reach this `place` of their
    /// chain are counted.
    pub fn note(&mut self, now: u64, observations: &[Observation], place: usize) {
        for observation in observations.iter().filter(|observation| observation.reaches(place)) {
            match FlowKey::of(observation) {
                Some((key, tcp_flags)) => self.count(now, key, observation, tcp_flags),
                None => self.counts.others += 1,
            }
        }
    }

    fn count(&mut self, now: u64, key: FlowKey, observation: &Observation, tcp_flags: u8) {
        self.counts.packets += u64::from(observation.packets);
        self.counts.octets += u64::from(observation.octets);
        let at = match self.index.get(&key) {
            Some(&at) => {
                let Entry { first, last, .. } = self.entries[at as usize];
                if now.saturating_sub(last) >= self.spec.idle {
                    self.restart(at, now, EndReason::Idle);
                } else if now.saturating_sub(first) >= self.spec.active {
                    self.restart(at, now, EndReason::Active);
                }
                self.seen.touch(at);
                at
            }
            None => self.insert(now, key),
        };
        let entry = &mut self.entries[at as usize];
        if entry.packets == 0 {
            entry.first = now;
            self.begun.touch(at);
        }
        entry.packets += u64::from(observation.packets);
        entry.octets += u64::from(observation.octets);
        entry.last = now;
        entry.tcp_flags |= tcp_flags;
    }

    /// A flow that is not known yet.
    fn insert(&mut self, now: u64, key: FlowKey) -> u32 {
        if self.index.len() >= self.spec.flows.max(1)
            && let Some(oldest) = self.seen.first()
        {
            self.counts.early += 1;
            self.end(oldest, EndReason::Resources);
        }
        let entry = Entry { key, packets: 0, octets: 0, first: now, last: now, tcp_flags: 0 };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.index.insert(key, at);
        self.seen.push(at);
        self.begun.push(at);
        at
    }

    /// Reports what there is of a flow, if there is anything.
    fn report(&mut self, at: u32, reason: EndReason) {
        let entry = &self.entries[at as usize];
        if entry.packets == 0 {
            return;
        }
        self.counts.records += 1;
        self.records.push(FlowRecord {
            key: entry.key,
            packets: entry.packets,
            octets: entry.octets,
            first: entry.first,
            last: entry.last,
            tcp_flags: entry.tcp_flags,
            reason,
        });
    }

    /// Reports a flow, which goes on with nothing counted.
    fn restart(&mut self, at: u32, now: u64, reason: EndReason) {
        self.report(at, reason);
        let entry = &mut self.entries[at as usize];
        (entry.packets, entry.octets, entry.tcp_flags) = (0, 0, 0);
        (entry.first, entry.last) = (now, now);
        self.begun.touch(at);
    }

    /// Reports a flow and forgets it.
    fn end(&mut self, at: u32, reason: EndReason) {
        self.report(at, reason);
        self.index.remove(&self.entries[at as usize].key);
        self.seen.remove(at);
        self.begun.remove(at);
        self.free.push(at);
    }

    /// Reports what is due at `now`, a bounded number. To be called every second or more often.
    pub fn turn(&mut self, now: u64) {
        for _ in 0..TURN {
            let Some(at) = self.seen.first() else { return };
            if now.saturating_sub(self.entries[at as usize].last) < self.spec.idle {
                break;
            }
            self.end(at, EndReason::Idle);
        }
        for _ in 0..TURN {
            let Some(at) = self.begun.first() else { return };
            let Entry { first, packets, .. } = self.entries[at as usize];
            if now.saturating_sub(first) < self.spec.active {
                return;
            }
            if packets == 0 {
                // Reported when it was active, and not seen since: it waits to be idle.
                self.entries[at as usize].first = now;
                self.begun.touch(at);
            } else {
                let last = self.entries[at as usize].last;
                self.restart(at, now, EndReason::Active);
                self.entries[at as usize].last = last;
            }
        }
    }

    /// When there is something to do without another frame: records wait to be taken, or a flow is to be reported.
    pub fn due(&self) -> Option<u64> {
        if !self.records.is_empty() {
            return Some(0);
        }
        let idle = self.entries[self.seen.first()? as usize].last.saturating_add(self.spec.idle);
        let active = self.entries[self.begun.first()? as usize].first.saturating_add(self.spec.active);
        Some(idle.min(active))
    }

    /// Reports everything: it is to end.
    pub fn flush(&mut self) {
        while let Some(at) = self.seen.first() {
            self.end(at, EndReason::Forced);
        }
    }

    /// The records that were made since they were taken last.
    pub fn take(&mut self) -> Vec<FlowRecord> {
        std::mem::take(&mut self.records)
    }

    /// Whether there are so many records that they are to be taken now.
    pub fn is_full(&self) -> bool {
        self.records.len() >= TURN
    }
}
