//! What saved states of all devices have in common.

use thiserror::Error;

use crate::block::BlockConfigError;

/// Why a saved state cannot be restored.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum RestoreError {
    /// Written by a release too far away.
    #[error("saved state has version {found}; this release reads 1 to {newest}: upgrade step by step")]
    Version {
        /// The state's version.
        found: u16,
        /// The newest that is read.
        newest: u16,
    },
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

/// Checks the version of a saved state, where this release writes `written`, and the feature bits that were offered,
/// where `offered` are offered now.
pub(crate) fn check(found: u16, written: u16, features: u64, offered: u64) -> Result<(), RestoreError> {
    let newest = written + 1;
    if found == 0 || found > newest {
        return Err(RestoreError::Version { found, newest });
    }
    match features & !offered {
        0 => Ok(()),
        missing => Err(RestoreError::Features(missing)),
    }
}

/// Checks numbers that a driver was told, by the name of the field: (field, saved, configured).
pub(crate) fn check_promises(promises: impl IntoIterator<Item = (&'static str, u64, u64)>) -> Result<(), RestoreError> {
    for (field, saved, configured) in promises {
        if saved > configured {
            return Err(RestoreError::Promise { field, saved, configured });
        }
    }
    Ok(())
}
