//! What can go wrong on the link. After any of these the link is of no more use.

use rustix::io::Errno;
use thiserror::Error;

/// Why a [`Link`](super::Link) is of no more use.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The other process has closed its end or is dead.
    #[error("the other end of the link is closed")]
    Closed,
    /// The socket failed.
    #[error("the link's socket failed: {0}")]
    Socket(#[from] Errno),
    /// A frame is longer than any message is.
    #[error("a frame of {found} bytes: more than the limit of {limit}")]
    FrameTooLong {
        /// Bytes announced or to be sent.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// A frame has more descriptors than any message has.
    #[error("a frame with {found} file descriptors: more than the limit of {limit}")]
    TooManyFds {
        /// Descriptors announced, arrived or to be sent.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The kernel could not install all descriptors that were passed (MSG_CTRUNC).
    #[error("file descriptors were lost on the way: raise the limit of open files (LimitNOFILE, ulimit -Hn)")]
    FdsLost,
    /// A message came, or was to be sent, with another number of descriptors than it speaks of.
    #[error("a message with {found} file descriptors speaks of {expected}")]
    FdsMismatch {
        /// What it speaks of.
        expected: usize,
        /// What it came with.
        found: usize,
    },
    /// A frame is not a message of this release.
    #[error("a frame that is not a message: {0}")]
    Malformed(#[from] serde_json::Error),
}
