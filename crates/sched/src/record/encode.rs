//! Events to bytes.

use super::{Event, Header, MAGIC, VERSION, opcode};
use crate::{
    Cost, Decision, Grant, LatencyClass, Limits, Nanos, Placement, QueueId, Share, SliceEnd, WorkKind, YieldPolicy,
    YieldTuning, YieldedSlice,
};

/// Writes a recording into a buffer that its owner empties with [`take`](Self::take). Pure: events in, bytes out.
#[derive(Debug)]
pub struct Encoder {
    buffer: Vec<u8>,
    capacity: usize,
    is_stopped: bool,
    /// The time of the last event. The next one's is written as a difference from it.
    last: Nanos,
    /// The last decision, if it granted nothing: the same again is only counted.
    idle: Option<Decision>,
    again: Option<(Nanos, u64)>,
}

/// What an event takes at the most: an opcode, and varints of up to ten bytes: a share has three and its rates six, a
/// charge seven.
const LARGEST: usize = 1 + 10 * 10;
/// What one event may write: the repetitions before it, itself, and the stop mark.
const RESERVE: usize = 2 * LARGEST + 1;

impl Encoder {
    /// A recording that begins with `header`, and takes up to `capacity` bytes between one [`take`](Self::take) and the
    /// next.
    pub fn new(header: &Header, capacity: usize) -> Encoder {
        let mut buffer = Vec::with_capacity(capacity);
        buffer.extend_from_slice(&MAGIC);
        buffer.extend_from_slice(&VERSION.to_le_bytes());
        varint(&mut buffer, header.core.into());
        name(&mut buffer, &header.policy);
        let parameters = &header.parameters[..header.parameters.len().min(255)];
        buffer.push(parameters.len() as u8);
        for (key, value) in parameters {
            name(&mut buffer, key);
            varint(&mut buffer, *value);
        }
        let capacity = capacity.max(buffer.len() + RESERVE);
        Encoder { buffer, capacity, is_stopped: false, last: Nanos(0), idle: None, again: None }
    }

    /// Bytes to be taken.
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// Whether the buffer was full.
    pub fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// What was written; `next` is emptied and takes its place.
    pub fn take(&mut self, mut next: Vec<u8>) -> Vec<u8> {
        self.flush_again();
        next.clear();
        std::mem::replace(&mut self.buffer, next)
    }

    /// Appends an event; nothing once the buffer was full.
    #[inline]
    pub fn write(&mut self, event: &Event) {
        if self.is_stopped {
            return;
        }
        match *event {
            Event::Decide { now, decision } if self.idle == Some(decision) => {
                let times = self.again.map_or(0, |(_, times)| times);
                self.again = Some((now, times + 1));
                return;
            }
            Event::Again { now, times } => {
                // From a recording that is encoded again. It has a meaning only after a decision that granted nothing.
                if self.idle.is_some() && times > 0 {
                    let before = self.again.map_or(0, |(_, times)| times);
                    self.again = Some((now, before.saturating_add(times)));
                }
                return;
            }
            Event::Decide { decision: Decision::Run(_), .. } => self.flush_again(),
            Event::Decide { decision, .. } => {
                self.flush_again();
                self.idle = Some(decision);
            }
            _ => self.flush_again(),
        }
        if self.buffer.len() + RESERVE > self.capacity {
            self.buffer.push(opcode::STOPPED);
            self.is_stopped = true;
            return;
        }
        self.put(event);
    }

    fn flush_again(&mut self) {
        self.idle = None;
        if let Some((now, times)) = self.again.take() {
            self.begin(opcode::AGAIN, now);
            varint(&mut self.buffer, times);
        }
    }

    #[inline]
    fn begin(&mut self, code: u8, now: Nanos) {
        self.buffer.push(code);
        let difference = now.0.wrapping_sub(self.last.0) as i64;
        self.last = now;
        varint(&mut self.buffer, zigzag(difference));
    }

