//! From a descriptor chain to a typed request and back (virtio 1.3 §5.2.6).
//!
//! ```text
//!  device-readable             device-writable
//!  header (16) | data of OUT   data of IN | status (1)
//!              ▲                          ▲
//!              └─ made piece boundaries ──┘   wherever the driver cut its descriptors (§2.7.4)
//! ```
//!
//! Drivers cut at those two places of their own accord, so the ordinary request needs no splitting.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use softdpu_memory::{GuestBuffer, View};
use softdpu_virtio::BlockOp;
use thiserror::Error;

use super::abi::{SECTOR, feature, request};
use super::config::MAX_PIECES;
use super::device::Shared;
use super::{BlockConfig, Serial};

/// Where the data of a read or write begins in its buffer: behind the header.
pub const DATA_OFFSET: u64 = request::HEADER as u64;

/// Most bytes of one read or write: what the kernel moves in one call (MAX_RW_COUNT). A used length counts them in 32
/// bits.
const MAX_TRANSFER: u64 = 0x7fff_f000;

/// How a request ended (§5.2.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// VIRTIO_BLK_S_OK.
    Ok = 0,
    /// VIRTIO_BLK_S_IOERR: device or driver error.
    IoErr = 1,
    /// VIRTIO_BLK_S_UNSUPP: the device has no such request.
    Unsupp = 2,
}

/// A checked request: inside the capacity, aligned to the block size, its data in the right direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Io {
    /// What to do.
    pub op: BlockOp,
    /// First byte on the volume; 0 for a flush.
    pub offset: u64,
    /// Bytes on the volume; 0 for a flush, never 0 otherwise.
    pub len: u64,
    /// Pieces of the buffer with the data of a read or write, together `len` bytes from [`DATA_OFFSET`]; otherwise
    /// empty.
    pub data: Range<usize>,
    /// Must be durable before it completes: a write (or discard, or write-zeroes) on a write-through device.
    pub durable: bool,
}

impl Io {
    /// Bytes that success writes to the guest beside the status: pass it to [`finish`].
    #[inline]
    pub fn to_guest(&self) -> u32 {
        // Fits: reads are at most MAX_TRANSFER long.
        if self.op == BlockOp::Read { self.len as u32 } else { 0 }
    }

    /// [`finish`] for this request.
    #[inline]
    pub fn finish(&self, buffer: &GuestBuffer, status: Status) -> u32 {
        finish(buffer, self.to_guest(), status)
    }
}

/// What became of a descriptor chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Work for the storage; [`finish`] it afterwards.
    Io(Io),
    /// Answered: the status is written, complete the chain with used length `written`.
    Finished {
        /// The answer.
        status: Status,
        /// Bytes written to the guest, status included.
        written: u32,
    },
    /// No answer is possible: break the queue.
    Broken(BlockError),
}

/// A chain that cannot be answered.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BlockError {
    /// No device-writable byte.
    #[error("a request of {len} bytes has no device-writable byte for its status (virtio 1.3 §5.2.6)")]
    NoStatus {
        /// Bytes in the chain.
        len: u64,
    },
}

/// Writes the status byte: the last of the chain. Returns the used length: the status and, on success, the `to_guest`
/// bytes before it.
#[inline]
pub fn finish(buffer: &GuestBuffer, to_guest: u32, status: Status) -> u32 {
    let last = buffer.len().wrapping_sub(1);
    // An empty buffer was refused by `parse`; for any other, the last byte is there.
    let written = buffer.write_at(last, &[status as u8]);
    debug_assert!(written.is_ok(), "a parsed request has a status byte");
    if status == Status::Ok { to_guest + 1 } else { 1 }
}

/// Reports to the bitmaps of `current` what a request may have written to its guest: `to_guest` bytes of data and the
/// status. Give it [`Io::to_guest`] after a failure too, as part of the data may have arrived; for a
/// [`Parsed::Finished`], one less than `written`.
pub fn mark_dirty(buffer: &GuestBuffer, current: &View, to_guest: u32) {
    buffer.mark_dirty_in(current, DATA_OFFSET, u64::from(to_guest));
    buffer.mark_dirty_in(current, buffer.len().wrapping_sub(1), 1);
}

/// The request parser of one queue. Cheap to make and to clone; holds what the driver negotiated.
#[derive(Clone, Debug)]
pub struct Requests {
    shared: Arc<Shared>,
    /// Bits of offset and length that must be clear.
    unaligned: u64,
    seg_max: usize,
    size_max: u64,
    read_only: bool,
    /// Writes are durable whatever `writeback` says.
    durable: bool,
    flush: bool,
    /// Sectors; none: not negotiated.
    discard: Option<u32>,
    /// Sectors and whether unmap means anything; none: not negotiated.
    write_zeroes: Option<(u32, bool)>,
    serial: Serial,
}

