//! Bytes in, blocks out. Whatever the bytes are: a block, an error, or "more".

use std::borrow::Cow;

use thiserror::Error;

use crate::options::{COMMENT, Options, Order, interface, packet, section, statistics, text};
use crate::{BYTE_ORDER, Block, Direction, EnhancedPacket, FRAME, Interface, LONGEST_BLOCK, Statistics, kind};

/// The most interfaces of a section.
pub const MOST_INTERFACES: usize = 1 << 16;

/// The file formats before pcapng, either byte order, micro- and nanoseconds.
const OLD_FORMATS: [[u8; 4]; 4] =
    [[0xd4, 0xc3, 0xb2, 0xa1], [0xa1, 0xb2, 0xc3, 0xd4], [0x4d, 0x3c, 0xb2, 0xa1], [0xa1, 0xb2, 0x3c, 0x4d]];

/// Why the bytes are no capture file, or no longer. There is no way back into step.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// It is of the older format.
    #[error("this is a pcap file, not pcapng: convert it with `editcap -F pcapng OLD NEW`")]
    OldFormat,
    /// It does not begin with a Section Header.
    #[error("this is no pcapng file: it does not begin with a section header")]
    NoSection,
    /// The major version is another.
    #[error("byte {at}: version {major} of pcapng is not known, only version 1")]
    Version {
        /// Where the block begins, bytes from the start.
        at: u64,
        /// The version.
        major: u16,
    },
    /// A block's length cannot be.
    #[error("byte {at}: a block of {len} bytes, which is no multiple of 4 from {FRAME} to {LONGEST_BLOCK}")]
    Length {
        /// Where the block begins, bytes from the start.
        at: u64,
        /// Its length.
        len: u32,
    },
    /// The two lengths of a block differ, or its body is shorter than its fields.
    #[error("byte {at}: a block of type {kind:#x} contradicts itself: the file is damaged")]
    Damaged {
        /// Where the block begins, bytes from the start.
        at: u64,
        /// Its type.
        kind: u32,
    },
    /// A packet of an interface that was not described.
    #[error("byte {at}: a packet of interface {interface}, which the section does not describe")]
    NoInterface {
        /// Where the block begins, bytes from the start.
        at: u64,
        /// The interface.
        interface: u32,
    },
    /// A section has too many interfaces.
    #[error("byte {at}: a section with more than {MOST_INTERFACES} interfaces")]
    Interfaces {
        /// Where the block begins, bytes from the start.
        at: u64,
    },
}

/// What its Interface Description says of the packets of an interface.
#[derive(Clone, Copy, Debug)]
struct InterfaceOptions {
    snaplen: u32,
    /// `if_tsresol`.
    resolution: u8,
    /// `if_tsoffset`, seconds.
    offset: i64,
}

/// Reads capture files of both byte orders. Holds one block and what was pushed last.
#[derive(Debug, Default)]
pub struct Reader {
    bytes: Vec<u8>,
    /// How much of them was given out.
    taken: usize,
    /// Where `bytes` begins, from the start of the file.
    at: u64,
    order: Option<Order>,
    interfaces: Vec<InterfaceOptions>,
}

impl Reader {
    /// One that has read nothing.
    pub fn new() -> Reader {
        Reader::default()
    }

