//! How requests and volumes fail.

use std::io;

use rustix::io::Errno;
use thiserror::Error;

/// Why a request failed. The guest sees an I/O error; this is for counters, status and the log.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum IoError {
    /// The back end has no space left (ENOSPC, EDQUOT, EFBIG).
    #[error("no space left on the back end")]
    NoSpace,
    /// The back end reported an error.
    #[error("the back end reported: {}", io::Error::from_raw_os_error(*errno))]
    Device {
        /// Its errno.
        errno: i32,
    },
    /// No answer in time.
    #[error("no answer from the back end within the volume's timeout")]
    Timeout,
    /// Not all of the range is on the volume.
    #[error("the range is not inside the volume")]
    OutOfRange,
    /// A write to a volume that is read-only.
    #[error("the volume is read-only")]
    ReadOnly,
    /// The back end cannot do that.
    #[error("the back end does not support this operation")]
    Unsupported,
    /// The volume has failed for good, or was detached.
    #[error("the volume is gone")]
    Gone,
}

impl IoError {
    /// The error for an errno of the back end.
    pub fn from_errno(errno: i32) -> Self {
        // Errnos are 1 to 4095; a server may say anything.
        let errno = if (1..4096).contains(&errno) { errno } else { rustix::io::Errno::IO.raw_os_error() };
        match rustix::io::Errno::from_raw_os_error(errno) {
            rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT | rustix::io::Errno::FBIG => IoError::NoSpace,
            rustix::io::Errno::OPNOTSUPP => IoError::Unsupported,
            rustix::io::Errno::ROFS => IoError::ReadOnly,
            _ => IoError::Device { errno },
        }
    }
}

/// Why a volume could not be opened, activated or changed.
#[derive(Debug, Error)]
pub enum VolumeError {
    /// The specification cannot be met.
    #[error("volume '{volume}': {reason}")]
    Spec {
        /// Its name.
        volume: String,
        /// What is wrong and what would be right.
        reason: String,
    },
    /// The operating system refused.
    #[error("volume '{volume}': cannot {what}: {source}")]
    Os {
        /// Its name.
        volume: String,
        /// What was tried.
        what: String,
        /// The error.
        source: io::Error,
    },
    /// A volume does not get smaller: a guest may use what would be cut off.
    #[error("volume '{volume}' has {size} bytes and cannot shrink to {asked}: its guest may use what would be cut off")]
    Shrink {
        /// Its name.
        volume: String,
        /// Its size, bytes.
        size: u64,
        /// The size asked for, bytes.
        asked: u64,
    },
    /// Requests need the fence.
    #[error("volume '{volume}' is not active: activate it first, so that no writer before us is left")]
    NotActive {
        /// Its name.
        volume: String,
    },
    /// The NBD server cannot be reached or does not speak as it should.
    #[error("volume '{volume}': NBD server {server}: {reason}")]
    Server {
        /// Its name.
        volume: String,
        /// The server as configured.
        server: String,
        /// What went wrong.
        reason: String,
    },
    /// No io_uring.
    #[error("cannot set up io_uring (Linux 5.19 or later is needed, and kernel.io_uring_disabled = 0): {0}")]
    Ring(io::Error),
    /// A core lacks an io_uring, an epoll instance or an eventfd, as this process has as many files open as it may.
    #[error("a core has no descriptor left: raise the limit of open files (LimitNOFILE, ulimit -Hn): {0}")]
    Descriptors(io::Error),
}

impl VolumeError {
    pub(crate) fn os(volume: &str, what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        VolumeError::Os { volume: volume.into(), what: what.into(), source: source.into() }
    }

    /// Of what a core waits and works with, which could not be set up.
    pub(crate) fn ring(error: io::Error) -> Self {
        match Errno::from_io_error(&error) {
            Some(Errno::MFILE | Errno::NFILE) => VolumeError::Descriptors(error),
            _ => VolumeError::Ring(error),
        }
    }

    pub(crate) fn spec(volume: &str, reason: impl Into<String>) -> Self {
        VolumeError::Spec { volume: volume.into(), reason: reason.into() }
    }
}
