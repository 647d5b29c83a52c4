//! The device side of a packed virtqueue (virtio 1.3 §2.8).

mod in_order;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::{GuestAddress, View};

use crate::area::{Descriptors, Event};
use crate::chain::{Limits, Walk, prefetch_table, single};
use crate::error::Part;
use crate::inflight::{PackedRecords, Recovered};
use crate::layout::{
    AVAIL, DESCRIPTOR, Descriptor, EVENT, EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE, INDIRECT, NEXT, USED, WRITE,
};
use crate::positions::InOrder;
use crate::sync::{observe, publish, publish_then_look};
use crate::{Format, InflightRecords, PackedIndex, Position, QueueConfig, QueueError, RingAddresses, Sink, Used};

/// Slots whose cache line is fetched ahead of the one that is looked at: two lines.
const AHEAD: u16 = 8;

/// Slots whose indirect tables are fetched ahead.
const TABLES_AHEAD: u16 = 4;

/// Flags of an available descriptor of a lap (virtio 1.3 §2.8.1): AVAIL as the wrap counter, USED the inverse.
pub(crate) fn available_flags(wrap: bool) -> u16 {
    if wrap { AVAIL } else { USED }
}

/// Flags of a used descriptor of a lap: both as the wrap counter.
pub(crate) fn used_flags(wrap: bool) -> u16 {
    if wrap { AVAIL | USED } else { 0 }
}

#[inline(always)]
pub(crate) fn is_available(flags: u16, wrap: bool) -> bool {
    flags & (AVAIL | USED) == available_flags(wrap)
}

/// Whether the slot a driver waits for, as its event structure has it, is among those that were used from `old` up to
/// `new` (virtio 1.3 §2.8.10).
pub(crate) fn wants_to_know(event: u32, old: PackedIndex, new: PackedIndex, size: u16, event_idx: bool) -> bool {
    let flags = (event >> 16) as u16 & 3;
    match flags {
        EVENT_DISABLE => false,
        EVENT_DESC if event_idx => {
            let wanted = PackedIndex::from_bits(event as u16);
            let lap = i32::from(size);
            let start = i32::from(old.index);
            let new_lap = if new.wrap == old.wrap { 0 } else { lap };
            let end = i32::from(new.index) + new_lap;
            let at = i32::from(wanted.index) + new_lap - if wanted.wrap == new.wrap { 0 } else { lap };
            start <= at && at < end
        }
        _ => true,
    }
}

/// The three parts of the ring.
struct Parts {
    ring: Descriptors,
    driver: Event,
    device: Event,
}

impl Parts {
    fn new(view: &Arc<View>, addresses: &RingAddresses, size: u16) -> Result<Self, QueueError> {
        Ok(Parts {
            ring: Descriptors::new(view, addresses, size)?,
            driver: Event::new(view, Part::Driver, addresses.driver)?,
            device: Event::new(view, Part::Device, addresses.device)?,
        })
    }
}

/// A packed queue.
pub struct PackedQueue {
    view: Arc<View>,
    config: QueueConfig,
    addresses: RingAddresses,
    limits: Limits,
    parts: Parts,
    avail: PackedIndex,
    used: PackedIndex,
    /// Slots between `used` and `avail`: those in flight.
    slots: u16,
    /// Slots of the chain with that buffer id; 0: not in flight.
    flight: Box<[u16]>,
    in_flight: u16,
    /// In flight since before a restart and not handed out again yet, in the order they were taken.
    recovered: Vec<Recovered>,
    records: Option<PackedRecords>,
    in_order: Option<InOrder>,
    /// Descriptors of the batch that is being taken, for the records.
    raw: Vec<Descriptor>,
    /// The driver does not know yet what it missed.
    notify_anyway: bool,
    /// The driver uses indirect tables.
    has_tables: bool,
    broken: bool,
}

