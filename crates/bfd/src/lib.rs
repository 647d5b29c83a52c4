//! Bidirectional Forwarding Detection (RFC 5880): whether a neighbour still forwards, known within some hundred
//! milliseconds.
//!
//! ```text
//!  datagrams ──▶ ControlPacket::parse ──▶ Session::receive ──▶ reply to a poll, change of state
//!  clock     ──▶ Session::poll        ──▶ packet that is due, detection time that has passed
//! ```
//!
//! - [`packet`]: the control packet, read from a hostile network and written
//! - [`session`]: the state machine of RFC 5880 §6.8 in asynchronous mode. Time and randomness come in as arguments,
//!   packets and events go out as values: no socket, no clock, no thread
//!
//! Echo, demand mode, authentication and point-to-multipoint are not spoken: a session never asks for them, and drops
//! packets that need them.

#![forbid(unsafe_code)]

pub mod packet;
pub mod session;

pub use packet::{ControlPacket, Diagnostic, PacketError, State};
pub use session::{Refused, Session, SessionParameters, SessionSnapshot};

/// UDP port of control packets over one hop (RFC 5881 §4).
pub const SINGLE_HOP_PORT: u16 = 3784;
/// UDP port of control packets over several hops (RFC 5883 §5).
pub const MULTIHOP_PORT: u16 = 4784;
/// The UDP ports that control packets may come from (RFC 5881 §4).
pub const SOURCE_PORTS: std::ops::RangeInclusive<u16> = 49152..=65535;
/// The TTL or hop limit of packets over one hop, at both ends (RFC 5881 §5: GTSM, RFC 5082).
pub const SINGLE_HOP_TTL: u8 = 255;
