//! `network.endpoints`: guests on other hosts.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ApiError, ErrorCode};
use softdpu_site::{Endpoint, endpoint_from_json};

/// Which guests of a network come, go and move. All of it or nothing: what is to go goes first, so one that moves to
/// another host is in both lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndpointChange {
    /// The network.
    pub network: String,
    /// Those that come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub add: Vec<Endpoint>,
    /// One address each of those that go.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<IpAddr>,
}

/// The same before the entries are read.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Unread {
    network: String,
    #[serde(default)]
    add: Vec<Value>,
    #[serde(default)]
    remove: Vec<String>,
}

impl EndpointChange {
    /// Reads the entries; errors name the entry by its place in its list.
    pub(super) fn decode(Unread { network, add, remove }: Unread) -> Result<EndpointChange, ApiError> {
        let mut wrong = Vec::new();
        let mut added = Vec::with_capacity(add.len());
        for (at, entry) in add.iter().enumerate() {
            match endpoint_from_json(entry) {
                Ok(endpoint) => added.push(endpoint),
                Err(problems) => wrong.extend(problems.iter().map(|problem| format!("add[{at}]: {problem}"))),
            }
        }
        let mut removed = Vec::with_capacity(remove.len());
        for (at, text) in remove.iter().enumerate() {
            match text.parse() {
                Ok(address) => removed.push(address),
                Err(_) => wrong.push(format!("remove[{at}]: found {text:?}, expected an IPv4 or IPv6 address")),
            }
        }
        // A list of a thousand wrong entries has one cause.
        let more = wrong.len().saturating_sub(MOST_ERRORS);
        wrong.truncate(MOST_ERRORS);
        if more > 0 {
            wrong.push(format!("and {more} more"));
        }
        match wrong.as_slice() {
            [] => Ok(EndpointChange { network, add: added, remove: removed }),
            wrong => Err(ApiError::new(ErrorCode::InvalidParams, wrong.join("; "))),
        }
    }
}

/// Entries that an error names.
const MOST_ERRORS: usize = 10;