impl PackedQueue {
    pub(crate) fn new(
        view: &Arc<View>,
        config: QueueConfig,
        addresses: RingAddresses,
        position: Position,
        records: Option<InflightRecords>,
    ) -> Result<Self, QueueError> {
        config.check()?;
        let size = config.size;
        let (mut avail, mut used) = match position {
            Position::Packed { avail, used } if avail.index < size && used.index < size => (avail, used),
            _ => return Err(QueueError::Position { position, format: Format::Packed, size }),
        };
        let view = view.replica();
        let parts = Parts::new(&view, &addresses, size)?;
        let mut recovered = Vec::new();
        let mut slots = 0;
        let mut resumed = false;
        let records = match records {
            None => None,
            Some(records) => {
                let (records, left) = PackedRecords::open(records, size, config.resumed, used, |at| {
                    !is_available(parts.ring.read(at.index).at14, at.wrap)
                })?;
                if let Some(left) = left {
                    let total: usize = left.flight.iter().map(|chain| chain.descriptors.len()).sum();
                    slots = u16::try_from(total).unwrap_or(u16::MAX);
                    used = left.used;
                    avail = used.advance(slots, size);
                    recovered = left.flight;
                    resumed = true;
                }
                Some(records)
            }
        };
        let mut flight = vec![0; usize::from(size)].into_boxed_slice();
        for chain in &recovered {
            flight[usize::from(chain.id)] = chain.descriptors.len() as u16;
        }
        let limits = Limits { format: Format::Packed, max_pieces: config.max_pieces, indirect: config.indirect };
        let this = PackedQueue {
            view,
            config,
            addresses,
            limits,
            parts,
            avail,
            used,
            slots,
            flight,
            in_flight: recovered.len() as u16,
            recovered,
            raw: Vec::with_capacity(if records.is_some() { size.into() } else { 0 }),
            records,
            in_order: None,
            notify_anyway: true,
            has_tables: false,
            broken: false,
        };
        if resumed {
            this.take_back_unpublished();
        }
        Ok(this)
    }

    /// A batch is published by its first descriptor, so a kill before that leaves used flags on the others. The driver has
    /// not seen them; it would, once it gets that far, so they become available descriptors again. Their contents do not
    /// matter: what is in flight is in the records.
    fn take_back_unpublished(&self) {
        let mut at = self.used;
        for _ in 0..self.slots {
            let descriptor = self.parts.ring.read(at.index);
            if descriptor.at14 & (AVAIL | USED) == used_flags(at.wrap) {
                let flags = descriptor.at14 & !(AVAIL | USED) | available_flags(at.wrap);
                publish(self.parts.ring.meta(at.index), Descriptor { at14: flags, ..descriptor }.meta());
                self.log_slot(at.index);
            }
            at = at.advance(1, self.config.size);
        }
    }

    pub(crate) fn remap(&mut self, view: &Arc<View>) -> Result<(), QueueError> {
        let view = view.replica();
        match Parts::new(&view, &self.addresses, self.config.size) {
            Ok(parts) => {
                self.parts = parts;
                self.view = view;
                Ok(())
            }
            Err(error) => {
                self.broken = true;
                Err(error)
            }
        }
    }

    pub(crate) fn resubmit(&mut self, out: &mut impl Sink) -> Result<usize, QueueError> {
        if self.broken {
            return Err(QueueError::Broken);
        }
        let before = out.len();
        out.prepare(&self.view, self.recovered.len());
        for recovered in &self.recovered {
            if let Err(error) = self.rewalk(recovered, out) {
                out.cut(before);
                self.broken = true;
                return Err(error);
            }
        }
        self.recovered = Vec::new();
        Ok(out.len() - before)
    }

    fn rewalk(&self, recovered: &Recovered, out: &mut impl Sink) -> Result<(), QueueError> {
        let mut walk = Walk::new(&self.view, self.limits, recovered.id, out);
        for descriptor in &recovered.descriptors {
            walk.ring_descriptor(descriptor.addr, descriptor.len, descriptor.at14)?;
        }
        walk.finish(recovered.id, recovered.descriptors.len() as u16)
    }

    #[inline]
    pub(crate) fn pop(&mut self, out: &mut impl Sink, max: usize) -> Result<usize, QueueError> {
        if self.broken {
            return Err(QueueError::Broken);
        }
        let before = out.len();
        if !self.recovered.is_empty() {
            self.resubmit(out)?;
        }
        let start = out.len();
        let (avail, slots) = (self.avail, self.slots);
        self.raw.clear();
        if let Err(error) = self.take(out, max) {
            for chain in &out[start..] {
                self.flight[usize::from(chain.id)] = 0;
            }
            out.cut(start);
            (self.avail, self.slots) = (avail, slots);
            self.broken = true;
            return Err(error);
        }
        if let Some(records) = &mut self.records {
            let mut raw = &self.raw[..];
            for chain in &out[start..] {
                let (descriptors, rest) = raw.split_at(chain.descriptors.into());
                records.taken(chain.id, descriptors);
                raw = rest;
            }
        }
        if let Some(in_order) = &mut self.in_order {
            let mut at = avail;
            for chain in &out[start..] {
                in_order.taken(at.index, chain.id);
                at = at.advance(chain.descriptors, self.config.size);
            }
        }
        self.in_flight += (out.len() - start) as u16;
        Ok(out.len() - before)
    }

