//! What `network.load` is answered with.

use std::collections::BTreeMap;

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

/// What is loaded of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkEntries {
    /// Guests on other hosts.
    pub endpoints: u64,
    /// Routes.
    pub routes: u64,
}
