//! The device side of a split virtqueue (virtio 1.3 §2.7).

mod in_order;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::{GuestAddress, View};
use softdpu_sys::{IoMemory, prefetch};

use crate::area::{AvailableRing, Descriptors, UsedRing, log_entries};
use crate::chain::{Walk, prefetch_table, single};
use crate::common::{Common, Start};
use crate::inflight::SplitRecords;
use crate::layout::{INDIRECT, NEXT, NO_INTERRUPT, NO_NOTIFY, SplitDescriptor, need_event};
use crate::sync::{observe, publish, publish_then_read};
use crate::{Chain, Format, InflightRecords, Position, QueueConfig, QueueError, RingAddresses, Sink, Used};

/// Heads that are read, and their descriptors fetched, before the first of them is looked into.
const AHEAD: usize = 16;

/// Chains for which indirect tables are fetched ahead of the one that is looked into.
const TABLES_AHEAD: usize = 4;

/// Used entries that are fetched for writing when requests are taken.
const USED_AHEAD: u16 = 64;

/// Where the last single request lay. Addresses for the prefetcher, never for an access.
#[derive(Clone, Copy, Default)]
struct Guess {
    head: u16,
    first: usize,
    last: usize,
}

/// The three parts of the ring.
struct Parts {
    descriptors: Descriptors,
    available: AvailableRing,
    used: UsedRing,
}

impl Parts {
    fn new(view: &Arc<View>, addresses: &RingAddresses, config: &QueueConfig) -> Result<Self, QueueError> {
        Ok(Parts {
            descriptors: Descriptors::new(view, addresses, config.size)?,
            available: AvailableRing::new(view, addresses, config.size, config.event_idx)?,
            used: UsedRing::new(view, addresses, config.size, config.event_idx)?,
        })
    }
}

/// A split queue.
pub struct SplitQueue {
    pub(crate) common: Common,
    parts: Parts,
    last_avail: u16,
    used_idx: u16,
    /// In flight since before a restart and not handed out again yet, in the order they were taken.
    recovered: Vec<u16>,
    pub(crate) records: Option<SplitRecords>,
    guess: Guess,
}

impl SplitQueue {
    pub(crate) fn new(start: Start<'_>, records: Option<InflightRecords>) -> Result<Self, QueueError> {
        let Start { config, addresses, position, .. } = start;
        let mut common = Common::new(start.view, config, addresses)?;
        let (view, size) = (&common.view, config.size);
        let Position::Split { mut last_avail } = position else {
            return Err(QueueError::Position { position, format: Format::Split, size });
        };
        let parts = Parts::new(view, &addresses, &config)?;
        let used_idx = parts.used.idx().load(Relaxed);
        let mut recovered = Vec::new();
        let records = match records {
            None => None,
            Some(records) => {
                let (records, heads) = SplitRecords::open(records, size, config.resumed, used_idx)?;
                if let Some(heads) = heads {
                    // What was taken and not given back lies between the used index and ours, whatever the front end,
                    // which may have missed some of it, remembers.
                    last_avail = used_idx.wrapping_add(heads.len() as u16);
                    recovered = heads;
                }
                Some(records)
            }
        };
        for head in &recovered {
            common.flight[usize::from(*head)] = 1;
        }
        common.in_flight = recovered.len() as u16;
        Ok(SplitQueue { common, parts, last_avail, used_idx, recovered, records, guess: Guess::default() })
    }

    pub(crate) fn remap(&mut self, view: &Arc<View>) -> Result<(), QueueError> {
        self.parts = self.common.remap(view, Parts::new)?;
        Ok(())
    }

    pub(crate) fn resubmit(&mut self, out: &mut impl Sink) -> Result<usize, QueueError> {
        self.common.usable()?;
        let before = out.len();
        for at in 0..self.recovered.len() {
            let head = self.recovered[at];
            match self.walk(head, out) {
                Ok(slots) => self.common.flight[usize::from(head)] = slots,
                Err(error) => {
                    self.common.abandon(out, before);
                    return Err(error);
                }
            }
        }
        self.recovered = Vec::new();
        Ok(out.len() - before)
    }

    #[inline]
    pub(crate) fn pop(&mut self, out: &mut impl Sink, max: usize) -> Result<usize, QueueError> {
        self.common.usable()?;
        let before = out.len();
        if !self.recovered.is_empty() {
            self.resubmit(out)?;
        }
        let found = observe(self.parts.available.idx());
        let ready = found.wrapping_sub(self.last_avail);
        if ready == 0 {
            return Ok(out.len() - before);
        }
        self.fetch_ahead(ready);
        let start = out.len();
        let taken = if ready > self.common.config.size {
            Err(QueueError::AvailJumped { last: self.last_avail, found, size: self.common.config.size })
        } else {
            self.take(out, max.min(usize::from(ready)))
        };
        if let Err(error) = taken {
            self.common.take_back(out, start);
            return Err(error);
        }
        let taken = out.len() - start;
        if taken == 1 {
            self.remember(&out[start]);
        }
        if let Some(records) = &mut self.records {
            for chain in &out[start..] {
                records.taken(chain.id);
            }
        }
        self.last_avail = self.last_avail.wrapping_add(taken as u16);
        self.common.in_flight += taken as u16;
        Ok(out.len() - before)
    }

