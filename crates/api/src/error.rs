//! Why a request was not done.

use std::fmt;

use serde::{Deserialize, Serialize};
use softdpu_site::Problem;

/// Why a request was not done, for programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorCode {
    /// The line is not a request.
    BadRequest,
    /// The protocol's version is not this daemon's.
    UnsupportedVersion,
    /// There is no such method.
    UnknownMethod,
    /// The parameters are wrong.
    InvalidParams,
    /// Something that is named does not exist.
    NotFound,
    /// Something of that name exists already.
    Exists,
    /// It is in use.
    Busy,
    /// It contradicts the rest of the site, or cannot be done at all, such as shrinking a volume.
    Refused,
    /// The data plane cannot do it now, for instance while it restarts.
    Unavailable,
    /// It was tried and failed, for instance because a file could not be created.
    Failed,
    /// A code of a later release: within a version of the protocol, codes may be added.
    #[serde(untagged)]
    Other(String),
}

/// Why a request was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct ApiError {
    /// For programs.
    pub code: ErrorCode,
    /// For people: what is wrong.
    pub message: String,
    /// For people: what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl fmt::Display for ApiError {
    /// Message and hint. A code is for programs, unless this one does not know it: then the code may be all that tells
    /// what is wrong.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        if let ErrorCode::Other(code) = &self.code {
            write!(f, " [{code}]")?;
        }
        match &self.hint {
            Some(hint) => write!(f, " ({hint})"),
            None => Ok(()),
        }
    }
}

impl ApiError {
    /// An error without a hint.
    pub fn new(code: ErrorCode, message: impl Into<String>) -> ApiError {
        ApiError { code, message: message.into(), hint: None }
    }

    /// With what to do about it.
    pub fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = Some(hint.into());
        self
    }

    /// What [`Site::problems`](softdpu_site::Site::problems) or the reader found, as one error.
    pub fn from_problems(code: ErrorCode, problems: &[Problem]) -> ApiError {
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        ApiError::new(code, lines.join("; "))
    }
}
