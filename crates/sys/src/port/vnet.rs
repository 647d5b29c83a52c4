//! The header that carries offloads beside a frame: `struct virtio_net_hdr_v1` (virtio 1.3 §5.1.6).

use softdpu_virtio::net_header;

/// What the kernel and virtio-net say about a frame: a checksum still to be made, a large frame still to be cut.
///
/// Byte order is the machine's, which on TAP and AF_PACKET is the kernel's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// [`NEEDS_CSUM`](Self::NEEDS_CSUM), [`DATA_VALID`](Self::DATA_VALID).
    pub flags: u8,
    /// One of `GSO_*` of [`net_header`], with [`GSO_ECN`](net_header::GSO_ECN) added.
    pub gso_type: u8,
    /// Bytes of all headers before the payload of a large frame (a hint).
    pub hdr_len: u16,
    /// Payload bytes of each frame that a large one is cut into.
    pub gso_size: u16,
    /// Where the sum begins, in bytes from the frame's start.
    pub csum_start: u16,
    /// Where the checksum goes, in bytes from `csum_start`.
    pub csum_offset: u16,
    /// Buffers the frame was spread over (for guests' receive rings; kernels write 0 or 1).
    pub num_buffers: u16,
}

impl VnetHeader {
    /// Bytes on the way to and from the kernel.
    pub const SIZE: usize = net_header::SIZE;
    /// Bytes of the legacy form, without `num_buffers`.
    pub const LEGACY_SIZE: usize = net_header::LEGACY_SIZE;
    /// The checksum covers `csum_start` to the end and is still to be finished.
    pub const NEEDS_CSUM: u8 = net_header::F_NEEDS_CSUM;
    /// The checksum was verified on reception.
    pub const DATA_VALID: u8 = net_header::F_DATA_VALID;
    /// Added to the gso type: the TCP header has ECN set.
    pub const GSO_ECN: u8 = net_header::GSO_ECN;

    /// From the kernel's bytes, in the 12 or 10 byte form; fewer bytes count as zeroes.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut all = [0; Self::SIZE];
        let known = bytes.len().min(Self::SIZE);
        all[..known].copy_from_slice(&bytes[..known]);
        let half = |at: usize| u16::from_ne_bytes([all[at], all[at + 1]]);
        VnetHeader {
            flags: all[0],
            gso_type: all[1],
            hdr_len: half(2),
            gso_size: half(4),
            csum_start: half(6),
            csum_offset: half(8),
            num_buffers: half(10),
        }
    }

    /// The kernel's bytes; the first 10 are the old form.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut all = [self.flags, self.gso_type, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        let halves = [self.hdr_len, self.gso_size, self.csum_start, self.csum_offset, self.num_buffers];
        for (index, half) in halves.into_iter().enumerate() {
            all[2 + 2 * index..4 + 2 * index].copy_from_slice(&half.to_ne_bytes());
        }
        all
    }

    /// Whether the checksum is still to be finished.
    #[inline]
    pub fn needs_csum(&self) -> bool {
        self.flags & Self::NEEDS_CSUM != 0
    }

    /// Whether a port without offloads may send the frame as it is.
    #[inline]
    pub fn is_plain(&self) -> bool {
        !self.needs_csum() && self.gso_type & !Self::GSO_ECN == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_the_specifications() {
        let header = VnetHeader {
            flags: VnetHeader::NEEDS_CSUM,
            gso_type: net_header::GSO_TCPV6 | VnetHeader::GSO_ECN,
            hdr_len: 86,
            gso_size: 1428,
            csum_start: 54,
            csum_offset: 16,
            num_buffers: 1,
        };
        let bytes = header.to_bytes();
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, [1, 0x84, 86, 0, 0x94, 5, 54, 0, 16, 0, 1, 0]);
        }
        assert_eq!(VnetHeader::from_bytes(&bytes), header);
        assert_eq!(VnetHeader::from_bytes(&bytes[..10]), VnetHeader { num_buffers: 0, ..header });
        assert!(!header.is_plain() && VnetHeader::default().is_plain());
    }
}
