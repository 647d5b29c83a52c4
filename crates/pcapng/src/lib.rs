//! Capture files: pcapng (draft-ietf-opsawg-pcapng), as Wireshark, tshark and tcpdump read and write them.
//!
//! ```text
//!   Section Header │ Interface Description … │ Enhanced Packet … │ Interface Statistics …
//! ```
//!
//! Pure bytes in both directions: [`write`] appends blocks to a buffer, [`Reader`] takes bytes as they arrive and gives
//! blocks as they are complete. Files and sockets are read and written by the caller.

#![forbid(unsafe_code)]

mod options;
mod read;
#[cfg(test)]
mod tests;
pub mod write;

use std::borrow::Cow;

pub use read::{MOST_INTERFACES, ReadError, Reader};

/// Block types (§11.1).
mod kind {
    pub const SECTION: u32 = 0x0a0d_0d0a;
    pub const INTERFACE: u32 = 1;
    pub const SIMPLE_PACKET: u32 = 3;
    pub const STATISTICS: u32 = 5;
    pub const ENHANCED_PACKET: u32 = 6;
}

/// The Section Header's word by which a reader finds out the byte order (§4.1).
const BYTE_ORDER: u32 = 0x1a2b_3c4d;

/// Bytes of a block without a body: type, length, and length again.
const FRAME: usize = 12;

/// The longest block that is read, bytes. No frame of any link comes near it.
pub const LONGEST_BLOCK: usize = 16 << 20;

/// The link type of Ethernet frames (LINKTYPE_ETHERNET).
pub const ETHERNET: u16 = 1;

/// Which way a packet went, seen from the interface (`epb_flags` bits 0 and 1, §4.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// In by the interface.
    In,
    /// Out by it.
    Out,
}

/// A block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Block<'a> {
    /// Section Header: interfaces are numbered from 0 again.
    Section {
        /// The program that wrote it (`shb_userappl`).
        application: Option<Cow<'a, str>>,
    },
    /// Interface Description: the next number is its.
    Interface(Interface<'a>),
    /// Enhanced or Simple Packet.
    Packet(EnhancedPacket<'a>),
    /// Interface Statistics.
    Statistics(Statistics),
    /// One that is not known here, to be passed over.
    Other {
        /// Its type.
        kind: u32,
    },
}

/// An interface of which there are packets (§4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface<'a> {
    /// `if_name`.
    pub name: Option<Cow<'a, str>>,
    /// `if_description`.
    pub description: Option<Cow<'a, str>>,
    /// `if_filter`, as text.
    pub filter: Option<Cow<'a, str>>,
    /// What its packets begin with (LINKTYPE).
    pub link_type: u16,
    /// Bytes that are kept of a packet; 0: all.
    pub snaplen: u32,
}

/// A packet (§4.3, §4.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnhancedPacket<'a> {
    /// The number of its interface in its section.
    pub interface: u32,
    /// Nanoseconds since 1970; none in a Simple Packet. Cut off at what 64 bits hold.
    pub time: Option<u64>,
    /// Bytes that it had.
    pub original: u32,
    /// Those that were kept.
    pub bytes: Cow<'a, [u8]>,
    /// Which way it went.
    pub direction: Option<Direction>,
    /// Packets that were lost between the one before it and this one, at its interface (`epb_dropcount`).
    pub lost: Option<u64>,
    /// What there is to say of it (`opt_comment`), line by line.
    pub comments: Vec<Cow<'a, str>>,
}

/// Counts of an interface (§4.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// The number of the interface in its section.
    pub interface: u32,
    /// Packets that passed it (`isb_ifrecv`).
    pub received: Option<u64>,
    /// Those that the filter accepted (`isb_filteraccept`).
    pub accepted: Option<u64>,
    /// Those that were lost for want of room (`isb_osdrop`).
    pub lost: Option<u64>,
    /// Those that are in the file (`isb_usrdeliv`).
    pub delivered: Option<u64>,
}
