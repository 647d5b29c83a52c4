//! A virtio-blk device as configured: its model on its volume, and what vhost-user has to know of it.

use serde::{Deserialize, Serialize};
use softdpu_device::block::{
    Block, BlockConfig, BlockConfigError, BlockState, Cache, DiscardLimits, Serial, SerialError, Topology,
    WriteZeroesLimits,
};
use softdpu_storage::{Volume, VolumeLimits};
use softdpu_transport::vhost_user::{DeviceModel, ProtocolFeatures};
use thiserror::Error;

use softdpu_site as config;

/// Why a disk cannot be made.
#[derive(Debug, Error)]
pub(super) enum DiskError {
    /// Its settings do not fit its volume.
    #[error(transparent)]
    Config(#[from] BlockConfigError),
    /// Its serial number.
    #[error(transparent)]
    Serial(#[from] SerialError),
}

/// What a device has to know of its volume to answer its driver. Saved with the session, so that a device goes on
/// before its volume is open again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Geometry {
    /// Bytes.
    size: u64,
    limits: VolumeLimits,
    read_only: bool,
    write_through: bool,
}

impl Geometry {
    pub(super) fn of(volume: &Volume) -> Geometry {
        Geometry {
            size: volume.size(),
            limits: *volume.limits(),
            read_only: volume.read_only(),
            write_through: volume.spec().write_through,
        }
    }
}

/// The control side of a virtio-blk device.
pub(super) struct Disk {
    pub block: Block,
    /// What it is made for.
    pub geometry: Geometry,
}

/// Bytes per sector of the virtio-blk configuration space (virtio 1.3 §5.2.4).
const SECTOR: u64 = 512;

fn sectors(bytes: u64, block_size: u32) -> u32 {
    let whole = bytes / u64::from(block_size) * u64::from(block_size) / SECTOR;
    u32::try_from(whole).unwrap_or(u32::MAX / 8 * 8).max(block_size / SECTOR as u32)
}

impl Disk {
    pub(super) fn new(blk: &config::VirtioBlk, geometry: Geometry) -> Result<Disk, DiskError> {
        let Geometry { size, limits, read_only, write_through } = geometry;
        let block_size = limits.block_size;
        let mut config = BlockConfig::new(size);
        config.block_size = block_size;
        config.topology = Topology {
            physical_block_exp: (limits.preferred_block / block_size).max(1).ilog2() as u8,
            ..Topology::default()
        };
        config.read_only = blk.read_only || read_only;
        config.queues = blk.queues;
        config.queue_size = blk.queue_size;
        config.seg_max = blk.seg_max;
        config.serial = blk.serial.parse::<Serial>()?;
        config.write_cache = if write_through { Cache::WriteThrough } else { Cache::WriteBack };
        config.discard = limits.discard.map(|range| DiscardLimits {
            max_sectors: sectors(range.max_bytes, block_size),
            alignment_sectors: (range.alignment.max(block_size) / SECTOR as u32).max(1),
        });
        config.write_zeroes = Some(WriteZeroesLimits {
            max_sectors: sectors(limits.write_zeroes.max_bytes, block_size),
            may_unmap: limits.discard.is_some(),
        });
        config.packed = blk.packed;
        Ok(Disk { block: Block::new(config)?, geometry })
    }

    /// Its volume has grown.
    pub(super) fn grow(&mut self, size: u64) -> Result<(), String> {
        self.block.grow(size).map_err(|error| error.to_string())?;
        // The session that is saved next says the new capacity: what the device is made of then has to have room for
        // it.
        self.geometry.size = size;
        Ok(())
    }

    /// Goes on as the device that a driver was using.
    pub(super) fn restore(&self, state: &BlockState) -> Result<(), String> {
        self.block.restore(state).map_err(|error| error.to_string())
    }
}

impl DeviceModel for Disk {
    fn features(&self) -> u64 {
        self.block.features()
    }

    fn protocol_features(&self) -> ProtocolFeatures {
        ProtocolFeatures::BLOCK
    }

    fn queue_limit(&self) -> u16 {
        self.block.config().queues
    }

    fn queue_size_limit(&self) -> u16 {
        self.block.config().queue_size
    }

    fn read_config(&self, offset: u32, into: &mut [u8]) -> Result<(), String> {
        // The model knows its fields; what a front end reads behind them is zero.
        into.fill(0);
        let known = softdpu_device::block::abi::config::SIZE.saturating_sub(offset as usize).min(into.len());
        self.block.read_config(offset, &mut into[..known]).map_err(|error| error.to_string())
    }
}
