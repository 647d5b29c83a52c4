//! How a virtio-blk device is configured, and which configurations make no sense.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use super::abi::{SECTOR, request};

/// Most pieces of guest memory one request may have: what the kernel takes in one vectored call (UIO_MAXIOV).
pub(super) const MAX_PIECES: usize = 1024;

/// Descriptors of a request beside its data: header and status.
const FRAME: u32 = 2;

/// The configuration of a virtio-blk device. [`BlockConfig::new`] has the defaults; all fields may be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockConfig {
    /// Bytes; a multiple of the block size.
    pub capacity: u64,
    /// Bytes of a logical block: a power of two, 512 to 65,536. Requests that are not aligned to it are refused.
    pub block_size: u32,
    /// What a driver should know about the storage behind.
    pub topology: Topology,
    /// Refuses writes, and offers neither discard nor write-zeroes.
    pub read_only: bool,
    /// Request queues, at least 1.
    pub queues: u16,
    /// Entries of each queue: a power of two, at most 32,768.
    pub queue_size: u16,
    /// Data segments in one request, at most `queue_size` − 2.
    pub seg_max: u32,
    /// Bytes in one data segment; none: no limit.
    pub size_max: Option<u32>,
    /// What a driver reads as the device's ID.
    pub serial: Serial,
    /// Cache mode the driver finds; it may change it.
    pub write_cache: Cache,
    /// Discard requests; none: not offered.
    pub discard: Option<DiscardLimits>,
    /// Write-zeroes requests; none: not offered.
    pub write_zeroes: Option<WriteZeroesLimits>,
    /// Offers packed virtqueues.
    pub packed: bool,
}

impl BlockConfig {
    /// A writable disk of `capacity` bytes in blocks of 512: one queue of 256 entries, write-back, discard and
    /// write-zeroes, split and packed rings.
    pub fn new(capacity: u64) -> Self {
        BlockConfig {
            capacity,
            block_size: SECTOR as u32,
            topology: Topology::default(),
            read_only: false,
            queues: 1,
            queue_size: 256,
            seg_max: 254,
            size_max: None,
            serial: Serial::default(),
            write_cache: Cache::WriteBack,
            discard: Some(DiscardLimits::default()),
            write_zeroes: Some(WriteZeroesLimits::default()),
            packed: true,
        }
    }

    /// Whether it makes sense; the first thing found that does not.
    ///
    /// # Errors
    /// [`BlockConfigError`] names the field, the value and what is expected.
    pub fn check(&self) -> Result<(), BlockConfigError> {
        use BlockConfigError as E;
        let block = self.block_size;
        if !block.is_power_of_two() || !(512..=65536).contains(&block) {
            return Err(E::BlockSize(block));
        }
        check_capacity(self.capacity, block)?;
        if self.topology.physical_block_exp > 16 {
            return Err(E::PhysicalBlock(self.topology.physical_block_exp));
        }
        if self.queues == 0 {
            return Err(E::NoQueues);
        }
        if !self.queue_size.is_power_of_two() || !(4..=32768).contains(&self.queue_size) {
            return Err(E::QueueSize(self.queue_size));
        }
        let most = (u32::from(self.queue_size) - FRAME).min(MAX_PIECES as u32 - FRAME);
        if self.seg_max == 0 || self.seg_max > most {
            return Err(E::SegMax { seg_max: self.seg_max, most });
        }
        if let Some(size) = self.size_max
            && (size < block.max(4096) || !size.is_multiple_of(block))
        {
            return Err(E::SizeMax(size));
        }
        let sectors = block / SECTOR as u32;
        let whole = |limit: u32| limit != 0 && limit.is_multiple_of(sectors);
        if let Some(limits) = self.discard {
            if !whole(limits.max_sectors) {
                return Err(E::Limit { field: "discard.max_sectors", value: limits.max_sectors, sectors });
            }
            if limits.alignment_sectors == 0 {
                return Err(E::DiscardAlignment);
            }
        }
        if let Some(limits) = self.write_zeroes
            && !whole(limits.max_sectors)
        {
            return Err(E::Limit { field: "write_zeroes.max_sectors", value: limits.max_sectors, sectors });
        }
        Ok(())
    }
}

pub(super) fn check_capacity(capacity: u64, block_size: u32) -> Result<(), BlockConfigError> {
    if capacity == 0 || !capacity.is_multiple_of(u64::from(block_size)) {
        return Err(BlockConfigError::Capacity { capacity, block_size });
    }
    Ok(())
}

