//! What follows a block's fixed fields: a list of code, length and value (§3.5).

use std::borrow::Cow;

/// Ends the list.
pub(super) const END: u16 = 0;
/// A line for people.
pub(super) const COMMENT: u16 = 1;

/// Of the Section Header.
pub(super) mod section {
    pub const APPLICATION: u16 = 4;
}

/// Of the Interface Description.
pub(super) mod interface {
    pub const NAME: u16 = 2;
    pub const DESCRIPTION: u16 = 3;
    pub const RESOLUTION: u16 = 9;
    pub const FILTER: u16 = 11;
    pub const OFFSET: u16 = 14;
}

/// Of the Enhanced Packet.
pub(super) mod packet {
    pub const FLAGS: u16 = 2;
    pub const LOST: u16 = 4;
    /// The lower two bits of the flags.
    pub const DIRECTION: u32 = 3;
    pub const IN: u32 = 1;
    pub const OUT: u32 = 2;
}

/// Of the Interface Statistics.
pub(super) mod statistics {
    pub const RECEIVED: u16 = 4;
    pub const ACCEPTED: u16 = 6;
    pub const LOST: u16 = 7;
    pub const DELIVERED: u16 = 8;
}

/// The byte order of a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
    pub(super) fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Order::Little => u16::from_le_bytes(bytes),
            Order::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(super) fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Order::Little => u32::from_le_bytes(bytes),
            Order::Big => u32::from_be_bytes(bytes),
        }
    }

    pub(super) fn u64(self, bytes: [u8; 8]) -> u64 {
        match self {
            Order::Little => u64::from_le_bytes(bytes),
            Order::Big => u64::from_be_bytes(bytes),
        }
    }
}

/// The options of a block. One that goes on behind the block ends the list: what was there is lost, the block is not.
pub(super) struct Options<'a> {
    pub bytes: &'a [u8],
    pub order: Order,
}

impl<'a> Iterator for Options<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<(u16, &'a [u8])> {
        let (header, rest) = self.bytes.split_first_chunk::<4>()?;
        let [c0, c1, l0, l1] = *header;
        let (code, len) = (self.order.u16([c0, c1]), usize::from(self.order.u16([l0, l1])));
        let value = rest.get(..len)?;
        // The last option's padding may be missing.
        self.bytes = rest.get(len.next_multiple_of(4)..).unwrap_or_default();
        (code != END).then_some((code, value))
    }
}

pub(super) fn text(value: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(value)
}