    #[inline]
    fn take(&mut self, out: &mut impl Sink, max: usize) -> Result<(), QueueError> {
        for _ in 0..max {
            if self.slots == self.config.size {
                break;
            }
            // What follows the flags in program order was stored before them by the driver.
            let meta = observe(self.parts.ring.meta(self.avail.index));
            let first = Descriptor::from_words(0, meta);
            if !is_available(first.at14, self.avail.wrap) {
                break;
            }
            let ahead = self.avail.advance(AHEAD.min(self.config.size), self.config.size);
            self.parts.ring.prefetch(ahead.index);
            if self.has_tables {
                let soon = self.avail.advance(TABLES_AHEAD.min(self.config.size), self.config.size);
                let descriptor = self.parts.ring.read(soon.index);
                prefetch_table(&self.view, descriptor.addr, descriptor.at14);
            }
            out.prepare(&self.view, 1);
            let first = Descriptor { addr: self.parts.ring.addr(self.avail.index).load(Relaxed), ..first };
            match self.walk(first, out) {
                Ok((id, slots)) => {
                    self.flight[usize::from(id)] = slots;
                    self.slots += slots;
                    self.avail = self.avail.advance(slots, self.config.size);
                }
                Err(error) => {
                    out.cut(out.len() - 1);
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Appends the chain that starts at `avail` with `first`, also where it turns out to be bad; returns its buffer id and
    /// slots.
    #[inline(always)]
    fn walk(&mut self, first: Descriptor, out: &mut impl Sink) -> Result<(u16, u16), QueueError> {
        let size = self.config.size;
        let free = size - self.slots;
        let id = first.at12;
        if self.flight.get(usize::from(id)) == Some(&0) && single(&self.view, id, first, first.at14, out) {
            if self.records.is_some() {
                self.raw.push(first);
            }
            return Ok((id, 1));
        }
        let head = self.avail.index;
        let mut walk = Walk::new(&self.view, self.limits, head, out);
        let mut at = self.avail;
        let mut descriptor = first;
        let mut slots = 0;
        loop {
            if slots == free {
                return Err(QueueError::Overrun { head, free });
            }
            slots += 1;
            let flags = descriptor.at14;
            self.has_tables |= flags & INDIRECT != 0;
            walk.ring_descriptor(descriptor.addr, descriptor.len, flags)?;
            if self.records.is_some() {
                self.raw.push(descriptor);
            }
            if flags & NEXT == 0 {
                break;
            }
            at = at.advance(1, size);
            descriptor = self.parts.ring.read(at.index);
            if !is_available(descriptor.at14, at.wrap) {
                // At the end of what the driver owns that is what the slots in flight look like.
                if slots == free {
                    return Err(QueueError::Overrun { head, free });
                }
                return Err(QueueError::NotAvailable { head, slot: at.index, flags: descriptor.at14 });
            }
        }
        // The last descriptor of a chain carries its buffer id (virtio 1.3 §2.8.6).
        let id = descriptor.at12;
        if id >= size {
            return Err(QueueError::IdOutOfRange { slot: at.index, id, size });
        }
        if self.flight[usize::from(id)] != 0 {
            return Err(QueueError::InFlight { id });
        }
        walk.finish(id, slots)?;
        Ok((id, slots))
    }

    #[inline]
    pub(crate) fn complete(&mut self, done: &[Used]) -> Result<bool, QueueError> {
        if self.broken {
            return Err(QueueError::Broken);
        }
        if let Some(in_order) = &self.in_order
            && let Err(error) = self.check_order(in_order, done)
        {
            self.broken = true;
            return Err(error);
        }
        let size = self.config.size;
        let mut slots = 0;
        for used in done {
            match self.flight.get_mut(usize::from(used.id)) {
                Some(taken) if *taken != 0 && *taken == used.descriptors => {
                    *taken = 0;
                    slots += used.descriptors;
                }
                _ => {
                    self.broken = true;
                    return Err(QueueError::NotInFlight { id: used.id, descriptors: used.descriptors });
                }
            }
        }
        let Some((first, rest)) = done.split_first() else { return Ok(false) };
        let old = self.used;
        let new = old.advance(slots, size);
        if let Some(records) = &mut self.records {
            records.completing(done, new);
        }
        if let Some(in_order) = &self.in_order {
            self.commit(in_order, first, rest, old, new);
        }
        // All but the first, and then the first: the driver, which goes by the ring's order, sees all or nothing.
        let mut at = old.advance(first.descriptors, size);
        for used in rest {
            publish(self.parts.ring.meta(at.index), used_meta(used, at.wrap));
            self.log_slot(at.index);
            at = at.advance(used.descriptors, size);
        }
        // The wish is read after that is visible, or a driver that goes to sleep in between is never woken.
        let meta = self.parts.ring.meta(old.index);
        let wish = publish_then_look(meta, used_meta(first, old.wrap), self.parts.driver.word());
        self.log_slot(old.index);
        if let Some(records) = &mut self.records {
            records.completed(done, new);
        }
        self.used = new;
        self.slots -= slots;
        self.in_flight -= done.len() as u16;
        let notify = wants_to_know(wish, old, new, size, self.config.event_idx);
        Ok(std::mem::take(&mut self.notify_anyway) || notify)
    }

    #[inline]
    fn log_slot(&self, index: u16) {
        if let Some(GuestAddress(start)) = self.config.log_used
            && self.view.is_tracked()
        {
            let offset = (usize::from(index) * DESCRIPTOR) as u64;
            self.view.mark_dirty(GuestAddress(start.wrapping_add(offset)), DESCRIPTOR as u64);
        }
    }

    fn log_event(&self) {
        if self.config.log_used.is_some() {
            self.view.mark_dirty(self.parts.device.guest(), EVENT as u64);
        }
    }

    pub(crate) fn arm(&mut self) -> Result<bool, QueueError> {
        if self.broken {
            return Err(QueueError::Broken);
        }
        let event = if self.config.event_idx {
            u32::from(self.avail.to_bits()) | u32::from(EVENT_DESC) << 16
        } else {
            u32::from(EVENT_ENABLE) << 16
        };
        let meta = publish_then_look(self.parts.device.word(), event, self.parts.ring.meta(self.avail.index));
        self.log_event();
        let slipped =
            self.slots < self.config.size && is_available(Descriptor::from_words(0, meta).at14, self.avail.wrap);
        Ok(slipped || !self.recovered.is_empty())
    }

    pub(crate) fn disarm(&mut self) {
        if !self.broken {
            publish(self.parts.device.word(), u32::from(EVENT_DISABLE) << 16);
            self.log_event();
        }
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        if self.broken {
            return false;
        }
        let meta = self.parts.ring.meta(self.avail.index).load(Relaxed);
        let available = is_available(Descriptor::from_words(0, meta).at14, self.avail.wrap);
        available && self.slots < self.config.size || !self.recovered.is_empty()
    }

    pub(crate) fn retire(&mut self) -> Position {
        if let Some(records) = &self.records
            && self.in_flight == 0
        {
            records.retire();
        }
        if self.in_order.is_some() {
            // Cannot fail: it completes in order.
            let _ = self.rewind();
        }
        self.broken = true;
        self.position()
    }

    pub(crate) fn set_log_used(&mut self, log: Option<GuestAddress>) {
        self.config.log_used = log;
    }

    pub(crate) fn position(&self) -> Position {
        Position::Packed { avail: self.avail, used: self.used }
    }

    pub(crate) fn in_flight(&self) -> u16 {
        self.in_flight
    }

    pub(crate) fn records_are_cut_short(&self) -> bool {
        self.records.as_ref().is_some_and(|records| records.is_faulted())
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(crate) fn config(&self) -> &QueueConfig {
        &self.config
    }

    pub(crate) fn set_broken(&mut self) {
        self.broken = true;
    }
}

/// The second word of a used descriptor (virtio 1.3 §2.8.5): WRITE says that `len` means something.
#[inline(always)]
fn used_meta(used: &Used, wrap: bool) -> u64 {
    let flags = used_flags(wrap) | if used.written > 0 { WRITE } else { 0 };
    Descriptor { addr: 0, len: used.written, at12: used.id, at14: flags }.meta()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_told_when_the_slot_it_waits_for_is_used_also_across_the_wrap() {
        let at = |index, wrap| PackedIndex { index, wrap };
        let wants = |event: PackedIndex, old, new| {
            wants_to_know(u32::from(event.to_bits()) | u32::from(EVENT_DESC) << 16, old, new, 8, true)
        };
        assert!(wants(at(3, true), at(3, true), at(4, true)));
        assert!(!wants(at(4, true), at(3, true), at(4, true)));
        assert!(!wants(at(2, true), at(3, true), at(4, true)));
        assert!(wants(at(7, true), at(6, true), at(1, false)));
        assert!(wants(at(0, false), at(6, true), at(1, false)));
        assert!(!wants(at(1, false), at(6, true), at(1, false)));
        assert!(wants(at(5, false), at(4, false), at(4, true)), "a whole lap");
        assert!(wants_to_know(u32::from(EVENT_DESC) << 16, at(3, true), at(4, true), 8, false), "not negotiated");
        assert!(!wants_to_know(u32::from(EVENT_DISABLE) << 16, at(3, true), at(4, true), 8, true));
        assert!(wants_to_know(0, at(3, true), at(4, true), 8, true));
    }
}
