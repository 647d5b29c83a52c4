//! Why a scenario ended: one sentence, and what was being attempted around it.

use std::fmt;

/// What went wrong, for a person to read. `Debug` prints the sentence too, so that a test that returns it reads well.
#[derive(thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    /// A failure that is described by `text`.
    pub fn new(text: impl Into<String>) -> Failure {
        Failure(text.into())
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says what was attempted when something failed.
pub trait Context<T> {
    /// Turns the error into a [`Failure`] that starts with `what`.
    fn context(self, what: impl fmt::Display) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Context<T> for Result<T, E> {
    fn context(self, what: impl fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| Failure(format!("{what}: {error}")))
    }
}