    /// Fetches what a single request will touch all at once, instead of one line after the other as each names the
    /// next. A driver with one request at a time uses the same descriptors and buffers over and over; a wrong guess
    /// costs a few fetches. What completions will write is fetched for writing.
    #[inline]
    fn fetch_ahead(&self, ready: u16) {
        if ready == 1 {
            self.parts.descriptors.prefetch(self.guess.head);
            prefetch::read(self.guess.first as *const u8);
            prefetch::write(self.guess.last as *const u8);
        }
        self.parts.used.prefetch_index();
        for entry in (0..ready.min(USED_AHEAD)).step_by(UsedRing::ENTRIES_A_LINE) {
            self.parts.used.prefetch_entry(self.used_idx.wrapping_add(entry));
        }
    }

    /// Remembers the request before for [`fetch_ahead`](Self::fetch_ahead).
    #[inline]
    fn remember(&mut self, chain: &Chain) {
        if let (Some(first), Some(last)) = (chain.buffer.iovecs().first(), chain.buffer.iovecs().last()) {
            let end = last.base().wrapping_add(last.len().wrapping_sub(1));
            self.guess = Guess { head: chain.id, first: first.base() as usize, last: end as usize };
        }
    }

    #[inline(always)]
    fn take(&mut self, out: &mut impl Sink, count: usize) -> Result<(), QueueError> {
        let size = self.common.config.size;
        let mut index = self.last_avail;
        let mut left = count;
        let mut heads = [0u16; AHEAD];
        while left > 0 {
            let batch = left.min(AHEAD);
            let heads = &mut heads[..batch];
            let first = index;
            for head in &mut *heads {
                *head = self.parts.available.entry(index).load(Relaxed);
                if *head >= size {
                    return Err(QueueError::HeadOutOfRange { slot: index & (size - 1), head: *head, size });
                }
                self.parts.descriptors.prefetch(*head);
                index = index.wrapping_add(1);
            }
            if let Some(in_order) = &mut self.common.in_order {
                in_order.taken_in_a_row(first & (size - 1), heads);
            }
            // A driver that uses tables has few others.
            let singles = if self.common.has_tables { 0 } else { self.take_singles(heads, out)? };
            self.take_others(&heads[singles..], out)?;
            left -= batch;
        }
        Ok(())
    }

    /// Appends chains of one descriptor in one piece for as long as `heads` begins with such; returns how many.
    ///
    /// # Errors
    /// [`QueueError::InFlight`].
    // On its own: a loop that has the processor's registers for itself.
    #[inline(never)]
    fn take_singles(&mut self, heads: &[u16], out: &mut impl Sink) -> Result<usize, QueueError> {
        let Common { view, flight, .. } = &mut self.common;
        let (view, flight) = (&*view, &mut **flight);
        for (at, head) in heads.iter().enumerate() {
            // Below the size, which is how many there are.
            let Some(slots) = flight.get_mut(usize::from(*head)) else { return Ok(at) };
            if *slots != 0 {
                return Err(QueueError::InFlight { id: *head });
            }
            let descriptor: SplitDescriptor = self.parts.descriptors.read(*head);
            // Nothing is kept of what this has read if it is another: that is read anew.
            if !single(view, *head, descriptor.addr, descriptor.len, descriptor.flags, out) {
                return Ok(at);
            }
            *slots = 1;
        }
        Ok(heads.len())
    }

