//! What goes wrong around a measurement.

use std::path::PathBuf;

use thiserror::Error;

/// Why something could not be measured.
#[derive(Debug, Error)]
pub enum SetupError {
    /// A program did not start.
    #[error("cannot start {program}: {reason}")]
    Start {
        /// The program.
        program: PathBuf,
        /// The reason.
        reason: String,
    },
    /// A server did not become ready.
    #[error("waiting for {what} of {name}: {why}; the end of its output:\n    {log}")]
    NotReady {
        /// The server.
        name: String,
        /// What was waited for.
        what: String,
        /// What happened instead.
        why: String,
        /// The end of its output.
        log: String,
    },
    /// A temporary folder or file.
    #[error("making temporary files: {0}")]
    Folder(String),
    /// A CPU cannot be used.
    #[error("{0}")]
    Cpu(String),
    /// A measurement failed.
    #[error("{subject}, {case}: {source}")]
    Load {
        /// The subject.
        subject: String,
        /// The case.
        case: String,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Output could not be written.
    #[error("writing {path}: {reason}")]
    Output {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The question makes no sense.
    #[error("{0}")]
    Plan(String),
}
