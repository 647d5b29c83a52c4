//! What would become of a packet, and what way it would go.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};
use softdpu_vpc::trace;
use softdpu_vpc::{ProbeService, Verdict};

use super::{ApiError, ErrorCode};

/// The source port of a packet that is made up, unless it is said: the first of the dynamic ones (RFC 6335 §6).
const SOURCE_PORT: u16 = 49_152;
/// Bytes behind the transport header, at most: with it, no packet is longer than any.
const MOST_PAYLOAD: u16 = 65_000;
/// TCP's flags from bit 0 up.
const FLAGS: [&str; 8] = ["fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr"];

/// A packet to ask about (`trace.explain`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PathQuestion {
    /// A device, or an address of one; with `host`, an address there.
    pub from: String,
    /// The other host by whose tunnel the packet comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<IpAddr>,
    /// Where the packet goes.
    pub to: IpAddr,
    /// The network, where several have a guest with the address `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// What it carries.
    #[serde(default)]
    pub protocol: Protocol,
    /// Destination port of TCP and UDP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// Source port of TCP and UDP, 49152 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// TCP flags, `syn` by default: words joined by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_flags: Option<String>,
    /// Bytes behind the transport header.
    #[serde(default)]
    pub payload: u16,
}

/// What a packet carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Protocol {
    /// An echo request, of the family of the addresses.
    #[default]
    Icmp,
    /// A TCP segment.
    Tcp,
    /// A UDP datagram.
    Udp,
}

impl PathQuestion {
    /// What the packet carries, if everything fits.
    pub fn service(&self) -> Result<ProbeService, ApiError> {
        let bad = |message: String| Err(ApiError::new(ErrorCode::InvalidParams, message));
        if self.payload > MOST_PAYLOAD {
            return bad(format!("payload: {} bytes are more than {MOST_PAYLOAD}", self.payload));
        }
        if self.tcp_flags.is_some() && self.protocol != Protocol::Tcp {
            return bad("tcp-flags: only a TCP segment has them".to_owned());
        }
        let source = self.source_port.unwrap_or(SOURCE_PORT);
        match (self.protocol, self.port) {
            (Protocol::Icmp, None) if self.source_port.is_none() => Ok(ProbeService::Echo),
            (Protocol::Icmp, _) => bad("port: an echo has none; say `protocol` tcp or udp".to_owned()),
            (_, None) => bad("port: TCP and UDP go to a port".to_owned()),
            (Protocol::Udp, Some(port)) => Ok(ProbeService::Udp((source, port))),
            (Protocol::Tcp, Some(port)) => {
                let mut flags = 0;
                for word in self.tcp_flags.as_deref().unwrap_or("syn").split(',').map(str::trim) {
                    match FLAGS.iter().position(|flag| *flag == word) {
                        Some(bit) => flags |= 1 << bit,
                        None => return bad(format!("tcp-flags: {word:?} is none of {}", FLAGS.join(", "))),
                    }
                }
                Ok(ProbeService::Tcp { ports: (source, port), flags })
            }
        }
    }
}

/// The result of `trace.explain`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathAnswer {
    /// The device by whose port the packet would come in, or `underlay`.
    pub port: String,
    /// The packet, in words.
    pub packet: String,
    /// The data-plane core that was asked, from 0.
    pub core: usize,
    /// The core has a flow of it.
    pub flow: bool,
    /// What would become of it.
    pub outcome: PathOutcome,
    /// The port by which it would leave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Why it would be dropped: a word of `status`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Its way through the tiers.
    pub steps: Vec<PathStep>,
}

/// What would become of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathOutcome {
    /// It leaves by a port.
    Leaves,
    /// The network itself deals with it.
    Consumed,
    /// It goes nowhere.
    Dropped,
}

impl PathOutcome {
    /// Of a verdict, with the reason of a drop.
    pub fn of(verdict: &Verdict) -> (PathOutcome, Option<String>) {
        match verdict {
            Verdict::Local { .. } | Verdict::Underlay { .. } => (PathOutcome::Leaves, None),
            Verdict::Software | Verdict::Consumed => (PathOutcome::Consumed, None),
            Verdict::Drop(reason) => (PathOutcome::Dropped, Some(reason.word().to_owned())),
        }
    }
}

/// The table of the steps that say which functions are not asked.
pub const FUNCTIONS: &str = "functions";

/// A step of a packet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathStep {
    /// Nanoseconds from the packet's first step, or the time that its frame came, to this one.
    pub ns: u64,
    /// `switch-before`, `flow`, `software` or `switch-after`.
    pub tier: String,
    /// What was asked.
    pub table: String,
    /// `hit`, `miss`, `stale`, `pass`, `ask`, `drop`, `kept` or `done`.
    pub outcome: String,
    /// What it was asked for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// What was found, or done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub found: String,
    /// Versions that were compared, or kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<PathVersion>,
}

/// A version that was compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathVersion {
    /// The object that has the version.
    pub object: String,
    /// What the flow was computed from.
    pub stored: u64,
    /// What is in force.
    pub current: u64,
}

impl From<&(u64, trace::Step)> for PathStep {
    fn from((ns, step): &(u64, trace::Step)) -> PathStep {
        let version = |version: &trace::Version| PathVersion {
            object: version.object.clone(),
            stored: version.stored,
            current: version.current,
        };
        PathStep {
            ns: *ns,
            tier: step.tier.word().to_owned(),
            table: step.table.word().to_owned(),
            outcome: step.outcome.word().to_owned(),
            key: step.key.clone(),
            found: step.found.clone(),
            versions: step.versions.iter().map(version).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(text: &str) -> Result<ProbeService, String> {
        let question: PathQuestion = serde_json::from_str(text).map_err(|error| error.to_string())?;
        question.service().map_err(|error| error.to_string())
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let tcp = question(r#"{"from":"a","to":"10.0.0.3","protocol":"tcp","port":80,"tcp-flags":"fin, ack"}"#);
        assert_eq!(tcp, Ok(ProbeService::Tcp { ports: (SOURCE_PORT, 80), flags: 0x11 }));
        assert_eq!(question(r#"{"from":"a","to":"10.0.0.3"}"#), Ok(ProbeService::Echo));
        for (wrong, says) in [
            (r#"{"from":"a","to":"10.0.0.3","protocol":"udp"}"#, "port:"),
            (r#"{"from":"a","to":"10.0.0.3","port":80}"#, "port:"),
            (r#"{"from":"a","to":"10.0.0.3","protocol":"udp","port":1,"tcp-flags":"syn"}"#, "tcp-flags:"),
            (r#"{"from":"a","to":"10.0.0.3","protocol":"tcp","port":1,"tcp-flags":"sin"}"#, "\"sin\""),
            (r#"{"from":"a","to":"10.0.0.3","payload":65001}"#, "payload:"),
            (r#"{"from":"a","to":"nobody"}"#, "invalid IP address"),
        ] {
            let error = question(wrong).expect_err(wrong);
            assert!(error.contains(says), "{wrong}: {error}");
        }
    }
}
