//! The device as its control side sees it: features, configuration space, growing.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use thiserror::Error;

use super::abi::{SECTOR, config, feature};
use super::config::check_capacity;
use super::{BlockConfig, BlockConfigError, Cache, Requests};

/// What may change while requests run.
#[derive(Debug)]
pub(super) struct Shared {
    /// Bytes.
    pub(super) capacity: AtomicU64,
    /// The `writeback` field.
    pub(super) writeback: AtomicBool,
}

/// A virtio-blk device: what it offers, what its configuration space says.
#[derive(Debug)]
pub struct Block {
    pub(super) config: BlockConfig,
    pub(super) shared: Arc<Shared>,
}

impl Block {
    /// A device of this configuration.
    ///
    /// # Errors
    /// As [`BlockConfig::check`].
    pub fn new(config: BlockConfig) -> Result<Self, BlockConfigError> {
        config.check()?;
        let shared = Arc::new(Shared {
            capacity: AtomicU64::new(config.capacity),
            writeback: AtomicBool::new(config.write_cache == Cache::WriteBack),
        });
        Ok(Block { config, shared })
    }

    /// The configuration it was made with. The capacity may have grown since: see [`capacity`](Self::capacity).
    pub fn config(&self) -> &BlockConfig {
        &self.config
    }

    /// Bytes it has now.
    pub fn capacity(&self) -> u64 {
        self.shared.capacity.load(Ordering::Acquire)
    }

    /// Whether the `writeback` field says write-back.
    pub fn writeback(&self) -> bool {
        self.shared.writeback.load(Ordering::Acquire)
    }

    /// Feature bits offered; those of the transport come on top.
    pub fn features(&self) -> u64 {
        let config = &self.config;
        let mut bits = feature::VERSION_1
            | feature::RING_INDIRECT_DESC
            | feature::RING_EVENT_IDX
            | feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::TOPOLOGY
            | feature::FLUSH
            | feature::CONFIG_WCE;
        let mut offer = |condition: bool, bit: u64| {
            if condition {
                bits |= bit;
            }
        };
        offer(config.packed, feature::RING_PACKED);
        offer(config.size_max.is_some(), feature::SIZE_MAX);
        offer(config.queues > 1, feature::MQ);
        offer(config.read_only, feature::RO);
        offer(config.discard.is_some() && !config.read_only, feature::DISCARD);
        offer(config.write_zeroes.is_some() && !config.read_only, feature::WRITE_ZEROES);
        bits
    }

    /// Copies the configuration space from `offset` to `out`.
    ///
    /// # Errors
    /// Where the range is not within the space.
    pub fn read_config(&self, offset: u32, out: &mut [u8]) -> Result<(), ConfigSpaceError> {
        let range = within(offset, out.len())?;
        out.copy_from_slice(&self.config_space()[range]);
        Ok(())
    }

    /// Writes to the configuration space: 0 or 1 to `writeback`, for drivers that negotiated CONFIG_WCE. Requests
    /// parsed from then on follow it.
    ///
    /// # Errors
    /// Any other field or value.
    pub fn write_config(&self, offset: u32, bytes: &[u8]) -> Result<(), ConfigSpaceError> {
        within(offset, bytes.len())?;
        match bytes {
            [] => Ok(()),
            [value] if offset as usize == config::WRITEBACK => {
                if *value > 1 {
                    return Err(ConfigSpaceError::Value(*value));
                }
                self.shared.writeback.store(*value == 1, Ordering::Release);
                Ok(())
            }
            _ => Err(ConfigSpaceError::ReadOnly { offset, len: bytes.len() }),
        }
    }