    /// Appends chains of any kind.
    #[inline(always)]
    fn take_others(&mut self, heads: &[u16], out: &mut impl Sink) -> Result<(), QueueError> {
        for (at, head) in heads.iter().enumerate() {
            if self.common.has_tables
                && let Some(soon) = heads.get(at + TABLES_AHEAD)
            {
                let descriptor: SplitDescriptor = self.parts.descriptors.read(*soon);
                prefetch_table(&self.common.view, descriptor.addr, descriptor.flags);
            }
            if self.common.flight[usize::from(*head)] != 0 {
                return Err(QueueError::InFlight { id: *head });
            }
            match self.walk(*head, out) {
                Ok(slots) => self.common.flight[usize::from(*head)] = slots,
                Err(error) => {
                    out.cut_last();
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Appends the chain at `head`, also where it turns out to be bad; returns its slots.
    #[inline(always)]
    fn walk(&mut self, head: u16, out: &mut impl Sink) -> Result<u16, QueueError> {
        let size = self.common.config.size;
        let first: SplitDescriptor = self.parts.descriptors.read(head);
        // Nothing is kept of what this has read if it is another: that is read anew.
        if single(&self.common.view, head, first.addr, first.len, first.flags, out) {
            return Ok(1);
        }
        let mut walk = Walk::new(&self.common.view, self.common.limits, head, out);
        let mut index = head;
        let mut slots = 0u16;
        loop {
            let descriptor: SplitDescriptor = self.parts.descriptors.read(index);
            let flags = descriptor.flags;
            self.common.has_tables |= flags & INDIRECT != 0;
            slots += 1;
            walk.ring_descriptor(descriptor.addr, descriptor.len, flags)?;
            if flags & NEXT == 0 {
                walk.finish(head, slots)?;
                return Ok(slots);
            }
            if slots == size {
                return Err(QueueError::Loop { head, size: size.into() });
            }
            index = descriptor.next;
            if index >= size {
                return Err(QueueError::NextOutOfRange { head, next: index, size: size.into() });
            }
        }
    }

    #[inline]
    pub(crate) fn complete(&mut self, done: &[Used]) -> Result<bool, QueueError> {
        self.common.usable()?;
        let checked = self.check(done);
        self.common.or_break(checked)?;
        if done.is_empty() {
            return Ok(false);
        }
        if let Some(records) = &self.records {
            records.completing(done);
        }
        let old = self.used_idx;
        if let Some(in_order) = &self.common.in_order {
            in_order.completing(old, old.wrapping_add(done.len() as u16));
        }
        let mut new = old;
        for used in done {
            publish(self.parts.used.id(new), u32::from(used.id));
            publish(self.parts.used.len(new), used.written);
            new = new.wrapping_add(1);
        }
        self.log_entries(old, done.len());
        self.used_idx = new;
        self.common.in_flight -= done.len() as u16;
        // Whether the driver wants a notification is read after the index is visible, or one that goes to sleep in
        // between is never woken.
        let event_idx = self.common.config.event_idx;
        let asked = if event_idx { self.parts.available.event() } else { self.parts.available.flags() };
        let asked = publish_then_read(self.parts.used.idx(), new, asked);
        self.log(2, 2);
        if let Some(records) = &self.records {
            records.completed(done, new);
        }
        let notify = if event_idx { need_event(asked, new, old) } else { asked & NO_INTERRUPT == 0 };
        Ok(std::mem::take(&mut self.common.notify_anyway) || notify)
    }

    /// Takes `done` off what is in flight, if all of it is, and if that is what was taken first where the order counts.
    #[inline(never)]
    fn check(&mut self, done: &[Used]) -> Result<(), QueueError> {
        let mut at = self.used_idx;
        for used in done {
            self.common.take_off(at & (self.common.config.size - 1), used)?;
            at = at.wrapping_add(1);
        }
        Ok(())
    }

    /// Reports the entries that were written from free-running index `from`.
    #[inline]
    fn log_entries(&self, from: u16, count: usize) {
        let size = self.common.config.size;
        let ring = self
            .common
            .config
            .log_used
            .map(|GuestAddress(start)| GuestAddress(start.wrapping_add(UsedRing::RING as u64)));
        log_entries(&self.common.view, ring, UsedRing::ENTRY, size, from & (size - 1), count as u16);
    }

    #[inline]
    fn log(&self, offset: usize, len: usize) {
        if let Some(GuestAddress(start)) = self.common.config.log_used {
            self.common.view.mark_dirty(GuestAddress(start.wrapping_add(offset as u64)), len as u64);
        }
    }

    pub(crate) fn arm(&mut self) -> Result<bool, QueueError> {
        self.common.usable()?;
        let found = if self.common.config.event_idx {
            let found = publish_then_read(self.parts.used.event(), self.last_avail, self.parts.available.idx());
            self.log(self.parts.used.event_offset(), 2);
            found
        } else {
            let found = publish_then_read(self.parts.used.flags(), 0, self.parts.available.idx());
            self.log(0, 2);
            found
        };
        Ok(found != self.last_avail || !self.recovered.is_empty())
    }

    pub(crate) fn disarm(&mut self) {
        if self.common.broken {
            return;
        }
        if self.common.config.event_idx {
            // In the past: otherwise the next entry would be notified that comes after nothing has come while armed.
            publish(self.parts.used.event(), self.last_avail.wrapping_sub(1));
            self.log(self.parts.used.event_offset(), 2);
        } else {
            publish(self.parts.used.flags(), NO_NOTIFY);
            self.log(0, 2);
        }
    }

    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        !self.common.broken
            && (self.parts.available.idx().load(Relaxed) != self.last_avail || !self.recovered.is_empty())
    }

    pub(crate) fn position(&self) -> Position {
        Position::Split { last_avail: self.last_avail }
    }
}
