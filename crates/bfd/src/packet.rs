//! The control packet (RFC 5880 §4.1).

use std::fmt;
use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Bytes of a control packet without an authentication section.
pub const PACKET_BYTES: usize = 24;
/// The version of the protocol.
const VERSION: u8 = 1;

const POLL: u8 = 1 << 5;
const FINAL: u8 = 1 << 4;
const CONTROL_PLANE_INDEPENDENT: u8 = 1 << 3;
const AUTHENTICATION: u8 = 1 << 2;
const DEMAND: u8 = 1 << 1;
const MULTIPOINT: u8 = 1;

/// State of a session (RFC 5880 §4.1, "Sta").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// An administrator holds the session down. It says nothing of the path.
    AdminDown,
    /// The path is down, or was never up.
    Down,
    /// The neighbour is heard, and has not said that it hears this side.
    Init,
    /// Both sides hear each other.
    Up,
}

impl State {
    const ALL: [State; 4] = [State::AdminDown, State::Down, State::Init, State::Up];

    /// As `status` shows it.
    pub fn as_str(self) -> &'static str {
        match self {
            State::AdminDown => "admin-down",
            State::Down => "down",
            State::Init => "init",
            State::Up => "up",
        }
    }
}

/// Why a session went down last (RFC 5880 §4.1, "Diag").
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Diagnostic {
    /// It did not.
    None,
    /// No packet came within the detection time.
    DetectionTimeExpired,
    /// The neighbour says that its session is down.
    NeighbourDown,
    /// An administrator took it down.
    AdministrativelyDown,
    /// A reason that the neighbour has and this side never gives: its number.
    Other(u8),
}

impl fmt::Display for Diagnostic {
    /// As `status` shows it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Diagnostic::None => f.write_str("none"),
            Diagnostic::DetectionTimeExpired => f.write_str("detection-time-expired"),
            Diagnostic::NeighbourDown => f.write_str("neighbour-down"),
            Diagnostic::AdministrativelyDown => f.write_str("administratively-down"),
            Diagnostic::Other(number) => write!(f, "{number}"),
        }
    }
}

impl Diagnostic {
    fn number(self) -> u8 {
        match self {
            Diagnostic::None => 0,
            Diagnostic::DetectionTimeExpired => 1,
            Diagnostic::NeighbourDown => 3,
            Diagnostic::AdministrativelyDown => 7,
            Diagnostic::Other(number) => number & 0x1f,
        }
    }

    fn from_number(number: u8) -> Diagnostic {
        match number {
            0 => Diagnostic::None,
            1 => Diagnostic::DetectionTimeExpired,
            3 => Diagnostic::NeighbourDown,
            7 => Diagnostic::AdministrativelyDown,
            other => Diagnostic::Other(other),
        }
    }
}

/// A control packet that obeys RFC 5880 §6.8.6's rules for its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlPacket {
    /// Why the sender's session went down last.
    pub diagnostic: Diagnostic,
    /// State of the sender's session.
    pub state: State,
    /// The sender asks for an answer with `is_final`.
    pub poll: bool,
    /// This answers a poll.
    pub is_final: bool,
    /// The sender's session outlives its control plane.
    pub control_plane_independent: bool,
    /// The sender is in demand mode.
    pub demand: bool,
    /// Packets that may be lost in a row.
    pub detect_multiplier: u8,
    /// The sender's number for the session.
    pub my_discriminator: NonZeroU32,
    /// The receiver's number for the session; none while the sender does not know it.
    pub your_discriminator: Option<NonZeroU32>,
    /// The shortest interval at which the sender wants to send, microseconds.
    pub desired_min_tx: u32,
    /// The shortest interval at which the sender can receive, microseconds; 0: it wants no packets.
    pub required_min_rx: u32,
}

