//! What `network.load` is answered with.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The result of `network.load`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadResult {
    /// Guests on other hosts.
    pub endpoints: u64,
    /// Routes.
    pub routes: u64,
    /// Hosts that they lead to.
    pub hosts: u64,
    /// By network.
    pub networks: BTreeMap<String, NetworkEntries>,
    /// How long it took from the file to the cores, microseconds.
    pub took_us: u64,
}

/// The parameters of `network.unload`: loaded entries of a network that go. All of them or none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unload {
    /// The network.
    pub network: String,
    /// Addresses of guests on other hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
    /// Prefixes of routes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefixes: Vec<IpNet>,
}

/// What is loaded of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkEntries {
    /// Guests on other hosts.
    pub endpoints: u64,
    /// Routes.
    pub routes: u64,
}
