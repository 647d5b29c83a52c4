//! Saved state: what a driver has read or negotiated.

use serde::{Deserialize, Serialize};

use super::Net;
use crate::saved::{self, RestoreError};

/// The state of a device, to be restored on the other side of an upgrade or a migration.
///
/// Readers ignore fields they do not know and take fields that are missing as their defaults, so a release reads the
/// state of the one before and of the one after. Version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetState {
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

impl NetState {
    /// The version written.
    pub const VERSION: u16 = 1;
}

impl Net {
    /// Its state now.
    pub fn save(&self) -> NetState {
        NetState {
            version: NetState::VERSION,
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
    pub fn restore(&self, state: &NetState) -> Result<(), RestoreError> {
        let config = &self.config;
        saved::check(state.version, NetState::VERSION, state.features, self.features())?;
        saved::check_promises([
            ("queue_pairs", state.queue_pairs.into(), config.queue_pairs.into()),
            ("queue_size", state.queue_size.into(), config.queue_size.into()),
            ("mtu", state.mtu.into(), config.mtu.into()),
        ])
    }
}
