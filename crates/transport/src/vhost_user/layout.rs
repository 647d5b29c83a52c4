//! Sizes and positions that follow from the format of a ring.

use serde::{Deserialize, Serialize};

use super::features::F_RING_PACKED;

/// Split or packed (virtio 1.3 §2.7, §2.8).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RingFormat {
    /// Descriptor table, available ring, used ring.
    Split,
    /// One descriptor ring and two event suppression structures.
    Packed,
}

impl RingFormat {
    /// The format that `features` select.
    pub fn of(features: u64) -> Self {
        if features & F_RING_PACKED != 0 { RingFormat::Packed } else { RingFormat::Split }
    }

    /// Bytes and alignment of the three parts of a ring with `size` entries.
    pub fn layout(self, size: u16) -> RingLayout {
        let size = u64::from(size);
        match self {
            // virtio 1.3 §2.7: 16 n, 6 + 2 n and 6 + 8 n bytes, aligned to 16, 2 and 4. The two bytes of the event
            // index are counted whether VIRTIO_F_EVENT_IDX is negotiated or not, as the specification's table does.
            RingFormat::Split => {
                RingLayout { descriptor: (16 * size, 16), driver: (6 + 2 * size, 2), device: (6 + 8 * size, 4) }
            }
            // virtio 1.3 §2.8.10: 16 n, 4 and 4 bytes, aligned to 16, 4 and 4.
            RingFormat::Packed => RingLayout { descriptor: (16 * size, 16), driver: (4, 4), device: (4, 4) },
        }
    }

    /// The position of a ring nothing has been taken from.
    pub fn initial_base(self) -> VringBase {
        match self {
            RingFormat::Split => VringBase::Split { next_available: 0 },
            RingFormat::Packed => {
                VringBase::Packed { next_available: 0, available_wrap: true, next_used: 0, used_wrap: true }
            }
        }
    }
}

/// Bytes and alignment of the parts of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Descriptor table or descriptor ring: bytes, alignment.
    pub descriptor: (u64, u64),
    /// Available ring or driver event suppression: bytes, alignment.
    pub driver: (u64, u64),
    /// Used ring or device event suppression: bytes, alignment.
    pub device: (u64, u64),
}

/// The position of a ring (vhost-user: Vring descriptor index for split virtqueues, indices for packed
/// virtqueues).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VringBase {
    /// A split ring. The used index is in the ring itself.
    Split {
        /// The next available entry, free running.
        next_available: u16,
    },
    /// A packed ring.
    Packed {
        /// Slot of the next descriptor to take, below the ring's size.
        next_available: u16,
        /// The driver ring's wrap counter.
        available_wrap: bool,
        /// Slot of the next descriptor to return, below the ring's size.
        next_used: u16,
        /// The device ring's wrap counter.
        used_wrap: bool,
    },
}

impl VringBase {
    /// From the number in SET_VRING_BASE.
    pub fn from_wire(format: RingFormat, number: u32) -> Self {
        match format {
            RingFormat::Split => VringBase::Split { next_available: number as u16 },
            RingFormat::Packed => VringBase::Packed {
                next_available: (number & 0x7fff) as u16,
                available_wrap: number & 1 << 15 != 0,
                next_used: (number >> 16 & 0x7fff) as u16,
                used_wrap: number & 1 << 31 != 0,
            },
        }
    }

    /// The number in the reply to GET_VRING_BASE.
    pub fn to_wire(self) -> u32 {
        match self {
            VringBase::Split { next_available } => next_available.into(),
            VringBase::Packed { next_available, available_wrap, next_used, used_wrap } => {
                u32::from(next_available & 0x7fff)
                    | u32::from(available_wrap) << 15
                    | u32::from(next_used & 0x7fff) << 16
                    | u32::from(used_wrap) << 31
            }
        }
    }

    /// The format the position belongs to.
    pub fn format(self) -> RingFormat {
        match self {
            VringBase::Split { .. } => RingFormat::Split,
            VringBase::Packed { .. } => RingFormat::Packed,
        }
    }