    /// Makes the device larger. The volume has to be that large before; tell the driver by a configuration change
    /// notification after.
    ///
    /// # Errors
    /// Where it would shrink, or `capacity` is not a multiple of the block size.
    pub fn grow(&self, capacity: u64) -> Result<(), GrowError> {
        check_capacity(capacity, self.config.block_size)?;
        let refused = |current| GrowError::Shrink { current, capacity };
        self.shared
            .capacity
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |current| (capacity >= current).then_some(capacity))
            .map_err(refused)?;
        Ok(())
    }

    /// The driver reset the device: the cache mode is as configured again.
    pub fn reset(&self) {
        self.shared.writeback.store(self.config.write_cache == Cache::WriteBack, Ordering::Release);
    }

    /// A parser for one queue of a driver that accepted `negotiated`. Bits that are not offered are ignored.
    pub fn requests(&self, negotiated: u64) -> Requests {
        let negotiated = negotiated & self.features();
        if negotiated & feature::CONFIG_WCE != 0 && negotiated & feature::FLUSH == 0 {
            // §5.2.5.2: the device initialises writeback to 0.
            self.shared.writeback.store(false, Ordering::Release);
        }
        Requests::new(&self.config, Arc::clone(&self.shared), negotiated)
    }

    fn config_space(&self) -> [u8; config::SIZE] {
        let c = &self.config;
        let mut space = [0; config::SIZE];
        let mut put = |offset: usize, bytes: &[u8]| space[offset..offset + bytes.len()].copy_from_slice(bytes);
        put(config::CAPACITY, &(self.capacity() / SECTOR).to_le_bytes());
        put(config::SIZE_MAX, &c.size_max.unwrap_or(0).to_le_bytes());
        put(config::SEG_MAX, &c.seg_max.to_le_bytes());
        put(config::BLK_SIZE, &c.block_size.to_le_bytes());
        put(config::PHYSICAL_BLOCK_EXP, &[c.topology.physical_block_exp]);
        put(config::ALIGNMENT_OFFSET, &[c.topology.alignment_offset]);
        put(config::MIN_IO_SIZE, &c.topology.min_io_blocks.to_le_bytes());
        put(config::OPT_IO_SIZE, &c.topology.opt_io_blocks.to_le_bytes());
        put(config::WRITEBACK, &[self.writeback().into()]);
        put(config::NUM_QUEUES, &c.queues.to_le_bytes());
        if let Some(limits) = c.discard.filter(|_| !c.read_only) {
            put(config::MAX_DISCARD_SECTORS, &limits.max_sectors.to_le_bytes());
            put(config::MAX_DISCARD_SEG, &1u32.to_le_bytes());
            let wanted = limits.alignment_sectors;
            let alignment = wanted.checked_next_multiple_of(c.block_size / SECTOR as u32).unwrap_or(wanted);
            put(config::DISCARD_SECTOR_ALIGNMENT, &alignment.to_le_bytes());
        }
        if let Some(limits) = c.write_zeroes.filter(|_| !c.read_only) {
            put(config::MAX_WRITE_ZEROES_SECTORS, &limits.max_sectors.to_le_bytes());
            put(config::MAX_WRITE_ZEROES_SEG, &1u32.to_le_bytes());
            put(config::WRITE_ZEROES_MAY_UNMAP, &[limits.may_unmap.into()]);
        }
        space
    }
}

fn within(offset: u32, len: usize) -> Result<std::ops::Range<usize>, ConfigSpaceError> {
    let start = offset as usize;
    match start.checked_add(len) {
        Some(end) if end <= config::SIZE => Ok(start..end),
        _ => Err(ConfigSpaceError::Beyond { offset, len }),
    }
}

/// An access to the configuration space that was refused.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum ConfigSpaceError {
    /// Not within the space.
    #[error("{len} bytes at offset {offset} of a configuration space of {} bytes", config::SIZE)]
    Beyond {
        /// Where it began.
        offset: u32,
        /// Its length.
        len: usize,
    },
    /// A write to what a driver may not change.
    #[error(
        "write of {len} bytes at offset {offset}; a driver may write only `writeback`, 1 byte at offset {}",
        config::WRITEBACK
    )]
    ReadOnly {
        /// Where it began.
        offset: u32,
        /// Its length.
        len: usize,
    },
    /// A cache mode that does not exist.
    #[error("writeback cannot be {0}: 0 is write-through, 1 is write-back")]
    Value(u8),
}

/// Why a device does not grow.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum GrowError {
    /// The new capacity is smaller.
    #[error("the device has {current} bytes and cannot shrink to {capacity}: its guest may use all of them")]
    Shrink {
        /// Bytes it has.
        current: u64,
        /// Bytes asked for.
        capacity: u64,
    },
    /// Not a whole number of blocks.
    #[error(transparent)]
    Capacity(#[from] BlockConfigError),
}
