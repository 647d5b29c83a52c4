//! Saved state: what a driver was told, and what it changed.

use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::{Block, BlockConfig, BlockConfigError};

/// The state of a device, to be restored on the other side of an upgrade or a migration.
///
/// Readers ignore fields they do not know and take fields that are missing as their defaults, so a release reads the
/// state of the one before and of the one after. Version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
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

impl State {
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
    pub fn save(&self) -> State {
        State {
            version: State::VERSION,
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
    pub fn restore(&self, state: &State) -> Result<(), RestoreError> {
        use RestoreError as E;
        let config = &self.config;
        if state.version == 0 || state.version > State::VERSION + 1 {
            return Err(E::Version(state.version));
        }
        let missing = state.features & !self.features();
        if missing != 0 {
            return Err(E::Features(missing));
        }
        if state.block_size != config.block_size {
            return Err(E::BlockSize { saved: state.block_size, configured: config.block_size });
        }
        super::config::check_capacity(state.capacity, config.block_size)?;
        if state.capacity > config.capacity {
            return Err(E::Promise { field: "capacity", saved: state.capacity, configured: config.capacity });
        }
        let promises = [
            ("queues", u32::from(state.queues), u32::from(config.queues)),
            ("seg_max", state.seg_max, config.seg_max),
            ("discard.max_sectors", state.max_discard_sectors, discard_sectors(config)),
            ("write_zeroes.max_sectors", state.max_write_zeroes_sectors, write_zeroes_sectors(config)),
        ];
        for (field, saved, configured) in promises {
            if saved > configured {
                return Err(E::Promise { field, saved: saved.into(), configured: configured.into() });
            }
        }
        self.shared.capacity.store(state.capacity, Ordering::Release);
        self.shared.writeback.store(state.writeback, Ordering::Release);
        Ok(())
    }
}

/// Why a state cannot be restored.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RestoreError {
    /// Written by a release too far away.
    #[error("saved state has version {0}; this release reads 1 to {newest}: upgrade step by step", newest = State::VERSION + 1)]
    Version(u16),
    /// Features the driver may use are gone.
    #[error("saved state offers feature bits {0:#x} that this configuration does not: configure the device as it was")]
    Features(u64),
    /// Another block size.
    #[error("saved state has block size {saved}, the configuration has {configured}: they must be equal")]
    BlockSize {
        /// In the state.
        saved: u32,
        /// Here.
        configured: u32,
    },
    /// Less than the driver was told.
    #[error("saved state promises {field} {saved}, the configuration allows only {configured}")]
    Promise {
        /// What.
        field: &'static str,
        /// In the state.
        saved: u64,
        /// Here.
        configured: u64,
    },
    /// A capacity that cannot be.
    #[error(transparent)]
    Capacity(#[from] BlockConfigError),
}