    /// Takes what was read.
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.taken);
        self.at += self.taken as u64;
        self.taken = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// Whether everything that was pushed was given out: a file that ends elsewhere was cut off.
    pub fn is_between_blocks(&self) -> bool {
        self.taken == self.bytes.len()
    }

    /// The next whole block and the bytes that it is; none before more is pushed.
    ///
    /// # Errors
    /// [`ReadError`], after which nothing more can be read.
    pub fn next_block(&mut self) -> Result<Option<(&[u8], Block<'_>)>, ReadError> {
        let at = self.at + self.taken as u64;
        let rest = &self.bytes[self.taken..];
        let Some((head, _)) = rest.split_first_chunk::<FRAME>() else { return Ok(None) };
        let [k0, k1, k2, k3, l0, l1, l2, l3, m0, m1, m2, m3] = *head;
        // The type of a Section Header is the same in both orders; what follows tells which it is.
        let is_section = u32::from_le_bytes([k0, k1, k2, k3]) == kind::SECTION;
        let order = match (is_section, self.order) {
            (true, _) => match u32::from_le_bytes([m0, m1, m2, m3]) {
                BYTE_ORDER => Order::Little,
                word if word.swap_bytes() == BYTE_ORDER => Order::Big,
                _ => return Err(ReadError::NoSection),
            },
            (false, Some(order)) => order,
            (false, None) if OLD_FORMATS.contains(&[k0, k1, k2, k3]) => return Err(ReadError::OldFormat),
            (false, None) => return Err(ReadError::NoSection),
        };
        let (kind, len) = (order.u32([k0, k1, k2, k3]), order.u32([l0, l1, l2, l3]));
        let size = len as usize;
        if !(FRAME..=LONGEST_BLOCK).contains(&size) || !size.is_multiple_of(4) {
            return Err(ReadError::Length { at, len });
        }
        if rest.len() < size {
            return Ok(None);
        }
        let start = self.taken;
        self.taken += size;
        let damaged = ReadError::Damaged { at, kind };
        let raw = &self.bytes[start..start + size];
        let (body, trailer) = raw[8..].split_last_chunk::<4>().ok_or(damaged.clone())?;
        if order.u32(*trailer) != len {
            return Err(damaged);
        }
        let mut fields = Fields { bytes: body, order };
        if is_section {
            let major = fields.section().ok_or(damaged)?;
            if major != 1 {
                return Err(ReadError::Version { at, major });
            }
            self.order = Some(order);
            self.interfaces.clear();
            let application = fields.options().find(|(code, _)| *code == section::APPLICATION);
            return Ok(Some((raw, Block::Section { application: application.map(|(_, value)| text(value)) })));
        }
        let block = match kind {
            kind::INTERFACE => {
                let (described, options) = fields.interface().ok_or(damaged)?;
                if self.interfaces.len() == MOST_INTERFACES {
                    return Err(ReadError::Interfaces { at });
                }
                self.interfaces.push(options);
                Block::Interface(described)
            }
            kind::ENHANCED_PACKET => {
                let (mut found, ticks) = fields.packet().ok_or(damaged)?;
                let interface = found.interface;
                let options = self.interfaces.get(interface as usize);
                let options = options.ok_or(ReadError::NoInterface { at, interface })?;
                found.time = Some(options.time(ticks));
                Block::Packet(found)
            }
            kind::SIMPLE_PACKET => {
                let options = self.interfaces.first().ok_or(ReadError::NoInterface { at, interface: 0 })?;
                Block::Packet(fields.simple(options.snaplen).ok_or(damaged)?)
            }
            kind::STATISTICS => Block::Statistics(fields.statistics().ok_or(damaged)?),
            kind => Block::Other { kind },
        };
        Ok(Some((raw, block)))
    }
}

impl InterfaceOptions {
    /// Nanoseconds since 1970 of a time in the interface's units (§4.2, `if_tsresol`, `if_tsoffset`).
    fn time(self, ticks: u64) -> u64 {
        const SECOND: u128 = 1_000_000_000;
        /// The highest bit: the others are a power of 2 and not of 10.
        const BINARY: u8 = 0x80;
        let (ticks, power) = (u128::from(ticks), u32::from(self.resolution & !BINARY));
        let since = if self.resolution & BINARY != 0 {
            // 2^64 ticks times 10^9 are below 2^94.
            (ticks * SECOND).checked_shr(power).unwrap_or(0)
        } else {
            match 10u128.checked_pow(power) {
                Some(rate) => ticks * SECOND / rate,
                None => 0,
            }
        };
        let offset = i128::from(self.offset) * SECOND as i128;
        u64::try_from((since as i128).saturating_add(offset).max(0)).unwrap_or(u64::MAX)
    }
}

/// A block's body, field after field.
struct Fields<'a> {
    bytes: &'a [u8],
    order: Order,
}