    #[inline]
    fn put(&mut self, event: &Event) {
        match *event {
            Event::Configure { tenant, share } => {
                self.buffer.push(opcode::CONFIGURE);
                varint(&mut self.buffer, tenant.0.into());
                put_share(&mut self.buffer, share);
            }
            Event::Place { queue, placement } => {
                self.buffer.push(opcode::PLACE);
                put_queue(&mut self.buffer, queue);
                put_placement(&mut self.buffer, placement);
            }
            Event::Ready { now, queue, work } => {
                self.begin(opcode::READY, now);
                put_queue(&mut self.buffer, queue);
                varint(&mut self.buffer, work.units.into());
                varint(&mut self.buffer, work.bytes);
            }
            Event::Decide { now, decision: Decision::Run(grant) } => {
                self.begin(opcode::RUN, now);
                put_grant(&mut self.buffer, grant);
            }
            Event::Decide { now, decision: Decision::IdleUntil(at) } => {
                self.begin(opcode::IDLE_UNTIL, now);
                varint(&mut self.buffer, zigzag(at.0.wrapping_sub(now.0) as i64));
            }
            Event::Decide { now, decision: Decision::Idle } => self.begin(opcode::IDLE, now),
            Event::Charge { now, grant, cost } => {
                self.begin(opcode::CHARGE, now);
                put_grant(&mut self.buffer, grant);
                put_cost(&mut self.buffer, cost);
            }
            Event::Complete { now, grant, cost } => {
                self.begin(opcode::COMPLETE, now);
                put_grant(&mut self.buffer, grant);
                put_cost(&mut self.buffer, cost);
            }
            Event::Cancel { now, queue } => {
                self.begin(opcode::CANCEL, now);
                put_queue(&mut self.buffer, queue);
            }
            Event::Yielding(policy) => {
                self.buffer.push(opcode::YIELDING);
                put_yielding(&mut self.buffer, policy);
            }
            Event::Yielded(slice) => {
                self.begin(opcode::YIELDED, slice.now);
                put_slice(&mut self.buffer, slice);
            }
            Event::Stopped => {
                self.buffer.push(opcode::STOPPED);
                self.is_stopped = true;
            }
            // Counted before it comes here.
            Event::Again { .. } => {}
        }
    }
}

fn put_share(to: &mut Vec<u8>, share: Share) {
    let Share { weight, guarantee, class, limits: Limits { requests, bytes, packets }, cores } = share;
    varint(to, weight.into());
    varint(to, guarantee.into());
    to.push(match class {
        LatencyClass::Latency => 0,
        LatencyClass::Normal => 1,
        LatencyClass::Background => 2,
    });
    let rates = [requests, bytes, packets];
    let limits: u8 = rates.iter().enumerate().map(|(bit, rate)| u8::from(rate.is_some()) << bit).sum();
    to.push(limits | u8::from(cores > 0) << 3);
    for rate in rates.into_iter().flatten() {
        varint(to, rate.rate);
        varint(to, rate.burst);
    }
    if cores > 0 {
        varint(to, cores.into());
    }
}

fn put_placement(to: &mut Vec<u8>, placement: Placement) {
    varint(to, placement.device.into());
    let kind = match placement.kind {
        WorkKind::Requests => 0,
        WorkKind::Packets => 1,
        WorkKind::Received => 4,
    };
    to.push(kind | u8::from(placement.back_end.is_some()) << 1);
    if let Some(back_end) = placement.back_end {
        varint(to, back_end.index.into());
        varint(to, back_end.depth.into());
    }
}

fn put_yielding(to: &mut Vec<u8>, policy: YieldPolicy) {
    match policy {
        YieldPolicy::Never => to.push(0),
        YieldPolicy::After(spin) => {
            to.push(1);
            varint(to, spin.0);
        }
        YieldPolicy::Adaptive(YieldTuning { threshold, least, most, slice, longest, spin }) => {
            to.push(2);
            [threshold, least, most, slice.0, longest.0, spin.0].into_iter().for_each(|value| varint(to, value));
        }
    }
}

fn put_slice(to: &mut Vec<u8>, slice: YieldedSlice) {
    let YieldedSlice { now: _, polls, spun, slice, end } = slice;
    [polls, spun.0, slice.0].into_iter().for_each(|value| varint(to, value));
    to.push(match end {
        SliceEnd::Expired => 0,
        SliceEnd::Preempted => 1,
        SliceEnd::Due => 2,
    });
}

#[inline]
fn put_queue(to: &mut Vec<u8>, queue: QueueId) {
    varint(to, queue.tenant.0.into());
    varint(to, queue.index.into());
}

#[inline]
fn put_grant(to: &mut Vec<u8>, grant: Grant) {
    put_queue(to, grant.queue);
    varint(to, grant.units.into());
}

#[inline]
fn put_cost(to: &mut Vec<u8>, cost: Cost) {
    varint(to, cost.units.into());
    varint(to, cost.time.0);
    varint(to, cost.bytes);
    varint(to, cost.pending.into());
}

/// Small numbers of either sign as small numbers.
#[inline]
fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// LEB128.
#[inline]
fn varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

fn name(to: &mut Vec<u8>, name: &str) {
    let end = (0..=name.len().min(255)).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
    let name = &name[..end];
    to.push(name.len() as u8);
    to.extend_from_slice(name.as_bytes());
}
