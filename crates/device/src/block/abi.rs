//! Numbers of the virtio-blk interface, with the section of virtio 1.3 that gives them.

/// Bytes in a sector, the unit of all addresses in the protocol whatever the block size (§5.2.4).
pub const SECTOR: u64 = 512;

/// Feature bits of the block device (§5.2.3).
pub mod feature {
    pub use softdpu_virtio::feature::*;

    /// `size_max` is valid.
    pub const SIZE_MAX: u64 = 1 << 1;
    /// `seg_max` is valid.
    pub const SEG_MAX: u64 = 1 << 2;
    /// The device is read-only.
    pub const RO: u64 = 1 << 5;
    /// `blk_size` is valid.
    pub const BLK_SIZE: u64 = 1 << 6;
    /// Flush requests are understood.
    pub const FLUSH: u64 = 1 << 9;
    /// `topology` is valid.
    pub const TOPOLOGY: u64 = 1 << 10;
    /// The driver may switch the cache between write-back and write-through.
    pub const CONFIG_WCE: u64 = 1 << 11;
    /// There are `num_queues` request queues.
    pub const MQ: u64 = 1 << 12;
    /// Discard requests are understood.
    pub const DISCARD: u64 = 1 << 13;
    /// Write-zeroes requests are understood.
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// Request types (§5.2.6).
pub mod request {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Make completed writes durable.
    pub const FLUSH: u32 = 4;
    /// Fetch the serial number.
    pub const GET_ID: u32 = 8;
    /// Tell that ranges are no longer needed.
    pub const DISCARD: u32 = 11;
    /// Write zeroes to ranges.
    pub const WRITE_ZEROES: u32 = 13;

    /// Bytes of the header: type, reserved, sector.
    pub const HEADER: usize = 16;
    /// Bytes of `struct virtio_blk_discard_write_zeroes`.
    pub const SEGMENT: usize = 16;
    /// The unmap flag of such a segment; all other bits are reserved.
    pub const SEGMENT_UNMAP: u32 = 1;
    /// Bytes of the device ID string.
    pub const ID: usize = 20;
}

/// Offsets in `struct virtio_blk_config` (§5.2.4).
pub mod config {
    /// le64, sectors.
    pub const CAPACITY: usize = 0;
    /// le32, bytes in a segment.
    pub const SIZE_MAX: usize = 8;
    /// le32, segments in a request.
    pub const SEG_MAX: usize = 12;
    /// le32, bytes.
    pub const BLK_SIZE: usize = 20;
    /// u8, log2 of logical blocks in a physical block.
    pub const PHYSICAL_BLOCK_EXP: usize = 24;
    /// u8, logical blocks before the first aligned one.
    pub const ALIGNMENT_OFFSET: usize = 25;
    /// le16, logical blocks.
    pub const MIN_IO_SIZE: usize = 26;
    /// le32, logical blocks.
    pub const OPT_IO_SIZE: usize = 28;
    /// u8, 1: write-back, 0: write-through. The only field a driver may write.
    pub const WRITEBACK: usize = 32;
    /// le16.
    pub const NUM_QUEUES: usize = 34;
    /// le32, sectors.
    pub const MAX_DISCARD_SECTORS: usize = 36;
    /// le32.
    pub const MAX_DISCARD_SEG: usize = 40;
    /// le32, sectors.
    pub const DISCARD_SECTOR_ALIGNMENT: usize = 44;
    /// le32, sectors.
    pub const MAX_WRITE_ZEROES_SECTORS: usize = 48;
    /// le32.
    pub const MAX_WRITE_ZEROES_SEG: usize = 52;
    /// u8, 1: write-zeroes with unmap may deallocate.
    pub const WRITE_ZEROES_MAY_UNMAP: usize = 56;
    /// Bytes of the whole structure, secure erase and zoned fields included. Those are not offered and read as zero: a
    /// front end that asks for the structure of its own headers, be they older or newer, gets an answer.
    pub const SIZE: usize = 96;
}
