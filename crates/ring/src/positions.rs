//! Positions of queues that complete in order, in memory that outlives the process.
//!
//! A network queue has no request that must not be lost with its process: a frame that was taken and not completed is
//! simply available again. What the next process has to know is how far the queue was completed, and the one hard
//! moment is a kill around the store that makes a batch visible to the driver. So before that store both positions, the
//! one before and the one after the batch, are committed with one 64-bit store; the process that opens the record looks
//! at the ring: if the batch is visible, the queue is at the new one, otherwise at the old one. A driver that lies
//! there can choose between these two only.
//!
//! ```text
//!   position (old, new) ──▶ used entries ──▶ used index, or first used descriptor ──▶ position (new, newer) ──▶ …
//!                      ▲ kill: old                                              ▲ kill: new
//! ```
//!
//! A used descriptor of a packed ring takes the place of the available one. Those of a batch that is not visible yet
//! become available again after a kill, so what will be overwritten is kept here, by slot, when a chain is taken: the
//! one time it is read.
//!
//! The order of the stores is the whole trick, as it is for [in-flight records](crate::InflightRecords). Of a split
//! ring nothing is written when a chain is taken.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use softdpu_memory::{Window, Words};

use crate::sync::publish;
use crate::{Format, QueueError};

/// The version of the layout; zero is memory that was never used.
const VERSION: u16 = 1;

/// `version`, `format`, `size`, 16 bits of zero; as one word.
const HEAD_AT: usize = 0;
/// The position before the last batch and the one after it, 16 bits each, then 32 bits of zero; as one word. Split:
/// used index. Packed: index and wrap counter, as in `off_wrap` (virtio 1.3 §2.8.14).
const POSITION_AT: usize = 8;
/// Packed only: by slot, the second word of the available descriptor that a used one replaced.
const REPLACED_AT: usize = LINE;

/// Records of several queues lie one behind the other, each on cache lines of its own.
const LINE: usize = 64;

/// Where the position of one queue is kept. Zeroed memory is one that was not used yet.
#[derive(Debug)]
pub struct Positions(Window);

impl Positions {
    /// The record in `window`, which begins on a multiple of 64 bytes in its file.
    pub fn new(window: Window) -> Self {
        Positions(window)
    }

    /// Bytes the record of one queue takes, a multiple of 64.
    pub const fn bytes(format: Format, size: u16) -> usize {
        match format {
            Format::Split => LINE,
            Format::Packed => (REPLACED_AT + 8 * size as usize).next_multiple_of(LINE),
        }
    }

    /// Makes it memory that was never used: what to do before a queue starts at a position of the front end's, or else
    /// a process that is killed before it opened the record leaves the position of the queue's former life to the next.
    pub fn clear(&self) {
        publish(self.0.u64(HEAD_AT), 0);
    }
}

/// The two positions of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Committed {
    pub old: u16,
    pub new: u16,
}

/// What a queue that completes in order keeps: its record, and in which order its chains were taken.
pub(crate) struct InOrder {
    window: Window,
    replaced: Option<Words>,
    /// Ids of the chains that were taken. By slot of the available ring (split) or of a chain's first descriptor
    /// (packed).
    order: Box<[u16]>,
}

fn head(format: Format, size: u16) -> u64 {
    let format: u64 = match format {
        Format::Split => 1,
        Format::Packed => 2,
    };
    u64::from(VERSION) | format << 16 | u64::from(size) << 32
}

impl InOrder {
    /// Opens the record. What it has is believed where the queue is `resumed`, and otherwise of no interest, as the
    /// front end says where a queue starts.
    pub fn open(
        positions: Positions,
        format: Format,
        size: u16,
        resumed: bool,
    ) -> Result<(Self, Option<Committed>), QueueError> {
        let Positions(window) = positions;
        let expected = Positions::bytes(format, size);
        if window.len() < expected || !(window.base() as usize).is_multiple_of(8) {
            return Err(QueueError::PositionsTooSmall { found: window.len(), expected });
        }
        if !resumed {
            // A kill between the two stores of `start` leaves no head of the one with a position of the other.
            publish(window.u64(HEAD_AT), 0);
        }
        let found = window.u64(HEAD_AT).load(Relaxed);
        let committed = match found {
            // Killed before it was opened for the first time: the queue is where it was to start.
            0 => None,
            _ if found == head(format, size) => {
                let word = window.u64(POSITION_AT).load(Relaxed);
                Some(Committed { old: word as u16, new: (word >> 16) as u16 })
            }
            _ => return Err(QueueError::PositionsMismatch { found, expected: head(format, size) }),
        };
        let replaced = match format {
            Format::Split => None,
            Format::Packed => window.part(REPLACED_AT, 8 * usize::from(size)).and_then(Words::new),
        };
        Ok((InOrder { window, replaced, order: vec![0; size.into()].into() }, committed))
    }

    /// The queue is at `position`: the first commit of a queue, or of a process.
    pub fn start(&self, format: Format, position: u16) {
        self.completing(position, position);
        publish(self.window.u64(HEAD_AT), head(format, self.order.len() as u16));
    }

