//! What functions in the path of interfaces' frames say.

use serde::{Deserialize, Serialize};

use softdpu_site::Function;

/// A function.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionStatus {
    /// Its name.
    pub name: String,
    /// The only tenant whose devices may have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Its kind: `monitor`, `analytics` or `firewall`.
    pub kind: String,
    /// The devices whose frames pass it.
    pub devices: Vec<String>,
    /// Flow records and entries of windows that were lost between the cores and whoever exports or shows them.
    pub lost: u64,
    /// Of a monitor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub monitor: Option<MonitorStatus>,
    /// Of an analysis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub analytics: Option<AnalyticsStatus>,
    /// Of a firewall.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firewall: Option<FirewallStatus>,
}

impl FunctionStatus {
    /// One of which no data plane has reported yet.
    pub fn declared(config: &Function) -> FunctionStatus {
        FunctionStatus {
            name: config.name.clone(),
            tenant: config.tenant.clone(),
            kind: config.kind.name().to_owned(),
            ..FunctionStatus::default()
        }
    }
}

/// A flow monitor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MonitorStatus {
    /// Where its records go.
    pub collector: String,
    /// Flows that are kept now.
    pub flows: u64,
    /// Packets in flows.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
    /// Frames that are no IP packets.
    pub others: u64,
    /// Records that the cores made.
    pub records: u64,
    /// Of those: early, as a table was full.
    pub early: u64,
    /// Records that were sent to the collector.
    pub exported: u64,
    /// Messages that carried them.
    pub messages: u64,
    /// Records in messages that the kernel did not take.
    pub dropped: u64,
    /// Why it did not take the last of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Real-time analytics.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AnalyticsStatus {
    /// Which frames; none: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// What is heavy: `bytes` or `packets`.
    pub rank: String,
    /// Seconds of a window.
    pub window_s: f64,
    /// Packets that came.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
    /// Packets that the filter wanted.
    pub matched: u64,
    /// Their bytes.
    pub matched_bytes: u64,
    /// The last whole window in which there was something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<WindowStatus>,
}

/// A window of an analysis.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowStatus {
    /// How many seconds ago it ended.
    pub ended_s: f64,
    /// Packets in it that the filter wanted.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The heaviest, one list for each of `by`.
    pub top: Vec<TopStatus>,
}

/// The heaviest of a window.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopStatus {
    /// What entries are kept for.
    pub by: String,
    /// The heaviest first.
    pub items: Vec<TopItem>,
}

/// One of the heaviest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopItem {
    /// What.
    pub key: String,
    /// Bytes or packets: at most that, and at least that less `error`.
    pub weight: u64,
    /// How much of it may be others'.
    pub error: u64,
}

/// A firewall.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FirewallStatus {
    /// Connections that are known.
    pub connections: u64,
    /// By rule, as written: what it decided.
    pub rules: Vec<RuleStatus>,
    /// What no rule decided.
    pub default: RuleStatus,
    /// What passed as part of a known connection.
    pub established: RuleStatus,
    /// What was dropped for no rule: against its connection.
    pub refused: RuleStatus,
    /// What was dropped although a rule allows it, without room for its connection.
    #[serde(default)]
    pub no_room: RuleStatus,
    /// Everything that was dropped.
    pub dropped: RuleStatus,
}

/// Packets and bytes that a rule decided about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RuleStatus {
    /// What it says, of a rule.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub rule: String,
    /// Packets.
    pub packets: u64,
    /// Their bytes, from the IP header on.
    pub bytes: u64,
}
