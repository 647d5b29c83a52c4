//! What goes wrong between a front end and its server.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use softdpu_memory::{AccessError, MapError, ViewError};
use softdpu_ring::QueueError;
use softdpu_transport::vhost_user::RequestId;
use softdpu_transport::vhost_user::client::ClientError;
use thiserror::Error;

/// An error of a front end.
#[derive(Debug, Error)]
pub enum FrontEndError {
    /// There is no server at the socket.
    #[error("cannot connect to {path}: {source}")]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The socket failed in the middle.
    #[error("{path}: {doing}: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the front end was doing.
        doing: String,
        /// The reason.
        source: io::Error,
    },
    /// The server closed the connection.
    #[error("{path}: the server closed the connection while {doing}")]
    Closed {
        /// The socket.
        path: PathBuf,
        /// What the front end was doing.
        doing: String,
    },
    /// The server did not answer.
    #[error("{path}: no answer to {request} within {waited:?}")]
    NoAnswer {
        /// The socket.
        path: PathBuf,
        /// The request.
        request: RequestId,
        /// How long the front end waited.
        waited: Duration,
    },
    /// The server answered with bytes that do not decode.
    #[error("{path}: {source}")]
    Answer {
        /// The socket.
        path: PathBuf,
        /// The reason.
        source: ClientError,
    },
    /// The server sent bytes that are no vhost-user message.
    #[error("{path}: the server sent no vhost-user message: {reason}")]
    Framing {
        /// The socket.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The server answered with a message of another kind.
    #[error("{path}: the answer to {request} is of another kind, or lacks its descriptor")]
    Kind {
        /// The socket.
        path: PathBuf,
        /// The request.
        request: RequestId,
    },
    /// The server does not offer a feature that is required.
    #[error("{path} does not offer {feature}; it offers {offered}")]
    Missing {
        /// The socket.
        path: PathBuf,
        /// What is required.
        feature: String,
        /// What the server offers.
        offered: String,
    },
    /// The options contradict each other or a limit.
    #[error("{0}")]
    Options(String),
    /// Guest memory cannot be made, or has no room left.
    #[error("making {bytes} bytes of guest memory: {reason}")]
    Memory {
        /// Number of bytes.
        bytes: u64,
        /// The reason.
        reason: String,
    },
    /// The ring cannot be laid out.
    #[error("laying out a ring: {0}")]
    Ring(#[from] QueueError),
    /// An access outside of the guest memory.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// No request completed in time.
    #[error("queue {queue}: {outstanding} requests in flight, none completed within {waited:?}")]
    NoCompletion {
        /// The queue.
        queue: u16,
        /// Requests in flight.
        outstanding: usize,
        /// How long the front end waited.
        waited: Duration,
    },
    /// The ring has no room for another request.
    #[error("queue {queue} has no room for another request: {outstanding} are in flight")]
    Full {
        /// The queue.
        queue: u16,
        /// Requests in flight.
        outstanding: usize,
    },
    /// An eventfd cannot be made.
    #[error("making an eventfd: {0}")]
    Doorbell(io::Error),
}

impl FrontEndError {
    pub(super) fn memory(bytes: u64) -> impl Fn(&dyn std::fmt::Display) -> FrontEndError {
        move |reason| FrontEndError::Memory { bytes, reason: reason.to_string() }
    }
}

impl From<(u64, MapError)> for FrontEndError {
    fn from((bytes, error): (u64, MapError)) -> Self {
        FrontEndError::memory(bytes)(&error)
    }
}

impl From<(u64, ViewError)> for FrontEndError {
    fn from((bytes, error): (u64, ViewError)) -> Self {
        FrontEndError::memory(bytes)(&error)
    }
}