    /// Whether this is the number 0 for a packed ring, which means one of two things: after one whole lap both wrap
    /// counters are 0; but front ends that know only split rings (the `virtio-driver` crate and so libblkio) send 0 for
    /// a fresh ring, too. The first descriptor tells them apart: its USED flag is 0 in a fresh ring, whether it was
    /// made available or not, and 1 after a lap (virtio 1.3 §2.8.1).
    pub fn may_be_fresh(self) -> bool {
        self.format() == RingFormat::Packed && self.to_wire() == 0
    }
}

/// How one queue's part of an in-flight region is laid out (vhost-user: Inflight I/O tracking).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightLayout {
    /// Bytes before the first record: the fixed fields of QueueRegionSplit or QueueRegionPacked.
    pub header: u64,
    /// Bytes of a record, DescStateSplit or DescStatePacked.
    pub record: u64,
    /// Bytes of the queue's region: header and records rounded up to a multiple of 64.
    pub bytes: u64,
}

/// Queue regions start at multiples of this. The specification leaves it open; libvhost-user and DPDK use 64 and
/// compute the same sizes as [`inflight_layout`], so that a region made by one of them can be handed to this back end.
pub const INFLIGHT_ALIGN: u64 = 64;

/// The layout of one queue's in-flight region for rings of `queue_size` entries. At most 1 MiB + 64 bytes.
pub fn inflight_layout(format: RingFormat, queue_size: u16) -> InflightLayout {
    let (header, record) = match format {
        // features u64, version, desc_num, last_batch_head, used_idx u16; 16 bytes a descriptor.
        RingFormat::Split => (16, 16),
        // features u64, six u16, nine u8, padded to the records' alignment of 8; 32 bytes a descriptor.
        RingFormat::Packed => (32, 32),
    };
    let bytes = (header + record * u64::from(queue_size)).next_multiple_of(INFLIGHT_ALIGN);
    InflightLayout { header, record, bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ring_parts_have_the_sizes_of_the_specifications_table() {
        let split = RingFormat::Split.layout(256);
        assert_eq!((split.descriptor, split.driver, split.device), ((4096, 16), (518, 2), (2054, 4)));
        let packed = RingFormat::Packed.layout(256);
        assert_eq!((packed.descriptor, packed.driver, packed.device), ((4096, 16), (4, 4), (4, 4)));
    }

    #[test]
    fn a_base_survives_the_wire() {
        for number in [0, 1, 0x7fff, 0x8000, 0x8000_8000, 0x8003_0007, 0xffff_ffff] {
            assert_eq!(VringBase::from_wire(RingFormat::Packed, number).to_wire(), number);
            assert_eq!(VringBase::from_wire(RingFormat::Split, number).to_wire(), number & 0xffff);
        }
        assert_eq!(RingFormat::Packed.initial_base().to_wire(), 0x8000_8000);
        assert_eq!(RingFormat::Split.initial_base().to_wire(), 0);
        assert!(VringBase::from_wire(RingFormat::Packed, 0).may_be_fresh());
        assert!(!VringBase::from_wire(RingFormat::Packed, 0x8000).may_be_fresh());
        assert!(!VringBase::from_wire(RingFormat::Split, 0).may_be_fresh());
    }

    #[test]
    fn inflight_regions_have_the_size_that_libvhost_user_and_dpdk_compute() {
        assert_eq!(inflight_layout(RingFormat::Split, 128).bytes, 2112);
        assert_eq!(inflight_layout(RingFormat::Split, 256).bytes, 4160);
        assert_eq!(inflight_layout(RingFormat::Split, 1).bytes, 64);
        assert_eq!(inflight_layout(RingFormat::Packed, 128).bytes, 4160);
        assert_eq!(inflight_layout(RingFormat::Packed, 1).bytes, 64);
        assert_eq!(inflight_layout(RingFormat::Packed, 32768).bytes, 1 << 20 | 64);
    }
}