impl Requests {
    pub(super) fn new(config: &BlockConfig, shared: Arc<Shared>, negotiated: u64) -> Self {
        let has = |bit: u64| negotiated & bit != 0;
        Requests {
            shared,
            unaligned: u64::from(config.block_size) - 1,
            // A driver that did not look at a limit cannot be held to it; a chain never has more descriptors than its
            // queue.
            seg_max: if has(feature::SEG_MAX) { config.seg_max as usize } else { config.queue_size.into() },
            size_max: config.size_max.filter(|_| has(feature::SIZE_MAX)).map_or(u64::MAX, u64::from),
            // Whether the driver accepted RO or not (§5.2.6.2: "if offered").
            read_only: config.read_only,
            // A driver that cannot flush has no other way to durable writes (§5.2.6.2, case 1).
            durable: !has(feature::FLUSH),
            flush: has(feature::FLUSH),
            discard: config.discard.filter(|_| has(feature::DISCARD)).map(|limits| limits.max_sectors),
            write_zeroes: config
                .write_zeroes
                .filter(|_| has(feature::WRITE_ZEROES))
                .map(|limits| (limits.max_sectors, limits.may_unmap)),
            serial: config.serial,
        }
    }

    /// Understands a chain. Its pieces `[..readable]` are device-readable, the rest device-writable.
    ///
    /// Pieces may be split; afterwards the header ends and the status begins at a piece boundary.
    #[inline]
    pub fn parse(&self, buffer: &mut GuestBuffer, readable: usize) -> Parsed {
        let pieces = buffer.pieces();
        if readable >= 1
            && readable < pieces
            && buffer.len_of(0..1) == DATA_OFFSET
            && buffer.len_of(pieces - 1..pieces) == 1
        {
            return self.framed(buffer, 1, readable);
        }
        self.any_framing(buffer, readable)
    }

    /// Makes the two boundaries.
    #[cold]
    fn any_framing(&self, buffer: &mut GuestBuffer, readable: usize) -> Parsed {
        let before = buffer.pieces();
        let len = buffer.len();
        if readable >= before {
            return Parsed::Broken(BlockError::NoStatus { len });
        }
        // The last byte is writable: pieces are never empty, and the last is not readable.
        if buffer.split(len - 1).is_err() {
            return Parsed::Broken(BlockError::NoStatus { len });
        }
        if buffer.len_of(0..readable) < DATA_OFFSET {
            return answer(buffer, Status::IoErr);
        }
        let before = buffer.pieces();
        let Ok(header) = buffer.split(DATA_OFFSET) else {
            return answer(buffer, Status::IoErr);
        };
        self.framed(buffer, header, readable + (buffer.pieces() - before))
    }

    /// A buffer with the pieces `..header`, all readable, as its header, and the last piece as its status byte.
    #[inline]
    fn framed(&self, buffer: &GuestBuffer, header: usize, readable: usize) -> Parsed {
        let mut bytes = [0; request::HEADER];
        if buffer.read_at(0, &mut bytes).is_err() {
            return answer(buffer, Status::IoErr);
        }
        let (kind, sector) = (le32(&bytes, 0), le64(&bytes, 8));
        let last = buffer.pieces() - 1;
        // Pieces with data the driver gives, and pieces for data it wants.
        let (given, wanted) = (header..readable, readable..last);
        let parsed = match kind {
            request::IN if given.is_empty() => self.transfer(buffer, wanted, BlockOp::Read, sector),
            request::OUT if self.read_only => Err(Status::IoErr),
            request::OUT if wanted.is_empty() => self.transfer(buffer, given, BlockOp::Write, sector),
            request::FLUSH if self.flush => {
                Ok(Io { op: BlockOp::Flush, offset: 0, len: 0, data: 0..0, durable: false })
            }
            request::GET_ID if given.is_empty() => return self.get_id(buffer, wanted),
            request::DISCARD if self.discard.is_some() && wanted.is_empty() => self.discard(buffer, given),
            request::WRITE_ZEROES if self.write_zeroes.is_some() && wanted.is_empty() => {
                self.write_zeroes(buffer, given)
            }
            // Data in the wrong direction for its type.
            request::IN | request::OUT | request::GET_ID => Err(Status::IoErr),
            request::DISCARD if self.discard.is_some() => Err(Status::IoErr),
            request::WRITE_ZEROES if self.write_zeroes.is_some() => Err(Status::IoErr),
            _ => Err(Status::Unsupp),
        };
        match parsed {
            Ok(io) => Parsed::Io(io),
            Err(status) => answer(buffer, status),
        }
    }

