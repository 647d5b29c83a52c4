//! `network.entries`: single loaded entries of a network.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use softdpu_site::MacAddress;

use super::{ApiError, ErrorCode, Unload};

/// The parameters of `network.entries`: loaded entries of a network that come, go and are replaced. All of them or
/// none; each entry once. They are beside what a file has loaded, and kept like that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryChanges {
    /// The network.
    pub network: String,
    /// What becomes of which entries; errors name one by its place, from 0.
    pub changes: Vec<EntryEdit>,
}

/// What becomes of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EntryOp {
    /// It comes; an error where there is one.
    Add,
    /// It comes, or takes the place of the one that there is.
    Replace,
    /// It goes; an error where there is none.
    Delete,
}

impl EntryOp {
    /// As it is written.
    const fn name(self) -> &'static str {
        match self {
            EntryOp::Add => "add",
            EntryOp::Replace => "replace",
            EntryOp::Delete => "delete",
        }
    }
}

/// A change of one entry: a route, which has a `prefix`, or a guest on another host, which has an `address`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EntryEdit {
    /// What becomes of it: `add`, `replace` or `delete`.
    pub op: EntryOp,
    /// The route's prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<IpNet>,
    /// The guest's address in the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IpAddr>,
    /// The guest's MAC address; by default the one that is derived from network and address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac: Option<MacAddress>,
    /// The tunnel end point of the host that the entry leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<IpAddr>,
    /// The ECMP group of the network that a route leads to instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecmp: Option<String>,
}

impl EntryEdit {
    /// Of the route to `prefix`, which leads nowhere yet.
    pub const fn route(op: EntryOp, prefix: IpNet) -> EntryEdit {
        EntryEdit { op, prefix: Some(prefix), address: None, mac: None, host: None, ecmp: None }
    }

    /// Of the guest with `address`, which is nowhere yet.
    pub const fn guest(op: EntryOp, address: IpAddr) -> EntryEdit {
        EntryEdit { op, prefix: None, address: Some(address), mac: None, host: None, ecmp: None }
    }

    /// The operation, and what it is of.
    fn subject(&self) -> String {
        let op = self.op.name();
        match (self.prefix, self.address) {
            (Some(prefix), _) => format!("{op} {prefix}"),
            (None, Some(address)) => format!("{op} {address}"),
            (None, None) => op.to_owned(),
        }
    }

    /// What is wrong with it by itself.
    fn problem(&self) -> Option<String> {
        let is_gone = self.op == EntryOp::Delete;
        let targets = usize::from(self.host.is_some()) + usize::from(self.ecmp.is_some());
        match (self.prefix, self.address) {
            (Some(_), Some(_)) | (None, None) => {
                Some("expected a `prefix`, of a route, or an `address`, of a guest".to_owned())
            }
            (Some(prefix), None) if prefix.trunc() != prefix => {
                Some(format!("{prefix} has bits set behind its length: the prefix is {}", prefix.trunc()))
            }
            _ if is_gone && (targets > 0 || self.mac.is_some()) => Some("what is deleted leads nowhere".to_owned()),
            _ if is_gone => None,
            (Some(_), None) if self.mac.is_some() => Some("a route has no `mac`".to_owned()),
            (Some(_), None) if targets != 1 => Some("a route leads to a `host` or to an `ecmp` group".to_owned()),
            (None, Some(_)) if self.host.is_none() || targets != 1 => {
                Some("a guest is on a `host`, and on nothing else".to_owned())
            }
            _ => None,
        }
    }
}

impl EntryChanges {
    /// Whether each change is one, by itself.
    pub(super) fn checked(self) -> Result<EntryChanges, ApiError> {
        let wrong = self.changes.iter().enumerate().find_map(|(at, edit)| Some((at, edit.problem()?)));
        match wrong {
            Some((at, problem)) => Err(self.error(ErrorCode::InvalidParams, at, problem)),
            None => Ok(self),
        }
    }

    /// That the change at place `at` is wrong.
    pub fn error(&self, code: ErrorCode, at: usize, problem: impl std::fmt::Display) -> ApiError {
        let subject = self.changes.get(at).map(EntryEdit::subject).unwrap_or_default();
        let network = &self.network;
        ApiError::new(
            code,
            format!("changes[{at}] ({subject}): {problem}, in network '{network}'; nothing was changed"),
        )
    }
}

impl From<&Unload> for EntryChanges {
    fn from(unload: &Unload) -> EntryChanges {
        let guests = unload.addresses.iter().map(|address| EntryEdit::guest(EntryOp::Delete, *address));
        let routes = unload.prefixes.iter().map(|prefix| EntryEdit::route(EntryOp::Delete, prefix.trunc()));
        EntryChanges { network: unload.network.clone(), changes: guests.chain(routes).collect() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(change: serde_json::Value) -> Result<EntryChanges, String> {
        let delete = json!({"op": "delete", "prefix": "10.0.0.0/8"});
        let changes: EntryChanges = serde_json::from_value(json!({ "network": "acme", "changes": [delete, change] }))
            .map_err(|error| error.to_string())?;
        changes.checked().map_err(|error| error.message)
    }

    #[test]
    fn a_change_says_what_is_wrong_with_it_and_where_it_is() {
        for good in [
            json!({"op": "add", "prefix": "172.16.0.0/12", "host": "192.0.2.2"}),
            json!({"op": "replace", "prefix": "::/0", "ecmp": "far"}),
            json!({"op": "add", "address": "10.0.0.3", "host": "192.0.2.2"}),
            json!({"op": "delete", "address": "10.0.0.3"}),
        ] {
            read(good.clone()).unwrap_or_else(|error| panic!("{good}: {error}"));
        }
        for (wrong, why) in [
            (json!({"op": "add", "prefix": "172.16.0.1/12", "host": "192.0.2.2"}), "the prefix is 172.16.0.0/12"),
            (json!({"op": "add", "prefix": "172.16.0.0/12"}), "a route leads to a `host` or to an `ecmp` group"),
            (json!({"op": "add", "host": "192.0.2.2"}), "expected a `prefix`, of a route, or an `address`"),
            (json!({"op": "delete", "prefix": "172.16.0.0/12", "host": "192.0.2.2"}), "leads nowhere"),
            (json!({"op": "add", "address": "10.0.0.3", "ecmp": "far"}), "a guest is on a `host`"),
        ] {
            let error = read(wrong.clone()).unwrap_err();
            assert!(error.starts_with("changes[1] (") && error.contains(why), "{wrong}: {error}");
            assert!(error.ends_with("in network 'acme'; nothing was changed"), "{error}");
        }
    }
}
