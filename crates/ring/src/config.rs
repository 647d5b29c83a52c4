//! The configuration of a queue, and what it hands out.

use softdpu_memory::{GuestAddress, GuestBuffer, UserAddress};

use crate::QueueError;

/// Largest queue size of either format (virtio 1.3 §2.7, §2.8: "maximum Queue Size value is 32768").
pub const MAX_SIZE: u16 = 32768;

/// Layout of a virtqueue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Descriptor table, available ring, used ring (virtio 1.3 §2.7).
    Split,
    /// One descriptor ring and two event suppression structures (virtio 1.3 §2.8).
    Packed,
}

/// What was negotiated for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueConfig {
    /// Queue size: 1 to [`MAX_SIZE`], for the split format a power of two.
    pub size: u16,
    /// Ring layout: VIRTIO_F_RING_PACKED.
    pub format: Format,
    /// VIRTIO_F_EVENT_IDX (virtio 1.3 §6).
    pub event_idx: bool,
    /// VIRTIO_F_INDIRECT_DESC (virtio 1.3 §6).
    pub indirect: bool,
    /// Chains with more descriptors than this (those of an indirect table included), or in more
    /// pieces of memory (one that crosses from a region into the next is two), break the queue. At least 1.
    pub max_pieces: usize,
    /// Where writes to the used ring are reported to the dirty log: `log_guest_addr` of SET_VRING_ADDR where
    /// VHOST_VRING_F_LOG is set. For the packed format only whether there is one counts: QEMU gives the address of the
    /// device area there, and what is written is reported where it lies.
    pub log_used: Option<GuestAddress>,
    /// The queue ran in a process before this one, which may have been killed between [retiring](crate::Queue::retire)
    /// its records and reporting that: they are believed though they say that they are not in use. A queue that
    /// completes in order believes its record where this is set, and only there.
    pub resumed: bool,
}

/// Where the parts of a queue lie, as front-end addresses (SET_VRING_ADDR).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// Descriptor area: descriptor table, or descriptor ring of the packed format.
    pub descriptors: UserAddress,
    /// Driver area: available ring, or driver event suppression.
    pub driver: UserAddress,
    /// Device area: used ring, or device event suppression.
    pub device: UserAddress,
}

/// An index into a packed ring and the wrap counter there (virtio 1.3 §2.8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedIndex {
    /// Below the queue size.
    pub index: u16,
    /// Wrap counter; starts at true.
    pub wrap: bool,
}

impl PackedIndex {
    /// Where every packed ring starts.
    pub const START: PackedIndex = PackedIndex { index: 0, wrap: true };

    /// The index `slots` further on in a ring of `size`. `slots` is at most `size`.
    #[inline(always)]
    #[must_use]
    pub fn advance(mut self, slots: u16, size: u16) -> PackedIndex {
        self.step(slots, size);
        self
    }

    /// Moves on as [`advance`](Self::advance) does; whether that wraps.
    #[inline(always)]
    pub(crate) fn step(&mut self, slots: u16, size: u16) -> bool {
        // Indexes are below 32,768 and so many slots the most: it fits.
        let next = self.index.wrapping_add(slots);
        if next < size {
            self.index = next;
            false
        } else {
            *self = PackedIndex { index: next.wrapping_sub(size), wrap: next_lap(self.wrap) };
            true
        }
    }

    /// Index in bits 0 to 14, wrap counter in bit 15: the form of `off_wrap` (virtio 1.3 §2.8.14) and of each half of a
    /// packed vring base.
    #[inline]
    pub(crate) fn to_bits(self) -> u16 {
        self.index | u16::from(self.wrap) << 15
    }

    pub(crate) fn from_bits(bits: u16) -> PackedIndex {
        PackedIndex { index: bits & 0x7fff, wrap: bits >> 15 != 0 }
    }
}

/// The wrap counter after a wrap: out of line, so that the compiler takes it for what happens once around the ring.
#[cold]
#[inline(never)]
fn next_lap(wrap: bool) -> bool {
    !wrap
}

