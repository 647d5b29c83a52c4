//! The device side of a packed virtqueue (virtio 1.3 §2.8).

mod in_order;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::View;

use crate::area::{Descriptors, Event, log_entries};
use crate::chain::{Walk, prefetch_table, single};
use crate::common::{Common, Start};
use crate::error::Part;
use crate::inflight::{PackedRecords, Recovered};
use crate::layout::{
    AVAIL, DESCRIPTOR, Descriptor, EVENT, EVENT_DESC, EVENT_DISABLE, EVENT_ENABLE, INDIRECT, NEXT, PackedDescriptor,
    USED, WRITE,
};
use crate::sync::{observe, publish, publish_then_read};
use crate::{Format, InflightRecords, PackedIndex, Position, QueueError, RingAddresses, Sink, Used};

/// Slots that are fetched at the most before the first of them is looked at.
const AHEAD: u16 = 64;

/// Slots in a cache line of 64 bytes.
const SLOTS_A_LINE: usize = 64 / DESCRIPTOR;

/// Slots for which indirect tables are fetched ahead.
const TABLES_AHEAD: u16 = 4;

/// The flags that say, with the wrap counter, whether a descriptor is available or used: both change with it (virtio
/// 1.3 §2.8.1).
pub(crate) const AVAIL_USED: u16 = AVAIL | USED;

/// Flags of an available descriptor (virtio 1.3 §2.8.1): AVAIL as the wrap counter, USED the inverse.
#[inline(always)]
pub(crate) fn available_flags(wrap: bool) -> u16 {
    if wrap { AVAIL } else { USED }
}

/// Flags of a used descriptor: both as the wrap counter.
#[inline(always)]
pub(crate) fn used_flags(wrap: bool) -> u16 {
    if wrap { AVAIL_USED } else { 0 }
}

#[inline(always)]
pub(crate) fn is_available(flags: u16, wrap: bool) -> bool {
    flags & AVAIL_USED == available_flags(wrap)
}

