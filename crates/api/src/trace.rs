//! What is asked for when frames are to be seen, or to be brought in.

use serde::{Deserialize, Serialize};
use softdpu_vpc::trace::Filter;

use super::{ApiError, ErrorCode};
use softdpu_site::Bytes;

/// The name of the underlay's port.
pub const UNDERLAY: &str = "underlay";

/// What the comment of a captured frame begins with that gives its identifier: the core's number, and its own. Its
/// steps follow, a comment each: `+TIME ns | STEP`.
pub const IDENTIFIER: &str = "trace ";

/// The most bytes of frames that a trace may keep waiting.
const MOST_BUFFER: u64 = 1 << 30;

/// Which frames a trace shows (`trace.packet`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PacketTrace {
    /// Devices, or `underlay`; none: all ports, now and later.
    pub ports: Vec<String>,
    /// Which frames: [`softdpu_vpc::trace::HELP`]. None: all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Which way they go.
    pub direction: Directions,
    /// Only those that are dropped.
    pub drops: bool,
    /// With the way through the tiers of those that come in; no others are shown.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tiers: bool,
    /// Bytes that are kept of a frame.
    pub snaplen: u32,
    /// How much may wait to be read; what comes then is lost, and counted.
    pub buffer: Bytes,
}

/// Which way frames go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Directions {
    /// From the port into the node.
    In,
    /// By the port out of the node.
    Out,
    /// Either.
    #[default]
    Both,
}

impl Default for PacketTrace {
    fn default() -> Self {
        PacketTrace {
            ports: Vec::new(),
            filter: None,
            direction: Directions::Both,
            drops: false,
            tiers: false,
            // As tcpdump: more than any frame has.
            snaplen: 262_144,
            buffer: Bytes(16 << 20),
        }
    }
}

impl PacketTrace {
    /// The filter, and whether everything else can be.
    pub fn check(&self) -> Result<Option<Filter>, ApiError> {
        let bad = |message: String| ApiError::new(ErrorCode::InvalidParams, message);
        if self.snaplen == 0 {
            return Err(bad("snaplen: at least 1 byte of a frame is kept".to_owned()));
        }
        if !(1..=MOST_BUFFER).contains(&self.buffer.0) {
            return Err(bad("buffer: expected 1 byte to 1 GiB".to_owned()));
        }
        if self.tiers && self.direction == Directions::Out {
            return Err(bad(
                "tiers: the way of a frame is told where it comes in; it has none where it leaves".to_owned()
            ));
        }
        let filter = self.filter.as_deref().map(str::parse).transpose();
        filter.map_err(|error| bad(format!("filter: {error}")))
    }
}

/// The result of `trace.replay` when all frames are in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replayed {
    /// Frames that came in by the port, whatever became of them.
    pub frames: u64,
}