/// Hints about the storage behind a device (virtio 1.3 §5.2.4, `topology`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// log2 of the logical blocks in a physical block.
    pub physical_block_exp: u8,
    /// Logical blocks before the first that is aligned to a physical block.
    pub alignment_offset: u8,
    /// Smallest request that needs no read-modify-write, logical blocks; 0: no hint.
    pub min_io_blocks: u16,
    /// Best size of a request, logical blocks; 0: no hint.
    pub opt_io_blocks: u32,
}

/// Limits of discard requests. One segment a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscardLimits {
    /// Sectors (512 bytes) in a request. Never 0: Windows guests divide by it.
    pub max_sectors: u32,
    /// Alignment that really frees space, sectors; a hint to the driver, rounded up to whole blocks. Never 0.
    pub alignment_sectors: u32,
}

impl Default for DiscardLimits {
    /// 2 GiB a request, aligned to 4 KiB, the block of most file systems behind a volume.
    fn default() -> Self {
        DiscardLimits { max_sectors: 1 << 22, alignment_sectors: 8 }
    }
}

/// Limits of write-zeroes requests. One segment a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteZeroesLimits {
    /// Sectors (512 bytes) in a request. Never 0.
    pub max_sectors: u32,
    /// Whether a driver may ask that the range be deallocated.
    pub may_unmap: bool,
}

impl Default for WriteZeroesLimits {
    /// 2 GiB a request, unmap allowed.
    fn default() -> Self {
        WriteZeroesLimits { max_sectors: 1 << 22, may_unmap: true }
    }
}

/// When a completed write is durable (virtio 1.3 §5.2.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// After the next flush.
    WriteBack,
    /// At once.
    WriteThrough,
}

/// A device's ID string: at most 20 printable ASCII characters (virtio 1.3 §5.2.6).
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct Serial([u8; request::ID]);

impl Serial {
    /// The string, padded with NUL.
    pub fn bytes(&self) -> &[u8; request::ID] {
        &self.0
    }
}

impl FromStr for Serial {
    type Err = SerialError;

    fn from_str(text: &str) -> Result<Self, SerialError> {
        if text.len() > request::ID {
            return Err(SerialError::Long { text: text.to_owned(), len: text.len() });
        }
        if let Some(found) = text.chars().find(|c| !c.is_ascii_graphic() && *c != ' ') {
            return Err(SerialError::Character { text: text.to_owned(), found });
        }
        let mut bytes = [0; request::ID];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Serial(bytes))
    }
}

impl fmt::Display for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(request::ID);
        f.write_str(std::str::from_utf8(&self.0[..end]).unwrap_or_default())
    }
}

impl fmt::Debug for Serial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

/// Why a text is not a serial.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum SerialError {
    /// More than 20 characters.
    #[error("serial {text:?} has {len} bytes; virtio-blk has room for 20")]
    Long {
        /// The text.
        text: String,
        /// Its length.
        len: usize,
    },
    /// Not printable ASCII.
    #[error("serial {text:?} contains {found:?}; only printable ASCII is allowed")]
    Character {
        /// The text.
        text: String,
        /// The first character refused.
        found: char,
    },
}

/// Why a configuration makes no sense.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum BlockConfigError {
    /// The block size.
    #[error("block size {0} is not a power of two from 512 to 65536")]
    BlockSize(u32),
    /// The capacity.
    #[error("capacity {capacity} is not a positive multiple of the block size {block_size}")]
    Capacity {
        /// Bytes asked for.
        capacity: u64,
        /// Bytes of a block.
        block_size: u32,
    },
    /// The physical block.
    #[error("physical block exponent {0} is larger than 16")]
    PhysicalBlock(u8),
    /// No queue.
    #[error("0 queues configured; a device needs at least 1")]
    NoQueues,
    /// The queue size.
    #[error("queue size {0} is not a power of two from 4 to 32768")]
    QueueSize(u16),
    /// The segment count.
    #[error("seg_max {seg_max} is not from 1 to {most} (the queue size less header and status, at most 1022)")]
    SegMax {
        /// Asked for.
        seg_max: u32,
        /// Largest possible.
        most: u32,
    },
    /// The segment size.
    #[error("size_max {0} is not a multiple of the block size of at least 4096")]
    SizeMax(u32),
    /// An alignment that divides by zero.
    #[error("discard.alignment_sectors is 0; 1 means that any range frees space")]
    DiscardAlignment,
    /// A limit of discard or write-zeroes.
    #[error("{field} is {value}; it must be a positive multiple of the block size ({sectors} sectors)")]
    Limit {
        /// Which one.
        field: &'static str,
        /// Its value.
        value: u32,
        /// Sectors in a block.
        sectors: u32,
    },
}
