//! Descriptors of virtqueues as a hostile driver writes them: any address, any length, any flags.

/// VIRTQ_DESC_F_NEXT (virtio 1.3 §2.7.5): the chain goes on.
pub const NEXT: u16 = 1;
/// VIRTQ_DESC_F_WRITE: the device may write.
pub const WRITE: u16 = 2;
/// VIRTQ_DESC_F_INDIRECT: it names a table of descriptors.
pub const INDIRECT: u16 = 4;
/// VIRTQ_DESC_F_AVAIL of packed rings (virtio 1.3 §2.8.1).
pub const AVAIL: u16 = 1 << 7;
/// VIRTQ_DESC_F_USED of packed rings.
pub const USED: u16 = 1 << 15;

/// A descriptor.
#[derive(Clone, Copy, Debug)]
pub struct Descriptor {
    /// The buffer's guest address.
    pub addr: u64,
    /// Its bytes.
    pub len: u32,
    /// [`NEXT`] and the like.
    pub flags: u16,
    /// `next` in a split ring, the buffer id in a packed one.
    pub last: u16,
}

impl Descriptor {
    /// As it lies in a split ring (virtio 1.3 §2.7.5).
    pub fn split(&self) -> [u8; 16] {
        self.bytes(self.flags, self.last)
    }

    /// As it lies in a packed ring (virtio 1.3 §2.8.13).
    pub fn packed(&self) -> [u8; 16] {
        self.bytes(self.last, self.flags)
    }

    /// Address and length come first in both; two fields of 16 bits follow.
    fn bytes(&self, third: u16, fourth: u16) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.addr.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..14].copy_from_slice(&third.to_le_bytes());
        bytes[14..].copy_from_slice(&fourth.to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_the_last_field_change_places_between_the_formats() {
        let descriptor = Descriptor { addr: 0x1122, len: 3, flags: WRITE | NEXT, last: 0x0405 };
        assert_eq!(descriptor.split(), [0x22, 0x11, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 3, 0, 5, 4]);
        assert_eq!(descriptor.packed(), [0x22, 0x11, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 5, 4, 3, 0]);
    }
}
