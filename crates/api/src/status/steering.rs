//! On which cores packets from tunnels are worked on.

use serde::{Deserialize, Serialize};

/// Where packets from tunnels go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeringStatus {
    /// `off`, `manual` or `auto`.
    pub mode: String,
    /// What each core has to do with it.
    pub cores: Vec<SteeringShare>,
    /// Buckets, of 256, whose packets stay where they are read.
    pub staying: u32,
    /// Rules that are in force, before the buckets.
    pub rules: Vec<SteeringRuleStatus>,
    /// Buckets and elephants that were moved automatically.
    pub moved: u64,
}

/// A core's share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeringShare {
    /// The CPU.
    pub cpu: u32,
    /// Buckets that go to it, of 256.
    pub buckets: u32,
    /// Packets that it read and handed to other cores.
    pub handed: u64,
    /// Packets that other cores have read and it worked on.
    pub taken: u64,
}

/// A rule that is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SteeringRuleStatus {
    /// Which packets.
    pub what: String,
    /// The CPU that they go to.
    pub cpu: u32,
    /// Whether it was made for an elephant by the data plane, and goes when that is none any more.
    pub automatic: bool,
    /// Packets that it took.
    pub packets: u64,
}
