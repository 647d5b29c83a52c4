//! How a core forwards.

use serde::{Deserialize, Serialize};

/// Frames by where they left to (Zephyrus §3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathCounts {
    /// To ports of this node.
    pub port: WayCounts,
    /// From ports of this node to other nodes.
    pub tunnel: WayCounts,
    /// From other nodes to other nodes.
    pub transit: WayCounts,
}

impl PathCounts {
    /// All, with what they are called.
    pub fn each(&self) -> [(&'static str, WayCounts); 3] {
        [("port", self.port), ("tunnel", self.tunnel), ("transit", self.transit)]
    }
}

/// Frames by the datapath that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WayCounts {
    /// Switch tier only: nothing is kept of them.
    pub switch: u64,
    /// Flow tier: as for the packet before.
    pub fast: u64,
    /// Software tier: policies were asked.
    pub software: u64,
}

/// The flows of a core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowTableStatus {
    /// There are.
    pub known: u64,
    /// There can be.
    pub capacity: u64,
    /// Packets of flows for which there was no room: decided one by one.
    pub unkept: u64,
    /// Went on after a change of something else.
    pub revalidated: u64,
    /// Were computed anew after a change.
    pub recomputed: u64,
    /// Packets that were put to policies.
    pub policy: u64,
}

/// A flow that carries much.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeavyFlowStatus {
    /// The device that sends it.
    pub device: String,
    /// The network that it is in; empty, where that is no more.
    #[serde(default)]
    pub network: String,
    /// Its VNI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vni: Option<u32>,
    /// `tcp` or `udp`.
    pub protocol: String,
    /// Address and port.
    pub source: String,
    /// Address and port.
    pub destination: String,
    /// Packets a second.
    pub packets_per_s: u64,
    /// Bytes a second.
    pub bytes_per_s: u64,
    /// Of the bytes of all frames that came to the core, in thousandths; estimated.
    pub share: u16,
    /// It has a tenth of them at the least.
    pub elephant: bool,
}