/// Why a datagram is no control packet that may be looked at further.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PacketError {
    /// Fewer bytes than a control packet has, or than its length field says.
    #[error("{found} bytes, a control packet has {expected}")]
    Short {
        /// Bytes it has.
        found: usize,
        /// Bytes it would have to have.
        expected: usize,
    },
    /// Another version than 1.
    #[error("version {0}, not 1")]
    Version(u8),
    /// The length field is below 24.
    #[error("a length field of {0}, less than 24")]
    Length(u8),
    /// The detection multiplier is zero.
    #[error("a detection multiplier of zero")]
    Multiplier,
    /// The multipoint bit is set.
    #[error("the multipoint bit is set")]
    Multipoint,
    /// The sender's discriminator is zero.
    #[error("a discriminator of zero")]
    Discriminator,
    /// Authenticated: no session here uses authentication.
    #[error("it is authenticated, and no session here is")]
    Authenticated,
    /// The receiver's discriminator is zero in a state in which the sender has to know it.
    #[error("it names no session, and is neither down nor admin-down")]
    Unaddressed,
}

impl ControlPacket {
    /// Reads a datagram by the rules of RFC 5880 §6.8.6 that need no session.
    ///
    /// # Errors
    /// [`PacketError`]: the datagram is to be dropped and counted.
    pub fn parse(datagram: &[u8]) -> Result<ControlPacket, PacketError> {
        let Some(fixed) = datagram.first_chunk::<PACKET_BYTES>() else {
            return Err(PacketError::Short { found: datagram.len(), expected: PACKET_BYTES });
        };
        let [first, flags, detect_multiplier, length, ..] = *fixed;
        if first >> 5 != VERSION {
            return Err(PacketError::Version(first >> 5));
        }
        if usize::from(length) < PACKET_BYTES {
            return Err(PacketError::Length(length));
        }
        if usize::from(length) > datagram.len() {
            return Err(PacketError::Short { found: datagram.len(), expected: length.into() });
        }
        if detect_multiplier == 0 {
            return Err(PacketError::Multiplier);
        }
        if flags & MULTIPOINT != 0 {
            return Err(PacketError::Multipoint);
        }
        if flags & AUTHENTICATION != 0 {
            return Err(PacketError::Authenticated);
        }
        let word = |at: usize| u32::from_be_bytes([fixed[at], fixed[at + 1], fixed[at + 2], fixed[at + 3]]);
        let packet = ControlPacket {
            diagnostic: Diagnostic::from_number(first & 0x1f),
            state: State::ALL[usize::from(flags >> 6)],
            poll: flags & POLL != 0,
            is_final: flags & FINAL != 0,
            control_plane_independent: flags & CONTROL_PLANE_INDEPENDENT != 0,
            demand: flags & DEMAND != 0,
            detect_multiplier,
            my_discriminator: NonZeroU32::new(word(4)).ok_or(PacketError::Discriminator)?,
            your_discriminator: NonZeroU32::new(word(8)),
            desired_min_tx: word(12),
            required_min_rx: word(16),
        };
        if packet.your_discriminator.is_none() && matches!(packet.state, State::Init | State::Up) {
            return Err(PacketError::Unaddressed);
        }
        Ok(packet)
    }

    /// The packet as it is sent. Echo is never asked for: its interval is 0.
    pub fn to_bytes(self) -> [u8; PACKET_BYTES] {
        let state = State::ALL.iter().position(|state| *state == self.state).unwrap_or(0) as u8;
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = state << 6
            | flag(self.poll, POLL)
            | flag(self.is_final, FINAL)
            | flag(self.control_plane_independent, CONTROL_PLANE_INDEPENDENT)
            | flag(self.demand, DEMAND);
        let mut bytes = [0; PACKET_BYTES];
        bytes[0] = VERSION << 5 | self.diagnostic.number();
        bytes[1] = flags;
        bytes[2] = self.detect_multiplier;
        bytes[3] = PACKET_BYTES as u8;
        bytes[4..8].copy_from_slice(&self.my_discriminator.get().to_be_bytes());
        bytes[8..12].copy_from_slice(&self.your_discriminator.map_or(0, NonZeroU32::get).to_be_bytes());
        bytes[12..16].copy_from_slice(&self.desired_min_tx.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.required_min_rx.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests;