/// Whether the other side is to be notified, by its event suppression structure: the descriptor that it asked for is
/// among those from `old` up to `new` (virtio 1.3 §2.8.10).
pub(crate) fn need_event(event: u32, old: PackedIndex, new: PackedIndex, size: u16, event_idx: bool) -> bool {
    let flags = (event >> 16) as u16 & 3;
    match flags {
        EVENT_DISABLE => false,
        EVENT_DESC if event_idx => {
            let wanted = PackedIndex::from_bits(event as u16);
            let wrapped = i32::from(size);
            let start = i32::from(old.index);
            let new_at = if new.wrap == old.wrap { 0 } else { wrapped };
            let end = i32::from(new.index) + new_at;
            let at = i32::from(wanted.index) + new_at - if wanted.wrap == new.wrap { 0 } else { wrapped };
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
    pub(crate) common: Common,
    parts: Parts,
    avail: PackedIndex,
    used: PackedIndex,
    /// Slots between `used` and `avail`: those in flight.
    slots: u16,
    /// In flight since before a restart and not handed out again yet, in the order they were taken.
    recovered: Vec<Recovered>,
    pub(crate) records: Option<PackedRecords>,
    /// Descriptors of the batch that is being taken, for the records.
    raw: Vec<PackedDescriptor>,
    /// Slots that were taken the last time, [`AHEAD`] at the most.
    expected: u16,
}

impl PackedQueue {
    pub(crate) fn new(start: Start<'_>, records: Option<InflightRecords>) -> Result<Self, QueueError> {
        let Start { config, addresses, position, .. } = start;
        let mut common = Common::new(start.view, config, addresses)?;
        let (view, size) = (&common.view, config.size);
        let (mut avail, mut used) = match position {
            Position::Packed { avail, used } if avail.index < size && used.index < size => (avail, used),
            _ => return Err(QueueError::Position { position, format: Format::Packed, size }),
        };
        let parts = Parts::new(view, &addresses, size)?;
        let mut recovered = Vec::new();
        let mut slots = 0;
        let mut resumed = false;
        let records = match records {
            None => None,
            Some(records) => {
                let (records, left) = PackedRecords::open(records, size, config.resumed, used, |at| {
                    !is_available(parts.ring.flags(at.index), at.wrap)
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
        for chain in &recovered {
            common.flight[usize::from(chain.id)] = chain.descriptors.len() as u16;
        }
        common.in_flight = recovered.len() as u16;
        let this = PackedQueue {
            common,
            parts,
            avail,
            used,
            slots,
            recovered,
            raw: Vec::with_capacity(if records.is_some() { size.into() } else { 0 }),
            records,
            expected: 0,
        };
        if resumed {
            this.take_back_unpublished();
        }
        Ok(this)
    }

    /// A batch is published by its first descriptor, so a kill before that leaves used flags on the others. The driver
    /// has not seen them; it would, once it gets that far, so they become available descriptors again. Their contents
    /// do not matter: what is in flight is in the records.
    fn take_back_unpublished(&self) {
        let mut at = self.used;
        for _ in 0..self.slots {
            let descriptor: PackedDescriptor = self.parts.ring.read(at.index);
            if descriptor.flags & AVAIL_USED == used_flags(at.wrap) {
                let flags = descriptor.flags & !AVAIL_USED | available_flags(at.wrap);
                publish(self.parts.ring.meta(at.index), PackedDescriptor { flags, ..descriptor }.meta());
                self.log_slots(at.index, 1);
            }
            at = at.advance(1, self.common.config.size);
        }
    }

    pub(crate) fn remap(&mut self, view: &Arc<View>) -> Result<(), QueueError> {
        self.parts = self.common.remap(view, |view, addresses, config| Parts::new(view, addresses, config.size))?;
        Ok(())
    }

    pub(crate) fn resubmit(&mut self, out: &mut impl Sink) -> Result<usize, QueueError> {
        self.common.usable()?;
        let before = out.len();
        for recovered in &self.recovered {
            if let Err(error) = self.rewalk(recovered, out) {
                self.common.abandon(out, before);
                return Err(error);
            }
        }
        self.recovered = Vec::new();
        Ok(out.len() - before)
    }

    fn rewalk(&self, recovered: &Recovered, out: &mut impl Sink) -> Result<(), QueueError> {
        let mut walk = Walk::new(&self.common.view, self.common.limits, recovered.id, out);
        for descriptor in &recovered.descriptors {
            walk.ring_descriptor(descriptor.addr, descriptor.len, descriptor.flags)?;
        }
        walk.finish(recovered.id, recovered.descriptors.len() as u16)
    }

    #[inline]
    pub(crate) fn pop(&mut self, out: &mut impl Sink, max: usize) -> Result<usize, QueueError> {
        self.common.usable()?;
        let before = out.len();
        if !self.recovered.is_empty() {
            self.resubmit(out)?;
        }
        let start = out.len();
        self.raw.clear();
        if let Err(error) = self.take(out, max) {
            self.common.take_back(out, start);
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
        self.common.in_flight += (out.len() - start) as u16;
        Ok(out.len() - before)
    }

    /// Takes chains, and moves on by them unless one of them is bad.
    // On its own: a loop that has the processor's registers for itself.
    #[inline(never)]
    fn take(&mut self, out: &mut impl Sink, max: usize) -> Result<(), QueueError> {
        if !self.is_available() {
            return Ok(());
        }
        self.fetch_ahead();
        let size = self.common.config.size;
        let (mut at, mut slots) = (self.avail, self.slots);
        let mut available = available_flags(at.wrap);
        // Chains that may still be taken: there are no more than slots for them.
        let mut left = max.min(usize::from(size - slots));
        // A driver that uses tables has few others.
        let mut singly = !self.common.has_tables && self.records.is_none();
        while left > 0 {
            if singly {
                let singles = self.take_singles(at, left, out);
                (slots, left) = (slots + singles, left - usize::from(singles));
                if at.step(singles, size) {
                    available ^= AVAIL_USED;
                }
                if left == 0 {
                    break;
                }
            }
            let (addr, meta) = self.parts.ring.words(at.index);
            // What follows the flags in program order was stored before them by the driver.
            let meta = observe(meta);
            let first = PackedDescriptor::from_words(0, meta);
            if first.flags & AVAIL_USED != available {
                break;
            }
            if self.common.has_tables {
                let soon = at.advance(TABLES_AHEAD.min(size), size);
                let descriptor: PackedDescriptor = self.parts.ring.read(soon.index);
                prefetch_table(&self.common.view, descriptor.addr, descriptor.flags);
            }
            let first = PackedDescriptor { addr: addr.load(Relaxed), ..first };
            let (id, taken) = match self.common.flight.get_mut(usize::from(first.id)) {
                Some(flight @ 0) if single(&self.common.view, first.id, first.addr, first.len, first.flags, out) => {
                    *flight = 1;
                    if self.records.is_some() {
                        self.raw.push(first);
                    }
                    (first.id, 1)
                }
                _ => match self.walk(at, size - slots, first, out) {
                    Ok((id, taken)) => {
                        singly = false;
                        left = left.min(usize::from(size - slots - taken) + 1);
                        (id, taken)
                    }
                    Err(error) => {
                        out.cut_last();
                        return Err(error);
                    }
                },
            };
            if let Some(in_order) = &mut self.common.in_order {
                in_order.taken(at.index, id, Some(meta));
            }
            slots += taken;
            left -= 1;
            if at.step(taken, size) {
                available ^= AVAIL_USED;
            }
        }
        self.expected = (slots - self.slots).min(AHEAD);
        (self.avail, self.slots) = (at, slots);
        Ok(())
    }

    /// Takes chains of one descriptor in one piece from `at` on, at the most `most` and to the end of the ring, for as
    /// long as there are such; returns how many. Not where there is a record of what is in flight, which wants more of
    /// each.
    // On its own: a loop that has the processor's registers for itself.
    #[inline(never)]
    fn take_singles(&mut self, at: PackedIndex, most: usize, out: &mut impl Sink) -> u16 {
        let Common { view, flight, in_order, config, .. } = &mut self.common;
        let (view, flight) = (&*view, &mut **flight);
        let (order, replaced) = in_order.as_mut().map_or_else(Default::default, |in_order| in_order.behind(at.index));
        let mut order = order.iter_mut().zip(replaced);
        let wanted = available_flags(at.wrap);
        let mut index = at.index;
        let end = index + most.min(usize::from(config.size - index)) as u16;
        while index < end {
            let (addr, meta) = self.parts.ring.words(index);
            // What follows the flags in program order was stored before them by the driver.
            let meta = observe(meta);
            let descriptor = PackedDescriptor::from_words(0, meta);
            if descriptor.flags & (AVAIL_USED | INDIRECT | NEXT) != wanted {
                break;
            }
            let id = descriptor.id;
            let Some(slots @ 0) = flight.get_mut(usize::from(id)) else { break };
            if !single(view, id, addr.load(Relaxed), descriptor.len, descriptor.flags, out) {
                break;
            }
            *slots = 1;
            if let Some((entry, replaced)) = order.next() {
                *entry = id;
                publish(replaced, meta);
            }
            index += 1;
        }
        index - at.index
    }

    /// Fetches the slots that are about to be taken, for writing, as used descriptors will replace what is in them. How
    /// many are available is not known before they are read: mostly as many as the last time, and a wrong guess costs a
    /// few fetches.
    #[inline]
    fn fetch_ahead(&self) {
        let size = self.common.config.size;
        for slots in (0..self.expected).step_by(SLOTS_A_LINE) {
            self.parts.ring.prefetch_write(self.avail.advance(slots, size).index);
        }
    }

    /// Appends the chain that starts at `at` with `first`, also where it turns out to be bad; returns its buffer id and
    /// slots, of which it may have `free`.
    #[inline(always)]
    fn walk(
        &mut self,
        mut at: PackedIndex,
        free: u16,
        first: PackedDescriptor,
        out: &mut impl Sink,
    ) -> Result<(u16, u16), QueueError> {
        let size = self.common.config.size;
        let head = at.index;
        let mut walk = Walk::new(&self.common.view, self.common.limits, head, out);
        let mut descriptor = first;
        let mut slots = 0;
        loop {
            if slots == free {
                return Err(QueueError::Overrun { head, free });
            }
            slots += 1;
            let flags = descriptor.flags;
            self.common.has_tables |= flags & INDIRECT != 0;
            walk.ring_descriptor(descriptor.addr, descriptor.len, flags)?;
            if self.records.is_some() {
                self.raw.push(descriptor);
            }
            if flags & NEXT == 0 {
                break;
            }
            at = at.advance(1, size);
            descriptor = self.parts.ring.read(at.index);
            if !is_available(descriptor.flags, at.wrap) {
                // At the end of what the driver owns that is what the slots in flight look like.
                if slots == free {
                    return Err(QueueError::Overrun { head, free });
                }
                return Err(QueueError::NotAvailable { head, slot: at.index, flags: descriptor.flags });
            }
        }
        // The last descriptor of a chain carries its buffer id (virtio 1.3 §2.8.6).
        let id = descriptor.id;
        if id >= size {
            return Err(QueueError::IdOutOfRange { slot: at.index, id, size });
        }
        let flight = &mut self.common.flight[usize::from(id)];
        if *flight != 0 {
            return Err(QueueError::InFlight { id });
        }
        walk.finish(id, slots)?;
        *flight = slots;
        Ok((id, slots))
    }

    #[inline]
    pub(crate) fn complete(&mut self, done: &[Used]) -> Result<bool, QueueError> {
        self.common.usable()?;
        let Some((first, rest)) = done.split_first() else { return Ok(false) };
        let size = self.common.config.size;
        let old = self.used;
        let checked = self.check(done);
        let (slots, new) = self.common.or_break(checked)?;
        if let Some(records) = &mut self.records {
            records.completing(done, new);
        }
        if let Some(in_order) = &self.common.in_order {
            in_order.completing(old.to_bits(), new.to_bits());
        }
        // All but the first, and then the first: the driver, which goes by the ring's order, sees all or nothing. A
        // driver that polls reads the line with the first again and again, and takes it away from this core each time:
        // those that share it are written last, in a row with it, so that it comes back once.
        let behind = old.advance(first.descriptors, size);
        let (mut at, mut near) = (behind, 0);
        while near < rest.len() && same_line(at, old) {
            at.step(rest[near].descriptors, size);
            near += 1;
        }
        let (near, far) = rest.split_at(near);
        self.write_used(at, far);
        self.write_used(behind, near);
        // The driver's event suppression is read after that is visible, or a driver that goes to sleep in between is
        // never woken.
        let meta = self.parts.ring.meta(old.index);
        let event = publish_then_read(meta, used_meta(first, used_flags(old.wrap)), self.parts.driver.word());
        self.log_slots(old.index, slots);
        if let Some(records) = &mut self.records {
            records.completed(done, new);
        }
        self.used = new;
        self.slots -= slots;
        self.common.in_flight -= done.len() as u16;
        let notify = need_event(event, old, new, size, self.common.config.event_idx);
        Ok(std::mem::take(&mut self.common.notify_anyway) || notify)
    }

    /// Writes used descriptors from `at` on.
    #[inline(never)]
    fn write_used(&self, mut at: PackedIndex, done: &[Used]) {
        let size = self.common.config.size;
        let mut flags = used_flags(at.wrap);
        for used in done {
            publish(self.parts.ring.meta(at.index), used_meta(used, flags));
            if at.step(used.descriptors, size) {
                flags ^= AVAIL_USED;
            }
        }
    }

    /// Takes `done` off what is in flight, if all of it is, and if that is what was taken first where the order counts.
    /// Returns their slots and where the next used descriptor goes after them.
    #[inline(never)]
    fn check(&mut self, done: &[Used]) -> Result<(u16, PackedIndex), QueueError> {
        let size = self.common.config.size;
        let (mut at, mut slots) = (self.used, 0);
        for used in done {
            self.common.take_off(at.index, used)?;
            // No more than the slots in flight, all of them: that was checked.
            slots += used.descriptors;
            at.step(used.descriptors, size);
        }
        Ok((slots, at))
    }

    /// Reports slots that were written, and those between them.
    #[inline]
    fn log_slots(&self, from: u16, count: u16) {
        let ring = self.common.config.log_used.map(|_| self.parts.ring.guest());
        log_entries(&self.common.view, ring, DESCRIPTOR, self.common.config.size, from, count);
    }

    fn log_event(&self) {
        if self.common.config.log_used.is_some() {
            self.common.view.mark_dirty(self.parts.device.guest(), EVENT as u64);
        }
    }

    pub(crate) fn arm(&mut self) -> Result<bool, QueueError> {
        self.common.usable()?;
        let event = if self.common.config.event_idx {
            u32::from(self.avail.to_bits()) | u32::from(EVENT_DESC) << 16
        } else {
            u32::from(EVENT_ENABLE) << 16
        };
        let meta = publish_then_read(self.parts.device.word(), event, self.parts.ring.meta(self.avail.index));
        self.log_event();
        let pending = self.slots < self.common.config.size
            && is_available(PackedDescriptor::from_words(0, meta).flags, self.avail.wrap);
        Ok(pending || !self.recovered.is_empty())
    }

    pub(crate) fn disarm(&mut self) {
        if !self.common.broken {
            publish(self.parts.device.word(), u32::from(EVENT_DISABLE) << 16);
            self.log_event();
        }
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.common.broken && (self.is_available() || !self.recovered.is_empty())
    }

    /// Whether there is another chain.
    #[inline(always)]
    fn is_available(&self) -> bool {
        let meta = self.parts.ring.meta(self.avail.index).load(Relaxed);
        self.slots < self.common.config.size
            && is_available(PackedDescriptor::from_words(0, meta).flags, self.avail.wrap)
    }

    pub(crate) fn position(&self) -> Position {
        Position::Packed { avail: self.avail, used: self.used }
    }
}

/// Whether two slots lie in the same cache line, in a ring that begins with one, with one wrap counter.
#[inline(always)]
fn same_line(one: PackedIndex, other: PackedIndex) -> bool {
    usize::from(one.index) / SLOTS_A_LINE == usize::from(other.index) / SLOTS_A_LINE && one.wrap == other.wrap
}

/// The second word of a used descriptor with these `flags` (virtio 1.3 §2.8.5): WRITE says that `len` means something.
#[inline(always)]
fn used_meta(used: &Used, flags: u16) -> u64 {
    let flags = flags | if used.written > 0 { WRITE } else { 0 };
    PackedDescriptor { addr: 0, len: used.written, id: used.id, flags }.meta()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_is_notified_when_the_slot_it_waits_for_is_used_also_across_the_wrap() {
        let at = |index, wrap| PackedIndex { index, wrap };
        let wants = |event: PackedIndex, old, new| {
            need_event(u32::from(event.to_bits()) | u32::from(EVENT_DESC) << 16, old, new, 8, true)
        };
        assert!(wants(at(3, true), at(3, true), at(4, true)));
        assert!(!wants(at(4, true), at(3, true), at(4, true)));
        assert!(!wants(at(2, true), at(3, true), at(4, true)));
        assert!(wants(at(7, true), at(6, true), at(1, false)));
        assert!(wants(at(0, false), at(6, true), at(1, false)));
        assert!(!wants(at(1, false), at(6, true), at(1, false)));
        assert!(wants(at(5, false), at(4, false), at(4, true)), "once around the ring");
        assert!(need_event(u32::from(EVENT_DESC) << 16, at(3, true), at(4, true), 8, false), "not negotiated");
        assert!(!need_event(u32::from(EVENT_DISABLE) << 16, at(3, true), at(4, true), 8, true));
        assert!(need_event(0, at(3, true), at(4, true), 8, true));
    }
}
