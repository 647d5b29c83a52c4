//! The driver side of a split ring (virtio 1.3 §2.7.13, §2.7.14).

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use softdpu_memory::{GuestAddress, View};

use super::{Completion, Piece, write_table};
use crate::area::{AvailableRing, Descriptors, UsedRing};
use crate::layout::{DESCRIPTOR, INDIRECT, NO_INTERRUPT, NO_NOTIFY, SplitDescriptor, need_event};
use crate::sync::{Word, observe, publish, publish_then_read};
use crate::{Format, Position, QueueConfig, QueueError, RingAddresses};

/// Stands in [`SplitDriver::chains`] for a chain that was prepared: no index is as large, as sizes end at 32,768.
const PREPARED: (u16, u16) = (u16::MAX, 0);

/// The driver side of a split ring.
pub struct SplitDriver {
    view: Arc<View>,
    event_idx: bool,
    descriptors: Descriptors,
    available: AvailableRing,
    used: UsedRing,
    /// Descriptors that are not in use, linked.
    next_free: Box<[u16]>,
    free_head: u16,
    free: u16,
    /// By head: the last of its descriptors, and how many; 0: not outstanding.
    chains: Box<[(u16, u16)]>,
    avail: u16,
    published: u16,
    last_used: u16,
}

impl SplitDriver {
    pub(super) fn new(view: &Arc<View>, config: &QueueConfig, addresses: &RingAddresses) -> Result<Self, QueueError> {
        let QueueConfig { size, event_idx, .. } = *config;
        Ok(SplitDriver {
            view: Arc::clone(view),
            event_idx,
            descriptors: Descriptors::new(view, addresses, size)?,
            available: AvailableRing::new(view, addresses, size, event_idx)?,
            used: UsedRing::new(view, addresses, size, event_idx)?,
            next_free: (1..=size).collect(),
            free_head: 0,
            free: size,
            chains: vec![(0, 0); size.into()].into(),
            avail: 0,
            published: 0,
            last_used: 0,
        })
    }

    #[inline]
    pub(super) fn add(&mut self, pieces: &[Piece]) -> Option<u16> {
        let (head, last) = self.write(pieces)?;
        self.offer(head, last, pieces.len() as u16);
        Some(head)
    }

    pub(super) fn prepare(&mut self, pieces: &[Piece]) -> Option<u16> {
        let (head, last) = self.write(pieces)?;
        self.free_head = self.next_free[usize::from(last)];
        self.free -= pieces.len() as u16;
        self.chains[usize::from(head)] = PREPARED;
        Some(head)
    }

    #[inline]
    pub(super) fn repeat(&mut self, id: u16) -> bool {
        if self.chains.get(usize::from(id)) != Some(&PREPARED) {
            return false;
        }
        self.available.entry(self.avail).set(id, Relaxed);
        self.avail = self.avail.wrapping_add(1);
        true
    }

    /// Writes a chain into free descriptors, which stay free; its first and last.
    #[inline]
    fn write(&mut self, pieces: &[Piece]) -> Option<(u16, u16)> {
        if pieces.is_empty() || pieces.len() > usize::from(self.free) {
            return None;
        }
        let head = self.free_head;
        let mut at = head;
        let mut last = head;
        for (index, piece) in pieces.iter().enumerate() {
            let next = self.next_free[usize::from(at)];
            let flags = piece.flags(index + 1 == pieces.len());
            // `next` of the last one may be the size, which the flags keep from being followed.
            self.descriptors.write(at, SplitDescriptor { addr: piece.address.0, len: piece.len, flags, next });
            last = at;
            at = next;
        }
        Some((head, last))
    }

    pub(super) fn add_indirect(&mut self, table: GuestAddress, pieces: &[Piece]) -> Option<u16> {
        if pieces.is_empty() || self.free == 0 {
            return None;
        }
        write_table(&self.view, table, pieces, Format::Split)?;
        let head = self.free_head;
        let len = (DESCRIPTOR * pieces.len()) as u32;
        self.descriptors.write(head, SplitDescriptor { addr: table.0, len, flags: INDIRECT, next: 0 });
        self.offer(head, head, 1);
        Some(head)
    }

    #[inline]
    fn offer(&mut self, head: u16, last: u16, count: u16) {
        self.free_head = self.next_free[usize::from(last)];
        self.free -= count;
        self.chains[usize::from(head)] = (last, count);
        self.available.entry(self.avail).set(head, Relaxed);
        self.avail = self.avail.wrapping_add(1);
    }

    #[inline]
    pub(super) fn publish(&mut self) -> bool {
        let (old, new) = (self.published, self.avail);
        if old == new {
            return false;
        }
        self.published = new;
        if self.event_idx {
            need_event(publish_then_read(self.available.idx(), new, self.used.event()), new, old)
        } else {
            publish_then_read(self.available.idx(), new, self.used.flags()) & NO_NOTIFY == 0
        }
    }

    #[inline]
    pub(super) fn take(&mut self) -> Option<Completion> {
        if observe(self.used.idx()) == self.last_used {
            return None;
        }
        let id = self.used.id(self.last_used).get(Relaxed) as u16;
        let written = self.used.len(self.last_used).get(Relaxed);
        self.last_used = self.last_used.wrapping_add(1);
        let chain = self.chains.get_mut(usize::from(id))?;
        if *chain == PREPARED {
            return Some(Completion { id, written });
        }
        let (last, count) = std::mem::take(chain);
        if count == 0 {
            return None;
        }
        self.next_free[usize::from(last)] = self.free_head;
        self.free_head = id;
        self.free += count;
        Some(Completion { id, written })
    }

    pub(super) fn arm(&mut self) -> bool {
        let found = if self.event_idx {
            publish_then_read(self.available.event(), self.last_used, self.used.idx())
        } else {
            publish_then_read(self.available.flags(), 0, self.used.idx())
        };
        found != self.last_used
    }

    pub(super) fn disarm(&mut self) {
        if self.event_idx {
            // An event half the range behind is passed last of all.
            publish(self.available.event(), self.last_used.wrapping_sub(1 << 15));
        } else {
            publish(self.available.flags(), NO_INTERRUPT);
        }
    }

    pub(super) fn free(&self) -> u16 {
        self.free
    }

    pub(super) fn returned(&self) -> Position {
        Position::Split { last_avail: self.last_used }
    }
}