/// How far a queue has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The split format keeps the used index in the ring.
    Split {
        /// The next available index to look at, free-running.
        last_avail: u16,
    },
    /// The packed format keeps nothing in the ring.
    Packed {
        /// The next descriptor to look at.
        avail: PackedIndex,
        /// Where the next used descriptor goes.
        used: PackedIndex,
    },
    /// An NVMe pair keeps its position in its record.
    Pair {
        /// The next submission queue entry to take.
        head: u16,
    },
}

impl Position {
    /// Where a fresh queue starts.
    pub const fn start(format: Format) -> Position {
        match format {
            Format::Split => Position::Split { last_avail: 0 },
            Format::Packed => Position::Packed { avail: PackedIndex::START, used: PackedIndex::START },
        }
    }

    /// From the payload of SET_VRING_BASE (vhost-user, "Vring descriptor indices"): split: the index in bits 0 to 15;
    /// packed: available index and wrap counter in bits 0 to 15, used index and wrap counter in bits 16 to 31.
    pub fn from_base(format: Format, base: u32) -> Position {
        match format {
            Format::Split => Position::Split { last_avail: base as u16 },
            Format::Packed => Position::Packed {
                avail: PackedIndex::from_bits(base as u16),
                used: PackedIndex::from_bits((base >> 16) as u16),
            },
        }
    }

    /// As the payload of GET_VRING_BASE. (No front end asks for that of an NVMe pair.)
    pub fn to_base(self) -> u32 {
        match self {
            Position::Split { last_avail } => u32::from(last_avail),
            Position::Pair { head } => u32::from(head),
            Position::Packed { avail, used } => u32::from(avail.to_bits()) | u32::from(used.to_bits()) << 16,
        }
    }
}

/// A request the driver made available: a descriptor chain, checked and pinned.
#[derive(Debug)]
pub struct Chain {
    /// What completes it: the head descriptor's index (split) or the buffer id (packed). Below the queue size.
    pub id: u16,
    /// Ring slots it takes. An indirect table takes the one that points to it.
    pub descriptors: u16,
    /// Its memory.
    pub buffer: GuestBuffer,
    /// Pieces `..readable` are device-readable, pieces `readable..` device-writable.
    pub readable: usize,
}

/// A completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Used {
    /// [`Chain::id`].
    pub id: u16,
    /// [`Chain::descriptors`].
    pub descriptors: u16,
    /// Bytes written to the device-writable part, from its start (virtio 1.3 §2.7.8, `len`). Of an NVMe command, the
    /// status field of its completion ([`nvme`](crate::nvme)).
    pub written: u32,
}

impl Chain {
    /// The completion of this chain.
    #[inline]
    pub fn used(&self, written: u32) -> Used {
        Used { id: self.id, descriptors: self.descriptors, written }
    }
}

impl QueueConfig {
    pub(crate) fn check(&self) -> Result<(), QueueError> {
        let fits = self.size >= 1
            && self.size <= MAX_SIZE
            && match self.format {
                Format::Split => self.size.is_power_of_two(),
                Format::Packed => true,
            };
        if !fits {
            return Err(QueueError::Size { size: self.size, format: self.format });
        }
        if self.max_pieces == 0 {
            return Err(QueueError::NoPieces);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_the_vring_base_form() {
        for base in [0, 1, 0x8000, 0x8000_8000, 0xffff_ffff, 0x1234_9abc] {
            assert_eq!(Position::from_base(Format::Packed, base).to_base(), base);
            assert_eq!(Position::from_base(Format::Split, base).to_base(), base & 0xffff);
        }
        assert_eq!(Position::from_base(Format::Packed, 0x8000_8000), Position::start(Format::Packed));
    }

    #[test]
    fn a_packed_index_flips_its_wrap_counter_at_the_end_of_the_ring() {
        let at = PackedIndex { index: 5, wrap: true };
        assert_eq!(at.advance(1, 7), PackedIndex { index: 6, wrap: true });
        assert_eq!(at.advance(2, 7), PackedIndex { index: 0, wrap: false });
        assert_eq!(at.advance(7, 7), PackedIndex { index: 5, wrap: false });
    }
}
