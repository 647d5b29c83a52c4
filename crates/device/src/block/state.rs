//! Saved state: what a driver was told, and what it changed.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};

use super::{Block, BlockConfig};
use crate::saved::{self, RestoreError};

/// The state of a device, to be restored on the other side of an upgrade or a migration.
///
/// Readers ignore fields they do not know and take fields that are missing as their defaults, so a release reads the
/// state of the one before and of the one after. Version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockState {
    /// Version of the format.
    pub version: u16,
    /// Feature bits that were offered; the driver may have accepted any of them.
    pub features: u64,
    /// Bytes the driver was told last.
    pub capacity: u64,
    /// The `writeback` field.
    pub writeback: bool,
    /// Bytes of a logical block.
    pub block_size: u32,
    /// Request queues.
    pub queues: u16,
    /// Data segments in a request.
    pub seg_max: u32,
    /// Sectors in a discard request; 0: not offered.
    #[serde(default)]
    pub max_discard_sectors: u32,
    /// Sectors in a write-zeroes request; 0: not offered.
    #[serde(default)]
    pub max_write_zeroes_sectors: u32,
}

impl BlockState {
    /// The version written.
    pub const VERSION: u16 = 1;
}

fn discard_sectors(config: &BlockConfig) -> u32 {
    config.discard.map_or(0, |limits| limits.max_sectors)
}

fn write_zeroes_sectors(config: &BlockConfig) -> u32 {
    config.write_zeroes.map_or(0, |limits| limits.max_sectors)
}

impl Block {
    /// Its state now.
    pub fn save(&self) -> BlockState {
        BlockState {
            version: BlockState::VERSION,
            features: self.features(),
            capacity: self.capacity(),
            writeback: self.writeback(),
            block_size: self.config.block_size,
            queues: self.config.queues,
            seg_max: self.config.seg_max,
            max_discard_sectors: discard_sectors(&self.config),
            max_write_zeroes_sectors: write_zeroes_sectors(&self.config),
        }
    }

    /// Takes over the state of a device that a driver was using.
    ///
    /// The capacity becomes what that driver knows; where the volume has grown since, [`grow`](Block::grow) and a
    /// notification tell it.
    ///
    /// # Errors
    /// Where this device cannot keep what the driver was promised; nothing has changed then.
    pub fn restore(&self, state: &BlockState) -> Result<(), RestoreError> {
        let config = &self.config;
        saved::check(state.version, BlockState::VERSION, state.features, self.features())?;
        if state.block_size != config.block_size {
            return Err(RestoreError::BlockSize { saved: state.block_size, configured: config.block_size });
        }
        super::config::check_capacity(state.capacity, config.block_size)?;
        saved::check_promises([
            ("capacity", state.capacity, config.capacity),
            ("queues", state.queues.into(), config.queues.into()),
            ("seg_max", state.seg_max.into(), config.seg_max.into()),
            ("discard.max_sectors", state.max_discard_sectors.into(), discard_sectors(config).into()),
            ("write_zeroes.max_sectors", state.max_write_zeroes_sectors.into(), write_zeroes_sectors(config).into()),
        ])?;
        self.shared.capacity.store(state.capacity, Ordering::Release);
        self.shared.writeback.store(state.writeback, Ordering::Release);
        Ok(())
    }
}
