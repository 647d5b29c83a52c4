//! Why a load ended early.

use std::time::Duration;

use thiserror::Error;

use crate::FrontEndError;
use crate::net::CorruptFrame;

/// Why a load ended early.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The front end.
    #[error(transparent)]
    FrontEnd(#[from] FrontEndError),
    /// A request failed.
    #[error(
        "a request at queue {queue} ended with status {status} (0 OK, 1 I/O error, 2 unsupported, 255 none written)"
    )]
    Status {
        /// The queue.
        queue: u16,
        /// The status byte.
        status: u8,
    },
    /// A frame arrived otherwise than it was sent.
    #[error("of {sent} frames sent {received} had arrived: {source}")]
    Corrupt {
        /// Frames sent.
        sent: u64,
        /// Frames received before it.
        received: u64,
        /// What is wrong.
        source: CorruptFrame,
    },
    /// No frame arrives.
    #[error(
        "of {sent} frames sent {received} arrived, none for {waited:?}; the server has not taken {outstanding} of them"
    )]
    Stalled {
        /// Frames sent.
        sent: u64,
        /// Frames received.
        received: u64,
        /// Frames that the sender's queue still holds.
        outstanding: usize,
        /// How long the load waited.
        waited: Duration,
    },
    /// The load makes no sense, or cannot run here.
    #[error("{0}")]
    Load(String),
}
