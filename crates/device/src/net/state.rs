//! Saved state: what a driver was told.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::Net;

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
    /// Receive and transmit queues, so many of each.
    pub queue_pairs: u16,
    /// Most entries of a queue.
    pub queue_size: u16,
    /// Bytes of a frame behind its Ethernet header.
    pub mtu: u16,
}

impl State {
    /// The version written.
    pub const VERSION: u16 = 1;
}

impl Net {
    /// Its state now.
    pub fn save(&self) -> State {
        State {
            version: State::VERSION,
            features: self.features(),
            queue_pairs: self.config.queue_pairs,
            queue_size: self.config.queue_size,
            mtu: self.config.mtu,
        }
    }

    /// Whether it can go on as the device that a driver was using. Nothing of it changes while it runs, so there is
    /// nothing to take over.
    ///
    /// # Errors
    /// Where this device cannot keep what the driver was promised.
    pub fn restore(&self, state: &State) -> Result<(), RestoreError> {
        use RestoreError as E;
        if state.version == 0 || state.version > State::VERSION + 1 {
            return Err(E::Version(state.version));
        }
        let missing = state.features & !self.features();
        if missing != 0 {
            return Err(E::Features(missing));
        }
        let config = &self.config;
        for (field, saved, configured) in [
            ("queue_pairs", state.queue_pairs, config.queue_pairs),
            ("queue_size", state.queue_size, config.queue_size),
            ("mtu", state.mtu, config.mtu),
        ] {
            if saved > configured {
                return Err(E::Promise { field, saved, configured });
            }
        }
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
    /// Less than the driver was told.
    #[error("saved state promises {field} {saved}, the configuration allows only {configured}")]
    Promise {
        /// What.
        field: &'static str,
        /// In the state.
        saved: u16,
        /// Here.
        configured: u16,
    },
}
