//! The driver side of a packed ring (virtio 1.3 §2.8.21, §2.8.22).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::{GuestAddress, View};

use super::{Completion, Piece, write_table};
use crate::area::{Descriptors, Event};
use crate::error::Part;
use crate::layout::{DESCRIPTOR, Descriptor, EVENT_DESC, EVENT_DISABLE, INDIRECT, PackedDescriptor};
use crate::packed::{AVAIL_USED, available_flags, need_event, used_flags};
use crate::sync::{Word, observe, publish, publish_then_read};
use crate::{Format, PackedIndex, Position, QueueConfig, QueueError, RingAddresses};

/// The driver side of a packed ring.
pub struct PackedDriver {
    view: Arc<View>,
    size: u16,
    event_idx: bool,
    ring: Descriptors,
    driver: Event,
    device: Event,
    /// Buffer ids that are not in use.
    ids: Vec<u16>,
    /// By buffer id: slots; 0: not outstanding.
    slots: Box<[u16]>,
    /// By buffer id: what was prepared.
    prepared: Box<[Box<[Piece]>]>,
    free: u16,
    avail: PackedIndex,
    used: PackedIndex,
    /// Where what is not published starts, and the word that publishes it.
    pending: Option<(PackedIndex, u64)>,
}

impl PackedDriver {
    pub(super) fn new(view: &Arc<View>, config: &QueueConfig, addresses: &RingAddresses) -> Result<Self, QueueError> {
        let QueueConfig { size, event_idx, .. } = *config;
        Ok(PackedDriver {
            view: Arc::clone(view),
            size,
            event_idx,
            ring: Descriptors::new(view, addresses, size)?,
            driver: Event::new(view, Part::Driver, addresses.driver)?,
            device: Event::new(view, Part::Device, addresses.device)?,
            ids: (0..size).rev().collect(),
            slots: vec![0; size.into()].into(),
            prepared: vec![Box::default(); size.into()].into(),
            free: size,
            avail: PackedIndex::START,
            used: PackedIndex::START,
            pending: None,
        })
    }

    #[inline]
    pub(super) fn add(&mut self, pieces: &[Piece]) -> Option<u16> {
        if pieces.is_empty() || pieces.len() > usize::from(self.free) {
            return None;
        }
        let id = self.ids.pop()?;
        for (index, piece) in pieces.iter().enumerate() {
            self.put(piece.address.0, piece.len, id, piece.flags(index + 1 == pieces.len()));
        }
        self.slots[usize::from(id)] = pieces.len() as u16;
        Some(id)
    }

    pub(super) fn prepare(&mut self, pieces: &[Piece]) -> Option<u16> {
        if pieces.is_empty() || pieces.len() > usize::from(self.size) {
            return None;
        }
        let id = self.ids.pop()?;
        self.prepared[usize::from(id)] = pieces.into();
        Some(id)
    }

    #[inline]
    pub(super) fn repeat(&mut self, id: u16) -> bool {
        // Out of `self` while it is written: an empty box allocates nothing.
        let Some(pieces) = self.prepared.get_mut(usize::from(id)).map(std::mem::take) else { return false };
        let fits = !pieces.is_empty() && pieces.len() <= usize::from(self.free);
        if fits {
            for (index, piece) in pieces.iter().enumerate() {
                self.put(piece.address.0, piece.len, id, piece.flags(index + 1 == pieces.len()));
            }
            self.slots[usize::from(id)] = pieces.len() as u16;
        }
        self.prepared[usize::from(id)] = pieces;
        fits
    }

    pub(super) fn add_indirect(&mut self, table: GuestAddress, pieces: &[Piece]) -> Option<u16> {
        if pieces.is_empty() || self.free == 0 {
            return None;
        }
        write_table(&self.view, table, pieces, Format::Packed)?;
        let id = self.ids.pop()?;
        self.put(table.0, (DESCRIPTOR * pieces.len()) as u32, id, INDIRECT);
        self.slots[usize::from(id)] = 1;
        Some(id)
    }

    #[inline]
    fn put(&mut self, addr: u64, len: u32, id: u16, flags: u16) {
        let at = self.avail;
        let descriptor = PackedDescriptor { addr, len, id, flags: flags | available_flags(at.wrap) };
        self.ring.addr(at.index).set(addr, Relaxed);
        if self.pending.is_none() {
            self.pending = Some((at, descriptor.meta()));
        } else {
            self.ring.meta(at.index).set(descriptor.meta(), Relaxed);
        }
        self.avail = at.advance(1, self.size);
        self.free -= 1;
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let Some((first, meta)) = self.pending.take() else { return false };
        let event = publish_then_read(self.ring.meta(first.index), meta, self.device.word());
        need_event(event, first, self.avail, self.size, self.event_idx)
    }

    #[inline]
    fn is_used(&self, meta: u64) -> bool {
        PackedDescriptor::from_words(0, meta).flags & AVAIL_USED == used_flags(self.used.wrap)
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<Completion> {
        // A slot that was never available looks used with the other wrap counter only.
        if self.free == self.size {
            return None;
        }
        let meta = observe(self.ring.meta(self.used.index));
        if !self.is_used(meta) {
            return None;
        }
        let used = PackedDescriptor::from_words(0, meta);
        let slots = std::mem::take(self.slots.get_mut(usize::from(used.id))?);
        if slots == 0 {
            return None;
        }
        if self.prepared[usize::from(used.id)].is_empty() {
            self.ids.push(used.id);
        }
        self.free += slots;
        self.used = self.used.advance(slots, self.size);
        Some(Completion { id: used.id, written: used.len })
    }

    pub(super) fn arm(&mut self) -> bool {
        let event = if self.event_idx { u32::from(self.used.to_bits()) | u32::from(EVENT_DESC) << 16 } else { 0 };
        let meta = publish_then_read(self.driver.word(), event, self.ring.meta(self.used.index));
        self.free < self.size && self.is_used(meta)
    }

    pub(super) fn disarm(&mut self) {
        publish(self.driver.word(), u32::from(EVENT_DISABLE) << 16);
    }

    pub(super) fn free(&self) -> u16 {
        self.free
    }

    pub(super) fn returned(&self) -> Position {
        Position::Packed { avail: self.used, used: self.used }
    }
}