    #[inline]
    fn transfer(&self, buffer: &GuestBuffer, data: Range<usize>, op: BlockOp, sector: u64) -> Result<Io, Status> {
        let len = buffer.len_of(data.clone());
        if data.len() > 1 || self.size_max != u64::MAX {
            self.segments(buffer, data.clone())?;
        }
        if len > MAX_TRANSFER {
            return Err(Status::IoErr);
        }
        let offset = self.range(sector, len)?;
        Ok(Io { op, offset, len, data, durable: op == BlockOp::Write && self.is_durable() })
    }

    /// Checks the limits that `seg_max` and `size_max` promise.
    fn segments(&self, buffer: &GuestBuffer, data: Range<usize>) -> Result<(), Status> {
        // A segment that crosses from one memory region into the next is two pieces.
        let crossings = buffer.view().regions().len().saturating_sub(1);
        if data.len() > (self.seg_max + crossings).min(MAX_PIECES) {
            return Err(Status::IoErr);
        }
        if data.into_iter().any(|piece| buffer.len_of(piece..piece + 1) > self.size_max) {
            return Err(Status::IoErr);
        }
        Ok(())
    }

    /// The byte offset of `len` bytes from `sector`, if they are whole blocks inside the capacity. Nothing to do,
    /// inside the capacity, is done: `Err(Status::Ok)`.
    #[inline]
    fn range(&self, sector: u64, len: u64) -> Result<u64, Status> {
        // Acquire: pairs with `grow`; the volume was made larger before it.
        let capacity = self.shared.capacity.load(Ordering::Acquire);
        let offset = sector.checked_mul(SECTOR).ok_or(Status::IoErr)?;
        if offset > capacity || len > capacity - offset || (offset | len) & self.unaligned != 0 {
            return Err(Status::IoErr);
        }
        if len == 0 { Err(Status::Ok) } else { Ok(offset) }
    }

    #[inline]
    fn is_durable(&self) -> bool {
        self.durable || !self.shared.writeback.load(Ordering::Acquire)
    }

    fn discard(&self, buffer: &GuestBuffer, data: Range<usize>) -> Result<Io, Status> {
        let (sector, sectors, flags) = segment(buffer, data)?;
        // §5.2.6.2: any flag, unmap included.
        if flags != 0 {
            return Err(Status::Unsupp);
        }
        self.extent(BlockOp::Discard, sector, sectors, self.discard.unwrap_or(0))
    }

    fn write_zeroes(&self, buffer: &GuestBuffer, data: Range<usize>) -> Result<Io, Status> {
        let (sector, sectors, flags) = segment(buffer, data)?;
        if flags & !request::SEGMENT_UNMAP != 0 {
            return Err(Status::Unsupp);
        }
        let (most, may_unmap) = self.write_zeroes.unwrap_or((0, false));
        // Unmap is a permission: a device that cannot deallocate writes the zeroes all the same (§5.2.6.2).
        let unmap = flags & request::SEGMENT_UNMAP != 0 && may_unmap;
        self.extent(BlockOp::WriteZeroes { unmap }, sector, sectors, most)
    }

    fn extent(&self, op: BlockOp, sector: u64, sectors: u32, most: u32) -> Result<Io, Status> {
        if sectors > most {
            return Err(Status::IoErr);
        }
        let len = u64::from(sectors) * SECTOR;
        let offset = self.range(sector, len)?;
        Ok(Io { op, offset, len, data: 0..0, durable: self.is_durable() })
    }

    fn get_id(&self, buffer: &GuestBuffer, data: Range<usize>) -> Parsed {
        if buffer.len_of(data) < request::ID as u64 || buffer.write_at(DATA_OFFSET, self.serial.bytes()).is_err() {
            return answer(buffer, Status::IoErr);
        }
        Parsed::Finished { status: Status::Ok, written: finish(buffer, request::ID as u32, Status::Ok) }
    }
}

/// The one segment of a discard or write-zeroes request: sector, sectors, flags.
fn segment(buffer: &GuestBuffer, data: Range<usize>) -> Result<(u64, u32, u32), Status> {
    // One is the most we advertise; none, a part of one and several are all driver errors.
    if buffer.len_of(data) != request::SEGMENT as u64 {
        return Err(Status::IoErr);
    }
    let mut bytes = [0; request::SEGMENT];
    buffer.read_at(DATA_OFFSET, &mut bytes).map_err(|_| Status::IoErr)?;
    Ok((le64(&bytes, 0), le32(&bytes, 8), le32(&bytes, 12)))
}

fn answer(buffer: &GuestBuffer, status: Status) -> Parsed {
    Parsed::Finished { status, written: finish(buffer, 0, status) }
}

#[inline(always)]
fn le32(bytes: &[u8; 16], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

#[inline(always)]
fn le64(bytes: &[u8; 16], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}
