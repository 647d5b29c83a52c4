//! Requests and responses as they are written on a line.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{ApiError, ErrorCode, Request, VERSION};

/// What joins a response to its request: chosen by the client, repeated by the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Id {
    /// A number.
    Number(u64),
    /// A string.
    Text(String),
}

/// A line that is no request, with the id to answer to, as far as one could be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The id, if it could be read.
    pub id: Option<Id>,
    /// What is wrong.
    pub error: ApiError,
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Response {
    /// Of the request; `None` only where it could not be read.
    pub id: Option<Id>,
    /// What came of it.
    pub outcome: Result<Value, ApiError>,
    /// Another response to this request follows.
    pub more: bool,
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Id::Number(number) => number.fmt(f),
            Id::Text(text) => text.fmt(f),
        }
    }
}

/// Reads a request from a line without its newline. A device's socket that is not given is put into `run_directory`.
pub fn decode_request(line: &[u8], run_directory: &Path) -> Result<(Id, Request), Rejected> {
    let bad = |message: String| ApiError::new(ErrorCode::BadRequest, message);
    let value: Value = serde_json::from_slice(line)
        .map_err(|error| Rejected { id: None, error: bad(format!("the line is not JSON: {error}")) })?;
    let id = value.get("id").and_then(|id| serde_json::from_value::<Id>(id.clone()).ok());
    let reject = |error| Rejected { id: id.clone(), error };
    let Value::Object(object) = &value else {
        return Err(reject(bad("the line is not a JSON object".to_owned())));
    };
    match object.get("softdpu") {
        Some(version) if version.as_u64() == Some(VERSION) => {}
        Some(version) => {
            let message = format!("protocol version {version} is not supported: this daemon speaks version {VERSION}");
            return Err(reject(ApiError::new(ErrorCode::UnsupportedVersion, message)));
        }
        None => return Err(reject(bad(format!("\"softdpu\":{VERSION} is missing")))),
    }
    if let Some(key) = object.keys().find(|key| !["softdpu", "id", "method", "params"].contains(&key.as_str())) {
        return Err(reject(bad(format!("unknown member {key:?}"))));
    }
    let Some(id) = id.clone() else {
        return Err(reject(bad("\"id\" is missing, or neither a string nor a whole number".to_owned())));
    };
    let Some(Value::String(method)) = object.get("method") else {
        return Err(reject(bad("\"method\" is missing or not a string".to_owned())));
    };
    let none = json!({});
    let parameters = object.get("params").unwrap_or(&none);
    match Request::read(method, parameters, run_directory) {
        Ok(request) => Ok((id, request)),
        Err(error) => Err(reject(error)),
    }
}

/// Writes a request on a line, with its newline.
pub fn encode_request(id: &Id, request: &Request) -> String {
    encode_call(id, request.method(), &request.parameters())
}

/// Writes a request on a line from its parts, for parameters whose defaults the daemon fills in.
pub(super) fn encode_call(id: &Id, method: &str, parameters: &Value) -> String {
    format!("{}\n", json!({ "softdpu": VERSION, "id": id, "method": method, "params": parameters }))
}

/// Writes a response on a line, with its newline.
pub fn encode_response(response: &Response) -> String {
    let mut message = json!({ "softdpu": VERSION, "id": response.id });
    match &response.outcome {
        Ok(result) => message["result"] = result.clone(),
        Err(error) => message["error"] = json!(error),
    }
    if response.more {
        message["more"] = Value::Bool(true);
    }
    format!("{message}\n")
}

/// Reads a response from a line without its newline. The error says what is wrong with it.
pub fn decode_response(line: &[u8]) -> Result<Response, String> {
    #[derive(Deserialize)]
    struct Message {
        softdpu: u64,
        id: Option<Id>,
        result: Option<Value>,
        error: Option<ApiError>,
        #[serde(default)]
        more: bool,
    }
    let message: Message = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    if message.softdpu != VERSION {
        return Err(format!("it has version {}, this program speaks version {VERSION}", message.softdpu));
    }
    let outcome = match (message.result, message.error) {
        (Some(result), None) => Ok(result),
        (None, Some(error)) => Err(error),
        _ => return Err("it has neither a result nor an error, or both".to_owned()),
    };
    Ok(Response { id: message.id, outcome, more: message.more })
}