    /// A chain was taken from `slot`, which is below the queue size. Packed: `meta` is what a used descriptor will
    /// replace there before its batch is visible. What was kept for that slot is of no use any more: it is available
    /// again, so the batch that it was in is visible.
    #[inline(always)]
    pub fn taken(&mut self, slot: u16, id: u16, meta: Option<u64>) {
        if let Some(entry) = self.order.get_mut(usize::from(slot)) {
            *entry = id;
        }
        if let (Some(meta), Some(replaced)) = (meta, self.replaced().get(usize::from(slot))) {
            publish(replaced, meta);
        }
    }

    /// What [`taken`](Self::taken) writes to, of a packed ring: by slot from `slot` on, the ids, and what is replaced.
    #[inline(always)]
    pub fn behind(&mut self, slot: u16) -> (&mut [u16], &[AtomicU64]) {
        let replaced = self.replaced.as_ref().map_or(&[][..], Words::all);
        let slot = usize::from(slot);
        (self.order.get_mut(slot..).unwrap_or_default(), replaced.get(slot..).unwrap_or_default())
    }

    /// Chains were taken from `slot`, which is below the queue size, and those behind it and around the end. Split
    /// rings only.
    #[inline(always)]
    pub fn taken_in_a_row(&mut self, slot: u16, ids: &[u16]) {
        let (start, behind) = self.order.split_at_mut(usize::from(slot).min(self.order.len()));
        let (to_the_end, around) = ids.split_at(ids.len().min(behind.len()));
        for (entries, ids) in [(behind, to_the_end), (start, around)] {
            for (entry, id) in entries.iter_mut().zip(ids) {
                *entry = *id;
            }
        }
    }

    /// Whether it is the chain that was taken from `slot`.
    ///
    /// # Errors
    /// [`QueueError::OutOfOrder`] where it is not.
    #[inline(always)]
    pub fn check(&self, slot: u16, id: u16) -> Result<(), QueueError> {
        match self.order.get(usize::from(slot)) {
            Some(expected) if *expected == id => Ok(()),
            expected => Err(QueueError::OutOfOrder { id, expected: expected.copied().unwrap_or(u16::MAX) }),
        }
    }

    /// Before a batch becomes visible that takes the queue from one position to the other.
    #[inline(always)]
    pub fn completing(&self, old: u16, new: u16) {
        publish(self.window.u64(POSITION_AT), u64::from(old) | u64::from(new) << 16);
    }

    /// Packed: by slot, what a used descriptor replaced or will replace. Split: nothing.
    #[inline(always)]
    pub fn replaced(&self) -> &[AtomicU64] {
        self.replaced.as_ref().map_or(&[], Words::all)
    }
}

#[cfg(test)]
mod tests {
    use softdpu_memory::Mapping;

    use super::*;

    #[test]
    fn the_layout_is_version_1() {
        let mapping = Mapping::heap(Positions::bytes(Format::Packed, 5));
        let open = || Positions::new(Window::of_mapping(mapping.clone()));
        let (mut record, committed) = InOrder::open(open(), Format::Packed, 5, true).unwrap();
        assert_eq!(committed, None, "it was never used");
        record.start(Format::Packed, 0x8000);
        record.taken(4, 3, Some(0x1122_3344_5566_7788));
        record.completing(0x8003, 0x0001);
        let memory = Window::of_mapping(mapping.clone());
        let words: Vec<u64> =
            (0..Positions::bytes(Format::Packed, 5) / 8).map(|at| memory.u64(at * 8).load(Relaxed)).collect();
        let mut golden = vec![0; 16];
        (golden[0], golden[1], golden[12]) = (0x5_0002_0001, 0x0001_8003, 0x1122_3344_5566_7788);
        assert_eq!(words, golden);
        let (_, committed) = InOrder::open(open(), Format::Packed, 5, true).unwrap();
        assert_eq!(committed, Some(Committed { old: 0x8003, new: 1 }));
        assert_eq!(InOrder::open(open(), Format::Packed, 5, false).unwrap().1, None, "the front end knows");
        open().clear();
        assert_eq!(InOrder::open(open(), Format::Packed, 5, true).unwrap().1, None);
    }

    #[test]
    fn a_record_of_another_queue_is_refused() {
        let mapping = Mapping::heap(Positions::bytes(Format::Packed, 16));
        let open = || Positions::new(Window::of_mapping(mapping.clone()));
        for (format, size) in [(Format::Packed, 16), (Format::Split, 8)] {
            InOrder::open(open(), Format::Split, 16, false).unwrap().0.start(Format::Split, 7);
            assert!(InOrder::open(open(), Format::Split, 16, true).is_ok());
            let error = InOrder::open(open(), format, size, true).err().unwrap();
            assert!(matches!(error, QueueError::PositionsMismatch { .. }), "{error}");
            assert!(InOrder::open(open(), format, size, false).is_ok(), "it begins anew");
        }
        let small = Positions::new(Window::of_mapping(mapping.clone()).part(0, 128).unwrap());
        let error = InOrder::open(small, Format::Packed, 16, false).err().unwrap();
        assert_eq!(error, QueueError::PositionsTooSmall { found: 128, expected: 192 });
    }
}