impl<'a> Fields<'a> {
    fn u16(&mut self) -> Option<u16> {
        let (field, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(self.order.u16(*field))
    }

    fn u32(&mut self) -> Option<u32> {
        let (field, rest) = self.bytes.split_first_chunk()?;
        self.bytes = rest;
        Some(self.order.u32(*field))
    }

    /// `len` bytes and their padding.
    fn data(&mut self, len: usize) -> Option<&'a [u8]> {
        let data = self.bytes.get(..len)?;
        self.bytes = self.bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(data)
    }

    fn options(&self) -> Options<'a> {
        Options { bytes: self.bytes, order: self.order }
    }

    /// A Section Header's major version.
    fn section(&mut self) -> Option<u16> {
        let _byte_order = self.u32()?;
        let (major, _minor) = (self.u16()?, self.u16()?);
        // Its length: blocks say by themselves where they end.
        self.data(8)?;
        Some(major)
    }

    fn interface(&mut self) -> Option<(Interface<'a>, InterfaceOptions)> {
        let (link_type, _reserved, snaplen) = (self.u16()?, self.u16()?, self.u32()?);
        let mut found = Interface { name: None, description: None, filter: None, link_type, snaplen };
        // Without the option: microseconds.
        let mut options = InterfaceOptions { snaplen, resolution: 6, offset: 0 };
        for (code, value) in self.options() {
            match (code, value) {
                (interface::NAME, name) => found.name = Some(text(name)),
                (interface::DESCRIPTION, description) => found.description = Some(text(description)),
                (interface::FILTER, [0, filter @ ..]) => found.filter = Some(text(filter)),
                (interface::RESOLUTION, [resolution]) => options.resolution = *resolution,
                (interface::OFFSET, offset) => options.offset = self.number(offset).unwrap_or(0) as i64,
                _ => {}
            }
        }
        Some((found, options))
    }

    /// An Enhanced Packet without its time, and that in the interface's units.
    fn packet(&mut self) -> Option<(EnhancedPacket<'a>, u64)> {
        let (interface, high, low) = (self.u32()?, self.u32()?, self.u32()?);
        let (captured, original) = (self.u32()?, self.u32()?);
        let bytes = self.data(captured as usize)?;
        let mut found = EnhancedPacket {
            interface,
            time: None,
            original,
            bytes: Cow::Borrowed(bytes),
            direction: None,
            lost: None,
            comments: Vec::new(),
        };
        for (code, value) in self.options() {
            match code {
                COMMENT => found.comments.push(text(value)),
                packet::FLAGS => {
                    let flags = value.try_into().map_or(0, |flags| self.order.u32(flags));
                    found.direction = match flags & packet::DIRECTION {
                        packet::IN => Some(Direction::In),
                        packet::OUT => Some(Direction::Out),
                        _ => None,
                    };
                }
                packet::LOST => found.lost = self.number(value),
                _ => {}
            }
        }
        Some((found, u64::from(high) << 32 | u64::from(low)))
    }

    fn simple(&mut self, snaplen: u32) -> Option<EnhancedPacket<'a>> {
        let original = self.u32()?;
        let captured = if snaplen == 0 { original } else { original.min(snaplen) };
        let bytes = Cow::Borrowed(self.data(captured as usize)?);
        let (direction, lost) = (None, None);
        Some(EnhancedPacket { interface: 0, time: None, original, bytes, direction, lost, comments: Vec::new() })
    }

    fn statistics(&mut self) -> Option<Statistics> {
        let mut found = Statistics { interface: self.u32()?, ..Statistics::default() };
        let _time = (self.u32()?, self.u32()?);
        for (code, value) in self.options() {
            match code {
                statistics::RECEIVED => found.received = self.number(value),
                statistics::ACCEPTED => found.accepted = self.number(value),
                statistics::LOST => found.lost = self.number(value),
                statistics::DELIVERED => found.delivered = self.number(value),
                _ => {}
            }
        }
        Some(found)
    }

    /// An option's value of 64 bits.
    fn number(&self, value: &[u8]) -> Option<u64> {
        value.try_into().ok().map(|value| self.order.u64(value))
    }
}
